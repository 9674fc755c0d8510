//! Checks of a block's validation status in the index, by itself and against its parent's (Core `chain.h`,
//! `BlockStatus`; `validation.cpp`, `CheckBlockIndex`). A node trusts this status without reading the block.

use apus_chain::Params;
use apus_datadir::{
    IndexEntry, STATUS_ASSUMED, STATUS_OPT_WITNESS, VALID_CHAIN, VALID_MASK, VALID_SCRIPTS,
    VALID_TRANSACTIONS, VALID_TREE,
};

/// Facts about the node's history that allow some statuses.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Past {
    /// The node deleted block files.
    pub(super) pruned: bool,
    /// The node started from a snapshot, and may lack the blocks below it.
    pub(super) snapshot: bool,
}

/// The entry of the parent block.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct ParentEntry {
    pub(super) height: u32,
    pub(super) status: u32,
}

impl ParentEntry {
    const fn validity(self) -> u32 {
        self.status & VALID_MASK
    }
}

/// Describes a contradiction in an entry, if there is one.
pub(super) fn contradiction(
    entry: &IndexEntry,
    parent: Option<ParentEntry>,
    past: Past,
) -> Option<String> {
    let (validity, count) = (entry.validity(), entry.tx_count);
    if !(VALID_TREE..=VALID_SCRIPTS).contains(&validity) {
        return Some(format!(
            "the index states validity level {validity}, but a node writes only levels 2 to 5"
        ));
    }
    if entry.undo.is_some() && entry.data.is_none() {
        return Some(
            "the index has a position for the undo data, but no position for the block".to_owned(),
        );
    }
    if entry.data.is_some() && (count == 0 || validity < VALID_TRANSACTIONS) {
        return Some(format!(
            "the index has a position for the block, {count} transactions and validity level {validity}, but a \
             node that stores a block records at least one transaction and level 3"
        ));
    }
    let seen = validity >= VALID_TRANSACTIONS;
    // A version of Core that assumed the blocks below a snapshot valid recorded one transaction for each.
    let assumed = entry.status & STATUS_ASSUMED != 0;
    if assumed && count > 0 {
        return None;
    }
    if (count > 0) != seen {
        return Some(format!(
            "the index lists {count} transactions, which contradicts validity level {validity}"
        ));
    }
    if seen && entry.data.is_none() && !past.pruned {
        return Some(format!(
            "the index states validity level {validity} but has no position for the block, and the node has pruned \
             nothing"
        ));
    }
    let parent = parent.filter(|parent| {
        let assumed = parent.status & STATUS_ASSUMED != 0;
        // A node that began with a snapshot and gave it up keeps the blocks above it, without their parent.
        let missing = parent.validity() < VALID_TRANSACTIONS;
        parent.height > 0 && !past.snapshot && !assumed && !missing
    });
    parent.filter(|parent| validity >= VALID_CHAIN && parent.validity() < VALID_CHAIN).map(|parent| {
        let below = parent.validity();
        format!(
            "validity level {validity} says that the block was connected, but level {below} says that its parent \
             never was"
        )
    })
}

/// Returns whether a block lacks the mark without which a node does not start (Core `validation.cpp`,
/// `NeedsRedownload`).
pub(super) fn lacks_witness_mark(entry: &IndexEntry, params: &Params) -> bool {
    entry.height >= params.segwit_height && entry.status & STATUS_OPT_WITNESS == 0
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{BlockHash, Network};

    fn entry(status: u32, tx_count: u32) -> IndexEntry {
        let place = |bit: u32| (status & bit != 0).then_some((0, 8));
        IndexEntry {
            hash: BlockHash::ZERO,
            header: [0; 80],
            height: 5,
            status,
            tx_count,
            data: place(8),
            undo: place(16),
        }
    }

    #[test]
    fn status_written_by_nodes_is_consistent() {
        let pruned = Past { pruned: true, snapshot: false };
        let snapshot = Past { pruned: false, snapshot: true };
        let parent = |validity| Some(ParentEntry { height: 4, status: validity });
        for (status, count, below, past) in [
            (2, 0, 2, Past::default()),
            (3 | 8, 1, 2, Past::default()),
            (5 | 8 | 16 | 128, 7, 5, Past::default()),
            // Blocks that the node rejected before storing, when connecting, and later.
            (2 | 32, 0, 5, Past::default()),
            (3 | 8 | 32, 2, 5, Past::default()),
            (5 | 8 | 16 | 64, 2, 5, Past::default()),
            (5 | 128, 9, 5, pruned),
            (2, 0, 5, pruned),
            (5 | 8 | 16, 1, 2, snapshot),
            (2 | 256, 1, 2, Past::default()),
            // Above a snapshot that the node gave up.
            (5 | 8 | 16, 1, 2, Past::default()),
        ] {
            let found = contradiction(&entry(status, count), parent(below), past);
            assert_eq!(found, None, "{status} {count} {below}");
        }
        let after_genesis = ParentEntry { height: 0, status: 3 };
        assert_eq!(contradiction(&entry(5 | 24, 1), Some(after_genesis), Past::default()), None);
    }

    #[test]
    fn lies_contradict() {
        for (status, count, below) in [
            (5 | 8 | 16, 0, 5),
            (2 | 8, 1, 5),
            (5 | 16, 1, 5),
            (6 | 8 | 16, 1, 5),
            (1, 0, 5),
            (5, 1, 5),
            (3, 0, 5),
            (2, 3, 5),
            (5 | 8 | 16, 1, 3),
            (5 | 256, 0, 5),
        ] {
            let parent = ParentEntry { height: 4, status: below };
            let found = contradiction(&entry(status, count), Some(parent), Past::default());
            assert!(found.is_some(), "{status} {count} {below}");
        }
    }

    #[test]
    fn the_mark_is_wanted_from_segwit_on() {
        let (main, regtest) = (Params::of(Network::Main), Params::of(Network::Regtest));
        assert!(!lacks_witness_mark(&entry(5 | 24, 1), main));
        assert!(lacks_witness_mark(&entry(5 | 24, 1), regtest));
        assert!(!lacks_witness_mark(&entry(5 | 24 | 128, 1), regtest));
    }
}

//! What an index may say of how far a block came, by itself and beside what it says of the block before (Core
//! `chain.h`, `BlockStatus`; `validation.cpp`, `CheckBlockIndex`). A node believes it without a look at the block.

use apus_chain::Params;
use apus_datadir::{
    IndexEntry, STATUS_ASSUMED, STATUS_OPT_WITNESS, VALID_CHAIN, VALID_MASK, VALID_SCRIPTS,
    VALID_TRANSACTIONS, VALID_TREE,
};

/// What a node's own past lets its index say.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Past {
    /// The node removed block files.
    pub(super) pruned: bool,
    /// The node began with a snapshot, and may not have the blocks below it yet.
    pub(super) snapshot: bool,
}

/// What the entry of the block before says.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct Parent {
    pub(super) height: u32,
    pub(super) status: u32,
}

impl Parent {
    const fn validity(self) -> u32 {
        self.status & VALID_MASK
    }
}

/// What an entry says that cannot be so, for people.
pub(super) fn contradiction(
    entry: &IndexEntry,
    parent: Option<Parent>,
    past: Past,
) -> Option<String> {
    let (validity, count) = (entry.validity(), entry.tx_count);
    let has = |what: bool| if what { "has" } else { "does not have" };
    if !(VALID_TREE..=VALID_SCRIPTS).contains(&validity) {
        return Some(format!("it has validity level {validity}, and a node writes levels 2 to 5"));
    }
    if entry.undo.is_some() && entry.data.is_none() {
        return Some("it has a place of undo data, and none of the block".to_owned());
    }
    if entry.data.is_some() && (count == 0 || validity < VALID_TRANSACTIONS) {
        return Some(format!(
            "it has a place of the block, {count} transactions and validity level {validity}: a node that \
             stored the block knows at least one transaction and sets level 3"
        ));
    }
    // A version that took the blocks below a snapshot for valid gave each one transaction.
    if entry.status & STATUS_ASSUMED != 0 {
        return None;
    }
    let seen = validity >= VALID_TRANSACTIONS;
    if (count > 0) != seen {
        return Some(format!(
            "it {} transactions, and validity level {validity} says that it {} them",
            has(count > 0),
            has(seen)
        ));
    }
    if seen && entry.data.is_none() && !past.pruned {
        return Some(format!(
            "it has validity level {validity} and no place of the block, and the node has pruned nothing"
        ));
    }
    let parent = parent.filter(|parent| {
        let assumed = parent.status & STATUS_ASSUMED != 0;
        parent.height > 0 && !past.snapshot && !assumed
    });
    parent.filter(|parent| validity >= VALID_CHAIN && parent.validity() < VALID_CHAIN).map(|parent| {
        let below = parent.validity();
        format!(
            "validity level {validity} says that it was connected, and level {below} that the block before it \
             never was"
        )
    })
}

/// Whether a block lacks the mark without which a node does not start (Core `validation.cpp`, `NeedsRedownload`).
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
    fn what_nodes_write_contradicts_nothing() {
        let pruned = Past { pruned: true, snapshot: false };
        let snapshot = Past { pruned: false, snapshot: true };
        let parent = |validity| Some(Parent { height: 4, status: validity });
        for (status, count, below, past) in [
            (2, 0, 2, Past::default()),
            (3 | 8, 1, 2, Past::default()),
            (5 | 8 | 16 | 128, 7, 5, Past::default()),
            // Refused before it was stored, when it was connected, and later.
            (2 | 32, 0, 5, Past::default()),
            (3 | 8 | 32, 2, 5, Past::default()),
            (5 | 8 | 16 | 64, 2, 5, Past::default()),
            (5 | 128, 9, 5, pruned),
            (2, 0, 5, pruned),
            (5 | 8 | 16, 1, 2, snapshot),
            (2 | 256, 1, 2, Past::default()),
        ] {
            let found = contradiction(&entry(status, count), parent(below), past);
            assert_eq!(found, None, "{status} {count} {below}");
        }
        let after_genesis = Parent { height: 0, status: 3 };
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
        ] {
            let parent = Parent { height: 4, status: below };
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

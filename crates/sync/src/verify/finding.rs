//! [`Finding`]: something of a node's that is not what it should be, and [`Findings`], which collects them.

use apus_chain::{BlockHash, Height, KnownBlock, OutPoint};
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Kinds of findings.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// The database of the block index cannot be read.
    IndexDamaged,
    /// An entry of the index says what is not so.
    IndexEntry,
    /// What the index says of how far a block came contradicts itself, or what it says of another block.
    IndexStatus,
    /// The index lacks a mark without which a node does not start.
    WitnessMark,
    /// The index says of a block file what is not so.
    FileRecord,
    /// A flag of the index is not right.
    IndexFlag,
    /// The index marks a block as invalid, and it obeys every rule.
    MarkedInvalid,
    /// The index has a block, and it is not where it should be.
    BlockMissing,
    /// The bytes of a block are not those of its header.
    BlockDamaged,
    /// A block that the node connected breaks a rule.
    BlockInvalid,
    /// A block that the node connected has no undo data.
    UndoMissing,
    /// Undo data cannot be read.
    UndoDamaged,
    /// Undo data name other coins than those that the block spends.
    UndoWrong,
    /// The database of coins cannot be read.
    CoinsDamaged,
    /// The node was stopped while it wrote its coins.
    CoinsUnfinished,
    /// The coins are at a block that the index does not lead to.
    CoinsBlock,
    /// A coin that the blocks leave is not there.
    CoinMissing,
    /// A coin is there that the blocks do not leave.
    CoinUnknown,
    /// A coin has another height, mark, amount or script.
    CoinWrong,
    /// The proof failed, and a second look found nothing.
    Unexplained,
}

impl FindingKind {
    /// A word for reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::IndexDamaged => "index_damaged",
            Self::IndexEntry => "index_entry",
            Self::IndexStatus => "index_status",
            Self::WitnessMark => "witness_mark",
            Self::FileRecord => "file_record",
            Self::IndexFlag => "index_flag",
            Self::MarkedInvalid => "marked_invalid",
            Self::BlockMissing => "block_missing",
            Self::BlockDamaged => "block_damaged",
            Self::BlockInvalid => "block_invalid",
            Self::UndoMissing => "undo_missing",
            Self::UndoDamaged => "undo_damaged",
            Self::UndoWrong => "undo_wrong",
            Self::CoinsDamaged => "coins_damaged",
            Self::CoinsUnfinished => "coins_unfinished",
            Self::CoinsBlock => "coins_block",
            Self::CoinMissing => "coin_missing",
            Self::CoinUnknown => "coin_unknown",
            Self::CoinWrong => "coin_wrong",
            Self::Unexplained => "unexplained",
        }
    }

    /// What the node's operator can do about any of the kind.
    const fn remedy(self) -> &'static str {
        match self {
            Self::IndexDamaged
            | Self::IndexEntry
            | Self::IndexStatus
            | Self::BlockMissing
            | Self::BlockDamaged => {
                "restore the folder, or start the node with -reindex, which goes through its block files \
                 anew and downloads what is missing"
            }
            Self::WitnessMark => {
                "the node does not start on such an index: start it with -reindex, which makes the index anew"
            }
            Self::FileRecord => {
                "do not start the node as it is: it may write over blocks that it has, or remove them. Start it \
                 with -reindex, which makes the index anew, or restore the folder"
            }
            Self::IndexFlag => {
                "start the node with -reindex, which makes the index anew; with -prune it also starts as it is"
            }
            Self::MarkedInvalid => {
                "the node does not go on over this block: bitcoind -reindex forgets such marks"
            }
            Self::BlockInvalid => {
                "the node took an invalid block for valid: see that its program and machine are sound"
            }
            Self::UndoMissing | Self::UndoDamaged | Self::UndoWrong => {
                "the node cannot go back over this block: start it with -reindex, which writes undo data \
                 anew"
            }
            Self::CoinsUnfinished => "start the node, let it go on, stop it, and verify again",
            Self::CoinsDamaged
            | Self::CoinsBlock
            | Self::CoinMissing
            | Self::CoinUnknown
            | Self::CoinWrong => {
                "stop the node and make its coins anew: `apus reindex --replace`, or bitcoind \
                 -reindex-chainstate"
            }
            Self::Unexplained => "check the memory of this machine, and verify again",
        }
    }
}

/// All of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Of what kind.
    pub kind: FindingKind,
    /// How many there are, at least.
    pub count: u64,
    /// The first of them.
    pub first: FoundFault,
}

impl Finding {
    /// What the node's operator can do about it.
    pub fn remedy(&self) -> String {
        match (self.kind, self.first.hash) {
            (FindingKind::MarkedInvalid, Some(hash)) => format!(
                "the node does not go on over this block: start it, and give bitcoin-cli reconsiderblock {hash} (blocks \
                 above it lose the mark, too; other branches need the same), or start it with -reindex, which forgets \
                 all such marks. If you gave invalidateblock yourself, the node does what you wanted"
            ),
            (kind, _) => kind.remedy().to_owned(),
        }
    }
}

/// One thing that was found, as precisely as is known.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundFault {
    /// Height of the block.
    pub height: Option<Height>,
    /// Its hash.
    pub hash: Option<BlockHash>,
    /// The file.
    pub file: Option<String>,
    /// Where in it.
    pub offset: Option<u64>,
    /// The coin.
    pub outpoint: Option<OutPoint>,
    /// What is wrong.
    pub what: String,
}

impl FoundFault {
    pub(super) fn new(what: impl ToString) -> Self {
        Self { what: what.to_string(), ..Self::default() }
    }

    pub(super) fn block(self, block: KnownBlock) -> Self {
        Self { height: Some(block.height), hash: Some(block.hash), ..self }
    }

    pub(super) fn at(self, file: &Path, offset: u64) -> Self {
        Self { offset: Some(offset), ..self.of(file) }
    }

    pub(super) fn of(self, file: &Path) -> Self {
        Self { file: Some(file.display().to_string()), ..self }
    }

    pub(super) fn coin(self, outpoint: OutPoint, height: Height) -> Self {
        Self { outpoint: Some(outpoint), height: Some(height), ..self }
    }

    /// The lowest block's is the first, whichever thread comes to it first.
    fn order(&self) -> impl Ord {
        let height = self.height.unwrap_or(Height::MAX);
        (height, self.file.clone(), self.offset, self.outpoint.map(|it| (it.txid.0, it.vout)))
    }
}

/// What was found until now, from any thread.
#[derive(Default)]
pub(super) struct Findings(Mutex<BTreeMap<FindingKind, Finding>>);

impl Findings {
    fn all(&self) -> MutexGuard<'_, BTreeMap<FindingKind, Finding>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn add(&self, kind: FindingKind, found: FoundFault) {
        let mut all = self.all();
        match all.get_mut(&kind) {
            None => {
                all.insert(kind, Finding { kind, count: 1, first: found });
            }
            Some(finding) => {
                finding.count += 1;
                if found.order() < finding.first.order() {
                    finding.first = found;
                }
            }
        }
    }

    pub(super) fn has(&self, kinds: &[FindingKind]) -> bool {
        let all = self.all();
        kinds.iter().any(|kind| all.contains_key(kind))
    }

    /// One of those that were found, if any was.
    pub(super) fn first(&self) -> Option<Finding> {
        self.all().values().next().cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all().is_empty()
    }

    pub(super) fn into_all(self) -> Vec<Finding> {
        let all = self.0.into_inner().unwrap_or_else(PoisonError::into_inner);
        all.into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_the_first_whoever_comes_to_it() {
        for order in [[7, 3, 5], [3, 5, 7], [5, 7, 3]] {
            let findings = Findings::default();
            for height in order {
                let block = KnownBlock { height, hash: BlockHash::ZERO };
                findings.add(FindingKind::BlockDamaged, FoundFault::new("torn").block(block));
            }
            assert!(findings.has(&[FindingKind::UndoWrong, FindingKind::BlockDamaged]));
            assert!(!findings.has(&[FindingKind::UndoWrong]));
            let [finding] = &findings.into_all()[..] else { panic!("one kind") };
            assert_eq!((finding.count, finding.first.height), (3, Some(3)));
        }
    }
}

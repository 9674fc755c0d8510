//! [`Finding`]: a kind of problem in a node's data directory, and [`Findings`], which collects them.

use apus_chain::{BlockHash, Height, KnownBlock, OutPoint};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::atomic::AtomicU64;

/// The kind of a problem.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FindingKind {
    /// The database of the block index cannot be read.
    IndexDamaged,
    /// An entry of the index is wrong.
    IndexEntry,
    /// The validation status of a block contradicts itself or the status of another block.
    IndexStatus,
    /// The index lacks a witness mark, so that the node does not start.
    WitnessMark,
    /// The index is wrong about a block file.
    FileRecord,
    /// A flag of the index is wrong.
    IndexFlag,
    /// The index marks a block as invalid, but it obeys every rule.
    MarkedInvalid,
    /// The index lists a block that is not at its position.
    BlockMissing,
    /// The bytes of a block do not match its header.
    BlockDamaged,
    /// A block that the node connected breaks a rule.
    BlockInvalid,
    /// A block that the node connected has no undo data.
    UndoMissing,
    /// Undo data cannot be read.
    UndoDamaged,
    /// Undo data does not match the coins that the block spends.
    UndoWrong,
    /// The database of coins cannot be read.
    CoinsDamaged,
    /// The node was stopped while it wrote its coins.
    CoinsUnfinished,
    /// The coins are at a block that the index does not have.
    CoinsBlock,
    /// A coin that the blocks leave unspent is missing.
    CoinMissing,
    /// A coin exists that the blocks do not leave unspent.
    CoinUnknown,
    /// A coin has another height, coinbase flag, amount or script.
    CoinWrong,
    /// An entry of the optional index of transactions is wrong.
    TxIndex,
    /// An entry of the optional index of filters, or a filter, is wrong.
    BlockFilterIndex,
    /// A record of the optional index of coin statistics is wrong.
    CoinStatsIndex,
    /// An entry of the optional index of spent outputs is wrong.
    TxoSpenderIndex,
    /// The proof failed, and checking block by block found nothing.
    Unexplained,
}

impl FindingKind {
    /// Returns the name of the kind, as one word for reports.
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
            Self::TxIndex => "txindex",
            Self::BlockFilterIndex => "blockfilterindex",
            Self::CoinStatsIndex => "coinstatsindex",
            Self::TxoSpenderIndex => "txospenderindex",
            Self::Unexplained => "unexplained",
        }
    }

    /// Returns what the node's operator can do about this kind.
    const fn remedy(self) -> &'static str {
        match self {
            Self::IndexDamaged
            | Self::IndexEntry
            | Self::IndexStatus
            | Self::BlockMissing
            | Self::BlockDamaged => {
                "restore the folder, or start the node with -reindex, which scans its block files again and \
                 downloads what is missing"
            }
            Self::WitnessMark => {
                "the node does not start on this index: start it with -reindex, which rebuilds the index"
            }
            Self::FileRecord => {
                "do not start the node without -reindex: it may overwrite or delete blocks that it needs. Start it \
                 with -reindex, which rebuilds the index, or restore the folder"
            }
            Self::IndexFlag => {
                "start the node with -reindex, which rebuilds the index, or with -prune"
            }
            Self::MarkedInvalid => {
                "the node does not continue past this block: run `bitcoind -reindex`, which clears such marks"
            }
            Self::BlockInvalid => {
                "the node accepted an invalid block: check the node's program, and its machine's memory and disk"
            }
            Self::UndoMissing | Self::UndoDamaged | Self::UndoWrong => {
                "the node cannot disconnect this block: start it with -reindex, which rewrites undo data"
            }
            Self::CoinsUnfinished => {
                "start the node, let it catch up, stop it, then run the audit again"
            }
            Self::CoinsDamaged
            | Self::CoinsBlock
            | Self::CoinMissing
            | Self::CoinUnknown
            | Self::CoinWrong => {
                "stop the node and rebuild its coins with `apus reindex --replace` or `bitcoind -reindex-chainstate`"
            }
            Self::TxIndex
            | Self::BlockFilterIndex
            | Self::CoinStatsIndex
            | Self::TxoSpenderIndex => {
                "the node does not notice it, and gives wrong answers or stops: stop it, and rebuild this index alone"
            }
            Self::Unexplained => "check this machine's memory, then run the audit again",
        }
    }
}

/// All findings of one kind.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Finding {
    /// Their kind.
    pub kind: FindingKind,
    /// Number of faults found; the data may have more.
    pub count: u64,
    /// The first fault.
    pub first: FoundFault,
}

impl Finding {
    /// Returns what the node's operator can do about it.
    pub fn remedy(&self) -> String {
        match (self.kind, self.first.hash) {
            (FindingKind::MarkedInvalid, Some(hash)) => format!(
                "the node does not continue past this block: start it, and run `bitcoin-cli reconsiderblock \
                 {hash}` (this also clears the marks of blocks above it; repeat it for other branches), or start \
                 the node with -reindex, which clears all such marks. If you ran invalidateblock on this block \
                 yourself, the mark is intended"
            ),
            (
                kind @ (FindingKind::TxIndex
                | FindingKind::BlockFilterIndex
                | FindingKind::CoinStatsIndex
                | FindingKind::TxoSpenderIndex),
                _,
            ) => format!(
                "{} with `apus index --datadir DIR --index {} --replace`",
                kind.remedy(),
                kind.name()
            ),
            (kind, _) => kind.remedy().to_owned(),
        }
    }
}

/// A single fault, located as precisely as possible.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct FoundFault {
    /// Height of the block.
    pub height: Option<Height>,
    /// Its hash.
    pub hash: Option<BlockHash>,
    /// The file.
    pub file: Option<String>,
    /// The offset in the file.
    pub offset: Option<u64>,
    /// The coin.
    pub outpoint: Option<OutPoint>,
    /// The fault.
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

    /// Returns the sort key of findings: the fault of the lowest block comes first, even if another was found
    /// earlier.
    fn order(&self) -> impl Ord {
        let height = self.height.unwrap_or(Height::MAX);
        (height, self.file.clone(), self.offset, self.outpoint.map(|it| (it.txid.0, it.vout)))
    }
}

/// The findings so far, from all threads.
#[derive(Default)]
pub(super) struct Findings {
    all: Mutex<BTreeMap<FindingKind, Finding>>,
    /// Number of blocks whose undo data Core wrote before version 0.15, which is not checked.
    pub(super) old_undo: AtomicU64,
}

impl Findings {
    pub(super) fn add(&self, kind: FindingKind, first: FoundFault) {
        self.append([Finding { kind, count: 1, first }]);
    }

    pub(super) fn append(&self, others: impl IntoIterator<Item = Finding>) {
        let mut all = self.all.lock();
        for other in others {
            match all.get_mut(&other.kind) {
                None => {
                    all.insert(other.kind, other);
                }
                Some(finding) => {
                    finding.count += other.count;
                    if other.first.order() < finding.first.order() {
                        finding.first = other.first;
                    }
                }
            }
        }
    }

    pub(super) fn has(&self, kinds: &[FindingKind]) -> bool {
        let all = self.all.lock();
        kinds.iter().any(|kind| all.contains_key(kind))
    }

    /// Returns one of the findings, if any.
    pub(super) fn first(&self) -> Option<Finding> {
        self.all.lock().values().next().cloned()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.lock().is_empty()
    }

    pub(super) fn into_all(self) -> Vec<Finding> {
        self.all.into_inner().into_values().collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_is_the_first_in_any_order() {
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

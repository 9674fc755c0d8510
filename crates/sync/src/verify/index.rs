//! [`NodeIndex`]: the content of a node's block index, with every header checked against the rules.

use super::file_records::EntriesByFile;
use super::finding::{FindingKind, Findings, FoundFault};
use super::status::{ParentEntry, Past, contradiction, lacks_witness_mark};
use super::{Verify, read_again};
use crate::error::{ClockError, SourceError, SyncError};
use crate::progress::{Event, Phase, stop_if_interrupted};
use crate::request::LAST_BLOCKS;
use apus_chain::{
    ANY_TIME, BlockHash, Header, HeaderChain, HeaderError, HeaderId, HeaderTree, Height,
    HeightRange, KNOTS_CHAIN, KnownBlock,
};
use apus_datadir::{
    BlockFiles, IndexEntry, IndexError, IndexRest, STATUS_FAILED, VALID_CHAIN, VALID_SCRIPTS,
    VALID_TRANSACTIONS, read_index, read_whole_index,
};
use std::collections::HashMap;
use std::ops::ControlFlow;

/// The index is ordered by hash, so it is read once for each stretch of this many heights: that bounds the
/// memory for its entries.
const HEIGHTS_AT_ONCE: Height = 200_000;

/// The headers of a node's index.
pub(super) struct NodeIndex {
    pub(super) tree: HeaderTree,
    /// The tip of the chain that the node connected.
    pub(super) best: BlockHash,
    /// Whether the node deleted block files.
    pub(super) pruned: bool,
    /// The most-work header that the node marks as invalid, if it has more work than the node's tip.
    rejected: Option<BlockHash>,
    /// Position of the genesis block, if the index has one.
    pub(super) genesis: Option<(u32, u64)>,
    /// Status of each header, by the header's id in the tree.
    statuses: Vec<u32>,
    /// Number of block entries.
    entries: u32,
    /// The rest of the index, and the content of files by its entries.
    rest: IndexRest,
    in_files: EntriesByFile,
}

/// A block that the index lists as stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct StoredEntry {
    pub(super) block: KnownBlock,
    /// Number of transactions.
    pub(super) tx_count: u32,
    /// File and offset.
    pub(super) data: (u32, u64),
    pub(super) undo: Option<(u32, u64)>,
    /// Whether the node connected it.
    pub(super) connected: bool,
    /// Whether the node marks it or one of its ancestors as invalid.
    pub(super) failed: bool,
}

/// A summary of the index's entries for a chain.
#[derive(Default)]
pub(super) struct OnChain {
    /// Number of blocks without a position.
    pub(super) missing: u64,
    /// The lowest height from which all blocks have a position.
    pub(super) stored_from: Height,
    pub(super) without_undo: u64,
    pub(super) transactions: u64,
}

impl NodeIndex {
    /// Reads the index. If its database cannot be read, returns `None` and adds a finding.
    pub(super) fn read(
        request: &Verify<'_>,
        findings: &Findings,
    ) -> Result<Option<Self>, SyncError> {
        request.env.observer.event(Event::Started(Phase::Headers));
        let mut own = Findings::default();
        let is_gone = |stop: &_| matches!(stop, IndexStop::Index(IndexError::Vanished { .. }));
        let read = read_again(request, is_gone, || {
            own = Findings::default();
            Self::read_headers(request, &own)
        });
        findings.append(own.into_all());
        let index = match read {
            Ok(index) => Some(index),
            Err(IndexStop::Run(error)) => return Err(error),
            Err(IndexStop::Index(IndexError::Corrupt { path, offset, what })) => {
                findings.add(FindingKind::IndexDamaged, FoundFault::new(what).at(&path, offset));
                None
            }
            Err(IndexStop::Index(IndexError::Vanished { path })) => {
                findings.add(FindingKind::IndexDamaged, FoundFault::new("missing").of(&path));
                None
            }
            Err(IndexStop::Index(IndexError::Entry { path, hash, what })) => {
                let found = FoundFault { hash: Some(hash), ..FoundFault::new(what).of(&path) };
                findings.add(FindingKind::IndexDamaged, found);
                None
            }
            Err(IndexStop::Index(error)) => return Err(SourceError::Index(error).into()),
        };
        request.env.observer.event(Event::Ended { phase: Phase::Headers, bytes: 0 });
        Ok(index)
    }

    fn read_headers(request: &Verify<'_>, findings: &Findings) -> Result<Self, IndexStop> {
        let mut tree = HeaderTree::new(request.env.params, ANY_TIME);
        // Entries are read by ascending height, so a header without its parent is an orphan forever.
        tree.set_orphans_max(0);
        let mut reading = IndexReading {
            request,
            findings,
            tree,
            statuses: Vec::new(),
            past: Past { pruned: false, snapshot: request.began_with_snapshot() },
            best: (0, request.env.params.genesis_hash),
            rejected: (0, BlockHash::ZERO),
            genesis: None,
            refused: HashMap::new(),
            of_knots: None,
        };
        let blocksdir = request.blocksdir();
        let (mut rest, mut in_files) = (IndexRest::default(), EntriesByFile::default());
        let (mut start, mut highest, mut entries, mut gone) = (0, 0, 0u32, false);
        while start <= highest {
            let range = stretch(start, entries);
            let mut found: Vec<IndexEntry> = Vec::new();
            if start == 0 {
                rest = read_whole_index(&blocksdir, &mut |entry| {
                    highest = highest.max(entry.height);
                    entries = entries.saturating_add(1);
                    gone |= entry.tx_count > 0 && entry.data.is_none();
                    in_files.add(&entry);
                    if range.contains(entry.height) {
                        found.push(entry);
                    }
                })?;
                reading.past.pruned = rest.flags.pruned;
            } else {
                read_index(&blocksdir, &mut |entry| {
                    if range.contains(entry.height) {
                        found.push(entry);
                    }
                    ControlFlow::Continue(())
                })?;
            }
            stop_if_interrupted(request.env.interrupt)?;
            found.sort_unstable_by_key(|entry| (entry.height, entry.hash));
            found.iter().for_each(|entry| reading.take(entry));
            start = range.end;
        }
        if entries > 0 {
            reading.expect_genesis();
        }
        if reading.past.pruned && !gone && entries > 0 {
            let what = "the index says that the node has deleted block files, but has a position for every block: \
                the node does not start without -prune";
            let found = FoundFault::new(what).of(&blocksdir.join("index"));
            findings.add(FindingKind::IndexFlag, found);
        }
        if let Some(height) = reading.of_knots {
            let what = format!(
                "the node of {} has connected block {height}, which is {KNOTS_CHAIN}. Apus checks Bitcoin Core's \
                 rules, by which that block is invalid",
                blocksdir.display()
            );
            return Err(IndexStop::Run(SourceError::Node(what).into()));
        }
        // If the clock were behind, headers of an intact node would look wrong.
        let of_all = HeaderChain::best_of(&reading.tree);
        ClockError::expect_past(&of_all, request.env.now)
            .map_err(|error| IndexStop::Run(SourceError::from(Box::new(error)).into()))?;
        let IndexReading {
            tree, statuses, past: Past { pruned, .. }, best, rejected, genesis, ..
        } = reading;
        let rejected = (rejected.0 > best.0).then_some(rejected.1);
        let genesis = genesis.and_then(|entry| entry.data);
        let best = best.1;
        Ok(Self { tree, best, pruned, rejected, genesis, statuses, entries, rest, in_files })
    }

    /// Compares the index's statements about block files with the files.
    pub(super) fn compare_files(&self, files: &BlockFiles, findings: &Findings) {
        // A node whose index is empty starts over.
        if self.entries > 0 {
            self.in_files.compare(&self.rest, files, findings);
        }
    }

    /// Returns the most-work chain, if the node marks blocks of it as invalid, with the lowest marked block;
    /// `None` if the node's chain has as much work.
    pub(super) fn rejected_chain(&self) -> Option<RejectedChain> {
        let tip = self.tree.find(&self.rejected?)?;
        let of_chain = self.tree.lineage_of(tip).take_while(|id| {
            let status = self.statuses.get(id.index()).copied().unwrap_or_default();
            status & STATUS_FAILED != 0
        });
        let (count, root) = of_chain.fold((0, tip), |(count, _), id| (count + 1, id));
        let height = self.tree.connected(root)?.height;
        let root = KnownBlock { height, hash: *self.tree.hash(root) };
        Some(RejectedChain { root, count })
    }

    /// Returns the chain up to a block.
    pub(super) fn chain_to(&self, hash: &BlockHash) -> Option<HeaderChain> {
        HeaderChain::up_to(&self.tree, self.tree.find(hash)?)
    }

    /// Summarizes the index's entries for a chain. Missing entries are findings, unless the node pruned the
    /// blocks.
    pub(super) fn on_chain(
        &self,
        request: &Verify<'_>,
        chain: &HeaderChain,
        findings: &Findings,
    ) -> Result<OnChain, SyncError> {
        let (mut on_chain, mut lacking, mut undo_from) =
            (OnChain::default(), Vec::new(), Height::MAX);
        let index = request.blocksdir().join("index");
        self.each(request, &mut |entry| {
            if chain.hash(entry.height) != Some(&entry.hash) {
                return;
            }
            let found = |what| FoundFault::new(what).block(block_of(&entry)).of(&index);
            if lacks_witness_mark(&entry, request.env.params) {
                findings.add(FindingKind::WitnessMark, found(NO_WITNESS_MARK));
            }
            if entry.height == 0 {
                return;
            }
            on_chain.transactions += u64::from(entry.tx_count);
            if entry.status & STATUS_FAILED != 0 {
                let what =
                    "the node's coins are at this block or above, but the index marks this block as invalid";
                findings.add(FindingKind::MarkedInvalid, found(what));
            } else if entry.validity() < VALID_SCRIPTS {
                let what =
                    "the node's coins are at this block or above, but the index does not mark this block as valid";
                findings.add(FindingKind::IndexEntry, found(what));
            }
            if entry.data.is_none() {
                on_chain.missing += 1;
                on_chain.stored_from = on_chain.stored_from.max(entry.height + 1);
                if !self.pruned {
                    findings
                        .add(FindingKind::BlockMissing, found("the index has no position for this block"));
                }
            } else if entry.undo.is_none() {
                lacking.push(block_of(&entry));
            } else {
                undo_from = undo_from.min(entry.height);
            }
        })?;
        on_chain.without_undo = lacking.len() as u64;
        // `getblockfrompeer` fetches blocks again that a node has pruned, but not their undo data. A node never prunes
        // the last blocks.
        let may_be_pruned =
            |height| height < undo_from && height + LAST_BLOCKS <= chain.tip_height();
        lacking.retain(|block| !self.pruned || !may_be_pruned(block.height));
        for block in lacking {
            let what = "the index has no position for this block's undo data";
            findings.add(FindingKind::UndoMissing, FoundFault::new(what).block(block).of(&index));
        }
        Ok(on_chain)
    }

    /// Checks that a node could have written the marks of the blocks off the chain.
    pub(super) fn check_marks_off_chain(
        &self,
        request: &Verify<'_>,
        chain: Option<&HeaderChain>,
        findings: &Findings,
    ) -> Result<(), SyncError> {
        let index = request.blocksdir().join("index");
        self.each(request, &mut |entry| {
            let is_on = chain.is_some_and(|chain| chain.hash(entry.height) == Some(&entry.hash));
            if is_on || entry.height == 0 || entry.data.is_none() {
                return;
            }
            let found = |what| FoundFault::new(what).block(block_of(&entry)).of(&index);
            if lacks_witness_mark(&entry, request.env.params) && entry.status & STATUS_FAILED == 0 {
                findings.add(FindingKind::WitnessMark, found(NO_WITNESS_MARK));
            }
            if entry.validity() >= VALID_CHAIN && entry.undo.is_none() && !self.pruned {
                let what =
                    "the index marks this block as connected, but has no position for its undo data";
                findings.add(FindingKind::IndexStatus, found(what));
            }
        })
    }

    /// Returns the wanted blocks among the stored ones.
    pub(super) fn stored(
        &self,
        request: &Verify<'_>,
        wanted: &dyn Fn(KnownBlock) -> bool,
    ) -> Result<Vec<StoredEntry>, SyncError> {
        let mut stored = Vec::new();
        self.each(request, &mut |entry| {
            let block = block_of(&entry);
            if let Some(data) = entry.data.filter(|_| block.height > 0 && wanted(block)) {
                let (tx_count, undo) = (entry.tx_count, entry.undo);
                let failed = entry.status & STATUS_FAILED != 0;
                let connected = is_connected(&entry);
                stored.push(StoredEntry { block, tx_count, data, undo, connected, failed });
            }
        })?;
        Ok(stored)
    }

    /// Passes the entries whose headers are in the tree to `each`.
    fn each(
        &self,
        request: &Verify<'_>,
        each: &mut dyn FnMut(IndexEntry),
    ) -> Result<(), SyncError> {
        let read = read_index(&request.blocksdir(), &mut |entry| {
            let known = self.tree.find(&entry.hash).and_then(|id| self.tree.connected(id));
            if known.is_some_and(|header| header.height == entry.height) {
                each(entry);
            }
            ControlFlow::Continue(())
        });
        read.map_err(|error| SourceError::Index(error).into())
    }
}

/// Returns the next stretch of heights, for an index with `entries` entries. No chain is longer than that: all
/// higher entries are wrong. They form one stretch, so that a single entry with an absurd height does not cause
/// the index to be read thousands of times.
fn stretch(start: Height, entries: u32) -> HeightRange {
    let is_above = start > entries;
    HeightRange::new(
        start,
        if is_above { Height::MAX } else { start.saturating_add(HEIGHTS_AT_ONCE) },
    )
}

/// Why reading the headers stopped.
enum IndexStop {
    Index(IndexError),
    Run(SyncError),
}

impl From<IndexError> for IndexStop {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<SyncError> for IndexStop {
    fn from(error: SyncError) -> Self {
        Self::Run(error)
    }
}

fn block_of(entry: &IndexEntry) -> KnownBlock {
    KnownBlock { height: entry.height, hash: entry.hash }
}

fn is_connected(entry: &IndexEntry) -> bool {
    entry.validity() >= VALID_SCRIPTS && entry.status & STATUS_FAILED == 0
}

const NO_WITNESS_MARK: &str = "the block is at or above segwit's height, but has no mark that its witnesses were \
    stored: a node that has connected this block does not start";

/// A chain with more work than the node's chain, which the node marks as invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RejectedChain {
    /// The lowest marked block.
    pub(super) root: KnownBlock,
    /// Number of marked blocks.
    pub(super) count: u64,
}

/// The state of reading the index's entries by ascending height.
struct IndexReading<'a> {
    request: &'a Verify<'a>,
    findings: &'a Findings,
    tree: HeaderTree,
    statuses: Vec<u32>,
    past: Past,
    /// Work and hash of the best connected header; `rejected` has those of the best header marked as invalid.
    best: (u128, BlockHash),
    rejected: (u128, BlockHash),
    genesis: Option<IndexEntry>,
    /// Heights of entries marked as invalid whose headers break a rule that depends on earlier headers.
    refused: HashMap<BlockHash, Height>,
    /// Height of the highest connected block whose header only Bitcoin Knots accepts.
    of_knots: Option<Height>,
}

impl IndexReading<'_> {
    fn add(&self, kind: FindingKind, block: KnownBlock, what: String) {
        let index = self.request.blocksdir().join("index");
        self.findings.add(kind, FoundFault::new(what).block(block).of(&index));
    }

    fn take(&mut self, entry: &IndexEntry) {
        let Some((id, work)) = self.take_header(entry) else { return };
        if self.statuses.len() <= id.index() {
            self.statuses.resize(id.index() + 1, 0);
        }
        let parent = self.parent(id);
        // When a node starts, it marks the descendants of an invalid block as invalid (Core `node/blockstorage.cpp`,
        // `LoadBlockIndex`).
        let failed = (entry.status | parent.map_or(0, |it| it.status)) & STATUS_FAILED;
        self.statuses[id.index()] = entry.status | failed;
        if entry.height == 0 {
            self.genesis = Some(entry.clone());
            return;
        }
        if let Some(what) = contradiction(entry, parent, self.past) {
            self.add(FindingKind::IndexStatus, block_of(entry), what);
        }
        let best = match failed {
            0 if is_connected(entry) => &mut self.best,
            0 => return,
            _ => &mut self.rejected,
        };
        if work > best.0 {
            *best = (work, entry.hash);
        }
    }

    fn parent(&self, id: HeaderId) -> Option<ParentEntry> {
        let parent = self.tree.connected(id)?.parent?;
        let (height, status) =
            (self.tree.connected(parent)?.height, *self.statuses.get(parent.index())?);
        Some(ParentEntry { height, status })
    }

    /// Checks a header against the rules, and its entry against the header. Returns its id and the work of the
    /// chain up to it, if the entry is correct.
    fn take_header(&mut self, entry: &IndexEntry) -> Option<(HeaderId, u128)> {
        let what = match self.tree.accept(&entry.header) {
            Err(error) if entry.status & STATUS_FAILED != 0 => {
                self.expect_readable(entry, &error);
                return None;
            }
            Err(error) => format!("its header: {error}"),
            Ok(accepted) => {
                let id = accepted.id();
                match self.tree.connected(id) {
                    _ if *self.tree.hash(id) != entry.hash => {
                        format!("its header belongs to block {}", self.tree.hash(id))
                    }
                    Some(header) if header.height == entry.height => {
                        return Some((id, header.chain_work));
                    }
                    Some(header) => format!("its header says height {}", header.height),
                    None => "its parent is missing".to_owned(),
                }
            }
        };
        if is_connected(entry) && Header::parse(&entry.header).is_extended() {
            self.of_knots = self.of_knots.max(Some(entry.height));
        } else {
            self.add(FindingKind::IndexEntry, block_of(entry), what);
        }
        None
    }

    /// Checks an entry marked as invalid, whose header was not accepted. A node that starts checks the proof of work
    /// of every entry, whatever its marks (Core `node/blockstorage.cpp`, `LoadBlockIndexGuts`), and never adds an
    /// entry without its parent.
    fn expect_readable(&mut self, entry: &IndexEntry, error: &HeaderError) {
        let header = Header::parse(&entry.header);
        let parent = match self.tree.find(&header.prev).and_then(|id| self.tree.connected(id)) {
            Some(parent) => Some(parent.height),
            None => self.refused.get(&header.prev).copied(),
        };
        let what = match (error, parent) {
            (HeaderError::HighHash { .. } | HeaderError::OtherGenesis { .. }, _)
                if !header.is_extended() =>
            {
                format!("its header: {error}")
            }
            (HeaderError::TooManyOrphans { .. }, None) => "its parent is missing".to_owned(),
            (_, Some(parent)) if parent + 1 != entry.height => {
                format!("its header says height {}", parent + 1)
            }
            _ => {
                self.refused.insert(entry.hash, entry.height);
                return;
            }
        };
        self.add(FindingKind::IndexEntry, block_of(entry), what);
    }

    /// Checks the genesis block's entry: without a correct one, a node does not start, or cannot connect any
    /// block.
    fn expect_genesis(&self) {
        let hash = self.request.env.params.genesis_hash;
        let what = match &self.genesis {
            None => {
                "the index has no entry for the genesis block: the node does not start".to_owned()
            }
            Some(entry) if entry.status & STATUS_FAILED != 0 => {
                "the genesis block is marked as invalid".to_owned()
            }
            Some(entry) if entry.tx_count != 1 || entry.validity() < VALID_TRANSACTIONS => format!(
                "the genesis block has validity level {} and {} transactions, but a node sets level 3 and one",
                entry.validity(),
                entry.tx_count
            ),
            Some(entry) if entry.data.is_none() && !self.past.pruned => {
                "the index has no position for the genesis block".to_owned()
            }
            Some(_) => return,
        };
        self.add(FindingKind::IndexStatus, KnownBlock { height: 0, hash }, what);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_index_is_read_as_often_as_its_entries_need() {
        for (entries, times) in [(0, 2), (3, 2), (199_999, 2), (200_000, 3), (950_000, 6)] {
            let (mut start, mut read) = (0, 0);
            while start < Height::MAX {
                // The number of entries is known only after the first pass.
                let range = stretch(start, if start == 0 { 0 } else { entries });
                assert_eq!(range.start, start);
                (start, read) = (range.end, read + 1);
            }
            assert_eq!(read, times, "{entries}");
        }
    }
}

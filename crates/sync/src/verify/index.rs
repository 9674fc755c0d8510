//! [`NodeIndex`]: what a node's block index says, with every header checked by the rules.

use super::Verify;
use super::file_records::Stored as StoredInFiles;
use super::finding::{FindingKind, Findings, FoundFault};
use super::status::{Parent, Past, contradiction, lacks_witness_mark};
use crate::error::{ClockError, SourceError, SyncError};
use crate::progress::{Event, Phase, stop_if_interrupted};
use apus_chain::{
    ANY_TIME, BlockHash, Header, HeaderChain, HeaderId, HeaderTree, Height, HeightRange,
    KNOTS_CHAIN, KnownBlock,
};
use apus_datadir::{
    BlockFiles, IndexEntry, IndexError, IndexRest, STATUS_FAILED, VALID_CHAIN, VALID_SCRIPTS,
    VALID_TRANSACTIONS, read_index, read_whole_index,
};
use std::ops::ControlFlow;

/// The index is in the order of hashes, so it is read once for each stretch of heights: that bounds what is
/// kept of it.
const HEIGHTS_AT_ONCE: Height = 200_000;

/// The headers of a node's index.
pub(super) struct NodeIndex {
    pub(super) tree: HeaderTree,
    /// The tip of the chain that the node connected.
    pub(super) best: BlockHash,
    /// The node removed block files.
    pub(super) pruned: bool,
    /// Of the headers of more work than that tip has the one of the most that the node takes for invalid.
    shunned: Option<BlockHash>,
    /// Where the genesis block lies, if the index says it.
    pub(super) genesis: Option<(u32, u64)>,
    /// What it says of each header, by the header's id in the tree.
    statuses: Vec<u32>,
    /// How many entries of blocks it has.
    entries: u32,
    /// What it says besides, and what lies in files by its entries.
    rest: IndexRest,
    in_files: StoredInFiles,
}

/// A block that the index says is stored.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Stored {
    pub(super) block: KnownBlock,
    /// How many transactions it has.
    pub(super) tx_count: u32,
    /// File and offset.
    pub(super) data: (u32, u64),
    pub(super) undo: Option<(u32, u64)>,
    /// The node connected it.
    pub(super) connected: bool,
    /// The node found it invalid, or one below it.
    pub(super) failed: bool,
}

/// What the index has of a chain.
#[derive(Default)]
pub(super) struct OnChain {
    /// Blocks without a place.
    pub(super) missing: u64,
    /// The lowest from which on all have one.
    pub(super) stored_from: Height,
    pub(super) without_undo: u64,
    pub(super) transactions: u64,
}

impl NodeIndex {
    /// Reads the index; none where its database cannot be read, which is a finding.
    pub(super) fn read(
        request: &Verify<'_>,
        findings: &Findings,
    ) -> Result<Option<Self>, SyncError> {
        request.observer.event(Event::Started(Phase::Headers));
        let read = Self::read_headers(request, findings);
        let index = match read {
            Ok(index) => Some(index),
            Err(IndexStop::Run(error)) => return Err(error),
            Err(IndexStop::Index(IndexError::Corrupt { path, offset, what })) => {
                findings.add(FindingKind::IndexDamaged, FoundFault::new(what).at(&path, offset));
                None
            }
            Err(IndexStop::Index(IndexError::Vanished { path })) => {
                findings
                    .add(FindingKind::IndexDamaged, FoundFault::new("it is not there").of(&path));
                None
            }
            Err(IndexStop::Index(IndexError::Entry { path, hash, what })) => {
                let found = FoundFault { hash: Some(hash), ..FoundFault::new(what).of(&path) };
                findings.add(FindingKind::IndexDamaged, found);
                None
            }
            Err(IndexStop::Index(error)) => return Err(SourceError::Index(error).into()),
        };
        request.observer.event(Event::Ended { phase: Phase::Headers, bytes: 0 });
        Ok(index)
    }

    fn read_headers(request: &Verify<'_>, findings: &Findings) -> Result<Self, IndexStop> {
        let mut tree = HeaderTree::new(request.params, ANY_TIME);
        // Of each height all are there before those of the next.
        tree.set_orphans_max(0);
        let mut reading = IndexReading {
            request,
            findings,
            tree,
            statuses: Vec::new(),
            past: Past { pruned: false, snapshot: request.began_with_snapshot() },
            best: (0, request.params.genesis_hash),
            shunned: (0, BlockHash::ZERO),
            genesis: None,
            of_knots: None,
        };
        let blocksdir = request.blocksdir();
        let (mut rest, mut in_files) = (IndexRest::default(), StoredInFiles::default());
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
            stop_if_interrupted(request.interrupt)?;
            found.sort_unstable_by_key(|entry| (entry.height, entry.hash));
            found.iter().for_each(|entry| reading.take(entry));
            start = range.end;
        }
        if entries > 0 {
            reading.expect_genesis();
        }
        if reading.past.pruned && !gone && entries > 0 {
            let what = "it says that the node has removed block files, and has a place of every block: the node does not \
                        start without -prune";
            let found = FoundFault::new(what).of(&blocksdir.join("index"));
            findings.add(FindingKind::IndexFlag, found);
        }
        if let Some(height) = reading.of_knots {
            let what = format!(
                "the node of {} has connected block {height}, which is {KNOTS_CHAIN}: Apus knows Bitcoin \
                 Core's rules, by which that block is invalid",
                blocksdir.display()
            );
            return Err(IndexStop::Run(SourceError::Node(what).into()));
        }
        // By a clock that is behind, a sound node would be accused.
        let of_all = HeaderChain::best_of(&reading.tree);
        ClockError::expect_past(&of_all, request.now)
            .map_err(|error| IndexStop::Run(SourceError::from(Box::new(error)).into()))?;
        let IndexReading {
            tree, statuses, past: Past { pruned, .. }, best, shunned, genesis, ..
        } = reading;
        let shunned = (shunned.0 > best.0).then_some(shunned.1);
        let genesis = genesis.and_then(|entry| entry.data);
        let best = best.1;
        Ok(Self { tree, best, pruned, shunned, genesis, statuses, entries, rest, in_files })
    }

    /// Holds what the index says of block files against them.
    pub(super) fn compare_files(&self, files: &BlockFiles, findings: &Findings) {
        // A node that has written nothing yet begins anew.
        if self.entries > 0 {
            self.in_files.compare(&self.rest, files, findings);
        }
    }

    /// Of the chain of the most work, which the node takes for invalid, the lowest block that it takes for that; none
    /// where it has connected one of as much work.
    pub(super) fn shunned(&self) -> Option<Shunned> {
        let tip = self.tree.find(&self.shunned?)?;
        let of_chain = self.tree.lineage_of(tip).take_while(|id| {
            let status = self.statuses.get(id.index()).copied().unwrap_or_default();
            status & STATUS_FAILED != 0
        });
        let (count, root) = of_chain.fold((0, tip), |(count, _), id| (count + 1, id));
        let height = self.tree.connected(root)?.height;
        let root = KnownBlock { height, hash: *self.tree.hash(root) };
        Some(Shunned { root, count })
    }

    /// The chain up to a block.
    pub(super) fn chain_to(&self, hash: &BlockHash) -> Option<HeaderChain> {
        HeaderChain::up_to(&self.tree, self.tree.find(hash)?)
    }

    /// What it has of the blocks of a chain. What it should have of them and has not is a finding, unless the
    /// node pruned it.
    pub(super) fn on_chain(
        &self,
        request: &Verify<'_>,
        chain: &HeaderChain,
        findings: &Findings,
    ) -> Result<OnChain, SyncError> {
        let mut on_chain = OnChain::default();
        let index = request.blocksdir().join("index");
        self.each(request, &mut |entry| {
            if chain.hash(entry.height) != Some(&entry.hash) {
                return;
            }
            let found = |what| FoundFault::new(what).block(block_of(&entry)).of(&index);
            if lacks_witness_mark(&entry, request.params) {
                findings.add(FindingKind::WitnessMark, found(NO_WITNESS_MARK));
            }
            if entry.height == 0 {
                return;
            }
            on_chain.transactions += u64::from(entry.tx_count);
            if entry.status & STATUS_FAILED != 0 {
                let what =
                    "the node's coins are at it or a block above it, and it is marked as invalid";
                findings.add(FindingKind::MarkedInvalid, found(what));
            } else if entry.validity() < VALID_SCRIPTS {
                let what =
                    "the node's coins are at it or a block above it, and it is not marked as valid";
                findings.add(FindingKind::IndexEntry, found(what));
            }
            if entry.data.is_none() {
                on_chain.missing += 1;
                on_chain.stored_from = on_chain.stored_from.max(entry.height + 1);
                if !self.pruned {
                    findings.add(FindingKind::BlockMissing, found("the index has no place of it"));
                }
            } else if entry.undo.is_none() {
                on_chain.without_undo += 1;
                findings.add(FindingKind::UndoMissing, found("the index has no place of them"));
            }
        })?;
        Ok(on_chain)
    }

    /// Holds the marks of blocks beside a chain against what a node writes.
    pub(super) fn beside_chain(
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
            if lacks_witness_mark(&entry, request.params) && entry.status & STATUS_FAILED == 0 {
                findings.add(FindingKind::WitnessMark, found(NO_WITNESS_MARK));
            }
            if entry.validity() >= VALID_CHAIN && entry.undo.is_none() {
                let what = "it is marked as connected, and the index has no place of its undo data";
                findings.add(FindingKind::IndexStatus, found(what));
            }
        })
    }

    /// The blocks that are stored, and are wanted.
    pub(super) fn stored(
        &self,
        request: &Verify<'_>,
        wanted: &dyn Fn(KnownBlock) -> bool,
    ) -> Result<Vec<Stored>, SyncError> {
        let mut stored = Vec::new();
        self.each(request, &mut |entry| {
            let block = block_of(&entry);
            if let Some(data) = entry.data.filter(|_| block.height > 0 && wanted(block)) {
                let (tx_count, undo) = (entry.tx_count, entry.undo);
                let failed = entry.status & STATUS_FAILED != 0;
                let connected = is_connected(&entry);
                stored.push(Stored { block, tx_count, data, undo, connected, failed });
            }
        })?;
        Ok(stored)
    }

    /// Entries whose headers are part of the tree.
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

/// The heights that are looked at next, by an index of so many entries. Above as many heights there is no chain: all that is
/// there is wrong, and one entry of an absurd height does not have the index read thousands of times.
fn stretch(start: Height, entries: u32) -> HeightRange {
    let is_above = start > entries;
    HeightRange::new(
        start,
        if is_above { Height::MAX } else { start.saturating_add(HEIGHTS_AT_ONCE) },
    )
}

/// Why the headers were not read to their end.
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

const NO_WITNESS_MARK: &str = "it is of a height from segwit on, and has no mark that its witnesses were stored: a node \
                               that has connected it does not start";

/// A chain of more work than the node has connected, which it takes for invalid.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Shunned {
    /// The lowest block that is marked.
    pub(super) root: KnownBlock,
    /// How many are.
    pub(super) count: u64,
}

/// An index while its entries are read, by ascending height.
struct IndexReading<'a> {
    request: &'a Verify<'a>,
    findings: &'a Findings,
    tree: HeaderTree,
    statuses: Vec<u32>,
    past: Past,
    /// Work and hash: of the best that was connected, and of the best that is taken for invalid.
    best: (u128, BlockHash),
    shunned: (u128, BlockHash),
    genesis: Option<IndexEntry>,
    /// Height of the highest connected block whose header only Bitcoin Knots takes.
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
        // A node that starts takes what descends from an invalid block for invalid (Core
        // `node/blockstorage.cpp`, `LoadBlockIndex`).
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
            _ => &mut self.shunned,
        };
        if work > best.0 {
            *best = (work, entry.hash);
        }
    }

    fn parent(&self, id: HeaderId) -> Option<Parent> {
        let parent = self.tree.connected(id)?.parent?;
        let (height, status) =
            (self.tree.connected(parent)?.height, *self.statuses.get(parent.index())?);
        Some(Parent { height, status })
    }

    /// Takes a header by the rules, and compares what the index says of it. Its id, and the work of the chain up to
    /// it, if it is what the index says.
    fn take_header(&mut self, entry: &IndexEntry) -> Option<(HeaderId, u128)> {
        let what = match self.tree.accept(&entry.header) {
            Err(_) if entry.status & STATUS_FAILED != 0 => return None,
            Err(error) => format!("its header: {error}"),
            Ok(accepted) => {
                let id = accepted.id();
                match self.tree.connected(id) {
                    _ if *self.tree.hash(id) != entry.hash => {
                        format!("its header is that of block {}", self.tree.hash(id))
                    }
                    Some(header) if header.height == entry.height => {
                        return Some((id, header.chain_work));
                    }
                    Some(header) => format!("its height is {}", header.height),
                    None => "it follows no block".to_owned(),
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

    /// A node does not start without the genesis block, or goes nowhere from it.
    fn expect_genesis(&self) {
        let hash = self.request.params.genesis_hash;
        let what = match &self.genesis {
            None => {
                "the index has no entry of the genesis block: the node does not start".to_owned()
            }
            Some(entry) if entry.status & STATUS_FAILED != 0 => {
                "the genesis block is marked as invalid".to_owned()
            }
            Some(entry) if entry.tx_count != 1 || entry.validity() < VALID_TRANSACTIONS => format!(
                "the genesis block has validity level {} and {} transactions, and a node sets level 3 and one",
                entry.validity(),
                entry.tx_count
            ),
            Some(entry) if entry.data.is_none() && !self.past.pruned => {
                "the index has no place of the genesis block".to_owned()
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
                // How many there are shows as they are read the first time.
                let range = stretch(start, if start == 0 { 0 } else { entries });
                assert_eq!(range.start, start);
                (start, read) = (range.end, read + 1);
            }
            assert_eq!(read, times, "{entries}");
        }
    }
}

//! [`NodeIndex`]: what a node's block index says, with every header checked by the rules.

use super::Verify;
use super::finding::{FindingKind, Findings, Found};
use crate::error::{SourceError, SyncError};
use crate::progress::{Event, Phase, stop_if_interrupted};
use apus_chain::{BlockHash, HeaderChain, HeaderTree, Height, HeightRange, KnownBlock};
use apus_datadir::{
    IndexEntry, IndexError, STATUS_FAILED, VALID_SCRIPTS, read_index, read_index_flags,
    read_whole_index,
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
}

/// A block that the index says is stored.
#[derive(Debug, Clone, Copy)]
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
            Err(Stop::Run(error)) => return Err(error),
            Err(Stop::Index(IndexError::Corrupt { path, offset, what })) => {
                findings.add(FindingKind::IndexDamaged, Found::new(what).at(&path, offset));
                None
            }
            Err(Stop::Index(IndexError::Vanished { path })) => {
                findings.add(FindingKind::IndexDamaged, Found::new("it is not there").of(&path));
                None
            }
            Err(Stop::Index(IndexError::Entry { path, hash, what })) => {
                let found = Found { hash: Some(hash), ..Found::new(what).of(&path) };
                findings.add(FindingKind::IndexDamaged, found);
                None
            }
            Err(Stop::Index(error)) => return Err(SourceError::Index(error).into()),
        };
        request.observer.event(Event::Ended { phase: Phase::Headers, bytes: 0 });
        Ok(index)
    }

    fn read_headers(request: &Verify<'_>, findings: &Findings) -> Result<Self, Stop> {
        let blocksdir = request.blocksdir();
        let pruned = read_index_flags(&blocksdir)?.pruned;
        let mut tree = HeaderTree::new(request.params, request.now);
        // Of each height all are there before those of the next.
        tree.set_orphans_max(0);
        let mut best = (0, request.params.genesis_hash);
        let (mut start, mut highest, mut entries) = (0, 0, 0u32);
        while start <= highest {
            let range = stretch(start, entries);
            let mut found: Vec<IndexEntry> = Vec::new();
            let visit = &mut |entry: IndexEntry| {
                highest = highest.max(entry.height);
                entries = entries.saturating_add(u32::from(start == 0));
                if range.contains(entry.height) {
                    found.push(entry);
                }
                ControlFlow::Continue(())
            };
            match start {
                0 => read_whole_index(&blocksdir, visit)?,
                _ => read_index(&blocksdir, visit)?,
            }
            stop_if_interrupted(request.interrupt)?;
            found.sort_unstable_by_key(|entry| (entry.height, entry.hash));
            for entry in found {
                let work = take_header(request, &mut tree, &entry, findings);
                if let Some(work) = work.filter(|work| is_connected(&entry) && *work > best.0) {
                    best = (work, entry.hash);
                }
            }
            start = range.end;
        }
        Ok(Self { tree, best: best.1, pruned })
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
            if entry.height == 0 || chain.hash(entry.height) != Some(&entry.hash) {
                return;
            }
            let found = |what| Found::new(what).block(block_of(&entry)).of(&index);
            on_chain.transactions += u64::from(entry.tx_count);
            if entry.validity() < VALID_SCRIPTS || entry.status & STATUS_FAILED != 0 {
                let what =
                    "the node's coins are at a block above it, and it is not marked as valid";
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
enum Stop {
    Index(IndexError),
    Run(SyncError),
}

impl From<IndexError> for Stop {
    fn from(error: IndexError) -> Self {
        Self::Index(error)
    }
}

impl From<SyncError> for Stop {
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

/// Takes a header by the rules, and compares what the index says of it. The work of the chain up to it, if
/// it is what the index says.
fn take_header(
    request: &Verify<'_>,
    tree: &mut HeaderTree,
    entry: &IndexEntry,
    findings: &Findings,
) -> Option<u128> {
    let what = match tree.accept(&entry.header) {
        Err(_) if entry.status & STATUS_FAILED != 0 => return None,
        Err(error) => format!("its header: {error}"),
        Ok(accepted) => {
            let id = accepted.id();
            match tree.connected(id) {
                _ if *tree.hash(id) != entry.hash => {
                    format!("its header is that of block {}", tree.hash(id))
                }
                Some(header) if header.height == entry.height => return Some(header.chain_work),
                Some(header) => format!("its height is {}", header.height),
                None => "it follows no block".to_owned(),
            }
        }
    };
    let index = request.blocksdir().join("index");
    findings.add(FindingKind::IndexEntry, Found::new(what).block(block_of(entry)).of(&index));
    None
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

//! [`IndexPass`]: one pass over a node's blocks and undo data, from which all indexes are made.
//!
//! All threads work on segments of consecutive blocks. Each block is compared with its header, whose chain has the
//! work that the rules demand, so the node validated its transactions. Undo data have their checksum,
//! and a coin for each input.

use crate::block::{BlockPlace, IndexBlock};
use crate::chain::IndexedChain;
use crate::coin_stats::{CoinStatsPart, CoinStatsSegment};
use crate::error::IndexesError;
use crate::filter_index::{FilterPart, FilterSegment};
use crate::found::{BlockCheck, CheckedChain, FoundIndexes};
use crate::making::MakeError;
use crate::numbers::{NumbersPart, NumbersSegment};
use crate::rows::{RowBuffers, RowFiles};
use crate::salt::Salt;
use crate::{spender_index, txindex};
use apus_chain::{BlockChecker, BlockError, BlockHash, BlockUndo, Height, HeightRange, Params};
use apus_storage::Storage;
use apus_sync::engines::swiftsync::{UndoReader, UndoSource};
use apus_sync::progress::stop_if_interrupted;
use apus_sync::{
    BlockFetcher, BlockReply, BlockSource, BlocksDir, Event, Observer, Phase, Progress,
    SourceError, SyncError,
};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, AtomicUsize, Ordering};

/// The phase that goes over the blocks.
pub const INDEX_BLOCKS: Phase = Phase::Extra("index-blocks");

/// A segment has at most this many blocks and bytes.
const SEGMENT_BLOCKS_MAX: u32 = 10_000;
const SEGMENT_BYTES_MAX: u64 = 1 << 30;

/// A segment has at least this many bytes, if the chain has.
const SEGMENT_BYTES_MIN: u64 = 64 << 10;

/// So many segments for each thread keep all busy until the end.
const SEGMENTS_PER_THREAD: u64 = 16;

/// The rows of the indexes that must be sorted; `None` for an index that is not made.
pub(crate) struct PassRows<'s> {
    pub(crate) old_tx: Option<RowFiles<'s, { txindex::OLD_ROW }>>,
    pub(crate) tx: Option<(Salt, RowFiles<'s, { txindex::ROW }>)>,
    pub(crate) spender: Option<(Salt, RowFiles<'s, { spender_index::ROW }>)>,
}

/// A pass over the blocks of a chain.
pub(crate) struct IndexPass<'r, 'a> {
    pub(crate) params: &'a Params,
    pub(crate) chain: &'a IndexedChain<'a>,
    pub(crate) source: &'a BlocksDir,
    /// The coins that blocks spend; `None` if no index needs them.
    pub(crate) undo: Option<&'a dyn UndoSource>,
    pub(crate) rows: &'r PassRows<'a>,
    /// Where the filters of blocks go; `None` without them.
    pub(crate) filters: Option<FilterFiles<'a>>,
    /// Whether the chain in numbers is made.
    pub(crate) numbers: bool,
    /// The entries of a node's indexes, to compare blocks with.
    pub(crate) check: Option<(&'r CheckedChain<'a>, &'r FoundIndexes)>,
    /// Whether the coins' statistics are made: for the index of them, and as a proof of undo data.
    pub(crate) stats: bool,
    /// The folder for temporary files.
    pub(crate) scratch: &'a dyn Storage,
    pub(crate) threads: usize,
    /// Blocks of this many bytes are read in the order of the disk, and taken in the order of the chain. They may all have
    /// to wait in memory.
    pub(crate) read_bytes: u64,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) interrupt: &'a AtomicBool,
}

/// Where the filters of blocks go.
#[derive(Clone, Copy)]
pub(crate) struct FilterFiles<'a> {
    pub(crate) folder: &'a dyn Storage,
    /// The number of the next file.
    pub(crate) numbers: &'a AtomicU32,
}

/// What a pass made besides rows: the parts of all segments, in the order of the chain.
#[derive(Default)]
pub(crate) struct PassParts<'s> {
    pub(crate) filters: Vec<FilterPart<'s>>,
    pub(crate) stats: Vec<CoinStatsPart<'s>>,
    pub(crate) numbers: Vec<NumbersPart<'s>>,
}

/// The parts of a segment.
type SegmentParts<'s> =
    (Option<FilterPart<'s>>, Option<CoinStatsPart<'s>>, Option<NumbersPart<'s>>);

/// What the blocks have, without genesis.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PassCounts {
    /// Transactions.
    pub transactions: u64,
    /// Inputs, without those of coinbases.
    pub inputs: u64,
}

/// Counters of a pass.
#[derive(Default)]
struct Done {
    blocks: AtomicU64,
    bytes: AtomicU64,
    transactions: AtomicU64,
    inputs: AtomicU64,
}

impl<'a> IndexPass<'_, 'a> {
    /// Goes over all blocks.
    ///
    /// # Errors
    /// The first error of any thread: a damaged block or undo data, a failing disk, an interrupt.
    pub(crate) fn run(&self) -> Result<(PassCounts, PassParts<'a>), SyncError> {
        let (segments, done) = (self.segments(), Done::default());
        let (next, failed) = (AtomicUsize::new(0), Mutex::new(None));
        let parts = Mutex::new(BTreeMap::new());
        let halt = AtomicBool::new(false);
        let threads = self.threads.clamp(1, segments.len().max(1));
        std::thread::scope(|scope| {
            for _ in 0..threads {
                scope.spawn(|| {
                    if let Err(error) = self.work(&segments, &next, (&done, &parts), &halt) {
                        halt.store(true, Ordering::Relaxed);
                        failed.lock().get_or_insert(error);
                    }
                });
            }
        });
        if let Some(error) = failed.into_inner() {
            return Err(error);
        }
        let counts = PassCounts {
            transactions: done.transactions.into_inner(),
            inputs: done.inputs.into_inner(),
        };
        let mut all = PassParts::default();
        for (filters, stats, numbers) in parts.into_inner().into_values() {
            all.filters.extend(filters);
            all.stats.extend(stats);
            all.numbers.extend(numbers);
        }
        Ok((counts, all))
    }

    /// Divides the chain, without genesis, into segments.
    fn segments(&self) -> Vec<HeightRange> {
        let end = self.chain.headers.tip_height() + 1;
        let bytes_of = |height| self.source.block_bytes(height);
        let bytes: u64 = (1..end).map(bytes_of).sum();
        let segments = SEGMENTS_PER_THREAD * self.threads as u64;
        let bytes = (bytes / segments).clamp(SEGMENT_BYTES_MIN, SEGMENT_BYTES_MAX);
        divide(HeightRange::new(1, end), SEGMENT_BLOCKS_MAX, bytes, &bytes_of)
    }

    fn work(
        &self,
        segments: &[HeightRange],
        next: &AtomicUsize,
        (done, parts): (&Done, &Mutex<BTreeMap<Height, SegmentParts<'a>>>),
        halt: &AtomicBool,
    ) -> Result<(), SyncError> {
        let mut fetcher = self.source.fetcher(halt);
        let mut taker = BlockTaker::new(self);
        while let Some(&segment) = segments.get(next.fetch_add(1, Ordering::Relaxed)) {
            taker.begin(segment)?;
            let bytes_of = |height| self.source.block_bytes(height);
            for some in divide(segment, u32::MAX, self.read_bytes, &bytes_of) {
                if halt.load(Ordering::Relaxed) {
                    return Ok(());
                }
                stop_if_interrupted(self.interrupt)?;
                let bytes = taker.take_all(&mut *fetcher, some)?;
                self.tell(done, u64::from(some.count()), bytes);
            }
            let made = std::mem::take(&mut taker.segment).end().map_err(IndexesError::from)?;
            parts.lock().insert(segment.start, made);
        }
        taker.finish(done)
    }

    fn tell(&self, done: &Done, blocks: u64, bytes: u64) {
        let blocks = done.blocks.fetch_add(blocks, Ordering::Relaxed) + blocks;
        let bytes = done.bytes.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let progress = Progress {
            blocks,
            blocks_total: u64::from(self.chain.headers.tip_height()),
            bytes,
            bytes_total: self.source.bytes_total(),
            ..Progress::default()
        };
        self.observer.event(Event::Progress(INDEX_BLOCKS, progress));
    }
}

/// Divides a range into ranges of at most `blocks` blocks that end with the block that reaches `bytes`.
fn divide(
    range: HeightRange,
    blocks: u32,
    bytes: u64,
    bytes_of: &dyn Fn(Height) -> u64,
) -> Vec<HeightRange> {
    let (mut ranges, mut start, mut sum) = (Vec::new(), range.start, 0);
    for height in range.heights() {
        sum += bytes_of(height);
        if sum >= bytes || height + 1 - start >= blocks || height + 1 == range.end {
            ranges.push(HeightRange::new(start, height + 1));
            (start, sum) = (height + 1, 0);
        }
    }
    ranges
}

/// Why a block could not be taken.
enum TakeError {
    /// It is not the block of the chain.
    Damaged(BlockError),
    Run(SyncError),
}

impl From<IndexesError> for TakeError {
    fn from(error: IndexesError) -> Self {
        Self::Run(error.into())
    }
}

/// One thread's part of the pass.
struct BlockTaker<'p, 'a> {
    pass: &'p IndexPass<'p, 'a>,
    checker: BlockChecker,
    undo: Option<Box<dyn UndoReader + 'p>>,
    old_tx: Option<RowBuffers<'p, 'a, { txindex::OLD_ROW }>>,
    tx: Option<(Salt, RowBuffers<'p, 'a, { txindex::ROW }>)>,
    spender: Option<(Salt, RowBuffers<'p, 'a, { spender_index::ROW }>)>,
    segment: SegmentSinks<'a>,
    check: Option<BlockCheck<'p, 'a>>,
    counts: PassCounts,
}

/// What is made of each segment by itself.
#[derive(Default)]
struct SegmentSinks<'a> {
    filters: Option<FilterSegment<'a>>,
    stats: Option<CoinStatsSegment<'a>>,
    numbers: Option<NumbersSegment<'a>>,
}

impl<'a> SegmentSinks<'a> {
    fn begin(pass: &IndexPass<'_, 'a>) -> Self {
        let IndexPass { filters, stats, numbers, params, scratch, .. } = *pass;
        Self {
            filters: filters.map(|it| FilterSegment::new(it.folder, it.numbers, scratch)),
            stats: stats.then(|| CoinStatsSegment::new(params, scratch)),
            numbers: numbers.then(|| NumbersSegment::new(params, scratch)),
        }
    }

    /// Adds the next block.
    fn add(&mut self, block: &IndexBlock<'_>, txids: &[[u8; 32]]) -> Result<(), MakeError> {
        self.filters.as_mut().map_or(Ok(()), |filters| filters.block(block))?;
        self.stats.as_mut().map_or(Ok(()), |stats| stats.block(block, txids))?;
        self.numbers.as_mut().map_or(Ok(()), |numbers| numbers.block(block))
    }

    fn end(self) -> Result<SegmentParts<'a>, MakeError> {
        Ok((
            self.filters.map_or(Ok(None), FilterSegment::finish)?,
            self.stats.map_or(Ok(None), CoinStatsSegment::finish)?,
            self.numbers.map_or(Ok(None), NumbersSegment::finish)?,
        ))
    }
}

impl<'p, 'a> BlockTaker<'p, 'a> {
    fn new(pass: &'p IndexPass<'p, 'a>) -> Self {
        let PassRows { old_tx, tx, spender } = pass.rows;
        Self {
            pass,
            checker: BlockChecker::new(),
            undo: None,
            old_tx: old_tx.as_ref().map(RowFiles::buffers),
            tx: tx.as_ref().map(|(salt, rows)| (*salt, rows.buffers())),
            spender: spender.as_ref().map(|(salt, rows)| (*salt, rows.buffers())),
            segment: SegmentSinks::default(),
            check: pass.check.map(|(chain, found)| BlockCheck::new(chain, found, pass.params)),
            counts: PassCounts::default(),
        }
    }

    /// Begins a segment. The first one also has genesis, of which no row is made.
    fn begin(&mut self, segment: HeightRange) -> Result<(), SyncError> {
        let IndexPass { undo, params, .. } = *self.pass;
        self.undo = undo.map(|undo| undo.reader(segment));
        self.segment = SegmentSinks::begin(self.pass);
        if segment.start > 1 {
            return Ok(());
        }
        let (raw, hash) = (params.genesis_block(), params.genesis_hash);
        let (view, txids) = self.checker.read_same(&raw, &hash).map_err(|error| {
            IndexesError::Damaged(format!(
                "the genesis block is wrong: {error}. This is a bug in Apus"
            ))
        })?;
        let block = IndexBlock { height: 0, hash, view, undo: None };
        let checked = self.check.as_mut().map_or(Ok(()), |check| check.block(&block, txids));
        Ok(checked.and_then(|()| self.segment.add(&block, txids)).map_err(IndexesError::from)?)
    }

    /// Takes blocks in the order of the chain; the source has them in any order. Returns their bytes.
    fn take_all(
        &mut self,
        fetcher: &mut dyn BlockFetcher,
        range: HeightRange,
    ) -> Result<u64, SyncError> {
        let (mut next, mut bytes, mut failed) = (range.start, 0, None);
        let mut early: BTreeMap<Height, Vec<u8>> = BTreeMap::new();
        fetcher.fetch(range, &mut |height, raw| {
            bytes += raw.len() as u64;
            if height != next {
                early.insert(height, raw.to_vec());
                return BlockReply::Yes;
            }
            match self.take(height, raw) {
                Ok(()) => next += 1,
                Err(TakeError::Damaged(error)) => return BlockReply::Damaged(error),
                Err(TakeError::Run(error)) => {
                    failed = Some(error);
                    return BlockReply::Stop;
                }
            }
            while let Some(raw) = early.remove(&next) {
                match self.take(next, &raw) {
                    Ok(()) => next += 1,
                    Err(error) => {
                        failed = Some(match error {
                            TakeError::Run(error) => error,
                            TakeError::Damaged(error) => {
                                self.pass.source.damaged(next, error).into()
                            }
                        });
                        return BlockReply::Stop;
                    }
                }
            }
            BlockReply::Yes
        })?;
        match failed {
            Some(error) => Err(error),
            None if next != range.end => Err(SourceError::Incomplete { range }.into()),
            None => Ok(bytes),
        }
    }

    /// Takes the next block.
    fn take(&mut self, height: Height, raw: &[u8]) -> Result<(), TakeError> {
        let Self { pass, checker, undo, .. } = self;
        let hash_at = |height: Height| pass.chain.headers.hash(height).copied().unwrap_or_default();
        let hash = hash_at(height);
        let (view, txids) = checker.read_same(raw, &hash).map_err(TakeError::Damaged)?;
        let spent =
            undo.as_mut().map(|undo| read_undo(&mut **undo, height, &hash, &hash_at(height - 1)));
        let spent = spent.transpose()?;
        let spent = spent.as_ref().map(|raw| parse_undo(raw, height, &hash)).transpose()?;
        let block = IndexBlock { height, hash, view, undo: spent.as_ref() };
        if let Some(rows) = &mut self.old_tx {
            txindex::add_old_rows(rows, &block, txids)?;
        }
        if let Some((salt, rows)) = &mut self.tx {
            txindex::add_rows(rows, &block, txids, *salt)?;
        }
        if let Some((salt, rows)) = &mut self.spender {
            spender_index::add_rows(rows, &block, *salt)?;
        }
        if let Some(check) = &mut self.check {
            check.block(&block, txids).map_err(IndexesError::from)?;
        }
        self.segment.add(&block, txids).map_err(IndexesError::from)?;
        self.counts.transactions += view.tx_count() as u64;
        let of_coinbase = view.tx(0).map_or(0, |tx| tx.inputs().len());
        self.counts.inputs += (view.input_count() - of_coinbase) as u64;
        Ok(())
    }

    /// Writes what is left.
    fn finish(self, done: &Done) -> Result<(), SyncError> {
        let Self { old_tx, tx, spender, counts, .. } = self;
        old_tx.map_or(Ok(()), RowBuffers::finish)?;
        tx.map_or(Ok(()), |(_, rows)| rows.finish())?;
        spender.map_or(Ok(()), |(_, rows)| rows.finish())?;
        done.transactions.fetch_add(counts.transactions, Ordering::Relaxed);
        done.inputs.fetch_add(counts.inputs, Ordering::Relaxed);
        Ok(())
    }
}

/// Reads the undo data of a block, and compares their checksum.
pub(crate) fn read_undo(
    undo: &mut dyn UndoReader,
    height: Height,
    hash: &BlockHash,
    prev: &BlockHash,
) -> Result<Vec<u8>, IndexesError> {
    undo.read(height, prev).map_err(|what| undo_error(height, hash, &what))
}

fn parse_undo<'u>(
    raw: &'u [u8],
    height: Height,
    hash: &BlockHash,
) -> Result<BlockUndo<'u>, IndexesError> {
    BlockUndo::read(raw).map_err(|error| undo_error(height, hash, &error.to_string()))
}

fn undo_error(height: Height, hash: &BlockHash, what: &str) -> IndexesError {
    IndexesError::Damaged(format!(
        "the undo data of block {height} ({hash}) are unusable: {what}. `bitcoind -reindex` makes the node write them \
         again"
    ))
}

impl From<apus_datadir::BlockLocation> for BlockPlace {
    fn from(place: apus_datadir::BlockLocation) -> Self {
        // Block files are shorter than 4 GiB: the index has 32 bits for an offset.
        Self { file: place.file, offset: u32::try_from(place.offset).unwrap_or(u32::MAX) }
    }
}

//! The blocks phase: worker threads claim segments, one thread makes their results durable.
//!
//! Each worker takes the next unclaimed segment, reads its blocks through a fetcher of its own,
//! checks them and feeds the engine; nothing is shared between workers but the claim counter. A
//! finished segment goes through a bounded channel to the calling thread, which writes it down
//! and merges its partial result. The channel is the back-pressure: a slow disk holds the workers.

use super::hints::HintsProvider;
use crate::error::SyncError;
use crate::progress::{Event, Phase, Progress};
use crate::request::Request;
use crate::source::ChainSource;
use crate::supply::{Supply, Walker};
use crate::workdir::{Done, Workdir};
use apus_chain::HeightRange;
use apus_engine::swiftsync::hints::elias_fano::{BitOrder, encode};
use apus_engine::swiftsync::{IndexHints, SwiftSync};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Finished segments that are not durable yet take at most this part of the memory.
const HELD_SHARE: u64 = 4;

/// All that the workers share.
pub(crate) struct Blocks<'a> {
    pub(crate) request: &'a Request<'a>,
    pub(crate) source: &'a dyn ChainSource,
    pub(crate) hints: &'a dyn HintsProvider,
    pub(crate) engine: &'a SwiftSync,
}

/// Work done so far, by this start and earlier ones.
#[derive(Default)]
struct Counters {
    blocks: AtomicU64,
    bytes: AtomicU64,
    coins: AtomicU64,
}

/// A segment that a worker finished or failed at.
type Outcome = (HeightRange, Result<Done, SyncError>);

/// The finished segments. Those that came last are held in memory for a while, so that many are
/// made durable together, and those of a short run never have to be.
struct Results<'a> {
    workdir: &'a Workdir<'a>,
    all: Vec<Done>,
    /// How many of them are durable, and since when.
    stored: usize,
    stored_at: Instant,
    /// Memory of the others.
    held_bytes: u64,
}

impl<'a> Results<'a> {
    fn new(workdir: &'a Workdir<'a>, done: Vec<Done>) -> Self {
        let stored = done.len();
        Self { workdir, all: done, stored, stored_at: Instant::now(), held_bytes: 0 }
    }

    /// Makes all of them durable.
    fn store(&mut self) -> Result<(), SyncError> {
        while let Some(done) = self.all.get_mut(self.stored) {
            let held_bytes = done.held_bytes();
            self.workdir.store(done)?;
            self.held_bytes -= held_bytes;
            self.stored += 1;
        }
        self.stored_at = Instant::now();
        Ok(())
    }
}

impl Blocks<'_> {
    /// Processes the segments that are not done yet; returns all, the done ones included, by
    /// ascending height.
    pub(crate) fn run(
        &self,
        workdir: &Workdir<'_>,
        segments: &[HeightRange],
        done: Vec<Done>,
    ) -> Result<Vec<Done>, SyncError> {
        let todo: Vec<HeightRange> = segments
            .iter()
            .copied()
            .filter(|segment| !done.iter().any(|done| done.range == *segment))
            .collect();
        let counters = Counters::default();
        for done in &done {
            counters.add(&done.partial.counts, done.partial.survivors.coins);
        }
        let next = AtomicUsize::new(0);
        let halt = AtomicBool::new(false);
        let supply = Supply::of(self.request, self.source);
        let threads = self.request.threads;
        let mut results = Results::new(workdir, done);
        let total = self.total(segments);
        let workers = self.source.fetchers(threads).min(todo.len());
        let failure = std::thread::scope(|scope| {
            let mut failure: Option<(HeightRange, SyncError)> = None;
            let (send, receive) = sync_channel::<Outcome>(threads);
            for index in 0..workers {
                let (send, todo, next, halt, counters, supply) =
                    (send.clone(), &todo, &next, &halt, &counters, &supply);
                let spawned = std::thread::Builder::new()
                    .name(format!("blocks-{index}"))
                    .spawn_scoped(scope, move || {
                        self.work(todo, next, halt, counters, supply, &send)
                    });
                if let Err(error) = spawned {
                    halt.store(true, Ordering::Relaxed);
                    let error = SyncError::Threads { wanted: workers, error };
                    failure = Some((HeightRange::new(0, 0), error));
                    break;
                }
            }
            drop(send);
            loop {
                let (range, stored) = match receive.recv_timeout(PROGRESS_INTERVAL) {
                    Ok((range, Ok(done))) => (range, self.keep(done, &mut results)),
                    Ok((range, Err(error))) => (range, Err(error)),
                    Err(RecvTimeoutError::Timeout) => {
                        (HeightRange::new(0, 0), self.checkpoint(&mut results))
                    }
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if let Err(error) = stored {
                    halt.store(true, Ordering::Relaxed);
                    // The lowest failure is told, whichever thread was quicker.
                    if failure.as_ref().is_none_or(|(first, _)| range < *first) {
                        failure = Some((range, error));
                    }
                }
                self.request
                    .observer
                    .event(Event::Progress(Phase::Blocks, counters.progress(total)));
            }
            failure
        });
        let interrupted =
            self.request.interrupt.load(Ordering::Relaxed) && results.all.len() < segments.len();
        match failure {
            Some((_, error)) => {
                // Kept if that is possible; the error to tell is the one that ended the run.
                let _ = self.store(&mut results);
                Err(error)
            }
            None if interrupted => {
                self.store(&mut results)?;
                Err(SyncError::Interrupted)
            }
            None => {
                results.all.sort_unstable_by_key(|done| done.range);
                Ok(results.all)
            }
        }
    }

    /// Takes a finished segment, and makes it and those that wait durable if it is time.
    fn keep(&self, done: Done, results: &mut Results<'_>) -> Result<(), SyncError> {
        results.held_bytes += done.held_bytes();
        results.all.push(done);
        self.checkpoint(results)
    }

    fn checkpoint(&self, results: &mut Results<'_>) -> Result<(), SyncError> {
        let due = results.stored_at.elapsed() >= self.request.checkpoint_interval
            || results.held_bytes > self.request.memory_bytes / HELD_SHARE;
        if due { self.store(results) } else { Ok(()) }
    }

    /// Makes all finished segments durable, after what the source keeps of their blocks.
    fn store(&self, results: &mut Results<'_>) -> Result<(), SyncError> {
        self.source.sync()?;
        results.store()
    }

    fn total(&self, segments: &[HeightRange]) -> Progress {
        let heights = || segments.iter().flat_map(|segment| segment.heights());
        let sizes = heights().filter(|_| self.source.knows_sizes());
        Progress {
            blocks_total: heights().count() as u64,
            bytes_total: sizes.map(|height| self.source.block_bytes(height)).sum(),
            ..Progress::default()
        }
    }

    /// One worker's life.
    fn work(
        &self,
        todo: &[HeightRange],
        next: &AtomicUsize,
        halt: &AtomicBool,
        counters: &Counters,
        supply: &Supply<'_>,
        send: &SyncSender<Outcome>,
    ) {
        let mut walker = supply.walker(halt);
        while !halt.load(Ordering::Relaxed) {
            let Some(&range) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let outcome = match self.segment(range, &mut walker, supply, counters) {
                Ok(Some(done)) => Ok(done),
                Ok(None) | Err(SyncError::Interrupted) => return,
                Err(error) => Err(error),
            };
            if send.send((range, outcome)).is_err() {
                return;
            }
        }
    }

    /// Processes one segment; none where that was halted.
    fn segment(
        &self,
        range: HeightRange,
        walker: &mut Walker<'_>,
        supply: &Supply<'_>,
        counters: &Counters,
    ) -> Result<Option<Done>, SyncError> {
        let mut segment = self.engine.begin(self.hints.segment(range)?);
        let whole = walker.take(range, &mut |block| {
            self.engine.block(&mut segment, block)?;
            counters.blocks.fetch_add(1, Ordering::Relaxed);
            counters.bytes.fetch_add(block.view().raw().len() as u64, Ordering::Relaxed);
            Ok(())
        })?;
        if !whole {
            return Ok(None);
        }
        let _permit = supply.permit();
        let finished = self.engine.finish(segment)?;
        counters.coins.fetch_add(finished.partial.survivors.coins, Ordering::Relaxed);
        let hints = encode_hints(&finished.hints);
        Ok(Some(Done::held(range, finished, hints)))
    }
}

/// The hints of a segment as they stand in a BIP-456 file, one element after the other.
fn encode_hints(hints: &IndexHints) -> Vec<u8> {
    let mut out = Vec::new();
    for height in hints.range().heights() {
        let indices = hints.block(height).unwrap_or_default();
        encode(indices, BitOrder::MsbFirst, &mut out)
            .expect("the engine keeps ascending indices of outputs that fit in a block");
    }
    out
}

impl Counters {
    fn add(&self, counts: &apus_engine::swiftsync::Counts, coins: u64) {
        self.blocks.fetch_add(counts.blocks, Ordering::Relaxed);
        self.bytes.fetch_add(counts.bytes, Ordering::Relaxed);
        self.coins.fetch_add(coins, Ordering::Relaxed);
    }

    fn progress(&self, total: Progress) -> Progress {
        Progress {
            blocks: self.blocks.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            coins: self.coins.load(Ordering::Relaxed),
            ..total
        }
    }
}

//! The blocks phase: worker threads claim segments, one thread makes their results durable.
//!
//! Each worker takes the next unclaimed segment, reads its blocks through a fetcher of its own,
//! checks them and feeds the engine; nothing is shared between workers but the claim counter. A
//! finished segment goes through a bounded channel to the calling thread, which writes it down
//! and merges its partial result. The channel is the back-pressure: a slow disk holds the workers.

use crate::error::SyncError;
use crate::hints::HintsProvider;
use crate::outputs::context;
use crate::permits::Permits;
use crate::progress::{Event, Observer, Phase, Progress};
use crate::source::{BlockSource, Taken};
use crate::workdir::{Done, Workdir};
use apus_chain::{
    BlockChecker, BlockError, HeaderChain, Height, HeightRange, Params, ScriptVerifier,
};
use apus_engine::swiftsync::hints::elias_fano::{BitOrder, encode};
use apus_engine::swiftsync::{IndexHints, SwiftSync};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::time::{Duration, Instant};

/// How often progress is told.
const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// All that the workers share.
pub(crate) struct Blocks<'a> {
    pub(crate) params: &'a Params,
    pub(crate) chain: &'a HeaderChain,
    pub(crate) verifier: Option<&'a dyn ScriptVerifier>,
    pub(crate) source: &'a dyn BlockSource,
    pub(crate) hints: &'a dyn HintsProvider,
    pub(crate) engine: &'a SwiftSync,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) interrupt: &'a AtomicBool,
    pub(crate) threads: usize,
    pub(crate) checkpoint_interval: Duration,
    pub(crate) held_bytes_max: u64,
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

/// Why a worker gave up its segment without an error of its own.
enum Halt {
    Failed(Box<SyncError>),
    Stopped,
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
        let permits = Permits::new(self.threads);
        let mut results = Results::new(workdir, done);
        let total = self.total(segments);
        let workers = self.source.fetchers(self.threads).min(todo.len());
        let failure = std::thread::scope(|scope| {
            let mut failure: Option<(HeightRange, SyncError)> = None;
            let (send, receive) = sync_channel::<Outcome>(self.threads);
            for index in 0..workers {
                let (send, todo, next, halt, counters, permits) =
                    (send.clone(), &todo, &next, &halt, &counters, &permits);
                let spawned = std::thread::Builder::new()
                    .name(format!("blocks-{index}"))
                    .spawn_scoped(scope, move || {
                        self.work(todo, next, halt, counters, permits, &send)
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
                self.observer.event(Event::Progress(Phase::Blocks, counters.progress(total)));
            }
            failure
        });
        let interrupted =
            self.interrupt.load(Ordering::Relaxed) && results.all.len() < segments.len();
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
        let due = results.stored_at.elapsed() >= self.checkpoint_interval
            || results.held_bytes > self.held_bytes_max;
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
        permits: &Permits,
        send: &SyncSender<Outcome>,
    ) {
        let mut checker = BlockChecker::new();
        let mut fetcher = self.source.fetcher(halt);
        while !halt.load(Ordering::Relaxed) {
            let Some(&range) = todo.get(next.fetch_add(1, Ordering::Relaxed)) else { return };
            let take = |finished| {
                let outcome = match finished {
                    Ok(finished) => Ok(finished),
                    Err(Halt::Failed(error)) => Err(*error),
                    Err(Halt::Stopped) => return false,
                };
                send.send((range, outcome)).is_ok()
            };
            let finished =
                self.segment(range, &mut checker, &mut *fetcher, halt, counters, permits);
            if !take(finished) {
                return;
            }
        }
    }

    /// Processes one segment.
    fn segment(
        &self,
        range: HeightRange,
        checker: &mut BlockChecker,
        fetcher: &mut dyn crate::source::BlockFetcher,
        halt: &AtomicBool,
        counters: &Counters,
        permits: &Permits,
    ) -> Result<Done, Halt> {
        let failed = |error: SyncError| Halt::Failed(Box::new(error));
        let mut segment = self.engine.begin(self.hints.segment(range).map_err(failed)?);
        let mut failure = None;
        let fetched = fetcher.fetch(range, &mut |height, raw| {
            if halt.load(Ordering::Relaxed) || self.interrupt.load(Ordering::Relaxed) {
                failure = Some(Halt::Stopped);
                return Taken::Stop;
            }
            let _permit = permits.take();
            let error = match checker
                .check(raw, &context(self.params, self.chain, self.verifier, height))
            {
                Ok(block) => match self.engine.block(&mut segment, &block) {
                    Ok(()) => {
                        counters.blocks.fetch_add(1, Ordering::Relaxed);
                        let bytes = block.view().raw().len() as u64;
                        counters.bytes.fetch_add(bytes, Ordering::Relaxed);
                        return Taken::Yes;
                    }
                    Err(error) => error.into(),
                },
                Err(error) if error.is_damage() => return Taken::Damaged(error),
                Err(error) => self.invalid(height, error),
            };
            failure = Some(failed(error));
            Taken::Stop
        });
        fetched.map_err(|error| failed(error.into()))?;
        if let Some(failure) = failure {
            return Err(failure);
        }
        if halt.load(Ordering::Relaxed) {
            // The blocks need not be whole.
            return Err(Halt::Stopped);
        }
        let _permit = permits.take();
        let finished = self.engine.finish(segment).map_err(|error| failed(error.into()))?;
        counters.coins.fetch_add(finished.partial.survivors.coins, Ordering::Relaxed);
        let hints = encode_hints(&finished.hints);
        Ok(Done::held(range, finished, hints))
    }

    fn invalid(&self, height: Height, error: BlockError) -> SyncError {
        let hash = self.chain.hash(height).copied().unwrap_or_default();
        SyncError::InvalidBlock { height, hash, error }
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

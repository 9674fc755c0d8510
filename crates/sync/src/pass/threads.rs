//! [`Threads`]: processes the segments of a pass on threads of this process.
//!
//! Each worker takes the next unclaimed segment, walks over its blocks and feeds the pass; workers share only
//! the claim counter. A finished segment goes through a bounded channel to the calling thread. The channel
//! provides back-pressure: a slow disk stalls the workers.

use crate::engines::pass::{FinishedSegment, PartialResult, Pass, Work};
use crate::error::{IoError, SyncError};
use crate::pass::{Counters, Dispatch, PassJob, Take};
use crate::progress::{Event, PROGRESS_INTERVAL, SegmentState};
use crate::supply::{Supply, Walker, weight};
use crate::workdir::FinishedRange;
use apus_chain::{BlockBytes, Height, HeightRange};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};

/// A dispatch to as many threads as the request and the source want.
pub struct Threads;

/// A segment that a worker finished, or that failed.
type Outcome<P> = (HeightRange, Result<FinishedRange<<P as Pass>::Partial>, SyncError>);

/// State shared by the workers.
struct SegmentQueue<'a, P: Pass> {
    job: &'a PassJob<'a, P>,
    todo: &'a [HeightRange],
    /// The first segment that no worker has claimed.
    next: AtomicUsize,
    halt: AtomicBool,
    supply: Supply<'a>,
    counters: &'a Counters,
}

impl<P: Pass> Dispatch<P> for Threads
where
    SyncError: From<P::Error>,
{
    fn run(
        &self,
        job: &PassJob<'_, P>,
        todo: &[HeightRange],
        counters: &Counters,
        take: &mut Take<'_, P>,
    ) -> Result<(), SyncError> {
        let (next, halt) = (AtomicUsize::new(0), AtomicBool::new(false));
        let supply = Supply::of(&job.request.env, job.source, job.unseen);
        let shared = SegmentQueue { job, todo, next, halt, supply, counters };
        let threads = job.request.env.threads;
        let workers = job.source.fetchers(threads).min(todo.len());
        std::thread::scope(|scope| {
            let mut failure = LowestFailure::default();
            let (send, receive) = sync_channel::<Outcome<P>>(threads / 2);
            for index in 0..workers {
                let (send, shared) = (send.clone(), &shared);
                let spawned = std::thread::Builder::new()
                    .name(format!("blocks-{index}"))
                    .spawn_scoped(scope, move || shared.work(&send));
                if let Err(error) = spawned {
                    shared.halt.store(true, Ordering::Relaxed);
                    let error = SyncError::Io(IoError::Threads { wanted: workers, error });
                    failure.note(HeightRange::new(0, 0), error);
                    break;
                }
            }
            drop(send);
            loop {
                let (range, taken) = match receive.recv_timeout(PROGRESS_INTERVAL) {
                    Ok((range, done)) => (range, done.and_then(|done| take(Some(done)))),
                    Err(RecvTimeoutError::Timeout) => (HeightRange::new(0, 0), take(None)),
                    Err(RecvTimeoutError::Disconnected) => break,
                };
                if let Err(error) = taken {
                    shared.halt.store(true, Ordering::Relaxed);
                    failure.note(range, error);
                }
            }
            failure.0.map_or_else(|| take(None), |(_, error)| Err(error))
        })
    }
}

/// The failure of the lowest segment, even if another failed first.
#[derive(Default)]
struct LowestFailure(Option<(HeightRange, SyncError)>);

impl LowestFailure {
    fn note(&mut self, range: HeightRange, error: SyncError) {
        if self.0.as_ref().is_none_or(|(first, _)| range < *first) {
            self.0 = Some((range, error));
        }
    }
}

impl<P: Pass> SegmentQueue<'_, P>
where
    SyncError: From<P::Error>,
{
    /// Runs one worker.
    fn work(&self, send: &SyncSender<Outcome<P>>) {
        let mut walker = self.supply.walker(&self.halt);
        while !self.halt.load(Ordering::Relaxed) {
            let claimed = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(&range) = self.todo.get(claimed) else { return };
            if self.job.limit.is_some_and(|limit| !limit.admits(range)) {
                return;
            }
            let outcome = match self.segment(range, &mut walker) {
                Ok(Some(done)) => Ok(done),
                Ok(None) | Err(SyncError::Interrupted) => return,
                Err(error) => Err(error),
            };
            if send.send((range, outcome)).is_err() {
                return;
            }
        }
    }

    /// Processes one segment; `None` if it was halted.
    fn segment(
        &self,
        range: HeightRange,
        walker: &mut Walker<'_>,
    ) -> Result<Option<FinishedRange<P::Partial>>, SyncError> {
        let pass = self.job.pass;
        let each = |height, bytes| {
            self.counters.add(Work { blocks: 1, bytes, ..Work::default() });
            self.counters.add_weight(weight(self.job.source, height));
        };
        self.job.request.env.observer.event(Event::Segment(range, SegmentState::Begun));
        let input = (self.job.input)(range)?;
        let done = do_segment(pass, input, range, &self.supply, walker, &each)?;
        let Some(finished) = done else { return Ok(None) };
        let Work { bytes, coins, .. } = finished.partial.done();
        self.counters.add(Work { coins, ..Work::default() });
        self.counters.finished(bytes, finished.partial.coins_about());
        Ok(Some(FinishedRange::held(range, finished, P::RUNS)))
    }
}

// One segment, processed by one thread: here, or on another machine.

/// Walks over the blocks of a segment and feeds the pass; `None` if it was halted. Calls `each` with the
/// height and the bytes of each block.
pub fn do_segment<P: Pass>(
    pass: &P,
    input: P::Input,
    range: HeightRange,
    supply: &Supply<'_>,
    walker: &mut Walker<'_>,
    each: &dyn Fn(Height, u64),
) -> Result<Option<FinishedSegment<P::Partial>>, SyncError>
where
    SyncError: From<P::Error>,
{
    let mut segment = pass.begin(input)?;
    let mut take = |block: &BlockBytes<'_>| {
        pass.block(&mut segment, block)?;
        each(block.height(), block.view().raw().len() as u64);
        Ok(())
    };
    // A source returns the blocks of a range in any order.
    let at_once = if P::BLOCKS_ASCEND { 1 } else { range.count().max(1) };
    for start in range.heights().step_by(at_once as usize) {
        let some = HeightRange::new(start, range.end.min(start.saturating_add(at_once)));
        if !walker.take(some, &mut take)? {
            return Ok(None);
        }
    }
    let _permit = supply.permit();
    Ok(Some(pass.finish(segment)?))
}

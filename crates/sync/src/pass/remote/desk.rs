//! [`Desk`]: which segments are out, what came back, and what is said of it.

use super::Remote;
use crate::error::{ClusterError, QueueError, SourceError, SyncError};
use crate::pass::Job;
use crate::progress::{Event, Worker, Workers, stop_if_interrupted};
use crate::queue::{
    Answer, AnswerBytes, AnswerKind, JobMessage, ObjectRef, Patience, RunId, RunSpec,
    SegmentResult, WireError, hints,
};
use crate::runs::index_of;
use crate::warning::Warning;
use crate::workdir::Done;
use apus_chain::HeightRange;
use apus_engine::pass::{Pass, Work};
use apus_engine::swiftsync::SegmentHints;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::time::{Duration, Instant};

/// So many jobs are out at most: enough for any number of machines that one can feed, and no more inputs than
/// a store has room for.
const OUT_MAX: usize = 256;

/// After so many machines that could not do a segment the run ends; and after so many results of it that were of
/// no use.
const TROUBLE_MAX: usize = 3;

/// Where no answer came for so long, jobs are put again: the queue may have lost some unnoticed.
const PUT_AGAIN: Duration = Duration::from_secs(60);

/// How often machines are told of.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// A queue may be away for so long at a stretch.
pub(crate) const QUEUE_AWAY_MAX: Duration = Duration::from_secs(300);

/// See the module.
pub(super) struct Desk<'d, 'j, P: Pass> {
    remote: &'d Remote<'d>,
    job: &'d Job<'j, P>,
    spec: Vec<u8>,
    run: RunId,
    /// To be put, ascending.
    todo: VecDeque<HeightRange>,
    /// Out, with what they were told.
    out: BTreeMap<HeightRange, ObjectRef>,
    /// The lowest segment that failed.
    failure: Option<(HeightRange, SyncError)>,
    troubles: BTreeMap<HeightRange, BTreeSet<String>>,
    refused: BTreeMap<HeightRange, usize>,
    workers: BTreeMap<String, Worker>,
    handling: Duration,
    /// Whether the queue was away: it may have lost jobs that are out.
    lost: Cell<bool>,
    /// When an answer came last, or jobs were put again.
    moved: Instant,
    told: Option<Instant>,
}

/// A segment that is done.
type Finished<P> = Done<<P as Pass>::Partial>;

impl<'d, 'j, P: Pass<Input = SegmentHints>> Desk<'d, 'j, P> {
    /// Makes the run known.
    pub(super) fn open(
        remote: &'d Remote<'d>,
        job: &'d Job<'j, P>,
        todo: &[HeightRange],
    ) -> Result<Self, SyncError> {
        let began = Instant::now();
        let headers = headers(job, remote.plan.identity.stop)?;
        let patience = patience(job);
        let of = ObjectRef::of(&headers);
        let spec = RunSpec { pass: remote.pass, plan: remote.plan.clone(), headers: of };
        let spec = spec.to_bytes().ok_or_else(|| {
            let segments = remote.plan.segments.len();
            ClusterError::Message(format!(
                "{segments} segments are too many to be described to other machines: start anew, with another \
                 --workdir and a greater --segment-bytes, or without that"
            ))
        })?;
        let run = RunId::of(&spec);
        // They are there before the run is seen.
        patience.with(|| remote.queue.put_object(&run, &headers))?;
        patience.with(|| remote.queue.open(&run, &spec))?;
        Ok(Self {
            remote,
            job,
            spec,
            run,
            todo: todo.iter().copied().collect(),
            out: BTreeMap::new(),
            failure: None,
            troubles: BTreeMap::new(),
            refused: BTreeMap::new(),
            workers: BTreeMap::new(),
            handling: began.elapsed(),
            lost: Cell::new(false),
            moved: Instant::now(),
            told: None,
        })
    }

    /// Whether answers are waited for.
    pub(super) fn waits(&self) -> bool {
        !(self.todo.is_empty() && self.out.is_empty())
    }

    /// Counts the time that something takes here.
    pub(super) fn timed<T>(&mut self, what: impl FnOnce() -> T) -> T {
        let began = Instant::now();
        let value = what();
        self.handling += began.elapsed();
        value
    }

    /// Puts as many jobs as may be out; and those again that are out, where nothing moves.
    pub(super) fn put_jobs(&mut self) -> Result<(), SyncError> {
        let began = Instant::now();
        while self.out.len() < OUT_MAX
            && let Some(range) = self.todo.pop_front()
        {
            let told = hints::write(&(self.job.input)(range)?);
            let input =
                patience(self.job).with(|| self.remote.queue.put_object(&self.run, &told))?;
            self.put(range, input)?;
            self.out.insert(range, input);
        }
        if self.lost.take() || self.moved.elapsed() >= PUT_AGAIN {
            let out: Vec<_> = self.out.iter().map(|(range, input)| (*range, *input)).collect();
            out.into_iter().try_for_each(|(range, input)| self.put(range, input))?;
            self.moved = Instant::now();
        }
        self.handling += began.elapsed();
        Ok(())
    }

    fn put(&self, range: HeightRange, input: ObjectRef) -> Result<(), SyncError> {
        let message = JobMessage { run: self.run, range, input }.to_bytes();
        self.ask(|| self.remote.queue.put_job(range, &message))
    }

    /// Asks the queue, and makes the run known again to one that has lost it.
    fn ask<T>(&self, mut attempt: impl FnMut() -> Result<T, QueueError>) -> Result<T, SyncError> {
        patience(self.job).with(|| match attempt() {
            Err(away @ QueueError::Away(_)) => {
                self.lost.set(true);
                self.remote.queue.open(&self.run, &self.spec)?;
                Err(away)
            }
            other => other,
        })
    }

    /// The next segment that is done, if an answer comes in time and is one.
    pub(super) fn next(&mut self, wait: Duration) -> Result<Option<Finished<P>>, SyncError> {
        let Some(bytes) = self.ask(|| self.remote.queue.answer(wait))? else { return Ok(None) };
        let began = Instant::now();
        let done = self.take(&bytes);
        self.handling += began.elapsed();
        done
    }

    fn take(&mut self, bytes: &AnswerBytes) -> Result<Option<Finished<P>>, SyncError> {
        let range = bytes.range;
        // One of an earlier start whose segment is kept, or of a segment above one that failed.
        let Some(&input) = self.out.get(&range) else { return Ok(None) };
        self.moved = Instant::now();
        let answer = match Answer::from_bytes(&bytes.message, self.run) {
            Ok(answer) if (answer.range, answer.input) == (range, input) => answer,
            Ok(answer) => {
                let why = WireError::OtherJob { what: "the answer" }.to_string();
                return self.refuse(bytes, &answer.worker, why).map(|()| None);
            }
            Err(error) => {
                return self.refuse(bytes, "a machine", error.to_string()).map(|()| None);
            }
        };
        match answer.kind {
            AnswerKind::Done { result, work, micros } => {
                let worker = answer.worker;
                let finished = match self.result(range, &result) {
                    Ok(done) => done?,
                    Err(why) => return self.refuse(bytes, &worker, why).map(|()| None),
                };
                self.out.remove(&range);
                self.share(worker, work, Duration::from_micros(micros));
                Ok(Some(finished))
            }
            AnswerKind::Refused(error) => {
                self.fail(range, Box::new(error).into());
                Ok(None)
            }
            AnswerKind::Trouble(text) => self.trouble(bytes, answer.worker, text).map(|()| None),
        }
    }

    /// Gets a result, or says why it is of no use.
    fn result(
        &self,
        range: HeightRange,
        result: &ObjectRef,
    ) -> Result<Result<Finished<P>, SyncError>, String> {
        let got = patience(self.job).with(|| self.remote.queue.object(result));
        let bytes = match got {
            Err(SyncError::Cluster(ClusterError::Queue(QueueError::Object(why)))) => {
                return Err(why);
            }
            Err(error) => return Ok(Err(error)),
            Ok(bytes) => bytes,
        };
        let finished = SegmentResult::read(&bytes, self.run, range, P::RUNS.len());
        let finished = finished.map_err(|error| error.to_string())?;
        Ok(Ok(Done::held(range, finished, P::RUNS, index_of)))
    }

    /// A result that is of no use is said to be so, and the segment is done again.
    fn refuse(&mut self, answer: &AnswerBytes, worker: &str, why: String) -> Result<(), SyncError> {
        let (range, worker) = (answer.range, worker.to_owned());
        self.ask(|| self.remote.queue.forget(answer))?;
        let results = self.refused.entry(range).or_default();
        *results += 1;
        if *results >= TROUBLE_MAX {
            let results = *results;
            return Err(ClusterError::Useless { range, results, worker, why }.into());
        }
        self.warn(Warning::ResultRefused { worker, range, why });
        let input = self.out[&range];
        self.put(range, input)
    }

    fn trouble(
        &mut self,
        answer: &AnswerBytes,
        worker: String,
        text: String,
    ) -> Result<(), SyncError> {
        let range = answer.range;
        // The next start counts anew.
        self.ask(|| self.remote.queue.forget(answer))?;
        let workers = self.troubles.entry(range).or_default();
        workers.insert(worker.clone());
        let machines = workers.len();
        if machines >= TROUBLE_MAX {
            return Err(ClusterError::Trouble { range, machines, worker, text }.into());
        }
        self.warn(Warning::WorkerTrouble { worker, range, text });
        Ok(())
    }

    /// What lies above is of no matter any more; what lies below may fail, too, and is then the one told.
    fn fail(&mut self, range: HeightRange, error: SyncError) {
        self.todo.retain(|other| *other < range);
        self.out.retain(|other, _| *other < range);
        self.failure = Some((range, error));
    }

    fn warn(&self, warning: Warning) {
        self.job.request.observer.event(Event::Warning(warning));
    }

    fn share(&mut self, name: String, work: Work, busy: Duration) {
        let worker = self.workers.entry(name).or_default();
        worker.segments += 1;
        worker.blocks = worker.blocks.saturating_add(work.blocks);
        worker.bytes = worker.bytes.saturating_add(work.bytes);
        worker.busy = worker.busy.saturating_add(busy);
    }

    /// Tells of the machines, if it is time.
    pub(super) fn tell(&mut self, last: bool) {
        if !last && self.told.is_some_and(|told| told.elapsed() < TELL_INTERVAL) {
            return;
        }
        self.told = Some(Instant::now());
        for seen in self.remote.queue.workers() {
            let worker = self.workers.entry(seen.name).or_default();
            (worker.seen, worker.doing) = (Some(seen.ago), seen.doing);
        }
        let all = self.workers.iter().map(|(name, worker)| {
            let name = name.clone();
            Worker { name, ..worker.clone() }
        });
        let workers = Workers { all: all.collect(), handling: self.handling, last };
        self.job.request.observer.event(Event::Workers(workers));
    }

    /// Ends the run for all machines.
    pub(super) fn close(mut self) -> Result<(), SyncError> {
        self.tell(true);
        let closed = patience(self.job).with(|| self.remote.queue.close());
        match self.failure {
            Some((_, error)) => Err(error),
            None => closed,
        }
    }
}

fn patience<'a, P: Pass>(job: &Job<'a, P>) -> Patience<'a> {
    let (observer, interrupt) = (job.request.observer, job.request.interrupt);
    Patience { longest: QUEUE_AWAY_MAX, observer, interrupt }
}

/// The headers of all blocks up to a height, one after the other.
fn headers<P: Pass>(job: &Job<'_, P>, stop: u32) -> Result<Vec<u8>, SyncError> {
    let heads = job.source.heads(stop, &mut |_| {
        stop_if_interrupted(job.request.interrupt).map_err(|_| SourceError::Interrupted)
    });
    match heads {
        Err(SourceError::Interrupted) => Err(SyncError::Interrupted),
        other => Ok(other?.iter().flat_map(|head| head.header).collect()),
    }
}

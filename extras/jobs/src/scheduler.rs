//! [`Scheduler`]: queues the jobs of a run, handles the answers, and reports on the machines.

mod ahead;
mod audit;
mod local;
mod slow;
mod troubles;

use crate::error::{ClusterError, QueueError, warn};
use crate::job::{JobCopy, JobKey, JobStep};
use crate::queue::{
    AnswerBytes, AnswerKind, JobAnswer, JobMessage, JobQueue, ObjectRef, QueueRetry, RunId,
    WireError,
};
use ahead::{AnswersAhead, FetchedObject, Fetchers, PendingAnswer};
use apus_sync::engines::pass::Work;
use apus_sync::error::SyncError;
use apus_sync::progress::{Event, PROGRESS_INTERVAL, Worker, Workers};
use apus_sync::request::Request;
use apus_sync::source::ChainSource;
use apus_sync::workdir::Workdir;
use audit::Audits;
use slow::JobPace;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Maximum number of outstanding jobs: enough for as many machines as one coordinator can feed, few enough for the
/// object store to hold their payloads.
const OUT_MAX: usize = 256;

/// Jobs are queued again after this long without an answer, since the queue may have lost some unnoticed.
const PUT_AGAIN: Duration = Duration::from_secs(60);

/// Interval between two reports on the machines.
const REPORT_INTERVAL: Duration = Duration::from_secs(5);

/// Fail once the queue has been unreachable for this long without a break.
const QUEUE_AWAY_MAX: Duration = Duration::from_secs(300);

/// The result of a job.
pub(crate) struct JobResult {
    pub(crate) key: JobKey,
    /// The whole object that the answer names.
    pub(crate) bytes: Vec<u8>,
}

/// Why an answer does not count.
pub(crate) enum AnswerError {
    /// The result is invalid, for this reason: the job is repeated.
    Invalid(String),
    /// This machine failed.
    Local(SyncError),
}

/// An accepted answer.
struct CountedAnswer {
    place: u64,
    input: ObjectRef,
    result: ObjectRef,
    worker: String,
}

/// A job that is queued but not answered yet.
struct OutstandingJob {
    /// Its payload.
    input: ObjectRef,
    since: Instant,
    /// Whether a second copy is queued because the first is slow.
    again: bool,
}

/// Builds the payload of a job of the current step, or of an earlier step, whose jobs are repeated if their results
/// are lost. `None` if the payload can no longer be built.
pub(crate) type JobPayload<'t> = dyn Fn(JobKey) -> Result<Option<Vec<u8>>, SyncError> + 't;

/// Decodes a result.
pub(crate) type ReadAnswer<'t, T> = dyn FnMut(JobResult) -> Result<T, AnswerError> + 't;

/// Receives a decoded result; also called with `None` from time to time.
pub(crate) type TakeAnswer<'t, T> = dyn FnMut(Option<T>) -> Result<(), SyncError> + 't;

/// Runs the jobs of a run on other machines.
pub(crate) struct Scheduler<'d> {
    queue: &'d dyn JobQueue,
    request: &'d Request<'d>,
    spec: Vec<u8>,
    run: RunId,
    /// The blocks of the run.
    source: &'d dyn ChainSource,
    /// Jobs to queue, ascending.
    todo: VecDeque<JobKey>,
    /// Jobs that are queued but not answered yet.
    out: BTreeMap<JobKey, OutstandingJob>,
    /// Accepted answers. Such a job is outstanding again if its result was lost.
    counted: BTreeMap<JobKey, CountedAnswer>,
    /// Answers that have arrived but are not handled yet.
    ahead: AnswersAhead,
    /// Answers to jobs that this start has not queued yet.
    early: BTreeMap<JobKey, AnswerBytes>,
    /// Jobs that two machines process.
    audits: Audits,
    /// How long jobs of the current step take.
    pace: JobPace,
    /// The job that created each object that other jobs need.
    created_by: HashMap<[u8; 32], JobKey>,
    /// The error of the lowest job of the step that failed.
    failure: Option<SyncError>,
    troubles: BTreeMap<JobKey, BTreeSet<String>>,
    refused: BTreeMap<JobKey, usize>,
    /// Machines that compute wrongly, without an accepted result.
    faulty: BTreeSet<String>,
    /// How often each machine reported each payload or job's object as lost.
    losses: HashMap<[u8; 32], BTreeMap<String, usize>>,
    workers: BTreeMap<String, Worker>,
    handling: Duration,
    /// Whether to handle all answers before queueing jobs: at the start, and after the queue was unreachable, since
    /// it may have lost outstanding jobs.
    must_replay: Cell<bool>,
    /// When the last answer arrived, or jobs were queued again.
    last_progress: Instant,
    reported: Option<Instant>,
    /// The last message about machines in other runs.
    said_elsewhere: String,
}

impl<'d> Scheduler<'d> {
    /// Creates the scheduler of a run that is open in the queue.
    pub(super) fn new(
        queue: &'d dyn JobQueue,
        request: &'d Request<'d>,
        (run, spec): (RunId, Vec<u8>),
        source: &'d dyn ChainSource,
        handling: Duration,
    ) -> Self {
        Self {
            queue,
            request,
            spec,
            run,
            source,
            todo: VecDeque::new(),
            out: BTreeMap::new(),
            counted: BTreeMap::new(),
            ahead: AnswersAhead::default(),
            early: BTreeMap::new(),
            audits: Audits::default(),
            pace: JobPace::default(),
            created_by: HashMap::new(),
            failure: None,
            troubles: BTreeMap::new(),
            refused: BTreeMap::new(),
            faulty: BTreeSet::new(),
            losses: HashMap::new(),
            workers: BTreeMap::new(),
            handling,
            must_replay: Cell::new(true),
            last_progress: Instant::now(),
            reported: None,
            said_elsewhere: String::new(),
        }
    }

    /// The id of the run.
    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    /// Runs jobs, each once, in any order. Returns the error of the lowest job that failed, if any, once all jobs
    /// below it are done.
    ///
    /// # Errors
    /// Among others [`SyncError::Interrupted`]: machines then finish the jobs they have, and the next start finds the
    /// answers.
    pub(crate) fn step<T>(
        &mut self,
        jobs: impl Iterator<Item = JobKey>,
        payload: &JobPayload<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<Option<SyncError>, SyncError> {
        self.todo.extend(jobs);
        self.pace = JobPace::default();
        let (queue, request) = (self.queue, self.request);
        std::thread::scope(|scope| {
            // Dropping the fetchers ends their threads, even if something here panics, so that the scope can end.
            let fetchers = Fetchers::begin(scope, queue, request)?;
            while self.is_waiting() && !request.env.interrupt.load(Ordering::Relaxed) {
                self.replay_answers(&fetchers, payload, read, take)?;
                self.queue_jobs(payload, read, take)?;
                match self.answer(PROGRESS_INTERVAL, &fetchers)? {
                    Some(pending) => self.take(pending, payload, read, take)?,
                    None => take(None)?,
                }
                self.duplicate_slow()?;
                self.warn_without_auditors();
                self.report_workers(false);
            }
            Ok::<_, SyncError>(())
        })?;
        if self.is_waiting() {
            return Err(SyncError::Interrupted);
        }
        take(None)?;
        Ok(self.failure.take())
    }

    /// Records that a job created objects which other jobs need.
    pub(crate) fn record_objects<'o>(
        &mut self,
        key: JobKey,
        objects: impl Iterator<Item = &'o ObjectRef>,
    ) {
        self.created_by.extend(objects.map(|object| (object.digest, key)));
    }

    /// Reads an object. If it is lost, the result that named it is invalid.
    pub(crate) fn object(
        queue: &dyn JobQueue,
        request: &Request<'_>,
        of: &ObjectRef,
    ) -> Result<Vec<u8>, AnswerError> {
        retry(request).with(|| queue.object(of)).map_err(|error| {
            match ClusterError::lost_object(&error) {
                Some(why) => AnswerError::Invalid(why.clone()),
                None => AnswerError::Local(error),
            }
        })
    }

    /// Whether jobs or audits are still unanswered.
    fn is_waiting(&self) -> bool {
        !(self.todo.is_empty() && self.out.is_empty() && self.audits.are_done())
    }

    /// Handles the answers that the queue already has, so that these jobs are not repeated.
    fn replay_answers<T>(
        &mut self,
        fetchers: &Fetchers,
        payload: &JobPayload<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<(), SyncError> {
        if !self.must_replay.take() {
            return Ok(());
        }
        while let Some(pending) = self.answer(Duration::ZERO, fetchers)? {
            self.take(pending, payload, read, take)?;
        }
        // The queue may have lost the jobs that are still unanswered.
        self.out.iter().try_for_each(|(key, out)| self.put(*key, JobCopy::First, out.input))?;
        self.put_audits()?;
        self.last_progress = Instant::now();
        Ok(())
    }

    /// Queues jobs up to the maximum, and requests a replay after a long time without progress.
    fn queue_jobs<T>(
        &mut self,
        payload: &JobPayload<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<(), SyncError> {
        while self.out.len() < OUT_MAX
            && let Some(key) = self.todo.pop_front()
        {
            let began = Instant::now();
            let bytes = payload(key)?.expect("the payloads of the current step are known");
            let input = retry(self.request).with(|| self.queue.put_object(&self.run, &bytes))?;
            self.out.insert(key, OutstandingJob { input, since: Instant::now(), again: false });
            let early = self.early.remove(&key);
            if early.is_none() {
                self.put(key, JobCopy::First, input)?;
            }
            self.handling += began.elapsed();
            if let Some(early) = early {
                self.take(PendingAnswer::alone(early), payload, read, take)?;
            }
        }
        if self.last_progress.elapsed() >= PUT_AGAIN {
            self.must_replay.set(true);
        }
        Ok(())
    }

    fn put(&self, key: JobKey, copy: JobCopy, input: ObjectRef) -> Result<(), SyncError> {
        let message = JobMessage { run: self.run, key, input, not_by: None }.to_bytes();
        self.ask(|| self.queue.put_job(key, copy, &message))
    }

    /// Queues a job again after an invalid answer.
    fn requeue(&self, key: JobKey, input: ObjectRef) -> Result<(), SyncError> {
        let message = JobMessage { run: self.run, key, input, not_by: None }.to_bytes();
        self.ask(|| self.queue.put_job_again(key, JobCopy::First, &message))
    }

    /// Calls the queue with retries, and announces the run again if the queue was unreachable and may have lost it.
    fn ask<T>(&self, mut attempt: impl FnMut() -> Result<T, QueueError>) -> Result<T, SyncError> {
        retry(self.request).with(|| match attempt() {
            Err(away @ QueueError::Away(_)) => {
                self.must_replay.set(true);
                self.queue.open(&self.run, &self.spec)?;
                Err(away)
            }
            other => other,
        })
    }

    fn take<T>(
        &mut self,
        pending: PendingAnswer,
        payload: &JobPayload<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<(), SyncError> {
        // Waiting does not count as handling: other objects are fetched at the same time.
        let pending = pending.wait();
        let began = Instant::now();
        let taken = match self.read(pending, payload, read) {
            Ok(Some(done)) => take(Some(done)),
            other => other.map(drop),
        };
        self.handling += began.elapsed();
        taken
    }

    fn read<T>(
        &mut self,
        (bytes, fetched): (AnswerBytes, FetchedObject),
        payload: &JobPayload<'_>,
        read: &mut ReadAnswer<'_, T>,
    ) -> Result<Option<T>, SyncError> {
        let key = bytes.key;
        if !bytes.is_genuine {
            return self.discard_forged(&bytes).map(|()| None);
        }
        let answer = JobAnswer::from_bytes(&bytes.message, self.run);
        if let Ok(JobAnswer { worker, kind: AnswerKind::Faulty, .. }) = answer {
            return self.handle_faulty(worker).map(|()| None);
        }
        if bytes.audit {
            return self.audit(bytes, read);
        }
        let Some(input) = self.out.get(&key).map(|out| out.input) else {
            if self.audits.is_waiting(key) {
                return self.handle_audit_trouble(&bytes, payload).map(|()| None);
            }
            return self.keep(bytes).map(|()| None);
        };
        self.last_progress = Instant::now();
        let answer = match answer {
            Ok(answer) if (answer.key, answer.input) == (key, input) => answer,
            Ok(answer) => {
                let why = WireError::OtherJob { what: "the answer" }.to_string();
                return self.reject_result(&bytes, &answer.worker, why).map(|()| None);
            }
            Err(error) => {
                return self.reject_result(&bytes, "a machine", error.to_string()).map(|()| None);
            }
        };
        match answer.kind {
            AnswerKind::Done { result, work, micros } => {
                let done = JobReport { result, work, busy: Duration::from_micros(micros) };
                self.done((&bytes, input), answer.worker, done, fetched, read)
            }
            AnswerKind::Refused(error) => {
                self.handle_refusal((&bytes, input), answer.worker, error).map(|()| None)
            }
            AnswerKind::Trouble(text) => {
                self.handle_trouble(&bytes, answer.worker, text).map(|()| None)
            }
            AnswerKind::Lost { object, text } => {
                let payload = || payload(key);
                self.handle_lost((&bytes, input), (answer.worker, text), object, &payload)
                    .map(|()| None)
            }
            AnswerKind::Faulty => self.handle_faulty(answer.worker).map(|()| None),
        }
    }

    /// Keeps an answer to a job that is not outstanding. Drops reports of trouble, which concern no job any more.
    fn keep(&mut self, bytes: AnswerBytes) -> Result<(), SyncError> {
        let answer = JobAnswer::from_bytes(&bytes.message, self.run).map(|answer| answer.kind);
        if let Ok(AnswerKind::Trouble(_) | AnswerKind::Lost { .. }) = answer {
            return self.ask(|| self.queue.forget(&bytes));
        }
        match self.counted.get_mut(&bytes.key) {
            // A replay returned an answer that was accepted before.
            Some(counted) => counted.place = bytes.place,
            // This answers a job of an earlier start: of a later step, or of a segment that is already in the work
            // folder.
            None => drop(self.early.insert(bytes.key, bytes)),
        }
        Ok(())
    }

    /// Accepts the answer of a finished job, unless its result is invalid. Returns the result, unless an audit must
    /// confirm it first.
    fn done<T>(
        &mut self,
        (bytes, input): (&AnswerBytes, ObjectRef),
        worker: String,
        JobReport { result, work, busy }: JobReport,
        fetched: FetchedObject,
        read: &mut ReadAnswer<'_, T>,
    ) -> Result<Option<T>, SyncError> {
        let (key, place) = (bytes.key, bytes.place);
        if self.faulty.contains(&worker) {
            let why = "the machine found that it computes wrongly".to_owned();
            return self.reject_result(bytes, &worker, why).map(|()| None);
        }
        if let Some(counted) = self.counted.get_mut(&key) {
            // The job was repeated because its result was lost.
            if counted.result != result {
                let (first, second) = (counted.worker.clone(), worker);
                return Err(ClusterError::Differ { key, first, second }.into());
            }
            counted.place = place;
            self.out.remove(&key);
            self.credit(worker, key, work, busy);
            return Ok(None);
        }
        let got = match fetched {
            Some((of, got)) if of == result => got,
            _ => Self::object(self.queue, self.request, &result),
        };
        let got = got.and_then(|bytes| read(JobResult { key, bytes }));
        match got {
            Err(AnswerError::Local(error)) => Err(error),
            Err(AnswerError::Invalid(why)) => {
                self.reject_result(bytes, &worker, why).map(|()| None)
            }
            Ok(done) => {
                self.out.remove(&key);
                self.credit(worker.clone(), key, work, busy);
                self.pace.add(busy);
                self.counted.insert(key, CountedAnswer { place, input, result, worker });
                match self.is_audited(key) {
                    true => self.begin_audit(key, read),
                    false => Ok(Some(done)),
                }
            }
        }
    }

    /// Drops all jobs above a failed one. A job below may still fail; its error is then the one reported.
    fn fail(&mut self, key: JobKey, error: SyncError) {
        self.todo.retain(|other| *other < key);
        self.out.retain(|other, _| *other < key);
        self.audits.drop_from(key);
        self.failure = Some(error);
    }

    fn credit(&mut self, name: String, key: JobKey, work: Work, busy: Duration) {
        let worker = self.workers.entry(name).or_default();
        worker.segments += 1;
        worker.busy = worker.busy.saturating_add(busy);
        // Each block counts once, though a later step may read it again.
        if key.step == JobStep::Blocks {
            worker.blocks = worker.blocks.saturating_add(work.blocks);
            worker.bytes = worker.bytes.saturating_add(work.bytes);
        }
    }

    /// Reports on the machines, at most every [`REPORT_INTERVAL`] unless this is the last report.
    fn report_workers(&mut self, last: bool) {
        if !last && self.reported.is_some_and(|at| at.elapsed() < REPORT_INTERVAL) {
            return;
        }
        self.reported = Some(Instant::now());
        for seen in self.queue.workers() {
            let worker = self.workers.entry(seen.name).or_default();
            (worker.seen, worker.doing) = (Some(seen.ago), seen.doing);
        }
        let all = self.workers.iter().map(|(name, worker)| {
            let name = name.clone();
            Worker { name, ..worker.clone() }
        });
        let workers = Workers { all: all.collect(), handling: self.handling, last };
        let is_alone = workers.all.is_empty();
        self.request.env.observer.event(Event::Workers(workers));
        if is_alone && !last {
            self.report_elsewhere();
        }
    }

    /// Tells the user, once, why no machine comes: all of them take part in other runs.
    fn report_elsewhere(&mut self) {
        let elsewhere = self.queue.workers_elsewhere().join("; ");
        if !elsewhere.is_empty() && elsewhere != self.said_elsewhere {
            self.warn(format!(
                "no machine works on this run ({}) yet: {elsewhere}. They come when that run ends; if its coordinator \
                 is gone, they leave it by themselves after a few seconds",
                self.run
            ));
            self.said_elsewhere = elsewhere;
        }
    }

    /// Ends the run for all machines if an error shows that results are wrong. Removes the progress first: without the
    /// answers in the queue, a start after a kill would not notice that results in it are wrong.
    pub(crate) fn close_if_spoilt(self, error: SyncError) -> SyncError {
        if error.spoils_progress() {
            // If this fails, the error to report is the same.
            let _ = Workdir::give_up(self.request.env.workdir);
            self.close();
        }
        error
    }

    /// Ends the work on a run that stays open: its answers are needed again if its outputs cannot be written.
    pub(crate) fn leave_open(mut self) {
        self.report_workers(true);
    }

    /// Ends the run for all machines.
    pub(crate) fn close(mut self) {
        self.report_workers(true);
        warn_of_rest(self.request, retry(self.request).with(|| self.queue.close()));
    }
}

/// Ends a run that is still open if it is over, and waits until the objects of closed runs are removed.
pub(crate) fn end(request: &Request<'_>, queue: &dyn JobQueue, is_over: bool) {
    let closed = if is_over { retry(request).with(|| queue.close()) } else { Ok(()) };
    warn_of_rest(request, closed.and_then(|()| retry(request).with(|| queue.closed())));
}

/// Warns the user if a run cannot be removed completely. An error would discard the finished result.
fn warn_of_rest(request: &Request<'_>, removed: Result<(), SyncError>) {
    match removed {
        Ok(()) | Err(SyncError::Interrupted) => {}
        Err(error) => {
            let text = format!(
                "the run is finished, but Apus could not remove all its data from the queue and the object store: \
                 {error}. Its streams expire after 30 days. Remove its folder of objects yourself"
            );
            warn(request.env.observer, text);
        }
    }
}

/// A machine's report of a finished job.
struct JobReport {
    result: ObjectRef,
    work: Work,
    busy: Duration,
}

pub(super) fn retry<'a>(request: &Request<'a>) -> QueueRetry<'a> {
    let (observer, interrupt) = (request.env.observer, request.env.interrupt);
    QueueRetry { max_away: QUEUE_AWAY_MAX, observer, interrupt }
}

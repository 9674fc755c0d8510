//! [`Desk`]: which jobs of a run are out, what came back, and what is said of it.

mod ahead;
mod audit;
mod judge;
mod slow;
mod troubles;

use crate::error::{ClusterError, QueueError, warn};
use crate::job::{JobCopy, JobKey, JobStep};
use crate::queue::{
    AnswerBytes, AnswerKind, JobAnswer, JobMessage, JobQueue, ObjectRef, QueuePatience, RunId,
    WireError,
};
use ahead::{AnswersAhead, Coming, Fetched, Fetchers};
use apus_sync::engines::pass::Work;
use apus_sync::error::SyncError;
use apus_sync::progress::{Event, PROGRESS_INTERVAL, Worker, Workers};
use apus_sync::request::Request;
use apus_sync::source::ChainSource;
use audit::Audits;
use slow::JobPace;
use std::cell::Cell;
use std::collections::{BTreeMap, BTreeSet, HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// So many jobs are out at most: enough for any number of machines that one can feed, and no more inputs than
/// a store has room for.
const OUT_MAX: usize = 256;

/// Where no answer came for so long, jobs are put again: the queue may have lost some unnoticed.
const PUT_AGAIN: Duration = Duration::from_secs(60);

/// How often machines are told of.
const TELL_INTERVAL: Duration = Duration::from_secs(5);

/// A queue may be away for so long at a stretch.
const QUEUE_AWAY_MAX: Duration = Duration::from_secs(300);

/// What a machine left of a job.
pub(crate) struct Answered {
    pub(crate) key: JobKey,
    /// The object that it named, whole.
    pub(crate) bytes: Vec<u8>,
}

/// Why an answer does not count.
pub(crate) enum Useless {
    /// What the machine left is of no use, in this way: the job is done again.
    Result(String),
    /// Something here is at fault.
    Here(SyncError),
}

/// An answer that counts.
struct CountedAnswer {
    place: u64,
    input: ObjectRef,
    result: ObjectRef,
    worker: String,
}

/// A job that is out.
struct Out {
    /// What it was told.
    input: ObjectRef,
    since: Instant,
    /// Whether it is out twice.
    again: bool,
}

/// A job that failed, and of what.
pub(crate) type JobFailure = (JobKey, SyncError);

/// What a job is told, of the step under way or an earlier one, whose jobs are done again where what they left is lost.
/// Nothing, of a job of which that is not known any more.
pub(crate) type Told<'t> = dyn Fn(JobKey) -> Result<Option<Vec<u8>>, SyncError> + 't;

/// Makes something of what a machine left.
pub(crate) type ReadAnswer<'t, T> = dyn FnMut(Answered) -> Result<T, Useless> + 't;

/// Takes what was made of it; called without anything every now and then, too.
pub(crate) type TakeAnswer<'t, T> = dyn FnMut(Option<T>) -> Result<(), SyncError> + 't;

/// See the module.
pub(crate) struct Desk<'d> {
    queue: &'d dyn JobQueue,
    request: &'d Request<'d>,
    spec: Vec<u8>,
    run: RunId,
    /// The blocks of the run.
    source: &'d dyn ChainSource,
    /// To be put, ascending.
    todo: VecDeque<JobKey>,
    /// Out.
    out: BTreeMap<JobKey, Out>,
    /// What counts already. Such a job is out once more where what it left was lost.
    counted: BTreeMap<JobKey, CountedAnswer>,
    /// Answers that came and were not looked at.
    ahead: AnswersAhead,
    /// Answers to jobs that were not put by this start yet.
    early: BTreeMap<JobKey, AnswerBytes>,
    /// What is done twice.
    audits: Audits,
    /// How long jobs of the step take.
    pace: JobPace,
    /// Which job left an object that others need.
    left: HashMap<[u8; 32], JobKey>,
    /// The lowest job of the step that failed.
    failure: Option<JobFailure>,
    troubles: BTreeMap<JobKey, BTreeSet<String>>,
    refused: BTreeMap<JobKey, usize>,
    /// How often each machine said that an object is lost, of those that jobs are told or leave for others.
    losses: HashMap<[u8; 32], BTreeMap<String, usize>>,
    workers: BTreeMap<String, Worker>,
    handling: Duration,
    /// Whether all answers are to be gone through before jobs are put: at the beginning, and after the queue was
    /// away, which may have lost jobs that are out.
    unsure: Cell<bool>,
    /// When an answer came last, or jobs were put again.
    moved: Instant,
    told: Option<Instant>,
}

impl<'d> Desk<'d> {
    /// Of a run that is known to the queue.
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
            left: HashMap::new(),
            failure: None,
            troubles: BTreeMap::new(),
            refused: BTreeMap::new(),
            losses: HashMap::new(),
            workers: BTreeMap::new(),
            handling,
            unsure: Cell::new(true),
            moved: Instant::now(),
            told: None,
        }
    }

    /// The run.
    pub(crate) fn run(&self) -> RunId {
        self.run
    }

    /// Has some jobs done, each once, in any order. The lowest that failed, if any did, once those below it are done.
    ///
    /// # Errors
    /// [`SyncError::Interrupted`] among them: what is under way goes on, and is found by the next start.
    pub(crate) fn step<T>(
        &mut self,
        jobs: impl Iterator<Item = JobKey>,
        told: &Told<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<Option<JobFailure>, SyncError> {
        self.todo.extend(jobs);
        self.pace = JobPace::default();
        let (queue, request) = (self.queue, self.request);
        std::thread::scope(|scope| {
            // Its threads end with it, and all of this with them, should something here panic as well.
            let fetchers = Fetchers::begin(scope, queue, request)?;
            while self.waits() && !request.env.interrupt.load(Ordering::Relaxed) {
                self.go_through_answers(&fetchers, told, read, take)?;
                self.put_jobs(told, read, take)?;
                match self.answer(PROGRESS_INTERVAL, &fetchers)? {
                    Some(coming) => self.take(coming, told, read, take)?,
                    None => take(None)?,
                }
                self.put_slow_again()?;
                self.expect_auditors();
                self.tell(false);
            }
            Ok::<_, SyncError>(())
        })?;
        if self.waits() {
            return Err(SyncError::Interrupted);
        }
        take(None)?;
        Ok(self.failure.take())
    }

    /// Notes that a job left objects which others will need.
    pub(crate) fn leaves<'o>(&mut self, key: JobKey, objects: impl Iterator<Item = &'o ObjectRef>) {
        self.left.extend(objects.map(|object| (object.digest, key)));
    }

    /// Gets an object; what is of no use is the result that named it.
    pub(crate) fn object(
        queue: &dyn JobQueue,
        request: &Request<'_>,
        of: &ObjectRef,
    ) -> Result<Vec<u8>, Useless> {
        patience(request).with(|| queue.object(of)).map_err(
            |error| match ClusterError::lost_object(&error) {
                Some(why) => Useless::Result(why.clone()),
                None => Useless::Here(error),
            },
        )
    }

    /// Whether answers are waited for.
    fn waits(&self) -> bool {
        !(self.todo.is_empty() && self.out.is_empty() && self.audits.are_done())
    }

    /// What earlier starts, or servers, already have need not be done again.
    fn go_through_answers<T>(
        &mut self,
        fetchers: &Fetchers,
        told: &Told<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<(), SyncError> {
        if !self.unsure.take() {
            return Ok(());
        }
        while let Some(coming) = self.answer(Duration::ZERO, fetchers)? {
            self.take(coming, told, read, take)?;
        }
        // Those that are out and were not answered may be lost.
        self.out.iter().try_for_each(|(key, out)| self.put(*key, JobCopy::First, out.input))?;
        self.put_audits()?;
        self.moved = Instant::now();
        Ok(())
    }

    /// Puts as many jobs as may be out; and those again that are out, where nothing moves.
    fn put_jobs<T>(
        &mut self,
        told: &Told<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<(), SyncError> {
        while self.out.len() < OUT_MAX
            && let Some(key) = self.todo.pop_front()
        {
            let began = Instant::now();
            let told_it = told(key)?.expect("what the jobs of this step are told is known");
            let input =
                patience(self.request).with(|| self.queue.put_object(&self.run, &told_it))?;
            self.out.insert(key, Out { input, since: Instant::now(), again: false });
            let early = self.early.remove(&key);
            if early.is_none() {
                self.put(key, JobCopy::First, input)?;
            }
            self.handling += began.elapsed();
            if let Some(early) = early {
                self.take(Coming::alone(early), told, read, take)?;
            }
        }
        if self.moved.elapsed() >= PUT_AGAIN {
            self.unsure.set(true);
        }
        Ok(())
    }

    fn put(&self, key: JobKey, copy: JobCopy, input: ObjectRef) -> Result<(), SyncError> {
        let message = JobMessage { run: self.run, key, input, not_by: None }.to_bytes();
        self.ask(|| self.queue.put_job(key, copy, &message))
    }

    /// Puts a job once more whose answer was of no use.
    fn put_anew(&self, key: JobKey, input: ObjectRef) -> Result<(), SyncError> {
        let message = JobMessage { run: self.run, key, input, not_by: None }.to_bytes();
        self.ask(|| self.queue.put_job_anew(key, JobCopy::First, &message))
    }

    /// Asks the queue, and makes the run known again to one that has lost it.
    fn ask<T>(&self, mut attempt: impl FnMut() -> Result<T, QueueError>) -> Result<T, SyncError> {
        patience(self.request).with(|| match attempt() {
            Err(away @ QueueError::Away(_)) => {
                self.unsure.set(true);
                self.queue.open(&self.run, &self.spec)?;
                Err(away)
            }
            other => other,
        })
    }

    fn take<T>(
        &mut self,
        coming: Coming,
        told: &Told<'_>,
        read: &mut ReadAnswer<'_, T>,
        take: &mut TakeAnswer<'_, T>,
    ) -> Result<(), SyncError> {
        // Others are fetched at the same time, so that this is no work of the one that is here.
        let coming = coming.wait();
        let began = Instant::now();
        let taken = match self.read(coming, told, read) {
            Ok(Some(done)) => take(Some(done)),
            other => other.map(drop),
        };
        self.handling += began.elapsed();
        taken
    }

    fn read<T>(
        &mut self,
        (bytes, fetched): (AnswerBytes, Fetched),
        told: &Told<'_>,
        read: &mut ReadAnswer<'_, T>,
    ) -> Result<Option<T>, SyncError> {
        let key = bytes.key;
        if !bytes.is_genuine {
            return self.pass_over(&bytes).map(|()| None);
        }
        if bytes.audit {
            return self.audit(bytes).map(|()| None);
        }
        let Some(input) = self.out.get(&key).map(|out| out.input) else {
            if self.audits.wait_for(key) {
                return self.unaudited(&bytes, told).map(|()| None);
            }
            match self.counted.get_mut(&key) {
                // It was counted, and came once more, since the queue was gone through again.
                Some(counted) => counted.place = bytes.place,
                // One of an earlier start, for a step to come, or of a segment that is kept.
                None => return self.keep(bytes).map(|()| None),
            }
            return Ok(None);
        };
        self.moved = Instant::now();
        let answer = match JobAnswer::from_bytes(&bytes.message, self.run) {
            Ok(answer) if (answer.key, answer.input) == (key, input) => answer,
            Ok(answer) => {
                let why = WireError::OtherJob { what: "the answer" }.to_string();
                return self.refuse(&bytes, &answer.worker, why).map(|()| None);
            }
            Err(error) => {
                return self.refuse(&bytes, "a machine", error.to_string()).map(|()| None);
            }
        };
        match answer.kind {
            AnswerKind::Done { result, work, micros } => {
                let done = JobReport { result, work, busy: Duration::from_micros(micros) };
                self.done((&bytes, input), answer.worker, done, fetched, read)
            }
            AnswerKind::Refused(error) => {
                self.blame((&bytes, input), answer.worker, error).map(|()| None)
            }
            AnswerKind::Trouble(text) => self.trouble(&bytes, answer.worker, text).map(|()| None),
            AnswerKind::Lost { object, text } => {
                let told = || told(key);
                self.lost((&bytes, input), (answer.worker, text), object, &told).map(|()| None)
            }
        }
    }

    /// Keeps an answer until its job is put. One that does not answer it is of no use then.
    fn keep(&mut self, bytes: AnswerBytes) -> Result<(), SyncError> {
        let answer = JobAnswer::from_bytes(&bytes.message, self.run).map(|answer| answer.kind);
        if let Ok(AnswerKind::Trouble(_) | AnswerKind::Lost { .. }) = answer {
            return self.ask(|| self.queue.forget(&bytes));
        }
        self.early.insert(bytes.key, bytes);
        Ok(())
    }

    /// Counts a job that is done, unless what it left is of no use.
    fn done<T>(
        &mut self,
        (bytes, input): (&AnswerBytes, ObjectRef),
        worker: String,
        JobReport { result, work, busy }: JobReport,
        fetched: Fetched,
        read: &mut ReadAnswer<'_, T>,
    ) -> Result<Option<T>, SyncError> {
        let (key, place) = (bytes.key, bytes.place);
        if let Some(counted) = self.counted.get_mut(&key) {
            // What it left is there again.
            if counted.result != result {
                let (first, second) = (counted.worker.clone(), worker);
                return Err(ClusterError::Differ { key, first, second }.into());
            }
            counted.place = place;
            self.out.remove(&key);
            self.share(worker, key, work, busy);
            return Ok(None);
        }
        let got = match fetched {
            Some((of, got)) if of == result => got,
            _ => Self::object(self.queue, self.request, &result),
        };
        let got = got.and_then(|bytes| read(Answered { key, bytes }));
        match got {
            Err(Useless::Here(error)) => Err(error),
            Err(Useless::Result(why)) => self.refuse(bytes, &worker, why).map(|()| None),
            Ok(done) => {
                self.out.remove(&key);
                self.share(worker.clone(), key, work, busy);
                self.pace.add(busy);
                self.counted.insert(key, CountedAnswer { place, input, result, worker });
                self.begin_audit(key)?;
                Ok(Some(done))
            }
        }
    }

    /// What lies above is of no matter any more; what lies below may fail, too, and is then the one told.
    fn fail(&mut self, key: JobKey, error: SyncError) {
        self.todo.retain(|other| *other < key);
        self.out.retain(|other, _| *other < key);
        self.audits.drop_from(key);
        self.failure = Some((key, error));
    }

    fn share(&mut self, name: String, key: JobKey, work: Work, busy: Duration) {
        let worker = self.workers.entry(name).or_default();
        worker.segments += 1;
        worker.busy = worker.busy.saturating_add(busy);
        // Each block counts once, though a later step may go over it again.
        if key.step == JobStep::Blocks {
            worker.blocks = worker.blocks.saturating_add(work.blocks);
            worker.bytes = worker.bytes.saturating_add(work.bytes);
        }
    }

    /// Tells of the machines, if it is time.
    fn tell(&mut self, last: bool) {
        if !last && self.told.is_some_and(|told| told.elapsed() < TELL_INTERVAL) {
            return;
        }
        self.told = Some(Instant::now());
        for seen in self.queue.workers() {
            let worker = self.workers.entry(seen.name).or_default();
            (worker.seen, worker.doing) = (Some(seen.ago), seen.doing);
        }
        let all = self.workers.iter().map(|(name, worker)| {
            let name = name.clone();
            Worker { name, ..worker.clone() }
        });
        let workers = Workers { all: all.collect(), handling: self.handling, last };
        self.request.env.observer.event(Event::Workers(workers));
    }

    /// Ends the run for all machines.
    pub(crate) fn close(mut self) {
        self.tell(true);
        warn_of_rest(self.request, patience(self.request).with(|| self.queue.close()));
    }
}

/// Waits until nothing is left of the runs that were closed.
pub(crate) fn await_closed(request: &Request<'_>, queue: &dyn JobQueue) {
    warn_of_rest(request, patience(request).with(|| queue.closed()));
}

/// Where what is left of a run cannot be removed the user is told, and no more: what came of the run is there already, and
/// would be thrown away by an error.
fn warn_of_rest(request: &Request<'_>, removed: Result<(), SyncError>) {
    match removed {
        Ok(()) | Err(SyncError::Interrupted) => {}
        Err(error) => {
            let what = format!(
                "the run is over, and not all of it could be removed from the queue and the store of objects: \
                 {error}. Its streams go after 30 days; its folder of objects is yours to remove"
            );
            warn(request.env.observer, what);
        }
    }
}

/// What a machine says that it did.
struct JobReport {
    result: ObjectRef,
    work: Work,
    busy: Duration,
}

pub(super) fn patience<'a>(request: &Request<'a>) -> QueuePatience<'a> {
    let (observer, interrupt) = (request.env.observer, request.env.interrupt);
    QueuePatience { longest: QUEUE_AWAY_MAX, observer, interrupt }
}

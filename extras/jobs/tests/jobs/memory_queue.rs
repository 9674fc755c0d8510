//! [`MemoryQueue`]: the queue of a shared run, in memory, with threads of this process as machines.
//!
//! It gives only the guarantees that every queue must give: it returns each answer once and in order of arrival,
//! accepts one answer for each job, and forgets everything with the run.

use apus_chain::HeightRange;
use apus_jobs::{
    AnswerBytes, JobCopy, JobKey, JobLease, JobOffer, JobQueue, Jobs, ObjectPart, ObjectRef,
    QueueError, RunId, SharedQueue, WorkBlocks, WorkRequest, WorkerSeen, work,
};
use apus_sync::engines::swiftsync::SegmentHints;
use apus_sync::engines::{mergesync, swiftsync};
use apus_sync::machines::AnyPartial;
use apus_sync::pass::TakeDone;
use apus_sync::request::Request;
use apus_sync::workdir::Workdir;
use apus_sync::workdir::plan::Plan;
use apus_sync::{GivenBlocks, Machines, NamedPass, Segments, SilentObserver, SyncError};
use std::collections::{BTreeMap, HashMap, HashSet, VecDeque};
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::sleep;
use std::time::Duration;

/// Maximum delay of a job that is given back, to keep tests fast.
const REST_MAX: Duration = Duration::from_millis(30);

/// The names of machines.
pub(crate) const MACHINES: [&str; 2] = ["one", "other"];

/// Sees each object before it is stored, and may change it. If it returns false, the object is lost.
pub(crate) type Alter = dyn FnMut(&mut Vec<u8>) -> bool + Send;

/// Sees each object before it is read, and returns whether it is lost.
pub(crate) type Lose = dyn FnMut(&[u8]) -> bool + Send;

/// Sees each answer before it is sent, and may change it.
pub(crate) type Say = dyn FnMut(JobKey, &mut Vec<u8>) + Send;

#[derive(Default)]
struct State {
    spec: Option<Vec<u8>>,
    objects: HashMap<[u8; 32], Vec<u8>>,
    waiting: VecDeque<(JobKey, JobCopy, Vec<u8>)>,
    /// Jobs that are waiting or leased.
    there: HashSet<(JobKey, JobCopy)>,
    answers: BTreeMap<u64, AnswerBytes>,
    /// Jobs with an accepted answer, and its place.
    answered: HashMap<JobKey, u64>,
    /// The place of the next answer to store, and of the next to read.
    places: [u64; 2],
    /// Set when there will be no more runs.
    is_shut: bool,
}

/// A queue in memory.
pub(crate) struct MemoryQueue {
    state: Mutex<State>,
    changed: Condvar,
    alter: Mutex<Box<Alter>>,
    lose: Mutex<Box<Lose>>,
    say: Mutex<Box<Say>>,
    /// Machines that do not see the objects of others.
    blind: &'static [&'static str],
    /// When to claim that a closed run could not be removed.
    not_removed: Option<NotRemoved>,
}

/// When the queue claims that a run could not be removed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum NotRemoved {
    /// When the run is closed.
    AtClose,
    /// Later, when the run waits for the removal of the rest.
    Later,
}

impl MemoryQueue {
    pub(crate) fn new(alter: impl FnMut(&mut Vec<u8>) -> bool + Send + 'static) -> Self {
        let (state, changed) = (Mutex::default(), Condvar::new());
        let (alter, lose): (Box<Alter>, Box<Lose>) = (Box::new(alter), Box::new(|_| false));
        let (alter, lose) = (Mutex::new(alter), Mutex::new(lose));
        let say: Mutex<Box<Say>> = Mutex::new(Box::new(|_, _| ()));
        Self { state, changed, alter, lose, say, blind: &[], not_removed: None }
    }

    /// Makes these machines unable to see the objects of others.
    pub(crate) fn blinding(self, blind: &'static [&'static str]) -> Self {
        Self { blind, ..self }
    }

    /// Changes each answer with `say`.
    pub(crate) fn saying(self, say: impl FnMut(JobKey, &mut Vec<u8>) + Send + 'static) -> Self {
        Self { say: Mutex::new(Box::new(say)), ..self }
    }

    /// Loses the objects that `lose` selects when they are about to be read.
    pub(crate) fn losing(self, lose: impl FnMut(&[u8]) -> bool + Send + 'static) -> Self {
        Self { lose: Mutex::new(Box::new(lose)), ..self }
    }

    /// Creates a queue that claims that it could not remove a run.
    pub(crate) fn that_does_not_close(says: NotRemoved) -> Self {
        Self { not_removed: Some(says), ..Self::new(|_| true) }
    }

    fn removed_unless(&self, says: NotRemoved) -> Result<(), QueueError> {
        match self.not_removed == Some(says) {
            true => Err(QueueError::Refused("directory not empty".to_owned())),
            false => Ok(()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap()
    }

    /// Number of objects.
    pub(crate) fn objects(&self) -> usize {
        self.lock().objects.len()
    }

    /// Calls `what` while machines with the blocks of a folder take part in all runs of the queue.
    pub(crate) fn with_machines<T>(&self, blocksdir: &Path, what: impl FnOnce() -> T) -> T {
        std::thread::scope(|scope| {
            // One of them has no memory for joins, and uses files for everything.
            for (name, memory_bytes) in MACHINES.into_iter().zip([16 << 20, 0]) {
                scope.spawn(move || self.machine(name, blocksdir, memory_bytes));
            }
            let _shuts = Shuts(self);
            what()
        })
    }

    fn machine(&self, name: &'static str, blocksdir: &Path, memory_bytes: u64) {
        let scratch = tempfile::tempdir().unwrap();
        let never = AtomicBool::new(false);
        while let Some(spec) = self.next_run() {
            let machine = Machine { queue: self, name, run: RunId::of(&spec), spec };
            let done = work(
                &WorkRequest {
                    blocks: WorkBlocks::Folder(PathBuf::from(blocksdir)),
                    outside: None,
                    scratch: scratch.path().join("scratch"),
                    memory_bytes,
                    threads: 1,
                    now: crate::world::NOW,
                    signatures: &Arc::default(),
                    observer: &SilentObserver,
                    interrupt: &never,
                },
                &machine,
            );
            // Errors after the end of the run are expected.
            if let Err(error) = done
                && !machine.is_over()
            {
                let _shuts = Shuts(self);
                panic!("{error}");
            }
        }
    }

    /// Waits for a run, and returns its description; `None` once the queue is shut.
    fn next_run(&self) -> Option<Vec<u8>> {
        let waits = |state: &mut State| state.spec.is_none() && !state.is_shut;
        let state = self.changed.wait_while(self.lock(), waits).unwrap();
        if state.is_shut { None } else { state.spec.clone() }
    }

    fn get(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        let mut state = self.lock();
        let is_lost = |bytes: &Vec<u8>| (self.lose.lock().unwrap())(bytes);
        if state.objects.get(&of.digest).is_some_and(is_lost) {
            state.objects.remove(&of.digest);
        }
        let lost = || QueueError::Object("it is not there".to_owned());
        state.objects.get(&of.digest).cloned().ok_or_else(lost)
    }

    fn parts(
        &self,
        parts: &[ObjectPart],
        get: impl Fn(&ObjectRef) -> Result<Vec<u8>, QueueError>,
    ) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        let part = |(at, part): (usize, &ObjectPart)| {
            let object = get(&part.object).map_err(|error| (at, error))?;
            let bytes = object.get(part.offset as usize..(part.offset + part.bytes) as usize);
            let short = || (at, QueueError::Object("it is too short".to_owned()));
            bytes.map(<[u8]>::to_vec).ok_or_else(short)
        };
        parts.iter().enumerate().map(part).collect()
    }

    fn put(&self, bytes: &[u8]) -> ObjectRef {
        let of = ObjectRef::of(bytes);
        self.lock().objects.insert(of.digest, bytes.to_vec());
        of
    }
}

/// Shuts the queue when dropped, even if a test fails, so that machines stop waiting.
struct Shuts<'q>(&'q MemoryQueue);

impl Drop for Shuts<'_> {
    fn drop(&mut self) {
        self.0.lock().is_shut = true;
        self.0.changed.notify_all();
    }
}

impl JobQueue for MemoryQueue {
    fn open(&self, _: &RunId, spec: &[u8]) -> Result<(), QueueError> {
        let mut state = self.lock();
        state.spec = Some(spec.to_vec());
        state.places[1] = 0;
        self.changed.notify_all();
        Ok(())
    }

    fn put_object(&self, _: &RunId, bytes: &[u8]) -> Result<ObjectRef, QueueError> {
        Ok(self.put(bytes))
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.get(of)
    }

    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        self.parts(parts, |of| self.get(of))
    }

    fn put_job(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError> {
        let mut state = self.lock();
        if state.there.insert((key, copy)) {
            state.waiting.push_back((key, copy, message.to_vec()));
            self.changed.notify_all();
        }
        Ok(())
    }

    fn put_job_again(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError> {
        self.lock().there.remove(&(key, copy));
        self.put_job(key, copy, message)
    }

    fn answer(&self, wait: Duration) -> Result<Option<AnswerBytes>, QueueError> {
        let next = |state: &State| {
            let next = state.answers.range(state.places[1]..).next();
            next.map(|(_, answer)| answer.clone())
        };
        let waits = |state: &mut State| next(state).is_none() && !state.is_shut;
        let (mut state, _) = self.changed.wait_timeout_while(self.lock(), wait, waits).unwrap();
        let answer = next(&state);
        if answer.is_none() && state.is_shut {
            return Err(QueueError::Refused("no machine is left".to_owned()));
        }
        state.places[1] = answer.as_ref().map_or(state.places[1], |answer| answer.place + 1);
        Ok(answer)
    }

    fn forget(&self, answer: &AnswerBytes) -> Result<(), QueueError> {
        let mut state = self.lock();
        state.answers.remove(&answer.place);
        state.answered.retain(|_, place| *place != answer.place);
        Ok(())
    }

    fn workers(&self) -> Vec<WorkerSeen> {
        let seen = |name: &str| {
            let (name, ago, doing) = (name.to_owned(), Duration::ZERO, String::new());
            WorkerSeen { name, ago, idle: false, doing }
        };
        MACHINES.map(seen).into()
    }

    fn close(&self) -> Result<(), QueueError> {
        if std::mem::take(&mut *self.lock()).spec.is_none() {
            return Ok(());
        }
        self.changed.notify_all();
        self.removed_unless(NotRemoved::AtClose)
    }

    fn closed(&self) -> Result<(), QueueError> {
        self.removed_unless(NotRemoved::Later)
    }
}

/// A machine that takes part in a run.
struct Machine<'q> {
    queue: &'q MemoryQueue,
    name: &'static str,
    run: RunId,
    spec: Vec<u8>,
}

impl Machine<'_> {
    fn is_over(&self) -> bool {
        let state = self.queue.lock();
        state.is_shut || state.spec.as_deref().is_none_or(|spec| RunId::of(spec) != self.run)
    }
}

impl Jobs for Machine<'_> {
    fn spec(&self) -> &[u8] {
        &self.spec
    }

    fn name(&self) -> &str {
        self.name
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.queue.get(of)
    }

    fn take(&self, wait: Duration) -> Result<JobOffer<'_>, QueueError> {
        if self.is_over() {
            return Ok(JobOffer::Over);
        }
        let waits =
            |state: &mut State| state.waiting.is_empty() && state.spec.is_some() && !state.is_shut;
        let waited = self.queue.changed.wait_timeout_while(self.queue.lock(), wait, waits);
        let Some(job) = waited.unwrap().0.waiting.pop_front() else { return Ok(JobOffer::Nothing) };
        Ok(JobOffer::Job(Box::new(Leased { machine: self, job, renamed: Mutex::default() })))
    }
}

struct Leased<'m> {
    machine: &'m Machine<'m>,
    job: (JobKey, JobCopy, Vec<u8>),
    /// Old and new names of changed objects.
    renamed: Mutex<Vec<[ObjectRef; 2]>>,
}

/// Encodes an object's name as in messages (`extras/jobs/src/queue`).
fn named(of: &ObjectRef) -> Vec<u8> {
    [&of.digest[..], &of.bytes.to_le_bytes()].concat()
}

impl Leased<'_> {
    /// Stores an answer, unless the job has an accepted one.
    fn reply(&self, message: &[u8], counts: bool) {
        let (key, copy, _) = self.job;
        let mut state = self.machine.queue.lock();
        if !self.machine_is_in(&state) || counts && state.answered.contains_key(&key) {
            return;
        }
        let place = state.places[0];
        state.places[0] += 1;
        if counts {
            state.answered.insert(key, place);
        }
        let audit = copy == JobCopy::Audit;
        let message = message.to_vec();
        state.answers.insert(place, AnswerBytes { place, key, audit, is_genuine: true, message });
        self.machine.queue.changed.notify_all();
    }

    fn get(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        let queue = self.machine.queue;
        match queue.get(of) {
            Ok(bytes) if !bytes.starts_with(b"APUSTOLD") => {
                match queue.blind.contains(&self.machine.name) {
                    true => Err(QueueError::Object("it is not seen".to_owned())),
                    false => Ok(bytes),
                }
            }
            other => other,
        }
    }

    fn machine_is_in(&self, state: &State) -> bool {
        state.spec.as_deref() == Some(&self.machine.spec)
    }
}

impl JobLease for Leased<'_> {
    fn message(&self) -> &[u8] {
        &self.job.2
    }

    fn deliveries(&self) -> u64 {
        1
    }

    fn alive(&self) {}

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.get(of)
    }

    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        self.machine.queue.parts(parts, |of| self.get(of))
    }

    fn put_object(&self, of: &ObjectRef, bytes: &Arc<Vec<u8>>) -> Result<(), QueueError> {
        let mut altered = bytes.to_vec();
        let is_kept = (self.machine.queue.alter.lock().unwrap())(&mut altered);
        // Keep the name of an unchanged object, which may be that of its parts.
        let mut now = *of;
        if altered != **bytes {
            now = ObjectRef::of(&altered);
            self.renamed.lock().unwrap().push([*of, now]);
        }
        let mut state = self.machine.queue.lock();
        if is_kept && self.machine_is_in(&state) {
            state.objects.insert(now.digest, altered);
        }
        Ok(())
    }

    fn is_over(&self) -> bool {
        self.machine.is_over()
    }

    fn is_answered(&self, key: JobKey) -> Result<bool, QueueError> {
        Ok(self.machine.queue.lock().answered.contains_key(&key))
    }

    fn answer(&self, key: JobKey, message: &[u8]) -> Result<(), QueueError> {
        let mut message = message.to_vec();
        for [before, now] in self.renamed.lock().unwrap().iter() {
            let (before, now) = (named(before), named(now));
            let place = message.windows(before.len()).position(|some| some == before).unwrap();
            message[place..place + now.len()].copy_from_slice(&now);
        }
        (self.machine.queue.say.lock().unwrap())(key, &mut message);
        self.machine.queue.lock().there.remove(&(self.job.0, self.job.1));
        self.reply(&message, true);
        Ok(())
    }

    fn done(&self) -> Result<(), QueueError> {
        self.machine.queue.lock().there.remove(&(self.job.0, self.job.1));
        Ok(())
    }

    fn give_back(
        &self,
        after: Duration,
        trouble: Option<(JobKey, &[u8])>,
    ) -> Result<(), QueueError> {
        if let Some((_, message)) = trouble {
            self.reply(message, false);
        }
        sleep(after.min(REST_MAX));
        let mut state = self.machine.queue.lock();
        if self.machine_is_in(&state) {
            state.waiting.push_back(self.job.clone());
        }
        self.machine.queue.changed.notify_all();
        Ok(())
    }
}

/// A run owns its machines, but [`SharedQueue`] borrows the queue, so each call is forwarded.
impl Machines for MemoryQueue {
    fn given(&self) -> Option<&GivenBlocks> {
        None
    }

    fn hinted(
        &self,
        segments: &Segments<'_>,
        hints: &dyn Fn(HeightRange) -> Result<SegmentHints, SyncError>,
        take: &mut TakeDone<'_, swiftsync::Partial>,
    ) -> Result<(), SyncError> {
        SharedQueue { queue: self }.hinted(segments, hints, take)
    }

    fn outside(
        &self,
        segments: &Segments<'_>,
        pass: &NamedPass<'_>,
        take: &mut TakeDone<'_, AnyPartial>,
    ) -> Result<(), SyncError> {
        SharedQueue { queue: self }.outside(segments, pass, take)
    }

    fn merge(
        &self,
        work: &mergesync::MergeWork<'_>,
        workdir: &Workdir<'_>,
        plan: &Plan,
    ) -> Result<mergesync::SharedResult, SyncError> {
        SharedQueue { queue: self }.merge(work, workdir, plan)
    }

    fn end(&self, request: &Request<'_>, is_over: bool) {
        SharedQueue { queue: self }.end(request, is_over);
    }
}

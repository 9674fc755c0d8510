//! [`Coordinator`]: a run's side of the queue.

use crate::beat::{BEAT_INTERVAL, Beat, Beats};
use crate::link::{Link, at, away, from, last};
use crate::names;
use crate::options::{LinkError, LinkOptions, chain};
use apus_jobs::{
    AnswerBytes, JobCopy, JobKey, JobQueue, ObjectPart, ObjectRef, QueueError, RunId, WorkerSeen,
};
use apus_sync::GivenBlocks;
use async_nats::jetstream::consumer::{AckPolicy, pull};
use async_nats::jetstream::stream::{
    Config, DeleteMessageError, RetentionPolicy, StorageType, Stream,
};
use bytes::Bytes;
use futures_util::StreamExt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// What is left of a run that was never ended goes after so long, the secret among it.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// In a cluster of servers each stream is on so many: one of them may die, and a stream on more is slower.
const REPLICAS_OF_CLUSTER: usize = 3;

/// How often it is looked for answers while there are none, and none is heard: what tells of them may be lost.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// An answer that was heard is about to be stored. Where servers have to agree first it takes longer: then it is looked
/// for after the same time, after twice that, and so on.
const STORED_AFTER: Duration = Duration::from_micros(300);

/// See the module.
pub struct Coordinator {
    link: Link,
    ack_wait: Duration,
    audit_percent: u8,
    /// On how many servers each stream is.
    replicas: usize,
    state: Mutex<State>,
    beats: Arc<Mutex<Beats>>,
    /// Told when an answer comes.
    answered: Arc<Notify>,
    given: Option<GivenBlocks>,
    removals: Mutex<Vec<Removal>>,
}

/// A run that was closed, and the removal of its objects while that is under way.
struct Removal {
    run: RunId,
    task: Option<JoinHandle<Result<(), QueueError>>>,
}

#[derive(Default)]
struct State {
    run: Option<RunId>,
    jobs: Option<Stream>,
    answers: Option<Stream>,
    /// Where the next answer may stand.
    next: u64,
    /// How long it is waited before the next look, where none is heard meanwhile; [`LOOK_INTERVAL`] at first.
    look: Option<Duration>,
    /// How often the link had been connected when the run was opened.
    connections: u64,
    /// Takes signs of life.
    listener: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Connects. A job whose machine gives no sign of life for `ack_wait` goes to another one.
    pub fn connect(options: &LinkOptions, ack_wait: Duration) -> Result<Self, LinkError> {
        let link = Link::connect(options, "apus coordinator")?;
        let (state, beats, answered) = (Mutex::default(), Arc::default(), Arc::default());
        let is_cluster = link.client.server_info().cluster.is_some();
        let replicas = if is_cluster { REPLICAS_OF_CLUSTER } else { 1 };
        let (audit_percent, given) = (0, None);
        let removals = Mutex::default();
        Ok(Self {
            link,
            ack_wait,
            audit_percent,
            replicas,
            state,
            beats,
            answered,
            given,
            removals,
        })
    }

    /// The same, with so many of a hundred jobs done twice.
    #[must_use]
    pub fn with_audit(self, percent: u8) -> Self {
        Self { audit_percent: percent, ..self }
    }

    /// The same, with each stream on so many servers of a cluster.
    #[must_use]
    pub fn with_replicas(self, replicas: u8) -> Self {
        Self { replicas: replicas.into(), ..self }
    }

    /// The same, with blocks of the run's folder handed out.
    #[must_use]
    pub fn with_given(self, given: GivenBlocks) -> Self {
        Self { given: Some(given), ..self }
    }

    /// Servers on this machine that let in whoever comes.
    pub fn open_servers(&self) -> &[String] {
        &self.link.open_servers
    }

    /// The run that is open.
    pub fn opened(&self) -> Option<RunId> {
        self.state().run
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) -> RunId {
        self.state().run.unwrap_or(RunId([0; 32]))
    }

    fn removals(&self) -> MutexGuard<'_, Vec<Removal>> {
        self.removals.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until the objects of a run that was closed are gone, or those of all such runs. One that fails is begun anew by
    /// the next call.
    fn await_removals(&self, of: Option<&RunId>) -> Result<(), QueueError> {
        let mut removals = self.removals();
        while let Some(place) = removals.iter().position(|it| of.is_none_or(|run| it.run == *run)) {
            let Removal { run, task } = &mut removals[place];
            self.link.wait(async {
                match task.take() {
                    Some(task) => task.await.unwrap_or_else(|error| Err(away(error))),
                    None => self.link.objects.remove_all(run).await,
                }
            })?;
            removals.swap_remove(place);
        }
        Ok(())
    }

    /// The streams of jobs and of answers.
    async fn make_streams(&self, run: &RunId, spec: &[u8]) -> Result<[Stream; 2], QueueError> {
        let context = &self.link.context;
        let stream = |name: String, subjects: Vec<String>| Config {
            name,
            subjects,
            storage: StorageType::File,
            num_replicas: self.replicas,
            max_age: FORGOTTEN_AFTER,
            max_messages: -1,
            max_bytes: -1,
            max_messages_per_subject: 1,
            ..Config::default()
        };
        let made = async {
            let jobs = Config {
                retention: RetentionPolicy::WorkQueue,
                ..stream(names::jobs_stream(run), vec![names::all_jobs(run)])
            };
            let jobs = context.get_or_create_stream(jobs).await?;
            let answers = stream(names::answers_stream(run), names::all_answers(run).into());
            let answers = context.get_or_create_stream(answers).await?;
            let runs = stream(names::RUNS.to_owned(), vec![names::ALL_RUNS.to_owned()]);
            let runs = context.get_or_create_stream(runs).await?;
            Ok::<_, async_nats::jetstream::context::CreateStreamError>((jobs, answers, runs))
        };
        let (jobs, answers, runs) = made.await.map_err(|error| self.not_made(&error))?;
        let workers = pull::Config {
            durable_name: Some(names::WORKERS.to_owned()),
            ack_policy: AckPolicy::Explicit,
            ack_wait: self.ack_wait,
            max_deliver: -1,
            max_ack_pending: 10_000,
            max_waiting: 10_000,
            ..pull::Config::default()
        };
        jobs.create_consumer(workers).await.map_err(away)?;
        // Last, so that a machine that sees it finds all else.
        let known = last(&runs, &names::run(run)).await?;
        let subject = names::run(run);
        let is_spec = |known: Vec<u8>| known == spec;
        let opened = known.and_then(|known| self.link.key.open(&subject, &known.payload).ok());
        if !opened.is_some_and(is_spec) {
            self.link.publish(subject, spec).await?;
            // Those that do not hear it look for runs every now and then.
            self.link.client.publish(names::NEW, "".into()).await.map_err(away)?;
        }
        Ok([jobs, answers])
    }

    /// Why streams cannot be made: servers of a cluster may be away, or there are too few.
    fn not_made(&self, error: &dyn std::error::Error) -> QueueError {
        let replicas = self.replicas;
        match replicas {
            1 => away(chain(error)),
            _ => away(format!(
                "{}: streams are to be on {replicas} servers; see that as many run, or say on how many by --replicas",
                chain(error)
            )),
        }
    }

    /// Takes signs of life, and gives some, until it is stopped. The client asks for them again when it was away.
    async fn listen(&self, run: RunId) -> Result<JoinHandle<()>, QueueError> {
        let mut signs = self.link.client.subscribe(names::beat(&run)).await.map_err(away)?;
        // They are stored as well: this is only to know when.
        let mut answers =
            self.link.client.subscribe(names::any_answer(&run)).await.map_err(away)?;
        let mut asks = self.link.client.subscribe(names::ASK).await.map_err(away)?;
        let (beats, answered) = (Arc::clone(&self.beats), Arc::clone(&self.answered));
        let (client, key, subject) =
            (self.link.client.clone(), self.link.key.clone(), names::lead(&run));
        let lead = key.seal(&subject, b"");
        Ok(self.link.runtime.spawn(async move {
            let mut own = tokio::time::interval(BEAT_INTERVAL);
            loop {
                let sign = tokio::select! {
                    sign = signs.next() => sign,
                    _ = own.tick() => {
                        // One that is not heard is followed by the next.
                        let _ = client.publish(subject.clone(), lead.clone().into()).await;
                        continue;
                    }
                    ask = asks.next() => {
                        if ask.is_none() {
                            break;
                        }
                        own.reset_immediately();
                        continue;
                    }
                    answer = answers.next() => {
                        if answer.is_none() {
                            break;
                        }
                        answered.notify_one();
                        continue;
                    }
                };
                let Some(sign) = sign else { break };
                let beat = key.open(&sign.subject, &sign.payload).ok();
                let beat = beat.and_then(|beat| Beat::from_bytes(&beat));
                if let Some(beat) = beat.filter(|it| it.run == run.name()) {
                    beats.lock().unwrap_or_else(PoisonError::into_inner).add(beat);
                }
            }
        }))
    }

    /// Removes a message so that its bytes are overwritten where they were stored.
    async fn erase_spec(&self, run: &RunId) -> Result<(), QueueError> {
        let Some(spec) = self.link.spec(run).await? else { return Ok(()) };
        let runs = self.link.stream(names::RUNS).await?;
        let Some(runs) = runs else { return Ok(()) };
        runs.delete_message(spec.sequence).await.map(drop).map_err(away)
    }

    async fn remove_stream(&self, name: &str) -> Result<(), QueueError> {
        match self.link.stream(name).await? {
            Some(_) => self.link.context.delete_stream(name).await.map(drop).map_err(away),
            None => Ok(()),
        }
    }
}

/// What became of a message that was to be deleted. Servers say of one that is gone already that it is not found, or that it
/// cannot be deleted, in words of each version; and they refuse while they choose a leader. So it is looked for: an answer that
/// is taken for gone and is not would stand in the way of the next one for ever.
async fn removed(
    deleted: Result<bool, DeleteMessageError>,
    is_there: impl Future<Output = Result<bool, QueueError>>,
) -> Result<(), QueueError> {
    let why = match deleted {
        Ok(true) => return Ok(()),
        Ok(false) => away("a message was not deleted"),
        Err(error) => away(error),
    };
    match is_there.await? {
        true => Err(why),
        false => Ok(()),
    }
}

impl JobQueue for Coordinator {
    fn open(&self, run: &RunId, spec: &[u8]) -> Result<(), QueueError> {
        let listens = self.state().listener.is_some();
        let connections = self.link.connections();
        self.await_removals(Some(run))?;
        let ([jobs, answers], listener) = self.link.wait(async {
            let streams = self.make_streams(run, spec).await?;
            let listener = if listens { None } else { Some(self.listen(*run).await?) };
            Ok::<_, QueueError>((streams, listener))
        })?;
        let mut state = self.state();
        // What a killed server had not written is lost, and the place of a lost answer goes to another one: all
        // are gone through again.
        (state.next, state.connections) = (0, connections);
        state.run = Some(*run);
        (state.jobs, state.answers) = (Some(jobs), Some(answers));
        state.listener = listener.or(state.listener.take());
        Ok(())
    }

    fn put_object(&self, run: &RunId, bytes: &[u8]) -> Result<ObjectRef, QueueError> {
        let of = ObjectRef::of(bytes);
        self.await_removals(Some(run))?;
        self.link.wait(self.link.objects.put(run, &of, Bytes::copy_from_slice(bytes))).map(|()| of)
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.link.object(&self.run(), of)
    }

    fn object_parts(&self, parts: &[ObjectPart]) -> Result<Vec<Vec<u8>>, (usize, QueueError)> {
        self.link.wait(self.link.objects.parts(&self.run(), parts))
    }

    fn put_job(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError> {
        let subject = names::job(&self.run(), key, copy);
        self.link.wait(self.link.publish_first(subject, message)).map(drop)
    }

    fn put_job_anew(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError> {
        let (run, jobs) = {
            let state = self.state();
            (state.run, state.jobs.clone())
        };
        if let Some((run, jobs)) = run.zip(jobs) {
            let purge = jobs.purge().filter(names::job(&run, key, copy));
            self.link.wait(async { purge.await.map(drop).map_err(away) })?;
        }
        self.put_job(key, copy, message)
    }

    fn answer(&self, wait: Duration) -> Result<Option<AnswerBytes>, QueueError> {
        let (run, stream, next) = {
            let state = self.state();
            if state.run.is_some() && state.connections != self.link.connections() {
                return Err(away("the connection was lost and made again"));
            }
            (state.run, state.answers.clone(), state.next)
        };
        let Some((run, stream)) = run.zip(stream) else {
            return Err(QueueError::Refused("no run was opened".to_owned()));
        };
        let subjects = names::any_answer(&run);
        let (began, mut look) = (Instant::now(), self.state().look.unwrap_or(LOOK_INTERVAL));
        let found = self.link.wait(async {
            loop {
                match (from(&stream, &subjects, next).await?, wait.checked_sub(began.elapsed())) {
                    (None, Some(left)) if !left.is_zero() => {
                        let told = self.answered.notified();
                        look = match tokio::time::timeout(look.min(left), told).await {
                            Ok(()) => {
                                tokio::time::sleep(STORED_AFTER).await;
                                STORED_AFTER
                            }
                            Err(_) => LOOK_INTERVAL.min(2 * look),
                        };
                    }
                    (found, _) => return Ok::<_, QueueError>(found),
                }
            }
        })?;
        self.state().look = Some(look);
        let Some(found) = found else { return Ok(None) };
        self.state().next = found.sequence + 1;
        let opened = self.link.key.open(&found.subject, &found.payload);
        // A subject that is none of ours is passed over.
        Ok(names::key_of(&found.subject).map(|key| AnswerBytes {
            place: found.sequence,
            key,
            audit: names::is_audit(&found.subject),
            is_genuine: opened.is_ok(),
            message: opened.unwrap_or_default(),
        }))
    }

    fn forget(&self, answer: &AnswerBytes) -> Result<(), QueueError> {
        let stream = self.state().answers.clone();
        let Some(stream) = stream else { return Ok(()) };
        self.link.wait(async {
            let deleted = stream.delete_message(answer.place).await;
            // Another try before this one may have removed it.
            removed(deleted, async { at(&stream, answer.place).await.map(|it| it.is_some()) }).await
        })
    }

    fn audit_percent(&self) -> u8 {
        self.audit_percent
    }

    fn given(&self) -> Option<&GivenBlocks> {
        self.given.as_ref()
    }

    fn workers(&self) -> Vec<WorkerSeen> {
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).seen()
    }

    fn close(&self) -> Result<(), QueueError> {
        let run = self.run();
        // First of all: whatever cannot be removed, the next run has listeners and streams of its own. Which run this was
        // stays known until the queue has nothing of it, since another try may follow.
        let closing = State { run: Some(run), ..State::default() };
        if let Some(listener) = std::mem::replace(&mut *self.state(), closing).listener {
            listener.abort();
        }
        self.beats.lock().unwrap_or_else(PoisonError::into_inner).clear();
        self.link.wait(async {
            self.erase_spec(&run).await?;
            self.remove_stream(&names::jobs_stream(&run)).await?;
            self.remove_stream(&names::answers_stream(&run)).await
        })?;
        *self.state() = State::default();
        let objects = self.link.objects.clone();
        let task = self.link.runtime.spawn(async move { objects.remove_all(&run).await });
        self.removals().push(Removal { run, task: Some(task) });
        Ok(())
    }

    fn closed(&self) -> Result<(), QueueError> {
        self.await_removals(None)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use async_nats::jetstream::stream::DeleteMessageErrorKind;
    use serde_json::json;

    fn said(code: u64, err_code: u64, description: &str) -> DeleteMessageError {
        let error = json!({ "code": code, "err_code": err_code, "description": description });
        DeleteMessageErrorKind::JetStream(serde_json::from_value(error).unwrap()).into()
    }

    /// An answer is forgotten once it is not there, whatever the server calls that; a server that cannot delete now is asked
    /// again.
    #[test]
    fn a_message_is_removed_when_it_is_not_there() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let removed = |deleted, is_there: Result<bool, QueueError>| {
            runtime.block_on(removed(deleted, async { is_there }))
        };
        let errors = || {
            [
                said(503, 10_008, "JetStream system temporarily unavailable"),
                said(500, 10_057, "store is closed"),
                said(400, 10_043, "sequence 7 not found"),
                DeleteMessageErrorKind::TimedOut.into(),
            ]
        };
        for error in errors() {
            assert_eq!(removed(Err(error), Ok(false)), Ok(()));
        }
        for error in errors() {
            let away = removed(Err(error), Ok(true)).unwrap_err();
            assert!(matches!(away, QueueError::Away(_)), "{away}");
        }
        let unknown = QueueError::Away("no leader".to_owned());
        for error in errors() {
            assert_eq!(removed(Err(error), Err(unknown.clone())), Err(unknown.clone()));
        }
        assert_eq!(removed(Ok(true), Err(unknown)), Ok(()));
        assert!(removed(Ok(false), Ok(true)).is_err());
    }
}

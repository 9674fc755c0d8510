//! [`Coordinator`]: the coordinator's side of the queue.

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
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::Notify;
use tokio::task::JoinHandle;

/// A run that was never closed expires after this time, including its secret.
const FORGOTTEN_AFTER: Duration = Duration::from_secs(30 * 24 * 3600);

/// Number of replicas of a stream in a cluster of servers: one of them may fail, and more replicas are slower.
const REPLICAS_OF_CLUSTER: usize = 3;

/// Interval at which answers are polled without a notification: a notification may be lost.
const LOOK_INTERVAL: Duration = Duration::from_millis(100);

/// Delay between the notification of an answer and the first poll for it: the server is about to store it. If several
/// servers must agree first, storing takes longer, so the delay doubles with each poll.
const STORED_AFTER: Duration = Duration::from_micros(300);

/// The coordinator's side of a queue on NATS JetStream.
pub struct Coordinator {
    link: Link,
    ack_wait: Duration,
    audit_percent: u8,
    /// Number of replicas of each stream.
    replicas: usize,
    state: Mutex<State>,
    beats: Arc<Mutex<Beats>>,
    /// Heartbeats of machines that take part in other runs.
    others: Arc<Mutex<Beats>>,
    /// Notified when an answer arrives.
    answered: Arc<Notify>,
    given: Option<GivenBlocks>,
    removals: Mutex<Vec<Removal>>,
}

/// A closed run, and the task that removes its objects while it is running.
struct Removal {
    run: RunId,
    task: Option<JoinHandle<Result<(), QueueError>>>,
}

#[derive(Default)]
struct State {
    run: Option<RunId>,
    jobs: Option<Stream>,
    answers: Option<Stream>,
    /// First sequence number of the next answer.
    next: u64,
    /// Delay before the next poll without a notification; [`LOOK_INTERVAL`] at first.
    look: Option<Duration>,
    /// Number of connections of the link when the run was opened.
    connections: u64,
    /// The task that receives heartbeats.
    listener: Option<JoinHandle<()>>,
}

impl Coordinator {
    /// Connects. A job is requeued if its machine sends no heartbeat for `ack_wait`.
    pub fn connect(options: &LinkOptions, ack_wait: Duration) -> Result<Self, LinkError> {
        let link = Link::connect(options, "apus coordinator")?;
        let (state, beats, others, answered) =
            (Mutex::default(), Arc::default(), Arc::default(), Arc::default());
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
            others,
            answered,
            given,
            removals,
        })
    }

    /// Sets the percentage of jobs to run twice and compare.
    #[must_use]
    pub fn with_audit(self, percent: u8) -> Self {
        Self { audit_percent: percent, ..self }
    }

    /// Sets the number of replicas of each stream.
    #[must_use]
    pub fn with_replicas(self, replicas: u8) -> Self {
        Self { replicas: replicas.into(), ..self }
    }

    /// Makes the coordinator hand out blocks of the run's folder.
    #[must_use]
    pub fn with_given(self, given: GivenBlocks) -> Self {
        Self { given: Some(given), ..self }
    }

    /// Servers on this machine that accept any client.
    pub fn open_servers(&self) -> &[String] {
        &self.link.open_servers
    }

    /// The open run.
    pub fn opened(&self) -> Option<RunId> {
        self.state.lock().run
    }

    fn run(&self) -> RunId {
        self.state.lock().run.unwrap_or(RunId([0; 32]))
    }

    /// Waits until the objects of a closed run are removed, or those of all closed runs. The next call retries a failed
    /// removal.
    fn await_removals(&self, of: Option<&RunId>) -> Result<(), QueueError> {
        let mut removals = self.removals.lock();
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

    /// Creates the streams of jobs and of answers.
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
        // Publish the description last, so that a machine that sees the run finds everything else.
        let known = last(&runs, &names::run(run)).await?;
        let subject = names::run(run);
        let is_spec = |known: Vec<u8>| known == spec;
        let opened = known.and_then(|known| self.link.key.open(&subject, &known.payload).ok());
        if !opened.is_some_and(is_spec) {
            self.link.publish(subject, spec).await?;
            // Machines that miss this message poll for runs from time to time.
            self.link.client.publish(names::NEW, "".into()).await.map_err(away)?;
        }
        Ok([jobs, answers])
    }

    /// The error if streams cannot be created: servers of a cluster may be unreachable, or too few.
    fn not_made(&self, error: &dyn std::error::Error) -> QueueError {
        let replicas = self.replicas;
        match replicas {
            1 => away(chain(error)),
            _ => away(format!(
                "{}: each stream needs {replicas} servers. Start as many, or set a lower number with --replicas",
                chain(error)
            )),
        }
    }

    /// Receives heartbeats, and sends the coordinator's, until the task is stopped. The client subscribes again after a
    /// lost connection.
    async fn listen(&self, run: RunId) -> Result<JoinHandle<()>, QueueError> {
        let mut signs = self.link.client.subscribe(names::ALL_BEATS).await.map_err(away)?;
        // Answers are read from the stream; this subscription only notifies of them.
        let mut answers =
            self.link.client.subscribe(names::any_answer(&run)).await.map_err(away)?;
        let mut asks = self.link.client.subscribe(names::ASK).await.map_err(away)?;
        let (beats, others, answered) =
            (Arc::clone(&self.beats), Arc::clone(&self.others), Arc::clone(&self.answered));
        let (client, key, subject) =
            (self.link.client.clone(), self.link.key.clone(), names::lead(&run));
        let lead = key.seal(&subject, b"");
        Ok(self.link.runtime.spawn(async move {
            let mut own = tokio::time::interval(BEAT_INTERVAL);
            loop {
                let sign = tokio::select! {
                    sign = signs.next() => sign,
                    _ = own.tick() => {
                        // A lost heartbeat is followed by the next.
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
                if let Some(beat) = beat {
                    let place = if beat.run == run.name() { &beats } else { &others };
                    place.lock().add(beat);
                }
            }
        }))
    }
}

/// Interprets the result of deleting a message. If the message is gone already, servers report "not found" or "cannot
/// be deleted", with wording that depends on the version; they also refuse while they elect a leader. So this checks
/// whether the message is still there: an answer wrongly taken for deleted would block the next one forever.
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
        let listens = self.state.lock().listener.is_some();
        let connections = self.link.connections();
        self.await_removals(Some(run))?;
        let ([jobs, answers], listener) = self.link.wait(async {
            let streams = self.make_streams(run, spec).await?;
            let listener = if listens { None } else { Some(self.listen(*run).await?) };
            Ok::<_, QueueError>((streams, listener))
        })?;
        let mut state = self.state.lock();
        // A killed server loses what it had not written, and reuses the sequence number of a lost answer. So read all
        // answers again.
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

    fn put_job_again(&self, key: JobKey, copy: JobCopy, message: &[u8]) -> Result<(), QueueError> {
        let (run, jobs) = {
            let state = self.state.lock();
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
            let state = self.state.lock();
            if state.run.is_some() && state.connections != self.link.connections() {
                return Err(away("the connection was lost and made again"));
            }
            (state.run, state.answers.clone(), state.next)
        };
        let Some((run, stream)) = run.zip(stream) else {
            return Err(QueueError::Refused("no run was opened".to_owned()));
        };
        let subjects = names::any_answer(&run);
        let (began, mut look) = (Instant::now(), self.state.lock().look.unwrap_or(LOOK_INTERVAL));
        let found = self.link.wait(async {
            loop {
                match (from(&stream, &subjects, next).await?, wait.checked_sub(began.elapsed())) {
                    (None, Some(left)) if !left.is_zero() => {
                        let notified = self.answered.notified();
                        look = match tokio::time::timeout(look.min(left), notified).await {
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
        self.state.lock().look = Some(look);
        let Some(found) = found else { return Ok(None) };
        self.state.lock().next = found.sequence + 1;
        let opened = self.link.key.open(&found.subject, &found.payload);
        // Ignore a subject that is not ours.
        Ok(names::key_of(&found.subject).map(|key| AnswerBytes {
            place: found.sequence,
            key,
            audit: names::is_audit(&found.subject),
            is_genuine: opened.is_ok(),
            message: opened.unwrap_or_default(),
        }))
    }

    fn forget(&self, answer: &AnswerBytes) -> Result<(), QueueError> {
        let Some(stream) = self.state.lock().answers.clone() else { return Ok(()) };
        self.link.wait(async {
            let deleted = stream.delete_message(answer.place).await;
            // An earlier attempt may have removed it.
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
        self.beats.lock().seen()
    }

    fn workers_elsewhere(&self) -> Vec<String> {
        self.others.lock().elsewhere()
    }

    fn close(&self) -> Result<(), QueueError> {
        let Some(run) = self.opened() else { return Ok(()) };
        // Reset the state first, so that the next run gets its own listeners and streams even if the removal fails.
        // Remember the run until the queue has nothing left of it, since another attempt may follow.
        let closing = State { run: Some(run), ..State::default() };
        if let Some(listener) = std::mem::replace(&mut *self.state.lock(), closing).listener {
            listener.abort();
        }
        self.beats.lock().clear();
        self.link.wait(self.link.remove_run(&run))?;
        *self.state.lock() = State::default();
        let objects = self.link.objects.clone();
        let task = self.link.runtime.spawn(async move { objects.remove_all(&run).await });
        self.removals.lock().push(Removal { run, task: Some(task) });
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

    fn reply(code: u64, err_code: u64, description: &str) -> DeleteMessageError {
        let error = json!({ "code": code, "err_code": err_code, "description": description });
        DeleteMessageErrorKind::JetStream(serde_json::from_value(error).unwrap()).into()
    }

    /// An answer counts as deleted once it is absent, even if the server reports an error. A server that cannot
    /// delete now is retried.
    #[test]
    fn a_message_is_removed_when_it_is_not_there() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let removed = |deleted, is_there: Result<bool, QueueError>| {
            runtime.block_on(removed(deleted, async { is_there }))
        };
        let errors = || {
            [
                reply(503, 10_008, "JetStream system temporarily unavailable"),
                reply(500, 10_057, "store is closed"),
                reply(400, 10_043, "sequence 7 not found"),
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

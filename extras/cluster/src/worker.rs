//! [`Worker`]: a worker's side of the queue, and [`JoinedRun`], the run that it takes part in.

use crate::beat::{BEAT_INTERVAL, InWork, Leaders};
use crate::key::SealError;
use crate::lease::{LeasedJob, Place};
use crate::link::{Link, away, from};
use crate::names;
use crate::options::{LinkError, LinkOptions};
use apus_jobs::{JobOffer, Jobs, ObjectRef, QueueError, RunId, pass_on_delay};
use async_nats::Subscriber;
use async_nats::jetstream::consumer::{Consumer, pull};
use async_nats::jetstream::message::{AckKind, Message};
use futures_util::StreamExt;
use parking_lot::Mutex;
use std::collections::{BTreeSet, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Interval between two checks whether a run without jobs has ended.
const OVER_INTERVAL: Duration = Duration::from_secs(1);

/// How long to wait for the heartbeats of coordinators that were asked for them.
const LEAD_WAIT: Duration = Duration::from_millis(500);

/// A worker's connection to the queue.
pub struct Worker {
    link: Link,
    name: String,
    /// Announcements of new runs.
    new: Mutex<Subscriber>,
    leaders: Leaders,
    /// When the coordinators were first asked for heartbeats.
    connected_at: Instant,
    /// Runs without a coordinator in which this machine could not take part.
    set_aside: Mutex<HashSet<RunId>>,
    /// Warnings about runs that this machine cannot take part in, and about jobs that no coordinator queued.
    strange: Mutex<StrangerMessages>,
}

/// Warnings about messages that are not for this machine, each given once.
#[derive(Default)]
struct StrangerMessages {
    known: BTreeSet<String>,
    pending: Vec<String>,
}

/// Maximum number of these warnings.
const STRANGE_MAX: usize = 100;

impl StrangerMessages {
    fn add(&mut self, what: String) {
        if self.known.len() < STRANGE_MAX && self.known.insert(what.clone()) {
            self.pending.push(what);
        }
    }
}

/// A run found in the queue.
#[derive(Clone)]
pub struct RunSeen {
    /// Its id.
    pub run: RunId,
    /// Its description, which contains the secret of the run.
    pub spec: Vec<u8>,
}

impl Worker {
    /// Connects. The default name consists of the host name and the process id.
    pub fn connect(options: &LinkOptions, name: Option<&str>) -> Result<Self, LinkError> {
        let name = name.map_or_else(own_name, str::to_owned);
        if !names::is_name(&name) {
            return Err(LinkError::Usage(format!(
                "--name {name}: use 1 to 64 letters, digits, - and _"
            )));
        }
        let link = Link::connect(options, &name)?;
        let new = link.wait(link.client.subscribe(names::NEW));
        let new = new.map_err(|error| LinkError::Server {
            url: options.nats.clone(),
            what: error.to_string(),
        })?;
        let leaders = Leaders::default();
        link.wait(leaders.listen(&link.client, link.key.clone())).map_err(|error| {
            LinkError::Server { url: options.nats.clone(), what: error.to_string() }
        })?;
        // If this fails, the coordinators' regular heartbeats follow.
        let _ = link.wait(link.client.publish(names::ASK, "".into()));
        Ok(Self {
            link,
            name,
            new: Mutex::new(new),
            leaders,
            connected_at: Instant::now(),
            set_aside: Mutex::default(),
            strange: Mutex::default(),
        })
    }

    /// Servers on this machine that accept any client.
    pub fn open_servers(&self) -> &[String] {
        &self.link.open_servers
    }

    /// Warnings about skipped runs and jobs since the last call, each given once.
    pub fn passed_over(&self) -> Vec<String> {
        std::mem::take(&mut self.strange.lock().pending)
    }

    /// Waits until a run is announced, at most `wait`.
    pub fn wait_for_run(&self, wait: Duration) {
        let mut new = self.new.lock();
        // The caller polls for runs in either case.
        let _ = self.link.wait(async { tokio::time::timeout(wait, new.next()).await });
    }

    /// The name of this machine.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The active runs in which this machine may take part: those with a coordinator first, newest first.
    pub fn runs(&self) -> Result<Vec<RunSeen>, QueueError> {
        let (mut open, closed) = self.link.wait(runs(&self.link))?;
        for ClosedRun { run, why } in closed {
            let name = run.name();
            self.strange.lock().add(format!("run {name} is skipped: {why}"));
        }
        let is_led = |seen: &RunSeen| self.leaders.has(&seen.run);
        // A machine that has just connected has not heard the coordinators yet.
        while !open.is_empty()
            && !open.iter().any(is_led)
            && self.connected_at.elapsed() < LEAD_WAIT
        {
            std::thread::sleep(LEAD_WAIT / 50);
        }
        let set_aside = self.set_aside.lock();
        open.retain(|seen| is_led(seen) || !set_aside.contains(&seen.run));
        open.sort_by_key(|seen| !is_led(seen));
        Ok(open)
    }

    /// After this machine failed in a run: takes no part in it again until it has a coordinator. Returns false, and
    /// does nothing, if it has one now, has ended, or cannot be looked up.
    pub fn set_aside(&self, run: RunId) -> bool {
        let since = Instant::now();
        let found = self.link.wait(async {
            self.link.client.publish(names::ASK, "".into()).await.map_err(away)?;
            self.link.flush().await?;
            self.link.spec(&run).await
        });
        if !matches!(found, Ok(Some(_))) {
            return false;
        }
        // Longer than the interval of heartbeats, in case the request is lost.
        while since.elapsed() < BEAT_INTERVAL + LEAD_WAIT {
            if self.leaders.has_since(&run, since) {
                return false;
            }
            std::thread::sleep(LEAD_WAIT / 50);
        }
        self.set_aside.lock().insert(run);
        true
    }

    /// Joins a run; `None` if it has already ended.
    pub fn join(&self, seen: &RunSeen) -> Result<Option<JoinedRun<'_>>, QueueError> {
        let run = seen.run;
        let joined = self.link.wait(async {
            let jobs = self.link.stream(&names::jobs_stream(&run)).await?;
            let answers = self.link.stream(&names::answers_stream(&run)).await?;
            let Some((jobs, answers)) = jobs.zip(answers) else { return Ok(None) };
            let consumer: Consumer<pull::Config> =
                jobs.get_consumer(names::WORKERS).await.map_err(away)?;
            Ok(Some((consumer, answers)))
        })?;
        let Some((consumer, answers)) = joined else { return Ok(None) };
        let ack_wait = consumer.cached_info().config.ack_wait;
        let doing = Arc::new(Mutex::new(InWork::default()));
        let beats = self.link.wait(self.beats(run, Arc::clone(&doing)))?;
        let asked = Mutex::new(Instant::now());
        let place = Place { link: &self.link, name: &self.name, run, answers, ack_wait, doing };
        let (spec, joined_at, was_left) =
            (seen.spec.clone(), Instant::now(), AtomicBool::new(false));
        Ok(Some(JoinedRun {
            worker: self,
            place,
            spec,
            consumer,
            beats,
            asked,
            joined_at,
            was_left,
        }))
    }

    /// Sends heartbeats, regularly and on request.
    async fn beats(
        &self,
        run: RunId,
        doing: Arc<Mutex<InWork>>,
    ) -> Result<JoinHandle<()>, QueueError> {
        let mut asks = self.link.client.subscribe(names::ASK).await.map_err(away)?;
        let (client, name, key) =
            (self.link.client.clone(), self.name.clone(), self.link.key.clone());
        Ok(self.link.runtime.spawn(async move {
            loop {
                let beat = doing.lock().beat(&run, &name).to_bytes();
                // A lost heartbeat is followed by the next.
                let subject = names::beat(&run);
                let beat = key.seal(&subject, &beat);
                let _ = client.publish(subject, beat.into()).await;
                let _ = tokio::time::timeout(BEAT_INTERVAL, asks.next()).await;
            }
        }))
    }
}

/// The default name, from the host name and the process id.
fn own_name() -> String {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname");
    let host = host.ok().or_else(|| std::env::var("HOSTNAME").ok()).unwrap_or_default();
    let host = Some(host.trim()).filter(|host| !host.is_empty()).unwrap_or("worker");
    format!("{}-{}", names::like(host), std::process::id())
}

/// A run whose description this machine cannot open.
pub(crate) struct ClosedRun {
    /// Its id. Only the first half is known: the name.
    pub(crate) run: RunId,
    pub(crate) why: SealError,
}

/// The active runs, newest first, and the runs that this machine cannot open.
pub(crate) async fn runs(link: &Link) -> Result<(Vec<RunSeen>, Vec<ClosedRun>), QueueError> {
    let (mut open, mut closed, mut next) = (Vec::new(), Vec::new(), 0);
    let Some(stream) = link.stream(names::RUNS).await? else { return Ok((open, closed)) };
    while let Some(found) = from(&stream, names::ALL_RUNS, next).await? {
        next = found.sequence + 1;
        match link.key.open(&found.subject, &found.payload) {
            Ok(spec) => {
                let run = RunId::of(&spec);
                // Ignore a description under the wrong name.
                if *found.subject == *names::run(&run) {
                    open.push(RunSeen { run, spec });
                }
            }
            Err(why) => {
                let run = RunId::from_name(names::run_of(&found.subject));
                closed.extend(run.map(|run| ClosedRun { run, why }));
            }
        }
    }
    open.reverse();
    Ok((open, closed))
}

/// A run that this machine takes part in. Dropping it stops the heartbeats.
pub struct JoinedRun<'w> {
    worker: &'w Worker,
    place: Place<'w>,
    spec: Vec<u8>,
    consumer: Consumer<pull::Config>,
    beats: JoinHandle<()>,
    /// When the end of the run was last checked.
    asked: Mutex<Instant>,
    /// When this machine joined the run.
    joined_at: Instant,
    was_left: AtomicBool,
}

impl Drop for JoinedRun<'_> {
    fn drop(&mut self) {
        self.beats.abort();
    }
}

impl JoinedRun<'_> {
    /// Whether the run is known to have ended.
    pub fn is_over(&self) -> bool {
        self.place.link.wait(self.place.is_over()).unwrap_or(false)
    }

    /// Whether this machine left the run for another one, because its coordinator sent no heartbeats.
    pub fn was_left(&self) -> bool {
        self.was_left.load(Ordering::Relaxed)
    }

    /// Leaves the run if its coordinator is gone and another run has one.
    fn leave(&self) -> bool {
        let leaves = self.worker.leaders.may_leave(&self.place.run, self.joined_at);
        self.was_left.fetch_or(leaves, Ordering::Relaxed) || leaves
    }

    /// Offers the job if the run's coordinator queued it; otherwise removes it.
    async fn offer(&self, message: Message) -> Result<JobOffer<'_>, QueueError> {
        match self.place.link.key.open(&message.subject, &message.payload) {
            Ok(job) => Ok(JobOffer::Job(Box::new(LeasedJob::new(&self.place, message, job)))),
            Err(why) => {
                let what = format!("a job of run {} is skipped: {why}", self.place.run);
                self.worker.strange.lock().add(what);
                message.ack_with(AckKind::Term).await.map_err(away)?;
                Ok(JobOffer::Nothing)
            }
        }
    }

    fn is_for_others(&self, message: &Message) -> bool {
        let copy = names::copy_of(&message.subject);
        let key = names::key_of(&message.subject);
        key.is_some_and(|key| self.place.doing.lock().is_for_others(key, copy))
    }

    /// Whether the run has ended. Returns false without checking if the last check was a moment ago, unless `now`.
    async fn has_ended(&self, now: bool) -> Result<bool, QueueError> {
        {
            let mut asked = self.asked.lock();
            if !now && asked.elapsed() < OVER_INTERVAL {
                return Ok(false);
            }
            *asked = Instant::now();
        }
        self.place.is_over().await
    }

    async fn next(&self, wait: Duration) -> Result<Option<JobOffer<'_>>, QueueError> {
        let _waiting = WaitingThread::begin(&self.place.doing);
        let batch = self.consumer.batch().max_messages(1).expires(wait).messages();
        let mut batch = batch.await.map_err(away)?;
        match batch.next().await {
            Some(Ok(message)) if self.is_for_others(&message) => {
                message.ack_with(AckKind::Nak(Some(pass_on_delay()))).await.map_err(away)?;
                Ok(Some(JobOffer::Nothing))
            }
            Some(Ok(message)) => self.offer(message).await.map(Some),
            Some(Err(error)) => Err(away(error)),
            None => Ok(None),
        }
    }
}

/// Counts a thread that waits for a job, until dropped.
struct WaitingThread<'w>(&'w Mutex<InWork>);

impl<'w> WaitingThread<'w> {
    fn begin(doing: &'w Mutex<InWork>) -> Self {
        doing.lock().wait(true);
        Self(doing)
    }
}

impl Drop for WaitingThread<'_> {
    fn drop(&mut self) {
        self.0.lock().wait(false);
    }
}

impl Jobs for JoinedRun<'_> {
    fn spec(&self) -> &[u8] {
        &self.spec
    }

    fn name(&self) -> &str {
        self.place.name
    }

    fn object(&self, of: &ObjectRef) -> Result<Vec<u8>, QueueError> {
        self.place.link.object(&self.place.run, of)
    }

    fn take(&self, wait: Duration) -> Result<JobOffer<'_>, QueueError> {
        if self.leave() {
            return Ok(JobOffer::Over);
        }
        self.place.link.wait(async {
            // Use a timeout, because a server that went away never answers a request.
            let next = tokio::time::timeout(wait + Duration::from_secs(2), self.next(wait)).await;
            match next {
                Ok(Ok(Some(offer))) => Ok(offer),
                Ok(Ok(None)) if self.has_ended(false).await? => Ok(JobOffer::Over),
                Ok(Ok(None)) => Ok(JobOffer::Nothing),
                // The stream of an ended run is gone.
                Ok(Err(error)) => match self.has_ended(true).await? {
                    true => Ok(JobOffer::Over),
                    false => Err(error),
                },
                Err(_) => match self.has_ended(true).await? {
                    true => Ok(JobOffer::Over),
                    false => Ok(JobOffer::Nothing),
                },
            }
        })
    }
}

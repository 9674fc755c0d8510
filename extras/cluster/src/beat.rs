//! Signs of life: [`Beat`] and [`Beats`], those of machines; [`InWork`], which jobs a machine is at; and [`Leaders`], which
//! runs have a coordinator.

use crate::key::ClusterKey;
use crate::names;
use apus_jobs::{JobCopy, JobKey, RunId, WorkerSeen};
use async_nats::Client;
use futures_util::StreamExt;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// How often each machine gives one.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_secs(2);

/// So many machines are remembered at most.
const MACHINES_MAX: usize = 10_000;

/// So many segments that a machine is at are told.
const DOING_MAX: usize = 64;

/// No sign of life is longer.
const BEAT_BYTES_MAX: usize = 16 << 10;

/// A machine's sign of life.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    pub(crate) version: u32,
    /// The name of the run.
    pub(crate) run: String,
    pub(crate) worker: String,
    /// Jobs that it did for the run.
    pub(crate) segments: u64,
    /// The jobs that it is at.
    pub(crate) doing: Vec<Doing>,
    /// How many of its threads wait for a job.
    pub(crate) waiting: u32,
}

/// A job that a machine is at.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Doing {
    /// What it is, for people.
    pub(crate) job: String,
    /// How much of it is done: blocks, or stretches of records.
    pub(crate) done: u64,
}

impl Beat {
    pub(crate) fn new(run: &RunId, worker: &str, segments: u64, mut doing: Vec<Doing>) -> Self {
        doing.truncate(DOING_MAX);
        let (version, worker) = (apus_jobs::WIRE_VERSION, worker.to_owned());
        Self { version, run: run.name(), worker, segments, doing, waiting: 0 }
    }

    /// The same, with so many threads that wait for a job.
    pub(crate) fn with_waiting(self, waiting: u32) -> Self {
        Self { waiting, ..self }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and words can be written")
    }

    /// Reads one; none where it is none, or of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let beat =
            (bytes.len() <= BEAT_BYTES_MAX).then(|| serde_json::from_slice::<Self>(bytes).ok());
        let fits = |beat: &Self| {
            let is_text = |doing: &Doing| !doing.job.chars().any(char::is_control);
            beat.version == apus_jobs::WIRE_VERSION
                && crate::names::is_name(&beat.worker)
                && beat.doing.iter().all(is_text)
        };
        beat.flatten().filter(fits)
    }

    /// What the machine does, for people.
    pub(crate) fn doing(&self) -> String {
        let one = |doing: &Doing| format!("{} ({} done)", doing.job, doing.done);
        match &self.doing[..] {
            [] => "waits for a job".to_owned(),
            some => some.iter().map(one).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The last sign of life of each machine.
#[derive(Default)]
pub(crate) struct Beats(BTreeMap<String, (Instant, Beat)>);

impl Beats {
    pub(crate) fn add(&mut self, beat: Beat) {
        if self.0.len() < MACHINES_MAX || self.0.contains_key(&beat.worker) {
            self.0.insert(beat.worker.clone(), (Instant::now(), beat));
        }
    }

    pub(crate) fn clear(&mut self) {
        self.0.clear();
    }

    pub(crate) fn seen(&self) -> Vec<WorkerSeen> {
        let seen = |(name, (at, beat)): (&String, &(Instant, Beat))| WorkerSeen {
            name: name.clone(),
            ago: at.elapsed(),
            idle: beat.waiting > 0,
            doing: beat.doing(),
        };
        self.0.iter().map(seen).collect()
    }

    pub(crate) fn all(&self) -> impl Iterator<Item = &Beat> {
        self.0.values().map(|(_, beat)| beat)
    }
}

// [`InWork`]: which jobs a machine is at.

/// Which jobs a machine is at.
#[derive(Default)]
pub(crate) struct InWork {
    next: u64,
    /// By a number of its own, since a job may be given twice. With what is done of each.
    leased: BTreeMap<u64, (Option<JobKey>, u64)>,
    jobs: u64,
    /// How many threads wait for a job.
    waiting: u32,
}

impl InWork {
    pub(crate) fn beat(&self, run: &RunId, name: &str) -> Beat {
        let doing = |(key, done): &(Option<JobKey>, u64)| {
            let job = key.map_or_else(String::new, |key| key.to_string());
            Doing { job, done: *done }
        };
        Beat::new(run, name, self.jobs, self.leased.values().map(doing).collect())
            .with_waiting(self.waiting)
    }

    pub(crate) fn begin(&mut self, key: Option<JobKey>) -> u64 {
        self.next += 1;
        self.leased.insert(self.next, (key, 0));
        self.next
    }

    pub(crate) fn block(&mut self, lease: u64) {
        if let Some((_, done)) = self.leased.get_mut(&lease) {
            *done += 1;
        }
    }

    pub(crate) fn answered(&mut self) {
        self.jobs += 1;
    }

    pub(crate) fn end(&mut self, lease: u64) {
        self.leased.remove(&lease);
    }

    /// Whether a job is for another machine, since this one is at it.
    pub(crate) fn is_for_others(&self, key: JobKey, copy: JobCopy) -> bool {
        copy != JobCopy::First && self.leased.values().any(|(other, _)| *other == Some(key))
    }

    /// A thread waits for a job, or does so no more.
    pub(crate) fn wait(&mut self, waits: bool) {
        self.waiting = match waits {
            true => self.waiting + 1,
            false => self.waiting.saturating_sub(1),
        };
    }
}

pub(crate) fn lock(doing: &Mutex<InWork>) -> MutexGuard<'_, InWork> {
    doing.lock().unwrap_or_else(PoisonError::into_inner)
}

// A run whose coordinator was ended and not started again stays in the queue for 30 days. A machine that waits in it for jobs
// leaves it for a run that has one.

/// A coordinator that gave no sign of life for so long is gone, or cannot be reached: it gives one every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(6);

/// So many runs are remembered at most.
const RUNS_MAX: usize = 1000;

/// Which runs have a coordinator.
#[derive(Clone, Default)]
pub(crate) struct Leaders(Arc<Mutex<HashMap<String, Instant>>>);

impl Leaders {
    fn lock(&self) -> MutexGuard<'_, HashMap<String, Instant>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Listens for signs of life.
    pub(crate) async fn listen(
        &self,
        client: &Client,
        key: ClusterKey,
    ) -> Result<JoinHandle<()>, async_nats::SubscribeError> {
        let mut signs = client.subscribe(names::ALL_LEADS).await?;
        let this = self.clone();
        Ok(tokio::spawn(async move {
            while let Some(sign) = signs.next().await {
                if key.open(&sign.subject, &sign.payload).is_ok() {
                    this.hear(names::run_of(&sign.subject));
                }
            }
        }))
    }

    fn hear(&self, run: &str) {
        let mut heard = self.lock();
        heard.retain(|_, at| at.elapsed() < SILENCE_MAX);
        if heard.len() < RUNS_MAX {
            heard.insert(run.to_owned(), Instant::now());
        }
    }

    /// Whether a run has a coordinator.
    pub(crate) fn has(&self, run: &RunId) -> bool {
        self.lock().get(&run.name()).is_some_and(|at| at.elapsed() < SILENCE_MAX)
    }

    /// Whether a machine that came to a run at some time may leave it: its coordinator has been silent for long, and another
    /// one is there.
    pub(crate) fn may_leave(&self, run: &RunId, came: Instant) -> bool {
        came.elapsed() >= SILENCE_MAX
            && !self.has(run)
            && self.lock().values().any(|at| at.elapsed() < SILENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use JobCopy::{Again, Audit, First};

    #[test]
    fn a_sign_of_life_is_read_back_or_passed_over() {
        let doing = vec![Doing { job: "blocks 5 to 8".into(), done: 3 }];
        let beat = Beat::new(&RunId([3; 32]), "rack-7", 12, doing);
        let bytes = beat.to_bytes();
        assert_eq!(Beat::from_bytes(&bytes), Some(beat.clone()));
        assert_eq!(beat.doing(), "blocks 5 to 8 (3 done)");
        assert_eq!(Beat::from_bytes(&bytes[1..]), None);
        let newer = Beat { version: apus_jobs::WIRE_VERSION + 1, ..beat.clone() };
        assert_eq!(Beat::from_bytes(&newer.to_bytes()), None);
        let strange = Beat { worker: "\u{1b}[2J".into(), ..beat.clone() };
        assert_eq!(Beat::from_bytes(&strange.to_bytes()), None);
        let doing = vec![Doing { job: "\u{1b}[2J".into(), done: 3 }];
        assert_eq!(Beat::from_bytes(&Beat { doing, ..beat.clone() }.to_bytes()), None);
        let mut beats = Beats::default();
        beats.add(beat.clone());
        beats.add(Beat { doing: Vec::new(), ..beat });
        let seen = beats.seen();
        assert_eq!((seen.len(), &*seen[0].doing), (1, "waits for a job"));
    }

    #[test]
    fn what_a_machine_is_at_is_for_others_too() {
        let (mut work, key) = (InWork::default(), JobKey::join(3));
        let for_others =
            |work: &InWork| [First, Again, Audit].map(|copy| work.is_for_others(key, copy));
        assert_eq!(for_others(&work), [false; 3]);
        let lease = work.begin(Some(key));
        assert_eq!(for_others(&work), [false, true, true]);
        work.end(lease);
        assert_eq!(for_others(&work), [false; 3]);
    }

    #[test]
    fn a_run_without_a_coordinator_is_left_for_one_that_has_one() {
        let (leaders, gone, other) = (Leaders::default(), RunId([1; 32]), RunId([2; 32]));
        let long_ago = Instant::now().checked_sub(SILENCE_MAX).unwrap();
        assert!(!leaders.may_leave(&gone, long_ago), "there is no other");
        leaders.hear(&other.name());
        assert!(leaders.has(&other) && !leaders.has(&gone));
        assert!(!leaders.may_leave(&gone, Instant::now()), "it may give a sign yet");
        assert!(leaders.may_leave(&gone, long_ago));
        leaders.hear(&gone.name());
        assert!(!leaders.may_leave(&gone, long_ago));
        leaders.lock().values_mut().for_each(|at| *at = long_ago);
        assert!(!leaders.has(&other) && !leaders.may_leave(&gone, long_ago));
    }
}

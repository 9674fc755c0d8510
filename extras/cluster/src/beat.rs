//! Heartbeats: [`Beat`] and [`Beats`] of machines; [`InWork`], the current jobs of a machine; and [`Leaders`], the runs
//! that have a coordinator.

use crate::key::ClusterKey;
use crate::names;
use apus_jobs::{JobCopy, JobKey, RunId, WorkerSeen};
use async_nats::Client;
use futures_util::StreamExt;
use parking_lot::Mutex;
use serde::{Deserialize, Serialize};
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// Interval between two heartbeats of a machine.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_secs(2);

/// Maximum number of remembered machines.
const MACHINES_MAX: usize = 10_000;

/// Maximum number of jobs listed in a heartbeat.
const DOING_MAX: usize = 64;

/// Maximum length of a heartbeat, in bytes.
const BEAT_BYTES_MAX: usize = 16 << 10;

/// A heartbeat of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Beat {
    pub(crate) version: u32,
    /// The name of the run.
    pub(crate) run: String,
    pub(crate) worker: String,
    /// Number of jobs that the machine finished for the run.
    pub(crate) segments: u64,
    /// The machine's current jobs.
    pub(crate) doing: Vec<CurrentJob>,
    /// Number of its threads that wait for a job.
    pub(crate) waiting: u32,
}

/// A current job of a machine.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct CurrentJob {
    /// Description of the job, for people.
    pub(crate) job: String,
    /// Progress, in blocks or groups of records.
    pub(crate) done: u64,
}

impl Beat {
    pub(crate) fn new(
        run: &RunId,
        worker: &str,
        segments: u64,
        mut doing: Vec<CurrentJob>,
    ) -> Self {
        doing.truncate(DOING_MAX);
        let (version, worker) = (apus_jobs::WIRE_VERSION, worker.to_owned());
        Self { version, run: run.name(), worker, segments, doing, waiting: 0 }
    }

    /// Sets the number of waiting threads.
    pub(crate) fn with_waiting(self, waiting: u32) -> Self {
        Self { waiting, ..self }
    }

    pub(crate) fn to_bytes(&self) -> Vec<u8> {
        serde_json::to_vec(self).expect("numbers and words can be written")
    }

    /// Decodes a heartbeat; `None` if it is invalid or of another version.
    pub(crate) fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let beat =
            (bytes.len() <= BEAT_BYTES_MAX).then(|| serde_json::from_slice::<Self>(bytes).ok());
        let fits = |beat: &Self| {
            let is_text = |doing: &CurrentJob| !doing.job.chars().any(char::is_control);
            beat.version == apus_jobs::WIRE_VERSION
                && crate::names::is_name(&beat.worker)
                && beat.doing.iter().all(is_text)
        };
        beat.flatten().filter(fits)
    }

    /// The machine's current work, for people.
    pub(crate) fn doing(&self) -> String {
        let one = |doing: &CurrentJob| format!("{} ({} done)", doing.job, doing.done);
        match &self.doing[..] {
            [] => "idle".to_owned(),
            some => some.iter().map(one).collect::<Vec<_>>().join(", "),
        }
    }
}

/// The last heartbeat of each machine.
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

    /// Which runs the machines with a recent heartbeat take part in, for people.
    pub(crate) fn elsewhere(&self) -> Vec<String> {
        let recent = self.0.values().filter(|(at, _)| at.elapsed() < SILENCE_MAX);
        let one =
            |(_, beat): &(Instant, Beat)| format!("{} works on run {}", beat.worker, beat.run);
        recent.map(one).collect()
    }
}

// [`InWork`]: the current jobs of a machine.

/// The current jobs of this machine.
#[derive(Default)]
pub(crate) struct InWork {
    next: u64,
    /// Jobs and their progress, by a unique number, since the same job may be leased twice.
    leased: BTreeMap<u64, (Option<JobKey>, u64)>,
    jobs: u64,
    /// Number of threads that wait for a job.
    waiting: u32,
}

impl InWork {
    pub(crate) fn beat(&self, run: &RunId, name: &str) -> Beat {
        let doing = |(key, done): &(Option<JobKey>, u64)| {
            let job = key.map_or_else(String::new, |key| key.to_string());
            CurrentJob { job, done: *done }
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

    /// Whether a copy of a job is meant for other machines, because this one is executing the job.
    pub(crate) fn is_for_others(&self, key: JobKey, copy: JobCopy) -> bool {
        copy != JobCopy::First && self.leased.values().any(|(other, _)| *other == Some(key))
    }

    /// Records that a thread starts or stops waiting for a job.
    pub(crate) fn wait(&mut self, waits: bool) {
        self.waiting = match waits {
            true => self.waiting + 1,
            false => self.waiting.saturating_sub(1),
        };
    }
}

// A run whose coordinator was stopped and not started again stays in the queue for 30 days. A machine that waits for
// its jobs leaves it for a run with a coordinator.

/// A coordinator without a heartbeat for this long is gone or unreachable: it sends one every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(6);

/// Maximum number of remembered runs.
const RUNS_MAX: usize = 1000;

/// The runs that have a coordinator.
#[derive(Clone, Default)]
pub(crate) struct Leaders(Arc<Mutex<HashMap<String, Instant>>>);

impl Leaders {
    /// Listens for heartbeats of coordinators.
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
        let mut heard = self.0.lock();
        heard.retain(|_, at| at.elapsed() < SILENCE_MAX);
        if heard.len() < RUNS_MAX {
            heard.insert(run.to_owned(), Instant::now());
        }
    }

    /// Whether a run has a coordinator.
    pub(crate) fn has(&self, run: &RunId) -> bool {
        self.0.lock().get(&run.name()).is_some_and(|at| at.elapsed() < SILENCE_MAX)
    }

    /// Whether a coordinator's heartbeat arrived since then.
    pub(crate) fn has_since(&self, run: &RunId, since: Instant) -> bool {
        self.0.lock().get(&run.name()).is_some_and(|at| *at >= since)
    }

    /// Whether a machine that joined a run at `joined` may leave it: its coordinator has been silent for too long, and
    /// another run has a coordinator.
    pub(crate) fn may_leave(&self, run: &RunId, joined: Instant) -> bool {
        joined.elapsed() >= SILENCE_MAX
            && !self.has(run)
            && self.0.lock().values().any(|at| at.elapsed() < SILENCE_MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use JobCopy::{Again, Audit, First};

    #[test]
    fn a_heartbeat_is_read_back_or_ignored() {
        let doing = vec![CurrentJob { job: "blocks 5 to 8".into(), done: 3 }];
        let beat = Beat::new(&RunId([3; 32]), "rack-7", 12, doing);
        let bytes = beat.to_bytes();
        assert_eq!(Beat::from_bytes(&bytes), Some(beat.clone()));
        assert_eq!(beat.doing(), "blocks 5 to 8 (3 done)");
        assert_eq!(Beat::from_bytes(&bytes[1..]), None);
        let newer = Beat { version: apus_jobs::WIRE_VERSION + 1, ..beat.clone() };
        assert_eq!(Beat::from_bytes(&newer.to_bytes()), None);
        let strange = Beat { worker: "\u{1b}[2J".into(), ..beat.clone() };
        assert_eq!(Beat::from_bytes(&strange.to_bytes()), None);
        let doing = vec![CurrentJob { job: "\u{1b}[2J".into(), done: 3 }];
        assert_eq!(Beat::from_bytes(&Beat { doing, ..beat.clone() }.to_bytes()), None);
        let mut beats = Beats::default();
        beats.add(beat.clone());
        beats.add(Beat { doing: Vec::new(), ..beat });
        let seen = beats.seen();
        assert_eq!((seen.len(), &*seen[0].doing), (1, "idle"));
    }

    #[test]
    fn copies_of_a_current_job_are_for_others() {
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
    fn machines_leave_a_run_without_a_coordinator() {
        let (leaders, gone, other) = (Leaders::default(), RunId([1; 32]), RunId([2; 32]));
        let long_ago = Instant::now().checked_sub(SILENCE_MAX).unwrap();
        assert!(!leaders.may_leave(&gone, long_ago), "no other run has a coordinator");
        leaders.hear(&other.name());
        assert!(leaders.has(&other) && !leaders.has(&gone));
        assert!(!leaders.may_leave(&gone, Instant::now()), "a heartbeat may still come");
        assert!(leaders.may_leave(&gone, long_ago));
        leaders.hear(&gone.name());
        assert!(!leaders.may_leave(&gone, long_ago));
        leaders.0.lock().values_mut().for_each(|at| *at = long_ago);
        assert!(!leaders.has(&other) && !leaders.may_leave(&gone, long_ago));
    }
}

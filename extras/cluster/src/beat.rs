//! [`Beat`]: a machine's sign of life; [`Beats`]: those that came.

use apus_jobs::{RunId, WorkerSeen};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

/// How often each machine gives one.
pub(crate) const BEAT_INTERVAL: Duration = Duration::from_secs(2);

/// So many machines are remembered at most.
const MACHINES_MAX: usize = 10_000;

/// So many segments that a machine is at are told.
const DOING_MAX: usize = 64;

/// No sign of life is longer.
const BEAT_BYTES_MAX: usize = 16 << 10;

/// See the module.
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

#[cfg(test)]
mod tests {
    use super::*;

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
}

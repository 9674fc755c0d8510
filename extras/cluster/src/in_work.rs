//! [`InWork`]: which jobs a machine is at.

use crate::beat::{Beat, Doing};
use apus_jobs::{JobCopy, JobKey, RunId};
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
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

#[cfg(test)]
mod tests {
    use super::*;
    use JobCopy::{Again, Audit, First};

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
}

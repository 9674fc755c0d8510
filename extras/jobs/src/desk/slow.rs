//! [`JobPace`]: how long jobs take, by which the [`Desk`] knows those that are slow.
//!
//! At the end of a step machines have nothing to do while others are at its last jobs. What takes much longer than
//! such jobs do is given to them as well, and the first answer counts.

use super::Desk;
use crate::job::{JobCopy, JobKey};
use crate::queue::ObjectRef;
use apus_sync::error::SyncError;
use std::time::{Duration, Instant};

/// No job is slow before it took so many times as long as others.
const TIMES: u32 = 2;

/// No job is slow before.
const SLOW_MIN: Duration = Duration::from_secs(2);

/// How often slow jobs are looked for.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A machine whose last sign of life is older may be gone.
pub(super) const SEEN_MAX: Duration = Duration::from_secs(6);

/// See the module.
#[derive(Default)]
pub(super) struct JobPace {
    jobs: u32,
    busy: Duration,
    looked: Option<Instant>,
}

impl JobPace {
    pub(super) fn add(&mut self, busy: Duration) {
        self.jobs += 1;
        self.busy = self.busy.saturating_add(busy);
    }

    /// After how long a job is slow; none where no job was done yet.
    fn slow_after(&self) -> Option<Duration> {
        let mean = self.busy.checked_div(self.jobs)?;
        Some(mean.saturating_mul(TIMES).max(SLOW_MIN))
    }

    /// Whether to look for slow jobs now.
    fn is_time(&mut self) -> bool {
        let is_time = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_INTERVAL);
        if is_time {
            self.looked = Some(Instant::now());
        }
        is_time
    }
}

impl Desk<'_> {
    /// Gives slow jobs to machines that have nothing to do, when no others are left.
    pub(super) fn put_slow_again(&mut self) -> Result<(), SyncError> {
        if !self.todo.is_empty() || self.out.is_empty() || !self.pace.is_time() {
            return Ok(());
        }
        let Some(slow_after) = self.pace.slow_after() else { return Ok(()) };
        let is_idle = |seen: &crate::queue::WorkerSeen| seen.idle && seen.ago < SEEN_MAX;
        if !self.queue.workers().iter().any(is_idle) {
            return Ok(());
        }
        let slow =
            self.out.iter().filter(|(_, out)| !out.again && out.since.elapsed() > slow_after);
        let slow: Vec<(JobKey, ObjectRef)> = slow.map(|(key, out)| (*key, out.input)).collect();
        for (key, input) in slow {
            self.put(key, JobCopy::Again, input)?;
            if let Some(out) = self.out.get_mut(&key) {
                out.again = true;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_slow_follows_from_what_others_took() {
        let mut pace = JobPace::default();
        assert_eq!(pace.slow_after(), None);
        pace.add(Duration::from_millis(100));
        assert_eq!(pace.slow_after(), Some(SLOW_MIN));
        pace.add(Duration::from_millis(9_900));
        assert_eq!(pace.slow_after(), Some(Duration::from_secs(10)));
        assert!(pace.is_time() && !pace.is_time());
    }
}

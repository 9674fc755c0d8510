//! [`JobPace`]: how long jobs take, so that the [`Scheduler`] can detect slow ones.
//!
//! At the end of a step, some machines are idle while others process the last jobs. The scheduler gives a job that
//! takes much longer than average to an idle machine, too, and the first answer counts.

use super::Scheduler;
use crate::job::{JobCopy, JobKey};
use crate::queue::ObjectRef;
use apus_sync::error::SyncError;
use std::time::{Duration, Instant};

/// A job is slow once it takes this many times the average.
const TIMES: u32 = 2;

/// No job is slow before this time.
const SLOW_MIN: Duration = Duration::from_secs(2);

/// Interval between two searches for slow jobs.
const LOOK_INTERVAL: Duration = Duration::from_millis(500);

/// A machine whose last heartbeat is older may be gone.
pub(super) const SEEN_MAX: Duration = Duration::from_secs(6);

/// Statistics of the finished jobs of a step.
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

    /// The time after which a job is slow; `None` before the first job is done.
    fn slow_after(&self) -> Option<Duration> {
        let mean = self.busy.checked_div(self.jobs)?;
        Some(mean.saturating_mul(TIMES).max(SLOW_MIN))
    }

    /// Whether to search for slow jobs now.
    fn is_time(&mut self) -> bool {
        let is_time = self.looked.is_none_or(|looked| looked.elapsed() >= LOOK_INTERVAL);
        if is_time {
            self.looked = Some(Instant::now());
        }
        is_time
    }
}

impl Scheduler<'_> {
    /// Gives slow jobs to idle machines when no other jobs are left.
    pub(super) fn duplicate_slow(&mut self) -> Result<(), SyncError> {
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
    fn slowness_is_relative_to_other_jobs() {
        let mut pace = JobPace::default();
        assert_eq!(pace.slow_after(), None);
        pace.add(Duration::from_millis(100));
        assert_eq!(pace.slow_after(), Some(SLOW_MIN));
        pace.add(Duration::from_millis(9_900));
        assert_eq!(pace.slow_after(), Some(Duration::from_secs(10)));
        assert!(pace.is_time() && !pace.is_time());
    }
}

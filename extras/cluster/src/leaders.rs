//! [`Leaders`]: which runs have a coordinator, by its signs of life.
//!
//! A run whose coordinator was ended and not started again stays in the queue for 30 days. A machine that waits in it for jobs
//! leaves it for a run that has one.

use crate::key::ClusterKey;
use crate::names;
use apus_jobs::RunId;
use async_nats::Client;
use futures_util::StreamExt;
use std::collections::HashMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tokio::task::JoinHandle;

/// A coordinator that gave no sign of life for so long is gone, or cannot be reached: it gives one every two seconds.
const SILENCE_MAX: Duration = Duration::from_secs(6);

/// So many runs are remembered at most.
const RUNS_MAX: usize = 1000;

/// See the module.
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

//! [`QueuePatience`]: how long a queue may be away.

use crate::error::QueueError;
use crate::warning::ClusterWarning;
use apus_sync::error::SyncError;
use apus_sync::progress::{Observer, stop_if_interrupted};
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Tries what a queue is asked for again while it is away.
pub(crate) struct QueuePatience<'a> {
    /// The longest that it may be away at a stretch.
    pub(crate) longest: Duration,
    pub(crate) observer: &'a dyn Observer,
    pub(crate) interrupt: &'a AtomicBool,
}

/// When the user is told that it is waited for.
const TOLD_AFTER: Duration = Duration::from_secs(2);

/// Time between two tries.
const PAUSE: Duration = Duration::from_millis(200);

impl QueuePatience<'_> {
    /// Tries until it works, cannot work, took too long, or the run is interrupted.
    pub(crate) fn with<T>(
        &self,
        mut attempt: impl FnMut() -> Result<T, QueueError>,
    ) -> Result<T, SyncError> {
        let (began, mut told) = (Instant::now(), false);
        loop {
            match attempt() {
                Ok(value) => return Ok(value),
                Err(QueueError::Away(what)) if began.elapsed() >= self.longest => {
                    let what = format!(
                        "{what}: it was away for {} seconds. Start it again, and then the same command",
                        began.elapsed().as_secs()
                    );
                    return Err(QueueError::Away(what).into());
                }
                Err(QueueError::Away(why)) => {
                    if !told && began.elapsed() >= TOLD_AFTER {
                        told = true;
                        ClusterWarning::QueueAway { why }.tell(self.observer);
                    }
                }
                Err(error) => return Err(error.into()),
            }
            stop_if_interrupted(self.interrupt)?;
            std::thread::sleep(PAUSE);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_sync::progress::Silent;
    use std::sync::atomic::Ordering;

    #[test]
    fn what_is_away_for_a_while_is_tried_again() {
        let interrupt = AtomicBool::new(false);
        let patience = QueuePatience {
            longest: Duration::from_secs(60),
            observer: &Silent,
            interrupt: &interrupt,
        };
        let mut tries = 0;
        let value = patience.with(|| {
            tries += 1;
            if tries < 3 { Err(QueueError::Away("gone".into())) } else { Ok(5) }
        });
        assert_eq!(value.unwrap(), 5);
        let refused = patience.with(|| Err::<(), _>(QueueError::Refused("never".into())));
        assert!(refused.unwrap_err().to_string().contains("never"));
        interrupt.store(true, Ordering::Relaxed);
        let away = || Err::<(), _>(QueueError::Away("gone".into()));
        assert!(matches!(patience.with(away), Err(SyncError::Interrupted)));
        let short = QueuePatience { longest: Duration::ZERO, ..patience };
        let told = short.with(away).unwrap_err().to_string();
        assert!(told.contains("gone: it was away"), "{told}");
    }
}

//! [`RetryBudget`]: how long to retry while servers are unavailable, and the error when that time is up.
//!
//! The budget starts when a server was last heard before the first failure, whatever the kind of failure:
//! servers that refuse connections or are not ready are asked again after pauses, and silent servers are
//! waited for. Once a budget is used up, the following calls are short until one succeeds, so that a program
//! that is about to end does not wait again for every remaining step.
//!
//! [`within`] limits how long a call waits for a silent server.
//!
//! A stopped server, or a broken network, leaves connections open: the local system accepts what is sent, and
//! no answer ever arrives. The client libraries do not support a limit that depends on the caller and on the
//! time already waited. So the calling thread stores its limit here, and the code that reads and writes its
//! connections looks it up. The limit is on silence: any byte that a server sends or accepts restarts it, so a
//! long answer may take as long as it needs.

use apus_engine::utxo::StoreError;
use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pauses between retries start with this and double up to [`PAUSE_MAX`].
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// How long to wait for a server after the budget was used up once.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// State shared by all connections to a store's servers: how long they may be unavailable, and whether they
/// exceeded that.
#[derive(Debug, Clone)]
pub(crate) struct Absence {
    most: Duration,
    too_long: Arc<AtomicBool>,
}

impl Absence {
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, too_long: Arc::default() }
    }

    /// Returns a copy with a shorter limit, for the first call: a wrong name should be reported soon.
    pub(crate) fn at_most(&self, most: Duration) -> Self {
        Self { most: self.most.min(most), ..self.clone() }
    }

    /// The budget of one call with all its retries.
    pub(crate) fn patience(&self) -> RetryBudget<'_> {
        RetryBudget { absence: self, since: None, tried: Instant::now(), pause: PAUSE }
    }

    /// The time limit of a call without retries.
    pub(crate) fn once(&self) -> Duration {
        match self.too_long.load(Ordering::Relaxed) {
            true => AFTERWARDS.min(self.most),
            false => self.most,
        }
    }
}

/// The retry budget of one call.
#[derive(Debug)]
pub(crate) struct RetryBudget<'a> {
    absence: &'a Absence,
    since: Option<Instant>,
    /// When the last attempt started.
    tried: Instant,
    pause: Duration,
}

impl RetryBudget<'_> {
    /// How much of the budget is left.
    pub(crate) fn left(&self) -> Duration {
        let passed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.absence.once().saturating_sub(passed)
    }

    /// Pauses after a failure, before which a server was last heard at `heard`. Returns false if the budget
    /// is used up.
    pub(crate) fn wait(&mut self, heard: Instant) -> bool {
        // A server that is not ready says so soon. If it was heard for this long, it was working on the
        // request, so this counts as a new outage.
        if heard.saturating_duration_since(self.tried) > self.absence.most {
            (self.since, self.pause) = (None, PAUSE);
        }
        self.since.get_or_insert(heard);
        if self.left() <= self.pause {
            return false;
        }
        thread::sleep(self.pause);
        self.pause = (2 * self.pause).min(PAUSE_MAX);
        self.tried = Instant::now();
        true
    }

    /// Records that a server answered.
    pub(crate) fn ends_well(&self) {
        self.absence.too_long.store(false, Ordering::Relaxed);
    }

    /// Records that the budget is used up. Returns the error of the store at `place`; `last` is the last
    /// failure.
    pub(crate) fn is_over(&self, place: &str, last: impl Display) -> StoreError {
        self.absence.too_long.store(true, Ordering::Relaxed);
        let waited = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        StoreError::Away {
            place: place.to_owned(),
            waited,
            error: format!(
                "{last}: check that its servers run and can be reached from here. --coins-timeout sets how long to \
                 wait"
            ),
        }
    }
}

/// Time limit outside of calls, for instance for closing a connection.
const OTHERWISE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
struct SilenceLimit {
    limit: Duration,
    heard: Instant,
}

thread_local! {
    static LINE: Cell<Option<SilenceLimit>> = const { Cell::new(None) };
}

/// While this exists, the thread's calls have its time limit.
#[must_use]
pub(crate) struct ListenGuard(Option<SilenceLimit>);

/// Sets the limit on silence for this thread's calls.
pub(crate) fn within(limit: Duration) -> ListenGuard {
    ListenGuard(LINE.replace(Some(SilenceLimit { limit, heard: Instant::now() })))
}

impl ListenGuard {
    /// When a server was last heard, or else when the wait started.
    pub(crate) fn heard(&self) -> Instant {
        line().heard
    }
}

impl Drop for ListenGuard {
    fn drop(&mut self) {
        LINE.set(self.0.map(|line| SilenceLimit { heard: Instant::now(), ..line }));
    }
}

fn line() -> SilenceLimit {
    LINE.get().unwrap_or_else(|| SilenceLimit { limit: OTHERWISE, heard: Instant::now() })
}

/// Records that a server sent or accepted something.
pub(crate) fn heard() {
    LINE.set(LINE.get().map(|line| SilenceLimit { heard: Instant::now(), ..line }));
}

/// When the silence will have lasted too long.
pub(crate) fn until() -> Instant {
    let SilenceLimit { limit, heard } = line();
    heard + limit
}

/// The time left to wait, or an error if there is none.
pub(crate) fn left() -> io::Result<Duration> {
    let left = until().saturating_duration_since(Instant::now());
    if left.is_zero() { Err(timed_out()) } else { Ok(left) }
}

/// The error of a call that waited too long.
pub(crate) fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_budget_starts_when_a_server_was_last_heard_and_is_short_afterwards() {
        let absence = Absence::new(Duration::from_secs(100));
        let before = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let mut patience = absence.patience();
        assert_eq!(patience.left(), Duration::from_secs(100));
        assert!(patience.wait(before(90)));
        assert!(patience.left() < Duration::from_secs(10));
        assert!(patience.wait(before(0)), "the budget starts at the first failure");
        assert!(patience.left() < Duration::from_secs(10));
        // The server came back, a long flush continued, and then the server went away again.
        patience.tried = before(99);
        assert!(patience.wait(before(0)));
        assert!(
            patience.left() < Duration::from_secs(10),
            "the server was not heard for long enough"
        );
        patience.tried = before(101);
        assert!(patience.wait(before(0)));
        assert!(patience.left() > Duration::from_secs(90));

        let mut patience = absence.patience();
        assert!(!patience.wait(before(100)));
        let error = patience.is_over("there", "gone").to_string();
        assert!(error.starts_with("there: no answer for 100 s: gone: check that"), "{error}");
        assert_eq!(absence.clone().patience().left(), AFTERWARDS);
        patience.ends_well();
        assert_eq!(absence.patience().left(), Duration::from_secs(100));
        let short = absence.at_most(Duration::from_secs(1));
        assert_eq!(short.patience().left(), Duration::from_secs(1));
    }

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn the_limit_applies_to_silence_and_ends_with_the_call() {
        let outer = within(LONG);
        {
            let inner = within(SHORT);
            thread::sleep(2 * SHORT);
            assert!(left().is_err());
            assert!(inner.heard().elapsed() >= 2 * SHORT);
            heard();
            assert!(until() > inner.heard());
            assert!(inner.heard().elapsed() < LONG);
        }
        assert!(left().unwrap() > LONG / 2);
        drop(outer);
        assert!(left().unwrap() <= OTHERWISE);
    }
}

//! [`RetryBudget`]: for how long servers that are away are asked again, and what is said then.
//!
//! Its time begins where a server was heard last before the first trouble, so it does not matter how that shows: servers that refuse
//! connections, or say that they are not ready yet, are asked again, after pauses; and servers that say nothing
//! are listened to for as long. Where it has been long enough once, the next calls are short, until one
//! succeeds: a run that is about to end for it does not wait again for each thing that it still has to do.
//!
//! [`within`] says for how long a call listens to a server that says nothing.
//!
//! A server that was stopped, or that a network swallows, leaves its connections as they are: what is sent is
//! taken by its system, and no answer comes, ever. The client libraries have no place for a limit that depends
//! on who asks and how long has been waited already. So the thread that calls has it here, and what reads from
//! and writes to the connections of that thread looks it up. What counts is silence: whatever a server says
//! or takes begins the time anew, so a long answer may take as long as it does.

use apus_engine::utxo::StoreError;
use std::cell::Cell;
use std::fmt::Display;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::{Duration, Instant};

/// Pauses between tries begin with the first and double up to the second.
const PAUSE: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);

/// For how long a server is listened to that was not heard for as long as one may be.
const AFTERWARDS: Duration = Duration::from_secs(3);

/// What all connections to a store's servers share: how long they may be away, and whether they were.
#[derive(Debug, Clone)]
pub(crate) struct Absence {
    most: Duration,
    too_long: Arc<AtomicBool>,
}

impl Absence {
    pub(crate) fn new(most: Duration) -> Self {
        Self { most, too_long: Arc::default() }
    }

    /// For the first call, where a wrong name is to be told soon.
    pub(crate) fn at_most(&self, most: Duration) -> Self {
        Self { most: self.most.min(most), ..self.clone() }
    }

    /// For one call, with all its tries.
    pub(crate) fn patience(&self) -> RetryBudget<'_> {
        RetryBudget { absence: self, since: None, tried: Instant::now(), pause: PAUSE }
    }

    /// How long one call may listen that is made once.
    pub(crate) fn once(&self) -> Duration {
        match self.too_long.load(Ordering::Relaxed) {
            true => AFTERWARDS.min(self.most),
            false => self.most,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(crate) struct RetryBudget<'a> {
    absence: &'a Absence,
    since: Option<Instant>,
    /// When the last try began.
    tried: Instant,
    pause: Duration,
}

impl RetryBudget<'_> {
    /// How long the servers may still be away.
    pub(crate) fn left(&self) -> Duration {
        let passed = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        self.absence.once().saturating_sub(passed)
    }

    /// Lets some time pass after a failure, before which a server was heard last at `heard`; false where it has
    /// been long enough.
    pub(crate) fn wait(&mut self, heard: Instant) -> bool {
        // A server that is not ready says so soon. One that was heard for so long has worked on what was asked of it,
        // and is away for the first time again.
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

    /// A server answered.
    pub(crate) fn ends_well(&self) {
        self.absence.too_long.store(false, Ordering::Relaxed);
    }

    /// It has been long enough. The error of the store at `place`, of which `said` was the last to be seen.
    pub(crate) fn is_over(&self, place: &str, said: impl Display) -> StoreError {
        self.absence.too_long.store(true, Ordering::Relaxed);
        let waited = self.since.map_or(Duration::ZERO, |since| since.elapsed());
        StoreError::Away {
            place: place.to_owned(),
            waited,
            error: format!(
                "{said}: see whether its servers run and can be reached from here. --coins-timeout says for how long \
                 to wait"
            ),
        }
    }
}

/// Where no call is under way, as while a connection is closed.
const OTHERWISE: Duration = Duration::from_secs(3);

#[derive(Clone, Copy)]
struct SilenceLimit {
    limit: Duration,
    heard: Instant,
}

thread_local! {
    static LINE: Cell<Option<SilenceLimit>> = const { Cell::new(None) };
}

/// While it is there, the calls of this thread listen for so long.
#[must_use]
pub(crate) struct ListenGuard(Option<SilenceLimit>);

/// Sets the limit for what this thread asks from now on.
pub(crate) fn within(limit: Duration) -> ListenGuard {
    ListenGuard(LINE.replace(Some(SilenceLimit { limit, heard: Instant::now() })))
}

impl ListenGuard {
    /// When a server was heard last, or the listening began.
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

/// A server said something, or took something.
pub(crate) fn heard() {
    LINE.set(LINE.get().map(|line| SilenceLimit { heard: Instant::now(), ..line }));
}

/// When the silence will have been long enough.
pub(crate) fn until() -> Instant {
    let SilenceLimit { limit, heard } = line();
    heard + limit
}

/// How long to listen still; an error where it has been long enough.
pub(crate) fn left() -> io::Result<Duration> {
    let left = until().saturating_duration_since(Instant::now());
    if left.is_zero() { Err(timed_out()) } else { Ok(left) }
}

/// The error of a call that listened for long enough.
pub(crate) fn timed_out() -> io::Error {
    io::Error::new(io::ErrorKind::TimedOut, "no answer")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_counted_from_when_a_server_was_heard_last_and_shorter_afterwards() {
        let absence = Absence::new(Duration::from_secs(100));
        let before = |seconds| Instant::now().checked_sub(Duration::from_secs(seconds)).unwrap();
        let mut patience = absence.patience();
        assert_eq!(patience.left(), Duration::from_secs(100));
        assert!(patience.wait(before(90)));
        assert!(patience.left() < Duration::from_secs(10));
        assert!(patience.wait(before(0)), "the first failure is what counts");
        assert!(patience.left() < Duration::from_secs(10));
        // A long flush went on after the server came back, until it went once more.
        patience.tried = before(99);
        assert!(patience.wait(before(0)));
        assert!(patience.left() < Duration::from_secs(10), "not for long enough");
        patience.tried = before(101);
        assert!(patience.wait(before(0)));
        assert!(patience.left() > Duration::from_secs(90));

        let mut patience = absence.patience();
        assert!(!patience.wait(before(100)));
        let error = patience.is_over("there", "gone").to_string();
        assert!(error.starts_with("there: not heard for 100 s: gone: see whether"), "{error}");
        assert_eq!(absence.clone().patience().left(), AFTERWARDS);
        patience.ends_well();
        assert_eq!(absence.patience().left(), Duration::from_secs(100));
        let short = absence.at_most(Duration::from_secs(1));
        assert_eq!(short.patience().left(), Duration::from_secs(1));
    }

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn a_limit_is_of_the_silence_and_ends_with_the_call() {
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

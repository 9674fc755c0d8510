//! [`within`]: for how long a call listens to a server that says nothing.
//!
//! A server that was stopped, or that a network swallows, leaves its connections as they are: what is sent is
//! taken by its system, and no answer comes, ever. The client libraries have no place for a limit that depends
//! on who asks and how long has been waited already. So the thread that calls has it here, and what reads from
//! and writes to the connections of that thread looks it up. What counts is silence: whatever a server says
//! or takes begins the time anew, so a long answer may take as long as it does.

use std::cell::Cell;
use std::io;
use std::time::{Duration, Instant};

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
    use std::thread::sleep;

    const SHORT: Duration = Duration::from_millis(5);
    const LONG: Duration = Duration::from_secs(1000);

    #[test]
    fn a_limit_is_of_the_silence_and_ends_with_the_call() {
        let outer = within(LONG);
        {
            let inner = within(SHORT);
            sleep(2 * SHORT);
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

//! [`Deadline`]: what is done with a socket ends by it, whatever the other side does.
//!
//! A socket limits one call alone. [`send`] and those that read ask for the time left before each.

use crate::peer_error::PeerError;
use std::io::{self, IoSlice, Write};
use std::net::TcpStream;
use std::time::{Duration, Instant};

/// A wait that a socket can still express; zero would be no limit at all.
pub(crate) const WAIT_LEAST: Duration = Duration::from_millis(1);
/// No wait is longer than this, so points in time are never out of range.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// A point in time by which something has to be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    after: Duration,
    during: &'static str,
}

impl Deadline {
    /// `after` from now; `during` is what takes too long if it passes.
    pub(crate) fn new(after: Duration, during: &'static str) -> Self {
        let after = after.min(WAIT_MAX);
        Self { at: Instant::now() + after, after, during }
    }

    /// The same point in time, for a part that is to be named itself.
    pub(crate) fn of(self, during: &'static str) -> Self {
        Self { during, ..self }
    }

    /// The time left, which is never zero.
    pub(crate) fn remaining(&self) -> Result<Duration, PeerError> {
        let left = self.at.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(PeerError::Timeout { during: self.during, after: self.after });
        }
        Ok(left.max(WAIT_LEAST))
    }
}

/// Whether an error of the socket only means that its time to wait is over.
pub(crate) fn is_timeout(error: &io::Error) -> bool {
    matches!(error.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut)
}

/// Sends all parts before the deadline, however few bytes the peer takes at a time.
pub(crate) fn send(
    mut stream: &TcpStream,
    mut parts: &mut [IoSlice<'_>],
    deadline: &Deadline,
) -> Result<(), PeerError> {
    IoSlice::advance_slices(&mut parts, 0);
    while !parts.is_empty() {
        stream.set_write_timeout(Some(deadline.remaining()?))?;
        match stream.write_vectored(parts) {
            Ok(0) => return Err(PeerError::Closed),
            Ok(count) => IoSlice::advance_slices(&mut parts, count),
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            // The deadline says which wait was too long.
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_deadline_passes_and_none_is_too_far() {
        let deadline = Deadline::new(Duration::ZERO, "nothing");
        let error = deadline.remaining().unwrap_err();
        assert_eq!(error.to_string(), "nothing took longer than 0ns");
        assert!(Deadline::new(Duration::MAX, "everything").remaining().is_ok());
    }
}

//! [`Guests`]: the open connections, with a limit.
//!
//! The server always makes room for the next connection, so that no client can block the page for others by not
//! reading, not writing, or connecting often. It closes a connection of the same address if that has many, otherwise
//! one of the address with the most connections; among these, the one that has been idle the longest.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// Maximum number of connections.
const ALL_MAX: usize = 64;

/// Maximum number of connections of one address. A browser uses at most six.
const OF_ADDRESS_MAX: usize = 16;

/// When a connection last received or sent something.
#[derive(Clone)]
pub(crate) struct LastActivity(Arc<Mutex<Instant>>);

impl LastActivity {
    /// The time of the last activity.
    pub(crate) fn last(&self) -> Instant {
        *self.0.lock()
    }

    fn note<T>(&self, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            *self.0.lock() = Instant::now();
        }
        done
    }
}

/// A connection that records its last activity.
pub(crate) struct GuestStream {
    stream: TcpStream,
    moved: LastActivity,
}

impl GuestStream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, moved: LastActivity(Arc::new(Mutex::new(Instant::now()))) }
    }

    pub(crate) fn moved(&self) -> LastActivity {
        self.moved.clone()
    }
}

impl AsyncRead for GuestStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let done = Pin::new(&mut self.stream).poll_read(context, buffer);
        self.moved.note(done)
    }
}

impl AsyncWrite for GuestStream {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        let done = Pin::new(&mut self.stream).poll_write(context, bytes);
        self.moved.note(done)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

struct Guest {
    address: IpAddr,
    moved: LastActivity,
    task: AbortHandle,
}

/// The open connections.
#[derive(Default)]
pub(crate) struct Guests(Vec<Guest>);

impl Guests {
    /// Closes a connection if there is no room for one more from an address.
    pub(crate) fn make_place(&mut self, address: IpAddr) {
        self.0.retain(|guest| !guest.task.is_finished());
        let mut counts: HashMap<IpAddr, usize> = HashMap::new();
        self.0.iter().for_each(|guest| *counts.entry(guest.address).or_default() += 1);
        let of = match counts.get(&address) {
            Some(OF_ADDRESS_MAX..) => address,
            _ if self.0.len() < ALL_MAX => return,
            _ => match counts.iter().max_by_key(|(_, count)| **count) {
                Some((most, _)) => *most,
                None => return,
            },
        };
        let of_it = self.0.iter().enumerate().filter(|(_, guest)| guest.address == of);
        if let Some((place, _)) = of_it.min_by_key(|(_, guest)| guest.moved.last()) {
            self.0.swap_remove(place).task.abort();
        }
    }

    /// Adds a connection and the task that serves it.
    pub(crate) fn add(&mut self, address: IpAddr, moved: LastActivity, task: AbortHandle) {
        self.0.push(Guest { address, moved, task });
    }
}

#[cfg(test)]
#[allow(clippy::unwrap_used, reason = "a failure here is a failed test")]
mod tests {
    use super::*;
    use std::time::Duration;

    fn addresses(guests: &Guests, of: u8) -> usize {
        guests.0.iter().filter(|guest| guest.address == address(of)).count()
    }

    fn address(last: u8) -> IpAddr {
        IpAddr::from([192, 0, 2, last])
    }

    #[test]
    fn the_address_with_most_connections_gives_way() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut guests = Guests::default();
        let began = Instant::now();
        let mut come = |of, after| {
            guests.make_place(address(of));
            let moved = LastActivity(Arc::new(Mutex::new(began + Duration::from_secs(after))));
            let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
            guests.add(address(of), moved, task);
        };
        // The first connection has the latest activity.
        come(1, 1000);
        (0..40).for_each(|after| come(1, after));
        for of in 2..20 {
            (0..8).for_each(|after| come(of, after));
        }
        assert_eq!(guests.0.len(), ALL_MAX);
        assert!(guests.0.iter().any(|guest| guest.moved.last() > began + Duration::from_secs(900)));
        assert!((1..20).all(|of| addresses(&guests, of) <= OF_ADDRESS_MAX));
        assert!((2..20).all(|of| addresses(&guests, of) >= ALL_MAX / 19 - 1), "all have a place");
    }
}

//! [`Guests`]: the connections that there are, of which some go where there are too many.
//!
//! There is always a place for the next one, so that nobody takes the page away from others, whether he reads nothing, says
//! nothing, or comes often. The one that goes is of the same address where that has many; else of the address that has most;
//! and of these the one that has neither said nor taken anything for the longest time.

use std::collections::HashMap;
use std::io;
use std::net::IpAddr;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::time::Instant;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio::task::AbortHandle;

/// Connections at a time.
const ALL_MAX: usize = 64;

/// Connections of one address. A browser has six at most.
const OF_ADDRESS_MAX: usize = 16;

/// When something came or went on a connection.
#[derive(Clone)]
pub(crate) struct Moved(Arc<Mutex<Instant>>);

impl Moved {
    fn lock(&self) -> MutexGuard<'_, Instant> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// When that was last.
    pub(crate) fn last(&self) -> Instant {
        *self.lock()
    }

    fn note<T>(&self, done: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if done.is_ready() {
            *self.lock() = Instant::now();
        }
        done
    }
}

/// A connection, of which it is known when something came or went.
pub(crate) struct GuestStream {
    stream: TcpStream,
    moved: Moved,
}

impl GuestStream {
    pub(crate) fn new(stream: TcpStream) -> Self {
        Self { stream, moved: Moved(Arc::new(Mutex::new(Instant::now()))) }
    }

    pub(crate) fn moved(&self) -> Moved {
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
    moved: Moved,
    task: AbortHandle,
}

/// See the module.
#[derive(Default)]
pub(crate) struct Guests(Vec<Guest>);

impl Guests {
    /// Makes a place for one more from an address.
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

    /// One more, which a task serves.
    pub(crate) fn add(&mut self, address: IpAddr, moved: Moved, task: AbortHandle) {
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
    fn who_has_many_gives_place() {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        let mut guests = Guests::default();
        let began = Instant::now();
        let mut come = |of, after| {
            guests.make_place(address(of));
            let moved = Moved(Arc::new(Mutex::new(began + Duration::from_secs(after))));
            let task = runtime.spawn(std::future::pending::<()>()).abort_handle();
            guests.add(address(of), moved, task);
        };
        // The first one has said something last.
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

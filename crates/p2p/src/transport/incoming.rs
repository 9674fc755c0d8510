//! [`Incoming`]: bytes from a socket, for readers that never wait long.
//!
//! One system call takes what is there, up to 64 KiB. What is larger than that goes straight into
//! memory of its own ([`Body`]), which grows with what arrived and not with what was announced.
//! Each call waits for a *tick* at most and then says so, whatever the peer does.

use super::buffers::Buffers;
use crate::deadline::{Deadline, WAIT_LEAST, WAIT_MAX, is_timeout};
use crate::peer_error::PeerError;
use std::io::{self, Read};
use std::net::TcpStream;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Bytes taken by one call where no large message is under way.
const BUFFER_BYTES: usize = 64 << 10;
/// Memory for a message of which nothing arrived yet, in bytes.
const BODY_BYTES_FIRST: usize = 256 << 10;
/// Bytes from a peer that are not taken yet.
#[derive(Debug)]
pub(crate) struct Incoming {
    stream: Arc<TcpStream>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    received: Arc<AtomicU64>,
    /// Where memory for large messages is.
    buffers: Arc<Buffers>,
}

impl Incoming {
    pub(crate) fn new(stream: Arc<TcpStream>, tick: Duration) -> Result<Self, PeerError> {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let (received, buffers) = Default::default();
        let incoming = Self { stream, buffer, start: 0, end: 0, received, buffers };
        incoming.set_tick(tick)?;
        Ok(incoming)
    }

    /// How long a call waits for the first byte.
    pub(crate) fn set_tick(&self, tick: Duration) -> Result<(), PeerError> {
        Ok(self.stream.set_read_timeout(Some(tick.clamp(WAIT_LEAST, WAIT_MAX)))?)
    }

    /// Takes memory for large messages from there.
    pub(crate) fn use_buffers(&mut self, buffers: &Arc<Buffers>) {
        self.buffers = Arc::clone(buffers);
    }

    /// All bytes that ever came.
    pub(crate) fn received(&self) -> &Arc<AtomicU64> {
        &self.received
    }

    /// Whether nothing ever came.
    pub(crate) fn is_untouched(&self) -> bool {
        self.received.load(Ordering::Relaxed) == 0
    }

    /// What is here and not yet taken.
    pub(crate) fn available(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Takes `count` of the bytes that are here.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end, "more was taken than there was");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes the first `N` bytes if as many are here.
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.available().first_chunk()?;
        self.consume(N);
        Some(bytes)
    }

    /// Waits for more bytes; false if none came within the tick.
    pub(crate) fn wait(&mut self) -> Result<bool, PeerError> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            (self.start, self.end) = (0, self.end - self.start);
        }
        let count = receive(&self.stream, &self.received, &mut self.buffer[self.end..])?;
        self.end += count;
        Ok(count > 0)
    }

    /// Waits for more bytes until the deadline.
    pub(crate) fn wait_until(&mut self, deadline: &Deadline) -> Result<(), PeerError> {
        loop {
            deadline.remaining()?;
            if self.wait()? {
                return Ok(());
            }
        }
    }

    /// Takes `N` bytes as soon as they are here.
    pub(crate) fn take_until<const N: usize>(
        &mut self,
        deadline: &Deadline,
    ) -> Result<[u8; N], PeerError> {
        const { assert!(N <= BUFFER_BYTES) };
        loop {
            if let Some(bytes) = self.take() {
                return Ok(bytes);
            }
            self.wait_until(deadline)?;
        }
    }
}

/// One system call; 0 if nothing came within the tick.
fn receive(stream: &TcpStream, received: &AtomicU64, into: &mut [u8]) -> Result<usize, PeerError> {
    debug_assert!(!into.is_empty(), "no room to read into");
    match (&*stream).read(into) {
        Ok(0) => Err(PeerError::Closed),
        Ok(count) => {
            received.fetch_add(count as u64, Ordering::Relaxed);
            Ok(count)
        }
        Err(error) if is_timeout(&error) || error.kind() == io::ErrorKind::Interrupted => Ok(0),
        Err(error) => Err(error.into()),
    }
}

/// Room for three times what arrived already, so that what is taken on a mere promise is bounded;
/// or for all, where there is memory that was used before.
fn grow(bytes: &mut Vec<u8>, total: usize, buffers: &Buffers) {
    if bytes.is_empty()
        && let Some(used) = buffers.take(total)
    {
        *bytes = used;
        bytes.resize(total, 0);
        return;
    }
    let more = (3 * bytes.len()).max(BODY_BYTES_FIRST).min(total - bytes.len());
    bytes.reserve_exact(more);
    bytes.resize(bytes.len() + more, 0);
}

/// A run of bytes of known length on its way.
#[derive(Debug)]
pub(crate) struct Body {
    /// What arrived, then anything.
    bytes: Vec<u8>,
    arrived: usize,
    total: usize,
}

impl Body {
    pub(crate) const fn new(total: usize) -> Self {
        Self { bytes: Vec::new(), arrived: 0, total }
    }

    /// Takes what is here; true when that was all.
    pub(crate) fn take_from(&mut self, incoming: &mut Incoming) -> bool {
        let here = incoming.available();
        let here = &here[..here.len().min(self.total - self.arrived)];
        while self.bytes.len() < self.arrived + here.len() {
            grow(&mut self.bytes, self.total, &incoming.buffers);
        }
        self.bytes[self.arrived..][..here.len()].copy_from_slice(here);
        self.arrived += here.len();
        let count = here.len();
        incoming.consume(count);
        self.arrived == self.total
    }

    /// Waits for more; false if nothing came within the tick.
    pub(crate) fn wait(&mut self, incoming: &mut Incoming) -> Result<bool, PeerError> {
        // What is in the buffer stands before what the socket has.
        if self.total - self.arrived < BUFFER_BYTES || !incoming.available().is_empty() {
            return incoming.wait();
        }
        if self.bytes.len() == self.arrived {
            grow(&mut self.bytes, self.total, &incoming.buffers);
        }
        let room = &mut self.bytes[self.arrived..];
        let count = receive(&incoming.stream, &incoming.received, room)?;
        self.arrived += count;
        Ok(count > 0)
    }

    /// The bytes, of which there are `total` by now.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        debug_assert_eq!(self.bytes.len(), self.total);
        self.bytes
    }

    /// All of it, as soon as it is here.
    pub(crate) fn read_until(
        mut self,
        incoming: &mut Incoming,
        deadline: &Deadline,
    ) -> Result<Vec<u8>, PeerError> {
        while !self.take_from(incoming) {
            deadline.remaining()?;
            self.wait(incoming)?;
        }
        Ok(self.into_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    const PATIENCE: Duration = Duration::from_secs(60);

    /// Both ends of a connection.
    fn ends() -> (TcpStream, Incoming) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = Arc::new(listener.accept().unwrap().0);
        (sender, Incoming::new(receiver, Duration::from_millis(20)).unwrap())
    }

    #[test]
    fn memory_grows_with_what_arrived() {
        const TOTAL: usize = 4_000_000;
        let (mut sender, mut incoming) = ends();
        let mut body = Body::new(TOTAL);
        assert!(!body.take_from(&mut incoming));
        assert!(!body.wait(&mut incoming).unwrap());
        assert!(body.bytes.capacity() <= BODY_BYTES_FIRST, "{} bytes", body.bytes.capacity());
        let mut sent = 0;
        for step in [1, 100_000, 200_000, 1_000_000, TOTAL - 1_300_001] {
            let bytes: Vec<u8> = (sent..sent + step).map(|at| (at % 251) as u8).collect();
            let sending = std::thread::spawn(move || {
                sender.write_all(&bytes).unwrap();
                sender
            });
            sent += step;
            let deadline = Deadline::new(PATIENCE, "the test");
            while body.arrived < sent {
                deadline.remaining().unwrap();
                body.wait(&mut incoming).unwrap();
                body.take_from(&mut incoming);
                let most = BODY_BYTES_FIRST.max(4 * body.arrived).min(TOTAL);
                assert!(body.bytes.capacity() <= most, "after {} bytes", body.arrived);
            }
            sender = sending.join().unwrap();
        }
        assert!(body.take_from(&mut incoming));
        let expected: Vec<u8> = (0..TOTAL).map(|at| (at % 251) as u8).collect();
        assert!(body.into_bytes() == expected);
        assert_eq!(incoming.received().load(Ordering::Relaxed), TOTAL as u64);
    }
}

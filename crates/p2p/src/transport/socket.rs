//! Bytes to and from a socket, for callers that never wait without a limit, and memory for blocks that is used again.
//!
//! A socket limits one call alone, so [`send`] and all that read ask a [`Deadline`] for the time left
//! before each call. [`Incoming`] takes what is there by one system call, up to 64 KiB. What is larger
//! goes straight into memory of its own ([`Body`]), which grows with what arrived and not with what
//! was announced. Each call waits for a *tick* at most and then says so, whatever the peer does.

use super::error::PeerError;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
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

/// Smaller messages are the allocator's, which is good at them.
const BYTES_LEAST: usize = 128 << 10;

/// Bytes that may lie unused at least: room for a block of any size.
const FREE_BYTES_LEAST: u64 = 4 << 20;

/// Memory that is not in use now; by default none is kept.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    /// Bytes that may lie here unused.
    free_bytes_max: usize,
}

impl Buffers {
    /// For so many `bytes` of blocks that are on their way or wait: an eighth more may lie unused.
    pub(crate) fn beside(bytes: u64) -> Self {
        let free_bytes_max = usize::try_from((bytes / 8).max(FREE_BYTES_LEAST));
        Self { free: Mutex::default(), free_bytes_max: free_bytes_max.unwrap_or(usize::MAX) }
    }

    fn lock(&self) -> MutexGuard<'_, Vec<Vec<u8>>> {
        self.free.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Memory for `total` bytes, with anything in it, and at most a quarter larger, since only the
    /// bytes of blocks are counted; none if none fits. It was taken from the system before, so a
    /// peer that promises a block and does not send it costs no more.
    pub(crate) fn take(&self, total: usize) -> Option<Vec<u8>> {
        if total < BYTES_LEAST {
            return None;
        }
        let mut free = self.lock();
        let fits = |buffer: &Vec<u8>| (total..=total + total / 4).contains(&buffer.capacity());
        let place = free.iter().rposition(fits)?;
        Some(free.remove(place))
    }

    fn give(&self, bytes: Vec<u8>) {
        if !(BYTES_LEAST..=self.free_bytes_max).contains(&bytes.capacity()) {
            return;
        }
        let mut free = self.lock();
        // Blocks may have grown: what lies here longest is what fits least.
        let mut held: usize = free.iter().map(Vec::capacity).sum();
        while held + bytes.capacity() > self.free_bytes_max && !free.is_empty() {
            held -= free.remove(0).capacity();
        }
        free.push(bytes);
    }
}

/// The bytes of a block. Their memory is used again when this is dropped.
pub struct BlockBuffer {
    bytes: Vec<u8>,
    home: Arc<Buffers>,
}

impl BlockBuffer {
    pub(crate) fn new(bytes: Vec<u8>, home: &Arc<Buffers>) -> Self {
        Self { bytes, home: Arc::clone(home) }
    }
}

impl Clone for BlockBuffer {
    fn clone(&self) -> Self {
        Self::new(self.bytes.clone(), &self.home)
    }
}

impl Deref for BlockBuffer {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BlockBuffer {
    fn drop(&mut self) {
        self.home.give(std::mem::take(&mut self.bytes));
    }
}

impl fmt::Debug for BlockBuffer {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} bytes", self.bytes.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::net::{Ipv4Addr, TcpListener};

    #[test]
    fn a_deadline_passes_and_none_is_too_far() {
        let deadline = Deadline::new(Duration::ZERO, "nothing");
        let error = deadline.remaining().unwrap_err();
        assert_eq!(error.to_string(), "nothing took longer than 0ns");
        assert!(Deadline::new(Duration::MAX, "everything").remaining().is_ok());
    }

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

    const SIZE: usize = 1 << 20;

    fn block(size: usize, home: &Arc<Buffers>) -> BlockBuffer {
        BlockBuffer::new(vec![1; size], home)
    }

    #[test]
    fn memory_is_used_again_where_it_fits() {
        let buffers = Arc::new(Buffers::beside(0));
        assert!(buffers.take(SIZE).is_none());
        let first = block(SIZE, &buffers);
        let place = first.as_ptr();
        assert_eq!(first[..4], [1; 4]);
        drop(first);
        let least = SIZE / 5 * 4 + 1;
        for other in [SIZE + 1, least - 1, SIZE / 2, 0] {
            assert!(buffers.take(other).is_none(), "{other}");
        }
        let again = buffers.take(least).unwrap();
        assert_eq!(again.as_ptr(), place);
        assert!(buffers.take(SIZE).is_none());
    }

    #[test]
    fn what_lies_unused_is_bounded() {
        for (bytes, most) in [(0, 4 * SIZE), (16 << 20, 4 * SIZE), (128 << 20, 16 * SIZE)] {
            let buffers = Arc::new(Buffers::beside(bytes));
            let held = || buffers.lock().iter().map(Vec::capacity).sum::<usize>();
            let blocks: Vec<BlockBuffer> = (0..40).map(|_| block(SIZE, &buffers)).collect();
            drop(blocks);
            assert_eq!(held(), most);
            // Those that came last stay.
            drop(block(2 * SIZE, &buffers));
            assert_eq!(held(), most);
            assert!(buffers.take(2 * SIZE).is_some());
            // What is larger than all the room, small ones and what was taken out are not kept.
            drop(block(most + 1, &buffers));
            assert_eq!(held(), most - 2 * SIZE);
            drop(block(100, &buffers));
            drop(BlockBuffer::new(Vec::new(), &buffers));
            assert!(buffers.take(100).is_none());
        }
        let none = Arc::new(Buffers::default());
        drop(block(SIZE, &none));
        assert!(none.take(SIZE).is_none());
    }
}

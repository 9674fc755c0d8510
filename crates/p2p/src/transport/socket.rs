//! Socket I/O with time limits, and reusable memory for blocks.
//!
//! A socket's own timeout applies to a single call. So [`send`] and every reader ask a [`Deadline`] for the
//! time left before each call. [`ReceiveBuffer`] reads what is available with one system call, up to 64 KiB.
//! Larger messages go straight into their own memory ([`Body`]), which grows with the bytes received, not
//! with the length announced. Each call waits for one *tick* at most and then returns, whatever the peer
//! does.

use super::error::PeerError;
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, IoSlice, Read, Write};
use std::net::TcpStream;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Shortest timeout that a socket can express; zero would mean no limit.
pub(crate) const WAIT_LEAST: Duration = Duration::from_millis(1);
/// Longest wait, so that points in time are never out of range.
pub(crate) const WAIT_MAX: Duration = Duration::from_secs(86_400);

/// A point in time by which an operation must be done.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Deadline {
    at: Instant,
    after: Duration,
    during: &'static str,
}

impl Deadline {
    /// Creates a deadline `after` from now. `during` names the operation in the error.
    pub(crate) fn new(after: Duration, during: &'static str) -> Self {
        let after = after.min(WAIT_MAX);
        Self { at: Instant::now() + after, after, during }
    }

    /// The same point in time with another operation name.
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

/// Returns true if a socket error only means that its timeout elapsed.
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
            // The deadline's error names the operation.
            Err(error) if is_timeout(&error) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

/// Bytes read by one call while no large message is being received.
const BUFFER_BYTES: usize = 64 << 10;
/// Initial memory of a large message, in bytes.
const BODY_BYTES_FIRST: usize = 256 << 10;
/// Bytes received from a peer and not yet consumed.
#[derive(Debug)]
pub(crate) struct ReceiveBuffer {
    stream: Arc<TcpStream>,
    buffer: Box<[u8]>,
    start: usize,
    end: usize,
    received: Arc<AtomicU64>,
    /// The source of memory for large messages.
    buffers: Arc<Buffers>,
}

impl ReceiveBuffer {
    pub(crate) fn new(stream: Arc<TcpStream>, tick: Duration) -> Result<Self, PeerError> {
        let buffer = vec![0; BUFFER_BYTES].into_boxed_slice();
        let (received, buffers) = Default::default();
        let incoming = Self { stream, buffer, start: 0, end: 0, received, buffers };
        incoming.set_tick(tick)?;
        Ok(incoming)
    }

    /// Sets how long a call waits for the first byte.
    pub(crate) fn set_tick(&self, tick: Duration) -> Result<(), PeerError> {
        Ok(self.stream.set_read_timeout(Some(tick.clamp(WAIT_LEAST, WAIT_MAX)))?)
    }

    /// Sets the source of memory for large messages.
    pub(crate) fn use_buffers(&mut self, buffers: &Arc<Buffers>) {
        self.buffers = Arc::clone(buffers);
    }

    /// The number of bytes ever received.
    pub(crate) fn received(&self) -> &Arc<AtomicU64> {
        &self.received
    }

    /// Returns true if nothing was ever received.
    pub(crate) fn is_untouched(&self) -> bool {
        self.received.load(Ordering::Relaxed) == 0
    }

    /// The bytes received and not yet consumed.
    pub(crate) fn available(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    /// Consumes `count` of the available bytes.
    pub(crate) fn consume(&mut self, count: usize) {
        self.start += count;
        debug_assert!(self.start <= self.end, "consumed more than was available");
        if self.start == self.end {
            (self.start, self.end) = (0, 0);
        }
    }

    /// Takes the first `N` bytes if that many are available.
    pub(crate) fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let bytes = *self.available().first_chunk()?;
        self.consume(N);
        Some(bytes)
    }

    /// Waits for more bytes. Returns false if none arrived within the tick.
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

    /// Takes `N` bytes as soon as they are available.
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

/// Makes one system call. Returns 0 if nothing arrived within the tick.
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

/// Makes room for three times the bytes received so far, so that a mere promise costs bounded memory; or for
/// everything at once, if memory can be reused.
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

/// A byte string of known length that is being received.
#[derive(Debug)]
pub(crate) struct Body {
    /// The bytes received, then unspecified bytes.
    bytes: Vec<u8>,
    arrived: usize,
    total: usize,
}

impl Body {
    pub(crate) const fn new(total: usize) -> Self {
        Self { bytes: Vec::new(), arrived: 0, total }
    }

    /// Takes the available bytes. Returns true when complete.
    pub(crate) fn take_from(&mut self, incoming: &mut ReceiveBuffer) -> bool {
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

    /// Waits for more. Returns false if nothing arrived within the tick.
    pub(crate) fn wait(&mut self, incoming: &mut ReceiveBuffer) -> Result<bool, PeerError> {
        // Bytes in the buffer precede those in the socket.
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

    /// The complete message of `total` bytes.
    pub(crate) fn into_bytes(self) -> Vec<u8> {
        debug_assert_eq!(self.bytes.len(), self.total);
        self.bytes
    }

    /// Reads until complete or until the deadline.
    pub(crate) fn read_until(
        mut self,
        incoming: &mut ReceiveBuffer,
        deadline: &Deadline,
    ) -> Result<Vec<u8>, PeerError> {
        while !self.take_from(incoming) {
            deadline.remaining()?;
            self.wait(incoming)?;
        }
        Ok(self.into_bytes())
    }
}

/// Smaller messages are left to the allocator, which handles them well.
const BYTES_LEAST: usize = 128 << 10;

/// Lower bound for the unused memory kept: room for a block of any size.
const FREE_BYTES_LEAST: u64 = 4 << 20;

/// Memory kept for reuse. The default keeps none.
#[derive(Debug, Default)]
pub struct Buffers {
    free: Mutex<Vec<Vec<u8>>>,
    /// Maximum unused memory to keep, in bytes.
    free_bytes_max: usize,
}

impl Buffers {
    /// Creates buffers for `bytes` of blocks in flight or waiting; an eighth of that may be kept unused.
    pub(crate) fn for_blocks(bytes: u64) -> Self {
        let free_bytes_max = usize::try_from((bytes / 8).max(FREE_BYTES_LEAST));
        Self { free: Mutex::default(), free_bytes_max: free_bytes_max.unwrap_or(usize::MAX) }
    }

    /// Takes memory for `total` bytes with unspecified contents. It is at most a quarter larger than that,
    /// because only the blocks' own bytes are counted. Returns `None` if none fits. The memory was allocated
    /// before, so a peer that promises a block and does not send it costs nothing extra.
    pub(crate) fn take(&self, total: usize) -> Option<Vec<u8>> {
        if total < BYTES_LEAST {
            return None;
        }
        let mut free = self.free.lock();
        let fits = |buffer: &Vec<u8>| (total..=total + total / 4).contains(&buffer.capacity());
        let place = free.iter().rposition(fits)?;
        Some(free.remove(place))
    }

    fn give(&self, bytes: Vec<u8>) {
        if !(BYTES_LEAST..=self.free_bytes_max).contains(&bytes.capacity()) {
            return;
        }
        let mut free = self.free.lock();
        // Evict the oldest buffer first: blocks may have grown, so it is the least likely to fit.
        let mut held: usize = free.iter().map(Vec::capacity).sum();
        while held + bytes.capacity() > self.free_bytes_max && !free.is_empty() {
            held -= free.remove(0).capacity();
        }
        free.push(bytes);
    }
}

/// The bytes of a block. Their memory is reused when this is dropped.
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
    fn ends() -> (TcpStream, ReceiveBuffer) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let sender = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let receiver = Arc::new(listener.accept().unwrap().0);
        (sender, ReceiveBuffer::new(receiver, Duration::from_millis(20)).unwrap())
    }

    #[test]
    fn memory_grows_with_received_bytes() {
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
    fn memory_is_reused_where_it_fits() {
        let buffers = Arc::new(Buffers::for_blocks(0));
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
    fn unused_memory_is_bounded() {
        for (bytes, most) in [(0, 4 * SIZE), (16 << 20, 4 * SIZE), (128 << 20, 16 * SIZE)] {
            let buffers = Arc::new(Buffers::for_blocks(bytes));
            let held = || buffers.free.lock().iter().map(Vec::capacity).sum::<usize>();
            let blocks: Vec<BlockBuffer> = (0..40).map(|_| block(SIZE, &buffers)).collect();
            drop(blocks);
            assert_eq!(held(), most);
            // The most recent ones are kept.
            drop(block(2 * SIZE, &buffers));
            assert_eq!(held(), most);
            assert!(buffers.take(2 * SIZE).is_some());
            // Buffers that exceed the whole limit, small buffers, and buffers taken out are not kept.
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

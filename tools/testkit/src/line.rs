//! [`LineRelay`]: a line between a peer and its clients, with the quality that the test wants.
//!
//! A TCP relay in this process: it accepts connections, opens one to the peer for each, and forwards bytes at a
//! given rate and latency, with pauses where a segment would have been lost. It can stall, like a line whose
//! far end is gone, and be cut. All bytes arrive eventually, in order. The relay needs no privileges and no
//! support of the system, and it connects real sockets.
//!
//! It does not model TCP: a loss costs a round trip and does not slow the sender down.

use crate::rng::Rng;
use parking_lot::Mutex;
use std::fmt;
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::str::FromStr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU8, AtomicU64, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread::{self, JoinHandle, sleep};
use std::time::{Duration, Instant};

/// Bytes forwarded at once: some milliseconds of a slow line.
const PIECE_BYTES: usize = 16 << 10;

/// Maximum number of pieces in transit, in each direction of a connection: 16 MB.
const PIECES_MAX: usize = 1_024;

/// The payload of a TCP segment: each of this many bytes may be lost.
const SEGMENT_BYTES: u64 = 1_448;

/// How often threads check whether the line's state has changed.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Maximum idle time whose unused bytes a line may catch up on.
const CATCH_UP: Duration = Duration::from_millis(50);

/// The properties of a line, such as `20mbit,50ms,1%`.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct PeerLine {
    /// Bits a second in each direction, for all connections together; `None` for no limit.
    pub bits_per_second: Option<u64>,
    /// How long a byte is in transit, in each direction.
    pub latency: Duration,
    /// Segments lost in a million.
    pub lost_per_million: u64,
}

impl PeerLine {
    /// Returns how long it takes to put this many bytes on the line.
    fn span(&self, bytes: usize) -> Duration {
        let seconds = |rate: u64| bytes as f64 * 8.0 / rate as f64;
        self.bits_per_second.map_or(Duration::ZERO, |rate| Duration::from_secs_f64(seconds(rate)))
    }
}

impl FromStr for PeerLine {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let mut line = Self::default();
        for part in text.split(',') {
            let wrong = || {
                format!("{part}: neither a rate (20mbit), nor a latency (50ms), nor a loss (1%)")
            };
            let digits = part.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(part.len());
            let number: f64 = part[..digits].parse().map_err(|_| wrong())?;
            match &part[digits..] {
                "kbit" if number >= 1.0 => line.bits_per_second = Some((number * 1e3) as u64),
                "mbit" if number >= 0.001 => line.bits_per_second = Some((number * 1e6) as u64),
                "ms" if number <= 10_000.0 => line.latency = Duration::from_secs_f64(number / 1e3),
                "%" if number <= 50.0 => line.lost_per_million = (number * 1e4) as u64,
                _ => return Err(wrong()),
            }
        }
        Ok(line)
    }
}

impl fmt::Display for PeerLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut parts = Vec::new();
        parts.extend(self.bits_per_second.map(|rate| format!("{}mbit", rate as f64 / 1e6)));
        parts.push(format!("{}ms", self.latency.as_secs_f64() * 1e3));
        parts.push(format!("{}%", self.lost_per_million as f64 / 1e4));
        f.write_str(&parts.join(","))
    }
}

/// The state of a line.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum LineState {
    /// Bytes are forwarded.
    Open,
    /// Bytes wait, and neither side is notified.
    Stalled,
    /// All connections are closed, and new ones are closed at once.
    Cut,
}

/// A line to a peer. Dropping it closes all connections.
#[derive(Debug)]
pub struct LineRelay {
    address: SocketAddr,
    shared: Arc<LineShared>,
    acceptor: Option<JoinHandle<()>>,
}

#[derive(Debug)]
struct LineShared {
    line: PeerLine,
    peer: SocketAddr,
    state: AtomicU8,
    /// Bytes that reached the clients.
    passed_bytes: AtomicU64,
    over: AtomicU8,
    streams: Mutex<Vec<TcpStream>>,
    /// From the peer, and to it.
    wires: [Mutex<LineWire>; 2],
}

/// One direction of the line, shared by all connections.
#[derive(Debug)]
struct LineWire {
    free_at: Instant,
    rng: Rng,
}

impl LineRelay {
    /// Starts a line to `peer`, on its own port on 127.0.0.1. The seed decides which segments are lost.
    ///
    /// # Errors
    /// If the system has no free port.
    pub fn start(peer: SocketAddr, line: PeerLine, seed: u64) -> io::Result<Self> {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))?;
        let address = listener.local_addr()?;
        let wire =
            |place| Mutex::new(LineWire { free_at: Instant::now(), rng: Rng::at(seed, place) });
        let shared = Arc::new(LineShared {
            line,
            peer,
            state: AtomicU8::new(LineState::Open as u8),
            passed_bytes: AtomicU64::new(0),
            over: AtomicU8::new(0),
            streams: Mutex::default(),
            wires: [wire(0), wire(1)],
        });
        let acceptor = {
            let shared = Arc::clone(&shared);
            thread::spawn(move || accept(&listener, &shared))
        };
        Ok(Self { address, shared, acceptor: Some(acceptor) })
    }

    /// Starts a line to a server on a port of 127.0.0.1 that seems far away, with this round-trip time.
    ///
    /// # Panics
    /// If the system has no free port.
    pub fn far(port: u16, there_and_back: Duration) -> Self {
        let line = PeerLine { latency: there_and_back / 2, ..PeerLine::default() };
        Self::start(SocketAddr::from((Ipv4Addr::LOCALHOST, port)), line, 0).unwrap()
    }

    /// Returns the address to connect to.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Returns the bytes that came from the peer through the line so far.
    pub fn passed_bytes(&self) -> u64 {
        self.shared.passed_bytes.load(Ordering::Relaxed)
    }

    /// Changes the state of the line.
    pub fn set(&self, state: LineState) {
        self.shared.state.store(state as u8, Ordering::SeqCst);
        if state == LineState::Cut {
            self.shared.close();
        }
    }
}

impl Drop for LineRelay {
    fn drop(&mut self) {
        self.shared.over.store(1, Ordering::SeqCst);
        self.set(LineState::Cut);
        // Wakes the acceptor; if that fails, the relay does not wait for it.
        if TcpStream::connect(self.address).is_ok()
            && let Some(acceptor) = self.acceptor.take()
        {
            let _ = acceptor.join();
        }
    }
}

impl LineShared {
    fn is(&self, state: LineState) -> bool {
        self.state.load(Ordering::SeqCst) == state as u8
    }

    fn close(&self) {
        for stream in self.streams.lock().drain(..) {
            // An error means that it is already closed.
            let _ = stream.shutdown(Shutdown::Both);
        }
    }

    /// Puts bytes on the line: returns when the next may follow, and when they arrive.
    fn carry(&self, wire: &Mutex<LineWire>, bytes: usize) -> (Instant, Instant) {
        let mut wire = wire.lock();
        let now = Instant::now();
        let free_at = wire.free_at.max(now.checked_sub(CATCH_UP).unwrap_or(now));
        wire.free_at = free_at + self.line.span(bytes);
        let segments = (bytes as u64).div_ceil(SEGMENT_BYTES);
        let lost = (0..segments).any(|_| wire.rng.below(1_000_000) < self.line.lost_per_million);
        let again = if lost { 2 * self.line.latency } else { Duration::ZERO };
        (wire.free_at, wire.free_at.max(now) + self.line.latency + again)
    }
}

fn accept(listener: &TcpListener, shared: &Arc<LineShared>) {
    for near in listener.incoming() {
        if shared.over.load(Ordering::SeqCst) != 0 {
            return;
        }
        let Ok(near) = near else { continue };
        if !shared.is(LineState::Cut) {
            // If the peer is gone, the client sees a closed connection.
            let _ = join(near, shared);
        }
    }
}

/// Connects both sides.
fn join(near: TcpStream, shared: &Arc<LineShared>) -> io::Result<()> {
    let far = TcpStream::connect(shared.peer)?;
    for stream in [&near, &far] {
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(LOOK_EVERY))?;
        stream.set_write_timeout(Some(LOOK_EVERY))?;
    }
    shared.streams.lock().extend([near.try_clone()?, far.try_clone()?]);
    if shared.is(LineState::Cut) {
        shared.close();
    }
    let (near_out, far_out) = (near.try_clone()?, far.try_clone()?);
    pass_on(far, near_out, shared, 0);
    pass_on(near, far_out, shared, 1);
    Ok(())
}

/// Starts the threads that forward bytes in one direction.
fn pass_on(mut from: TcpStream, to: TcpStream, shared: &Arc<LineShared>, direction: usize) {
    let (sender, receiver) = sync_channel(PIECES_MAX);
    let (taking, giving) = (Arc::clone(shared), Arc::clone(shared));
    thread::spawn(move || take(&mut from, &taking, direction, &sender));
    thread::spawn(move || give(to, &giving, direction, &receiver));
}

/// Reads bytes as fast as the line can carry them.
fn take(
    from: &mut TcpStream,
    shared: &LineShared,
    direction: usize,
    sender: &SyncSender<(Instant, Vec<u8>)>,
) {
    let mut piece = vec![0; PIECE_BYTES];
    while !shared.is(LineState::Cut) {
        let count = match from.read(&mut piece) {
            Ok(0) => return,
            Ok(count) => count,
            Err(error) if waits(&error) => continue,
            Err(_) => return,
        };
        let (free_at, due) = shared.carry(&shared.wires[direction], count);
        if sender.send((due, piece[..count].to_vec())).is_err() {
            return;
        }
        sleep(free_at.saturating_duration_since(Instant::now()));
    }
}

/// Writes bytes when they are due.
fn give(
    mut to: TcpStream,
    shared: &LineShared,
    direction: usize,
    receiver: &Receiver<(Instant, Vec<u8>)>,
) {
    for (due, piece) in receiver {
        sleep(due.saturating_duration_since(Instant::now()));
        let mut left = &piece[..];
        while !left.is_empty() {
            if shared.is(LineState::Cut) {
                return;
            }
            if shared.is(LineState::Stalled) {
                sleep(LOOK_EVERY);
                continue;
            }
            match to.write(left) {
                Ok(count) => {
                    left = &left[count..];
                    if direction == 0 {
                        shared.passed_bytes.fetch_add(count as u64, Ordering::Relaxed);
                    }
                }
                Err(error) if waits(&error) => {}
                Err(_) => return,
            }
        }
    }
    // The sender has finished or is gone; the receiver sees the end in both cases.
    let _ = to.shutdown(Shutdown::Both);
}

fn waits(error: &io::Error) -> bool {
    use io::ErrorKind::{Interrupted, TimedOut, WouldBlock};
    matches!(error.kind(), Interrupted | TimedOut | WouldBlock)
}

#[cfg(test)]
mod tests;

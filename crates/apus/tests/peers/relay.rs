//! [`NodeLine`]: a relay to a real node, on which a test can change, drop or cut off the node's messages.
//!
//! It sends nothing itself. It parses the node's data as messages of the plaintext transport, and passes data to the
//! node unchanged.

use bitcoin::hashes::{Hash, sha256d};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

/// Bytes before a payload: magic, name, length, checksum.
const HEADER_BYTES: usize = 24;

/// The fate of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Fate {
    /// The message passes, with its current payload.
    Passes,
    /// The message never arrives.
    IsLost,
    /// The connection ends before the message.
    EndsAll,
    /// The connection ends before the message, and the relay accepts no more connections.
    StopsRelay,
}

/// Decides on a message of the node by its name, and may change its payload.
type Decide = dyn Fn(&str, &mut Vec<u8>) -> Fate + Send + Sync;

/// A running relay. Dropping it ends it, and its connections end with their next message.
pub(crate) struct NodeLine {
    line: Arc<RelayLine>,
    listening: Option<JoinHandle<()>>,
}

/// The state that a relay's threads share.
struct RelayLine {
    /// The ports of the node and of the relay.
    node: u16,
    own: u16,
    /// The latency towards the node.
    delay: Duration,
    /// The number of batches sent to the node.
    batches: AtomicUsize,
    over: AtomicBool,
}

impl NodeLine {
    /// Listens on 127.0.0.1, and forwards each connection to a port there.
    ///
    /// # Panics
    /// If it cannot listen.
    pub(crate) fn to(
        port: u16,
        decide: impl Fn(&str, &mut Vec<u8>) -> Fate + Send + Sync + 'static,
    ) -> Self {
        Self::far(port, Duration::ZERO, decide)
    }

    /// Listens like [`Self::to`], for a distant node: data to it takes `delay`, and data sent meanwhile goes out
    /// together.
    ///
    /// # Panics
    /// If it cannot listen.
    pub(crate) fn far(
        node: u16,
        delay: Duration,
        decide: impl Fn(&str, &mut Vec<u8>) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let (batches, over) = (AtomicUsize::new(0), AtomicBool::new(false));
        let line = Arc::new(RelayLine { node, own, delay, batches, over });
        let (of_listener, decide) = (Arc::clone(&line), Arc::new(decide));
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if of_listener.over.load(Ordering::Relaxed) {
                    return;
                }
                let Ok(stream) = stream else { continue };
                let (line, decide) = (Arc::clone(&of_listener), Arc::clone(&decide));
                std::thread::spawn(move || {
                    // It does not matter how a connection ends.
                    let _ = carry(stream, &line, &*decide);
                });
            }
        });
        Self { line, listening: Some(listening) }
    }

    /// The number of batches sent to the node. With a long latency, this is how often the sender waited for answers
    /// before it sent more.
    pub(crate) fn batches(&self) -> usize {
        self.line.batches.load(Ordering::Relaxed)
    }

    /// The port where it listens, on 127.0.0.1.
    pub(crate) fn port(&self) -> u16 {
        self.line.own
    }
}

impl Drop for NodeLine {
    fn drop(&mut self) {
        self.line.end();
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

impl RelayLine {
    /// Stops accepting connections; a last connection wakes the thread that waits for them.
    fn end(&self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, self.own)));
    }

    /// Forwards data to the node.
    fn forward(&self, mut client: TcpStream, mut node: &TcpStream) -> io::Result<()> {
        let mut buffer = vec![0; 1 << 16];
        loop {
            sleep(self.delay);
            match client.read(&mut buffer)? {
                0 => return Ok(()),
                count => node.write_all(&buffer[..count])?,
            }
            self.batches.fetch_add(1, Ordering::Relaxed);
        }
    }
}

/// Forwards one connection's messages until either side closes it.
fn carry(client: TcpStream, line: &Arc<RelayLine>, decide: &Decide) -> io::Result<()> {
    let node = TcpStream::connect((Ipv4Addr::LOCALHOST, line.node))?;
    let (from_client, to_node, of_thread) =
        (client.try_clone()?, node.try_clone()?, Arc::clone(line));
    let to = std::thread::spawn(move || {
        let _ = of_thread.forward(from_client, &to_node);
        let _ = to_node.shutdown(Shutdown::Both);
    });
    let fate = messages(&node, &client, decide);
    if matches!(fate, Ok(Fate::StopsRelay)) {
        line.end();
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = node.shutdown(Shutdown::Both);
    let _ = to.join();
    fate.map(drop)
}

/// Forwards messages of the node; returns the fate of the message that ended the connection.
fn messages(mut node: &TcpStream, mut client: &TcpStream, decide: &Decide) -> io::Result<Fate> {
    loop {
        let mut header = [0; HEADER_BYTES];
        node.read_exact(&mut header)?;
        let length = u32::from_le_bytes([header[16], header[17], header[18], header[19]]);
        let mut payload = vec![0; length as usize];
        node.read_exact(&mut payload)?;
        let name = String::from_utf8_lossy(&header[4..16]).trim_end_matches('\0').to_owned();
        match decide(&name, &mut payload) {
            Fate::Passes => {
                header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
                let sum = sha256d::Hash::hash(&payload).to_byte_array();
                header[20..].copy_from_slice(&sum[..4]);
                client.write_all(&header)?;
                client.write_all(&payload)?;
            }
            Fate::IsLost => {}
            ends => return Ok(ends),
        }
    }
}

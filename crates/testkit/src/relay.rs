//! [`Relay`]: a line to a real node, on which a test can change, keep back or cut off what the node says.
//!
//! It speaks nothing itself. What the node says is taken apart into messages of the plaintext transport; what is said
//! to the node passes as it is.

use bitcoin::hashes::{Hash, sha256d};
use std::io::{self, Read, Write};
use std::net::{Ipv4Addr, Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

/// Bytes before a payload: magic, name, length, checksum.
const HEADER_BYTES: usize = 24;

/// What becomes of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fate {
    /// It goes on, as it is now.
    Passes,
    /// It never arrives.
    IsLost,
    /// The connection ends before it.
    EndsAll,
    /// So it does, and no further one comes about.
    EndsAllForGood,
}

/// Decides on a message of the node's by its name, and may change its payload.
type Decide = dyn Fn(&str, &mut Vec<u8>) -> Fate + Send + Sync;

/// A relay at work. Dropping it ends it, and its connections with their next message.
pub struct Relay {
    port: u16,
    over: Arc<AtomicBool>,
    listening: Option<JoinHandle<()>>,
}

impl Relay {
    /// Listens on 127.0.0.1, and leads each connection to a port there.
    ///
    /// # Panics
    /// When it cannot listen.
    pub fn to(
        port: u16,
        decide: impl Fn(&str, &mut Vec<u8>) -> Fate + Send + Sync + 'static,
    ) -> Self {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let own = listener.local_addr().unwrap().port();
        let (over, decide) = (Arc::<AtomicBool>::default(), Arc::new(decide));
        let ends = Arc::clone(&over);
        let listening = std::thread::spawn(move || {
            for stream in listener.incoming() {
                if ends.load(Ordering::Relaxed) {
                    return;
                }
                let (Ok(stream), ends, decide) = (stream, Arc::clone(&ends), Arc::clone(&decide))
                else {
                    continue;
                };
                std::thread::spawn(move || {
                    // How a connection ends is of no matter here.
                    let _ = carry(stream, port, &*decide, &ends, own);
                });
            }
        });
        Self { port: own, over, listening: Some(listening) }
    }

    /// Where it listens, on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.port
    }
}

impl Drop for Relay {
    fn drop(&mut self) {
        end(&self.over, self.port);
        if let Some(listening) = self.listening.take() {
            let _ = listening.join();
        }
    }
}

/// Has no further connection taken: the one that waits for them is woken by a last one.
fn end(over: &AtomicBool, port: u16) {
    over.store(true, Ordering::Relaxed);
    let _ = TcpStream::connect(SocketAddr::from((Ipv4Addr::LOCALHOST, port)));
}

/// Carries one connection's messages until either side has enough.
fn carry(
    client: TcpStream,
    port: u16,
    decide: &Decide,
    over: &AtomicBool,
    own: u16,
) -> io::Result<()> {
    let node = TcpStream::connect((Ipv4Addr::LOCALHOST, port))?;
    let (mut from_client, mut to_node) = (client.try_clone()?, node.try_clone()?);
    let to = std::thread::spawn(move || {
        let _ = io::copy(&mut from_client, &mut to_node);
        let _ = to_node.shutdown(Shutdown::Both);
    });
    let fate = messages(&node, &client, decide);
    if matches!(fate, Ok(Fate::EndsAllForGood)) {
        end(over, own);
    }
    let _ = client.shutdown(Shutdown::Both);
    let _ = node.shutdown(Shutdown::Both);
    let _ = to.join();
    fate.map(drop)
}

/// The fate of the message that ended it.
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

//! [`PeerServer`]: a peer that makes its blocks as they are asked for, and needs no room for the chain.
//!
//! A header holds the hash of all transactions of its block, so no header can be made without its block, and
//! a peer has to send all headers before the first block. So a chain is made twice. The first pass
//! ([`make`](super::make) with [`ChainOutput::Headers`]) keeps 80 bytes of each block, the hints, and the sets to
//! expect, in a folder; it is the same for all later runs. The second pass is here: it makes each block
//! again once it is asked for, in ascending order, a little ahead of the highest block asked for.
//!
//! The last blocks stay in a window (`window.rs`) for clients that ask out of order or again. A block below it
//! is made again from the first block on, as after a restart of the client: then the client waits for as
//! long as it takes to get there. So one server is for one client at a time.
//!
//! It speaks both transports of Bitcoin's protocol: handshake, ping, headers, and blocks with or without
//! witnesses. It announces nothing, and takes nothing.

mod talk;
mod window;

use super::blocks::{self, ChainBlocks};
use super::files::HEADERS_NAME;
use super::{ChainOutput, MakeOptions};
use crate::error::{AtPath, BenchError};
use crate::manifest::{self, ChainManifest};
use apus_chain::{BlockHash, HEADER_SIZE, Height};
use apus_hash::sha256d;
use apus_p2p::transport::Closer;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::fs;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use window::{BlockWindow, Demand};

/// Default memory for blocks that may be asked for again: more than a thousand full ones.
pub const WINDOW_BYTES: u64 = 2 << 30;

/// The headers of a chain, and their hashes.
struct ServedHeaders {
    /// From the genesis block's on.
    raw: Vec<[u8; HEADER_SIZE]>,
    heights: HashMap<BlockHash, Height>,
}

impl ServedHeaders {
    /// Reads the headers in the folder of a chain.
    fn read(folder: &Path, manifest: &ChainManifest) -> Result<Self, BenchError> {
        let path = folder.join(HEADERS_NAME);
        let bytes = fs::read(&path).at(&path)?;
        let (raw, rest) = bytes.as_chunks::<HEADER_SIZE>();
        let hashes = raw.iter().map(|header| BlockHash(sha256d(header)));
        let heights: HashMap<BlockHash, Height> = hashes.zip(0..).collect();
        let tip = raw.last().map(|header| BlockHash(sha256d(header)).to_string());
        let count = manifest.height as usize + 1;
        if !rest.is_empty() || raw.len() != count || tip.as_ref() != Some(&manifest.tip_hash) {
            return Err(BenchError::file(
                &path,
                format_args!(
                    "these are not the {count} headers that {} describes: remove the folder, so that \
                     they are made again",
                    manifest::FILE_NAME
                ),
            ));
        }
        Ok(Self { raw: raw.to_vec(), heights })
    }

    fn tip(&self) -> Height {
        self.raw.len() as Height - 1
    }
}

/// What all connections share.
struct Shared {
    headers: ServedHeaders,
    window: BlockWindow,
    ended: AtomicBool,
    connections: Mutex<Vec<Closer>>,
}

/// A running peer, which ends when dropped.
pub struct PeerServer {
    address: SocketAddr,
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

impl PeerServer {
    /// Starts to serve the chain in `folder`, which was made with these options and [`ChainOutput::Headers`].
    ///
    /// # Errors
    /// If the folder has another chain, or the address cannot be used.
    pub fn start(
        folder: &Path,
        options: &MakeOptions,
        listen: SocketAddr,
        window_bytes: u64,
    ) -> Result<Self, BenchError> {
        let manifest = ChainManifest::read(folder).at(&folder.join(manifest::FILE_NAME))?;
        if !options.made(&manifest) || options.output != ChainOutput::Headers {
            return Err(BenchError::usage(format_args!(
                "{} has a chain that was made with other options: use another folder, or remove it",
                folder.display()
            )));
        }
        let headers = ServedHeaders::read(folder, &manifest)?;
        let refused = |error| {
            BenchError::usage(format_args!("--listen {listen}: {error}; use another address"))
        };
        let listener = TcpListener::bind(listen).map_err(refused)?;
        let address = listener.local_addr().map_err(refused)?;
        let window = BlockWindow::new(window_bytes);
        let (ended, connections) = (AtomicBool::new(false), Mutex::default());
        let shared = Arc::new(Shared { headers, window, ended, connections });
        let of_maker = Arc::clone(&shared);
        let of_listener = Arc::clone(&shared);
        let options = options.clone();
        let threads = vec![
            std::thread::spawn(move || make_on_demand(&options, &of_maker.window)),
            std::thread::spawn(move || accept_all(&listener, &of_listener)),
        ];
        Ok(Self { address, shared, threads })
    }

    /// The address it listens on.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// The highest block made so far, and the number of times that the chain was started.
    pub fn progress(&self) -> (Height, u32) {
        self.shared.window.progress()
    }
}

impl Drop for PeerServer {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.window.end();
        self.shared.connections.lock().drain(..).for_each(|connection| connection.close());
        // Wakes the listener.
        let _ = TcpStream::connect(self.address);
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}

/// Makes blocks until the server ends.
fn make_on_demand(options: &MakeOptions, window: &BlockWindow) {
    let keys = blocks::keys(options);
    loop {
        let mut made = ChainBlocks::new(options, &keys);
        let demand = loop {
            match window.wait_for_demand() {
                Demand::Next => match made.next() {
                    Some(block) => window.push(block),
                    None => break window.wait_at_the_end(),
                },
                other => break other,
            }
        };
        if demand == Demand::End {
            return;
        }
    }
}

/// Accepts connections until the server ends.
fn accept_all(listener: &TcpListener, shared: &Arc<Shared>) {
    for stream in listener.incoming() {
        if shared.ended.load(Ordering::Relaxed) {
            return;
        }
        let Ok(stream) = stream else { continue };
        let shared = Arc::clone(shared);
        // The thread ends with its connection.
        std::thread::spawn(move || talk::talk(&shared, stream));
    }
}

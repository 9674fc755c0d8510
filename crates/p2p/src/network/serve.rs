//! What others ask of us: headers and blocks.
//!
//! Only the chain that is followed is served. A peer that asks for something else is told that it
//! is not there, as by a node without it.

use super::guard::Guard;
use super::peer::{Origin, Outgoing, spawn};
use super::{NetworkError, Shared};
use crate::PeerId;
use crate::message::{Inventory, InventoryKind, Message};
use crate::transport::{MessageWriter, PeerError};
use apus_chain::{BlockHash, HEADER_SIZE, HeaderChain, Height};
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

/// Headers in one answer (Core `net_processing.h`, `MAX_HEADERS_RESULTS`).
const HEADERS_MAX: u32 = 2000;

/// Connections from others at the same time.
const INBOUND_MAX: usize = 32;

/// Blocks that can be handed to others.
pub trait BlockProvider: Send + Sync {
    /// The block with this hash as it goes over the wire, witnesses included; none where it is not
    /// there.
    fn block(&self, hash: &BlockHash) -> Option<Vec<u8>>;

    /// Whether the block is there.
    fn has(&self, hash: &BlockHash) -> bool;

    /// Whether a block that is there once is there from then on.
    fn keeps_all(&self) -> bool;
}

/// Accepts connections until [`stop_listening`].
pub(super) fn listen(
    shared: &Arc<Shared>,
    address: SocketAddr,
) -> Result<(SocketAddr, JoinHandle<()>), NetworkError> {
    let failed = |error: io::Error| NetworkError::Listen { address, error: error.to_string() };
    let listener = TcpListener::bind(address).map_err(failed)?;
    let local = listener.local_addr().map_err(failed)?;
    let of_thread = Arc::clone(shared);
    let thread = std::thread::Builder::new().name("listener".to_owned());
    let thread = thread.spawn(move || accept_all(&of_thread, &listener)).map_err(failed)?;
    Ok((local, thread))
}

fn accept_all(shared: &Arc<Shared>, listener: &TcpListener) {
    let _guard = Guard(shared);
    for stream in listener.incoming() {
        if shared.has_ended() {
            return;
        }
        match stream {
            // There is nothing to be had yet, and a peer that is told so in the handshake goes
            // on to believe it: better it comes again.
            Ok(_) if shared.lock().served.is_none() => {}
            Ok(stream) => {
                let now = shared.now();
                let id = shared.lock().new_inbound(INBOUND_MAX, now);
                if let Some(id) = id {
                    spawn(shared, id, Origin::Accepted(stream));
                }
            }
            // Out of files, most likely: some will be closed.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Makes the thread that listens look up: the network has ended. Tells whether it was reached.
pub(super) fn stop_listening(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// Answers `getheaders` (Core `net_processing.cpp`).
pub(super) fn headers(
    shared: &Shared,
    id: PeerId,
    locator: &[BlockHash],
    stop: &BlockHash,
) -> Result<(), PeerError> {
    let mut state = shared.lock();
    let answer = match state.served.clone() {
        Some(chain) => following(&chain, locator, stop, &|hash| state.raw_header(hash)),
        None => Vec::new(),
    };
    state.send(id, Outgoing::Headers(answer));
    Ok(())
}

fn following(
    chain: &HeaderChain,
    locator: &[BlockHash],
    stop: &BlockHash,
    raw: &dyn Fn(&BlockHash) -> Option<[u8; HEADER_SIZE]>,
) -> Vec<[u8; HEADER_SIZE]> {
    let common: Height = locator.iter().find_map(|hash| chain.height_of(hash)).unwrap_or(0);
    let last = match chain.height_of(stop) {
        Some(height) if locator.is_empty() => {
            return raw_at(chain, height, raw).into_iter().collect();
        }
        Some(height) => height,
        None => chain.tip_height(),
    };
    (common + 1..=last.min(common + HEADERS_MAX))
        .map_while(|height| raw_at(chain, height, raw))
        .collect()
}

fn raw_at(
    chain: &HeaderChain,
    height: Height,
    raw: &dyn Fn(&BlockHash) -> Option<[u8; HEADER_SIZE]>,
) -> Option<[u8; HEADER_SIZE]> {
    raw(chain.hash(height)?)
}

/// Answers `getdata`; on the thread that writes, so that no more than one block is in memory.
pub(super) fn blocks(
    shared: &Shared,
    writer: &mut MessageWriter,
    items: Vec<Inventory>,
) -> Result<(), PeerError> {
    let mut missing = Vec::new();
    for item in items {
        let wanted = match item.kind {
            // Without witnesses a block would have to be taken apart, and no peer that still asks
            // for one can validate it.
            InventoryKind::WitnessBlock => Some(BlockHash(item.hash)),
            InventoryKind::Block | InventoryKind::Other(_) => None,
        };
        let provider = shared.options.blocks.as_ref();
        match wanted.and_then(|hash| provider.and_then(|provider| provider.block(&hash))) {
            Some(raw) => writer.write_block(&raw)?,
            None => missing.push(item),
        }
        if shared.has_ended() {
            return Ok(());
        }
    }
    if missing.is_empty() { Ok(()) } else { writer.write(&Message::NotFound(missing)) }
}

//! The threads of one peer: one connects and reads, the other writes.
//!
//! A panic in a thread is a bug in this program. No caller may wait for work that the thread no longer does,
//! so the whole network stops and reports the reason to every caller from then on ([`Guard`]).

use super::peer::{PeerHandle, Turns, WriterCommand};
use super::state::NetworkState;
use super::{NetworkError, NetworkShared, serve};
use crate::PeerId;
use crate::addresses::NodeAddress;
use crate::message::{Message, Services};
use crate::transport::{
    BlockBuffer, Closer, Connection, Dial, MessageReader, MessageWriter, PeerError, accept, connect,
};
use apus_chain::BlockHash;
use std::io;
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread::{self, JoinHandle};
use std::time::Duration;

/// Time limit for connecting to a peer (Core `DEFAULT_CONNECT_TIMEOUT`: 5 s).
const CONNECT_TIMEOUT: Duration = Duration::from_secs(8);

/// Time limit for connecting through a proxy (Core `netbase.cpp`, `SOCKS5_RECV_TIMEOUT`): Tor first builds a circuit.
const PROXY_TIMEOUT: Duration = Duration::from_secs(20);

/// Time limit for a handshake. Core waits a minute (`DEFAULT_PEER_CONNECT_TIMEOUT`), which would block a slot
/// for too long.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(15);

/// Maximum number of queued messages. A peer that lets more accumulate does not read.
const QUEUE: usize = 4096;

/// Which side made the connection.
pub(super) enum Origin {
    /// We dial it.
    Dialled(NodeAddress),
    /// It connected to us.
    Accepted(TcpStream),
}

/// Starts a peer's threads. If the system refuses, the peer is gone at once.
pub(super) fn spawn(shared: &Arc<NetworkShared>, id: PeerId, origin: Origin) {
    let of_thread = Arc::clone(shared);
    let spawned = std::thread::Builder::new()
        .name(format!("peer-{}", id.0))
        .spawn(move || live(&of_thread, id, origin));
    if let Err(error) = spawned {
        let reason = PeerError::Io(error);
        shared.lock().gone(id, &reason, shared.now());
    }
}

/// Runs a peer's connection from start to end.
fn live(shared: &Arc<NetworkShared>, id: PeerId, origin: Origin) {
    let _guard = Guard(shared);
    let ended = match dial(shared, origin) {
        Ok(connection) => talk(shared, id, connection),
        Err(error) => Err(error),
    };
    let reason = ended.err().unwrap_or(PeerError::Closed);
    let now = shared.now();
    shared.lock().gone(id, &reason, now);
    shared.changed.notify_all();
    shared.wake.notify_all();
}

fn dial(shared: &NetworkShared, origin: Origin) -> Result<Connection, PeerError> {
    let options = &shared.options;
    let start_height = shared.lock().best().0;
    let services = Services::WITNESS.with(Services::P2P_V2).with(shared.offered());
    let dial = Dial {
        network: options.params.network,
        services,
        required_services: Services::WITNESS,
        start_height: i32::try_from(start_height).unwrap_or(i32::MAX),
        user_agent: options.user_agent.clone(),
        proxy: options.proxy,
        transport: options.transport,
        connect_timeout: options.proxy.map_or(CONNECT_TIMEOUT, |_| PROXY_TIMEOUT),
        handshake_timeout: HANDSHAKE_TIMEOUT,
        our_nonce: shared.nonce,
    };
    match origin {
        Origin::Dialled(address) => connect(&address, &dial),
        Origin::Accepted(stream) => accept(stream, &dial),
    }
}

/// Runs a connection after the handshake.
fn talk(shared: &Arc<NetworkShared>, id: PeerId, connection: Connection) -> Result<(), PeerError> {
    let closer = connection.closer();
    let Connection { mut reader, writer, peer, .. } = connection;
    let (outgoing, orders) = sync_channel(QUEUE);
    let of_writer = Arc::clone(shared);
    let turns: Arc<Turns> = Arc::default();
    let end = WriterEnd { closer: closer.clone(), turns: Arc::clone(&turns) };
    let spawned = std::thread::Builder::new().name(format!("peer-{}-out", id.0)).spawn(move || {
        let _guard = Guard(&of_writer);
        // The reading thread reports why the connection ended.
        let _ = write(&of_writer, writer, &orders, &end.turns);
        drop(end);
    });
    spawned.map_err(PeerError::Io)?;
    let (received, at_message) = (reader.bytes_received_counter(), reader.whole_counter());
    let of_state = Arc::clone(&turns);
    let handle = PeerHandle { outgoing, closer, received, at_message, turns: of_state, info: peer };
    shared.lock().connected(id, handle, shared.now())?;
    shared.changed.notify_all();
    shared.wake.notify_all();
    reader.use_buffers(&shared.buffers);
    read(shared, id, &mut reader, &turns)
}

/// Maximum number of items in a request for blocks, which bounds memory. Core asks for 16 at a time; no node asks for more
/// than an `inv` of blocks has (`net_processing.cpp`, 500).
const ITEMS_MAX: usize = 1_000;

fn read(
    shared: &Arc<NetworkShared>,
    id: PeerId,
    reader: &mut MessageReader,
    turns: &Turns,
) -> Result<(), PeerError> {
    while !shared.has_ended() {
        let Some(message) = reader.read()? else { continue };
        match message {
            Message::Block(raw) => block(shared, id, raw)?,
            // No blocks are served here.
            Message::GetHeaders { .. } | Message::GetData(_) if shared.options.blocks.is_none() => {
            }
            Message::GetHeaders { locator, stop } => {
                turns.take(shared)?;
                serve::headers(shared, id, &locator, &stop)?;
            }
            Message::GetData(items) if items.len() > ITEMS_MAX => {
                return Err(PeerError::Protocol {
                    what: "a request for too many blocks".to_owned(),
                });
            }
            Message::GetData(items) => {
                turns.take(shared)?;
                let now = shared.now();
                let mut state = shared.lock();
                state.was_asked(id, now);
                state.send(id, WriterCommand::Blocks(items));
            }
            other => {
                let now = shared.now();
                let mut state = shared.lock();
                let matters = state.message(id, other, now)?;
                state.act(now);
                drop(state);
                if matters {
                    shared.changed.notify_all();
                    shared.wake.notify_all();
                }
            }
        }
    }
    Ok(())
}

/// Hashes the block's header outside the lock.
fn block(shared: &Arc<NetworkShared>, id: PeerId, raw: Vec<u8>) -> Result<(), PeerError> {
    let Some(header) = raw.first_chunk::<{ apus_chain::HEADER_SIZE }>() else {
        return Err(PeerError::Protocol { what: "a block shorter than its header".to_owned() });
    };
    let hash = BlockHash(apus_hash::sha256d(header));
    let now = shared.now();
    let mut state = shared.lock();
    state.block(id, hash, BlockBuffer::new(raw, &shared.buffers), now);
    state.act(now);
    Ok(())
}

fn write(
    shared: &NetworkShared,
    mut writer: MessageWriter,
    orders: &Receiver<WriterCommand>,
    turns: &Turns,
) -> Result<(), PeerError> {
    for order in orders {
        match order {
            WriterCommand::Message(message) => writer.write(&message)?,
            WriterCommand::Headers(headers) => {
                writer.write(&Message::Headers(headers))?;
                turns.answered();
            }
            WriterCommand::Blocks(items) => {
                serve::blocks(shared, &mut writer, items)?;
                turns.answered();
            }
        }
        if shared.has_ended() {
            break;
        }
    }
    Ok(())
}

/// Accepts connections until [`stop_listening`].
pub(super) fn listen(
    shared: &Arc<NetworkShared>,
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

fn accept_all(shared: &Arc<NetworkShared>, listener: &TcpListener) {
    let _guard = Guard(shared);
    for stream in listener.incoming() {
        if shared.has_ended() {
            return;
        }
        match stream {
            // Nothing can be served yet. A peer that learns this in the handshake keeps believing it, so let
            // it reconnect later instead.
            Ok(_) if shared.lock().served.is_none() => {}
            Ok(stream) => {
                let now = shared.now();
                let id = shared.lock().new_inbound(INBOUND_MAX, now);
                if let Some(id) = id {
                    spawn(shared, id, Origin::Accepted(stream));
                }
            }
            // Probably too many open files; some will be closed.
            Err(_) => std::thread::sleep(Duration::from_millis(100)),
        }
    }
}

/// Wakes the listening thread, because the network has ended. Returns false if it could not be reached.
pub(super) fn stop_listening(address: SocketAddr) -> bool {
    TcpStream::connect_timeout(&address, Duration::from_secs(1)).is_ok()
}

/// Maximum number of inbound connections.
const INBOUND_MAX: usize = 32;

/// Held by each network thread, declared before everything else. Stops the network if the thread panics.
pub(super) struct Guard<'a>(pub(super) &'a NetworkShared);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let thread = thread::current().name().unwrap_or("without a name").to_owned();
        self.0.ended.store(true, Ordering::Relaxed);
        self.0.lock().break_down(NetworkError::Panicked { thread });
        self.0.wake.notify_all();
        self.0.changed.notify_all();
    }
}

/// Whenever the writing thread ends, notifies the reading thread, even while it waits for answers.
pub(super) struct WriterEnd {
    pub(super) closer: Closer,
    pub(super) turns: Arc<Turns>,
}

impl Drop for WriterEnd {
    fn drop(&mut self) {
        self.closer.close();
        self.turns.end();
    }
}

impl NetworkState {
    /// Stops the network permanently.
    fn break_down(&mut self, error: NetworkError) {
        // The first reason counts.
        let error = self.broken.get_or_insert(error).clone();
        self.fail(error);
        self.end();
    }
}

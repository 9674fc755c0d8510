//! [`PeerNetwork`]: peers on real sockets, and their threads.
//!
//! Every peer has a reading and a writing thread. One more thread, the driver, watches the clock and finds
//! peers. [`headers`](crate::headers) and [`download`](crate::download) make the decisions, under one lock
//! that no thread holds while it waits for a socket. The reading threads pass blocks directly to the caller
//! that [wants](PeerNetwork::want) them.
//!
//! Nothing here is durable: the caller takes the headers and addresses worth saving.

mod blocks;
mod choice;
mod driver;
mod mailbox;
mod peer;
mod presence;
mod serve;
mod state;
#[cfg(test)]
mod tests;
mod threads;

pub use crate::transport::BlockBuffer;
pub use blocks::{NextBlock, WantBlock, WantRange};
pub use choice::{BestHeader, ClockDoubt};
pub use serve::BlockProvider;
pub use state::RefusedHeaders;

use crate::PeerId;
use crate::addresses::NodeAddress;
use crate::download::{DownloadTotals, Limit};
use crate::headers::HeaderList;
use crate::message::Services;
use crate::transport::{Buffers, Transport, TransportChoice};
use apus_chain::{BlockHash, HeaderChain, Height, Params};
use parking_lot::{Condvar, Mutex, MutexGuard};
use peer::NetworkPeer;
use serve::ServiceOffer;
use state::NetworkState;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Options of a network.
#[derive(Clone)]
pub struct NetworkOptions {
    /// The chain's rules.
    pub params: Params,
    /// The only peers to connect to. If empty, peers are found automatically.
    pub connect: Vec<NodeAddress>,
    /// The address book saved by an earlier start.
    pub addresses: Vec<u8>,
    /// SOCKS5 proxy for all connections.
    pub proxy: Option<SocketAddr>,
    /// Address to accept connections on.
    pub listen: Option<SocketAddr>,
    /// Number of outbound connections if peers are found automatically; 0 to make none.
    pub outbound: usize,
    /// Which transport to use.
    pub transport: TransportChoice,
    /// The user agent sent to peers.
    pub user_agent: String,
    /// Maximum bytes of blocks in flight or waiting to be taken. Buffers are reused, and may hold up to three
    /// eighths more.
    pub bytes_max: u64,
    /// The network fails after this long without a requested header or block.
    pub patience: Duration,
    /// Headers saved by an earlier start, each after its parent.
    pub headers: HeaderList,
    /// Blocks to serve to peers, if any.
    pub blocks: Option<Arc<dyn BlockProvider>>,
}

/// Why the network delivers nothing.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NetworkError {
    /// No peer had what was requested.
    #[error(
        "no peer sent anything for {} ({peers} connected{}). Check the network and --connect. Progress is saved: \
         rerun the command to resume",
        minutes(*.seconds), .last.as_ref().map(|last| format!("; last disconnect: {last}")).unwrap_or_default()
    )]
    Quiet {
        /// How long it waited.
        seconds: u64,
        /// How many peers are connected.
        peers: usize,
        /// The last disconnected or unreachable peer, and why.
        last: Option<String>,
    },
    /// No node address is known: there is none from an earlier start, and none from the seeds.
    #[error(
        "found no node address within {seconds} seconds: the DNS seeds of {network} returned no address. Check the \
         network connection and name resolution, or add --connect NODE. Progress is saved: rerun the command to \
         resume"
    )]
    NoAddresses {
        /// How long it waited.
        seconds: u64,
        /// The network whose seeds were queried.
        network: apus_chain::Network,
    },
    /// It cannot listen on the address.
    #[error("cannot listen on {address}: {error}. Use another address, or leave out --listen")]
    Listen {
        /// The address.
        address: SocketAddr,
        /// The system's error.
        error: String,
    },
    /// The system refused to start a thread.
    #[error("cannot start a network thread: {0}")]
    Thread(String),
    /// A network thread panicked, which is a bug in this program.
    #[error(
        "the network stopped: its thread {thread} crashed, which is a bug in Apus. Please report what the thread \
         printed. Progress is saved: rerun the command to resume"
    )]
    Panicked {
        /// The thread's name.
        thread: String,
    },
}

/// Formats a time for people: in whole minutes if it has no further seconds.
fn minutes(seconds: u64) -> String {
    match (seconds / 60, seconds % 60) {
        (1, 0) => "1 minute".to_owned(),
        (minutes @ 1.., 0) => format!("{minutes} minutes"),
        _ => format!("{seconds} seconds"),
    }
}

/// A running network. It stops when dropped.
pub struct PeerNetwork {
    shared: Arc<NetworkShared>,
    driver: Option<JoinHandle<()>>,
    listener: Option<(SocketAddr, JoinHandle<()>)>,
}

/// State shared by all threads.
struct NetworkShared {
    state: Mutex<NetworkState>,
    /// Signals work for the driver.
    wake: Condvar,
    /// Signals changes of headers, peers or failures.
    changed: Condvar,
    ended: AtomicBool,
    started: Instant,
    options: NetworkOptions,
    /// Memory for blocks.
    buffers: Arc<Buffers>,
    /// The services offered to peers.
    offer: Mutex<ServiceOffer>,
    /// A random number, for detecting connections to oneself.
    nonce: u64,
}

impl NetworkShared {
    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock()
    }

    /// Milliseconds since the network started.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// The services that peers can get now.
    fn offered(&self) -> Services {
        let served = self.lock().served.clone();
        let (Some(chain), Some(blocks)) = (served, &self.options.blocks) else {
            return Services::default();
        };
        self.offer.lock().services(&chain, blocks.as_ref())
    }

    /// Why a mailbox was closed.
    fn why_closed(&self) -> NextBlock {
        self.lock().failure.clone().map_or(NextBlock::Nothing, NextBlock::Failed)
    }
}

/// Seconds since 1970.
fn unix_time() -> i64 {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    since.as_secs().try_into().unwrap_or(i64::MAX)
}

impl PeerNetwork {
    /// Starts to look for peers.
    pub fn start(mut options: NetworkOptions) -> Result<Self, NetworkError> {
        let mut random = [[0; 8]; 2];
        // Even a nonce of zeros detects connections to oneself, unless the other side's is zero too.
        let _ = getrandom::fill(random.as_flattened_mut());
        // Peers see the nonce, so it must not say which addresses are picked.
        let [nonce, seed] = random.map(u64::from_le_bytes);
        let state = Mutex::new(NetworkState::new(&options, seed));
        // The state owns them now.
        (options.headers, options.addresses) = (HeaderList::default(), Vec::new());
        let buffers = Arc::new(Buffers::for_blocks(options.bytes_max));
        let shared = Arc::new(NetworkShared {
            state,
            wake: Condvar::new(),
            changed: Condvar::new(),
            ended: AtomicBool::new(false),
            started: Instant::now(),
            options,
            buffers,
            offer: Mutex::default(),
            nonce,
        });
        let mut network = Self { shared: Arc::clone(&shared), driver: None, listener: None };
        let failed = |error: io::Error| NetworkError::Thread(error.to_string());
        if let Some(address) = shared.options.listen {
            network.listener = Some(threads::listen(&shared, address)?);
        }
        let driver = std::thread::Builder::new().name("peers".to_owned());
        network.driver = Some(driver.spawn(move || driver::drive(&shared)).map_err(failed)?);
        Ok(network)
    }

    /// The address that accepts connections.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|(address, _)| *address)
    }

    /// Returns true once the responding peers have sent all their headers.
    ///
    /// # Errors
    /// [`NetworkError::Quiet`] if none responds; [`NetworkError::Panicked`].
    pub fn has_headers(&self) -> Result<bool, NetworkError> {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        if let Some(broken) = &state.broken {
            return Err(broken.clone());
        }
        if state.has_headers(now) {
            state.settling = false;
            return Ok(true);
        }
        state.begin_to_wait(now);
        state.settling = true;
        match &state.failure {
            Some(failure) => Err(failure.clone()),
            None => Ok(false),
        }
    }

    /// Like [`has_headers`](Self::has_headers), for a caller that does not wait.
    pub fn has_headers_now(&self) -> bool {
        self.shared.lock().has_headers(self.shared.now())
    }

    /// Checks that the network has not stopped by itself, because then waiting for it is pointless.
    ///
    /// # Errors
    /// [`NetworkError::Panicked`].
    pub fn is_whole(&self) -> Result<(), NetworkError> {
        self.shared.lock().broken.clone().map_or(Ok(()), Err)
    }

    /// The current most-work chain of headers.
    pub fn best_chain(&self) -> HeaderChain {
        HeaderChain::best_of(self.shared.lock().headers.tree())
    }

    /// Height and hash of the current most-work chain's tip.
    pub fn best(&self) -> (Height, BlockHash) {
        self.shared.lock().best()
    }

    /// Waits until headers or peers change, for at most `patience`.
    pub fn wait(&self, patience: Duration) {
        self.shared.changed.wait_for(&mut self.shared.lock(), patience);
    }

    /// How long the network may receive nothing useful before it fails.
    pub fn patience(&self) -> Duration {
        self.shared.options.patience
    }

    /// Takes the headers that are new since the last call, each after its parent.
    pub fn take_new_headers(&self) -> HeaderList {
        self.shared.lock().take_new_headers()
    }

    /// Sets the chain whose blocks are requested by height.
    pub fn set_chain(&self, chain: Arc<HeaderChain>) {
        let now = self.shared.now();
        self.shared.lock().set_chain(chain, now);
        self.shared.wake.notify_all();
    }

    /// Requests blocks of the chain up to this height without witnesses from now on (BIP-144), for a caller
    /// that does not need them. This saves about two fifths of the bytes.
    pub fn leave_witnesses(&self, up_to: Height) {
        self.shared.lock().without_witnesses = up_to;
    }

    /// Serves the headers of `chain` to peers from now on. All of its blocks must be available.
    pub fn serve(&self, chain: Arc<HeaderChain>) {
        self.shared.lock().serve(chain);
    }

    /// Asks all peers for headers that they did not announce.
    pub fn refresh(&self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.headers.refresh(now);
        state.act(now);
    }

    /// Addresses of up to `most` nodes with these services: connected peers or, if none of them has these, addresses
    /// that others reported. Peers that connected here are left out: their addresses may accept no connections.
    pub fn nodes_with(&self, services: Services, most: usize) -> Vec<NodeAddress> {
        let mut state = self.shared.lock();
        let offers = |peer: &NetworkPeer| {
            let offered = peer.handle.as_ref()?.info.version.services;
            peer.address.clone().filter(|_| offered.has(services))
        };
        let connected: Vec<_> = state.peers.values().filter_map(offers).take(most).collect();
        match connected.is_empty() && !state.keeps_named {
            false => connected,
            true => state.book.with_services(services, most, unix_time()),
        }
    }

    /// The connected peers and their speeds.
    pub fn status(&self) -> NetworkStatus {
        self.shared.lock().status(self.shared.now())
    }

    /// The address book to save for the next start. `None` if the user named the peers.
    pub fn addresses(&self) -> Option<Vec<u8>> {
        let finds_peers = self.shared.options.connect.is_empty();
        finds_peers.then(|| self.shared.lock().book.encode().into_bytes())
    }
}

impl Drop for PeerNetwork {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.shared.lock().end();
        self.shared.wake.notify_all();
        self.shared.changed.notify_all();
        if let Some((address, thread)) = self.listener.take() {
            // If the listening thread is unreachable, it waits forever, which is harmless.
            if threads::stop_listening(address) {
                let _ = thread.join();
            }
        }
        let _ = self.driver.take().map(JoinHandle::join);
        // Peer threads end by themselves: their sockets are closed.
    }
}

/// A peer's status, for display.
#[derive(Debug, Clone)]
pub struct PeerStatus {
    /// The peer.
    pub id: PeerId,
    /// Its address.
    pub address: String,
    /// Its user agent.
    pub user_agent: String,
    /// True if the connection is encrypted.
    pub encrypted: bool,
    /// True if it connected to us.
    pub inbound: bool,
    /// Recent block bytes per second.
    pub rate: u64,
    /// Blocks received from it.
    pub blocks: u64,
    /// Bytes of those blocks.
    pub bytes: u64,
    /// Requested blocks that have not arrived.
    pub in_flight: usize,
    /// True if it owes blocks and is silent.
    pub stalled: bool,
}

/// The network's status, for display.
#[derive(Debug, Clone, Default)]
pub struct NetworkStatus {
    /// The connected peers.
    pub peers: Vec<PeerStatus>,
    /// The last disconnected or unreachable peer, and why.
    pub last_lost: Option<String>,
    /// Height of the best header.
    pub headers: u32,
    /// The maximum height that a peer claimed.
    pub headers_claimed: u32,
    /// Recent block bytes per second.
    pub rate: u64,
    /// Totals so far, disconnected peers included.
    pub totals: DownloadTotals,
    /// What limits the download. `None` if nothing is requested.
    pub limited_by: Option<Limit>,
}

impl NetworkState {
    /// The maximum height that a peer claims.
    fn claimed(&self) -> Height {
        let handles = self.peers.values().filter_map(|peer| peer.handle.as_ref());
        let heights = handles.map(|handle| handle.info.version.start_height);
        heights.filter_map(|height| Height::try_from(height).ok()).max().unwrap_or(0)
    }

    fn status(&self, now: u64) -> NetworkStatus {
        let status = self.download.status(now);
        let peers = self.peers.iter().filter_map(|(&id, peer)| {
            let handle = peer.handle.as_ref()?;
            let of = status.peers.iter().find(|status| status.peer == id);
            Some(PeerStatus {
                id,
                address: handle.info.address.to_string(),
                user_agent: handle.info.version.user_agent.clone(),
                encrypted: handle.info.transport == Transport::V2,
                inbound: peer.is_inbound(),
                rate: of.map_or(0, |of| of.rate),
                blocks: of.map_or(0, |of| of.blocks),
                bytes: of.map_or(0, |of| of.bytes),
                in_flight: of.map_or(0, |of| of.in_flight),
                stalled: of.is_some_and(|of| of.stalled),
            })
        });
        NetworkStatus {
            last_lost: self.last_lost.clone(),
            peers: peers.collect(),
            headers: self.best().0,
            headers_claimed: self.claimed(),
            rate: status.rate,
            totals: status.totals,
            limited_by: (!self.mailboxes.is_empty()).then_some(status.limited_by),
        }
    }
}

//! [`PeerNetwork`]: peers on real sockets, and the threads that serve them.
//!
//! Every peer has a thread that reads and one that writes; one more, the driver, watches the clock
//! and finds peers. What is decided is decided in [`headers`](crate::headers) and
//! [`download`](crate::download), under one lock that no thread holds while it waits for a socket.
//! Blocks go from the thread that read them straight to the one that [asked](PeerNetwork::want).
//!
//! Nothing here is durable: what is worth keeping (headers, addresses) is handed out.

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
use crate::message::Services;
use crate::transport::{Buffers, Transport, TransportChoice};
use apus_chain::{BlockHash, HEADER_SIZE, HeaderChain, Height, Params};
use serve::ServiceOffer;
use state::NetworkState;
use std::io;
use std::net::SocketAddr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// How to be on the network.
#[derive(Clone)]
pub struct NetworkOptions {
    /// The chain's rules.
    pub params: Params,
    /// The only peers to connect to; where there are none, peers are found.
    pub connect: Vec<NodeAddress>,
    /// What an earlier run remembered of addresses.
    pub addresses: Vec<u8>,
    /// A SOCKS5 proxy that all connections go through.
    pub proxy: Option<SocketAddr>,
    /// Where to accept connections.
    pub listen: Option<SocketAddr>,
    /// Connections to make, where peers are found; with 0 none is looked for.
    pub outbound: usize,
    /// Which transport to use.
    pub transport: TransportChoice,
    /// This program's name.
    pub user_agent: String,
    /// Bytes of blocks that may be on their way, or wait to be taken. Their memory is used again: up
    /// to three eighths more of it may be held for that.
    pub bytes_max: u64,
    /// After so long without a header or block that was asked for, the network is given up.
    pub patience: Duration,
    /// Headers of an earlier run, each after its parent.
    pub headers: Vec<[u8; HEADER_SIZE]>,
    /// Blocks for peers that ask.
    pub blocks: Option<Arc<dyn BlockProvider>>,
}

/// Why nothing comes from the network.
#[derive(Debug, Clone, thiserror::Error)]
pub enum NetworkError {
    /// No peer had what was wanted.
    #[error(
        "nothing useful came from any peer for {seconds} seconds ({peers} connected{}): see that \
         the line is up and the peers are right; what was done so far is kept",
        .last.as_ref().map(|last| format!("; the last one lost: {last}")).unwrap_or_default()
    )]
    Quiet {
        /// How long.
        seconds: u64,
        /// How many are connected.
        peers: usize,
        /// What was last heard of one that is not.
        last: Option<String>,
    },
    /// No address of a node is known: neither an earlier run nor the seeds gave one.
    #[error(
        "no node's address could be found within {seconds} seconds: the DNS seeds of {network} gave \
         none; see that the line is up and that names can be looked up here, or name a node with \
         --connect; what was done so far is kept"
    )]
    NoAddresses {
        /// How long.
        seconds: u64,
        /// The network whose seeds were asked.
        network: apus_chain::Network,
    },
    /// The address to listen on.
    #[error("cannot listen on {address}: {error}; name another address, or leave out --listen")]
    Listen {
        /// Which.
        address: SocketAddr,
        /// The system's answer.
        error: String,
    },
    /// The system refused a thread.
    #[error("cannot start a thread for the network: {0}")]
    Thread(String),
    /// A thread of the network panicked, which is a fault of this program.
    #[error(
        "the network has ended: its thread {thread} failed by a fault of this program; please report \
         what was printed about that, and start again: what was done so far is kept"
    )]
    Panicked {
        /// Its name.
        thread: String,
    },
}

/// A running network; it ends when it is dropped.
pub struct PeerNetwork {
    shared: Arc<NetworkShared>,
    driver: Option<JoinHandle<()>>,
    listener: Option<(SocketAddr, JoinHandle<()>)>,
}

/// What all threads share.
struct NetworkShared {
    state: Mutex<NetworkState>,
    /// The driver has something to do.
    wake: Condvar,
    /// Headers, peers or failures changed.
    changed: Condvar,
    ended: AtomicBool,
    started: Instant,
    options: NetworkOptions,
    /// Memory for blocks.
    buffers: Arc<Buffers>,
    /// What others are told that they can have.
    offer: Mutex<ServiceOffer>,
    /// To know oneself by.
    nonce: u64,
}

impl NetworkShared {
    fn lock(&self) -> MutexGuard<'_, NetworkState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Milliseconds since the network began.
    fn now(&self) -> u64 {
        self.started.elapsed().as_millis() as u64
    }

    fn has_ended(&self) -> bool {
        self.ended.load(Ordering::Relaxed)
    }

    /// What others can have at this moment.
    fn offered(&self) -> Services {
        let served = self.lock().served.clone();
        let (Some(chain), Some(blocks)) = (served, &self.options.blocks) else {
            return Services::default();
        };
        let mut offer = self.offer.lock().unwrap_or_else(PoisonError::into_inner);
        offer.services(&chain, blocks.as_ref())
    }

    /// Why nothing comes into a mailbox any more.
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
    /// Begins to look for peers.
    pub fn start(mut options: NetworkOptions) -> Result<Self, NetworkError> {
        let mut nonce = [0; 8];
        // A nonce of zeros still tells oneself from others that have one.
        let _ = getrandom::fill(&mut nonce);
        let nonce = u64::from_le_bytes(nonce);
        let state = Mutex::new(NetworkState::new(&options, nonce));
        // They are in the state now.
        (options.headers, options.addresses) = (Vec::new(), Vec::new());
        let buffers = Arc::new(Buffers::beside(options.bytes_max));
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

    /// Where connections are accepted.
    pub fn listening(&self) -> Option<SocketAddr> {
        self.listener.as_ref().map(|(address, _)| *address)
    }

    /// Whether the peers that answer have told all headers they have.
    ///
    /// # Errors
    /// [`NetworkError::Quiet`] where none does; [`NetworkError::Panicked`].
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

    /// The same for a caller that does not wait for it.
    pub fn has_headers_now(&self) -> bool {
        self.shared.lock().has_headers(self.shared.now())
    }

    /// That the network has not ended by itself: otherwise there is no use in waiting for it.
    ///
    /// # Errors
    /// [`NetworkError::Panicked`].
    pub fn is_whole(&self) -> Result<(), NetworkError> {
        self.shared.lock().broken.clone().map_or(Ok(()), Err)
    }

    /// The most-work chain of all headers so far.
    pub fn best_chain(&self) -> HeaderChain {
        HeaderChain::best_of(self.shared.lock().headers.tree())
    }

    /// Height and hash of the last header of the most-work chain so far.
    pub fn best(&self) -> (Height, BlockHash) {
        self.shared.lock().best()
    }

    /// Waits until something about headers or peers has changed, so long at most.
    pub fn wait(&self, patience: Duration) {
        let state = self.shared.lock();
        drop(self.shared.changed.wait_timeout(state, patience));
    }

    /// After so long without anything useful it is given up.
    pub fn patience(&self) -> Duration {
        self.shared.options.patience
    }

    /// The headers that were not handed out yet, each after its parent.
    pub fn take_new_headers(&self) -> Vec<[u8; HEADER_SIZE]> {
        self.shared.lock().take_new_headers()
    }

    /// Sets the chain whose blocks are asked for by height.
    pub fn set_chain(&self, chain: Arc<HeaderChain>) {
        let now = self.shared.now();
        self.shared.lock().set_chain(chain, now);
        self.shared.wake.notify_all();
    }

    /// Asks for blocks of the chain up to this height without their witnesses from now on (BIP-144): some
    /// two fifths fewer bytes, for a caller that has no use for them.
    pub fn leave_witnesses(&self, up_to: Height) {
        self.shared.lock().without_witnesses = up_to;
    }

    /// Hands the headers of `chain` to others from now on, whose blocks are all here.
    pub fn serve(&self, chain: Arc<HeaderChain>) {
        self.shared.lock().serve(chain);
    }

    /// Asks all peers for headers that they did not tell of by themselves.
    pub fn refresh(&self) {
        let now = self.shared.now();
        let mut state = self.shared.lock();
        state.headers.refresh(now);
        state.act(now);
    }

    /// Which peers are there, and how fast they are.
    pub fn status(&self) -> NetworkStatus {
        self.shared.lock().status(self.shared.now())
    }

    /// What is remembered of addresses, for the next run; none where the user named the peers.
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
            // If it cannot be reached any more it waits for good, and does no harm.
            if threads::stop_listening(address) {
                let _ = thread.join();
            }
        }
        let _ = self.driver.take().map(JoinHandle::join);
        // Threads of peers end by themselves: their sockets are closed.
    }
}

/// A peer, for people.
#[derive(Debug, Clone)]
pub struct PeerStatus {
    /// Which.
    pub id: PeerId,
    /// Its address.
    pub address: String,
    /// What it calls itself.
    pub user_agent: String,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
    /// Whether it connected to us.
    pub inbound: bool,
    /// Bytes of blocks a second, lately.
    pub rate: u64,
    /// Blocks that came from it.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that it was asked for and that have not come.
    pub in_flight: usize,
    /// Whether it owes blocks and is silent.
    pub stalled: bool,
}

/// How the network is.
#[derive(Debug, Clone, Default)]
pub struct NetworkStatus {
    /// The peers there are.
    pub peers: Vec<PeerStatus>,
    /// What became of the peer that was lost last, or could not be reached.
    pub last_lost: Option<String>,
    /// Height of the best header.
    pub headers: u32,
    /// The greatest height that a peer said it is at.
    pub headers_claimed: u32,
    /// Bytes of blocks a second, lately.
    pub rate: u64,
    /// What came so far, also from peers that are gone.
    pub totals: DownloadTotals,
    /// What holds the download up; none where nothing is asked for.
    pub limited_by: Option<Limit>,
}

impl NetworkState {
    /// The height that peers say they are at.
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

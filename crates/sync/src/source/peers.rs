//! A source of blocks that come from peers: connects the network of [`apus_p2p`] to the pipeline.
//!
//! [`Peers`] is a running network, with its headers in the work folder. [`PeersChain`] is one chain of these
//! headers; its blocks come from any peer that has them, in any order.

use crate::error::{InvalidBlock, SourceError, SyncError};
use crate::progress::{Event, Observer, Phase, Progress, stop_if_interrupted};
use crate::warning::Warning;
use crate::workdir::Workdir;
use crate::workdir::names::ADDRESSES;
use apus_chain::{BlockHash, HEADER_SIZE, Header, HeaderChain, Height, Params};
use apus_p2p::addresses::FILE_BYTES_MAX;
use apus_p2p::headers::HeaderList;
pub use apus_p2p::network;
use apus_p2p::network::{NetworkOptions, NetworkStatus, PeerNetwork};
use apus_storage::{Storage, read_whole, write_atomically};
pub use chain::PeersChain;
use choice::{ChainFault, ChainWay, Choice};
use counts::{RecentBlocks, TxCounts};
use damaged::DamagedCopies;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};
use stored::BlockKeeper;
pub use stored::BlocksFolderOptions;

mod chain;
mod choice;
mod counts;
mod damaged;
mod stored;

/// How long a thread waits for the network between two checks for an interrupt.
const LOOK: Duration = Duration::from_millis(100);

/// Nodes that are behind do not announce blocks, so at the tip, the sync requests headers from them at this
/// interval.
const REFRESH: Duration = Duration::from_secs(20);

/// Number of new headers after which they are made durable.
const HEADERS_STORED: usize = 50_000;

/// Interval between making addresses durable.
const ADDRESSES_EVERY: Duration = Duration::from_secs(180);

/// A running network.
pub struct Peers<'a> {
    network: PeerNetwork,
    params: Params,
    workdir: &'a dyn Storage,
    recent: Arc<RecentBlocks>,
    kept: Option<Arc<BlockKeeper>>,
    choice: Mutex<Choice>,
    damaged: DamagedCopies,
    tx_counts: TxCounts,
    /// Number of the next file of headers.
    next_file: AtomicU32,
    /// Headers that are not durable yet.
    unsaved: Mutex<HeaderList>,
    /// When addresses were last made durable.
    addresses_at: Mutex<Option<Instant>>,
    /// When the peers were last asked for headers beyond the tip.
    refreshed_at: Mutex<Option<Instant>>,
    /// Whether the user must still be warned that peers that connect here get few blocks.
    gives_little: AtomicBool,
}

impl std::fmt::Debug for Peers<'_> {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Peers").field("network", &self.params.network).finish_non_exhaustive()
    }
}

impl<'a> Peers<'a> {
    /// Starts looking for peers, with the headers that an earlier start left in `workdir`. Sets the headers and
    /// blocks of `options`, and the addresses if it names no peers.
    pub fn start(
        options: NetworkOptions,
        workdir: &'a dyn Storage,
        keep: Option<&BlocksFolderOptions>,
    ) -> Result<Self, SyncError> {
        let params = options.params.clone();
        // Reports a folder that is not ours before anything is written there.
        Workdir::read_plan(workdir)?;
        let stored = stored::read(workdir, params.network)?;
        let addresses = match options.connect.is_empty() {
            true => read_whole(workdir, ADDRESSES, FILE_BYTES_MAX as u64).unwrap_or_default(),
            false => Vec::new(),
        };
        let recent = Arc::new(RecentBlocks::default());
        let kept = keep.map(|place| BlockKeeper::open(place, &params)).transpose()?;
        let blocks: Option<Arc<dyn network::BlockProvider>> = match (options.listen, &kept) {
            (None, _) => None,
            (Some(_), Some(kept)) => Some(Arc::clone(kept) as _),
            (Some(_), None) => Some(Arc::clone(&recent) as _),
        };
        let gives_little = options.listen.is_some() && kept.is_none();
        let network = PeerNetwork::start(NetworkOptions {
            headers: stored.headers,
            addresses,
            blocks,
            ..options
        })?;
        Ok(Self {
            recent,
            kept,
            next_file: AtomicU32::new(stored.next_file),
            gives_little: AtomicBool::new(gives_little),
            ..Self::of(network, params, workdir)
        })
    }

    /// Starts looking for the peers that `options` names, for the blocks of a chain whose headers the caller
    /// already has: peers are not asked for headers. Nothing is kept, but `workdir` may be written to.
    pub fn start_with(
        options: NetworkOptions,
        headers: HeaderList,
        workdir: &'a dyn Storage,
    ) -> Result<Self, SyncError> {
        let params = options.params.clone();
        let network = PeerNetwork::start(NetworkOptions { headers, blocks: None, ..options })?;
        Ok(Self::of(network, params, workdir))
    }

    fn of(network: PeerNetwork, params: Params, workdir: &'a dyn Storage) -> Self {
        Self {
            network,
            params,
            workdir,
            recent: Arc::default(),
            kept: None,
            choice: Mutex::default(),
            damaged: DamagedCopies::default(),
            tx_counts: TxCounts::default(),
            next_file: AtomicU32::new(0),
            unsaved: Mutex::default(),
            addresses_at: Mutex::default(),
            refreshed_at: Mutex::default(),
            gives_little: AtomicBool::new(false),
        }
    }

    /// Returns the connected peers and their speeds.
    pub fn status(&self) -> NetworkStatus {
        self.network.status()
    }

    /// Waits until the peers have sent all headers that they have.
    pub fn settle<'p>(
        &'p self,
        observer: &dyn Observer,
        interrupt: &'p AtomicBool,
    ) -> Result<PeersChain<'p>, SyncError> {
        if self.gives_little.swap(false, Ordering::Relaxed) {
            observer.event(Event::Warning(Warning::GivesFewBlocks));
        }
        loop {
            let has_headers = self.network.has_headers();
            if !matches!(has_headers, Ok(false)) {
                self.expect_clock()?;
            }
            if has_headers? {
                break;
            }
            self.network.wait(LOOK);
            self.store_headers(HEADERS_STORED)?;
            let progress = Progress {
                blocks: self.network.best().0.into(),
                blocks_total: self.network.status().headers_claimed.into(),
                ..Progress::default()
            };
            observer.event(Event::Progress(Phase::Headers, progress));
            if let Err(interrupted) = stop_if_interrupted(interrupt) {
                self.store_headers(1)?;
                return Err(interrupted);
            }
        }
        self.store_headers(1)?;
        self.store_addresses();
        self.settled_on(Arc::new(self.best_chain()), interrupt)
    }

    /// Returns a chain to continue on after `error`, if the error is about a block that other chains do not
    /// contain.
    pub fn other_chain<'p>(
        &'p self,
        chain: &HeaderChain,
        error: &SyncError,
        follow: bool,
        interrupt: &'p AtomicBool,
    ) -> Result<Option<PeersChain<'p>>, SyncError> {
        let (hash, invalid) = match error {
            SyncError::Source(SourceError::ChainLeft { hash, .. }) => (*hash, None),
            _ => match InvalidBlock::of(error) {
                Some(invalid) => (invalid.block.hash, Some(invalid)),
                None => return Ok(None),
            },
        };
        let now = Instant::now();
        match invalid {
            Some(InvalidBlock { block, why }) => {
                self.choice.lock().put(hash, ChainFault::Invalid { height: block.height, why });
                // A peer with this block in its chain is useless from now on.
                self.network.invalid(&hash);
            }
            None => self.choice.lock().withheld(hash, now),
        }
        loop {
            let other = match self.way_around(chain, &hash, follow) {
                Some(ChainWay::Better(best) | ChainWay::Other(best)) => {
                    self.network.chain_to(&best.hash)
                }
                Some(ChainWay::Back(chain)) => {
                    let allowed = self.disputed(&chain).is_ok();
                    return allowed.then(|| self.settled_on(chain, interrupt)).transpose();
                }
                None => None,
            };
            match other {
                Some(other) if self.disputed(&other).is_err() => return Ok(None),
                Some(other) => return self.settled_on(Arc::new(other), interrupt).map(Some),
                None if now.elapsed() >= self.looked_for() => return Ok(None),
                None => self.network.wait(LOOK),
            }
            stop_if_interrupted(interrupt)?;
        }
    }

    pub fn settled_on<'p>(
        &'p self,
        chain: Arc<HeaderChain>,
        interrupt: &'p AtomicBool,
    ) -> Result<PeersChain<'p>, SyncError> {
        self.network.set_chain(Arc::clone(&chain));
        PeersChain::new(self, chain, interrupt)
    }

    /// Declares that all blocks of `chain` were connected, so that peers may get them.
    pub fn serve(&self, chain: &Arc<HeaderChain>) {
        self.reached(chain);
        self.network.serve(Arc::clone(chain));
    }

    /// Returns a chain with more work than `than`. Returns at once if there is none, unless `follow` is set:
    /// then it waits for the first one until interrupted, and calls `waiting` meanwhile.
    pub fn better_chain<'p>(
        &'p self,
        than: &HeaderChain,
        follow: bool,
        waiting: &dyn Fn(),
        interrupt: &'p AtomicBool,
    ) -> Result<Option<PeersChain<'p>>, SyncError> {
        let mut known: BlockHash = *than.tip_hash();
        let began = Instant::now();
        self.refresh();
        // Before the sync ends here, it waits for peers that are about to send headers.
        while !follow
            && !self.network.has_headers_now()
            && began.elapsed() < self.looked_for()
            && !interrupt.load(Ordering::Relaxed)
        {
            self.network.wait(LOOK);
        }
        loop {
            self.network.is_whole()?;
            self.store_addresses();
            self.refresh();
            if let Some(best) = self.best_beyond(than, follow)
                && best.hash != known
                && (!follow || self.network.has_headers_now())
            {
                known = best.hash;
                self.store_headers(1)?;
                if best.chain_work > than.chain_work()
                    && let Some(chain) = self.network.chain_to(&best.hash)
                {
                    return self.settled_on(Arc::new(chain), interrupt).map(Some);
                }
            }
            self.disputed(than)?;
            if !follow {
                self.expect_clock()?;
            }
            // This clears the flag: a further interrupt stops the code that follows.
            if !follow || interrupt.swap(false, Ordering::Relaxed) {
                return Ok(None);
            }
            waiting();
            self.network.wait(LOOK);
        }
    }

    /// Returns a chain with more work than `than`, if a peer sends one within the network's idle timeout.
    pub fn longer_chain<'p>(
        &'p self,
        than: &HeaderChain,
        interrupt: &'p AtomicBool,
    ) -> Result<Option<PeersChain<'p>>, SyncError> {
        let deadline = Instant::now() + self.network.patience();
        while Instant::now() < deadline {
            stop_if_interrupted(interrupt)?;
            if let Some(chain) = self.better_chain(than, false, &|| (), interrupt)? {
                return Ok(Some(chain));
            }
            self.network.wait(LOOK);
        }
        Ok(None)
    }

    /// Asks the peers for headers beyond the tip, unless they were just asked.
    fn refresh(&self) {
        let mut refreshed_at = self.refreshed_at.lock();
        if refreshed_at.is_none_or(|at| at.elapsed() >= REFRESH) {
            *refreshed_at = Some(Instant::now());
            self.network.refresh();
        }
    }

    /// Makes the addresses of peers durable, at most every few minutes, so that the next start finds peers sooner
    /// (`crates/p2p/src/addresses/file.rs`). If that fails, it searches for peers again.
    pub fn store_addresses(&self) {
        let mut stored_at = self.addresses_at.lock();
        if stored_at.is_some_and(|at| at.elapsed() < ADDRESSES_EVERY) {
            return;
        }
        *stored_at = Some(Instant::now());
        if let Some(addresses) = self.network.addresses() {
            let _ = write_atomically(self.workdir, ADDRESSES, &addresses);
        }
    }

    /// Remembers the numbers of transactions of blocks from now on, for an output that needs them.
    pub fn keep_counts(&self) -> Result<(), SyncError> {
        self.tx_counts.begin(self.workdir, self.params.network)
    }

    /// Saves the numbers of transactions after a failure, so that the next start need not request these blocks
    /// again.
    pub fn store_counts(&self) {
        // Unsaved counts are counted again; the error to report is the one that ended the sync.
        let _ = self.tx_counts.store(self.workdir, self.params.network);
    }

    /// Reads the raw headers of heights 1 to `last` of `chain` from the work folder, because those in memory
    /// are not complete. Missing and damaged ones are `None`.
    fn stored_headers(
        &self,
        chain: &HeaderChain,
        last: Height,
    ) -> Result<Vec<Option<[u8; HEADER_SIZE]>>, SyncError> {
        self.store_headers(1)?;
        let mut found = vec![None; last as usize];
        stored::for_each(self.workdir, self.params.network, &mut |raw| {
            let hash = Header::parse(raw).hash();
            let height = chain.height_of(&hash).filter(|height| *height > 0);
            let place = height.and_then(|height| found.get_mut(height as usize - 1));
            if let Some(place) = place {
                *place = Some(*raw);
            }
        })?;
        Ok(found)
    }

    /// Makes the new headers durable if there are at least `count`.
    fn store_headers(&self, count: usize) -> Result<(), SyncError> {
        let mut unsaved = self.unsaved.lock();
        unsaved.append(self.network.take_new_headers());
        if unsaved.is_empty() || unsaved.len() < count {
            return Ok(());
        }
        let file = self.next_file.fetch_add(1, Ordering::Relaxed);
        stored::write(self.workdir, file, self.params.network, &unsaved)?;
        *unsaved = HeaderList::default();
        Ok(())
    }
}

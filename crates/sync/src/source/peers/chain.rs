//! [`PeersChain`]: a chain of headers whose blocks come from peers.

use super::choice::ChainWay;
use super::stored::BlockKeeper;
use super::{LOOK, Peers, counts};
use crate::error::{ChainGap, SourceError, SyncError};
use crate::source::blocksdir::BlockHead;
use crate::source::{
    BlockArchive, BlockFetcher, BlockReply, BlockSource, ChainSource, GAP_MAX, ranges,
};
use apus_chain::{BlockHash, BlockLayout, HEADER_SIZE, HeaderChain, Height, HeightRange, Reader};
use apus_p2p::addresses::{NodeAddress, Services};
use apus_p2p::network::{BlockProvider, NetworkError, NextBlock};
use parking_lot::Mutex;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::{Duration, Instant};

/// Fetchers in addition to the worker threads. Each requests one range, and the blocks of all ranges are in
/// transit at once.
const FETCHERS_MORE: usize = 14;

/// How long to wait for a block off the chain.
const STALE_PATIENCE: Duration = Duration::from_secs(60);

/// If nothing useful arrives for this long, or a quarter of the network's idle timeout if that is less, the
/// sync switches to a chain with more work.
const OVERTAKEN: Duration = Duration::from_secs(20);

/// After this long, or half of the idle timeout, it switches to a chain with no more work, too.
const WITHHELD: Duration = Duration::from_secs(60);

/// Interval at which waiting threads look for another chain.
const LOOK_AROUND: Duration = Duration::from_secs(1);

/// Number of blocks below the tip that a peer may request, or that a reorganization may need (Core `validation.h`,
/// `MIN_BLOCKS_TO_KEEP`). Copies of deeper blocks would be useless.
const RECENT_BLOCKS: Height = 288;

/// A chain of headers whose blocks come from peers.
pub struct PeersChain<'p> {
    peers: &'p Peers<'p>,
    chain: Arc<HeaderChain>,
    gap: ChainGap,
    interrupt: &'p AtomicBool,
    /// Whether the sync can switch to another chain.
    may_be_left: AtomicBool,
    /// Whether the sync runs until it is stopped.
    follows: AtomicBool,
    waiting: Mutex<WaitingFetch>,
    /// The last block that is requested without its witnesses.
    unseen: AtomicU32,
}

/// State shared by threads that wait for blocks of a chain from which nothing arrives.
#[derive(Debug, Default)]
struct WaitingFetch {
    /// The lowest block that any of them has waited for since the last look.
    lowest: Option<Height>,
    /// When they last looked for another chain, or began to wait.
    looked_at: Option<Instant>,
    /// The block that is no longer waited for.
    left: Option<(Height, BlockHash)>,
}

impl<'p> PeersChain<'p> {
    pub(super) fn new(
        peers: &'p Peers<'p>,
        chain: Arc<HeaderChain>,
        interrupt: &'p AtomicBool,
    ) -> Result<Self, SyncError> {
        if chain.tip_height() == 0 {
            let chain = peers.params.network.name();
            return Err(SourceError::NoHeaders { chain }.into());
        }
        Ok(Self {
            peers,
            chain,
            gap: ChainGap::default(),
            interrupt,
            may_be_left: AtomicBool::new(false),
            follows: AtomicBool::new(false),
            waiting: Mutex::default(),
            unseen: AtomicU32::new(0),
        })
    }

    /// Returns the bytes of the chain's headers.
    pub fn headers_bytes(&self) -> u64 {
        u64::from(self.chain.tip_height()) * HEADER_SIZE as u64
    }

    /// Returns the reason to stop waiting for a block of this chain, if there is another chain to switch to. If
    /// the network has `failed`, switching is the only way to continue.
    fn left(&self, height: Height, failed: bool) -> Option<SourceError> {
        let may_be_left = self.may_be_left.load(Ordering::Relaxed);
        let (quiet, patience) = (self.peers.network.quiet_for(), self.peers.network.patience());
        let overtaken = failed || may_be_left && quiet >= OVERTAKEN.min(patience / 4);
        let withheld = may_be_left && (failed || quiet >= WITHHELD.min(patience / 2));
        let mut waiting = self.waiting.lock();
        if !overtaken {
            *waiting = WaitingFetch::default();
            return None;
        }
        waiting.lowest = Some(waiting.lowest.map_or(height, |lowest| lowest.min(height)));
        // This delay before the first look gives all other threads the time to record the block that they wait
        // for.
        if waiting.looked_at.get_or_insert_with(Instant::now).elapsed() >= LOOK_AROUND {
            waiting.looked_at = Some(Instant::now());
            let height = waiting.lowest.take()?;
            let hash = *self.chain.hash(height)?;
            let follows = self.follows.load(Ordering::Relaxed);
            let way = self.peers.way_around(&self.chain, &hash, follows);
            let long_enough = match way {
                Some(ChainWay::Better(_)) => true,
                Some(ChainWay::Other(_) | ChainWay::Back(_)) => withheld,
                None => false,
            };
            waiting.left = long_enough.then_some((height, hash));
        }
        waiting.left.map(|(height, hash)| SourceError::ChainLeft { height, hash })
    }

    /// Handles a network failure in a thread that waits for a block. Another chain may appear when peers
    /// reconnect, and then the thread need not give up. Returns `None` if `halt` is set first.
    fn given_up(
        &self,
        height: Height,
        error: NetworkError,
        halt: &AtomicBool,
    ) -> Result<(), SourceError> {
        let began = Instant::now();
        while began.elapsed() < self.peers.looked_for() + LOOK_AROUND {
            // No peer will come back.
            self.peers.network.is_whole()?;
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(SourceError::Interrupted);
            }
            if halt.load(Ordering::Relaxed) {
                return Ok(());
            }
            if let Some(left) = self.left(height, true) {
                return Err(left);
            }
            self.peers.network.wait(LOOK);
        }
        Err(self.peers.damaged.error().unwrap_or_else(|| error.into()))
    }

    /// Stores an intact block from a peer, without any bytes that follow it.
    fn keep(&self, height: Height, message: &[u8]) -> Result<(), SourceError> {
        if self.peers.kept.is_none() && !self.is_recent(height) {
            self.note(height, message);
            return Ok(());
        }
        let mut layout = BlockLayout::new();
        let raw = layout.read(message).map_or(message, |block| block.raw());
        self.note(height, raw);
        match (&self.peers.kept, self.chain.hash(height)) {
            (Some(kept), Some(hash)) => Ok(kept.put(hash, raw).map_err(Box::new)?),
            _ => Ok(()),
        }
    }

    fn tx_count(&self, height: Height) -> Option<u32> {
        self.peers.tx_counts.get(self.chain.hash(height)?)
    }

    fn is_recent(&self, height: Height) -> bool {
        height.saturating_add(RECENT_BLOCKS) > self.chain.tip_height()
    }

    fn note(&self, height: Height, raw: &[u8]) {
        if let Some(hash) = self.chain.hash(height).filter(|_| self.is_recent(height)) {
            self.peers.recent.put(*hash, raw);
        }
        let mut reader = Reader::new(raw.get(HEADER_SIZE..).unwrap_or_default());
        let count = reader.compact_size().ok().and_then(|count| u32::try_from(count).ok());
        if let (Some(hash), Some(count)) = (self.chain.hash(height), count) {
            self.peers.tx_counts.put(hash, count);
        }
    }
}

impl BlockSource for PeersChain<'_> {
    fn fetcher<'a>(&'a self, halt: &'a AtomicBool) -> Box<dyn BlockFetcher + 'a> {
        Box::new(PeersFetcher { source: self, halt })
    }

    fn is_on_disk(&self, height: Height) -> bool {
        let kept = self.peers.kept.as_deref().zip(self.chain.hash(height));
        kept.is_some_and(|(kept, hash)| BlockArchive::has(kept, hash))
    }

    fn fetchers(&self, threads: usize) -> usize {
        threads + FETCHERS_MORE
    }

    fn sync(&self) -> Result<(), SyncError> {
        let peers = self.peers;
        peers.store_addresses();
        peers.kept.as_ref().map_or(Ok(()), |kept| kept.sync())?;
        peers.tx_counts.store(peers.workdir, peers.params.network)
    }

    fn knows_sizes(&self) -> bool {
        false
    }

    fn block_bytes(&self, height: Height) -> u64 {
        let with_witness = height > self.unseen.load(Ordering::Relaxed);
        counts::block_bytes(&self.peers.params, height, with_witness)
    }

    fn leave_witnesses(&self, up_to: Height) {
        self.unseen.store(up_to, Ordering::Relaxed);
        self.peers.network.leave_witnesses(up_to);
    }
}

impl ChainSource for PeersChain<'_> {
    fn chain(&self) -> &HeaderChain {
        &self.chain
    }

    fn gap(&self) -> &ChainGap {
        &self.gap
    }

    fn may_be_left(&self, follow: bool) {
        self.follows.store(follow, Ordering::Relaxed);
        self.may_be_left.store(true, Ordering::Relaxed);
    }

    fn nodes_with(&self, services: Services, most: usize) -> Vec<NodeAddress> {
        self.peers.network.nodes_with(services, most)
    }

    fn reached_tip(&self) {
        self.peers.serve(&self.chain);
    }

    fn archive(&self) -> Option<&dyn BlockArchive> {
        self.peers.kept.as_deref().map(|kept| kept as &dyn BlockArchive)
    }

    fn not_counted(&self, last: Height) -> Vec<HeightRange> {
        ranges((1..=last).filter(|height| self.tx_count(*height).is_none()), GAP_MAX)
    }

    /// Takes a recent block from memory, and requests any other from peers.
    fn block_by_hash(
        &self,
        hash: &BlockHash,
        take: &mut dyn FnMut(&[u8]) -> bool,
    ) -> Result<bool, SourceError> {
        if let Some(raw) = self.peers.recent.block(hash)
            && take(&raw)
        {
            return Ok(true);
        }
        if let Some(kept) = &self.peers.kept
            && let Some(raw) = kept.read(hash).map_err(Box::new)?
            && take(&raw)
        {
            return Ok(true);
        }
        let Some(mut wanted) = self.peers.network.want_block(*hash) else { return Ok(false) };
        let deadline = Instant::now() + STALE_PATIENCE;
        while Instant::now() < deadline {
            match wanted.next(LOOK) {
                NextBlock::Block(_, raw) if take(&raw) => {
                    wanted.accepted();
                    return Ok(true);
                }
                NextBlock::Block(..) => wanted.damaged(),
                NextBlock::Failed(error) => return Err(error.into()),
                NextBlock::Done | NextBlock::Nothing => {}
            }
            if self.interrupt.load(Ordering::Relaxed) {
                return Err(SourceError::Interrupted);
            }
        }
        Ok(false)
    }

    fn heads(
        &self,
        last: Height,
        reached: &mut dyn FnMut(Height) -> Result<(), SourceError>,
    ) -> Result<Vec<BlockHead>, SourceError> {
        reached(last)?;
        let headers = self.peers.stored_headers(&self.chain, last).map_err(Box::new)?;
        let head = |(height, header): (Height, Option<[u8; HEADER_SIZE]>)| {
            Some(BlockHead { header: header?, tx_count: self.tx_count(height)? })
        };
        let heads: Option<Vec<BlockHead>> = (1..).zip(headers).map(head).collect();
        let range = HeightRange::new(1, last + 1);
        heads.ok_or(SourceError::Incomplete { range })
    }
}

struct PeersFetcher<'a> {
    source: &'a PeersChain<'a>,
    halt: &'a AtomicBool,
}

/// The result of requesting a range.
#[derive(PartialEq)]
enum AskedBlocks {
    On,
    Stopped,
}

impl PeersFetcher<'_> {
    /// Passes the kept blocks to the receiver, and returns the others.
    fn kept(
        &self,
        kept: &BlockKeeper,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
    ) -> Result<Option<Vec<HeightRange>>, SourceError> {
        let mut missing = Vec::new();
        for height in want.heights() {
            let hash = self.source.chain.hash(height);
            let raw = match hash.filter(|hash| BlockArchive::has(kept, hash)) {
                Some(hash) => kept.read(hash).map_err(Box::new)?,
                None => None,
            };
            match raw.map(|raw| (each(height, &raw), raw)) {
                Some((BlockReply::Yes, raw)) => self.source.note(height, &raw),
                Some((BlockReply::NotWanted, _)) => {}
                Some((BlockReply::Stop, _)) => return Ok(None),
                Some((BlockReply::Damaged(error), _)) => {
                    let place = "the folder of kept blocks".to_owned();
                    let hash = hash.copied().unwrap_or_default();
                    return Err(SourceError::Damaged { height, hash, place, error });
                }
                None => missing.push(height),
            }
        }
        Ok(Some(ranges(missing, 1)))
    }

    fn ask(
        &self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
    ) -> Result<AskedBlocks, SourceError> {
        let (peers, mut left) = (self.source.peers, want.heights().collect::<BTreeSet<Height>>());
        let mut wanted = peers.network.want(want);
        loop {
            if self.source.interrupt.load(Ordering::Relaxed) {
                return Err(SourceError::Interrupted);
            }
            if self.halt.load(Ordering::Relaxed) {
                return Ok(AskedBlocks::Stopped);
            }
            match wanted.next(LOOK) {
                NextBlock::Block(height, raw) => match each(height, &raw) {
                    BlockReply::Yes => {
                        self.source.keep(height, &raw)?;
                        wanted.accepted();
                        left.remove(&height);
                        peers.damaged.forget(height);
                    }
                    BlockReply::Damaged(error) => {
                        let (hash, peer) = (self.source.chain.hash(height), wanted.damaged());
                        peers.damaged.note(height, hash.copied().unwrap_or_default(), peer, error);
                    }
                    BlockReply::NotWanted => wanted.returned(),
                    BlockReply::Stop => return Ok(AskedBlocks::Stopped),
                },
                NextBlock::Done => return Ok(AskedBlocks::On),
                NextBlock::Nothing => {
                    let height = left.first().copied().unwrap_or(want.start);
                    if let Some(error) = self.source.left(height, false) {
                        return Err(error);
                    }
                }
                NextBlock::Failed(error) => {
                    let height = left.first().copied().unwrap_or(want.start);
                    // The network disconnects peers that lack the blocks that a thread waits for.
                    drop(wanted);
                    self.source.given_up(height, error, self.halt)?;
                    return Ok(AskedBlocks::Stopped);
                }
            }
        }
    }
}

impl BlockFetcher for PeersFetcher<'_> {
    fn fetch(
        &mut self,
        want: HeightRange,
        each: &mut dyn FnMut(Height, &[u8]) -> BlockReply,
    ) -> Result<(), SourceError> {
        let missing = match &self.source.peers.kept {
            Some(kept) => self.kept(kept, want, each)?,
            None => Some(vec![want]),
        };
        for range in missing.unwrap_or_default() {
            if self.ask(range, each)? == AskedBlocks::Stopped {
                break;
            }
        }
        Ok(())
    }
}

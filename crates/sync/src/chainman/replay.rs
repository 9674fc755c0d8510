//! Going on where an earlier start stopped: the log read back into a tree.
//!
//! The tree is what the log says and nothing else: verdicts that were found are not found again.
//! The coins may be at any block of the log; where they are not at the best one (a crash came in
//! between), blocks are disconnected and connected until they are.

use super::log::BlockFolder;
use super::log::{BlockLog, LogKind, LogPlace};
use super::orphans::{ORPHANS_BYTES_MAX, ORPHANS_MAX, Orphan, Orphans};
use super::tree::BlockTree;
use super::{ChainManager, ChainManagerError, TipCoins};
use apus_chain::{BlockHash, Header, HeaderId, Params, ScriptVerifier};
use apus_storage::Storage;
use std::collections::HashMap;
use std::sync::Arc;

/// What an earlier start left.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Resumed {
    /// Records of the log.
    pub records: u64,
    /// Bytes that a crash left unfinished, and that were left out.
    pub torn_bytes: u64,
}

/// Makes the log durable, for a caller that is about to make something durable that relies on it.
#[derive(Clone)]
pub struct LogSync(Arc<BlockLog>);

impl LogSync {
    /// Makes every block durable that was submitted so far.
    pub fn sync(&self) -> Result<(), ChainManagerError> {
        self.0.sync()
    }
}

impl ChainManager {
    /// A manager that keeps its blocks and verdicts in `storage`, and goes on from those that are
    /// there. Nothing else may use the storage.
    ///
    /// `open_coins` opens the coins. They must never be durable at a block whose log is not:
    /// whatever writes them calls [`LogSync::sync`] before.
    pub fn open<E: From<ChainManagerError>>(
        params: &Params,
        storage: Arc<dyn Storage>,
        verifier: Option<Box<dyn ScriptVerifier>>,
        open_coins: impl FnOnce(LogSync) -> Result<Box<dyn TipCoins>, E>,
    ) -> Result<(Self, Resumed), E> {
        let mut replay = Replay {
            tree: BlockTree::new(params),
            places: HashMap::new(),
            orphans: Orphans::new(ORPHANS_MAX, ORPHANS_BYTES_MAX),
        };
        let mut each = |kind, payload, place| replay.record(kind, payload, place);
        let (log, replayed) = BlockLog::open(storage, params, &mut each)?;
        let log = Arc::new(log);
        let coins = open_coins(LogSync(Arc::clone(&log)))?;
        let Replay { tree, places, orphans } = replay;
        let mut manager = Self::with(tree, BlockFolder::Log { log, places }, coins, verifier);
        manager.orphans = orphans;
        manager.catch_up()?;
        let (records, torn_bytes) = (replayed.records, replayed.torn_bytes);
        Ok((manager, Resumed { records, torn_bytes }))
    }

    /// Brings the coins to the best chain, and does what a crash kept from being done.
    fn catch_up(&mut self) -> Result<(), ChainManagerError> {
        let at = self.coins.tip();
        let tip = self.tree.find(&at.hash).filter(|&id| self.tree.is_whole(id));
        let unknown = ChainManagerError::UnknownTip { hash: at.hash, height: at.height };
        self.tree.set_active(tip.ok_or(unknown)?);
        self.activate_best_chain(None)?;
        let parents: Vec<BlockHash> = self.orphans.parents().copied().collect();
        parents.into_iter().try_for_each(|parent| self.take_orphans_of(parent))
    }
}

/// A tree that is being read back.
struct Replay {
    tree: BlockTree,
    places: HashMap<HeaderId, LogPlace>,
    orphans: Orphans,
}

impl Replay {
    /// Does again what a record tells. An error says what is wrong with it.
    fn record(&mut self, kind: LogKind, payload: Vec<u8>, place: LogPlace) -> Result<(), String> {
        match kind {
            LogKind::Header => self.header(&payload).map(|_| ()),
            LogKind::Block => {
                let id = self.header(&payload)?;
                if self.tree.has_block(id) {
                    return Err(format!("block {} comes twice", self.tree.hash(id)));
                }
                self.places.insert(id, place);
                self.tree.add_block(id);
                Ok(())
            }
            LogKind::Orphan => {
                let header = payload.first_chunk().ok_or("a block without a header")?;
                let header = Header::parse(header);
                let (hash, prev) = (header.hash(), header.prev);
                self.orphans.add(Orphan { hash, prev, raw: payload });
                Ok(())
            }
            LogKind::Failed => self.named(&payload).map(|id| self.tree.mark_failed(id)),
            LogKind::Reconsidered => self.named(&payload).map(|id| self.tree.clear_failed(id)),
            LogKind::Adopted => {
                let name = payload.first_chunk().ok_or("a name that is too short")?;
                self.orphans.take(name);
                Ok(())
            }
            LogKind::Closed => Ok(()),
        }
    }

    /// The header that a payload begins with; new or known.
    fn header(&mut self, payload: &[u8]) -> Result<HeaderId, String> {
        let raw = payload.first_chunk().ok_or("a block without a header")?;
        let header = Header::parse(raw);
        if self.tree.find(&header.prev).is_none() {
            return Err(format!("block {} comes before its parent", header.hash()));
        }
        // Its time was judged when it came.
        self.tree.accept_header(raw, i64::MAX).map_err(|error| error.to_string())
    }

    fn named(&self, payload: &[u8]) -> Result<HeaderId, String> {
        let hash = payload.try_into().map(BlockHash).map_err(|_| "a hash of another length")?;
        self.tree.find(&hash).ok_or_else(|| format!("block {hash} is named before it comes"))
    }
}

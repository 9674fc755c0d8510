//! Resumes from the log of an earlier start.
//!
//! The tree is rebuilt from the log alone, without computing recorded verdicts again. The coins may be at any
//! block of the log; after a crash, they may not be at the best one. Then blocks are disconnected and connected
//! until they are.

use super::log::BlockFolder;
use super::log::{BlockLog, LogKind, LogPlace};
use super::orphans::{ORPHANS_BYTES_MAX, ORPHANS_MAX, Orphan, Orphans};
use super::tree::BlockTree;
use super::{ChainManager, ChainManagerError, TipCoins};
use apus_chain::{BlockHash, Header, HeaderId, Params, ScriptVerifier};
use apus_storage::Storage;
use std::collections::HashMap;
use std::sync::Arc;

/// What an earlier start left in the log.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LogState {
    /// Number of records in the log.
    pub records: u64,
    /// Bytes that a crash left incomplete; they were skipped.
    pub torn_bytes: u64,
}

/// Makes the log durable, for a caller about to make something durable that relies on it.
#[derive(Clone)]
pub struct LogSync(Arc<BlockLog>);

impl LogSync {
    /// Makes every block submitted so far durable.
    pub fn sync(&self) -> Result<(), ChainManagerError> {
        self.0.sync()
    }
}

impl ChainManager {
    /// Opens a manager that keeps its blocks and verdicts in `storage`, and resumes from what is there. Nothing
    /// else may use the storage.
    ///
    /// `open_coins` opens the coins. They must never be durable at a block that the durable log lacks: the code
    /// that writes them calls [`LogSync::sync`] first.
    pub fn open<E: From<ChainManagerError>>(
        params: &Params,
        storage: Arc<dyn Storage>,
        verifier: Option<Box<dyn ScriptVerifier>>,
        open_coins: impl FnOnce(LogSync) -> Result<Box<dyn TipCoins>, E>,
    ) -> Result<(Self, LogState), E> {
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
        Ok((manager, LogState { records, torn_bytes }))
    }

    /// Moves the coins to the best chain, and validates the waiting blocks that a crash interrupted.
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

/// A tree that is being rebuilt from the log.
struct Replay {
    tree: BlockTree,
    places: HashMap<HeaderId, LogPlace>,
    orphans: Orphans,
}

impl Replay {
    /// Applies a record to the tree. An error describes what is invalid in it.
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
                let name = payload.first_chunk().ok_or("a truncated name")?;
                self.orphans.take(name);
                Ok(())
            }
            LogKind::Closed => Ok(()),
        }
    }

    /// Accepts the header at the start of a payload; it may be known already.
    fn header(&mut self, payload: &[u8]) -> Result<HeaderId, String> {
        let raw = payload.first_chunk().ok_or("a block without a header")?;
        let header = Header::parse(raw);
        if self.tree.find(&header.prev).is_none() {
            return Err(format!("block {} comes before its parent", header.hash()));
        }
        // Its time was checked when it arrived.
        self.tree.accept_header(raw, i64::MAX).map_err(|error| error.to_string())
    }

    fn named(&self, payload: &[u8]) -> Result<HeaderId, String> {
        let hash = payload.try_into().map(BlockHash).map_err(|_| "a hash of wrong length")?;
        self.tree.find(&hash).ok_or_else(|| format!("block {hash} is named before its record"))
    }
}

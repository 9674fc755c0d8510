//! [`UndoPass`]: SwiftSync with undo data, which checks every rule.
//!
//! Undo data name the coins that each block spends. With them the block is validated under all rules about
//! coins, including scripts, and the aggregate is of [whole coins](super::aggregate::AggregateKind::Coins).
//! If the sums are equal, the coins that were created and do not survive are exactly the ones used to
//! validate blocks, each once, with the height, the mark, the amount and the script that it was created with.
//! So neither hints nor undo data are trusted: wrong ones can only make the sync fail.
//!
//! If a block fails, either the block or its undo data may be at fault. An engine that needs no undo data can
//! tell which.

use super::kept_undo::KeptUndo;
use super::{Partial, Segment, SegmentHints, SwiftSync, SwiftSyncError, Verdict};
use crate::engines::mergesync::{BlockConnector, BlockUndoData, ConnectFailure, SeenBlock};
use crate::engines::pass::{FinishedSegment, Pass, RunKind};
use crate::error::{ErrorKind, IoError, RunError, SyncError};
use apus_chain::{
    BlockBytes, BlockHash, BlockUndo, CoinSumKey, Header, HeaderChain, Height, HeightRange,
    KnownBlock, Params, UndoCoin,
};
use apus_engine::connect::ConnectError;
use apus_engine::script::{NoInterpreter, ScriptPool, ScriptPoolError};
use std::collections::BTreeMap;

/// A source of undo data, which need not be trusted.
pub trait UndoSource: Send + Sync {
    /// Returns a reader for one thread, for the blocks of a range.
    fn reader(&self, heights: HeightRange) -> Box<dyn UndoReader + '_>;

    /// Whether it also has undo data of blocks that spend nothing.
    fn of_all_blocks(&self) -> bool {
        false
    }

    /// Whether a reader must be asked by ascending height, about every block of its range.
    fn ascends(&self) -> bool {
        false
    }
}

/// Reads undo data.
pub trait UndoReader: Send {
    /// Reads the undo data of the block at a height, which follows `prev`, as Core writes it (Core `undo.h`,
    /// `CBlockUndo`).
    ///
    /// # Errors
    /// The reason why there is none, and where, as a message to users.
    fn read(&mut self, height: Height, prev: &BlockHash) -> Result<Vec<u8>, String>;

    /// The same for a block that the caller has.
    ///
    /// # Errors
    /// [`UndoPassError::Undo`] if there is none; [`UndoPassError::Away`] if there is none now.
    fn read_of(&mut self, block: &BlockBytes<'_>) -> Result<Vec<u8>, UndoPassError> {
        let prev = Header::parse(block.view().header()).prev;
        let read = self.read(block.height(), &prev);
        read.map_err(|what| UndoPassError::Undo { block: known(block), what })
    }
}

/// Why a segment or a whole sync failed.
#[derive(Debug, thiserror::Error)]
pub enum UndoPassError {
    /// An error that syncs without undo data have too.
    #[error(transparent)]
    SwiftSync(#[from] SwiftSyncError),
    /// Undo data are missing, or do not belong to the block.
    #[error("the undo data of block {} ({}) cannot be used: {what}", block.height, block.hash)]
    Undo {
        /// The block.
        block: KnownBlock,
        /// The reason.
        what: String,
    },
    /// The source of undo data has failed, which says nothing about them.
    #[error(transparent)]
    Away(Box<SyncError>),
    /// Undo data changed after they were proven.
    #[error("the undo data of blocks {} to {} changed since this sync proved them", range.start, range.end - 1)]
    Changed {
        /// The blocks of the segment.
        range: HeightRange,
    },
    /// A block breaks a rule, if it spends the coins that its undo data name.
    #[error("block {} ({}) is invalid, if its undo data are right: {error}", block.height, block.hash)]
    Refused {
        /// The block.
        block: KnownBlock,
        /// The rule that it breaks.
        error: Box<ConnectError>,
    },
    /// A script could not be run, which says nothing about the block.
    #[error("a script of block {} ({}) could not be run: {what}", block.height, block.hash)]
    Script {
        /// The block.
        block: KnownBlock,
        /// The reason.
        what: String,
    },
    /// Scripts must be run, but this build has no interpreter.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
}

/// The failure of a sync with undo data, with advice to sync without hints.
#[derive(Debug, thiserror::Error)]
#[error("{error}{advice}", error = .0, advice = advice(.0))]
pub struct ByUndoError(pub UndoPassError);

fn advice(error: &UndoPassError) -> &'static str {
    match error {
        UndoPassError::Refused { .. } => {
            ". Either the block or its undo data are wrong. Rerun without --hints (--engine mergesync), which \
             needs no undo data, to find out"
        }
        _ => ". Rerun without --hints (--engine mergesync), which needs no undo data",
    }
}

impl RunError for ByUndoError {
    fn kind(&self) -> ErrorKind {
        ErrorKind::Wrong
    }

    fn class(&self) -> &'static str {
        "wrong_data"
    }
}

impl From<UndoPassError> for SyncError {
    fn from(error: UndoPassError) -> Self {
        match error {
            UndoPassError::SwiftSync(error) => error.into(),
            UndoPassError::Away(error) => *error,
            UndoPassError::NoInterpreter(error) => ScriptPoolError::from(error).into(),
            UndoPassError::Script { .. } => Self::Io(IoError::Script { what: error.to_string() }),
            other => ByUndoError(other).into(),
        }
    }
}

/// Validates blocks with the coins from their undo data.
pub struct ConnectByUndo<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// The chain.
    pub chain: &'a HeaderChain,
    /// The last block whose scripts are assumed valid; 0 for none.
    pub assumed: Height,
    /// Runs the scripts, if any are run. Each worker waits for the verdict on its own block, so a pool with
    /// its own threads would only slow it down.
    pub scripts: Option<ScriptPool>,
    /// The key for summing the coins that a block spends, if blocks are kept.
    pub sum_key: Option<CoinSumKey>,
}

impl ConnectByUndo<'_> {
    /// Validates a block on the assumption that its undo data are right; the aggregate must prove that.
    pub fn connect(&self, block: &BlockBytes<'_>, undo: &[u8]) -> Result<(), UndoPassError> {
        let mut stored = StoredCoins::default();
        stored
            .read(block, undo)
            .map_err(|what| UndoPassError::Undo { block: known(block), what })?;
        self.by_coins(block, &stored.coins()[..stored.there]).map(drop)
    }

    /// Validates a block with these coins. Returns what is kept of it, if blocks are kept.
    fn by_coins(
        &self,
        block: &BlockBytes<'_>,
        coins: &[&[u8]],
    ) -> Result<Option<BlockUndoData>, UndoPassError> {
        let id = known(block);
        let connector = BlockConnector {
            params: self.params,
            chain: self.chain,
            existed: &BTreeMap::new(),
            scripts: self.scripts.as_ref(),
            assumed: self.assumed,
            sum_key: self.sum_key,
            bare: 0,
            numbered: false,
        };
        let connected = connector.block(&SeenBlock::checked(block), coins.iter().copied());
        match connected.and_then(|block| block.wait()) {
            Ok(kept) => Ok(kept),
            Err(ConnectFailure::Refused(error)) => {
                Err(UndoPassError::Refused { block: id, error: Box::new(error) })
            }
            Err(ConnectFailure::Script(what)) => Err(UndoPassError::Script { block: id, what }),
            Err(ConnectFailure::NoInterpreter(error)) => Err(error.into()),
            Err(ConnectFailure::Answer(error)) => {
                Err(UndoPassError::Undo { block: id, what: error.to_string() })
            }
            Err(ConnectFailure::Bare) => unreachable!("undo data has whole coins"),
        }
    }
}

/// The pass: SwiftSync with undo data.
pub struct UndoPass<'a> {
    /// The engine for everything else. Its aggregate is of whole coins.
    pub swiftsync: SwiftSync,
    /// Validates blocks.
    pub connector: ConnectByUndo<'a>,
    /// The source of the coins that blocks spend.
    pub undo: &'a dyn UndoSource,
    /// Whether segments leave the undo data, for blocks that the source keeps. The connector needs a key then.
    pub keeps: bool,
}

/// A segment in progress.
pub struct UndoPassSegment<'a> {
    segment: Segment,
    undo: Box<dyn UndoReader + 'a>,
    /// The coins that a block spends, and its height.
    stored: StoredCoins,
    fetched: Option<Height>,
    /// What is kept of the blocks.
    kept: KeptUndo,
}

fn known(block: &BlockBytes<'_>) -> KnownBlock {
    KnownBlock { height: block.height(), hash: block.hash() }
}

impl UndoPass<'_> {
    /// Reads the coins that a block spends, and validates it with them. Returns what is kept of it, if blocks
    /// are kept.
    pub(super) fn connect(
        &self,
        undo: &mut dyn UndoReader,
        stored: &mut StoredCoins,
        block: &BlockBytes<'_>,
    ) -> Result<Option<BlockUndoData>, UndoPassError> {
        self.read(undo, stored, block)?;
        // A coin of a higher block does not exist yet, even if the undo data contain it.
        self.connector.by_coins(block, &stored.coins()[..stored.there])
    }

    /// Reads the coins that a block spends.
    fn read(
        &self,
        undo: &mut dyn UndoReader,
        stored: &mut StoredCoins,
        block: &BlockBytes<'_>,
    ) -> Result<(), UndoPassError> {
        stored.clear();
        // A block that spends nothing needs no undo data.
        if block.view().tx_count() > 1 || self.undo.of_all_blocks() || self.undo.ascends() {
            let undo = undo.read_of(block)?;
            let of_no_use = |what| UndoPassError::Undo { block: known(block), what };
            stored.read(block, &undo).map_err(of_no_use)?;
        }
        Ok(())
    }
}

/// Coins in their stored form, concatenated.
#[derive(Default)]
pub(super) struct StoredCoins {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// Number of coins before the first that was created above the block that spends it.
    there: usize,
}

impl StoredCoins {
    /// Appends the coins in the undo data, which must be as many as the block's transactions have inputs.
    fn read(&mut self, block: &BlockBytes<'_>, undo: &[u8]) -> Result<(), String> {
        let undo = BlockUndo::read(undo).map_err(|error| error.to_string())?;
        let txs = block.view().tx_count();
        if undo.tx_count() != txs {
            let found = undo.tx_count();
            return Err(format!("they have {found} transactions, and the block has {txs}"));
        }
        for (index, tx) in block.view().txs().enumerate().skip(1) {
            let coins = undo.spent_by(index).unwrap_or_default();
            if coins.len() != tx.inputs().len() {
                let (found, inputs) = (coins.len(), tx.inputs().len());
                return Err(format!(
                    "they have {found} coins for the {inputs} inputs of transaction {index}"
                ));
            }
        }
        let is_above = |coin: &UndoCoin<'_>| coin.height() > block.height();
        let above = undo.coins().iter().position(is_above);
        self.there = above.unwrap_or(undo.coins().len());
        for coin in undo.coins() {
            coin.write_stored(&mut self.bytes);
            self.ends.push(self.bytes.len());
        }
        Ok(())
    }

    fn clear(&mut self) {
        let Self { bytes, ends, there } = self;
        bytes.clear();
        ends.clear();
        *there = 0;
    }

    pub(super) fn coins(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect()
    }
}

impl<'a> Pass for UndoPass<'a> {
    type Input = SegmentHints;
    type Segment = UndoPassSegment<'a>;
    type Partial = Partial;
    type Verdict = Verdict;
    type Error = UndoPassError;

    const RUNS: &'static [RunKind] = SwiftSync::RUNS;

    const FETCHES: bool = true;

    fn blocks_ascend(&self) -> bool {
        self.undo.ascends()
    }

    fn begin(&self, hints: SegmentHints) -> Result<UndoPassSegment<'a>, UndoPassError> {
        Ok(UndoPassSegment {
            undo: self.undo.reader(hints.range()),
            segment: self.swiftsync.begin(hints),
            stored: StoredCoins::default(),
            fetched: None,
            kept: KeptUndo::default(),
        })
    }

    fn fetch(
        &self,
        segment: &mut UndoPassSegment<'a>,
        block: &BlockBytes<'_>,
    ) -> Result<(), UndoPassError> {
        let UndoPassSegment { undo, stored, fetched, .. } = segment;
        *fetched = None;
        self.read(&mut **undo, stored, block)?;
        *fetched = Some(block.height());
        Ok(())
    }

    fn block(
        &self,
        segment: &mut UndoPassSegment<'a>,
        block: &BlockBytes<'_>,
    ) -> Result<(), UndoPassError> {
        if segment.fetched.take() != Some(block.height()) {
            self.fetch(segment, block)?;
            segment.fetched = None;
        }
        let UndoPassSegment { segment, stored, kept, .. } = segment;
        let coins = stored.coins();
        // A coin of a higher block does not exist yet, even if the undo data contain it.
        let valid = self.connector.by_coins(block, &coins[..stored.there])?;
        self.swiftsync.block_with_coins(segment, block, &coins)?;
        if let Some(valid) = valid.filter(|_| self.keeps) {
            let of_no_use = |what| UndoPassError::Undo { block: known(block), what };
            kept.push(&valid).map_err(of_no_use)?;
        }
        Ok(())
    }

    fn finish(
        &self,
        segment: UndoPassSegment<'a>,
    ) -> Result<FinishedSegment<Partial>, UndoPassError> {
        let mut finished = Pass::finish(&self.swiftsync, segment.segment)?;
        if let Some(run) = finished.runs.last_mut() {
            *run = segment.kept.into_run();
        }
        Ok(finished)
    }

    fn nothing(&self) -> Partial {
        self.swiftsync.nothing()
    }

    fn conclude(&self, whole: &Partial, stop: Height) -> Result<Verdict, UndoPassError> {
        Ok(self.swiftsync.conclude(whole, stop)?)
    }
}

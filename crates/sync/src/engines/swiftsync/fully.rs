//! [`Fully`]: SwiftSync with undo data, which applies every rule.
//!
//! Undo data name the coins that each block spends. By them the block is judged, under all rules about coins,
//! scripts among them; and the aggregate is of [whole coins](super::aggregate::AggregateKind::Coins). When the
//! sums are equal, the coins that were created and do not survive are those by which blocks were judged, each
//! once, with the height, the mark, the amount and the script that it was created with. So neither hints nor
//! undo data are trusted: wrong ones can only make the run fail.
//!
//! Where one fails, it is not known whether the block is at fault or what was said of its coins. An engine that
//! needs neither can tell.

use super::{Partial, Segment, SegmentHints, SwiftSync, SwiftSyncError, Verdict};
use crate::engines::mergesync::{BlockJudge, JudgeError, SeenBlock};
use crate::engines::pass::{FinishedSegment, Pass, RunKind};
use crate::error::{ErrorKind, IoError, RunError, SyncError};
use apus_chain::{
    BlockBytes, BlockHash, BlockUndo, Header, HeaderChain, Height, KnownBlock, Params, UndoCoin,
};
use apus_engine::connect::{ConnectContext, ConnectError};
use apus_engine::script::{NoInterpreter, ScriptPool, ScriptPoolError};

/// Where undo data come from. Nothing is expected of them.
pub trait UndoSource: Send + Sync {
    /// For one thread.
    fn reader(&self) -> Box<dyn UndoReader + '_>;

    /// Whether those of blocks that spend nothing are to be there as well.
    fn of_all_blocks(&self) -> bool {
        false
    }
}

/// Reads undo data.
pub trait UndoReader {
    /// Those of the block at a height, which follows `prev`, as Core writes them (Core `undo.h`, `CBlockUndo`).
    ///
    /// # Errors
    /// Why there are none, for people, and where.
    fn read(&mut self, height: Height, prev: &BlockHash) -> Result<Vec<u8>, String>;
}

/// Why a segment or a whole run failed.
#[derive(Debug, thiserror::Error)]
pub enum FullyError {
    /// As a run without undo data does.
    #[error(transparent)]
    SwiftSync(#[from] SwiftSyncError),
    /// Undo data are not there, or are none of the block.
    #[error("the undo data of block {} ({}) are of no use: {what}", block.height, block.hash)]
    Undo {
        /// The block.
        block: KnownBlock,
        /// What is wrong.
        what: String,
    },
    /// A block breaks a rule, if it spends what its undo data say.
    #[error("block {} ({}) is invalid, if its undo data are right: {error}", block.height, block.hash)]
    Refused {
        /// The block.
        block: KnownBlock,
        /// The rule.
        error: Box<ConnectError>,
    },
    /// A script could not be run, which says nothing of the block.
    #[error("a script of block {} ({}) could not be run: {what}", block.height, block.hash)]
    Script {
        /// The block.
        block: KnownBlock,
        /// Why.
        what: String,
    },
    /// Scripts are to be run, and nothing can run them.
    #[error(transparent)]
    NoInterpreter(#[from] NoInterpreter),
}

/// A run with undo data that failed, with what one without hints is good for.
#[derive(Debug, thiserror::Error)]
#[error("{error}{advice}", error = .0, advice = advice(.0))]
pub struct ByUndoError(pub FullyError);

fn advice(error: &FullyError) -> &'static str {
    match error {
        FullyError::Refused { .. } => {
            ". Either the block is at fault or its undo data are: a run without hints (--engine mergesync) needs \
             none, and tells which"
        }
        _ => ". A run without hints (--engine mergesync) needs no undo data",
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

impl From<FullyError> for SyncError {
    fn from(error: FullyError) -> Self {
        match error {
            FullyError::SwiftSync(error) => error.into(),
            FullyError::NoInterpreter(error) => ScriptPoolError::from(error).into(),
            FullyError::Script { .. } => Self::Io(IoError::Script { what: error.to_string() }),
            other => ByUndoError(other).into(),
        }
    }
}

/// Judges blocks by the coins that they are said to spend.
pub struct JudgeByUndo<'a> {
    /// The rules.
    pub params: &'a Params,
    /// The chain.
    pub chain: &'a HeaderChain,
    /// The last block whose scripts are taken for valid; 0 where none are.
    pub assumed: Height,
    /// What runs them, if any are. Blocks wait for their verdicts where they are taken, so threads of its own
    /// would only get in the way.
    pub scripts: Option<ScriptPool>,
}

impl JudgeByUndo<'_> {
    /// Judges a block that spends the coins of its undo data, if these are right; whether they are, it does
    /// not ask.
    pub fn judge(&self, block: &BlockBytes<'_>, undo: &[u8]) -> Result<(), FullyError> {
        let mut stored = StoredCoins::default();
        stored.read(block, undo).map_err(|what| FullyError::Undo { block: known(block), what })?;
        self.by_coins(block, &stored.coins()[..stored.there])
    }

    fn by_coins(&self, block: &BlockBytes<'_>, coins: &[&[u8]]) -> Result<(), FullyError> {
        let id = known(block);
        let check_scripts = id.height > self.assumed;
        let context = ConnectContext { ancestry: self.chain, check_scripts };
        let (params, scripts) = (self.params, self.scripts.as_ref());
        let judge = BlockJudge { params, scripts, sum_key: None, bare: 0 };
        let seen = SeenBlock::checked(block);
        let judged = judge.block(&seen, coins, &[], &context);
        match judged.and_then(|judged| judged.wait()) {
            Ok(_) => Ok(()),
            Err(JudgeError::Refused(refused)) => {
                Err(FullyError::Refused { block: id, error: Box::new(refused.error) })
            }
            Err(JudgeError::Script(what)) => Err(FullyError::Script { block: id, what }),
            Err(JudgeError::NoInterpreter(error)) => Err(error.into()),
            Err(JudgeError::Answer(error)) => {
                Err(FullyError::Undo { block: id, what: error.to_string() })
            }
            Err(JudgeError::Bare) => unreachable!("undo data has whole coins"),
        }
    }
}

/// The pass. See the module.
pub struct Fully<'a> {
    /// What does the rest. Its aggregate is of whole coins.
    pub swiftsync: SwiftSync,
    /// Judges blocks.
    pub judge: JudgeByUndo<'a>,
    /// The coins that blocks spend, as undo data say.
    pub undo: &'a dyn UndoSource,
}

/// A segment under way.
pub struct FullSegment<'a> {
    segment: Segment,
    undo: Box<dyn UndoReader + 'a>,
    /// The coins of the block at hand.
    stored: StoredCoins,
}

fn known(block: &BlockBytes<'_>) -> KnownBlock {
    KnownBlock { height: block.height(), hash: block.hash() }
}

/// Coins in their stored form, one after the other.
#[derive(Default)]
struct StoredCoins {
    bytes: Vec<u8>,
    ends: Vec<usize>,
    /// How many there are before the first that is of a block above the one that spends it.
    there: usize,
}

impl StoredCoins {
    /// Appends the coins that undo data name, which must be as many as the block's transactions have inputs.
    fn read(&mut self, block: &BlockBytes<'_>, undo: &[u8]) -> Result<(), String> {
        let undo = BlockUndo::read(undo).map_err(|error| error.to_string())?;
        let txs = block.view().tx_count();
        if undo.tx_count() != txs {
            let found = undo.tx_count();
            return Err(format!(
                "they are of a block of {found} transactions, and this one has {txs}"
            ));
        }
        for (index, tx) in block.view().txs().enumerate().skip(1) {
            let coins = undo.spent_by(index).unwrap_or_default();
            if coins.len() != tx.inputs().len() {
                let (found, inputs) = (coins.len(), tx.inputs().len());
                return Err(format!(
                    "transaction {index} has {inputs} inputs, and they name {found} coins"
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

    fn coins(&self) -> Vec<&[u8]> {
        let starts = std::iter::once(0).chain(self.ends.iter().copied());
        starts.zip(&self.ends).map(|(start, end)| &self.bytes[start..*end]).collect()
    }
}

impl<'a> Pass for Fully<'a> {
    type Input = SegmentHints;
    type Segment = FullSegment<'a>;
    type Partial = Partial;
    type Verdict = Verdict;
    type Error = FullyError;

    const RUNS: &'static [RunKind] = SwiftSync::RUNS;

    fn begin(&self, hints: SegmentHints) -> Result<FullSegment<'a>, FullyError> {
        let segment = self.swiftsync.begin(hints);
        Ok(FullSegment { segment, undo: self.undo.reader(), stored: StoredCoins::default() })
    }

    fn block(
        &self,
        segment: &mut FullSegment<'a>,
        block: &BlockBytes<'_>,
    ) -> Result<(), FullyError> {
        let FullSegment { segment, undo, stored } = segment;
        let of_no_use = |what| FullyError::Undo { block: known(block), what };
        stored.clear();
        // A block that spends nothing needs none.
        if block.view().tx_count() > 1 || self.undo.of_all_blocks() {
            let prev = Header::parse(block.view().header()).prev;
            let undo = undo.read(block.height(), &prev).map_err(of_no_use)?;
            stored.read(block, &undo).map_err(of_no_use)?;
        }
        let coins = stored.coins();
        // A coin of a block above is not there yet, whatever is said of it.
        self.judge.by_coins(block, &coins[..stored.there])?;
        Ok(self.swiftsync.block_with_coins(segment, block, &coins)?)
    }

    fn finish(&self, segment: FullSegment<'a>) -> Result<FinishedSegment<Partial>, FullyError> {
        Ok(Pass::finish(&self.swiftsync, segment.segment)?)
    }

    fn nothing(&self) -> Partial {
        self.swiftsync.nothing()
    }

    fn conclude(&self, whole: &Partial, stop: Height) -> Result<Verdict, FullyError> {
        Ok(self.swiftsync.conclude(whole, stop)?)
    }
}

//! The work of the threads: groups of transactions, and parts of large ones.
//!
//! Work is divided by expected cost, so that handing it over is cheap compared with running it, and
//! no thread is left with a long piece at the end.

use super::worker::ScriptWorker;
use crate::coin::CoinBytes;
use crate::script::hints::BlockHints;
use crate::script::interpreter::{Interpreter, PreparedTx, Refusal};
use apus_chain::ScriptError;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// The bytes of a block, shared by the threads that read its transactions.
pub trait RawBlock: Send + Sync {
    /// Returns the bytes.
    fn raw(&self) -> &[u8];
}

impl RawBlock for Vec<u8> {
    fn raw(&self) -> &[u8] {
        self
    }
}

/// A serialized transaction inside its block.
#[derive(Clone)]
pub struct RawTx {
    block: Arc<dyn RawBlock>,
    range: Range<usize>,
}

impl RawTx {
    /// Refers to the transaction in these bytes of a block. If the block has no such range, running
    /// its scripts reports a setup error.
    pub fn new(block: Arc<dyn RawBlock>, range: Range<usize>) -> Self {
        Self { block, range }
    }

    fn bytes(&self) -> Result<&[u8], ScriptError> {
        let raw = self.block.raw();
        raw.get(self.range.clone()).ok_or_else(|| {
            let Range { start, end } = self.range;
            let length = raw.len();
            ScriptError::Setup(format!("no bytes {start} to {end} in a block of {length} bytes"))
        })
    }
}

impl std::fmt::Debug for RawTx {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("RawTx").field("range", &self.range).finish_non_exhaustive()
    }
}

/// Why a block's scripts are rejected: the first failing input.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{}, transaction {tx_index}, input {input}", self.reason())]
pub struct ScriptFailure {
    /// Index of the transaction, as the caller passed it.
    pub tx_index: usize,
    /// The input. 0 if the whole transaction could not be read.
    pub input: usize,
    /// Whether the scripts failed or could not be run. If not run, the block is neither valid nor
    /// invalid, and the caller cannot continue.
    pub error: ScriptError,
    /// Core's text for the failure, if the interpreter reported it.
    pub name: Option<&'static str>,
}

impl ScriptFailure {
    /// Returns whether it comes before another one in the block.
    pub(super) fn is_before(&self, other: &Self) -> bool {
        (self.tx_index, self.input) < (other.tx_index, other.input)
    }

    /// Returns Core's reason for rejecting the block, without the name of the rule if unknown; or
    /// why the scripts could not be run.
    pub fn reason(&self) -> String {
        const REASON: &str = "block-script-verify-flag-failed";
        match (&self.error, self.name) {
            (ScriptError::Invalid, Some(name)) => format!("{REASON} ({name})"),
            (ScriptError::Invalid, None) => REASON.to_owned(),
            (setup @ ScriptError::Setup(_), _) => setup.to_string(),
        }
    }
}

/// The target cost of a group or part, in inputs of a small transaction: half a millisecond.
pub(super) const PIECE_COST: usize = 16;

/// A transaction with a higher cost is divided among threads.
const DIVIDED_FROM_COST: usize = 2 * PIECE_COST;

/// Each pre-segwit input hashes its whole transaction: this many bytes take as long as a signature.
const BYTES_PER_COST: usize = 100_000;

/// A transaction whose scripts must be run.
pub(super) struct ScriptTx {
    pub(super) index: usize,
    pub(super) raw: RawTx,
    pub(super) spent: Vec<CoinBytes>,
}

impl ScriptTx {
    /// Returns the expected cost of its scripts, in inputs of a small transaction.
    pub(super) fn cost(&self) -> usize {
        self.spent.len().saturating_mul(self.input_cost()).max(1)
    }

    fn input_cost(&self) -> usize {
        1 + self.raw.range.len() / BYTES_PER_COST
    }

    /// Returns the inputs, divided for threads.
    fn parts(&self) -> impl Iterator<Item = Range<usize>> + use<> {
        let inputs = self.spent.len();
        let step = (PIECE_COST / self.input_cost()).max(2);
        (0..inputs).step_by(step).map(move |start| start..inputs.min(start + step))
    }
}

impl ScriptTx {
    fn prepare(&self, interpreter: &dyn Interpreter) -> Result<SharedTx, ScriptError> {
        let prepared = interpreter.prepare(self.raw.bytes()?, &self.spent)?;
        let coins: usize =
            self.spent.iter().map(|coin| size_of_val(coin) + coin.heap_bytes()).sum();
        // The interpreter's form of a transaction is about four times as long as the serialized
        // one; with taproot it copies the coins.
        let bytes = 4 * self.raw.range.len() + 2 * coins;
        Ok(SharedTx { index: self.index, prepared, bytes })
    }

    /// Runs the scripts of a small transaction, or divides a large one.
    fn run(
        &self,
        ticket: &ScriptTicket,
        interpreter: &dyn Interpreter,
        worker: &mut ScriptWorker,
        parts: &mut Vec<ScriptJob>,
    ) -> Result<(), ScriptFailure> {
        let prepared =
            self.prepare(interpreter).map_err(|error| ticket.fail(self.index, 0, error.into()))?;
        let shared = Arc::new(prepared);
        if self.cost() <= DIVIDED_FROM_COST {
            return ticket.verify(worker, &shared, 0..self.spent.len());
        }
        parts.extend(self.parts().map(|inputs| ScriptJob::Part(Arc::clone(&shared), inputs)));
        Ok(())
    }
}

/// A piece of work.
pub(super) enum ScriptJob {
    /// Several transactions, in order.
    Group(Vec<ScriptTx>),
    /// Some inputs of one transaction.
    Part(Arc<SharedTx>, Range<usize>),
}

/// A transaction, prepared once for all its inputs.
pub(super) struct SharedTx {
    pub(super) index: usize,
    pub(super) prepared: Box<dyn PreparedTx>,
    /// The memory that it takes, estimated.
    pub(super) bytes: usize,
}

/// The state that all work of one batch shares.
pub(super) struct ScriptTicket {
    /// The batch's number: lower is older.
    pub(super) number: u64,
    pub(super) flags: u32,
    pub(super) hints: BlockHints,
    /// Inputs from this one on need not be run, because it failed. 0 once no caller waits for the
    /// verdict.
    stop_at: AtomicU64,
}

/// Returns the position of an input in the order of its block. Numbers that are too large can only
/// make the position too low: then the pool runs more than needed, or less after a failure, which
/// remains a failure.
fn place(tx_index: usize, input: usize) -> u64 {
    (tx_index as u64) << 32 | input as u64
}

impl ScriptTicket {
    pub(super) fn new(number: u64, flags: u32, hints: BlockHints) -> Self {
        Self { number, flags, hints, stop_at: AtomicU64::new(u64::MAX) }
    }

    /// Marks all remaining work of this batch as unnecessary.
    pub(super) fn cancel(&self) {
        self.stop_at.store(0, Ordering::Relaxed);
    }

    /// Returns whether an input comes after one that failed.
    pub(super) fn is_skippable(&self, tx_index: usize, input: usize) -> bool {
        place(tx_index, input) >= self.stop_at.load(Ordering::Relaxed)
    }

    pub(super) fn fail(&self, tx_index: usize, input: usize, refusal: Refusal) -> ScriptFailure {
        self.stop_at.fetch_min(place(tx_index, input), Ordering::Relaxed);
        let Refusal { error, name } = refusal;
        ScriptFailure { tx_index, input, error, name }
    }

    fn verify(
        &self,
        worker: &mut ScriptWorker,
        tx: &Arc<SharedTx>,
        inputs: Range<usize>,
    ) -> Result<(), ScriptFailure> {
        for input in inputs {
            if self.is_skippable(tx.index, input) {
                return Ok(());
            }
            let result = worker.verify(self, tx, input);
            result.map_err(|refusal| self.fail(tx.index, input, refusal))?;
        }
        Ok(())
    }
}

impl ScriptJob {
    /// Returns the first input of this piece.
    pub(super) fn first(&self) -> (usize, usize) {
        match self {
            Self::Group(txs) => (txs.first().map_or(0, |tx| tx.index), 0),
            Self::Part(tx, inputs) => (tx.index, inputs.start),
        }
    }

    /// Runs the work, and adds the parts into which it divides. Of several failures, returns the
    /// first in block order.
    pub(super) fn run(
        self,
        ticket: &ScriptTicket,
        interpreter: &dyn Interpreter,
        worker: &mut ScriptWorker,
        parts: &mut Vec<ScriptJob>,
    ) -> Result<(), ScriptFailure> {
        let txs = match self {
            Self::Part(tx, inputs) => return ticket.verify(worker, &tx, inputs),
            Self::Group(txs) => txs,
        };
        let mut first: Result<(), ScriptFailure> = Ok(());
        for tx in txs.iter().filter(|tx| !ticket.is_skippable(tx.index, 0)) {
            // A later one comes first in the block only if its index is lower; otherwise it was
            // skipped.
            let result = tx.run(ticket, interpreter, worker, parts);
            first = result.and(first);
        }
        first
    }
}

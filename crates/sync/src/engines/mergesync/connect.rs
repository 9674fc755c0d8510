//! [`BlockConnector`]: validates a block with the coins that it spends, under every rule.
//!
//! The rules, their order and their names are the same as in the in-order engine; only the source of the
//! coins differs. Blocks are validated in any order.

use crate::engines::mergesync::seen::SeenBlock;
use crate::engines::mergesync::stripped::StrippedCoin;
use apus_chain::{
    BlockBytes, BlockLayout, Coin, CoinAdder, CoinError, CoinRef, CoinSum, CoinSumKey, Height,
    OutPoint, Params, Reader, TxView, Txid, read_coin_strict,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::{
    asks_for_bip30, bip30_error, check_with_coins, may_repeat, outputs_of,
};
use apus_engine::connect::undo::block_undo;
use apus_engine::connect::{ConnectContext, ConnectError, coins_of};
use apus_engine::script::{NoInterpreter, RawTx, ScriptBatch, ScriptPool, Verdict};
use core::ops::Range;
use std::collections::HashSet;
use std::sync::Arc;

/// A refused block.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedBlock {
    /// The rule that it breaks.
    pub error: ConnectError,
    /// Outputs of the block that Core would have looked up in the set first (BIP-30), each with the index of
    /// its transaction. If one exists, Core gives that as the reason. This module cannot look them up.
    pub asked_before: Vec<(usize, OutPoint)>,
}

impl RefusedBlock {
    /// The rule that it breaks, given `exists`, which says whether an output was in the set when the block
    /// began.
    pub fn reason(self, mut exists: impl FnMut(&OutPoint) -> bool) -> ConnectError {
        let found = self.asked_before.into_iter().find(|(_, outpoint)| exists(outpoint));
        found.map_or(self.error, bip30_error)
    }
}

/// The parts of a valid block that are kept.
#[derive(Debug, Clone)]
pub struct BlockUndoData {
    /// Its bytes.
    pub raw: Arc<Vec<u8>>,
    /// Its undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: Vec<u8>,
    /// The sum of all coins that it spends.
    pub spent: CoinSum,
}

/// Memory of a block's shared parts besides its bytes: the verdict, the counts of who holds them, and what the
/// allocator adds.
const SHARED_BYTES: u64 = 512;

/// A block that passed every check except its scripts.
#[must_use]
pub struct ValidatedBlock {
    /// `Some` if scripts are run.
    pending: Option<(Arc<Vec<u8>>, Verdict)>,
    kept: Option<BlockUndoData>,
}

impl ValidatedBlock {
    /// A block that passed based on its [spend summary](super::SpendSummary); no part of it is kept, and its
    /// scripts are assumed valid.
    pub const fn by_claims() -> Self {
        Self { pending: None, kept: None }
    }

    /// Memory that it takes besides the value itself, in bytes, for a block of this size.
    pub fn memory_bytes(&self, block_bytes: u64) -> u64 {
        match (&self.pending, &self.kept) {
            // Coins that wait for their scripts take about as much as the block.
            (Some(_), _) => SHARED_BYTES + 2 * block_bytes,
            (None, Some(kept)) => SHARED_BYTES + block_bytes + kept.undo.len() as u64,
            (None, None) => 0,
        }
    }

    /// The block's bytes, if it holds them.
    pub fn raw(&self) -> Option<&Arc<Vec<u8>>> {
        let pending = self.pending.as_ref().map(|(raw, _)| raw);
        pending.or(self.kept.as_ref().map(|kept| &kept.raw))
    }

    /// Waits for the scripts' verdict. Returns the data to keep, if any.
    pub fn wait(self) -> Result<Option<BlockUndoData>, ConnectFailure> {
        let Some((raw, verdict)) = self.pending else { return Ok(self.kept) };
        let Err(failure) = verdict.wait() else { return Ok(self.kept) };
        let mut layout = BlockLayout::new();
        let error = layout.read(&raw).ok().and_then(|view| ConnectError::of_script(view, &failure));
        Err(match error {
            Some(error) => {
                ConnectFailure::Refused(RefusedBlock { error, asked_before: Vec::new() })
            }
            None => ConnectFailure::Script(failure.reason()),
        })
    }
}

/// Why a block was refused or could not be validated.
#[derive(Debug)]
pub enum ConnectFailure {
    /// It breaks a rule.
    Refused(RefusedBlock),
    /// A script could not be run, which says nothing about the block.
    Script(String),
    /// Its scripts must be run, but this build has no interpreter.
    NoInterpreter(NoInterpreter),
    /// The block needs [stripped coins](super::StrippedCoin) and got a whole one; or its scripts must be run
    /// and it got stripped coins.
    Bare,
    /// An answer is not a coin, so its run is damaged.
    Answer(CoinError),
}

/// Validates blocks with the coins that they spend.
pub struct BlockConnector<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Runs scripts; `None` if no scripts are run.
    pub scripts: Option<&'a ScriptPool>,
    /// The key for summing the coins that a block spends, if blocks are kept.
    pub sum_key: Option<CoinSumKey>,
    /// The last block that gets [stripped coins](super::StrippedCoin).
    pub bare: Height,
}

impl BlockConnector<'_> {
    /// Validates a block. `stored` are the coins of its inputs, in stored form or stripped, up to the first
    /// input that has none; `existed` are outputs of the block that were in the set when the block began, as
    /// the join found them.
    pub fn block(
        &self,
        block: &SeenBlock<'_>,
        stored: &[&[u8]],
        existed: &[OutPoint],
        context: &ConnectContext<'_>,
    ) -> Result<ValidatedBlock, ConnectFailure> {
        let (id, view) = (block.id(), block.view());
        let asks = asks_for_bip30(self.params, id, context);
        let refused =
            |error, asked_before| ConnectFailure::Refused(RefusedBlock { error, asked_before });
        // Where no valid block can repeat a transaction, the join does not see all repeats, and need not.
        if asks && may_repeat(self.params) && !existed.is_empty() {
            let mut outputs = outputs_of(block.txs_with_ids()).into_iter();
            if let Some(output) = outputs.find(|(_, outpoint)| existed.contains(outpoint)) {
                return Err(refused(bip30_error(output), Vec::new()));
            }
        }
        let bare = id.height <= self.bare;
        if bare && (context.check_scripts || self.sum_key.is_some()) {
            return Err(ConnectFailure::Bare);
        }
        let mut whole = Vec::new();
        let coins: Vec<CoinRef<'_>> = if bare {
            let coins: Option<_> = stored.iter().map(|coin| StrippedCoin::read(coin)).collect();
            coins.ok_or(ConnectFailure::Bare)?
        } else {
            whole.reserve(stored.len());
            for coin in stored {
                whole.push(
                    read_coin_strict(&mut Reader::new(coin)).map_err(ConnectFailure::Answer)?,
                );
            }
            whole.iter().map(Coin::as_ref).collect()
        };
        let mut batch = match (self.scripts, context.check_scripts) {
            (_, false) => None,
            (Some(pool), true) => {
                Some(pool.begin(self.params.block_script_flags(id.height, &id.hash)))
            }
            (None, true) => return Err(ConnectFailure::NoInterpreter(NoInterpreter)),
        };
        let lasts = batch.is_some() || self.sum_key.is_some();
        let raw = lasts.then(|| Arc::new(view.raw().to_vec()));
        let unnamed = view.txs().map(|tx| (Txid::default(), tx));
        let passed = |index: usize, tx: &TxView<'_>, spends: Range<usize>| {
            if let (Some(batch), Some(raw)) = (&mut batch, &raw) {
                let raw =
                    RawTx::new(Arc::clone(raw) as _, tx.offset()..tx.offset() + tx.raw().len());
                batch.add(index, raw, stored[spends].iter().map(|it| CoinBytes::of(it)).collect());
            }
        };
        if check_with_coins(self.params, id, unnamed, context, &coins, passed).is_err() {
            // Check again with transaction ids, which the error message needs.
            let txs = block.txs_with_ids();
            let Err(error) = check_with_coins(self.params, id, txs, context, &coins, |_, _, _| ())
            else {
                unreachable!("no rule depends on a transaction id");
            };
            let outputs = if asks { outputs_of(block.txs_with_ids()) } else { Vec::new() };
            return Err(refused(error, outputs));
        }
        let keep = |(key, raw): (CoinSumKey, &Arc<Vec<u8>>)| BlockUndoData {
            raw: Arc::clone(raw),
            undo: block_undo(view, stored),
            spent: sum_of(key, block, stored),
        };
        let kept = self.sum_key.zip(raw.as_ref()).map(keep);
        let pending = raw.zip(batch.map(ScriptBatch::finish));
        Ok(ValidatedBlock { pending, kept })
    }
}

/// The sum of the coins that a block spends.
fn sum_of(key: CoinSumKey, block: &SeenBlock<'_>, coins: &[&[u8]]) -> CoinSum {
    let mut sum = CoinAdder::new(key);
    let inputs = block.view().txs().skip(1).flat_map(|tx| tx.inputs());
    inputs
        .zip(coins)
        .for_each(|(input, coin)| sum.add(&OutPoint::from_bytes(input.outpoint()), coin));
    sum.sum()
}

// [`Bip30Outputs`]: outputs of a refused block, and how the blocks below changed them.

/// Outputs to look up in the set.
pub struct Bip30Outputs(HashSet<OutPoint>);

impl Bip30Outputs {
    /// The outputs that Core would have looked up before it refused the block.
    pub fn of(refused: &RefusedBlock) -> Self {
        Self(refused.asked_before.iter().map(|(_, outpoint)| *outpoint).collect())
    }

    /// Whether there are no such outputs.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns which of these outputs a block creates (`true`) and spends (`false`), in block order. After all
    /// blocks in chain order, an output is in the set if it was created last and not spent since.
    pub fn touched(&self, block: &BlockBytes<'_>) -> Vec<(OutPoint, bool)> {
        let mut touched = Vec::new();
        for (number, (txid, tx)) in block.txs().enumerate() {
            let spent = tx.inputs().map(|input| (OutPoint::from_bytes(input.outpoint()), false));
            let made = coins_of(block.height(), txid, &tx, number == 0);
            let made = made.map(|(outpoint, _)| (outpoint, true));
            touched.extend(spent.chain(made).filter(|(outpoint, _)| self.0.contains(outpoint)));
        }
        touched
    }
}

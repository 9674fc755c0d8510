//! [`BlockJudge`]: a block with the coins that it spends, under every rule.
//!
//! The rules, their order and their names are those of the engine that connects blocks one after the
//! other; only where the coins come from is another matter. Blocks are judged in any order.

use crate::engines::mergesync::bare::BareCoin;
use crate::engines::mergesync::seen::SeenBlock;
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

/// A block that was refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedBlock {
    /// The rule that it breaks.
    pub error: ConnectError,
    /// Core would have asked before whether any of these outputs of the block, all it has, is in the set
    /// already (BIP-30); the first that is would have been the reason. Nothing is known of them here. Each
    /// with the index of its transaction.
    pub asked_before: Vec<(usize, OutPoint)>,
}

impl RefusedBlock {
    /// The rule that it breaks, where `exists` says of an output whether it was in the set when the
    /// block began.
    pub fn told(self, mut exists: impl FnMut(&OutPoint) -> bool) -> ConnectError {
        let found = self.asked_before.into_iter().find(|(_, outpoint)| exists(outpoint));
        found.map_or(self.error, bip30_error)
    }
}

/// What is kept of a block that is valid.
#[derive(Debug, Clone)]
pub struct Kept {
    /// Its bytes.
    pub raw: Arc<Vec<u8>>,
    /// Its undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: Vec<u8>,
    /// The sum of all coins that it spends.
    pub spent: CoinSum,
}

/// A block that passed everything but its scripts.
#[must_use]
pub struct Judged {
    /// There where scripts are run.
    pending: Option<(Arc<Vec<u8>>, Verdict)>,
    kept: Option<Kept>,
}

impl Judged {
    /// A block whose [claims](super::Claims) its coins allow, of which nothing is kept and whose scripts are taken
    /// for valid.
    pub const fn by_claims() -> Self {
        Self { pending: None, kept: None }
    }

    /// Memory that it takes beside the value itself, in bytes, where its block has so many.
    pub fn memory_bytes(&self, block_bytes: u64) -> u64 {
        match (&self.pending, &self.kept) {
            // The coins that wait for their scripts take about as much as the block.
            (Some(_), _) => 2 * block_bytes,
            (None, Some(kept)) => block_bytes + kept.undo.len() as u64,
            (None, None) => 0,
        }
    }

    /// The block's bytes, where it holds them.
    pub fn raw(&self) -> Option<&Arc<Vec<u8>>> {
        let pending = self.pending.as_ref().map(|(raw, _)| raw);
        pending.or(self.kept.as_ref().map(|kept| &kept.raw))
    }

    /// Waits for the scripts' verdict. What is to be kept.
    pub fn wait(self) -> Result<Option<Kept>, JudgeError> {
        let Some((raw, verdict)) = self.pending else { return Ok(self.kept) };
        let Err(failure) = verdict.wait() else { return Ok(self.kept) };
        let mut layout = BlockLayout::new();
        let error = layout.read(&raw).ok().and_then(|view| ConnectError::of_script(view, &failure));
        Err(match error {
            Some(error) => JudgeError::Refused(RefusedBlock { error, asked_before: Vec::new() }),
            None => JudgeError::Script(failure.reason()),
        })
    }
}

/// Why a block could not be judged, or was refused.
#[derive(Debug)]
pub enum JudgeError {
    /// It breaks a rule.
    Refused(RefusedBlock),
    /// A script could not be run, which says nothing of the block.
    Script(String),
    /// Its scripts are to be run, and nothing can run them.
    NoInterpreter(NoInterpreter),
    /// Its coins are to be [bare](super::BareCoin), and one is not; or they are, and their scripts are wanted.
    Bare,
    /// An answer is no coin, so that the run which it came from is damaged.
    Answer(CoinError),
}

/// See the module.
pub struct BlockJudge<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// Runs scripts; none where none are to be run.
    pub scripts: Option<&'a ScriptPool>,
    /// Under which the coins are added up that a block spends, where blocks are kept.
    pub sum_key: Option<CoinSumKey>,
    /// The last block whose coins come [bare](super::BareCoin).
    pub bare: Height,
}

impl BlockJudge<'_> {
    /// Judges a block. `stored` are the coins of its inputs in their stored form, or bare, up to the first that has none;
    /// `existed` are outputs of it that were in the set when the block began, as the join
    /// found them.
    pub fn block(
        &self,
        block: &SeenBlock<'_>,
        stored: &[&[u8]],
        existed: &[OutPoint],
        context: &ConnectContext<'_>,
    ) -> Result<Judged, JudgeError> {
        let (id, view) = (block.id(), block.view());
        let asks = asks_for_bip30(self.params, id, context);
        let refused =
            |error, asked_before| JudgeError::Refused(RefusedBlock { error, asked_before });
        // Where no valid block repeats one, the join does not see all of them, and need not.
        if asks && may_repeat(self.params) && !existed.is_empty() {
            let mut outputs = outputs_of(block.txs_with_ids()).into_iter();
            if let Some(output) = outputs.find(|(_, outpoint)| existed.contains(outpoint)) {
                return Err(refused(bip30_error(output), Vec::new()));
            }
        }
        let bare = id.height <= self.bare;
        if bare && (context.check_scripts || self.sum_key.is_some()) {
            return Err(JudgeError::Bare);
        }
        let mut whole = Vec::new();
        let coins: Vec<CoinRef<'_>> = if bare {
            let coins: Option<_> = stored.iter().map(|coin| BareCoin::read(coin)).collect();
            coins.ok_or(JudgeError::Bare)?
        } else {
            whole.reserve(stored.len());
            for coin in stored {
                whole.push(read_coin_strict(&mut Reader::new(coin)).map_err(JudgeError::Answer)?);
            }
            whole.iter().map(Coin::as_ref).collect()
        };
        let mut batch = match (self.scripts, context.check_scripts) {
            (_, false) => None,
            (Some(pool), true) => {
                Some(pool.begin(self.params.block_script_flags(id.height, &id.hash)))
            }
            (None, true) => return Err(JudgeError::NoInterpreter(NoInterpreter)),
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
            // Once more, with the names that the reason has.
            let txs = block.txs_with_ids();
            let Err(error) = check_with_coins(self.params, id, txs, context, &coins, |_, _, _| ())
            else {
                unreachable!("no rule depends on an id");
            };
            let outputs = if asks { outputs_of(block.txs_with_ids()) } else { Vec::new() };
            return Err(refused(error, outputs));
        }
        let keep = |(key, raw): (CoinSumKey, &Arc<Vec<u8>>)| Kept {
            raw: Arc::clone(raw),
            undo: block_undo(view, stored),
            spent: sum_of(key, block, stored),
        };
        let kept = self.sum_key.zip(raw.as_ref()).map(keep);
        let pending = raw.zip(batch.map(ScriptBatch::finish));
        Ok(Judged { pending, kept })
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

// [`AskedOutputs`]: outputs of a refused block, and what blocks below it did to them.

/// Outputs of which it is asked whether they are in the set.
pub struct AskedOutputs(HashSet<OutPoint>);

impl AskedOutputs {
    /// Those that Core would have asked for before it refused a block.
    pub fn of(refused: &RefusedBlock) -> Self {
        Self(refused.asked_before.iter().map(|(_, outpoint)| *outpoint).collect())
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Which of them a block makes (true) and spends, in its order. After all blocks in theirs, the one
    /// that was made last and not spent is in the set.
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

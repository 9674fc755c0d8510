//! [`BlockConnector`]: validates a block with the coins that it spends, under every rule.
//!
//! The rules, their order and their names are the same as in the in-order engine; only the source of the
//! coins differs. Blocks are validated in any order.

use crate::engines::mergesync::seen::SeenBlock;
use crate::engines::mergesync::spend_summary::SpendSummary;
use crate::engines::mergesync::stripped::{IndexedCoin, StrippedCoin};
use apus_chain::{
    BlockLayout, Coin, CoinAdder, CoinError, CoinRef, CoinSum, CoinSumKey, HeaderChain, Height,
    OutPoint, Params, Reader, TxView, Txid, read_coin_strict,
};
use apus_engine::coin::CoinBytes;
use apus_engine::connect::rules::{
    asks_for_bip30, bip30_error, check_with_coins, may_repeat, outputs_of,
};
use apus_engine::connect::undo::block_undo;
use apus_engine::connect::{ConnectContext, ConnectError};
use apus_engine::script::{NoInterpreter, RawTx, ScriptBatch, ScriptPool, Verdict};
use core::ops::Range;
use std::collections::BTreeMap;
use std::sync::Arc;

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
            Some(error) => ConnectFailure::Refused(error),
            None => ConnectFailure::Script(failure.reason()),
        })
    }
}

/// Why a block was refused or could not be validated.
#[derive(Debug)]
pub enum ConnectFailure {
    /// It breaks a rule.
    Refused(ConnectError),
    /// A script could not be run, which says nothing about the block.
    Script(String),
    /// Its scripts must be run, but this build has no interpreter.
    NoInterpreter(NoInterpreter),
    /// The block needs [stripped coins](super::StrippedCoin) and got a whole one; or its scripts must be run
    /// and it got stripped coins; or its coins lack their numbers.
    Bare,
    /// An answer is not a coin, so its run is damaged.
    Answer(CoinError),
}

/// Validates blocks with the coins that the join found for them.
pub struct BlockConnector<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// The chain.
    pub chain: &'a HeaderChain,
    /// Outputs that were in the set when the block that creates them began, as the join found them.
    pub existed: &'a BTreeMap<Height, Vec<OutPoint>>,
    /// Runs scripts; `None` if no scripts are run.
    pub scripts: Option<&'a ScriptPool>,
    /// The last block whose scripts are assumed valid.
    pub assumed: Height,
    /// The key for summing the coins that a block spends, if blocks are kept.
    pub sum_key: Option<CoinSumKey>,
    /// The last block that gets [stripped coins](super::StrippedCoin).
    pub bare: Height,
    /// Whether other coins are followed by their numbers.
    pub numbered: bool,
}

impl BlockConnector<'_> {
    /// Whether a block passes by its spend summary, so that it need not be read again.
    pub fn allows<'c>(
        &self,
        height: Height,
        claims: &SpendSummary<'_>,
        coins: impl Iterator<Item = &'c [u8]>,
    ) -> bool {
        self.sum_key.is_none()
            && height <= self.assumed
            && !self.existed.contains_key(&height)
            && claims.allowed(self.params, height, self.chain, coins)
    }

    /// Validates a block. `coins` are those of its inputs, up to the first input that has none.
    pub fn block<'c>(
        &self,
        block: &SeenBlock<'_>,
        coins: impl Iterator<Item = &'c [u8]>,
    ) -> Result<ValidatedBlock, ConnectFailure> {
        let (id, view) = (block.id(), block.view());
        let context =
            &ConnectContext { ancestry: self.chain, check_scripts: id.height > self.assumed };
        let bare = id.height <= self.bare;
        let stored: Vec<&[u8]> = match self.numbered && !bare {
            true => {
                let coins = coins.map(|coin| Some(IndexedCoin::read(coin)?.coin));
                coins.collect::<Option<_>>().ok_or(ConnectFailure::Bare)?
            }
            false => coins.collect(),
        };
        // Where no valid block can repeat a transaction, the join does not see all repeats, and need not.
        let is_asked = may_repeat(self.params) && asks_for_bip30(self.params, id, context);
        if let Some(existed) = self.existed.get(&id.height).filter(|_| is_asked) {
            let mut outputs = outputs_of(block.txs_with_ids()).into_iter();
            if let Some(output) = outputs.find(|(_, outpoint)| existed.contains(outpoint)) {
                return Err(ConnectFailure::Refused(bip30_error(output)));
            }
        }
        if bare && (context.check_scripts || self.sum_key.is_some()) {
            return Err(ConnectFailure::Bare);
        }
        let mut whole = Vec::new();
        let coins: Vec<CoinRef<'_>> = if bare {
            let coins: Option<_> = stored.iter().map(|coin| StrippedCoin::read(coin)).collect();
            coins.ok_or(ConnectFailure::Bare)?
        } else {
            whole.reserve(stored.len());
            for coin in &stored {
                let coin = read_coin_strict(&mut Reader::new(coin));
                whole.push(coin.map_err(ConnectFailure::Answer)?);
            }
            whole.iter().map(Coin::as_ref).collect()
        };
        let mut batch = match (self.scripts, context.check_scripts) {
            (_, false) => None,
            (Some(pool), true) => {
                Some(pool.begin(id, self.params.block_script_flags(id.height, &id.hash)))
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
            return Err(ConnectFailure::Refused(error));
        }
        let keep = |(key, raw): (CoinSumKey, &Arc<Vec<u8>>)| BlockUndoData {
            raw: Arc::clone(raw),
            undo: block_undo(view, &stored),
            spent: sum_of(key, block, &stored),
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

//! The rules of connecting a block, in the order of Core's `ConnectBlock` (`validation.cpp`).
//!
//! The first error found has the same name as in Core. Scripts are only added to a batch; their
//! verdict comes later. This module changes nothing: the block's effect is already known, and only
//! its validity is checked.

use crate::coin::CoinBytes;
use crate::connect::ConnectContext;
use crate::connect::prepared::{Place, PreparedBlock};
use crate::script::{RawBlock, RawTx, ScriptBatch, ScriptFailure};
use apus_chain::{
    BlockTotals, BlockView, Coin, CoinRef, Height, KnownBlock, OutPoint, Params, ScriptError,
    SpendError, TxView, Txid, check_sequence_locks, check_tx_inputs, transaction_sigop_cost,
};
use core::ops::Range;
use std::sync::Arc;

/// The coins that a block spends, in input order, up to the first missing one.
pub struct BlockPrevouts {
    /// The coins, in input order.
    pub coins: Vec<CoinBytes>,
}

impl BlockPrevouts {
    /// Takes the wanted coins from `look_up`, by their index among the wanted coins.
    pub fn gather<E>(
        block: &PreparedBlock,
        mut look_up: impl FnMut(usize) -> Result<Option<CoinBytes>, E>,
    ) -> Result<Self, E> {
        let mut coins = Vec::with_capacity(block.places().len());
        let mut own = block.own().iter();
        for (input, place) in block.places().iter().enumerate() {
            let coin = match place {
                _ if block.unavailable() == Some(input) => None,
                Place::Wanted(index) => look_up(*index as usize)?,
                Place::Created { .. } => own.next().map(|(_, coin)| coin.clone()),
            };
            match coin {
                Some(coin) => coins.push(coin),
                None => break,
            }
        }
        Ok(Self { coins })
    }
}

/// Returns whether Core looks up the outputs of a block in the set before anything else (BIP-30;
/// Core `validation.cpp`, `ConnectBlock`).
pub fn asks_for_bip30(params: &Params, id: KnownBlock, context: &ConnectContext<'_>) -> bool {
    let below = params.bip34_height < id.height;
    let at_bip34_height = below.then(|| context.ancestry.hash(params.bip34_height)).flatten();
    params.enforces_bip30(id.height, &id.hash, at_bip34_height.as_ref())
}

/// Returns whether a valid block may repeat the outputs of an earlier one.
///
/// If every block after genesis states its height (BIP-34), no two coinbases are equal, and so no
/// two transactions are: each spends coins that exist once. Core still queries the set on chains
/// whose BIP-34 block it does not know. It only finds outputs for blocks that are invalid anyway,
/// and then reports that as the reject reason.
pub const fn may_repeat(params: &Params) -> bool {
    params.bip34_height > 1
}

/// Returns every output of a block, for look-up in the set, with the index of its transaction.
pub fn outputs_of<'b>(txs: impl Iterator<Item = (Txid, TxView<'b>)>) -> Vec<(usize, OutPoint)> {
    let outputs = txs.enumerate().flat_map(|(index, (txid, tx))| {
        (0..tx.outputs().len() as u32).map(move |vout| (index, OutPoint { txid, vout }))
    });
    outputs.collect()
}

/// Returns the error for an output that already exists.
pub fn bip30_error((tx, outpoint): (usize, OutPoint)) -> ConnectError {
    SpendError::Bip30 { tx, txid: outpoint.txid, outpoint }.into()
}

/// Checks everything except scripts, and adds those to `scripts`.
pub fn check(
    params: &Params,
    block: &Arc<PreparedBlock>,
    context: &ConnectContext<'_>,
    spent: &BlockPrevouts,
    mut scripts: Option<&mut ScriptBatch>,
) -> Result<(), ConnectError> {
    let read: Vec<Coin<'_>> = spent.coins.iter().map(CoinBytes::coin).collect();
    let coins: Vec<CoinRef<'_>> = read.iter().map(Coin::as_ref).collect();
    let bytes = block.block().bytes();
    check_with_coins(params, block.id(), bytes.txs(), context, &coins, |index, tx, spends| {
        if let Some(scripts) = scripts.as_deref_mut() {
            let raw: Arc<dyn RawBlock> = Arc::clone(block) as _;
            let raw = RawTx::new(raw, tx.offset()..tx.offset() + tx.raw().len());
            scripts.add(index, raw, spent.coins[spends].to_vec());
        }
    })
}

/// Checks everything except scripts. `coins` are the coins of the inputs in order, up to the first
/// missing one. Calls `passed` for each valid transaction except the coinbase, with the range of
/// its coins.
pub fn check_with_coins<'b>(
    params: &Params,
    id: KnownBlock,
    txs: impl Iterator<Item = (Txid, TxView<'b>)>,
    context: &ConnectContext<'_>,
    coins: &[CoinRef<'_>],
    mut passed: impl FnMut(usize, &TxView<'b>, Range<usize>),
) -> Result<(), ConnectError> {
    let flags = params.block_script_flags(id.height, &id.hash);
    let csv = id.height >= params.csv_height;
    let mut totals = BlockTotals::new();
    let mut coinbase = None;
    let mut first = 0;
    for (index, (txid, tx)) in txs.enumerate() {
        let mut range = first..first;
        if index > 0 {
            range.end = coins.len().min(first + tx.inputs().len());
            if range.len() < tx.inputs().len() {
                let vin = range.len();
                let input = tx.inputs().nth(vin).expect("the transaction has more inputs");
                let outpoint = OutPoint::from_bytes(input.outpoint());
                return Err(SpendError::MissingOrSpent { tx: index, txid, vin, outpoint }.into());
            }
            first = range.end;
            let coins = &coins[range.clone()];
            let fee = check_tx_inputs(&tx, index, txid, coins, id.height)?;
            totals.add_fee(index, txid, fee)?;
            let heights = |vin: usize| coins.get(vin).map_or(Height::MAX, |coin| coin.height);
            if !check_sequence_locks(&tx, heights, context.ancestry, id.height, csv) {
                return Err(SpendError::NonFinal { tx: index, txid }.into());
            }
        }
        let locks = coins[range.clone()].iter().map(|coin| coin.script);
        totals.add_sigop_cost(index, txid, transaction_sigop_cost(&tx, locks, flags))?;
        match index {
            0 => coinbase = Some(tx),
            _ => passed(index, &tx, range),
        }
    }
    if let Some(coinbase) = coinbase {
        totals.check_coinbase(&coinbase, id.height, params)?;
    }
    Ok(())
}

// [`ConnectError`]: a rule that a block violates, given the coins that it spends.

/// A rule that a block violates, found when connecting it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ConnectError {
    /// It violates a rule about spent coins or amounts.
    #[error("{0}")]
    Spend(#[from] SpendError),
    /// A script does not allow a spend.
    #[error("transaction {tx} ({txid}), input {vin}: {reason}")]
    Script {
        /// Index of the transaction in the block.
        tx: usize,
        /// Its id.
        txid: Txid,
        /// Index of the input.
        vin: usize,
        /// Core's reject reason.
        reason: String,
    },
}

impl ConnectError {
    /// Returns the error for a script's failure, or `None` if the script could not be run.
    pub fn of_script(block: BlockView<'_>, failure: &ScriptFailure) -> Option<Self> {
        if failure.error != ScriptError::Invalid {
            return None;
        }
        Some(Self::Script {
            tx: failure.tx_index,
            txid: block.tx(failure.tx_index).map(|tx| tx.txid()).unwrap_or_default(),
            vin: failure.input,
            reason: failure.reason(),
        })
    }

    /// Returns the error with Core's reject reason once, in brackets.
    pub fn with_reason(&self) -> String {
        match self {
            Self::Spend(error) => format!("{error} [{}]", error.reason()),
            Self::Script { tx, txid, vin, reason } => {
                format!("transaction {tx} ({txid}), input {vin}: its script fails [{reason}]")
            }
        }
    }

    /// Returns Core's reject reason (`validation.cpp`, `ConnectBlock`).
    pub fn reject_reason(&self) -> String {
        match self {
            Self::Spend(error) => error.reason().to_owned(),
            Self::Script { reason, .. } => reason.clone(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{Ancestry, BlockChecker, BlockContext, BlockHash, Network};

    /// A chain whose blocks all have the same hash.
    struct UniformChain(BlockHash);

    impl Ancestry for UniformChain {
        fn hash(&self, _: Height) -> Option<BlockHash> {
            Some(self.0)
        }

        fn median_time_past(&self, _: Height) -> Option<u32> {
            None
        }
    }

    /// Core looks for the BIP-34 block among the blocks below, so the set is still queried for that
    /// block itself.
    #[test]
    fn bip30_is_checked_up_to_the_known_block_of_bip34() {
        let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/main-blocks");
        let name = "277647_0000000000000000054a714";
        let mut files = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        let path = files.find(|path| {
            let file = path.file_name().unwrap().to_string_lossy();
            file.starts_with(name) && file.ends_with(".raw")
        });
        let raw = std::fs::read(path.unwrap()).unwrap();
        let (known, other) = (BlockHash([7; 32]), BlockHash([8; 32]));
        let asked = |bip34_height: Height, at_bip34_height: BlockHash| {
            let main = Params::of(Network::Main);
            let params = Params { bip34_height, bip34_hash: Some(known), ..main.clone() };
            let context = BlockContext {
                params: &params,
                height: 277_647,
                hash: BlockHash(apus_hash::sha256d(&raw[..80])),
                median_time_past: u32::MAX,
                verifier: None,
            };
            let block = BlockChecker::new().check_owned(raw.clone(), &context).unwrap();
            let block = PreparedBlock::new(&params, block);
            let ancestry = UniformChain(at_bip34_height);
            let context = ConnectContext { ancestry: &ancestry, check_scripts: false };
            asks_for_bip30(&params, block.id(), &context)
        };
        assert!(!asked(200_000, known));
        assert!(!asked(277_646, known));
        assert!(asked(277_647, known));
        assert!(asked(277_648, known));
        assert!(asked(200_000, other), "another chain");
    }
}

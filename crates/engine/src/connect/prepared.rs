//! [`PreparedBlock`]: a checked block with everything that can be computed before its coins are
//! known.
//!
//! The block alone determines what it creates and spends, which inputs spend its own outputs, and
//! which inputs cannot have a coin in any set. So this is computed where blocks are
//! checked, on any thread, and leaves little work to the one thread that connects blocks in order.

use crate::coin::CoinBytes;
use crate::connect::delta::{CoinChange, CoinsDelta};
use crate::script::RawBlock;
use crate::tx_table::TxTable;
use apus_chain::{
    BlockBytes, CheckedBlock, CoinAdder, CoinRef, CoinSum, CoinSumKey, KnownBlock, OutPoint,
    Params, TxView, Txid, is_unspendable,
};
use std::sync::Arc;

/// A checked block, ready to be connected.
#[derive(Debug)]
pub struct PreparedBlock {
    block: CheckedBlock,
    wanted: Vec<OutPoint>,
    places: Vec<Place>,
    /// Coins created and spent in this block, with the index of the spending input, ascending.
    own: Vec<(usize, CoinBytes)>,
    unavailable: Option<usize>,
    delta: Arc<CoinsDelta>,
    counts: BlockCounts,
    sums: Option<BlockSums>,
}

/// The counts of a block's parts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Size in bytes.
    pub bytes: u64,
    /// Number of transactions, including the coinbase.
    pub transactions: u64,
    /// Number of inputs that spend a coin.
    pub inputs: u64,
    /// Number of outputs, including unspendable ones.
    pub outputs: u64,
}

impl PreparedBlock {
    /// Computes the effect of `block` on a set of coins.
    pub fn new(params: &Params, block: CheckedBlock) -> Self {
        let bytes = block.bytes();
        let view = bytes.view();
        let (mut wanted, mut places) = (Vec::new(), Vec::new());
        wanted_of(&bytes, &mut wanted, &mut places);
        let counts = BlockCounts {
            bytes: view.raw().len() as u64,
            transactions: view.tx_count() as u64,
            inputs: places.len() as u64,
            outputs: view.output_count() as u64,
        };
        let repeats = params.is_bip30_repeat(block.height(), &block.hash());
        let effect = Effect::of(&bytes, &places, repeats);
        let Effect { delta, own, unavailable, .. } = effect;
        let (delta, sums) = (Arc::new(delta), None);
        Self { wanted, places, own, unavailable, delta, counts, sums, block }
    }

    /// Like [`new`](Self::new), and computes the sums under this key in advance for a `Chainstate`
    /// that maintains a sum.
    pub fn with_sums(params: &Params, block: CheckedBlock, key: &CoinSumKey) -> Self {
        let mut prepared = Self::new(params, block);
        prepared.sums = Some(prepared.work_out_sums(key));
        prepared
    }

    /// Returns the sums of the coins that depend on the block alone.
    pub fn sums(&self, key: &CoinSumKey) -> BlockSums {
        self.sums.unwrap_or_else(|| self.work_out_sums(key))
    }

    fn work_out_sums(&self, key: &CoinSumKey) -> BlockSums {
        let mut own = CoinAdder::new(*key);
        let bytes = self.block.bytes();
        let mut inputs = bytes.txs().skip(1).flat_map(|(_, tx)| tx.inputs()).enumerate();
        for (at, coin) in &self.own {
            if let Some((_, input)) = inputs.find(|(input, _)| input == at) {
                own.add(&OutPoint::from_bytes(input.outpoint()), coin.as_bytes());
            }
        }
        BlockSums { created: created(key, &self.delta), own: own.sum() }
    }

    /// Returns the block.
    pub fn block(&self) -> &CheckedBlock {
        &self.block
    }

    /// Returns its height and hash.
    pub fn id(&self) -> KnownBlock {
        KnownBlock { height: self.block.height(), hash: self.block.hash() }
    }

    /// Returns the counts of its parts.
    pub fn counts(&self) -> BlockCounts {
        self.counts
    }

    /// Returns the memory in use in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let own: usize = self.own.iter().map(|(_, coin)| coin.heap_bytes()).sum();
        let lists = self.wanted.capacity() * size_of::<OutPoint>()
            + self.places.capacity() * size_of::<Place>()
            + self.own.capacity() * size_of::<(usize, CoinBytes)>();
        (size_of::<Self>() + lists + own) as u64
            + self.block.memory_bytes()
            + self.delta.memory_bytes()
    }

    /// Returns the coins that it needs and does not create itself, in block order.
    pub fn wanted(&self) -> &[OutPoint] {
        &self.wanted
    }

    /// Returns the source of each input's coin, in block order and without the coinbase.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Returns the coins created and spent in this block, with the index of the spending input.
    pub fn own(&self) -> &[(usize, CoinBytes)] {
        &self.own
    }

    /// Returns the first input that spends an outpoint already spent in this block, or an output of
    /// this block that is not a coin: no coin can exist for it.
    pub fn unavailable(&self) -> Option<usize> {
        self.unavailable
    }

    /// Returns the block's effect, if it is valid.
    pub fn delta(&self) -> &Arc<CoinsDelta> {
        &self.delta
    }
}

impl RawBlock for PreparedBlock {
    fn raw(&self) -> &[u8] {
        self.block.bytes().view().raw()
    }
}

/// A block's effect, while its transactions are processed.
struct Effect {
    delta: CoinsDelta,
    own: Vec<(usize, CoinBytes)>,
    unavailable: Option<usize>,
    /// Number of inputs so far.
    inputs: usize,
}

impl Effect {
    /// Computes a block's effect. `repeats` is true if its coinbase overwrites an unspent one (BIP-30).
    fn of(block: &BlockBytes<'_>, places: &[Place], repeats: bool) -> Self {
        let outputs = block.view().output_count();
        let delta = CoinsDelta::with_capacity(places.len() + outputs);
        let mut effect = Self { delta, own: Vec::new(), unavailable: None, inputs: 0 };
        for (index, (txid, tx)) in block.txs().enumerate() {
            let coinbase = index == 0;
            if !coinbase {
                for input in tx.inputs() {
                    effect.spend(OutPoint::from_bytes(input.outpoint()), places);
                }
            }
            effect.create(block.height(), txid, &tx, coinbase, !(coinbase && repeats));
        }
        effect
    }

    fn spend(&mut self, outpoint: OutPoint, places: &[Place]) {
        let input = self.inputs;
        self.inputs += 1;
        let here = self.delta.get(&outpoint);
        match (places[input], here) {
            (Place::Wanted(_), None) => {}
            (Place::Created { .. }, Some(Some(coin))) => self.own.push((input, coin.clone())),
            _ => {
                self.unavailable = self.unavailable.or(Some(input));
                return;
            }
        }
        self.delta.spend(outpoint);
    }

    fn create(&mut self, height: u32, txid: Txid, tx: &TxView<'_>, coinbase: bool, fresh: bool) {
        for (outpoint, coin) in coins_of(height, txid, tx, coinbase) {
            self.delta.create(outpoint, CoinBytes::new(coin), fresh);
        }
    }
}

/// Returns the coins that a transaction of a checked block creates: its spendable outputs.
pub fn coins_of<'b>(
    height: u32,
    txid: Txid,
    tx: &TxView<'b>,
    coinbase: bool,
) -> impl Iterator<Item = (OutPoint, CoinRef<'b>)> + use<'b> {
    let spendable = tx.outputs().enumerate().filter(|(_, output)| !is_unspendable(output.script()));
    spendable.map(move |(vout, output)| {
        // The block was checked, so no amount is negative.
        let amount = output.value() as u64;
        let coin = CoinRef { height, coinbase, amount, script: output.script() };
        (OutPoint { txid, vout: vout as u32 }, coin)
    })
}

// The sum of a chainstate's coins, updated from block to block.
//
// Coins that a block creates and leaves unspent are added. Coins that it takes from the set are subtracted
// as they were fetched: if a store returns a different coin from the one that was stored, the sum
// matches no set. Coins created and spent within a block are in no set, and in no sum.

/// The sums that depend on the block alone.
#[derive(Debug, Clone, Copy)]
pub struct BlockSums {
    /// The coins that it creates and leaves unspent.
    pub created: CoinSum,
    /// The coins that it creates and spends itself.
    pub own: CoinSum,
}

/// The change of the sums by a block, once its coins are known.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockChange {
    /// The change of the set's sum.
    pub set: CoinSum,
    /// The coins that it takes from the set; they return if the block is undone.
    pub taken: CoinSum,
    /// All coins that it spends, including its own: the coins of its undo data.
    pub spent: CoinSum,
}

/// The sum of a set, updated along a chain.
#[derive(Debug, Clone, Copy)]
pub struct RunningSum {
    /// The key of the sum.
    pub key: CoinSumKey,
    /// The sum of all coins of the set.
    pub sum: CoinSum,
}

impl RunningSum {
    /// Starts adding up the coins that a block takes from the set.
    pub fn taken(&self) -> CoinAdder {
        CoinAdder::new(self.key)
    }

    /// Returns the change by a block that takes coins with the sum `taken` from the set.
    pub fn change(&self, block: &PreparedBlock, taken: CoinSum) -> BlockChange {
        let BlockSums { created, own } = block.sums(&self.key);
        BlockChange { set: created.minus(taken), taken, spent: own.plus(taken) }
    }

    /// Returns the change of the set's sum when a block is disconnected. `taken` is the sum of the
    /// coins that come back. Coins in `lost` were overwritten before and are not subtracted again.
    pub fn back(
        &self,
        block: &CheckedBlock,
        undo: &CoinsDelta,
        taken: CoinSum,
        lost: &[OutPoint],
    ) -> CoinSum {
        let mut change = taken;
        for (index, (txid, tx)) in block.bytes().txs().enumerate() {
            for (outpoint, coin) in coins_of(block.height(), txid, &tx, index == 0) {
                if undo.get(&outpoint) == Some(None) && !lost.contains(&outpoint) {
                    change.sub(self.key.coin(&outpoint, CoinBytes::new(coin).as_bytes()));
                }
            }
        }
        change
    }
}

/// Returns the sum of the coins that exist after a change and did not before.
pub fn created(key: &CoinSumKey, delta: &CoinsDelta) -> CoinSum {
    let mut adder = CoinAdder::new(*key);
    for (outpoint, change) in delta.iter() {
        if let CoinChange::Created { coin, .. } = change {
            adder.add(outpoint, coin.as_bytes());
        }
    }
    adder.sum()
}

// An input may spend an output of an *earlier* transaction (`validation.cpp`, `ConnectBlock`:
// transactions are applied in order). If it names a later transaction's output, the coin does not
// exist yet, so it is looked up outside like any other.

/// The source of an input's coin.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It must be looked up: the index among the wanted coins.
    Wanted(u32),
    /// An earlier transaction of the block has such an output. The connector checks whether that
    /// became a coin and is still unspent.
    Created {
        /// Index of the transaction in the block.
        tx: u32,
        /// Index of the output in the transaction.
        vout: u32,
    },
}

/// Lists the coins that a block needs and does not create, in block order, in `wanted`; and the
/// source of each input's coin, in block order and without the coinbase, in `places`. Clears both
/// first.
pub fn wanted_of(block: &BlockBytes<'_>, wanted: &mut Vec<OutPoint>, places: &mut Vec<Place>) {
    wanted.clear();
    places.clear();
    places.reserve(block.view().input_count());
    let txs = block.view().tx_count();
    let (mut before, mut outputs) = (TxTable::new(txs), Vec::with_capacity(txs));
    for (txid, tx) in block.txs() {
        let coinbase = outputs.is_empty();
        for input in tx.inputs().filter(|_| !coinbase) {
            let outpoint = OutPoint::from_bytes(input.outpoint());
            let tx = before.find(&outpoint.txid);
            let place = match tx.filter(|tx| outpoint.vout < outputs[*tx as usize]) {
                Some(tx) => Place::Created { tx, vout: outpoint.vout },
                None => {
                    wanted.push(outpoint);
                    // A block has fewer inputs than bytes.
                    Place::Wanted(wanted.len() as u32 - 1)
                }
            };
            places.push(place);
        }
        before.add(txid);
        outputs.push(tx.outputs().len() as u32);
    }
}

#[cfg(test)]
mod tests;

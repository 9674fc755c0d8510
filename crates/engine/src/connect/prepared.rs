//! [`PreparedBlock`]: a checked block with all that can be known of it before its coins are.
//!
//! What a block creates and spends, which inputs are fed within it, and which of them can have no
//! coin whatever the set holds, depends on the block alone. So it is worked out where blocks are
//! checked, on any thread, and little is left to the one thread that connects them in order.

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
    /// Coins that are created and spent in this block, by the input that spends them, ascending.
    own: Vec<(usize, CoinBytes)>,
    unavailable: Option<usize>,
    delta: Arc<CoinsDelta>,
    counts: BlockCounts,
    sums: Option<BlockSums>,
}

/// How much there is in a block.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct BlockCounts {
    /// Its bytes.
    pub bytes: u64,
    /// Transactions, the coinbase included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
    pub outputs: u64,
}

impl PreparedBlock {
    /// Works out what `block` does to a set of coins.
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

    /// The same, with what a `Chainstate` needs that
    /// keeps a sum under this key, so that it has less to do.
    pub fn with_sums(params: &Params, block: CheckedBlock, key: &CoinSumKey) -> Self {
        let mut prepared = Self::new(params, block);
        prepared.sums = Some(prepared.work_out_sums(key));
        prepared
    }

    /// The sums of the coins that depend on the block alone.
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

    /// The block.
    pub fn block(&self) -> &CheckedBlock {
        &self.block
    }

    /// Its height and hash.
    pub fn id(&self) -> KnownBlock {
        KnownBlock { height: self.block.height(), hash: self.block.hash() }
    }

    /// How much there is in it.
    pub fn counts(&self) -> BlockCounts {
        self.counts
    }

    /// Memory that it takes, in bytes.
    pub fn memory_bytes(&self) -> u64 {
        let own: usize = self.own.iter().map(|(_, coin)| coin.heap_bytes()).sum();
        let lists = self.wanted.capacity() * size_of::<OutPoint>()
            + self.places.capacity() * size_of::<Place>()
            + self.own.capacity() * size_of::<(usize, CoinBytes)>();
        (size_of::<Self>() + lists + own) as u64
            + self.block.memory_bytes()
            + self.delta.memory_bytes()
    }

    /// The coins that it needs from outside, in block order.
    pub fn wanted(&self) -> &[OutPoint] {
        &self.wanted
    }

    /// Where the coin of each input comes from, in block order and without the coinbase's.
    pub fn places(&self) -> &[Place] {
        &self.places
    }

    /// Coins created and spent in this block, by the place of the input among all of them.
    pub fn own(&self) -> &[(usize, CoinBytes)] {
        &self.own
    }

    /// The first input that spends what an input before it spent, or an output of this block that
    /// is no coin: nothing can be there for it.
    pub fn unavailable(&self) -> Option<usize> {
        self.unavailable
    }

    /// What the block does, if it is valid.
    pub fn delta(&self) -> &Arc<CoinsDelta> {
        &self.delta
    }
}

impl RawBlock for PreparedBlock {
    fn raw(&self) -> &[u8] {
        self.block.bytes().view().raw()
    }
}

/// A block's effect while its transactions are gone through.
struct Effect {
    delta: CoinsDelta,
    own: Vec<(usize, CoinBytes)>,
    unavailable: Option<usize>,
    /// Inputs so far.
    inputs: usize,
}

impl Effect {
    /// `repeats`: the coinbase overwrites one that is unspent (BIP-30).
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

/// The coins that a transaction of a checked block makes: its outputs that can be spent.
pub fn coins_of<'b>(
    height: u32,
    txid: Txid,
    tx: &TxView<'b>,
    coinbase: bool,
) -> impl Iterator<Item = (OutPoint, CoinRef<'b>)> + use<'b> {
    let spendable = tx.outputs().enumerate().filter(|(_, output)| !is_unspendable(output.script()));
    spendable.map(move |(vout, output)| {
        // The block was checked: no amount is negative.
        let amount = output.value() as u64;
        let coin = CoinRef { height, coinbase, amount, script: output.script() };
        (OutPoint { txid, vout: vout as u32 }, coin)
    })
}

// The sum of the coins that a chain state is at, moved from block to block.
//
// What a block creates and leaves is added, what it takes from the set is taken away, as it was
// fetched: a store that gives another coin than the one that was put in makes a sum that no set has.
// Coins that are created and spent within a block are in no set, and in no sum.

/// What of a block's sums depends on the block alone.
#[derive(Debug, Clone, Copy)]
pub struct BlockSums {
    /// The coins that it creates and leaves.
    pub created: CoinSum,
    /// Those that it creates and spends.
    pub own: CoinSum,
}

/// What a block comes to once its coins are there.
#[derive(Debug, Clone, Copy, Default)]
pub struct BlockChange {
    /// What it adds to the sum of the set.
    pub set: CoinSum,
    /// The coins that it takes from the set: those that come back where the block is undone.
    pub taken: CoinSum,
    /// All coins that it spends, its own among them: those of its undo data.
    pub spent: CoinSum,
}

/// The sum of a set on its way along a chain.
#[derive(Debug, Clone, Copy)]
pub struct RunningSum {
    /// The key of the sum.
    pub key: CoinSumKey,
    /// The sum of all coins of the set.
    pub sum: CoinSum,
}

impl RunningSum {
    /// Begins to add up what a block takes from the set, coin by coin.
    pub fn taken(&self) -> CoinAdder {
        CoinAdder::new(self.key)
    }

    /// What a block comes to that takes coins from the set which come to `taken`.
    pub fn change(&self, block: &PreparedBlock, taken: CoinSum) -> BlockChange {
        let BlockSums { created, own } = block.sums(&self.key);
        BlockChange { set: created.minus(taken), taken, spent: own.plus(taken) }
    }

    /// What it adds to go back from a block, whose undo data come to `undo` and bring back coins that come to
    /// `taken`; those of the coins to go that were `lost` before went then.
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

/// The sum of the coins that are there after a change and were not before it.
pub fn created(key: &CoinSumKey, delta: &CoinsDelta) -> CoinSum {
    let mut adder = CoinAdder::new(*key);
    for (outpoint, change) in delta.iter() {
        if let CoinChange::Created { coin, .. } = change {
            adder.add(outpoint, coin.as_bytes());
        }
    }
    adder.sum()
}

// An input may spend an output of a transaction *before* its own (`validation.cpp`, `ConnectBlock`:
// transactions are applied one after the other). One that names a later transaction's output names
// a coin that is not there yet, so it is looked up outside like any other.

/// Where the coin of an input comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Place {
    /// It is looked up: the index among the wanted ones.
    Wanted(u32),
    /// A transaction before it in the block has such an output. Whether that became a coin, and
    /// whether something else has spent it since, is for the connector to see.
    Created {
        /// Index of the transaction in the block.
        tx: u32,
        /// Index of the output in it.
        vout: u32,
    },
}

/// Lists the coins that a block needs and does not create, in block order, into `wanted`; and for
/// each input, in block order and without the coinbase's, where its coin comes from, into `places`.
/// Both are emptied first.
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

//! Coins, flushes and comparisons for store tests.

use apus_chain::{BlockHash, CoinRef, Height, KnownBlock, MAX_MONEY, OutPoint, Txid};
use apus_engine::utxo::store::{EachChange, UndoRecord};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use apus_testkit::rng::Rng;
use std::collections::BTreeMap;

/// Changes in a map.
#[derive(Debug, Clone, Default)]
pub(crate) struct ChangeMap(pub(crate) BTreeMap<OutPoint, Option<CoinBytes>>);

impl Changes for ChangeMap {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, coin)| each(outpoint, coin.as_ref()))
    }
}

/// All data of a flush, owned.
#[derive(Debug, Clone)]
pub(crate) struct Step {
    pub(crate) tip: KnownBlock,
    pub(crate) changes: ChangeMap,
    pub(crate) undo: Vec<UndoRecord>,
    pub(crate) undo_from: Height,
}

impl Step {
    pub(crate) fn new(height: Height) -> Self {
        let (changes, undo) = (ChangeMap::default(), Vec::new());
        Self { tip: block(height), changes, undo, undo_from: 0 }
    }

    pub(crate) fn with(mut self, outpoint: OutPoint, coin: Option<CoinBytes>) -> Self {
        self.changes.0.insert(outpoint, coin);
        self
    }

    pub(crate) fn write(&self, store: &dyn CoinsStore) -> Result<(), StoreError> {
        let Self { tip, changes, undo, undo_from } = self;
        store.write(&Flush { tip: *tip, changes, undo, undo_from: *undo_from })
    }
}

/// Returns the block at a height in a chain with one block per height.
pub(crate) fn block(height: Height) -> KnownBlock {
    KnownBlock { height, hash: BlockHash(apus_hash::sha256(&height.to_le_bytes())) }
}

/// Returns one of a few outpoints that look like any other, so that they recur.
pub(crate) fn outpoint(number: u64) -> OutPoint {
    let txid = Txid(apus_hash::sha256(&(number / 4).to_le_bytes()));
    // Output numbers whose order as bytes differs from that of little-endian bytes.
    OutPoint { txid, vout: [0, 1, 255, 256][(number % 4) as usize] }
}

pub(crate) fn coin(rng: &mut Rng) -> CoinBytes {
    let length = if rng.one_in(20) { rng.index(3000) } else { rng.index(40) };
    let mut script = rng.bytes(length);
    // A script with this first byte is unspendable, and is never stored.
    if script.first() == Some(&0x6a) {
        script[0] = 0x51;
    }
    let (height, amount) = (rng.below(900_000) as u32, rng.below(MAX_MONEY + 1));
    CoinBytes::new(CoinRef { height, coinbase: rng.one_in(2), amount, script: &script })
}

pub(crate) fn undo(height: Height, rng: &mut Rng) -> UndoRecord {
    let length = if rng.one_in(4) { rng.index(100_000) } else { rng.index(300) };
    UndoRecord { block: block(height), bytes: rng.bytes(length).into() }
}

/// Creates a step with random changes of the first `names` outpoints.
pub(crate) fn random_step(height: Height, changes: u64, names: u64, rng: &mut Rng) -> Step {
    let mut step = Step::new(height);
    for _ in 0..changes {
        let coin = if rng.one_in(3) { None } else { Some(coin(rng)) };
        step.changes.0.insert(outpoint(rng.below(names)), coin);
    }
    step.undo.push(undo(height, rng));
    step.undo_from = height.saturating_sub(3);
    step
}

pub(crate) fn coins_of(store: &dyn CoinsStore) -> Result<Vec<(OutPoint, CoinBytes)>, StoreError> {
    let mut coins = Vec::new();
    store.for_each(&mut |outpoint, coin| {
        coins.push((*outpoint, coin.clone()));
        Ok(())
    })?;
    Ok(coins)
}

/// Fails unless both stores give the same answers, including about blocks below `heights`.
pub(crate) fn assert_same(store: &dyn CoinsStore, model: &dyn CoinsStore, heights: Height) {
    assert_eq!(store.tip().unwrap(), model.tip().unwrap());
    let coins = coins_of(store).unwrap();
    assert!(coins == coins_of(model).unwrap(), "the coins of {:?} differ", model.tip());
    assert!(coins.windows(2).all(|pair| pair[0].0 < pair[1].0), "coins out of order");
    for height in 0..heights {
        let hash = block(height).hash;
        assert!(store.undo(&hash).unwrap() == model.undo(&hash).unwrap(), "undo of {height}");
    }
}

//! [`Layers`]: pending blocks over the cache, as one view of the coins.

use apus_chain::OutPoint;
use apus_engine::coin::CoinBytes;
use apus_engine::connect::CoinsDelta;
use apus_engine::utxo::cache::CoinsCache;
use apus_engine::utxo::store::StoreError;
use apus_engine::utxo::view::{CoinsView, known_or_below};
use std::sync::Arc;

/// The effect of a block, numbered in the order of connecting.
#[derive(Clone)]
pub(super) struct Layer {
    pub(super) number: u64,
    pub(super) delta: Arc<CoinsDelta>,
}

/// A view of the cache as it will be once the pending blocks are applied. Its answers do not change while
/// they are being applied.
pub(super) struct Layers {
    /// Newest first.
    deltas: Vec<Arc<CoinsDelta>>,
    cache: Arc<CoinsCache>,
}

impl Layers {
    /// Creates the view; `pending` has the oldest layer first.
    pub(super) fn new(pending: &[Layer], cache: &Arc<CoinsCache>) -> Self {
        let deltas = pending.iter().rev().map(|layer| Arc::clone(&layer.delta)).collect();
        Self { deltas, cache: Arc::clone(cache) }
    }

    /// The state of a coin after the pending blocks, if any of them changed it.
    fn changed(&self, outpoint: &OutPoint) -> Option<Option<CoinBytes>> {
        self.deltas.iter().find_map(|delta| delta.get(outpoint)).map(|coin| coin.cloned())
    }
}

impl CoinsView for Layers {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.changed(outpoint).map_or_else(|| self.cache.coin(outpoint), Ok)
    }

    fn coins(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        known_or_below(wanted, |it| Ok(self.changed(it)), |rest| self.cache.coins(rest))
    }

    fn at_once(&self) -> usize {
        self.cache.at_once()
    }
}

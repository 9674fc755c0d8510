//! [`MadeUpCoins`]: coins that follow from their number, in a map, behind a time to wait.

use apus_chain::{CoinRef, OutPoint, Txid};
use apus_engine::utxo::{CoinBytes, CoinsView, StoreError};
use apus_testkit::rng::Rng;
use std::collections::HashMap;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

/// A map of coins.
pub struct MadeUpCoins(HashMap<OutPoint, CoinBytes>);

impl MadeUpCoins {
    /// Those with numbers below `count`.
    pub fn new(count: u32) -> Self {
        Self((0..count).map(|number| (outpoint(number), coin(number))).collect())
    }
}

impl CoinsView for MadeUpCoins {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.0.get(outpoint).cloned())
    }
}

/// Where the coin with a number is.
pub(crate) fn outpoint(number: u32) -> OutPoint {
    let mut txid = [0; 32];
    Rng::new(number.into()).fill(&mut txid);
    OutPoint { txid: Txid(txid), vout: number % 4 }
}

/// The coin with a number, as common ones are.
pub(crate) fn coin(number: u32) -> CoinBytes {
    let mut script = [0x51; 34];
    // Not at the beginning, where some numbers would make it one that no coin has.
    script[1..5].copy_from_slice(&number.to_le_bytes());
    let amount = u64::from(number) * 1000;
    CoinBytes::new(CoinRef { height: number % 1_000_000, coinbase: false, amount, script: &script })
}

/// Another view, each of whose look-ups waits first. Several threads wait side by side.
pub(super) struct Late {
    pub(super) view: Arc<dyn CoinsView>,
    pub(super) latency: Duration,
}

impl CoinsView for Late {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        thread::sleep(self.latency);
        self.view.coin(outpoint)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_number_has_a_coin_of_its_own() {
        let coins = MadeUpCoins::new(1000);
        assert_eq!(coins.0.len(), 1000);
        let late = Late { view: Arc::new(coins), latency: Duration::from_nanos(1) };
        for number in 0..1000 {
            let made = coin(number);
            assert_eq!(CoinBytes::read(made.as_bytes()), Ok(made.clone()));
            assert_eq!(late.coin(&outpoint(number)).unwrap(), Some(made));
        }
        assert_eq!(late.coin(&outpoint(1000)).unwrap(), None);
    }
}

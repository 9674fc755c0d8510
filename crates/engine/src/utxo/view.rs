//! [`CoinsView`]: a set of coins for look-ups, one or many at a time.

use super::store::{StoreError, each_once};
use crate::coin::CoinBytes;
use apus_chain::OutPoint;

/// A set of coins at one moment, shared by the threads that look coins up.
pub trait CoinsView: Send + Sync {
    /// Returns the coin, or `None` if it was never created or is spent.
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError>;

    /// Returns the coins of all of `wanted`, in that order.
    fn coins(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        wanted.iter().map(|outpoint| self.coin(outpoint)).collect()
    }

    /// Returns how many coins a caller should request in one call: 1 if batching saves nothing,
    /// more if the round trip dominates the cost.
    fn at_once(&self) -> usize {
        1
    }
}

/// Returns the answers of a view over another one: the coins that it knows itself, and the rest
/// from the one below. It queries the lower view once, for each coin once and by ascending outpoint, so that
/// a store finds the coins of one transaction next to each other, and reads its tables in order.
pub fn known_or_below(
    wanted: &[OutPoint],
    known: impl Fn(&OutPoint) -> Result<Option<Option<CoinBytes>>, StoreError>,
    below: impl FnOnce(&[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError>,
) -> Result<Vec<Option<CoinBytes>>, StoreError> {
    let mut rest = Vec::new();
    let mut coins = Vec::with_capacity(wanted.len());
    for (place, outpoint) in wanted.iter().enumerate() {
        let known = known(outpoint)?;
        if known.is_none() {
            rest.push((*outpoint, place));
        }
        coins.push(known.flatten());
    }
    if !rest.is_empty() {
        each_once(&mut rest, below, |place, coin| coins[place] = coin)?;
    }
    Ok(coins)
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::{CoinRef, Txid};
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn outpoint(name: u8) -> OutPoint {
        OutPoint { txid: Txid([name / 4; 32]), vout: u32::from(name % 4) }
    }

    /// One in three outpoints has no coin.
    fn coin(outpoint: &OutPoint) -> Option<CoinBytes> {
        let number = u32::from(outpoint.txid.0[0]) * 4 + outpoint.vout;
        let coin = CoinRef { height: number, coinbase: false, amount: 1, script: &[] };
        (!number.is_multiple_of(3)).then(|| CoinBytes::new(coin))
    }

    proptest! {
        #[test]
        fn the_view_below_gets_each_miss_once_and_in_order(
            names in vec(0u8..40, 0..100),
            layer in 0u8..40,
        ) {
            let wanted: Vec<_> = names.iter().map(|name| outpoint(*name)).collect();
            let known = |it: &OutPoint| Ok((*it < outpoint(layer)).then(|| coin(it)));
            let mut asked = Vec::new();
            let found = known_or_below(&wanted, known, |rest| {
                asked = rest.to_vec();
                Ok(rest.iter().map(coin).collect())
            });
            prop_assert_eq!(found.unwrap(), wanted.iter().map(coin).collect::<Vec<_>>());
            prop_assert!(asked.windows(2).all(|pair| pair[0] < pair[1]), "{:?}", asked);
            prop_assert!(asked.iter().all(|it| *it >= outpoint(layer) && wanted.contains(it)));
        }
    }

    #[test]
    fn missing_answers_are_an_error() {
        let wanted = [outpoint(1), outpoint(2)];
        let error = known_or_below(&wanted, |_| Ok(None), |_| Ok(vec![None])).unwrap_err();
        assert!(error.to_string().contains("1 answers for 2 look-ups"), "{error}");
    }
}

//! [`CoinsView`]: something that coins can be looked up in, one or many at a time.

use super::store::StoreError;
use crate::coin::CoinBytes;
use apus_chain::OutPoint;

/// A set of coins at one moment, shared by the threads that look things up.
pub trait CoinsView: Send + Sync {
    /// The coin, or none if it was never created or is spent.
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError>;

    /// The coins of all of `wanted`, in that order.
    fn coins(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        wanted.iter().map(|outpoint| self.coin(outpoint)).collect()
    }

    /// How many coins a caller that wants many should ask for with one call: 1 where each costs the
    /// same alone, more where the way there and back is what costs.
    fn at_once(&self) -> usize {
        1
    }
}

/// What a view over another one answers: what it knows itself, and the rest from the one below, which
/// is asked once.
pub(super) fn known_or_below(
    wanted: &[OutPoint],
    known: impl Fn(&OutPoint) -> Result<Option<Option<CoinBytes>>, StoreError>,
    below: impl FnOnce(&[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError>,
) -> Result<Vec<Option<CoinBytes>>, StoreError> {
    let (mut rest, mut places) = (Vec::new(), Vec::new());
    let mut coins = Vec::with_capacity(wanted.len());
    for (place, outpoint) in wanted.iter().enumerate() {
        let known = known(outpoint)?;
        if known.is_none() {
            rest.push(*outpoint);
            places.push(place);
        }
        coins.push(known.flatten());
    }
    if !rest.is_empty() {
        for (place, coin) in places.into_iter().zip(below(&rest)?) {
            coins[place] = coin;
        }
    }
    Ok(coins)
}

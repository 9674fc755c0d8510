//! [`CoinsView`]: something that coins can be looked up in.

use super::store::StoreError;
use crate::coin::CoinBytes;
use apus_chain::OutPoint;

/// A set of coins at one moment, shared by the threads that look things up.
pub trait CoinsView: Send + Sync {
    /// The coin, or none if it was never created or is spent.
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError>;
}

//! [`Seen`]: what a look-up beside a writer found.

use apus_chain::KnownBlock;
use apus_engine::utxo::{CoinBytes, StoreError};

/// Coins that are looked up with one way to the servers and back.
pub(crate) const AT_ONCE: usize = 500;

/// What a look-up found.
#[derive(Debug, Clone)]
pub struct Seen {
    /// The block that the store was at.
    pub tip: KnownBlock,
    /// The coins, in the order in which they were asked for; none where there is no such coin.
    pub coins: Vec<Option<CoinBytes>>,
}

/// The error where there is nothing to read.
pub(crate) fn no_store(place: &str) -> StoreError {
    StoreError::Io {
        place: place.to_owned(),
        error: "there are no coins under this name: see whether it is right; apus sync --coins and apus \
                coins copy make some"
            .to_owned(),
    }
}

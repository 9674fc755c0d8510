//! The classic engine: blocks in ascending height against a set of coins, with every rule checked.
//!
//! Coins are kept in a [store] on disk with a cache in front. A block is connected on a view of
//! both that changes nothing below it: its effect reaches the cache only once the block is known to
//! be valid, and the store only in flushes: each leaves the store at a block. Other
//! modules decide where blocks come from and which chain is best.

pub mod cache;
pub mod fetch;
pub mod store;
pub mod view;

pub use crate::coin::CoinBytes;
pub use crate::connect::{
    BlockCounts, CoinChange, CoinsDelta, ConnectContext, ConnectError, ConnectedBlock,
    PreparedBlock, UndoBytes,
};
pub use cache::{CacheStats, CoinsCache};
pub use store::{Changes, CoinsStore, Flush, StoreError};
pub use view::CoinsView;

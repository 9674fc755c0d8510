//! The classic engine: blocks in ascending height against a set of coins, every rule checked.
//!
//! Coins live in a [store] on disk with a cache in front. A block is connected on a view of
//! both that changes nothing beneath it: its effect reaches the cache only once the block's verdict
//! is known, and the store only in flushes that each leave it at a block. Where blocks come from
//! and which chain is the best one is not decided here.

pub mod cache;
pub mod fetch;
pub mod store;
pub mod view;

pub use crate::coin::CoinBytes;
pub use crate::connect::{
    BlockCounts, CoinChange, CoinsDelta, ConnectContext, ConnectError, Connected, PreparedBlock,
    UndoBytes,
};
pub use cache::{CacheStats, CoinsCache};
pub use store::{Changes, CoinsStore, Flush, StoreError};
pub use view::CoinsView;

//! The classic engine: blocks in ascending height against a set of coins, every rule checked.
//!
//! Coins live in a [store] on disk with a cache in front. A block is connected on a view of
//! both that changes nothing beneath it: its effect reaches the cache only once the block's verdict
//! is known, and the store only in flushes that each leave it at a block. Where blocks come from
//! and which chain is the best one is not decided here.

pub mod cache;
pub mod chainstate;
pub mod coin;
mod connect;
pub mod error;
pub mod fetch;
pub mod prepared;
pub mod store;
mod sums;
mod undo;
pub mod view;

pub use cache::{CacheStats, CoinChange, CoinsCache, CoinsDelta};
pub use chainstate::{Chainstate, ChainstateOptions, ConnectContext, Connected, Totals};
pub use coin::CoinBytes;
pub use error::{ChainstateError, ConnectError};
pub use prepared::{BlockCounts, PreparedBlock};
pub use store::{Changes, CoinsStore, Flush, StoreError};
pub use view::CoinsView;

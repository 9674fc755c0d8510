//! Bitcoin Core's optional indexes: txindex, txospenderindex, blockfilterindex and coinstatsindex.
//!
//! They are made from a node's blocks and undo data, in any order of blocks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod block;
mod coin_stats;
mod coin_stats_index;
mod filter;
mod filter_index;
mod making;
mod scratch;

pub use block::{BlockPlace, IndexBlock};
pub use coin_stats::{CoinStatsPart, CoinStatsSegment};
pub use coin_stats_index::{CoinStatsForm, CoinStatsTip, write_coin_stats_index};
pub use filter::FilterBuilder;
pub use filter_index::{FilterPart, FilterSegment, filter_file_name, write_filter_index};
pub use making::MakeError;

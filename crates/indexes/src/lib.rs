//! Bitcoin Core's optional indexes: txindex, txospenderindex, blockfilterindex and coinstatsindex.
//!
//! [`make_indexes`] makes them from the blocks and undo data of a stopped node, in one pass in any order of blocks.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod block;
mod chain;
mod check;
mod coin_stats;
mod coin_stats_index;
mod databases;
mod error;
mod filter;
mod filter_index;
mod forms;
mod found;
mod locator;
mod make;
mod making;
mod node_coins;
mod numbers;
mod pass;
mod read_back;
mod rows;
mod salt;
mod scratch;
mod spender_index;
mod standing;
mod txindex;

pub use block::IndexBlock;
pub use check::check_indexes;
pub use coin_stats::{CoinStatsPart, CoinStatsSegment};
pub use coin_stats_index::{CoinStatsForm, CoinStatsTip, write_coin_stats_index};
pub use error::IndexesError;
pub use filter::FilterBuilder;
pub use filter_index::{FilterPart, FilterSegment, filter_file_name, write_filter_index};
pub use forms::{IndexForm, IndexKind, NodeVersion, index_folder};
pub use found::{IndexFault, IndexesChecked, forms_in};
pub use make::{
    INDEX_TABLES, IndexMade, IndexesDisk, IndexesMade, IndexesRequest, NUMBERS, discard_attempt,
    expect_undo_data, is_scratch_file, make_indexes,
};
pub use making::MakeError;
pub use node_coins::NodeCoins;
pub use numbers::{
    BlockGrowth, NumbersColumn, NumbersDraft, NumbersError, NumbersFormat, NumbersPart,
    NumbersPlace, NumbersSegment, NumbersWriter, csv_numbers, numbers_columns, read_numbers,
};
pub use pass::{INDEX_BLOCKS, PassCounts};
pub use salt::Salt;
pub use standing::{IndexStanding, index_standings};

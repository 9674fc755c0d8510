//! `apus-bench floor`: the limits of the machine at hand, and from them the least time in which an
//! order-free sync of a chain could end on it.
//!
//! **What the floor means.** Every byte of the chain has to be read, its obfuscation undone and its
//! parts found; every transaction has an id to hash, every block a tree over the ids, and a second
//! one where it commits to witnesses and scripts are not assumed valid; every coin that was spent goes into the aggregate twice. The
//! chain says exactly how much of each there is ([`count`]), and the machine how fast each goes
//! alone, at best, in the fastest code that there is here ([`MachineMeasure`], [`kernel_rates`]). The floor
//! is the sum of amounts over rates. It moves when that code gets faster: it says how far a run is
//! from its own parts, not from what the silicon could do in other hands.
//!
//! **What it leaves out on purpose.** Everything that is not needed *in principle*, or is small: rules
//! that only compare, sorting and merging of survivors, hints, headers of stale blocks, checkpoints
//! and their checksums, a disk that is slower than the page cache, starting threads and waiting for
//! the last one. It adds up kinds of work that could overlap in one core, and believes that data
//! goes from one step to the next within the cache. So nothing reaches the floor; what is near it
//! has little left to gain.
//!
//! The set's own hash (`hash_serialized_3`, which `gettxoutsetinfo` shows) and writing its coins are summed apart:
//! validation does not need them, every run does them. Its MuHash, which runs compute where it is asked for, is in no sum.

mod bill;
mod measure;
mod timing;
mod work;

pub use bill::{ChainFloor, FloorItem, FloorOf, FloorPart, FloorTimes};
pub use bill::{KernelRates, MachineLimits, WorkRate};
pub use bill::{items, limits, sums};
pub use measure::MachineMeasure;
pub use measure::made_up_block;
pub use timing::{kernel_names, kernel_rates};
pub use work::{ChainWork, Compressions, CountedWork, count};

use crate::machine::BenchMachine;
use serde::{Deserialize, Serialize};

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 2;

/// What `apus-bench floor` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Floor {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: BenchMachine,
    /// What it can do.
    pub limits: MachineLimits,
    /// What that means for a chain, if one was given.
    pub chain: Option<ChainFloor>,
}

//! `apus-bench peers`: blocks from nodes on this machine.
//!
//! Nodes hand out a generated chain on ports of 127.0.0.1, over lines as good or bad as is wanted
//! ([`line`](mod@line)). In turns, each a process of its own: a bare reader ([`reader`]) that throws all blocks
//! away, `apus sync`, and Bitcoin Core from nothing. All three and the nodes share the machine's
//! cores, so ratios between them say more than times.
//!
//! The sets are compared: with the node's own, and with what the chain's maker said. A difference
//! ends it without numbers.

pub mod line;
mod measure;
pub mod reader;
mod tables;

pub use measure::{Event, Plan, measure};
pub use tables::table;

use crate::machine::Machine;
use crate::run::{OneRun, SetResult};
use crate::stats::Spread;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fmt;

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 1;

/// The program that gets the blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Who {
    /// A program that reads all blocks and keeps none.
    Reader,
    /// `apus sync`.
    Apus,
    /// `apus sync`, while the first peer's line stalls.
    ApusStalled,
    /// Bitcoin Core.
    Bitcoind,
}

impl fmt::Display for Who {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Reader => "reader",
            Self::Apus => "apus",
            Self::ApusStalled => "apus, one stalls",
            Self::Bitcoind => "bitcoind",
        })
    }
}

/// What `apus-bench peers` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Found {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: Machine,
    /// What the nodes say that they are.
    pub bitcoind: String,
    /// Whether they look up every output for BIP-30, as on regtest alone. Older files lack it: theirs did.
    pub bip30_lookups: Option<bool>,
    /// Name of the chain's folder.
    pub chain: String,
    /// Blocks above the genesis block.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Nodes that hand them out.
    pub peers: usize,
    /// Whether in the encrypted transport.
    pub v2transport: bool,
    /// `--dbcache` of Apus and of Bitcoin Core.
    pub dbcache_mib: u64,
    /// What each peer's line is like; none if connected directly.
    pub line: Option<String>,
    /// When the first peer's line stalls, after the beginning of a run in which it does.
    pub stall_after_seconds: Option<f64>,
    /// What Apus writes. Older files lack it: nothing.
    pub output: Option<String>,
    /// How often each was run.
    pub rounds: u32,
    /// What all programs but the reader came to.
    pub set: SetResult,
    /// By program.
    pub measured: Vec<Measured>,
}

/// What all runs of one came to.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// The program.
    pub who: Who,
    /// One by one.
    pub runs: Vec<OneRun>,
    /// From before the process was started until it was gone.
    pub wall_seconds: Spread,
    /// Processor time of all its threads.
    pub cpu_seconds: Spread,
    /// Its greatest memory in any run.
    pub rss_peak_bytes: Option<u64>,
    /// Bytes of blocks over the median time.
    pub bytes_per_second: f64,
    /// The part of all lines' rates together that this is, if they have one.
    pub line_share: Option<f64>,
    /// Its time over that of each of the others in the same round.
    pub over: BTreeMap<Who, Spread>,
}

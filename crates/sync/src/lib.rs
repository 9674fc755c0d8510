//! The pipeline: a source of blocks, the checks, an engine, checkpoints, sinks.
//!
//! [`run()`] does one run from start to end; what happens on the way is told as [`Event`]s.

mod ahead;
mod blocks;
mod blocksdir;
pub mod chainman;
mod coins;
mod connect;
mod error;
mod hinted;
mod hints;
mod outputs;
mod plan;
mod progress;
mod run;
mod runs;
mod sink;
mod source;
mod workdir;

pub use blocksdir::{BlocksDir, Gap, UseIndex};
pub use connect::{ConnectOptions, OpenStore, RECORD, Scripts};
pub use error::{ErrorKind, SyncError};
pub use outputs::{OutputsOfBlock, walk_outputs};
pub use progress::{Event, Observer, Phase, Progress, Silent};
pub use run::{HintsInput, Outcome, Output, OutputKind, Request, Stop, discard_progress, run};
pub use source::{BlockFetcher, BlockSource, SourceError, Taken};
pub use workdir::{COINS, HINTS, LOCK};

/// The interpreter of scripts that this build has.
pub use apus_engine::script::{NoInterpreter, script_verifier};

/// The SHA-256 kernel that runs on this machine.
pub fn sha256_kernel() -> &'static str {
    apus_hash::Kernel::current().name()
}

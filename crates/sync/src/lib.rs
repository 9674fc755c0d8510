//! The pipeline: a source of blocks, the checks, an engine, checkpoints, sinks.
//!
//! [`run()`] does one run from start to end; what happens on the way is told as [`Event`]s.

mod again;
mod ahead;
mod anchor;
mod blocks;
mod blocksdir;
pub mod chainman;
mod coins;
mod connect;
mod error;
mod folder;
mod hinted;
mod hints;
mod invalid;
mod memory;
mod outputs;
pub mod peers;
mod permits;
mod plan;
mod progress;
mod read_back;
mod run;
mod runs;
mod sealed;
mod sink;
mod source;
mod tail;
mod undo;
mod workdir;

pub use anchor::{HintedValidity, NotAnchored, Unanchored};
pub use blocksdir::{BlockHead, BlocksDir, Gap, UseIndex};
pub use connect::{ConnectOptions, OpenStore, RECORD, Scripts};
pub use error::{ErrorKind, NoWayOn, SyncError};
pub use folder::{complete as complete_folders, is_unfinished as is_unfinished_folder};
pub use folder::{draft_of, owner_out_of_reach, parent};
pub use invalid::InvalidBlock;
pub use memory::Memory;
pub use outputs::{OutputsOfBlock, walk_outputs};
pub use progress::{ChainBy, Event, Observer, Phase, Progress, Silent};
pub use read_back::BlocksRead;
pub use run::{
    FolderKind, FolderOutput, HintsInput, Kept, Outcome, Output, OutputKind, Request, Source, Stop,
    WrittenFolder, discard_progress, expect_work_folder, give_up_progress, has_progress, run,
};
pub use sink::ReadBack;
pub use source::{BlockFetcher, BlockSource, ChainSource, SourceError, Taken};
pub use tail::LAST_BLOCKS;
pub use workdir::{COINS, ENDED, GONE, HINTS, KEPT, LOCK, POSITIONS, is_work_file};

/// The interpreter of scripts that this build has.
pub use apus_engine::script::{NoInterpreter, script_verifier};

/// The SHA-256 kernel that runs on this machine.
pub fn sha256_kernel() -> &'static str {
    apus_hash::Kernel::current().name()
}

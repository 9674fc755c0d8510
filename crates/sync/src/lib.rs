//! The pipeline: a source of blocks, the checks, an engine, checkpoints, sinks.
//!
//! [`run()`] does one sync from start to end and reports its progress as [`Event`]s.

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod best_chain;
#[doc(hidden)]
pub mod chain_index;
pub mod chainman;
#[doc(hidden)]
pub mod commitment;
pub mod engines;
#[doc(hidden)]
pub mod error;
#[doc(hidden)]
pub mod folder;
#[doc(hidden)]
pub mod machines;
mod node_tip;
pub mod numbers;
#[doc(hidden)]
pub mod pass;
#[doc(hidden)]
pub mod progress;
#[doc(hidden)]
pub mod request;
mod run;
#[doc(hidden)]
pub mod runs;
#[doc(hidden)]
pub mod sink;
#[doc(hidden)]
pub mod source;
#[doc(hidden)]
pub mod supply;
#[doc(hidden)]
pub mod system;
mod taker;
mod verify;
#[doc(hidden)]
pub mod warning;
#[doc(hidden)]
pub mod workdir;

pub use engines::mergesync::RECORDS_PERCENT as MERGESYNC_RECORDS_PERCENT;
pub use error::{
    BlockUnavailable, ChainGap, ClockError, ErrorKind, GapRange, InvalidBlock, InvalidError,
    IoError, NotAnchored, RunError, SourceError, SyncError, UsageError,
};
pub use folder::{BlocksRead, DatadirBlocks, FolderKind, FolderOutput, WrittenFolder};
pub use folder::{
    DraftState, draft_of, expect_draft, expect_not_planted, owner_out_of_reach, parent,
};
pub use folder::{complete as complete_folders, is_unfinished as is_unfinished_folder};
pub use machines::{Machines, NamedPass, Segments, SharedPass};
pub use node_tip::NodeTip;
pub use progress::{
    ChainBy, DiskUse, Event, Observer, Phase, Progress, SilentObserver, Worker, Workers,
};
pub use progress::{Segment, SegmentState};
pub use request::{
    ChainEnd, ChainEngine, ConnectOptions, Engine, EngineTask, HintedTask, HintedValidity,
    HintsInput, HintsProof, LAST_BLOCKS, MemoryParts, MergeSyncTask, OpenStore, Outcome, Output,
    OutputKind, Request, RunEnv, ScratchLimits, ScriptCounts, SetHashes, SetSummary, Source,
    SpentSource, Stop, Task, Validation, Written,
};
pub use run::{
    PutSet, discard_progress, end, expect_work_folder, give_up_progress, has_progress, keep_record,
    run, run_shared,
};
pub use sink::ReadBack;
pub use source::blocksdir::{BlockHead, BlocksDir, UseIndex};
pub use source::peers;
pub use source::{BlockFetcher, BlockReply, BlockSource, ChainSource, GivenBlocks};
pub use supply::ranges::{OutputsOfBlock, walk_outputs};
pub use system::ask_for_open_files;
pub use verify::{
    Finding, FindingKind, FoundFault, ProvenBy, VERIFIED_INDEXES, Verify, VerifyOutcome,
    discard_verify, foreign_to_verify, has_verify_progress, look_at_index, verify,
};
pub use warning::{UnanchoredBlocks, Warning};
pub use workdir::names::{
    COINS, ENDED, GONE, HINTS, INDEX, KEPT, LOCK, POSITIONS, RECORD, is_work_file,
};

/// The script interpreter of this build.
pub use apus_engine::script::{NoInterpreter, script_verifier};

/// Names the SHA-256 kernel in use, and the kernels that this machine computes wrongly.
pub fn sha256_kernel() -> String {
    use apus_hash::Sha256Kernel;
    let kernel = Sha256Kernel::current().name();
    match &*Sha256Kernel::wrong() {
        [] => kernel.to_owned(),
        wrong => {
            let wrong: Vec<_> = wrong.iter().map(|it| it.name()).collect();
            format!("{kernel} (wrong on this machine: {})", wrong.join(", "))
        }
    }
}

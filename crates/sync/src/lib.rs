//! The pipeline: a source of blocks, the checks, an engine, checkpoints, sinks.
//!
//! [`run()`] does one run from start to end; what happens on the way is told as [`Event`]s.

mod best_chain;
mod bridge;
pub mod chainman;
pub mod engines;
mod error;
mod folder;
mod job;
mod node_tip;
pub mod numbers;
mod open_files;
mod pass;
mod progress;
mod proofs;
mod queue;
mod random;
mod request;
mod run;
mod runs;
mod sink;
mod source;
mod supply;
mod taker;
mod verify;
mod warning;
mod workdir;
mod worker;

pub use engines::mergesync::disk_bytes as mergesync_disk_bytes;
pub use error::{
    BridgeError, ClockError, ClusterError, ErrorKind, Gap, InvalidBlock, InvalidError, IoError,
    NoWayOn, NotAnchored, ProofsError, QueueError, RemoteError, RemoteKind, SourceError, Stretch,
    SyncError, UsageError,
};
pub use folder::{BlocksRead, DatadirBlocks, FolderKind, FolderOutput, WrittenFolder};
pub use folder::{Drafted, draft_of, expect_draft, expect_not_planted, owner_out_of_reach, parent};
pub use folder::{complete as complete_folders, is_unfinished as is_unfinished_folder};
pub use job::{JobCopy, JobKey, JobStep};
pub use node_tip::NodeTip;
pub use open_files::ask_for_open_files;
pub use progress::{ChainBy, DiskUse, Event, Observer, Phase, Progress, Silent, Worker, Workers};
pub use progress::{Segment, SegmentState};
pub use proofs::caches::{CachesFound, CachesRequest, replay_caches};
pub use proofs::{ProofsMade, ProofsTotals, Surveyed, proofs_files, survey_proofs};
pub use queue::{
    AnswerBytes, JobQueue, Jobs, Lease, ObjectPart, ObjectRef, Offer, RunDescription, RunId,
    WIRE_VERSION, WireError, WorkerSeen, describe_run, reads_as_sent, rest_of_passed_on,
};
pub use request::{
    BridgeOptions, BridgePeers, ConnectOptions, DoJob, Engine, HintedValidity, HintsInput,
    LAST_BLOCKS, Memory, OpenForest, OpenStore, Outcome, Output, OutputKind, ProofsInput, Request,
    Scripts, SharedQueue, Source, Stop,
};
pub use run::{
    discard_progress, expect_work_folder, give_up_progress, has_progress, keep_record, run,
};
pub use sink::ReadBack;
pub use source::blocksdir::{BlockHead, BlocksDir, UseIndex};
pub use source::peers;
pub use source::{BlockFetcher, BlockSource, ChainSource, GivenBlocks, Taken};
pub use supply::outputs::{OutputsOfBlock, walk_outputs};
pub use verify::{
    Finding, FindingKind, Found, Proof, Verified, Verify, discard_verify, foreign_to_verify,
    has_verify_progress, look_at_index, verify,
};
pub use warning::{Unanchored, Warning};
pub use workdir::names::{
    COINS, ENDED, FOREST, GONE, HINTS, KEPT, LOCK, POSITIONS, RECORD, is_work_file,
};
pub use worker::{WorkBlocks, WorkDone, WorkRequest, do_job, work};

/// The interpreter of scripts that this build has.
pub use apus_engine::script::{NoInterpreter, script_verifier};

/// The SHA-256 kernel that runs on this machine, and which ones do not since it gets them wrong.
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

//! Arguments of the commands that users run. Ideas of Bitcoin Core's have Core's spelling.

mod hints;
mod plan;
mod reindex;
mod run;
mod snapshot;
mod sync;
mod utreexo;
mod values;
mod verify;

pub(crate) use hints::{
    HintsArgs, HintsCheckArgs, HintsCommand, HintsConvertArgs, HintsInfoArgs, SourceFormat,
    TargetFormat,
};
pub(crate) use plan::PlanArgs;
pub(crate) use reindex::ReindexArgs;
pub(crate) use run::{
    AggregateArg, AggregateArgs, ConnectArgs, ProgressArg, RunArgs, SourceArgs, Validation,
    WitnessesArg,
};
#[cfg(feature = "web")]
pub(crate) use run::{PageArgs, Stay};
pub(crate) use snapshot::{SnapshotArgs, SnapshotCommand, SnapshotInfoArgs, SnapshotVerifyArgs};
pub(crate) use sync::{BlocksArg, Engine, PeerArgs, SyncArgs};
pub(crate) use utreexo::{CachesArgs, ProveArgs, UtreexoArgs, UtreexoCommand};
#[cfg(feature = "cluster")]
pub(crate) use values::parse_mib;
pub(crate) use values::{AssumeValidArg, ChallengeArg, HintsArg, ProofsArg, SinkArg};
#[cfg(feature = "cluster")]
pub(crate) use values::{parse_listen, parse_proxy};
pub(crate) use verify::VerifyArgs;

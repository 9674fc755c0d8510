//! Whether a run leaves the witnesses of blocks alone whose scripts are taken for valid.
//!
//! It does where it can: nothing of the result depends on them. A node that blocks are handed
//! on to needs them whole. Which blocks these are, and what is then not checked, is the pipeline's business.

use crate::args::{BlocksArg, ConnectArgs, SinkArg, WitnessesArg};
use crate::failure::Failure;
use crate::sync::{Job, JobSource};

/// Whether witnesses are left alone.
///
/// # Errors
/// A usage error where the user wants to skip those of blocks that are handed on.
pub(crate) fn leave_witnesses(job: &Job<'_>, args: &ConnectArgs) -> Result<bool, Failure> {
    match (args.witnesses, wanted_for(job)) {
        (Some(WitnessesArg::Check), _) => Ok(false),
        (Some(WitnessesArg::Skip), Some(what)) => Err(Failure::usage(format!(
            "--witnesses skip leaves blocks without their witnesses, which {what} needs: leave out one of \
             them",
        ))),
        (_, wanted) => Ok(wanted.is_none()),
    }
}

/// What needs blocks with their witnesses, if anything does.
fn wanted_for(job: &Job<'_>) -> Option<&'static str> {
    if job.outputs.iter().any(|sink| matches!(sink, SinkArg::Datadir(_))) {
        return Some("--out datadir:DIR");
    }
    if job.bridge.is_some() {
        return Some("`apus utreexo prove`");
    }
    if job.engine == Some(apus_sync::Engine::Utreexo) {
        return Some("--engine utreexo");
    }
    match &job.source {
        JobSource::Peers(args) if args.blocks == BlocksArg::Keep => Some("--blocks keep"),
        JobSource::Peers(args) if args.listen.is_some() => Some("--listen"),
        JobSource::Peers(_) | JobSource::Files { .. } => None,
    }
}

//! Whether a run leaves the witnesses of blocks alone whose scripts are taken for valid.
//!
//! It does where it can: nothing of the result depends on them. A node that blocks are handed on to needs them
//! whole. Which blocks these are, and what is then not checked, is the pipeline's business.

use crate::args::{BlocksArg, ConnectArgs, PeerArgs, SinkArg, WitnessesArg};
use crate::failure::Failure;

/// Whether witnesses are left alone. `makes` is what of the run makes up coins from them, if anything does.
///
/// # Errors
/// A usage error where the user wants to skip those of blocks that need them.
pub(crate) fn leave_witnesses(
    args: &ConnectArgs,
    outputs: &[SinkArg],
    peers: Option<&PeerArgs>,
    makes: Option<&'static str>,
) -> Result<bool, Failure> {
    let needing = makes.or_else(|| handed_on(outputs, peers));
    match (args.witnesses, needing) {
        (Some(WitnessesArg::Check), _) => Ok(false),
        (Some(WitnessesArg::Skip), Some(what)) => Err(Failure::usage(format!(
            "--witnesses skip leaves blocks without their witnesses, which {what} needs: leave out one of \
             them",
        ))),
        (_, needing) => Ok(needing.is_none()),
    }
}

/// By which option blocks are handed on, if they are.
fn handed_on(outputs: &[SinkArg], peers: Option<&PeerArgs>) -> Option<&'static str> {
    if outputs.iter().any(|sink| matches!(sink, SinkArg::Datadir(_))) {
        return Some("--out datadir:DIR");
    }
    match peers {
        Some(args) if args.blocks == BlocksArg::Keep => Some("--blocks keep"),
        Some(args) if args.listen.is_some() => Some("--listen"),
        _ => None,
    }
}

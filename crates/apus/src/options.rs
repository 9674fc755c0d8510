//! Options that do not fit each other, or this build, told before anything is done: what a run refuses a plan of it refuses,
//! too.

use crate::args::{BlocksArg, ConnectArgs, EngineArg, HintsArg, PeerArgs, SinkArg, WitnessesArg};
use crate::failure::{Failure, WITHOUT_SCRIPTS};
use apus_chain::{Params, ScriptVerifier};

/// Engine and hints must fit together.
pub(crate) fn expect_engine_takes(
    engine: Option<EngineArg>,
    hints: Option<&HintsArg>,
) -> Result<(), Failure> {
    match (engine, hints) {
        (Some(EngineArg::Swiftsync), None) => Err(Failure::usage(
            "the engine swiftsync needs --hints; without any, leave out --engine",
        )),
        (Some(engine), Some(_)) if engine != EngineArg::Swiftsync => {
            let (name, asked) = match engine {
                EngineArg::Utxo => ("utxo", "--engine utxo and --coins"),
                #[cfg(feature = "utreexo")]
                EngineArg::Utreexo => ("utreexo", "--proofs"),
                _ => ("mergesync", "--engine mergesync"),
            };
            Err(Failure::usage(format!(
                "the engine {name} has no use for hints: leave out --hints, or {asked}",
            )))
        }
        _ => Ok(()),
    }
}

/// Undo data for all blocks are there only without hints.
pub(crate) fn expect_undo_data(
    outputs: &[SinkArg],
    hints: bool,
    prune: bool,
) -> Result<(), Failure> {
    let datadir = outputs.iter().any(|sink| matches!(sink, SinkArg::Datadir(_)));
    match datadir && hints && !prune {
        false => Ok(()),
        true => Err(Failure::usage(
            "with hints a run does not see spent coins, of which undo data consist: leave out \
             --hints, or give --prune for a data directory with the last blocks alone",
        )),
    }
}

/// Scripts are run for signet's block solutions alone; without an interpreter signet cannot be.
pub(crate) fn verifier(params: &Params) -> Result<Option<Box<dyn ScriptVerifier>>, Failure> {
    if params.signet_challenge.is_none() {
        return Ok(None);
    }
    apus_sync::script_verifier().map(Some).map_err(|error| {
        Failure::usage(format!(
            "signet blocks are signed, and their signatures cannot be checked: {error}"
        ))
    })
}

/// Fails in a build that runs no scripts.
pub(crate) fn expect_interpreter() -> Result<(), Failure> {
    let missing = apus_sync::script_verifier().map(drop);
    missing.map_err(|error| Failure::usage(format!("{error}{WITHOUT_SCRIPTS}")))
}

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

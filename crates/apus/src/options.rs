//! Options that do not fit each other, told before anything is done: what a run refuses a plan of it refuses, too.

use crate::args::{EngineArg, HintsArg, SinkArg};
use crate::failure::Failure;

/// Engine and hints must fit together.
pub(crate) fn expect_engine_takes(
    engine: Option<EngineArg>,
    hints: Option<&HintsArg>,
) -> Result<(), Failure> {
    match (engine, hints) {
        (Some(EngineArg::Swiftsync), None) => Err(Failure::usage(
            "the engine swiftsync needs --hints; without any, leave out --engine",
        )),
        (Some(engine @ (EngineArg::Utxo | EngineArg::Mergesync | EngineArg::Utreexo)), Some(_)) => {
            let (name, asked) = match engine {
                EngineArg::Utxo => ("utxo", "--engine utxo and --coins"),
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

//! Options that do not fit each other, told before anything is done: what a run refuses a plan of it refuses, too.

use crate::args::{Engine, HintsArg, SinkArg};
use crate::failure::Failure;

/// Engine and hints must fit together.
pub(crate) fn expect_engine_takes(
    engine: Option<Engine>,
    hints: Option<&HintsArg>,
) -> Result<(), Failure> {
    match (engine, hints) {
        (Some(Engine::Swiftsync), None) => Err(Failure::usage(
            "the engine swiftsync needs --hints; without any, use --engine utxo",
        )),
        (Some(engine @ (Engine::Utxo | Engine::Mergesync | Engine::Utreexo)), Some(_)) => {
            let name = match engine {
                Engine::Utxo => "utxo",
                Engine::Utreexo => "utreexo",
                _ => "mergesync",
            };
            Err(Failure::usage(format!(
                "the engine {name} has no use for hints: leave out --hints, or use --engine swiftsync",
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

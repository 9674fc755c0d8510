//! `apus snapshot export`, which writes a set of coins as a table, and `apus snapshot find`, which looks up coins by
//! address, script or descriptor.

mod export;
mod find;
mod source;

pub(crate) use export::export;
pub(crate) use find::find;

use crate::args::{FileKind, SinkArg};
use crate::failure::Failure;
use crate::report::bitcoins;
use apus_chain::{BlockHash, Height, Network, Params, UtxoSetHash};
use apus_sync::SyncError;
use apus_tables::{TableColumns, TableOutput, TablePlace};

/// Returns the height of a set's block if it is known: by the node's index, or to Bitcoin Core. Otherwise returns the
/// height of the highest coin: a coinbase of the last 100 blocks cannot be spent. If the block's coinbase is
/// unspendable, this is too low.
fn height_of(
    network: Network,
    block: &BlockHash,
    by_index: Option<Height>,
    highest: Height,
) -> Height {
    let known = || Params::of(network).assumeutxo_for(block).map(|known| known.height);
    by_index.or_else(known).unwrap_or(highest)
}

/// Returns whether Bitcoin Core knows this set, by its hash; `false` if it does not know the set's block. Fails if it
/// knows another set for the block.
fn is_known(network: Network, block: &BlockHash, hash: &UtxoSetHash) -> Result<bool, Failure> {
    match Params::of(network).assumeutxo_for(block) {
        None => Ok(false),
        Some(known) if known.hash_serialized == hash.0 => Ok(true),
        Some(known) => Err(Failure::wrong(format!(
            "this is NOT the set of block {block}: its hash_serialized_3 is {hash}, but Bitcoin Core knows {} for this \
             block. Get the set again",
            UtxoSetHash(known.hash_serialized)
        ))),
    }
}

/// Formats satoshi for people.
fn amount(satoshi: u64) -> String {
    format!("{} BTC", bitcoins(satoshi))
}

/// Turns an error of a library, which knows no commands, into the command's failure.
fn failure(error: SyncError) -> Failure {
    match error {
        SyncError::Interrupted => Failure::interrupted(),
        error => error.into(),
    }
}

/// Returns the tables among a run's outputs. They have Bitcoin Core's columns. With `replace`, they take the place of
/// existing ones, but not of other files.
pub(crate) fn outputs(sinks: &[SinkArg], replace: bool) -> Result<Vec<TableOutput>, SyncError> {
    let table = |sink: &SinkArg| match sink {
        SinkArg::File(form, path) => match form.kind {
            FileKind::Table(format) => Some(TablePlace::new(path, format, TableColumns::default())),
            FileKind::Output(_) => None,
        },
        _ => None,
    };
    let places: Result<Vec<TablePlace>, String> = sinks.iter().filter_map(table).collect();
    let places = places.map_err(SyncError::usage)?;
    places.iter().try_for_each(TablePlace::expect_own_facts)?;
    Ok(places.into_iter().map(|place| TableOutput(place.replacing(replace))).collect())
}

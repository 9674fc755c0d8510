//! The coins that hints led to, as the first of a store.

use super::Base;
use super::record::{At, Record};
use crate::coins::merge_all;
use crate::error::SyncError;
use crate::run::Request;
use crate::runs::RunInfo;
use crate::sink::each_coin;
use apus_chain::Txid;
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError, Totals};

/// Fills an empty store with the coins that hints led to.
pub(super) fn fill(
    request: &Request<'_>,
    store: &dyn CoinsStore,
    base: Base,
    record: &Record,
) -> Result<At, SyncError> {
    let Base { at: tip, done, verdict } = base;
    let counts = verdict.counts;
    let totals = Totals {
        blocks: counts.blocks,
        bytes: counts.bytes,
        transactions: counts.transactions,
        inputs: counts.inputs,
        outputs: counts.outputs,
        scripts: 0,
        coins: verdict.coins.coins,
    };
    let at = At { block: tip, totals };
    Record { at: vec![at], ..record.clone() }.write(request.workdir)?;
    let runs: Vec<RunInfo> = done.into_iter().map(|done| done.run).collect();
    let changes = Merged { request, runs, failure: std::sync::Mutex::new(None) };
    let written = store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: tip.height });
    let failure = changes.failure.into_inner().unwrap_or_else(std::sync::PoisonError::into_inner);
    match failure {
        Some(error) => Err(error),
        None => Ok(written.map(|()| at)?),
    }
}

/// The coins of all runs, as changes of an empty store.
struct Merged<'a> {
    request: &'a Request<'a>,
    runs: Vec<RunInfo>,
    /// What is none of the store's errors.
    failure: std::sync::Mutex<Option<SyncError>>,
}

impl Changes for Merged<'_> {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let mut stored = Ok(());
        let merged = merge_all(self.request, self.runs.clone(), &mut |record| {
            for (txid, group) in crate::runs::records(record) {
                put_group(txid, group, each, &mut stored)?;
            }
            match &stored {
                Ok(()) => Ok(()),
                Err(error) => Err(SyncError::Coins(error.clone())),
            }
        });
        stored?;
        merged.map_err(|error| {
            let mut failure =
                self.failure.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
            *failure = Some(error);
            StoreError::Stopped
        })
    }
}

/// Gives the coins of one transaction away, in ascending order of vouts.
fn put_group(
    txid: Txid,
    group: &[u8],
    each: &mut EachChange<'_>,
    stored: &mut Result<(), StoreError>,
) -> Result<(), SyncError> {
    let mut coins = Vec::new();
    each_coin(txid, group, |outpoint, coin| coins.push((outpoint, CoinBytes::new(coin))))
        .map_err(|error| SyncError::Group { txid, error })?;
    coins.sort_unstable_by_key(|(outpoint, _)| outpoint.vout);
    for (outpoint, coin) in &coins {
        if stored.is_ok() {
            *stored = each(outpoint, Some(coin));
        }
    }
    Ok(())
}

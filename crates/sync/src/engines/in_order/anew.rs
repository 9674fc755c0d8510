//! Begins anew: coins that a run went on from are given up, where the chain that it goes for now parts from theirs below them.
//!
//! There is no way back over blocks that were joined. What segments did of the blocks that both chains have stays.

use crate::engines::in_order::Totals;
use crate::error::{StorageResult, SyncError};
use crate::request::Request;
use crate::workdir::names::RECORD;
use crate::workdir::record::{ConnectedAt, Record};
use apus_chain::{CoinSum, KnownBlock, OutPoint};
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinsStore, Flush, StoreError};

/// Coins that are forgotten at once.
const AT_ONCE: usize = 1 << 20;

/// Coins to forget.
struct Forgotten(Vec<OutPoint>);

impl Changes for Forgotten {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|outpoint| each(outpoint, None))
    }
}

/// Whether an earlier start was ended while it gave the coins up.
pub(crate) fn is_under_way(record: &Record) -> bool {
    record.identity.from > 1 && record.at.last().is_some_and(|at| at.block.height == 0)
}

/// Gives up the coins of an earlier start, with the record of how far it was. Where it is ended on the way, the record tells
/// the next start to go on with it.
pub(crate) fn begin_anew(request: &Request<'_>) -> Result<(), SyncError> {
    let Some(mut record) = Record::read(request.env.workdir)? else { return Ok(()) };
    let options = request.expect_connect()?;
    let store = (options.store)()?;
    let tip = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
    if !is_under_way(&record) {
        record.at.truncate(1);
        let (totals, sum) = (Totals::default(), Some(CoinSum::default()));
        record.at.push(ConnectedAt { block: tip, totals, sum });
        record.write(request.env.workdir)?;
    }
    loop {
        let changes = Forgotten(first_coins(&*store)?);
        store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: u32::MAX })?;
        if changes.0.is_empty() {
            break;
        }
    }
    request.env.workdir.remove(RECORD).at(request.env.workdir, RECORD)?;
    request.env.workdir.sync_names().at(request.env.workdir, "")
}

/// Some coins of a store, the first ones; nothing where it is empty.
fn first_coins(store: &dyn CoinsStore) -> Result<Vec<OutPoint>, StoreError> {
    let mut first = Vec::new();
    let read = store.for_each(&mut |outpoint, _| {
        first.push(*outpoint);
        if first.len() < AT_ONCE { Ok(()) } else { Err(StoreError::Stopped) }
    });
    match read {
        Ok(()) | Err(StoreError::Stopped) => Ok(first),
        Err(error) => Err(error),
    }
}

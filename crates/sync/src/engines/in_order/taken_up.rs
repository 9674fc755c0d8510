//! Takes up a store on servers without the work folder of the sync that filled it.
//!
//! With each flush, a sync also writes its [`Record`] to such a store, under [`OWN_RECORD`], where undo data is. Coins
//! that match the sum in that record are the ones that the sync left, so the next sync continues as if it had the work
//! folder. If the record is damaged or of another block than the coins, the servers lost something, and the store is
//! refused. A copy of a file has no record, and another version of this program may have left one that this version
//! cannot read. Such coins are taken as found: this sync counts and sums them, so that it notices later changes, but
//! proves nothing about them or about the blocks up to there.

use super::coins::{coins_changed, each_coin_of};
use super::{ConnectedAt, Identity, Totals};
use crate::error::SyncError;
use crate::pass::leave_witnesses;
use crate::progress::Event;
use crate::request::{ConnectOptions, Request};
use crate::sink::SetInfo;
use crate::source::ChainSource;
use crate::warning::Warning;
use crate::workdir::record::Record;
use apus_chain::{CoinAdder, CoinSum, CoinSumKey, KnownBlock};
use apus_engine::connect::UndoBytes;
use apus_engine::utxo::store::{OWN_RECORD, UndoRecord};
use apus_engine::utxo::{CoinsStore, StoreError};

/// Returns a sync's record at a block, as undo data for the store.
pub(super) fn own_record(record: &Record, at: ConnectedAt) -> UndoRecord {
    let record = Record { at: vec![at], ..record.clone() };
    UndoRecord { block: OWN_RECORD, bytes: UndoBytes::default().followed_by(&record.to_bytes()) }
}

/// Returns the record of a set that another engine made, with the key and the sum of its coins, as undo data for a
/// store: a later sync can tell whether these are still the coins, but not how their blocks were validated.
pub fn record_of_set(set: SetInfo, key: CoinSumKey, sum: CoinSum) -> UndoRecord {
    let block = KnownBlock { height: set.height, hash: set.base };
    let from = set.height.saturating_add(1);
    let identity = Identity { network: set.network, assume_valid: None, unseen: 0, from };
    let totals = Totals { coins: set.coins, ..Totals::default() };
    let record = Record { identity, taken_up: false, key, at: Vec::new() };
    own_record(&record, ConnectedAt { block, totals, sum: Some(sum) })
}

/// Makes the record to continue from, for the coins of a store on servers.
pub(super) fn take_up(
    request: &Request<'_>,
    options: &ConnectOptions<'_>,
    place: &str,
    (store, tip): (&dyn CoinsStore, KnownBlock),
    dir: &dyn ChainSource,
) -> Result<Record, SyncError> {
    let bytes = store.undo(&OWN_RECORD.hash)?;
    let own = bytes.as_deref().and_then(Record::from_bytes);
    let own = own.and_then(|mut own| own.found_at(&tip).map(|at| (own, at)));
    let is_known = own.is_some() && dir.block_by_hash(&tip.hash, &mut |_| true)?;
    if dir.chain().hash(tip.height) != Some(&tip.hash) && !is_known {
        return Err(SyncError::usage(format!(
            "{place} has the coins of block {} ({}), which is not on the chain of these blocks: use the blocks of \
             that chain, or another name after the slash for a new store",
            tip.height, tip.hash
        )));
    }
    match (own, bytes) {
        (Some((mut own, at)), _) => {
            own.taken_up = true;
            // Refuse before reading all coins.
            expect_no_folders(request, place, &own)?;
            check(request, store, &own, &at)?;
            if own.identity.from > tip.height {
                // No block was connected yet, under any options.
                own.identity.assume_valid = options.assume_valid;
                own.identity.unseen = leave_witnesses(request, dir, None);
            }
            Ok(own)
        }
        // Each flush writes the record with its coins, so the servers lost a part of one.
        (None, Some(bytes)) if !Record::is_of_other_version(&bytes) => Err(coins_changed(request)),
        (None, _) => as_found(request, options, place, (store, tip), dir),
    }
}

/// Fails unless the coins are the ones that the sync of a record left.
fn check(
    request: &Request<'_>,
    store: &dyn CoinsStore,
    record: &Record,
    at: &ConnectedAt,
) -> Result<(), SyncError> {
    let (mut adder, mut coins) = (CoinAdder::new(record.key), 0);
    each_coin_of(request, store, &mut |outpoint, coin| {
        adder.add(outpoint, coin.as_bytes());
        coins += 1;
        Ok(())
    })?;
    match (at.sum, coins) == (Some(adder.sum()), at.totals.coins) {
        true => Ok(()),
        false => Err(coins_changed(request)),
    }
}

/// Says what a record shows that lay on the servers with its coins.
pub(super) fn warn_of_record(request: &Request<'_>, place: &str) {
    let text = format!(
        "the record that vouches for the coins of {place} is on the same servers: it shows whether coins are lost, \
         but not whether someone with write access changed both. To prove the set, compare the final muhash \
         (--muhash) with a node's"
    );
    request.env.observer.event(Event::Warning(Warning::Extra(text)));
}

/// Refuses to make a node's folder from coins that nothing proves, or only a record that lay on the servers with them,
/// in this start or an earlier one: a node would trust them.
pub(super) fn expect_no_folders(
    request: &Request<'_>,
    place: &str,
    record: &Record,
) -> Result<(), SyncError> {
    let from = record.identity.from;
    let why = match (request.folders.is_empty(), from, record.taken_up) {
        (true, _, _) | (false, 1, false) => return Ok(()),
        (false, 1, true) => format!(
            "the record that vouches for the coins of {place} is on the same servers, and a node must not start from \
             coins that others could have changed: leave out the chainstate or data directory, or use the --workdir \
             of the sync that made the coins"
        ),
        (false, from, _) => format!(
            "the coins of {place} at block {} came without the record of the sync that made them, so nothing proves \
             them, and a node must not start from them: leave out the chainstate or data directory, or sync into a \
             new store",
            from - 1
        ),
    };
    Err(SyncError::usage(why))
}

/// Makes the record of a new sync that continues from the coins as they are.
fn as_found(
    request: &Request<'_>,
    options: &ConnectOptions<'_>,
    place: &str,
    (store, tip): (&dyn CoinsStore, KnownBlock),
    dir: &dyn ChainSource,
) -> Result<Record, SyncError> {
    let KnownBlock { height, hash } = tip;
    let (network, assume_valid) = (request.env.params.network, options.assume_valid);
    let unseen = leave_witnesses(request, dir, None);
    let mut record =
        Record::new(Identity { network, assume_valid, unseen, from: height.saturating_add(1) })?;
    let (mut adder, mut totals) = (CoinAdder::new(record.key), Totals::default());
    each_coin_of(request, store, &mut |outpoint, coin| {
        let created = coin.coin().as_ref().height;
        // The genesis block creates no coin.
        if created > height || height == 0 {
            let what =
                format!("coin {outpoint} is of block {created}, above the store's block {height}");
            return Err(StoreError::damaged(place, what));
        }
        adder.add(outpoint, coin.as_bytes());
        totals.coins += 1;
        Ok(())
    })?;
    record.at = vec![ConnectedAt { block: tip, totals, sum: Some(adder.sum()) }];
    let text = format!(
        "{place} has the coins of block {height} ({hash}) without the record of the sync that made them. They are \
         taken as found: only the blocks above are checked. To prove the set, compare the final muhash (--muhash) \
         with a node's"
    );
    request.env.observer.event(Event::Warning(Warning::Extra(text)));
    Ok(record)
}

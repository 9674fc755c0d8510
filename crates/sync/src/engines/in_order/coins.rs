//! The last phase of a sync that connects blocks: writing the coins of a store in the order of a snapshot.

use super::{ConnectedSet, InOrderSync};
use crate::engines::swiftsync::CoinTotals;
use crate::error::{IoError, SyncError};
use crate::progress::stop_if_interrupted;
use crate::request::Request;
use crate::runs::{EachRecord, RecordGroup};
use crate::sink::put::{Put, SetMuHash, SetRecords, put_set};
use crate::sink::{self, put};
use apus_chain::{CoinAdder, OutPoint};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};

/// Coins between checks for an interrupt.
const LOOK_EVERY: u64 = 1 << 16;

impl ConnectedSet<'_> {
    /// Passes the store's coins to the set's hashes and the sinks. Fails unless they have the sum that the
    /// blocks produced.
    pub(crate) fn write_set(
        &mut self,
        request: &Request<'_>,
    ) -> Result<(Put, CoinTotals), SyncError> {
        let Self { dir, store, set, key, sum, with_blocks, .. } = self;
        let places = put::places(request);
        let mut sinks = put::sinks(request, &**dir, *set, &places, with_blocks.take())?;
        for output in request.outputs {
            sinks.extend(sink::begin(output, *set)?);
        }
        let put = put_set(
            request,
            *set,
            sinks,
            SetMuHash::Compute,
            0,
            SetRecords::given(|each| {
                let mut adder = CoinAdder::new(*key);
                let mut add =
                    |outpoint: &OutPoint, coin: &CoinBytes| adder.add(outpoint, coin.as_bytes());
                records_of(&**store, &mut add, each)?;
                match *sum == Some(adder.sum()) {
                    true => Ok(()),
                    false => Err(coins_changed(request)),
                }
            }),
        )?;
        let coins = put.totals;
        Ok((put, coins))
    }

    /// Passes all coins to `each`: one record for each transaction, by ascending txid.
    pub(crate) fn records(&self, each: &mut EachRecord<'_>) -> Result<(), SyncError> {
        records_of(&*self.store, &mut |_, _| (), each)
    }
}

impl InOrderSync<'_> {
    /// Fails if the store, which is at the tip, lacks the coins that the blocks produced. Call it before a
    /// block is declared invalid because of its coins: if a database server lost data it had acknowledged,
    /// neither the block nor the peers that sent it nor the work folder is to blame.
    pub(super) fn expect_coins(&self) -> Result<(), SyncError> {
        let mut adder = CoinAdder::new(self.record.key);
        each_coin_of(self.request, self.state.store(), &mut |outpoint, coin| {
            adder.add(outpoint, coin.as_bytes());
            Ok(())
        })?;
        match self.state.sum() == Some(adder.sum()) {
            true => Ok(()),
            false => Err(coins_changed(self.request)),
        }
    }
}

/// Passes all coins of a store to `each`, until an interrupt.
pub(super) fn each_coin_of(
    request: &Request<'_>,
    store: &dyn CoinsStore,
    each: &mut EachCoin<'_>,
) -> Result<(), SyncError> {
    let mut seen = 0u64;
    let walked = store.for_each(&mut |outpoint, coin| {
        seen += 1;
        let look = seen.is_multiple_of(LOOK_EVERY);
        match look && stop_if_interrupted(request.env.interrupt).is_err() {
            true => Err(StoreError::Stopped),
            false => each(outpoint, coin),
        }
    });
    stop_if_interrupted(request.env.interrupt)?;
    Ok(walked?)
}

/// The error for a store whose coins are not the ones that the blocks produced.
pub(super) fn coins_changed(request: &Request<'_>) -> SyncError {
    let workdir = request.env.workdir.describe("");
    let store = request.connect().and_then(|connect| connect.beyond.clone());
    let (store, progress) = match store {
        Some(store) => (store, format!("that store and {workdir}, which hold the progress")),
        None => ("the work folder".to_owned(), format!("{workdir}, which holds the progress")),
    };
    SyncError::Io(IoError::CoinsChanged { store, progress })
}

/// Passes all coins of a store to `each`: one record for each transaction, by ascending txid. Also passes each
/// coin to `add`.
fn records_of(
    store: &dyn CoinsStore,
    add: &mut dyn FnMut(&OutPoint, &CoinBytes),
    each: &mut EachRecord<'_>,
) -> Result<(), SyncError> {
    let mut group = RecordGroup::default();
    let mut failure = None;
    let walked = store.for_each(&mut |outpoint, coin| {
        add(outpoint, coin);
        group.take(outpoint, coin, each).map_err(|error| {
            failure = Some(error);
            StoreError::Stopped
        })
    });
    if let Some(error) = failure {
        return Err(error);
    }
    walked?;
    group.hand_on(each)
}

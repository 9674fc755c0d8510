//! Fills a store with the coins that another engine computed.

use super::BaseCoins;
use crate::engines::in_order::Totals;
use crate::engines::mergesync::{IndexedCoin, OutputCoin, OutputRecord};
use crate::error::{IoError, SyncError};
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::request::RunEnv;
use crate::runs::{EachRecord, MergeBudget, OutputForm, RecordGroup, merge_runs};
use crate::sink::each_coin;
use crate::sink::set_hash::merge_all;
use crate::workdir::record::{ConnectedAt, Record};
use crate::workdir::{RunInfo, damaged};
use apus_chain::{CoinAdder, CoinSum, CoinSumKey, OutPoint, Txid};
use apus_engine::utxo::store::EachChange;
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use parking_lot::Mutex;

/// Coins stored between two progress reports.
const COINS_BETWEEN_NEWS: u64 = 65_536;

/// The coins of another engine, in sorted runs.
#[derive(Clone)]
pub(crate) enum BaseRuns {
    /// Records of a snapshot.
    Set(Vec<RunInfo>),
    /// The form of the set between two batches ([`OutputRecord`]).
    Outputs {
        /// The runs.
        runs: Vec<RunInfo>,
        /// Whether numbers follow the coins.
        numbered: bool,
    },
}

impl BaseRuns {
    fn bytes(&self) -> u64 {
        let (Self::Set(runs) | Self::Outputs { runs, .. }) = self;
        runs.iter().map(|run| run.bytes).sum()
    }

    /// Passes the coins to `each`, as records of a snapshot by ascending transaction.
    fn merge(self, env: &RunEnv<'_>, each: &mut EachRecord<'_>) -> Result<(), SyncError> {
        let (runs, numbered) = match self {
            Self::Set(runs) => return merge_all(env, runs, each),
            Self::Outputs { runs, numbered } => (runs, numbered),
        };
        let budget = MergeBudget::new(env.memory_bytes / 2);
        let go_on = |_| stop_if_interrupted(env.interrupt);
        let mut group = RecordGroup::default();
        merge_runs::<OutputForm>(env.workdir, runs, budget, &go_on, &mut |record| {
            let (record, _) = OutputRecord::read(record).ok_or_else(|| damaged(env.workdir))?;
            record.coins().try_for_each(|OutputCoin { vout, coin, .. }| {
                let whole = IndexedCoin { coin, number: None };
                let read = if numbered { IndexedCoin::read(coin) } else { Some(whole) };
                let coin = read.and_then(|read| CoinBytes::read(read.coin).ok());
                let outpoint = OutPoint { txid: record.txid, vout };
                group.take(&outpoint, &coin.ok_or_else(|| damaged(env.workdir))?, each)
            })
        })?;
        group.hand_on(each)
    }
}

/// Fills an empty store with the coins of a base. Until it is done, the record says that their sum is unknown.
pub(super) fn fill(
    env: &RunEnv<'_>,
    store: &dyn CoinsStore,
    base: BaseCoins,
    record: &Record,
) -> Result<ConnectedAt, SyncError> {
    let BaseCoins { at: tip, runs, coins, counts, scripts, aggregate: _, unseen: _ } = base;
    let totals = Totals { counts, scripts, coins };
    let at = ConnectedAt { block: tip, totals, sum: None };
    Record { at: vec![at], ..record.clone() }.write(env.workdir)?;
    let (phase, bytes) = (Phase::Fill, runs.bytes());
    env.observer.event(Event::Started(phase));
    let changes = MergedCoins::new(env, (runs, coins), record.key);
    let written = store.write(&Flush { tip, changes: &changes, undo: &[], undo_from: tip.height });
    match changes.failure.into_inner() {
        Some(error) => Err(error),
        None => {
            written?;
            env.observer.event(Event::Ended { phase, bytes });
            Ok(ConnectedAt { sum: changes.sum.into_inner(), ..at })
        }
    }
}

/// Computes the sum of a base's coins, if an earlier start was stopped before it recorded the sum.
pub(super) fn sum_of_base(
    env: &RunEnv<'_>,
    base: BaseCoins,
    key: CoinSumKey,
) -> Result<CoinSum, SyncError> {
    let (mut adder, mut stored, mut count) = (CoinAdder::new(key), Ok(()), 0);
    let each = &mut |outpoint: &OutPoint, coin: Option<&CoinBytes>| {
        count += 1;
        coin.into_iter().for_each(|coin| adder.add(outpoint, coin.as_bytes()));
        Ok(())
    };
    base.runs.merge(env, &mut |record| {
        crate::runs::records(record)
            .try_for_each(|(txid, group)| put_group(txid, group, each, &mut stored))
    })?;
    match count == base.coins {
        true => Ok(adder.sum()),
        false => Err(damaged(env.workdir)),
    }
}

/// The coins of all runs, as changes to an empty store.
struct MergedCoins<'a> {
    env: &'a RunEnv<'a>,
    runs: BaseRuns,
    /// Their number.
    coins: u64,
    key: CoinSumKey,
    /// The sum of all coins passed on, set at the end.
    sum: Mutex<Option<CoinSum>>,
    /// An error that is not the store's.
    failure: Mutex<Option<SyncError>>,
}

impl<'a> MergedCoins<'a> {
    fn new(env: &'a RunEnv<'a>, (runs, coins): (BaseRuns, u64), key: CoinSumKey) -> Self {
        Self { env, runs, coins, key, sum: Default::default(), failure: Default::default() }
    }

    fn report(&self, coins: u64) {
        let progress = Progress { coins, coins_total: self.coins, ..Progress::default() };
        self.env.observer.event(Event::Progress(Phase::Fill, progress));
    }
}

impl Changes for MergedCoins<'_> {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let (mut stored, mut count) = (Ok(()), 0);
        let mut adder = CoinAdder::new(self.key);
        let each = &mut |outpoint: &OutPoint, coin: Option<&CoinBytes>| {
            count += 1;
            if count % COINS_BETWEEN_NEWS == 0 {
                self.report(count);
            }
            coin.into_iter().for_each(|coin| adder.add(outpoint, coin.as_bytes()));
            each(outpoint, coin)
        };
        let merged = self.runs.clone().merge(self.env, &mut |record| {
            for (txid, group) in crate::runs::records(record) {
                put_group(txid, group, each, &mut stored)?;
            }
            match &stored {
                Ok(()) => Ok(()),
                Err(error) => Err(SyncError::Coins(error.clone())),
            }
        });
        stored?;
        // The checksums of runs do not show a record that was lost as a whole.
        let merged = merged.and_then(|()| match count == self.coins {
            true => Ok(()),
            false => Err(damaged(self.env.workdir)),
        });
        *self.sum.lock() = Some(adder.sum());
        merged.map_err(|error| {
            *self.failure.lock() = Some(error);
            StoreError::Stopped
        })
    }
}

/// Passes on the coins of one transaction, by ascending vout.
fn put_group(
    txid: Txid,
    group: &[u8],
    each: &mut EachChange<'_>,
    stored: &mut Result<(), StoreError>,
) -> Result<(), SyncError> {
    let mut coins = Vec::new();
    each_coin(txid, group, |outpoint, coin| coins.push((outpoint, CoinBytes::new(coin))))
        .map_err(|error| SyncError::Io(IoError::Group { txid, error }))?;
    coins.sort_unstable_by_key(|(outpoint, _)| outpoint.vout);
    for (outpoint, coin) in &coins {
        if stored.is_ok() {
            *stored = each(outpoint, Some(coin));
        }
    }
    Ok(())
}

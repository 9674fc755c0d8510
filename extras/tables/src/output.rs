//! [`TableOutput`]: a table as the output of a sync.

use crate::meta::TableFacts;
use crate::table::{Table, TablePlace};
use apus_chain::{CoinRef, OutPoint, Txid, UtxoSetHash};
use apus_sync::sink::{CoinSink, SetEnd, SetInfo, SetOutput, each_coin};
use apus_sync::{IoError, SyncError, WrittenFolder};

/// A table that a sync writes from its set.
pub struct TableOutput(pub TablePlace);

impl SetOutput for TableOutput {
    fn begin(&self, set: SetInfo) -> Result<Box<dyn CoinSink + '_>, SyncError> {
        Ok(Box::new(TableSink(Table::create(&self.0, set.network)?)))
    }
}

struct TableSink<'a>(Table<'a>);

impl CoinSink for TableSink<'_> {
    fn put(&mut self, txid: Txid, group: &[u8]) -> Result<(), SyncError> {
        let mut failed = None;
        let put = |outpoint: OutPoint, coin: CoinRef<'_>| {
            if failed.is_none() {
                failed = self.0.put(&outpoint, coin).err();
            }
        };
        each_coin(txid, group, put).map_err(|error| IoError::Group { txid, error })?;
        failed.map_or(Ok(()), Err)
    }

    fn checks(&self) -> bool {
        true
    }

    fn check(&mut self, whole: &SetEnd<'_>) -> Result<(), SyncError> {
        let SetInfo { network, height, base, coins, .. } = whole.set;
        let facts = TableFacts {
            network,
            block: base,
            height,
            coins,
            total: self.0.total(),
            hash_serialized_3: UtxoSetHash(whole.hash_serialized_3),
        };
        self.0.finish(&facts, whole.env.interrupt)
    }

    fn publish(self: Box<Self>, _: &SetEnd<'_>) -> Result<Option<WrittenFolder>, SyncError> {
        self.0.publish().map(|()| None)
    }
}

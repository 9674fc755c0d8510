//! [`RecordGroup`]: the record of a transaction's coins, made of the coins one by one.

use super::EachRecord;
use crate::error::SyncError;
use apus_chain::{OutPoint, Txid, sort_vouts, write_compact_size};
use apus_engine::utxo::CoinBytes;

/// The coins of one transaction while they are gathered.
#[derive(Default)]
pub struct RecordGroup {
    txid: Txid,
    coins: Vec<(u32, CoinBytes)>,
    record: Vec<u8>,
}

impl RecordGroup {
    /// Takes the next coin. Those of one transaction come one after the other.
    pub fn take(
        &mut self,
        outpoint: &OutPoint,
        coin: &CoinBytes,
        each: &mut EachRecord<'_>,
    ) -> Result<(), SyncError> {
        if outpoint.txid != self.txid {
            self.hand_on(each)?;
            self.txid = outpoint.txid;
        }
        self.coins.push((outpoint.vout, coin.clone()));
        Ok(())
    }

    /// Gives the record away, if there is one.
    pub fn hand_on(&mut self, each: &mut EachRecord<'_>) -> Result<(), SyncError> {
        if self.coins.is_empty() {
            return Ok(());
        }
        sort_vouts(&mut self.coins, |(vout, _)| *vout);
        self.record.clear();
        self.record.extend_from_slice(&self.txid.0);
        self.record.extend_from_slice(&[0; 4]);
        write_compact_size(&mut self.record, self.coins.len() as u64);
        for (vout, coin) in self.coins.drain(..) {
            write_compact_size(&mut self.record, u64::from(vout));
            self.record.extend_from_slice(coin.as_bytes());
        }
        let length = (self.record.len() - 36) as u32;
        self.record[32..36].copy_from_slice(&length.to_le_bytes());
        each(&self.record)
    }
}

//! [`RunForm`]: the layout of a kind of run's records, as far as a merge must know it.

use crate::error::{InvalidError, SyncError};
use crate::runs::EachRecord;
use apus_chain::{OutPoint, Txid, sort_vouts, write_compact_size};
use apus_engine::utxo::CoinBytes;

/// Greatest length of a group: a transaction is at most a block, and the stored form of an output (vout,
/// height, amount, script) is at most 26 bytes longer than in the block, which has at most 111,111 outputs.
pub(super) const GROUP_BYTES_MAX: u32 = 4_000_000 + 26 * 111_111;

/// Greatest length of a transaction's created coins: each is preceded by three numbers of at most five bytes.
const MADE_BYTES_MAX: u32 = GROUP_BYTES_MAX + 15 * 111_111;

/// A kind of records, sorted by the key at their start.
pub trait RunForm {
    /// Bytes of the key, in sort order.
    const KEY: usize;

    /// The part of an intermediate run's name after the common prefix.
    const NAME: &'static str;

    /// Bytes of a record that determine its length, including the key.
    const HEAD: usize;

    /// Number of bytes that follow a head; `None` for an invalid head.
    fn body(_head: &[u8]) -> Option<usize> {
        Some(0)
    }

    /// The error if two runs have a record with the same key; `None` if they may.
    const REPEATED: Option<fn(&[u8]) -> SyncError> = None;
}

/// Coins of transactions: `txid ‖ u32le length ‖ group`.
pub enum CoinsForm {}

impl RunForm for CoinsForm {
    const KEY: usize = 32;
    const NAME: &'static str = "";
    const HEAD: usize = 36;
    const REPEATED: Option<fn(&[u8]) -> SyncError> = Some(|key| {
        let txid = Txid(*key.first_chunk().expect("it is a whole key"));
        SyncError::Invalid(InvalidError::DuplicateTransaction { txid })
    });

    fn body(head: &[u8]) -> Option<usize> {
        let length = u32::from_le_bytes(*head.last_chunk()?);
        (1..=GROUP_BYTES_MAX).contains(&length).then_some(length as usize)
    }
}

/// Coins that segments create ([`OutputRecord`](crate::engines::mergesync::OutputRecord)).
pub enum OutputForm {}

impl RunForm for OutputForm {
    const KEY: usize = 36;
    const NAME: &'static str = "made-";
    const HEAD: usize = 40;

    fn body(head: &[u8]) -> Option<usize> {
        let length = u32::from_be_bytes(*head.last_chunk()?);
        (..=MADE_BYTES_MAX).contains(&length).then_some(length as usize)
    }
}

/// Coins that blocks spend ([`SpendRecord`](crate::engines::mergesync::SpendRecord)).
pub enum SpendForm {}

impl RunForm for SpendForm {
    const KEY: usize = 44;
    const NAME: &'static str = "spent-";
    const HEAD: usize = 44;
}

/// Coins for inputs ([`PrevoutRecord`](crate::engines::mergesync::PrevoutRecord)).
pub enum PrevoutForm {}

impl RunForm for PrevoutForm {
    const KEY: usize = 8;
    const NAME: &'static str = "answers-";
    const HEAD: usize = 10;

    fn body(head: &[u8]) -> Option<usize> {
        Some(usize::from(u16::from_be_bytes(*head.last_chunk()?)))
    }
}

/// Places of surviving coins: `height ‖ index`, in big-endian.
pub enum PlacesForm {}

impl RunForm for PlacesForm {
    const KEY: usize = 8;
    const NAME: &'static str = "places-";
    const HEAD: usize = 8;
}

/// Hashes of coins: `place ‖ hash`, the place among all numbered outputs in big-endian.
pub enum HashesForm {}

impl RunForm for HashesForm {
    const KEY: usize = 8;
    const NAME: &'static str = "leaves-";
    const HEAD: usize = 40;
}

// [`RecordGroup`]: builds the record of a transaction from its coins, one by one.

/// The coins of one transaction while they are collected.
#[derive(Default)]
pub struct RecordGroup {
    txid: Txid,
    coins: Vec<(u32, CoinBytes)>,
    record: Vec<u8>,
}

impl RecordGroup {
    /// Takes the next coin. The coins of one transaction must be consecutive.
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

    /// Passes on the record, if there is one.
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

//! [`RunForm`]: how the records of a kind of run lie, as far as a merge has to know.

use crate::error::{InvalidError, SyncError};
use crate::runs::EachRecord;
use apus_chain::{OutPoint, Txid, sort_vouts, write_compact_size};
use apus_engine::utxo::CoinBytes;

/// Greatest length of a group: a transaction is at most a block, and the stored form of an output
/// (vout, height, amount, script) is at most 26 bytes longer than its form in the block, of which
/// there are at most 111,111.
pub(super) const GROUP_BYTES_MAX: u32 = 4_000_000 + 26 * 111_111;

/// Greatest length of what a transaction made: three numbers of at most five bytes stand before each coin.
const MADE_BYTES_MAX: u32 = GROUP_BYTES_MAX + 15 * 111_111;

/// A kind of records, sorted by a key that stands first in them.
pub trait RunForm {
    /// Bytes of the key, in the order of a sort.
    const KEY: usize;

    /// What names of runs begin with that were merged from others, behind what all begin with.
    const NAME: &'static str;

    /// Bytes of a record from which its length is known, the key among them.
    const HEAD: usize;

    /// How many bytes follow a head; none where no record has such a head.
    fn body(head: &[u8]) -> Option<usize>;

    /// What it means that two runs have records of one key, which is told; nothing where they may.
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

/// The length of a coin, which stands at the end of a head.
fn coin_bytes(head: &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*head.last_chunk()?)))
}

/// Coins that segments make ([`MadeRecord`](crate::engines::mergesync::MadeRecord)).
pub enum MadeForm {}

impl RunForm for MadeForm {
    const KEY: usize = 36;
    const NAME: &'static str = "made-";
    const HEAD: usize = 40;

    fn body(head: &[u8]) -> Option<usize> {
        let length = u32::from_be_bytes(*head.last_chunk()?);
        (..=MADE_BYTES_MAX).contains(&length).then_some(length as usize)
    }
}

/// Coins that blocks want ([`SpentRecord`](crate::engines::mergesync::SpentRecord)).
pub enum SpentForm {}

impl RunForm for SpentForm {
    const KEY: usize = 44;
    const NAME: &'static str = "spent-";
    const HEAD: usize = 44;

    fn body(_: &[u8]) -> Option<usize> {
        Some(0)
    }
}

/// Coins that inputs take ([`AnswerRecord`](crate::engines::mergesync::AnswerRecord)).
pub enum Answers {}

impl RunForm for Answers {
    const KEY: usize = 8;
    const NAME: &'static str = "answers-";
    const HEAD: usize = 10;

    fn body(head: &[u8]) -> Option<usize> {
        coin_bytes(head)
    }
}

/// Places of coins that survive: `height ‖ index`, in big-endian.
pub enum PlacesForm {}

impl RunForm for PlacesForm {
    const KEY: usize = 8;
    const NAME: &'static str = "places-";
    const HEAD: usize = 8;

    fn body(_: &[u8]) -> Option<usize> {
        Some(0)
    }
}

/// Hashes of coins: `place ‖ hash`, the place among all numbered outputs in big-endian.
pub enum HashesForm {}

impl RunForm for HashesForm {
    const KEY: usize = 8;
    const NAME: &'static str = "leaves-";
    const HEAD: usize = 40;

    fn body(_: &[u8]) -> Option<usize> {
        Some(0)
    }
}

// [`RecordGroup`]: the record of a transaction's coins, made of the coins one by one.

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

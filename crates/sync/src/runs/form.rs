//! [`Form`]: how the records of a kind of run lie, as far as a merge has to know.

use crate::error::{InvalidError, SyncError};
use apus_chain::Txid;

/// Greatest length of a group: a transaction is at most a block, and the stored form of an output
/// (vout, height, amount, script) is at most 26 bytes longer than its form in the block, of which
/// there are at most 111,111.
pub(super) const GROUP_BYTES_MAX: u32 = 4_000_000 + 26 * 111_111;

/// A kind of records, sorted by a key that stands first in them.
pub(crate) trait Form {
    /// The key: its bytes in the order of a sort.
    type Key: AsRef<[u8]> + Copy + Ord;

    /// What names of runs begin with that were merged from others, behind what all begin with.
    const NAME: &'static str;

    /// Bytes of a record from which its length is known, the key among them.
    const HEAD: usize;

    /// The key of a record.
    fn key(record: &[u8]) -> Self::Key;

    /// How many bytes follow a head; none where no record has such a head.
    fn body(head: &[u8]) -> Option<usize>;

    /// What it means that two runs have records of one key; nothing where they may.
    fn repeated(key: &Self::Key) -> Option<SyncError>;
}

/// Coins of transactions: `txid ‖ u32le length ‖ group`.
pub(crate) enum Coins {}

impl Form for Coins {
    type Key = [u8; 32];

    const NAME: &'static str = "";

    const HEAD: usize = 36;

    fn key(record: &[u8]) -> [u8; 32] {
        *record.first_chunk().expect("a record is longer than its key")
    }

    fn body(head: &[u8]) -> Option<usize> {
        let length = u32::from_le_bytes(*head.last_chunk()?);
        (1..=GROUP_BYTES_MAX).contains(&length).then_some(length as usize)
    }

    fn repeated(key: &[u8; 32]) -> Option<SyncError> {
        Some(SyncError::Invalid(InvalidError::DuplicateTransaction { txid: Txid(*key) }))
    }
}

/// The bytes of a coin behind its length, as the records of joins have them.
fn coin_bytes(head: &[u8]) -> Option<usize> {
    Some(usize::from(u16::from_be_bytes(*head.last_chunk()?)))
}

/// Coins that segments make ([`MadeRecord`](apus_engine::mergesync::MadeRecord)).
pub(crate) enum Made {}

impl Form for Made {
    type Key = [u8; 44];

    const NAME: &'static str = "made-";

    const HEAD: usize = 46;

    fn key(record: &[u8]) -> [u8; 44] {
        *record.first_chunk().expect("a record is longer than its key")
    }

    fn body(head: &[u8]) -> Option<usize> {
        coin_bytes(head)
    }

    fn repeated(_: &[u8; 44]) -> Option<SyncError> {
        None
    }
}

/// Coins that blocks want ([`SpentRecord`](apus_engine::mergesync::SpentRecord)).
pub(crate) enum Spent {}

impl Form for Spent {
    type Key = [u8; 44];

    const NAME: &'static str = "spent-";

    const HEAD: usize = 44;

    fn key(record: &[u8]) -> [u8; 44] {
        *record.first_chunk().expect("a record is as long as its key")
    }

    fn body(_: &[u8]) -> Option<usize> {
        Some(0)
    }

    fn repeated(_: &[u8; 44]) -> Option<SyncError> {
        None
    }
}

/// Coins that inputs take ([`AnswerRecord`](apus_engine::mergesync::AnswerRecord)).
pub(crate) enum Answers {}

impl Form for Answers {
    type Key = [u8; 8];

    const NAME: &'static str = "answers-";

    const HEAD: usize = 10;

    fn key(record: &[u8]) -> [u8; 8] {
        *record.first_chunk().expect("a record is longer than its key")
    }

    fn body(head: &[u8]) -> Option<usize> {
        coin_bytes(head)
    }

    fn repeated(_: &[u8; 8]) -> Option<SyncError> {
        None
    }
}

/// Places of coins that survive: `height ‖ index`, in big-endian.
pub(crate) enum Places {}

impl Form for Places {
    type Key = [u8; 8];

    const NAME: &'static str = "places-";

    const HEAD: usize = 8;

    fn key(record: &[u8]) -> [u8; 8] {
        *record.first_chunk().expect("a record is as long as its key")
    }

    fn body(_: &[u8]) -> Option<usize> {
        Some(0)
    }

    fn repeated(_: &[u8; 8]) -> Option<SyncError> {
        None
    }
}

//! [`SnapshotError`]: what is wrong with a snapshot, where, and what to do about it.

use super::{MAGIC, OUTPUTS_MAX, VERSION};
use crate::ErrorKind;
use apus_chain::{CoinError, Network, OutPoint, ReadError, Txid};
use std::io;

/// Why a snapshot could not be read or written. Offsets count from the start of the file.
#[derive(Debug, thiserror::Error)]
pub enum SnapshotError {
    /// The file could not be read.
    #[error("cannot read the snapshot at byte {offset}: {source}")]
    Read {
        /// Where.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("cannot write the snapshot at byte {offset}: {source}")]
    Write {
        /// Where.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The file ends inside the header.
    #[error("no snapshot: {bytes} bytes, less than a header; make a new one with dumptxoutset")]
    Header {
        /// Length of the file.
        bytes: usize,
    },
    /// The file is something else.
    #[error(
        "no snapshot: it begins with {found:02x?} and not with {MAGIC:02x?}; older formats are \
         not read, make a new one with dumptxoutset"
    )]
    Magic {
        /// The first bytes.
        found: [u8; 5],
    },
    /// A format that is not known.
    #[error("the snapshot has format version {found}, only {VERSION} is known")]
    Version {
        /// The version.
        found: u16,
    },
    /// The magic of no chain that is known.
    #[error("the snapshot is of an unknown chain with magic {magic:02x?}, or damaged")]
    UnknownNetwork {
        /// The magic.
        magic: [u8; 4],
    },
    /// The snapshot belongs to another chain.
    #[error("the snapshot is of chain {found}, not of {expected}: choose the other chain or file")]
    OtherNetwork {
        /// The snapshot's chain.
        found: Network,
        /// The chain that was asked for.
        expected: Network,
    },
    /// The file ends too early.
    #[error(
        "the snapshot ends at byte {offset} after {coins} of {stated} coins: it is cut off, get it \
         again"
    )]
    Truncated {
        /// Length of the file.
        offset: u64,
        /// Whole coins in it.
        coins: u64,
        /// Coins that the header states.
        stated: u64,
    },
    /// Something follows the last coin.
    #[error("the snapshot goes on at byte {offset} after all of the {coins} coins it states")]
    Trailing {
        /// Where the surplus begins.
        offset: u64,
        /// Coins that the header states.
        coins: u64,
    },
    /// A count or an output number in a form that is never written.
    #[error("bad number in the snapshot at byte {offset}: {source}")]
    Number {
        /// Where the number begins.
        offset: u64,
        /// What is wrong; its own offset counts from there.
        source: ReadError,
    },
    /// A transaction with no coins, or more than can be.
    #[error(
        "the snapshot states {count} coins for transaction {txid} at byte {offset}, where 1 to \
         {limit} can be"
    )]
    GroupCount {
        /// Where the transaction begins.
        offset: u64,
        /// The transaction.
        txid: Txid,
        /// The count.
        count: u64,
        /// The most there can be: what the header leaves, or what fits a transaction.
        limit: u64,
    },
    /// The outputs of one transaction are larger than a block.
    #[error("the coins of transaction {txid} at byte {offset} do not fit any block")]
    GroupSize {
        /// Where the coin that is too much begins.
        offset: u64,
        /// The transaction.
        txid: Txid,
    },
    /// Transactions do not ascend, or one comes twice.
    #[error("transaction {txid} at byte {offset} of the snapshot must not follow {previous}")]
    TxidOrder {
        /// Where the transaction begins.
        offset: u64,
        /// The transaction.
        txid: Txid,
        /// The one before it.
        previous: Txid,
    },
    /// Outputs of a transaction do not ascend, or one comes twice.
    #[error("output {outpoint} at byte {offset} of the snapshot must not follow {previous}")]
    VoutOrder {
        /// Where the output begins.
        offset: u64,
        /// The output.
        outpoint: OutPoint,
        /// Number of the one before it.
        previous: u32,
    },
    /// An output number that no transaction can have.
    #[error(
        "output {vout} of transaction {txid} at byte {offset} of the snapshot cannot be: a \
         transaction has at most {OUTPUTS_MAX} outputs"
    )]
    Vout {
        /// Where the output begins.
        offset: u64,
        /// The transaction.
        txid: Txid,
        /// The number.
        vout: u64,
    },
    /// A coin that no node would have written.
    #[error(
        "bad coin {outpoint}, which begins at byte {offset} of the snapshot: {source} (counted from \
         there)"
    )]
    Coin {
        /// Where the coin begins, after its output number.
        offset: u64,
        /// The coin's name.
        outpoint: OutPoint,
        /// What is wrong; its own offset counts from there.
        source: CoinError,
    },
    /// The writer got other coins than its header states.
    #[error(
        "{written} coins for a snapshot whose header states {stated}: the file must not be used"
    )]
    Count {
        /// Coins that the header states.
        stated: u64,
        /// Coins written.
        written: u64,
    },
}

impl SnapshotError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Read { .. } | Self::Write { .. } | Self::Count { .. } => ErrorKind::Fatal,
            _ => ErrorKind::Invalid,
        }
    }
}

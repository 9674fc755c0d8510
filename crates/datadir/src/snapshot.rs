//! UTXO snapshots: the files of `dumptxoutset`, format version 2.
//!
//! A [`SnapshotHeader`], then the coins of one transaction after the other: txid, how many coins,
//! and for each the number of the output and the coin as the chainstate stores it. Transactions
//! ascend by txid, outputs by the bytes of their VARINTs ([`vout_order`]), so a set has exactly one
//! file, and every reader and writer here insists on it. A file is taken as a stream of any length,
//! in bounded memory. Whether its coins are the right ones only their hash tells
//! ([`snapshot_info`]); whether that hash is known is for the caller.

mod reader;
#[cfg(test)]
mod tests;

pub use apus_chain::vout_order;
pub use reader::{SnapshotCoin, SnapshotInfo, SnapshotReader, snapshot_info};

use apus_chain::{
    BlockHash, CoinError, Network, OutPoint, ReadError, Reader, Txid, skip_coin, write_compact_size,
};
use std::io::{self, Write};

/// The first bytes of every snapshot (Core `node/utxo_snapshot.h`, `SNAPSHOT_MAGIC_BYTES`).
const MAGIC: [u8; 5] = *b"utxo\xff";

/// The one format version (Core `node/utxo_snapshot.h`, `SnapshotMetadata::VERSION`).
const VERSION: u16 = 2;

/// What a snapshot says of itself (Core `node/utxo_snapshot.h`, `SnapshotMetadata`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotHeader {
    /// The chain that the coins belong to.
    pub network: Network,
    /// The block after which the set is as stated.
    pub base_hash: BlockHash,
    /// How many coins follow.
    pub coins: u64,
}

impl SnapshotHeader {
    /// Length of the stored form.
    pub const SIZE: usize = 51;

    /// The stored form.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..5].copy_from_slice(&MAGIC);
        bytes[5..7].copy_from_slice(&VERSION.to_le_bytes());
        bytes[7..11].copy_from_slice(&self.network.magic());
        bytes[11..43].copy_from_slice(self.base_hash.as_bytes());
        bytes[43..].copy_from_slice(&self.coins.to_le_bytes());
        bytes
    }

    /// The reverse of [`to_bytes`](Self::to_bytes).
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Result<Self, SnapshotError> {
        let mut reader = Reader::new(bytes);
        let short = |_| SnapshotError::short(bytes.len());
        let magic = *reader.array().map_err(short)?;
        if magic != MAGIC {
            return Err(SnapshotError::Invalid(format!(
                "no snapshot: it begins with {magic:02x?} and not with {MAGIC:02x?}; older \
                 formats are not read, make a new one with dumptxoutset"
            )));
        }
        let version = reader.u16().map_err(short)?;
        if version != VERSION {
            return Err(SnapshotError::Invalid(format!(
                "the snapshot has format version {version}, only {VERSION} is known"
            )));
        }
        let magic = *reader.array().map_err(short)?;
        let network = Network::from_magic(magic).ok_or_else(|| {
            let what = "the snapshot is of an unknown chain with magic";
            SnapshotError::Invalid(format!("{what} {magic:02x?}, or damaged"))
        })?;
        let base_hash = BlockHash(*reader.array().map_err(short)?);
        let coins = reader.u64().map_err(short)?;
        Ok(Self { network, base_hash, coins })
    }

    /// Fails, naming both, unless the snapshot is of this chain.
    pub fn expect_network(&self, expected: Network) -> Result<(), SnapshotError> {
        if self.network == expected {
            Ok(())
        } else {
            Err(SnapshotError::OtherNetwork { found: self.network, expected })
        }
    }
}

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
    /// It is none, or not one that a node writes: what is wrong, and at which byte.
    #[error("{0}")]
    Invalid(String),
    /// The snapshot belongs to another chain.
    #[error("the snapshot is of chain {found}, not of {expected}: choose the other chain or file")]
    OtherNetwork {
        /// The snapshot's chain.
        found: Network,
        /// The chain that was asked for.
        expected: Network,
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
    /// Whether the file is at fault, and not the disk or the program.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::OtherNetwork { .. })
    }

    /// A number in the snapshot cannot be read; the error's own offset counts from `offset`.
    fn number(offset: u64, error: ReadError) -> Self {
        Self::Invalid(format!("bad number in the snapshot at byte {offset}: {error}"))
    }

    /// A coin that begins at `offset`, after the number of its output, cannot be read.
    fn coin(offset: u64, outpoint: OutPoint, error: CoinError) -> Self {
        Self::Invalid(format!(
            "bad coin {outpoint}, which begins at byte {offset} of the snapshot: {error} (counted \
             from there)"
        ))
    }

    /// A file of so many bytes ends before its header does.
    fn short(bytes: usize) -> Self {
        Self::Invalid(format!(
            "no snapshot: {bytes} bytes, less than a header; make a new one with dumptxoutset"
        ))
    }
}

/// Serialized bytes of a block without witnesses (Core `consensus/consensus.h`,
/// `MAX_BLOCK_WEIGHT / WITNESS_SCALE_FACTOR`), so also of a transaction's outputs.
const OUTPUT_BYTES_MAX: u64 = 1_000_000;

/// An output with an empty script: amount and script length.
const OUTPUT_BYTES_MIN: u64 = 9;

/// More outputs than any transaction can have, since the smallest take 9 bytes of a block's
/// 1,000,000.
pub const OUTPUTS_MAX: u64 = OUTPUT_BYTES_MAX / OUTPUT_BYTES_MIN;

/// Where a snapshot stands.
///
/// It knows no bytes: callers say what comes next and where, and learn whether it may. The limits
/// bound what a reader must hold for one transaction, whatever a file claims.
#[derive(Debug, Clone)]
struct Sequence {
    /// Coins still to come, of all that the header states.
    coins_left: u64,
    txid: Option<Txid>,
    /// Coins still to come in this transaction.
    group_left: u64,
    last_vout: Option<u32>,
    /// Bytes that further outputs of this transaction can take.
    bytes_left: u64,
}

impl Sequence {
    fn new(coins: u64) -> Self {
        Self { coins_left: coins, txid: None, group_left: 0, last_vout: None, bytes_left: 0 }
    }

    /// The transaction whose coins are still to come.
    fn open_group(&self) -> Option<Txid> {
        self.txid.filter(|_| self.group_left > 0)
    }

    /// A transaction begins; the one before must be complete.
    fn begin(&mut self, offset: u64, txid: Txid, count: u64) -> Result<(), SnapshotError> {
        if let Some(previous) = self.txid
            && txid <= previous
        {
            return Err(SnapshotError::Invalid(format!(
                "transaction {txid} at byte {offset} of the snapshot must not follow {previous}"
            )));
        }
        let limit = self.coins_left.min(OUTPUTS_MAX);
        if count == 0 || count > limit {
            return Err(SnapshotError::Invalid(format!(
                "the snapshot states {count} coins for transaction {txid} at byte {offset}, where \
                 1 to {limit} can be"
            )));
        }
        *self = Self {
            coins_left: self.coins_left,
            txid: Some(txid),
            group_left: count,
            last_vout: None,
            bytes_left: OUTPUT_BYTES_MAX,
        };
        Ok(())
    }

    /// Whether this output may come next in the transaction.
    fn check_vout(&self, offset: u64, txid: Txid, vout: u64) -> Result<OutPoint, SnapshotError> {
        if vout >= OUTPUTS_MAX {
            return Err(SnapshotError::Invalid(format!(
                "output {vout} of transaction {txid} at byte {offset} of the snapshot cannot be: \
                 a transaction has at most {OUTPUTS_MAX} outputs"
            )));
        }
        let outpoint = OutPoint { txid, vout: vout as u32 };
        match self.last_vout {
            Some(previous) if vout_order(previous, outpoint.vout).is_ge() => {
                Err(SnapshotError::Invalid(format!(
                    "output {outpoint} at byte {offset} of the snapshot must not follow {previous}"
                )))
            }
            _ => Ok(outpoint),
        }
    }

    /// An output that was checked has its coin; `script_bytes` is the length of the script, or 0
    /// where that is not known.
    fn coin(
        &mut self,
        offset: u64,
        outpoint: OutPoint,
        script_bytes: usize,
    ) -> Result<(), SnapshotError> {
        let bytes = OUTPUT_BYTES_MIN + script_bytes as u64;
        self.bytes_left = self.bytes_left.checked_sub(bytes).ok_or_else(|| {
            let txid = outpoint.txid;
            let what =
                format!("the coins of transaction {txid} at byte {offset} do not fit any block");
            SnapshotError::Invalid(what)
        })?;
        self.last_vout = Some(outpoint.vout);
        self.group_left -= 1;
        self.coins_left -= 1;
        Ok(())
    }
}

/// Writes a snapshot from start to end, from whole transactions that are already in their final bytes.
///
/// What it writes is a snapshot by construction: each part is walked, down to the outline of every
/// coin, before any of it is written. What the coins say is not looked at. The file is complete
/// only when [`finish`](SnapshotWriter::finish) says so.
#[derive(Debug)]
pub struct SnapshotWriter<W> {
    output: W,
    header: SnapshotHeader,
    sequence: Sequence,
    offset: u64,
}

impl<W: Write> SnapshotWriter<W> {
    /// Writes the header; the coins it states must follow.
    pub fn new(output: W, header: SnapshotHeader) -> Result<Self, SnapshotError> {
        let sequence = Sequence::new(header.coins);
        let mut writer = Self { output, header, sequence, offset: 0 };
        writer.write(&header.to_bytes())?;
        Ok(writer)
    }

    /// Coins that were written so far.
    pub fn coins_written(&self) -> u64 {
        self.header.coins - self.sequence.coins_left
    }

    /// Bytes that were written so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends whole transactions, one or many, as [`write_group`] makes them;
    /// they must follow what was written before. On an error of their form none of them is written.
    pub fn write_groups(&mut self, groups: &[u8]) -> Result<(), SnapshotError> {
        let mut sequence = self.sequence.clone();
        let mut reader = Reader::new(groups);
        while reader.remaining() > 0 {
            self.walk_group(&mut sequence, &mut reader)?;
        }
        self.write(groups)?;
        self.sequence = sequence;
        Ok(())
    }

    /// Passes over one transaction and checks that it may come here.
    fn walk_group(
        &self,
        sequence: &mut Sequence,
        reader: &mut Reader<'_>,
    ) -> Result<(), SnapshotError> {
        let at = |reader: &Reader<'_>| self.offset + reader.position() as u64;
        let bad = |error: ReadError| SnapshotError::number(self.offset, error);
        let offset = at(reader);
        let txid = Txid(*reader.array().map_err(bad)?);
        let count = reader.compact_u64().map_err(bad)?;
        sequence.begin(offset, txid, count)?;
        for _ in 0..count {
            let offset = at(reader);
            let vout = reader.compact_u64().map_err(bad)?;
            let outpoint = sequence.check_vout(offset, txid, vout)?;
            // The offsets of a reader count from where the groups begin, which is where the writer stands.
            skip_coin(reader).map_err(|error| SnapshotError::coin(self.offset, outpoint, error))?;
            sequence.coin(offset, outpoint, 0)?;
        }
        Ok(())
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), SnapshotError> {
        let offset = self.offset;
        self.output.write_all(bytes).map_err(|source| SnapshotError::Write { offset, source })?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    /// Flushes and gives the output back, if all coins of the header were written.
    pub fn finish(mut self) -> Result<W, SnapshotError> {
        if self.sequence.coins_left > 0 {
            return Err(SnapshotError::Count {
                stated: self.header.coins,
                written: self.coins_written(),
            });
        }
        let offset = self.offset;
        self.output.flush().map_err(|source| SnapshotError::Write { offset, source })?;
        Ok(self.output)
    }
}

/// Appends one transaction with its coins, each as number of the output and stored form
/// ([`write_coin`](apus_chain::write_coin)). Any order will do; the slice is put in the right one.
///
/// Nothing is appended where an output comes twice or cannot be, or there is none.
pub fn write_group(
    out: &mut Vec<u8>,
    txid: &Txid,
    coins: &mut [(u32, &[u8])],
) -> Result<(), SnapshotError> {
    coins.sort_unstable_by(|&(left, _), &(right, _)| vout_order(left, right));
    let (start, offset) = (out.len(), out.len() as u64);
    let mut sequence = Sequence::new(coins.len() as u64);
    sequence.begin(offset, *txid, coins.len() as u64)?;

    out.extend_from_slice(txid.as_bytes());
    write_compact_size(out, coins.len() as u64);
    for &(vout, bytes) in coins.iter() {
        let checked = sequence
            .check_vout(offset, *txid, u64::from(vout))
            .and_then(|outpoint| sequence.coin(offset, outpoint, 0));
        if let Err(error) = checked {
            out.truncate(start);
            return Err(error);
        }
        write_compact_size(out, u64::from(vout));
        out.extend_from_slice(bytes);
    }
    Ok(())
}

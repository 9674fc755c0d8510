//! UTXO snapshots: the files of `dumptxoutset`, format version 2.
//!
//! A file has a [`SnapshotHeader`], then the coins, grouped by transaction: txid, count, and for each coin
//! its output number and the form in which the chainstate stores it. Transactions ascend by txid, outputs by
//! the bytes of their VARINTs ([`vout_order`]). So each set has exactly one file, and every reader and writer
//! here enforces that. A file is read as a stream of any length, in bounded memory. Only the hash of its
//! coins shows whether they are the right ones ([`snapshot_info`]); the caller decides whether it knows that
//! hash.

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

/// The only format version (Core `node/utxo_snapshot.h`, `SnapshotMetadata::VERSION`).
const VERSION: u16 = 2;

/// A snapshot's description of itself (Core `node/utxo_snapshot.h`, `SnapshotMetadata`).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SnapshotHeader {
    /// The chain that the coins belong to.
    pub network: Network,
    /// The block after which the set has these coins.
    pub base_hash: BlockHash,
    /// The number of coins that follow.
    pub coins: u64,
}

impl SnapshotHeader {
    /// The length of the stored form.
    pub const SIZE: usize = 51;

    /// The header in its stored form.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut bytes = [0; Self::SIZE];
        bytes[..5].copy_from_slice(&MAGIC);
        bytes[5..7].copy_from_slice(&VERSION.to_le_bytes());
        bytes[7..11].copy_from_slice(&self.network.magic());
        bytes[11..43].copy_from_slice(self.base_hash.as_bytes());
        bytes[43..].copy_from_slice(&self.coins.to_le_bytes());
        bytes
    }

    /// Parses the form that [`to_bytes`](Self::to_bytes) writes.
    pub fn from_bytes(bytes: &[u8; Self::SIZE]) -> Result<Self, SnapshotError> {
        let mut reader = Reader::new(bytes);
        let short = |_| SnapshotError::short(bytes.len());
        let magic = *reader.array().map_err(short)?;
        if magic != MAGIC {
            return Err(SnapshotError::Invalid(format!(
                "not a snapshot: the file begins with {magic:02x?}, not with {MAGIC:02x?}. Apus does not read \
                 older formats: make a new snapshot with `bitcoin-cli dumptxoutset`"
            )));
        }
        let version = reader.u16().map_err(short)?;
        if version != VERSION {
            return Err(SnapshotError::Invalid(format!(
                "the snapshot has format version {version}, but only {VERSION} is supported"
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

    /// Fails, naming both chains, unless the snapshot is for this chain.
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
        /// The offset.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file could not be written.
    #[error("cannot write the snapshot at byte {offset}: {source}")]
    Write {
        /// The offset.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The file is not a snapshot, or no node would write it; has the fault and its offset.
    #[error("{0}")]
    Invalid(String),
    /// The snapshot belongs to another chain.
    #[error(
        "the snapshot is for chain {found}, not {expected}: use --chain {found}, or another snapshot"
    )]
    OtherNetwork {
        /// The snapshot's chain.
        found: Network,
        /// The expected chain.
        expected: Network,
    },
    /// The number of coins written differs from the header.
    #[error(
        "the snapshot has {written} coins but its header states {stated}: do not use this file"
    )]
    Count {
        /// The number of coins that the header states.
        stated: u64,
        /// The number of coins written.
        written: u64,
    },
}

impl SnapshotError {
    /// Returns whether the file is at fault, and not the disk or the program.
    pub fn is_invalid(&self) -> bool {
        matches!(self, Self::Invalid(_) | Self::OtherNetwork { .. })
    }

    /// Reports an invalid number in the snapshot; the offset in `error` counts from `offset`.
    fn number(offset: u64, error: ReadError) -> Self {
        Self::Invalid(format!("bad number in the snapshot at byte {offset}: {error}"))
    }

    /// Reports an invalid coin that begins at `offset`, after its output number.
    fn coin(offset: u64, outpoint: OutPoint, error: CoinError) -> Self {
        Self::Invalid(format!(
            "bad coin {outpoint} at byte {offset} of the snapshot: {error} (byte offsets from the start of the \
             coin)"
        ))
    }

    /// Reports a file that ends before its header does, after `bytes` bytes.
    fn short(bytes: usize) -> Self {
        Self::Invalid(format!(
            "not a snapshot: {bytes} bytes are less than a header. Make a new snapshot with `bitcoin-cli \
             dumptxoutset`"
        ))
    }
}

/// The size limit of a serialized block without witnesses (Core `consensus/consensus.h`, `MAX_BLOCK_WEIGHT /
/// WITNESS_SCALE_FACTOR`), and so of a transaction's outputs.
const OUTPUT_BYTES_MAX: u64 = 1_000_000;

/// The size of an output with an empty script: amount and script length.
const OUTPUT_BYTES_MIN: u64 = 9;

/// The limit of outputs per transaction: the smallest take 9 bytes of a block's 1,000,000.
pub const OUTPUTS_MAX: u64 = OUTPUT_BYTES_MAX / OUTPUT_BYTES_MIN;

/// Tracks the position in a snapshot and checks what may follow.
///
/// It handles no bytes: callers report each item and its offset, and learn whether the order allows it. The
/// limits bound the memory that a reader needs for one transaction, regardless of the file's content.
#[derive(Debug, Clone)]
struct Sequence {
    /// The number of coins left, by the count in the header.
    coins_left: u64,
    txid: Option<Txid>,
    /// The number of coins left in this transaction.
    group_left: u64,
    last_vout: Option<u32>,
    /// The bytes left for further outputs of this transaction.
    bytes_left: u64,
}

impl Sequence {
    fn new(coins: u64) -> Self {
        Self { coins_left: coins, txid: None, group_left: 0, last_vout: None, bytes_left: 0 }
    }

    /// The transaction, if it has coins left.
    fn open_group(&self) -> Option<Txid> {
        self.txid.filter(|_| self.group_left > 0)
    }

    /// Begins a transaction; the previous one must be complete.
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
                "the snapshot claims {count} coins for transaction {txid} at byte {offset}, where \
                 1 to {limit} are possible"
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

    /// Checks that this output may come next in the transaction.
    fn check_vout(&self, offset: u64, txid: Txid, vout: u64) -> Result<OutPoint, SnapshotError> {
        if vout >= OUTPUTS_MAX {
            return Err(SnapshotError::Invalid(format!(
                "output {vout} of transaction {txid} at byte {offset} of the snapshot is impossible: \
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

    /// Counts the coin of a checked output. `script_bytes` is the length of its script, or 0 if unknown.
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

/// Writes a snapshot from start to end, from whole transactions in their final bytes.
///
/// Its output is always a valid snapshot: before it writes any bytes of a part, it parses the part, down to
/// the outline of every coin. It does not check the content of coins. The file is complete only if
/// [`finish`](SnapshotWriter::finish) succeeds.
#[derive(Debug)]
pub struct SnapshotWriter<W> {
    output: W,
    header: SnapshotHeader,
    sequence: Sequence,
    offset: u64,
}

impl<W: Write> SnapshotWriter<W> {
    /// Writes the header. The caller must then write exactly as many coins as it states.
    pub fn new(output: W, header: SnapshotHeader) -> Result<Self, SnapshotError> {
        let sequence = Sequence::new(header.coins);
        let mut writer = Self { output, header, sequence, offset: 0 };
        writer.write(&header.to_bytes())?;
        Ok(writer)
    }

    /// The number of coins written so far.
    pub fn coins_written(&self) -> u64 {
        self.header.coins - self.sequence.coins_left
    }

    /// The number of bytes written so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Appends one or more whole transactions, as made by [`write_group`]. They must sort after those written
    /// before. If their form is invalid, writes none of them.
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

    /// Parses one transaction and checks that it may follow the previous one.
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
            // The reader's offsets count from the start of the groups, which is the writer's
            // position.
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

    /// Flushes and returns the output. Fails unless all coins that the header states were written.
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

/// Appends one transaction with its coins, each as output number and stored form
/// ([`write_coin`](apus_chain::write_coin)), in any order; the slice is sorted.
///
/// Appends nothing if an output occurs twice or is impossible, or if `coins` is empty.
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

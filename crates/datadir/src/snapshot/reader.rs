//! [`SnapshotReader`]: reads a snapshot coin by coin, from any stream.
//!
//! It holds one buffer of fixed size, even if the file claims large sizes. It accepts exactly the files that
//! [`SnapshotWriter`](super::SnapshotWriter) and Core write. After an error, each further call returns that
//! error.

use super::{Sequence, SnapshotError, SnapshotHeader};
use apus_chain::{
    BlockHash, Coin, CoinError, HashSerialized3, Height, MAX_SCRIPT_SIZE, MuHashBatch, Network,
    OutPoint, ReadError, Reader, Txid, UtxoSetHash, UtxoStats, read_coin_strict, skip_coin,
    write_utxo_element,
};
use std::io::{ErrorKind, Read};

/// The longest item that must be in the buffer at once: txid, count, vout, the numbers of a coin, its script.
const ENTRY_BYTES_MAX: usize = 32 + 9 + 9 + 3 * 10 + MAX_SCRIPT_SIZE;

/// The number of bytes to read at once.
const BUFFER_BYTES: usize = 1 << 18;

/// A coin in a snapshot.
#[derive(Clone, Debug)]
pub struct SnapshotCoin<'a> {
    /// The coin's outpoint.
    pub outpoint: OutPoint,
    /// The coin.
    pub coin: Coin<'a>,
    /// The coin in its stored form.
    pub bytes: &'a [u8],
}

/// A coin's outpoint, what was read of it, and its stored form.
type NextCoin<'s, T> = (OutPoint, T, &'s [u8]);

/// Reads a snapshot from start to end.
#[derive(Debug)]
pub struct SnapshotReader<R> {
    input: R,
    header: SnapshotHeader,
    sequence: Sequence,
    buffer: Vec<u8>,
    /// The range of `buffer` that was read from `input` but not consumed yet.
    start: usize,
    end: usize,
    /// The offset of `start` in the file.
    offset: u64,
    at_end: bool,
}

impl<R: Read> SnapshotReader<R> {
    /// Reads the header. Fails if the chain is not `expected`; `None` accepts any chain.
    ///
    /// `input` needs no buffering.
    pub fn new(input: R, expected: Option<Network>) -> Result<Self, SnapshotError> {
        let mut reader = Self {
            input,
            header: SnapshotHeader {
                network: Network::Main,
                base_hash: Default::default(),
                coins: 0,
            },
            sequence: Sequence::new(0),
            buffer: vec![0; BUFFER_BYTES],
            start: 0,
            end: 0,
            offset: 0,
            at_end: false,
        };
        reader.fill()?;
        let bytes = reader.buffer[..reader.end]
            .first_chunk()
            .ok_or_else(|| SnapshotError::short(reader.end))?;
        reader.header = SnapshotHeader::from_bytes(bytes)?;
        if let Some(expected) = expected {
            reader.header.expect_network(expected)?;
        }
        reader.sequence = Sequence::new(reader.header.coins);
        reader.start = SnapshotHeader::SIZE;
        reader.offset = SnapshotHeader::SIZE as u64;
        Ok(reader)
    }

    /// The snapshot's description of itself.
    pub fn header(&self) -> &SnapshotHeader {
        &self.header
    }

    /// The number of bytes consumed so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// The number of coins read so far.
    pub fn coins_read(&self) -> u64 {
        self.header.coins - self.sequence.coins_left
    }

    /// Reads until the buffer contains the whole next item, or the file ends.
    fn fill(&mut self) -> Result<(), SnapshotError> {
        if self.end - self.start >= ENTRY_BYTES_MAX || self.at_end {
            return Ok(());
        }
        self.buffer.copy_within(self.start..self.end, 0);
        self.end -= self.start;
        self.start = 0;
        while self.end < ENTRY_BYTES_MAX && !self.at_end {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => self.at_end = true,
                Ok(count) => self.end += count,
                Err(error) if error.kind() == ErrorKind::Interrupted => {}
                Err(source) => {
                    let offset = self.offset + self.end as u64;
                    return Err(SnapshotError::Read { offset, source });
                }
            }
        }
        Ok(())
    }

    fn truncated(&self) -> SnapshotError {
        let offset = self.offset + (self.end - self.start) as u64;
        let (coins, stated) = (self.coins_read(), self.header.coins);
        SnapshotError::Invalid(format!(
            "the snapshot ends at byte {offset} after {coins} of {stated} coins. The file is truncated: get it \
             again"
        ))
    }

    /// Reports a field that could not be read at `position` after the current offset. The buffer contains
    /// whole entries, so running out of bytes means that the file ends too early.
    fn number_error(&self, position: usize, source: ReadError) -> SnapshotError {
        match source {
            ReadError::End { .. } => self.truncated(),
            _ => SnapshotError::number(self.offset + position as u64, source),
        }
    }

    /// Returns the transaction of the next coin, or `None` after the last coin, where the file must end.
    fn group(&mut self) -> Result<Option<Txid>, SnapshotError> {
        if let Some(txid) = self.sequence.open_group() {
            return Ok(Some(txid));
        }
        if self.sequence.coins_left == 0 {
            if self.start < self.end {
                let (offset, coins) = (self.offset, self.header.coins);
                return Err(SnapshotError::Invalid(format!(
                    "the snapshot continues at byte {offset} after all of the {coins} coins that its header states"
                )));
            }
            return Ok(None);
        }
        let mut reader = Reader::new(&self.buffer[self.start..self.end]);
        let txid = Txid(*reader.array().map_err(|error| self.number_error(0, error))?);
        let position = reader.position();
        let count = reader.compact_u64().map_err(|error| self.number_error(position, error))?;
        let taken = reader.position();
        self.sequence.begin(self.offset, txid, count)?;
        self.start += taken;
        self.offset += taken as u64;
        Ok(Some(txid))
    }

    /// Reads the next coin; returns `None` after the number of coins in the header, and fails unless the file
    /// ends there.
    pub fn next_coin(&mut self) -> Result<Option<SnapshotCoin<'_>>, SnapshotError> {
        let next = self.next_by(|reader| {
            let coin = read_coin_strict(reader)?;
            Ok((coin.script.len(), coin))
        })?;
        Ok(next.map(|(outpoint, coin, bytes)| SnapshotCoin { outpoint, coin, bytes }))
    }

    /// Like [`next_coin`](Self::next_coin), but returns the coin in its stored form, and checks only that its
    /// fields are within their bounds.
    pub fn next_stored(&mut self) -> Result<Option<(OutPoint, &[u8])>, SnapshotError> {
        let next = self.next_by(|reader| skip_coin(reader).map(|_| (0, ())))?;
        Ok(next.map(|(outpoint, (), bytes)| (outpoint, bytes)))
    }

    /// Reads the next coin with `read`, which also returns the length of its script, or 0 if unknown.
    #[inline]
    fn next_by<'s, T>(
        &'s mut self,
        read: impl FnOnce(&mut Reader<'s>) -> Result<(usize, T), CoinError>,
    ) -> Result<Option<NextCoin<'s, T>>, SnapshotError> {
        self.fill()?;
        let Some(txid) = self.group()? else { return Ok(None) };

        let entry = &self.buffer[self.start..self.end];
        let mut reader = Reader::new(entry);
        let vout = reader.compact_u64().map_err(|error| self.number_error(0, error))?;
        let outpoint = self.sequence.check_vout(self.offset, txid, vout)?;
        let coin_start = reader.position();
        let mut reader = Reader::new(&entry[coin_start..]);
        let (script_bytes, coin) = read(&mut reader).map_err(|source| match source {
            CoinError::Read(ReadError::End { .. }) => self.truncated(),
            _ => SnapshotError::coin(self.offset + coin_start as u64, outpoint, source),
        })?;
        let coin_end = coin_start + reader.position();
        self.sequence.coin(self.offset, outpoint, script_bytes)?;
        self.start += coin_end;
        self.offset += coin_end as u64;
        Ok(Some((outpoint, coin, &entry[coin_start..coin_end])))
    }
}

/// A summary of a snapshot.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct SnapshotInfo {
    /// The chain that the coins belong to.
    pub network: Network,
    /// The block after which the set has these coins.
    pub base_hash: BlockHash,
    /// The counts and sums of the set.
    pub stats: UtxoStats,
    /// The maximum height of a coin, which cannot be above the base block.
    pub height_max: Height,
    /// The hash that Core compares when it loads a snapshot.
    pub hash_serialized_3: UtxoSetHash,
    /// The order-independent hash, if requested.
    pub muhash: Option<UtxoSetHash>,
    /// The length of the file.
    pub bytes: u64,
}

/// Reads a snapshot to its end. `with_muhash` costs several times as much as everything else.
pub fn snapshot_info<R: Read>(
    mut reader: SnapshotReader<R>,
    with_muhash: bool,
) -> Result<SnapshotInfo, SnapshotError> {
    let mut stats = UtxoStats::default();
    let mut hash = HashSerialized3::new();
    let mut muhash = with_muhash.then(MuHashBatch::new);
    let mut height_max = 0;
    let mut element = Vec::new();
    while let Some(next) = reader.next_coin()? {
        let coin = next.coin.as_ref();
        stats.push(&next.outpoint, coin);
        hash.push(&next.outpoint, coin);
        height_max = height_max.max(coin.height);
        if let Some(muhash) = &mut muhash {
            element.clear();
            write_utxo_element(&mut element, &next.outpoint, coin);
            muhash.insert(&element);
        }
    }
    let header = reader.header();
    Ok(SnapshotInfo {
        network: header.network,
        base_hash: header.base_hash,
        stats,
        height_max,
        hash_serialized_3: hash.finish(),
        muhash: muhash.map(|muhash| UtxoSetHash(muhash.finish().finalize())),
        bytes: reader.offset(),
    })
}

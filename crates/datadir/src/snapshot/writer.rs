//! [`SnapshotWriter`]: a snapshot from whole transactions that are already in their final bytes.
//!
//! What it writes is a snapshot by construction: each part is walked, down to the outline of every
//! coin, before any of it is written. What the coins say is not looked at. The file is complete
//! only when [`finish`](SnapshotWriter::finish) says so.

use super::{Sequence, SnapshotError, SnapshotHeader};
use apus_chain::{ReadError, Reader, Txid, skip_coin, vout_order, write_compact_size};
use std::io::Write;

/// Writes a snapshot from start to end.
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

//! [`BaseSet`]: the UTXO set between two batches, and the record from which a later start reads it.
//!
//! A long chain is processed in batches of consecutive blocks, each joined with the set below it: its *base*.
//! The base has the form of the coins that segments leave ([`OutputRecord`](super::OutputRecord)), in one sorted
//! run for each thread of the join that made it. When the record is written, all blocks up to the base's are
//! validated, its files are durable, and the records of those blocks are no longer needed.
//!
//! ```text
//! 8     41 50 55 53 42 41 53 45   "APUSBASE"
//! 4     version, 1
//! 4     height of its last block
//! 32    hash of that block
//! 4     the last block whose scripts were assumed valid
//! 4     the last block whose witnesses were skipped
//! 64    the blocks up to which the user assumes scripts valid and skips witnesses; zeros for none
//! 1     1 if numbers follow its coins
//! 8     its coins
//! …     its runs: a CompactSize and for each run its name after a CompactSize, and length, sections, checksum (28)
//! …     coins that were overwritten in spite of BIP-30: a CompactSize and for each the height of the block that
//!       created it (4), txid, output (4), and the coin after a CompactSize
//! …     outputs that each block numbers, if numbers follow its coins (4 each, big-endian)
//! …     the merged partial result of its blocks
//! 32    SHA-256 of all bytes before
//! ```
//!
//! The record names its block and not a plan: a later start may follow a longer chain that contains the block. If a
//! base is lost, its record becomes empty, and the next start removes the segments above it.

use super::join_result::{read_runs, write_runs};
use super::{FirstPass, SegmentSummary};
use crate::engines::pass::PartialResult;
use crate::error::{StorageResult, SyncError};
use crate::request::Request;
use crate::workdir::names::BASE;
use crate::workdir::{FinishedRange, RunInfo, Workdir, names, present};
use apus_chain::{
    BlockHash, Height, HeightRange, KnownBlock, OutPoint, Reader, write_compact_size,
};
use apus_storage::{Storage, read_whole, write_atomically};

const MAGIC: &[u8; 8] = b"APUSBASE";

const VERSION: u32 = 1;

/// Greatest length of the record: a few bytes for each block, and some hundred for each run.
const BYTES_MAX: u64 = 64 << 20;

/// The UTXO set below a batch.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct BaseSet {
    /// Its last block; the genesis block if the batch is the first.
    pub(super) at: KnownBlock,
    /// The last block whose scripts were assumed valid.
    pub(super) assumed: Height,
    /// The last block whose witnesses were skipped.
    pub(super) unseen: Height,
    /// The blocks up to which the user assumes scripts valid and skips witnesses, as far as the chain allows it.
    pub(super) options: [BlockHash; 2],
    /// Whether numbers follow its coins.
    pub(super) numbered: bool,
    /// Number of its coins.
    pub(super) coins: u64,
    /// Its coins, in sorted runs.
    pub(super) runs: Vec<RunInfo>,
    /// Coins that were overwritten.
    pub(super) overwritten: Vec<OverwrittenCoin>,
    /// Number of outputs that each block numbers, as in [`FirstPass::ADDED`].
    pub(super) added: Vec<u8>,
    /// The merged result of its blocks.
    pub(super) summary: SegmentSummary,
}

/// A coin that a block created again while it existed, so that no spend can take it (BIP-30).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OverwrittenCoin {
    /// The block that created it.
    pub(super) height: Height,
    pub(super) outpoint: OutPoint,
    /// The coin, followed by its number if coins are numbered.
    pub(super) coin: Vec<u8>,
}

impl BaseSet {
    /// The options of a request that decide how blocks are validated.
    pub(super) fn options_of(request: &Request<'_>) -> [BlockHash; 2] {
        [request.assume_valid(), request.leave_witnesses].map(Option::unwrap_or_default)
    }

    /// Bytes of its runs on disk.
    pub(super) fn disk_bytes(&self) -> u64 {
        self.runs.iter().map(RunInfo::file_bytes).sum()
    }

    /// Adds the results of the segments of the batch above. The set itself stays.
    pub(super) fn add_segments(
        &mut self,
        workdir: &Workdir<'_>,
        done: &[FinishedRange<SegmentSummary>],
    ) -> Result<(), SyncError> {
        for done in done {
            self.summary.merge(&done.partial).map_err(|_| workdir.damaged())?;
            if self.numbered {
                let run = done.run(FirstPass::ADDED).ok_or_else(|| workdir.damaged())?;
                self.added.extend_from_slice(&workdir.read_run(run)?);
            }
        }
        self.at = self.summary.ends.last().copied().unwrap_or(self.at);
        self.summary.ends = vec![self.at];
        let is_whole = self.summary.ranges() == [HeightRange::new(1, self.at.height + 1)];
        is_whole.then_some(()).ok_or_else(|| workdir.damaged())
    }

    /// Makes the record durable, after its files.
    pub(super) fn write(&self, storage: &dyn Storage) -> Result<(), SyncError> {
        storage.sync_names().at(storage, "")?;
        write_atomically(storage, BASE, &self.to_bytes()).at(storage, BASE)
    }

    /// Empties the record, and then removes its files.
    pub(super) fn remove(&self, storage: &dyn Storage) -> Result<(), SyncError> {
        write_atomically(storage, BASE, &[]).at(storage, BASE)?;
        self.runs.iter().try_for_each(|run| storage.remove(&run.name).at(storage, &run.name))
    }

    /// Whether there is a record, which may be damaged.
    pub(super) fn was_made(storage: &dyn Storage) -> Result<bool, SyncError> {
        Ok(present(storage.len(BASE)).at(storage, BASE)?.is_some())
    }

    /// Reads the record; `None` if there is none, or if it or one of its files is damaged.
    pub(super) fn read(storage: &dyn Storage) -> Result<Option<Self>, SyncError> {
        let bytes = present(read_whole(storage, BASE, BYTES_MAX)).at(storage, BASE)?;
        let Some(base) = bytes.and_then(|it| Self::from_bytes(&it)) else { return Ok(None) };
        Ok(RunInfo::are_all_there(&base.runs, storage)?.then_some(base))
    }

    /// The files that it names, and its own.
    pub(super) fn names(&self) -> impl Iterator<Item = &str> {
        self.runs.iter().map(|run| run.name.as_str()).chain([BASE])
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = names::begin(MAGIC, VERSION);
        out.extend_from_slice(&self.at.height.to_le_bytes());
        out.extend_from_slice(&self.at.hash.0);
        out.extend_from_slice(&self.assumed.to_le_bytes());
        out.extend_from_slice(&self.unseen.to_le_bytes());
        self.options.iter().for_each(|hash| out.extend_from_slice(&hash.0));
        out.push(u8::from(self.numbered));
        out.extend_from_slice(&self.coins.to_le_bytes());
        write_runs(&mut out, &self.runs);
        OverwrittenCoin::write_all(&self.overwritten, &mut out);
        out.extend_from_slice(&self.added);
        self.summary.write(&mut out);
        names::seal(out)
    }

    fn from_bytes(bytes: &[u8]) -> Option<Self> {
        let mut reader = names::open(bytes, MAGIC, VERSION)?;
        let height = reader.u32().ok()?;
        let at = KnownBlock { height, hash: BlockHash(*reader.array().ok()?) };
        let (assumed, unseen) = (reader.u32().ok()?, reader.u32().ok()?);
        let options = [BlockHash(*reader.array().ok()?), BlockHash(*reader.array().ok()?)];
        let numbered = names::flag(&mut reader)?;
        let coins = reader.u64().ok()?;
        let runs = read_runs(&mut reader)?;
        let overwritten = OverwrittenCoin::read_all(&mut reader)?;
        let added = if numbered { 4 * height as usize } else { 0 };
        let added = reader.take(added).ok()?.to_vec();
        let summary = SegmentSummary::read(&mut reader)?;
        reader.finish().ok()?;
        let covers = height > 0 && summary.ranges() == [HeightRange::new(1, height + 1)];
        (covers && summary.ends == [at]).then_some(Self {
            at,
            assumed,
            unseen,
            options,
            numbered,
            coins,
            runs,
            overwritten,
            added,
            summary,
        })
    }
}

impl OverwrittenCoin {
    pub(super) fn write_all(all: &[Self], out: &mut Vec<u8>) {
        write_compact_size(out, all.len() as u64);
        for Self { height, outpoint, coin } in all {
            out.extend_from_slice(&height.to_le_bytes());
            out.extend_from_slice(&outpoint.to_bytes());
            write_compact_size(out, coin.len() as u64);
            out.extend_from_slice(coin);
        }
    }

    pub(super) fn read_all(reader: &mut Reader<'_>) -> Option<Vec<Self>> {
        let mut all = Vec::new();
        for _ in 0..reader.compact_size().ok()? {
            let height = reader.u32().ok()?;
            let outpoint = OutPoint::from_bytes(reader.array().ok()?);
            let length = reader.compact_size().ok()?;
            all.push(Self { height, outpoint, coin: reader.take(length).ok()?.to_vec() });
        }
        Some(all)
    }
}

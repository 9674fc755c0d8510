//! What jobs of mergesync are told and leave, as objects: records by pieces, each with its own digest.
//!
//! A segment leaves all of its records as one object, and says where pieces of it begin and which keys are there. A part of
//! the join reads those pieces that have keys of its own, and leaves answers for all segments, which read theirs. So
//! there is an object for each job and not one for each pair of jobs, and a reader of a piece can see that
//! it is what was written.
//!
//! Each begins with `APUSTOLD` or `APUSDONE` (8), version (4), run (32), job (9). *Objects* are 40 bytes, *n* before a
//! list is a CompactSize.
//!
//! * **blocks** leaves the object of its records (made coins, then spends); the object of its own runs, each behind its
//!   length (8); pieces of coins and of spends: n, and for each the first 8 bytes of its first and last record as numbers,
//!   length (4), digest (32); leaves that its blocks add (8); the partial result.
//! * **join** gets the first 8 bytes of its first key (8), 1 and the end of its keys (8) or 0; n segments: heights (4
//!   each), the object of the records, and for coins and spends where the pieces begin (8), n, and length and digest of
//!   each. It leaves coins, transactions, bogosize (8 each), amount (16), MuHash (768); n outputs that existed when their
//!   block began (40); the coins' run; the run of their places; what it found for segments, twice: answers, and leaves.
//! * **connect** gets the object of its own runs; n slices of answers (object, start, length, digest); n outputs that
//!   existed; 1, the number of leaves below (8) and n slices of leaves, or 0; the height from which undo data are wanted
//!   (4). It leaves blocks (8), bytes (8), its fragment of the forest behind its length, and n objects of undo data, which
//!   hold whole blocks and are put once they have 8 MiB.
//!
//! A leaf is height, number among its block's leaves (big-endian, 4 each) and hash. A run is its length (8), sections (4),
//! checksum of the index (16), and n objects: run and index, one after the other. Undo data are, for each block, length
//! (4), the sum of the coins that it spends (8), and the bytes as in `rev*.dat`.

use super::RunId;
use super::wire::{
    ObjectPart, ObjectRef, WireError, begin, many, open, read_key, write_key, write_objects,
};
use crate::job::JobKey;
use apus_chain::{Height, HeightRange, MuHash, OutPoint, Reader, write_compact_size};
use apus_sync::engines::mergesync::Gathered;
use apus_sync::engines::pass::PartialResult;
use apus_sync::engines::swiftsync::CoinTotals;
use apus_utreexo::Fragment;
use std::collections::BTreeMap;

/// First bytes of what a job is told.
const TOLD_MAGIC: &[u8; 8] = b"APUSTOLD";

/// First bytes of what a job leaves.
const DONE_MAGIC: &[u8; 8] = b"APUSDONE";

/// Something that a job is told, or leaves.
pub(crate) trait Sent: Sized {
    /// First bytes.
    const MAGIC: &'static [u8; 8];
    /// What it is, for people.
    const WHAT: &'static str;

    /// Appends the body.
    fn write(&self, out: &mut Vec<u8>);

    /// Reads the body; none where these bytes are none.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;

    /// The byte form, for a job of a run.
    fn to_bytes(&self, run: RunId, key: JobKey) -> Vec<u8> {
        let mut out = begin(Self::MAGIC);
        out.extend_from_slice(&run.0);
        write_key(key, &mut out);
        self.write(&mut out);
        out
    }

    /// Reads the byte form, which must be for this very job.
    fn from_bytes(bytes: &[u8], run: RunId, key: JobKey) -> Result<Self, WireError> {
        let what = Self::WHAT;
        let damaged = || WireError::Damaged { what };
        let mut reader = open(bytes, Self::MAGIC, what)?;
        let found = RunId(*reader.array().map_err(|_| damaged())?);
        if found != run {
            return Err(WireError::OtherRun { what, found, wanted: run });
        }
        if read_key(&mut reader).ok_or_else(damaged)? != key {
            return Err(WireError::OtherJob { what });
        }
        let sent = Self::read(&mut reader).filter(|_| reader.remaining() == 0);
        sent.ok_or_else(damaged)
    }
}

/// What a job is told that needs to be told nothing.
pub(crate) fn nothing_told() -> Vec<u8> {
    begin(TOLD_MAGIC)
}

/// Some records that follow one another.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordPiece {
    /// The first bytes of the first one, as a number.
    pub(crate) first: u64,
    /// The same of the last one.
    pub(crate) last: u64,
    pub(crate) bytes: u32,
    pub(crate) digest: [u8; 32],
}

/// What a segment leaves for others.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct GatherDone {
    /// Coins that it makes, and behind them spends that it leaves.
    pub(crate) records: ObjectRef,
    /// What it needs itself when its blocks are judged: runs, each with its length before it.
    pub(crate) own: ObjectRef,
    /// The pieces of its coins, by ascending key.
    pub(crate) made: Vec<RecordPiece>,
    /// Those of its spends.
    pub(crate) spent: Vec<RecordPiece>,
    /// Leaves that its blocks add to the Utreexo forest; 0 where they are not counted.
    pub(crate) leaves: u64,
    pub(crate) partial: Gathered,
}

impl Sent for GatherDone {
    const MAGIC: &'static [u8; 8] = DONE_MAGIC;
    const WHAT: &'static str = "what a segment leaves";

    fn write(&self, out: &mut Vec<u8>) {
        self.records.write(out);
        self.own.write(out);
        for pieces in [&self.made, &self.spent] {
            write_compact_size(out, pieces.len() as u64);
            for RecordPiece { first, last, bytes, digest } in pieces {
                out.extend_from_slice(&first.to_le_bytes());
                out.extend_from_slice(&last.to_le_bytes());
                out.extend_from_slice(&bytes.to_le_bytes());
                out.extend_from_slice(digest);
            }
        }
        out.extend_from_slice(&self.leaves.to_le_bytes());
        self.partial.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (records, own) = (ObjectRef::read(reader)?, ObjectRef::read(reader)?);
        let mut pieces = || {
            many(reader, |reader| {
                let (first, last) = (reader.u64().ok()?, reader.u64().ok()?);
                let bytes = reader.u32().ok()?;
                Some(RecordPiece { first, last, bytes, digest: *reader.array().ok()? })
            })
        };
        let (made, spent) = (pieces()?, pieces()?);
        let ascend = |pieces: &[RecordPiece]| {
            pieces.iter().flat_map(|piece| [piece.first, piece.last]).is_sorted()
        };
        let all: u64 = made.iter().chain(&spent).map(|piece| u64::from(piece.bytes)).sum();
        if !(ascend(&made) && ascend(&spent) && all == records.bytes) {
            return None;
        }
        let leaves = reader.u64().ok()?;
        Some(Self { records, own, made, spent, leaves, partial: Gathered::read(reader)? })
    }
}

/// Pieces of an object that follow one another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) offset: u64,
    /// Length and digest of each.
    pub(crate) pieces: Vec<(u32, [u8; 32])>,
}

impl Slice {
    pub(crate) fn bytes(&self) -> u64 {
        self.pieces.iter().map(|(bytes, _)| u64::from(*bytes)).sum()
    }

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.offset.to_le_bytes());
        write_compact_size(out, self.pieces.len() as u64);
        for (bytes, digest) in &self.pieces {
            out.extend_from_slice(&bytes.to_le_bytes());
            out.extend_from_slice(digest);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let offset = reader.u64().ok()?;
        let piece = |reader: &mut Reader<'_>| Some((reader.u32().ok()?, *reader.array().ok()?));
        Some(Self { offset, pieces: many(reader, piece)? })
    }
}

/// What a part of the join takes of a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinSource {
    pub(crate) range: HeightRange,
    pub(crate) records: ObjectRef,
    pub(crate) made: Slice,
    pub(crate) spent: Slice,
}

/// What a part of the join is told.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinTold {
    /// Its keys: the first bytes of those that are wanted, and of the first one that is not, if there is one.
    pub(crate) from: u64,
    pub(crate) until: Option<u64>,
    /// All segments, by ascending height.
    pub(crate) sources: Vec<JoinSource>,
}

impl Sent for JoinTold {
    const MAGIC: &'static [u8; 8] = TOLD_MAGIC;
    const WHAT: &'static str = "what a part of the join is told";

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.from.to_le_bytes());
        out.push(u8::from(self.until.is_some()));
        out.extend_from_slice(&self.until.unwrap_or_default().to_le_bytes());
        write_compact_size(out, self.sources.len() as u64);
        for JoinSource { range, records, made, spent } in &self.sources {
            super::wire::write_range(*range, out);
            records.write(out);
            made.write(out);
            spent.write(out);
        }
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let from = reader.u64().ok()?;
        let until = match (reader.u8().ok()?, reader.u64().ok()?) {
            (0, 0) => None,
            (1, until) => Some(until),
            _ => return None,
        };
        let sources = many(reader, |reader| {
            let (range, records) = (super::wire::read_range(reader)?, ObjectRef::read(reader)?);
            let (made, spent) = (Slice::read(reader)?, Slice::read(reader)?);
            let fits = |slice: &Slice| {
                slice.offset.checked_add(slice.bytes()).is_some_and(|end| end <= records.bytes)
            };
            (fits(&made) && fits(&spent)).then_some(JoinSource { range, records, made, spent })
        })?;
        let ascend = sources.windows(2).all(|pair| pair[0].range.end <= pair[1].range.start);
        ascend.then_some(Self { from, until, sources })
    }
}

/// A run with its index, in objects that follow one another.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct RunObjects {
    /// Length of the run without its index.
    pub(crate) bytes: u64,
    pub(crate) sections: u32,
    pub(crate) checksum: [u8; 16],
    pub(crate) objects: Vec<ObjectRef>,
}

impl RunObjects {
    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.sections.to_le_bytes());
        out.extend_from_slice(&self.checksum);
        write_objects(&self.objects, out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (bytes, sections) = (reader.u64().ok()?, reader.u32().ok()?);
        let checksum = *reader.array().ok()?;
        Some(Self { bytes, sections, checksum, objects: many(reader, ObjectRef::read)? })
    }
}

/// What a part of the join leaves.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JoinDone {
    pub(crate) totals: CoinTotals,
    pub(crate) muhash: MuHash,
    /// Outputs of blocks that existed when the block began.
    pub(crate) existed: BTreeMap<Height, Vec<OutPoint>>,
    /// The coins that no spend took.
    pub(crate) coins: RunObjects,
    /// Their places.
    pub(crate) places: RunObjects,
    /// Coins for inputs.
    pub(crate) answers: JoinFound,
    /// Leaves of the Utreexo forest that survive, where they are asked for.
    pub(crate) leaves: JoinFound,
}

impl Sent for JoinDone {
    const MAGIC: &'static [u8; 8] = DONE_MAGIC;
    const WHAT: &'static str = "what a part of the join leaves";

    fn write(&self, out: &mut Vec<u8>) {
        let CoinTotals { coins, transactions, amount, bogosize } = self.totals;
        for number in [coins, transactions, bogosize] {
            out.extend_from_slice(&number.to_le_bytes());
        }
        out.extend_from_slice(&amount.to_le_bytes());
        out.extend_from_slice(&self.muhash.to_bytes());
        write_existed(&self.existed, out);
        self.coins.write(out);
        self.places.write(out);
        self.answers.write(out);
        self.leaves.write(out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let mut number = || reader.u64().ok();
        let (coins, transactions, bogosize) = (number()?, number()?, number()?);
        let amount = u128::from_le_bytes(*reader.array().ok()?);
        let totals = CoinTotals { coins, transactions, amount, bogosize };
        let muhash = MuHash::from_bytes(reader.array().ok()?).ok()?;
        let existed = read_existed(reader)?;
        let (coins, places) = (RunObjects::read(reader)?, RunObjects::read(reader)?);
        let (answers, leaves) = (JoinFound::read(reader)?, JoinFound::read(reader)?);
        Some(Self { totals, muhash, existed, coins, places, answers, leaves })
    }
}

/// What a segment is told whose blocks are to be judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectTold {
    /// What it left for itself.
    pub(crate) own: ObjectRef,
    /// Where the coins are that the join found for it, and their digests.
    pub(crate) answers: Vec<FoundPart>,
    /// Outputs of its blocks that existed when the block began.
    pub(crate) existed: BTreeMap<Height, Vec<OutPoint>>,
    /// Where the roots of the Utreexo forest are wanted.
    pub(crate) forest: Option<ForestTold>,
    /// The block from which on undo data are wanted.
    pub(crate) undo_from: Height,
}

/// What a segment is told of the forest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForestTold {
    /// How many leaves the blocks below it add.
    pub(crate) first: u64,
    /// Where its leaves are that survive.
    pub(crate) leaves: Vec<FoundPart>,
}

impl Sent for ConnectTold {
    const MAGIC: &'static [u8; 8] = TOLD_MAGIC;
    const WHAT: &'static str = "what blocks are to be judged by";

    fn write(&self, out: &mut Vec<u8>) {
        self.own.write(out);
        write_parts(&self.answers, out);
        write_existed(&self.existed, out);
        out.push(u8::from(self.forest.is_some()));
        if let Some(ForestTold { first, leaves }) = &self.forest {
            out.extend_from_slice(&first.to_le_bytes());
            write_parts(leaves, out);
        }
        out.extend_from_slice(&self.undo_from.to_le_bytes());
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (own, answers) = (ObjectRef::read(reader)?, read_parts(reader)?);
        let existed = read_existed(reader)?;
        let forest = match reader.u8().ok()? {
            0 => None,
            1 => Some(ForestTold { first: reader.u64().ok()?, leaves: read_parts(reader)? }),
            _ => return None,
        };
        let undo_from = reader.u32().ok()?;
        Some(Self { own, answers, existed, forest, undo_from })
    }
}

/// What is left of blocks that were judged.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectDone {
    /// How many they were.
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// What their leaves make of the Utreexo forest, where that is wanted.
    pub(crate) fragment: Option<Fragment>,
    /// The undo data of those of which they are wanted.
    pub(crate) undo: Vec<ObjectRef>,
}

impl Sent for ConnectDone {
    const MAGIC: &'static [u8; 8] = DONE_MAGIC;
    const WHAT: &'static str = "what is left of judged blocks";

    fn write(&self, out: &mut Vec<u8>) {
        out.extend_from_slice(&self.blocks.to_le_bytes());
        out.extend_from_slice(&self.bytes.to_le_bytes());
        let mut fragment = Vec::new();
        self.fragment.iter().for_each(|of| of.write(&mut fragment));
        write_compact_size(out, fragment.len() as u64);
        out.extend_from_slice(&fragment);
        write_objects(&self.undo, out);
    }

    fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let (blocks, bytes) = (reader.u64().ok()?, reader.u64().ok()?);
        let length = reader.compact_size().ok()?;
        let fragment = match reader.take(length).ok()? {
            [] => None,
            fragment => Some(Fragment::read(fragment).ok()?),
        };
        Some(Self { blocks, bytes, fragment, undo: many(reader, ObjectRef::read)? })
    }
}

fn write_existed(existed: &BTreeMap<Height, Vec<OutPoint>>, out: &mut Vec<u8>) {
    let count: usize = existed.values().map(Vec::len).sum();
    write_compact_size(out, count as u64);
    for (height, outpoints) in existed {
        for outpoint in outpoints {
            out.extend_from_slice(&height.to_le_bytes());
            out.extend_from_slice(&outpoint.to_bytes());
        }
    }
}

/// Reads them; each block's come together.
fn read_existed(reader: &mut Reader<'_>) -> Option<BTreeMap<Height, Vec<OutPoint>>> {
    let one = |reader: &mut Reader<'_>| {
        let height = reader.u32().ok()?;
        Some((height, OutPoint::from_bytes(reader.array().ok()?)))
    };
    let all = many(reader, one)?;
    let mut existed: BTreeMap<Height, Vec<OutPoint>> = BTreeMap::new();
    let ascend = all.is_sorted_by_key(|(height, _)| *height);
    all.into_iter().for_each(|(height, it)| existed.entry(height).or_default().push(it));
    ascend.then_some(existed)
}

/// Whether bytes are read as any of these.
///
/// # Panics
/// Where what was read is not written as it was: a mistake in the program.
pub(super) fn any_reads_as_sent(bytes: &[u8], run: RunId, key: JobKey) -> bool {
    fn one<S: Sent>(bytes: &[u8], run: RunId, key: JobKey) -> bool {
        let read = S::from_bytes(bytes, run, key);
        if let Ok(read) = &read {
            assert!(read.to_bytes(run, key) == bytes, "it is written in another way");
        }
        read.is_ok()
    }
    one::<GatherDone>(bytes, run, key)
        | one::<JoinTold>(bytes, run, key)
        | one::<JoinDone>(bytes, run, key)
        | one::<ConnectTold>(bytes, run, key)
        | one::<ConnectDone>(bytes, run, key)
}

// What a part of the join found for segments, as pieces of objects with digests of their own.

/// What a part of the join found for a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FoundSlice {
    /// Which of the objects it is in.
    pub(crate) object: u32,
    pub(crate) offset: u32,
    /// There is none where this is 0, and the rest means nothing.
    pub(crate) bytes: u32,
    pub(crate) digest: [u8; 32],
}

impl FoundSlice {
    /// Where it is, by the objects that it is in one of, with its digest.
    pub(crate) fn part(&self, objects: &[ObjectRef]) -> Option<FoundPart> {
        let object = *objects.get(self.object as usize).filter(|_| self.bytes > 0)?;
        let (offset, bytes) = (u64::from(self.offset), u64::from(self.bytes));
        Some((ObjectPart { object, offset, bytes }, self.digest))
    }
}

/// What a part of the join found for all segments, in objects in which that for each lies together.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JoinFound {
    pub(crate) objects: Vec<ObjectRef>,
    /// Which of it is each segment's; none at all where nothing was looked for.
    pub(crate) slices: Vec<FoundSlice>,
}

impl JoinFound {
    pub(super) fn write(&self, out: &mut Vec<u8>) {
        write_objects(&self.objects, out);
        write_compact_size(out, self.slices.len() as u64);
        for FoundSlice { object, offset, bytes, digest } in &self.slices {
            for number in [object, offset, bytes] {
                out.extend_from_slice(&number.to_le_bytes());
            }
            if *bytes > 0 {
                out.extend_from_slice(digest);
            }
        }
    }

    pub(super) fn read(reader: &mut Reader<'_>) -> Option<Self> {
        let objects: Vec<ObjectRef> = many(reader, ObjectRef::read)?;
        let slices = many(reader, |reader| {
            let mut number = || reader.u32().ok();
            let (object, offset, bytes) = (number()?, number()?, number()?);
            let digest = if bytes > 0 { *reader.array().ok()? } else { [0; 32] };
            let end = u64::from(offset) + u64::from(bytes);
            let fits = bytes == 0 || objects.get(object as usize).is_some_and(|it| end <= it.bytes);
            fits.then_some(FoundSlice { object, offset, bytes, digest })
        })?;
        Some(Self { objects, slices })
    }
}

/// Some of it, and its digest.
pub(crate) type FoundPart = (ObjectPart, [u8; 32]);

pub(super) fn write_parts(parts: &[FoundPart], out: &mut Vec<u8>) {
    write_compact_size(out, parts.len() as u64);
    for (ObjectPart { object, offset, bytes }, digest) in parts {
        object.write(out);
        out.extend_from_slice(&offset.to_le_bytes());
        out.extend_from_slice(&bytes.to_le_bytes());
        out.extend_from_slice(digest);
    }
}

pub(super) fn read_parts(reader: &mut Reader<'_>) -> Option<Vec<FoundPart>> {
    many(reader, |reader| {
        let object = ObjectRef::read(reader)?;
        let (offset, bytes) = (reader.u64().ok()?, reader.u64().ok()?);
        let fits = offset.checked_add(bytes).is_some_and(|end| end <= object.bytes);
        let part = ObjectPart { object, offset, bytes };
        fits.then_some((part, *reader.array().ok()?))
    })
}

#[cfg(test)]
mod tests;

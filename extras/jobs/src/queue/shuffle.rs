//! Payloads and results of mergesync jobs, encoded as objects: records in pieces, each with its own digest.
//!
//! A segment stores all of its records as one object, and its result lists the pieces of that object and their keys. A
//! part of the join reads the pieces that contain its keys, and stores prevouts for all segments, which read their
//! slices. So there is one object for each job, not one for each pair of jobs, and a reader can verify each piece.
//!
//! Each payload and result begins with `APUSTOLD` or `APUSDONE` (8), version (4), run (32), job (9). *Objects* are 40
//! bytes, *n* before a list is a CompactSize.
//!
//! * **blocks** results in the object of its records (created coins, then spends); the object of its own runs, each
//!   after its length (8); pieces of coins and of spends: n, and for each the first 8 bytes of its first and last
//!   record as numbers, length (4), digest (32); the number of leaves that its blocks add (8); the partial result.
//! * **join** gets the first 8 bytes of its first key (8), 1 and the end of its keys (8) or 0; n segments: heights (4
//!   each), the object of the records, and for coins and spends the offset of the first piece (8), n, and length and
//!   digest of each piece. It results in coins, transactions, bogosize (8 each), amount (16), MuHash (768); n outputs
//!   that existed when their block began (40); the coins' run; the run of their places; what it found for segments,
//!   twice: prevouts, and leaves.
//! * **connect** gets the object of its own runs; n slices of prevouts (object, start, length, digest); n outputs that
//!   existed; 1, the number of leaves below (8) and n slices of leaves, or 0; the first height whose undo data are
//!   wanted (4). It results in blocks (8), bytes (8), its fragment of the forest after its length, and n objects of
//!   undo data, each with whole blocks and stored once it has 8 MiB.
//!
//! A leaf is its height, its number among its block's leaves (big-endian, 4 each) and its hash. A run is its length
//! (8), sections (4), checksum of the index (16), and n objects, which concatenate to the run and its index. Undo data
//! are, for each block, length (4), the sum of the coins that it spends (8), and the bytes as in `rev*.dat`.

use super::RunId;
use super::wire::{
    ObjectPart, ObjectRef, WireError, begin, many, open, read_key, write_key, write_objects,
};
use crate::job::JobKey;
use apus_chain::{Height, HeightRange, MuHash, OutPoint, Reader, write_compact_size};
use apus_sync::engines::mergesync::SegmentSummary;
use apus_sync::engines::pass::PartialResult;
use apus_sync::engines::swiftsync::CoinTotals;
use apus_utreexo::Fragment;
use std::collections::BTreeMap;

/// First bytes of a payload.
const PAYLOAD_MAGIC: &[u8; 8] = b"APUSTOLD";

/// First bytes of a result.
const DONE_MAGIC: &[u8; 8] = b"APUSDONE";

/// A payload or a result of a mergesync job.
pub(crate) trait Sent: Sized {
    /// Its first bytes.
    const MAGIC: &'static [u8; 8];
    /// Its name in messages.
    const WHAT: &'static str;

    /// Appends the body.
    fn write(&self, out: &mut Vec<u8>);

    /// Decodes the body; `None` if it is invalid.
    fn read(reader: &mut Reader<'_>) -> Option<Self>;

    /// Encodes it for a job of a run.
    fn to_bytes(&self, run: RunId, key: JobKey) -> Vec<u8> {
        let mut out = begin(Self::MAGIC);
        out.extend_from_slice(&run.0);
        write_key(key, &mut out);
        self.write(&mut out);
        out
    }

    /// Decodes it; it must be for this job.
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

/// The payload of a job that needs none.
pub(crate) fn empty_payload() -> Vec<u8> {
    begin(PAYLOAD_MAGIC)
}

/// A piece of consecutive records.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RecordPiece {
    /// The first 8 bytes of its first record, as a number.
    pub(crate) first: u64,
    /// The first 8 bytes of its last record, as a number.
    pub(crate) last: u64,
    pub(crate) bytes: u32,
    pub(crate) digest: [u8; 32],
}

/// Result of the first pass over a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct FirstPassDone {
    /// The coins that the segment creates, followed by its spends of earlier coins.
    pub(crate) records: ObjectRef,
    /// Runs that the segment itself needs when its blocks are connected, each after its length.
    pub(crate) own: ObjectRef,
    /// The pieces of its coins, by ascending key.
    pub(crate) made: Vec<RecordPiece>,
    /// The pieces of its spends, by ascending key.
    pub(crate) spent: Vec<RecordPiece>,
    /// Number of leaves that its blocks add to the Utreexo forest; 0 if they are not counted.
    pub(crate) leaves: u64,
    pub(crate) partial: SegmentSummary,
}

impl Sent for FirstPassDone {
    const MAGIC: &'static [u8; 8] = DONE_MAGIC;
    const WHAT: &'static str = "the result of a segment";

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
        Some(Self { records, own, made, spent, leaves, partial: SegmentSummary::read(reader)? })
    }
}

/// Consecutive pieces of an object.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct Slice {
    pub(crate) offset: u64,
    /// Length and digest of each piece.
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

/// The records of a segment that a part of the join reads.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinSource {
    pub(crate) range: HeightRange,
    pub(crate) records: ObjectRef,
    pub(crate) made: Slice,
    pub(crate) spent: Slice,
}

/// Payload of a part of the join.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct JoinPayload {
    /// The first 8 bytes of its first key, and of the first key after it, if there is one.
    pub(crate) from: u64,
    pub(crate) until: Option<u64>,
    /// All segments, by ascending height.
    pub(crate) sources: Vec<JoinSource>,
}

impl Sent for JoinPayload {
    const MAGIC: &'static [u8; 8] = PAYLOAD_MAGIC;
    const WHAT: &'static str = "the payload of a part of the join";

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

/// A run and its index, as objects to concatenate.
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

/// Result of a part of the join.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JoinDone {
    pub(crate) totals: CoinTotals,
    pub(crate) muhash: MuHash,
    /// For each block, the outputs that existed before it (BIP30).
    pub(crate) existed: BTreeMap<Height, Vec<OutPoint>>,
    /// The unspent coins.
    pub(crate) coins: RunObjects,
    /// The places of the unspent coins.
    pub(crate) places: RunObjects,
    /// The coins that inputs spend.
    pub(crate) answers: JoinFound,
    /// Surviving leaves of the Utreexo forest, if requested.
    pub(crate) leaves: JoinFound,
}

impl Sent for JoinDone {
    const MAGIC: &'static [u8; 8] = DONE_MAGIC;
    const WHAT: &'static str = "the result of a part of the join";

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

/// Payload of the job that connects a segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectPayload {
    /// Its own runs from the first pass.
    pub(crate) own: ObjectRef,
    /// The places and digests of the coins that the join found for it.
    pub(crate) answers: Vec<FoundPart>,
    /// For each of its blocks, the outputs that existed before it (BIP30).
    pub(crate) existed: BTreeMap<Height, Vec<OutPoint>>,
    /// Set if the roots of the Utreexo forest are requested.
    pub(crate) forest: Option<ForestPayload>,
    /// The first block whose undo data are requested.
    pub(crate) undo_from: Height,
}

/// The part of a payload about the forest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ForestPayload {
    /// Number of leaves that the blocks below the segment add.
    pub(crate) first: u64,
    /// The places of its surviving leaves.
    pub(crate) leaves: Vec<FoundPart>,
}

impl Sent for ConnectPayload {
    const MAGIC: &'static [u8; 8] = PAYLOAD_MAGIC;
    const WHAT: &'static str = "the payload of blocks to connect";

    fn write(&self, out: &mut Vec<u8>) {
        self.own.write(out);
        write_parts(&self.answers, out);
        write_existed(&self.existed, out);
        out.push(u8::from(self.forest.is_some()));
        if let Some(ForestPayload { first, leaves }) = &self.forest {
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
            1 => Some(ForestPayload { first: reader.u64().ok()?, leaves: read_parts(reader)? }),
            _ => return None,
        };
        let undo_from = reader.u32().ok()?;
        Some(Self { own, answers, existed, forest, undo_from })
    }
}

/// Result of a connected segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct ConnectDone {
    /// Number of blocks.
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// The fragment of the Utreexo forest that their leaves form, if requested.
    pub(crate) fragment: Option<Fragment>,
    /// The undo data of the blocks from [`ConnectPayload::undo_from`] on.
    pub(crate) undo: Vec<ObjectRef>,
}

impl Sent for ConnectDone {
    const MAGIC: &'static [u8; 8] = DONE_MAGIC;
    const WHAT: &'static str = "the result of connected blocks";

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

/// Decodes the existing outputs; those in one block are adjacent.
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

/// Whether bytes decode as the payload or result of any mergesync job.
///
/// # Panics
/// If a decoded value encodes to other bytes: a bug in the program.
pub(super) fn any_reads_as_sent(bytes: &[u8], run: RunId, key: JobKey) -> bool {
    fn one<S: Sent>(bytes: &[u8], run: RunId, key: JobKey) -> bool {
        let read = S::from_bytes(bytes, run, key);
        if let Ok(read) = &read {
            assert!(read.to_bytes(run, key) == bytes, "it encodes differently");
        }
        read.is_ok()
    }
    one::<FirstPassDone>(bytes, run, key)
        | one::<JoinPayload>(bytes, run, key)
        | one::<JoinDone>(bytes, run, key)
        | one::<ConnectPayload>(bytes, run, key)
        | one::<ConnectDone>(bytes, run, key)
}

// The records that a part of the join found for segments: slices of objects, each with its own digest.

/// The slice of records that a part of the join found for a segment.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct FoundSlice {
    /// Index of the object that contains it.
    pub(crate) object: u32,
    pub(crate) offset: u32,
    /// Its length; if 0, nothing was found and the other fields have no meaning.
    pub(crate) bytes: u32,
    pub(crate) digest: [u8; 32],
}

impl FoundSlice {
    /// Its place in one of `objects`, and its digest.
    pub(crate) fn part(&self, objects: &[ObjectRef]) -> Option<FoundPart> {
        let object = *objects.get(self.object as usize).filter(|_| self.bytes > 0)?;
        let (offset, bytes) = (u64::from(self.offset), u64::from(self.bytes));
        Some((ObjectPart { object, offset, bytes }, self.digest))
    }
}

/// The records that a part of the join found for all segments. Each segment's slice is contiguous.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(crate) struct JoinFound {
    pub(crate) objects: Vec<ObjectRef>,
    /// The slice of each segment; empty if nothing was searched.
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

/// A byte range of an object, and its digest.
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

//! [`SegmentPieces`]: the results of the first pass, by height; the lists of pieces are in a file of the work folder.
//!
//! A segment takes a few hundred bytes of memory, regardless of its size. Each part of the join scans all pieces
//! once: a few hundred MB on the main chain, which stay in the system's file cache. A checksum protects the file,
//! because a missing piece would make spent coins look unspent.

use crate::queue::{FirstPassDone, ObjectRef, RecordPiece};
use apus_chain::{Height, HeightRange, Reader};
use apus_storage::{Storage, StorageFile};
use apus_sync::engines::mergesync::SegmentSummary as Partial;
use apus_sync::error::{IoError, StorageResult, SyncError};
use apus_sync::workdir::index::checksum;
use apus_sync::workdir::names::SPILL;
use std::collections::BTreeMap;
use std::io::{self, BufReader, ErrorKind, Read, Write};

/// The first 8 bytes of a piece's first and last record, its length and its digest.
const PIECE_BYTES: usize = 8 + 8 + 4 + 32;

/// Number of key samples used to divide the records into parts.
const SAMPLES: u64 = 1 << 16;

const READ_BYTES: usize = 1 << 18;

/// The result of a segment's first pass without its pieces.
pub(super) struct UnsentParts {
    pub(super) records: ObjectRef,
    pub(super) own: ObjectRef,
    /// Number of leaves that its blocks add to the Utreexo forest.
    pub(super) leaves: u64,
    pub(super) partial: Partial,
    /// Number of its pieces of coins.
    made: u32,
    /// Number of its pieces of spends.
    spent: u32,
    checksum: [u8; 16],
}

/// Receives a segment, its pieces of coins and its pieces of spends.
pub(super) type EachSegment<'e> =
    dyn FnMut(HeightRange, &UnsentParts, &[RecordPiece], &[RecordPiece]) + 'e;

/// The results of the first pass.
pub(super) struct SegmentPieces<'g> {
    storage: &'g dyn Storage,
    name: String,
    file: Option<Box<dyn StorageFile>>,
    /// The segments in the order of the file.
    order: Vec<HeightRange>,
    segments: BTreeMap<HeightRange, UnsentParts>,
}

impl<'g> SegmentPieces<'g> {
    pub(super) fn new(storage: &'g dyn Storage) -> Self {
        let (order, segments) = (Vec::new(), BTreeMap::new());
        Self { storage, name: format!("{SPILL}pieces.run"), file: None, order, segments }
    }

    pub(super) fn has(&self, range: &HeightRange) -> bool {
        self.segments.contains_key(range)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &UnsentParts> {
        self.segments.values()
    }

    /// Returns the result of a segment.
    pub(super) fn of(&self, range: &HeightRange) -> &UnsentParts {
        &self.segments[range]
    }

    /// Adds the result of a segment; call it once for each segment.
    pub(super) fn add(&mut self, range: HeightRange, done: FirstPassDone) -> Result<(), SyncError> {
        let FirstPassDone { records, own, made, spent, leaves, partial } = done;
        let mut bytes = Vec::with_capacity((made.len() + spent.len()) * PIECE_BYTES);
        for RecordPiece { first, last, bytes: length, digest } in made.iter().chain(&spent) {
            bytes.extend_from_slice(&first.to_le_bytes());
            bytes.extend_from_slice(&last.to_le_bytes());
            bytes.extend_from_slice(&length.to_le_bytes());
            bytes.extend_from_slice(digest);
        }
        let (storage, name) = (self.storage, &self.name);
        let file = match &mut self.file {
            Some(file) => file,
            none => none.insert(storage.create(name).at(storage, name)?),
        };
        // The file is read while it grows.
        file.write_all(&bytes).and_then(|()| file.flush()).at(storage, name)?;
        let (checksum, count) = (checksum(&bytes), |pieces: &[RecordPiece]| pieces.len() as u32);
        let (made, spent) = (count(&made), count(&spent));
        let kept = UnsentParts { records, own, leaves, partial, made, spent, checksum };
        self.order.push(range);
        self.segments.insert(range, kept);
        Ok(())
    }

    /// Calls `of` for each segment, in the order in which they were added, with its pieces of coins and of spends.
    pub(super) fn each(&self, of: &mut EachSegment<'_>) -> Result<(), SyncError> {
        if self.order.is_empty() {
            return Ok(());
        }
        let (storage, name) = (self.storage, &self.name);
        let file = storage.open(name, 0).at(storage, name)?;
        let mut file = BufReader::with_capacity(READ_BYTES, file);
        let (mut bytes, mut pieces) = (Vec::new(), Vec::new());
        for range in &self.order {
            let kept = &self.segments[range];
            bytes.resize((kept.made + kept.spent) as usize * PIECE_BYTES, 0);
            file.read_exact(&mut bytes).at(storage, name)?;
            if checksum(&bytes) != kept.checksum {
                let error = io::Error::new(ErrorKind::InvalidData, "its bytes have changed");
                let file = storage.describe(name);
                return Err(SyncError::Io(IoError::Storage { file, error }));
            }
            pieces.clear();
            pieces.extend(bytes.chunks_exact(PIECE_BYTES).map(piece));
            let (made, spent) = pieces.split_at(kept.made as usize);
            of(*range, kept, made, spent);
        }
        Ok(())
    }

    /// Returns samples of the keys of these segments: the first 8 bytes of a key, and how many bytes of records lie
    /// near it. Returns all pieces if there are few records, otherwise a representative sample. Does not depend on
    /// the order in which segments were added: a restarted coordinator must divide the join at the same keys.
    pub(super) fn samples(&self, segments: &[HeightRange]) -> Result<Vec<(u64, u32)>, SyncError> {
        self.samples_of(segments, SAMPLES)
    }

    /// Like `samples`, with about `count` samples.
    fn samples_of(
        &self,
        segments: &[HeightRange],
        count: u64,
    ) -> Result<Vec<(u64, u32)>, SyncError> {
        let bytes_total: u64 = segments.iter().map(|range| self.of(range).records.bytes).sum();
        let step = bytes_total / count;
        let mut samples = Vec::new();
        self.each(&mut |range, _, made, spent| {
            if segments.binary_search(&range).is_err() {
                return;
            }
            // Each segment starts at a different offset, so that samples of different segments do not align.
            let mut bytes = spread(range.start).checked_rem(step).unwrap_or(0);
            for piece in made.iter().chain(spent) {
                bytes += u64::from(piece.bytes);
                if bytes > step {
                    samples.push((piece.first, u32::try_from(bytes).unwrap_or(u32::MAX)));
                    bytes = 0;
                }
            }
        })?;
        Ok(samples)
    }
}

/// A pseudorandom number for each height (Fibonacci hashing).
fn spread(height: Height) -> u64 {
    u64::from(height).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 16
}

fn piece(bytes: &[u8]) -> RecordPiece {
    const WHOLE: &str = "it is a whole piece";
    let mut reader = Reader::new(bytes);
    RecordPiece {
        first: reader.u64().expect(WHOLE),
        last: reader.u64().expect(WHOLE),
        bytes: reader.u32().expect(WHOLE),
        digest: *reader.array().expect(WHOLE),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_storage::DirStorage;
    use apus_sync::runs::divide_sizes;
    use apus_testkit::rng::Rng;
    use proptest::collection::vec;
    use proptest::prelude::*;

    fn some(rng: &mut Rng, count: usize) -> Vec<RecordPiece> {
        let mut digest = || std::array::from_fn(|_| rng.next_u64() as u8);
        let digests: Vec<[u8; 32]> = (0..count).map(|_| digest()).collect();
        let mut prefixes: Vec<u64> = (0..count).map(|_| rng.next_u64()).collect();
        prefixes.sort_unstable();
        let all = prefixes.into_iter().zip(digests);
        let piece = |(first, digest): (u64, [u8; 32])| {
            let last = first | 0xff;
            RecordPiece { first, last, bytes: 40_000 + u32::from(digest[0]), digest }
        };
        all.map(piece).collect()
    }

    fn done(rng: &mut Rng, count: usize) -> FirstPassDone {
        let (made, spent) = (some(rng, count), some(rng, count / 2));
        let bytes = made.iter().chain(&spent).map(|piece| u64::from(piece.bytes)).sum();
        let records = ObjectRef { digest: made.first().map_or([0; 32], |it| it.digest), bytes };
        FirstPassDone {
            records,
            own: records,
            made,
            spent,
            leaves: count as u64,
            partial: Partial::default(),
        }
    }

    fn range(index: u32) -> HeightRange {
        HeightRange::new(1 + 10 * index, 11 + 10 * index)
    }

    #[test]
    fn pieces_are_returned_in_insertion_order() {
        let (temp, mut rng) = (tempfile::tempdir().unwrap(), Rng::new(61));
        let storage = DirStorage::new(temp.path());
        let mut results = SegmentPieces::new(&storage);
        results.each(&mut |_, _, _, _| panic!("nothing was added")).unwrap();
        let mut all = Vec::new();
        for index in [3, 0, 2, 1] {
            let done = done(&mut rng, 7 * index as usize);
            results.add(range(index), done.clone()).unwrap();
            all.push((range(index), done));
            // The file grows while it is read.
            let mut seen = Vec::new();
            results
                .each(&mut |range, kept, made, spent| {
                    let (made, spent, partial) =
                        (made.to_vec(), spent.to_vec(), kept.partial.clone());
                    let UnsentParts { records, own, leaves, .. } = *kept;
                    seen.push((
                        range,
                        FirstPassDone { records, own, made, spent, leaves, partial },
                    ));
                })
                .unwrap();
            assert_eq!(seen, all);
        }
        assert!(results.has(&range(2)) && !results.has(&range(4)));
        // With few records, all pieces of the requested segments are samples.
        let two = [range(1), range(3)];
        let of_two = all.iter().filter(|(range, _)| two.contains(range));
        let pieces = of_two.flat_map(|(_, done)| done.made.iter().chain(&done.spent));
        let pieces: Vec<u64> = pieces.map(|piece| piece.first).collect();
        let samples = results.samples(&two).unwrap();
        assert_eq!(samples.into_iter().map(|(first, _)| first).collect::<Vec<_>>(), pieces);
        let name = results.name.clone();
        let mut bytes = std::fs::read(temp.path().join(&name)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(temp.path().join(&name), bytes).unwrap();
        let error = results.each(&mut |_, _, _, _| ()).unwrap_err().to_string();
        assert!(error.contains("its bytes have changed"), "{error}");
    }

    proptest! {
        /// A restarted coordinator gets answers in another order, and must divide the join at the same keys. Otherwise
        /// no part that is already joined would count.
        #[test]
        fn join_keys_do_not_depend_on_insertion_order(
            seed: u64,
            lengths in vec(0_usize..60, 1..20),
            count in 1_u64..200,
            parts in 1_u64..10,
        ) {
            let mut rng = Rng::new(seed);
            let mut all: Vec<(HeightRange, FirstPassDone)> = Vec::new();
            for (index, length) in (0..).zip(lengths) {
                all.push((range(index), done(&mut rng, length)));
            }
            let segments: Vec<HeightRange> = all.iter().map(|(range, _)| *range).collect();
            let mut cut = Vec::new();
            for _ in 0..3 {
                let temp = tempfile::tempdir().unwrap();
                let storage = DirStorage::new(temp.path());
                let mut results = SegmentPieces::new(&storage);
                for (range, done) in &all {
                    results.add(*range, done.clone()).unwrap();
                }
                let samples = results.samples_of(&segments, count).unwrap();
                cut.push(divide_sizes(samples.into_iter(), parts));
                all.sort_by_key(|_| rng.next_u64());
            }
            prop_assert_eq!(&cut[0], &cut[1]);
            prop_assert_eq!(&cut[0], &cut[2]);
        }
    }

    /// The main chain has about ten thousand segments with some hundreds of pieces each.
    #[test]
    fn memory_is_per_segment_and_samples_divide_evenly() {
        assert!(size_of::<UnsentParts>() + 2 * size_of::<HeightRange>() <= 300);
        let (temp, mut rng) = (tempfile::tempdir().unwrap(), Rng::new(62));
        let storage = DirStorage::new(temp.path());
        let mut results = SegmentPieces::new(&storage);
        let segments: Vec<HeightRange> = (0..500).map(range).collect();
        for segment in &segments {
            results.add(*segment, done(&mut rng, 200)).unwrap();
        }
        let samples = results.samples(&segments).unwrap();
        assert!(samples.len() as u64 <= SAMPLES && samples.len() > 30_000, "{}", samples.len());
        let keys = divide_sizes(samples.into_iter(), 40);
        let mut bytes = vec![0_u64; keys.len()];
        results
            .each(&mut |_, _, made, spent| {
                for piece in made.iter().chain(spent) {
                    bytes[keys.partition_point(|keys| keys.from <= piece.first) - 1] +=
                        u64::from(piece.bytes);
                }
            })
            .unwrap();
        let even = bytes.iter().sum::<u64>() / bytes.len() as u64;
        assert!(bytes.iter().all(|part| (even / 2..2 * even).contains(part)), "{bytes:?}");
    }
}

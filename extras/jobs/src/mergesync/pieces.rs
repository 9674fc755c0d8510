//! [`Gathered`]: what segments left, by their heights; the pieces of their records are in a file of the work folder.
//!
//! In memory are some hundred bytes for each segment, whatever is in it. Pieces are gone through from the first to the last,
//! once for each part of the join: some hundred megabytes on the main chain, which the system has in its cache. What is
//! read is held against a checksum, since a piece that is passed over would be coins that seem unspent.

use crate::queue::{GatherDone, ObjectRef, RecordPiece};
use apus_chain::{Height, HeightRange, Reader};
use apus_storage::{Storage, StorageFile};
use apus_sync::engines::mergesync::Gathered as Partial;
use apus_sync::error::{IoError, StorageResult, SyncError};
use apus_sync::workdir::index::checksum;
use apus_sync::workdir::names::SPILL;
use std::collections::BTreeMap;
use std::io::{self, BufReader, ErrorKind, Read, Write};

/// The first bytes of a piece's first record and of its last one, its length and its digest.
const PIECE_BYTES: usize = 8 + 8 + 4 + 32;

/// By so many samples of where their keys lie records are divided.
const SAMPLES: u64 = 1 << 16;

const READ_BYTES: usize = 1 << 18;

/// What a segment left, but for its pieces.
pub(super) struct KeptPieces {
    pub(super) records: ObjectRef,
    pub(super) own: ObjectRef,
    /// Leaves that its blocks add to the Utreexo forest.
    pub(super) leaves: u64,
    pub(super) partial: Partial,
    /// How many pieces of coins it has, and of spends.
    made: u32,
    spent: u32,
    checksum: [u8; 16],
}

/// Takes what a segment left: its pieces of coins, and those of spends.
pub(super) type EachSegment<'e> =
    dyn FnMut(HeightRange, &KeptPieces, &[RecordPiece], &[RecordPiece]) + 'e;

/// See the module.
pub(super) struct Gathered<'g> {
    storage: &'g dyn Storage,
    name: String,
    file: Option<Box<dyn StorageFile>>,
    /// All that are in the file, in its order.
    order: Vec<HeightRange>,
    segments: BTreeMap<HeightRange, KeptPieces>,
}

impl<'g> Gathered<'g> {
    pub(super) fn new(storage: &'g dyn Storage) -> Self {
        let (order, segments) = (Vec::new(), BTreeMap::new());
        Self { storage, name: format!("{SPILL}pieces.run"), file: None, order, segments }
    }

    pub(super) fn has(&self, range: &HeightRange) -> bool {
        self.segments.contains_key(range)
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &KeptPieces> {
        self.segments.values()
    }

    /// What a segment left.
    pub(super) fn of(&self, range: &HeightRange) -> &KeptPieces {
        &self.segments[range]
    }

    /// Adds what a segment left, once.
    pub(super) fn add(&mut self, range: HeightRange, done: GatherDone) -> Result<(), SyncError> {
        let GatherDone { records, own, made, spent, leaves, partial } = done;
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
        // It is read while it grows.
        file.write_all(&bytes).and_then(|()| file.flush()).at(storage, name)?;
        let (checksum, count) = (checksum(&bytes), |pieces: &[RecordPiece]| pieces.len() as u32);
        let (made, spent) = (count(&made), count(&spent));
        let kept = KeptPieces { records, own, leaves, partial, made, spent, checksum };
        self.order.push(range);
        self.segments.insert(range, kept);
        Ok(())
    }

    /// Gives the pieces of the segments that were added, in the order of that: those of coins, and those of spends.
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
                let error =
                    io::Error::new(ErrorKind::InvalidData, "it has other bytes than were written");
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

    /// Where keys of these segments lie: the first bytes of some, and how many bytes of records lie about there. Of
    /// few records all pieces, of many a sample that stands for them all. It is the same in whatever order they were added: a
    /// coordinator that starts again is to cut the join where the one before it did.
    pub(super) fn samples(&self, segments: &[HeightRange]) -> Result<Vec<(u64, u32)>, SyncError> {
        self.samples_of(segments, SAMPLES)
    }

    /// The same, of about so many samples.
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
            // Each segment begins elsewhere, so that samples of different ones lie apart.
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

/// A number for each height, as if it were random (Fibonacci hashing).
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

    fn done(rng: &mut Rng, count: usize) -> GatherDone {
        let (made, spent) = (some(rng, count), some(rng, count / 2));
        let bytes = made.iter().chain(&spent).map(|piece| u64::from(piece.bytes)).sum();
        let records = ObjectRef { digest: made.first().map_or([0; 32], |it| it.digest), bytes };
        GatherDone {
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
    fn pieces_come_back_in_the_order_that_they_came_in() {
        let (desk, mut rng) = (tempfile::tempdir().unwrap(), Rng::new(61));
        let storage = DirStorage::new(desk.path());
        let mut gathered = Gathered::new(&storage);
        gathered.each(&mut |_, _, _, _| panic!("there is nothing")).unwrap();
        let mut all = Vec::new();
        for index in [3, 0, 2, 1] {
            let done = done(&mut rng, 7 * index as usize);
            gathered.add(range(index), done.clone()).unwrap();
            all.push((range(index), done));
            // It grows while it is read.
            let mut seen = Vec::new();
            gathered
                .each(&mut |range, kept, made, spent| {
                    let (made, spent, partial) =
                        (made.to_vec(), spent.to_vec(), kept.partial.clone());
                    let KeptPieces { records, own, leaves, .. } = *kept;
                    seen.push((range, GatherDone { records, own, made, spent, leaves, partial }));
                })
                .unwrap();
            assert_eq!(seen, all);
        }
        assert!(gathered.has(&range(2)) && !gathered.has(&range(4)));
        // Few records are divided by all pieces of the segments that are asked for.
        let two = [range(1), range(3)];
        let of_two = all.iter().filter(|(range, _)| two.contains(range));
        let pieces = of_two.flat_map(|(_, done)| done.made.iter().chain(&done.spent));
        let pieces: Vec<u64> = pieces.map(|piece| piece.first).collect();
        let samples = gathered.samples(&two).unwrap();
        assert_eq!(samples.into_iter().map(|(first, _)| first).collect::<Vec<_>>(), pieces);
        let name = gathered.name.clone();
        let mut bytes = std::fs::read(desk.path().join(&name)).unwrap();
        let middle = bytes.len() / 2;
        bytes[middle] ^= 1;
        std::fs::write(desk.path().join(&name), bytes).unwrap();
        let told = gathered.each(&mut |_, _, _, _| ()).unwrap_err().to_string();
        assert!(told.contains("other bytes than were written"), "{told}");
    }

    proptest! {
        /// A coordinator that starts again gets answers in another order, and cuts the join at the same keys: or no part that
        /// was joined would count.
        #[test]
        fn the_join_is_cut_alike_whatever_came_first(
            seed: u64,
            lengths in vec(0_usize..60, 1..20),
            count in 1_u64..200,
            parts in 1_u64..10,
        ) {
            let mut rng = Rng::new(seed);
            let mut all: Vec<(HeightRange, GatherDone)> = Vec::new();
            for (index, length) in (0..).zip(lengths) {
                all.push((range(index), done(&mut rng, length)));
            }
            let segments: Vec<HeightRange> = all.iter().map(|(range, _)| *range).collect();
            let mut cut = Vec::new();
            for _ in 0..3 {
                let desk = tempfile::tempdir().unwrap();
                let storage = DirStorage::new(desk.path());
                let mut gathered = Gathered::new(&storage);
                for (range, done) in &all {
                    gathered.add(*range, done.clone()).unwrap();
                }
                let samples = gathered.samples_of(&segments, count).unwrap();
                cut.push(divide_sizes(samples.into_iter(), parts));
                all.sort_by_key(|_| rng.next_u64());
            }
            prop_assert_eq!(&cut[0], &cut[1]);
            prop_assert_eq!(&cut[0], &cut[2]);
        }
    }

    /// The main chain has some ten thousand segments with some hundreds of pieces each.
    #[test]
    fn memory_is_by_segments_and_parts_are_equal_by_samples_of_many_pieces() {
        assert!(size_of::<KeptPieces>() + 2 * size_of::<HeightRange>() <= 300);
        let (desk, mut rng) = (tempfile::tempdir().unwrap(), Rng::new(62));
        let storage = DirStorage::new(desk.path());
        let mut gathered = Gathered::new(&storage);
        let segments: Vec<HeightRange> = (0..500).map(range).collect();
        for segment in &segments {
            gathered.add(*segment, done(&mut rng, 200)).unwrap();
        }
        let samples = gathered.samples(&segments).unwrap();
        assert!(samples.len() as u64 <= SAMPLES && samples.len() > 30_000, "{}", samples.len());
        let keys = divide_sizes(samples.into_iter(), 40);
        let mut bytes = vec![0_u64; keys.len()];
        gathered
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

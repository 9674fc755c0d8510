//! [`SnapshotHints`]: a UTXO snapshot as hints.
//!
//! A snapshot lists coins by txid, so it is read once, and its coins go into spill files, sorted by the segment
//! of the block that created them: memory stays bounded however large the set is. With more than one thread,
//! hashing the file and sorting coins by segment run in parallel with reading.

use crate::engines::swiftsync::hints::{HintsFile, HintsOptions};
use crate::engines::swiftsync::{CoinHints, IndexHints, SegmentHints};
use crate::error::{InvalidError, IoError, StorageResult, SyncError};
use crate::folder::at;
use crate::taker::BatchTaker;
use crate::workdir::names::SPILL;
use apus_chain::{Height, HeightRange, KnownBlock, Network, OutPoint};
use apus_datadir::snapshot::{SnapshotCoin, SnapshotHeader, SnapshotReader};
use apus_hash::Sha256;
use apus_storage::Storage;
use std::fs::File;
use std::io::{self, Read};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Length and modification time of an open file.
fn stamp(file: &File, path: &Path) -> Result<(u64, i64, i64), SyncError> {
    let stamp = file.metadata().map(|file| (file.len(), file.mtime(), file.mtime_nsec()));
    stamp.map_err(at(path))
}

/// A file that passes on each piece that is read from it.
struct TeeReader<'f, 'scope> {
    file: &'f File,
    to: BatchTaker<'scope>,
}

impl Read for TeeReader<'_, '_> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.to.take_copied(&buffer[..count]).map_err(io::Error::other)?;
        Ok(count)
    }
}

/// Reads the header of a snapshot, which must be of `network`.
pub(crate) fn snapshot_header(path: &Path, network: Network) -> Result<SnapshotHeader, SyncError> {
    let file = File::open(path).map_err(at(path))?;
    let named = |error| SyncError::Snapshot { file: path.display().to_string(), error };
    Ok(*SnapshotReader::new(file, Some(network)).map_err(named)?.header())
}

/// A UTXO snapshot's coins, by the segment of the block that created them.
pub(crate) struct SnapshotHints<'a> {
    storage: &'a dyn Storage,
    segments: Vec<HeightRange>,
    spills: Vec<SegmentSpill>,
}

/// Coins of all segments, segment by segment.
struct SegmentSpill {
    name: String,
    /// The start of each segment's coins, counted in coins, and the end of the last segment's.
    starts: Vec<u64>,
}

/// A snapshot that was read once.
pub(crate) struct SnapshotPass<'a> {
    /// Its coins as hints.
    pub hints: SnapshotHints<'a>,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Length of the file in bytes.
    pub bytes: u64,
}

/// Parameters for reading a snapshot.
pub(crate) struct SnapshotWanted<'a> {
    /// The snapshot's block, from an earlier read of its header.
    pub base: KnownBlock,
    /// The segments of the plan; coins of blocks above the last one are left out.
    pub segments: &'a [HeightRange],
    /// Approximate memory limit in bytes, not counting some megabytes queued between threads.
    pub memory_bytes: u64,
    /// Threads available. If there are several, it uses three.
    pub threads: usize,
}

impl<'a> SnapshotHints<'a> {
    /// Reads the snapshot at `path`, and puts its coins into files of `storage` whose names begin with
    /// [`SPILL`]. The file is not used afterwards, so the hash covers exactly the coins that were taken. A file
    /// that changed while it was read is refused. Calls `go_on` regularly with the number of coins read.
    pub(crate) fn read(
        path: &Path,
        wanted: &SnapshotWanted<'_>,
        storage: &'a dyn Storage,
        go_on: &mut dyn FnMut(u64) -> Result<(), SyncError>,
    ) -> Result<SnapshotPass<'a>, SyncError> {
        let named = |error| SyncError::Snapshot { file: path.display().to_string(), error };
        let file = File::open(path).map_err(at(path))?;
        let began = stamp(&file, path)?;
        let mut hash = Sha256::new();
        let mut spilling = SegmentSpiller::new(storage, wanted);
        let (base, bytes) = std::thread::scope(|scope| {
            let apart = wanted.threads > 1;
            let hash = |piece: &[u8]| {
                hash.update(piece);
                Ok(())
            };
            let mut shown =
                TeeReader { file: &file, to: BatchTaker::new("hints-hash", scope, apart, hash)? };
            let put = BatchTaker::new("hints-put", scope, apart, |batch| spilling.take(batch))?;
            let mut reader = SnapshotReader::new(&mut shown, None).map_err(named)?;
            read_coins(path, wanted, &mut reader, put, go_on)?;
            let read = (reader.header().base_hash, reader.offset());
            shown.to.end()?;
            Ok::<_, SyncError>(read)
        })?;
        if base != wanted.base.hash || stamp(&file, path)? != began {
            return Err(SyncError::Invalid(InvalidError::HintsChanged {
                file: path.display().to_string(),
            }));
        }
        let hints =
            Self { storage, segments: wanted.segments.to_vec(), spills: spilling.finish()? };
        Ok(SnapshotPass { hints, sha256: hash.finalize(), bytes })
    }
}

/// Bytes of a spilled coin: the height of its block, little-endian, and its outpoint.
const COIN_BYTES: usize = size_of::<Height>() + OutPoint::SIZE;

fn push_coin(batch: &mut Vec<u8>, height: Height, outpoint: &OutPoint) {
    batch.extend_from_slice(&height.to_le_bytes());
    batch.extend_from_slice(&outpoint.to_bytes());
}

fn coins(batch: &[u8]) -> impl Iterator<Item = (Height, OutPoint)> + Clone {
    batch.as_chunks::<COIN_BYTES>().0.iter().filter_map(|coin| {
        let (height, outpoint) = coin.split_first_chunk()?;
        let outpoint = OutPoint::from_bytes(outpoint.try_into().ok()?);
        Some((Height::from_le_bytes(*height), outpoint))
    })
}

/// Coins that are passed on or written together.
const BATCH_COINS: usize = 4096;

/// Reads all coins, and passes on the segments' coins.
fn read_coins<R: Read>(
    path: &Path,
    wanted: &SnapshotWanted<'_>,
    reader: &mut SnapshotReader<R>,
    mut put: BatchTaker<'_>,
    go_on: &mut dyn FnMut(u64) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let named = |error| SyncError::Snapshot { file: path.display().to_string(), error };
    let end = wanted.segments.last().map_or(0, |segment| segment.end);
    let (mut batch, mut count) = (Vec::new(), 0);
    while let Some(SnapshotCoin { outpoint, coin, .. }) = reader.next_coin().map_err(named)? {
        let height = coin.height;
        if !(1..=wanted.base.height).contains(&height) {
            let file = path.display().to_string();
            return Err(SyncError::Invalid(InvalidError::CoinHeight { file, outpoint, height }));
        }
        if height < end {
            push_coin(&mut batch, height, &outpoint);
        }
        count += 1;
        if count % BATCH_COINS as u64 == 0 {
            let full = std::mem::replace(&mut batch, Vec::with_capacity(BATCH_COINS * COIN_BYTES));
            put.take(&Arc::new(full))?;
            go_on(count)?;
        }
    }
    put.take(&Arc::new(batch))?;
    put.end()?;
    go_on(count)
}

/// A coin and the index of its segment.
struct PlacedCoin {
    segment: u32,
    height: Height,
    outpoint: OutPoint,
}

/// Puts coins into files by segment.
struct SegmentSpiller<'a> {
    storage: &'a dyn Storage,
    segments: usize,
    /// The segment of each height.
    segment_of: Vec<u32>,
    /// Number of coins sorted together.
    room: usize,
    coins: Vec<PlacedCoin>,
    spills: Vec<SegmentSpill>,
}

impl<'a> SegmentSpiller<'a> {
    fn new(storage: &'a dyn Storage, wanted: &SnapshotWanted<'_>) -> Self {
        let segments = wanted.segments;
        let mut segment_of = Vec::new();
        for (at, segment) in (0..).zip(segments) {
            segment_of.resize(segment.end as usize, at);
        }
        // Each coin also needs its index in the order of segments.
        let bytes = (size_of::<PlacedCoin>() + size_of::<u32>()) as u64;
        let room = (wanted.memory_bytes / bytes).clamp(1024, u32::MAX.into()) as usize;
        let (coins, spills) = (Vec::new(), Vec::new());
        Self { storage, segments: segments.len(), segment_of, room, coins, spills }
    }

    fn take(&mut self, batch: &[u8]) -> Result<(), SyncError> {
        for (height, outpoint) in coins(batch) {
            let segment = self.segment_of[height as usize];
            self.coins.push(PlacedCoin { segment, height, outpoint });
            if self.coins.len() >= self.room {
                self.spill()?;
            }
        }
        Ok(())
    }

    /// Writes coins by segment. Within a segment, coins keep the order of the snapshot, which is the required
    /// order.
    fn spill(&mut self) -> Result<(), SyncError> {
        let (order, starts) = by_segment(&self.coins, self.segments);
        let name = format!("{SPILL}{}.run", self.spills.len());
        let mut file = self.storage.create(&name).at(self.storage, &name)?;
        let mut batch = Vec::with_capacity(BATCH_COINS * COIN_BYTES);
        for places in order.chunks(BATCH_COINS) {
            batch.clear();
            for at in places {
                let PlacedCoin { height, outpoint, .. } = &self.coins[*at as usize];
                push_coin(&mut batch, *height, outpoint);
            }
            file.write_all(&batch).at(self.storage, &name)?;
        }
        file.flush().at(self.storage, &name)?;
        self.spills.push(SegmentSpill { name, starts });
        self.coins.clear();
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<SegmentSpill>, SyncError> {
        self.spill()?;
        Ok(self.spills)
    }
}

/// Returns the indices of coins by ascending segment, in their original order within each; then the start of
/// each segment's indices, and the end of the last.
fn by_segment(coins: &[PlacedCoin], segments: usize) -> (Vec<u32>, Vec<u64>) {
    let mut starts = vec![0_u64; segments + 1];
    for coin in coins {
        starts[coin.segment as usize + 1] += 1;
    }
    let mut end = 0;
    for start in &mut starts {
        end += *start;
        *start = end;
    }
    let (mut order, mut next) = (vec![0_u32; coins.len()], starts.clone());
    for (at, coin) in (0..).zip(coins) {
        let next = &mut next[coin.segment as usize];
        order[*next as usize] = at;
        *next += 1;
    }
    (order, starts)
}

impl HintsProvider for SnapshotHints<'_> {
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError> {
        let index = self.segments.partition_point(|segment| segment.end <= range.start);
        let part = |spill: &SegmentSpill| {
            [index, index + 1].map(|at| spill.starts[at] as usize * COIN_BYTES)
        };
        let length = |[start, end]: [usize; 2]| end - start;
        let mut bytes = vec![0; self.spills.iter().map(part).map(length).sum()];
        let mut rest = &mut bytes[..];
        for spill in &self.spills {
            let (name, [start, end]) = (&spill.name, part(spill));
            let (own, after) = rest.split_at_mut(end - start);
            let mut file = self.storage.open(name, start as u64).at(self.storage, name)?;
            file.read_exact(own).at(self.storage, name)?;
            if !coins(own).all(|(height, _)| range.contains(height)) {
                // The coins were in this segment when they were written.
                let file = self.storage.describe(name);
                return Err(SyncError::Io(IoError::RunDamaged { run: name.clone(), file }));
            }
            rest = after;
        }
        let hints = CoinHints::of(range, coins(&bytes)).expect("all were seen to be inside");
        Ok(SegmentHints::Coins(hints))
    }
}

// [`HintsProvider`]: hints for segments, from a hintsfile or from a UTXO snapshot.
//
// A hintsfile names coins by index, a [snapshot](super::snapshot_hints::SnapshotHints) by outpoint.

/// Supplies the hints of segments, to any thread.
pub(crate) trait HintsProvider: Sync {
    /// Returns the hints of one segment of the plan.
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError>;
}

/// Hints from a hintsfile.
pub(crate) struct FileHints {
    path: PathBuf,
    file: HintsFile,
}

impl FileHints {
    /// Opens the file and checks all of it.
    pub(crate) fn open(path: &Path, options: &HintsOptions) -> Result<Self, SyncError> {
        let named = |error| SyncError::Hints { file: path.display().to_string(), error };
        let file = HintsFile::open_path(path, options).map_err(named)?;
        Ok(Self { path: path.to_owned(), file })
    }

    /// The file.
    pub(crate) fn file(&self) -> &HintsFile {
        &self.file
    }
}

impl<P: HintsProvider + ?Sized> HintsProvider for &P {
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError> {
        (**self).segment(range)
    }
}

impl HintsProvider for FileHints {
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError> {
        let named = |error| SyncError::Hints { file: self.path.display().to_string(), error };
        let mut reader = self.file.range(range).map_err(named)?;
        let mut hints = IndexHints::new(range.start);
        while let Some(block) = reader.next().map_err(named)? {
            hints.push(block.indices.iter().copied());
        }
        Ok(SegmentHints::Indices(hints))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::BlockHash;
    use apus_testkit::storage::CrashStorage;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn coins_are_grouped_by_segment_and_keep_their_order() {
        let mut rng = apus_testkit::rng::Rng::new(4);
        for count in [0, 1, 300] {
            let coin = |vout| PlacedCoin {
                segment: (rng.next_u64() % 5) as u32,
                height: 0,
                outpoint: OutPoint { txid: apus_chain::Txid::ZERO, vout },
            };
            let coins: Vec<PlacedCoin> = (0..count).map(coin).collect();
            let (order, starts) = by_segment(&coins, 7);
            let mut sorted: Vec<u32> = (0..count).collect();
            sorted.sort_by_key(|at| coins[*at as usize].segment);
            assert_eq!(order, sorted);
            let below = |of| coins.iter().filter(|it| it.segment < of).count() as u64;
            let expected = (0..=7).map(below);
            assert_eq!(starts, expected.collect::<Vec<_>>());
        }
    }

    /// A snapshot that is written to while it is read, even with the same bytes, or that is not the one whose
    /// header was read.
    #[test]
    fn a_snapshot_that_changes_is_noticed() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/regtest-315/utxo.dat");
        let bytes = std::fs::read(fixture).unwrap();
        let sandbox = tempfile::tempdir().unwrap();
        let path = sandbox.path().join("utxo.dat");
        let base = {
            std::fs::write(&path, &bytes).unwrap();
            snapshot_header(&path, Network::Regtest).unwrap().base_hash
        };
        let read = |hash, touch: bool, threads| {
            let base = KnownBlock { height: 315, hash };
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            let (storage, segments) = (CrashStorage::new(), [HeightRange::new(1, 316)]);
            let wanted = SnapshotWanted { base, segments: &segments, memory_bytes: 0, threads };
            let read = SnapshotHints::read(&path, &wanted, &storage, &mut |_| {
                if touch {
                    std::fs::write(&path, &bytes).unwrap();
                }
                Ok(())
            });
            read.map(|pass| pass.sha256)
        };
        for threads in [1, 2] {
            assert_eq!(read(base, false, threads).unwrap(), apus_hash::sha256(&bytes));
        }
        for (base, touch) in [(base, true), (BlockHash([1; 32]), false)] {
            let error = read(base, touch, 1).unwrap_err();
            assert!(
                matches!(error, SyncError::Invalid(InvalidError::HintsChanged { .. })),
                "{error}"
            );
            assert!(error.to_string().contains("utxo.dat changed while"), "{error}");
        }
    }

    /// With any amount of memory and any number of threads, each segment gets its blocks' coins, and coins
    /// above the last segment are left out.
    #[test]
    fn segments_get_the_coins_of_their_blocks() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/regtest-315/utxo.dat");
        let mut expected = Vec::new();
        let file = File::open(fixture).unwrap();
        let mut reader = SnapshotReader::new(file, Some(Network::Regtest)).unwrap();
        while let Some(coin) = reader.next_coin().unwrap() {
            expected.push((coin.coin.height, coin.outpoint));
        }
        let base = KnownBlock { height: 315, hash: reader.header().base_hash };
        let segments =
            [HeightRange::new(1, 7), HeightRange::new(7, 200), HeightRange::new(200, 300)];
        let expect_coins = |hints: &SnapshotHints<'_>| {
            for range in segments {
                let of = |it: &&(Height, OutPoint)| range.contains(it.0);
                let own: Vec<(Height, OutPoint)> = expected.iter().filter(of).copied().collect();
                let own = CoinHints::of(range, own.iter().copied()).unwrap();
                let own = SegmentHints::Coins(own);
                assert_eq!(hints.segment(range).unwrap(), own);
            }
        };
        let wanted =
            |threads| SnapshotWanted { base, segments: &segments, memory_bytes: 0, threads };
        for threads in [1, 2] {
            let (storage, wanted) = (CrashStorage::new(), wanted(threads));
            let read = SnapshotHints::read(Path::new(fixture), &wanted, &storage, &mut |_| Ok(()));
            expect_coins(&read.unwrap().hints);
        }
        let mut batch = Vec::new();
        for (height, outpoint) in expected.iter().filter(|(height, _)| *height < 300) {
            push_coin(&mut batch, *height, outpoint);
        }
        for room in [1, 50] {
            let storage = CrashStorage::new();
            let mut spilling = SegmentSpiller { room, ..SegmentSpiller::new(&storage, &wanted(1)) };
            spilling.take(&batch).unwrap();
            let spills = spilling.finish().unwrap();
            assert!(spills.len() > 1, "they are written in parts");
            let hints = SnapshotHints { storage: &storage, segments: segments.to_vec(), spills };
            expect_coins(&hints);
            // A height outside the segment means damage, and the error names the file.
            let name = &hints.spills[0].name;
            let mut bytes = Vec::new();
            storage.open(name, 0).unwrap().read_to_end(&mut bytes).unwrap();
            bytes[3] ^= 0x80;
            storage.create(name).unwrap().write_all(&bytes).unwrap();
            let errors: Vec<String> = segments
                .iter()
                .filter_map(|range| Some(hints.segment(*range).err()?.to_string()))
                .collect();
            assert!(
                errors.len() == 1 && errors[0].contains("spill-0.run is damaged"),
                "{errors:?}"
            );
        }
    }
}

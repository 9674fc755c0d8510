//! [`HintsProvider`]: hints for segments, from a hintsfile or from a UTXO snapshot.
//!
//! A hintsfile tells by place, a snapshot by name. A snapshot lists coins by their ids, so it is
//! read once, and its coins are put into spill files by the segment of the block that made them:
//! memory stays bounded however large the set is.

use crate::error::{InvalidError, StorageResult, SyncError};
use crate::folder::at;
use crate::workdir::names::SPILL;
use apus_chain::{HeightRange, KnownBlock, Network, OutPoint};
use apus_datadir::snapshot::{SnapshotCoin, SnapshotHeader, SnapshotReader};
use apus_engine::swiftsync::hints::{HintsFile, HintsOptions};
use apus_engine::swiftsync::{CoinHints, IndexHints, SegmentHints};
use apus_hash::Sha256;
use apus_storage::Storage;
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Gives the hints of segments, from any thread.
pub(crate) trait HintsProvider: Sync {
    /// The hints of one segment of the plan.
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError>;
}

/// A hintsfile.
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
            hints.push(block.indices);
        }
        Ok(SegmentHints::Indices(hints))
    }
}

/// A file that is hashed while it is read.
struct Hashed {
    file: File,
    hash: Sha256,
}

impl Hashed {
    fn open(path: &Path) -> Result<Self, SyncError> {
        let file = File::open(path).map_err(at(path))?;
        Ok(Self { file, hash: Sha256::new() })
    }

    /// Length and time of the last change of the file that is open.
    fn stamp(&self, path: &Path) -> Result<(u64, i64, i64), SyncError> {
        let stamp = self.file.metadata().map(|file| {
            let (seconds, nanoseconds) = (file.mtime(), file.mtime_nsec());
            (file.len(), seconds, nanoseconds)
        });
        stamp.map_err(at(path))
    }
}

impl Read for Hashed {
    fn read(&mut self, buffer: &mut [u8]) -> std::io::Result<usize> {
        let count = self.file.read(buffer)?;
        self.hash.update(&buffer[..count]);
        Ok(count)
    }
}

/// Reads the header of a snapshot, which must be of `network`.
pub(crate) fn snapshot_header(path: &Path, network: Network) -> Result<SnapshotHeader, SyncError> {
    let file = Hashed::open(path)?;
    let named = |error| SyncError::Snapshot { file: path.display().to_string(), error };
    Ok(*SnapshotReader::new(file, Some(network)).map_err(named)?.header())
}

/// A UTXO snapshot's coins, by the segment of the block that made them.
pub(crate) struct SnapshotHints<'a> {
    storage: &'a dyn Storage,
    segments: Vec<HeightRange>,
    spills: Vec<Spill>,
}

/// Coins that are read or written together.
const BATCH_COINS: usize = 4096;

/// Coins of all segments, those of one after those of the other.
struct Spill {
    name: String,
    /// Where each segment's outpoints begin, counted in outpoints, and the end of the last.
    starts: Vec<u64>,
}

/// A snapshot that was read once.
pub(crate) struct SnapshotPass<'a> {
    /// Its coins as hints.
    pub hints: SnapshotHints<'a>,
    /// SHA-256 of the file.
    pub sha256: [u8; 32],
    /// Length of the file.
    pub bytes: u64,
}

impl<'a> SnapshotHints<'a> {
    /// Reads the snapshot at `path`, which was of the block `base` when its header was read, keeping
    /// at most about `memory_bytes` of it at once, and puts its coins into files of `storage` whose
    /// names begin with [`SPILL`]; but not those of blocks above the last segment. Nothing else of it is used afterwards: what was hashed is what was
    /// taken. A file that was written to meanwhile is refused.
    pub(crate) fn read(
        path: &Path,
        base: KnownBlock,
        segments: &[HeightRange],
        storage: &'a dyn Storage,
        memory_bytes: u64,
        each_coins: &mut dyn FnMut(u64) -> Result<(), SyncError>,
    ) -> Result<SnapshotPass<'a>, SyncError> {
        let named = |error| SyncError::Snapshot { file: path.display().to_string(), error };
        let mut file = Hashed::open(path)?;
        let began = file.stamp(path)?;
        let mut reader = SnapshotReader::new(&mut file, None).map_err(named)?;
        let of_another_block = reader.header().base_hash != base.hash;
        let mut hints = Self { storage, segments: segments.to_vec(), spills: Vec::new() };
        // And its place in the order of segments.
        let entry_bytes = (size_of::<(u32, OutPoint)>() + size_of::<u32>()) as u64;
        let room = (memory_bytes / entry_bytes).clamp(1024, u32::MAX.into()) as usize;
        let mut coins: Vec<(u32, OutPoint)> = Vec::new();
        let mut count = 0;
        while let Some(SnapshotCoin { outpoint, coin, .. }) = reader.next_coin().map_err(named)? {
            if !(1..=base.height).contains(&coin.height) {
                return Err(SyncError::Invalid(InvalidError::CoinHeight {
                    file: path.display().to_string(),
                    outpoint,
                    height: coin.height,
                }));
            }
            let index = hints.segments.partition_point(|segment| segment.end <= coin.height);
            if index < hints.segments.len() {
                coins.push((index as u32, outpoint));
            }
            count += 1;
            if coins.len() >= room {
                hints.spill(&mut coins)?;
                each_coins(count)?;
            }
        }
        hints.spill(&mut coins)?;
        let bytes = reader.offset();
        drop(reader);
        if of_another_block || file.stamp(path)? != began {
            return Err(SyncError::Invalid(InvalidError::HintsChanged {
                file: path.display().to_string(),
            }));
        }
        Ok(SnapshotPass { hints, sha256: file.hash.finalize(), bytes })
    }

    /// Writes coins by segment. Within one they stay in the order of the snapshot, which is theirs.
    fn spill(&mut self, coins: &mut Vec<(u32, OutPoint)>) -> Result<(), SyncError> {
        let (order, starts) = by_segment(coins, self.segments.len());
        let name = format!("{SPILL}{}.run", self.spills.len());
        let mut file = self.storage.create(&name).at(self.storage, &name)?;
        let mut batch = Vec::with_capacity(BATCH_COINS * OutPoint::SIZE);
        for places in order.chunks(BATCH_COINS) {
            let outpoints = places.iter().map(|at| coins[*at as usize].1);
            batch.clear();
            outpoints.for_each(|outpoint| batch.extend_from_slice(&outpoint.to_bytes()));
            file.write_all(&batch).at(self.storage, &name)?;
        }
        file.flush().at(self.storage, &name)?;
        self.spills.push(Spill { name, starts });
        coins.clear();
        Ok(())
    }
}

/// The places of coins by ascending segment, each segment's in their order, and where those of each segment begin, and
/// the end of the last.
fn by_segment(coins: &[(u32, OutPoint)], segments: usize) -> (Vec<u32>, Vec<u64>) {
    let mut starts = vec![0_u64; segments + 1];
    for (segment, _) in coins {
        starts[*segment as usize + 1] += 1;
    }
    let mut end = 0;
    for start in &mut starts {
        end += *start;
        *start = end;
    }
    let (mut order, mut next) = (vec![0_u32; coins.len()], starts.clone());
    for (at, (segment, _)) in (0..).zip(coins) {
        let next = &mut next[*segment as usize];
        order[*next as usize] = at;
        *next += 1;
    }
    (order, starts)
}

impl HintsProvider for SnapshotHints<'_> {
    fn segment(&self, range: HeightRange) -> Result<SegmentHints, SyncError> {
        let index = self.segments.partition_point(|segment| segment.end <= range.start);
        let (mut outpoints, mut batch) = (Vec::new(), Vec::new());
        for Spill { name, starts } in &self.spills {
            let (mut next, end) = (starts[index], starts[index + 1]);
            let offset = next * OutPoint::SIZE as u64;
            let mut file = self.storage.open(name, offset).at(self.storage, name)?;
            outpoints.reserve((end - next) as usize);
            while next < end {
                let count = (end - next).min(BATCH_COINS as u64);
                batch.resize(count as usize * OutPoint::SIZE, 0);
                file.read_exact(&mut batch).at(self.storage, name)?;
                outpoints.extend(batch.as_chunks().0.iter().map(OutPoint::from_bytes));
                next += count;
            }
        }
        Ok(SegmentHints::Coins(CoinHints::new(range, outpoints)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::BlockHash;
    use apus_testkit::storage::CrashStorage;
    use std::time::{Duration, UNIX_EPOCH};

    #[test]
    fn coins_are_put_by_segment_and_keep_their_order() {
        let mut rng = apus_testkit::rng::Rng::new(4);
        for count in [0, 1, 300] {
            let coin = |vout| {
                ((rng.next_u64() % 5) as u32, OutPoint { txid: apus_chain::Txid::ZERO, vout })
            };
            let coins: Vec<(u32, OutPoint)> = (0..count).map(coin).collect();
            let (order, starts) = by_segment(&coins, 7);
            let put: Vec<(u32, OutPoint)> = order.iter().map(|at| coins[*at as usize]).collect();
            let mut sorted = coins.clone();
            sorted.sort_by_key(|(segment, _)| *segment);
            assert_eq!(put, sorted);
            let expected = (0..=7).map(|of| coins.iter().filter(|it| it.0 < of).count() as u64);
            assert_eq!(starts, expected.collect::<Vec<_>>());
        }
    }

    /// A snapshot that is written to while it is read, though by the same bytes, or that is not the one
    /// whose header was read.
    #[test]
    fn a_snapshot_that_changes_is_noticed() {
        let fixture = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/regtest-315/utxo.dat");
        let bytes = std::fs::read(fixture).unwrap();
        let desk = tempfile::tempdir().unwrap();
        let path = desk.path().join("utxo.dat");
        let base = {
            std::fs::write(&path, &bytes).unwrap();
            snapshot_header(&path, Network::Regtest).unwrap().base_hash
        };
        let read = |hash, touch: bool| {
            let base = KnownBlock { height: 315, hash };
            let file = File::options().write(true).open(&path).unwrap();
            file.set_modified(UNIX_EPOCH + Duration::from_secs(1)).unwrap();
            let (storage, segments) = (CrashStorage::new(), [HeightRange::new(1, 316)]);
            let mut spills = 0;
            let read = SnapshotHints::read(&path, base, &segments, &storage, 0, &mut |_| {
                spills += 1;
                if touch {
                    std::fs::write(&path, &bytes).unwrap();
                }
                Ok(())
            });
            assert!(spills > 0, "it is read in parts");
            read.map(|pass| pass.sha256)
        };
        assert_eq!(read(base, false).unwrap(), apus_hash::sha256(&bytes));
        for (base, touch) in [(base, true), (BlockHash([1; 32]), false)] {
            let error = read(base, touch).unwrap_err();
            assert!(
                matches!(error, SyncError::Invalid(InvalidError::HintsChanged { .. })),
                "{error}"
            );
            assert!(error.to_string().contains("utxo.dat changed while"), "{error}");
        }
    }
}

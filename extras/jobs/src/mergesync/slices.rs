//! [`SliceTable`]: the slices that each part of the join found for each segment, in a file of the work folder.
//!
//! Each part adds a row, with a slice for each segment; each segment reads a column. Columns are read in batches:
//! each batch once, if segments are read in order. Memory holds a few hundred bytes for each part, and one batch of
//! columns.

use crate::queue::{FoundPart, FoundSlice, JoinFound, ObjectRef};
use apus_storage::{Storage, StorageFile};
use apus_sync::error::{IoError, StorageResult, SyncError};
use apus_sync::workdir::names::SPILL;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::io::{self, ErrorKind, Read, Write};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// Length of an entry: a slice, and a checksum of the slice and its place.
const ENTRY_BYTES: usize = 3 * 4 + 32 + 8;

/// Number of columns in a batch.
const COLUMNS: usize = 64;

/// The slices that a part found.
struct SliceRow {
    /// Index of its row in the file.
    place: u64,
    objects: Vec<ObjectRef>,
}

/// The slices that each part found for each segment.
pub(super) struct SliceTable<'s> {
    storage: &'s dyn Storage,
    name: String,
    file: Box<dyn StorageFile>,
    /// Number of slices in a row.
    segments: usize,
    written: u64,
    /// Rows by the number of the part.
    rows: BTreeMap<u32, SliceRow>,
    columns: Mutex<Columns>,
}

/// A batch of columns, starting with column `from`, by part and segment.
#[derive(Default)]
struct Columns {
    from: usize,
    rows: Vec<Vec<FoundSlice>>,
}

impl<'s> SliceTable<'s> {
    /// Creates a table with `segments` columns. `what` names its file and must be unique.
    pub(super) fn new(
        storage: &'s dyn Storage,
        what: &str,
        segments: usize,
    ) -> Result<Self, SyncError> {
        let name = format!("{SPILL}{what}.run");
        let file = storage.create(&name).at(storage, &name)?;
        let (rows, columns) = (BTreeMap::new(), Mutex::default());
        Ok(Self { storage, name, file, segments, written: 0, rows, columns })
    }

    /// Adds the row of a part.
    pub(super) fn add(&mut self, part: u32, found: JoinFound) -> Result<(), SyncError> {
        let JoinFound { objects, slices } = found;
        let (storage, name, place) = (self.storage, &self.name, self.written);
        let mut bytes = Vec::with_capacity(slices.len() * ENTRY_BYTES);
        for (segment, slice) in slices.iter().enumerate() {
            write(slice, seed(place, segment), &mut bytes);
        }
        self.file.write_all(&bytes).and_then(|()| self.file.flush()).at(storage, name)?;
        self.written += 1;
        self.rows.insert(part, SliceRow { place, objects });
        *self.columns.get_mut() = Columns::default();
        Ok(())
    }

    /// Returns the slices of a segment, given its index.
    pub(super) fn of(&self, segment: usize) -> Result<Vec<FoundPart>, SyncError> {
        let mut columns = self.columns.lock();
        let is_there = (columns.from..columns.from + COLUMNS).contains(&segment);
        if columns.rows.is_empty() || !is_there {
            *columns = self.read(segment)?;
        }
        let from = columns.from;
        let of_part = |(row, slices): (&SliceRow, &Vec<FoundSlice>)| {
            slices.get(segment - from)?.part(&row.objects)
        };
        Ok(self.rows.values().zip(&columns.rows).filter_map(of_part).collect())
    }

    /// Reads a batch of columns.
    fn read(&self, from: usize) -> Result<Columns, SyncError> {
        let (storage, name) = (self.storage, &self.name);
        let until = (from + COLUMNS).min(self.segments);
        let mut bytes = vec![0; (until - from) * ENTRY_BYTES];
        let mut row = |row: &SliceRow| {
            let at = (row.place * self.segments as u64 + from as u64) * ENTRY_BYTES as u64;
            let mut file = storage.open(name, at).at(storage, name)?;
            file.read_exact(&mut bytes).at(storage, name)?;
            let entries = bytes.chunks_exact(ENTRY_BYTES).zip(from..);
            let slices = entries.map(|(entry, segment)| read(entry, seed(row.place, segment)));
            slices.collect::<Option<Vec<FoundSlice>>>().ok_or_else(|| {
                let error = io::Error::new(ErrorKind::InvalidData, "its bytes have changed");
                SyncError::Io(IoError::Storage { file: storage.describe(name), error })
            })
        };
        let rows = self.rows.values().map(&mut row).collect::<Result<_, SyncError>>()?;
        Ok(Columns { from, rows })
    }
}

/// Seed of an entry's checksum, so that an entry is invalid at any other place.
fn seed(row: u64, segment: usize) -> u64 {
    row << 32 | segment as u64
}

fn write(slice: &FoundSlice, seed: u64, out: &mut Vec<u8>) {
    let start = out.len();
    for number in [slice.object, slice.offset, slice.bytes] {
        out.extend_from_slice(&number.to_le_bytes());
    }
    out.extend_from_slice(&slice.digest);
    let checksum = xxh3_64_with_seed(&out[start..], seed);
    out.extend_from_slice(&checksum.to_le_bytes());
}

fn read(entry: &[u8], seed: u64) -> Option<FoundSlice> {
    let (slice, checksum) = entry.split_last_chunk::<8>()?;
    let number = |at: usize| Some(u32::from_le_bytes(*slice[at..].first_chunk()?));
    let (object, offset, bytes) = (number(0)?, number(4)?, number(8)?);
    let digest = *slice[12..].first_chunk()?;
    let fits = xxh3_64_with_seed(slice, seed) == u64::from_le_bytes(*checksum);
    fits.then_some(FoundSlice { object, offset, bytes, digest })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::queue::ObjectPart;
    use apus_storage::DirStorage;
    use apus_testkit::rng::Rng;

    #[test]
    fn each_segment_gets_its_column_by_ascending_parts() {
        let (temp, mut rng, segments) = (tempfile::tempdir().unwrap(), Rng::new(63), 150);
        let storage = DirStorage::new(temp.path());
        let mut slices = SliceTable::new(&storage, "answers", segments).unwrap();
        assert_eq!(slices.of(0).unwrap(), []);
        let mut all = BTreeMap::new();
        for part in [2_u32, 0, 1] {
            let object = ObjectRef { digest: [part as u8; 32], bytes: 1 << 20 };
            let slice = |at: u32| FoundSlice {
                object: 0,
                offset: at,
                // Some segments get nothing from a part.
                bytes: if rng.below(3) == 0 { 0 } else { 1 + at },
                digest: [at as u8; 32],
            };
            let row: Vec<FoundSlice> = (0..segments as u32).map(slice).collect();
            slices.add(part, JoinFound { objects: vec![object], slices: row.clone() }).unwrap();
            all.insert(part, (object, row));
            for segment in [0, segments - 1, 63, 64, 1, 70] {
                let of = all.values().filter(|(_, row)| row[segment].bytes > 0);
                let expected: Vec<FoundPart> = of
                    .map(|(object, row)| {
                        let FoundSlice { offset, bytes, digest, .. } = row[segment];
                        let (object, offset, bytes) = (*object, offset.into(), bytes.into());
                        (ObjectPart { object, offset, bytes }, digest)
                    })
                    .collect();
                assert_eq!(slices.of(segment).unwrap(), expected, "{segment}");
            }
        }
        // An entry in the wrong place counts as damaged.
        let path = temp.path().join(&slices.name);
        let mut bytes = std::fs::read(&path).unwrap();
        bytes.copy_within(ENTRY_BYTES..2 * ENTRY_BYTES, 0);
        std::fs::write(&path, bytes).unwrap();
        let error = slices.of(0).unwrap_err().to_string();
        assert!(error.contains("its bytes have changed"), "{error}");
    }
}

//! [`IndexDatabase`]: a database of an index that is read back before the index gets its name.
//!
//! A node reads next to nothing of an index when it starts, and answers from whatever the disk has. So a reader that
//! shares no code with the writer goes over all entries: their number and a digest must be those of the entries that
//! were put. Reading in order uses neither separators nor filters nor restart points of blocks, so entries from all
//! over the database are also looked up one by one, as a node does.

use crate::error::IndexesError;
use crate::making::MakeError;
use apus_datadir::{
    DatabaseEntries, DatabaseError, DatabaseLookUps, DatabaseWriter, WriterOptions,
};
use apus_storage::DirStorage;
use std::hash::{BuildHasher, DefaultHasher, Hasher, RandomState};
use std::path::Path;

/// This many entries are looked up, if there are so many: all of a small database.
const LOOK_UPS_MIN: u64 = 100_000;

/// Of larger databases, one entry in this many is looked up: dozens of each table.
const ONE_OF: u64 = 1_000;

/// Entries between two checks for an interrupt.
const AT_ONCE: u64 = 1 << 16;

/// A database that is being written.
pub(crate) struct IndexDatabase<'f> {
    folder: &'f Path,
    writer: DatabaseWriter<'f>,
    /// A secret, new for each database.
    secret: RandomState,
    digest: EntriesDigest,
}

/// The number of entries, and a keyed hash of all of them in order.
struct EntriesDigest {
    count: u64,
    hasher: DefaultHasher,
}

impl EntriesDigest {
    fn new(secret: &RandomState) -> Self {
        Self { count: 0, hasher: secret.build_hasher() }
    }

    fn add(&mut self, key: &[u8], value: &[u8]) {
        self.count += 1;
        for bytes in [key, value] {
            self.hasher.write_usize(bytes.len());
            self.hasher.write(bytes);
        }
    }

    fn sum(&self) -> (u64, u64) {
        (self.count, self.hasher.finish())
    }
}

impl<'f> IndexDatabase<'f> {
    /// Begins a database in `folder`, which must not contain one.
    pub(crate) fn new(
        folder: &'f DirStorage,
        options: WriterOptions,
    ) -> Result<Self, DatabaseError> {
        let secret = RandomState::new();
        let digest = EntriesDigest::new(&secret);
        let writer = DatabaseWriter::new(folder, options)?;
        Ok(Self { folder: folder.folder(), writer, secret, digest })
    }

    /// Adds an entry; its key must be above all earlier ones.
    pub(crate) fn put(&mut self, key: &[u8], value: &[u8]) -> Result<(), DatabaseError> {
        self.digest.add(key, value);
        self.writer.put(key, value)
    }

    /// Makes everything durable, and reads it back.
    ///
    /// # Errors
    /// If the disk fails, if it gives other entries than were put, and what `stop` returns.
    pub(crate) fn finish(
        self,
        stop: &dyn Fn() -> Result<(), IndexesError>,
    ) -> Result<(), IndexesError> {
        let Self { folder, writer, secret, digest } = self;
        writer.finish()?;
        read_back(folder, &secret, digest.sum(), stop)
    }
}

/// Reads a database back; `written` is the sum of what it must have.
fn read_back(
    folder: &Path,
    secret: &RandomState,
    written: (u64, u64),
    stop: &dyn Fn() -> Result<(), IndexesError>,
) -> Result<(), IndexesError> {
    let wrong = |what: &dyn ToString| MakeError::ReadBack {
        folder: folder.to_owned(),
        what: what.to_string(),
    };
    let step = (written.0 / LOOK_UPS_MIN.max(written.0 / ONE_OF)).max(1);
    let mut next = secret.hash_one(step) % step;
    let mut digest = EntriesDigest::new(secret);
    let mut entries = DatabaseEntries::open(folder).map_err(|error| wrong(&error))?;
    let mut look_ups = DatabaseLookUps::open(folder).map_err(|error| wrong(&error))?;
    while let Some((key, value)) = entries.next().map_err(|error| wrong(&error))? {
        if digest.count == next {
            next += step;
            let found = look_ups.get(key).map_err(|error| wrong(&error))?;
            if found.as_deref() != Some(value) {
                let key: String = key.iter().map(|byte| format!("{byte:02x}")).collect();
                return Err(wrong(&format!("looking up the entry {key} does not find it")).into());
            }
        }
        digest.add(key, value);
        if digest.count.is_multiple_of(AT_ONCE) {
            stop()?;
        }
    }
    match digest.sum() == written {
        true => Ok(()),
        false => Err(wrong(&format!(
            "it has other entries than were written: {} instead of {}, or changed ones",
            digest.count, written.0
        ))
        .into()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    const NAME: &str = "000003.ldb";

    fn key(number: u32) -> [u8; 33] {
        let mut key = [number as u8; 33];
        key[..5].copy_from_slice(&[b't', 0, 0, (number >> 8) as u8, number as u8]);
        key
    }

    /// Writes entries; returns what reading them back needs.
    fn write(folder: &DirStorage, numbers: impl Iterator<Item = u32>) -> (RandomState, (u64, u64)) {
        let options = WriterOptions { filters: true, ..WriterOptions::default() };
        let mut database = IndexDatabase::new(folder, options).unwrap();
        numbers.for_each(|number| database.put(&key(number), b"abc").unwrap());
        let IndexDatabase { writer, secret, digest, .. } = database;
        writer.finish().unwrap();
        (secret, digest.sum())
    }

    fn read(folder: &DirStorage, (secret, sum): &(RandomState, (u64, u64))) -> Result<(), String> {
        read_back(folder.folder(), secret, *sum, &|| Ok(())).map_err(|error| error.to_string())
    }

    #[test]
    fn other_entries_than_were_written_are_refused() {
        let folders = [(); 3].map(|()| tempfile::tempdir().unwrap());
        let storages = [0, 1, 2].map(|at| DirStorage::new(folders[at].path()));
        let written = write(&storages[0], 0..3_000);
        read(&storages[0], &written).unwrap();
        write(&storages[1], (0..3_000).filter(|number| *number != 700));
        let error = read(&storages[1], &written).unwrap_err();
        assert!(error.contains("2999 instead of 3000"), "{error}");
        write(&storages[2], (0..3_001).filter(|number| *number != 700));
        let error = read(&storages[2], &written).unwrap_err();
        assert!(error.contains("changed ones") && error.contains("Check disk"), "{error}");
        // One wrong bit.
        let path = folders[0].path().join(NAME);
        let mut table = fs::read(&path).unwrap();
        table[9_000] ^= 1;
        fs::write(path, table).unwrap();
        let error = read(&storages[0], &written).unwrap_err();
        assert!(error.contains("checksum"), "{error}");
    }

    #[test]
    fn entries_that_a_filter_hides_are_found_out() {
        let folder = tempfile::tempdir().unwrap();
        let storage = DirStorage::new(folder.path());
        let written = write(&storage, 0..3_000);
        let path = folder.path().join(NAME);
        let mut table = fs::read(&path).unwrap();
        let filters = filters(&table);
        table[filters.start..filters.start + 100].fill(0);
        let sum = checksum(&table[filters.start..=filters.end]);
        table[filters.end + 1..filters.end + 5].copy_from_slice(&sum.to_le_bytes());
        fs::write(path, table).unwrap();
        read(&storage, &written).unwrap_err();
    }

    /// The place of a table's filters: the first entry of the metaindex, whose place is first in the footer.
    fn filters(table: &[u8]) -> std::ops::Range<usize> {
        let list = number(&mut &table[table.len() - 48..]);
        let mut entry = &table[list + 1..];
        let name = number(&mut entry);
        number(&mut entry);
        entry = &entry[name..];
        let start = number(&mut entry);
        start..start + number(&mut entry)
    }

    /// Takes a LevelDB varint.
    fn number(bytes: &mut &[u8]) -> usize {
        let (mut value, mut shift) = (0, 0);
        loop {
            let byte = bytes[0];
            *bytes = &bytes[1..];
            value |= usize::from(byte & 0x7f) << shift;
            shift += 7;
            if byte & 0x80 == 0 {
                return value;
            }
        }
    }

    /// LevelDB's masked CRC-32C.
    fn checksum(bytes: &[u8]) -> u32 {
        let bit = |crc: u32, _| if crc & 1 == 1 { crc >> 1 ^ 0x82f6_3b78 } else { crc >> 1 };
        let crc = bytes.iter().fold(!0, |crc, byte| (0..8).fold(crc ^ u32::from(*byte), bit));
        (!crc).rotate_right(15).wrapping_add(0xa282_ead8)
    }

    #[test]
    fn an_interrupt_ends_the_reading() {
        let folder = tempfile::tempdir().unwrap();
        let storage = DirStorage::new(folder.path());
        let (secret, sum) = write(&storage, 0..AT_ONCE as u32 - 1);
        let stop = || Err(IndexesError::Interrupted);
        read_back(storage.folder(), &secret, sum, &stop).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let storage = DirStorage::new(folder.path());
        let mut database = IndexDatabase::new(&storage, WriterOptions::default()).unwrap();
        (0..AT_ONCE).for_each(|number| database.put(&number.to_be_bytes(), &[]).unwrap());
        assert!(matches!(database.finish(&stop), Err(IndexesError::Interrupted)));
    }
}

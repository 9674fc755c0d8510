//! [`RowFiles`]: sorts rows of an index that take more bytes than the memory has.
//!
//! A row has a fixed length, and its first bytes are uniform: those of a txid or of a keyed hash. So the first bits
//! divide the rows among files; each file is then read, sorted and passed on by itself. The rows of a whole chain
//! are written once and read once. A file that does not fit the memory is read several times, each time for the part
//! that fits. Rows outlive neither a crash nor the process, so nothing is synced.

use crate::error::{IndexesError, at};
use apus_engine::sort::sort_by_number;
use apus_storage::{Storage, StorageFile};
use parking_lot::Mutex;
use std::io::{Read, Write};
use std::ops::Range;
use std::sync::mpsc::{Receiver, SyncSender, channel, sync_channel};

/// The files' number is a power of two of at most this many bits: enough for the main chain and the default memory.
const FILES_LOG2_MAX: u32 = 10;

/// A buffer of a file is at least and at most this long.
pub(crate) const BUFFER_BYTES: Range<u64> = 2 << 10..256 << 10;

/// Bytes read at once.
const READ_BYTES: usize = 1 << 20;

/// The number of finer parts of a file, and all of them.
const BUCKETS: usize = 1 << 10;
const WHOLE: Range<usize> = 0..BUCKETS;

/// Bits of a row's beginning that are compared as a number.
const NUMBER_BITS: u32 = u64::BITS;

/// How much memory rows may take.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RowsBudget {
    /// Bytes of rows that are expected in all.
    pub(crate) expected_bytes: u64,
    /// Bytes of buffers of one thread while rows are collected.
    pub(crate) buffers_bytes: u64,
    /// Bytes of rows while they are sorted.
    pub(crate) sort_bytes: u64,
    /// The number of files that may be open.
    pub(crate) files_max: u64,
}

/// Rows of `N` bytes, divided among files by their first bits.
pub(crate) struct RowFiles<'s, const N: usize> {
    storage: &'s dyn Storage,
    name: &'static str,
    files: Vec<Mutex<RowFile>>,
    files_log2: u32,
    buffer_rows: usize,
    /// Rows that are sorted at once.
    sort_rows: u64,
}

/// A file of rows.
#[derive(Default)]
struct RowFile {
    /// `None` before its first row.
    file: Option<Box<dyn StorageFile>>,
    rows: u64,
}

/// Takes a list of sorted rows.
type EachList<'e, const N: usize> = dyn FnMut(&[[u8; N]]) -> Result<(), IndexesError> + 'e;

/// How many lists of rows are in memory while rows are sorted: one that is sorted, its working space, one that waits,
/// and one that is written.
const LISTS: u64 = 4;

impl<'s, const N: usize> RowFiles<'s, N> {
    /// Begins without rows. The files are named after `name`.
    pub(crate) fn new(storage: &'s dyn Storage, name: &'static str, budget: RowsBudget) -> Self {
        let row = N as u64;
        let sort_rows = (budget.sort_bytes / LISTS / row).max(1);
        // Half as full as possible, because files do not become equally long.
        let files = (budget.expected_bytes / row).div_ceil(sort_rows.div_ceil(2)).max(1);
        let files_log2 = files.next_power_of_two().ilog2().min(FILES_LOG2_MAX);
        let files_log2 = files_log2.min(budget.files_max.max(1).ilog2());
        let buffer = budget.buffers_bytes >> files_log2;
        let buffer = buffer.clamp(BUFFER_BYTES.start, BUFFER_BYTES.end);
        let files = (0..1 << files_log2).map(|_| Mutex::default()).collect();
        Self { storage, name, files, files_log2, buffer_rows: (buffer / row) as usize, sort_rows }
    }

    /// Returns buffers for one thread.
    pub(crate) fn buffers(&self) -> RowBuffers<'_, 's, N> {
        RowBuffers { rows: self, buffers: vec![Vec::new(); self.files.len()] }
    }

    fn name(&self, file: usize) -> String {
        format!("{}-{file:04}.rows", self.name)
    }

    fn append(&self, number: usize, rows: &[[u8; N]]) -> Result<(), IndexesError> {
        let mut all = self.files[number].lock();
        let name = || self.name(number);
        let file = match &mut all.file {
            Some(file) => file,
            none => {
                let made = self.storage.create(&name());
                none.insert(made.map_err(|error| at(self.storage, &name())(error))?)
            }
        };
        let written = file.write_all(rows.as_flattened());
        written.map_err(|error| at(self.storage, &name())(error))?;
        all.rows += rows.len() as u64;
        Ok(())
    }

    /// Passes all rows to `each` in ascending order, in lists, and removes the files. A thread of its own reads and
    /// sorts. Rows that are equal in their first eight bytes come in the same list. Asks `stop` before each list, and
    /// returns the number of rows.
    pub(crate) fn sorted(
        self,
        stop: &dyn Fn() -> Result<(), IndexesError>,
        each: &mut EachList<'_, N>,
    ) -> Result<u64, IndexesError> {
        std::thread::scope(|scope| {
            let (sorted, to_take) = sync_channel::<Vec<[u8; N]>>(1);
            let (taken, spare) = channel();
            let reader = scope.spawn(move || self.read_all(&sorted, &spare));
            let (mut result, mut count) = (Ok(()), 0);
            for rows in to_take {
                result = stop().and_then(|()| each(&rows));
                if result.is_err() {
                    break;
                }
                count += rows.len() as u64;
                // The reader may need no further list.
                let _ = taken.send(rows);
            }
            // If this thread gave up, the reader stops at the next list.
            let read = reader.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic));
            result.and(read).map(|()| count)
        })
    }

    fn read_all(
        self,
        sorted: &SyncSender<Vec<[u8; N]>>,
        spare: &Receiver<Vec<[u8; N]>>,
    ) -> Result<(), IndexesError> {
        let mut working = Vec::new();
        for number in 0..self.files.len() {
            let rows = {
                let mut file = self.files[number].lock();
                file.file = None;
                file.rows
            };
            if rows == 0 {
                continue;
            }
            for buckets in self.lists(number, rows)? {
                let mut list = spare.try_recv().unwrap_or_default();
                list.clear();
                self.read(number, rows, &mut |row, bucket| {
                    if buckets.contains(&bucket) {
                        list.push(*row);
                    }
                })?;
                sort(&mut list, &mut working);
                if sorted.send(list).is_err() {
                    return Ok(());
                }
            }
            let name = self.name(number);
            self.storage.remove(&name).map_err(at(self.storage, &name))?;
        }
        Ok(())
    }

    /// Divides the finer parts of a file into ranges whose rows fit the memory.
    fn lists(&self, number: usize, rows: u64) -> Result<Vec<Range<usize>>, IndexesError> {
        if rows <= self.sort_rows {
            return Ok(vec![WHOLE]);
        }
        let mut counts = vec![0_u64; BUCKETS];
        self.read(number, rows, &mut |_, bucket| counts[bucket] += 1)?;
        let (mut ranges, mut start, mut sum) = (Vec::new(), 0, 0);
        for (bucket, count) in counts.into_iter().enumerate() {
            if sum + count > self.sort_rows && start < bucket {
                ranges.push(start..bucket);
                (start, sum) = (bucket, 0);
            }
            sum += count;
        }
        ranges.push(start..BUCKETS);
        Ok(ranges)
    }

    /// Passes each row of a file to `each`, with the number of its finer part.
    fn read(
        &self,
        number: usize,
        rows: u64,
        each: &mut dyn FnMut(&[u8; N], usize),
    ) -> Result<(), IndexesError> {
        let name = self.name(number);
        let mut file = self.storage.open(&name, 0).map_err(at(self.storage, &name))?;
        let mut buffer = vec![[0; N]; (READ_BYTES / N).min(rows as usize)];
        let mut left = rows;
        while left > 0 {
            let count = left.min(buffer.len() as u64);
            let some = &mut buffer[..count as usize];
            file.read_exact(some.as_flattened_mut()).map_err(at(self.storage, &name))?;
            for row in &*some {
                let finer = first(row) << self.files_log2 >> (NUMBER_BITS - BUCKETS.ilog2());
                each(row, finer as usize);
            }
            left -= count;
        }
        Ok(())
    }
}

/// Returns the first bytes of a row as a number, by which rows are ordered.
fn first<const N: usize>(row: &[u8; N]) -> u64 {
    row.first_chunk().map_or(0, |first| u64::from_be_bytes(*first))
}

fn sort<const N: usize>(rows: &mut Vec<[u8; N]>, working: &mut Vec<[u8; N]>) {
    sort_by_number(rows, working, first, |a, b| a.cmp(b));
}

/// The rows that one thread has collected and not written yet.
pub(crate) struct RowBuffers<'r, 's, const N: usize> {
    rows: &'r RowFiles<'s, N>,
    buffers: Vec<Vec<[u8; N]>>,
}

impl<const N: usize> RowBuffers<'_, '_, N> {
    /// Adds a row.
    #[inline]
    pub(crate) fn push(&mut self, row: [u8; N]) -> Result<(), IndexesError> {
        let first = u16::from_be_bytes([row[0], row[1]]);
        let number = usize::from(first) >> (u16::BITS - self.rows.files_log2);
        let buffer = &mut self.buffers[number];
        buffer.push(row);
        if buffer.len() < self.rows.buffer_rows {
            return Ok(());
        }
        self.rows.append(number, buffer)?;
        buffer.clear();
        Ok(())
    }

    /// Writes what is left.
    pub(crate) fn finish(self) -> Result<(), IndexesError> {
        let filled = self.buffers.iter().enumerate().filter(|(_, rows)| !rows.is_empty());
        for (number, rows) in filled {
            self.rows.append(number, rows)?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_storage::DirStorage;
    use proptest::prelude::*;

    /// Sorts rows with a budget; returns them and the number of lists.
    fn sorted(all: &[[u8; 13]], sort_bytes: u64, expected_bytes: u64) -> (Vec<[u8; 13]>, usize) {
        let folder = tempfile::tempdir().unwrap();
        let storage = DirStorage::private(folder.path());
        let budget = RowsBudget { expected_bytes, buffers_bytes: 1, sort_bytes, files_max: 900 };
        let rows = RowFiles::new(&storage, "test", budget);
        for some in all.chunks(all.len().div_ceil(2).max(1)) {
            let mut buffers = rows.buffers();
            some.iter().try_for_each(|row| buffers.push(*row)).unwrap();
            buffers.finish().unwrap();
        }
        let (mut found, mut lists) = (Vec::new(), 0);
        rows.sorted(&|| Ok(()), &mut |some| {
            found.extend_from_slice(some);
            lists += 1;
            Ok(())
        })
        .unwrap();
        assert_eq!(storage.names().unwrap(), Vec::<String>::new(), "files stay");
        (found, lists)
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]

        #[test]
        fn rows_come_in_order_whatever_the_memory(
            mut rows in proptest::collection::vec(any::<[u8; 13]>(), 0..3_000),
            sort_bytes in 1_u64..60_000,
            expected_bytes in 0_u64..200_000,
        ) {
            // Some are equal in their first bytes.
            for at in 1..rows.len() / 8 {
                let first = rows[at][..9].to_vec();
                rows[at * 8][..9].copy_from_slice(&first);
            }
            let (found, _) = sorted(&rows, sort_bytes, expected_bytes);
            rows.sort_unstable();
            prop_assert_eq!(found, rows);
        }
    }

    #[test]
    fn a_file_that_exceeds_the_memory_is_sorted_in_parts() {
        // One file was expected to do for all rows.
        let row = |at: u64| {
            let mut row = [0; 13];
            row[..8].copy_from_slice(&at.wrapping_mul(0x9e37_79b9_7f4a_7c15).to_be_bytes());
            row
        };
        let rows: Vec<[u8; 13]> = (0..5_000).map(row).collect();
        let (found, lists) = sorted(&rows, 4 * 13 * 1_000, 0);
        assert!(found.is_sorted() && found.len() == rows.len());
        assert!((5..8).contains(&lists), "{lists}");
    }

    #[test]
    fn the_first_error_ends_everything() {
        let folder = tempfile::tempdir().unwrap();
        let storage = DirStorage::private(folder.path());
        let (expected_bytes, buffers_bytes, sort_bytes) = (1 << 20, 1, 1 << 10);
        let budget = RowsBudget { expected_bytes, buffers_bytes, sort_bytes, files_max: 256 };
        let rows = RowFiles::<13>::new(&storage, "test", budget);
        let mut buffers = rows.buffers();
        (0..=255).try_for_each(|first| buffers.push([first; 13])).unwrap();
        buffers.finish().unwrap();
        std::fs::write(folder.path().join("test-0007.rows"), "").unwrap();
        let ended = rows.sorted(&|| Ok(()), &mut |_| Ok(()));
        assert!(ended.unwrap_err().to_string().contains("test-0007.rows"));
    }
}

//! [`MachineMeasure`]: the limits of this machine for everything but SHA-256.
//!
//! Each kind of work runs alone, with the code of a sync, on data in the fastest place: files in the page
//! cache, buffers in the cache of a core.

use super::cost::{KernelRates, MachineLimits, WorkRate};
use super::timing::rate;
use crate::error::{AtPath, BenchError, check_interrupt};
use apus_chain::{BlockLayout, HEADER_SIZE, MuHashBatch, write_compact_size};
use apus_datadir::Obfuscation;
use parking_lot::Mutex;
use std::fs::File;
use std::hint::black_box;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Larger than the second-level cache of any core.
const LARGE_BYTES: usize = 32 << 20;
/// With its copy, within the second-level cache of most.
const CACHED_BYTES: usize = 192 << 10;
/// Bytes per copy.
const STEP_BYTES: usize = 64 << 10;

/// Candidate read sizes: the fastest one counts.
const READ_BYTES: [usize; 3] = [256 << 10, 1 << 20, 4 << 20];

/// Bytes per write, and the length at which it starts over.
const WRITE_BYTES: usize = 1 << 20;
const WRITTEN_BYTES_MAX: u64 = 32 << 20;

/// Bytes of a typical coin in the input of the set's hashes.
const ELEMENT_BYTES: usize = 71;
/// Coins per step: enough for any kernel's lanes.
const ELEMENTS: u64 = 64;

/// The inputs of the measurement.
pub(super) struct MachineMeasure<'a> {
    /// Number of threads that "all" means.
    pub(super) threads: usize,
    /// Duration of each measurement.
    pub(super) span: Duration,
    /// Block files, all in the page cache.
    pub(super) files: &'a [PathBuf],
    /// Raw blocks.
    pub(super) blocks: &'a [Vec<u8>],
    /// A folder for a temporary file of 32 MiB.
    pub(super) scratch: &'a Path,
    /// Stops the measurement once set.
    pub(super) interrupt: &'a AtomicBool,
}

impl MachineMeasure<'_> {
    /// Measures everything except the kernels' rates, which `timing` measures. Calls `each` with the name of
    /// each step.
    pub(super) fn limits(
        &self,
        kernels: Vec<KernelRates>,
        each: &mut dyn FnMut(&str),
    ) -> Result<MachineLimits, BenchError> {
        let mut next = |what: &str| {
            check_interrupt(self.interrupt)?;
            each(what);
            Ok::<_, BenchError>(())
        };
        next("copying buffers")?;
        let (copy_large, copy_cached) = (self.copy(LARGE_BYTES), self.copy(CACHED_BYTES));
        next("reading files")?;
        let read = self.read().at(self.scratch)?;
        next("undoing obfuscation")?;
        let obfuscation = self.obfuscation();
        next("parsing blocks")?;
        let parse = self.parse();
        next("MuHash")?;
        let muhash = self.muhash();
        next("writing files")?;
        let write = self.write().at(self.scratch)?;
        let threads = self.threads;
        Ok(MachineLimits {
            threads,
            copy_large,
            copy_cached,
            read,
            obfuscation,
            parse,
            muhash,
            write,
            kernels,
        })
    }

    fn rate<S: Send>(
        &self,
        state: impl Fn(usize) -> S,
        work: impl Fn(&mut S) -> u64 + Sync,
    ) -> WorkRate {
        rate(self.threads, self.span, state, work)
    }

    fn copy(&self, bytes: usize) -> WorkRate {
        let state = |_| (vec![0x5a_u8; bytes], vec![0; bytes], 0);
        self.rate(state, |(from, to, at)| {
            let part = *at..*at + STEP_BYTES;
            to[part.clone()].copy_from_slice(black_box(&from[part]));
            black_box(&mut *to);
            *at = (*at + STEP_BYTES) % bytes;
            STEP_BYTES as u64
        })
    }

    /// The fastest of several buffer sizes, each thread starting at a different offset.
    fn read(&self) -> io::Result<WorkRate> {
        let files = BlockFilesAsOne::open(self.files)?;
        let failed = FirstIoError::default();
        let [first, rest @ ..] = READ_BYTES.map(|buffer| {
            let apart = files.bytes / self.threads as u64;
            let state = |index| (vec![0; buffer], apart * index as u64);
            self.rate(state, |(buffer, place)| {
                let read = failed.note(files.read(buffer, *place)).unwrap_or(0);
                *place = (*place + read as u64) % files.bytes;
                black_box(&mut *buffer);
                read as u64
            })
        });
        failed.expect_none()?;
        Ok(rest.into_iter().fold(first, WorkRate::best))
    }

    fn obfuscation(&self) -> WorkRate {
        let key = Obfuscation::new([1, 2, 3, 4, 5, 6, 7, 8]);
        let state = |_| vec![0; CACHED_BYTES];
        self.rate(state, |bytes| {
            key.apply(black_box(bytes), 8);
            bytes.len() as u64
        })
    }

    fn parse(&self) -> WorkRate {
        let state = |index| (BlockLayout::new(), index);
        self.rate(state, |(layout, at)| {
            let block = &self.blocks[*at % self.blocks.len()];
            *at += 1;
            let parsed = layout.read(black_box(block)).map_or(0, |view| view.raw().len());
            black_box(parsed) as u64
        })
    }

    fn muhash(&self) -> WorkRate {
        let state = |index| (MuHashBatch::new(), [index as u8; ELEMENT_BYTES]);
        self.rate(state, |(batch, element)| {
            (0..ELEMENTS).for_each(|_| batch.insert(black_box(element)));
            ELEMENTS
        })
    }

    /// Overwrites the same few megabytes, so that it never waits for the disk.
    fn write(&self) -> io::Result<WorkRate> {
        let failed = FirstIoError::default();
        let state = |index| {
            let path = self.scratch.join(format!("floor-{index}.tmp"));
            (failed.note(ScratchFile::create(path)), vec![0x5a; WRITE_BYTES], 0)
        };
        let measured = self.rate(state, |(file, bytes, place)| {
            if let Some(file) = file {
                failed.note(file.file.write_all_at(bytes, *place));
            }
            *place = (*place + WRITE_BYTES as u64) % WRITTEN_BYTES_MAX;
            WRITE_BYTES as u64
        });
        failed.expect_none()?;
        Ok(measured)
    }
}

/// The block files as one concatenated file.
struct BlockFilesAsOne {
    files: Vec<(File, u64)>,
    bytes: u64,
}

impl BlockFilesAsOne {
    fn open(paths: &[PathBuf]) -> io::Result<Self> {
        let open = |path: &PathBuf| {
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        let files: Vec<(File, u64)> = paths.iter().map(open).collect::<io::Result<_>>()?;
        let bytes = files.iter().map(|(_, length)| length).sum();
        if bytes == 0 {
            return Err(io::Error::other("the block files are empty"));
        }
        Ok(Self { files, bytes })
    }

    /// Reads at `place`, up to the end of that file; returns at least one byte.
    fn read(&self, buffer: &mut [u8], place: u64) -> io::Result<usize> {
        let mut start = 0;
        for (file, length) in &self.files {
            if place < start + length {
                let left = (start + length - place).min(buffer.len() as u64) as usize;
                file.read_exact_at(&mut buffer[..left], place - start)?;
                return Ok(left);
            }
            start += length;
        }
        Err(io::Error::other("a block file was truncated"))
    }
}

/// The first error of any thread: the measured code cannot return one.
#[derive(Default)]
struct FirstIoError {
    first: Mutex<Option<io::Error>>,
}

impl FirstIoError {
    /// The result's value, or `None` after noting the error.
    fn note<T>(&self, result: io::Result<T>) -> Option<T> {
        result
            .map_err(|error| {
                self.first.lock().get_or_insert(error);
            })
            .ok()
    }

    fn expect_none(self) -> io::Result<()> {
        self.first.into_inner().map_or(Ok(()), Err)
    }
}

/// A file that is removed on drop.
struct ScratchFile {
    path: PathBuf,
    file: File,
}

impl ScratchFile {
    fn create(path: PathBuf) -> io::Result<Self> {
        let mut file = File::create(&path)?;
        let bytes = vec![0; WRITE_BYTES];
        for _ in 0..WRITTEN_BYTES_MAX / WRITE_BYTES as u64 {
            file.write_all(&bytes)?;
        }
        Ok(Self { path, file })
    }
}

impl Drop for ScratchFile {
    fn drop(&mut self) {
        // A leftover scratch file is harmless.
        let _ = std::fs::remove_file(&self.path);
    }
}

// ---- the block to measure with if no chain is given ----

/// Transactions of the block: together about 1.1 MB.
const TRANSACTIONS: u64 = 3_000;

/// The bytes of a block of transactions with two inputs and two outputs each, in the form with witnesses.
/// They parse, but are otherwise invalid.
pub(super) fn made_up_block() -> Vec<u8> {
    // Outpoint, empty script, sequence; amount, script; a signature and a key.
    let input = [&[7; 36][..], &[0], &[0xff; 4]].concat();
    let output = [&[1; 8][..], &[22, 0, 20], &[9; 20]].concat();
    let witness = [&[2, 71][..], &[3; 71], &[33], &[2; 33]].concat();
    let [inputs, outputs, witnesses] = [input, output, witness].map(|one| one.repeat(2));
    let version = [2, 0, 0, 0, 0, 1];
    let tx = [&version[..], &[2], &inputs, &[2], &outputs, &witnesses, &[0; 4]].concat();
    let mut block = vec![0; HEADER_SIZE];
    write_compact_size(&mut block, TRANSACTIONS);
    block.extend(tx.repeat(TRANSACTIONS as usize));
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::floor::made_up_block;
    use std::sync::atomic::Ordering;

    fn measure<'a>(
        files: &'a [PathBuf],
        blocks: &'a [Vec<u8>],
        scratch: &'a Path,
    ) -> MachineMeasure<'a> {
        static NOT: AtomicBool = AtomicBool::new(false);
        let span = Duration::from_millis(1);
        MachineMeasure { threads: 2, span, files, blocks, scratch, interrupt: &NOT }
    }

    #[test]
    fn every_limit_is_a_rate() {
        let folder = tempfile::tempdir().unwrap();
        // An empty one, and lengths that are not multiples of any buffer size.
        let files = [(0, 0), (1, 100_001), (2, 7)].map(|(number, length)| {
            let path = folder.path().join(format!("blk{number:05}.dat"));
            std::fs::write(&path, vec![1; length]).unwrap();
            path
        });
        let blocks = [made_up_block()];
        let mut steps = Vec::new();
        let mut log = |what: &str| steps.push(what.to_owned());
        let limits = measure(&files, &blocks, folder.path()).limits(Vec::new(), &mut log).unwrap();
        assert_eq!((steps.len(), steps[1].as_str()), (6, "reading files"));
        let MachineLimits {
            copy_large, copy_cached, read, obfuscation, parse, muhash, write, ..
        } = limits;
        for rate in [copy_large, copy_cached, read, obfuscation, parse, muhash, write] {
            assert!(rate.one_thread > 1e3 && rate.all_threads > 1e3, "{rate:?}");
        }
        let left = std::fs::read_dir(folder.path()).unwrap().count();
        assert_eq!(left, files.len(), "a scratch file was left behind");
    }

    #[test]
    fn an_interruption_ends_the_measurement() {
        let folder = tempfile::tempdir().unwrap();
        let (blocks, interrupt) = ([made_up_block()], AtomicBool::new(false));
        let file = [folder.path().join("blk00000.dat")];
        std::fs::write(&file[0], "0123").unwrap();
        let measure =
            MachineMeasure { interrupt: &interrupt, ..measure(&file, &blocks, folder.path()) };
        let mut steps = 0;
        let mut log = |_: &str| {
            steps += 1;
            interrupt.store(steps == 2, Ordering::Relaxed);
        };
        let found = measure.limits(Vec::new(), &mut log);
        assert!(found.is_err_and(|error| error.kind() == ErrorKind::Interrupted));
        assert_eq!(steps, 2);
    }

    #[test]
    fn unreadable_and_unwritable_files_are_errors() {
        let folder = tempfile::tempdir().unwrap();
        let (blocks, gone) = ([made_up_block()], folder.path().join("gone"));
        assert!(measure(std::slice::from_ref(&gone), &blocks, folder.path()).read().is_err());
        assert!(measure(&[], &blocks, folder.path()).read().is_err());
        assert!(measure(&[], &blocks, &gone).write().is_err());
    }

    #[test]
    fn files_are_read_as_if_they_were_one() {
        let folder = tempfile::tempdir().unwrap();
        let paths = ["a", "b"].map(|name| folder.path().join(name));
        std::fs::write(&paths[0], b"012").unwrap();
        std::fs::write(&paths[1], b"3456789").unwrap();
        let files = BlockFilesAsOne::open(&paths).unwrap();
        assert_eq!(files.bytes, 10);
        for place in 0..10u64 {
            let mut buffer = [0; 4];
            let read = files.read(&mut buffer, place).unwrap();
            let end = if place < 3 { 3 } else { 10 };
            assert_eq!(read as u64, (end - place).min(4));
            assert_eq!(buffer[0], b'0' + place as u8);
        }
        assert!(files.read(&mut [0; 4], 10).is_err());
    }
}

#[cfg(test)]
mod sample_tests {
    use super::*;
    use apus_chain::BlockLayout;

    #[test]
    fn the_block_has_typical_transactions() {
        let (block, mut layout) = (made_up_block(), BlockLayout::new());
        let view = layout.read(&block).unwrap();
        assert_eq!(view.tx_count() as u64, TRANSACTIONS);
        assert_eq!(view.input_count() as u64, 2 * TRANSACTIONS);
        assert_eq!(view.output_count() as u64, 2 * TRANSACTIONS);
        assert!(view.txs().all(|tx| tx.has_witness()));
    }
}

//! [`UndoFiles`]: the undo data in the `revNNNNN.dat` files of a `blocks` folder.
//!
//! A record is magic, size, undo data, checksum (Core `node/blockstorage.cpp`, `WriteBlockUndo`),
//! and lies in the file with the number of its block's. Where in it, the block index tells, or a search.
//! The checksum covers the hash of the block before, so data of another block is
//! noticed. What the data mean is not looked at.

#[cfg(test)]
mod tests;

use crate::error::BlkError;
use crate::files::{Obfuscation, RECORD_HEAD, read_key};
use apus_chain::{BlockHash, undo_checksum};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes behind the undo data: their checksum.
pub(crate) const CHECKSUM: u64 = 32;

/// Why undo data could not be read. Offsets are those of the data, behind magic and size.
#[derive(Debug, thiserror::Error)]
pub enum RevError {
    /// The key beside the files could not be read.
    #[error(transparent)]
    Key(#[from] BlkError),
    /// A file is not there, or cannot be opened.
    #[error(
        "cannot open {path}, which should hold undo data at byte {offset}: {source}; it was \
         pruned, or may not be read"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// Where the data should begin.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The system could not read.
    #[error("cannot read {path} at byte {offset}: {source}; check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where the data begin.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// What lies there is no undo data of that block.
    #[error(
        "{path} is damaged at byte {offset}, or undo data never were there: {what}; the blocks can \
         be connected again without them"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// Where the data should begin.
        offset: u64,
        /// What is wrong.
        what: String,
    },
}

/// The undo files of one folder, one of them open.
#[derive(Debug)]
pub struct UndoFiles {
    dir: PathBuf,
    magic: [u8; 4],
    obfuscation: Obfuscation,
    /// The file read last.
    open: Option<(u32, PathBuf, File)>,
}

impl UndoFiles {
    /// The undo files in `dir`, whose records begin with `magic`. Looks at `xor.dat` alone.
    pub fn open(dir: &Path, magic: [u8; 4]) -> Result<Self, RevError> {
        let obfuscation = read_key(&dir.join("xor.dat"))?;
        Ok(Self { dir: dir.to_owned(), magic, obfuscation, open: None })
    }

    /// The undo data at byte `offset` of file number `file` as they lie there, for
    /// [`BlockUndo`](apus_chain::BlockUndo) to read. `prev` is the block before the one that they
    /// are of. No more memory is taken than the file is long.
    pub fn read(&mut self, file: u32, offset: u64, prev: &BlockHash) -> Result<Vec<u8>, RevError> {
        let (path, handle) = match self.open.take() {
            Some((open, path, handle)) if open == file => (path, handle),
            _ => self.open_file(file, offset)?,
        };
        let undo = self.read_in(&path, &handle, offset, prev);
        self.open = Some((file, path, handle));
        undo
    }

    /// Where the record of the undo data at byte `offset` of a file ends, by its size; none where no record lies
    /// there.
    pub fn end(&self, file: u32, offset: u64) -> Option<u64> {
        let (_, handle) = self.open_file(file, offset).ok()?;
        let size = self.record_size(&handle, offset).ok()??;
        Some(offset + u64::from(size) + CHECKSUM)
    }

    /// The size in the record whose data begin at `offset`; none where there is no record.
    fn record_size(&self, file: &File, offset: u64) -> io::Result<Option<u32>> {
        let Some(start) = offset.checked_sub(RECORD_HEAD) else { return Ok(None) };
        let mut head = [0; RECORD_HEAD as usize];
        file.read_exact_at(&mut head, start)?;
        self.obfuscation.apply(&mut head, start);
        let [m0, m1, m2, m3, size @ ..] = head;
        Ok(([m0, m1, m2, m3] == self.magic).then_some(u32::from_le_bytes(size)))
    }

    /// Length of a file; none where it is not there.
    pub fn length(&self, file: u32) -> Option<u64> {
        Some(std::fs::metadata(self.dir.join(file_name(file))).ok()?.len())
    }

    fn open_file(&self, number: u32, offset: u64) -> Result<(PathBuf, File), RevError> {
        let path = self.dir.join(file_name(number));
        match File::open(&path) {
            Ok(handle) => Ok((path, handle)),
            Err(source) => Err(RevError::Open { path, offset, source }),
        }
    }

    fn read_in(
        &self,
        path: &Path,
        handle: &File,
        offset: u64,
        prev: &BlockHash,
    ) -> Result<Vec<u8>, RevError> {
        let damaged = |what: String| RevError::Damaged { path: path.to_owned(), offset, what };
        let reading = |source| RevError::Read { path: path.to_owned(), offset, source };
        // Asked each time: the file of a node at work grows.
        let length = handle.metadata().map_err(reading)?.len();
        if !(RECORD_HEAD..=length).contains(&offset) {
            return Err(damaged(format!("no record can lie there in a file of {length} bytes")));
        }
        let Some(size) = self.record_size(handle, offset).map_err(reading)? else {
            return Err(damaged("there is no record".to_owned()));
        };
        let whole = u64::from(size) + CHECKSUM;
        if whole > length - offset {
            let left = length - offset;
            return Err(damaged(format!(
                "{size} bytes are claimed and a checksum, {left} are left"
            )));
        }
        let mut undo = vec![0; whole as usize];
        handle.read_exact_at(&mut undo, offset).map_err(reading)?;
        self.obfuscation.apply(&mut undo, offset);
        let sum = undo.split_off(size as usize);
        if sum != undo_checksum(prev, &undo) {
            return Err(damaged(format!("the checksum is of other data than behind block {prev}")));
        }
        Ok(undo)
    }
}

/// Name of an undo file (Core `flatfile.cpp`).
pub(crate) fn file_name(number: u32) -> String {
    format!("rev{number:05}.dat")
}

/// The number in a name that Core would give to an undo file.
pub(crate) fn file_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("rev")?.strip_suffix(".dat")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// How much is read at once to find where a record begins.
const CHUNK: usize = 256 << 10;

/// A search ends when it has hashed so many times the bytes of its file, whatever lies there. Some 30 blocks
/// beside the chain in a file of 120,000 small ones take 20.
const HASHED_MAX: u64 = 64;

impl UndoFiles {
    /// The undo data in file `number` of blocks that come after `prevs`, in the order in which they lie: which
    /// of `prevs`, and where, as [`read`](Self::read) takes it. It is quick if the blocks come by ascending height. A
    /// search that is told to `halt` has not gone through all of the file.
    pub fn find(
        &self,
        number: u32,
        prevs: &[BlockHash],
        halt: &AtomicBool,
    ) -> Result<Vec<(usize, u64)>, RevError> {
        let (path, file) = self.open_file(number, 0)?;
        let length = match file.metadata() {
            Ok(meta) => meta.len(),
            Err(source) => return Err(RevError::Read { path, offset: 0, source }),
        };
        let mut search = UndoFileSearch {
            path,
            file,
            length,
            magic: self.magic,
            obfuscation: self.obfuscation,
            prevs,
            found: Vec::new(),
            expected: 0,
            hashable: length.saturating_mul(HASHED_MAX),
            chunk: (0, Vec::new()),
            record: Vec::new(),
        };
        let mut at = 0;
        while search.hashable > 0 && !halt.load(Ordering::Relaxed) {
            let Some(start) = search.next_magic(at)? else { break };
            at = search.take(start)?;
        }
        Ok(search.found)
    }
}

/// A search through one file.
///
/// Where in a file the undo data of blocks lie, as the file alone tells.
///
/// A record does not say which block it is of, but its checksum covers the hash of the block before. A node
/// writes undo data as it connects blocks, so the records of a file come nearly in the order of heights:
/// each is held against the block after the last one found, then against those next to it, ever farther
/// away. A record of none of them is passed. Where the size in such a record leads to no other, the bytes
/// behind its magic are searched, so that damage costs the record that it is in and not those behind it.
///
/// Blocks that follow the same one cannot be told apart by checksums: where one of them is beside the chain,
/// the records of both are found for the other. What the data say is not looked at.
struct UndoFileSearch<'a> {
    path: PathBuf,
    file: File,
    length: u64,
    magic: [u8; 4],
    obfuscation: Obfuscation,
    prevs: &'a [BlockHash],
    found: Vec<(usize, u64)>,
    /// The block after the last one found.
    expected: usize,
    /// Bytes that may still be hashed.
    hashable: u64,
    /// What was read last to find a record's start, and from where on.
    chunk: (u64, Vec<u8>),
    /// Undo data and their checksum.
    record: Vec<u8>,
}

impl UndoFileSearch<'_> {
    /// Fills `buffer` from `offset` on, which must be in the file.
    fn fill(&self, buffer: &mut [u8], offset: u64) -> Result<(), RevError> {
        let reading = |source| RevError::Read { path: self.path.clone(), offset, source };
        self.file.read_exact_at(buffer, offset).map_err(reading)
    }

    /// Where magic lies at `at` or behind it.
    fn next_magic(&mut self, mut at: u64) -> Result<Option<u64>, RevError> {
        loop {
            let (start, bytes) = &self.chunk;
            let skip = at.checked_sub(*start).and_then(|skip| usize::try_from(skip).ok());
            let seen = skip.and_then(|skip| bytes.get(skip..)).unwrap_or_default();
            let found = seen.windows(self.magic.len()).position(|bytes| bytes == self.magic);
            if let Some(found) = found {
                return Ok(Some(at + found as u64));
            }
            // The last bytes may be the first of one.
            at += seen.len().saturating_sub(self.magic.len() - 1) as u64;
            let left = self.length.saturating_sub(at);
            if left < RECORD_HEAD + CHECKSUM {
                return Ok(None);
            }
            let mut bytes = std::mem::take(&mut self.chunk.1);
            bytes.resize(usize::try_from(left).map_or(CHUNK, |left| left.min(CHUNK)), 0);
            self.fill(&mut bytes, at)?;
            self.obfuscation.apply(&mut bytes, at);
            self.chunk = (at, bytes);
        }
    }

    /// Finds out which block the record at `start` is of. Gives where to go on.
    fn take(&mut self, start: u64) -> Result<u64, RevError> {
        let offset = start + RECORD_HEAD;
        let Some(room) = self.length.checked_sub(offset) else { return Ok(self.length) };
        let mut head = [0; RECORD_HEAD as usize];
        self.fill(&mut head, start)?;
        self.obfuscation.apply(&mut head, start);
        let [_, _, _, _, size @ ..] = head;
        let whole = u64::from(u32::from_le_bytes(size)) + CHECKSUM;
        if whole > room {
            return Ok(start + 1);
        }
        let mut record = std::mem::take(&mut self.record);
        record.resize(whole as usize, 0);
        self.fill(&mut record, offset)?;
        self.obfuscation.apply(&mut record, offset);
        let found = self.block_of(&record);
        self.record = record;
        if let Some(found) = found {
            self.found.push((found, offset));
            self.expected = found + 1;
        }
        let end = offset + whole;
        Ok(if found.is_some() || self.ends_a_record(end)? { end } else { start + 1 })
    }

    /// The block that a record is of, by its place in `prevs`.
    fn block_of(&mut self, record: &[u8]) -> Option<usize> {
        let (undo, sum) = record.split_last_chunk::<{ CHECKSUM as usize }>()?;
        let cost = record.len() as u64 + size_of::<BlockHash>() as u64;
        let (before, after) = self.prevs.split_at(self.expected);
        let mut after = (before.len()..).zip(after);
        let mut before = before.iter().enumerate().rev();
        loop {
            let (next, last) = (after.next(), before.next());
            if next.is_none() && last.is_none() {
                return None;
            }
            for (at, prev) in [next, last].into_iter().flatten() {
                if self.hashable == 0 {
                    return None;
                }
                self.hashable = self.hashable.saturating_sub(cost);
                if *sum == undo_checksum(prev, undo) {
                    return Some(at);
                }
            }
        }
    }

    /// Whether a record may end at `end`: another begins there, or nothing but preallocated space is left.
    fn ends_a_record(&self, end: u64) -> Result<bool, RevError> {
        if end + self.magic.len() as u64 > self.length {
            return Ok(end == self.length);
        }
        let mut raw = [0; 4];
        self.fill(&mut raw, end)?;
        Ok(raw == [0; 4] || self.obfuscation.applied(&raw, end) == self.magic)
    }
}

/// Whether a folder has the undo file of a number.
pub fn has_undo_file(dir: &Path, number: u32) -> bool {
    dir.join(file_name(number)).is_file()
}

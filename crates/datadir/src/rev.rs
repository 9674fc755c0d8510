//! [`UndoFiles`]: the undo data in the `revNNNNN.dat` files of a `blocks` folder.
//!
//! A record consists of magic, size, undo data and checksum (Core `node/blockstorage.cpp`, `WriteBlockUndo`).
//! It is in the undo file with the same number as its block's file. The block index has its offset; without
//! an index, a search finds it. The checksum covers the hash of the previous block, so undo data of another
//! block is noticed. The content of the undo data is not checked.

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

/// The length of the checksum after the undo data.
pub(crate) const CHECKSUM: u64 = 32;

/// Why undo data could not be read. Offsets point to the data, after magic and size.
#[derive(Debug, thiserror::Error)]
pub enum RevError {
    /// The key of the files could not be read.
    #[error(transparent)]
    Key(#[from] BlkError),
    /// A file is missing, or cannot be opened.
    #[error(
        "cannot open {path}, which should hold undo data at byte {offset}: {source}. The node pruned the file, or \
         this user may not read it"
    )]
    Open {
        /// The file.
        path: PathBuf,
        /// The offset at which the data should begin.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The system failed to read.
    #[error("cannot read {path} at byte {offset}: {source}. Check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// The offset at which the data begin.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The bytes at this offset are not undo data of that block.
    #[error(
        "{path} is damaged at byte {offset}, or never held undo data there: {what}. Apus can connect the blocks \
         without undo data"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The offset at which the data should begin.
        offset: u64,
        /// The fault.
        what: String,
    },
}

/// The undo files of one folder, at most one of them open.
#[derive(Debug)]
pub struct UndoFiles {
    dir: PathBuf,
    magic: [u8; 4],
    obfuscation: Obfuscation,
    /// The file read last.
    open: Option<(u32, PathBuf, File)>,
}

impl UndoFiles {
    /// Opens the undo files in `dir`, whose records begin with `magic`. Reads only `xor.dat`.
    pub fn open(dir: &Path, magic: [u8; 4]) -> Result<Self, RevError> {
        let obfuscation = read_key(&dir.join("xor.dat"))?;
        Ok(Self { dir: dir.to_owned(), magic, obfuscation, open: None })
    }

    /// Reads the raw undo data at byte `offset` of file number `file`, for
    /// [`BlockUndo`](apus_chain::BlockUndo) to parse. `prev` is the block before the one that the
    /// data belong to. Takes no more memory than the file is long.
    pub fn read(&mut self, file: u32, offset: u64, prev: &BlockHash) -> Result<Vec<u8>, RevError> {
        let (path, handle) = match self.open.take() {
            Some((open, path, handle)) if open == file => (path, handle),
            _ => self.open_file(file, offset)?,
        };
        let undo = self.read_in(&path, &handle, offset, prev);
        self.open = Some((file, path, handle));
        undo
    }

    /// Computes the end of the record whose undo data begin at byte `offset` of a file; `None` if no record
    /// is there.
    pub fn end(&self, file: u32, offset: u64) -> Option<u64> {
        let (_, handle) = self.open_file(file, offset).ok()?;
        let size = self.record_size(&handle, offset).ok()??;
        Some(offset + u64::from(size) + CHECKSUM)
    }

    /// Reads the size in the record whose data begin at `offset`; `None` if no record is there.
    fn record_size(&self, file: &File, offset: u64) -> io::Result<Option<u32>> {
        let Some(start) = offset.checked_sub(RECORD_HEAD) else { return Ok(None) };
        let mut head = [0; RECORD_HEAD as usize];
        file.read_exact_at(&mut head, start)?;
        self.obfuscation.apply(&mut head, start);
        let [m0, m1, m2, m3, size @ ..] = head;
        Ok(([m0, m1, m2, m3] == self.magic).then_some(u32::from_le_bytes(size)))
    }

    /// The length of a file; `None` if it does not exist.
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
        // Queried each time: a running node's file grows.
        let length = handle.metadata().map_err(reading)?.len();
        if !(RECORD_HEAD..=length).contains(&offset) {
            return Err(damaged(format!(
                "a file of {length} bytes has no room for a record there"
            )));
        }
        let Some(size) = self.record_size(handle, offset).map_err(reading)? else {
            return Err(damaged("there is no record".to_owned()));
        };
        let whole = u64::from(size) + CHECKSUM;
        if whole > length - offset {
            let left = length - offset;
            return Err(damaged(format!(
                "the record claims {size} bytes and a checksum, but {left} bytes are left"
            )));
        }
        let mut undo = vec![0; whole as usize];
        handle.read_exact_at(&mut undo, offset).map_err(reading)?;
        self.obfuscation.apply(&mut undo, offset);
        let sum = undo.split_off(size as usize);
        if sum != undo_checksum(prev, &undo) {
            return Err(damaged(format!("the checksum does not match data after block {prev}")));
        }
        Ok(undo)
    }
}

/// The name of an undo file (Core `flatfile.cpp`).
pub(crate) fn file_name(number: u32) -> String {
    format!("rev{number:05}.dat")
}

/// Parses the number in a name that Core would give to an undo file.
pub(crate) fn file_number(name: &str) -> Option<u32> {
    let number = name.strip_prefix("rev")?.strip_suffix(".dat")?.parse().ok()?;
    (file_name(number) == name).then_some(number)
}

/// The number of bytes read at once when searching for the start of a record.
const CHUNK: usize = 256 << 10;

/// A search stops after hashing this many times the length of its file, whatever the content. About 30
/// off-chain blocks in a file of 120,000 small ones take 20 times its length.
const HASHED_MAX: u64 = 64;

impl UndoFiles {
    /// Searches file `number` for the undo data of blocks that come after `prevs`. Returns, in disk order,
    /// the index in `prevs` and the offset that [`read`](Self::read) expects. The search is fast if the
    /// blocks are in ascending order of height. If `halt` is set, it stops before the end of the file.
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
/// Finds the undo data of blocks in a file, without the block index.
///
/// A record does not name its block, but its checksum covers the hash of the previous block. A node writes
/// undo data as it connects blocks, so the records of a file are nearly in order of height: the search tries
/// each record against the block after the last one found, then against the neighbours of that block, at
/// growing distances. It skips a record that matches none of them. If the size in such a record does not lead
/// to another record, it searches the bytes after the record's magic, so that damage costs only the damaged
/// record.
///
/// Checksums cannot distinguish blocks with the same previous block: if one of them is off the chain, the
/// search attributes both records to the other. It does not check the content of the data.
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
    /// How many more bytes may be hashed.
    hashable: u64,
    /// The bytes last read to find a record's start, and their offset.
    chunk: (u64, Vec<u8>),
    /// A record's undo data and checksum.
    record: Vec<u8>,
}

impl UndoFileSearch<'_> {
    /// Reads into `buffer` from `offset` on; the file must be long enough.
    fn fill(&self, buffer: &mut [u8], offset: u64) -> Result<(), RevError> {
        let reading = |source| RevError::Read { path: self.path.clone(), offset, source };
        self.file.read_exact_at(buffer, offset).map_err(reading)
    }

    /// Finds the next magic, at `at` or after it.
    fn next_magic(&mut self, mut at: u64) -> Result<Option<u64>, RevError> {
        loop {
            let (start, bytes) = &self.chunk;
            let skip = at.checked_sub(*start).and_then(|skip| usize::try_from(skip).ok());
            let seen = skip.and_then(|skip| bytes.get(skip..)).unwrap_or_default();
            let found = seen.windows(self.magic.len()).position(|bytes| bytes == self.magic);
            if let Some(found) = found {
                return Ok(Some(at + found as u64));
            }
            // The last bytes may be the beginning of a magic: read them again.
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

    /// Identifies the block of the record at `start`. Returns the offset at which to continue.
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

    /// Finds the block that a record belongs to; returns its index in `prevs`.
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

    /// Returns whether a record may end at `end`: the next record, or only preallocated space, must follow.
    fn ends_a_record(&self, end: u64) -> Result<bool, RevError> {
        if end + self.magic.len() as u64 > self.length {
            return Ok(end == self.length);
        }
        let mut raw = [0; 4];
        self.fill(&mut raw, end)?;
        Ok(raw == [0; 4] || self.obfuscation.applied(&raw, end) == self.magic)
    }
}

/// Returns whether a folder has the undo file with this number.
pub fn has_undo_file(dir: &Path, number: u32) -> bool {
    dir.join(file_name(number)).is_file()
}

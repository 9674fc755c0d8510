//! [`SignatureHintsReader`]: reads the hints of a block from a complete file.
//!
//! The index is checked once and not kept: a block's entry is read when the block is. Threads read at
//! the same time, each at its own offset.

use super::super::HintTable;
use super::{
    END_MAGIC, ENTRY, FOOT, HEAD, HEIGHTS_MAX, Place, Record, SignatureHintsError, check_head,
    short,
};
use apus_chain::{BlockHash, Height, Network, Reader};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use xxhash_rust::xxh3::Xxh3Default;

/// Bytes of the index that are read at once.
const PART: usize = 1 << 16;

/// What the end of a file says about it.
#[derive(Debug, Clone, Copy)]
struct Foot {
    stop_height: Height,
    stop_hash: BlockHash,
    blocks: u32,
    signatures: u64,
    /// Where the records end and the index begins.
    index: u64,
    checksum: u64,
}

impl Foot {
    fn read(bytes: &[u8; FOOT]) -> Option<Self> {
        let mut reader = Reader::new(bytes.strip_suffix(END_MAGIC)?);
        Some(Self {
            stop_height: reader.u32().ok()?,
            stop_hash: BlockHash(*reader.array().ok()?),
            blocks: reader.u32().ok()?,
            signatures: reader.u64().ok()?,
            index: reader.u64().ok()?,
            checksum: reader.u64().ok()?,
        })
    }

    /// Returns where its index ends, if its numbers are not too large.
    fn index_end(&self) -> Option<u64> {
        let bytes = (u64::from(self.stop_height) + 1) * ENTRY as u64;
        self.index.checked_add(bytes)
    }
}

/// A file of signature hints, open for reading.
#[derive(Debug)]
pub struct SignatureHintsReader {
    file: File,
    foot: Foot,
    damaged: AtomicU64,
}

impl SignatureHintsReader {
    /// Opens a file, and checks everything but the records.
    pub fn open(path: &Path, network: Network) -> Result<Self, SignatureHintsError> {
        let failed = SignatureHintsError::io;
        // Opening a pipe would wait for its writer.
        if !fs::metadata(path).map_err(failed("open", path))?.is_file() {
            return Err(SignatureHintsError::Foreign { path: path.to_owned() });
        }
        let file = File::open(path).map_err(failed("open", path))?;
        let length = file.metadata().map_err(failed("read", path))?.len();
        let damaged =
            |offset, what| SignatureHintsError::Damaged { path: path.to_owned(), offset, what };
        let mut head = [0; HEAD];
        read_whole(&file, &mut head, 0)
            .map_err(failed("read", path))?
            .then_some(())
            .ok_or_else(|| SignatureHintsError::Foreign { path: path.to_owned() })?;
        check_head(&head, path, network)?;
        let Some(foot_at) = length.checked_sub(FOOT as u64).filter(|at| *at >= HEAD as u64) else {
            return Err(damaged(length, "the file ends too early"));
        };
        let mut bytes = [0; FOOT];
        file.read_exact_at(&mut bytes, foot_at).map_err(failed("read", path))?;
        let foot = Foot::read(&bytes)
            .ok_or_else(|| damaged(foot_at, "the file does not end as a complete one does"))?;
        if foot.stop_height >= HEIGHTS_MAX {
            return Err(damaged(foot_at, "its stop height is too large"));
        }
        if foot.index < HEAD as u64 || foot.index_end() != Some(foot_at) {
            return Err(damaged(foot_at, "the index does not fit the file's length"));
        }
        let mut check = Check { hasher: Xxh3Default::new(), blocks: 0, within: true };
        check.hasher.update(&head);
        check.index(&file, &foot, foot_at).map_err(failed("read", path))?;
        match check.finish(&foot, &bytes) {
            Some(what) => Err(damaged(foot.index, what)),
            None => Ok(Self { file, foot, damaged: AtomicU64::new(0) }),
        }
    }

    /// Returns the last height that the file covers. Blocks below may be missing too.
    pub fn stop_height(&self) -> Height {
        self.foot.stop_height
    }

    /// Returns the hash of the block at that height.
    pub fn stop_hash(&self) -> &BlockHash {
        &self.foot.stop_hash
    }

    /// Returns the number of blocks with hints.
    pub fn blocks(&self) -> u32 {
        self.foot.blocks
    }

    /// Returns the number of signatures with hints.
    pub fn signatures(&self) -> u64 {
        self.foot.signatures
    }

    /// Returns how many blocks had unreadable or damaged hints so far.
    pub fn damaged(&self) -> u64 {
        self.damaged.load(Ordering::Relaxed)
    }

    /// Returns the hints of a block; `None` if the file has none, has those of another block at this
    /// height, or is damaged there.
    pub fn block(&self, height: Height, hash: &BlockHash) -> Option<HintTable> {
        if height > self.foot.stop_height {
            return None;
        }
        let found = self.find(height, hash);
        found.unwrap_or_else(|| {
            self.damaged.fetch_add(1, Ordering::Relaxed);
            None
        })
    }

    /// Like [`block`](Self::block), but returns the outer `None` for damage.
    fn find(&self, height: Height, hash: &BlockHash) -> Option<Option<HintTable>> {
        let mut entry = [0; ENTRY];
        let entry_at = self.foot.index + u64::from(height) * ENTRY as u64;
        self.file.read_exact_at(&mut entry, entry_at).ok()?;
        let entry = u64::from_le_bytes(entry);
        if entry == 0 {
            return Some(None);
        }
        let place = Place::of_entry(entry);
        if !place.is_within(self.foot.index) {
            return None;
        }
        // No more than `RECORD_MAX`.
        let mut bytes = vec![0; place.length];
        self.file.read_exact_at(&mut bytes, place.offset).ok()?;
        let record = Record::read(&bytes).filter(|record| record.height == height)?;
        if record.block != short(hash) {
            return Some(None);
        }
        HintTable::decode(record.table).ok().map(Some)
    }
}

/// Fills the buffer from `offset` on; returns false if the file ends before.
fn read_whole(file: &File, buffer: &mut [u8], offset: u64) -> io::Result<bool> {
    match file.read_exact_at(buffer, offset) {
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(false),
        other => other.map(|()| true),
    }
}

/// The check of an index, part by part.
struct Check {
    hasher: Xxh3Default,
    blocks: u64,
    within: bool,
}

impl Check {
    /// Reads the index, which ends at `end`.
    fn index(&mut self, file: &File, foot: &Foot, end: u64) -> io::Result<()> {
        let (mut at, mut part) = (foot.index, vec![0; PART]);
        while at < end {
            part.truncate((end - at).min(PART as u64) as usize);
            file.read_exact_at(&mut part, at)?;
            self.hasher.update(&part);
            for entry in part.as_chunks().0.iter().map(|entry| u64::from_le_bytes(*entry)) {
                if entry != 0 {
                    self.blocks += 1;
                    self.within &= Place::of_entry(entry).is_within(foot.index);
                }
            }
            at += part.len() as u64;
        }
        Ok(())
    }

    /// Returns what is wrong, if anything.
    fn finish(mut self, foot: &Foot, bytes: &[u8; FOOT]) -> Option<&'static str> {
        self.hasher.update(bytes.get(..FOOT - 16).unwrap_or_default());
        if self.hasher.digest() != foot.checksum {
            Some("the checksum of the index is wrong")
        } else if !self.within {
            Some("the index names a record outside of the records")
        } else if self.blocks != u64::from(foot.blocks) {
            Some("the index has another number of blocks than the end of the file states")
        } else {
            None
        }
    }
}

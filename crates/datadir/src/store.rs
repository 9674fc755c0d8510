//! [`BlockStore`]: a `blocks` folder that is being made of blocks in any order.
//!
//! Blocks lie as they came and the undo data of some or all of them beside, as Bitcoin Core lays them
//! (`docs/formats/blocksdir.md`), but for space that Core takes ahead. With an index and the coins a
//! node can go on from it. A log outside the folder says what lies where, and that the folder is
//! ours. It tells of nothing that is not on the disk: after a crash all that was synced is there, and
//! what lies beyond is cut off by the next start.
//!
//! Each block is stored once. Blocks are not checked beyond header and number of transactions, undo
//! data not at all. Nothing is removed, but that blocks which came in order can be given up from
//! the end.

mod log;
mod open;
mod state;
#[cfg(test)]
mod tests;

pub(crate) use log::FileLengths;
pub use log::{StoredBlock, UndoLocation};

use crate::files::{self, BLOCK_SIZES, BlockLocation, Obfuscation, RECORD_HEAD};
use apus_chain::{BlockHash, Header, KeyedCoinSum, Reader, undo_checksum};
use log::{LogLookUp, StoreEntry};
use state::{AppendFile, BlockStoreState, NewBlock, RecordBytes};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// A block file is shorter than this (Core `node/blockstorage.h`, `MAX_BLOCKFILE_SIZE`).
pub(crate) const FILE_BYTES_MAX: u64 = 128 << 20;

/// What a block spends.
#[derive(Debug, Clone, Copy)]
pub struct SpentCoins<'a> {
    /// Its undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: &'a [u8],
    /// The sum of the coins: what the undo data have to come to when they are read back.
    pub sum: KeyedCoinSum,
}

/// See the module. Threads share it by reference. What was not synced when it is dropped is lost.
#[derive(Debug)]
pub struct BlockStore {
    dir: PathBuf,
    magic: [u8; 4],
    key: Obfuscation,
    /// Never locked while the disk is waited for.
    state: Mutex<BlockStoreState>,
    /// Locked by the thread that syncs, before the state.
    log: Mutex<AppendFile>,
    /// Reads records that are in the log already.
    lookup: LogLookUp,
}

impl BlockStore {
    /// Appends a block, whose header has this hash, or does nothing if it is there. It is durable
    /// after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`BlockStoreError::Block`] if the bytes cannot be that block. Where a file could not be
    /// written, nothing was changed.
    pub fn put(&self, hash: &BlockHash, raw: &[u8]) -> Result<(), BlockStoreError> {
        if self.has(hash) {
            return Ok(());
        }
        let block = NewBlock::read(hash, raw)?;
        let mut state = self.state_with_room()?;
        match state.places.find(hash) {
            Some(_) => Ok(()),
            None => state.append(&block),
        }
    }

    /// Whether the block is there, durable or not.
    pub fn has(&self, hash: &BlockHash) -> bool {
        // A search leaves nothing half done, so a thread that panicked does no harm to it.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.places.find(hash).is_some()
    }

    /// Whether the undo data of a block is there, durable or not.
    pub fn has_undo(&self, hash: &BlockHash) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.places.find(hash).is_some_and(|entry| entry.undo_record().is_some())
    }

    /// The bytes of a block, if it is there, durable or not. No more memory is taken than one block
    /// may have; the disk is not waited for unless they lie there.
    ///
    /// # Errors
    /// [`BlockStoreError::Damaged`] if another block is found where it should lie. What follows its
    /// header is not looked at.
    pub fn read(&self, hash: &BlockHash) -> Result<Option<Vec<u8>>, BlockStoreError> {
        let Some(entry) = self.entry(hash)? else { return Ok(None) };
        let mut bytes = self.read_record(&entry, entry.place().size as usize)?;
        bytes.drain(..RECORD_HEAD as usize);
        Ok(Some(bytes))
    }

    /// Makes all that was put so far durable: blocks and undo data first, then the log. Meanwhile
    /// other threads read and put.
    ///
    /// # Errors
    /// If it fails, what is on the disk is unknown, and every later call that changes something
    /// fails with [`BlockStoreError::Failed`]: drop it and open the folder anew.
    pub fn sync(&self) -> Result<(), BlockStoreError> {
        let mut log = self.log.lock().map_err(|_| self.failed())?;
        let unsynced = self.state()?.take_unsynced()?;
        let done = unsynced.sync(&mut log);
        if done.is_err() {
            // While the log is locked, so that no other sync reports a success.
            self.state()?.failed = true;
        }
        done
    }

    /// Appends the undo data (Core `undo.h`, `CBlockUndo`) of a block that is there, which follows
    /// `prev`, with their checksum. Does nothing if it has some: a block that is connected again
    /// spends the same coins. They are durable after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`BlockStoreError::Block`] if the block is not there, or follows another, or is the genesis
    /// block, which has none, or if its undo file has no room.
    pub fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), BlockStoreError> {
        let wrong = |what: &str| BlockStoreError::undo(hash, what);
        let Some(entry) = self.entry(hash)? else {
            return Err(wrong("the block is not there"));
        };
        if entry.undo_record().is_some() {
            return Ok(());
        }
        let header = header_of(&self.read_record(&entry, Header::SIZE)?);
        match header.map(|header| header.prev) {
            Some(found) if found == *prev && found != BlockHash::ZERO => {}
            _ => return Err(wrong(&format!("it does not follow block {prev}"))),
        }
        let sum = undo_checksum(prev, spends.undo);
        let mut state = self.state_with_room()?;
        // Another thread may have been faster.
        match state.places.find(hash).copied() {
            Some(entry) if entry.undo_record().is_none() => state.append_undo(&entry, spends, &sum),
            _ => Ok(()),
        }
    }

    /// How many blocks are there, durable or not.
    pub fn block_count(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).places.entries().len()
    }

    /// The lengths of the files, by their numbers.
    pub(crate) fn files(&self) -> Result<Vec<FileLengths>, BlockStoreError> {
        Ok(self.state()?.places.files().to_vec())
    }

    /// What is known of a block that is there and [durable](Self::sync).
    ///
    /// # Errors
    /// [`BlockStoreError::Block`] if it is not there; [`BlockStoreError::Damaged`] if the log does not
    /// tell of it.
    pub fn stored(&self, hash: &BlockHash) -> Result<StoredBlock, BlockStoreError> {
        let missing = || {
            let dir = self.dir.display();
            BlockStoreError::Block(format!("block {hash} is not stored in {dir}; get it first"))
        };
        self.lookup.stored(&self.entry(hash)?.ok_or_else(missing)?)
    }

    fn entry(&self, hash: &BlockHash) -> Result<Option<StoreEntry>, BlockStoreError> {
        Ok(self.state()?.places.find(hash).copied())
    }

    /// Magic, size and the first `length` bytes of a block, which are its header at least.
    fn read_record(&self, entry: &StoreEntry, length: usize) -> Result<Vec<u8>, BlockStoreError> {
        let place = entry.place();
        let (start, length) = (place.offset - RECORD_HEAD, RECORD_HEAD as usize + length);
        let path = self.dir.join(files::file_name(place.file));
        let source = self.state()?.source(place.file, start, length);
        let mut bytes = match source {
            RecordBytes::Bytes(bytes) => bytes,
            RecordBytes::Open(file) => read_at(&path, &file, start, length)?,
            RecordBytes::Closed => {
                let file = File::open(&path).map_err(BlockStoreError::io("open", &path))?;
                read_at(&path, &file, start, length)?
            }
        };
        self.key.apply(&mut bytes, start);
        expect_block(&path, &bytes, self.magic, &entry.hash, place)?;
        Ok(bytes)
    }

    /// The state, after a sync if much waits for one.
    fn state_with_room(&self) -> Result<MutexGuard<'_, BlockStoreState>, BlockStoreError> {
        let state = self.state()?;
        if !state.is_full() {
            return Ok(state);
        }
        drop(state);
        self.sync()?;
        self.state()
    }

    fn state(&self) -> Result<MutexGuard<'_, BlockStoreState>, BlockStoreError> {
        match self.state.lock() {
            Ok(state) if !state.failed => Ok(state),
            _ => Err(self.failed()),
        }
    }

    fn failed(&self) -> BlockStoreError {
        BlockStoreError::Failed { path: self.dir.clone() }
    }
}

impl<'a> NewBlock<'a> {
    fn read(hash: &BlockHash, raw: &'a [u8]) -> Result<Self, BlockStoreError> {
        let wrong = |what: String| BlockStoreError::block(hash, &what);
        let size = u32::try_from(raw.len()).ok().filter(|size| BLOCK_SIZES.contains(size));
        let (Some(size), Some((&header, rest))) = (size, raw.split_first_chunk()) else {
            let what = format!("it has {} bytes, a block has 80 to 4000000", raw.len());
            return Err(wrong(what));
        };
        let found = Header::parse(&header).hash();
        if found != *hash {
            return Err(wrong(format!("the bytes are those of block {found}")));
        }
        let tx_count = Reader::new(rest).compact_size().ok().filter(|count| *count > 0);
        let Some(tx_count) = tx_count.and_then(|count| u32::try_from(count).ok()) else {
            return Err(wrong("it has no transactions".to_owned()));
        };
        Ok(Self { hash: *hash, header, tx_count, size, raw })
    }
}

fn read_at(
    path: &Path,
    file: &File,
    offset: u64,
    length: usize,
) -> Result<Vec<u8>, BlockStoreError> {
    let mut bytes = vec![0; length];
    file.read_exact_at(&mut bytes, offset).map_err(|error| match error.kind() {
        io::ErrorKind::UnexpectedEof => {
            let end = offset + length as u64;
            BlockStoreError::damaged(path, format!("it ends before byte {end}"))
        }
        _ => BlockStoreError::io("read", path)(error),
    })?;
    Ok(bytes)
}

/// The header in the bytes of a record.
fn header_of(record: &[u8]) -> Option<Header> {
    record.get(RECORD_HEAD as usize..)?.first_chunk().map(Header::parse)
}

/// Fails unless a record begins as that of this block does.
fn expect_block(
    path: &Path,
    record: &[u8],
    magic: [u8; 4],
    hash: &BlockHash,
    place: BlockLocation,
) -> Result<(), BlockStoreError> {
    let head = [magic, place.size.to_le_bytes()].concat();
    let header = header_of(record);
    if record.starts_with(&head) && header.is_some_and(|header| header.hash() == *hash) {
        return Ok(());
    }
    let what = format!("block {hash} is not at byte {}", place.offset);
    Err(BlockStoreError::damaged(path, what))
}

/// Why a [`BlockStore`] failed.
#[derive(Debug, thiserror::Error)]
pub enum BlockStoreError {
    /// The system refused.
    #[error("cannot {doing} {path}: {source}; see that the disk has space and is sound")]
    Io {
        /// What was tried: "create", "write", "sync" ...
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// What an earlier start made durable is not there.
    #[error(
        "{path} is damaged: {what}; the blocks stored so far cannot be relied on, remove them and \
         begin anew"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// What is wrong, with height or offset.
        what: String,
    },
    /// The folder has files that this run did not make. They were left alone.
    #[error(
        "{path} has {what}, which this run did not put there; name a folder that is empty or not \
         there yet, or move those files away"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// What was found in it.
        what: String,
    },
    /// A block or its undo data cannot be stored, or are not there.
    #[error("{0}")]
    Block(String),
    /// Something failed before, and what is durable is not known any more.
    #[error(
        "nothing more is stored in {path} since a write to it failed; see that the disk has space \
         and is sound, and start again"
    )]
    Failed {
        /// The folder.
        path: PathBuf,
    },
}

impl BlockStoreError {
    /// The bytes are not those of the block, or there is no room for it.
    fn block(hash: &BlockHash, what: &str) -> Self {
        Self::Block(format!(
            "block {hash} cannot be stored: {what}; get it again, from another source"
        ))
    }

    /// The undo data cannot be those of the block, or there is no room for them.
    fn undo(hash: &BlockHash, what: &str) -> Self {
        Self::Block(format!("the undo data of block {hash} cannot be stored: {what}"))
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// For `map_err`: what was tried with which file.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

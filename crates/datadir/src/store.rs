//! [`BlockStore`]: a `blocks` folder under construction, from blocks in any order.
//!
//! It stores blocks in order of arrival, with undo data for some or all of them, in Bitcoin Core's layout
//! (`docs/formats/blocksdir.md`), but without preallocated space. With an index and the coins, a node can
//! continue from it. A log outside the folder records the position of all data, and proves that the folder is
//! ours. The log never lists data that is not on the disk: after a crash, all synced data is intact, and the
//! next start cuts off the rest.
//!
//! It stores each block once. It checks only the header and the number of transactions, and does not check
//! undo data. It removes nothing, except that blocks stored in chain order can be discarded from the end.

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

/// The length limit of a block file (Core `node/blockstorage.h`, `MAX_BLOCKFILE_SIZE`).
pub(crate) const FILE_BYTES_MAX: u64 = 128 << 20;

/// The coins that a block spends.
#[derive(Debug, Clone, Copy)]
pub struct SpentCoins<'a> {
    /// The block's undo data (Core `undo.h`, `CBlockUndo`).
    pub undo: &'a [u8],
    /// The sum of the coins, to be compared with the undo data when they are read back.
    pub sum: KeyedCoinSum,
}

/// A `blocks` folder under construction. Threads share it by reference. Dropping it loses all data that was
/// not synced.
#[derive(Debug)]
pub struct BlockStore {
    dir: PathBuf,
    magic: [u8; 4],
    key: Obfuscation,
    /// No thread holds this lock while it waits for the disk.
    state: Mutex<BlockStoreState>,
    /// The syncing thread locks this before the state.
    log: Mutex<AppendFile>,
    /// Reads records that are already in the log.
    lookup: LogLookUp,
}

impl BlockStore {
    /// Appends a block, whose header has this hash; does nothing if it is already stored. It is
    /// durable after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`BlockStoreError::Block`] if the bytes cannot be that block. If a file could not be written,
    /// nothing has changed.
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

    /// Returns whether the block is stored, durable or not.
    pub fn has(&self, hash: &BlockHash) -> bool {
        // A search never leaves the state inconsistent, so a panic of another thread does no harm.
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.places.find(hash).is_some()
    }

    /// Returns whether the undo data of a block are stored, durable or not.
    pub fn has_undo(&self, hash: &BlockHash) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.places.find(hash).is_some_and(|entry| entry.undo_record().is_some())
    }

    /// Reads a block, if it is stored, durable or not. Takes no more memory than one block may have, and
    /// accesses the disk only if the block is stored.
    ///
    /// # Errors
    /// [`BlockStoreError::Damaged`] if another block is at its position. Does not check the content after the
    /// header.
    pub fn read(&self, hash: &BlockHash) -> Result<Option<Vec<u8>>, BlockStoreError> {
        let Some(entry) = self.entry(hash)? else { return Ok(None) };
        let mut bytes = self.read_record(&entry, entry.place().size as usize)?;
        bytes.drain(..RECORD_HEAD as usize);
        Ok(Some(bytes))
    }

    /// Makes everything stored so far durable: blocks and undo data first, then the log. Other
    /// threads can read and store meanwhile.
    ///
    /// # Errors
    /// If it fails, the content of the disk is unknown, and every later call that changes something fails
    /// with [`BlockStoreError::Failed`]: drop the store and open the folder again.
    pub fn sync(&self) -> Result<(), BlockStoreError> {
        let mut log = self.log.lock().map_err(|_| self.failed())?;
        let unsynced = self.state()?.take_unsynced()?;
        let done = unsynced.sync(&mut log);
        if done.is_err() {
            // Still under the log's lock, so that no other sync reports success.
            self.state()?.failed = true;
        }
        done
    }

    /// Appends the undo data (Core `undo.h`, `CBlockUndo`) of a stored block, which follows `prev`, with
    /// their checksum. Does nothing if the block already has undo data: when it is connected again, it spends
    /// the same coins. The undo data are durable after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`BlockStoreError::Block`] if the block is not stored, follows another block, or is the genesis
    /// block, which has none; or if its undo file has no room.
    pub fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), BlockStoreError> {
        let wrong = |what: &str| BlockStoreError::undo(hash, what);
        let Some(entry) = self.entry(hash)? else {
            return Err(wrong("the block is not stored"));
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
        // Another thread may have stored them meanwhile.
        match state.places.find(hash).copied() {
            Some(entry) if entry.undo_record().is_none() => state.append_undo(&entry, spends, &sum),
            _ => Ok(()),
        }
    }

    /// The number of stored blocks, durable or not.
    pub fn block_count(&self) -> usize {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).places.entries().len()
    }

    /// The lengths of the files, by number.
    pub(crate) fn files(&self) -> Result<Vec<FileLengths>, BlockStoreError> {
        Ok(self.state()?.places.files().to_vec())
    }

    /// The record of a stored and [durable](Self::sync) block.
    ///
    /// # Errors
    /// [`BlockStoreError::Block`] if the block is not stored; [`BlockStoreError::Damaged`] if the log does
    /// not list it.
    pub fn stored(&self, hash: &BlockHash) -> Result<StoredBlock, BlockStoreError> {
        let missing = || {
            let dir = self.dir.display();
            BlockStoreError::Block(format!("block {hash} is not stored in {dir}"))
        };
        self.lookup.stored(&self.entry(hash)?.ok_or_else(missing)?)
    }

    fn entry(&self, hash: &BlockHash) -> Result<Option<StoreEntry>, BlockStoreError> {
        Ok(self.state()?.places.find(hash).copied())
    }

    /// Reads magic, size and the first `length` bytes of a block, which must include its header.
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

    /// Locks the state; syncs first if too much is waiting for the disk.
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
            let what = format!("it has {} bytes, but a block has 80 to 4000000", raw.len());
            return Err(wrong(what));
        };
        let found = Header::parse(&header).hash();
        if found != *hash {
            return Err(wrong(format!("the bytes are block {found}")));
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

/// Extracts the header from the bytes of a record.
fn header_of(record: &[u8]) -> Option<Header> {
    record.get(RECORD_HEAD as usize..)?.first_chunk().map(Header::parse)
}

/// Fails unless a record begins with the right magic and size, and this block's header.
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
    /// The system failed.
    #[error("cannot {doing} {path}: {source}. Check the disk and its free space")]
    Io {
        /// The operation: "create", "write", "sync" ...
        doing: &'static str,
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// Data that an earlier start made durable is missing.
    #[error(
        "{path} is damaged: {what}. The blocks stored so far are unreliable: remove them, then rerun the command"
    )]
    Damaged {
        /// The file.
        path: PathBuf,
        /// The fault, with height or offset.
        what: String,
    },
    /// The folder has files that this program did not make. It left them unchanged.
    #[error(
        "{path} has {what}, which this sync did not put there: use an empty or new folder, or move those files away"
    )]
    Foreign {
        /// The folder.
        path: PathBuf,
        /// The file or folder found in it.
        what: String,
    },
    /// A block or its undo data cannot be stored, or are not stored.
    #[error("{0}")]
    Block(String),
    /// Something failed before, so the content of the disk is unknown.
    #[error(
        "Apus stores nothing more in {path}, because a write there failed. Check the disk and its free space, then \
         rerun the command"
    )]
    Failed {
        /// The folder.
        path: PathBuf,
    },
}

impl BlockStoreError {
    /// Reports bytes that are not the block, or too many for its file.
    fn block(hash: &BlockHash, what: &str) -> Self {
        Self::Block(format!(
            "block {hash} cannot be stored: {what}. Get the block from another source"
        ))
    }

    /// Reports undo data that cannot belong to the block or have no room.
    fn undo(hash: &BlockHash, what: &str) -> Self {
        Self::Block(format!("the undo data of block {hash} cannot be stored: {what}"))
    }

    pub(crate) fn damaged(path: &Path, what: impl Into<String>) -> Self {
        Self::Damaged { path: path.to_owned(), what: what.into() }
    }

    /// For `map_err`: adds the operation and the file.
    pub(crate) fn io(doing: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing, path: path.to_owned(), source }
    }
}

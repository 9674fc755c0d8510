//! [`BlockStoreState`]: the mutable part of a store, behind one lock.
//!
//! A block and its position are added together or not at all. Their log records wait in memory until the data
//! are on the disk.

use super::log::{self, BlockPlaces, LogRecord, PIECE_BYTES, StoreEntry};
use super::{BlockStoreError, SpentCoins};
use crate::files::{self, BlockLocation, Obfuscation, RECORD_HEAD};
use crate::rev;
use apus_chain::{BlockHash, Header};
use apus_storage::open_or_create;
use std::collections::BTreeMap;
use std::fs::File;
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// The maximum number of open files that wait for a sync.
const UNSYNCED_MAX: usize = 64;

/// The maximum number of whole block files that wait for the disk: a sync never has to wait for much more.
const FILES_BEHIND_MAX: u32 = 2;

/// A block that can be stored: its bytes begin with its header and it has transactions.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewBlock<'a> {
    pub(super) hash: BlockHash,
    pub(super) header: [u8; Header::SIZE],
    pub(super) tx_count: u32,
    pub(super) size: u32,
    pub(super) raw: &'a [u8],
}

/// The mutable part of a store.
#[derive(Debug)]
pub(super) struct BlockStoreState {
    dir: PathBuf,
    magic: [u8; 4],
    key: Obfuscation,
    file_bytes_max: u64,
    pub(super) places: BlockPlaces,
    /// The number of the current block file.
    number: u32,
    blocks: AppendFile,
    /// Files with bytes that may not be on the disk yet.
    unsynced: BTreeMap<PathBuf, Arc<File>>,
    /// The number of block files completed since the last sync.
    files_left: u32,
    /// Whether the folder has new names that may not be on the disk yet.
    new_names: bool,
    /// The records for the log, and the offset at which they will end.
    records: Vec<u8>,
    log_end: u64,
    /// A write failed, so the content of the disk is unknown.
    pub(super) failed: bool,
}

/// The files, names and records that a sync must make durable.
#[derive(Debug)]
pub(super) struct SyncWork {
    files: BTreeMap<PathBuf, Arc<File>>,
    names_of: Option<PathBuf>,
    records: Vec<u8>,
}

/// Where the bytes of a record are.
pub(super) enum RecordBytes {
    /// The buffer; has a copy of the bytes.
    Bytes(Vec<u8>),
    /// An open file.
    Open(Arc<File>),
    /// A file that must be opened.
    Closed,
}

impl BlockStoreState {
    /// Continues from `places` and the end of the log. The files must have at least the lengths in `places`.
    pub(super) fn new(
        dir: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        file_bytes_max: u64,
        places: BlockPlaces,
        log_end: u64,
    ) -> Result<Self, BlockStoreError> {
        let number = places.files().len().saturating_sub(1) as u32;
        let length = places.files().last().map_or(0, |last| last.blocks);
        Ok(Self {
            dir: dir.to_owned(),
            magic,
            key,
            file_bytes_max,
            places,
            number,
            blocks: AppendFile::open(dir.join(files::file_name(number)), length)?,
            unsynced: BTreeMap::new(),
            files_left: 0,
            new_names: true,
            records: Vec::new(),
            log_end,
            failed: false,
        })
    }

    /// Returns whether so much data waits for the disk that a sync should come first.
    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= PIECE_BYTES
            || self.unsynced.len() >= UNSYNCED_MAX
            || self.files_left >= FILES_BEHIND_MAX
    }

    /// Appends a block that is not stored yet.
    pub(super) fn append(&mut self, block: &NewBlock<'_>) -> Result<(), BlockStoreError> {
        self.make_room(block.size)?;
        let offset = self.blocks.end() + RECORD_HEAD;
        let place = BlockLocation { file: self.number, offset, size: block.size };
        if self.places.add_block(block.hash, place, self.log_end).is_none() {
            return Err(BlockStoreError::block(&block.hash, "the log has no room for more blocks"));
        }
        self.blocks.push(&[&self.magic, &block.size.to_le_bytes(), block.raw], self.key);
        self.note(LogRecord::Block(block.header, block.tx_count, place));
        Ok(())
    }

    /// Appends the undo data of a block that has none. Writes them at once, because the blocks with undo data
    /// may be in any file.
    pub(super) fn append_undo(
        &mut self,
        entry: &StoreEntry,
        spends: SpentCoins<'_>,
        sum: &[u8],
    ) -> Result<(), BlockStoreError> {
        let (hash, undo) = (entry.hash, spends.undo);
        let wrong = |what: &str| BlockStoreError::undo(&hash, what);
        let Some(place) = self.places.undo_place(entry, undo.len()) else {
            return Err(wrong("they would end beyond the offsets that Bitcoin Core can store"));
        };
        let at = place.offset - RECORD_HEAD;
        let mut bytes = [&self.magic, &place.size.to_le_bytes()[..], undo, sum].concat();
        self.key.apply(&mut bytes, at);
        let path = self.dir.join(rev::file_name(entry.place().file));
        let file = self.undo_file(&path)?;
        file.write_all_at(&bytes, at).map_err(BlockStoreError::io("write", &path))?;
        if self.places.add_undo(&hash, place, self.log_end).is_none() {
            return Err(wrong("the log has no room for more blocks"));
        }
        self.note(LogRecord::Undo(hash, place, spends.sum));
        Ok(())
    }

    fn undo_file(&mut self, path: &Path) -> Result<Arc<File>, BlockStoreError> {
        if let Some(file) = self.unsynced.get(path) {
            return Ok(Arc::clone(file));
        }
        let open = apus_storage::open_or_create(path, false);
        let file = Arc::new(open.map_err(BlockStoreError::io("open", path))?);
        self.unsynced.insert(path.to_owned(), Arc::clone(&file));
        self.new_names = true;
        Ok(file)
    }

    fn note(&mut self, record: LogRecord) {
        let from = self.records.len();
        record.push(&mut self.records, self.log_end);
        self.log_end += (self.records.len() - from) as u64;
    }

    /// Writes out a full buffer, and begins a new file if a block of `size` bytes would exceed this one's
    /// length limit (Core `node/blockstorage.cpp`, `FindNextBlockPos`).
    fn make_room(&mut self, size: u32) -> Result<(), BlockStoreError> {
        if self.blocks.is_full() {
            self.blocks.write()?;
        }
        let more = RECORD_HEAD + u64::from(size);
        // One block always fits; this matters only in tests with a limit below a block's size.
        if self.blocks.end() + more < self.file_bytes_max.max(more + 1) {
            return Ok(());
        }
        self.blocks.write()?;
        self.retire();
        self.files_left += 1;
        let next = AppendFile::open(self.dir.join(files::file_name(self.number + 1)), 0)?;
        (self.blocks, self.number, self.new_names) = (next, self.number + 1, true);
        Ok(())
    }

    /// Notes that the block file must be synced.
    fn retire(&mut self) {
        if let Some(file) = self.blocks.take_dirty() {
            self.unsynced.insert(self.blocks.path().to_owned(), file);
        }
    }

    /// Hands over the data that a sync must make durable, and marks it as synced.
    pub(super) fn take_unsynced(&mut self) -> Result<SyncWork, BlockStoreError> {
        self.blocks.write()?;
        self.retire();
        self.files_left = 0;
        Ok(SyncWork {
            files: mem::take(&mut self.unsynced),
            names_of: mem::take(&mut self.new_names).then(|| self.dir.clone()),
            records: mem::take(&mut self.records),
        })
    }

    /// Locates `length` obfuscated bytes from `offset` of block file `number`.
    pub(super) fn source(&self, number: u32, offset: u64, length: usize) -> RecordBytes {
        if number != self.number {
            let open = self.unsynced.get(&self.dir.join(files::file_name(number)));
            return open.map_or(RecordBytes::Closed, |file| RecordBytes::Open(Arc::clone(file)));
        }
        match self.blocks.buffered(offset, length) {
            Some(bytes) => RecordBytes::Bytes(bytes.to_vec()),
            None => RecordBytes::Open(self.blocks.handle()),
        }
    }
}

impl SyncWork {
    /// Syncs blocks, undo data and names before it writes the log, so that the log lists no data that a crash
    /// could remove.
    pub(super) fn sync(self, log: &mut AppendFile) -> Result<(), BlockStoreError> {
        for (path, file) in self.files {
            file.sync_data().map_err(BlockStoreError::io("sync", &path))?;
        }
        if let Some(dir) = self.names_of {
            sync_names(&dir)?;
        }
        for piece in self.records.chunks(log::PIECE_BYTES) {
            log.push(&[piece], Obfuscation::NONE);
            log.sync()?;
        }
        Ok(())
    }
}

/// The number of bytes written with one call. The buffer has room for this much and one record.
pub(super) const BUFFER_BYTES: usize = 1 << 20;

/// A buffered writer that appends to a file.
///
/// It writes bytes at their own offset, so a failed write can be retried without duplicates. Nothing is
/// durable before [`sync`](AppendFile::sync).
#[derive(Debug)]
pub(super) struct AppendFile {
    path: PathBuf,
    file: Arc<File>,
    /// The number of bytes written to the system.
    written: u64,
    buffer: Vec<u8>,
    /// Whether the system has bytes that may not be on the disk yet.
    dirty: bool,
}

impl AppendFile {
    /// Opens a file, creating it if it is missing, truncates it to `length` and continues there.
    /// The file must have at least that length.
    pub(super) fn open(path: PathBuf, length: u64) -> Result<Self, BlockStoreError> {
        Self::open_with(false, path, length)
    }

    /// Like [`open`](Self::open), but no other user can read a file that it creates.
    pub(super) fn open_private(path: PathBuf, length: u64) -> Result<Self, BlockStoreError> {
        Self::open_with(true, path, length)
    }

    fn open_with(private: bool, path: PathBuf, length: u64) -> Result<Self, BlockStoreError> {
        let file = open_or_create(&path, private).map_err(BlockStoreError::io("open", &path))?;
        file.set_len(length).map_err(BlockStoreError::io("shorten", &path))?;
        Ok(Self { path, file: Arc::new(file), written: length, buffer: Vec::new(), dirty: true })
    }

    pub(super) fn path(&self) -> &Path {
        &self.path
    }

    /// The length of the file in bytes, including the buffer.
    pub(super) fn end(&self) -> u64 {
        self.written + self.buffer.len() as u64
    }

    /// The file, for readers; without the buffer.
    pub(super) fn handle(&self) -> Arc<File> {
        Arc::clone(&self.file)
    }

    /// Returns `length` bytes from `offset` on in their final form, if all of them are in the buffer.
    pub(super) fn buffered(&self, offset: u64, length: usize) -> Option<&[u8]> {
        let from = usize::try_from(offset.checked_sub(self.written)?).ok()?;
        self.buffer.get(from..from.checked_add(length)?)
    }

    /// Returns the file if it may have bytes that are not on the disk yet, and marks it as synced: the caller
    /// syncs it.
    pub(super) fn take_dirty(&mut self) -> Option<Arc<File>> {
        std::mem::take(&mut self.dirty).then(|| self.handle())
    }

    pub(super) fn is_full(&self) -> bool {
        self.buffer.len() >= BUFFER_BYTES
    }

    /// Appends bytes, obfuscated. Cannot fail: the caller makes room first, with [`write`](Self::write) if
    /// the buffer [is full](Self::is_full).
    pub(super) fn push(&mut self, parts: &[&[u8]], key: Obfuscation) {
        let (at, from) = (self.end(), self.buffer.len());
        parts.iter().for_each(|part| self.buffer.extend_from_slice(part));
        key.apply(&mut self.buffer[from..], at);
    }

    /// Writes the buffer to the system.
    pub(super) fn write(&mut self) -> Result<(), BlockStoreError> {
        if !self.buffer.is_empty() {
            self.dirty = true;
            let write = self.file.write_all_at(&self.buffer, self.written);
            write.map_err(BlockStoreError::io("write", &self.path))?;
            self.written = self.end();
            self.buffer.clear();
        }
        Ok(())
    }

    /// Makes all bytes and the length durable.
    pub(super) fn sync(&mut self) -> Result<(), BlockStoreError> {
        self.write()?;
        if self.dirty {
            self.file.sync_data().map_err(BlockStoreError::io("sync", &self.path))?;
            self.dirty = false;
        }
        Ok(())
    }
}

/// Makes the names in a folder durable.
pub(super) fn sync_names(folder: &Path) -> Result<(), BlockStoreError> {
    apus_storage::place::sync_names_of(folder).map_err(BlockStoreError::io("sync", folder))
}

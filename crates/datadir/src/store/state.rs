//! [`State`]: what changes while blocks are stored, behind one lock.
//!
//! A block and its place are taken together or not at all. What the log is to say of them waits
//! here until they are on the disk.

use super::append::{AppendFile, sync_names};
use super::log::{self, PIECE_BYTES, Record};
use super::places::{Entry, Places};
use super::{BlockStoreError, SpentCoins};
use crate::files::{self, BlockLocation, RECORD_HEAD};
use crate::obfuscation::Obfuscation;
use crate::rev;

use apus_chain::{BlockHash, Header};
use std::collections::BTreeMap;
use std::fs::File;
use std::mem;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// So many files may be open because they have to be synced.
const UNSYNCED_MAX: usize = 64;

/// So many whole block files may be behind the disk: a sync never has to wait for much more.
const FILES_BEHIND_MAX: u32 = 2;

/// A block that can be stored: its bytes begin with its header and have transactions.
#[derive(Debug, Clone, Copy)]
pub(super) struct NewBlock<'a> {
    pub(super) hash: BlockHash,
    pub(super) header: [u8; Header::SIZE],
    pub(super) tx_count: u32,
    pub(super) size: u32,
    pub(super) raw: &'a [u8],
}

/// See the module.
#[derive(Debug)]
pub(super) struct State {
    dir: PathBuf,
    magic: [u8; 4],
    key: Obfuscation,
    file_bytes_max: u64,
    pub(super) places: Places,
    /// Number of the block file that is written to.
    number: u32,
    blocks: AppendFile,
    /// Files that the system has, but the disk need not have yet.
    unsynced: BTreeMap<PathBuf, Arc<File>>,
    /// How many block files were left since the last sync.
    files_left: u32,
    /// Whether the folder has names that need not be on the disk yet.
    new_names: bool,
    /// What is to go into the log, and where that will end.
    records: Vec<u8>,
    log_end: u64,
    /// A write failed: what is on the disk is unknown.
    pub(super) failed: bool,
}

/// What a sync has to do.
#[derive(Debug)]
pub(super) struct Unsynced {
    files: BTreeMap<PathBuf, Arc<File>>,
    names_of: Option<PathBuf>,
    records: Vec<u8>,
}

/// Where bytes of a file are to be had.
pub(super) enum Source {
    /// They were in the buffer.
    Bytes(Vec<u8>),
    /// In a file that is open.
    Open(Arc<File>),
    /// In a file that has to be opened.
    Closed,
}

impl State {
    /// Goes on behind what `places` and the log's end say. Files must be as long at least.
    pub(super) fn new(
        dir: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        file_bytes_max: u64,
        places: Places,
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

    /// Whether so much waits for the disk that a sync should come first.
    pub(super) fn is_full(&self) -> bool {
        self.records.len() >= PIECE_BYTES
            || self.unsynced.len() >= UNSYNCED_MAX
            || self.files_left >= FILES_BEHIND_MAX
    }

    /// Appends a block that is not there yet.
    pub(super) fn append(&mut self, block: &NewBlock<'_>) -> Result<(), BlockStoreError> {
        self.make_room(block.size)?;
        let offset = self.blocks.end() + RECORD_HEAD;
        let place = BlockLocation { file: self.number, offset, size: block.size };
        if self.places.add_block(block.hash, place, self.log_end).is_none() {
            let what = "no log can tell of so many blocks".to_owned();
            return Err(BlockStoreError::Block { hash: block.hash, what });
        }
        self.blocks.push(&[&self.magic, &block.size.to_le_bytes(), block.raw], self.key);
        self.note(Record::Block(block.header, block.tx_count, place));
        Ok(())
    }

    /// Appends the undo data of a block that has none. They are with the system at once: the blocks
    /// that have some lie anywhere.
    pub(super) fn append_undo(
        &mut self,
        entry: &Entry,
        spends: SpentCoins<'_>,
        sum: &[u8],
    ) -> Result<(), BlockStoreError> {
        let (hash, undo) = (entry.hash, spends.undo);
        let wrong = |what: &str| BlockStoreError::Undo { hash, what: what.to_owned() };
        let Some(place) = self.places.undo_place(entry, undo.len()) else {
            return Err(wrong("they would end where Bitcoin Core no longer finds them"));
        };
        let at = place.offset - RECORD_HEAD;
        let mut bytes = [&self.magic, &place.size.to_le_bytes()[..], undo, sum].concat();
        self.key.apply(&mut bytes, at);
        let path = self.dir.join(rev::file_name(entry.place().file));
        let file = self.undo_file(&path)?;
        file.write_all_at(&bytes, at).map_err(BlockStoreError::io("write", &path))?;
        if self.places.add_undo(&hash, place, self.log_end).is_none() {
            return Err(wrong("no log can tell of so many blocks"));
        }
        self.note(Record::Undo(hash, place, spends.sum));
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

    fn note(&mut self, record: Record) {
        let from = self.records.len();
        record.push(&mut self.records, self.log_end);
        self.log_end += (self.records.len() - from) as u64;
    }

    /// Empties a full buffer, and begins a new file if a block of `size` bytes would make this one
    /// too long (Core `node/blockstorage.cpp`, `FindNextBlockPos`).
    fn make_room(&mut self, size: u32) -> Result<(), BlockStoreError> {
        if self.blocks.is_full() {
            self.blocks.write()?;
        }
        let more = RECORD_HEAD + u64::from(size);
        // One block always fits: matters only for files shorter than a block.
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

    /// Remembers that the block file has to be synced.
    fn retire(&mut self) {
        if let Some(file) = self.blocks.take_dirty() {
            self.unsynced.insert(self.blocks.path().to_owned(), file);
        }
    }

    /// Hands over what has to be made durable. It counts as done.
    pub(super) fn take_unsynced(&mut self) -> Result<Unsynced, BlockStoreError> {
        self.blocks.write()?;
        self.retire();
        self.files_left = 0;
        Ok(Unsynced {
            files: mem::take(&mut self.unsynced),
            names_of: mem::take(&mut self.new_names).then(|| self.dir.clone()),
            records: mem::take(&mut self.records),
        })
    }

    /// Where `length` bytes from `offset` of block file `number` are, obfuscated.
    pub(super) fn source(&self, number: u32, offset: u64, length: usize) -> Source {
        if number != self.number {
            let open = self.unsynced.get(&self.dir.join(files::file_name(number)));
            return open.map_or(Source::Closed, |file| Source::Open(Arc::clone(file)));
        }
        match self.blocks.buffered(offset, length) {
            Some(bytes) => Source::Bytes(bytes.to_vec()),
            None => Source::Open(self.blocks.handle()),
        }
    }
}

impl Unsynced {
    /// Blocks, undo data and names first, then the log, so that it tells of nothing that a crash
    /// could take away.
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

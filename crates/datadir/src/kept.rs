//! [`KeptBlocks`]: a `blocks` folder that is being made of blocks in any order.
//!
//! Blocks lie as they came and the undo data of some of them beside, as Bitcoin Core lays them
//! (`docs/formats/blocksdir.md`), so that with an index and the coins a node can go on from it. A
//! log outside the folder says what lies where, and that the folder is ours. It tells of nothing
//! that is not on the disk: after a crash all that was synced is there, and what lies beyond is cut
//! off by the next start.
//!
//! Each block is kept once. Blocks are not checked beyond header and number of transactions, undo
//! data not at all. Nothing is ever removed. [`BlockStore`](crate::BlockStore) is for blocks that
//! come in order.

mod error;
mod log;
mod open;
mod places;
mod state;
#[cfg(test)]
mod tests;

pub use error::KeptBlocksError;

use crate::files::{self, BLOCK_SIZES, BlockLocation, RECORD_HEAD};
use crate::index::{IndexWriteError, IndexedBlocks, write_block_index};
use crate::obfuscation::Obfuscation;
use crate::store::{AppendFile, BlockStoreError, SpentCoins};
use apus_chain::{BlockHash, Header, KeyedCoinSum, Reader, undo_checksum};
use apus_storage::Storage;
use places::Entry;
use state::{NewBlock, Source, State};
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module. Threads share it by reference. What was not synced when it is dropped is lost.
#[derive(Debug)]
pub struct KeptBlocks {
    dir: PathBuf,
    log_path: PathBuf,
    magic: [u8; 4],
    key: Obfuscation,
    /// Never locked while the disk is waited for.
    state: Mutex<State>,
    /// Locked by the thread that syncs, before the state.
    log: Mutex<AppendFile>,
}

impl KeptBlocks {
    /// Appends a block, whose header has this hash, or does nothing if it is there. It is durable
    /// after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`KeptBlocksError::Block`] if the bytes cannot be that block. Where a file could not be
    /// written, nothing was changed.
    pub fn put(&self, hash: &BlockHash, raw: &[u8]) -> Result<(), KeptBlocksError> {
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
    pub fn read(&self, hash: &BlockHash) -> Result<Option<Vec<u8>>, KeptBlocksError> {
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
    /// fails with [`KeptBlocksError::Failed`]: drop it and open the folder anew.
    pub fn sync(&self) -> Result<(), KeptBlocksError> {
        let mut log = self.log.lock().map_err(|_| self.failed())?;
        let unsynced = self.state()?.take_unsynced()?;
        let done = unsynced.sync(&mut log);
        if done.is_err() {
            // While the log is locked, so that no other sync reports a success.
            self.state()?.failed = true;
        }
        Ok(done?)
    }

    /// Appends the undo data (Core `undo.h`, `CBlockUndo`) of a block that is there, which follows
    /// `prev`, with their checksum. Does nothing if it has some: a block that is connected again
    /// spends the same coins. They are durable after the next [`sync`](Self::sync).
    ///
    /// # Errors
    /// [`KeptBlocksError::Undo`] if the block is not there, or follows another, or is the genesis
    /// block, which has none, or if its undo file has no room.
    pub fn put_undo(
        &self,
        hash: &BlockHash,
        prev: &BlockHash,
        spends: SpentCoins<'_>,
    ) -> Result<(), KeptBlocksError> {
        let wrong = |what: String| KeptBlocksError::Undo { hash: *hash, what };
        let Some(entry) = self.entry(hash)? else {
            return Err(wrong("the block is not there".to_owned()));
        };
        if entry.undo_record().is_some() {
            return Ok(());
        }
        let header = header_of(&self.read_record(&entry, Header::SIZE)?);
        match header.map(|header| header.prev) {
            Some(found) if found == *prev && found != BlockHash::ZERO => {}
            _ => return Err(wrong(format!("it does not follow block {prev}"))),
        }
        let sum = undo_checksum(prev, spends.undo);
        let mut state = self.state_with_room()?;
        // Another thread may have been faster.
        match state.places.find(hash).copied() {
            Some(entry) if entry.undo_record().is_none() => state.append_undo(&entry, spends, &sum),
            _ => Ok(()),
        }
    }

    /// Makes all durable and writes the block index of one chain into an empty folder, which is to
    /// be `index` in this one. `chain` gives its blocks from the genesis block to the tip, all of
    /// them fully validated. What is kept beside the chain stays in the files and is not in the
    /// index. Takes some 90 bytes of memory a block while it works.
    ///
    /// # Errors
    /// [`KeptBlocksError::Missing`] if a block of the chain is not there;
    /// [`IndexWriteError::Chain`] if one does not follow the one before it.
    pub fn write_index(
        &self,
        folder: &dyn Storage,
        chain: &mut dyn Iterator<Item = BlockHash>,
    ) -> Result<(), KeptBlocksError> {
        let mut entries: Vec<Entry> = Vec::new();
        for (height, hash) in (0..).zip(chain) {
            let state = self.state()?;
            let entry = state.places.find(&hash);
            let entry = *entry.ok_or(KeptBlocksError::Missing { height, hash })?;
            if entries.len() == state.places.entries().len() {
                // Some block is in it twice.
                return Err(IndexWriteError::Chain { height }.into());
            }
            entries.push(entry);
        }
        let files = self.state()?.places.files().to_vec();
        self.sync()?;
        let log = log::Lookup::open(&self.log_path)?;
        let stored_at = &mut |height: u32| log.stored(&entries[height as usize]);
        let kept = IndexedBlocks::InAnyOrder { stored_at, files: &files };
        Ok(write_block_index(folder, entries.len() as u32, kept)?)
    }

    /// The sums of the coins that the blocks of a chain spent, as they were put with their undo data, by
    /// height; none where a block or its undo data are not there. Makes all durable before.
    pub fn spent(
        &self,
        chain: &mut dyn Iterator<Item = BlockHash>,
    ) -> Result<Vec<Option<KeyedCoinSum>>, KeptBlocksError> {
        self.sync()?;
        let log = log::Lookup::open(&self.log_path)?;
        let of = |hash| {
            let Some(entry) = self.entry(&hash)? else { return Ok(None) };
            let stored = log.stored(&entry)?;
            Ok(stored.undo.map(|_| stored.spent))
        };
        chain.map(of).collect()
    }

    fn entry(&self, hash: &BlockHash) -> Result<Option<Entry>, KeptBlocksError> {
        Ok(self.state()?.places.find(hash).copied())
    }

    /// Magic, size and the first `length` bytes of a block, which are its header at least.
    fn read_record(&self, entry: &Entry, length: usize) -> Result<Vec<u8>, KeptBlocksError> {
        let place = entry.place();
        let (start, length) = (place.offset - RECORD_HEAD, RECORD_HEAD as usize + length);
        let path = self.dir.join(files::file_name(place.file));
        let source = self.state()?.source(place.file, start, length);
        let mut bytes = match source {
            Source::Bytes(bytes) => bytes,
            Source::Open(file) => read_at(&path, &file, start, length)?,
            Source::Closed => {
                let file = File::open(&path).map_err(BlockStoreError::io("open", &path))?;
                read_at(&path, &file, start, length)?
            }
        };
        self.key.apply(&mut bytes, start);
        expect_block(&path, &bytes, self.magic, &entry.hash, place)?;
        Ok(bytes)
    }

    /// The state, after a sync if much waits for one.
    fn state_with_room(&self) -> Result<MutexGuard<'_, State>, KeptBlocksError> {
        let state = self.state()?;
        if !state.is_full() {
            return Ok(state);
        }
        drop(state);
        self.sync()?;
        self.state()
    }

    fn state(&self) -> Result<MutexGuard<'_, State>, KeptBlocksError> {
        match self.state.lock() {
            Ok(state) if !state.failed => Ok(state),
            _ => Err(self.failed()),
        }
    }

    fn failed(&self) -> KeptBlocksError {
        KeptBlocksError::Failed { path: self.dir.clone() }
    }
}

impl<'a> NewBlock<'a> {
    fn read(hash: &BlockHash, raw: &'a [u8]) -> Result<Self, KeptBlocksError> {
        let wrong = |what: String| KeptBlocksError::Block { hash: *hash, what };
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

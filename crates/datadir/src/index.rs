//! [`read_index`]: reads Core's block index, `blocks/index`: every header that a node knows and the position
//! of its block.
//!
//! Apus uses it as a hint and never trusts it: a node or another program wrote it. Check headers and blocks
//! found through it like any others, and look its positions up with
//! [`BlockFiles::locate`](crate::BlockFiles::locate). Reading writes nothing and takes no lock.

#[cfg(test)]
mod tests;
mod write;

pub use write::{ChainBlock, IndexWriteError, write_block_index};

use crate::error::IndexError;
use crate::leveldb::{self, Database};
use apus_chain::{BlockHash, Header, ReadError, Reader, write_varint};
use core::ops::ControlFlow;
use std::collections::BTreeMap;
use std::path::Path;

/// The entry has the position of a block (Core `chain.h`, `BLOCK_HAVE_DATA`).
pub const STATUS_HAVE_DATA: u32 = 8;
/// The entry has the position of undo data (Core `chain.h`, `BLOCK_HAVE_UNDO`).
pub const STATUS_HAVE_UNDO: u32 = 16;
/// The block, or one before it, was found invalid (Core `chain.h`, `BLOCK_FAILED_MASK`).
pub const STATUS_FAILED: u32 = 32 | 64;

/// A witness-aware node stored the block (Core `chain.h`, `BLOCK_OPT_WITNESS`). Core requires it
/// from segwit's activation on and accepts it before.
pub const STATUS_OPT_WITNESS: u32 = 128;
/// A block below a snapshot that an earlier version of Core loaded, assumed valid (Core `chain.h`,
/// `BLOCK_STATUS_RESERVED`).
pub const STATUS_ASSUMED: u32 = 256;

/// The header is valid (Core `chain.h`, `BLOCK_VALID_TREE`).
pub const VALID_TREE: u32 = 2;
/// All transactions were seen and are well-formed (Core `chain.h`, `BLOCK_VALID_TRANSACTIONS`). The
/// genesis block stays at this level, because Core never connects it.
pub const VALID_TRANSACTIONS: u32 = 3;
/// The block was connected (Core `chain.h`, `BLOCK_VALID_CHAIN`).
pub const VALID_CHAIN: u32 = 4;
/// The block was connected and its scripts were valid, or assumed valid (Core `chain.h`,
/// `BLOCK_VALID_SCRIPTS`).
pub const VALID_SCRIPTS: u32 = 5;
/// The bits of a status that state how far a block was validated (Core `chain.h`,
/// `BLOCK_VALID_MASK`).
pub const VALID_MASK: u32 = 7;

/// The first byte of the keys of blocks (Core `node/blockstorage.cpp`, `DB_BLOCK_INDEX`).
const KEY_BLOCK: u8 = b'b';
/// The first byte of the keys of flags (`DB_FLAG`).
const KEY_FLAG: u8 = b'F';
/// The key that exists while a node rebuilds the index (`DB_REINDEX_FLAG`).
const KEY_REINDEXING: u8 = b'R';
/// The first byte of the keys of block files (`DB_BLOCK_FILES`).
const KEY_FILE: u8 = b'f';
/// The key of the last block file's number (`DB_LAST_BLOCK`).
const KEY_LAST_FILE: u8 = b'l';
/// The key of the database's obfuscation key, a name prefixed with its length (Core `dbwrapper.h`,
/// `OBFUSCATION_KEY`).
const KEY_OBFUSCATION: &[u8] = b"\x0e\0obfuscate_key";
/// The name of the flag of a node that has removed block files, prefixed with its length.
const PRUNED: &[u8] = b"\x10prunedblockfiles";

/// The index's facts about one block.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct IndexEntry {
    /// The block's hash, according to the key.
    pub hash: BlockHash,
    /// The header; for [a longer one](Header::is_extended), its first bytes, which do not hash to
    /// `hash`.
    pub header: [u8; 80],
    /// The block's height.
    pub height: u32,
    /// How far the block was validated and what is stored, as flags of Core's `BlockStatus`.
    pub status: u32,
    /// The number of transactions in the block; 0 if it never arrived.
    pub tx_count: u32,
    /// The file number and offset of the block, if it is stored.
    pub data: Option<(u32, u64)>,
    /// The file number and offset of its undo data, if they are stored.
    pub undo: Option<(u32, u64)>,
}

impl IndexEntry {
    /// How far the block was validated: [`VALID_SCRIPTS`] if it was connected.
    pub const fn validity(&self) -> u32 {
        self.status & VALID_MASK
    }
}

/// Reads the block index in the folder `index` of `blocksdir` in key order, by hash, so heights come in
/// practically random order. `visit` may stop it.
pub fn read_index(
    blocksdir: &Path,
    visit: &mut dyn FnMut(IndexEntry) -> ControlFlow<()>,
) -> Result<(), IndexError> {
    let dir = blocksdir.join("index");
    Database::open(&dir)?.for_each(&mut |key, value| {
        let entry = entry(&dir, key, value)?;
        Ok(entry.map_or(ControlFlow::Continue(()), &mut *visit))
    })
}

/// Like [`read_index`], but verifies every checksum, including checksums that only look-ups need.
/// Also returns the rest of the index, from the same read, because a running node may change all of
/// it meanwhile.
pub fn read_whole_index(
    blocksdir: &Path,
    visit: &mut dyn FnMut(IndexEntry),
) -> Result<IndexRest, IndexError> {
    let dir = blocksdir.join("index");
    let mut rest = IndexRest::default();
    Database::open(&dir)?.with_filters().for_each(&mut |key, value| {
        match entry(&dir, key, value)? {
            Some(entry) => visit(entry),
            // Core creates no such key for this database, but applies one that it finds (`dbwrapper.cpp`,
            // `CDBWrapper::CDBWrapper`).
            None if key == KEY_OBFUSCATION && value.iter().skip(1).any(|&byte| byte != 0) => {
                let what = "it has an obfuscation key, with which a node reads all entries wrongly";
                return Err(IndexError::corrupt(&dir, 0, what));
            }
            None => rest.take(key, value),
        }
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(rest)
}

/// Checks that the files of the block index in the folder `index` of `blocksdir` exist and fit
/// together, without reading the content of its tables. Takes a second, regardless of its size.
pub fn check_index_files(blocksdir: &Path) -> Result<(), IndexError> {
    leveldb::check_files(&blocksdir.join("index"))
}

/// Parses a block's entry; `None` if the key is another kind of key.
fn entry(dir: &Path, key: &[u8], value: &[u8]) -> Result<Option<IndexEntry>, IndexError> {
    let Some((&KEY_BLOCK, hash)) = key.split_first() else { return Ok(None) };
    let Ok(hash) = <[u8; 32]>::try_from(hash) else {
        return Err(IndexError::corrupt(dir, 0, "a block's key is not a hash"));
    };
    let hash = BlockHash(hash);
    let entry = parse(hash, value).map_err(|error| IndexError::Entry {
        path: dir.to_owned(),
        hash,
        what: error.to_string(),
    })?;
    Ok(Some(entry))
}

/// The contents of an index besides its blocks.
#[derive(Debug, Clone, Default)]
pub struct IndexRest {
    /// Flags of the whole node.
    pub flags: IndexFlags,
    /// The number of the last block file; `None` if it is missing or unreadable.
    pub last_file: Option<i32>,
    /// The records of block files, by number; `None` for a record that a node could not read.
    pub files: BTreeMap<u32, Option<FileInfo>>,
}

impl IndexRest {
    fn take(&mut self, key: &[u8], value: &[u8]) {
        let number = |bytes: &[u8]| Some(i32::from_le_bytes(*bytes.first_chunk()?));
        match key.split_first() {
            Some((&KEY_FILE, file)) if file.len() == 4 => {
                if let Some(file) = number(file).and_then(|file| file.try_into().ok()) {
                    self.files.insert(file, FileInfo::read(value));
                }
            }
            Some((&KEY_LAST_FILE, [])) => self.last_file = number(value),
            _ => self.flags.take(key, value),
        }
    }
}

/// An index's flags for the whole node (Core `node/blockstorage.cpp`, `BlockTreeDB`).
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct IndexFlags {
    /// The node has removed block files.
    pub pruned: bool,
    /// The node is rebuilding the index.
    pub reindexing: bool,
}

/// Reads the flags of the block index in the folder `index` of `blocksdir`.
pub fn read_index_flags(blocksdir: &Path) -> Result<IndexFlags, IndexError> {
    let dir = blocksdir.join("index");
    let mut flags = IndexFlags::default();
    Database::open(&dir)?.for_each(&mut |key, value| {
        // All flags sort before the blocks, so stop there.
        if key.first() == Some(&KEY_BLOCK) {
            return Ok(ControlFlow::Break(()));
        }
        flags.take(key, value);
        Ok(ControlFlow::Continue(()))
    })?;
    Ok(flags)
}

impl IndexFlags {
    fn take(&mut self, key: &[u8], value: &[u8]) {
        match key.split_first() {
            Some((&KEY_FLAG, name)) if name == PRUNED => self.pruned = value == b"1",
            Some((&KEY_REINDEXING, _)) => self.reindexing = true,
            _ => {}
        }
    }
}

/// Parses an entry (Core `chain.h`, `CDiskBlockIndex`). Its first number, the version of the node that wrote
/// it, no longer has a meaning.
fn parse(hash: BlockHash, value: &[u8]) -> Result<IndexEntry, ReadError> {
    let mut reader = Reader::new(value);
    let _version = reader.varint()?;
    let height = number(&mut reader, i32::MAX as u64)?;
    let status = number(&mut reader, u64::from(u32::MAX))?;
    let tx_count = number(&mut reader, u64::from(u32::MAX))?;
    let (has_data, has_undo) = (status & STATUS_HAVE_DATA != 0, status & STATUS_HAVE_UNDO != 0);
    let mut file = 0;
    if has_data || has_undo {
        file = number(&mut reader, i32::MAX as u64)?;
    }
    let mut place = |has: bool| -> Result<Option<(u32, u64)>, ReadError> {
        if !has {
            return Ok(None);
        }
        let offset = number(&mut reader, u64::from(u32::MAX))?;
        Ok(Some((file, u64::from(offset))))
    };
    let (data, undo) = (place(has_data)?, place(has_undo)?);
    let header = *reader.array()?;
    if reader.remaining() > 0 && Header::parse(&header).is_extended() {
        reader.take(Header::EXTENDED_SIZE - Header::SIZE)?;
    }
    reader.finish()?;
    Ok(IndexEntry { hash, header, height, status, tx_count, data, undo })
}

/// Reads a number of at most `limit`, which fits 32 bits.
fn number(reader: &mut Reader<'_>, limit: u64) -> Result<u32, ReadError> {
    let offset = reader.position();
    let value = reader.varint()?;
    u32::try_from(value).ok().filter(|_| value <= limit).ok_or(ReadError::TooLarge {
        offset,
        value,
        limit,
    })
}

/// Core's record of a block file and its undo file (`node/blockstorage.h`, `CBlockFileInfo`).
///
/// A node relies on it: if a size is too small, the node overwrites blocks; if the height range is too
/// narrow, a pruning node removes blocks that it needs.
#[derive(Default, Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileInfo {
    /// The number of blocks in the file.
    pub blocks: u32,
    /// Bytes of the block file that are in use.
    pub size: u64,
    /// Bytes of the undo file that are in use.
    pub undo_size: u64,
    /// The lowest height of a block.
    pub height_first: u32,
    /// The highest height of a block.
    pub height_last: u32,
    /// The earliest time of a header.
    pub time_first: u64,
    /// The latest time of a header.
    pub time_last: u64,
}

impl FileInfo {
    /// Adds a block to the counts and ranges, but not its bytes (Core `CBlockFileInfo::AddBlock`).
    pub fn add(&mut self, height: u32, time: u32) {
        let time = u64::from(time);
        if self.blocks == 0 {
            (self.height_first, self.time_first) = (height, time);
        }
        self.blocks = self.blocks.saturating_add(1);
        self.height_first = self.height_first.min(height);
        self.height_last = self.height_last.max(height);
        self.time_first = self.time_first.min(time);
        self.time_last = self.time_last.max(time);
    }

    fn write(&self, out: &mut Vec<u8>) {
        let heights = [self.height_first, self.height_last].map(u64::from);
        let sizes = [u64::from(self.blocks), self.size, self.undo_size];
        for number in sizes.iter().chain(&heights).chain(&[self.time_first, self.time_last]) {
            write_varint(out, *number);
        }
    }

    /// Parses a record; `None` if a node could not. Ignores extra bytes, like a node.
    fn read(value: &[u8]) -> Option<Self> {
        let mut reader = Reader::new(value);
        let mut small = [0; 5];
        for number in &mut small {
            *number = u32::try_from(reader.varint().ok()?).ok()?;
        }
        let [blocks, size, undo_size, height_first, height_last] = small;
        let (time_first, time_last) = (reader.varint().ok()?, reader.varint().ok()?);
        let (size, undo_size) = (size.into(), undo_size.into());
        Some(Self { blocks, size, undo_size, height_first, height_last, time_first, time_last })
    }
}

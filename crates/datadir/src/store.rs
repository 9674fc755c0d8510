//! [`BlockStore`]: a `blocks` folder that is being made, block by block in ascending height, from the
//! genesis block or, for a node that prunes, from a later one.
//!
//! Blocks, undo data and key lie as Bitcoin Core lays them (`docs/formats/blocksdir.md`), but for
//! space that Core takes ahead. Beside the folder a file of [positions](BlockPositions) says what
//! lies where: the block index is made of it at the end. What that file tells is in the folder,
//! whenever the world ends; what is in the folder beyond is cut off by the next start.
//!
//! Blocks and undo data are not looked into, and nothing that was written is read back.

mod append;
mod error;
mod layout;
mod positions;
#[cfg(test)]
mod tests;

pub use error::BlockStoreError;
pub use positions::{BlockPositions, StoredBlock, UndoLocation};

use crate::files::{self, BLOCK_SIZES, BlockLocation, RECORD_HEAD};
use crate::obfuscation::Obfuscation;
use crate::rev;
pub(crate) use append::{AppendFile, sync_names};
use apus_chain::{BlockHash, Header, KeyedCoinSum, undo_checksum};
use core::ops::Range;
use layout::Layout;
pub(crate) use layout::{expect_key, expect_length};
use std::fs;
use std::path::{Path, PathBuf};

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

/// See the module. After an error it holds what it held before, or the disk has failed: drop it,
/// and open the folder anew.
#[derive(Debug)]
pub struct BlockStore {
    dir: PathBuf,
    magic: [u8; 4],
    key: Obfuscation,
    file_bytes_max: u64,
    next_height: u32,
    /// Number of the files that are written to.
    number: u32,
    blocks: AppendFile,
    undo: AppendFile,
    positions: AppendFile,
    /// Whether the folder has names that need not be on the disk yet.
    new_names: bool,
}

impl BlockStore {
    /// Makes the folder `dir` and the file of positions `log`, or goes on with those of an earlier
    /// start: keeps the blocks of the heights `keep`, and removes what lies behind. The first height is
    /// that of the first block that the folder ever holds. `magic` begins each record; `key` is for all
    /// files of the folder but `log`.
    ///
    /// Removes block and undo files of `dir` that are not among those kept, all if `keep` is empty.
    ///
    /// # Errors
    /// [`BlockStoreError::Damaged`] if fewer blocks are there, or another chain's, under another key,
    /// or from another height on; nothing was changed then.
    pub fn open(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        keep: Range<u32>,
    ) -> Result<Self, BlockStoreError> {
        Self::open_with(dir, log, magic, key, keep, FILE_BYTES_MAX)
    }

    /// [`open`](Self::open) with files of another length.
    pub(crate) fn open_with(
        dir: &Path,
        log: &Path,
        magic: [u8; 4],
        key: Obfuscation,
        keep: Range<u32>,
        file_bytes_max: u64,
    ) -> Result<Self, BlockStoreError> {
        let is_new = keep.is_empty();
        let layout = match is_new {
            true => Layout::default(),
            false => Layout::read(dir, log, magic, key, keep.clone())?,
        };
        fs::create_dir_all(dir).map_err(BlockStoreError::io("create", dir))?;
        // First, so that it never tells of what is about to go.
        let mut positions = open_positions(log, magic, key, &keep)?;
        positions.sync()?;
        if is_new {
            write_key(dir, key)?;
        }
        let number = layout.last();
        remove_above(dir, number)?;
        layout.trim(dir)?;
        let at = |name: String| dir.join(name);
        let mut blocks = AppendFile::open(at(files::file_name(number)), layout.block_bytes())?;
        let mut undo = AppendFile::open(at(rev::file_name(number)), layout.undo_bytes())?;
        blocks.sync()?;
        undo.sync()?;
        sync_names(dir)?;
        // Names in the path of a folder that was just made, too.
        for made in [dir, log] {
            if let Some(above) = made.parent().filter(|above| !above.as_os_str().is_empty()) {
                sync_names(above)?;
            }
        }
        Ok(Self {
            dir: dir.to_owned(),
            magic,
            key,
            file_bytes_max,
            next_height: keep.end.max(keep.start),
            number,
            blocks,
            undo,
            positions,
            new_names: false,
        })
    }

    /// The height of the next block.
    pub fn next_height(&self) -> u32 {
        self.next_height
    }

    /// Appends the block of the next height with its number of transactions and its undo data. It
    /// is durable after the next [`sync`](Self::sync).
    ///
    /// # Panics
    /// When the genesis block comes with undo data or another one without, which is a mistake of
    /// the caller.
    pub fn append(
        &mut self,
        block: &[u8],
        tx_count: u32,
        spends: Option<SpentCoins<'_>>,
    ) -> Result<(), BlockStoreError> {
        let height = self.next_height;
        let undo = spends.map(|spends| spends.undo);
        let spent = spends.map_or(KeyedCoinSum::NONE, |spends| spends.sum);
        assert!(undo.is_none() == (height == 0), "all blocks but the first have undo data");
        let wrong = BlockStoreError::Size { height, size: block.len() };
        let Some(size) = u32::try_from(block.len()).ok().filter(|n| BLOCK_SIZES.contains(n)) else {
            return Err(wrong);
        };
        let Some(&header) = block.first_chunk::<{ Header::SIZE }>() else { return Err(wrong) };
        self.make_room(size)?;
        let undo = match undo {
            Some(undo) => Some((undo, self.undo_location(undo)?)),
            None => None,
        };
        // Nothing below can fail: a block is there with all that belongs to it, or not at all.
        let offset = self.blocks.end() + RECORD_HEAD;
        let place = BlockLocation { file: self.number, offset, size };
        self.blocks.push(&[&self.magic, &size.to_le_bytes(), block], self.key);
        if let Some((undo, place)) = undo {
            let sum = undo_checksum(&prev(&header), undo);
            self.undo.push(&[&self.magic, &place.size.to_le_bytes(), undo, &sum], self.key);
        }
        let undo = undo.map(|(_, place)| place);
        let stored = StoredBlock { header, tx_count, block: place, undo, spent };
        self.positions.push(&[&stored.to_bytes(height)], Obfuscation::NONE);
        self.next_height += 1;
        Ok(())
    }

    /// Makes all blocks durable: the block and undo files first, then the positions, so that these
    /// tell of nothing that a crash could take away.
    pub fn sync(&mut self) -> Result<(), BlockStoreError> {
        self.blocks.sync()?;
        self.undo.sync()?;
        if self.new_names {
            sync_names(&self.dir)?;
            self.new_names = false;
        }
        self.positions.sync()
    }

    /// Empties full buffers, and begins new files if a block of `size` bytes would make the block
    /// file too long (Core `node/blockstorage.cpp`, `FindNextBlockPos`).
    fn make_room(&mut self, size: u32) -> Result<(), BlockStoreError> {
        if self.positions.is_full() {
            self.sync()?;
        }
        for file in [&mut self.blocks, &mut self.undo] {
            if file.is_full() {
                file.write()?;
            }
        }
        let more = RECORD_HEAD + u64::from(size);
        // One block always fits: matters only for files shorter than a block.
        let max = self.file_bytes_max.max(more + 1);
        if self.blocks.end() + more < max {
            return Ok(());
        }
        // As Core does on leaving a file. So no more than two are ever behind the disk.
        self.blocks.sync()?;
        self.undo.sync()?;
        let next = self.number + 1;
        let blocks = AppendFile::open(self.dir.join(files::file_name(next)), 0)?;
        let undo = AppendFile::open(self.dir.join(rev::file_name(next)), 0)?;
        (self.blocks, self.undo, self.number) = (blocks, undo, next);
        self.new_names = true;
        Ok(())
    }

    /// Where undo data appended now will lie.
    fn undo_location(&self, undo: &[u8]) -> Result<UndoLocation, BlockStoreError> {
        let offset = self.undo.end() + RECORD_HEAD;
        let end = offset + undo.len() as u64 + rev::CHECKSUM;
        if end > u64::from(u32::MAX) {
            let path = self.undo.path().to_owned();
            return Err(BlockStoreError::UndoSpace { height: self.next_height, path, end });
        }
        Ok(UndoLocation { offset, size: undo.len() as u32 })
    }
}

/// The first bytes of a file that says what lies where in a folder of blocks: what it is, its version,
/// the network's magic, the folder's key.
pub(crate) fn log_head(kind: &[u8; 8], version: u32, magic: [u8; 4], key: Obfuscation) -> Vec<u8> {
    let mut out = kind.to_vec();
    out.extend_from_slice(&version.to_le_bytes());
    out.extend_from_slice(&magic);
    out.extend_from_slice(&key.key());
    out
}

/// The hash of the block before, out of a header.
fn prev(header: &[u8; Header::SIZE]) -> BlockHash {
    Header::parse(header).prev
}

fn open_positions(
    log: &Path,
    magic: [u8; 4],
    key: Obfuscation,
    keep: &Range<u32>,
) -> Result<AppendFile, BlockStoreError> {
    if !keep.is_empty() {
        let length = positions::HEAD + keep.len() as u64 * positions::RECORD;
        return AppendFile::open_private(log.to_owned(), length);
    }
    let mut file = AppendFile::open_private(log.to_owned(), 0)?;
    file.push(&[&positions::head(magic, key, keep.start)], Obfuscation::NONE);
    Ok(file)
}

/// Writes `xor.dat`, eight zeros for plain files as Core does.
pub(crate) fn write_key(dir: &Path, key: Obfuscation) -> Result<(), BlockStoreError> {
    let mut file = AppendFile::open(dir.join(KEY_FILE), 0)?;
    file.push(&[&key.key()], Obfuscation::NONE);
    file.sync()?;
    sync_names(dir)
}

const KEY_FILE: &str = "xor.dat";

/// Removes the block and undo files with higher numbers than `last`.
pub(crate) fn remove_above(dir: &Path, last: u32) -> Result<(), BlockStoreError> {
    for entry in fs::read_dir(dir).map_err(BlockStoreError::io("list", dir))? {
        let entry = entry.map_err(BlockStoreError::io("list", dir))?;
        let name = entry.file_name();
        let number = name
            .to_str()
            .and_then(|name| files::file_number(name).or_else(|| rev::file_number(name)));
        if number.is_some_and(|number| number > last) {
            let path = entry.path();
            fs::remove_file(&path).map_err(BlockStoreError::io("remove", &path))?;
        }
    }
    Ok(())
}

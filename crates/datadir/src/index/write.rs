//! [`write_block_index`]: Core's block index, for one chain of blocks and nothing beside it.
//!
//! Every block is written as fully validated, for a node that is to go on from its coins: what a
//! run took for granted, as scripts under hints, the node will too, and the caller must tell the
//! user so. There are three kinds: of all blocks kept in order, of all kept in any order, and of
//! the last ones alone, as a pruned node has. Keys and values are those of Core
//! (`node/blockstorage.cpp`, `kernel::BlockTreeDB`; `chain.h`, `CDiskBlockIndex`);
//! `docs/formats/blocksdir.md` has them.
//!
//! The folder must be empty. The database counts once all of it is on the disk.

use super::{KEY_BLOCK, STATUS_HAVE_DATA, STATUS_HAVE_UNDO};
use crate::error::ErrorKind;
use crate::leveldb::{DatabaseError, DatabaseWriter, WriterOptions};
use crate::rev;
use crate::store::{BlockPositions, BlockStoreError, StoredBlock};
use apus_chain::{BlockHash, Header, write_compact_size, write_varint};
use apus_storage::Storage;

/// Scripts and all before them are valid (Core `chain.h`, `BLOCK_VALID_SCRIPTS`).
const STATUS_VALID_SCRIPTS: u32 = 5;
/// All transactions were seen and are well-formed (Core `chain.h`, `BLOCK_VALID_TRANSACTIONS`). As
/// far as Core goes with the genesis block, which it never connects.
const STATUS_VALID_TRANSACTIONS: u32 = 3;
/// Checked with its witnesses (Core `chain.h`, `BLOCK_OPT_WITNESS`). Core wants it from segwit's
/// activation on and does not mind it before.
const STATUS_OPT_WITNESS: u32 = 128;

/// What Core writes for a version (`chain.h`, `CDiskBlockIndex::DUMMY_VERSION`).
const VERSION: u64 = 259_900;

/// The first bytes of keys (Core `node/blockstorage.cpp`), in the order in which they are written.
const KEY_FLAG: u8 = b'F';
const KEY_FILE: u8 = b'f';
const KEY_LAST_FILE: u8 = b'l';

/// The flag of a node that has removed block files.
const PRUNED: &[u8] = b"prunedblockfiles";

/// Header and number of transactions of the block at a height.
pub type HeaderAt<'a> = dyn FnMut(u32) -> ([u8; Header::SIZE], u32) + 'a;

/// What is stored of the block at a height.
pub type StoredAt<'a> = dyn FnMut(u32) -> Result<StoredBlock, BlockStoreError> + 'a;

/// Lengths in bytes of a block file and the undo file of the same number.
#[derive(Debug, Default, Clone, Copy, PartialEq, Eq)]
pub struct FileLengths {
    /// Of the block file.
    pub blocks: u64,
    /// Of the undo file; 0 where there is none.
    pub undo: u64,
}

/// Which blocks are in the `blocks` folder that the index is for.
pub enum IndexedBlocks<'a> {
    /// All, with undo data.
    All(&'a BlockPositions),
    /// All, in whatever order they lie in the files; undo data of some. The files may hold more than
    /// the chain.
    InAnyOrder {
        /// The caller's word for each block, asked twice.
        stored_at: &'a mut StoredAt<'a>,
        /// The files by their numbers, from 0 on without gaps.
        files: &'a [FileLengths],
    },
    /// The last ones, with undo data: the node has to run with `-prune`.
    Last {
        /// These.
        positions: &'a BlockPositions,
        /// The caller's word for each block below, asked twice.
        header_at: &'a mut HeaderAt<'a>,
    },
}

/// Why a block index could not be written.
#[derive(Debug, thiserror::Error)]
pub enum IndexWriteError {
    /// The database could not be written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// What is to stand in it could not be read.
    #[error(transparent)]
    Positions(#[from] BlockStoreError),
    /// The blocks are no chain.
    #[error(
        "the block index was not written: the block stored for height {height} does not follow \
         the one before it; begin anew"
    )]
    Chain {
        /// The height.
        height: u32,
    },
    /// A block is said to be in a file that there is not.
    #[error(
        "the block index was not written: the block of height {height} is said to be in file \
         {file}, and there are not so many; begin anew"
    )]
    File {
        /// The height.
        height: u32,
        /// The number of the file.
        file: u32,
    },
    /// A block is said to have no transactions, as one that never arrived.
    #[error("the block index was not written: no number of transactions for height {height}")]
    Transactions {
        /// The height.
        height: u32,
    },
}

impl IndexWriteError {
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::Database(error) => error.kind(),
            Self::Positions(error) => error.kind(),
            Self::Chain { .. } | Self::File { .. } | Self::Transactions { .. } => {
                ErrorKind::Invalid
            }
        }
    }
}

/// Writes the index of the blocks at heights 0 to `blocks`, exclusive, into an empty folder, which
/// is `index` in a `blocks` folder. Takes 36 bytes of memory a block.
pub fn write_block_index(
    folder: &dyn Storage,
    blocks: u32,
    kept: IndexedBlocks<'_>,
) -> Result<(), IndexWriteError> {
    let mut writer = DatabaseWriter::new(folder, WriterOptions::default())?;
    entries(blocks, kept, &mut |key, value| Ok(writer.put(key, value)?))?;
    writer.finish()?;
    Ok(())
}

/// Takes a key and its value.
type Put<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), IndexWriteError> + 'a;

/// All entries in ascending order of their keys.
fn entries(
    blocks: u32,
    mut kept: IndexedBlocks<'_>,
    put: &mut Put<'_>,
) -> Result<(), IndexWriteError> {
    let chain = Chain::read(blocks, &mut kept)?;
    if matches!(kept, IndexedBlocks::Last { .. }) {
        let mut key = vec![KEY_FLAG];
        write_compact_size(&mut key, PRUNED.len() as u64);
        key.extend_from_slice(PRUNED);
        put(&key, b"1")?;
    }
    let mut value = Vec::new();
    for (hash, height) in chain.order {
        value.clear();
        match &mut kept {
            IndexedBlocks::All(positions) => {
                write_stored(&mut value, height, &positions.read(height)?)
            }
            IndexedBlocks::InAnyOrder { stored_at, .. } => {
                write_stored(&mut value, height, &stored_at(height)?);
            }
            IndexedBlocks::Last { positions, header_at } if height < positions.heights().start => {
                write_pruned(&mut value, height, header_at(height));
            }
            IndexedBlocks::Last { positions, .. } => {
                write_stored(&mut value, height, &positions.read(height)?);
            }
        }
        let mut key = [KEY_BLOCK; 33];
        key[1..].copy_from_slice(&hash.0);
        put(&key, &value)?;
    }
    let mut files: Vec<_> = (0i32..).map(i32::to_le_bytes).zip(chain.files).collect();
    // Not the order of the numbers: their lowest byte comes first.
    files.sort_unstable_by_key(|(number, _)| *number);
    for (number, info) in &files {
        let mut key = [KEY_FILE; 5];
        key[1..].copy_from_slice(number);
        value.clear();
        info.write(&mut value);
        put(&key, &value)?;
    }
    let last = files.len().saturating_sub(1) as i32;
    put(&[KEY_LAST_FILE], &last.to_le_bytes())
}

/// How far the block at a height was validated.
fn validity(height: u32) -> u32 {
    let validity = if height == 0 { STATUS_VALID_TRANSACTIONS } else { STATUS_VALID_SCRIPTS };
    validity | STATUS_OPT_WITNESS
}

fn write_stored(out: &mut Vec<u8>, height: u32, stored: &StoredBlock) {
    let undo = if stored.undo.is_some() { STATUS_HAVE_UNDO } else { 0 };
    let status = validity(height) | STATUS_HAVE_DATA | undo;
    for number in [height, status, stored.tx_count, stored.block.file] {
        write_number(out, number);
    }
    write_varint(out, stored.block.offset);
    if let Some(undo) = stored.undo {
        write_varint(out, undo.offset);
    }
    out.extend_from_slice(&stored.header);
}

fn write_pruned(out: &mut Vec<u8>, height: u32, (header, tx_count): ([u8; 80], u32)) {
    for number in [height, validity(height), tx_count] {
        write_number(out, number);
    }
    out.extend_from_slice(&header);
}

/// Appends a number of an entry; before the first one, the version.
fn write_number(out: &mut Vec<u8>, number: u32) {
    if out.is_empty() {
        write_varint(out, VERSION);
    }
    write_varint(out, u64::from(number));
}

/// What has to be known of all blocks before any can be written.
#[derive(Default)]
struct Chain {
    /// Names and heights, by name.
    order: Vec<(BlockHash, u32)>,
    /// By number.
    files: Vec<FileInfo>,
    tip: Option<BlockHash>,
}

impl Chain {
    fn read(blocks: u32, kept: &mut IndexedBlocks<'_>) -> Result<Self, IndexWriteError> {
        let mut chain = Self::default();
        match kept {
            IndexedBlocks::All(positions) => chain.add_all(positions, blocks)?,
            IndexedBlocks::InAnyOrder { stored_at, files } => {
                let sized = |file: &FileLengths| FileInfo {
                    size: file.blocks,
                    undo_size: file.undo,
                    ..FileInfo::default()
                };
                chain.files = files.iter().map(sized).collect();
                for height in 0..blocks {
                    chain.add_stored(height, &stored_at(height)?)?;
                }
            }
            IndexedBlocks::Last { positions, header_at } => {
                for height in 0..positions.heights().start {
                    let (header, tx_count) = header_at(height);
                    chain.add(height, &header, tx_count)?;
                }
                chain.add_all(positions, blocks)?;
            }
        }
        chain.order.sort_unstable_by_key(|(hash, _)| hash.0);
        Ok(chain)
    }

    fn add(
        &mut self,
        height: u32,
        header: &[u8; Header::SIZE],
        tx_count: u32,
    ) -> Result<(), IndexWriteError> {
        let header = Header::parse(header);
        if header.prev != self.tip.unwrap_or(BlockHash::ZERO) {
            return Err(IndexWriteError::Chain { height });
        }
        if tx_count == 0 {
            return Err(IndexWriteError::Transactions { height });
        }
        let hash = header.hash();
        self.order.push((hash, height));
        self.tip = Some(hash);
        Ok(())
    }

    /// Adds all that is stored below the height `end`.
    fn add_all(&mut self, positions: &BlockPositions, end: u32) -> Result<(), IndexWriteError> {
        let mut added = Ok(());
        positions.for_each(end, &mut |height, stored| {
            if added.is_ok() {
                added = self.add_stored(height, &stored);
            }
            Ok(())
        })?;
        added
    }

    fn add_stored(&mut self, height: u32, stored: &StoredBlock) -> Result<(), IndexWriteError> {
        self.add(height, &stored.header, stored.tx_count)?;
        let (file, number) = (stored.block.file, stored.block.file as usize);
        // Files that are not known before are counted up one by one.
        if number == self.files.len() {
            self.files.push(FileInfo::default());
        }
        let Some(info) = self.files.get_mut(number) else {
            return Err(IndexWriteError::File { height, file });
        };
        info.add(height, stored);
        Ok(())
    }
}

/// What Core keeps of a block file and its undo file (`node/blockstorage.h`, `CBlockFileInfo`).
#[derive(Default, Clone, Copy)]
struct FileInfo {
    blocks: u32,
    /// Lengths in bytes.
    size: u64,
    undo_size: u64,
    height_first: u32,
    height_last: u32,
    /// Least and greatest time of a header.
    time_first: u32,
    time_last: u32,
}

impl FileInfo {
    /// Adds a block above those added before.
    fn add(&mut self, height: u32, stored: &StoredBlock) {
        let time = Header::parse(&stored.header).time;
        if self.blocks == 0 {
            (self.height_first, self.time_first) = (height, time);
        }
        self.blocks += 1;
        self.size = self.size.max(stored.block.end());
        if let Some(undo) = stored.undo {
            let end = undo.offset + u64::from(undo.size) + rev::CHECKSUM;
            self.undo_size = self.undo_size.max(end);
        }
        self.height_last = height;
        self.time_first = self.time_first.min(time);
        self.time_last = self.time_last.max(time);
    }

    fn write(&self, out: &mut Vec<u8>) {
        let small = |number: u32| u64::from(number);
        let heights = [small(self.height_first), small(self.height_last)];
        let times = [small(self.time_first), small(self.time_last)];
        for number in
            [small(self.blocks), self.size, self.undo_size].iter().chain(&heights).chain(&times)
        {
            write_varint(out, *number);
        }
    }
}

#[cfg(test)]
mod tests;

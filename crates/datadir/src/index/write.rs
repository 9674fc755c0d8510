//! [`write_block_index`]: Core's block index, for one chain of blocks and nothing beside it.
//!
//! Every block is written as fully validated, for a node that is to go on from its coins: what a
//! run took for granted, as scripts under hints, the node will too, and the caller must tell the
//! user so. Blocks may lie in any order and may have been pruned, which the index then says of the
//! node as a whole. Keys and values are those of Core (`node/blockstorage.cpp`, `kernel::BlockTreeDB`;
//! `chain.h`, `CDiskBlockIndex`); `docs/formats/blocksdir.md` has them.
//!
//! The folder must be empty. The database counts once all of it is on the disk.

use super::{
    FileInfo, KEY_BLOCK, KEY_FILE, KEY_FLAG, KEY_LAST_FILE, STATUS_HAVE_DATA, STATUS_HAVE_UNDO,
    STATUS_OPT_WITNESS, VALID_SCRIPTS, VALID_TRANSACTIONS,
};
use crate::leveldb::{DatabaseError, DatabaseWriter, WriterOptions};
use crate::store::{BlockStore, BlockStoreError, StoredBlock};
use apus_chain::{BlockHash, Header, write_compact_size, write_varint};
use apus_storage::Storage;

/// What Core writes for a version (`chain.h`, `CDiskBlockIndex::DUMMY_VERSION`).
const VERSION: u64 = 259_900;

/// The flag of a node that has removed block files.
const PRUNED: &[u8] = b"prunedblockfiles";

/// What the index is to say of a block.
#[derive(Debug, Clone, Copy)]
pub enum ChainBlock {
    /// This one is stored.
    Stored(BlockHash),
    /// One with this header and so many transactions was: the node has to run with `-prune`.
    Pruned([u8; Header::SIZE], u32),
}

/// The caller's word for the block at a height.
type BlockAt<'a> = dyn FnMut(u32) -> ChainBlock + 'a;

/// Why a block index could not be written.
#[derive(Debug, thiserror::Error)]
pub enum IndexWriteError {
    /// The database could not be written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// What is to stand in it could not be read.
    #[error(transparent)]
    Blocks(#[from] BlockStoreError),
    /// The blocks are no chain.
    #[error(
        "the block index was not written: the block stored for height {height} does not follow \
         the one before it; begin anew"
    )]
    Chain {
        /// The height.
        height: u32,
    },
    /// A block is said to have no transactions, as one that never arrived.
    #[error("the block index was not written: no number of transactions for height {height}")]
    Transactions {
        /// The height.
        height: u32,
    },
}

/// Makes all of `store` durable and writes the index of one chain into an empty folder, which is to be
/// `index` in that of the blocks. `at` is asked twice for the blocks at heights 0 to `blocks`, exclusive.
/// What is stored beside the chain stays in the files and is not in the index. Takes 36 bytes of memory
/// a block.
///
/// # Errors
/// [`IndexWriteError::Chain`] if a block does not follow the one before it;
/// [`BlockStoreError::Block`] if one is not stored.
pub fn write_block_index(
    store: &BlockStore,
    folder: &dyn Storage,
    blocks: u32,
    at: &mut BlockAt<'_>,
) -> Result<(), IndexWriteError> {
    store.sync()?;
    let mut writer = DatabaseWriter::new(folder, WriterOptions::default())?;
    let chain = IndexedChain::read(store, blocks, at)?;
    entries(store, chain, at, &mut |key, value| Ok(writer.put(key, value)?))?;
    writer.finish()?;
    Ok(())
}

/// Takes a key and its value.
type Put<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), IndexWriteError> + 'a;

/// All entries in ascending order of their keys.
fn entries(
    store: &BlockStore,
    chain: IndexedChain,
    at: &mut BlockAt<'_>,
    put: &mut Put<'_>,
) -> Result<(), IndexWriteError> {
    if chain.is_pruned {
        let mut key = vec![KEY_FLAG];
        write_compact_size(&mut key, PRUNED.len() as u64);
        key.extend_from_slice(PRUNED);
        put(&key, b"1")?;
    }
    let mut value = Vec::new();
    for (hash, height) in chain.order {
        value.clear();
        match at(height) {
            ChainBlock::Stored(hash) => write_stored(&mut value, height, &store.stored(&hash)?),
            ChainBlock::Pruned(header, tx_count) => {
                write_pruned(&mut value, height, &header, tx_count);
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
    let validity = if height == 0 { VALID_TRANSACTIONS } else { VALID_SCRIPTS };
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

fn write_pruned(out: &mut Vec<u8>, height: u32, header: &[u8; Header::SIZE], tx_count: u32) {
    for number in [height, validity(height), tx_count] {
        write_number(out, number);
    }
    out.extend_from_slice(header);
}

/// Appends a number of an entry; before the first one, the version.
fn write_number(out: &mut Vec<u8>, number: u32) {
    if out.is_empty() {
        write_varint(out, VERSION);
    }
    write_varint(out, u64::from(number));
}

/// What has to be known of all blocks before any can be written.
struct IndexedChain {
    /// Names and heights, by name.
    order: Vec<(BlockHash, u32)>,
    /// By number.
    files: Vec<FileInfo>,
    tip: BlockHash,
    is_pruned: bool,
}

impl IndexedChain {
    fn read(
        store: &BlockStore,
        blocks: u32,
        at: &mut BlockAt<'_>,
    ) -> Result<Self, IndexWriteError> {
        let files = store.files()?.into_iter().map(|file| FileInfo {
            size: file.blocks,
            undo_size: file.undo,
            ..FileInfo::default()
        });
        let (order, files) = (Vec::new(), files.collect());
        let mut chain = Self { order, files, tip: BlockHash::ZERO, is_pruned: false };
        for height in 0..blocks {
            match at(height) {
                ChainBlock::Stored(hash) => chain.add_stored(height, &store.stored(&hash)?)?,
                ChainBlock::Pruned(header, tx_count) => {
                    chain.is_pruned = true;
                    chain.add(height, &header, tx_count)?;
                }
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
        if header.prev != self.tip {
            return Err(IndexWriteError::Chain { height });
        }
        if tx_count == 0 {
            return Err(IndexWriteError::Transactions { height });
        }
        let hash = header.hash();
        self.order.push((hash, height));
        self.tip = hash;
        Ok(())
    }

    fn add_stored(&mut self, height: u32, stored: &StoredBlock) -> Result<(), IndexWriteError> {
        self.add(height, &stored.header, stored.tx_count)?;
        // A store tells of no block beyond its files.
        self.files[stored.block.file as usize].add(height, Header::parse(&stored.header).time);
        Ok(())
    }
}

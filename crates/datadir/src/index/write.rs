//! [`write_block_index`]: writes Core's block index for one chain of blocks.
//!
//! It marks every block as fully validated, for a node that continues from its coins. The node will accept
//! everything that the sync assumed, such as scripts under hints, and the caller must tell the user so.
//! Blocks may be in any order. They may also be pruned; the index then states this for the whole node. Keys
//! and values are Core's (`node/blockstorage.cpp`, `kernel::BlockTreeDB`; `chain.h`, `CDiskBlockIndex`);
//! `docs/formats/blocksdir.md` describes them.
//!
//! The folder must be empty. The database becomes valid only once it is completely on the disk.

use super::{
    FileInfo, KEY_BLOCK, KEY_FILE, KEY_FLAG, KEY_LAST_FILE, STATUS_HAVE_DATA, STATUS_HAVE_UNDO,
    STATUS_OPT_WITNESS, VALID_SCRIPTS, VALID_TRANSACTIONS,
};
use crate::leveldb::{DatabaseError, DatabaseWriter, WriterOptions};
use crate::store::{BlockStore, BlockStoreError, StoredBlock};
use apus_chain::{BlockHash, Header, write_compact_size, write_varint};
use apus_storage::Storage;

/// The version that Core writes (`chain.h`, `CDiskBlockIndex::DUMMY_VERSION`).
const VERSION: u64 = 259_900;

/// The key of the flag that says that a node has removed block files.
const PRUNED: &[u8] = b"prunedblockfiles";

/// How the index should describe a block.
#[derive(Debug, Clone, Copy)]
pub enum ChainBlock {
    /// The block is stored.
    Stored(BlockHash),
    /// The block with this header and number of transactions was pruned: the node must run with
    /// `-prune`.
    Pruned([u8; Header::SIZE], u32),
}

/// Returns the block at a height.
type BlockAt<'a> = dyn FnMut(u32) -> ChainBlock + 'a;

/// Why a block index could not be written.
#[derive(Debug, thiserror::Error)]
pub enum IndexWriteError {
    /// The database could not be written.
    #[error(transparent)]
    Database(#[from] DatabaseError),
    /// The blocks to be listed could not be read.
    #[error(transparent)]
    Blocks(#[from] BlockStoreError),
    /// The blocks do not form a chain.
    #[error(
        "the block index was not written: the block stored for height {height} does not follow the block before \
         it. Start over with an empty work folder"
    )]
    Chain {
        /// The height.
        height: u32,
    },
    /// A block has no transactions, so a node would believe that it never arrived.
    #[error(
        "the block index was not written: the block for height {height} has no number of transactions"
    )]
    Transactions {
        /// The height.
        height: u32,
    },
}

/// Makes all of `store` durable and writes the index of one chain into an empty folder, which must be `index`
/// in the folder of the blocks. Calls `at` twice for each height from 0 up to `blocks`, exclusive. Stored
/// blocks off the chain stay in the files but get no index entry. Takes 36 bytes of memory per block.
///
/// # Errors
/// [`IndexWriteError::Chain`] if a block does not follow the one before it;
/// [`BlockStoreError::Block`] if a block is not stored.
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

/// Receives a key and its value.
type Put<'a> = dyn FnMut(&[u8], &[u8]) -> Result<(), IndexWriteError> + 'a;

/// Passes on all entries in ascending order of their keys.
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
    // Key order differs from number order: the lowest byte comes first.
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

/// The status of the block at a height, without its data flags.
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

/// Appends a number of an entry; before the first number, appends the version.
fn write_number(out: &mut Vec<u8>, number: u32) {
    if out.is_empty() {
        write_varint(out, VERSION);
    }
    write_varint(out, u64::from(number));
}

/// The facts about all blocks that the first entry already depends on.
struct IndexedChain {
    /// Hashes and heights, by hash.
    order: Vec<(BlockHash, u32)>,
    /// Indexed by file number.
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
        // The store only lists blocks within its files.
        self.files[stored.block.file as usize].add(height, Header::parse(&stored.header).time);
        Ok(())
    }
}

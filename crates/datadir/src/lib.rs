//! Bitcoin Core's files: block files, block index, chainstate, snapshots.
//!
//! Apus only reads a node's files, never trusts them, and locks them only on request, so it accepts a folder
//! on a read-only disk or of a running node as well. Files that it writes are new and go through
//! [`Storage`](apus_storage::Storage).

#![cfg_attr(not(test), deny(clippy::disallowed_methods))]

mod blocks_read_back;
pub mod chainstate;
mod error;
mod files;
mod folder;
mod independent;
mod index;
mod leveldb;
mod reader;
mod rev;
mod scan;
pub mod snapshot;
mod store;
#[cfg(test)]
mod tests;

pub use blocks_read_back::{
    BlocksReadBack, ExpectedFolder, PartRead, PartReader, ReadBackError, SpentAt, WrittenBlocks,
};
pub use error::{BlkError, IndexError};
pub use files::{BlockFile, BlockFiles, BlockLocation, Obfuscation, network_of};
pub use folder::{
    BlocksFolder, DATADIR_LOCK, DatadirLock, LEVELDB_LOCK, LockError, chain_folder, free_bytes,
};
pub use independent::{DatabaseEntries, DatabaseLookUps, IndependentReadError};
pub use index::{
    ChainBlock, FileInfo, IndexEntry, IndexFlags, IndexRest, IndexWriteError, STATUS_ASSUMED,
    STATUS_FAILED, STATUS_HAVE_DATA, STATUS_HAVE_UNDO, STATUS_OPT_WITNESS, VALID_CHAIN, VALID_MASK,
    VALID_SCRIPTS, VALID_TRANSACTIONS, VALID_TREE, check_index_files, read_index, read_index_flags,
    read_whole_index, write_block_index,
};
pub use leveldb::{DatabaseError, DatabaseSize, DatabaseWriter, WriterOptions, for_each_entry};
pub use reader::{BlockReader, Each};
pub use rev::{RevError, UndoFiles, has_undo_file};
pub use scan::{ScanSummary, StrayBytes, Visit};
pub use store::{BlockStore, BlockStoreError, SpentCoins, StoredBlock, UndoLocation};

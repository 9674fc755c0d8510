//! Bitcoin Core's files: block files, block index.
//!
//! Everything here only reads what a node wrote, never trusts it, and never takes a lock, so that
//! a folder on a read-only disk or under a running node is as good as any other.

mod error;
mod extent;
mod files;
mod index;
mod index_error;
mod leveldb;
mod obfuscation;
mod reader;
mod scan;
pub mod snapshot;
mod summary;
#[cfg(test)]
mod testing;
mod window;

pub use error::{BlkError, ErrorKind};
pub use files::{BlockFile, BlockFiles, BlockLocation};
pub use index::{IndexEntry, STATUS_FAILED, STATUS_HAVE_DATA, STATUS_HAVE_UNDO, read_index};
pub use index_error::IndexError;
pub use obfuscation::Obfuscation;
pub use reader::{BlockReader, Each};
pub use scan::Visit;
pub use summary::{ScanSummary, Stretch};

//! [`BlkError`]: errors of block files, their places, and how to fix them.
//!
//! Damage *inside* a block file is not an error of a scan: the summary lists it, because good
//! blocks may follow.

use apus_chain::{BlockHash, Network};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Why block files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BlkError {
    /// The folder cannot be listed, or one of its files cannot be opened.
    #[error("{0}")]
    Open(String),
    /// The folder has no block files.
    #[error(
        "no blk00000.dat, blk00001.dat ... in {path}: give the folder that contains these files, such as `blocks`, \
         `regtest/blocks` or `signet/blocks`"
    )]
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// The folder has a file that no node writes, or the given position cannot hold a block.
    #[error("{0}")]
    Strange(String),
    /// A plain file in a folder of obfuscated ones.
    #[error(
        "{path} is a plain file, but other files are obfuscated with the key in xor.dat next to it. Give a folder \
         whose files all come from one node, or restore this file together with xor.dat"
    )]
    Plain {
        /// The file.
        path: PathBuf,
    },
    /// A listed file is missing or shorter, or a file was never listed.
    #[error("{0}")]
    Changed(String),
    /// The system failed to read.
    #[error("cannot read {path} at byte {offset}: {source}. Check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// The offset at which the read began.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// The files hold only blocks of another chain.
    #[error(
        "wrong chain: the files in {path} hold blocks of {found} ({records} seen), and no blocks of the requested \
         chain: use --chain {found}"
    )]
    WrongChain {
        /// The folder.
        path: PathBuf,
        /// The chain of most of the blocks seen.
        found: Network,
        /// The number of its blocks that were seen.
        records: u64,
    },
    /// The files hold blocks of another signet than that of the given challenge, or no challenge was given.
    #[error(
        "{path} holds blocks of a custom signet with the magic {:08x}: add its challenge with --signetchallenge \
         HEX. The challenge is in the node's bitcoin.conf (signetchallenge=HEX) and in `bitcoin-cli \
         getblockchaininfo` (signet_challenge)", u32::from_be_bytes(*.magic)
    )]
    OwnSignet {
        /// The folder.
        path: PathBuf,
        /// The bytes before each block.
        magic: [u8; 4],
    },
    /// The files hold no block of any known chain.
    #[error(
        "no block was found in {bytes} bytes of block files in {path}: the files are empty, of an unknown chain, \
         or obfuscated with a key that is not in xor.dat next to them. Copy xor.dat together with the files"
    )]
    NoBlocks {
        /// The folder.
        path: PathBuf,
        /// Bytes searched.
        bytes: u64,
    },
}

/// Says how to fix a file that cannot be opened.
pub(crate) fn to_be_read(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run Apus as the node's user (sudo -u USER), or let this user read that file (chmod)"
        }
        _ => "check the permissions",
    }
}

impl BlkError {
    /// Reports that the folder of the block files could not be listed.
    pub(crate) fn listing(path: &Path, source: &io::Error) -> Self {
        Self::Open(format!(
            "cannot list the block files in {}: {source}. Give the `blocks` folder of a Bitcoin Core data \
             directory, or {}",
            path.display(),
            to_be_read(source)
        ))
    }

    /// Reports why a listed file could not be opened.
    pub(crate) fn opening(path: &Path, source: &io::Error) -> Self {
        let name = path.display();
        match (source.kind(), std::fs::read_link(path)) {
            (io::ErrorKind::NotFound, Ok(target)) => Self::Open(format!(
                "{name} is a broken link to {}: mount the disk of the target, or restore the target",
                target.display()
            )),
            (io::ErrorKind::NotFound, Err(_)) => Self::Changed(format!(
                "{name} vanished after Apus listed the folder: stop the node, or its pruning, then rerun the \
                 command"
            )),
            _ => Self::Open(format!("cannot open {name}: {source}: {}", to_be_read(source))),
        }
    }

    /// Reports why `offset..needed` of a file could not be read.
    pub(crate) fn reading(path: &Path, offset: u64, needed: u64, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::shortened(path, needed),
            _ => Self::Read { path: path.to_owned(), offset, source },
        }
    }

    /// Reports that a file ends before byte `needed`.
    pub(crate) fn shortened(path: &Path, needed: u64) -> Self {
        Self::Changed(format!(
            "{} ends before byte {needed}: the file was shortened, or the block's position is stale. Stop the node \
             that writes the file, then rerun the command",
            path.display()
        ))
    }
}

/// The reason why a block index could not be read.
///
/// None of these errors needs to stop a sync: the block files hold all the information of the index.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// There is no block index.
    #[error("there is no block index in {path}")]
    Missing {
        /// The expected folder.
        path: PathBuf,
    },
    /// A file exists but cannot be opened.
    #[error("cannot open {path}: {source}: {}", to_be_read(.source))]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// The system's error.
        source: io::Error,
    },
    /// A file of the index is missing.
    #[error(
        "{path} belongs to the block index but is missing: if a node is running there, stop the node, then rerun \
         the command"
    )]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The system failed to read.
    #[error("cannot read {path} at byte {offset}: {source}. Check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// The offset at which the read began.
        offset: u64,
        /// The system's error.
        source: io::Error,
    },
    /// A file is damaged.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// The offset, as precisely as known.
        offset: u64,
        /// The fault.
        what: &'static str,
    },
    /// An entry of the index has a form that Core does not write.
    #[error(
        "the block index {path}: the entry of block {hash} cannot be read: {what}. Another version of Bitcoin Core \
         may have written the entry"
    )]
    Entry {
        /// The folder of the index.
        path: PathBuf,
        /// The block in the entry's key.
        hash: BlockHash,
        /// The fault.
        what: String,
    },
}

impl IndexError {
    pub(crate) fn corrupt(path: &Path, offset: u64, what: &'static str) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, what }
    }

    /// Opens a file for reading; also returns its length.
    pub(crate) fn open(path: &Path) -> Result<(File, u64), Self> {
        let open = || {
            // Opening a pipe would block until it has a writer.
            if !fs::metadata(path)?.is_file() {
                return Err(io::Error::other("it is not a regular file"));
            }
            let file = File::open(path)?;
            let length = file.metadata()?.len();
            Ok((file, length))
        };
        open().map_err(|source: io::Error| match source.kind() {
            io::ErrorKind::NotFound => Self::Vanished { path: path.to_owned() },
            _ => Self::Open { path: path.to_owned(), source },
        })
    }

    /// Reads from `offset` until `buffer` is full.
    pub(crate) fn read(
        path: &Path,
        file: &File,
        buffer: &mut [u8],
        offset: u64,
    ) -> Result<(), Self> {
        file.read_exact_at(buffer, offset).map_err(|source| match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::corrupt(path, offset, "it was shortened"),
            _ => Self::Read { path: path.to_owned(), offset, source },
        })
    }
}

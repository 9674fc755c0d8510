//! [`BlkError`]: what can go wrong with block files, where, and what to do about it.
//!
//! Damage *inside* a block file is no error of a scan: it is listed in the summary, because good blocks may
//! follow it.

use apus_chain::{BlockHash, Network};
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// Why block files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BlkError {
    /// The folder cannot be listed, or a file of it cannot be opened.
    #[error("{0}")]
    Open(String),
    /// The folder has no block files.
    #[error(
        "no blk00000.dat, blk00001.dat ... in {path}: give the folder that holds them, `blocks` \
         (of other chains than main: `regtest/blocks`, `signet/blocks` ...)"
    )]
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// A file of the folder is none that a node writes, or a place is none that a block can have.
    #[error("{0}")]
    Strange(String),
    /// A plain file among those that are obfuscated.
    #[error(
        "{path} is a plain file, and not obfuscated with the key in xor.dat beside it, as other files are: give a folder \
         whose files are all of one node, or restore this file, and xor.dat with it"
    )]
    Plain {
        /// The file.
        path: PathBuf,
    },
    /// A file that was listed is gone or shorter, or was never listed.
    #[error("{0}")]
    Changed(String),
    /// The system could not read.
    #[error("cannot read {path} at byte {offset}: {source}; check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// The files hold blocks of another chain.
    #[error(
        "wrong chain: the files in {path} hold blocks of {found} ({records} seen) and none of the \
         chain asked for; use --chain {found}"
    )]
    WrongChain {
        /// The folder.
        path: PathBuf,
        /// The chain of most blocks seen.
        found: Network,
        /// How many of its blocks were seen.
        records: u64,
    },
    /// The files hold blocks of a signet whose challenge is not the one that was given, if one was.
    #[error(
        "{path} holds blocks of a signet of its own, of the magic {:08x}: give its challenge by --signetchallenge \
         HEX, which the node's bitcoin.conf has as signetchallenge=HEX, and `bitcoin-cli getblockchaininfo` as \
         signet_challenge", u32::from_be_bytes(*.magic)
    )]
    OwnSignet {
        /// The folder.
        path: PathBuf,
        /// The bytes before each block.
        magic: [u8; 4],
    },
    /// The files hold no block of any chain known.
    #[error(
        "no block was found in {bytes} bytes of block files in {path}: they are empty, of an \
         unknown chain, or obfuscated with a key that is not in xor.dat beside them; copy \
         xor.dat together with the files"
    )]
    NoBlocks {
        /// The folder.
        path: PathBuf,
        /// Bytes searched.
        bytes: u64,
    },
}

/// What helps where something cannot be opened.
pub(crate) fn to_be_read(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::PermissionDenied => {
            "run this as the user that the node runs as (sudo -u USER), or let this user read it (chmod)"
        }
        _ => "see that it may be read",
    }
}

impl BlkError {
    /// The folder of the block files could not be listed.
    pub(crate) fn listing(path: &Path, source: &io::Error) -> Self {
        Self::Open(format!(
            "cannot list the block files in {}: {source}; give the `blocks` folder of a Bitcoin \
             Core data directory; {}",
            path.display(),
            to_be_read(source)
        ))
    }

    /// Sorts out why a file that was listed could not be opened.
    pub(crate) fn opening(path: &Path, source: &io::Error) -> Self {
        let name = path.display();
        match (source.kind(), std::fs::read_link(path)) {
            (io::ErrorKind::NotFound, Ok(target)) => Self::Open(format!(
                "{name} is a link to {}, which is not there: mount the disk that it is on, or \
                 restore it",
                target.display()
            )),
            (io::ErrorKind::NotFound, Err(_)) => Self::Changed(format!(
                "{name} has vanished since the folder was listed: stop the node, or its pruning, \
                 and start again"
            )),
            _ => Self::Open(format!("cannot open {name}: {source}; {}", to_be_read(source))),
        }
    }

    /// Sorts out why `offset..needed` of a file could not be read.
    pub(crate) fn reading(path: &Path, offset: u64, needed: u64, source: io::Error) -> Self {
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::shortened(path, needed),
            _ => Self::Read { path: path.to_owned(), offset, source },
        }
    }

    /// A file has no byte before `needed`.
    pub(crate) fn shortened(path: &Path, needed: u64) -> Self {
        Self::Changed(format!(
            "{} ends before byte {needed}: it was shortened, or the block's place is stale; stop \
             the node that writes it and start again",
            path.display()
        ))
    }
}

/// Why the block index could not be read.
///
/// None of these need stop a run: whatever the index would have said, the block files say too.
#[derive(Debug, thiserror::Error)]
pub enum IndexError {
    /// There is no block index.
    #[error("there is no block index in {path}")]
    Missing {
        /// Where it should be.
        path: PathBuf,
    },
    /// A file is there but cannot be opened.
    #[error("cannot open {path}: {source}; {}", to_be_read(.source))]
    Open {
        /// The file or folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that belongs to the index is not there.
    #[error(
        "{path} belongs to the block index but is not there: if a node is running on it, stop the \
         node or try again"
    )]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// The system could not read.
    #[error("cannot read {path} at byte {offset}: {source}; check the disk")]
    Read {
        /// The file.
        path: PathBuf,
        /// Where reading began.
        offset: u64,
        /// What the system said.
        source: io::Error,
    },
    /// A file is not what it should be.
    #[error("{path} is damaged at byte {offset}: {what}")]
    Corrupt {
        /// The file.
        path: PathBuf,
        /// Where, as precisely as is known.
        offset: u64,
        /// What is wrong.
        what: &'static str,
    },
    /// An entry of the index is not what Core writes.
    #[error(
        "the entry of block {hash} in the block index {path} cannot be read: {what}; it may be of \
         another version of Bitcoin Core"
    )]
    Entry {
        /// The folder of the index.
        path: PathBuf,
        /// The block that the key names.
        hash: BlockHash,
        /// What is wrong.
        what: String,
    },
}

impl IndexError {
    pub(crate) fn corrupt(path: &Path, offset: u64, what: &'static str) -> Self {
        Self::Corrupt { path: path.to_owned(), offset, what }
    }

    /// Opens a file for reading, with its length.
    pub(crate) fn open(path: &Path) -> Result<(File, u64), Self> {
        let open = || {
            // To open a pipe is to wait for who writes into it.
            if !fs::metadata(path)?.is_file() {
                return Err(io::Error::other("it is no regular file"));
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

    /// Fills `buffer` from `offset` on.
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

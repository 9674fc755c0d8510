//! [`BlkError`]: what can go wrong with block files, where, and what to do about it.
//!
//! Every case belongs to one [`ErrorKind`]. Damage *inside* a block file is no error of a scan: it
//! is listed in the summary, because good blocks may follow it.

use apus_chain::Network;
use std::io;
use std::path::{Path, PathBuf};

/// What an error means for the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The input itself is wrong: the same files fail again.
    Invalid,
    /// The surroundings are at fault (a permission, a node at work): once changed, the same run
    /// can succeed.
    Recoverable,
    /// The disk or the program failed; trying again without finding out why is pointless.
    Fatal,
}

/// Why block files could not be read.
#[derive(Debug, thiserror::Error)]
pub enum BlkError {
    /// The folder cannot be listed.
    #[error(
        "cannot list the block files in {path}: {source}; give the `blocks` folder of a Bitcoin \
         Core data directory; {}", to_be_read(.source)
    )]
    Folder {
        /// The folder.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// The folder has no block files.
    #[error(
        "no blk00000.dat, blk00001.dat ... in {path}: give the folder that holds them, `blocks` \
         (of other chains than main: `regtest/blocks`, `signet/blocks` ...)"
    )]
    NoFiles {
        /// The folder.
        path: PathBuf,
    },
    /// A name of a block file belongs to something else.
    #[error("{path} is not a regular file: move it away, or restore the block file of that name")]
    NotAFile {
        /// The path.
        path: PathBuf,
    },
    /// `xor.dat` has another length than Core writes.
    #[error(
        "{path} has {length} bytes where Bitcoin Core writes 8: without the key the block files \
         beside it cannot be read; restore it from the node that wrote them"
    )]
    Key {
        /// The path of `xor.dat`.
        path: PathBuf,
        /// Its length in bytes.
        length: u64,
    },
    /// A plain file among those that are obfuscated.
    #[error(
        "{path} is a plain file, and not obfuscated with the key in xor.dat beside it, as other files are: give a folder \
         whose files are all of one node, or restore this file, and xor.dat with it"
    )]
    Plain {
        /// The file.
        path: PathBuf,
    },
    /// A file is there but cannot be opened.
    #[error("cannot open {path}: {source}; {}", to_be_read(.source))]
    Open {
        /// The file.
        path: PathBuf,
        /// What the system said.
        source: io::Error,
    },
    /// A file that was listed is gone.
    #[error(
        "{path} has vanished since the folder was listed: stop the node, or its pruning, and \
         start again"
    )]
    Vanished {
        /// The file.
        path: PathBuf,
    },
    /// A link leads nowhere.
    #[error(
        "{path} is a link to {target}, which is not there: mount the disk that it is on, or restore it"
    )]
    Dangling {
        /// The link.
        path: PathBuf,
        /// Where it leads.
        target: PathBuf,
    },
    /// A file is shorter than it was, or than a block's place says.
    #[error(
        "{path} ends before byte {needed}: it was shortened, or the block's place is stale; stop \
         the node that writes it and start again"
    )]
    Shortened {
        /// The file.
        path: PathBuf,
        /// The first byte after what was to be read.
        needed: u64,
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
    /// A block's place names a file that is not there.
    #[error(
        "a block should lie in {path} at byte {offset}, but that file was not there when the \
         folder was listed: it was pruned, or the block's place is stale: start the same command again"
    )]
    UnknownFile {
        /// The path that the file would have.
        path: PathBuf,
        /// Where the block should begin.
        offset: u64,
    },
    /// A block's place claims a size that no block has.
    #[error(
        "a block of {size} bytes is claimed in {path} at byte {offset}; a block has 80 to \
         4000000: the place is wrong, or the file changed: start the same command again"
    )]
    Size {
        /// The file.
        path: PathBuf,
        /// Where the block should begin.
        offset: u64,
        /// The size claimed.
        size: u32,
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
    /// What the error means for the run.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoFiles { .. }
            | Self::NotAFile { .. }
            | Self::Key { .. }
            | Self::Plain { .. }
            | Self::Size { .. }
            | Self::WrongChain { .. }
            | Self::OwnSignet { .. }
            | Self::NoBlocks { .. } => ErrorKind::Invalid,
            Self::Folder { .. }
            | Self::Open { .. }
            | Self::Vanished { .. }
            | Self::Dangling { .. }
            | Self::Shortened { .. }
            | Self::UnknownFile { .. } => ErrorKind::Recoverable,
            Self::Read { .. } => ErrorKind::Fatal,
        }
    }

    /// Sorts out why a file that was listed could not be opened.
    pub(crate) fn opening(path: &Path, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::NotFound => match std::fs::read_link(&path) {
                Ok(target) => Self::Dangling { path, target },
                Err(_) => Self::Vanished { path },
            },
            _ => Self::Open { path, source },
        }
    }

    /// Sorts out why `offset..needed` of a file could not be read.
    pub(crate) fn reading(path: &Path, offset: u64, needed: u64, source: io::Error) -> Self {
        let path = path.to_owned();
        match source.kind() {
            io::ErrorKind::UnexpectedEof => Self::Shortened { path, needed },
            _ => Self::Read { path, offset, source },
        }
    }
}

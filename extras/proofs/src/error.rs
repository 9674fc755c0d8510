//! [`ProofsError`]: proofs that are of no use for a run: their files, or the peers that were to give them.

use crate::peers::ProofPeerError;
use apus_chain::{Height, HeightRange, Network};
use apus_sync::{ErrorKind, RunError};
use apus_utreexo::RangeFileError;
use std::io;
use std::path::PathBuf;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum ProofsError {
    /// A folder or a file cannot be opened.
    #[error("{}: {error}", folder.display())]
    Folder {
        /// Which one.
        folder: PathBuf,
        /// Why.
        error: io::Error,
    },
    /// Blocks of which there are no proofs.
    #[error(
        "{} has no file of proofs of {}: get such a file{}", folder.display(), blocks(missing),
        match below { Some(below) => format!(", or end the run below, by --stopatheight {below}"), None => String::new() }
    )]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The blocks.
        missing: HeightRange,
        /// The last block of the files below, if there are any.
        below: Option<Height>,
    },
    /// The run would end within a file's range.
    #[error(
        "the run is to stop at height {stop}, and the proofs lead to the end of a range alone: use --stopatheight {}{above}",
        match below { Some(below) => format!("{below} or "), None => String::new() }
    )]
    StopWithin {
        /// What was asked for.
        stop: Height,
        /// The end of the range below.
        below: Option<Height>,
        /// The end of the range that it lies in.
        above: Height,
    },
    /// Two files about the same block.
    #[error("{} and {} are about the same blocks: take one of them away", other.display(), file.display())]
    Overlap {
        /// One of them.
        file: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// A file that is none, or damaged.
    #[error("{}: {error}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// What is wrong.
        error: RangeFileError,
    },
    /// A file about other blocks than its name says.
    #[error("{} is about blocks {heights}, and its name says otherwise: give it the name back that it had", file.display())]
    Name {
        /// The file.
        file: PathBuf,
        /// The blocks.
        heights: HeightRange,
    },
    /// A file of another network.
    #[error("{} is of another network than {network}", file.display())]
    OtherNetwork {
        /// The file.
        file: PathBuf,
        /// The network of the run.
        network: Network,
    },
    /// A file about another chain.
    #[error("{} has another block {height} than the chain that was found: it is about a stale fork or another chain", file.display())]
    OtherChain {
        /// The file.
        file: PathBuf,
        /// The first block that is another one.
        height: Height,
    },
    /// A file that does not begin where the one below ends.
    #[error(
        "{} does not fit what lies below block {height}: it begins with other roots: {differ}. One of the two files is \
         wrong: get others", file.display()
    )]
    Roots {
        /// The file.
        file: PathBuf,
        /// Its first block.
        height: Height,
        /// In what its roots differ from those below.
        differ: String,
    },
    /// Peers that cannot be asked.
    #[error("no proofs can be had: {0}")]
    Peers(Box<ProofPeerError>),
    /// What is needed of a block, or of a range, cannot be had.
    #[error("{what}")]
    NotThere {
        /// What, and why.
        what: String,
    },
    /// A set of coins is to be written.
    #[error(
        "the engine utreexo keeps no set of coins: each block is judged by the coins that its proofs show, and \
         what is left in the end is the roots of the forest alone. It writes these (utreexo:FILE), and nothing \
         else: for a set use another engine"
    )]
    NoSetKept,
    /// A machine is to do ranges of a run, and has no proofs.
    #[error(
        "the run goes by proofs of what blocks spend: name the folder with files of them, --proofs DIR, or a \
         bridge node to ask for them, --proofs peer:HOST:PORT"
    )]
    NoneHere,
    /// What a machine is told of a range is none of that.
    #[error("what the range is told is damaged, or comes from another program")]
    Told,
}

impl RunError for ProofsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. }
            | Self::StopWithin { .. }
            | Self::Overlap { .. }
            | Self::Name { .. }
            | Self::OtherNetwork { .. }
            | Self::NoSetKept
            | Self::NoneHere
            | Self::Told => ErrorKind::Usage,
            Self::Peers(error) => match **error {
                ProofPeerError::NoBridge { .. } => ErrorKind::Usage,
                _ => ErrorKind::Io,
            },
            Self::NotThere { .. }
            | Self::Folder { .. }
            | Self::File { error: RangeFileError::Io { .. }, .. } => ErrorKind::Io,
            Self::File { .. } | Self::OtherChain { .. } | Self::Roots { .. } => ErrorKind::Wrong,
        }
    }

    fn class(&self) -> &'static str {
        match self {
            Self::NotThere { .. } => "io",
            Self::NoSetKept => "usage",
            Self::NoneHere | Self::Told => "cluster",
            _ => "proofs",
        }
    }
}

fn blocks(range: &HeightRange) -> String {
    match range.count() {
        1 => format!("block {}", range.start),
        _ => format!("blocks {} to {}", range.start, range.end - 1),
    }
}

//! [`BridgeError`]: files of proofs that are made or looked at, and the forest that makes them.

use apus_chain::{Height, HeightRange, Network};
use apus_sync::{ErrorKind, RunError};
use apus_utreexo::{CachesError, ProofBytesError, RangeFileError};

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// A file is no file of proofs, or damaged, or cannot be read.
    #[error("{file}: {error}")]
    File {
        /// The file.
        file: String,
        /// What is wrong.
        error: RangeFileError,
    },
    /// A file is about other heights than its name says.
    #[error("{file} is about blocks {found}, which is not what its name says")]
    Name {
        /// The file.
        file: String,
        /// The heights of its blocks.
        found: HeightRange,
    },
    /// A file is of another network.
    #[error("{file} is of {found}, not of the {wanted} chain: name another folder")]
    Network {
        /// The file.
        file: String,
        /// What it is of.
        found: String,
        /// The chain asked for.
        wanted: Network,
    },
    /// A file is of another chain of the network.
    #[error(
        "{file} is about another block {height} than the chain has: name another folder, or remove the file"
    )]
    Chain {
        /// The file.
        file: String,
        /// The first block that differs.
        height: Height,
    },
    /// Files do not follow one another.
    #[error("{file} begins with block {found}, and the files before it end before block {wanted}")]
    Gap {
        /// The file.
        file: String,
        /// Its first block.
        found: Height,
        /// What it should be.
        wanted: Height,
    },
    /// Files follow one another, and are not of one chain.
    #[error("{file} does not begin where the file before it ends: it has {what}")]
    Seam {
        /// The file.
        file: String,
        /// What differs.
        what: &'static str,
    },
    /// There is no file of proofs.
    #[error("{folder} holds no file of proofs")]
    None {
        /// The folder.
        folder: String,
    },
    /// An entry is no proof.
    #[error("{file}: the entry of block {height} is none: {error}")]
    Entry {
        /// The file.
        file: String,
        /// The block.
        height: Height,
        /// What is wrong.
        error: ProofBytesError,
    },
    /// The leaf data behind a proof are not one for each target.
    #[error("{file}: behind the proof of block {height} there are no leaf data of {targets} coins")]
    Data {
        /// The file.
        file: String,
        /// The block.
        height: Height,
        /// How many coins the block spends.
        targets: usize,
    },
    /// Files begin above block 1.
    #[error(
        "{file} begins with block {first}, after {leaves} leaves, and no file says what these are: proofs from \
         block 1 on are needed"
    )]
    Begins {
        /// The first file.
        file: String,
        /// Its first block.
        first: Height,
        /// Leaves before that.
        leaves: u64,
    },
    /// A proof is not one of the chain that the files are about.
    #[error("{file}: the entry of block {height} does not belong there: {error}")]
    Block {
        /// The file.
        file: String,
        /// The block.
        height: Height,
        /// What is wrong.
        error: CachesError,
    },
    /// There is no memory for as many leaves as files say that there are.
    #[error("{folder}: {error}")]
    Memory {
        /// The folder.
        folder: String,
        /// What is wrong.
        error: CachesError,
    },
    /// Files are there, and no forest with which they could be gone on.
    #[error(
        "{file} is there already, and the work folder has no forest that goes on from it: name the --workdir \
         with which it was made, or another folder"
    )]
    There {
        /// The file.
        file: String,
    },
    /// The forest is at a block up to which there are not all files.
    #[error(
        "the forest in the work folder is at block {at}, and {folder} has the proofs of blocks below {end} alone: \
         name the folder that has them, or remove {forest} to make all anew"
    )]
    Lacking {
        /// The folder.
        folder: String,
        /// Where the forest is.
        at: Height,
        /// The first block whose proof is missing.
        end: Height,
        /// The forest.
        forest: String,
    },
    /// The forest is at a block that the run does not come to.
    #[error(
        "the forest in the work folder is at block {at} {why}: name another --workdir and another folder for \
         the proofs, or remove {forest} and the proofs to make all anew"
    )]
    Beyond {
        /// Where the forest is.
        at: Height,
        /// Why that is of no use.
        why: &'static str,
        /// The forest.
        forest: String,
    },
    /// The forest cannot be gone on with.
    #[error("{forest}: {what}. Remove it and the proofs to make all anew")]
    Forest {
        /// The forest.
        forest: String,
        /// What is wrong.
        what: String,
    },
}

impl RunError for BridgeError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::File { error: RangeFileError::Io { .. }, .. }
            | Self::Forest { .. }
            | Self::Memory { .. } => ErrorKind::Io,
            Self::Network { .. }
            | Self::Chain { .. }
            | Self::None { .. }
            | Self::Begins { .. }
            | Self::There { .. }
            | Self::Lacking { .. }
            | Self::Beyond { .. } => ErrorKind::Usage,
            _ => ErrorKind::Wrong,
        }
    }
    fn class(&self) -> &'static str {
        "proofs"
    }
}

//! [`BridgeError`]: errors of proof files, and of the forest that makes them.

use apus_chain::{Height, HeightRange, Network};
use apus_sync::{ErrorKind, RunError};
use apus_utreexo::{CachesError, ProofBytesError, RangeFileError};

/// Why proof files cannot be made or read.
#[derive(Debug, thiserror::Error)]
pub enum BridgeError {
    /// A file is not a proof file, is damaged, or cannot be read.
    #[error("{file}: {error}")]
    File {
        /// The file.
        file: String,
        /// The cause.
        error: RangeFileError,
    },
    /// A file's heights do not match its name.
    #[error(
        "{file} covers blocks {found}, which does not match its name: restore its original name"
    )]
    Name {
        /// The file.
        file: String,
        /// The heights of its blocks.
        found: HeightRange,
    },
    /// A file belongs to another network.
    #[error("{file} belongs to {found}, not to the {wanted} chain: use another folder")]
    Network {
        /// The file.
        file: String,
        /// The chain that it belongs to.
        found: String,
        /// The requested chain.
        wanted: Network,
    },
    /// A file belongs to another chain of the network.
    #[error(
        "{file} has another block {height} than the chain: use another folder, or remove the file"
    )]
    Chain {
        /// The file.
        file: String,
        /// The first block that differs.
        height: Height,
    },
    /// There is a gap or an overlap between files.
    #[error(
        "{file} begins at block {found}, but should begin at block {wanted}, where the files before it end"
    )]
    Gap {
        /// The file.
        file: String,
        /// Its first block.
        found: Height,
        /// The expected first block.
        wanted: Height,
    },
    /// Adjacent files do not fit together.
    #[error("{file} does not begin where the file before it ends: it has {what}")]
    Seam {
        /// The file.
        file: String,
        /// What differs.
        what: &'static str,
    },
    /// There is no proof file.
    #[error("{folder} has no proof files")]
    None {
        /// The folder.
        folder: String,
    },
    /// An entry does not begin with a valid proof.
    #[error("{file}: invalid entry for block {height}: {error}")]
    Entry {
        /// The file.
        file: String,
        /// The block.
        height: Height,
        /// The cause.
        error: ProofBytesError,
    },
    /// The leaf data after a proof do not match its targets.
    #[error(
        "{file}: invalid entry for block {height}: no leaf data of {targets} coins after the proof"
    )]
    Data {
        /// The file.
        file: String,
        /// The block.
        height: Height,
        /// How many coins the block spends.
        targets: usize,
    },
    /// The files begin above block 1.
    #[error(
        "{file} begins at block {first}, after {leaves} leaves that no file describes: proofs from \
         block 1 on are needed"
    )]
    Begins {
        /// The first file.
        file: String,
        /// Its first block.
        first: Height,
        /// Leaves before that block.
        leaves: u64,
    },
    /// A proof does not fit the files before it.
    #[error("{file}: the entry of block {height} does not match: {error}")]
    Block {
        /// The file.
        file: String,
        /// The block.
        height: Height,
        /// The cause.
        error: CachesError,
    },
    /// Not enough memory for the number of leaves in the files.
    #[error("{folder}: {error}")]
    Memory {
        /// The folder.
        folder: String,
        /// The cause.
        error: CachesError,
    },
    /// There are files, but no forest to continue them.
    #[error(
        "{file} exists, but the work folder has no forest that continues this file: use the --workdir of the sync \
         that wrote the file, or another folder for the proofs"
    )]
    There {
        /// The file.
        file: String,
    },
    /// Files are missing below the forest's block.
    #[error(
        "the forest in the work folder is at block {at}, but {folder} has only the proofs of blocks below {end}: \
         give the folder that has all proofs, or remove {forest} to start over"
    )]
    Lacking {
        /// The folder.
        folder: String,
        /// Height of the forest.
        at: Height,
        /// The first block whose proof is missing.
        end: Height,
        /// The forest.
        forest: String,
    },
    /// The forest is at a block that this job does not reach.
    #[error(
        "the forest in the work folder is at block {at} {why}: use another --workdir and another folder for the \
         proofs, or remove {forest} and the proofs to start over"
    )]
    Beyond {
        /// Height of the forest.
        at: Height,
        /// Why the job does not reach it.
        why: &'static str,
        /// The forest.
        forest: String,
    },
    /// The forest is unusable.
    #[error("{forest}: {what}. Remove it and the proofs to start over")]
    Forest {
        /// The forest.
        forest: String,
        /// The cause.
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

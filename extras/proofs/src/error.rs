//! [`ProofsError`]: unusable proofs: bad files, or peers that do not serve them.

use crate::peers::ProofPeerError;
use apus_chain::{Height, HeightRange, KnownBlock, Network};
use apus_sync::{ErrorKind, RunError};
use apus_utreexo::RangeFileError;
use std::io;
use std::path::PathBuf;

/// Why the proofs for a job are unusable.
#[derive(Debug, thiserror::Error)]
pub enum ProofsError {
    /// Cannot open a folder or file.
    #[error("{}: {error}", folder.display())]
    Folder {
        /// The folder or file.
        folder: PathBuf,
        /// The cause.
        error: io::Error,
    },
    /// There are blocks without proofs.
    #[error(
        "{} has no proof file for {}: get that file{}", folder.display(), blocks(missing),
        match below {
            Some(below) => format!(", or stop below them with --stopatheight {below}"),
            None => String::new(),
        }
    )]
    Missing {
        /// The folder.
        folder: PathBuf,
        /// The blocks.
        missing: HeightRange,
        /// The last block of the files below, if there are any.
        below: Option<Height>,
    },
    /// The stop height lies within a file's range.
    #[error(
        "cannot stop at height {stop}: the proof files end at other heights. Use --stopatheight {}{above}",
        match below { Some(below) => format!("{below} or "), None => String::new() }
    )]
    StopWithin {
        /// The requested height.
        stop: Height,
        /// The end of the range below.
        below: Option<Height>,
        /// The end of the range around it.
        above: Height,
    },
    /// Two files cover the same block.
    #[error("{} and {} cover the same blocks: remove one of them", other.display(), file.display())]
    Overlap {
        /// One of them.
        file: PathBuf,
        /// The other.
        other: PathBuf,
    },
    /// A file is not a proof file, or is damaged.
    #[error("{}: {error}", file.display())]
    File {
        /// The file.
        file: PathBuf,
        /// The cause.
        error: RangeFileError,
    },
    /// A file's heights do not match its name.
    #[error("{} covers blocks {heights}, which does not match its name: restore its original name", file.display())]
    Name {
        /// The file.
        file: PathBuf,
        /// The blocks.
        heights: HeightRange,
    },
    /// A file belongs to another network.
    #[error("{} belongs to another network, not to {network}", file.display())]
    OtherNetwork {
        /// The file.
        file: PathBuf,
        /// The requested network.
        network: Network,
    },
    /// A file belongs to another chain.
    #[error(
        "{} has a block {height} that is not the best chain's: it belongs to a stale fork or another chain",
        file.display()
    )]
    OtherChain {
        /// The file.
        file: PathBuf,
        /// The first block that differs.
        height: Height,
    },
    /// A file does not begin with the roots at which the file before it ends.
    #[error(
        "{} does not fit the file before block {height}: it begins with other roots: {differ}. One of the two files is \
         wrong: get new ones", file.display()
    )]
    Roots {
        /// The file.
        file: PathBuf,
        /// Its first block.
        height: Height,
        /// How its roots differ from the roots below.
        differ: String,
    },
    /// The block of trusted roots is not in the best chain.
    #[error(
        "{origin}: block {block} is not in the best chain, which ends at block {} ({}). Name the block of these roots \
         by its hash or height; if it is on a stale fork, use other roots", tip.height, tip.hash
    )]
    RootsOffChain {
        /// The file of the roots.
        origin: String,
        /// The block, as the user named it.
        block: String,
        /// The last block of the chain.
        tip: KnownBlock,
    },
    /// Roots after the genesis block.
    #[error("{origin}: after the genesis block the forest is empty: leave out --roots")]
    RootsOfGenesis {
        /// The file of the roots.
        origin: String,
    },
    /// The sync does not end above the block of the roots.
    #[error(
        "{origin} has the roots of block {} ({}), but the sync ends at block {end}: nothing is left to validate",
        block.height, block.hash
    )]
    NothingAboveRoots {
        /// The file of the roots.
        origin: String,
        /// Their block.
        block: KnownBlock,
        /// The last block of the sync.
        end: Height,
    },
    /// BIP-30 needs coinbases of blocks that the roots replace.
    #[error(
        "{origin} has the roots of block {} ({}). They do not show whether a later coinbase repeats an earlier one \
         (BIP-30): {advice}", block.height, block.hash
    )]
    RootsBip30 {
        /// The file of the roots.
        origin: String,
        /// Their block.
        block: KnownBlock,
        /// What to do instead.
        advice: String,
    },
    /// All sources of proofs contradict the roots that the user trusts.
    #[error(
        "the roots in {origin} are not the roots of block {} ({}) by the proofs: {what}. Either these roots are wrong, \
         or of another block, or all proofs are wrong: check which block the roots belong to, and get roots or proofs \
         from another source", block.height, block.hash
    )]
    OtherRoots {
        /// The file of the roots.
        origin: String,
        /// Their block.
        block: KnownBlock,
        /// What the sources have instead.
        what: String,
    },
    /// No peer can serve proofs.
    #[error("cannot get proofs: {0}")]
    Peers(Box<ProofPeerError>),
    /// No bridge was found among the peers.
    #[error(
        "found no Utreexo bridge node in {seconds} seconds: no connected peer offers the proofs of all blocks (service \
         bits 12 and 13). Name a bridge: peer:HOST:PORT in place of peers"
    )]
    NoneFound {
        /// How long it waited.
        seconds: u64,
    },
    /// No peer gives the coins that blocks spend.
    #[error("cannot get the spent coins: {0}")]
    Spent(Box<ProofPeerError>),
    /// Data for a block or a range is unavailable.
    #[error("{what}")]
    NotThere {
        /// What is missing, and why.
        what: String,
    },
    /// The caller wants a UTXO set written.
    #[error(
        "the engine utreexo keeps no UTXO set: it validates each block by the coins that its proofs show, and ends \
         with only the roots of the forest. It writes only these roots (utreexo:FILE): for a set, use another \
         engine"
    )]
    NoSetKept,
    /// A machine must process ranges of a job, but has no proofs.
    #[error(
        "this job validates with Utreexo proofs: give the folder with proof files, --proofs DIR, or a bridge node, \
         --proofs peer:HOST:PORT"
    )]
    NoneHere,
    /// The payload for a range is invalid.
    #[error("the payload of the range is damaged, or comes from another program")]
    Payload,
}

impl RunError for ProofsError {
    fn kind(&self) -> ErrorKind {
        match self {
            Self::Missing { .. }
            | Self::StopWithin { .. }
            | Self::Overlap { .. }
            | Self::Name { .. }
            | Self::OtherNetwork { .. }
            | Self::RootsOffChain { .. }
            | Self::RootsOfGenesis { .. }
            | Self::NothingAboveRoots { .. }
            | Self::RootsBip30 { .. }
            | Self::NoSetKept
            | Self::NoneHere
            | Self::Payload => ErrorKind::Usage,
            Self::Peers(error) => match **error {
                ProofPeerError::NoBridge { .. } => ErrorKind::Usage,
                _ => ErrorKind::Io,
            },
            Self::NotThere { .. }
            | Self::NoneFound { .. }
            | Self::Spent(_)
            | Self::Folder { .. }
            | Self::File { error: RangeFileError::Io { .. }, .. } => ErrorKind::Io,
            Self::File { .. }
            | Self::OtherChain { .. }
            | Self::Roots { .. }
            | Self::OtherRoots { .. } => ErrorKind::Wrong,
        }
    }

    fn class(&self) -> &'static str {
        match self {
            Self::NotThere { .. } | Self::Spent(_) => "io",
            Self::RootsOffChain { .. }
            | Self::RootsOfGenesis { .. }
            | Self::NothingAboveRoots { .. }
            | Self::RootsBip30 { .. }
            | Self::NoSetKept => "usage",
            Self::NoneHere | Self::Payload => "cluster",
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

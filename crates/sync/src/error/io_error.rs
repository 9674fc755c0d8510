//! [`IoError`]: this machine, or this program, is at fault: what was written cannot be read, a disk is full.

use apus_chain::{BlockHash, CoinError, Height, Txid, UtxoSetHash};
use std::io;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum IoError {
    /// A script could not be run.
    #[error("{what}")]
    Script {
        /// Which, and why.
        what: String,
    },
    /// A block was connected, and the most-work chain has another one there now.
    #[error(
        "block {height} ({hash}) was connected by an earlier start, the chain has another block \
         there now, and no sound copy of the old one can be had any more: remove the \
         work folder to start anew"
    )]
    StaleBlock {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
    },
    /// The set that hints led to, made from the set itself, is another one.
    #[error(
        "taking the blocks once more for the hints led to the set {found} and not to {known}: this \
         is a mistake in the program; no hints were written"
    )]
    HintsOfSet {
        /// The set that the second pass led to.
        found: UtxoSetHash,
        /// The set that it was made from.
        known: UtxoSetHash,
    },
    /// A run's bytes are not those that were written.
    #[error("{file} is damaged; its segment will be processed anew: start the same run again")]
    RunDamaged {
        /// Name in the storage.
        run: String,
        /// What to call it in front of people.
        file: String,
    },
    /// The merged coins are not those that were counted.
    #[error(
        "the coins written ({written}) are not those that the segments kept ({kept}): this is a \
         mistake in the program, and nothing was written under the output's name"
    )]
    CoinCount {
        /// Coins in the merged runs.
        written: u64,
        /// Coins counted by the engine.
        kept: u64,
    },
    /// The coins of the store are not those that the blocks led to.
    #[error(
        "the coins in {store} are not those that the blocks led to: its disk or the memory lost, \
         brought back or changed some of them, or this is a mistake in the program; nothing was \
         written under the output's name. Check disk and memory; then remove {progress}, and start \
         the same run again"
    )]
    CoinsChanged {
        /// The store.
        store: String,
        /// What holds the run's progress, of which the store is a part.
        progress: String,
    },
    /// The system has no room for as many threads.
    #[error("cannot start {wanted} threads: {error}; ask for fewer with --par")]
    Threads {
        /// How many were asked for.
        wanted: usize,
        /// What the system says.
        error: io::Error,
    },
    /// A group of coins cannot be read back.
    #[error("the coins of transaction {txid} cannot be read back: {error}")]
    Group {
        /// The transaction.
        txid: Txid,
        /// What is wrong.
        error: CoinError,
    },
    /// What was there before was moved aside, the new folder did not get its name, and what was moved
    /// could not be put back.
    #[error(
        "{path}: {error}. What was there is whole in {aside}, and could not be put back: {back}. The \
         new folder is whole in {draft}. Rename {aside} to {path} and start again with the same \
         command, which takes {draft} up"
    )]
    NotPublished {
        /// The name that is missing.
        path: String,
        /// The new folder.
        draft: String,
        /// The old one.
        aside: String,
        /// Why the new one did not get the name.
        error: std::io::Error,
        /// Why the old one could not be put back.
        back: std::io::Error,
    },
    /// A folder that was written is not there any more when the run ends.
    #[error(
        "{folder} is not the folder any more that this run has written: it was moved, removed \
         or replaced meanwhile. Look for it, or start again"
    )]
    FolderGone {
        /// The folder.
        folder: String,
    },
    /// A chainstate could not be written, or not read back.
    #[error(transparent)]
    CoreChainstate(#[from] apus_datadir::chainstate::ChainstateDbError),
    /// The index of blocks could not be written.
    #[error(transparent)]
    BlockIndex(#[from] apus_datadir::IndexWriteError),
    /// What was written is not what was to be written.
    #[error(
        "{folder} was read back, and {what}: the disk or its memory changed what was written, or \
         this is a mistake in the program; the folder did not get its name"
    )]
    ReadBack {
        /// The folder.
        folder: String,
        /// In what it differs.
        what: String,
    },
    /// The index of blocks that was written is not what was to be written.
    #[error(
        "{0}: the disk or its memory changed what was written, or this is a mistake in the program; \
         no folder was completed. Start the same run again, which writes the index anew"
    )]
    IndexReadBack(Box<apus_datadir::ReadBackError>),
    /// Blocks or undo data that were written are not what was to be written.
    #[error(
        "{error}: the disk or its memory changed what was written, or this is a mistake in the \
         program; no folder was completed. Check the disk; then remove {workdir}, which holds \
         the progress, and start the same run again: it writes all of them anew"
    )]
    BlocksReadBack {
        /// In what they differ.
        error: Box<apus_datadir::ReadBackError>,
        /// The work folder.
        workdir: String,
    },
    /// The same of blocks that were kept on their way from peers.
    #[error(
        "{error}: the disk or its memory changed what was written, or this is a mistake in the \
         program; the blocks got no index. Check the disk; then remove {folder} with the blocks and \
         {workdir}, which holds the progress, move away what else was written, and start the same \
         run again: it gets all of them anew"
    )]
    KeptReadBack {
        /// In what they differ.
        error: Box<apus_datadir::ReadBackError>,
        /// The folder of the blocks.
        folder: String,
        /// The work folder.
        workdir: String,
    },
    /// What was written could not be read.
    #[error("what was written could not be read back: {0}, and start the same run again")]
    NotReadBack(Box<apus_datadir::ReadBackError>),
    /// A disk is too small.
    #[error(
        "{folder} is on a disk with {free} bytes free, and up to {needed} are needed: free some \
         space and start the same run again"
    )]
    NoRoom {
        /// The folder.
        folder: String,
        /// Bytes needed at most.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A work folder in which something is not as it was written.
    #[error(
        "{file} is damaged, or of another version of Apus: if its folder holds nothing but a \
         run's progress, remove the folder to start anew; otherwise name another --workdir"
    )]
    WorkdirDamaged {
        /// The file.
        file: String,
    },
    /// Files of ours could not be read or written.
    #[error("{file}: {error}{}", remedy(.error))]
    Storage {
        /// The file.
        file: String,
        /// What the system says.
        error: io::Error,
    },
    /// The system gave no random bytes for the secret.
    #[error("no random bytes for the aggregate's key: {0}")]
    Random(String),
}

/// What a person can do about an error of the system.
fn remedy(error: &io::Error) -> &'static str {
    match error.kind() {
        io::ErrorKind::StorageFull => "; free some space and start the same run again",
        io::ErrorKind::PermissionDenied => "; allow access, or name another place",
        io::ErrorKind::ReadOnlyFilesystem => "; name a place that can be written to",
        _ => "",
    }
}

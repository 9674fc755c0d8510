//! [`SyncError`]: everything that can end a run, in the four kinds that exit codes tell apart.

mod anchored;
mod beyond;
mod source;

pub use anchored::NotAnchored;
pub use beyond::{Gap, InvalidBlock};
pub use source::SourceError;

use apus_chain::{BlockError, BlockHash, CoinError, Height, OutPoint, Txid, UtxoSetHash};
use apus_engine::script::ScriptPoolError;
use apus_engine::swiftsync::SwiftSyncError;
use apus_engine::swiftsync::hints::{HintsError, HintsErrorKind};
use apus_engine::utxo::{ChainstateError, StoreError};
use apus_storage::Storage;
use std::io;

/// What an error means for the user that started the run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ErrorKind {
    /// The question was wrong: options that do not fit together, a file for another chain.
    Usage,
    /// The data was wrong: a block breaks a rule, hints are damaged, the sums do not balance.
    Invalid,
    /// Reading or writing failed.
    Io,
    /// The run was stopped; its progress is kept.
    Interrupted,
}

/// Why a run ended without a result.
#[derive(Debug, thiserror::Error)]
pub enum SyncError {
    /// The blocks or their headers.
    #[error(transparent)]
    Source(#[from] SourceError),
    /// The network.
    #[error(transparent)]
    Network(#[from] apus_p2p::network::NetworkError),
    /// The blocks that are kept.
    #[error(transparent)]
    Kept(#[from] apus_datadir::KeptBlocksError),
    /// The hints as a file.
    #[error("{file}: {error}")]
    Hints {
        /// The file.
        file: String,
        /// What is wrong.
        error: HintsError,
    },
    /// A snapshot given as hints.
    #[error("{file}: {error}")]
    Snapshot {
        /// The file.
        file: String,
        /// What is wrong.
        error: apus_datadir::snapshot::SnapshotError,
    },
    /// A block of the chain breaks a rule.
    #[error("block {height} ({hash}) is invalid: {error} [{}]", .error.reason())]
    InvalidBlock {
        /// Its height.
        height: Height,
        /// Its hash.
        hash: BlockHash,
        /// The rule.
        error: BlockError,
    },
    /// A block of the chain breaks a rule, or cannot be had, and the run cannot go on without it.
    #[error("{error}. {why}")]
    NoWayOn {
        /// What is wrong with the block.
        error: Box<SyncError>,
        /// Why there is no other way.
        why: NoWayOn,
    },
    /// The engine.
    #[error(transparent)]
    Engine(#[from] SwiftSyncError),
    /// The hints end above the chain.
    #[error(
        "the hints stop at height {stop}, but the chain that was found ends at {tip}{gap}: add the \
         missing block files, or connect to peers that have more of it, or use hints for a height up \
         to {tip}"
    )]
    ChainTooShort {
        /// The hints' stop height.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// What lies beyond.
        gap: Gap,
    },
    /// Files are to be written of a set that would not be proven.
    #[error(
        "without an aggregate nothing proves the hints right, so no file is written: leave the \
         outputs out, or use another aggregate"
    )]
    Unproven,
    /// The run is to end at no block after genesis.
    #[error("the run would end at height 0: there is nothing to do")]
    NothingToDo,
    /// Blocks are to be connected, and nothing says how.
    #[error("blocks above the hints are to be connected, but no coins folder was named")]
    NothingToConnect,
    /// The run is to end above the chain.
    #[error(
        "the run is to stop at height {stop}, but the chain that was found ends at {tip}{gap}: add \
         the missing block files, or connect to peers that have more of it, or stop at a height up \
         to {tip}"
    )]
    StopAboveTip {
        /// What was asked for.
        stop: Height,
        /// The chain's tip.
        tip: Height,
        /// What lies beyond.
        gap: Gap,
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
    /// Connecting blocks.
    #[error("{error}")]
    Chainstate {
        /// What went wrong.
        error: Box<ChainstateError>,
    },
    /// The coins of a run that connects blocks.
    #[error(transparent)]
    Coins(#[from] StoreError),
    /// Scripts are to be run.
    #[error(transparent)]
    Scripts(#[from] ScriptPoolError),
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
    /// The hints are bound to a block that is not on the chain.
    #[error(
        "the hints are for block {base}, which is not on the most-work chain that was found: they \
         were made on a stale fork or another chain, or block files are missing, or the peers \
         have another chain"
    )]
    BaseNotOnChain {
        /// The block.
        base: BlockHash,
    },
    /// Hints under which blocks would be taken that Core checks.
    #[error(transparent)]
    NotAnchored(Box<NotAnchored>),
    /// `--stopatheight` and the hints disagree.
    #[error(
        "the run is to stop at height {wanted}, but the hints are for height {hints}: the coins \
         that survive depend on where the run stops"
    )]
    StopHeight {
        /// What was asked for.
        wanted: Height,
        /// What the hints hold.
        hints: Height,
    },
    /// One transaction id in two blocks, with coins of both surviving.
    #[error(
        "two blocks create transaction {txid}, and coins of both survive, which BIP-30 forbids"
    )]
    DuplicateTransaction {
        /// The id.
        txid: Txid,
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
        "the coins in the work folder are not those that the blocks led to: its disk or the memory \
         lost, brought back or changed some of them, or this is a mistake in the program; nothing was \
         written under the output's name. Check disk and memory; then remove {workdir}, which holds \
         the progress, and start the same run again"
    )]
    CoinsChanged {
        /// The work folder.
        workdir: String,
    },
    /// Core's own table of snapshots has another set for the stop block.
    #[error(
        "the set's hash_serialized_3 is {found}, but Bitcoin Core's own table of snapshots has \
         {known} for block {stop_hash}: either scripts or amounts that are assumed valid here are \
         not, or this is a mistake in the program; nothing was written under the output's name"
    )]
    AssumeUtxo {
        /// The stop block.
        stop_hash: BlockHash,
        /// What the blocks lead to.
        found: UtxoSetHash,
        /// What the table has.
        known: UtxoSetHash,
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
    /// A coin of a snapshot that claims a height outside the chain up to the snapshot's block.
    #[error(
        "{file}: coin {outpoint} claims to be from block {height}, which is not between 1 and the \
         snapshot's own block: the snapshot is damaged"
    )]
    CoinHeight {
        /// The snapshot.
        file: String,
        /// The coin.
        outpoint: OutPoint,
        /// The height that it claims.
        height: Height,
    },
    /// A snapshot given as hints was written to while it was read.
    #[error("{file} changed while it was read: start again with a file that no program writes to")]
    HintsChanged {
        /// The snapshot.
        file: String,
    },
    /// A file of the output's name appeared that is not this run's.
    #[error("{file} exists already and is something else: remove it, or name another output")]
    OutputExists {
        /// The file.
        file: String,
    },
    /// Another run writes the same folder.
    #[error("another run is writing {draft}: wait until it has ended, or name another folder")]
    DraftInUse {
        /// Where it writes.
        draft: String,
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
    /// A folder that is to be moved could not be locked first.
    #[error(transparent)]
    Lock(#[from] apus_datadir::LockError),
    /// A chainstate could not be written, or not read back.
    #[error(transparent)]
    CoreChainstate(#[from] apus_datadir::chainstate::ChainstateError),
    /// Blocks, undo data or their index could not be written.
    #[error(transparent)]
    BlockStore(#[from] apus_datadir::BlockStoreError),
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
    /// A data directory with blocks and undo data cannot come from hints.
    #[error(
        "undo data are the coins that each block spends, which a run with hints never sees: leave \
         out the hints, or ask for a pruned data directory, which has those of the last blocks alone"
    )]
    NoUndo,
    /// A work folder that belongs to another run.
    #[error(
        "{folder} holds the progress of another run ({what}): finish that one, name another \
         --workdir, or remove the folder to give its progress up"
    )]
    OtherRun {
        /// The work folder.
        folder: String,
        /// What is different.
        what: String,
    },
    /// A folder that no run made.
    #[error(
        "{folder} holds {name}, which is no file of a run, and cannot be a work folder: name \
         another --workdir, which need not be there yet"
    )]
    NotAWorkFolder {
        /// The folder.
        folder: String,
        /// A file in it.
        name: String,
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
    /// The run was stopped.
    #[error("interrupted; progress is kept, and the same command goes on from here")]
    Interrupted,
}

/// Why a run cannot go on without a block.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum NoWayOn {
    /// The block is one of those that hints are about.
    #[error(
        "The hints reach over it, up to block {stop}, so the blocks given are no valid chain for these \
         hints: use hints that stop below it, or none. Without hints the run puts the block aside and \
         goes on along the best chain that is left"
    )]
    UnderHints {
        /// Where the hints stop.
        stop: Height,
    },
    /// The best chain that is left does not have the block where the hints stop.
    #[error(
        "The best chain without it parts from this one below block {stop}, where the hints stop, so \
         they are of no use for it: use hints of that chain, or none"
    )]
    BelowHints {
        /// Where the hints stop.
        stop: Height,
    },
    /// A node's own index has the block as valid.
    #[error(
        "The node's own block index has it as valid, so either the node's files are damaged or this \
         program or machine is at fault. Nothing was changed: `bitcoind -reindex` makes the node \
         judge its blocks anew"
    )]
    Connected,
    /// There is no other block.
    #[error("Nothing but the genesis block is left without it: give a folder with other blocks")]
    Nothing,
    /// Too many blocks were put aside.
    #[error(
        "{count} blocks proved invalid before it, and no more are put aside: this is no folder that a \
         node made; give one with other blocks"
    )]
    TooMany {
        /// How many.
        count: usize,
    },
    /// Peers have no other chain.
    #[error(
        "Peers have no other chain of about as much work: see that they are of this network, or start \
         again once the chain with the most work is another one"
    )]
    Peers,
}

impl SyncError {
    /// The same, with the reason why the run cannot go on without the block.
    pub(crate) fn without_way(self, why: NoWayOn) -> Self {
        Self::NoWayOn { error: Box::new(self), why }
    }

    /// What it means.
    pub fn kind(&self) -> ErrorKind {
        match self {
            Self::NoWayOn { error, .. } => error.kind(),
            Self::Source(error) => error.kind(),
            Self::Network(apus_p2p::network::NetworkError::Listen { .. }) => ErrorKind::Usage,
            Self::Network(_) => ErrorKind::Io,
            Self::Kept(apus_datadir::KeptBlocksError::Foreign { .. }) => ErrorKind::Usage,
            Self::Kept(error) => match error.kind() {
                apus_datadir::ErrorKind::Invalid => ErrorKind::Invalid,
                _ => ErrorKind::Io,
            },
            Self::Hints { error, .. } => {
                if error.kind() == HintsErrorKind::Io {
                    ErrorKind::Io
                } else {
                    ErrorKind::Invalid
                }
            }
            Self::Snapshot {
                error: apus_datadir::snapshot::SnapshotError::OtherNetwork { .. },
                ..
            } => ErrorKind::Usage,
            Self::Snapshot { error, .. } => match error.kind() {
                apus_datadir::ErrorKind::Invalid => ErrorKind::Invalid,
                _ => ErrorKind::Io,
            },
            Self::Engine(_)
            | Self::CoinHeight { .. }
            | Self::HintsChanged { .. }
            | Self::InvalidBlock { .. }
            | Self::AssumeUtxo { .. }
            | Self::DuplicateTransaction { .. }
            | Self::BaseNotOnChain { .. } => ErrorKind::Invalid,
            Self::ChainTooShort { .. } | Self::StopAboveTip { .. } => ErrorKind::Invalid,
            Self::Chainstate { error } => chainstate_kind(error),
            Self::Coins(error) => store_kind(error),
            Self::Scripts(ScriptPoolError::NoInterpreter(_)) => ErrorKind::Usage,
            Self::NothingToDo
            | Self::NothingToConnect
            | Self::Unproven
            | Self::NoUndo
            | Self::NotAnchored(_)
            | Self::StopHeight { .. }
            | Self::OtherRun { .. } => ErrorKind::Usage,
            Self::OutputExists { .. } | Self::DraftInUse { .. } | Self::NotAWorkFolder { .. } => {
                ErrorKind::Usage
            }
            Self::Lock(apus_datadir::LockError::InUse { .. }) => ErrorKind::Usage,
            Self::RunDamaged { .. }
            | Self::StaleBlock { .. }
            | Self::HintsOfSet { .. }
            | Self::Scripts(_)
            | Self::CoinCount { .. }
            | Self::CoinsChanged { .. }
            | Self::Group { .. }
            | Self::WorkdirDamaged { .. }
            | Self::Lock(_)
            | Self::CoreChainstate(_)
            | Self::BlockStore(_)
            | Self::BlockIndex(_)
            | Self::ReadBack { .. }
            | Self::IndexReadBack(_)
            | Self::BlocksReadBack { .. }
            | Self::KeptReadBack { .. }
            | Self::NotReadBack(_)
            | Self::NoRoom { .. }
            | Self::Storage { .. }
            | Self::NotPublished { .. }
            | Self::FolderGone { .. }
            | Self::Random(_)
            | Self::Threads { .. } => ErrorKind::Io,
            Self::Interrupted => ErrorKind::Interrupted,
        }
    }
}

fn chainstate_kind(error: &ChainstateError) -> ErrorKind {
    match error {
        ChainstateError::Invalid { .. } => ErrorKind::Invalid,
        ChainstateError::Store(error) => store_kind(error),
        ChainstateError::NoInterpreter(_) => ErrorKind::Usage,
        _ => ErrorKind::Io,
    }
}

fn store_kind(error: &StoreError) -> ErrorKind {
    match error {
        StoreError::OtherNetwork { .. }
        | StoreError::Newer { .. }
        | StoreError::InUse { .. }
        | StoreError::Foreign { .. } => ErrorKind::Usage,
        _ => ErrorKind::Io,
    }
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

/// Puts a file's name to an error of the system.
pub(crate) trait StorageResult<T> {
    /// Names the file `name` of `storage`.
    fn at(self, storage: &dyn Storage, name: &str) -> Result<T, SyncError>;
}

impl<T> StorageResult<T> for io::Result<T> {
    fn at(self, storage: &dyn Storage, name: &str) -> Result<T, SyncError> {
        self.map_err(|error| SyncError::Storage { file: storage.describe(name), error })
    }
}

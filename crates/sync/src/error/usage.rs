//! [`UsageError`]: the question was wrong: options that do not fit together, a folder that is not this run's.

use super::SyncError;
use apus_chain::{Height, KnownBlock, ScriptCheckReason};
use std::fmt;

/// See the module.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// Files are to be written of a set that would not be proven.
    #[error(
        "without an aggregate nothing proves the hints right, so no file is written: leave the \
         outputs out, or use another aggregate"
    )]
    Unproven,
    /// What no caller tells apart, in words.
    #[error("{0}")]
    Other(String),
    /// The run is to end at no block after genesis.
    #[error("the run would end at height 0: there is nothing to do")]
    NothingToDo,
    /// Blocks are to be connected, and nothing says how.
    #[error("blocks above the hints are to be connected, but no coins folder was named")]
    NothingToConnect,
    /// A run that other machines cannot take part in.
    #[error(
        "machines share runs by hints up to where these stop, and those of engines that take blocks in any order, as mergesync: {what} is \
         not done by several yet. Run `apus sync` on one machine for it"
    )]
    NotOnCluster {
        /// What was asked for.
        what: &'static str,
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
}

impl SyncError {
    /// The question was wrong, in words.
    pub(crate) fn usage(what: impl Into<String>) -> Self {
        Self::Usage(UsageError::Other(what.into()))
    }
}

// [`NotAnchored`]: hints that are refused, since nothing vouches for blocks under them.

/// Hints that are refused.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnchored {
    /// The last block that would be taken under them.
    pub last: KnownBlock,
    /// Why Core would run its scripts.
    pub reason: ScriptCheckReason,
    /// The last block whose scripts Core would not run, if there is one above genesis.
    pub last_assumed: Option<Height>,
    /// Whether all would be well if the last block were the assumed-valid one.
    pub could_be_assumed: bool,
}

impl NotAnchored {
    /// Whether it may be otherwise on a chain that goes on further.
    pub fn depends_on_chain(&self) -> bool {
        matches!(
            self.reason,
            ScriptCheckReason::NotInHeaders
                | ScriptCheckReason::NotInBestChain
                | ScriptCheckReason::TooLittleWork
                | ScriptCheckReason::TooRecent
        )
    }
}

impl std::error::Error for NotAnchored {}

impl fmt::Display for NotAnchored {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { last: KnownBlock { height, hash }, reason, last_assumed, could_be_assumed } =
            self;
        write!(
            f,
            "block {height} ({hash}) would be taken under hints, and Bitcoin Core would check it: \
             {reason}. That hints and blocks fit each other does not make the blocks valid, so hints \
             may reach no further than what Core assumes valid. What helps: "
        )?;
        if let Some(height) = last_assumed {
            write!(f, "hints that stop at block {height} or below; ")?;
        }
        f.write_str(
            "no hints, so that every rule is checked; a node's own folder of blocks with their undo \
             data, by which every rule is checked under hints, too; ",
        )?;
        if *could_be_assumed {
            write!(f, "--assumevalid {hash}, if you know that this block is valid; ")?;
        }
        f.write_str(
            "or --assumevalid hints, if you know where the hints are from and take the blocks for \
             valid yourself",
        )
    }
}

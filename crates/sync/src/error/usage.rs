//! [`UsageError`]: the request is wrong: options that contradict each other, or a folder of another sync.

use super::SyncError;
use apus_chain::{Height, KnownBlock, ScriptCheckReason};
use std::fmt;

/// An error in the request.
#[derive(Debug, thiserror::Error)]
pub enum UsageError {
    /// The request has an output, but no aggregate to prove the set.
    #[error(
        "without an aggregate nothing proves the hints right, so no output is written: leave out --out, or use \
         another --aggregate"
    )]
    Unproven,
    /// Any other invalid request, as a text: no caller handles it separately.
    #[error("{0}")]
    Other(String),
    /// The requested range has no block after genesis.
    #[error(
        "the requested range ends at height 0, so there is nothing to do: use a higher --stopatheight, or hints \
         for a higher block"
    )]
    NothingToDo,
    /// Blocks must be connected, and no coins folder is given.
    #[error("connecting the blocks above the hints needs a coins folder, but none was given")]
    NothingToConnect,
    /// Hints cannot state the set at this height.
    #[error(
        "hints cannot state the coins at height {height}: they do not count coinbases that a later block repeats \
         (BIP-30), which are unspent there. Use --engine mergesync without hints and without --out hints:, or another \
         height"
    )]
    Uncounted {
        /// The height.
        height: Height,
    },
    /// Other machines cannot take part in this sync.
    #[error(
        "{what} cannot be shared among machines yet: run `apus sync` on one machine instead. Machines can share \
         syncs by hints, up to where the hints stop, and syncs of engines that take blocks in any order, such as \
         mergesync"
    )]
    NotOnCluster {
        /// What was requested.
        what: &'static str,
    },
    /// Hints would cover blocks that Core checks.
    #[error(transparent)]
    NotAnchored(Box<NotAnchored>),
    /// The stop height and the hints disagree.
    #[error(
        "stop height {wanted} was requested, but the hints are for height {hints}: use --stopatheight {hints}, or \
         use hints for {wanted}. Which coins survive depends on the stop height"
    )]
    StopHeight {
        /// The requested stop height.
        wanted: Height,
        /// The height of the hints.
        hints: Height,
    },
    /// A file of another program has the output's name.
    #[error(
        "{file} exists already and was not written by this sync: remove it, or use another output"
    )]
    OutputExists {
        /// The file.
        file: String,
    },
    /// Another sync writes the same folder.
    #[error(
        "{draft}: another sync is writing this folder: wait until it ends, or use another folder"
    )]
    DraftInUse {
        /// The folder.
        draft: String,
    },
    /// A data directory with all blocks needs undo data, and neither hints nor the source have it.
    #[error(
        "a data directory with all blocks needs their undo data, which hints do not contain and the source of the \
         blocks does not have for all of them: leave out --hints, or add --prune, which needs undo data only for the \
         last blocks"
    )]
    NoUndo,
    /// A data directory with all blocks needs undo data, and nothing would prove it.
    #[error(
        "a data directory with all blocks needs their undo data, and with --assumevalid hints or another --aggregate, \
         nothing proves it: leave out that option, or leave out --hints, or add --prune"
    )]
    UndoUnproven,
    /// A data directory with all blocks gets spent coins from bridges only for blocks from peers, which are kept.
    #[error(
        "a data directory with all blocks gets spent coins from bridges only if its blocks come from peers and are \
         kept: take the blocks from peers, or leave out the bridges and the hints, or add --prune"
    )]
    SpentNotKept,
    /// The work folder belongs to another sync.
    #[error(
        "{folder} holds the progress of another sync ({what}). Choose one: finish that sync, use another \
         --workdir, or remove the folder to discard its progress"
    )]
    OtherRun {
        /// The work folder.
        folder: String,
        /// The difference.
        what: String,
    },
    /// The folder was not made by a sync.
    #[error(
        "{folder} holds {name}, which is not a file of a sync, so {folder} cannot be a work folder: use another \
         --workdir. Apus creates the folder if it is missing"
    )]
    NotAWorkFolder {
        /// The folder.
        folder: String,
        /// A file in it.
        name: String,
    },
}

impl SyncError {
    /// Makes the error for an invalid request from a text.
    pub fn usage(what: impl Into<String>) -> Self {
        Self::Usage(UsageError::Other(what.into()))
    }
}

// [`NotAnchored`]: the error for hints that cover blocks which Core would check.

/// Why hints are rejected.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct NotAnchored {
    /// The last block that the hints would cover.
    pub last: KnownBlock,
    /// Why Core would run the scripts of that block.
    pub reason: ScriptCheckReason,
    /// The last block whose scripts Core would not run, if there is one above genesis.
    pub last_assumed: Option<Height>,
    /// Whether naming the last block as the assumed-valid one would be enough.
    pub could_be_assumed: bool,
}

impl NotAnchored {
    /// Returns whether a longer chain may make the hints acceptable.
    pub fn depends_on_chain(&self) -> bool {
        matches!(
            self.reason,
            ScriptCheckReason::NotInHeaders
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
            "the hints cover block {height} ({hash}), which Bitcoin Core would check: {reason}. Matching hints do \
             not prove blocks valid, so hints may reach no further than what Core assumes valid. Choose one: "
        )?;
        if let Some(height) = last_assumed {
            write!(f, "hints that stop at block {height} or below; ")?;
        }
        f.write_str(
            "no hints, which checks every rule; a node's own blocks folder with undo data or, in a build with Utreexo, \
             --spent peer:BRIDGE, which check every rule under hints as well; ",
        )?;
        if *could_be_assumed {
            write!(f, "--assumevalid {hash}, if you know that this block is valid; ")?;
        }
        f.write_str(
            "or --assumevalid hints, if you know where the hints come from and take the blocks for \
             valid yourself",
        )
    }
}

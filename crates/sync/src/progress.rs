//! The events that a sync reports while it works. Libraries never print: they emit [`Event`]s, and one place
//! renders them.

use crate::error::SyncError;
use crate::warning::Warning;
use apus_chain::{BlockHash, Height, HeightRange};
use std::ops::ControlFlow;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What disk space is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskUse {
    /// Progress, in the work folder.
    Progress,
    /// An output that another crate builds, at its own paths.
    Extra {
        /// A word for it, for programs.
        word: &'static str,
        /// Its name, for people.
        what: &'static str,
    },
}

/// A part of a sync that is timed and shown separately.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Finding blocks and their headers, and the most-work chain.
    Headers,
    /// Finding the undo data, if no index has their places.
    Undo,
    /// Reading the hints once, to check their form and find each segment's place.
    Hints,
    /// Reading the inputs of the last blocks, if hints cover these blocks and they must be connected.
    Spends,
    /// Checking blocks and running the engine.
    Blocks,
    /// Copying blocks and their undo data into a data directory, if hints cover these blocks.
    Copy,
    /// Joining spends with created coins.
    Join,
    /// Storing the coins below the blocks that are connected in order, for looking them up.
    Fill,
    /// Connecting blocks in ascending height, with coins that are looked up or joined.
    Connect,
    /// Collecting the coins in order and writing them out.
    Coins,
    /// Writing the block index of a data directory.
    Index,
    /// Reading back the coins that were written into a folder for Bitcoin Core.
    CheckCoins,
    /// Reading back the blocks and undo data that were written into such a folder, or kept next to one.
    CheckBlocks,
    /// Comparing a node's coins with the result of its blocks.
    Compare,
    /// Checking blocks of a node one by one.
    Survey,
    /// A phase of another crate, by its word.
    Extra(&'static str),
}

impl Phase {
    /// Returns a word for tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Undo => "undo",
            Self::Hints => "hints",
            Self::Spends => "spends",
            Self::Blocks => "blocks",
            Self::Copy => "copy",
            Self::Join => "join",
            Self::Fill => "fill",
            Self::Connect => "connect",
            Self::Coins => "coins",
            Self::Index => "index",
            Self::CheckCoins => "check-coins",
            Self::CheckBlocks => "check-blocks",
            Self::Compare => "compare",
            Self::Survey => "survey",
            Self::Extra(word) => word,
        }
    }
}

/// How far a sync is. Includes the work of earlier starts.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blocks processed; the engines that work in any order do not process the lowest first.
    pub blocks: u64,
    /// Total number of blocks.
    pub blocks_total: u64,
    /// Bytes of blocks processed.
    pub bytes: u64,
    /// Total bytes of blocks; 0 if unknown.
    pub bytes_total: u64,
    /// Approximate bytes of the processed blocks, if sizes are only estimated from heights; in
    /// [`Phase::CheckCoins`] the work done; 0 in other phases.
    pub weight: u64,
    /// The total of `weight` for all blocks.
    pub weight_total: u64,
    /// Coins kept so far; stored in [`Phase::Fill`], written in [`Phase::Coins`], read back in [`Phase::CheckCoins`].
    pub coins: u64,
    /// Total number of coins, in phases that go over coins; 0 in others.
    pub coins_total: u64,
    /// Approximate number of coins that the processed blocks leave, before it is known which: an estimate for
    /// the phases that go over coins. 0 in other phases.
    pub coins_about: u64,
}

/// How a chain was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainBy {
    /// Block files.
    Files {
        /// Number of files scanned.
        files: usize,
        /// Whether Core's block index gave the places.
        index: bool,
    },
    /// Headers from peers.
    Peers,
}

/// A block range that is processed as a unit, in a pass in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its heights.
    pub range: HeightRange,
    /// Approximate bytes of its blocks.
    pub bytes: u64,
    /// Its state.
    pub state: SegmentState,
}

/// The state of a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// Not begun.
    Waiting,
    /// A thread works on it.
    Begun,
    /// Done, by this start or an earlier one.
    Done,
}

/// Interval between progress reports.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// An event of a sync.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A phase begins.
    Started(Phase),
    /// A phase ended.
    Ended {
        /// The phase.
        phase: Phase,
        /// Bytes read of the phase's input.
        bytes: u64,
    },
    /// A phase ends for now: it begins again with the next batch of blocks.
    Paused {
        /// The phase.
        phase: Phase,
        /// Bytes read of the phase's input since it began.
        bytes: u64,
    },
    /// The most-work chain is known.
    ChainFound {
        /// Its last block with data.
        tip: BlockHash,
        /// That block's height.
        height: Height,
        /// How it was found.
        by: ChainBy,
    },
    /// The sync will use disk space.
    DiskNeeded {
        /// The purpose.
        what: DiskUse,
        /// Approximate upper bound in bytes.
        bytes: u64,
        /// Free bytes.
        free: u64,
    },
    /// A sync that follows the tip moves to another tip.
    Tip {
        /// Its height.
        height: Height,
        /// Its hash.
        tip: BlockHash,
    },
    /// A sync that follows the tip has reached it, and waits. Sent repeatedly.
    Waiting {
        /// The tip's height.
        height: Height,
        /// Its hash.
        tip: BlockHash,
    },
    /// The sync continues an earlier start's work.
    Resumed {
        /// Finished segments; blocks, if they are connected in order.
        segments: usize,
        /// Their total number.
        of: usize,
    },
    /// A later phase will have this much to do, none of it done yet. Sent as soon as it is known, so that the
    /// progress of the whole sync can be estimated.
    Ahead(Phase, Progress),
    /// A pass begins, over these segments.
    Segments(Vec<Segment>),
    /// The state of a segment changed.
    Segment(HeightRange, SegmentState),
    /// The progress of the phase.
    Progress(Phase, Progress),
    /// Something that the user should know but that does not stop the sync.
    Warning(Warning),
    /// Other machines take part; sent every few seconds, and once more when they are done.
    Workers(Workers),
    /// Much memory was freed at once: a good moment to return the allocator's free memory to the system.
    MemoryFreed,
}

/// The machines that take part in a sync.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// The machines, by name.
    pub all: Vec<Worker>,
    /// How long this machine spent handing out jobs and taking in results, which no other machine can share.
    pub handling: Duration,
    /// Whether this is the last report on them.
    pub last: bool,
}

/// A machine that takes part, with its work for this start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// Number of segments that it processed.
    pub segments: u64,
    /// Number of blocks in these segments.
    pub blocks: u64,
    /// Bytes of these blocks.
    pub bytes: u64,
    /// Total time that its threads spent on them.
    pub busy: Duration,
    /// Time since its last heartbeat; `None` if this start has received none.
    pub seen: Option<Duration>,
    /// Its current activity, for people.
    pub doing: String,
}

/// Receives events, from any thread.
pub trait Observer: Sync {
    /// Handles one event.
    fn event(&self, event: Event);
}

/// An observer that ignores all events.
pub struct SilentObserver;

impl Observer for SilentObserver {
    fn event(&self, _event: Event) {}
}

/// Fails if the sync was interrupted.
pub fn stop_if_interrupted(interrupt: &AtomicBool) -> Result<(), SyncError> {
    if interrupt.load(Ordering::Relaxed) { Err(SyncError::Interrupted) } else { Ok(()) }
}

/// Ends a walk over blocks or coins if the sync was interrupted.
pub(crate) fn unless_interrupted(interrupt: &AtomicBool) -> ControlFlow<()> {
    if interrupt.load(Ordering::Relaxed) {
        ControlFlow::Break(())
    } else {
        ControlFlow::Continue(())
    }
}

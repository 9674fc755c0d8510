//! What a run tells the outside while it goes on. Libraries never print: they emit [`Event`]s, and
//! one place renders them.

use crate::error::SyncError;
use crate::warning::Warning;
use apus_chain::{BlockHash, Height, HeightRange};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// What disk is taken for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum DiskUse {
    /// Progress, in the work folder.
    Progress,
    /// What is built on this crate, in places of its own.
    Extra {
        /// A word for it, for programs.
        word: &'static str,
        /// What it is, for people.
        what: &'static str,
    },
}

/// A stretch of a run that is timed and shown by itself.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Phase {
    /// Finding blocks and their headers, and the most-work chain.
    Headers,
    /// Finding where undo data lie, where no index tells.
    Undo,
    /// Reading the hints once, to know their form and where each segment's lie.
    Hints,
    /// Reading what blocks spend: the last ones, where hints reach into them and they are to be connected.
    Spends,
    /// Checking blocks and running the engine.
    Blocks,
    /// Joining what blocks spend with what they make.
    Join,
    /// Connecting blocks in ascending height, on coins that are looked up or were found by a join.
    Connect,
    /// Gathering the coins in order and writing them out.
    Coins,
    /// Writing the block index of a data directory.
    Index,
    /// Reading back the coins that were written into a folder for Bitcoin Core.
    CheckCoins,
    /// Reading back the blocks and undo data that were written into such a folder, or kept beside one.
    CheckBlocks,
    /// Comparing a node's coins with those that its blocks leave.
    Compare,
    /// Looking at blocks of a node one by one.
    Survey,
    /// Something that is built on this crate, by its word.
    Extra(&'static str),
}

impl Phase {
    /// A word for tables and reports.
    pub const fn name(self) -> &'static str {
        match self {
            Self::Headers => "headers",
            Self::Undo => "undo",
            Self::Hints => "hints",
            Self::Spends => "spends",
            Self::Blocks => "blocks",
            Self::Join => "join",
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

/// How far a run is. Counts what was done by earlier starts too.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Progress {
    /// Blocks processed; with an order-free engine not the lowest ones.
    pub blocks: u64,
    /// Blocks in all.
    pub blocks_total: u64,
    /// Bytes of blocks processed.
    pub bytes: u64,
    /// Bytes of blocks in all; 0 where that is not known.
    pub bytes_total: u64,
    /// About how many bytes the processed blocks have, where sizes are only guessed from heights; in
    /// [`Phase::CheckCoins`], how much work is done; 0 elsewhere.
    pub weight: u64,
    /// The same of all blocks.
    pub weight_total: u64,
    /// Coins kept so far; written in [`Phase::Coins`], read back in [`Phase::CheckCoins`].
    pub coins: u64,
    /// Coins in all, where a phase goes over coins; 0 elsewhere.
    pub coins_total: u64,
    /// About how many coins the processed blocks leave, where it is not known yet which: it tells how long the phases
    /// take that go over coins. 0 elsewhere.
    pub coins_about: u64,
}

/// What a chain was found by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainBy {
    /// Block files.
    Files {
        /// How many were looked at.
        files: usize,
        /// Whether Core's block index gave the places.
        index: bool,
    },
    /// Headers from peers.
    Peers,
}

/// A stretch of heights that is done as one, of a pass in any order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Which heights.
    pub range: HeightRange,
    /// About how many bytes its blocks have.
    pub bytes: u64,
    /// How far it is.
    pub state: SegmentState,
}

/// How far a segment is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SegmentState {
    /// Nothing was done for it.
    Waiting,
    /// A thread is at it.
    Begun,
    /// It is done, by this start or an earlier one.
    Done,
}

/// How often progress is told.
pub const PROGRESS_INTERVAL: Duration = Duration::from_millis(100);

/// Something that happened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// A phase begins.
    Started(Phase),
    /// A phase ended after reading or writing so many bytes.
    Ended {
        /// Which.
        phase: Phase,
        /// Bytes read of the phase's input.
        bytes: u64,
    },
    /// The most-work chain is known.
    ChainFound {
        /// Its last block with data.
        tip: BlockHash,
        /// That block's height.
        height: Height,
        /// What it was found by.
        by: ChainBy,
    },
    /// The run will take disk.
    DiskNeeded {
        /// What for.
        what: DiskUse,
        /// About how many bytes, at most.
        bytes: u64,
        /// How many are free.
        free: u64,
    },
    /// A run that follows the tip goes to another one.
    Tip {
        /// Its height.
        height: Height,
        /// Its hash.
        tip: BlockHash,
    },
    /// A run that follows the tip is there, and waits. Told again and again.
    Waiting {
        /// The tip's height.
        height: Height,
        /// Its hash.
        tip: BlockHash,
    },
    /// An earlier start's work goes on.
    Resumed {
        /// Segments that are done; blocks, where these are connected one by one.
        segments: usize,
        /// How many there are in all.
        of: usize,
    },
    /// A later phase will have so much to do, none of it done: told as soon as it is known, so that how far the
    /// whole run is can be said.
    Ahead(Phase, Progress),
    /// A pass begins, over these segments.
    Segments(Vec<Segment>),
    /// One of them got further.
    Segment(HeightRange, SegmentState),
    /// How far the phase is.
    Progress(Phase, Progress),
    /// Something that the user should know but that stops nothing.
    Warning(Warning),
    /// Other machines take part; told every few seconds, and once more when they are done.
    Workers(Workers),
    /// Much memory was freed at once: a moment to give back to the system what the allocator keeps.
    MemoryFreed,
}

/// The machines that take part in a run.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Workers {
    /// By name.
    pub all: Vec<Worker>,
    /// How long this machine was at handing out jobs and taking in results: what no other can share.
    pub handling: Duration,
    /// Whether it is the last time that they are told of.
    pub last: bool,
}

/// A machine that takes part, by what it did for this start.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Worker {
    /// Its name.
    pub name: String,
    /// Segments that it did.
    pub segments: u64,
    /// Their blocks.
    pub blocks: u64,
    /// Bytes of these.
    pub bytes: u64,
    /// How long its threads were at them, added up.
    pub busy: Duration,
    /// How long ago it gave its last sign of life; none where it gave none to this start.
    pub seen: Option<Duration>,
    /// What it does now, for people.
    pub doing: String,
}

/// Receives events, from any thread.
pub trait Observer: Sync {
    /// Takes one event.
    fn event(&self, event: Event);
}

/// An observer that looks away.
pub struct Silent;

impl Observer for Silent {
    fn event(&self, _event: Event) {}
}

/// Fails where the run is to stop.
pub fn stop_if_interrupted(interrupt: &AtomicBool) -> Result<(), SyncError> {
    if interrupt.load(Ordering::Relaxed) { Err(SyncError::Interrupted) } else { Ok(()) }
}

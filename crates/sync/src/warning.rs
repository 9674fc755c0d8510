//! [`Warning`]: what a user should know about a sync that continues, and what it means for the outputs.

use crate::error::{ChainGap, InvalidBlock};
use crate::node_tip::NodeTip;
use crate::numbers::bytes;
use apus_chain::{Height, HeightRange, KnownBlock, ScriptCheckReason, utc};
use apus_p2p::network::{ClockDoubt, RefusedHeaders};
use std::fmt::{self, Display, Formatter};

/// At most this many ranges without undo data are listed: many starts with and without kept blocks leave many
/// ranges.
const RANGES_SHOWN_MAX: usize = 3;

/// Something the user should know although the sync continues. The text includes advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The block index of a node is unusable.
    #[error("the block index is unusable, so all block files are scanned: {why}")]
    NoIndex {
        /// The reason.
        why: String,
    },
    /// The undo data next to the blocks is unusable.
    #[error("the undo data is unusable, so this sync works without it: {why}")]
    UndoUseless {
        /// The reason.
        why: String,
    },
    /// Undo data of a node's last blocks is missing or wrong.
    #[error(
        "{what}: a node checks its last blocks when it starts, and may refuse to start. Start it with \
         -checklevel=2 to skip that check, or with -reindex to rebuild the undo data"
    )]
    UndoOfNode {
        /// The fault and its location.
        what: String,
    },
    /// Block records end too early.
    #[error(
        "ignored {count} incomplete block record(s), the first in {first}: the node crashed, or the files were not \
         copied completely"
    )]
    TornRecords {
        /// Number of records.
        count: u64,
        /// File and offset of the first record.
        first: String,
    },
    /// Bytes in block files are not blocks.
    #[error(
        "skipped {bytes} bytes in {places} place(s) of the block files that are not blocks, the first in file {} \
         at byte {}",
        .first.0, .first.1
    )]
    SkippedBytes {
        /// Number of bytes.
        bytes: u64,
        /// Number of places.
        places: u64,
        /// The first place: number of the file, and offset.
        first: (u32, u64),
    },
    /// Some blocks do not connect to the chain, because others are missing.
    #[error(
        "the chain ends at block {} ({}){beyond}. If these blocks should be on it, copy the missing or damaged \
         files from the node again and rerun the same command. If the node is still downloading, its blocks \
         may connect later",
        .end.height, .end.hash
    )]
    NotJoined {
        /// The last block of the chain.
        end: KnownBlock,
        /// What is known beyond the end.
        beyond: ChainGap,
    },
    /// A node's coins are at a block with more work, which is not on the chain.
    #[error(
        "the coins of the node that has these blocks are at {node}, but the chain ends at block {} ({}){}",
        .end.height, .end.hash,
        if .node.of_knots { "" } else { ": some of its blocks are missing, damaged or invalid" }
    )]
    NodeIsFurther {
        /// The block of the coins.
        node: NodeTip,
        /// The last block of the chain.
        end: KnownBlock,
    },
    /// Peers have a better chain, but its blocks are in the future by this machine's clock.
    #[error(
        "{} peer(s) have a chain up to at least block {}, but its block {} ({}) has time {}, more than two hours \
         after this machine's clock at {}; {} other peer(s) do not have it. The sync ends at block {} ({}). If \
         this machine's clock is wrong, set it, then rerun the same command",
        .doubt.chain.peers, .doubt.chain.height, .doubt.chain.first.height, .doubt.chain.first.hash,
        utc(.doubt.chain.time.into()), utc(.doubt.now), .doubt.chain.others, .end.height, .end.hash
    )]
    TooNew {
        /// The block at which the sync ends.
        end: KnownBlock,
        /// The chain, and the evidence about the clock.
        doubt: ClockDoubt,
    },
    /// Peers sent invalid headers.
    #[error(
        "peers sent {} message(s) with rejected headers: {}. The sync ends at block {} ({})",
        .refused.count, .refused.first.join("; "), .end.height, .end.hash
    )]
    HeadersRefused {
        /// The block at which the sync ends.
        end: KnownBlock,
        /// The rejected headers.
        refused: RefusedHeaders,
    },
    /// Peers announced blocks above the sync's end.
    #[error(
        "the sync ends at block {} ({}), but {peers} peer(s) announced blocks up to {height} and did not send the \
         headers. If these blocks exist, connect to other peers and rerun the same command",
        .end.height, .end.hash
    )]
    PeersClaimMore {
        /// The block at which the sync ends.
        end: KnownBlock,
        /// Number of peers.
        peers: usize,
        /// The maximum announced height.
        height: Height,
    },
    /// Blocks are not kept, so this program can serve only a few.
    #[error(
        "blocks are not kept, so peers that connect here get headers and only the last 32 MB of blocks. If these \
         are fewer than 288 blocks, as on the main chain, Apus advertises no blocks. To serve all blocks, add \
         --blocks keep"
    )]
    GivesFewBlocks,
    /// An earlier start found a block invalid.
    #[error("{0}. An earlier start marked this block and its descendants as failed")]
    PutAsideBefore(InvalidBlock),
    /// The sync abandons its chain for another one.
    #[error(
        "{why}. {}The sync continues to block {} ({})", failed_too(.put_aside), .to.height, .to.hash
    )]
    OtherChain {
        /// Why the sync abandons the chain.
        why: String,
        /// Number of blocks above the invalid block that are marked as failed with it; `None` if none is
        /// marked.
        put_aside: Option<Height>,
        /// The tip of the chain that the sync continues on.
        to: KnownBlock,
    },
    /// An interrupted sync keeps its tip, although a block above it failed.
    #[error("{why}. The sync ends at block {} ({})", .tip.height, .tip.hash)]
    EndsBelow {
        /// The error of the block above.
        why: String,
        /// The block at which the sync ends.
        tip: KnownBlock,
    },
    /// Some kept blocks will have no undo data.
    #[error(
        "blocks {} will have no undo data, because this sync proves them by hints, or connected them before it kept \
         blocks. A node on the kept blocks cannot disconnect block {} or any below, and stops if its bitcoin.conf has \
         -blockfilterindex or -coinstatsindex, which need undo data of all blocks",
        last_ranges(.ranges), .ranges.last().map_or(0, |last| last.end - 1)
    )]
    NoUndo {
        /// The ranges; not empty.
        ranges: Vec<HeightRange>,
    },
    /// The chain does not contain the block up to which blocks were validated, or has fewer blocks that may be
    /// assumed valid.
    #[error(
        "this chain cannot continue from block {} ({}), up to which blocks of another chain were validated: \
         starting over",
        .at.height, .at.hash
    )]
    BaseLeft {
        /// The block.
        at: KnownBlock,
    },
    /// The disk may be too small for the outputs and progress of this sync.
    #[error(
        "not enough disk, perhaps: {folder} may need {} and has {}. Choose one: free some space, use another disk \
         for the output, or put the temporary files on another disk with --workdir DIR. `apus plan` shows what \
         each part needs",
        bytes(*.needed), bytes(*.free)
    )]
    LittleRoomForRun {
        /// A folder on the disk.
        folder: String,
        /// Bytes needed, at most.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// The disk does not make file names durable.
    #[error(
        "{folder}: this disk cannot make new file names durable, like some network disks. After a power failure, \
         check that the outputs exist before you rely on them"
    )]
    NamesNotDurable {
        /// A folder on the disk.
        folder: String,
    },
    /// The audit found a fault of the node before it checked everything.
    #[error("found a problem: {what}. The audit continues, and reports all problems at the end")]
    WrongAlready {
        /// The fault.
        what: String,
    },
    /// Fewer of the last blocks will have undo data than a node keeps.
    #[error(
        "the chain now ends at block {end}, but hints produced the coins at block {hinted}: a node that starts on this \
         result can disconnect only its last {} blocks",
        .end - .hinted
    )]
    FewWithUndo {
        /// The last block of the chain.
        end: Height,
        /// The block at which hints produced the coins.
        hinted: Height,
    },
    /// Blocks under hints are assumed valid on the user's word.
    #[error("{0}")]
    Unanchored(UnanchoredBlocks),
    /// A warning of a crate built on this one.
    #[error("{0}")]
    Extra(String),
}

impl Warning {
    /// Returns whether the warning concerns the whole sync, so that a further pass over the blocks need not
    /// repeat it.
    pub fn is_of_run(&self) -> bool {
        matches!(
            self,
            Self::PutAsideBefore(_)
                | Self::NotJoined { .. }
                | Self::NodeIsFurther { .. }
                | Self::NoUndo { .. }
                | Self::FewWithUndo { .. }
                | Self::Unanchored(_)
        )
    }

    /// Returns whether the chain may not be the one that the user expects, so that the warning belongs next to
    /// the result.
    pub fn is_of_chain(&self) -> bool {
        matches!(
            self,
            Self::NotJoined { .. }
                | Self::NodeIsFurther { .. }
                | Self::TooNew { .. }
                | Self::HeadersRefused { .. }
                | Self::PeersClaimMore { .. }
                | Self::TornRecords { .. }
                | Self::SkippedBytes { .. }
                | Self::PutAsideBefore(_)
                | Self::OtherChain { .. }
                | Self::EndsBelow { .. }
        )
    }
}

/// Describes what is marked as failed with an invalid block, if anything is.
fn failed_too(above: &Option<Height>) -> String {
    match above {
        None => String::new(),
        Some(0) => "This block is marked as failed. ".to_owned(),
        Some(1) => "This block and the block above are marked as failed. ".to_owned(),
        Some(above) => format!("This block and the {above} blocks above are marked as failed. "),
    }
}

/// Lists the highest of some ranges.
fn last_ranges(ranges: &[HeightRange]) -> String {
    let shown = |range: &HeightRange| match range.count() {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    };
    let listed = &ranges[ranges.len().saturating_sub(RANGES_SHOWN_MAX)..];
    let listed: Vec<String> = listed.iter().map(shown).collect();
    let more = if ranges.len() > RANGES_SHOWN_MAX { ", and others below," } else { "" };
    format!("{}{more}", listed.join(", "))
}

/// Blocks that are assumed valid on the user's word, although Core would run their scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnanchoredBlocks {
    /// The first block.
    pub first: Height,
    /// The last block under hints.
    pub last: Height,
    /// Why Core would run the scripts of the last block.
    pub reason: ScriptCheckReason,
}

impl Display for UnanchoredBlocks {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { first, last, reason } = self;
        write!(
            f,
            "--assumevalid hints: blocks {first} to {last} are assumed valid, although Bitcoin Core would \
             check them ({reason}). This sync does not check their scripts and signatures, their amounts, \
             what their coinbases claim, whether spent coins exist and are mature, relative lock times, \
             and signature operations of spent coins. A node started on this result never re-checks these \
             blocks"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn warning_for(ranges: &[(Height, Height)]) -> String {
        let ranges = ranges.iter().map(|&(start, end)| HeightRange::new(start, end)).collect();
        Warning::NoUndo { ranges }.to_string()
    }

    #[test]
    fn the_highest_ranges_without_undo_data_are_listed() {
        assert!(
            warning_for(&[(1, 2)]).starts_with("blocks 1 will have"),
            "{}",
            warning_for(&[(1, 2)])
        );
        let few = warning_for(&[(1, 3), (5, 6), (8, 10)]);
        assert!(few.starts_with("blocks 1 to 2, 5, 8 to 9 will have"), "{few}");
        assert!(few.contains("cannot disconnect block 9 or any below, and stops if"), "{few}");
        assert!(few.contains("-blockfilterindex") && few.contains("-coinstatsindex"), "{few}");
        let many = warning_for(&[(1, 3), (5, 6), (8, 10), (20, 21)]);
        assert!(many.starts_with("blocks 5, 8 to 9, 20, and others below, will have"), "{many}");
    }
}

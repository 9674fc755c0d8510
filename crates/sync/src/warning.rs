//! [`Warning`]: what a user should know of a run that goes on, with what it means for what is written.

use crate::error::{ChainGap, InvalidBlock};
use crate::node_tip::NodeTip;
use apus_chain::{Height, HeightRange, KnownBlock, ScriptCheckReason, utc};
use apus_p2p::network::{ClockDoubt, RefusedHeaders};
use std::fmt::{self, Display, Formatter};

/// Ranges without undo data that are told; more come of many starts with and without blocks kept.
const RANGES_TOLD: usize = 3;

/// Something that the user should know but that stops nothing. Its text has the advice.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Warning {
    /// The block index of a node cannot be used.
    #[error("the block index is of no use, so all files are gone through: {why}")]
    NoIndex {
        /// Why.
        why: String,
    },
    /// Undo data that lie beside the blocks cannot be used.
    #[error("the undo data are of no use, so the run does without them: {why}")]
    UndoUseless {
        /// Why.
        why: String,
    },
    /// Undo data of a node's last blocks is not what it should be.
    #[error(
        "{what}; a node goes back some blocks when it starts, to check itself, and may refuse to start: -checklevel=2 \
         leaves that out, -reindex makes the data anew"
    )]
    UndoOfNode {
        /// What is wrong with it, and where.
        what: String,
    },
    /// Records of blocks end too early.
    #[error(
        "{count} block record(s) end before their last byte, the first in {first}: cut off by a crash of the node, or an \
         incomplete copy, and ignored"
    )]
    TornRecords {
        /// How many.
        count: u64,
        /// File and offset of the first.
        first: String,
    },
    /// Bytes of block files are no blocks.
    #[error(
        "{bytes} bytes in {places} place(s) of the block files are no blocks, the first in file {} at byte {}: skipped",
        .first.0, .first.1
    )]
    SkippedBytes {
        /// How many.
        bytes: u64,
        /// In how many places.
        places: u64,
        /// The first of these: number of the file, and offset.
        first: (u32, u64),
    },
    /// There are blocks that do not join the chain, since others are missing.
    #[error(
        "the chain ends at block {} ({}){beyond}. Where these blocks should be part of it, copy the files that are missing or \
         damaged from the node once more and give the same command again. A node that still fetches blocks may have some \
         that join later",
        .end.height, .end.hash
    )]
    NotJoined {
        /// The last block of the chain.
        end: KnownBlock,
        /// What lies beyond it.
        beyond: ChainGap,
    },
    /// A node's coins are at a block that the chain does not lead to, of more work.
    #[error(
        "the coins of the node beside these blocks are at {node}, and the chain ends at block {} ({}){}",
        .end.height, .end.hash,
        if .node.of_knots { "" } else { ": some of its blocks are missing, damaged or not valid" }
    )]
    NodeIsFurther {
        /// Where they are.
        node: NodeTip,
        /// The last block of the chain.
        end: KnownBlock,
    },
    /// Peers have a better chain, which is of the future by this machine's clock.
    #[error(
        "{} peer(s) have a chain up to block {} at least, of which block {} ({}) is of {}, more than two hours after \
         this machine's clock at {}; {} other(s) do not have it. The run ends at block {} ({}). If the clock is wrong, \
         set it, and give the same command again",
        .doubt.chain.peers, .doubt.chain.height, .doubt.chain.first.height, .doubt.chain.first.hash,
        utc(.doubt.chain.time.into()), utc(.doubt.now), .doubt.chain.others, .end.height, .end.hash
    )]
    TooNew {
        /// Where the run ends.
        end: KnownBlock,
        /// The chain, and what there is to judge it by.
        doubt: ClockDoubt,
    },
    /// Peers sent headers that were refused.
    #[error(
        "peers sent {} message(s) with headers that were refused: {}. The run ends at block {} ({})",
        .refused.count, .refused.first.join("; "), .end.height, .end.hash
    )]
    HeadersRefused {
        /// Where the run ends.
        end: KnownBlock,
        /// Which.
        refused: RefusedHeaders,
    },
    /// Peers said that they are further than the run came.
    #[error(
        "the run ends at block {} ({}), and {peers} peer(s) said to have blocks up to {height}, whose headers did not \
         come: where they are right, connect to other peers, and give the same command again",
        .end.height, .end.hash
    )]
    PeersClaimMore {
        /// Where the run ends.
        end: KnownBlock,
        /// How many peers.
        peers: usize,
        /// The greatest height that one of them said.
        height: Height,
    },
    /// Blocks are not kept, so peers that connect get few.
    #[error(
        "blocks are not kept, so peers that connect here are given headers and, of blocks, the last 32 MB; unless these are \
         288 blocks, which on the main chain they are not, others are told that no blocks are to be had. With --blocks \
         keep they are given all"
    )]
    GivesFewBlocks,
    /// An earlier start put an invalid block aside.
    #[error("{0}. An earlier start put it aside, with what descends from it")]
    PutAsideBefore(InvalidBlock),
    /// The chain that was gone for is left for another one.
    #[error(
        "{why}. {}The run goes on to block {} ({})", put_aside_too(.put_aside), .to.height, .to.hash
    )]
    OtherChain {
        /// Why it is left.
        why: String,
        /// How many blocks are put aside above the block that is invalid, where one of files is.
        put_aside: Option<Height>,
        /// The tip of the chain that the run goes on with.
        to: KnownBlock,
    },
    /// A run that was interrupted ends at its tip, though a block above it failed.
    #[error("{why}. The run ends at block {} ({})", .tip.height, .tip.hash)]
    EndsBelow {
        /// What failed.
        why: String,
        /// Where the run ends.
        tip: KnownBlock,
    },
    /// Blocks that are kept will have no undo data.
    #[error(
        "blocks {} will have no undo data in the folder of kept blocks, since this run proves them by hints or connected \
         them before it kept blocks: a node there cannot go back below block {}, and has neither -blockfilterindex nor \
         -coinstatsindex, which need undo data of all blocks: it ends where they are in its bitcoin.conf",
        last_ranges(.ranges), .ranges.last().map_or(0, |last| last.end - 1)
    )]
    NoUndo {
        /// Which; not empty.
        ranges: Vec<HeightRange>,
    },
    /// Blocks are connected in order, since there is little room for going over them in any.
    #[error(
        "the work folder is on a disk with {free} bytes free, and up to {needed} are needed to go over blocks in any order: \
         they are connected one after the other, by the engine utxo. Another --workdir may have more room"
    )]
    LittleRoom {
        /// Bytes that would be needed, at most.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// There may be too little room for what a run makes.
    #[error(
        "{folder} is on a disk with {free} bytes free, and this run may take {needed}: make room, or name another place, \
         which for progress is --workdir. `apus plan` says what takes how much"
    )]
    LittleRoomForRun {
        /// A folder on the disk.
        folder: String,
        /// Bytes that it may take.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// A disk does not make names of files durable.
    #[error(
        "{folder} is on a disk that makes no new names durable when it is asked to, as some in a network: after a power cut \
         see that what was written is there before you rely on it"
    )]
    NamesNotDurable {
        /// A folder on it.
        folder: String,
    },
    /// Should something be wrong with a node, there is too little room to find it in any order of blocks.
    #[error(
        "the work folder is on a disk with {free} bytes free. Should something be wrong, up to {needed} are needed to name it \
         in the shortest time: with less, blocks are connected one after the other, by the engine utxo, which takes longer. \
         Another --workdir may have more room"
    )]
    LittleRoomToFind {
        /// Bytes that would be needed, at most.
        needed: u64,
        /// Bytes free.
        free: u64,
    },
    /// Something of a node is wrong, which is known before the rest was looked at.
    #[error(
        "something is wrong already: {what}. The rest is looked at, too, and all is told at the end"
    )]
    WrongAlready {
        /// What.
        what: String,
    },
    /// Fewer of the last blocks than a node keeps will have undo data.
    #[error(
        "the chain now ends at block {end}, and hints led to the coins at block {hinted}: a node that starts on what is written \
         can go back over its last {} blocks alone",
        .end - .hinted
    )]
    FewWithUndo {
        /// The last block of the chain.
        end: Height,
        /// The block where hints led to the coins.
        hinted: Height,
    },
    /// Blocks under hints are taken for valid on the user's word.
    #[error("{0}")]
    Unanchored(Unanchored),
    /// What is built on this crate has something to say.
    #[error("{0}")]
    Extra(String),
}

impl Warning {
    /// Whether it is about the whole run: a further pass over its blocks has nothing to add.
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

    /// Whether it says that the chain may not be the one that the user expects, who then should read it beside what
    /// came of the run.
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

/// What is put aside with an invalid block: how many blocks above it, if it is put aside.
fn put_aside_too(above: &Option<Height>) -> String {
    match above {
        None => String::new(),
        Some(0) => "It is put aside. ".to_owned(),
        Some(1) => "It is put aside, and the block above it. ".to_owned(),
        Some(above) => format!("It is put aside, and the {above} blocks above it. "),
    }
}

/// The highest of some ranges.
fn last_ranges(ranges: &[HeightRange]) -> String {
    let shown = |range: &HeightRange| match range.count() {
        1 => range.start.to_string(),
        _ => format!("{} to {}", range.start, range.end - 1),
    };
    let told = &ranges[ranges.len().saturating_sub(RANGES_TOLD)..];
    let told: Vec<String> = told.iter().map(shown).collect();
    let more = if ranges.len() > RANGES_TOLD { ", and others below," } else { "" };
    format!("{}{more}", told.join(", "))
}

/// Blocks taken for valid because the user says so: Core would run their scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Unanchored {
    /// The first of them.
    pub first: Height,
    /// The last that is taken under hints.
    pub last: Height,
    /// Why Core would run the scripts of the last one.
    pub reason: ScriptCheckReason,
}

impl Display for Unanchored {
    fn fmt(&self, f: &mut Formatter<'_>) -> fmt::Result {
        let Self { first, last, reason } = self;
        write!(
            f,
            "--assumevalid hints: blocks {first} to {last} are taken for valid, and Bitcoin Core \
             would check them ({reason}). This run does not look at their scripts and signatures, \
             their amounts, what their coinbases claim, whether coins are there before they are \
             spent and are mature, relative lock times, and signature operations of spent coins. A \
             node that starts on what comes of it believes all this, and never looks again"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(ranges: &[(Height, Height)]) -> String {
        let ranges = ranges.iter().map(|&(start, end)| HeightRange::new(start, end)).collect();
        Warning::NoUndo { ranges }.to_string()
    }

    #[test]
    fn the_highest_ranges_without_undo_data_are_told() {
        assert!(told(&[(1, 2)]).starts_with("blocks 1 will have"), "{}", told(&[(1, 2)]));
        let few = told(&[(1, 3), (5, 6), (8, 10)]);
        assert!(few.starts_with("blocks 1 to 2, 5, 8 to 9 will have"), "{few}");
        assert!(few.contains("cannot go back below block 9, and has neither"), "{few}");
        assert!(few.contains("-blockfilterindex") && few.contains("-coinstatsindex"), "{few}");
        let many = told(&[(1, 3), (5, 6), (8, 10), (20, 21)]);
        assert!(many.starts_with("blocks 5, 8 to 9, 20, and others below, will have"), "{many}");
    }
}

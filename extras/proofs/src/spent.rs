//! [`SpentPeers`]: the coins that blocks spend, from bridge nodes, for the engine swiftsync.
//!
//! A bridge gives the leaf data of a block without its proof. Together with the block, these are its undo data, which
//! swiftsync does not trust: its sums prove them ([`UndoPass`](apus_sync::engines::swiftsync::UndoPass)). If there are
//! several bridges, two are asked about each block. Where they differ, the block that created the coin shows which of
//! them lies, so that a lie does not cost the whole sync.

mod arbiter;
mod coins;

use crate::engine::{BridgeFailure, BridgePeers, ProofRequester, connect, leave_out};
use crate::error::ProofsError;
use crate::message::{LEAVES_MAX, write_leaves};
use crate::peers::{ProofAnswers, ProofPeerError, ProofPeers, Question};
use apus_chain::{BlockBytes, BlockHash, Height, HeightRange, KnownBlock};
use apus_sync::engines::swiftsync::{UndoPassError, UndoReader, UndoSource};
use apus_sync::request::{Request, SpentSource};
use apus_sync::source::ChainSource;
use apus_sync::{Observer, SyncError};
use arbiter::Arbiter;
use coins::Spends;
use std::sync::Arc;

/// Bridge nodes that give the coins that blocks spend.
pub struct SpentPeers(pub BridgePeers);

impl SpentSource for SpentPeers {
    fn open<'a>(
        &'a self,
        request: &'a Request<'_>,
        chain: Arc<dyn ChainSource + 'a>,
    ) -> Result<Box<dyn UndoSource + 'a>, SyncError> {
        let env = &request.env;
        let (network, observer, interrupt) = (env.params.network, env.observer, env.interrupt);
        let asking = ProofRequester { network, observer, interrupt };
        let peers = connect(&self.0, &asking, &*chain)?;
        let arbiter = Arbiter { params: env.params, verifier: env.verifier, chain };
        Ok(Box::new(PeerCoins { peers, arbiter, observer }))
    }
}

/// How many bridges are asked about a block, if there are as many.
const ASKED: usize = 2;

/// Bytes of an input without witness, at least: they limit the inputs of a block of an expected size.
const INPUT_BYTES: u64 = 41;
/// A block may be this many times as large as expected.
const LARGER: u64 = 4;
/// The fewest leaves to ask for.
const LEAVES_LEAST: u64 = 512;

/// The coins that the blocks of a chain spend.
struct PeerCoins<'a> {
    peers: ProofPeers<'a>,
    arbiter: Arbiter<'a>,
    observer: &'a dyn Observer,
}

impl PeerCoins<'_> {
    /// The question about a block. The number of its coins is not known before it has arrived.
    fn question(&self, height: Height) -> Option<Question> {
        let hash = *self.arbiter.chain.chain().hash(height)?;
        let expected = LARGER * self.arbiter.chain.block_bytes(height) / INPUT_BYTES;
        let most = expected.clamp(LEAVES_LEAST, LEAVES_MAX as u64) as usize;
        Some(Question::Leaves(KnownBlock { height, hash }, most))
    }

    /// Series of questions about these blocks, to different bridges.
    fn ask(&self, heights: HeightRange) -> Vec<BridgeSide<'_>> {
        let side = |peer| {
            let questions = heights.heights().filter_map(|height| self.question(height));
            let mut answers = self.peers.ask(peer, questions);
            answers.start();
            BridgeSide { peer, answers }
        };
        self.peers.choose(ASKED).into_iter().map(side).collect()
    }

    /// Asks a bridge that failed no more, if there are others. Returns whether there are.
    fn leave_out(&self, peer: usize, failure: &BridgeFailure) -> bool {
        leave_out(&self.peers, peer, failure, self.observer)
    }
}

impl UndoSource for PeerCoins<'_> {
    fn reader(&self, heights: HeightRange) -> Box<dyn UndoReader + '_> {
        let sides = self.ask(heights);
        Box::new(CoinsReader { from: self, heights, sides })
    }

    fn ascends(&self) -> bool {
        true
    }
}

/// One bridge's answers about the blocks of a range.
struct BridgeSide<'a> {
    peer: usize,
    answers: ProofAnswers<'a>,
}

/// Reads the coins of the blocks of a range.
struct CoinsReader<'a> {
    from: &'a PeerCoins<'a>,
    heights: HeightRange,
    sides: Vec<BridgeSide<'a>>,
}

impl UndoReader for CoinsReader<'_> {
    fn read(&mut self, _: Height, _: &BlockHash) -> Result<Vec<u8>, String> {
        Err("a bridge's leaf data are of use only with the block".to_owned())
    }

    fn read_of(&mut self, block: &BlockBytes<'_>) -> Result<Vec<u8>, UndoPassError> {
        let id = KnownBlock { height: block.height(), hash: block.hash() };
        let spends = Spends::of(block);
        loop {
            if self.sides.is_empty() {
                // The bridges that were asked are left out: others begin here.
                self.sides = self.from.ask(HeightRange::new(id.height, self.heights.end));
                if self.sides.is_empty() {
                    let what = "all bridges sent something wrong".to_owned();
                    return Err(UndoPassError::Undo { block: id, what });
                }
            }
            let answers = self.take(&id, spends.leaves())?;
            let (mut read, mut wrong) = (Vec::new(), Vec::new());
            for (peer, bytes) in &answers {
                match spends.read(bytes) {
                    Ok(leaves) => read.push((*peer, leaves)),
                    Err(what) => wrong.push((*peer, what)),
                }
            }
            if let [(_, one), (_, other)] = &read[..]
                && let Some(at) = one.iter().zip(other).position(|(one, other)| one != other)
            {
                let outpoint = spends.outpoint(at);
                for (peer, leaves) in &read {
                    if !self.from.arbiter.is_right(&outpoint, &leaves[at], id.height)? {
                        wrong.push((
                            *peer,
                            format!("block {} did not create {outpoint} so", leaves[at].height),
                        ));
                    }
                }
            }
            for (peer, what) in wrong {
                let name = self.from.peers.name_of(peer);
                self.drop_side(peer, &id, format!("{name} sent a wrong coin: {what}"))?;
            }
            let is_asked = |peer: usize| self.sides.iter().any(|side| side.peer == peer);
            if let Some((_, leaves)) = read.iter().find(|(peer, _)| is_asked(*peer)) {
                let undo = spends.undo(leaves);
                return undo.map_err(|what| UndoPassError::Undo { block: id, what });
            }
        }
    }
}

impl CoinsReader<'_> {
    /// Takes each bridge's answer about the next block, which spends this many coins of other blocks. Asks a bridge
    /// that fails nothing more, if there are others.
    fn take(
        &mut self,
        block: &KnownBlock,
        count: usize,
    ) -> Result<Vec<(usize, Vec<u8>)>, UndoPassError> {
        let (mut found, mut failed) = (Vec::new(), Vec::new());
        for BridgeSide { peer, answers } in &mut self.sides {
            match answers.leaves(block, count) {
                Ok(leaves) => {
                    let mut bytes = Vec::new();
                    write_leaves(&leaves, &mut bytes);
                    found.push((*peer, bytes));
                }
                Err(error) => failed.push((*peer, error)),
            }
        }
        for (peer, error) in failed {
            match error {
                ProofPeerError::Interrupted => return Err(away(SyncError::Interrupted)),
                ProofPeerError::Parts { .. } => self.drop_side(peer, block, error.to_string())?,
                error => {
                    self.sides.retain(|side| side.peer != peer);
                    if !self.from.leave_out(peer, &BridgeFailure::of(&error)) {
                        return Err(away(ProofsError::Spent(Box::new(error)).into()));
                    }
                }
            }
        }
        Ok(found)
    }

    /// Asks a bridge that sent something wrong nothing more. Fails if there are no others.
    fn drop_side(
        &mut self,
        peer: usize,
        block: &KnownBlock,
        why: String,
    ) -> Result<(), UndoPassError> {
        self.sides.retain(|side| side.peer != peer);
        let failure = BridgeFailure::from(why);
        match self.from.leave_out(peer, &failure) {
            true => Ok(()),
            false => Err(UndoPassError::Undo { block: *block, what: failure.why }),
        }
    }
}

fn away(error: SyncError) -> UndoPassError {
    UndoPassError::Away(Box::new(error))
}

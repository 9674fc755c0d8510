//! Which chain to go for: the one with the most work, but for blocks that proved invalid, and for a
//! while those that no peer gives.
//!
//! * A chain is left for one with more work, or because a block of it is invalid or cannot be had.
//!   In the latter cases it is left for one that a connected peer has to its end, and that has more
//!   work than the last chain whose blocks were all connected, or else for that chain.
//! * A run that does not follow ends where it gets to. So, and as long as no chain was connected, a
//!   chain is left for one that lacks the work of a few blocks at most: what peers that are behind
//!   have is no tip, and where a run was a while ago is none either.
//! * A block that no peer gave is tried again later and later, so a peer that announces such blocks
//!   delays less and less.
//! * Where the chain that goes on from an invalid block has the work of many blocks more than any
//!   other, all others take it for valid. Then the run ends: one of the two is wrong, and going on
//!   as if nothing were would hide it.
//!
//! It says nothing about blocks itself: the threads that check them tell.

use super::Peers;
use crate::error::{ClockError, SourceError};
use crate::progress::{Event, Observer};
use crate::warning::Warning;
use apus_chain::{BlockHash, HeaderChain, Height, KnownBlock, block_work};
use apus_p2p::network::{BestHeader, ClockDoubt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A chain may lack the work of so many blocks and still be taken for one that ends at the tip: as
/// many confirmations are commonly waited for.
const BLOCKS_LACKING_MAX: u128 = 6;

/// A block that no peer gave is left alone for so long the first time, twice as long the next.
const LEFT_ALONE: Duration = Duration::from_secs(60);

/// And so often it is twice as long.
const DOUBLINGS_MAX: u32 = 6;

/// Peers come and go, and those that are there may be about to tell their headers. So a way around a
/// block is looked for so long, or a quarter of the network's patience if that is less, before there
/// is none.
const LOOKED_FOR: Duration = Duration::from_secs(20);

/// So many blocks are remembered; those of longest ago are tried again.
const REMEMBERED_MAX: usize = 256;

/// Why a block is not to be gone for.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChainFault {
    /// It breaks a rule.
    Invalid { height: Height, why: String },
    /// No peer gave it, so many times.
    Withheld { times: u32, until: Instant },
}

/// What was found out about chains.
#[derive(Debug, Default)]
pub(super) struct Choice {
    faults: VecDeque<(BlockHash, ChainFault)>,
    /// The last chain whose blocks were all connected.
    reached: Option<Arc<HeaderChain>>,
}

impl Choice {
    /// The blocks that no chain to go for may have.
    fn avoided(&self, now: Instant) -> Vec<BlockHash> {
        let counts = |fault: &ChainFault| match fault {
            ChainFault::Invalid { .. } => true,
            ChainFault::Withheld { until, .. } => now < *until,
        };
        self.faults.iter().filter(|(_, fault)| counts(fault)).map(|(hash, _)| *hash).collect()
    }

    pub(super) fn put(&mut self, hash: BlockHash, fault: ChainFault) {
        self.faults.retain(|(known, _)| *known != hash);
        if self.faults.len() >= REMEMBERED_MAX {
            self.faults.pop_front();
        }
        self.faults.push_back((hash, fault));
    }

    pub(super) fn withheld(&mut self, hash: BlockHash, now: Instant) {
        let known = self.faults.iter().find(|(known, _)| *known == hash);
        let times = match known {
            Some((_, ChainFault::Withheld { times, .. })) => times.saturating_add(1),
            // It stays invalid.
            Some(_) => return,
            None => 0,
        };
        let until = now + LEFT_ALONE * (1 << times.min(DOUBLINGS_MAX));
        self.put(hash, ChainFault::Withheld { times, until });
    }
}

/// Which way there is around a block.
#[derive(Debug, Clone)]
pub(super) enum ChainWay {
    /// A chain with more work than the one that has the block.
    Better(BestHeader),
    /// One with as much or less.
    Other(BestHeader),
    /// Back to the last chain whose blocks were all connected.
    Back(Arc<HeaderChain>),
}

impl<'a> Peers<'a> {
    /// The end of the chain to go for, if there is any.
    pub(super) fn best(&self) -> Option<BestHeader> {
        let avoided = self.choice().avoided(Instant::now());
        self.network.best_without(&avoided)
    }

    /// The same for a run that is at the end of `than`, and ends there if it does not `follow`. What no
    /// peer gave a moment ago is tried again where it leads far.
    pub(super) fn best_beyond(&self, than: &HeaderChain, follow: bool) -> Option<BestHeader> {
        if follow || !self.is_far_behind(than, than.chain_work()) {
            return self.best();
        }
        let is_invalid = |fault: &ChainFault| matches!(fault, ChainFault::Invalid { .. });
        let choice = self.choice();
        let invalid = choice.faults.iter().filter(|(_, fault)| is_invalid(fault));
        let invalid: Vec<BlockHash> = invalid.map(|(hash, _)| *hash).collect();
        drop(choice);
        self.network.best_without(&invalid)
    }

    /// The chain to go for.
    pub(super) fn best_chain(&self) -> HeaderChain {
        let best = self.best().and_then(|best| self.network.chain_to(&best.hash));
        best.unwrap_or_else(|| self.network.best_chain())
    }

    /// All blocks of a chain were connected.
    pub(super) fn reached(&self, chain: &Arc<HeaderChain>) {
        self.choice().reached = Some(Arc::clone(chain));
    }

    /// How long a way around a block is looked for before there is none.
    pub(super) fn looked_for(&self) -> Duration {
        LOOKED_FOR.min(self.network.patience() / 4)
    }

    /// The way around a block of `chain`, if there is one at this moment, for a run that is to
    /// `follow` or not.
    pub(super) fn way_around(
        &self,
        chain: &HeaderChain,
        block: &BlockHash,
        follow: bool,
    ) -> Option<ChainWay> {
        let choice = self.choice();
        let mut avoided = choice.avoided(Instant::now());
        avoided.push(*block);
        let without =
            |chain: &Arc<HeaderChain>| !avoided.iter().any(|hash| chain.height_of(hash).is_some());
        let reached = choice.reached.clone().filter(without);
        drop(choice);
        let best = self.network.best_without(&avoided).filter(|best| best.height > 0);
        if let Some(best) = best
            && best.chain_work > chain.chain_work()
        {
            return Some(ChainWay::Better(best));
        }
        let anywhere = follow && reached.is_some();
        let better =
            best.filter(|best| reached.as_ref().is_none_or(|it| best.chain_work > it.chain_work()));
        let (way, work) = match (better, reached) {
            (Some(best), _) => (ChainWay::Other(best), best.chain_work),
            (None, Some(reached)) => (ChainWay::Back(Arc::clone(&reached)), reached.chain_work()),
            (None, None) => return None,
        };
        (anywhere || !self.is_far_behind(chain, work)).then_some(way)
    }

    /// Whether `chain`, or what came after it meanwhile, has a lot more work than so much.
    fn is_far_behind(&self, chain: &HeaderChain, work: u128) -> bool {
        let most = self.network.best_without(&[]).map_or(0, |most| most.chain_work);
        leads_far(chain, most, work)
    }

    /// That the chain with the most work goes far on from an invalid block.
    ///
    /// # Errors
    /// [`SourceError::Disputed`] if so.
    pub(super) fn disputed(&self, chain: &HeaderChain) -> Result<(), SourceError> {
        let choice = self.choice();
        let invalid = choice.faults.iter().filter_map(|(hash, fault)| match fault {
            ChainFault::Invalid { height, why } => Some((*hash, *height, why.clone())),
            ChainFault::Withheld { .. } => None,
        });
        let invalid: Vec<(BlockHash, Height, String)> = invalid.collect();
        drop(choice);
        if invalid.is_empty() {
            return Ok(());
        }
        let Some(most) = self.network.best_without(&[]) else { return Ok(()) };
        if !leads_far(chain, most.chain_work, chain.chain_work()) {
            return Ok(());
        }
        for (hash, height, why) in invalid {
            // It is on the most-work chain if the best one without it is another one.
            if self.network.best_without(&[hash]) != Some(most) {
                return Err(SourceError::Disputed { height, hash, why, tip: most.height });
            }
        }
        Ok(())
    }
}

/// Whether the work of `chain`, or `most` if that is more, is a lot more than `work`: what several
/// blocks like its last one take.
fn leads_far(chain: &HeaderChain, most: u128, work: u128) -> bool {
    let bits = chain.bits(chain.tip_height()).unwrap_or_default();
    let lacking_max = block_work(bits).saturating_mul(BLOCKS_LACKING_MAX);
    most.max(chain.chain_work()).saturating_sub(work) > lacking_max
}

// What peers have, or say that they have, and a run did not get: to tell where it ends.

impl Peers<'_> {
    /// Tells what peers have beyond the end of `chain`, where a run ends, and that was refused or did not come.
    pub fn tell_lacking(&self, chain: &HeaderChain, observer: &dyn Observer) {
        let end = KnownBlock { height: chain.tip_height(), hash: *chain.tip_hash() };
        let warn = |warning| observer.event(Event::Warning(warning));
        if let Some(doubt) = self.network.clock_doubt() {
            warn(Warning::TooNew { end, doubt });
        }
        let refused = self.network.refused_headers();
        if refused.count > 0 {
            warn(Warning::HeadersRefused { end, refused });
        }
        if let Some((peers, height)) = self.network.claims_above(end.height) {
            warn(Warning::PeersClaimMore { end, peers, height });
        }
    }
}

// Whether this machine's clock is right, where it keeps out a chain that peers have.
//
// A clock that is behind keeps out the last blocks of the best chain, and a run would end below them as if that were the
// tip. But any miner can make a block of the future, and any peer can send it: what a few have and the others do not says
// nothing against the clock, as long as the peers' clocks agree with it.

/// So many seconds clocks may be apart (Core `node/timeoffsets.h`, `WARN_THRESHOLD`).
const APART_MAX_SECONDS: i64 = 10 * 60;

/// How far ahead of the clock a header may be.
const FUTURE_MAX_SECONDS: i64 = 2 * 60 * 60;

/// Whether it is the clock that is doubted, and not the chain.
fn is_against_clock(doubt: &ClockDoubt) -> bool {
    if doubt.behind > APART_MAX_SECONDS {
        return true;
    }
    // It comes a little too early for a clock that is right, and is taken in a moment.
    let is_nearly_there =
        i64::from(doubt.chain.time).saturating_sub(doubt.now).saturating_sub(FUTURE_MAX_SECONDS)
            <= APART_MAX_SECONDS;
    doubt.chain.peers > doubt.chain.others && !is_nearly_there
}

fn error_of(doubt: &ClockDoubt) -> ClockError {
    let ClockDoubt { now, chain, behind } = *doubt;
    let evidence = match behind > APART_MAX_SECONDS {
        true => format!(
            " ({} peer(s) have it; clocks of peers are {behind} seconds ahead)",
            chain.peers
        ),
        false => format!(" ({} peer(s) have it, {} do not)", chain.peers, chain.others),
    };
    let remedy = "wait until its time has come, or connect to other peers";
    ClockError { now, block: chain.first, time: chain.time, evidence, remedy }
}

impl Peers<'_> {
    /// That this machine's clock does not keep out the chain that the run should go for.
    ///
    /// # Errors
    /// [`SourceError::Clock`] if it does.
    pub(super) fn expect_clock(&self) -> Result<(), SourceError> {
        match self.network.clock_doubt().filter(is_against_clock) {
            Some(doubt) => Err(SourceError::from(Box::new(error_of(&doubt)))),
            None => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::KnownBlock;
    use apus_p2p::headers::TooNew;

    fn hash(number: usize) -> BlockHash {
        let mut hash = [0; 32];
        hash[..8].copy_from_slice(&number.to_le_bytes());
        BlockHash(hash)
    }

    #[test]
    fn what_was_withheld_is_tried_again_later_and_later() {
        let (mut choice, mut now) = (Choice::default(), Instant::now());
        let mut waited = Vec::new();
        for _ in 0..9 {
            choice.withheld(hash(1), now);
            assert_eq!(choice.avoided(now), [hash(1)]);
            let began = now;
            while !choice.avoided(now).is_empty() {
                now += LEFT_ALONE;
            }
            waited.push((now - began).as_secs() / LEFT_ALONE.as_secs());
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn what_is_invalid_stays_so() {
        let (mut choice, now) = (Choice::default(), Instant::now());
        choice.put(hash(1), ChainFault::Invalid { height: 5, why: "bad".to_owned() });
        choice.withheld(hash(1), now);
        assert_eq!(choice.avoided(now + 1000 * LEFT_ALONE), [hash(1)]);
    }

    #[test]
    fn so_many_are_remembered() {
        let (mut choice, now) = (Choice::default(), Instant::now());
        for number in 0..2 * REMEMBERED_MAX {
            choice.withheld(hash(number), now);
        }
        let avoided = choice.avoided(now);
        assert_eq!(avoided.len(), REMEMBERED_MAX);
        assert_eq!(avoided.last(), Some(&hash(2 * REMEMBERED_MAX - 1)));
    }

    fn doubt(peers: usize, others: usize, behind: i64, ahead: i64) -> ClockDoubt {
        let (now, first) = (1_700_000_000, KnownBlock::default());
        let time = (now + ahead) as u32;
        ClockDoubt { now, behind, chain: TooNew { first, time, height: 9, peers, others } }
    }

    #[test]
    fn a_few_peers_make_no_clock_wrong() {
        let day = 86_400;
        for (peers, others, behind, ahead, is_wrong) in [
            (1, 0, 0, day, true),
            (1, 1, 0, day, false),
            (2, 1, 0, day, true),
            (1, 7, 0, 1000 * day, false),
            // By the clocks of half the peers.
            (1, 7, 601, day, true),
            (1, 7, 600, day, false),
            (8, 0, -day, day, true),
            // A block of the latest possible time, found just now.
            (8, 0, 3, 7200 + 600, false),
            (8, 0, 3, 7200 + 601, true),
            (8, 0, 700, 7200 + 3, true),
        ] {
            let doubt = doubt(peers, others, behind, ahead);
            assert_eq!(is_against_clock(&doubt), is_wrong, "{doubt:?}");
        }
        let text = error_of(&doubt(2, 0, 3 * day, day)).to_string();
        assert!(
            text.contains("clock says 2023-11-14T22:13:20Z") && text.contains("set the clock"),
            "{text}"
        );
        assert!(
            text.contains("2 peer(s) have it; clocks of peers are 259200 seconds ahead"),
            "{text}"
        );
    }
}

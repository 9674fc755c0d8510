//! Chooses the chain with the most work that avoids blocks that proved invalid and, for a while, blocks that no
//! peer sends.
//!
//! * The sync leaves a chain for one with more work, or because a block of it is invalid or unavailable. In the latter
//!   cases it switches to a chain that a connected peer has to its end, with more work than the last chain whose blocks
//!   were all connected, or else back to that chain.
//! * A sync that does not follow the tip ends where it arrives. So such a sync, and any sync before it has connected a
//!   chain, only switches to a chain that lacks the work of a few blocks at most: the tip of peers that are behind is
//!   not the tip, and neither is the block where the sync was a while ago.
//! * A block that no peer sent is tried again at growing intervals, so a peer that announces such blocks causes ever
//!   less delay.
//! * If the chain on top of an invalid block has the work of many blocks more than any other chain, all other nodes
//!   accept that block. Then the sync ends: one side is wrong, and continuing would hide it.
//!
//! This module does not validate blocks: the threads that check them report the results.

use super::Peers;
use crate::error::{ClockError, SourceError};
use crate::progress::{Event, Observer};
use crate::warning::Warning;
use apus_chain::{BlockHash, HeaderChain, Height, block_work};
use apus_p2p::network::{BestHeader, ClockDoubt};
use std::collections::VecDeque;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A chain may lack the work of this many blocks and still count as one that ends at the tip: people commonly
/// wait for as many confirmations.
const BLOCKS_LACKING_MAX: u128 = 6;

/// A block that no peer sent is not requested for this long the first time, and twice as long each further
/// time.
const RETRY_AFTER: Duration = Duration::from_secs(60);

/// Number of times that this interval doubles.
const DOUBLINGS_MAX: u32 = 6;

/// Peers come and go, and connected ones may be about to send their headers. So the sync searches for a chain
/// without a block for this long, or for a quarter of the network's idle timeout if that is less.
const LOOKED_FOR: Duration = Duration::from_secs(20);

/// Maximum number of remembered blocks; the oldest ones are tried again.
const REMEMBERED_MAX: usize = 256;

/// Why a block must be avoided.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum ChainFault {
    /// It breaks a rule.
    Invalid { height: Height, why: String },
    /// No peer sent it, this many times.
    Withheld { times: u32, until: Instant },
}

/// The state of the choice.
#[derive(Debug, Default)]
pub(super) struct Choice {
    faults: VecDeque<(BlockHash, ChainFault)>,
    /// The last chain whose blocks were all connected.
    reached: Option<Arc<HeaderChain>>,
}

impl Choice {
    /// Returns the blocks that a chosen chain must not contain.
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
            // An invalid block stays invalid.
            Some(_) => return,
            None => 0,
        };
        let until = now + RETRY_AFTER * (1 << times.min(DOUBLINGS_MAX));
        self.put(hash, ChainFault::Withheld { times, until });
    }
}

/// The ways to continue without a block.
#[derive(Debug, Clone)]
pub(super) enum ChainWay {
    /// A chain with more work than the one with the block.
    Better(BestHeader),
    /// A chain with as much work or less.
    Other(BestHeader),
    /// Back to the last chain whose blocks were all connected.
    Back(Arc<HeaderChain>),
}

impl<'a> Peers<'a> {
    /// Returns the end of the best chain, if there is one.
    pub(super) fn best(&self) -> Option<BestHeader> {
        let avoided = self.choice.lock().avoided(Instant::now());
        self.network.best_without(&avoided)
    }

    /// Does the same for a sync at the end of `than`, which ends there unless `follow` is set. Blocks that no
    /// peer sent a moment ago are tried again if their chain leads far.
    pub(super) fn best_beyond(&self, than: &HeaderChain, follow: bool) -> Option<BestHeader> {
        if follow || !self.is_far_behind(than, than.chain_work()) {
            return self.best();
        }
        let is_invalid = |fault: &ChainFault| matches!(fault, ChainFault::Invalid { .. });
        let choice = self.choice.lock();
        let invalid = choice.faults.iter().filter(|(_, fault)| is_invalid(fault));
        let invalid: Vec<BlockHash> = invalid.map(|(hash, _)| *hash).collect();
        drop(choice);
        self.network.best_without(&invalid)
    }

    /// Returns the best chain.
    pub(super) fn best_chain(&self) -> HeaderChain {
        let best = self.best().and_then(|best| self.network.chain_to(&best.hash));
        best.unwrap_or_else(|| self.network.best_chain())
    }

    /// Records that all blocks of a chain were connected.
    pub(super) fn reached(&self, chain: &Arc<HeaderChain>) {
        self.choice.lock().reached = Some(Arc::clone(chain));
    }

    /// Returns how long to search for a way to continue without a block.
    pub(super) fn looked_for(&self) -> Duration {
        LOOKED_FOR.min(self.network.patience() / 4)
    }

    /// Returns the current way to continue without a block of `chain`, if there is one. `follow` says whether
    /// the sync follows the tip.
    pub(super) fn way_around(
        &self,
        chain: &HeaderChain,
        block: &BlockHash,
        follow: bool,
    ) -> Option<ChainWay> {
        let choice = self.choice.lock();
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

    /// Returns whether `chain`, or a chain found since, has much more work than `work`.
    fn is_far_behind(&self, chain: &HeaderChain, work: u128) -> bool {
        let most = self.network.best_without(&[]).map_or(0, |most| most.chain_work);
        leads_far(chain, most, work)
    }

    /// Checks that the most-work chain does not extend far beyond an invalid block.
    ///
    /// # Errors
    /// [`SourceError::Disputed`] if it does.
    pub(super) fn disputed(&self, chain: &HeaderChain) -> Result<(), SourceError> {
        let choice = self.choice.lock();
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
            // The block is on the most-work chain if the best chain without it is another one.
            if self.network.best_without(&[hash]) != Some(most) {
                return Err(SourceError::Disputed { height, hash, why, tip: most.height });
            }
        }
        Ok(())
    }
}

/// Returns whether the work of `chain`, or `most` if that is more, exceeds `work` by several blocks like its
/// last one.
fn leads_far(chain: &HeaderChain, most: u128, work: u128) -> bool {
    let bits = chain.bits(chain.tip_height()).unwrap_or_default();
    let lacking_max = block_work(bits).saturating_mul(BLOCKS_LACKING_MAX);
    most.max(chain.chain_work()).saturating_sub(work) > lacking_max
}

// Warnings that explain where the sync ends: peers have, or claim to have, blocks that it did not get.

impl Peers<'_> {
    /// Warns of blocks of peers beyond the end of `chain`, where the sync ends, that were rejected or did not
    /// arrive.
    pub fn tell_lacking(&self, chain: &HeaderChain, observer: &dyn Observer) {
        let end = chain.tip();
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

// Decides whether this machine's clock is wrong if, by that clock, a chain of the peers is in the future.
//
// If the clock is behind, the last blocks of the best chain look too new, and the sync would end below them as if at
// the tip. But any miner can make a block in the future, and any peer can send it: a chain that only a few peers have
// is no evidence against the clock, as long as the peers' clocks agree with it.

/// Clocks may differ by this many seconds (Core `node/timeoffsets.h`, `WARN_THRESHOLD`).
const APART_MAX_SECONDS: i64 = 10 * 60;

/// Seconds by which a header may be ahead of the clock.
const FUTURE_MAX_SECONDS: i64 = 2 * 60 * 60;

/// Returns whether the evidence is against the clock rather than the chain.
fn is_against_clock(doubt: &ClockDoubt) -> bool {
    if doubt.behind > APART_MAX_SECONDS {
        return true;
    }
    // The block is a little too early for a correct clock, and will soon be accepted.
    let is_nearly_there =
        i64::from(doubt.chain.time).saturating_sub(doubt.now).saturating_sub(FUTURE_MAX_SECONDS)
            <= APART_MAX_SECONDS;
    doubt.chain.peers > doubt.chain.others && !is_nearly_there
}

fn error_of(doubt: &ClockDoubt) -> ClockError {
    let ClockDoubt { now, chain, behind } = *doubt;
    let evidence = match behind > APART_MAX_SECONDS {
        true => {
            format!(" ({} peer(s) have it; peers' clocks are {behind} seconds ahead)", chain.peers)
        }
        false => format!(" ({} peer(s) have it, {} do not)", chain.peers, chain.others),
    };
    let remedy = "wait until that time, or connect to other peers";
    ClockError { now, block: chain.first, time: chain.time, evidence, remedy }
}

impl Peers<'_> {
    /// Checks that this machine's clock is not the reason for rejecting the best chain.
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
    fn withheld_chains_are_retried_at_growing_intervals() {
        let (mut choice, mut now) = (Choice::default(), Instant::now());
        let mut waited = Vec::new();
        for _ in 0..9 {
            choice.withheld(hash(1), now);
            assert_eq!(choice.avoided(now), [hash(1)]);
            let began = now;
            while !choice.avoided(now).is_empty() {
                now += RETRY_AFTER;
            }
            waited.push((now - began).as_secs() / RETRY_AFTER.as_secs());
        }
        assert_eq!(waited, [1, 2, 4, 8, 16, 32, 64, 64, 64]);
    }

    #[test]
    fn invalid_chains_stay_invalid() {
        let (mut choice, now) = (Choice::default(), Instant::now());
        choice.put(hash(1), ChainFault::Invalid { height: 5, why: "bad".to_owned() });
        choice.withheld(hash(1), now);
        assert_eq!(choice.avoided(now + 1000 * RETRY_AFTER), [hash(1)]);
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
            // Half of the peers decide whether the clocks differ.
            (1, 7, 601, day, true),
            (1, 7, 600, day, false),
            (8, 0, -day, day, true),
            // A block with the latest possible time, found just now.
            (8, 0, 3, 7200 + 600, false),
            (8, 0, 3, 7200 + 601, true),
            (8, 0, 700, 7200 + 3, true),
        ] {
            let doubt = doubt(peers, others, behind, ahead);
            assert_eq!(is_against_clock(&doubt), is_wrong, "{doubt:?}");
        }
        let text = error_of(&doubt(2, 0, 3 * day, day)).to_string();
        assert!(
            text.contains("clock says 2023-11-14T22:13:20Z") && text.contains("Set the clock"),
            "{text}"
        );
        assert!(
            text.contains("2 peer(s) have it; peers' clocks are 259200 seconds ahead"),
            "{text}"
        );
    }
}

//! What peers have and was not taken: headers that were refused, and blocks that they say they have.

use super::Network;
use super::state::State;
use crate::headers::TooNew;
use apus_chain::Height;

/// So many refusals are told.
const TOLD: usize = 3;

/// Headers that were refused for what they are, not for their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Refused {
    /// How many times.
    pub count: u64,
    /// Of whom, and why: the first ones, each once.
    pub first: Vec<String>,
}

impl Refused {
    pub(super) fn note(&mut self, what: String) {
        self.count += 1;
        if self.first.len() < TOLD && !self.first.contains(&what) {
            self.first.push(what);
        }
    }
}

/// How this machine's clock fits what peers say.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ClockDoubt {
    /// The clock, in seconds since 1970.
    pub now: i64,
    /// The chain that it keeps out.
    pub chain: TooNew,
    /// Seconds that the clocks of half the peers are ahead of it, at least; fewer than zero where they are behind.
    pub behind: i64,
}

impl Network {
    /// A chain of more work than ours that the clock alone keeps out, if a peer has one.
    pub fn clock_doubt(&self) -> Option<ClockDoubt> {
        let now_ms = self.shared.now();
        let state = self.shared.lock();
        let chain = state.headers.too_new(now_ms)?;
        Some(ClockDoubt { now: super::unix_time(), chain, behind: state.clock_behind() })
    }

    /// Headers of peers that were refused so far.
    pub fn refused_headers(&self) -> Refused {
        self.shared.lock().refused.clone()
    }

    /// How many peers that are there said to be above this height when they came, and the greatest that one said.
    pub fn claims_above(&self, height: Height) -> Option<(usize, Height)> {
        let state = self.shared.lock();
        let handles = state.peers.values().filter_map(|peer| peer.handle.as_ref());
        let claims = handles.filter_map(|it| Height::try_from(it.info.version.start_height).ok());
        let above: Vec<Height> = claims.filter(|claim| *claim > height).collect();
        Some((above.len(), above.into_iter().max()?))
    }
}

impl State {
    /// What of the peers that were dialled one half's clocks are ahead at least. With two it is the smaller one: one peer
    /// alone makes no other's clock wrong.
    fn clock_behind(&self) -> i64 {
        let there = self.peers.values().filter(|peer| peer.handle.is_some() && !peer.is_inbound());
        let mut ahead: Vec<i64> = there.map(|peer| peer.clock_ahead).collect();
        ahead.sort_unstable();
        ahead.get(ahead.len().saturating_sub(1) / 2).copied().unwrap_or(0)
    }
}

//! Whether this machine's clock is right, where it keeps out a chain that peers have.
//!
//! A clock that is behind keeps out the last blocks of the best chain, and a run would end below them as if that were the
//! tip. But any miner can make a block of the future, and any peer can send it: what a few have and the others do not says
//! nothing against the clock, as long as the peers' clocks agree with it.

use super::Peers;
use crate::error::{ClockError, SourceError};
use apus_p2p::network::ClockDoubt;

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

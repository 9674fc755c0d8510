//! `apus-bench decorate`: what it takes to look up all coins of a block through the batcher, where the
//! store answers late.
//!
//! A block is so many transactions with so many inputs each. Callers hand them to one batcher in two
//! ways: transaction by transaction, each taken before the next is handed in; or all first, then the
//! word that the block is complete, and only then taken. The second is what a validator can do, since
//! it has the block. Each batcher has two blocks, since a node's has many; the first is told apart. Beside both
//! stands a loop that asks the store for one transaction at a time.
//!
//! The coins are in memory, and each call for some of them takes as long as it is to, the look-up itself
//! included: so what is measured is waiting, and what the batcher and its threads add. The time is kept by
//! sleeping, with timers that are as exact as the system has them; how long a call's sleep really is, is
//! measured and told, too. So is what as many threads take that do nothing but begin together, wait for one answer and
//! are woken by it: on a machine with few cores that is most of the time of many callers, whoever answers. Every coin that comes back is compared with the one that was put there.

mod alone;
mod measure;
mod tables;

pub use measure::{Event, Plan, measure};
pub use tables::table;

use crate::machine::Machine;
use crate::stats::Spread;
use serde::{Deserialize, Serialize};

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 2;

/// What `apus-bench decorate` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decorated {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: Machine,
    /// Transactions of a block.
    pub txs: u32,
    /// Inputs of each.
    pub inputs: u32,
    /// How long the store takes for a call at least, in microseconds.
    pub latency_us: u64,
    /// How long a pause of that is here where nothing else goes on, in microseconds: what the system oversleeps is
    /// the made-up store's, and in every time of a block.
    pub slept_us: Spread,
    /// Coins of a full batch.
    pub batch: usize,
    /// How long a coin may wait for others, in microseconds.
    pub deadline_us: u64,
    /// Batches under way at most.
    pub in_flight: usize,
    /// How often each was measured.
    pub rounds: u32,
    /// A block without the batcher, one call of the store for each transaction, in milliseconds.
    pub plain_ms: Spread,
    /// By number of callers.
    pub measured: Vec<WithCallers>,
}

/// What was measured with so many callers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithCallers {
    /// Threads that hand coins in.
    pub callers: usize,
    /// As many that begin together, of which each waits for one answer that takes as long as the store takes, without a
    /// batcher, in milliseconds: what this machine takes for so many callers, whoever answers.
    pub alone_ms: Spread,
    /// Each takes a transaction's coins before it hands in the next one's.
    pub each: Course,
    /// Each hands all in, says that the block is complete, and takes them then.
    pub block: Course,
}

/// One way to get the coins of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Course {
    /// Time for the first block of a batcher, in milliseconds.
    pub first_ms: Spread,
    /// Time for the block after that.
    pub ms: Spread,
    /// Batches that this one took, in the last round.
    pub batches: u64,
    /// Of these, those that waited for the deadline.
    pub timed_out: u64,
    /// Batches under way at once, at most, in the last round.
    pub in_flight_max: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::prevouts::PrevoutsError;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn plan() -> Plan {
        Plan {
            txs: 50,
            inputs: 3,
            latency: Duration::from_micros(20),
            callers: vec![4, 1],
            batch: 10,
            deadline: Duration::MAX,
            in_flight: 8,
            rounds: 2,
        }
    }

    #[test]
    fn all_callers_get_all_coins_without_a_timer() {
        let mut told = Vec::new();
        let mut tell = |event: Event| told.push(event.to_string());
        let found = measure(&plan(), Machine::here(), &AtomicBool::new(false), &mut tell).unwrap();
        assert_eq!(told, ["round 1 of 2", "round 2 of 2"]);
        let callers: Vec<_> = found.measured.iter().map(|with| with.callers).collect();
        assert_eq!(callers, [4, 1]);
        for WithCallers { callers, alone_ms, each, block } in &found.measured {
            assert_eq!((each.timed_out, block.timed_out), (0, 0), "{callers}");
            // A caller alone sends what it has; all of a block is 15 batches, and a rest for each
            // caller at most.
            assert!(*callers > 1 || each.batches == 50, "{}", each.batches);
            assert!((15..=15 + *callers as u64).contains(&block.batches), "{}", block.batches);
            assert!([each, block].iter().all(|it| it.ms.min > 0.0 && it.first_ms.min > 0.0));
            assert!(alone_ms.min >= 0.02);
        }
        // 50 pauses one after the other.
        assert!(found.plain_ms.min >= 1.0);
        let text = table(&found).text();
        for words in ["50 transactions", "no batcher", "20 us"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }

    #[test]
    fn an_interruption_ends_it() {
        let interrupt = AtomicBool::new(true);
        let error = measure(&plan(), Machine::here(), &interrupt, &mut |_| ()).unwrap_err();
        assert!(matches!(error, PrevoutsError::Interrupted), "{error}");
    }
}

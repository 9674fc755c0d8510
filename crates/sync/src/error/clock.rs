//! [`ClockError`]: this machine's clock and the times of blocks do not fit each other.

use apus_chain::{HeaderChain, KnownBlock, utc};

/// A chain that the clock alone keeps out. No shorter one takes its place: where the clock is behind, the shorter one
/// would look like the whole.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "this machine's clock says {}, and block {} ({}) is of {}, more than two hours later{}: set the clock, and give the \
     same command again. If the clock is right, that block is not valid yet: {}",
    utc(*.now), .block.height, .block.hash, utc((*.time).into()), .evidence, .remedy
)]
pub struct ClockError {
    /// The clock, in seconds since 1970.
    pub now: i64,
    /// The first block of the future.
    pub block: KnownBlock,
    /// Its time.
    pub time: u32,
    /// What else speaks against the clock, or nothing.
    pub evidence: String,
    /// What helps if the clock is right.
    pub remedy: &'static str,
}

impl ClockError {
    /// That no block of a chain is of the future.
    pub fn expect_past(chain: &HeaderChain, now: i64) -> Result<(), Self> {
        let Some(height) = chain.first_too_new(now) else { return Ok(()) };
        let hash = chain.hash(height).copied().unwrap_or_default();
        Err(Self {
            now,
            block: KnownBlock { height, hash },
            time: chain.time(height).unwrap_or_default(),
            evidence: String::new(),
            remedy: "wait until its time has come, or give blocks of which none is of the future",
        })
    }
}

//! Relative lock times (BIP-68): how long a coin has to rest before an input may spend it.
//!
//! Heights and times of blocks come from an [`Ancestry`]; what it does not know locks a
//! transaction rather than letting it pass. Absolute lock times need no coins and are
//! [`check`](crate::check)'s.

use crate::block::TxView;
use crate::hashes::BlockHash;
use crate::header_chain::HeaderChain;
use crate::height::Height;

/// The blocks before one that is being connected.
pub trait Ancestry {
    /// The hash of the block at `height`, none above the last one known.
    fn hash(&self, height: Height) -> Option<BlockHash>;

    /// Median of the times of the block at `height` and up to ten before it (Core `chain.h`,
    /// `GetMedianTimePast`), none above the last one known.
    fn median_time_past(&self, height: Height) -> Option<u32>;
}

impl Ancestry for HeaderChain {
    fn hash(&self, height: Height) -> Option<BlockHash> {
        self.hash(height).copied()
    }

    fn median_time_past(&self, height: Height) -> Option<u32> {
        self.median_time_past(height)
    }
}

/// An input with this bit has no relative lock time (BIP-68, `SEQUENCE_LOCKTIME_DISABLE_FLAG`).
const DISABLE_FLAG: u32 = 1 << 31;

/// With this bit the lock counts time, without it blocks (BIP-68, `SEQUENCE_LOCKTIME_TYPE_FLAG`).
const TYPE_FLAG: u32 = 1 << 22;

/// Where the length of the lock stands (BIP-68, `SEQUENCE_LOCKTIME_MASK`).
const MASK: u32 = 0xffff;

/// A lock that counts time counts 512 seconds, 2^9 (BIP-68, `SEQUENCE_LOCKTIME_GRANULARITY`).
const GRANULARITY: u32 = 9;

/// Whether the relative lock times of a transaction are over in the block at `block_height` (Core
/// `consensus/tx_verify.cpp`, `SequenceLocks`; BIP-68).
///
/// `coin_heights` gives the height of the coin that the input of a number spends, which is the
/// block's own for a coin made in it. `ancestry` must know the blocks below `block_height`;
/// `bip68_active` is whether the block stands at [`csv_height`](crate::Params::csv_height) or above.
pub fn check_sequence_locks(
    tx: &TxView<'_>,
    coin_heights: impl Fn(usize) -> Height,
    ancestry: &(impl Ancestry + ?Sized),
    block_height: Height,
    bip68_active: bool,
) -> bool {
    let mut locks = relative_locks(tx);
    !bip68_active
        || locks.all(|(vin, sequence)| {
            relative_lock_is_over(sequence, coin_heights(vin), ancestry, block_height)
        })
}

/// The inputs of a transaction that have a relative lock time (BIP-68), each with its sequence number.
pub fn relative_locks<'a>(tx: &TxView<'a>) -> impl Iterator<Item = (usize, u32)> + use<'a> {
    // Core compares the version unsigned: a negative one has locks as well.
    let inputs = (tx.version() >= 2).then(|| tx.inputs().enumerate());
    let locks = inputs.into_iter().flatten().map(|(vin, input)| (vin, input.sequence()));
    locks.filter(|(_, sequence)| sequence & DISABLE_FLAG == 0)
}

/// Whether the relative lock time that a sequence number states is over in the block at `block_height`, for a
/// coin of the block at `coin_height`.
pub fn relative_lock_is_over(
    sequence: u32,
    coin_height: Height,
    ancestry: &(impl Ancestry + ?Sized),
    block_height: Height,
) -> bool {
    let length = sequence & MASK;
    if sequence & TYPE_FLAG == 0 {
        return u64::from(coin_height) + u64::from(length) <= u64::from(block_height);
    }
    // Time runs from the median before the block of the coin to the median before this block.
    let rested = || {
        let start = ancestry.median_time_past(coin_height.saturating_sub(1))?;
        let end = ancestry.median_time_past(block_height.checked_sub(1)?)?;
        Some(u64::from(start) + u64::from(length << GRANULARITY) <= u64::from(end))
    };
    rested().unwrap_or(false)
}

#[cfg(test)]
mod tests;

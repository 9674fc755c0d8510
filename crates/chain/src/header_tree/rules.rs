//! The rules for a header and its ancestors (Core `pow.cpp`, and `validation.cpp`,
//! `ContextualCheckBlockHeader`), and the errors, with Core's reject reasons.

use super::{HeaderId, HeaderTree};
use crate::hashes::BlockHash;
use crate::header::{Height, utc};
use crate::params::Params;
use crate::work::U256;
use std::borrow::Cow;

/// How far ahead of the clock a header may be (Core `chain.h`, `MAX_FUTURE_BLOCK_TIME`).
const MAX_FUTURE_BLOCK_TIME_SECONDS: i64 = 2 * 60 * 60;

/// How far the first header of a period may be before its parent (Core `consensus/consensus.h`,
/// `MAX_TIMEWARP`; BIP-94).
const MAX_TIMEWARP_SECONDS: i64 = 600;

/// Number of headers in the median (Core `chain.h`, `nMedianTimeSpan`).
pub(crate) const MEDIAN_TIME_SPAN: usize = 11;

/// Returns whether a header with this time is rejected for being too far ahead of the clock.
pub fn is_too_new(time: u32, now: i64) -> bool {
    i64::from(time) > now.saturating_add(MAX_FUTURE_BLOCK_TIME_SECONDS)
}

/// Returns the median of up to [`MEDIAN_TIME_SPAN`] times, the later of the middle two for an even
/// number (Core `chain.h`, `GetMedianTimePast`).
pub(crate) fn median_time(times: impl Iterator<Item = u32>) -> u32 {
    let mut span = [0; MEDIAN_TIME_SPAN];
    let mut count = 0;
    for (slot, time) in span.iter_mut().zip(times) {
        *slot = time;
        count += 1;
    }
    span[..count].sort_unstable();
    span[count / 2]
}

/// Returns the target after a period with these times at its start and end. The new target is based on
/// `bits`, which the network's rules choose (Core `pow.cpp`, `CalculateNextWorkRequired`).
fn retarget(params: &Params, bits: u32, first_time: u32, last_time: u32) -> u32 {
    let timespan = i64::from(params.pow_target_timespan_seconds.get());
    let actual = (i64::from(last_time) - i64::from(first_time)).clamp(timespan / 4, timespan * 4);
    // Like Core, multiply by the low 32 bits; a product of more than 256 bits wraps.
    let product = U256::from_compact(bits).value.wrapping_mul_u32(actual as u32);
    let divisor = U256::from_u32(params.pow_target_timespan_seconds.get());
    let target = product.checked_div(divisor).unwrap_or(U256::ZERO);
    target.min(params.pow_limit).to_compact()
}

impl HeaderTree {
    /// Returns the median of the times of a connected header and up to ten before it (Core
    /// `chain.h`, `GetMedianTimePast`).
    ///
    /// # Panics
    ///
    /// Panics if the header is not connected.
    pub fn median_time_past(&self, id: HeaderId) -> u32 {
        assert!(self.entries[id.index()].is_connected(), "an orphan has no median time");
        median_time(self.lineage_of(id).map(|id| self.entries[id.index()].time))
    }

    /// Returns the target that a child of `parent` with this time must have (Core `pow.cpp`,
    /// `GetNextWorkRequired`).
    pub(super) fn next_bits(&self, parent: HeaderId, time: u32) -> u32 {
        let params = &self.params;
        let (last, targets) = (&self.entries[parent.index()], self.stretch_of(parent));
        let interval = params.difficulty_adjustment_interval();
        if !(last.height + 1).is_multiple_of(interval) {
            if !params.pow_allow_min_difficulty_blocks {
                return targets.bits;
            }
            let late =
                i64::from(last.time) + 2 * i64::from(params.pow_target_spacing_seconds.get());
            return if i64::from(time) > late { self.limit_bits } else { targets.last_real_bits };
        }
        if params.pow_no_retargeting {
            return targets.bits;
        }
        let first = self.lineage_of(parent).nth(interval as usize - 1);
        let first = first.expect("a period that ends has a first header");
        // BIP-94: a period's last header may be a minimum-difficulty exception; its first header may not.
        let bits = if params.enforce_bip94 { self.stretch_of(first).bits } else { targets.bits };
        retarget(params, bits, self.entries[first.index()].time, last.time)
    }

    /// Checks all rules that depend on ancestors, in Core's order (Core `validation.cpp`,
    /// `ContextualCheckBlockHeader`).
    pub(super) fn check_contextual(
        &self,
        hash: BlockHash,
        version: i32,
        time: u32,
        bits: u32,
        parent: HeaderId,
    ) -> Result<(), HeaderError> {
        let height = self.entries[parent.index()].height + 1;
        let expected = self.next_bits(parent, time);
        if bits != expected {
            return Err(HeaderError::BadDiffBits { hash, height, found: bits, expected });
        }
        self.check_time(hash, height, time, parent)?;
        let outdated = [
            (2, self.params.bip34_height),
            (3, self.params.bip66_height),
            (4, self.params.bip65_height),
        ];
        if outdated.iter().any(|&(least, from)| version < least && height >= from) {
            return Err(HeaderError::BadVersion { hash, height, version });
        }
        Ok(())
    }

    fn check_time(
        &self,
        hash: BlockHash,
        height: Height,
        time: u32,
        parent: HeaderId,
    ) -> Result<(), HeaderError> {
        let median_time_past = self.median_time_past(parent);
        if time <= median_time_past {
            return Err(HeaderError::TimeTooOld { hash, height, time, median_time_past });
        }
        let prev_time = self.entries[parent.index()].time;
        if self.params.enforce_bip94
            && height.is_multiple_of(self.params.difficulty_adjustment_interval())
            && i64::from(time) < i64::from(prev_time) - MAX_TIMEWARP_SECONDS
        {
            return Err(HeaderError::TimewarpAttack { hash, height, time, prev_time });
        }
        if is_too_new(time, self.now) {
            return Err(HeaderError::TimeTooNew { hash, height, time, now: self.now });
        }
        Ok(())
    }
}

/// Why a header was rejected.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The hash does not meet the claimed target, or the target is out of range for any block.
    #[error("block header {hash} lacks the proof of work for its bits 0x{bits:08x} (high-hash)")]
    HighHash {
        /// The header.
        hash: BlockHash,
        /// The claimed target.
        bits: u32,
    },
    /// The target differs from the result of the retarget rules.
    #[error(
        "block header {hash} at height {height} has bits 0x{found:08x} but its chain requires \
         0x{expected:08x} (bad-diffbits)"
    )]
    BadDiffBits {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: Height,
        /// The claimed target.
        found: u32,
        /// The required target.
        expected: u32,
    },
    /// The time is not above the median of the previous eleven blocks.
    #[error(
        "block header {hash} at height {height} has time {time}, not above its median time past \
         of {median_time_past} (time-too-old)"
    )]
    TimeTooOld {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: Height,
        /// Its time.
        time: u32,
        /// The median.
        median_time_past: u32,
    },
    /// The first block of a retarget period is too far before its parent (BIP-94).
    #[error(
        "block header {hash} at height {height} has time {time}, more than 600 seconds before the \
         {prev_time} of its parent in the period before (time-timewarp-attack)"
    )]
    TimewarpAttack {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: Height,
        /// Its time.
        time: u32,
        /// The parent's time.
        prev_time: u32,
    },
    /// The time is more than two hours ahead of the clock.
    #[error(
        "block header {hash} at height {height} has time {}, more than two hours ahead of this machine's clock at \
         {}. If the clock is wrong, set it (time-too-new)",
        utc((*.time).into()), utc(*.now)
    )]
    TimeTooNew {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: Height,
        /// Its time.
        time: u32,
        /// The clock.
        now: i64,
    },
    /// The version is outdated at this height.
    #[error(
        "block header {hash} at height {height} has an outdated version (bad-version(0x{version:08x}))"
    )]
    BadVersion {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: Height,
        /// Its version.
        version: i32,
    },
    /// An ancestor is invalid.
    #[error(
        "block header {hash} follows {prev}, which is rejected; the first invalid header is \
         {invalid} ({invalid_reason}) (bad-prevblk)"
    )]
    BadPrev {
        /// The header.
        hash: BlockHash,
        /// Its parent.
        prev: BlockHash,
        /// The first invalid ancestor.
        invalid: BlockHash,
        /// Core's reject reason for that ancestor.
        invalid_reason: Cow<'static, str>,
    },
    /// A header without a parent that is not this chain's genesis block.
    #[error(
        "block header {hash} has no parent and is not this chain's genesis block: it belongs to \
         another chain (prev-blk-not-found)"
    )]
    OtherGenesis {
        /// The header.
        hash: BlockHash,
    },
    /// Too many headers wait for missing parents.
    #[error(
        "block header {hash} has the unknown parent {prev}, and {limit} headers already wait for unknown \
         parents: blocks are missing from the input (prev-blk-not-found)"
    )]
    TooManyOrphans {
        /// The header.
        hash: BlockHash,
        /// Its parent.
        prev: BlockHash,
        /// The limit of waiting headers.
        limit: usize,
    },
    /// The tree has assigned all its ids.
    #[error("block header {hash} exceeds the {limit} headers that a header tree can hold")]
    TooManyHeaders {
        /// The header.
        hash: BlockHash,
        /// The limit.
        limit: usize,
    },
}

impl HeaderError {
    /// Returns Core's reject reason (`validation.cpp`), or the nearest one for limits that Core
    /// lacks.
    pub fn reason(&self) -> Cow<'static, str> {
        Cow::Borrowed(match self {
            Self::HighHash { .. } => "high-hash",
            Self::BadDiffBits { .. } => "bad-diffbits",
            Self::TimeTooOld { .. } => "time-too-old",
            Self::TimewarpAttack { .. } => "time-timewarp-attack",
            Self::TimeTooNew { .. } => "time-too-new",
            Self::BadVersion { version, .. } => {
                return Cow::Owned(format!("bad-version(0x{version:08x})"));
            }
            Self::BadPrev { .. } => "bad-prevblk",
            Self::OtherGenesis { .. } | Self::TooManyOrphans { .. } => "prev-blk-not-found",
            Self::TooManyHeaders { .. } => "too-many-headers",
        })
    }

    /// Returns the hash of the rejected header.
    pub const fn hash(&self) -> &BlockHash {
        match self {
            Self::HighHash { hash, .. }
            | Self::BadDiffBits { hash, .. }
            | Self::TimeTooOld { hash, .. }
            | Self::TimewarpAttack { hash, .. }
            | Self::TimeTooNew { hash, .. }
            | Self::BadVersion { hash, .. }
            | Self::BadPrev { hash, .. }
            | Self::OtherGenesis { hash }
            | Self::TooManyOrphans { hash, .. }
            | Self::TooManyHeaders { hash, .. } => hash,
        }
    }

    /// Returns the error that `hash` descends, through `prev`, from the header that `cause` rejected.
    pub(super) fn bad_prev(hash: BlockHash, prev: BlockHash, cause: &Self) -> Self {
        let (invalid, invalid_reason) = match cause {
            Self::BadPrev { invalid, invalid_reason, .. } => (*invalid, invalid_reason.clone()),
            first => (*first.hash(), first.reason()),
        };
        Self::BadPrev { hash, prev, invalid, invalid_reason }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::params::Network;
    use bitcoin::CompactTarget;
    use proptest::prelude::*;

    proptest! {
        /// Any sequence of times, and any target that main can have.
        #[test]
        fn retarget_agrees_with_the_reference(
            size in 4u32..=0x1c, mantissa in 0x8000u32..0x80_0000, span in any::<u32>(),
        ) {
            let bits = size << 24 | mantissa;
            let params = Params::of(Network::Main);
            let reference = CompactTarget::from_next_work_required(
                CompactTarget::from_consensus(bits),
                u64::from(span),
                &bitcoin::params::MAINNET,
            );
            prop_assert_eq!(retarget(params, bits, 0, span), reference.to_consensus());
        }

        #[test]
        fn median_has_as_many_below_as_above(times in proptest::collection::vec(any::<u32>(), 1..20)) {
            let median = median_time(times.iter().copied());
            let span = &times[..times.len().min(11)];
            let below = span.iter().filter(|&&time| time < median).count();
            let above = span.iter().filter(|&&time| time > median).count();
            prop_assert!(span.contains(&median));
            prop_assert!(below <= span.len() / 2 && above <= (span.len() - 1) / 2);
        }
    }

    #[test]
    fn a_negative_timespan_counts_as_the_shortest() {
        let params = Params::of(Network::Main);
        let quarter = params.pow_target_timespan_seconds.get() / 4;
        let bits = 0x1b0404cb;
        assert_eq!(retarget(params, bits, 5_000_000, 0), retarget(params, bits, 0, quarter));
        assert_ne!(retarget(params, bits, 5_000_000, 0), bits);
    }
}

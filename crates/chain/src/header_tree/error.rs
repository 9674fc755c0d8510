//! [`HeaderError`]: why a header was refused, in Core's words and in ours.

use crate::hashes::BlockHash;
use crate::height::Height;
use crate::utc::utc;
use std::borrow::Cow;

/// Why a header was refused.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum HeaderError {
    /// The hash does not reach the claimed target, or no block may have that target.
    #[error("block header {hash} lacks the proof of work for its bits 0x{bits:08x} (high-hash)")]
    HighHash {
        /// The header.
        hash: BlockHash,
        /// The target it claims.
        bits: u32,
    },
    /// The target is not the one that the retarget rules give.
    #[error(
        "block header {hash} at height {height} has bits 0x{found:08x} where its chain requires \
         0x{expected:08x} (bad-diffbits)"
    )]
    BadDiffBits {
        /// The header.
        hash: BlockHash,
        /// Its height.
        height: Height,
        /// The target it claims.
        found: u32,
        /// The target that the rules give.
        expected: u32,
    },
    /// The time is not above the median of the eleven blocks before.
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
    /// The first block of a retarget period lies too far before its parent (BIP-94).
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
    /// The time lies more than two hours ahead of the clock.
    #[error(
        "block header {hash} at height {height} is of {}, more than two hours after this machine's \
         clock at {}; if the clock is wrong, set it (time-too-new)",
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
        /// The invalid ancestor that is the cause.
        invalid: BlockHash,
        /// Core's word for what is wrong with that.
        invalid_reason: Cow<'static, str>,
    },
    /// A first block that is not this chain's.
    #[error(
        "block header {hash} has no parent and is not this chain's genesis block: it belongs to another chain (prev-blk-not-found)"
    )]
    OtherGenesis {
        /// The header.
        hash: BlockHash,
    },
    /// Too many headers wait for parents that never came.
    #[error(
        "block header {hash} follows the unknown {prev}, and {limit} headers wait for unknown \
         parents already: blocks are missing from the input (prev-blk-not-found)"
    )]
    TooManyOrphans {
        /// The header.
        hash: BlockHash,
        /// Its parent.
        prev: BlockHash,
        /// How many may wait.
        limit: usize,
    },
    /// More headers than ids.
    #[error("block header {hash} is one more than the {limit} that a header tree can hold")]
    TooManyHeaders {
        /// The header.
        hash: BlockHash,
        /// How many fit.
        limit: usize,
    },
}

impl HeaderError {
    /// Core's reject reason (`validation.cpp`), or for limits of our own the nearest word.
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

    /// The header that was refused.
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

    /// `hash` descends, through `prev`, from what `cause` found invalid.
    pub(super) fn bad_prev(hash: BlockHash, prev: BlockHash, cause: &Self) -> Self {
        let (invalid, invalid_reason) = match cause {
            Self::BadPrev { invalid, invalid_reason, .. } => (*invalid, invalid_reason.clone()),
            first => (*first.hash(), first.reason()),
        };
        Self::BadPrev { hash, prev, invalid, invalid_reason }
    }
}

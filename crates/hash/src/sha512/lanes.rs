//! [`Lanes`]: what a kernel of SHA-512 for several messages at once can do.
//!
//! Implemented by the tokens `Portable` (one message), `Avx2` (four), `Avx512` (eight). Invariant:
//! lanes are independent, so a lane may be filled with anything when there is no message for it.

use super::Padded;
use core::ops::Range;

/// The states of `N` hashes: word by word, in each the lanes.
pub(super) type States<const N: usize> = crate::lanes::States<N, u64>;

/// A kernel for `N` messages at once.
pub(super) trait Lanes<const N: usize>: Copy {
    /// Continues all states over the same range of blocks of their messages.
    fn absorb(self, states: &mut States<N>, messages: &[Padded<'_>; N], blocks: Range<usize>);

    /// SHA-512/256 of each 64-byte message.
    fn pairs(self, pairs: &[[[u8; 64]; N]], out: &mut [[[u8; 32]; N]]);
}

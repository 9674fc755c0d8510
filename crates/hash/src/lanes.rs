//! [`Lanes`]: what a kernel for several messages at once can do.
//!
//! Implemented by the tokens `ShaNi` (two messages), `Avx2` (eight), `Avx512` (sixteen). Invariant:
//! lanes are independent, so a lane may be filled with anything when there is no message for it.

use crate::message::Padded;
use core::ops::Range;

/// The states of `N` hashes: word by word, in each the lanes.
pub(crate) type States<const N: usize, Word = u32> = [[Word; N]; 8];

/// Sums of digests column by column: `[i]` adds up bytes `4 * i..4 * i + 4`, read little-endian.
pub(crate) type Columns = [u64; 8];

/// A kernel for `N` messages at once.
pub(crate) trait Lanes<const N: usize>: Copy {
    /// Continues all states over the same range of blocks of their messages.
    fn absorb(self, states: &mut States<N>, messages: &[Padded<'_>; N], blocks: Range<usize>);

    /// The digest of each digest.
    fn rehash(self, states: &States<N>) -> [[u8; 32]; N];

    /// The double hash of each 64-byte message.
    fn pairs(self, pairs: &[[[u8; 64]; N]], out: &mut [[[u8; 32]; N]]);

    /// The digest of each 36-byte message after one block that led to `midstate`.
    fn keyed(self, midstate: &[u32; 8], messages: &[[[u8; 36]; N]], out: &mut [[[u8; 32]; N]]);

    /// Adds what [`keyed`](Self::keyed) would give to `columns`, which must not overflow: the
    /// caller passes fewer than 2^31 messages before it empties them.
    fn keyed_sum(self, midstate: &[u32; 8], messages: &[[[u8; 36]; N]], columns: &mut Columns);
}

/// One lane of `states`.
#[inline]
pub(crate) fn column<const N: usize, Word: Copy>(
    states: &States<N, Word>,
    lane: usize,
) -> [Word; 8] {
    core::array::from_fn(|word| states[word][lane])
}

/// Sets one lane of `states`.
#[inline]
pub(crate) fn set_column<const N: usize>(states: &mut States<N>, lane: usize, state: &[u32; 8]) {
    for (words, word) in states.iter_mut().zip(state) {
        words[lane] = *word;
    }
}

/// Implements the `Lanes` in scope for a token by the functions of the same names in scope, which
/// need the instructions that the token stands for.
#[cfg(target_arch = "x86_64")]
macro_rules! forward_lanes {
    ($token:ident, $n:literal) => {
        crate::lanes::forward_lanes! { @each $token, $n;
            fn absorb(states: &mut States<$n>, messages: &[Padded<'_>; $n], blocks: Range<usize>);
            fn rehash(states: &States<$n>) -> [[u8; 32]; $n];
            fn pairs(messages: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]);
            fn keyed(midstate: &[u32; 8], messages: &[[[u8; 36]; $n]], out: &mut [[[u8; 32]; $n]]);
            fn keyed_sum(midstate: &[u32; 8], messages: &[[[u8; 36]; $n]], columns: &mut Columns);
        }
    };
    (@each $token:ident, $n:literal;
     $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Lanes<$n> for $token {$(
            #[inline]
            fn $name(self, $($arg: $type),*) $(-> $result)? {
                // SAFETY: the token exists only where its `detect` found the instructions.
                unsafe { $name($($arg),*) }
            }
        )*}
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use forward_lanes;

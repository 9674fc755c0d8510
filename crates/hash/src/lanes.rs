//! [`HashLanes`]: a kernel that hashes `N` messages at once, with the words of its states and sums.
//!
//! The tokens `ShaNi` (two messages), `Avx2` (eight), `Avx512` (sixteen) and `Single` (one) implement it.
//! Lanes are independent, so a lane without a message may hold any values. A digest consists of a state's
//! words in order, each big-endian; a sum reads the same bytes as one little-endian number of 256 bits.

use crate::padded::PaddedMessage;
use core::ops::Range;

/// The states of `N` hashes: each word for all lanes.
pub(crate) type States<const N: usize, Word = u32> = [[Word; N]; 8];

/// Sums of digests by column: `[i]` is the sum of bytes `4 * i..4 * i + 4`, read little-endian.
pub(crate) type Columns = [u64; 8];

/// A kernel for `N` messages at once.
pub(crate) trait HashLanes<const N: usize>: Copy {
    /// Continues all states over the same range of blocks of their messages.
    fn absorb(
        self,
        states: &mut States<N>,
        messages: &[PaddedMessage<'_>; N],
        blocks: Range<usize>,
    );

    /// Hashes each digest again.
    fn rehash(self, states: &States<N>) -> [[u8; 32]; N];

    /// Hashes each 64-byte message twice.
    fn pairs(self, pairs: &[[[u8; 64]; N]], out: &mut [[[u8; 32]; N]]);

    /// Hashes each 36-byte message, continuing from `midstate`, the state after one block.
    fn keyed(self, midstate: &[u32; 8], messages: &[[[u8; 36]; N]], out: &mut [[[u8; 32]; N]]);

    /// Adds the digests of [`keyed`](Self::keyed) to `columns`. The columns must not overflow, so the caller
    /// passes fewer than 2^31 messages before it empties them.
    fn keyed_sum(self, midstate: &[u32; 8], messages: &[[[u8; 36]; N]], columns: &mut Columns);
}

/// Returns one lane of `states`.
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

/// Converts a state to the bytes of its digest.
#[inline]
pub(crate) fn bytes_of(state: &[u32; 8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    out
}

/// Builds the padded block for hashing a digest again.
#[inline]
pub(crate) fn block_of(state: &[u32; 8]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..32].copy_from_slice(&bytes_of(state));
    block[32] = 0x80;
    block[62..].copy_from_slice(&(32u16 * 8).to_be_bytes());
    block
}

/// Builds the second block of a 100-byte message whose last 36 bytes are `message`.
#[inline]
pub(crate) fn keyed_block(message: &[u8; 36]) -> [u8; 64] {
    let mut block = [0; 64];
    block[..36].copy_from_slice(message);
    block[36] = 0x80;
    block[62..].copy_from_slice(&(100u16 * 8).to_be_bytes());
    block
}

/// Adds one digest, given as words.
#[inline]
pub(crate) fn add_to_columns(columns: &mut Columns, state: &[u32; 8]) {
    for (column, word) in columns.iter_mut().zip(state) {
        *column += u64::from(word.swap_bytes());
    }
}

/// Adds the columns to a 256-bit number, least significant limb first, modulo 2^256.
pub(crate) fn add_columns_to(sum: &mut [u64; 4], columns: &Columns) {
    let mut carry = 0;
    for (limb, pair) in sum.iter_mut().zip(columns.as_chunks::<2>().0) {
        carry += u128::from(*limb) + u128::from(pair[0]) + (u128::from(pair[1]) << 32);
        *limb = carry as u64;
        carry >>= 64;
    }
}

/// Implements a lane trait for a token. Forwards to the functions of the same names in scope, which need the
/// instructions that the token proves.
#[cfg(target_arch = "x86_64")]
macro_rules! forward_lanes {
    ($token:ident, $n:literal) => {
        crate::lanes::forward_lanes! { @each HashLanes, $token, $n;
            fn absorb(states: &mut States<$n>, messages: &[PaddedMessage<'_>; $n], blocks: Range<usize>);
            fn rehash(states: &States<$n>) -> [[u8; 32]; $n];
            fn pairs(messages: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]);
            fn keyed(midstate: &[u32; 8], messages: &[[[u8; 36]; $n]], out: &mut [[[u8; 32]; $n]]);
            fn keyed_sum(midstate: &[u32; 8], messages: &[[[u8; 36]; $n]], columns: &mut Columns);
        }
    };
    (@each $lanes:ident, $token:ident, $n:literal;
     $(fn $name:ident($($arg:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl $lanes<$n> for $token {$(
            #[inline]
            fn $name(self, $($arg: $type),*) $(-> $result)? {
                // SAFETY: the token exists only if its `detect` found the instructions.
                unsafe { $name($($arg),*) }
            }
        )*}
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use forward_lanes;

/// Implements [`HashLanes`] for `$token`. Besides what `define_rounds!` needs, these must be in
/// scope:
///
/// - `load` and `store`: a register from and to an array of words,
/// - `swap_bytes`: of each word,
/// - `words_of_blocks`, `words_of_64`, `words_of_36`: the words of a block of each message, of
///   64-byte messages side by side, of 36-byte messages side by side,
/// - `digests`: of the states in the lanes,
/// - `even`, `odd`, `add_64`, `total_64`: sums of words in lanes twice as wide.
///
/// Only its methods call the kernel's functions, and the token proves that these may be called.
#[cfg(target_arch = "x86_64")]
macro_rules! implement_lanes {
    ($token:ident, $register:ty, $n:literal, #[$attribute:meta]) => {
        crate::rounds::define_rounds!(sha256, $register, #[$attribute]);

        #[inline]
        #[$attribute]
        fn broadcast(state: &[u32; 8]) -> [$register; 8] {
            let mut lanes = [constant(0); 8];
            for (lanes, word) in lanes.iter_mut().zip(state) {
                *lanes = constant(*word);
            }
            lanes
        }

        #[inline]
        #[$attribute]
        fn load_states(states: &States<$n>) -> [$register; 8] {
            let mut lanes = [constant(0); 8];
            for (lanes, words) in lanes.iter_mut().zip(states) {
                *lanes = load(words);
            }
            lanes
        }

        #[$attribute]
        fn absorb(states: &mut States<$n>, messages: &[PaddedMessage<'_>; $n], blocks: Range<usize>) {
            let mut state = load_states(states);
            for block in blocks {
                let mut words = words_of_blocks(messages, block);
                compress_words!(&mut state, &mut words);
            }
            for (words, lanes) in states.iter_mut().zip(state) {
                store(lanes, words);
            }
        }

        /// Hashes digests again: takes their states and returns the new ones.
        #[inline]
        #[$attribute]
        fn hash_again(digest: &[$register; 8]) -> [$register; 8] {
            let mut state = broadcast(&crate::rounds::INITIAL);
            let [a, b, c, d, e, f, g, h] = *digest;
            let (zero, mark, length) = (constant(0), constant(1 << 31), constant(32 * 8));
            let mut words = [a, b, c, d, e, f, g, h, mark, zero, zero, zero, zero, zero, zero, length];
            compress_words!(&mut state, &mut words);
            state
        }

        #[$attribute]
        fn rehash(states: &States<$n>) -> [[u8; 32]; $n] {
            digests(&hash_again(&load_states(states)))
        }

        #[$attribute]
        fn pairs(pairs: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]) {
            for (pairs, out) in pairs.iter().zip(out) {
                let mut state = broadcast(&crate::rounds::INITIAL);
                let mut words = words_of_64(pairs);
                compress_words!(&mut state, &mut words);
                let before = state;
                crate::rounds::each_round!(64, ROUND => {
                    round::<ROUND>(&mut state, constant(crate::rounds::PADDING_64[ROUND]))
                });
                add_states(&mut state, &before);
                *out = digests(&hash_again(&state));
            }
        }

        /// Continues from `midstate` over a block with 36 bytes and the padding of a 100-byte message.
        #[inline]
        #[$attribute]
        fn keyed_state(midstate: &[$register; 8], messages: &[[u8; 36]; $n]) -> [$register; 8] {
            let mut state = *midstate;
            let [a, b, c, d, e, f, g, h, i] = words_of_36(messages);
            let (zero, mark, length) = (constant(0), constant(1 << 31), constant(100 * 8));
            let mut words = [a, b, c, d, e, f, g, h, i, mark, zero, zero, zero, zero, zero, length];
            compress_words!(&mut state, &mut words);
            state
        }

        #[$attribute]
        fn keyed(midstate: &[u32; 8], messages: &[[[u8; 36]; $n]], out: &mut [[[u8; 32]; $n]]) {
            let midstate = broadcast(midstate);
            for (messages, out) in messages.iter().zip(out) {
                *out = digests(&keyed_state(&midstate, messages));
            }
        }

        #[$attribute]
        fn keyed_sum(midstate: &[u32; 8], messages: &[[[u8; 36]; $n]], columns: &mut Columns) {
            let midstate = broadcast(midstate);
            let mut sums = [[constant(0); 2]; 8];
            for messages in messages {
                for (sum, word) in sums.iter_mut().zip(keyed_state(&midstate, messages)) {
                    let word = swap_bytes(word);
                    *sum = [add_64(sum[0], even(word)), add_64(sum[1], odd(word))];
                }
            }
            for (column, [even, odd]) in columns.iter_mut().zip(sums) {
                *column += total_64(add_64(even, odd));
            }
        }

        crate::lanes::forward_lanes!($token, $n);
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use implement_lanes;

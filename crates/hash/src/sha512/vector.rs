//! The lane kernels' common part: every operation of [`Lanes`](super::lanes::Lanes) in terms of a
//! vector register whose lanes hold the same word of different messages.

/// Implements [`Lanes`](super::lanes::Lanes) for `$token`. In scope must be, besides what
/// [`define_rounds!`](crate::rounds::define_rounds) asks for:
///
/// - `load` and `store`: a register from and to an array of words,
/// - `words_of_blocks`, `words_of_64`: the words of a block of each message, of 64-byte messages
///   side by side,
/// - `digests`: of the first halves of the states in the lanes.
///
/// Its methods are the only way in, and the token the proof that they may be called.
macro_rules! implement_lanes {
    ($token:ident, $register:ty, $n:literal, #[$attribute:meta]) => {
        crate::rounds::define_rounds!(sha512, $register, #[$attribute]);

        #[$attribute]
        fn absorb(states: &mut States<$n>, messages: &[Padded<'_>; $n], blocks: Range<usize>) {
            let mut state = [constant(0); 8];
            for (lanes, words) in state.iter_mut().zip(&*states) {
                *lanes = load(words);
            }
            for block in blocks {
                let mut words = words_of_blocks(messages, block);
                compress_words!(&mut state, &mut words);
            }
            for (words, lanes) in states.iter_mut().zip(state) {
                store(lanes, words);
            }
        }

        #[$attribute]
        fn pairs(pairs: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]) {
            for (pairs, out) in pairs.iter().zip(out) {
                let mut state = [constant(0); 8];
                for (lanes, word) in state.iter_mut().zip(super::constants::INITIAL_256) {
                    *lanes = constant(word);
                }
                let [a, b, c, d, e, f, g, h] = words_of_64(pairs);
                let (zero, mark, length) = (constant(0), constant(1 << 63), constant(64 * 8));
                let mut words =
                    [a, b, c, d, e, f, g, h, mark, zero, zero, zero, zero, zero, zero, length];
                compress_words!(&mut state, &mut words);
                let [a, b, c, d, ..] = state;
                *out = digests(&[a, b, c, d]);
            }
        }

        crate::lanes::forward_lanes! { @each $token, $n;
            fn absorb(states: &mut States<$n>, messages: &[Padded<'_>; $n], blocks: Range<usize>);
            fn pairs(messages: &[[[u8; 64]; $n]], out: &mut [[[u8; 32]; $n]]);
        }
    };
}
pub(super) use implement_lanes;

//! The lane kernels' common part: every operation of [`Lanes`](crate::lanes::Lanes) in terms of a
//! vector register whose lanes hold the same word of different messages.

/// Implements [`Lanes`](crate::lanes::Lanes) for `$token`. In scope must be, besides what
/// [`define_rounds!`](crate::rounds::define_rounds) asks for:
///
/// - `load` and `store`: a register from and to an array of words,
/// - `swap_bytes`: of each word,
/// - `words_of_blocks`, `words_of_64`, `words_of_36`: the words of a block of each message, of
///   64-byte messages side by side, of 36-byte messages side by side,
/// - `digests`: of the states in the lanes,
/// - `even`, `odd`, `add_64`, `total_64`: sums of words in lanes twice as wide.
///
/// Its methods are the only way in, and the token the proof that they may be called.
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
        fn absorb(states: &mut States<$n>, messages: &[Padded<'_>; $n], blocks: Range<usize>) {
            let mut state = load_states(states);
            for block in blocks {
                let mut words = words_of_blocks(messages, block);
                compress_words!(&mut state, &mut words);
            }
            for (words, lanes) in states.iter_mut().zip(state) {
                store(lanes, words);
            }
        }

        /// The state after the digest that `digest` is the state of.
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

        /// The state after `midstate` and a block that is 36 bytes and the padding after 100.
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
pub(crate) use implement_lanes;

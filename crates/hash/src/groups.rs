//! [`Groups`]: any number of messages by a kernel that takes `N` at once; and [`HashLanes`], what such a kernel can do.
//!
//! [`HashLanes`] is implemented by the tokens `ShaNi` (two messages), `Avx2` (eight), `Avx512` (sixteen). Lanes are
//! independent, so a lane may be filled with anything when there is no message for it. They cost the same whether
//! they are of use or not, so where fewer than `least` are, a narrower kernel takes over. Invariant: which kernel
//! does what never shows in the result.

use crate::many::Padded;
use crate::rounds::INITIAL;
use crate::single::{add_to_columns, bytes_of};
use core::ops::Range;

/// The widest kernel's number of lanes.
pub(crate) const WIDTH_MAX: usize = 16;

/// A hash that has come as far as block `next` of its message.
#[derive(Clone, Copy)]
pub(crate) struct GroupJob<'a> {
    pub(crate) message: Padded<'a>,
    pub(crate) next: usize,
    pub(crate) state: [u32; 8],
}

/// The many-functions over slices of any length. Inputs and outputs are equally long.
pub(crate) trait Many: Send + Sync {
    /// How many messages are best given to [`single`](Self::single) and
    /// [`double`](Self::double).
    fn width(&self) -> usize;
    /// Hashes of messages that are sorted by number of blocks.
    fn single(&self, messages: &[Padded<'_>], out: &mut [[u8; 32]]);
    /// Double hashes of messages that are sorted by number of blocks.
    fn double(&self, messages: &[Padded<'_>], out: &mut [[u8; 32]]);
    /// Brings jobs, sorted by number of blocks and all at the same block, to the end of their
    /// messages.
    fn finish(&self, jobs: &mut [GroupJob<'_>]);
    /// Double hashes of 64-byte messages.
    fn pairs(&self, pairs: &[[u8; 64]], out: &mut [[u8; 32]]);
    /// Digests of 36-byte messages after one block.
    fn keyed(&self, midstate: &[u32; 8], messages: &[[u8; 36]], out: &mut [[u8; 32]]);
    /// Adds the same digests to `columns`; fewer than 2^31 messages.
    fn keyed_sum(&self, midstate: &[u32; 8], messages: &[[u8; 36]], columns: &mut Columns);
}

/// A lane kernel and what takes over from it.
pub(crate) struct Groups<const N: usize, L> {
    lanes: L,
    /// The kernel is worth its while for at least so many lanes; at least 1, at most `N`.
    least: usize,
    /// For fewer.
    rest: Box<dyn Many>,
}

/// The end of the chain: one lane is never too few for a kernel of one lane.
pub(crate) struct Nothing;

impl<const N: usize, L: HashLanes<N> + Send + Sync> Groups<N, L> {
    pub(crate) fn new(lanes: L, least: usize, rest: Box<dyn Many>) -> Self {
        Self { lanes, least: least.clamp(1, N), rest }
    }

    /// The hashes of at most `N` messages, as states.
    #[inline]
    fn hash_lanes(&self, messages: &[Padded<'_>]) -> States<N> {
        let mut states = INITIAL.map(|word| [word; N]);
        self.finish_lanes(&mut states, messages, 0);
        states
    }

    /// Brings `states`, which have come as far as block `at`, to the ends of at most `N` messages.
    #[inline]
    fn finish_lanes(&self, states: &mut States<N>, messages: &[Padded<'_>], at: usize) {
        let (least, most) = (messages[0].blocks(), messages[messages.len() - 1].blocks());
        match messages.try_into() {
            Ok(messages) if least == most => self.lanes.absorb(states, messages, at..most),
            _ => self.finish_uneven(states, messages, at),
        }
    }

    /// The same where messages end one after the other or are fewer than lanes. A lane without a
    /// message goes on with the last, longest one; what its own came to is put aside before.
    fn finish_uneven(&self, states: &mut States<N>, messages: &[Padded<'_>], mut at: usize) {
        let last = messages.len() - 1;
        let mut in_lanes = core::array::from_fn(|lane| messages[lane.min(last)]);
        let (mut ended, mut done) = (*states, 0);
        while messages.len() - done >= self.least {
            let to = messages[done].blocks();
            self.lanes.absorb(states, &in_lanes, at..to);
            at = to;
            while done <= last && messages[done].blocks() == to {
                set_column(&mut ended, done, &column(states, done));
                in_lanes[done] = messages[last];
                done += 1;
            }
        }
        if done <= last {
            let job = |lane: usize| GroupJob {
                message: messages[lane.min(last)],
                next: at,
                state: column(states, lane),
            };
            let mut jobs: [GroupJob<'_>; N] = core::array::from_fn(job);
            self.rest.finish(&mut jobs[done..=last]);
            for (lane, job) in jobs.iter().enumerate().take(last + 1).skip(done) {
                set_column(&mut ended, lane, &job.state);
            }
        }
        *states = ended;
    }
}

/// Calls `full` with whole groups of `N` and, for at least `least` left over, with one more group
/// filled up with copies; what is fewer than that comes back.
pub(crate) fn in_groups<'a, const N: usize, I: Copy>(
    input: &'a [I],
    out: &'a mut [[u8; 32]],
    least: usize,
    full: impl Fn(&[[I; N]], &mut [[[u8; 32]; N]]),
) -> (&'a [I], &'a mut [[u8; 32]]) {
    let (groups, rest) = input.as_chunks::<N>();
    let (out, out_rest) = out.as_chunks_mut::<N>();
    full(groups, out);
    if rest.len() < least || rest.is_empty() {
        return (rest, out_rest);
    }
    let filled = core::array::from_fn(|lane| rest[lane.min(rest.len() - 1)]);
    let mut digests = [[[0; 32]; N]];
    full(&[filled], &mut digests);
    out_rest.copy_from_slice(&digests[0][..rest.len()]);
    (&[], &mut [])
}

impl<const N: usize, L: HashLanes<N> + Send + Sync> Many for Groups<N, L> {
    fn width(&self) -> usize {
        N
    }

    fn single(&self, messages: &[Padded<'_>], out: &mut [[u8; 32]]) {
        for (messages, out) in messages.rchunks(N).zip(out.rchunks_mut(N)) {
            if messages.len() < self.least {
                self.rest.single(messages, out);
                continue;
            }
            let states = self.hash_lanes(messages);
            for (lane, out) in out.iter_mut().enumerate() {
                *out = bytes_of(&column(&states, lane));
            }
        }
    }

    fn double(&self, messages: &[Padded<'_>], out: &mut [[u8; 32]]) {
        for (messages, out) in messages.rchunks(N).zip(out.rchunks_mut(N)) {
            if messages.len() < self.least {
                self.rest.double(messages, out);
                continue;
            }
            let states = self.hash_lanes(messages);
            out.copy_from_slice(&self.lanes.rehash(&states)[..messages.len()]);
        }
    }

    fn finish(&self, jobs: &mut [GroupJob<'_>]) {
        for jobs in jobs.rchunks_mut(N) {
            if jobs.len() < self.least {
                self.rest.finish(jobs);
                continue;
            }
            let last = jobs.len() - 1;
            let messages: [Padded<'_>; N] =
                core::array::from_fn(|lane| jobs[lane.min(last)].message);
            let mut states: States<N> = [[0; N]; 8];
            for (lane, job) in jobs.iter().enumerate() {
                set_column(&mut states, lane, &job.state);
            }
            self.finish_lanes(&mut states, &messages[..=last], jobs[0].next);
            for (lane, job) in jobs.iter_mut().enumerate() {
                job.state = column(&states, lane);
            }
        }
    }

    fn pairs(&self, pairs: &[[u8; 64]], out: &mut [[u8; 32]]) {
        let (pairs, out) =
            in_groups(pairs, out, self.least, |pairs, out| self.lanes.pairs(pairs, out));
        if !pairs.is_empty() {
            self.rest.pairs(pairs, out);
        }
    }

    fn keyed(&self, midstate: &[u32; 8], messages: &[[u8; 36]], out: &mut [[u8; 32]]) {
        let (messages, out) = in_groups(messages, out, self.least, |messages, out| {
            self.lanes.keyed(midstate, messages, out);
        });
        if !messages.is_empty() {
            self.rest.keyed(midstate, messages, out);
        }
    }

    fn keyed_sum(&self, midstate: &[u32; 8], messages: &[[u8; 36]], columns: &mut Columns) {
        let (groups, rest) = messages.as_chunks::<N>();
        self.lanes.keyed_sum(midstate, groups, columns);
        if rest.is_empty() {
            return;
        }
        if rest.len() < self.least {
            return self.rest.keyed_sum(midstate, rest, columns);
        }
        let mut digests = [[0; 32]; N];
        self.keyed(midstate, rest, &mut digests[..rest.len()]);
        for digest in &digests[..rest.len()] {
            let (words, _) = digest.as_chunks();
            add_to_columns(columns, &core::array::from_fn(|i| u32::from_be_bytes(words[i])));
        }
    }
}

/// Panics, because digests that no kernel wrote would be worse.
fn no_one_left() -> ! {
    unreachable!("a kernel of one lane takes every message")
}

impl Many for Nothing {
    fn width(&self) -> usize {
        no_one_left()
    }
    fn single(&self, _: &[Padded<'_>], _: &mut [[u8; 32]]) {
        no_one_left()
    }
    fn double(&self, _: &[Padded<'_>], _: &mut [[u8; 32]]) {
        no_one_left()
    }
    fn finish(&self, _: &mut [GroupJob<'_>]) {
        no_one_left()
    }
    fn pairs(&self, _: &[[u8; 64]], _: &mut [[u8; 32]]) {
        no_one_left()
    }
    fn keyed(&self, _: &[u32; 8], _: &[[u8; 36]], _: &mut [[u8; 32]]) {
        no_one_left()
    }
    fn keyed_sum(&self, _: &[u32; 8], _: &[[u8; 36]], _: &mut Columns) {
        no_one_left()
    }
}

/// The states of `N` hashes: word by word, in each the lanes.
pub(crate) type States<const N: usize, Word = u32> = [[Word; N]; 8];

/// Sums of digests column by column: `[i]` adds up bytes `4 * i..4 * i + 4`, read little-endian.
pub(crate) type Columns = [u64; 8];

/// A kernel for `N` messages at once.
pub(crate) trait HashLanes<const N: usize>: Copy {
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

/// Implements a trait of lanes for a token by the functions of the same names in scope, which
/// need the instructions that the token stands for.
#[cfg(target_arch = "x86_64")]
macro_rules! forward_lanes {
    ($token:ident, $n:literal) => {
        crate::groups::forward_lanes! { @each HashLanes, $token, $n;
            fn absorb(states: &mut States<$n>, messages: &[Padded<'_>; $n], blocks: Range<usize>);
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
                // SAFETY: the token exists only where its `detect` found the instructions.
                unsafe { $name($($arg),*) }
            }
        )*}
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use forward_lanes;

/// Implements [`HashLanes`] for `$token`. In scope must be, besides what
/// `define_rounds!` asks for:
///
/// - `load` and `store`: a register from and to an array of words,
/// - `swap_bytes`: of each word,
/// - `words_of_blocks`, `words_of_64`, `words_of_36`: the words of a block of each message, of
///   64-byte messages side by side, of 36-byte messages side by side,
/// - `digests`: of the states in the lanes,
/// - `even`, `odd`, `add_64`, `total_64`: sums of words in lanes twice as wide.
///
/// Its methods are the only way in, and the token the proof that they may be called.
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

        crate::groups::forward_lanes!($token, $n);
    };
}
#[cfg(target_arch = "x86_64")]
pub(crate) use implement_lanes;

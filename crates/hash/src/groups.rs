//! [`Groups`]: any number of messages by a kernel that takes `N` at once.
//!
//! Lanes cost the same whether they are of use or not, so where fewer than `least` are, a narrower kernel takes over.
//! Invariant: which kernel does what never shows in the result.

use crate::lanes::{Columns, HashLanes, States, add_to_columns, bytes_of, column, set_column};
use crate::padded::Padded;
use crate::rounds::INITIAL;

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

//! [`Groups`]: hashes any number of messages with a kernel that takes `N` messages at once.
//!
//! An idle lane costs as much as a busy one, so a narrower kernel takes over when fewer than `least` messages
//! are left. Invariant: the result does not depend on which kernel hashed a message.

use crate::lanes::{Columns, HashLanes, States, add_to_columns, bytes_of, column, set_column};
use crate::padded::PaddedMessage;
use crate::rounds::INITIAL;

/// The number of lanes of the widest kernel.
pub(crate) const WIDTH_MAX: usize = 16;

/// A hash in progress, at block `next` of its message.
#[derive(Clone, Copy)]
pub(crate) struct GroupJob<'a> {
    pub(crate) message: PaddedMessage<'a>,
    pub(crate) next: usize,
    pub(crate) state: [u32; 8],
}

/// Hashes slices of any length. Inputs and outputs have the same length.
pub(crate) trait Many: Send + Sync {
    /// The best number of messages for one call of [`single`](Self::single) or
    /// [`double`](Self::double).
    fn width(&self) -> usize;
    /// Hashes messages; they must be sorted by number of blocks.
    fn single(&self, messages: &[PaddedMessage<'_>], out: &mut [[u8; 32]]);
    /// Hashes messages twice; they must be sorted by number of blocks.
    fn double(&self, messages: &[PaddedMessage<'_>], out: &mut [[u8; 32]]);
    /// Finishes jobs, which must be sorted by number of blocks and all be at the same block.
    fn finish(&self, jobs: &mut [GroupJob<'_>]);
    /// Hashes 64-byte messages twice.
    fn pairs(&self, pairs: &[[u8; 64]], out: &mut [[u8; 32]]);
    /// Hashes 36-byte messages, continuing from `midstate`, the state after one block.
    fn keyed(&self, midstate: &[u32; 8], messages: &[[u8; 36]], out: &mut [[u8; 32]]);
    /// Adds the digests of the same messages to `columns`; takes fewer than 2^31 messages.
    fn keyed_sum(&self, midstate: &[u32; 8], messages: &[[u8; 36]], columns: &mut Columns);
}

/// A lane kernel and its fallback for a few messages.
pub(crate) struct Groups<const N: usize, L> {
    lanes: L,
    /// The smallest number of messages for which the kernel pays off; at least 1, at most `N`.
    least: usize,
    /// The fallback, which handles fewer messages.
    rest: Box<dyn Many>,
}

/// The end of the fallback chain. A kernel of one lane never leaves messages to it.
pub(crate) struct Nothing;

impl<const N: usize, L: HashLanes<N> + Send + Sync> Groups<N, L> {
    pub(crate) fn new(lanes: L, least: usize, rest: Box<dyn Many>) -> Self {
        Self { lanes, least: least.clamp(1, N), rest }
    }

    /// Hashes at most `N` messages; returns their states.
    #[inline]
    fn hash_lanes(&self, messages: &[PaddedMessage<'_>]) -> States<N> {
        let mut states = INITIAL.map(|word| [word; N]);
        self.finish_lanes(&mut states, messages, 0);
        states
    }

    /// Continues `states`, which have absorbed `at` blocks, to the ends of at most `N` messages.
    #[inline]
    fn finish_lanes(&self, states: &mut States<N>, messages: &[PaddedMessage<'_>], at: usize) {
        let (least, most) = (messages[0].blocks(), messages[messages.len() - 1].blocks());
        match messages.try_into() {
            Ok(messages) if least == most => self.lanes.absorb(states, messages, at..most),
            _ => self.finish_uneven(states, messages, at),
        }
    }

    /// Like [`finish_lanes`](Self::finish_lanes), for messages of different lengths, or fewer messages than
    /// lanes. Saves the state of a lane whose message has ended; the lane then repeats the last message,
    /// which is the longest.
    fn finish_uneven(&self, states: &mut States<N>, messages: &[PaddedMessage<'_>], mut at: usize) {
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

/// Calls `full` with whole groups of `N`. If at least `least` messages remain, calls it once more with a
/// group filled up with copies; otherwise returns the remaining messages.
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

    fn single(&self, messages: &[PaddedMessage<'_>], out: &mut [[u8; 32]]) {
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

    fn double(&self, messages: &[PaddedMessage<'_>], out: &mut [[u8; 32]]) {
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
            let messages: [PaddedMessage<'_>; N] =
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

/// Panics, because the alternative would be digests that no kernel wrote.
fn no_kernel_left() -> ! {
    unreachable!("a kernel of one lane takes every message")
}

impl Many for Nothing {
    fn width(&self) -> usize {
        no_kernel_left()
    }
    fn single(&self, _: &[PaddedMessage<'_>], _: &mut [[u8; 32]]) {
        no_kernel_left()
    }
    fn double(&self, _: &[PaddedMessage<'_>], _: &mut [[u8; 32]]) {
        no_kernel_left()
    }
    fn finish(&self, _: &mut [GroupJob<'_>]) {
        no_kernel_left()
    }
    fn pairs(&self, _: &[[u8; 64]], _: &mut [[u8; 32]]) {
        no_kernel_left()
    }
    fn keyed(&self, _: &[u32; 8], _: &[[u8; 36]], _: &mut [[u8; 32]]) {
        no_kernel_left()
    }
    fn keyed_sum(&self, _: &[u32; 8], _: &[[u8; 36]], _: &mut Columns) {
        no_kernel_left()
    }
}

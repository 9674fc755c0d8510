//! SHA-512/256 of one message ([`hash`], [`pair`]) and of many at once ([`many`], [`pairs`],
//! [`TaggedHasher`]).
//!
//! Messages are sorted by their number of blocks, a chunk at a time, before they are assigned to lanes.
//! Invariant: `out[i]` belongs to `messages[i]`. Nothing is allocated.
//!
//! An idle lane costs as much as a busy one, so the portable kernel takes over when fewer than `least`
//! messages are left. The result does not depend on which kernel hashed a message.

use super::{INITIAL_256, PaddedSha512, Portable, Sha512Lanes};
use crate::groups::in_groups;
use crate::lanes::column;
use crate::sha256::{CHUNK, in_order};
use crate::{Message, Sha256Kernel};
use std::sync::OnceLock;

/// Computes SHA-512/256 of one message.
pub fn hash(message: &[u8]) -> [u8; 32] {
    from(&INITIAL_256, &PaddedSha512::new(&Message::from(message)))
}

/// Computes SHA-512/256 of two digests side by side: the parent of two nodes.
pub fn pair(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut both = [0; 64];
    both[..32].copy_from_slice(left);
    both[32..].copy_from_slice(right);
    super::pair(&both)
}

/// Computes SHA-512/256 of each pair of neighbours: the next level of a tree.
///
/// # Panics
/// If `level` is not twice as long as `out`.
pub fn pairs(level: &[[u8; 32]], out: &mut [[u8; 32]]) {
    pairs_with(engine(), level, out);
}

pub(super) fn pairs_with(many: &dyn Sha512Many, level: &[[u8; 32]], out: &mut [[u8; 32]]) {
    assert_eq!(level.len(), 2 * out.len(), "one digest for each two neighbours");
    many.pairs(level.as_flattened().as_chunks().0, out);
}

/// Computes SHA-512/256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    many_with(engine(), messages, out);
}

pub(super) fn many_with(many: &dyn Sha512Many, messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    many_from(many, &INITIAL_256, 0, messages, out);
}

/// SHA-512/256 of messages that all begin with the same 128-byte block, which is hashed once.
///
/// The tag of Utreexo's leaves is such a block (BIP-182, draft).
#[derive(Clone, Debug)]
pub struct TaggedHasher {
    midstate: [u64; 8],
}

impl TaggedHasher {
    /// Hashes the common first block.
    pub fn new(tag: &[u8; 128]) -> Self {
        let mut midstate = INITIAL_256;
        super::compress(&mut midstate, &[*tag]);
        Self { midstate }
    }

    /// Computes the digest of the tag followed by `message`.
    pub fn hash(&self, message: &Message<'_>) -> [u8; 32] {
        from(&self.midstate, &PaddedSha512::after(1, message))
    }

    /// Computes the digest of the tag followed by each message.
    ///
    /// # Panics
    /// If `messages` and `out` differ in length.
    pub fn many(&self, messages: &[Message<'_>], out: &mut [[u8; 32]]) {
        self.many_with(engine(), messages, out);
    }

    pub(super) fn many_with(
        &self,
        many: &dyn Sha512Many,
        messages: &[Message<'_>],
        out: &mut [[u8; 32]],
    ) {
        many_from(many, &self.midstate, 1, messages, out);
    }
}

/// Computes the digest of a message with its whole blocks already hashed to `start`, and this end.
fn from(start: &[u64; 8], end: &PaddedSha512<'_>) -> [u8; 32] {
    let mut state = *start;
    super::absorb(&mut state, end, 0..end.blocks());
    super::digest(&state)
}

/// Computes the digests of messages with `before` blocks already hashed to `start`, and these ends.
fn many_from(
    many: &dyn Sha512Many,
    start: &[u64; 8],
    before: usize,
    ends: &[Message<'_>],
    out: &mut [[u8; 32]],
) {
    assert_eq!(ends.len(), out.len(), "one digest for each message");
    for (ends, out) in ends.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let padded = |index: usize| PaddedSha512::after(before, &ends[index]);
        in_order(padded, out, many.width(), |ends, out| many.hash(start, ends, out));
    }
}

/// Hashes many messages. Inputs and outputs have the same length.
pub(super) trait Sha512Many: Send + Sync {
    /// The maximum number of messages that [`hash`](Self::hash) takes.
    fn width(&self) -> usize;
    /// Computes SHA-512/256 of messages sorted by number of blocks, continuing from `start`.
    fn hash(&self, start: &[u64; 8], messages: &[PaddedSha512<'_>], out: &mut [[u8; 32]]);
    /// Computes SHA-512/256 of any number of 64-byte messages.
    fn pairs(&self, pairs: &[[u8; 64]], out: &mut [[u8; 32]]);
}

/// Returns the implementation of this process: the counterpart of the selected SHA-256 kernel, if it passes
/// the self-test.
pub(super) fn engine() -> &'static dyn Sha512Many {
    static CURRENT: OnceLock<Box<dyn Sha512Many>> = OnceLock::new();
    &**CURRENT.get_or_init(|| or_plain(of_kernel(Sha256Kernel::current())))
}

/// Returns the kernel if it passes the self-test, else the portable one.
fn or_plain(found: Box<dyn Sha512Many>) -> Box<dyn Sha512Many> {
    let plain = portable();
    if is_right(&*found, &*plain) { found } else { plain }
}

/// Enough messages to fill the lanes with some left over.
const TRIED: usize = 13;

/// Returns whether a kernel computes the same as the portable one on this machine. If all leaves had the same
/// hash, any proof would pass. `kernel.rs` explains the reason for this test.
fn is_right(many: &dyn Sha512Many, plain: &dyn Sha512Many) -> bool {
    let bytes: [u8; 64 * TRIED] = core::array::from_fn(|i| (i * i / 5 + i * 113 + i / 256) as u8);
    let digests = |many: &dyn Sha512Many| {
        let (mut hashes, mut parents) = ([[0; 32]; TRIED], [[0; 32]; TRIED]);
        // The messages get longer, from one to four blocks.
        let message = |i: usize| Message([&bytes[..2 * i], &bytes[i..20 * i], &bytes[..11 * i]]);
        let messages: [PaddedSha512<'_>; TRIED] =
            core::array::from_fn(|i| PaddedSha512::new(&message(i)));
        let width = many.width();
        for (messages, hashes) in messages.chunks(width).zip(hashes.chunks_mut(width)) {
            many.hash(&INITIAL_256, messages, hashes);
        }
        many.pairs(bytes.as_chunks().0, &mut parents);
        (hashes, parents)
    };
    digests(many) == digests(plain)
}

/// Returns the SHA-512 implementation that belongs to a SHA-256 kernel. A processor's SHA extensions do not
/// support SHA-512, but a processor that has them nearly always has AVX2.
pub(super) fn of_kernel(kernel: Sha256Kernel) -> Box<dyn Sha512Many> {
    match kernel {
        #[cfg(target_arch = "x86_64")]
        Sha256Kernel::Avx512 => avx512().unwrap_or_else(portable),
        #[cfg(target_arch = "x86_64")]
        Sha256Kernel::Avx2 | Sha256Kernel::ShaNi => avx2().unwrap_or_else(portable),
        _ => portable(),
    }
}

#[cfg(target_arch = "x86_64")]
fn avx512() -> Option<Box<dyn Sha512Many>> {
    Some(Box::new(Sha512Groups { lanes: crate::avx512::Avx512::detect()?, least: 2 }))
}

#[cfg(target_arch = "x86_64")]
fn avx2() -> Option<Box<dyn Sha512Many>> {
    Some(Box::new(Sha512Groups { lanes: crate::avx2::Avx2::detect()?, least: 2 }))
}

fn portable() -> Box<dyn Sha512Many> {
    Box::new(Sha512Groups { lanes: Portable, least: 1 })
}

/// A lane kernel, and the number of messages from which it beats the portable one.
struct Sha512Groups<const N: usize, L> {
    lanes: L,
    /// At least 1, at most `N`; measured with `examples/kernels.rs`.
    least: usize,
}

impl<const N: usize, L: Sha512Lanes<N> + Send + Sync> Sha512Many for Sha512Groups<N, L> {
    fn width(&self) -> usize {
        N
    }

    /// A lane whose message has ended repeats the last message, which is the longest, unless too few are
    /// left.
    fn hash(&self, start: &[u64; 8], messages: &[PaddedSha512<'_>], out: &mut [[u8; 32]]) {
        let Some(last) = messages.last() else { return };
        let mut states = start.map(|word| [word; N]);
        let mut in_lanes = core::array::from_fn(|lane| *messages.get(lane).unwrap_or(last));
        let (mut at, mut done) = (0, 0);
        while messages.len() - done >= self.least {
            let to = messages[done].blocks();
            self.lanes.absorb(&mut states, &in_lanes, at..to);
            at = to;
            while done < messages.len() && messages[done].blocks() == to {
                out[done] = super::digest(&column(&states, done));
                in_lanes[done] = *last;
                done += 1;
            }
        }
        for lane in done..messages.len() {
            let (message, mut state) = (&messages[lane], column(&states, lane));
            super::absorb(&mut state, message, at..message.blocks());
            out[lane] = super::digest(&state);
        }
    }

    fn pairs(&self, pairs: &[[u8; 64]], out: &mut [[u8; 32]]) {
        let (pairs, out) =
            in_groups(pairs, out, self.least, |pairs, out| self.lanes.pairs(pairs, out));
        for (pair, out) in pairs.iter().zip(out) {
            *out = super::pair(pair);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_forced_kernel_runs() {
        for kernel in Sha256Kernel::available() {
            #[cfg(target_arch = "x86_64")]
            let has_avx2 = crate::avx2::Avx2::detect().is_some();
            #[cfg(not(target_arch = "x86_64"))]
            let has_avx2 = false;
            let lanes = match kernel {
                Sha256Kernel::Avx512 => 8,
                Sha256Kernel::Avx2 | Sha256Kernel::ShaNi if has_avx2 => 4,
                _ => 1,
            };
            assert_eq!(of_kernel(kernel).width(), lanes, "{kernel:?}");
        }
        assert_eq!(engine().width(), of_kernel(Sha256Kernel::current()).width());
    }

    /// The portable kernel, with one wrong bit.
    struct FaultySha512 {
        hash: bool,
        pairs: bool,
    }

    impl Sha512Many for FaultySha512 {
        fn width(&self) -> usize {
            1
        }

        fn hash(&self, start: &[u64; 8], messages: &[PaddedSha512<'_>], out: &mut [[u8; 32]]) {
            portable().hash(start, messages, out);
            out[0][0] ^= u8::from(self.hash);
        }

        fn pairs(&self, pairs: &[[u8; 64]], out: &mut [[u8; 32]]) {
            portable().pairs(pairs, out);
            out[TRIED - 1][31] ^= u8::from(self.pairs);
        }
    }

    #[test]
    fn one_wrong_bit_is_detected() {
        for (hash, pairs) in [(false, false), (true, false), (false, true)] {
            let right = is_right(&FaultySha512 { hash, pairs }, &*portable());
            assert_eq!(right, !hash && !pairs);
            let mut parent = [[0; 32]; TRIED];
            or_plain(Box::new(FaultySha512 { hash, pairs })).pairs(&[[7; 64]; TRIED], &mut parent);
            assert_eq!(parent, [crate::sha512::pair(&[7; 64]); TRIED]);
        }
        for kernel in Sha256Kernel::available() {
            assert!(is_right(&*of_kernel(kernel), &*portable()), "{kernel:?}");
        }
    }
}

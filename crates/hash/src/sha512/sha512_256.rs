//! SHA-512/256: of one message ([`hash`], [`pair`]) and of many at once ([`many`], [`pairs`],
//! [`TaggedHasher`]).
//!
//! Messages are sorted by their number of blocks, a chunk at a time, before they are put into
//! lanes. Invariant: `out[i]` belongs to `messages[i]`. Nothing is allocated.

use super::groups::{Sha512Many, engine};
use super::{INITIAL_256, Padded};
use crate::Message;
use crate::sha256::{CHUNK, in_order};

/// SHA-512/256 of one message.
pub fn hash(message: &[u8]) -> [u8; 32] {
    from(&INITIAL_256, &Padded::new(&Message::from(message)))
}

/// SHA-512/256 of two digests side by side: the parent of two nodes.
pub fn pair(left: &[u8; 32], right: &[u8; 32]) -> [u8; 32] {
    let mut both = [0; 64];
    both[..32].copy_from_slice(left);
    both[32..].copy_from_slice(right);
    super::pair(&both)
}

/// SHA-512/256 of each two neighbours: the next level of a tree.
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

/// SHA-512/256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    many_with(engine(), messages, out);
}

pub(super) fn many_with(many: &dyn Sha512Many, messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    many_from(many, &INITIAL_256, 0, messages, out);
}

/// SHA-512/256 of messages that begin with the same 128 bytes, one block, which are hashed once.
///
/// Such is the tag of Utreexo's leaves (BIP-182, draft).
#[derive(Clone, Debug)]
pub struct TaggedHasher {
    midstate: [u64; 8],
}

impl TaggedHasher {
    /// Hashes what all messages begin with.
    pub fn new(tag: &[u8; 128]) -> Self {
        let mut midstate = INITIAL_256;
        super::compress(&mut midstate, &[*tag]);
        Self { midstate }
    }

    /// The digest of the tag followed by `message`.
    pub fn hash(&self, message: &Message<'_>) -> [u8; 32] {
        from(&self.midstate, &Padded::after(1, message))
    }

    /// The digest of the tag followed by each message.
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

/// The digest of the message that is whole blocks, which led to `start`, and this end.
fn from(start: &[u64; 8], end: &Padded<'_>) -> [u8; 32] {
    let mut state = *start;
    super::absorb(&mut state, end, 0..end.blocks());
    super::digest(&state)
}

/// The digests of messages that are `before` blocks, which led to `start`, and these ends.
fn many_from(
    many: &dyn Sha512Many,
    start: &[u64; 8],
    before: usize,
    ends: &[Message<'_>],
    out: &mut [[u8; 32]],
) {
    assert_eq!(ends.len(), out.len(), "one digest for each message");
    for (ends, out) in ends.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        let padded = |index: usize| Padded::after(before, &ends[index]);
        in_order(padded, out, many.width(), |ends, out| many.hash(start, ends, out));
    }
}

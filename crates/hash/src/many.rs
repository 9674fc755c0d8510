//! SHA-256 of many messages, single and double ([`sha256_many`], [`sha256d_many`], [`sha256d_pairs`]), and of
//! outpoints under a secret key ([`KeyedHasher`]).
//!
//! A lane kernel takes as long as its longest message, so messages are sorted by their number of
//! blocks, a chunk at a time, before they are put into lanes. Invariant: `out[i]` belongs to
//! `messages[i]`. Nothing is allocated.
//!
//! A [`Message`] comes in up to three pieces. The blocks of a [`Padded`] are the concatenated pieces followed by the
//! padding of FIPS 180-4, 5.1, whatever the pieces' lengths (empty ones included). Nothing is copied except
//! blocks that lie across a border.
//!
//! The keyed digest is plain SHA-256 of the 100 bytes key, then message, so that it can be
//! checked with any other implementation. The key comes first so that its block is hashed once.

use crate::groups::{Many, WIDTH_MAX};
use crate::kernel::HashEngine;
use crate::rounds::INITIAL;
use crate::single::{add_columns_to, bytes_of, keyed_block};
use core::fmt;

/// SHA-256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn sha256_many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    assert_eq!(messages.len(), out.len(), "one digest for each message");
    let engine = HashEngine::current();
    for (messages, out) in messages.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        single_chunk(&*engine.many, |index| messages[index], out);
    }
}

/// Double SHA-256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn sha256d_many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    assert_eq!(messages.len(), out.len(), "one digest for each message");
    sha256d_each(|index| messages[index], out);
}

/// Double SHA-256 of `message(0)`, `message(1)` and so on, as many as `out` has room for. Each is
/// asked for more than once and must be the same every time; asking has to be cheap.
pub fn sha256d_each<'a>(message: impl Fn(usize) -> Message<'a>, out: &mut [[u8; 32]]) {
    let engine = HashEngine::current();
    for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
        double_chunk(&*engine.many, |index| message(chunk * CHUNK + index), out);
    }
}

/// Double SHA-256 of each 64-byte message: two digests side by side, as in a merkle tree.
///
/// # Panics
/// If `pairs` and `out` differ in length.
pub fn sha256d_pairs(pairs: &[[u8; 64]], out: &mut [[u8; 32]]) {
    assert_eq!(pairs.len(), out.len(), "one digest for each pair");
    HashEngine::current().many.pairs(pairs, out);
}

/// Messages sorted at once. More make fuller groups; so many fit in the second-level cache.
pub(crate) const CHUNK: usize = 1024;

/// Messages of at least so many blocks are rare enough to be sorted by comparison.
const LONG: usize = 63;

/// [`sha256_many`] for at most [`CHUNK`] messages.
pub(crate) fn single_chunk<'a>(
    many: &dyn Many,
    message: impl Fn(usize) -> Message<'a>,
    out: &mut [[u8; 32]],
) {
    let padded = |index| Padded::new(&message(index));
    in_order(padded, out, many.width(), |messages, out| many.single(messages, out));
}

/// [`sha256d_each`] for at most [`CHUNK`] messages.
pub(crate) fn double_chunk<'a>(
    many: &dyn Many,
    message: impl Fn(usize) -> Message<'a>,
    out: &mut [[u8; 32]],
) {
    let padded = |index| Padded::new(&message(index));
    in_order(padded, out, many.width(), |messages, out| many.double(messages, out));
}

/// Calls `hash` with `width` of at most [`CHUNK`] messages at a time, in order of their numbers of
/// blocks.
pub(crate) fn in_order<'a, const BLOCK: usize>(
    message: impl Fn(usize) -> Padded<'a, BLOCK>,
    out: &mut [[u8; 32]],
    width: usize,
    hash: impl Fn(&[Padded<'a, BLOCK>], &mut [[u8; 32]]),
) {
    let message = |index: u16| message(usize::from(index));
    let mut order = [0; CHUNK];
    let order = &mut order[..out.len()];
    sort_by_blocks(|index| message(index).blocks(), order);
    let (mut sorted, mut digests) = ([Padded::EMPTY; WIDTH_MAX], [[0; 32]; WIDTH_MAX]);
    for group in order.rchunks(width) {
        for (sorted, index) in sorted.iter_mut().zip(group) {
            *sorted = message(*index);
        }
        hash(&sorted[..group.len()], &mut digests[..group.len()]);
        for (digest, index) in digests.iter().zip(group) {
            out[usize::from(*index)] = *digest;
        }
    }
}

/// Writes the indices of as many messages as `order` has places, in order of their numbers of
/// blocks: a counting sort.
fn sort_by_blocks(blocks: impl Fn(u16) -> usize, order: &mut [u16]) {
    let mut classes = [0u8; CHUNK];
    let classes = &mut classes[..order.len()];
    let mut starts = [0u16; LONG + 2];
    for (index, class) in (0..).zip(&mut *classes) {
        *class = blocks(index).min(LONG) as u8;
        starts[usize::from(*class) + 1] += 1;
    }
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    for (index, class) in (0..).zip(&*classes) {
        let place = &mut starts[usize::from(*class)];
        order[usize::from(*place)] = index;
        *place += 1;
    }
    // By now each start has moved to its end, so that the long ones begin at the last but one.
    order[usize::from(starts[LONG - 1])..].sort_unstable_by_key(|index| blocks(*index));
}

/// A message in up to three pieces, hashed as their concatenation.
///
/// This is the shape of a segwit transaction without its witness: version, inputs and outputs,
/// lock time. A message in one piece is `Message::from(bytes)`.
#[derive(Clone, Copy, Debug, Default)]
pub struct Message<'a>(pub [&'a [u8]; 3]);

impl<'a> From<&'a [u8]> for Message<'a> {
    fn from(bytes: &'a [u8]) -> Self {
        // The second piece is the one that kernels read whole blocks of without joining.
        Self([&[], bytes, &[]])
    }
}

/// A message as a hash function sees it: whole blocks, padding included. A block is 64 bytes in
/// SHA-256, 128 in SHA-512.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Padded<'a, const BLOCK: usize = 64> {
    pieces: [&'a [u8]; 3],
    len: usize,
    /// How many bytes were hashed before these: whole blocks, which only the length tells of.
    before: usize,
}

impl<'a, const BLOCK: usize> Padded<'a, BLOCK> {
    /// The message of no bytes.
    pub(crate) const EMPTY: Self = Self { pieces: [&[]; 3], len: 0, before: 0 };

    #[inline]
    pub(crate) fn new(message: &Message<'a>) -> Self {
        Self::after(0, message)
    }

    /// The end of a message of which `blocks` blocks were hashed.
    #[inline]
    pub(crate) fn after(blocks: usize, message: &Message<'a>) -> Self {
        let pieces = message.0;
        let len = pieces[0].len() + pieces[1].len() + pieces[2].len();
        Self { pieces, len, before: blocks * BLOCK }
    }

    /// How many blocks there are: room for the bytes, one mark and the length, which is an eighth
    /// of a block.
    #[inline]
    pub(crate) fn blocks(&self) -> usize {
        (self.len + BLOCK / 8) / BLOCK + 1
    }

    /// Its length in bytes, neither padding nor what was hashed before counted.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// The length that the padding states. It is below 2^64 because the bytes are in memory.
    #[inline]
    pub(crate) fn bits(&self) -> u64 {
        (self.before + self.len) as u64 * 8
    }

    /// The pieces, of which any may be empty.
    #[cfg(target_arch = "x86_64")]
    #[inline]
    pub(crate) fn pieces(&self) -> [&'a [u8]; 3] {
        self.pieces
    }

    /// The whole blocks from `block` on that lie in one piece; empty if that block does not.
    #[inline]
    fn run(&self, block: usize) -> &'a [[u8; BLOCK]] {
        let mut start = block * BLOCK;
        for piece in self.pieces {
            if let Some(rest) = piece.get(start..).filter(|rest| !rest.is_empty()) {
                return rest.as_chunks().0;
            }
            match start.checked_sub(piece.len()) {
                Some(past) => start = past,
                None => break,
            }
        }
        &[]
    }

    /// At least one block from `block` on: as many as lie in one piece, or one put together in
    /// `buffer`.
    #[inline]
    pub(crate) fn blocks_from<'b>(
        &self,
        block: usize,
        buffer: &'b mut [u8; BLOCK],
    ) -> &'b [[u8; BLOCK]]
    where
        'a: 'b,
    {
        let run = self.run(block);
        if !run.is_empty() {
            return run;
        }
        self.fill(block, buffer);
        core::slice::from_ref(buffer)
    }

    /// Writes block `block`, padding included.
    #[inline]
    fn fill(&self, block: usize, out: &mut [u8; BLOCK]) {
        let is_done = match block {
            0 => self.fill_first(out),
            _ => self.fill_tail(block, out),
        };
        if !is_done {
            self.fill_any(block, out);
        }
    }

    /// Writes the first block of a transaction without its witness, four bytes and what follows them; false where the
    /// message is none that begins so. Lengths that are known before take no branches and no calls.
    #[inline]
    fn fill_first(&self, out: &mut [u8; BLOCK]) -> bool {
        let [head, body, _] = self.pieces;
        let (Ok(head), true) = (<[u8; 4]>::try_from(head), body.len() >= BLOCK - 4) else {
            return false;
        };
        out[..4].copy_from_slice(&head);
        out[4..].copy_from_slice(&body[..BLOCK - 4]);
        true
    }

    /// Writes the block in which the second piece ends, with four bytes or none behind it; false where that is none such.
    /// However much of the piece is left, as many bytes are copied, some of those before it among them.
    #[inline]
    fn fill_tail(&self, block: usize, out: &mut [u8; BLOCK]) -> bool {
        let [head, body, tail] = self.pieces;
        let passed = (block * BLOCK).checked_sub(head.len());
        let left = passed.and_then(|passed| body.len().checked_sub(passed));
        let (Some(left), Some(last)) = (left, body.last_chunk::<BLOCK>()) else { return false };
        let mut around = [*last, [0; BLOCK]];
        match <[u8; 4]>::try_from(tail) {
            Ok(tail) => around[1][..4].copy_from_slice(&tail),
            Err(_) if tail.is_empty() => {}
            Err(_) => return false,
        }
        around[1][tail.len()] = 0x80;
        let Some(from) = BLOCK.checked_sub(left) else { return false };
        out.copy_from_slice(&around.as_flattened()[from..from + BLOCK]);
        if block + 1 == self.blocks() {
            out[BLOCK - 8..].copy_from_slice(&self.bits().to_be_bytes());
        }
        true
    }

    /// Writes any block.
    fn fill_any(&self, block: usize, out: &mut [u8; BLOCK]) {
        *out = [0; BLOCK];
        let (first, mut start) = (block * BLOCK, 0);
        for piece in self.pieces {
            let end = start + piece.len();
            if start < first + BLOCK && first < end {
                let (from, to) = (first.max(start), end.min(first + BLOCK));
                out[from - first..to - first].copy_from_slice(&piece[from - start..to - start]);
            }
            start = end;
        }
        if (first..first + BLOCK).contains(&self.len) {
            out[self.len - first] = 0x80;
        }
        if block + 1 == self.blocks() {
            // The length of SHA-512 is twice as wide, but its upper half is always zero.
            out[BLOCK - 8..].copy_from_slice(&self.bits().to_be_bytes());
        }
    }
}

/// SHA-256 keyed by a 64-byte first block whose state is computed once; each 36-byte outpoint
/// then costs one compression.
#[derive(Clone)]
pub struct KeyedHasher {
    midstate: [u32; 8],
}

impl fmt::Debug for KeyedHasher {
    /// Without the midstate, which is as good as the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedHasher").finish_non_exhaustive()
    }
}

impl KeyedHasher {
    /// Hashes the key.
    pub fn new(key: &[u8; 64]) -> Self {
        Self { midstate: HashEngine::current().single.after(INITIAL, key) }
    }

    /// The digest of the key followed by `message`.
    pub fn hash(&self, message: &[u8; 36]) -> [u8; 32] {
        bytes_of(&HashEngine::current().single.after(self.midstate, &keyed_block(message)))
    }

    /// The digest of each message.
    ///
    /// # Panics
    /// If `messages` and `out` differ in length.
    pub fn hash_many(&self, messages: &[[u8; 36]], out: &mut [[u8; 32]]) {
        assert_eq!(messages.len(), out.len(), "one digest for each message");
        HashEngine::current().many.keyed(&self.midstate, messages, out);
    }

    /// Adds all digests, each read as a little-endian 256-bit integer, to `sum` modulo 2^256. The
    /// limbs of `sum` are in order of significance, the least first.
    pub fn sum_many(&self, messages: &[[u8; 36]], sum: &mut [u64; 4]) {
        self.sum_with(&*HashEngine::current().many, messages, sum);
    }

    pub(crate) fn sum_with(&self, many: &dyn Many, messages: &[[u8; 36]], sum: &mut [u64; 4]) {
        // So many that columns cannot overflow, so few that carries cost nothing.
        for messages in messages.chunks(1 << 20) {
            let mut columns = [0; 8];
            many.keyed_sum(&self.midstate, messages, &mut columns);
            add_columns_to(sum, &columns);
        }
    }

    #[cfg(test)]
    pub(crate) fn midstate(&self) -> &[u32; 8] {
        &self.midstate
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sorting_is_a_permutation_in_order() {
        let data = vec![0; 64 * 200];
        let messages: Vec<Message<'_>> =
            (0..CHUNK).map(|i| Message::from(&data[..i * i * 37 % data.len()])).collect();
        for count in [0, 1, 2, 100, CHUNK] {
            let mut order = vec![u16::MAX; count];
            let blocks = |i: u16| <Padded<'_>>::new(&messages[usize::from(i)]).blocks();
            sort_by_blocks(blocks, &mut order);
            assert!(order.is_sorted_by_key(|i| blocks(*i)));
            order.sort_unstable();
            assert!(order.into_iter().eq(0..count as u16));
        }
    }
}

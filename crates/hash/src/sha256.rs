//! SHA-256 of one message ([`Sha256`], [`sha256`], [`sha256d`]), of many ([`sha256_many`],
//! [`sha256d_many`], [`sha256d_pairs`]), and of outpoints under a secret key ([`KeyedHasher`]).
//!
//! The digest of one message does not depend on how updates divide its bytes. A lane kernel takes as long as
//! its longest message, so messages are sorted by their number of blocks, a chunk at a time, before they are
//! assigned to lanes. Invariant: `out[i]` belongs to `messages[i]`. Nothing is allocated.
//!
//! The keyed digest is plain SHA-256 of 100 bytes, the key followed by the message, so any other
//! implementation can check it. Because the key is at the start, its block is hashed only once.

use crate::groups::{Many, WIDTH_MAX};
use crate::kernel::HashEngine;
use crate::lanes::{add_columns_to, bytes_of, keyed_block};
use crate::padded::{Message, PaddedMessage};
use crate::rounds::INITIAL;
use crate::single::Single;
use core::fmt;

/// SHA-256 of a message that arrives in parts.
#[derive(Clone, Debug)]
pub struct Sha256 {
    kernel: Single,
    state: [u32; 8],
    /// The bytes of the incomplete block; `len` gives their number.
    pending: [u8; 64],
    len: u64,
}

impl Default for Sha256 {
    fn default() -> Self {
        Self::new()
    }
}

impl Sha256 {
    /// Starts an empty message.
    pub fn new() -> Self {
        Self::with(HashEngine::current().single)
    }

    pub(crate) fn with(kernel: Single) -> Self {
        Self { kernel, state: INITIAL, pending: [0; 64], len: 0 }
    }

    /// Appends bytes.
    pub fn update(&mut self, mut data: &[u8]) {
        let used = (self.len % 64) as usize;
        self.len = self.len.wrapping_add(data.len() as u64);
        if used > 0 {
            let (now, later) = data.split_at(data.len().min(64 - used));
            self.pending[used..used + now.len()].copy_from_slice(now);
            if used + now.len() < 64 {
                return;
            }
            self.kernel.compress(&mut self.state, &[self.pending]);
            data = later;
        }
        let (blocks, rest) = data.as_chunks();
        self.kernel.compress(&mut self.state, blocks);
        self.pending[..rest.len()].copy_from_slice(rest);
    }

    /// Returns the digest of all appended bytes.
    pub fn finalize(mut self) -> [u8; 32] {
        let used = (self.len % 64) as usize;
        let mut tail = [[0; 64]; 2];
        tail[0][..used].copy_from_slice(&self.pending[..used]);
        tail[0][used] = 0x80;
        let blocks = if used < 56 { 1 } else { 2 };
        tail[blocks - 1][56..].copy_from_slice(&self.len.wrapping_mul(8).to_be_bytes());
        self.kernel.compress(&mut self.state, &tail[..blocks]);
        bytes_of(&self.state)
    }
}

/// Computes SHA-256 of one message.
pub fn sha256(data: &[u8]) -> [u8; 32] {
    let mut hash = Sha256::new();
    hash.update(data);
    hash.finalize()
}

/// Computes SHA-256 of the SHA-256 of one message: Bitcoin's hash of headers and transactions.
pub fn sha256d(data: &[u8]) -> [u8; 32] {
    sha256(&sha256(data))
}

/// Computes SHA-256 of each message.
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

/// Computes double SHA-256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn sha256d_many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    assert_eq!(messages.len(), out.len(), "one digest for each message");
    sha256d_each(|index| messages[index], out);
}

/// Computes double SHA-256 of `message(0)`, `message(1)` and so on, to fill `out`. It calls `message` more
/// than once per index: the result must be the same every time, and cheap.
pub fn sha256d_each<'a>(message: impl Fn(usize) -> Message<'a>, out: &mut [[u8; 32]]) {
    let engine = HashEngine::current();
    for (chunk, out) in out.chunks_mut(CHUNK).enumerate() {
        double_chunk(&*engine.many, |index| message(chunk * CHUNK + index), out);
    }
}

/// Computes double SHA-256 of each 64-byte message: two digests side by side, as in a merkle tree.
///
/// # Panics
/// If `pairs` and `out` differ in length.
pub fn sha256d_pairs(pairs: &[[u8; 64]], out: &mut [[u8; 32]]) {
    assert_eq!(pairs.len(), out.len(), "one digest for each pair");
    HashEngine::current().many.pairs(pairs, out);
}

/// The number of messages sorted at once. More would make fuller groups; this many fit in the second-level
/// cache.
pub(crate) const CHUNK: usize = 1024;

/// The number of blocks from which messages are rare enough to sort by comparison.
const LONG: usize = 63;

/// Like [`sha256_many`], for at most [`CHUNK`] messages.
pub(crate) fn single_chunk<'a>(
    many: &dyn Many,
    message: impl Fn(usize) -> Message<'a>,
    out: &mut [[u8; 32]],
) {
    let padded = |index| PaddedMessage::new(&message(index));
    in_order(padded, out, many.width(), |messages, out| many.single(messages, out));
}

/// Like [`sha256d_each`], for at most [`CHUNK`] messages.
pub(crate) fn double_chunk<'a>(
    many: &dyn Many,
    message: impl Fn(usize) -> Message<'a>,
    out: &mut [[u8; 32]],
) {
    let padded = |index| PaddedMessage::new(&message(index));
    in_order(padded, out, many.width(), |messages, out| many.double(messages, out));
}

/// Calls `hash` with `width` messages at a time, out of at most [`CHUNK`], sorted by number of blocks.
pub(crate) fn in_order<'a, const BLOCK: usize>(
    message: impl Fn(usize) -> PaddedMessage<'a, BLOCK>,
    out: &mut [[u8; 32]],
    width: usize,
    hash: impl Fn(&[PaddedMessage<'a, BLOCK>], &mut [[u8; 32]]),
) {
    let message = |index: u16| message(usize::from(index));
    let mut order = [0; CHUNK];
    let order = &mut order[..out.len()];
    sort_by_blocks(|index| message(index).blocks(), order);
    let (mut sorted, mut digests) = ([PaddedMessage::EMPTY; WIDTH_MAX], [[0; 32]; WIDTH_MAX]);
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

/// Fills `order` with the indices of that many messages, sorted by number of blocks: a counting sort.
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
    // Each start has now moved to its group's end, so the long messages begin at the last start but one.
    order[usize::from(starts[LONG - 1])..].sort_unstable_by_key(|index| blocks(*index));
}

/// SHA-256 keyed with a 64-byte first block, whose state is computed once; each 36-byte outpoint then costs
/// one compression.
#[derive(Clone)]
pub struct KeyedHasher {
    midstate: [u32; 8],
}

impl fmt::Debug for KeyedHasher {
    /// Omits the midstate, which reveals as much as the key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("KeyedHasher").finish_non_exhaustive()
    }
}

impl KeyedHasher {
    /// Hashes the key.
    pub fn new(key: &[u8; 64]) -> Self {
        Self { midstate: HashEngine::current().single.after(INITIAL, key) }
    }

    /// Computes the digest of the key followed by `message`.
    pub fn hash(&self, message: &[u8; 36]) -> [u8; 32] {
        bytes_of(&HashEngine::current().single.after(self.midstate, &keyed_block(message)))
    }

    /// Computes the digest of each message.
    ///
    /// # Panics
    /// If `messages` and `out` differ in length.
    pub fn hash_many(&self, messages: &[[u8; 36]], out: &mut [[u8; 32]]) {
        assert_eq!(messages.len(), out.len(), "one digest for each message");
        HashEngine::current().many.keyed(&self.midstate, messages, out);
    }

    /// Adds all digests, each read as a little-endian 256-bit integer, to `sum` modulo 2^256. `sum`
    /// has its least significant limb first.
    pub fn sum_many(&self, messages: &[[u8; 36]], sum: &mut [u64; 4]) {
        self.sum_with(&*HashEngine::current().many, messages, sum);
    }

    pub(crate) fn sum_with(&self, many: &dyn Many, messages: &[[u8; 36]], sum: &mut [u64; 4]) {
        // Few enough that the columns cannot overflow, and enough that the carries take no noticeable time.
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
    fn sorting_returns_an_ordered_permutation() {
        let data = vec![0; 64 * 200];
        let messages: Vec<Message<'_>> =
            (0..CHUNK).map(|i| Message::from(&data[..i * i * 37 % data.len()])).collect();
        for count in [0, 1, 2, 100, CHUNK] {
            let mut order = vec![u16::MAX; count];
            let blocks = |i: u16| <PaddedMessage<'_>>::new(&messages[usize::from(i)]).blocks();
            sort_by_blocks(blocks, &mut order);
            assert!(order.is_sorted_by_key(|i| blocks(*i)));
            order.sort_unstable();
            assert!(order.into_iter().eq(0..count as u16));
        }
    }
}

//! SHA-256 of many messages, single and double: [`sha256_many`], [`sha256d_many`],
//! [`sha256d_pairs`].
//!
//! A lane kernel takes as long as its longest message, so messages are sorted by their number of
//! blocks, a chunk at a time, before they are put into lanes. Invariant: `out[i]` belongs to
//! `messages[i]`. Nothing is allocated.

use crate::groups::{Many, WIDTH_MAX};
use crate::kernel::Engine;
use crate::message::{Message, Padded};

/// SHA-256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn sha256_many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    assert_eq!(messages.len(), out.len(), "one digest for each message");
    let engine = Engine::current();
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
    let engine = Engine::current();
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
    Engine::current().many.pairs(pairs, out);
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

//! Double SHA-256 of many messages: [`sha256d_many`], [`sha256d_pairs`].
//!
//! A lane kernel takes as long as its longest message, so messages are sorted by their number of
//! blocks, a chunk at a time, before they are put into lanes. Invariant: `out[i]` belongs to
//! `messages[i]`. Nothing is allocated.

use crate::groups::{Many, WIDTH_MAX};
use crate::kernel::Engine;
use crate::message::{Message, Padded};

/// Double SHA-256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn sha256d_many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    assert_eq!(messages.len(), out.len(), "one digest for each message");
    for (messages, out) in messages.chunks(CHUNK).zip(out.chunks_mut(CHUNK)) {
        double_chunk(&*Engine::current().many, messages, out);
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

/// [`sha256d_many`] for at most [`CHUNK`] messages.
pub(crate) fn double_chunk(many: &dyn Many, messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    let mut order = [0; CHUNK];
    let order = &mut order[..messages.len()];
    sort_by_blocks(messages, order);
    let empty = Padded::new(&Message::default());
    let (mut sorted, mut digests) = ([empty; WIDTH_MAX], [[0; 32]; WIDTH_MAX]);
    for group in order.rchunks(many.width()) {
        for (sorted, index) in sorted.iter_mut().zip(group) {
            *sorted = Padded::new(&messages[usize::from(*index)]);
        }
        many.double(&sorted[..group.len()], &mut digests[..group.len()]);
        for (digest, index) in digests.iter().zip(group) {
            out[usize::from(*index)] = *digest;
        }
    }
}

/// Writes the indices of `messages` in order of the number of blocks: a counting sort.
fn sort_by_blocks(messages: &[Message<'_>], order: &mut [u16]) {
    let blocks = |index: u16| Padded::new(&messages[usize::from(index)]).blocks();
    let mut starts = [0u16; LONG + 2];
    for message in messages {
        starts[Padded::new(message).blocks().min(LONG) + 1] += 1;
    }
    for i in 1..starts.len() {
        starts[i] += starts[i - 1];
    }
    for index in 0..messages.len() as u16 {
        let place = &mut starts[blocks(index).min(LONG)];
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
            sort_by_blocks(&messages[..count], &mut order);
            let blocks = |i: &u16| Padded::new(&messages[usize::from(*i)]).blocks();
            assert!(order.is_sorted_by_key(blocks));
            order.sort_unstable();
            assert!(order.into_iter().eq(0..count as u16));
        }
    }
}

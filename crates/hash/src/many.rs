//! Double SHA-256 of many messages: [`sha256d_many`], [`sha256d_pairs`].

use crate::digest::bytes_of;
use crate::kernel::Single;
use crate::message::{Message, Padded};
use crate::rounds::{self, INITIAL};

/// Double SHA-256 of each message.
///
/// # Panics
/// If `messages` and `out` differ in length.
pub fn sha256d_many(messages: &[Message<'_>], out: &mut [[u8; 32]]) {
    assert_eq!(messages.len(), out.len(), "one digest for each message");
    for (message, out) in messages.iter().zip(out) {
        let padded = Padded::new(message);
        let (mut state, mut next, mut buffer) = (INITIAL, 0, [0; 64]);
        while next < padded.blocks() {
            let mut run = padded.run(next);
            if run.is_empty() {
                padded.fill(next, &mut buffer);
                run = core::slice::from_ref(&buffer);
            }
            Single::current().compress(&mut state, run);
            next += run.len();
        }
        *out = bytes_of(&rounds::rehash(state));
    }
}

/// Double SHA-256 of each pair of 32-byte digests: one level of a merkle tree.
///
/// # Panics
/// If `pairs` and `out` differ in length.
pub fn sha256d_pairs(pairs: &[[u8; 64]], out: &mut [[u8; 32]]) {
    assert_eq!(pairs.len(), out.len(), "one digest for each pair");
    for (pair, out) in pairs.iter().zip(out) {
        let mut state = INITIAL;
        Single::current().compress(&mut state, core::slice::from_ref(pair));
        *out = bytes_of(&rounds::rehash(rounds::compress_padding_64(state)));
    }
}

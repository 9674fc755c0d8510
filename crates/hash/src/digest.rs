//! Between hash state (eight words) and digest (32 bytes, words big-endian).

/// The digest as bytes.
#[inline]
pub(crate) fn bytes_of(state: &[u32; 8]) -> [u8; 32] {
    let mut out = [0; 32];
    for (bytes, word) in out.as_chunks_mut::<4>().0.iter_mut().zip(state) {
        *bytes = word.to_be_bytes();
    }
    out
}

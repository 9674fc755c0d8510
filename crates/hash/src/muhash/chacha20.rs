//! The block function of ChaCha20 (RFC 8439 section 2.3): one block, or the same block of several
//! keys in the lanes of vector registers.
//!
//! Used to stretch a hash to the size of a number, where nothing is secret; it is no cipher.

/// Bytes that one call gives.
pub(super) const BLOCK_BYTES: usize = 64;

type Row = [u32; 4];

/// The first four words of every state: `expand 32-byte k`.
pub(super) const CONSTANTS: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

/// One block of key stream.
pub(super) fn block(key: &[u8; 32], counter: u32, nonce: [u32; 3]) -> [u8; BLOCK_BYTES] {
    let start = [CONSTANTS, words(key, 0), words(key, 16), [counter, nonce[0], nonce[1], nonce[2]]];
    let mut state = start;
    for _ in 0..10 {
        quarter_rounds(&mut state);
        // Turned rows make the diagonals of the state its columns, and back again.
        let [a, b, c, d] = state;
        state = [a, turn::<1>(b), turn::<2>(c), turn::<3>(d)];
        quarter_rounds(&mut state);
        let [a, b, c, d] = state;
        state = [a, turn::<3>(b), turn::<2>(c), turn::<1>(d)];
    }
    let mut out = [0; BLOCK_BYTES];
    for (row, (bytes, first)) in state.iter().zip(out.chunks_exact_mut(16).zip(start)) {
        for (word, bytes) in add(*row, first).iter().zip(bytes.chunks_exact_mut(4)) {
            bytes.copy_from_slice(&word.to_le_bytes());
        }
    }
    out
}

fn words(key: &[u8; 32], at: usize) -> Row {
    core::array::from_fn(|i| {
        let at = at + 4 * i;
        u32::from_le_bytes([key[at], key[at + 1], key[at + 2], key[at + 3]])
    })
}

#[inline(always)]
fn add(a: Row, b: Row) -> Row {
    core::array::from_fn(|i| a[i].wrapping_add(b[i]))
}

#[inline(always)]
fn xor_turned<const BITS: u32>(a: Row, b: Row) -> Row {
    core::array::from_fn(|i| (a[i] ^ b[i]).rotate_left(BITS))
}

#[inline(always)]
fn turn<const BY: usize>(row: Row) -> Row {
    core::array::from_fn(|i| row[(i + BY) % 4])
}

/// The quarter round on all four columns at once.
#[inline(always)]
fn quarter_rounds([a, b, c, d]: &mut [Row; 4]) {
    *a = add(*a, *b);
    *d = xor_turned::<16>(*d, *a);
    *c = add(*c, *d);
    *b = xor_turned::<12>(*b, *c);
    *a = add(*a, *b);
    *d = xor_turned::<8>(*d, *a);
    *c = add(*c, *d);
    *b = xor_turned::<7>(*b, *c);
}

/// The words of at most `N` keys as lane kernels want them: word by word, in each the lanes. A lane
/// without a key has zeros.
#[cfg(target_arch = "x86_64")]
pub(super) fn words_of_keys<const N: usize>(keys: &[[u8; 32]]) -> [[u32; N]; 8] {
    let mut words = [[0; N]; 8];
    for (lane, key) in keys.iter().enumerate() {
        for (words, bytes) in words.iter_mut().zip(key.as_chunks().0) {
            words[lane] = u32::from_le_bytes(*bytes);
        }
    }
    words
}

/// Defines `key_stream`, the block function in lanes, for vectors of 32-bit words. In scope must
/// be `constant`, `add_32`, `xor` and `rotate_left`.
///
/// A step is done to all four columns of the state before the next: each waits for the one before,
/// and four that do not wait for each other keep the processor busy.
#[cfg(target_arch = "x86_64")]
macro_rules! define_key_stream {
    ($register:ty, #[$attribute:meta]) => {
        /// `a += b`, `d = (d ^ a) <<< BITS`, in four places.
        #[inline]
        #[$attribute]
        fn step<const BITS: i32>(
            state: &mut [$register; 16],
            a: [usize; 4],
            b: [usize; 4],
            d: [usize; 4],
        ) {
            for i in 0..4 {
                state[a[i]] = add_32(state[a[i]], state[b[i]]);
            }
            for i in 0..4 {
                state[d[i]] = xor(state[d[i]], state[a[i]]);
            }
            for i in 0..4 {
                state[d[i]] = rotate_left::<BITS>(state[d[i]]);
            }
        }

        /// The quarter rounds of four columns, or of four diagonals.
        #[inline]
        #[$attribute]
        fn round(state: &mut [$register; 16], b: [usize; 4], c: [usize; 4], d: [usize; 4]) {
            let a = [0, 1, 2, 3];
            step::<16>(state, a, b, d);
            step::<12>(state, c, d, b);
            step::<8>(state, a, b, d);
            step::<7>(state, c, d, b);
        }

        /// Block `counter` of each lane's key stream, as words; the nonce is zero.
        #[inline]
        #[$attribute]
        fn key_stream(key: &[$register; 8], counter: u32, out: &mut [$register; 16]) {
            let mut start = [constant(0); 16];
            for (word, value) in start.iter_mut().zip($crate::muhash::chacha20::CONSTANTS) {
                *word = constant(value);
            }
            start[4..12].copy_from_slice(key);
            start[12] = constant(counter);
            let mut state = start;
            for _ in 0..10 {
                round(&mut state, [4, 5, 6, 7], [8, 9, 10, 11], [12, 13, 14, 15]);
                round(&mut state, [5, 6, 7, 4], [10, 11, 8, 9], [15, 12, 13, 14]);
            }
            for (i, out) in out.iter_mut().enumerate() {
                *out = add_32(state[i], start[i]);
            }
        }
    };
}
#[cfg(target_arch = "x86_64")]
pub(super) use define_key_stream;

#[cfg(test)]
mod tests {
    use super::*;

    fn hex(bytes: &[u8]) -> String {
        bytes.iter().map(|byte| format!("{byte:02x}")).collect()
    }

    #[test]
    fn block_of_rfc_8439_section_2_3_2() {
        let key: [u8; 32] = core::array::from_fn(|i| i as u8);
        let nonce = [0x0900_0000, 0x4a00_0000, 0];
        assert_eq!(
            hex(&block(&key, 1, nonce)),
            "10f1e7e4d13b5915500fdd1fa32071c4c7d1f4c733c068030422aa9ac3d46c4e\
             d2826446079faa0914c2d705d98b02a2b5129cd1de164eb9cbd083e8a2503c4e"
        );
    }

    #[test]
    fn blocks_of_rfc_8439_appendix_a_1() {
        let zero = [0; 32];
        assert_eq!(
            hex(&block(&zero, 0, [0; 3])),
            "76b8e0ada0f13d90405d6ae55386bd28bdd219b8a08ded1aa836efcc8b770dc7\
             da41597c5157488d7724e03fb8d84a376a43b8f41518a11cc387b669b2ee6586"
        );
        assert_eq!(
            hex(&block(&zero, 1, [0; 3])),
            "9f07e7be5551387a98ba977c732d080dcb0f29a048e3656912c6533e32ee7aed\
             29b721769ce64e43d57133b074d839d531ed1f28510afb45ace10a1f4b794d6f"
        );
    }
}

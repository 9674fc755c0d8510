//! The block function of ChaCha20 (RFC 8439 section 2.3).
//!
//! Used to stretch a hash to the size of a number, where nothing is secret; it is no cipher.

/// Bytes that one call gives.
pub(super) const BLOCK_BYTES: usize = 64;

type Row = [u32; 4];

/// The first four words of every state: `expand 32-byte k`.
const CONSTANTS: Row = [0x6170_7865, 0x3320_646e, 0x7962_2d32, 0x6b20_6574];

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

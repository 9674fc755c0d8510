//! Reads the two numbers of a DER signature as leniently as Bitcoin Core's
//! `ecdsa_signature_parse_der_lax` (`src/pubkey.cpp`).
//!
//! Blocks before BIP-66 have signatures with padded and negative numbers, wrong lengths and
//! trailing bytes. What Core accepts, this accepts with the same numbers; but numbers of over 32
//! bytes, which Core replaces by an invalid signature, count as unreadable.

/// Returns r and s as 32 bytes each, the most significant first.
pub(crate) fn parse_lax(der: &[u8]) -> Option<([u8; 32], [u8; 32])> {
    let mut rest = der.strip_prefix(&[0x30])?;
    // The length of the sequence is skipped, whatever it says.
    let first = take(&mut rest, 1)?[0];
    if first & 0x80 != 0 {
        take(&mut rest, usize::from(first & 0x7f))?;
    }
    let r = integer(&mut rest)?;
    let s = integer(&mut rest)?;
    Some((padded(r)?, padded(s)?))
}

/// Takes the bytes of an integer.
fn integer<'a>(rest: &mut &'a [u8]) -> Option<&'a [u8]> {
    *rest = rest.strip_prefix(&[0x02])?;
    let first = take(rest, 1)?[0];
    let length = if first & 0x80 == 0 {
        usize::from(first)
    } else {
        let bytes = without_zeros(take(rest, usize::from(first & 0x7f))?);
        if bytes.len() >= 4 {
            return None;
        }
        bytes.iter().fold(0, |length, byte| length << 8 | usize::from(*byte))
    };
    take(rest, length)
}

fn take<'a>(rest: &mut &'a [u8], count: usize) -> Option<&'a [u8]> {
    let (taken, left) = rest.split_at_checked(count)?;
    *rest = left;
    Some(taken)
}

fn without_zeros(bytes: &[u8]) -> &[u8] {
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    &bytes[zeros..]
}

fn padded(number: &[u8]) -> Option<[u8; 32]> {
    let digits = without_zeros(number);
    let mut padded = [0; 32];
    let at = padded.len().checked_sub(digits.len())?;
    padded[at..].copy_from_slice(digits);
    Some(padded)
}

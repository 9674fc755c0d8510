//! Base58 with a checksum: the older kind of address (Core `base58.cpp`).

use crate::address::AddressError;
use apus_hash::sha256d;

const ALPHABET: &[u8; 58] = b"123456789ABCDEFGHJKLMNPQRSTUVWXYZabcdefghijkmnopqrstuvwxyz";

/// A version byte and a hash, then four bytes of checksum.
const PAYLOAD: usize = 21;
const BYTES: usize = PAYLOAD + 4;

/// The bytes as 32-bit limbs, and the digits as groups of five.
const LIMBS: usize = BYTES.div_ceil(4);
const GROUPS: usize = 7;
const GROUP: u64 = 58 * 58 * 58 * 58 * 58;

fn checksum(payload: &[u8]) -> [u8; 4] {
    let [a, b, c, d, ..] = sha256d(payload);
    [a, b, c, d]
}

/// Appends the address of a hash with this version byte.
pub(crate) fn write(out: &mut Vec<u8>, version: u8, hash: &[u8; 20]) {
    let mut bytes = [0; 4 * LIMBS];
    let whole = &mut bytes[4 * LIMBS - BYTES..];
    whole[0] = version;
    whole[1..PAYLOAD].copy_from_slice(hash);
    let sum = checksum(&whole[..PAYLOAD]);
    whole[PAYLOAD..].copy_from_slice(&sum);
    let zeros = whole.iter().take_while(|byte| **byte == 0).count();
    out.resize(out.len() + zeros, ALPHABET[0]);

    let mut limbs = [0_u32; LIMBS];
    for (limb, bytes) in limbs.iter_mut().zip(bytes.as_chunks::<4>().0) {
        *limb = u32::from_be_bytes(*bytes);
    }
    let mut digits = [0; 5 * GROUPS];
    for group in digits.as_chunks_mut::<5>().0.iter_mut().rev() {
        let mut rest = 0;
        for limb in &mut limbs {
            let value = rest << 32 | u64::from(*limb);
            *limb = (value / GROUP) as u32;
            rest = value % GROUP;
        }
        for digit in group.iter_mut().rev() {
            *digit = (rest % 58) as usize;
            rest /= 58;
        }
    }
    out.extend(digits.iter().skip_while(|digit| **digit == 0).map(|digit| ALPHABET[*digit]));
}

/// Reads an address: version byte and hash.
pub(crate) fn read(text: &str) -> Result<(u8, [u8; 20]), AddressError> {
    let bad = AddressError::Malformed;
    // The longest has 35 digits.
    if text.len() > 5 * GROUPS {
        return Err(bad);
    }
    let mut bytes = [0_u8; BYTES];
    for byte in text.bytes() {
        let digit = ALPHABET.iter().position(|it| *it == byte).ok_or(bad)?;
        let mut carry = digit as u32;
        for byte in bytes.iter_mut().rev() {
            carry += u32::from(*byte) * 58;
            *byte = carry as u8;
            carry >>= 8;
        }
        if carry > 0 {
            return Err(bad);
        }
    }
    // Each leading 1 is a zero byte, so every hash has one spelling.
    let zeros = bytes.iter().take_while(|byte| **byte == 0).count();
    if text.bytes().take_while(|byte| *byte == ALPHABET[0]).count() != zeros {
        return Err(bad);
    }
    let (payload, sum) = bytes.split_at(PAYLOAD);
    if checksum(payload) != sum {
        return Err(AddressError::Checksum);
    }
    let hash = payload[1..].first_chunk().ok_or(bad)?;
    Ok((payload[0], *hash))
}

//! Bech32 and bech32m: witness programs as text (BIP-173, BIP-350).

use crate::address::AddressError;

const ALPHABET: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";

/// Added to the checksum: for witness version 0 (BIP-173), and for all later ones (BIP-350).
const BECH32: u32 = 1;
const BECH32M: u32 = 0x2bc8_30a3;

/// Number of symbols of a checksum.
const CHECKSUM: usize = 6;

/// The limit of an address's length.
const LENGTH_MAX: usize = 90;

/// A checksum under way.
#[derive(Clone, Copy)]
struct Checksum(u32);

impl Checksum {
    fn of_prefix(prefix: &str) -> Self {
        let mut sum = Self(1);
        prefix.bytes().for_each(|byte| sum.push(byte >> 5));
        sum.push(0);
        prefix.bytes().for_each(|byte| sum.push(byte & 31));
        sum
    }

    fn push(&mut self, symbol: u8) {
        const GENERATOR: [u32; 5] =
            [0x3b6a_57b2, 0x2650_8e6d, 0x1ea1_19fa, 0x3d42_33dd, 0x2a14_62b3];
        let top = self.0 >> 25;
        self.0 = (self.0 & 0x1ff_ffff) << 5 ^ u32::from(symbol);
        for (bit, generator) in GENERATOR.into_iter().enumerate() {
            self.0 ^= generator & (top >> bit & 1).wrapping_neg();
        }
    }
}

const fn constant(version: u8) -> u32 {
    if version == 0 { BECH32 } else { BECH32M }
}

/// Appends the address of a witness program, 2 to 40 bytes of version 0 to 16.
pub(crate) fn write(out: &mut Vec<u8>, prefix: &str, version: u8, program: &[u8]) {
    let mut sum = Checksum::of_prefix(prefix);
    out.extend_from_slice(prefix.as_bytes());
    out.push(b'1');
    let mut put = |symbol: u8| {
        sum.push(symbol);
        out.push(ALPHABET[usize::from(symbol)]);
    };
    put(version);
    let (mut bits, mut count) = (0_u32, 0);
    for &byte in program {
        bits = bits << 8 | u32::from(byte);
        count += 8;
        while count >= 5 {
            count -= 5;
            put((bits >> count) as u8 & 31);
        }
    }
    if count > 0 {
        put((bits << (5 - count)) as u8 & 31);
    }
    (0..CHECKSUM).for_each(|_| sum.push(0));
    let sum = sum.0 ^ constant(version);
    out.extend((0..CHECKSUM).rev().map(|at| ALPHABET[(sum >> (5 * at)) as usize & 31]));
}

/// Reads an address of the chain with this prefix: version and program.
pub(crate) fn read(text: &str, prefix: &str) -> Result<(u8, Vec<u8>), AddressError> {
    let bad = AddressError::Malformed;
    if text.len() > LENGTH_MAX || !text.is_ascii() {
        return Err(bad);
    }
    let lower = text.to_ascii_lowercase();
    if text != lower && text != text.to_ascii_uppercase() {
        return Err(AddressError::MixedCase);
    }
    let rest = lower.strip_prefix(prefix).and_then(|rest| rest.strip_prefix('1')).ok_or(bad)?;
    let symbol = |byte| ALPHABET.iter().position(|it| *it == byte).map(|at| at as u8).ok_or(bad);
    let symbols: Vec<u8> = rest.bytes().map(symbol).collect::<Result<_, _>>()?;
    let mut sum = Checksum::of_prefix(prefix);
    symbols.iter().for_each(|symbol| sum.push(*symbol));
    let data = symbols.len().checked_sub(CHECKSUM).map(|end| &symbols[..end]).ok_or(bad)?;
    let (&version, data) = data.split_first().ok_or(bad)?;
    if version > 16 {
        return Err(bad);
    }
    if sum.0 != constant(version) {
        return Err(AddressError::Checksum);
    }
    let (mut program, mut bits, mut count) = (Vec::with_capacity(40), 0_u32, 0);
    for &symbol in data {
        bits = bits << 5 | u32::from(symbol);
        count += 5;
        if count >= 8 {
            count -= 8;
            program.push((bits >> count) as u8);
        }
    }
    let padding = bits & ((1 << count) - 1);
    let fits = (2..=40).contains(&program.len());
    let fits = fits && (version > 0 || matches!(program.len(), 20 | 32));
    (fits && count < 5 && padding == 0).then_some((version, program)).ok_or(bad)
}

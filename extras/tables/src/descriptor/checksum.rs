//! The checksum of a descriptor: eight characters after `#` (Core `script/descriptor.cpp`, `DescriptorChecksum`).

use super::QueryError;

/// The characters of descriptors, in groups of 32, so that a change of case or of the kind of brackets is one error.
const INPUT: &[u8] = b"0123456789()[],'/*abcdefgh@:$%{}\
    IJKLMNOPQRSTUVWXYZ&+-.;<=>?!^_|~\
    ijklmnopqrstuvwxyzABCDEFGH`#\"\\ ";
const OUTPUT: &[u8; 32] = b"qpzry9x8gf2tvdw0s3jn54khce6mua7l";
const SYMBOLS: usize = 8;

/// Returns the checksum of a descriptor; `None` if it has a character that no descriptor has.
fn checksum(text: &str) -> Option<String> {
    let mut sum = 1_u64;
    let mut push = |symbol: usize| {
        const GENERATOR: [u64; 5] =
            [0xf5_dee5_1989, 0xa9_fdca_3312, 0x1b_ab10_e32d, 0x37_06b1_677a, 0x64_4d62_6ffd];
        let top = sum >> 35;
        sum = (sum & 0x7_ffff_ffff) << 5 ^ symbol as u64;
        for (bit, generator) in GENERATOR.into_iter().enumerate() {
            sum ^= generator & (top >> bit & 1).wrapping_neg();
        }
    };
    let (mut groups, mut count) = (0, 0);
    for byte in text.bytes() {
        let place = INPUT.iter().position(|it| *it == byte)?;
        push(place & 31);
        groups = groups * 3 + (place >> 5);
        count += 1;
        if count == 3 {
            push(std::mem::take(&mut groups));
            count = 0;
        }
    }
    if count > 0 {
        push(groups);
    }
    (0..SYMBOLS).for_each(|_| push(0));
    let sum = sum ^ 1;
    let symbol = |at: usize| char::from(OUTPUT[(sum >> (5 * (SYMBOLS - 1 - at))) as usize & 31]);
    Some((0..SYMBOLS).map(symbol).collect())
}

/// Appends its checksum to a descriptor.
pub(super) fn with_checksum(text: &str) -> String {
    match checksum(text) {
        Some(sum) => format!("{text}#{sum}"),
        None => text.to_owned(),
    }
}

/// Removes the checksum of a descriptor, if it has one, and fails if it is wrong.
pub(super) fn split_checksum(text: &str) -> Result<&str, QueryError> {
    let body = text.split_once('#').map_or(text, |(body, _)| body);
    let invalid =
        || QueryError::Descriptor("the descriptor has a character that none has".to_owned());
    let computed = checksum(body).ok_or_else(invalid)?;
    match text.split_once('#') {
        Some((_, given)) if given != computed => {
            Err(QueryError::Checksum { given: given.to_owned(), computed })
        }
        _ => Ok(body),
    }
}

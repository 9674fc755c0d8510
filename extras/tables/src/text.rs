//! Numbers and bytes as text, without allocation.

/// The two digits of each byte.
const DIGITS: [[u8; 2]; 256] = {
    let (mut digits, mut byte) = ([[0; 2]; 256], 0);
    while byte < 256 {
        let alphabet = b"0123456789abcdef";
        digits[byte] = [alphabet[byte >> 4], alphabet[byte & 15]];
        byte += 1;
    }
    digits
};

/// Appends bytes as hexadecimal digits.
pub fn write_hex(out: &mut Vec<u8>, bytes: &[u8]) {
    let start = out.len();
    out.resize(start + 2 * bytes.len(), 0);
    for (two, &byte) in out[start..].as_chunks_mut::<2>().0.iter_mut().zip(bytes) {
        *two = DIGITS[usize::from(byte)];
    }
}

/// Returns a txid as its 64 digits are shown: last byte first.
pub(crate) fn txid_digits(txid: &[u8; 32]) -> [u8; 64] {
    let mut digits = [0; 64];
    for (two, &byte) in digits.as_chunks_mut::<2>().0.iter_mut().zip(txid.iter().rev()) {
        *two = DIGITS[usize::from(byte)];
    }
    digits
}

/// Returns a txid's bytes in the order in which its digits are shown.
#[cfg(any(feature = "parquet", feature = "sqlite"))]
pub(crate) fn reversed_txid(txid: &[u8; 32]) -> [u8; 32] {
    let mut shown = *txid;
    shown.reverse();
    shown
}

/// Appends a number in decimal digits.
pub(crate) fn write_number(out: &mut Vec<u8>, mut number: u64) {
    let (mut digits, mut start) = ([0; 20], 20);
    loop {
        start -= 1;
        digits[start] = b'0' + (number % 10) as u8;
        number /= 10;
        if number == 0 {
            break;
        }
    }
    out.extend_from_slice(&digits[start..]);
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Txid;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn digits_are_those_of_the_standard_library(
            number in any::<u64>(), shift in 0..64, bytes in any::<[u8; 32]>()
        ) {
            let (mut out, number) = (Vec::new(), number >> shift);
            write_number(&mut out, number);
            out.push(b',');
            write_hex(&mut out, &bytes);
            let hex: String = bytes.iter().map(|byte| format!("{byte:02x}")).collect();
            prop_assert_eq!(String::from_utf8(out).unwrap(), format!("{number},{hex}"));
            prop_assert_eq!(txid_digits(&bytes).to_vec(), Txid(bytes).to_string().into_bytes());
        }
    }
}

//! CRC-32C (Castagnoli), as LevelDB stores it: masked, so that a checksum of data that contains
//! checksums stays sound.

const POLYNOMIAL: u32 = 0x82f6_3b78;

const TABLE: [u32; 256] = {
    let mut table = [0; 256];
    let mut byte = 0;
    while byte < 256 {
        let mut sum = byte as u32;
        let mut bit = 0;
        while bit < 8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ POLYNOMIAL } else { sum >> 1 };
            bit += 1;
        }
        table[byte] = sum;
        byte += 1;
    }
    table
};

fn extend(sum: u32, bytes: &[u8]) -> u32 {
    bytes.iter().fold(sum, |sum, byte| TABLE[usize::from(sum as u8 ^ byte)] ^ (sum >> 8))
}

/// Checksum of `first` followed by `second`, masked.
pub(super) fn masked(first: &[u8], second: &[u8]) -> u32 {
    let sum = !extend(extend(u32::MAX, first), second);
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        let crc = |bytes: &[u8]| !extend(u32::MAX, bytes);
        // RFC 3720, appendix B.4.
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"12345", b"6789"), masked(b"123456789", b""));
    }
}

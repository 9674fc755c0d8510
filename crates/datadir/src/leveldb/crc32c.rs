//! CRC-32C (Castagnoli), as LevelDB stores it: masked, so that a checksum of data that contains
//! checksums stays sound.

/// Checksum of `first` followed by `second`, masked.
pub(crate) fn masked(first: &[u8], second: &[u8]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(first), second);
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn known_values() {
        // The mask is a bijection: unmask to compare with the plain sums.
        let crc = |bytes: &[u8]| masked(bytes, b"").wrapping_sub(0xa282_ead8).rotate_left(15);
        // RFC 3720, appendix B.4.
        assert_eq!(crc(&[0; 32]), 0x8a91_36aa);
        assert_eq!(crc(&[0xff; 32]), 0x62a8_ab43);
        assert_eq!(crc(b"123456789"), 0xe306_9283);
        assert_eq!(masked(b"12345", b"6789"), masked(b"123456789", b""));
    }
}

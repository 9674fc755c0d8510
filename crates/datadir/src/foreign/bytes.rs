//! [`Bytes`]: numbers and strings as LevelDB writes them, taken one by one; and its checksum.

/// What is left to take. Every function gives nothing where that is too short.
#[derive(Clone, Copy)]
pub(super) struct Bytes<'b>(pub(super) &'b [u8]);

impl<'b> Bytes<'b> {
    pub(super) fn take(&mut self, count: u64) -> Option<&'b [u8]> {
        let (taken, left) = self.0.split_at_checked(usize::try_from(count).ok()?)?;
        self.0 = left;
        Some(taken)
    }

    pub(super) fn byte(&mut self) -> Option<u8> {
        self.take(1).map(|byte| byte[0])
    }

    pub(super) fn four(&mut self) -> Option<u32> {
        self.take(4).map(little)
    }

    /// Seven bits in each byte, the lowest first; all but the last have the eighth bit.
    pub(super) fn varint(&mut self) -> Option<u64> {
        let mut value = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte()?;
            let bits = u64::from(byte & 0x7f);
            if shift == 63 && bits > 1 {
                return None;
            }
            value |= bits << shift;
            if byte & 0x80 == 0 {
                return Some(value);
            }
        }
        None
    }

    /// A length, and as many bytes.
    pub(super) fn string(&mut self) -> Option<&'b [u8]> {
        let length = self.varint()?;
        self.take(length)
    }
}

/// The number in up to four bytes, the lowest first.
pub(super) fn little(bytes: &[u8]) -> u32 {
    bytes.iter().rev().fold(0, |value, byte| value << 8 | u32::from(*byte))
}

/// The checksum that is stored of bytes: CRC-32C, turned by fifteen bits, and a number added (LevelDB `util/crc32c.h`).
pub(super) fn stored_sum(parts: [&[u8]; 2]) -> u32 {
    let sum = crc32c::crc32c_append(crc32c::crc32c(parts[0]), parts[1]);
    sum.rotate_right(15).wrapping_add(0xa282_ead8)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_end_where_they_end() {
        let number = |bytes: &[u8]| {
            let mut bytes = Bytes(bytes);
            bytes.varint().map(|number| (number, bytes.0.len()))
        };
        assert_eq!(number(&[0x7f, 9]), Some((127, 1)));
        assert_eq!(number(&[0x80, 0x01]), Some((128, 0)));
        assert_eq!(
            number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 1]),
            Some((u64::MAX, 0))
        );
        assert_eq!(number(&[0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2]), None);
        assert_eq!(number(&[0x80; 11]), None);
        assert_eq!(number(&[0x80]), None);
        assert_eq!(Bytes(&[3, 1, 2]).string(), None);
        assert_eq!(Bytes(&[1, 2, 3, 4]).four(), Some(0x0403_0201));
    }

    /// RFC 3720, B.4: that of 32 bytes of zeros is 0x8a9136aa.
    #[test]
    fn the_checksum_is_turned() {
        assert_eq!(stored_sum([&[0; 30], &[0; 2]]), 0x6d55_1522_u32.wrapping_add(0xa282_ead8));
    }
}

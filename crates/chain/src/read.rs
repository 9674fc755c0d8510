//! Reads Bitcoin's serialization from a slice: fixed integers, CompactSize, VARINT, byte strings.
//!
//! A [`Reader`] never allocates and never panics; errors state the offset and the reason. It borrows the
//! input, so returned slices point into it. This module also contains the writers ([`write_compact_size`],
//! [`write_varint`]), next to their readers.

/// Why bytes could not be read. Offsets count from the start of the slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum ReadError {
    /// Fewer bytes are left than the field needs.
    #[error("the data ends at byte {offset}, but {needed} more bytes are needed")]
    End {
        /// Offset of the field.
        offset: usize,
        /// Its length in bytes.
        needed: usize,
    },
    /// A CompactSize in a longer form than its value needs (Core `serialize.h`, `ReadCompactSize`).
    #[error("non-canonical CompactSize at byte {offset}")]
    NonCanonical {
        /// Offset of the number.
        offset: usize,
    },
    /// A number is above the limit of its field.
    #[error("the number {value} at byte {offset} is above the limit of {limit}")]
    TooLarge {
        /// Offset of the number.
        offset: usize,
        /// The number.
        value: u64,
        /// The maximum value.
        limit: u64,
    },
    /// Bytes are left after the last field.
    #[error("{count} bytes are left over at byte {offset}")]
    Trailing {
        /// Offset of the first surplus byte.
        offset: usize,
        /// Number of surplus bytes.
        count: usize,
    },
}

/// The largest CompactSize that Core reads as a size (`serialize.h`, `MAX_SIZE`), 32 MiB.
pub const COMPACT_SIZE_MAX: u64 = 0x0200_0000;

/// A position in a byte slice.
#[derive(Debug, Clone)]
pub struct Reader<'a> {
    data: &'a [u8],
    position: usize,
}

impl<'a> Reader<'a> {
    /// Creates a reader at the first byte.
    pub const fn new(data: &'a [u8]) -> Self {
        Self { data, position: 0 }
    }

    /// Returns the number of bytes read so far.
    pub const fn position(&self) -> usize {
        self.position
    }

    /// Returns the number of bytes not read yet.
    pub const fn remaining(&self) -> usize {
        self.data.len() - self.position
    }

    /// Returns the bytes not read yet.
    #[inline]
    pub fn unread(&self) -> &'a [u8] {
        &self.data[self.position..]
    }

    /// Reads the next `count` bytes.
    #[inline]
    pub fn take(&mut self, count: usize) -> Result<&'a [u8], ReadError> {
        let end = ReadError::End { offset: self.position, needed: count };
        let stop = self.position.checked_add(count).ok_or(end)?;
        let bytes = self.data.get(self.position..stop).ok_or(end)?;
        self.position = stop;
        Ok(bytes)
    }

    /// Reads the next `N` bytes as an array.
    #[inline]
    pub fn array<const N: usize>(&mut self) -> Result<&'a [u8; N], ReadError> {
        let offset = self.position;
        let bytes = self.take(N)?;
        bytes.first_chunk().ok_or(ReadError::End { offset, needed: N })
    }

    /// Reads one byte.
    #[inline]
    pub fn u8(&mut self) -> Result<u8, ReadError> {
        Ok(self.array::<1>()?[0])
    }

    /// Reads a little-endian `u16`.
    #[inline]
    pub fn u16(&mut self) -> Result<u16, ReadError> {
        Ok(u16::from_le_bytes(*self.array()?))
    }

    /// Reads a little-endian `u32`.
    #[inline]
    pub fn u32(&mut self) -> Result<u32, ReadError> {
        Ok(u32::from_le_bytes(*self.array()?))
    }

    /// Reads a little-endian `u64`.
    #[inline]
    pub fn u64(&mut self) -> Result<u64, ReadError> {
        Ok(u64::from_le_bytes(*self.array()?))
    }

    /// Reads a CompactSize in its shortest form, without an upper limit.
    #[inline]
    pub fn compact_u64(&mut self) -> Result<u64, ReadError> {
        let offset = self.position;
        let (value, least) = match self.u8()? {
            first @ ..=0xfc => return Ok(u64::from(first)),
            0xfd => (u64::from(self.u16()?), 0xfd),
            0xfe => (u64::from(self.u32()?), 0x1_0000),
            0xff => (self.u64()?, 0x1_0000_0000),
        };
        if value < least { Err(ReadError::NonCanonical { offset }) } else { Ok(value) }
    }

    /// Reads a CompactSize of at most `limit`.
    #[inline]
    pub fn compact_max(&mut self, limit: u64) -> Result<u64, ReadError> {
        let offset = self.position;
        let value = self.compact_u64()?;
        if value > limit { Err(ReadError::TooLarge { offset, value, limit }) } else { Ok(value) }
    }

    /// Reads a CompactSize that is a length or count, limited to [`COMPACT_SIZE_MAX`] as in Core.
    #[inline]
    pub fn compact_size(&mut self) -> Result<usize, ReadError> {
        self.compact_max(COMPACT_SIZE_MAX).map(|value| value as usize)
    }

    /// Reads Core's VARINT: base 128, most significant group first, adding one for each further
    /// byte, so that every number has exactly one form (Core `serialize.h`, `ReadVarInt`).
    #[inline]
    pub fn varint(&mut self) -> Result<u64, ReadError> {
        let offset = self.position;
        let overflow = ReadError::TooLarge { offset, value: u64::MAX, limit: u64::MAX };
        let mut value = 0u64;
        loop {
            let byte = self.u8()?;
            if value > u64::MAX >> 7 {
                return Err(overflow);
            }
            value = (value << 7) | u64::from(byte & 0x7f);
            if byte & 0x80 == 0 {
                return Ok(value);
            }
            value = value.checked_add(1).ok_or(overflow)?;
        }
    }

    /// Reads a VARINT of at most 32 bits, like Core for such a field.
    pub(crate) fn varint_u32(&mut self) -> Result<u32, ReadError> {
        let offset = self.position;
        let value = self.varint()?;
        let limit = u64::from(u32::MAX);
        u32::try_from(value).map_err(|_| ReadError::TooLarge { offset, value, limit })
    }

    /// Fails unless every byte was read.
    pub fn finish(self) -> Result<(), ReadError> {
        match self.remaining() {
            0 => Ok(()),
            count => Err(ReadError::Trailing { offset: self.position, count }),
        }
    }
}

/// Appends `value` as a CompactSize in its shortest form.
pub fn write_compact_size(out: &mut Vec<u8>, value: u64) {
    match value {
        ..=0xfc => out.push(value as u8),
        0xfd..=0xffff => {
            out.push(0xfd);
            out.extend_from_slice(&(value as u16).to_le_bytes());
        }
        0x1_0000..=0xffff_ffff => {
            out.push(0xfe);
            out.extend_from_slice(&(value as u32).to_le_bytes());
        }
        _ => {
            out.push(0xff);
            out.extend_from_slice(&value.to_le_bytes());
        }
    }
}

/// Appends `value` as Core's VARINT.
#[inline]
pub fn write_varint(out: &mut Vec<u8>, value: u64) {
    let (bytes, length) = varint(value);
    extend_short(out, &bytes.to_le_bytes(), length);
}

/// Returns the bytes of a VARINT, the first one lowest, and their number.
#[inline]
pub(crate) fn varint(mut value: u64) -> (u128, usize) {
    // A u64 has at most ten groups of seven bits; the loop produces the last group first.
    let (mut bytes, mut length) = (u128::from(value & 0x7f), 1);
    while value > 0x7f {
        value = (value >> 7) - 1;
        bytes = bytes << 8 | u128::from(value & 0x7f | 0x80);
        length += 1;
    }
    (bytes, length)
}

/// Appends the first `length` of these bytes. If capacity allows, it writes all `N`: a fixed small
/// count compiles to one store, whereas a variable count needs a call to `memcpy`.
///
/// # Panics
///
/// Panics if `length` is greater than `N`.
#[inline]
pub fn extend_short<const N: usize>(out: &mut Vec<u8>, bytes: &[u8; N], length: usize) {
    let end = out.len() + length;
    if length <= N && out.capacity() - out.len() >= N {
        out.extend_from_slice(bytes);
        out.truncate(end);
    } else {
        out.extend_from_slice(&bytes[..length]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn compact(value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        write_compact_size(&mut out, value);
        out
    }

    fn varint(value: u64) -> Vec<u8> {
        let mut out = Vec::new();
        write_varint(&mut out, value);
        out
    }

    /// Makes numbers of every magnitude, not only large ones.
    fn any_size() -> impl Strategy<Value = u64> {
        (0u32..64, any::<u64>()).prop_map(|(shift, value)| value >> shift)
    }

    proptest! {
        #[test]
        fn compact_size_round_trips_and_is_the_only_form(value in any_size()) {
            let bytes = compact(value);
            let mut reader = Reader::new(&bytes);
            prop_assert_eq!(reader.compact_u64(), Ok(value));
            prop_assert_eq!(reader.finish(), Ok(()));
            for (mark, width) in [(0xfd, 2), (0xfe, 4), (0xff, 8)] {
                let mut long = vec![mark];
                long.extend_from_slice(&value.to_le_bytes()[..width]);
                let fits = width == 8 || value < 1 << (8 * width);
                if fits && long.len() > bytes.len() {
                    prop_assert_eq!(
                        Reader::new(&long).compact_u64(),
                        Err(ReadError::NonCanonical { offset: 0 })
                    );
                }
            }
        }

        #[test]
        fn varint_round_trips_and_sorts_within_a_length(a in any_size(), b in any_size()) {
            let (x, y) = (varint(a), varint(b));
            prop_assert_eq!(Reader::new(&x).varint(), Ok(a));
            if x.len() == y.len() {
                prop_assert_eq!(x.cmp(&y), a.cmp(&b));
            }
        }

        #[test]
        fn any_bytes_end_in_a_value_or_an_error(bytes in proptest::collection::vec(any::<u8>(), 0..24)) {
            let mut reader = Reader::new(&bytes);
            while reader.varint().is_ok() {}
            let mut reader = Reader::new(&bytes);
            while reader.compact_u64().is_ok() {}
            prop_assert!(reader.position() <= bytes.len());
        }
    }

    #[test]
    fn varints_match_known_values() {
        for (value, hex) in [
            (0u64, &[0x00u8][..]),
            (0x7f, &[0x7f]),
            (0x80, &[0x80, 0x00]),
            (0x1234, &[0xa3, 0x34]),
            (16_511, &[0xff, 0x7f]),
            (16_512, &[0x80, 0x80, 0x00]),
            (u64::MAX, &[0x80, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0x7f]),
        ] {
            assert_eq!(varint(value), hex, "{value}");
            assert_eq!(Reader::new(hex).varint(), Ok(value));
        }
        let over = [0x80, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xfe, 0xff, 0x00];
        assert!(matches!(Reader::new(&over).varint(), Err(ReadError::TooLarge { .. })));
    }

    #[test]
    fn sizes_above_cores_limit_are_rejected() {
        assert_eq!(Reader::new(&compact(COMPACT_SIZE_MAX)).compact_size(), Ok(0x0200_0000));
        assert!(matches!(
            Reader::new(&compact(COMPACT_SIZE_MAX + 1)).compact_size(),
            Err(ReadError::TooLarge { offset: 0, .. })
        ));
    }

    #[test]
    fn an_error_at_the_end_names_its_offset() {
        let mut reader = Reader::new(&[1, 2, 3]);
        reader.u16().unwrap();
        assert_eq!(reader.u32(), Err(ReadError::End { offset: 2, needed: 4 }));
        assert_eq!(reader.take(usize::MAX), Err(ReadError::End { offset: 2, needed: usize::MAX }));
        assert_eq!(reader.finish(), Err(ReadError::Trailing { offset: 2, count: 1 }));
    }
}

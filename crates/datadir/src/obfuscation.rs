//! [`Obfuscation`]: the 8-byte key that Core XORs over its block and undo files.
//!
//! A byte at file offset `n` is XORed with `key[n % 8]` (Core `node/blockstorage.cpp` and
//! `util/obfuscation.h`), so the same bytes look different at different offsets and the offset is
//! always part of the call. This hides nothing; it keeps virus scanners away from users' disks.

/// The key of one folder of block files. All zeros means plain files.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub struct Obfuscation {
    key: [u8; Self::KEY_SIZE],
}

impl Obfuscation {
    /// Length of the key in bytes.
    pub const KEY_SIZE: usize = 8;

    /// Plain files.
    pub const NONE: Self = Self { key: [0; Self::KEY_SIZE] };

    /// The key as it stands in `xor.dat`.
    pub const fn new(key: [u8; Self::KEY_SIZE]) -> Self {
        Self { key }
    }

    /// The key as it stands in `xor.dat`.
    pub const fn key(self) -> [u8; Self::KEY_SIZE] {
        self.key
    }

    /// Whether applying it changes nothing.
    pub fn is_none(self) -> bool {
        self == Self::NONE
    }

    /// The key as it meets a run of bytes that begins at `file_offset`.
    #[inline]
    fn aligned(self, file_offset: u64) -> [u8; Self::KEY_SIZE] {
        let bits = 8 * (file_offset % Self::KEY_SIZE as u64) as u32;
        u64::from_le_bytes(self.key).rotate_right(bits).to_le_bytes()
    }

    /// Obfuscates or de-obfuscates in place; `file_offset` is where `bytes` begin in their file.
    #[inline]
    pub fn apply(self, bytes: &mut [u8], file_offset: u64) {
        if self.is_none() {
            return;
        }
        let key = self.aligned(file_offset);
        let mask = u64::from_le_bytes(key);
        // Whole words without carried state: the compiler turns this into vector instructions.
        let (words, rest) = bytes.as_chunks_mut::<{ Self::KEY_SIZE }>();
        for word in words {
            *word = (u64::from_le_bytes(*word) ^ mask).to_le_bytes();
        }
        for (byte, mask) in rest.iter_mut().zip(key) {
            *byte ^= mask;
        }
    }

    /// The same as a copy.
    #[inline]
    pub(crate) fn applied<const N: usize>(self, bytes: &[u8; N], file_offset: u64) -> [u8; N] {
        let mut applied = *bytes;
        self.apply(&mut applied, file_offset);
        applied
    }

    /// Length of `plain` without the bytes at its end that are zeros *on disk*, as in a
    /// preallocated tail. `plain` is already de-obfuscated and begins at `file_offset`.
    pub(crate) fn trimmed_len(self, plain: &[u8], file_offset: u64) -> usize {
        let key = self.aligned(file_offset);
        let (words, rest) = plain.as_chunks::<{ Self::KEY_SIZE }>();
        let used = |bytes: &[u8]| bytes.iter().zip(&key).rposition(|(a, b)| a != b);
        if let Some(last) = used(rest) {
            return plain.len() - rest.len() + last + 1;
        }
        match words.iter().rposition(|word| *word != key) {
            Some(word) => word * Self::KEY_SIZE + used(&words[word]).map_or(0, |last| last + 1),
            None => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn bytewise(key: [u8; 8], bytes: &[u8], offset: u64) -> Vec<u8> {
        (offset..).zip(bytes).map(|(at, byte)| byte ^ key[(at % 8) as usize]).collect()
    }

    proptest! {
        #[test]
        fn words_agree_with_bytes(
            key: [u8; 8],
            bytes in proptest::collection::vec(any::<u8>(), 0..200),
            skip in 0usize..16,
            offset in 0u64..u64::MAX - 300,
        ) {
            let mut wide = bytes.clone();
            let skip = skip.min(wide.len());
            Obfuscation::new(key).apply(&mut wide[skip..], offset);
            prop_assert_eq!(&wide[..skip], &bytes[..skip]);
            prop_assert_eq!(&wide[skip..], &bytewise(key, &bytes[skip..], offset)[..]);
        }

        #[test]
        fn a_run_may_be_cut_anywhere(
            key: [u8; 8],
            bytes in proptest::collection::vec(any::<u8>(), 0..100),
            cut in 0usize..100,
            offset in 0u64..1_000,
        ) {
            let cut = cut.min(bytes.len());
            let mut parts = bytes.clone();
            Obfuscation::new(key).apply(&mut parts[..cut], offset);
            Obfuscation::new(key).apply(&mut parts[cut..], offset + cut as u64);
            prop_assert_eq!(&parts, &bytewise(key, &bytes, offset));
            Obfuscation::new(key).apply(&mut parts, offset);
            prop_assert_eq!(parts, bytes);
        }

        #[test]
        fn trimming_finds_the_last_byte_on_disk(
            key: [u8; 8],
            mut disk in proptest::collection::vec(0u8..3, 0..60),
            zeros in 0usize..40,
            offset in 0u64..1_000,
        ) {
            disk.resize(disk.len() + zeros, 0);
            let want = disk.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
            Obfuscation::new(key).apply(&mut disk, offset);
            prop_assert_eq!(Obfuscation::new(key).trimmed_len(&disk, offset), want);
        }
    }

    #[test]
    fn the_zero_key_changes_nothing() {
        let mut bytes = [1, 2, 3];
        Obfuscation::NONE.apply(&mut bytes, 5);
        assert_eq!(bytes, [1, 2, 3]);
        assert!(Obfuscation::new([0; 8]).is_none() && !Obfuscation::new([1; 8]).is_none());
    }
}

//! [`Header`]: the parsed 80-byte block header; and [`HeightRange`], a half-open block range, the
//! unit of work of every engine.
//!
//! Parsing and writing are exact inverses: any 80 bytes are a header, and its hash is the hash of
//! those bytes. The header tree, not this module, decides whether a header is *valid*.

use crate::hashes::{BlockHash, MerkleRoot};
use core::fmt;
use core::ops::Range;

/// A block header (Core `primitives/block.h`, `CBlockHeader`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// Version, signed as in Core; BIP-9 uses its bits.
    pub version: i32,
    /// Hash of the previous header.
    pub prev: BlockHash,
    /// Merkle root of the transaction ids.
    pub merkle_root: MerkleRoot,
    /// Seconds since 1970, as claimed by the miner.
    pub time: u32,
    /// The target in compact form.
    pub bits: u32,
    /// The nonce that the miner varied.
    pub nonce: u32,
}

/// Describes a block whose header [is extended](Header::is_extended), for messages.
pub const KNOTS_CHAIN: &str = "on Bitcoin Knots' own proof-of-work chain (bit 31 of the version is set, headers have \
                               164 bytes), which other nodes do not accept";

/// Returns the `N` bytes of the header from `at` on.
const fn field<const N: usize>(raw: &[u8; Header::SIZE], at: usize) -> [u8; N] {
    let mut bytes = [0; N];
    let mut i = 0;
    while i < N {
        bytes[i] = raw[at + i];
        i += 1;
    }
    bytes
}

impl Header {
    /// Length of the serialized form.
    pub const SIZE: usize = 80;

    /// Length of a header with Bitcoin Knots' own proof of work.
    pub const EXTENDED_SIZE: usize = 164;

    /// Parses a serialized header.
    pub const fn parse(raw: &[u8; Self::SIZE]) -> Self {
        Self {
            version: i32::from_le_bytes(field(raw, 0)),
            prev: BlockHash(field(raw, 4)),
            merkle_root: MerkleRoot(field(raw, 36)),
            time: u32::from_le_bytes(field(raw, 68)),
            bits: u32::from_le_bytes(field(raw, 72)),
            nonce: u32::from_le_bytes(field(raw, 76)),
        }
    }

    /// Returns the serialized form.
    pub fn to_bytes(&self) -> [u8; Self::SIZE] {
        let mut raw = [0; Self::SIZE];
        raw[..4].copy_from_slice(&self.version.to_le_bytes());
        raw[4..36].copy_from_slice(&self.prev.0);
        raw[36..68].copy_from_slice(&self.merkle_root.0);
        raw[68..72].copy_from_slice(&self.time.to_le_bytes());
        raw[72..76].copy_from_slice(&self.bits.to_le_bytes());
        raw[76..].copy_from_slice(&self.nonce.to_le_bytes());
        raw
    }

    /// Returns whether bit 31 of the version is set, as in the 164-byte headers of Bitcoin Knots' own proof
    /// of work. Use this to explain a rejected header, not as a reason to reject one.
    pub const fn is_extended(&self) -> bool {
        self.version < 0
    }

    /// Returns the block hash: double SHA-256 of the serialized form.
    pub fn hash(&self) -> BlockHash {
        BlockHash(apus_hash::sha256d(&self.to_bytes()))
    }
}

/// Distance from the genesis block, which has height 0.
pub type Height = u32;

/// The heights from `start` up to, but not including, `end`.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
pub struct HeightRange {
    /// First height in the range.
    pub start: Height,
    /// First height after the range.
    pub end: Height,
}

impl HeightRange {
    /// Creates the range `start..end`.
    ///
    /// # Panics
    ///
    /// Panics if `end` is below `start`, which is a bug in the caller: input never causes it.
    pub const fn new(start: Height, end: Height) -> Self {
        assert!(start <= end, "a height range cannot end before it starts");
        Self { start, end }
    }

    /// Returns the number of heights.
    pub const fn count(self) -> u32 {
        self.end - self.start
    }

    /// Returns whether the range is empty.
    pub const fn is_empty(self) -> bool {
        self.start == self.end
    }

    /// Returns whether `height` is in the range.
    pub const fn contains(self, height: Height) -> bool {
        self.start <= height && height < self.end
    }

    /// Returns the heights in order.
    pub const fn heights(self) -> Range<Height> {
        self.start..self.end
    }
}

impl fmt::Display for HeightRange {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}..{}", self.start, self.end)
    }
}

/// Formats seconds since 1970 as `2026-11-22T00:34:51Z`.
pub fn utc(seconds: i64) -> String {
    let (days, rest) = (seconds.div_euclid(86_400), seconds.rem_euclid(86_400));
    // Eras of 400 years start on 1 March, so that leap days are at the end.
    let days = days + 719_468;
    let (era, day) = (days.div_euclid(146_097), days.rem_euclid(146_097));
    let year = (day - day / 1_460 + day / 36_524 - day / 146_096) / 365;
    let day = day - (365 * year + year / 4 - year / 100);
    let month = (5 * day + 2) / 153;
    let day = day - (153 * month + 2) / 5 + 1;
    let (year, month) = (400 * era + year, if month < 10 { month + 3 } else { month - 9 });
    let year = if month < 3 { year + 1 } else { year };
    let (hour, minute, second) = (rest / 3_600, rest / 60 % 60, rest % 60);
    format!("{year:04}-{month:02}-{day:02}T{hour:02}:{minute:02}:{second:02}Z")
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn agrees_with_the_reference_on_any_80_bytes(raw in proptest::array::uniform32(any::<u8>()).prop_flat_map(|a| {
            (Just(a), proptest::array::uniform32(any::<u8>()), proptest::array::uniform16(any::<u8>()))
        })) {
            let mut bytes = [0u8; 80];
            bytes[..32].copy_from_slice(&raw.0);
            bytes[32..64].copy_from_slice(&raw.1);
            bytes[64..].copy_from_slice(&raw.2);
            let header = Header::parse(&bytes);
            prop_assert_eq!(header.to_bytes(), bytes);

            let reference: bitcoin::block::Header = bitcoin::consensus::deserialize(&bytes).unwrap();
            prop_assert_eq!(header.version, reference.version.to_consensus());
            prop_assert_eq!(header.prev.to_string(), reference.prev_blockhash.to_string());
            prop_assert_eq!(header.merkle_root.to_string(), reference.merkle_root.to_string());
            prop_assert_eq!(header.time, reference.time);
            prop_assert_eq!(header.bits, reference.bits.to_consensus());
            prop_assert_eq!(header.nonce, reference.nonce);
            prop_assert_eq!(header.hash().to_string(), reference.block_hash().to_string());
        }
    }

    #[test]
    fn known_times_are_formatted() {
        for (seconds, text) in [
            (0, "1970-01-01T00:00:00Z"),
            (951_825_600, "2000-02-29T12:00:00Z"),
            (951_868_800, "2000-03-01T00:00:00Z"),
            (1_296_688_602, "2011-02-02T23:16:42Z"),
            (1_735_689_599, "2024-12-31T23:59:59Z"),
            (1_735_689_600, "2025-01-01T00:00:00Z"),
            (4_107_542_400, "2100-03-01T00:00:00Z"),
            (-1, "1969-12-31T23:59:59Z"),
        ] {
            assert_eq!(utc(seconds), text);
        }
    }
}

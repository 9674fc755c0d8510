//! [`Header`]: the 80 bytes that open a block, taken apart.
//!
//! Parsing and writing are exact inverses: every 80 bytes are a header, and its hash is that of
//! those bytes. Whether a header is *valid* is not asked here but by the header tree.

use crate::hashes::{BlockHash, MerkleRoot};

/// A block header (Core `primitives/block.h`, `CBlockHeader`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Header {
    /// Version, signed as in Core; BIP-9 uses its bits.
    pub version: i32,
    /// Hash of the header before.
    pub prev: BlockHash,
    /// Root of the tree of transaction ids.
    pub merkle_root: MerkleRoot,
    /// Seconds since 1970, as the miner claims.
    pub time: u32,
    /// The target in compact form.
    pub bits: u32,
    /// What the miner varied.
    pub nonce: u32,
}

/// What a block is whose header [is extended](Header::is_extended), for people.
pub const KNOTS_CHAIN: &str = "on the chain of Bitcoin Knots' own proof of work (bit 31 of the version, headers of 164 \
                               bytes), which other nodes do not accept";

/// `N` bytes of the header from `at` on.
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

    /// Length of the form that Bitcoin Knots has by its own proof of work.
    pub const EXTENDED_SIZE: usize = 164;

    /// Takes a serialized header apart.
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

    /// The serialized form.
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

    /// Whether bit 31 of the version is set, as in the headers of 164 bytes that Bitcoin Knots has by its own proof of work.
    /// Of a header that is refused it tells why; it is no reason to refuse one.
    pub const fn is_extended(&self) -> bool {
        self.version < 0
    }

    /// The block's name: double SHA-256 of the serialized form.
    pub fn hash(&self) -> BlockHash {
        BlockHash(apus_hash::sha256d(&self.to_bytes()))
    }
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
}

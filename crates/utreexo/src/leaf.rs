//! The leaf of a coin.

use crate::NodeHash;
use apus_chain::{BlockHash, CoinRef, OutPoint};
use apus_hash::Message;
use apus_hash::sha512_256::TaggedHasher;
use std::sync::OnceLock;

/// SHA-512 of `UtreexoV1`, which tells leaf hashes of this version from all else (BIP-182, draft).
const TAG: [u8; 64] = [
    0x5b, 0x83, 0x2d, 0xb8, 0xca, 0x26, 0xc2, 0x5b, 0xe1, 0xc5, 0x42, 0xd6, 0xcc, 0xed, 0xdd, 0xa8,
    0xc1, 0x45, 0x61, 0x5c, 0xff, 0x5c, 0x35, 0x72, 0x7f, 0xb3, 0x46, 0x26, 0x10, 0x80, 0x7e, 0x20,
    0xae, 0x53, 0x4d, 0xc3, 0xf6, 0x42, 0x99, 0x19, 0x99, 0x31, 0x77, 0x2e, 0x03, 0x78, 0x7d, 0x18,
    0x15, 0x6e, 0xb3, 0x15, 0x1e, 0x0e, 0xd1, 0xb3, 0x09, 0x8b, 0xdc, 0x84, 0x45, 0x86, 0x18, 0x85,
];

/// The hash of a coin's leaf: SHA-512/256 of a tag twice, the hash of the block that made it, outpoint,
/// height and coinbase mark, amount in satoshi, and script (BIP-182, draft).
///
/// Which coins have leaves the caller knows: not what can never be spent, nor what its own block spends.
pub fn leaf_hash(block: &BlockHash, outpoint: &OutPoint, coin: CoinRef<'_>) -> NodeHash {
    // The tag fills one block of the hash function, whose state behind it is always the same.
    static TAGGED: OnceLock<TaggedHasher> = OnceLock::new();
    let code = coin.height << 1 | u32::from(coin.coinbase);
    // 36 + 4 + 8 bytes, and the script's length.
    let mut head = Vec::with_capacity(48 + 9);
    head.extend_from_slice(&outpoint.txid.0);
    head.extend_from_slice(&outpoint.vout.to_le_bytes());
    head.extend_from_slice(&code.to_le_bytes());
    head.extend_from_slice(&coin.amount.to_le_bytes());
    apus_chain::write_compact_size(&mut head, coin.script.len() as u64);
    NodeHash(TAGGED.get_or_init(tagged).hash(&Message([&block.0, &head, coin.script])))
}

fn tagged() -> TaggedHasher {
    let mut twice = [0; 128];
    twice[..64].copy_from_slice(&TAG);
    twice[64..].copy_from_slice(&TAG);
    TaggedHasher::new(&twice)
}

#[cfg(test)]
mod tests {
    use super::*;
    use sha2::{Digest, Sha512};

    #[test]
    fn the_tag_is_that_of_the_version() {
        assert_eq!(TAG[..], Sha512::digest(b"UtreexoV1")[..]);
    }
}

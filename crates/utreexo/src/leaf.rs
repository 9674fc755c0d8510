//! The leaf of a coin.

use crate::NodeHash;
use apus_chain::{BlockHash, CoinRef, OutPoint};
use ring::digest::{Context, SHA512, SHA512_256, digest};
use std::sync::OnceLock;

/// What tells leaf hashes of this version from all else (BIP-182, draft).
const VERSION: &[u8] = b"UtreexoV1";

/// The hash of a coin's leaf: SHA-512/256 of a tag twice, the hash of the block that made it, outpoint,
/// height and coinbase mark, amount in satoshi, and script (BIP-182, draft).
///
/// Which coins have leaves the caller knows: not what can never be spent, nor what its own block spends.
pub fn leaf_hash(block: &BlockHash, outpoint: &OutPoint, coin: CoinRef<'_>) -> NodeHash {
    // The tag fills one block of the hash function, whose state behind it is always the same.
    static TAGGED: OnceLock<Context> = OnceLock::new();
    let mut hash = TAGGED.get_or_init(tagged).clone();
    let code = coin.height << 1 | u32::from(coin.coinbase);
    hash.update(&block.0);
    hash.update(&outpoint.txid.0);
    hash.update(&outpoint.vout.to_le_bytes());
    hash.update(&code.to_le_bytes());
    hash.update(&coin.amount.to_le_bytes());
    let mut length = Vec::with_capacity(9);
    apus_chain::write_compact_size(&mut length, coin.script.len() as u64);
    hash.update(&length);
    hash.update(coin.script);
    NodeHash::of(&hash.finish())
}

fn tagged() -> Context {
    let (tag, mut hash) = (digest(&SHA512, VERSION), Context::new(&SHA512_256));
    hash.update(tag.as_ref());
    hash.update(tag.as_ref());
    hash
}

//! Leaf hashes: of one coin, and of many at once.

use crate::NodeHash;
use apus_chain::{BlockHash, CoinRef, OutPoint};
use apus_hash::Message;
use apus_hash::sha512_256::TaggedHasher;
use std::sync::OnceLock;

/// SHA-512 of `UtreexoV1`, which separates leaf hashes of this version from all other hashes (BIP-182,
/// draft).
const TAG: [u8; 64] = [
    0x5b, 0x83, 0x2d, 0xb8, 0xca, 0x26, 0xc2, 0x5b, 0xe1, 0xc5, 0x42, 0xd6, 0xcc, 0xed, 0xdd, 0xa8,
    0xc1, 0x45, 0x61, 0x5c, 0xff, 0x5c, 0x35, 0x72, 0x7f, 0xb3, 0x46, 0x26, 0x10, 0x80, 0x7e, 0x20,
    0xae, 0x53, 0x4d, 0xc3, 0xf6, 0x42, 0x99, 0x19, 0x99, 0x31, 0x77, 0x2e, 0x03, 0x78, 0x7d, 0x18,
    0x15, 0x6e, 0xb3, 0x15, 0x1e, 0x0e, 0xd1, 0xb3, 0x09, 0x8b, 0xdc, 0x84, 0x45, 0x86, 0x18, 0x85,
];

/// Computes the hash of a coin's leaf: SHA-512/256 of the tag twice, the hash of the block that created the
/// coin, outpoint, height and coinbase flag, amount in satoshi, and script (BIP-182, draft).
///
/// The caller decides which coins have leaves: unspendable outputs and outputs spent in their own block have
/// none.
pub fn leaf_hash(block: &BlockHash, outpoint: &OutPoint, coin: CoinRef<'_>) -> NodeHash {
    // 36 + 4 + 8 bytes, and at most 9 for the script's length.
    let mut head = Vec::with_capacity(48 + 9);
    write_head(&mut head, outpoint, coin);
    NodeHash(tagged().hash(&Message([&block.0, &head, coin.script])))
}

/// A coin with its outpoint and the block that created it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Leaf<'a> {
    /// Hash of the block that created the coin.
    pub block: &'a BlockHash,
    /// The coin's outpoint.
    pub outpoint: OutPoint,
    /// The coin.
    pub coin: CoinRef<'a>,
}

/// Number of leaves hashed together: few enough that their bytes, some dozens of KiB, stay in the processor's
/// cache.
const TOGETHER: usize = 256;

/// Appends the [hashes](leaf_hash) of leaves, computed in parallel lanes.
pub fn leaf_hashes(leaves: &[Leaf<'_>], out: &mut Vec<NodeHash>) {
    let (mut heads, mut ends) = (Vec::new(), Vec::new());
    out.reserve(leaves.len());
    for leaves in leaves.chunks(TOGETHER) {
        heads.clear();
        ends.clear();
        for leaf in leaves {
            write_head(&mut heads, &leaf.outpoint, leaf.coin);
            ends.push(heads.len());
        }
        let messages = leaves.iter().zip(pieces(&heads, &ends));
        let messages =
            messages.map(|(leaf, head)| Message([&leaf.block.0, head, leaf.coin.script]));
        hash_together(&messages.collect::<Vec<_>>(), out);
    }
}

/// Copies of leaves that arrive one by one, collected to be hashed in parallel lanes.
#[derive(Debug, Default)]
pub struct LeafBatch {
    bytes: Vec<u8>,
    /// Offsets in `bytes` where the leaves end.
    ends: Vec<usize>,
}

impl LeafBatch {
    /// Adds a leaf. Once there are enough, appends the [hashes](leaf_hash) of all collected leaves to `out`,
    /// in the order in which they were added.
    pub fn push(&mut self, leaf: Leaf<'_>, out: &mut Vec<NodeHash>) {
        self.bytes.extend_from_slice(&leaf.block.0);
        write_head(&mut self.bytes, &leaf.outpoint, leaf.coin);
        self.bytes.extend_from_slice(leaf.coin.script);
        self.ends.push(self.bytes.len());
        if self.ends.len() == TOGETHER {
            self.flush(out);
        }
    }

    /// Appends the hashes of the leaves that are not hashed yet.
    pub fn flush(&mut self, out: &mut Vec<NodeHash>) {
        let messages: Vec<Message<'_>> =
            pieces(&self.bytes, &self.ends).map(Message::from).collect();
        hash_together(&messages, out);
        self.bytes.clear();
        self.ends.clear();
    }
}

/// Splits bytes into pieces that end at these offsets.
fn pieces<'b>(bytes: &'b [u8], ends: &'b [usize]) -> impl Iterator<Item = &'b [u8]> {
    let starts = std::iter::once(&0).chain(ends);
    starts.zip(ends).map(|(start, end)| &bytes[*start..*end])
}

/// Appends the hashes of at most [`TOGETHER`] leaves.
fn hash_together(messages: &[Message<'_>], out: &mut Vec<NodeHash>) {
    let mut digests = [[0; 32]; TOGETHER];
    let digests = &mut digests[..messages.len()];
    tagged().many(messages, digests);
    out.extend(digests.iter().copied().map(NodeHash));
}

/// Appends the part of a leaf between the block's hash and the script.
fn write_head(out: &mut Vec<u8>, outpoint: &OutPoint, coin: CoinRef<'_>) {
    let code = coin.height << 1 | u32::from(coin.coinbase);
    out.extend_from_slice(&outpoint.txid.0);
    out.extend_from_slice(&outpoint.vout.to_le_bytes());
    out.extend_from_slice(&code.to_le_bytes());
    out.extend_from_slice(&coin.amount.to_le_bytes());
    apus_chain::write_compact_size(out, coin.script.len() as u64);
}

/// The tag, twice, fills one block of the hash function, so the state after it is constant and computed once.
fn tagged() -> &'static TaggedHasher {
    static TAGGED: OnceLock<TaggedHasher> = OnceLock::new();
    TAGGED.get_or_init(|| {
        let mut twice = [0; 128];
        twice[..64].copy_from_slice(&TAG);
        twice[64..].copy_from_slice(&TAG);
        TaggedHasher::new(&twice)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Txid;
    use proptest::prelude::*;
    use sha2::{Digest, Sha512};

    proptest! {
        #[test]
        fn batches_hash_like_single_leaves(
            scripts in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..300), 0..600),
        ) {
            let blocks: Vec<BlockHash> =
                (0..scripts.len()).map(|index| BlockHash([index as u8; 32])).collect();
            let leaves = scripts.iter().zip(&blocks).enumerate().map(|(index, (script, block))| {
                let txid = Txid([index as u8 ^ 7; 32]);
                let outpoint = OutPoint { txid, vout: index as u32 };
                let (height, coinbase) = (3 * index as u32, index % 3 == 0);
                let coin = CoinRef { height, coinbase, amount: 1 << (index % 50), script };
                Leaf { block, outpoint, coin }
            });
            let leaves: Vec<Leaf<'_>> = leaves.collect();
            let mut found = vec![NodeHash::EMPTY];
            leaf_hashes(&leaves, &mut found);
            let (mut batch, mut batched) = (LeafBatch::default(), vec![NodeHash::EMPTY]);
            for (came, leaf) in (0..).zip(&leaves) {
                prop_assert!(batched.len() > came - came % TOGETHER);
                batch.push(*leaf, &mut batched);
            }
            batch.flush(&mut batched);
            batch.flush(&mut batched);
            prop_assert_eq!(&batched, &found);
            let each = leaves.iter().map(|leaf| leaf_hash(leaf.block, &leaf.outpoint, leaf.coin));
            let each: Vec<NodeHash> = std::iter::once(NodeHash::EMPTY).chain(each).collect();
            prop_assert_eq!(found, each);
        }
    }

    #[test]
    fn the_tag_is_the_hash_of_the_version() {
        assert_eq!(TAG[..], Sha512::digest(b"UtreexoV1")[..]);
    }
}

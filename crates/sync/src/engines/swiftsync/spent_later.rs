//! [`SpentLater`]: the coins spent by blocks above the last proven one.
//!
//! Hints say which coins survive to the block where they stop. To prove the set at a lower block, a sync also
//! needs the coins that exist there and do not survive because the blocks in between spend them. Only those
//! blocks have this information: the outpoints of their inputs, in any order.
//!
//! Only digests are kept, twelve bytes of a keyed hash for each input. The key is chosen by this object, so
//! an attacker cannot make two outpoints with the same digest; if two collide by chance, once in 2^96 for
//! each pair, a spent coin is kept, and the sums do not balance. Most outpoints that are looked up are not in
//! the set: a bitmap filters them out before anything is hashed.

use apus_chain::{BlockBytes, OutPoint};
use apus_hash::sha256;

/// Bits of an outpoint's position in the bitmap. It has 8 MiB, and only touched pages take memory: with two
/// million outpoints, twice a day's worth of full blocks, one outpoint in thirty-two must be hashed.
const TABLE_BITS: u32 = 26;

/// Length of the key in bytes: with an outpoint it fits into one block of SHA-256.
pub const SPENT_LATER_KEY: usize = 16;

/// Length of a digest in bytes.
const DIGEST: usize = 12;

/// The coins that some blocks spend, as digests.
pub struct SpentLater {
    key: [u8; SPENT_LATER_KEY],
    table: Vec<u64>,
    /// Sorted.
    digests: Vec<[u8; DIGEST]>,
}

/// The inputs of one block, in the form for a [`SpentLater`].
pub struct SpentByBlock {
    /// Positions in the bitmap, with digests.
    inputs: Vec<(u32, [u8; DIGEST])>,
}

/// Collects the inputs of blocks, in any order.
pub struct SpentLaterBuilder(SpentLater);

impl SpentLaterBuilder {
    /// Uses a key that the caller keeps secret.
    pub fn new(key: [u8; SPENT_LATER_KEY]) -> Self {
        let table = vec![0; 1 << (TABLE_BITS - u64::BITS.ilog2())];
        Self(SpentLater { key, table, digests: Vec::new() })
    }

    /// Adds the inputs of a block.
    pub fn add(&mut self, block: &SpentByBlock) {
        for (place, digest) in &block.inputs {
            self.0.table[(place / u64::BITS) as usize] |= 1 << (place % u64::BITS);
            self.0.digests.push(*digest);
        }
    }

    /// Finishes after the last block.
    pub fn finish(mut self) -> SpentLater {
        self.0.digests.sort_unstable();
        self.0.digests.shrink_to_fit();
        self.0
    }
}

impl SpentByBlock {
    /// The inputs of a block, for a builder with this key.
    pub fn new(block: &BlockBytes<'_>, key: &[u8; SPENT_LATER_KEY]) -> Self {
        let spending = block.txs().skip(1);
        let inputs = spending.flat_map(|(_, tx)| tx.inputs()).map(|input| {
            let outpoint = input.outpoint();
            (place(outpoint), digest(key, outpoint))
        });
        Self { inputs: inputs.collect() }
    }
}

impl SpentLater {
    /// Whether one of the blocks spends this outpoint.
    pub(super) fn contains(&self, outpoint: &[u8; OutPoint::SIZE]) -> bool {
        let place = place(outpoint);
        let bit = self.table[(place / u64::BITS) as usize] >> (place % u64::BITS) & 1;
        bit == 1 && self.digests.binary_search(&digest(&self.key, outpoint)).is_ok()
    }

    /// Number of the blocks' inputs.
    pub fn len(&self) -> usize {
        self.digests.len()
    }

    /// Whether the blocks spend nothing.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }
}

/// Returns an outpoint's position in the bitmap, computed from bytes of the txid, which is a hash, and the
/// vout, which distinguishes the outputs of one transaction.
fn place(outpoint: &[u8; OutPoint::SIZE]) -> u32 {
    let [a, b, c, d, ..] = *outpoint;
    let [.., e, f, g, h] = *outpoint;
    let vout = u32::from_le_bytes([e, f, g, h]);
    // An odd factor, so that consecutive vouts get different positions.
    let mixed = u32::from_le_bytes([a, b, c, d]) ^ vout.wrapping_mul(0x9e37_79b1);
    mixed >> (u32::BITS - TABLE_BITS)
}

fn digest(key: &[u8; SPENT_LATER_KEY], outpoint: &[u8; OutPoint::SIZE]) -> [u8; DIGEST] {
    let mut message = [0; SPENT_LATER_KEY + OutPoint::SIZE];
    let (front, back) = message.split_at_mut(SPENT_LATER_KEY);
    front.copy_from_slice(key);
    back.copy_from_slice(outpoint);
    let [a, b, c, d, e, f, g, h, i, j, k, l, ..] = sha256(&message);
    [a, b, c, d, e, f, g, h, i, j, k, l]
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::HashSet;

    fn of(inputs: &[[u8; OutPoint::SIZE]], key: &[u8; SPENT_LATER_KEY]) -> SpentByBlock {
        SpentByBlock { inputs: inputs.iter().map(|o| (place(o), digest(key, o))).collect() }
    }

    fn outpoint(txid: u8, vout: u32) -> [u8; OutPoint::SIZE] {
        OutPoint { txid: apus_chain::Txid([txid; 32]), vout }.to_bytes()
    }

    proptest! {
        #[test]
        fn only_spent_outpoints_are_found(
            blocks in prop::collection::vec(prop::collection::vec((0u8..4, 0u32..64), 0..9), 0..6),
            key: [u8; SPENT_LATER_KEY],
        ) {
            let mut builder = SpentLaterBuilder::new(key);
            for block in &blocks {
                let inputs: Vec<_> = block.iter().map(|&(txid, vout)| outpoint(txid, vout)).collect();
                builder.add(&of(&inputs, &key));
            }
            let spent = builder.finish();
            prop_assert_eq!(spent.len(), blocks.iter().flatten().count());
            for txid in 0..4 {
                for vout in 0..64 {
                    let known = blocks.iter().flatten().any(|&input| input == (txid, vout));
                    prop_assert_eq!(spent.contains(&outpoint(txid, vout)), known);
                }
            }
        }
    }

    #[test]
    fn digests_distinguish_entries_of_one_place() {
        let [one, mut other] = [outpoint(1, 7); 2];
        // A byte that the position does not depend on.
        other[20] ^= 1;
        assert_eq!(place(&one), place(&other));
        let key = [3; SPENT_LATER_KEY];
        let mut builder = SpentLaterBuilder::new(key);
        builder.add(&of(&[one], &key));
        let spent = builder.finish();
        assert!(spent.contains(&one) && !spent.contains(&other) && !spent.is_empty());
    }

    #[test]
    fn blocks_that_spend_nothing_are_empty() {
        let key = [3; SPENT_LATER_KEY];
        let mut builder = SpentLaterBuilder::new(key);
        builder.add(&of(&[], &key));
        let spent = builder.finish();
        assert!(spent.is_empty() && !spent.contains(&outpoint(1, 7)));
        assert_eq!(spent.len(), 0);
    }

    /// If outputs of a transaction shared positions, most look-ups would need a hash.
    #[test]
    fn outputs_of_one_transaction_have_different_positions() {
        for txid in [0, 0x55, 0xaa, 0xff] {
            let places: HashSet<u32> = (0..4096).map(|vout| place(&outpoint(txid, vout))).collect();
            assert_eq!(places.len(), 4096, "of transaction {txid}");
        }
    }

    #[test]
    fn neighbours_in_the_table_are_found() {
        // Bits in one word, next to each other.
        let near: Vec<_> = (0..u64::BITS)
            .step_by(3)
            .map(|bit| {
                let mut outpoint = outpoint(5, 0);
                outpoint[..4].copy_from_slice(&(bit << (u32::BITS - TABLE_BITS)).to_le_bytes());
                assert_eq!(place(&outpoint), bit);
                outpoint
            })
            .collect();
        let key = [3; SPENT_LATER_KEY];
        let mut builder = SpentLaterBuilder::new(key);
        builder.add(&of(&near, &key));
        let spent = builder.finish();
        assert!(near.iter().all(|outpoint| spent.contains(outpoint)));
    }

    #[test]
    fn a_digest_depends_on_the_key() {
        let [a, b] = [[1; SPENT_LATER_KEY], [2; SPENT_LATER_KEY]];
        assert_ne!(digest(&a, &outpoint(1, 0)), digest(&b, &outpoint(1, 0)));
    }
}

//! [`SpentLater`]: what blocks above the last one that is proven spend.
//!
//! Hints say which coins survive to the block where they stop. A run that proves the set at a block below
//! needs one thing more: which coins are there and do not survive, because the blocks between spend them.
//! Those blocks alone say it, in any order, by the outpoints of their inputs.
//!
//! Only digests are kept, twelve bytes of a keyed hash for each input. The key is this object's
//! own, so an attacker cannot make two outpoints that share a digest; should two do so by chance,
//! once in 2^96 for each pair, a coin is kept that was spent, and the sums do not balance. Most
//! outpoints that are asked for are none of these: a table of bits sorts them out before anything
//! is hashed.

use apus_chain::{BlockBytes, OutPoint};
use apus_hash::sha256;

/// Of so many bits is an outpoint's place in the table. Eight MiB, of which only what is touched
/// takes memory: with two million outpoints, a day's worth of full blocks twice over, one outpoint of
/// thirty-two has to be hashed.
const TABLE_BITS: u32 = 26;

/// Length of the key in bytes: with an outpoint it fits into one block of SHA-256.
pub const SPENT_LATER_KEY: usize = 16;

/// Length of a digest in bytes.
const DIGEST: usize = 12;

/// See the module.
pub struct SpentLater {
    key: [u8; SPENT_LATER_KEY],
    table: Vec<u64>,
    /// Sorted.
    digests: Vec<[u8; DIGEST]>,
}

/// The inputs of one block, as they go into a [`SpentLater`].
pub struct SpentByBlock {
    /// Places in the table, with digests.
    inputs: Vec<(u32, [u8; DIGEST])>,
}

/// Takes the inputs of blocks, in any order.
pub struct SpentLaterBuilder(SpentLater);

impl SpentLaterBuilder {
    /// Under a key that the caller keeps secret.
    pub fn new(key: [u8; SPENT_LATER_KEY]) -> Self {
        let table = vec![0; 1 << (TABLE_BITS - u64::BITS.ilog2())];
        Self(SpentLater { key, table, digests: Vec::new() })
    }

    /// Adds what a block spends.
    pub fn add(&mut self, block: &SpentByBlock) {
        for (place, digest) in &block.inputs {
            self.0.table[(place / u64::BITS) as usize] |= 1 << (place % u64::BITS);
            self.0.digests.push(*digest);
        }
    }

    /// All was added.
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
    /// Whether one of the blocks spends this.
    pub(super) fn contains(&self, outpoint: &[u8; OutPoint::SIZE]) -> bool {
        let place = place(outpoint);
        let bit = self.table[(place / u64::BITS) as usize] >> (place % u64::BITS) & 1;
        bit == 1 && self.digests.binary_search(&digest(&self.key, outpoint)).is_ok()
    }

    /// How many inputs the blocks have.
    pub fn len(&self) -> usize {
        self.digests.len()
    }

    /// Whether the blocks spend nothing.
    pub fn is_empty(&self) -> bool {
        self.digests.is_empty()
    }
}

/// Bytes of the txid, which is a hash, and the vout, which tells the outputs of one transaction apart.
fn place(outpoint: &[u8; OutPoint::SIZE]) -> u32 {
    let [a, b, c, d, ..] = *outpoint;
    let [.., e, f, g, h] = *outpoint;
    let vout = u32::from_le_bytes([e, f, g, h]);
    // An odd number, so that neighbouring vouts go to different places.
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
        fn what_is_spent_is_found_and_nothing_else(
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
    fn digests_tell_apart_what_shares_a_place() {
        let [one, mut other] = [outpoint(1, 7); 2];
        // No byte of the place.
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

    /// Where they shared some, most of what is asked for would have to be hashed.
    #[test]
    fn outputs_of_one_transaction_have_places_of_their_own() {
        for txid in [0, 0x55, 0xaa, 0xff] {
            let places: HashSet<u32> = (0..4096).map(|vout| place(&outpoint(txid, vout))).collect();
            assert_eq!(places.len(), 4096, "of transaction {txid}");
        }
    }

    #[test]
    fn neighbours_in_the_table_are_found() {
        // Those of one word, whose bits lie side by side.
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

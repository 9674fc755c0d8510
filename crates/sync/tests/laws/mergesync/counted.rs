//! The leaves of a chain and their numbers, by a slow and obvious count.

use crate::swiftsync::harness::{Chain, hash_of, outpoint_of};
use apus_chain::{CoinRef, Height, HeightRange, OutPoint, Reader, read_coin_strict};
use apus_sync::engines::mergesync::{BlockLeafChange, SpentLeaf};
use apus_testkit::chain::coins_of;
use apus_testkit::oracle::forest;
use apus_utreexo::{CompactLeaf, Fragment, LiveLeaf, NodeHash, Spender, leaf_hash};
use bitcoin::{Block, TxIn, TxOut};
use std::collections::{BTreeMap, HashMap};

/// A coin that is there.
struct There {
    leaf: SpentLeaf,
    coinbase: bool,
    output: TxOut,
}

/// What a block does, in the plainest way there is.
struct Counted {
    spent: Vec<(There, TxIn)>,
    added: Vec<NodeHash>,
}

/// Goes through a block's transactions in their order.
fn count(there: &mut HashMap<OutPoint, There>, height: Height, block: &Block) -> Counted {
    // Outputs of the block, with the coins that they are, until it spends them.
    let mut own: Vec<(OutPoint, bool, TxOut)> = Vec::new();
    let mut spent = Vec::new();
    for (at, tx) in block.txdata.iter().enumerate() {
        for input in tx.input.iter().filter(|_| at > 0) {
            let outpoint = outpoint_of(&input.previous_output);
            match own.iter().position(|(own, ..)| *own == outpoint) {
                Some(place) => drop(own.remove(place)),
                None => spent.push((there.remove(&outpoint).unwrap(), input.clone())),
            }
        }
        for (name, output) in coins_of(tx) {
            let script = &output.script_pubkey;
            if !script.is_op_return() && script.len() <= 10_000 {
                own.push((outpoint_of(&name), at == 0, output));
            }
        }
    }
    let mut added = Vec::new();
    for (number, (outpoint, coinbase, output)) in (0..).zip(own) {
        let script = output.script_pubkey.as_bytes();
        let coin = CoinRef { height, coinbase, amount: output.value.to_sat(), script };
        added.push(leaf_hash(&hash_of(block), &outpoint, coin));
        there.insert(outpoint, There { leaf: SpentLeaf { height, number }, coinbase, output });
    }
    Counted { spent, added }
}

/// The leaves that no spend took, each one of its block's leaves, lead to the roots of a forest that adds and deletes.
pub(crate) fn expect_roots(
    chain: &Chain,
    mut added: Vec<(HeightRange, Vec<u8>)>,
    live: &[(u32, OutPoint, Vec<u8>)],
) {
    added.sort_unstable_by_key(|(range, _)| *range);
    let (mut before, mut total) = (vec![0], 0);
    for (range, added) in &added {
        let (counts, rest) = added.as_chunks();
        assert_eq!((before.len(), rest), (range.start as usize, &[][..]));
        for count in counts {
            before.push(total);
            total += u64::from(u32::from_be_bytes(*count));
        }
        assert_eq!(before.len(), range.end as usize);
    }
    let live = live.iter().map(|(number, outpoint, coin)| {
        let coin = read_coin_strict(&mut Reader::new(coin)).unwrap();
        let height = coin.height as usize;
        let block = hash_of(&chain.blocks[height]);
        let hash = leaf_hash(&block, outpoint, coin.as_ref());
        LiveLeaf { place: before[height] + u64::from(*number), hash }
    });
    let mut live: Vec<LiveLeaf> = live.collect();
    live.sort_unstable_by_key(|leaf| leaf.place);
    let mut fragment = Fragment::new(0).unwrap();
    fragment.push_live(total, &live).unwrap();
    let roots = fragment.roots().unwrap();
    let hashes = roots.hashes().iter().map(|hash| hash.0).collect();
    assert_eq!((roots.leaves(), hashes), forest(&chain.blocks));
}

/// The leaves of a chain's first blocks are those of the count.
pub(crate) fn expect_leaves(chain: &Chain, leaves: BTreeMap<Height, Option<BlockLeafChange>>) {
    let mut there = HashMap::new();
    for (height, leaves) in leaves {
        let BlockLeafChange { spent, data, added } = leaves.unwrap();
        let counted = count(&mut there, height, &chain.blocks[height as usize]);
        let places: Vec<SpentLeaf> = counted.spent.iter().map(|(coin, _)| coin.leaf).collect();
        assert_eq!((spent, added), (places, counted.added), "{height}");
        let mut reader = Reader::new(&data);
        for (There { leaf, coinbase, output }, input) in &counted.spent {
            let spender = Spender {
                script_sig: input.script_sig.as_bytes(),
                witness_top: input.witness.last(),
            };
            let read = CompactLeaf::read(&mut reader, &spender).unwrap();
            let coin = read.coin();
            assert_eq!((coin.height, coin.coinbase), (leaf.height, *coinbase));
            assert_eq!(coin.amount, output.value.to_sat());
            assert_eq!(coin.script, output.script_pubkey.as_bytes());
        }
        assert_eq!(reader.remaining(), 0);
    }
}

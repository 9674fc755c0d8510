//! The Utreexo forest, by a library that adds and deletes leaf by leaf.

use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::{Hash, HashEngine, sha512, sha512_256};
use bitcoin::{Block, OutPoint, Script, TxOut};
use rustreexo::mem_forest::MemForest;
use rustreexo::node_hash::BitcoinNodeHash;
use std::collections::{HashMap, HashSet};

/// Leaves that there ever were after these blocks, of which the first is the genesis block, and the roots, highest
/// tree first; empty ones are zeros. Coinbases may repeat those of blocks before. What spends nothing that there
/// is deletes nothing.
pub fn forest(blocks: &[Block]) -> (u64, Vec<[u8; 32]>) {
    let mut forest = MemForest::<BitcoinNodeHash>::new();
    let (mut leaves, mut leaf_of) = (0, HashMap::<OutPoint, BitcoinNodeHash>::new());
    for (height, block) in (1..).zip(blocks.iter().skip(1)) {
        let spent: Vec<OutPoint> = block.txdata[1..]
            .iter()
            .flat_map(|tx| &tx.input)
            .map(|it| it.previous_output)
            .collect();
        let own: HashSet<_> = block.txdata.iter().map(|tx| tx.compute_txid()).collect();
        let (own, below): (Vec<_>, Vec<_>) = spent.iter().partition(|it| own.contains(&it.txid));
        let deleted: Vec<_> = below.into_iter().filter_map(|it| leaf_of.remove(it)).collect();
        let mut added = Vec::new();
        for (place, tx) in block.txdata.iter().enumerate() {
            let txid = tx.compute_txid();
            for (vout, output) in (0..).zip(&tx.output) {
                let outpoint = OutPoint { txid, vout };
                if may_be_spent(&output.script_pubkey) && !own.contains(&&outpoint) {
                    let leaf = leaf(block, &outpoint, height << 1 | u32::from(place == 0), output);
                    leaf_of.insert(outpoint, leaf);
                    added.push(leaf);
                }
            }
        }
        forest.modify(&added, &deleted).unwrap();
        leaves += added.len() as u64;
    }
    let root = |root: &BitcoinNodeHash| match root {
        BitcoinNodeHash::Empty => [0; 32],
        root => **root,
    };
    (leaves, forest.get_roots().iter().map(|node| root(&node.get_data())).collect())
}

fn may_be_spent(script: &Script) -> bool {
    !script.is_op_return() && script.len() <= 10_000
}

/// The leaf of an output (BIP-182, draft).
fn leaf(block: &Block, outpoint: &OutPoint, code: u32, output: &TxOut) -> BitcoinNodeHash {
    let tag = sha512::Hash::hash(b"UtreexoV1");
    let mut hash = sha512_256::Hash::engine();
    hash.input(tag.as_byte_array());
    hash.input(tag.as_byte_array());
    hash.input(block.block_hash().as_byte_array());
    hash.input(&serialize(outpoint));
    hash.input(&code.to_le_bytes());
    hash.input(&serialize(output));
    BitcoinNodeHash::from(sha512_256::Hash::from_engine(hash).to_byte_array())
}

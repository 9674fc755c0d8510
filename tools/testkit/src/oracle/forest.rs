//! The Utreexo forest and its proofs, from a library that adds and deletes leaf by leaf.

use bitcoin::consensus::encode::serialize;
use bitcoin::hashes::{Hash, HashEngine, sha512, sha512_256};
use bitcoin::{Block, OutPoint, Script, TxOut};
use rustreexo::mem_forest::MemForest;
use rustreexo::node_hash::BitcoinNodeHash;
use std::collections::{HashMap, HashSet};

/// Returns the number of leaves ever added by these blocks, from the genesis block on, and the
/// roots, highest tree first; empty roots are zeros. Coinbases may repeat earlier ones. A spend of a missing
/// output deletes nothing.
pub fn forest(blocks: &[Block]) -> (u64, Vec<[u8; 32]>) {
    let mut model = Model::new();
    for (height, block) in (1..).zip(blocks.iter().skip(1)) {
        let (added, spent) = model.leaves_of(height, block);
        model.change(&added, &spent);
    }
    (model.leaves, model.roots())
}

/// The effect of a block on the forest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct BlockProof {
    /// Positions of the leaves that it spends, in the order of its inputs.
    pub targets: Vec<u64>,
    /// The further hashes needed to compute the roots before it.
    pub hashes: Vec<[u8; 32]>,
    /// The leaves that it spends, in the order of its inputs.
    pub spent: Vec<[u8; 32]>,
    /// The leaves that it adds.
    pub added: Vec<[u8; 32]>,
    /// Number of leaves ever added, after it.
    pub leaves: u64,
    /// The roots after it, highest tree first; empty roots are zeros.
    pub roots: Vec<[u8; 32]>,
}

/// Returns the effect of each of these blocks except for the first, the genesis block. The blocks must be
/// valid; coinbases may repeat earlier ones.
pub fn proofs(blocks: &[Block]) -> Vec<BlockProof> {
    let mut model = Model::new();
    let prove = |(height, block): (u32, &Block)| {
        let (added, spent) = model.leaves_of(height, block);
        let proof = model.forest.prove(&spent).unwrap();
        model.change(&added, &spent);
        let bytes = |nodes: &[BitcoinNodeHash]| nodes.iter().map(|node| **node).collect();
        BlockProof {
            targets: proof.targets,
            hashes: bytes(&proof.hashes),
            spent: bytes(&spent),
            added: bytes(&added),
            leaves: model.leaves,
            roots: model.roots(),
        }
    };
    (1..).zip(blocks.iter().skip(1)).map(prove).collect()
}

struct Model {
    forest: MemForest<BitcoinNodeHash>,
    leaves: u64,
    leaf_of: HashMap<OutPoint, BitcoinNodeHash>,
}

type Nodes = Vec<BitcoinNodeHash>;

impl Model {
    fn new() -> Self {
        Self { forest: MemForest::new(), leaves: 0, leaf_of: HashMap::new() }
    }

    /// Returns the leaves that a block adds, and the leaves that it spends.
    fn leaves_of(&mut self, height: u32, block: &Block) -> (Nodes, Nodes) {
        let spent: Vec<OutPoint> = block.txdata[1..]
            .iter()
            .flat_map(|tx| &tx.input)
            .map(|it| it.previous_output)
            .collect();
        let own: HashSet<_> = block.txdata.iter().map(|tx| tx.compute_txid()).collect();
        let (own, below): (Vec<_>, Vec<_>) = spent.iter().partition(|it| own.contains(&it.txid));
        let deleted = below.into_iter().filter_map(|it| self.leaf_of.remove(it)).collect();
        let mut added = Vec::new();
        for (place, tx) in block.txdata.iter().enumerate() {
            let txid = tx.compute_txid();
            for (vout, output) in (0..).zip(&tx.output) {
                let outpoint = OutPoint { txid, vout };
                if may_be_spent(&output.script_pubkey) && !own.contains(&&outpoint) {
                    let leaf = leaf(block, &outpoint, height << 1 | u32::from(place == 0), output);
                    self.leaf_of.insert(outpoint, leaf);
                    added.push(leaf);
                }
            }
        }
        (added, deleted)
    }

    fn change(&mut self, added: &[BitcoinNodeHash], spent: &[BitcoinNodeHash]) {
        self.forest.modify(added, spent).unwrap();
        self.leaves += added.len() as u64;
    }

    fn roots(&self) -> Vec<[u8; 32]> {
        let root = |root: &BitcoinNodeHash| match root {
            BitcoinNodeHash::Empty => [0; 32],
            root => **root,
        };
        self.forest.get_roots().iter().map(|node| root(&node.get_data())).collect()
    }
}

fn may_be_spent(script: &Script) -> bool {
    !script.is_op_return() && script.len() <= 10_000
}

/// Computes the leaf of an output (BIP-182, draft).
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

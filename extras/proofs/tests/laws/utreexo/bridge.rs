//! The data that a bridge with all leaves provides for a chain: an entry for each block, and the roots
//! between blocks.
//!
//! The data are computed in the simplest way, from another library's blocks.

use apus_chain::{BlockHash, CoinRef, OutPoint, Txid};
use apus_utreexo::{
    Forest, NodeHash, PageId, Pages, Proof, Roots, Spender, leaf_hash, write_compact_leaf,
};
use bitcoin::hashes::Hash;
use bitcoin::{Block, Transaction, TxIn};
use std::collections::{HashMap, HashSet};
use std::convert::Infallible;

/// A coin and the number of its leaf.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ProofCoin {
    pub(crate) leaf: u64,
    pub(crate) height: u32,
    pub(crate) coinbase: bool,
    pub(crate) amount: u64,
    pub(crate) script: Vec<u8>,
}

/// The entry of a block, in parts.
#[derive(Clone, Debug, Default)]
pub(crate) struct Entry {
    pub(crate) proof: Proof,
    /// The spent coins, with the inputs that spend them.
    pub(crate) coins: Vec<(TxIn, ProofCoin)>,
}

/// The data of a chain. Both lists begin with the genesis block.
#[derive(Clone)]
pub(crate) struct ProofData {
    pub(crate) entries: Vec<Entry>,
    /// The roots after each block.
    pub(crate) roots: Vec<Roots>,
}

impl Entry {
    pub(crate) fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        self.proof.write(&mut out);
        for (input, coin) in &self.coins {
            let spender = Spender {
                script_sig: input.script_sig.as_bytes(),
                witness_top: input.witness.last(),
            };
            write_compact_leaf(&mut out, coin.borrowed(), &spender).unwrap();
        }
        out
    }
}

impl ProofCoin {
    fn borrowed(&self) -> CoinRef<'_> {
        let Self { height, coinbase, amount, script, .. } = self;
        CoinRef { height: *height, coinbase: *coinbase, amount: *amount, script }
    }
}

/// An empty store: changed pages stay in the forest's memory, so it reads none.
struct NoPages;

impl Pages for NoPages {
    type Error = Infallible;

    fn read(&self, _: PageId, _: &mut Vec<u8>) -> Result<bool, Infallible> {
        Ok(false)
    }
}

/// Makes the data of a chain that begins with the genesis block. If an input spends a missing output, the
/// entry has no coin for it or for the inputs after it in the block.
pub(crate) fn proofs_of(blocks: &[Block]) -> ProofData {
    proofs_with_lie(blocks, None)
}

/// A fake coin, its outpoint, and the block before which it enters the forest.
pub(crate) type Lie = (u32, bitcoin::OutPoint, ProofCoin);

/// Makes the data of a chain, optionally with a fake coin in the forest.
pub(crate) fn proofs_with_lie(blocks: &[Block], lie: Option<Lie>) -> ProofData {
    let mut forest = Forest::open(NoPages, Roots::default(), 1 << 30);
    let mut coins: HashMap<bitcoin::OutPoint, ProofCoin> = HashMap::new();
    let mut data = ProofData { entries: vec![Entry::default()], roots: vec![Roots::default()] };
    for (height, block) in (0..).zip(blocks).skip(1) {
        if let Some((_, name, coin)) = lie.as_ref().filter(|(before, ..)| *before == height) {
            let made_by = BlockHash(blocks[coin.height as usize].block_hash().to_byte_array());
            let leaf = leaf_hash(&made_by, &outpoint(name), coin.borrowed());
            coins.insert(*name, ProofCoin { leaf: forest.leaves(), ..coin.clone() });
            forest.block(&[], &[leaf]).unwrap();
            // The range that begins with this block starts with the fake roots.
            data.roots[height as usize - 1] = forest.roots().clone();
        }
        let (own, spent) = spends(block);
        let mut entry = Entry::default();
        for input in spent {
            let Some(coin) = coins.remove(&input.previous_output) else { break };
            entry.coins.push((input.clone(), coin));
        }
        let added = leaves(height, block, &own, forest.leaves(), &mut coins);
        let deleted: Vec<u64> = entry.coins.iter().map(|(_, coin)| coin.leaf).collect();
        entry.proof = forest.block(&deleted, &added).unwrap();
        data.entries.push(entry);
        data.roots.push(forest.roots().clone());
    }
    data
}

fn outpoint(name: &bitcoin::OutPoint) -> OutPoint {
    OutPoint { txid: Txid(name.txid.to_byte_array()), vout: name.vout }
}

/// A block's own outputs that it spends, and its other inputs.
fn spends(block: &Block) -> (HashSet<bitcoin::OutPoint>, Vec<&TxIn>) {
    let (mut earlier, mut own, mut spent) = (HashSet::new(), HashSet::new(), Vec::new());
    for (place, tx) in block.txdata.iter().enumerate() {
        for input in tx.input.iter().filter(|_| place > 0) {
            match earlier.contains(&input.previous_output.txid) {
                true => drop(own.insert(input.previous_output)),
                false => spent.push(input),
            }
        }
        earlier.insert(tx.compute_txid());
    }
    (own, spent)
}

/// The leaves that a block adds after the existing ones.
fn leaves(
    height: u32,
    block: &Block,
    own: &HashSet<bitcoin::OutPoint>,
    first: u64,
    coins: &mut HashMap<bitcoin::OutPoint, ProofCoin>,
) -> Vec<NodeHash> {
    let hash = BlockHash(block.block_hash().to_byte_array());
    let mut added = Vec::new();
    for (place, tx) in block.txdata.iter().enumerate() {
        for (name, coin) in made(height, tx, place == 0) {
            if own.contains(&name) {
                continue;
            }
            let coin = ProofCoin { leaf: first + added.len() as u64, ..coin };
            added.push(leaf_hash(&hash, &outpoint(&name), coin.borrowed()));
            coins.insert(name, coin);
        }
    }
    added
}

fn made(height: u32, tx: &Transaction, coinbase: bool) -> Vec<(bitcoin::OutPoint, ProofCoin)> {
    let txid = tx.compute_txid();
    let outputs = (0..).zip(&tx.output).filter(|(_, output)| {
        let script = output.script_pubkey.as_bytes();
        script.first() != Some(&0x6a) && script.len() <= 10_000
    });
    let coin = |(vout, output): (u32, &bitcoin::TxOut)| {
        let (amount, script) = (output.value.to_sat(), output.script_pubkey.to_bytes());
        (bitcoin::OutPoint { txid, vout }, ProofCoin { leaf: 0, height, coinbase, amount, script })
    };
    outputs.map(coin).collect()
}

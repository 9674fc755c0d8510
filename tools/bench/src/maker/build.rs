//! [`Builder`]: makes blocks from plans, on several threads.
//!
//! It makes transactions in layers: a transaction spends nothing from its own or a later layer of its block,
//! so all ids that it refers to are known. The result does not depend on the assignment to threads.

use super::keys::Keyring;
use super::plan::PlannedBlock;
use super::tx::{output_of, written};
use apus_chain::{
    BlockHash, Header, Height, MerkleRoot, MerkleScratch, Network, Params, check_proof_of_work,
    height_push, merkle_root, write_compact_size,
};
use apus_hash::sha256d;
use apus_testkit::rng::Rng;
use bitcoin::absolute::LockTime;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::transaction::Version;
use bitcoin::{Amount, ScriptBuf, Transaction, TxIn, TxOut, Witness};
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seconds from one block to the next.
const SPACING_SECONDS: u32 = 600;
/// Version bits without a meaning (BIP-9).
const VERSION: i32 = 0x2000_0000;
/// Transactions per unit of work of a thread.
const GROUP: usize = 32;

/// A block, and its hash.
pub(super) struct BuiltBlock {
    pub(super) height: Height,
    pub(super) hash: BlockHash,
    pub(super) bytes: Vec<u8>,
}

/// Builds the blocks of a chain in order.
pub(super) struct Builder<'a> {
    keys: &'a Keyring,
    seed: u64,
    threads: usize,
    /// Ids of transactions by slot.
    txids: Vec<[u8; 32]>,
    parent: Header,
    parent_hash: BlockHash,
    scratch: MerkleScratch,
}

/// A transaction, and its ids.
#[derive(Clone, Default)]
struct BuiltTx {
    bytes: Vec<u8>,
    txid: [u8; 32],
    wtxid: [u8; 32],
}

impl From<Transaction> for BuiltTx {
    fn from(tx: Transaction) -> Self {
        let (txid, wtxid) = (tx.compute_txid(), tx.compute_wtxid());
        let (txid, wtxid) = (txid.to_byte_array(), wtxid.to_byte_array());
        Self { bytes: serialize(&tx), txid, wtxid }
    }
}

impl<'a> Builder<'a> {
    pub(super) fn new(keys: &'a Keyring, seed: u64, threads: usize) -> Self {
        let params = Params::of(Network::Regtest);
        Self {
            keys,
            seed,
            threads: threads.max(1),
            txids: Vec::new(),
            parent: params.genesis_header,
            parent_hash: params.genesis_hash,
            scratch: MerkleScratch::default(),
        }
    }

    pub(super) fn build(&mut self, plan: &PlannedBlock) -> BuiltBlock {
        self.txids.resize(plan.slots, [0; 32]);
        let mut txs = vec![BuiltTx::default(); plan.txs.len()];
        for layer in layers(plan) {
            for (place, tx) in self.layer(plan, &layer) {
                self.txids[plan.txs[place as usize].slot as usize] = tx.txid;
                txs[place as usize] = tx;
            }
        }
        let ids = |coinbase, of: fn(&BuiltTx) -> [u8; 32]| {
            std::iter::once(coinbase).chain(txs.iter().map(of)).collect::<Vec<[u8; 32]>>()
        };
        let commitment = (!txs.is_empty()).then(|| {
            // The coinbase counts as zeros (BIP-141).
            let root = merkle_root(&ids([0; 32], |tx| tx.wtxid), &mut self.scratch).root;
            sha256d(&[root, [0; 32]].concat())
        });
        let coinbase = BuiltTx::from(coinbase(self.keys, plan, commitment));
        self.txids[plan.coinbase_slot as usize] = coinbase.txid;
        let root = merkle_root(&ids(coinbase.txid, |tx| tx.txid), &mut self.scratch).root;
        let (header, hash) = self.mine(MerkleRoot(root));
        let mut bytes = header.to_bytes().to_vec();
        write_compact_size(&mut bytes, txs.len() as u64 + 1);
        bytes.extend(coinbase.bytes);
        txs.iter().for_each(|tx| bytes.extend_from_slice(&tx.bytes));
        BuiltBlock { height: plan.height, hash, bytes }
    }

    /// Makes the transactions of a layer, with their places, in no particular order.
    fn layer(&self, plan: &PlannedBlock, places: &[u32]) -> Vec<(u32, BuiltTx)> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut made = Vec::new();
            while let Some(places) = places.chunks(GROUP).nth(next.fetch_add(1, Ordering::Relaxed))
            {
                made.extend(places.iter().map(|&place| (place, self.transaction(plan, place))));
            }
            made
        };
        let helpers = places.len().div_ceil(GROUP).min(self.threads).saturating_sub(1);
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(work)).collect();
            let mut made = work();
            for helper in helpers {
                made.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            made
        })
    }

    fn transaction(&self, plan: &PlannedBlock, place: u32) -> BuiltTx {
        let seed = self.seed ^ (u64::from(plan.height) << 32);
        let mut filler = Rng::at(seed, !u64::from(place));
        written(&plan.txs[place as usize], self.keys, &self.txids, &mut filler).into()
    }

    /// The header of the next block, with a nonce that satisfies the target.
    fn mine(&mut self, merkle_root: MerkleRoot) -> (Header, BlockHash) {
        let params = Params::of(Network::Regtest);
        let mut header = Header {
            version: VERSION,
            prev: self.parent_hash,
            merkle_root,
            time: self.parent.time + SPACING_SECONDS,
            bits: params.genesis_header.bits,
            nonce: 0,
        };
        while !check_proof_of_work(&header.hash(), header.bits, params.pow_limit) {
            header.nonce += 1;
        }
        let hash = header.hash();
        (self.parent, self.parent_hash) = (header, hash);
        (header, hash)
    }
}

/// The places of a block's transactions by layer.
fn layers(plan: &PlannedBlock) -> Vec<Vec<u32>> {
    let mut layers: Vec<Vec<u32>> = Vec::new();
    for (place, tx) in (0..).zip(&plan.txs) {
        let layer = tx.layer as usize;
        if layers.len() <= layer {
            layers.resize(layer + 1, Vec::new());
        }
        layers[layer].push(place);
    }
    layers
}

/// A coinbase. Its script is the height (BIP-34) and one more byte, because the minimum length is two.
fn coinbase(keys: &Keyring, plan: &PlannedBlock, commitment: Option<[u8; 32]>) -> Transaction {
    let (height, len) = height_push(plan.height);
    let script_sig = ScriptBuf::from_bytes([&height[..len], &[0]].concat());
    let mut input = TxIn { script_sig, ..TxIn::default() };
    let mut output: Vec<TxOut> = plan.coinbase.iter().map(|it| output_of(keys, it)).collect();
    if let Some(commitment) = commitment {
        // The reserved value in the commitment (BIP-141).
        input.witness = Witness::from_slice(&[[0; 32]]);
        let script = [&[0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed][..], &commitment].concat();
        output.push(TxOut { value: Amount::ZERO, script_pubkey: ScriptBuf::from_bytes(script) });
    }
    Transaction { version: Version::TWO, lock_time: LockTime::ZERO, input: vec![input], output }
}

//! [`Builder`]: makes blocks from plans, on several threads.
//!
//! It makes transactions in layers: a transaction spends nothing from its own or a later layer of its block,
//! so all ids that it refers to are known. The result does not depend on the assignment to threads.

use super::coins::BlockIds;
use super::dummy::{TxSpan, dummy};
use super::keys::Keyring;
use super::plan::PlannedBlock;
use super::tx::{output_of, written};
use apus_chain::{
    BlockHash, HEADER_SIZE, Header, Height, MerkleRoot, MerkleScratch, Network, Params,
    check_proof_of_work, height_push, merkle_root, write_compact_size,
};
use apus_hash::{Message, sha256d, sha256d_many};
use apus_testkit::rng::Rng;
use bitcoin::absolute::LockTime;
use bitcoin::consensus::Encodable;
use bitcoin::transaction::Version;
use bitcoin::{Amount, ScriptBuf, Transaction, TxIn, TxOut, Witness};
use parking_lot::Mutex;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Version bits without a meaning (BIP-9).
const VERSION: i32 = 0x2000_0000;
/// Transactions per unit of work of a thread. They are hashed together.
const GROUP: usize = 64;

/// A block, and its hash.
#[derive(Debug, Clone)]
pub(super) struct BuiltBlock {
    pub(super) height: Height,
    pub(super) hash: BlockHash,
    pub(super) bytes: Vec<u8>,
    /// Its transactions, the coinbase first.
    pub(super) txs: Vec<TxSpan>,
    /// The transactions' ids, the coinbase's first.
    ids: Vec<[u8; 32]>,
}

impl BuiltBlock {
    pub(super) fn header(&self) -> &[u8] {
        &self.bytes[..HEADER_SIZE]
    }

    /// The block without witnesses.
    pub(super) fn stripped(&self) -> Vec<u8> {
        let head = self.txs.first().map_or(HEADER_SIZE, |tx| tx.start);
        let mut out = Vec::with_capacity(self.bytes.len());
        out.extend_from_slice(&self.bytes[..head]);
        for tx in &self.txs {
            tx.stripped(&self.bytes).iter().for_each(|piece| out.extend_from_slice(piece));
        }
        out
    }

    /// The ids of its transactions.
    pub(super) fn ids(&self) -> BlockIds<'_> {
        BlockIds { coinbase: self.ids[0], txs: &self.ids[1..] }
    }
}

/// Builds the blocks of a chain in order.
pub(super) struct Builder<'a> {
    keys: &'a Keyring,
    seed: u64,
    spacing: u32,
    threads: usize,
    parent: Header,
    parent_hash: BlockHash,
    scratch: MerkleScratch,
    /// Memory of earlier blocks.
    spare: Mutex<Vec<TxGroup>>,
}

/// Some transactions of a block, with their places in it.
#[derive(Default)]
struct TxGroup {
    bytes: Vec<u8>,
    places: Vec<u32>,
    spans: Vec<TxSpan>,
    ids: Vec<[u8; 32]>,
    witness_ids: Vec<[u8; 32]>,
}

impl TxGroup {
    /// Empties it, and keeps its memory.
    fn clear(&mut self) {
        self.bytes.clear();
        self.places.clear();
        self.spans.clear();
        self.ids.clear();
        self.witness_ids.clear();
    }

    /// Computes the ids, and those with the witness if wanted, several at once.
    fn hash(&mut self, with_witness: bool) {
        let bytes = &self.bytes[..];
        let stripped: Vec<Message<'_>> =
            self.spans.iter().map(|span| Message(span.stripped(bytes))).collect();
        self.ids.resize(stripped.len(), [0; 32]);
        sha256d_many(&stripped, &mut self.ids);
        if !with_witness {
            return;
        }
        let with: Vec<usize> =
            (0..self.spans.len()).filter(|&number| self.spans[number].has_witness()).collect();
        let whole = |&number: &usize| &bytes[self.spans[number].start..self.spans[number].end];
        let messages: Vec<Message<'_>> = with.iter().map(|it| Message::from(whole(it))).collect();
        let mut found = vec![[0; 32]; with.len()];
        sha256d_many(&messages, &mut found);
        // Without a witness, both ids are the same.
        self.witness_ids.extend_from_slice(&self.ids);
        with.iter().zip(found).for_each(|(&number, id)| self.witness_ids[number] = id);
    }
}

/// Where a transaction is: its group, and its number in it.
type Made = (u32, u32);

impl<'a> Builder<'a> {
    /// A builder whose blocks come every `spacing` seconds.
    pub(super) fn new(keys: &'a Keyring, seed: u64, spacing: u32, threads: usize) -> Self {
        let params = Params::of(Network::Regtest);
        Self {
            keys,
            seed,
            spacing,
            threads: threads.max(1),
            parent: params.genesis_header,
            parent_hash: params.genesis_hash,
            scratch: MerkleScratch::default(),
            spare: Mutex::default(),
        }
    }

    pub(super) fn build(&mut self, plan: &PlannedBlock) -> BuiltBlock {
        // The first id and the first witness id are the coinbase's, which is made last.
        let mut ids = vec![[0; 32]; plan.txs.len() + 1];
        let mut witness_ids = if plan.commits { ids.clone() } else { Vec::new() };
        let mut groups: Vec<TxGroup> = Vec::new();
        let mut made: Vec<Made> = vec![(0, 0); plan.txs.len()];
        for layer in layers(plan) {
            for group in self.layer(plan, &layer, &ids[1..]) {
                for (number, &place) in (0..).zip(&group.places) {
                    made[place as usize] = (groups.len() as u32, number);
                    ids[place as usize + 1] = group.ids[number as usize];
                    if plan.commits {
                        witness_ids[place as usize + 1] = group.witness_ids[number as usize];
                    }
                }
                groups.push(group);
            }
        }
        let commitment = plan.commits.then(|| {
            // The coinbase counts as zeros (BIP-141).
            let root = merkle_root(&witness_ids, &mut self.scratch).root;
            sha256d(&[root, [0; 32]].concat())
        });
        let coinbase = coinbase(self.keys, plan, commitment);
        let all = groups.iter().map(|group| group.bytes.len()).sum::<usize>();
        let mut bytes = Vec::with_capacity(all + coinbase.total_size() + HEADER_SIZE + 9);
        bytes.resize(HEADER_SIZE, 0);
        write_compact_size(&mut bytes, plan.txs.len() as u64 + 1);
        let mut txs = Vec::with_capacity(plan.txs.len() + 1);
        let first = encoded(&coinbase, &mut bytes);
        ids[0] = sha256d(&first.stripped(&bytes).concat());
        txs.push(first);
        for (group, number) in made {
            let (group, number) = (&groups[group as usize], number as usize);
            let span = group.spans[number];
            txs.push(span.moved(span.start, bytes.len()));
            bytes.extend_from_slice(&group.bytes[span.start..span.end]);
        }
        groups.iter_mut().for_each(TxGroup::clear);
        self.spare.get_mut().append(&mut groups);
        let root = merkle_root(&ids, &mut self.scratch).root;
        let (header, hash) = self.mine(MerkleRoot(root));
        bytes[..HEADER_SIZE].copy_from_slice(&header.to_bytes());
        BuiltBlock { height: plan.height, hash, bytes, txs, ids }
    }

    /// Makes the transactions of a layer, in no particular order.
    fn layer(&self, plan: &PlannedBlock, places: &[u32], ids: &[[u8; 32]]) -> Vec<TxGroup> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut made = Vec::new();
            while let Some(places) = places.chunks(GROUP).nth(next.fetch_add(1, Ordering::Relaxed))
            {
                made.push(self.group(plan, places, ids));
            }
            made
        };
        let helpers = places.len().div_ceil(GROUP).min(self.threads).saturating_sub(1);
        if helpers == 0 {
            return work();
        }
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(work)).collect();
            let mut made = work();
            for helper in helpers {
                made.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            made
        })
    }

    fn group(&self, plan: &PlannedBlock, places: &[u32], ids: &[[u8; 32]]) -> TxGroup {
        let mut group = self.spare.lock().pop().unwrap_or_default();
        group.places.extend_from_slice(places);
        let seed = self.seed ^ (u64::from(plan.height) << 32);
        let mut witness = Vec::new();
        for &place in places {
            let tx = &plan.txs[place as usize];
            let mut filler = Rng::at(seed, !u64::from(place));
            let bytes = &mut group.bytes;
            group.spans.push(match self.keys.is_signed() {
                true => encoded(&written(tx, self.keys, ids, &mut filler), bytes),
                false => dummy(tx, self.keys, ids, &mut filler, &mut witness, bytes),
            });
        }
        group.hash(plan.commits);
        group
    }

    /// The header of the next block, with a nonce that satisfies the target.
    fn mine(&mut self, merkle_root: MerkleRoot) -> (Header, BlockHash) {
        let params = Params::of(Network::Regtest);
        let mut header = Header {
            version: VERSION,
            prev: self.parent_hash,
            merkle_root,
            time: self.parent.time + self.spacing,
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

/// Appends a transaction.
fn encoded(tx: &Transaction, out: &mut Vec<u8>) -> TxSpan {
    let start = out.len();
    tx.consensus_encode(out).expect("memory never refuses bytes");
    let has_witness = tx.input.iter().any(|input| !input.witness.is_empty());
    let from = start + if has_witness { 6 } else { 4 };
    TxSpan { start, end: out.len(), body: (from, from + tx.base_size() - 8) }
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

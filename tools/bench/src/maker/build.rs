//! [`Builder`]: makes blocks of plans, on several threads.
//!
//! Transactions are made in layers: those of one layer spend nothing that is made in the same or
//! a later layer of their block, so that all ids they name are known. Which thread makes which
//! changes nothing.

use super::keys::Keyring;
use super::plan::PlannedBlock;
use super::tx::{TxWriter, WrittenTx, write_compact, write_output};
use apus_chain::{
    BlockHash, Header, Height, MerkleRoot, MerkleScratch, Network, OP_RETURN, Params,
    check_proof_of_work, height_push, merkle_root,
};
use apus_hash::{Message, sha256d, sha256d_many};
use apus_testkit::rng::Rng;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Seconds from one block to the next.
const SPACING_SECONDS: u32 = 600;
/// Version bits without a meaning (BIP-9).
const VERSION: i32 = 0x2000_0000;
/// Transactions that a thread makes before it takes more.
const GROUP: usize = 32;

/// A block, and its name.
pub(super) struct BuiltBlock {
    pub(super) height: Height,
    pub(super) hash: BlockHash,
    pub(super) bytes: Vec<u8>,
}

/// Makes one block after the other.
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

/// Transactions made by one thread in one go.
struct TxGroup {
    /// Where they are in the block, the coinbase left out.
    places: Vec<u32>,
    bytes: Vec<u8>,
    written: Vec<WrittenTx>,
    txids: Vec<[u8; 32]>,
    wtxids: Vec<[u8; 32]>,
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
        let mut groups: Vec<TxGroup> = Vec::new();
        for layer in layers(plan) {
            let made = self.layer(plan, &layer);
            for group in &made {
                for (place, txid) in group.places.iter().zip(&group.txids) {
                    self.txids[plan.txs[*place as usize].slot as usize] = *txid;
                }
            }
            groups.extend(made);
        }
        // Where each transaction is: its group, and its number there.
        let mut at = vec![(0, 0); plan.txs.len()];
        for (number, group) in groups.iter().enumerate() {
            for (entry, place) in group.places.iter().enumerate() {
                at[*place as usize] = (number, entry);
            }
        }
        let ids = |of: fn(&TxGroup) -> &[[u8; 32]], coinbase| {
            let rest = at.iter().map(|&(group, entry)| of(&groups[group])[entry]);
            std::iter::once(coinbase).chain(rest).collect::<Vec<[u8; 32]>>()
        };
        let commitment = (!plan.txs.is_empty()).then(|| {
            // The coinbase counts as zeros (BIP-141).
            let wtxids = ids(|group| &group.wtxids, [0; 32]);
            let root = merkle_root(&wtxids, &mut self.scratch).root;
            sha256d(&[root, [0; 32]].concat())
        });
        let (coinbase, txid) = coinbase(self.keys, plan, commitment);
        self.txids[plan.coinbase_slot as usize] = txid;
        let root = merkle_root(&ids(|group| &group.txids, txid), &mut self.scratch).root;
        let (header, hash) = self.mine(MerkleRoot(root));
        let size: usize = groups.iter().map(|group| group.bytes.len()).sum();
        let mut bytes = Vec::with_capacity(Header::SIZE + 3 + coinbase.len() + size);
        bytes.extend(header.to_bytes());
        write_compact(&mut bytes, plan.txs.len() + 1);
        bytes.extend(coinbase);
        for (group, entry) in at {
            let TxGroup { bytes: made, written, .. } = &groups[group];
            bytes.extend_from_slice(&made[written[entry].whole.clone()]);
        }
        BuiltBlock { height: plan.height, hash, bytes }
    }

    /// Makes the transactions of a layer. In which order groups come back is chance.
    fn layer(&self, plan: &PlannedBlock, places: &[u32]) -> Vec<TxGroup> {
        let next = AtomicUsize::new(0);
        let work = || {
            let mut writer = TxWriter::new(self.keys, &self.txids);
            let mut groups = Vec::new();
            while let Some(places) = places.chunks(GROUP).nth(next.fetch_add(1, Ordering::Relaxed))
            {
                groups.push(self.group(&mut writer, plan, places));
            }
            groups
        };
        let helpers = places.len().div_ceil(GROUP).min(self.threads).saturating_sub(1);
        std::thread::scope(|scope| {
            let helpers: Vec<_> = (0..helpers).map(|_| scope.spawn(work)).collect();
            let mut groups = work();
            for helper in helpers {
                groups.extend(helper.join().unwrap_or_else(|panic| resume_unwind(panic)));
            }
            groups
        })
    }

    fn group(&self, writer: &mut TxWriter<'_>, plan: &PlannedBlock, places: &[u32]) -> TxGroup {
        let mut bytes = Vec::with_capacity(GROUP * 512);
        let seed = self.seed ^ (u64::from(plan.height) << 32);
        let write = |&place: &u32| {
            let mut filler = Rng::at(seed, !u64::from(place));
            writer.write(&plan.txs[place as usize], &mut filler, &mut bytes)
        };
        let written: Vec<WrittenTx> = places.iter().map(write).collect();
        let txids = hashed(written.iter().map(|tx| Message(tx.id_pieces(&bytes))));
        let wtxids = hashed(written.iter().map(|tx| Message::from(&bytes[tx.whole.clone()])));
        TxGroup { places: places.to_vec(), txids, wtxids, written, bytes }
    }

    /// The header of the next block, with a nonce that its hash is low enough for.
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

fn hashed<'m>(messages: impl Iterator<Item = Message<'m>>) -> Vec<[u8; 32]> {
    let messages: Vec<Message<'_>> = messages.collect();
    let mut ids = vec![[0; 32]; messages.len()];
    sha256d_many(&messages, &mut ids);
    ids
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

/// A coinbase, serialized, and its id.
fn coinbase(
    keys: &Keyring,
    plan: &PlannedBlock,
    commitment: Option<[u8; 32]>,
) -> (Vec<u8>, [u8; 32]) {
    // Version; one input that names no output; the height (BIP-34), and a byte more because a
    // script of one is too short.
    let mut body = vec![1];
    body.extend([0; 32]);
    body.extend([0xff; 4]);
    let (height, len) = height_push(plan.height);
    write_compact(&mut body, len + 1);
    body.extend_from_slice(&height[..len]);
    body.push(0);
    body.extend([0xff; 4]);
    write_compact(&mut body, plan.coinbase.len() + usize::from(commitment.is_some()));
    plan.coinbase.iter().for_each(|output| write_output(&mut body, keys, output));
    if let Some(commitment) = commitment {
        body.extend([0; 8]);
        body.extend([38, OP_RETURN, 0x24, 0xaa, 0x21, 0xa9, 0xed]);
        body.extend(commitment);
    }
    let (version, lock_time) = (2u32.to_le_bytes(), [0; 4]);
    let txid = sha256d(&[&version, &body[..], &lock_time].concat());
    // Its witness is what the commitment is salted with.
    let witness = [&[1, 32][..], &[0; 32]].concat();
    let (marker, witness) =
        if commitment.is_some() { (&[0, 1][..], &witness[..]) } else { (&[][..], &[][..]) };
    ([&version, marker, &body, witness, &lock_time].concat(), txid)
}

//! Core's rules for a block without its coins (`validation.cpp`, `CheckBlock` and `ContextualCheckBlock`),
//! checked in order on the types of the `bitcoin` crate.

use bitcoin::consensus::serialize;
use bitcoin::hashes::{Hash, sha256d};
use bitcoin::script::Builder;
use bitcoin::{Amount, Block, Transaction, TxMerkleNode, Witness};
use std::collections::HashSet;

/// The place of a block, and the soft forks active there.
#[derive(Clone, Copy)]
pub struct Place {
    pub height: u32,
    pub median_time_past: u32,
    pub bip34: bool,
    pub csv: bool,
    pub segwit: bool,
}

const WEIGHT_MAX: usize = 4_000_000;
const COMMITMENT: [u8; 6] = [0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed];

/// Returns the first rule that the block breaks, in Core's words.
pub fn check(block: &Block, place: &Place) -> Result<(), &'static str> {
    let txs = &block.txdata;
    let (root, mutated) = merkle(txs.iter().map(|tx| tx.compute_txid().to_byte_array()).collect());
    ensure(root == block.header.merkle_root.to_byte_array(), "bad-txnmrklroot")?;
    ensure(!mutated, "bad-txns-duplicate")?;
    let stripped = stripped_size(block);
    let fits = !txs.is_empty() && txs.len() * 4 <= WEIGHT_MAX && stripped * 4 <= WEIGHT_MAX;
    ensure(fits, "bad-blk-length")?;
    ensure(txs[0].is_coinbase(), "bad-cb-missing")?;
    ensure(!txs[1..].iter().any(Transaction::is_coinbase), "bad-cb-multiple")?;
    txs.iter().try_for_each(check_transaction)?;
    let sigops: usize = txs.iter().map(sigops).sum();
    ensure(sigops * 4 <= 80_000, "bad-blk-sigops")?;

    let cutoff = if place.csv { place.median_time_past } else { block.header.time };
    ensure(txs.iter().all(|tx| is_final(tx, place.height, cutoff)), "bad-txns-nonfinal")?;
    if place.bip34 {
        let push = Builder::new().push_int(i64::from(place.height)).into_script();
        let begins = txs[0].input[0].script_sig.as_bytes().starts_with(push.as_bytes());
        ensure(begins, "bad-cb-height")?;
    }
    check_witnesses(block, place.segwit)?;
    ensure(3 * stripped + serialize(block).len() <= WEIGHT_MAX, "bad-blk-weight")
}

fn ensure(holds: bool, otherwise: &'static str) -> Result<(), &'static str> {
    if holds { Ok(()) } else { Err(otherwise) }
}

fn stripped_size(block: &Block) -> usize {
    let mut block = block.clone();
    block.txdata.iter_mut().flat_map(|tx| &mut tx.input).for_each(|i| i.witness = Witness::new());
    serialize(&block).len()
}

/// Returns the root, and whether a repeated tail could have been left out (CVE-2012-2459).
fn merkle(mut level: Vec<[u8; 32]>) -> ([u8; 32], bool) {
    let mut mutated = false;
    while level.len() > 1 {
        mutated |= level.chunks_exact(2).any(|pair| pair[0] == pair[1]);
        let parent = |pair: &[[u8; 32]]| [pair[0], pair[pair.len() - 1]].concat();
        level = level.chunks(2).map(|p| sha256d::Hash::hash(&parent(p)).to_byte_array()).collect();
    }
    (level.first().copied().unwrap_or_default(), mutated)
}

fn check_transaction(tx: &Transaction) -> Result<(), &'static str> {
    ensure(!tx.input.is_empty(), "bad-txns-vin-empty")?;
    ensure(!tx.output.is_empty(), "bad-txns-vout-empty")?;
    ensure(tx.base_size() * 4 <= WEIGHT_MAX, "bad-txns-oversize")?;
    let mut total = 0;
    for output in &tx.output {
        let value = output.value.to_sat().cast_signed();
        ensure(value >= 0, "bad-txns-vout-negative")?;
        ensure(output.value <= Amount::MAX_MONEY, "bad-txns-vout-toolarge")?;
        total += value;
        ensure(total <= Amount::MAX_MONEY.to_sat().cast_signed(), "bad-txns-txouttotal-toolarge")?;
    }
    let spent: HashSet<_> = tx.input.iter().map(|input| input.previous_output).collect();
    ensure(spent.len() == tx.input.len(), "bad-txns-inputs-duplicate")?;
    if tx.is_coinbase() {
        ensure((2..=100).contains(&tx.input[0].script_sig.len()), "bad-cb-length")
    } else {
        ensure(!spent.iter().any(|outpoint| outpoint.is_null()), "bad-txns-prevout-null")
    }
}

fn sigops(tx: &Transaction) -> usize {
    let inputs = tx.input.iter().map(|input| input.script_sig.as_script());
    let outputs = tx.output.iter().map(|output| output.script_pubkey.as_script());
    inputs.chain(outputs).map(|script| script.count_sigops_legacy()).sum()
}

fn is_final(tx: &Transaction, height: u32, cutoff: u32) -> bool {
    let lock = tx.lock_time.to_consensus_u32();
    let now = if lock < 500_000_000 { height } else { cutoff };
    lock == 0 || lock < now || tx.input.iter().all(|input| input.sequence.0 == u32::MAX)
}

/// Returns the index of the output whose script commits to the witnesses: the last of its form.
fn commitment(coinbase: &Transaction) -> Option<usize> {
    coinbase.output.iter().rposition(|output| {
        let script = output.script_pubkey.as_bytes();
        script.len() >= 38 && script.starts_with(&COMMITMENT)
    })
}

/// Returns the correct commitment, if the coinbase has a nonce for it.
fn commitment_wanted(block: &Block) -> Option<[u8; 32]> {
    let mut nonce = block.txdata[0].input[0].witness.iter();
    let nonce = nonce.next().filter(|item| item.len() == 32 && nonce.next().is_none())?;
    let later = block.txdata[1..].iter().map(|tx| tx.compute_wtxid().to_byte_array());
    let (root, _) = merkle([[0; 32]].into_iter().chain(later).collect());
    Some(sha256d::Hash::hash(&[&root, nonce].concat()).to_byte_array())
}

fn check_witnesses(block: &Block, segwit: bool) -> Result<(), &'static str> {
    let coinbase = &block.txdata[0];
    if let Some(place) = commitment(coinbase).filter(|_| segwit) {
        let wanted = commitment_wanted(block).ok_or("bad-witness-nonce-size")?;
        let found = &coinbase.output[place].script_pubkey.as_bytes()[6..38];
        return ensure(found == wanted, "bad-witness-merkle-match");
    }
    let bare = block.txdata.iter().flat_map(|tx| &tx.input).all(|input| input.witness.is_empty());
    ensure(bare, "unexpected-witness")
}

/// Makes the coinbase commit to the block's witnesses, if it has an output and a nonce for that.
pub fn seal_witnesses(block: &mut Block) {
    let Some(coinbase) = block.txdata.first().filter(|tx| tx.is_coinbase()) else { return };
    let (Some(place), Some(wanted)) = (commitment(coinbase), commitment_wanted(block)) else {
        return;
    };
    let output = &mut block.txdata[0].output[place];
    let mut script = output.script_pubkey.to_bytes();
    script[6..38].copy_from_slice(&wanted);
    output.script_pubkey = script.into();
}

/// Makes the header commit to the block's transactions.
pub fn seal_transactions(block: &mut Block) {
    let ids = block.txdata.iter().map(|tx| tx.compute_txid().to_byte_array()).collect();
    block.header.merkle_root = TxMerkleNode::from_byte_array(merkle(ids).0);
}

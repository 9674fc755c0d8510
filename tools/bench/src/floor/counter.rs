//! [`Counter`]: one block after the other into the counts of a chain's [`Work`].
//!
//! A compression is one 64-byte block of SHA-256. A message takes as many as it fills with its
//! mark and its length (FIPS 180-4, 5.1.1), and double SHA-256 one more. Blocks may come in any
//! order. Blocks are believed to be valid; only what cannot be counted is an error.

use super::work::{Compressions, Counted, Work, WorkError};
use apus_chain::{
    BlockLayout, BlockView, CoinRef, Height, Params, TxView, is_unspendable, witness_commitment,
    write_coin, write_compact_size,
};
use std::path::{Path, PathBuf};

/// How many blocks are kept as samples, and how many bytes of them.
const SAMPLES: u64 = 8;
const SAMPLE_BYTES_MAX: usize = 16 << 20;

/// Bytes that the hashes of a set cover of a coin besides its script and the script's length:
/// outpoint, height with the coinbase mark, amount.
const ELEMENT_FIXED_BYTES: u64 = 36 + 4 + 8;

/// Bytes of an inner node of a merkle tree: two digests.
const NODE_BYTES: u64 = 64;

/// Compressions that double SHA-256 of `bytes` bytes takes.
pub(super) const fn double_compressions(bytes: u64) -> u64 {
    (bytes + 9).div_ceil(64) + 1
}

/// Compressions that the inner nodes of a merkle tree over `leaves` take. A level of an odd number
/// of nodes repeats its last.
fn tree_compressions(leaves: u64) -> u64 {
    let mut nodes = 0;
    let mut level = leaves;
    while level > 1 {
        level = level.div_ceil(2);
        nodes += level;
    }
    nodes * double_compressions(NODE_BYTES)
}

/// Counts blocks.
pub(super) struct Counter<'a> {
    params: &'a Params,
    /// Named in errors.
    hints: PathBuf,
    /// The last height whose witnesses no run hashes.
    unseen: Height,
    layout: BlockLayout,
    work: Work,
    /// A coin, or the group of a transaction, in its stored form.
    scratch: Vec<u8>,
    samples: Vec<Vec<u8>>,
    /// A block is kept whenever so many bytes have passed.
    sample_every: u64,
}

impl<'a> Counter<'a> {
    /// A counter for blocks of `bytes` in all, about; `hints` is named in errors. Witnesses are left alone
    /// up to the height `unseen`.
    pub(super) fn new(params: &'a Params, hints: &Path, unseen: Height, bytes: u64) -> Self {
        Self {
            params,
            hints: hints.to_owned(),
            unseen,
            layout: BlockLayout::new(),
            work: Work::default(),
            scratch: Vec::new(),
            samples: Vec::new(),
            sample_every: bytes.div_ceil(SAMPLES),
        }
    }

    /// Counts one block. `survivors` are the numbers of its outputs that survive, counting
    /// spendable ones only, ascending.
    pub(super) fn block(
        &mut self,
        height: Height,
        raw: &[u8],
        survivors: &[u32],
    ) -> Result<(), WorkError> {
        let mut layout = std::mem::take(&mut self.layout);
        let counted = match layout.read(raw) {
            Ok(view) => self.view(height, &view, survivors),
            Err(error) => Err(WorkError::Decode { height, error }),
        };
        self.layout = layout;
        counted
    }

    /// What was counted.
    pub(super) fn finish(self) -> Counted {
        Counted { work: self.work, samples: self.samples }
    }

    fn view(
        &mut self,
        height: Height,
        view: &BlockView<'_>,
        survivors: &[u32],
    ) -> Result<(), WorkError> {
        self.keep_sample(view.raw());
        let work = &mut self.work;
        work.blocks += 1;
        work.bytes += view.raw().len() as u64;
        work.transactions += view.tx_count() as u64;
        work.inputs += (view.input_count() as u64).saturating_sub(1);
        work.outputs += view.output_count() as u64;
        work.compressions.add(&compressions(view, height > self.unseen));
        self.outputs(height, view, survivors)
    }

    /// Keeps blocks from all over the chain, more where it is denser.
    fn keep_sample(&mut self, raw: &[u8]) {
        let kept: usize = self.samples.iter().map(Vec::len).sum();
        let due =
            self.work.bytes + raw.len() as u64 > self.samples.len() as u64 * self.sample_every;
        if due && kept + raw.len() <= SAMPLE_BYTES_MAX {
            self.samples.push(raw.to_vec());
        }
    }

    fn outputs(
        &mut self,
        height: Height,
        view: &BlockView<'_>,
        survivors: &[u32],
    ) -> Result<(), WorkError> {
        let overwritten = self.params.is_bip30_unspendable(height, &view.hash());
        let mut survivors = survivors.iter().copied().peekable();
        let mut index = 0;
        for (place, tx) in view.txs().enumerate() {
            if place == 0 && overwritten {
                self.work.unspendable += tx.outputs().len() as u64;
                continue;
            }
            let mut coins = 0u64;
            self.scratch.clear();
            for (vout, output) in (0u64..).zip(tx.outputs()) {
                if is_unspendable(output.script()) {
                    self.work.unspendable += 1;
                    continue;
                }
                if survivors.next_if_eq(&index).is_some() {
                    coins += 1;
                    write_compact_size(&mut self.scratch, vout);
                    let amount = output.value().unsigned_abs();
                    let (coinbase, script) = (place == 0, output.script());
                    write_coin(&mut self.scratch, CoinRef { height, coinbase, amount, script });
                    self.work.element_bytes += element_bytes(script.len() as u64);
                }
                index += 1;
            }
            if coins > 0 {
                self.work.coins += coins;
                self.work.coin_bytes += 32 + compact_size(coins) + self.scratch.len() as u64;
            }
        }
        match survivors.next() {
            Some(_) => Err(WorkError::Indices { file: self.hints.clone(), height }),
            None => Ok(()),
        }
    }
}

impl Compressions {
    fn add(&mut self, other: &Self) {
        self.headers += other.headers;
        self.txids += other.txids;
        self.merkle += other.merkle;
        self.wtxids += other.wtxids;
        self.witness_merkle += other.witness_merkle;
    }
}

/// What has to be hashed of one block, with its `witnesses` or without.
fn compressions(view: &BlockView<'_>, witnesses: bool) -> Compressions {
    let leaves = view.tx_count() as u64;
    let commits = witnesses && view.tx(0).is_some_and(|coinbase| commits_to_witnesses(&coinbase));
    // The coinbase has no id with witness, and without a witness it is the plain id.
    let witnesses = || view.txs().skip(1).filter(TxView::has_witness);
    let double = |bytes: usize| double_compressions(bytes as u64);
    Compressions {
        headers: double(view.header().len()),
        txids: view.txs().map(|tx| double(tx.stripped_size())).sum(),
        merkle: tree_compressions(leaves),
        wtxids: if commits { witnesses().map(|tx| double(tx.raw().len())).sum() } else { 0 },
        witness_merkle: if commits {
            tree_compressions(leaves) + double_compressions(NODE_BYTES)
        } else {
            0
        },
    }
}

fn commits_to_witnesses(coinbase: &TxView<'_>) -> bool {
    coinbase.outputs().any(|output| witness_commitment(output.script()).is_some())
}

/// Bytes of a CompactSize.
fn compact_size(value: u64) -> u64 {
    match value {
        ..0xfd => 1,
        0xfd..=0xffff => 3,
        0x1_0000..=0xffff_ffff => 5,
        _ => 9,
    }
}

/// Bytes that the hashes of a set cover of one coin.
fn element_bytes(script: u64) -> u64 {
    ELEMENT_FIXED_BYTES + compact_size(script) + script
}

#[cfg(test)]
mod tests;

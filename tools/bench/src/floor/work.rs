//! [`ChainWork`]: the unavoidable work of an order-free sync of a chain, counted exactly.
//!
//! It walks the chain once, following its headers as a sync does, and counts every block's parts. It hashes
//! nothing and checks no rule, so the counts are only meaningful for a chain that a sync then finds valid.
//! Survivors come from the hints, which are trusted here.

use crate::error::{BenchError, ErrorKind, check_interrupt};
use apus_chain::{
    BlockHash, BlockLayout, BlockView, CoinRef, Height, HeightRange, Params, TxView,
    is_unspendable, witness_commitment, write_coin, write_compact_size,
};
use apus_datadir::BlockFiles;
use apus_sync::engines::swiftsync::hints::{
    HintsError, HintsErrorKind, HintsFile, HintsOptions, RangeHints,
};
use apus_sync::{
    BlockReply, BlockSource, BlocksDir, ChainSource, SilentObserver, SourceError, UseIndex,
};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;

/// Blocks read together: few enough for their hints to fit in memory.
const BATCH: u32 = 64;

/// Counts over the heights 1 to the stop height of the hints.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct ChainWork {
    /// Blocks.
    pub blocks: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Whether the files are obfuscated.
    pub obfuscated: bool,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs, unspendable ones included.
    pub outputs: u64,
    /// Outputs that never become a coin.
    pub unspendable: u64,
    /// Coins that survive.
    pub coins: u64,
    /// Bytes of surviving coins as a run stores them, with one txid per transaction.
    pub coin_bytes: u64,
    /// Bytes of surviving coins as the hashes of a set cover them.
    pub element_bytes: u64,
    /// The hashing of the blocks.
    pub compressions: Compressions,
}

/// SHA-256 compressions, by purpose.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Compressions {
    /// Block hashes.
    pub headers: u64,
    /// Transaction ids.
    pub txids: u64,
    /// Inner nodes of the merkle trees over transaction ids.
    pub merkle: u64,
    /// Ids with witness, in blocks that commit to witnesses.
    pub wtxids: u64,
    /// Inner nodes of the merkle trees over ids with witness, and the commitments.
    pub witness_merkle: u64,
}

/// A chain's work, and some of its blocks to measure with.
#[derive(Debug, Clone)]
pub struct CountedWork {
    /// The counts.
    pub work: ChainWork,
    /// Raw blocks from all over the chain, a few megabytes at most.
    pub samples: Vec<Vec<u8>>,
}

/// Counts the work of the chain in `blocksdir` up to the stop height of `hints`. Skips witnesses of blocks up
/// to `assumed`, as syncs do where scripts are assumed valid; if the chain lacks that block, counts all
/// witnesses. `now` is the time in seconds since 1970.
pub fn count(
    params: &Params,
    blocksdir: &Path,
    hints: &Path,
    assumed: Option<&BlockHash>,
    now: i64,
    interrupt: &AtomicBool,
) -> Result<CountedWork, BenchError> {
    let named = |error: HintsError| {
        let kind = match error.kind() {
            HintsErrorKind::Io => ErrorKind::Io,
            HintsErrorKind::Invalid => ErrorKind::Wrong,
        };
        BenchError::new(kind, format_args!("{}: {error}", hints.display()))
    };
    let dir =
        BlocksDir::open(blocksdir, params, now, UseIndex::IfPresent, &SilentObserver, interrupt)?;
    let survivors = HintsFile::open_path(hints, &HintsOptions::default()).map_err(named)?;
    let (stop, tip) = (survivors.info().stop_height, dir.chain().tip_height());
    if stop > tip {
        return Err(BenchError::usage(format_args!(
            "{}: the hints stop at height {stop}, but the chain ends at {tip}: use the blocks that match \
             the hints",
            hints.display()
        )));
    }
    let bytes = (1..=stop).map(|height| dir.block_bytes(height)).sum();
    let unseen = assumed.and_then(|hash| dir.chain().height_of(hash)).unwrap_or(0);
    let mut counter = WorkCounter::new(params, hints, unseen, bytes);
    let never = AtomicBool::new(false);
    let mut fetcher = dir.fetcher(&never);
    let mut start = 1;
    while start <= stop {
        check_interrupt(interrupt)?;
        let batch = HeightRange::new(start, (stop + 1).min(start.saturating_add(BATCH)));
        let survivors = indices(survivors.range(batch).map_err(named)?).map_err(named)?;
        let mut failure = None;
        fetcher.fetch(batch, &mut |height, raw| {
            let survivors = survivors.get(&height).map(Vec::as_slice).unwrap_or_default();
            match counter.block(height, raw, survivors) {
                Ok(()) => BlockReply::Yes,
                Err(error) => {
                    failure = Some(error);
                    BlockReply::Stop
                }
            }
        })?;
        if let Some(error) = failure {
            return Err(error);
        }
        start = batch.end;
    }
    let mut counted = counter.finish();
    let files = BlockFiles::open(blocksdir, params.network.magic()).map_err(SourceError::from)?;
    counted.work.obfuscated = !files.obfuscation().is_none();
    Ok(counted)
}

/// The hints of a range by height.
fn indices(mut range: RangeHints) -> Result<BTreeMap<Height, Vec<u32>>, HintsError> {
    let mut all = BTreeMap::new();
    while let Some(block) = range.next()? {
        all.insert(block.height, block.indices.to_vec());
    }
    Ok(all)
}

// ---- counting block by block ----
//
// A compression is one 64-byte block of SHA-256. A message takes one for each block that it fills, including its
// padding and length (FIPS 180-4, 5.1.1); double SHA-256 takes one more. Blocks may be added in any order. They are
// assumed valid; only blocks that cannot be counted are errors.

/// Number of blocks kept as samples, and their maximum total size.
const SAMPLES: u64 = 8;
const SAMPLE_BYTES_MAX: usize = 16 << 20;

/// Bytes of a coin in the input of the set's hashes, without its script and the script's length: outpoint,
/// height with the coinbase mark, amount.
const ELEMENT_FIXED_BYTES: u64 = 36 + 4 + 8;

/// Bytes of an inner node of a merkle tree: two digests.
const NODE_BYTES: u64 = 64;

/// Compressions of double SHA-256 over `bytes` bytes.
pub(super) const fn double_compressions(bytes: u64) -> u64 {
    (bytes + 9).div_ceil(64) + 1
}

/// Compressions of the inner nodes of a merkle tree over `leaves`. A level with an odd number of nodes
/// repeats its last.
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
pub(super) struct WorkCounter<'a> {
    params: &'a Params,
    /// For error messages.
    hints: PathBuf,
    /// The last height whose witnesses a sync does not hash.
    unseen: Height,
    layout: BlockLayout,
    work: ChainWork,
    /// A coin, or the group of a transaction, in its stored form.
    scratch: Vec<u8>,
    samples: Vec<Vec<u8>>,
    /// Interval between samples, in bytes of blocks.
    sample_every: u64,
}

impl<'a> WorkCounter<'a> {
    /// A counter for about `bytes` bytes of blocks; `hints` appears in errors. Skips witnesses up to the
    /// height `unseen`.
    pub(super) fn new(params: &'a Params, hints: &Path, unseen: Height, bytes: u64) -> Self {
        Self {
            params,
            hints: hints.to_owned(),
            unseen,
            layout: BlockLayout::new(),
            work: ChainWork::default(),
            scratch: Vec::new(),
            samples: Vec::new(),
            sample_every: bytes.div_ceil(SAMPLES),
        }
    }

    /// Counts one block. `survivors` are the indices of its surviving outputs, counting spendable ones only,
    /// ascending.
    pub(super) fn block(
        &mut self,
        height: Height,
        raw: &[u8],
        survivors: &[u32],
    ) -> Result<(), BenchError> {
        let mut layout = std::mem::take(&mut self.layout);
        let counted = match layout.read(raw) {
            Ok(view) => self.view(height, &view, survivors),
            Err(error) => Err(BenchError::different(format_args!(
                "block {height} cannot be read: {error}: run `apus sync` to diagnose it"
            ))),
        };
        self.layout = layout;
        counted
    }

    /// The final counts.
    pub(super) fn finish(self) -> CountedWork {
        CountedWork { work: self.work, samples: self.samples }
    }

    fn view(
        &mut self,
        height: Height,
        view: &BlockView<'_>,
        survivors: &[u32],
    ) -> Result<(), BenchError> {
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

    /// Samples blocks from all over the chain, more where it is denser.
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
    ) -> Result<(), BenchError> {
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
            Some(_) => Err(BenchError::file(
                &self.hints,
                format_args!(
                    "block {height} has fewer outputs than the hints say: the hints are for another chain"
                ),
            )),
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

/// The hashing of one block, with its `witnesses` or without.
fn compressions(view: &BlockView<'_>, witnesses: bool) -> Compressions {
    let leaves = view.tx_count() as u64;
    let commits = witnesses && view.tx(0).is_some_and(|coinbase| commits_to_witnesses(&coinbase));
    // The coinbase has no id with witness, and a transaction without a witness has only one id.
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

/// Bytes of one coin in the input of the set's hashes.
fn element_bytes(script: u64) -> u64 {
    ELEMENT_FIXED_BYTES + compact_size(script) + script
}

#[cfg(test)]
mod tests;

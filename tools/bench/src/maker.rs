//! Makes regtest chains for benchmarks: shaped like today's main chain, valid under every rule, and identical
//! for the same arguments on every machine.
//!
//! A planner (`plan`) decides what is spent, a builder (`build`) signs and hashes on many threads: block by
//! block, because a block spends the coins of the one before. A writer stores blocks in files, and an account
//! (`account`) hashes the coins that are left, both at the same time. Memory grows with the coins still to be
//! spent, not with the chain. The manifest is written last. The maker does not check the chain: its readers
//! check it, and so do tests with a real node. It shares only the random number generator with the testkit's
//! chain builder, so that the tests can compare its output with the testkit's independent account of coins.
//!
//! A chain has one of two shapes: blocks full of recent transactions, or the main chain's history at a scale
//! (`history`). It becomes block files ([`make`]), or only headers, from which a peer serves it (`serve`).

mod account;
mod blocks;
mod build;
mod coins;
pub mod command;
mod cost;
mod dummy;
mod files;
mod history;
mod keys;
mod law;
mod plan;
pub mod serve;
mod shape;
mod tally;
mod tx;

pub use history::Scale;
pub use law::ChainProfile;

use crate::error::{AtPath, BenchError, ErrorKind};
use crate::manifest::{self, ChainManifest, ExpectedSet};
use apus_chain::{BlockHash, Height};
use apus_sync::engines::swiftsync::hints::{HintsError, HintsWriter};
use blocks::ChainBlocks;
use build::BuiltBlock;
use files::{ChainFolder, ChainWriter};
use law::PaymentKind;
use shape::ChainShape;
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, sync_channel};
use std::thread;
use tally::Tally;

/// More blocks than a user can wait for, with all timestamps before today.
const BLOCKS_MAX: u32 = 500_000;
/// The same in a history, whose blocks come more often.
const HISTORIC_BLOCKS_MAX: u32 = 940_000;
/// Below this there is no room for a transaction; above it a block is invalid (Core `consensus/consensus.h`,
/// `MAX_BLOCK_WEIGHT`).
const BLOCK_WEIGHT: std::ops::RangeInclusive<u32> = 10_000..=4_000_000;
/// Blocks that may wait for the writer.
const WAITING: usize = 2;
/// Upper bounds of the coin ages, in blocks, that a manifest lists.
const AGES: [u32; 6] = [0, 1, 10, 100, 1_000, 10_000];

/// The parameters of a chain, and of its making.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MakeOptions {
    /// The shape of the chain.
    pub profile: ChainProfile,
    /// Number of full blocks.
    pub blocks: u32,
    /// The seed of all random numbers.
    pub seed: u64,
    /// Whether signatures are real; otherwise they are dummies of the same size.
    pub signed: bool,
    /// Whether block files are XORed with a key derived from the seed; otherwise the key is zeros, which
    /// changes nothing.
    pub obfuscated: bool,
    /// Threads that make transactions. They do not change the chain.
    pub threads: usize,
    /// Target weight of busy blocks.
    pub block_weight: u32,
    /// Blocks with only a coinbase at the end. A node that assumes the last busy block valid needs more than
    /// 2,016 of them to skip scripts: two weeks (Core `validation.cpp`, `ConnectBlock`).
    pub tail_blocks: u32,
    /// The scale of a history; other profiles ignore it.
    pub scale: Scale,
    /// Heights at which the set is accounted for, in addition to the tip.
    pub set_heights: Vec<Height>,
    /// What to write.
    pub output: ChainOutput,
}

/// What a chain is written as.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ChainOutput {
    /// Block files.
    Files,
    /// Only the headers.
    Headers,
}

impl MakeOptions {
    /// A signed chain of full blocks, made by one thread.
    pub fn new(blocks: u32, seed: u64) -> Self {
        let (block_weight, tail_blocks) = (*BLOCK_WEIGHT.end(), 2_100);
        let profile = ChainProfile::MainnetLike;
        Self {
            profile,
            blocks,
            seed,
            signed: true,
            obfuscated: true,
            threads: 1,
            block_weight,
            tail_blocks,
            scale: Scale::FULL,
            set_heights: Vec::new(),
            output: ChainOutput::Files,
        }
    }

    /// An unsigned history of the main chain at a scale, made by one thread.
    pub fn history(scale: Scale, seed: u64) -> Self {
        let profile = ChainProfile::MainHistory;
        let blocks = history::blocks(scale);
        Self { profile, scale, signed: false, ..Self::new(blocks, seed) }
    }

    /// The scale, if it has any effect.
    fn historic_scale(&self) -> Option<String> {
        (self.profile == ChainProfile::MainHistory).then(|| self.scale.to_string())
    }

    /// Whether a chain was made with the same arguments.
    pub fn made(&self, manifest: &ChainManifest) -> bool {
        manifest.version == manifest::VERSION
            && manifest.profile == self.profile.name()
            && manifest.seed == self.seed
            && manifest.signed == self.signed
            && manifest.obfuscated == self.obfuscated
            && manifest.busy_blocks == self.blocks
            && manifest.block_weight == self.block_weight
            && manifest.tail_blocks == self.tail_blocks
            && manifest.scale == self.historic_scale()
            && self.set_heights.iter().all(|it| manifest.sets.iter().any(|set| set.height == *it))
    }

    fn check(&self) -> Result<(), BenchError> {
        let fail = |text: String| Err(BenchError::usage(text));
        let blocks = self.blocks.saturating_add(self.tail_blocks);
        let most = match self.profile {
            ChainProfile::MainHistory => HISTORIC_BLOCKS_MAX,
            _ => BLOCKS_MAX,
        };
        if self.blocks == 0 && self.profile == ChainProfile::MainHistory {
            return fail(format!(
                "--scale {}: no block is left: use a smaller divisor",
                self.scale
            ));
        }
        if self.blocks == 0 || blocks > most {
            return fail(format!(
                "a chain has at least 1 full block and at most {most} blocks in all, not {} \
                 full ones and {} after them",
                self.blocks, self.tail_blocks
            ));
        }
        if !BLOCK_WEIGHT.contains(&self.block_weight) {
            let (low, high) = BLOCK_WEIGHT.into_inner();
            return fail(format!(
                "block weight must be {low} to {high}, not {}",
                self.block_weight
            ));
        }
        let tip = blocks::shape(self).tip;
        if let Some(height) = self.set_heights.iter().find(|it| !(1..=tip).contains(*it)) {
            return fail(format!("the chain has no block {height}: its last one is {tip}"));
        }
        Ok(())
    }
}

/// Progress of making a chain.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct MakeProgress {
    /// Blocks made.
    pub blocks: u32,
    /// Blocks in all.
    pub blocks_total: u32,
    /// Busy blocks among those made.
    pub busy: u32,
    /// Busy blocks in all.
    pub busy_total: u32,
    /// Bytes of the blocks made.
    pub bytes: u64,
}

/// A chain that exists now.
#[derive(Debug, Clone, PartialEq)]
pub enum MadeChain {
    /// It was just made.
    Now(ChainManifest),
    /// It existed already, made with the same arguments; nothing was changed.
    Before(ChainManifest),
}

/// Makes a chain in `folder`, which must be empty or absent: `blocks/`, `chain.hints` and, last,
/// `manifest.json`. On any error, including an interrupt, removes everything.
pub fn make(
    folder: &Path,
    options: &MakeOptions,
    interrupt: &AtomicBool,
    progress: &mut dyn FnMut(MakeProgress),
) -> Result<MadeChain, BenchError> {
    options.check()?;
    if let Ok(manifest) = ChainManifest::read(folder)
        && options.made(&manifest)
        && files::has(folder, options.output)
    {
        return Ok(MadeChain::Before(manifest));
    }
    let chain = ChainFolder::create(folder, options.output)?;
    let shape = blocks::shape(options);
    let ends = run(&chain, options, shape, interrupt, progress)?;
    write_hints(&chain.hints(), shape.tip, &ends.tally, interrupt)?;
    let manifest = describe(options, shape, &ends);
    manifest.write(folder).at(folder)?;
    chain.keep();
    Ok(MadeChain::Now(manifest))
}

/// The facts about a chain once its blocks are written.
struct Ends {
    tally: Tally,
    sets: Vec<ExpectedSet>,
    bytes: u64,
    tip: BlockHash,
    last_busy: BlockHash,
}

/// Makes and writes all blocks.
fn run(
    chain: &ChainFolder,
    options: &MakeOptions,
    shape: ChainShape,
    interrupt: &AtomicBool,
    progress: &mut dyn FnMut(MakeProgress),
) -> Result<Ends, BenchError> {
    let key = if options.obfuscated { xor_key(options.seed) } else { [0; 8] };
    let writer = ChainWriter::create(chain, options.output, key)?;
    let keys = blocks::keys(options);
    let heights = options.set_heights.iter().copied().chain([shape.tip]).collect();
    let mut made = ChainBlocks::new(options, &keys).with_account(&keys, heights);
    let (written, blocks_out) = sync_channel(WAITING);
    thread::scope(|scope| {
        let writing = scope.spawn(move || write_all(writer, &blocks_out));
        let (mut bytes, mut tip, mut last_busy) = (0, BlockHash::ZERO, BlockHash::ZERO);
        for block in &mut made {
            stop_if(interrupt)?;
            bytes += block.bytes.len() as u64;
            tip = block.hash;
            if block.height + 1 == shape.busy.end {
                last_busy = tip;
            }
            progress(progress_at(shape, block.height, bytes));
            // The writer ended early: it reports the error.
            if written.send(block).is_err() {
                break;
            }
        }
        drop(written);
        writing.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        let (tally, sets) = made.finish();
        Ok(Ends { tally, sets, bytes, tip, last_busy })
    })
}

/// Returns an error once the caller has asked to stop. The caller then removes all files.
fn stop_if(interrupt: &AtomicBool) -> Result<(), BenchError> {
    match interrupt.load(Ordering::Relaxed) {
        true => {
            let message = "interrupted; the incomplete chain is removed";
            Err(BenchError::new(ErrorKind::Interrupted, message))
        }
        false => Ok(()),
    }
}

fn progress_at(shape: ChainShape, height: Height, bytes: u64) -> MakeProgress {
    MakeProgress {
        blocks: height,
        blocks_total: shape.tip,
        busy: (height + 1).saturating_sub(shape.busy.start).min(shape.busy.count()),
        busy_total: shape.busy.count(),
        bytes,
    }
}

fn write_all(mut writer: ChainWriter, blocks: &Receiver<BuiltBlock>) -> Result<(), BenchError> {
    for block in blocks {
        writer.put(&block)?;
    }
    writer.finish()
}

/// The key of a chain's block files. Eight zero bytes would mean no obfuscation.
fn xor_key(seed: u64) -> [u8; 8] {
    let digest = apus_hash::sha256(format!("block files of the chain of seed {seed}").as_bytes());
    let mut key = [0; 8];
    key.copy_from_slice(&digest[..8]);
    key[0] |= 1;
    key
}

fn write_hints(
    path: &Path,
    tip: Height,
    tally: &Tally,
    interrupt: &AtomicBool,
) -> Result<(), BenchError> {
    let hints = |error: HintsError| BenchError::io(path, error);
    let file = File::create(path).at(path)?;
    let mut writer = HintsWriter::new(BufWriter::new(file), tip).map_err(hints)?;
    for indices in tally.hints() {
        stop_if(interrupt)?;
        writer.put(&indices).map_err(hints)?;
    }
    let file = writer.finish().map_err(hints)?;
    let file = file.into_inner().map_err(|error| error.into_error()).at(path)?;
    file.sync_all().at(path)
}

fn describe(options: &MakeOptions, shape: ChainShape, ends: &Ends) -> ChainManifest {
    let Ends { tally, sets, bytes, tip, last_busy } = ends;
    let scripts: BTreeMap<String, u64> = PaymentKind::ALL
        .iter()
        .map(|&kind| (kind.name().to_owned(), tally.kinds[kind as usize]))
        .collect();
    ChainManifest {
        version: manifest::VERSION,
        profile: options.profile.name().to_owned(),
        seed: options.seed,
        signed: options.signed,
        obfuscated: options.obfuscated,
        busy_blocks: options.blocks,
        block_weight: options.block_weight,
        tail_blocks: options.tail_blocks,
        height: shape.tip,
        tip_hash: tip.to_string(),
        assumevalid_height: shape.busy.end - 1,
        assumevalid_hash: last_busy.to_string(),
        transactions: tally.transactions,
        inputs: tally.inputs,
        outputs: tally.outputs,
        unspendable: tally.data,
        coins: tally.coins(),
        total_amount_sat: tally.worth,
        bytes: *bytes,
        scripts,
        scale: options.historic_scale(),
        sets: sets.clone(),
        spent_within: AGES.iter().map(|&age| (age, tally.spent_within(age))).collect(),
    }
}

//! Makes regtest chains for benchmarks: shaped like today's main chain, valid under every rule, and identical
//! for the same arguments on every machine.
//!
//! A planner (`plan`) decides what is spent, a builder (`build`) signs and hashes on many threads, a writer
//! stores blocks in files; the three run concurrently, and their memory grows with the coins still to be
//! spent, not with the chain. The manifest is written last. The maker does not check the chain: its readers
//! check it, and so do tests with a real node. It shares only the random number generator with the testkit's
//! chain builder, so that the tests can compare its output with the testkit's independent account of coins.

mod build;
mod coins;
pub mod command;
mod files;
mod keys;
mod law;
mod plan;
mod tx;

pub use law::ChainProfile;

use crate::error::{AtPath, BenchError, ErrorKind};
use crate::manifest::{self, ChainManifest};
use apus_chain::{BlockHash, Height, Network, Params};
use apus_sync::engines::swiftsync::hints::{HintsError, HintsWriter};
use build::{Builder, BuiltBlock};
use coins::Tally;
use files::{BlockFileWriter, ChainFolder};
use keys::Keyring;
use law::{ChainShape, PaymentKind};
use plan::{PlannedBlock, Planner};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::BufWriter;
use std::panic::resume_unwind;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::thread;

/// More blocks than a user can wait for, with all timestamps before today.
const BLOCKS_MAX: u32 = 500_000;
/// Below this there is no room for a transaction; above it a block is invalid (Core `consensus/consensus.h`,
/// `MAX_BLOCK_WEIGHT`).
const BLOCK_WEIGHT: std::ops::RangeInclusive<u32> = 10_000..=4_000_000;
/// Plans and blocks that may wait for the next stage.
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
}

impl MakeOptions {
    /// A signed chain of full blocks, made by one thread.
    pub fn new(blocks: u32, seed: u64) -> Self {
        let (block_weight, tail_blocks) = (*BLOCK_WEIGHT.end(), 2_100);
        let profile = ChainProfile::MainnetLike;
        let (signed, obfuscated) = (true, true);
        Self { profile, blocks, seed, signed, obfuscated, threads: 1, block_weight, tail_blocks }
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
    }

    fn check(&self) -> Result<(), BenchError> {
        let fail = |text: String| Err(BenchError::usage(text));
        let blocks = self.blocks.saturating_add(self.tail_blocks);
        if self.blocks == 0 || blocks > BLOCKS_MAX {
            return fail(format!(
                "a chain has at least 1 full block and at most {BLOCKS_MAX} blocks in all, not {} \
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
    {
        return Ok(MadeChain::Before(manifest));
    }
    let chain = ChainFolder::create(folder)?;
    let keys = Keyring::new(options.seed, options.signed);
    let MakeOptions { profile, blocks, block_weight, tail_blocks, .. } = *options;
    let shape = ChainShape::new(profile, blocks, block_weight, tail_blocks);
    let ends = run(&chain, options, shape, &keys, interrupt, progress)?;
    write_hints(&chain.hints(), shape.tip, &ends.tally, interrupt)?;
    let manifest = describe(options, shape, &ends);
    manifest.write(folder).at(folder)?;
    chain.keep();
    Ok(MadeChain::Now(manifest))
}

/// The facts about a chain once its blocks are written.
struct Ends {
    tally: Tally,
    bytes: u64,
    tip: BlockHash,
    last_busy: BlockHash,
}

/// Plans, makes and writes all blocks.
fn run(
    chain: &ChainFolder,
    options: &MakeOptions,
    shape: ChainShape,
    keys: &Keyring,
    interrupt: &AtomicBool,
    progress: &mut dyn FnMut(MakeProgress),
) -> Result<Ends, BenchError> {
    let params = Params::of(Network::Regtest);
    let magic = Network::Regtest.magic();
    let key = if options.obfuscated { xor_key(options.seed) } else { [0; 8] };
    let mut files = BlockFileWriter::create(&chain.blocks(), magic, key)?;
    // A node that reads files without an index needs the genesis block first.
    files.put(&params.genesis_block())?;
    let planner = Planner::new(keys, shape, options.seed, options.block_weight);
    let (plans_in, plans) = sync_channel(WAITING);
    let (blocks, blocks_out) = sync_channel(WAITING);
    thread::scope(|scope| {
        let planning = scope.spawn(move || plan_all(planner, &plans_in));
        let writing = scope.spawn(move || write_all(files, &blocks_out));
        let mut ends = (0, BlockHash::ZERO, BlockHash::ZERO);
        let mut builder = Builder::new(keys, options.seed, options.threads);
        for plan in plans {
            stop_if(interrupt)?;
            let block = builder.build(&plan);
            ends.0 += block.bytes.len() as u64;
            ends.1 = block.hash;
            if block.height + 1 == shape.busy.end {
                ends.2 = block.hash;
            }
            progress(progress_at(shape, block.height, ends.0));
            // The writer ended early: it reports the error.
            if blocks.send(block).is_err() {
                break;
            }
        }
        drop(blocks);
        writing.join().unwrap_or_else(|panic| resume_unwind(panic))?;
        let tally = planning.join().unwrap_or_else(|panic| resume_unwind(panic));
        let (bytes, tip, last_busy) = ends;
        Ok(Ends { tally, bytes, tip, last_busy })
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

fn plan_all(mut planner: Planner<'_>, plans: &SyncSender<PlannedBlock>) -> Tally {
    // The receiver is closed when the making ends early.
    while let Some(plan) = planner.next()
        && plans.send(plan).is_ok()
    {}
    planner.into_tally()
}

fn write_all(mut files: BlockFileWriter, blocks: &Receiver<BuiltBlock>) -> Result<(), BenchError> {
    for block in blocks {
        files.put(&block.bytes)?;
    }
    files.finish()
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
    let Ends { tally, bytes, tip, last_busy } = ends;
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
        coins: tally.outputs - tally.data - tally.inputs,
        total_amount_sat: tally.worth,
        bytes: *bytes,
        scripts,
        spent_within: AGES.iter().map(|&age| (age, tally.spent_within(age))).collect(),
    }
}

//! The memory limit that `--dbcache` promises, on a chain shaped like today's.

use crate::sandbox::Sandbox;
use apus_bench::maker::{self, MakeOptions};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, seal};
use bitcoin::script::Builder;
use bitcoin::{Amount, Network, constants};
use std::sync::atomic::AtomicBool;
use std::thread;

/// Makes a chain with `blocks` full blocks in the folder `chain` of a sandbox.
pub(crate) fn make_chain(sandbox: &Sandbox, blocks: u32, signed: bool) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let options = MakeOptions { signed, threads, ..MakeOptions::new(blocks, 1) };
    maker::make(&sandbox.path("chain"), &options, &AtomicBool::new(false), &mut |_| {}).unwrap();
}

const MIB: u64 = 1 << 20;

/// Makes a chain whose blocks have one transaction each, in a folder of a sandbox.
fn make_smallest_blocks(sandbox: &Sandbox, folder: &str, count: u32) {
    let mut block = ChainBuilder::new(1).block_with(Vec::new());
    block.txdata[0].output[0].value = Amount::ZERO;
    let mut files = BlockFiles::regtest();
    files.block(&constants::genesis_block(Network::Regtest));
    for height in 1..=count {
        let script = Builder::new().push_int(height.into()).push_int(height.into());
        block.txdata[0].input[0].script_sig = script.into_script();
        seal(&mut block);
        files.block(&block);
        block.header.prev_blockhash = block.block_hash();
        block.header.time += 60;
    }
    files.write(&sandbox.path(folder));
}

/// Returns the memory that a sync with a small cache uses at most.
fn peak_bytes(sandbox: &Sandbox, folder: &str, engine: &str, stop: u32) -> u64 {
    let line = format!(
        "sync --chain regtest --blocksdir {folder} --engine {engine} --assumevalid 0 --dbcache 4 --par 2 \
         --stopatheight {stop} --report run.json"
    );
    sandbox.start(&line).wait().succeeds();
    let peak = sandbox.json("run.json")["rss_peak_bytes"].as_u64().unwrap();
    sandbox.remove("run.json");
    peak
}

/// What a sync keeps for each block comes on top of `--dbcache`, and must leave room for a million of them.
#[test]
fn a_block_takes_few_bytes() {
    const FEW: u32 = 2_000;
    const MANY: u32 = 150_000;
    let sandbox = Sandbox::empty();
    make_smallest_blocks(&sandbox, "few", FEW);
    make_smallest_blocks(&sandbox, "many", MANY);
    for engine in ["mergesync", "utxo"] {
        let [few, many] = ["few", "many"].map(|chain| peak_bytes(&sandbox, chain, engine, 1));
        let each = many.saturating_sub(few) / u64::from(MANY - FEW);
        assert!(each <= 100, "{engine}: {each} bytes of memory to find a block");
        let whole = peak_bytes(&sandbox, "many", engine, MANY);
        // On a busy machine more blocks wait, within a bound that does not depend on their number.
        assert!(whole <= 80 * MIB, "{engine}: {} MiB for all blocks", whole / MIB);
    }
}

/// `--dbcache` promises to use at most that much plus 100 MiB, for any chain and any outputs.
#[test]
#[ignore = "a gigabyte of blocks: scripts/test --long"]
fn memory_stays_within_the_promise() {
    let sandbox = Sandbox::empty();
    make_chain(&sandbox, 620, false);
    let manifest = sandbox.json("chain/manifest.json");
    let assumed = manifest["assumevalid_hash"].as_str().unwrap();
    let height = &manifest["assumevalid_height"];
    for (dbcache, out) in [(100, "snapshot:set"), (100, "datadir:node"), (450, "datadir:node")] {
        let line = format!(
            "sync --chain regtest --blocksdir chain/blocks --engine utxo --assumevalid {assumed} \
             --stopatheight {height} --dbcache {dbcache} --par 2 --out {out} --report run.json"
        );
        sandbox.start(&line).wait().succeeds();
        let peak = sandbox.json("run.json")["rss_peak_bytes"].as_u64().unwrap();
        assert!(peak <= (dbcache + 100) * MIB, "{dbcache}, {out}: {} MiB", peak / MIB);
        // The chain is large enough to test the limit: one of a few megabytes would use less.
        assert!(peak > dbcache * MIB / 2, "{dbcache}, {out}: {} MiB", peak / MIB);
        let (_, name) = out.split_once(':').unwrap();
        sandbox.remove(name);
        sandbox.remove("run.json");
    }
}

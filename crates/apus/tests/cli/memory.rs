//! The memory limit that `--dbcache` promises, on a chain shaped like today's.

use crate::sandbox::Sandbox;
use apus_bench::maker::{self, MakeOptions};
use std::sync::atomic::AtomicBool;
use std::thread;

/// Makes a chain with `blocks` full blocks in the folder `chain` of a sandbox.
pub(crate) fn make_chain(sandbox: &Sandbox, blocks: u32, signed: bool) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let options = MakeOptions { signed, threads, ..MakeOptions::new(blocks, 1) };
    maker::make(&sandbox.path("chain"), &options, &AtomicBool::new(false), &mut |_| {}).unwrap();
}

/// `--dbcache` promises to use at most that much plus 100 MiB, for any chain and any outputs.
#[test]
#[ignore = "a gigabyte of blocks: scripts/test --long"]
fn memory_stays_within_the_promise() {
    const MIB: u64 = 1 << 20;
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

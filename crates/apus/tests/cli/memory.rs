//! What `--dbcache` promises, on a chain that is shaped like today's.

use crate::desk::Desk;
use apus_bench::maker::{self, MakeOptions};
use std::sync::atomic::AtomicBool;
use std::thread;

/// Makes a chain with so many full blocks in the folder `chain` of a desk.
pub(crate) fn make_chain(desk: &Desk, blocks: u32, signed: bool) {
    let threads = thread::available_parallelism().map_or(1, usize::from);
    let options = MakeOptions { signed, threads, ..MakeOptions::new(blocks, 1) };
    maker::make(&desk.path("chain"), &options, &AtomicBool::new(false), &mut |_| {}).unwrap();
}

/// What `--dbcache` promises: that much and 100 MiB, whatever the chain holds and wherever it goes.
#[test]
#[ignore = "a gigabyte of blocks: scripts/test --long"]
fn memory_stays_within_the_promise() {
    const MIB: u64 = 1 << 20;
    let desk = Desk::empty();
    make_chain(&desk, 620, false);
    let manifest = desk.json("chain/manifest.json");
    let assumed = manifest["assumevalid_hash"].as_str().unwrap();
    let height = &manifest["assumevalid_height"];
    for (dbcache, out) in [(100, "snapshot:set"), (100, "datadir:node"), (450, "datadir:node")] {
        let line = format!(
            "sync --chain regtest --blocksdir chain/blocks --engine utxo --assumevalid {assumed} \
             --stopatheight {height} --dbcache {dbcache} --par 2 --out {out} --report run.json"
        );
        desk.start(&line).wait().succeeds();
        let peak = desk.json("run.json")["rss_peak_bytes"].as_u64().unwrap();
        assert!(peak <= (dbcache + 100) * MIB, "{dbcache}, {out}: {} MiB", peak / MIB);
        // More than a chain of some megabytes would take.
        assert!(peak > dbcache * MIB / 2, "{dbcache}, {out}: {} MiB", peak / MIB);
        let (_, name) = out.split_once(':').unwrap();
        desk.remove(name);
        desk.remove("run.json");
    }
}

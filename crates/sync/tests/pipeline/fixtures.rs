//! Compares real chains with a real node's answers about them.

use crate::harness::{HINTS, Job, SET, display, files, hintsfile};
use apus_chain::{Network, Params};
use apus_sync::engines::swiftsync::aggregate::AggregateKind;
use apus_sync::{ChainBy, Event, HintsInput};
use apus_testkit::storage::CrashStorage;
use serde_json::Value;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn fixture(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures").join(name)
}

fn check(name: &str, blocks: &str, network: Network, from_index: bool) {
    let folder = fixture(name);
    let read = |file: &str| fs::read(folder.join(file)).unwrap();
    let said: Value = serde_json::from_slice(&read("gettxoutsetinfo.json")).unwrap();
    for (hints, aggregate) in [
        (hintsfile(&folder.join("utxo.bip456.hints")), AggregateKind::Sha256),
        (hintsfile(&folder.join("utxo.hintsfile-0.2.hints")), AggregateKind::MuHash),
        (HintsInput::Snapshot(folder.join("utxo.dat")), AggregateKind::Sha256),
    ] {
        let job = Job {
            params: Params::of(network),
            blocksdir: folder.join(blocks),
            hints,
            aggregate,
            stop_height: None,
            threads: 2,
            memory_bytes: 16 << 20,
            segment_bytes: Some(100_000),
            checkpoint_interval: Duration::ZERO,
        };
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        let events = crate::harness::Events::default();
        let outcome = job.run_watched(&work, &out, &events, &AtomicBool::new(false)).unwrap();
        assert_eq!(outcome.chain.stop.height, said["height"].as_u64().unwrap() as u32);
        assert_eq!(outcome.chain.stop.hash.to_string(), said["bestblock"].as_str().unwrap());
        assert_eq!(outcome.set.totals.coins, said["txouts"].as_u64().unwrap());
        assert_eq!(outcome.set.totals.transactions, said["transactions"].as_u64().unwrap());
        assert_eq!(outcome.set.totals.bogosize, said["bogosize"].as_u64().unwrap());
        let amount = (said["total_amount"].as_f64().unwrap() * 1e8).round() as u128;
        assert_eq!(outcome.set.totals.amount, amount);
        assert_eq!(display(&outcome.set.muhash().unwrap()), said["muhash"].as_str().unwrap());
        let hash = said["hash_serialized_3"].as_str().unwrap();
        assert_eq!(display(&outcome.set.hash_serialized_3().unwrap()), hash);
        assert!(files(&out)[SET] == read("utxo.dat"), "the snapshot of {name} differs");
        assert!(files(&out)[HINTS] == read("utxo.bip456.hints"), "the hints of {name} differ");
        let found = events.all().into_iter().find_map(|event| match event {
            Event::ChainFound { by: ChainBy::Files { index, .. }, .. } => Some(index),
            _ => None,
        });
        assert_eq!(found, Some(from_index));
    }
}

#[test]
fn the_first_blocks_of_the_main_chain() {
    check("main-4521", "blocks", Network::Main, false);
}

/// The fixture is a node's own folder with its index. Its chain has every kind of compressed script, and a
/// transaction with 20,001 outputs.
#[test]
fn regtest_as_a_node_left_it() {
    check("regtest-315", "regtest/blocks", Network::Regtest, true);
}

/// Signet's blocks are signed, and only a build with a script interpreter can check that.
#[cfg(feature = "kernel")]
#[test]
fn signet_with_its_signatures() {
    check("signet-120", "blocks", Network::Signet, false);
}

/// Without an interpreter a signature that cannot be checked counts as missing.
#[cfg(not(feature = "kernel"))]
#[test]
fn signet_needs_an_interpreter() {
    let folder = fixture("signet-120");
    let job = Job {
        params: Params::of(Network::Signet),
        blocksdir: folder.join("blocks"),
        hints: hintsfile(&folder.join("utxo.bip456.hints")),
        aggregate: AggregateKind::Sha256,
        stop_height: None,
        threads: 1,
        memory_bytes: 1 << 20,
        segment_bytes: None,
        checkpoint_interval: Duration::ZERO,
    };
    let out = CrashStorage::new();
    job.run(&CrashStorage::new(), &out).unwrap_err();
    assert!(files(&out).is_empty());
}

//! Made-up values that several tests use.

use super::matrix::{ROOTS, ScriptValidation, Subject};
use super::record::{self, BenchRecord, ChainRecord, OneRun, VERSION};
use super::report::RecordCounts;
use super::report::{ForestResult, PhaseTime, SetResult};
use crate::chain::PageCache;
use crate::floor::{ChainFloor, ChainWork, KernelRates, MachineLimits, WorkRate};
use crate::machine::BenchMachine;
use crate::manifest::{self, ChainManifest};

/// A chain that a node can run on.
pub(crate) fn manifest() -> ChainManifest {
    ChainManifest {
        version: manifest::VERSION,
        profile: "mainnet-like".to_owned(),
        seed: 1,
        busy_blocks: 3,
        tail_blocks: 2_100,
        block_weight: 4_000_000,
        signed: true,
        obfuscated: true,
        height: 2_400,
        tip_hash: "ab".to_owned(),
        assumevalid_height: 300,
        assumevalid_hash: "cd".to_owned(),
        transactions: 4,
        inputs: 5,
        outputs: 6,
        unspendable: 1,
        coins: 2,
        total_amount_sat: 3,
        bytes: 7,
        scripts: Default::default(),
        scale: None,
        sets: Vec::new(),
        spent_within: Default::default(),
    }
}

/// A run of Apus.
pub(super) fn apus(aggregate: &str, par: usize) -> Subject {
    Subject::Apus {
        engine: "swiftsync".to_owned(),
        validation: ScriptValidation::Assumevalid,
        aggregate: Some(aggregate.to_owned()),
        par,
        dbcache_mib: 450,
        output: "null".to_owned(),
    }
}

/// A run that writes the roots of the Utreexo forest.
pub(super) fn roots() -> Subject {
    let mut roots = apus("sha256", 2);
    if let Subject::Apus { output, .. } = &mut roots {
        ROOTS.clone_into(output);
    }
    roots
}

/// A run of the engine that needs no proof, on two threads.
pub(super) fn utxo(validation: ScriptValidation) -> Subject {
    Subject::Apus {
        engine: "utxo".to_owned(),
        validation,
        aggregate: None,
        par: 2,
        dbcache_mib: 450,
        output: "null".to_owned(),
    }
}

/// About two hundred per second for one thread, of every kind of work.
fn limits() -> MachineLimits {
    let rate = WorkRate { one_thread: 2e8, all_threads: 4e8 };
    MachineLimits {
        threads: 2,
        copy_large: rate,
        copy_cached: rate,
        read: rate,
        obfuscation: rate,
        parse: rate,
        muhash: rate,
        write: rate,
        kernels: vec![KernelRates {
            kernel: "avx512".to_owned(),
            transactions: rate,
            transactions_of_one_length: rate,
            merkle_nodes: rate,
            outpoints: rate,
            stream: rate,
        }],
    }
}

/// A benchmark of chains with these names: Apus takes 4 seconds for each with one thread, 2 with two, or 2.25
/// with roots, and bitcoind takes 80.
pub(super) fn record(chains: &[&str]) -> BenchRecord {
    let set = SetResult {
        stop_height: 2_400,
        stop_hash: "ab".to_owned(),
        coins: 2,
        total_amount_sat: 3,
        muhash: Some("mu".to_owned()),
        hash_serialized_3: Some("hs".to_owned()),
        utreexo: Some(ForestResult { leaves: 9, roots: vec!["ef".to_owned()] }),
    };
    let counts = RecordCounts {
        blocks: 2_400,
        transactions: 1_000_000,
        inputs: 5,
        outputs: 6,
        bytes: 800_000_000,
    };
    let work = ChainWork { bytes: 400_000_000, ..ChainWork::default() };
    let floor = ChainFloor::new(work, &limits()).unwrap();
    let chain = |name: &&str| {
        let subjects = [
            (apus("sha256", 1), 4.0),
            (apus("sha256", 2), 2.0),
            (roots(), 2.25),
            (
                Subject::Bitcoind { validation: ScriptValidation::Assumevalid, dbcache_mib: 450 },
                80.0,
            ),
        ];
        let mut measured: Vec<_> = subjects
            .iter()
            .map(|(subject, wall)| {
                // All times are sums of powers of two, which JSON keeps to the last digit.
                let runs = [1.0, 1.25, 0.75].map(|factor| wall * factor);
                let runs = (1..).zip(runs).map(|(round, wall_seconds)| run(round, wall_seconds));
                record::measured(subject, vec!["CHAIN".to_owned()], runs.collect(), &counts)
                    .unwrap()
            })
            .collect();
        record::over_floor(&mut measured, &floor, 2);
        ChainRecord {
            chain: (*name).to_owned(),
            manifest: Some(manifest()),
            counts,
            set: set.clone(),
            bitcoind_set: Some(set.clone()),
            floor: Some(floor.clone()),
            ratios: record::ratios(&measured),
            scaling: record::scaling(&measured),
            outputs: record::outputs(&measured),
            measured,
        }
    };
    BenchRecord {
        version: VERSION,
        date: "2026-11-22T00:34:51Z".to_owned(),
        profile: "full".to_owned(),
        timed: true,
        command: vec!["apus".to_owned(), "bench".to_owned()],
        apus: "0.1.0".to_owned(),
        commit: Some("0123456789ab".to_owned()),
        features: Some(vec!["kernel".to_owned(), "bench".to_owned()]),
        bitcoind: Some("Bitcoin Core".to_owned()),
        bip30_lookups: Some(false),
        machine: BenchMachine::here(),
        page_cache: PageCache::Warm,
        cached_share: Some(1.0),
        rounds: 3,
        limits: Some(limits()),
        chains: chains.iter().map(chain).collect(),
        notes: vec!["a note".to_owned()],
    }
}

fn run(round: u32, wall_seconds: f64) -> OneRun {
    OneRun {
        round,
        wall_seconds,
        cpu_seconds: wall_seconds,
        rss_peak_bytes: Some(50_000_000),
        phases: [("headers", wall_seconds / 64.0), ("blocks", wall_seconds)]
            .map(|(phase, wall_seconds)| PhaseTime { phase: phase.to_owned(), wall_seconds })
            .into(),
        connect_seconds: Some(wall_seconds),
        side_by_side_seconds: Some(2.0 * wall_seconds),
    }
}

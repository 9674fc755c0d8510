//! [`Record`]: everything that a benchmark found. Its JSON is a contract (`docs/formats/bench.md`).
//!
//! What can be derived is in it too, so that a reader need not know how. No path of the machine is:
//! commands name files by where they are in the chain's folder.

use super::cache::PageCache;
use super::matrix::Subject;
use super::report::{PhaseTime, SetResult};
use crate::floor::{ChainFloor, Limits};
use crate::machine::Machine;
use crate::manifest::Manifest;
use crate::stats::Spread;
use serde::{Deserialize, Serialize};

/// Version of the form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 1;

/// A benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Record {
    /// [`VERSION`].
    pub version: u32,
    /// When it began, as `2026-11-22T00:34:51Z`.
    pub date: String,
    /// Name of the profile.
    pub profile: String,
    /// Whether times mean anything: a profile with little work checks results alone.
    pub timed: bool,
    /// What was asked for.
    pub command: Vec<String>,
    /// Version of Apus.
    pub apus: String,
    /// The commit that it was built from, if its builder knew. Older records lack it.
    pub commit: Option<String>,
    /// What was built in that can be left out. Older records lack it.
    pub features: Option<Vec<String>>,
    /// What bitcoind says of itself.
    pub bitcoind: Option<String>,
    /// Whether it looked up every output for BIP-30, as on regtest alone; none where no node took part. Older records
    /// lack it: theirs did.
    pub bip30_lookups: Option<bool>,
    /// Where.
    pub machine: Machine,
    /// How block files lay.
    pub page_cache: PageCache,
    /// Which part of them was in memory before the first run, where the system tells.
    pub cached_share: Option<f64>,
    /// How often each subject was run; all of them once, then again.
    pub rounds: u32,
    /// What the machine can do.
    pub limits: Option<Limits>,
    /// By chain, in the order given.
    pub chains: Vec<ChainRecord>,
    /// What has to be known beside the numbers.
    pub notes: Vec<String>,
}

/// All that was measured on one chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainRecord {
    /// Name of its folder.
    pub chain: String,
    /// What its maker said.
    pub manifest: Option<Manifest>,
    /// How much was processed.
    pub counts: Counts,
    /// The set that every run of Apus led to.
    pub set: SetResult,
    /// The set that bitcoind has, which is the same.
    pub bitcoind_set: Option<SetResult>,
    /// The least that it could take.
    pub floor: Option<ChainFloor>,
    /// By subject.
    pub measured: Vec<Measured>,
    /// Runs of Apus against those of bitcoind with the same memory.
    pub ratios: Vec<Ratio>,
    /// One thread against more of them.
    pub scaling: Vec<Scaling>,
    /// What is written against nothing. Older records lack it.
    #[serde(default)]
    pub outputs: Vec<OutputCost>,
}

/// How much a run processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Counts {
    /// Blocks.
    pub blocks: u64,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Bytes of blocks.
    pub bytes: u64,
}

/// All runs of one subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Measured {
    /// What was run.
    pub subject: Subject,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// One by one.
    pub runs: Vec<OneRun>,
    /// Of the whole process, from outside.
    pub wall_seconds: Spread,
    /// Processor time of all its threads.
    pub cpu_seconds: Spread,
    /// The greatest memory of any run.
    pub rss_peak_bytes: Option<u64>,
    /// Bytes of blocks over the median.
    pub bytes_per_second: f64,
    /// The median over transactions.
    pub ns_per_transaction: f64,
    /// Blocks over the median. Older records lack it.
    pub blocks_per_second: Option<f64>,
    /// Wall time of the phase `headers`, which is done by one thread before all else, over the processor time of all:
    /// the median of the runs.
    pub headers_share: Option<f64>,
    /// The median over the floor of all that a run does, on as many threads.
    pub over_floor: Option<f64>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneRun {
    /// From 1.
    pub round: u32,
    /// From before the process was started until it was gone.
    pub wall_seconds: f64,
    /// Processor time of all its threads.
    pub cpu_seconds: f64,
    /// Greatest memory, without the page cache.
    pub rss_peak_bytes: Option<u64>,
    /// The parts that Apus reports.
    pub phases: Vec<PhaseTime>,
    /// From the first block that bitcoind connected to the last, by its log.
    pub connect_seconds: Option<f64>,
    /// Mean wall time of as many runs as it has threads, with one thread and a processor each, side by side. Older
    /// records lack it.
    #[serde(default)]
    pub side_by_side_seconds: Option<f64>,
}

/// How many times faster Apus was than bitcoind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The subject.
    pub apus: Subject,
    /// The other.
    pub bitcoind: Subject,
    /// Wall time of bitcoind over that of Apus: the medians, and the least and the greatest of the
    /// rounds, each by itself.
    pub times_faster: Spread,
}

/// What an output costs, or hints out of a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputCost {
    /// The subject that writes it; the other writes nothing and differs in nothing else. One with hints out of a snapshot
    /// is held against one with hints out of a hintsfile.
    pub subject: Subject,
    /// Its wall time over that of the other: the medians, and the least and the greatest of the rounds, each by
    /// itself.
    pub over_null: Spread,
}

/// What more threads bring.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// The subject with more threads; the other differs in nothing else.
    pub subject: Subject,
    /// Its threads.
    pub threads: usize,
    /// Median wall time of one thread over that of all.
    pub times_faster: f64,
    /// The same of as many runs with one thread each, side by side, if they had been one: what threads bring that have
    /// nothing in common but the machine. Older records lack it.
    #[serde(default)]
    pub side_by_side: Option<f64>,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::floor::Floor;
    use crate::run::testing::record;
    use crate::{chainstate, prevouts};
    use serde_json::Value;
    use std::collections::BTreeSet;
    use std::path::{Path, PathBuf};

    fn keys(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                // Its own page tells of a manifest.
                for (key, value) in fields.iter().filter(|(key, _)| *key != "manifest") {
                    found.insert(key.clone());
                    keys(value, found);
                }
            }
            Value::Array(values) => values.iter().for_each(|value| keys(value, found)),
            _ => {}
        }
    }

    #[test]
    fn every_field_is_documented() {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/bench.md");
        let page = std::fs::read_to_string(page).unwrap();
        let record = record(&["a"]);
        let floor = Floor {
            version: VERSION,
            machine: record.machine.clone(),
            limits: record.limits.clone().unwrap(),
            chain: record.chains[0].floor.clone(),
        };
        let mut found = BTreeSet::new();
        keys(&serde_json::to_value(&record).unwrap(), &mut found);
        keys(&serde_json::to_value(&floor).unwrap(), &mut found);
        keys(&serde_json::to_value(prevouts::small()).unwrap(), &mut found);
        keys(&serde_json::to_value(chainstate::small()).unwrap(), &mut found);
        assert!(found.len() > 90, "{found:?}");
        for key in found {
            assert!(page.contains(&format!("`{key}`")), "docs/formats/bench.md lacks `{key}`");
        }
    }

    /// All files of that name below a folder.
    fn files(folder: &Path, name: &str) -> Vec<PathBuf> {
        let entries = std::fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
        entries
            .flat_map(|path| match path.is_dir() {
                true => files(&path, name),
                false => Vec::from_iter(path.ends_with(name).then_some(path)),
            })
            .collect()
    }

    #[test]
    fn records_of_all_times_can_be_read() {
        let runs = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../bench/runs");
        let records = files(&runs, "run.json");
        assert!(!records.is_empty(), "{}", runs.display());
        for path in records {
            let text = std::fs::read_to_string(&path).unwrap();
            let record: Record = serde_json::from_str(&text).unwrap();
            assert!(!crate::run::tables(&record).is_empty(), "{}", path.display());
        }
    }

    #[test]
    fn what_was_written_can_be_read() {
        let record = record(&["a", "b"]);
        let text = serde_json::to_string(&record).unwrap();
        let read: Record = serde_json::from_str(&text).unwrap();
        // The last digit of a float may differ.
        assert_eq!(read.chains[1].measured.len(), record.chains[1].measured.len());
        assert_eq!(read.chains[0].measured[0].runs, record.chains[0].measured[0].runs);
        assert_eq!((read.machine, read.limits), (record.machine, record.limits));
        let other = text.replace("\"version\"", "\"further\": [1], \"version\"");
        assert!(serde_json::from_str::<Record>(&other).is_ok(), "fields may be added");
    }
}

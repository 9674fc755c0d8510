//! [`Report`]: what a benchmark reads of the report that `apus sync` writes.
//!
//! `docs/formats/report.md` promises these fields. Others are passed over.

use super::chain::read_json;
use super::error::RunError;
use serde::{Deserialize, Serialize};
use std::path::Path;

/// The version of the form that is read here.
const VERSION: u32 = 1;

/// A run's report, in part.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct Report {
    version: u32,
    /// Kind of the proof.
    pub aggregate: String,
    /// What was found.
    #[serde(flatten)]
    pub set: SetResult,
    /// Transactions, coinbases included.
    pub transactions: u64,
    /// Inputs that spend a coin.
    pub inputs: u64,
    /// Outputs.
    pub outputs: u64,
    /// Bytes of blocks.
    pub bytes: u64,
    /// Processor time.
    pub cpu_seconds: Option<f64>,
    /// Greatest memory.
    pub rss_peak_bytes: Option<u64>,
    /// What took how long.
    pub phases: Vec<PhaseTime>,
}

/// A UTXO set as far as two programs that computed it must agree.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetResult {
    /// The height of the block after which it is the set.
    pub stop_height: u32,
    /// That block.
    pub stop_hash: String,
    /// Coins in it.
    pub coins: u64,
    /// Their sum.
    pub total_amount_sat: u64,
    /// As gettxoutsetinfo shows it.
    pub muhash: String,
    /// As gettxoutsetinfo shows it.
    pub hash_serialized_3: String,
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name.
    pub phase: String,
    /// How long it took.
    pub wall_seconds: f64,
}

impl Report {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, RunError> {
        let report: Self = read_json(path)?;
        if report.version == VERSION {
            return Ok(report);
        }
        let message = format!("a report of version {}, not {VERSION}", report.version);
        Err(RunError::Json { path: path.to_owned(), message })
    }
}

impl SetResult {
    /// The fields in which it differs from `other`, with both values.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let fields = |set: &Self| {
            [
                ("stop_height", set.stop_height.to_string()),
                ("stop_hash", set.stop_hash.clone()),
                ("coins", set.coins.to_string()),
                ("total_amount_sat", set.total_amount_sat.to_string()),
                ("muhash", set.muhash.clone()),
                ("hash_serialized_3", set.hash_serialized_3.clone()),
            ]
        };
        fields(self)
            .into_iter()
            .zip(fields(other))
            .filter(|(one, two)| one != two)
            .map(|((name, one), (_, two))| format!("{name} {one} and {two}"))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    /// The example of the format's own page.
    fn example() -> String {
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/report.md");
        let page = fs::read_to_string(page).unwrap();
        let json = page.split("```json\n").nth(1).unwrap();
        json.split("```").next().unwrap().to_owned()
    }

    #[test]
    fn the_documented_example_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        fs::write(&path, example()).unwrap();
        let report = Report::read(&path).unwrap();
        assert_eq!(report.set.stop_height, 4521);
        assert_eq!(report.set.total_amount_sat, 22_605_000_000_000);
        let phases: Vec<&str> = report.phases.iter().map(|phase| phase.phase.as_str()).collect();
        assert_eq!(phases, ["headers", "hints", "blocks", "coins"]);
        fs::write(&path, example().replace("\"version\": 1", "\"version\": 2")).unwrap();
        let error = Report::read(&path).unwrap_err();
        assert!(error.to_string().contains("a report of version 2"), "{error}");
        fs::write(&path, "{}").unwrap();
        assert!(Report::read(&path).is_err());
    }

    #[test]
    fn every_field_of_a_set_counts() {
        let set = SetResult {
            stop_height: 1,
            stop_hash: "a".to_owned(),
            coins: 2,
            total_amount_sat: 3,
            muhash: "b".to_owned(),
            hash_serialized_3: "c".to_owned(),
        };
        assert!(set.differences(&set).is_empty());
        let others = [
            SetResult { stop_height: 9, ..set.clone() },
            SetResult { stop_hash: "x".to_owned(), ..set.clone() },
            SetResult { coins: 9, ..set.clone() },
            SetResult { total_amount_sat: 9, ..set.clone() },
            SetResult { muhash: "x".to_owned(), ..set.clone() },
            SetResult { hash_serialized_3: "x".to_owned(), ..set.clone() },
        ];
        for other in others {
            assert_eq!(set.differences(&other).len(), 1, "{other:?}");
        }
        let other = SetResult { coins: 9, ..set.clone() };
        assert_eq!(set.differences(&other), ["coins 2 and 9"]);
    }
}

//! [`ApusReport`]: the parts of an `apus sync` report that benchmarks need.
//!
//! `docs/formats/report.md` guarantees these fields. Others are ignored.

use super::matrix::{ScriptValidation, Subject, VERIFY, validating_engine};
use crate::chain::{BenchChain, read_json};
use crate::error::BenchError;
use crate::manifest::ChainManifest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The supported version of the form.
const VERSION: u32 = 1;

/// Part of a run's report.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ApusReport {
    version: u32,
    /// The engine that computed the set.
    pub engine: String,
    /// The script validation.
    pub validation: ScriptValidation,
    /// Kind of the proof; `None` if the engine needs none.
    pub aggregate: Option<String>,
    /// Blocks whose scripts were run.
    pub script_blocks: u64,
    /// The resulting set.
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
    /// Peak memory.
    pub rss_peak_bytes: Option<u64>,
    /// Wall times by phase.
    pub phases: Vec<PhaseTime>,
}

/// The parts of a UTXO set that must agree between two programs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct SetResult {
    /// Height of the block after which this is the set.
    pub stop_height: u32,
    /// Hash of that block.
    pub stop_hash: String,
    /// Coins in it.
    pub coins: u64,
    /// Total value of the coins.
    pub total_amount_sat: u64,
    /// As in gettxoutsetinfo; `None` if the run kept no set.
    pub muhash: Option<String>,
    /// As in gettxoutsetinfo; `None` if the run kept no set.
    pub hash_serialized_3: Option<String>,
    /// The Utreexo forest, if reported.
    pub utreexo: Option<ForestResult>,
}

/// The amounts that a run processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordCounts {
    /// Number of blocks.
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

/// The Utreexo forest at the stop block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForestResult {
    /// Number of leaves ever added.
    pub leaves: u64,
    /// The roots, highest tree first.
    pub roots: Vec<String>,
}

/// A phase of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name.
    pub phase: String,
    /// Its wall time.
    pub wall_seconds: f64,
}

impl ApusReport {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let mut report: Value = read_json(path)?;
        if let Some(Value::Object(proof)) = report.get_mut("proof").map(Value::take) {
            // A report of `apus verify` (`docs/formats/verify.md`) uses the same names for the parts read
            // here.
            report["engine"] = VERIFY.into();
            report.as_object_mut().into_iter().for_each(|report| report.extend(proof.clone()));
        }
        let report: Self =
            serde_json::from_value(report).map_err(|error| BenchError::file(path, error))?;
        if report.version == VERSION {
            return Ok(report);
        }
        let message = format!("report version {}, not {VERSION}", report.version);
        Err(BenchError::file(path, message))
    }

    /// The fields that differ from the subject's settings, with both values: a time only counts for the
    /// intended work. Scripts must be run for every block, or only for blocks above the assumed-valid one.
    pub fn differences(&self, subject: &Subject, manifest: Option<&ChainManifest>) -> Vec<String> {
        let Subject::Apus { engine, validation, aggregate, .. } = subject else {
            return vec!["a report of another program".to_owned()];
        };
        let script_blocks = match (validation, manifest) {
            _ if !subject.sees_coins() => 0,
            (ScriptValidation::Full, _) => self.set.stop_height.into(),
            (ScriptValidation::Assumevalid, Some(manifest)) => {
                self.set.stop_height.saturating_sub(manifest.assumevalid_height).into()
            }
            (ScriptValidation::Assumevalid, None) => self.script_blocks,
        };
        let kind = |aggregate: &Option<String>| aggregate.clone().unwrap_or_else(|| "null".into());
        [
            ("engine", self.engine.clone(), validating_engine(engine).to_owned()),
            ("validation", self.validation.word().into(), validation.word().into()),
            ("aggregate", kind(&self.aggregate), kind(aggregate)),
            ("script_blocks", self.script_blocks.to_string(), script_blocks.to_string()),
        ]
        .into_iter()
        .filter(|(_, found, wanted)| found != wanted)
        .map(|(name, found, wanted)| format!("{name} {found}, not {wanted}"))
        .collect()
    }
}

impl SetResult {
    /// The fields in which it differs from `other`, with both values. Fields missing in either do not count.
    pub fn differences(&self, other: &Self) -> Vec<String> {
        let forest = |set: &Self| {
            let forest = set.utreexo.as_ref()?;
            Some(format!("{} leaves, roots {}", forest.leaves, forest.roots.join(" ")))
        };
        let fields = |set: &Self| {
            [
                ("stop_height", Some(set.stop_height.to_string())),
                ("stop_hash", Some(set.stop_hash.clone())),
                ("coins", Some(set.coins.to_string())),
                ("total_amount_sat", Some(set.total_amount_sat.to_string())),
                ("muhash", set.muhash.clone()),
                ("hash_serialized_3", set.hash_serialized_3.clone()),
                ("utreexo", forest(set)),
            ]
        };
        let differing = |((name, one), (_, two)): ((_, Option<_>), (_, Option<_>))| {
            Some((name, one?, two?)).filter(|(_, one, two)| one != two)
        };
        fields(self)
            .into_iter()
            .zip(fields(other))
            .filter_map(differing)
            .map(|(name, one, two): (&str, String, String)| format!("{name} {one} and {two}"))
            .collect()
    }

    /// Fills in fields that only the other result has.
    pub fn complete(&mut self, other: &Self) {
        let Self { muhash, hash_serialized_3, utreexo, .. } = self;
        *muhash = muhash.take().or_else(|| other.muhash.clone());
        *hash_serialized_3 = hash_serialized_3.take().or_else(|| other.hash_serialized_3.clone());
        *utreexo = utreexo.take().or_else(|| other.utreexo.clone());
    }
}

// ---- whether all results agree ----

/// The reference for all other results: the first one.
#[derive(Debug, Clone)]
pub(super) struct AgreedResult {
    pub(super) who: String,
    pub(super) set: SetResult,
    pub(super) counts: RecordCounts,
}

impl AgreedResult {
    /// The first result, if it matches the chain's manifest.
    pub(super) fn first(
        chain: &BenchChain,
        who: &str,
        report: &ApusReport,
    ) -> Result<Self, BenchError> {
        let counts = RecordCounts {
            blocks: report.set.stop_height.into(),
            transactions: report.transactions,
            inputs: report.inputs,
            outputs: report.outputs,
            bytes: report.bytes,
        };
        let agreed = Self { who: who.to_owned(), set: report.set.clone(), counts };
        let wrong =
            chain.manifest.as_ref().map(|manifest| agreed.against(manifest)).unwrap_or_default();
        different(chain, who, "the chain's manifest", &wrong)?;
        Ok(agreed)
    }

    /// The fields that differ from a manifest, with both values.
    fn against(&self, manifest: &ChainManifest) -> Vec<String> {
        let (set, counts) = (&self.set, &self.counts);
        let numbers = [
            ("stop_height", u64::from(set.stop_height), u64::from(manifest.height)),
            ("coins", set.coins, manifest.coins),
            ("total_amount_sat", set.total_amount_sat, manifest.total_amount_sat),
            ("transactions", counts.transactions, manifest.transactions),
            ("inputs", counts.inputs, manifest.inputs),
            ("outputs", counts.outputs, manifest.outputs),
            ("bytes", counts.bytes, manifest.bytes),
        ];
        let mut wrong: Vec<String> = numbers
            .iter()
            .filter(|(_, found, expected)| found != expected)
            .map(|(name, found, expected)| format!("{name} {found} and {expected}"))
            .collect();
        if set.stop_hash != manifest.tip_hash {
            wrong.push(format!("stop_hash {} and {}", set.stop_hash, manifest.tip_hash));
        }
        wrong
    }

    /// Checks that another result is the same, as far as both report.
    pub(super) fn expect(
        &mut self,
        chain: &BenchChain,
        who: &str,
        other: &SetResult,
    ) -> Result<(), BenchError> {
        different(chain, &self.who, who, &self.set.differences(other))?;
        self.set.complete(other);
        Ok(())
    }
}

fn different(chain: &BenchChain, one: &str, two: &str, what: &[String]) -> Result<(), BenchError> {
    if what.is_empty() {
        return Ok(());
    }
    Err(BenchError::different(format!(
        "{}: {one} and {two} disagree: {}: one of them is wrong, so no times are reported",
        chain.name,
        what.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::{apus, manifest, utxo};
    use std::fs;

    /// The example next to the format's documentation.
    fn example() -> String {
        let file = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/formats/report.json");
        fs::read_to_string(file).unwrap()
    }

    #[test]
    fn the_documented_example_is_read() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.json");
        fs::write(&path, example()).unwrap();
        let report = ApusReport::read(&path).unwrap();
        assert_eq!(report.set.stop_height, 4521);
        assert_eq!(report.set.total_amount_sat, 22_605_000_000_000);
        let phases: Vec<&str> = report.phases.iter().map(|phase| phase.phase.as_str()).collect();
        assert_eq!(phases, ["headers", "hints", "blocks", "coins"]);
        fs::write(&path, example().replace("\"version\": 1", "\"version\": 2")).unwrap();
        let error = ApusReport::read(&path).unwrap_err();
        assert!(error.to_string().contains("report version 2"), "{error}");
        fs::write(&path, "{}").unwrap();
        assert!(ApusReport::read(&path).is_err());
    }

    #[test]
    fn a_report_of_other_work_is_noticed() {
        let known = ChainManifest { height: 4_521, assumevalid_height: 4_000, ..manifest() };
        let differences = |change: &dyn Fn(&mut ApusReport), subject: &Subject| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("report.json");
            fs::write(&path, example()).unwrap();
            let mut report = ApusReport::read(&path).unwrap();
            change(&mut report);
            report.differences(subject, Some(&known)).join(", ")
        };
        assert_eq!(differences(&|_| (), &apus("sha256", 1)), "");
        assert_eq!(differences(&|_| (), &apus("muhash", 1)), "aggregate sha256, not muhash");
        let in_order = |validation, script_blocks| {
            move |report: &mut ApusReport| {
                report.engine = "utxo".to_owned();
                report.aggregate = None;
                (report.validation, report.script_blocks) = (validation, script_blocks);
            }
        };
        let [skips, runs] = [ScriptValidation::Assumevalid, ScriptValidation::Full];
        assert_eq!(differences(&in_order(skips, 521), &utxo(skips)), "");
        assert_eq!(differences(&in_order(runs, 4_521), &utxo(runs)), "");
        assert_eq!(differences(&in_order(skips, 522), &utxo(skips)), "script_blocks 522, not 521");
        assert_eq!(
            differences(&in_order(runs, 4_520), &utxo(runs)),
            "script_blocks 4520, not 4521"
        );
        assert_eq!(
            differences(&in_order(skips, 4_521), &utxo(runs)),
            "validation assumevalid, not full"
        );
        assert_eq!(
            differences(&in_order(skips, 0), &apus("sha256", 1)).matches(", not ").count(),
            2
        );
        let node = Subject::Bitcoind { validation: skips, dbcache_mib: 450 };
        assert_eq!(differences(&|_| (), &node), "a report of another program");
    }

    #[test]
    fn every_field_of_a_set_counts() {
        let set = SetResult {
            stop_height: 1,
            stop_hash: "a".to_owned(),
            coins: 2,
            total_amount_sat: 3,
            muhash: Some("b".to_owned()),
            hash_serialized_3: Some("c".to_owned()),
            utreexo: Some(ForestResult { leaves: 7, roots: vec!["d".to_owned()] }),
        };
        assert!(set.differences(&set).is_empty());
        let others = [
            SetResult { stop_height: 9, ..set.clone() },
            SetResult { stop_hash: "x".to_owned(), ..set.clone() },
            SetResult { coins: 9, ..set.clone() },
            SetResult { total_amount_sat: 9, ..set.clone() },
            SetResult { muhash: Some("x".to_owned()), ..set.clone() },
            SetResult { hash_serialized_3: Some("x".to_owned()), ..set.clone() },
            SetResult {
                utreexo: Some(ForestResult { leaves: 8, roots: vec!["d".to_owned()] }),
                ..set.clone()
            },
            SetResult {
                utreexo: Some(ForestResult { leaves: 7, roots: vec!["x".to_owned()] }),
                ..set.clone()
            },
        ];
        for other in others {
            assert_eq!(set.differences(&other).len(), 1, "{other:?}");
        }
        let other = SetResult { coins: 9, ..set.clone() };
        assert_eq!(set.differences(&other), ["coins 2 and 9"]);
        let mut other =
            SetResult { muhash: None, hash_serialized_3: None, utreexo: None, ..set.clone() };
        assert!(set.differences(&other).is_empty() && other.differences(&set).is_empty());
        other.complete(&set);
        assert_eq!(other, set);
    }
}

#[cfg(test)]
mod equality_tests {
    use super::*;
    use crate::error::ErrorKind;
    use crate::run::tests::manifest;
    use apus_chain::Network;
    use std::path::PathBuf;

    fn report() -> ApusReport {
        serde_json::from_value(serde_json::json!({
            "version": 1, "engine": "swiftsync", "validation": "assumevalid", "aggregate": "sha256",
            "script_blocks": 0, "stop_height": 2_400, "stop_hash": "ab",
            "coins": 2, "total_amount_sat": 3, "muhash": "c", "hash_serialized_3": "d",
            "transactions": 4, "inputs": 5, "outputs": 6, "bytes": 7, "cpu_seconds": null, "rss_peak_bytes": null,
            "phases": []
        }))
        .unwrap()
    }

    fn chain(manifest: Option<ChainManifest>) -> BenchChain {
        BenchChain {
            name: "small".to_owned(),
            folder: PathBuf::new(),
            network: Network::Regtest,
            blocksdir: PathBuf::new(),
            hints: PathBuf::new(),
            manifest,
        }
    }

    #[test]
    fn results_must_match_the_manifest() {
        assert!(AgreedResult::first(&chain(None), "a", &report()).is_ok());
        assert!(AgreedResult::first(&chain(Some(manifest())), "a", &report()).is_ok());
        let others = [
            ChainManifest { height: 8, ..manifest() },
            ChainManifest { tip_hash: "ba".to_owned(), ..manifest() },
            ChainManifest { transactions: 0, ..manifest() },
            ChainManifest { inputs: 0, ..manifest() },
            ChainManifest { outputs: 0, ..manifest() },
            ChainManifest { coins: 0, ..manifest() },
            ChainManifest { total_amount_sat: 0, ..manifest() },
            ChainManifest { bytes: 0, ..manifest() },
        ];
        for other in others {
            let error =
                AgreedResult::first(&chain(Some(other.clone())), "a", &report()).unwrap_err();
            assert!(error.kind() == ErrorKind::Wrong, "{other:?}");
        }
        let other = ChainManifest { coins: 8, ..manifest() };
        let error =
            AgreedResult::first(&chain(Some(other)), "a", &report()).unwrap_err().to_string();
        assert!(error.starts_with("small: a and the chain's manifest disagree: coins 2 and 8:"));
    }

    #[test]
    fn another_result_must_be_the_same() {
        let chain = chain(None);
        let mut agreed = AgreedResult::first(&chain, "a", &report()).unwrap();
        assert!(agreed.expect(&chain, "b", &report().set).is_ok());
        let other = SetResult { muhash: Some("x".to_owned()), ..report().set };
        let error = agreed.expect(&chain, "b", &other).unwrap_err().to_string();
        assert!(error.starts_with("small: a and b disagree: muhash c and x"), "{error}");
    }
}

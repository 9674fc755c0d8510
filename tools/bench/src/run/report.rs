//! [`ApusReport`]: what a benchmark reads of the report that `apus sync` writes.
//!
//! `docs/formats/report.md` promises these fields. Others are passed over.

use super::matrix::{ScriptValidation, Subject, VERIFY, judged_by};
use crate::chain::{BenchChain, read_json};
use crate::error::BenchError;
use crate::manifest::ChainManifest;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use std::path::Path;

/// The version of the form that is read here.
const VERSION: u32 = 1;

/// A run's report, in part.
#[derive(Debug, Clone, PartialEq, Deserialize)]
pub struct ApusReport {
    version: u32,
    /// How the set was computed.
    pub engine: String,
    /// What was checked of scripts.
    pub validation: ScriptValidation,
    /// Kind of the proof; none where none is needed.
    pub aggregate: Option<String>,
    /// Blocks whose scripts were run.
    pub script_blocks: u64,
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
    /// As gettxoutsetinfo shows it; none where the run kept no set.
    pub muhash: Option<String>,
    /// Likewise.
    pub hash_serialized_3: Option<String>,
    /// The Utreexo forest, where the run told of it.
    pub utreexo: Option<ForestResult>,
}

/// How much a run processed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct RecordCounts {
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

/// What the Utreexo forest is at the stop block.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ForestResult {
    /// Leaves that there have ever been.
    pub leaves: u64,
    /// The roots, highest tree first.
    pub roots: Vec<String>,
}

/// A part of a run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct PhaseTime {
    /// Its name.
    pub phase: String,
    /// How long it took.
    pub wall_seconds: f64,
}

impl ApusReport {
    /// Reads the file.
    pub fn read(path: &Path) -> Result<Self, BenchError> {
        let mut report: Value = read_json(path)?;
        if let Some(Value::Object(proof)) = report.get_mut("proof").map(Value::take) {
            // Of `apus verify` (`docs/formats/verify.md`): what it proved has the names that it has here.
            report["engine"] = VERIFY.into();
            report.as_object_mut().into_iter().for_each(|report| report.extend(proof.clone()));
        }
        let report: Self =
            serde_json::from_value(report).map_err(|error| BenchError::file(path, error))?;
        if report.version == VERSION {
            return Ok(report);
        }
        let message = format!("a report of version {}, not {VERSION}", report.version);
        Err(BenchError::file(path, message))
    }

    /// What it says otherwise than the run was told to do, with both values: a time counts for the
    /// work that it was measured for. Scripts are to be run of every block, or of those above the
    /// assumed-valid one alone.
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
            ("engine", self.engine.clone(), judged_by(engine).to_owned()),
            ("validation", self.validation.word().into(), validation.word().into()),
            ("aggregate", kind(&self.aggregate), kind(aggregate)),
            ("script_blocks", self.script_blocks.to_string(), script_blocks.to_string()),
        ]
        .into_iter()
        .filter(|(_, found, wanted)| found != wanted)
        .map(|(name, found, wanted)| format!("{name} {found} and not {wanted}"))
        .collect()
    }
}

impl SetResult {
    /// The fields in which it differs from `other`, with both values. What one of them does not tell is no
    /// difference.
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
        let told = |((name, one), (_, two)): ((_, Option<_>), (_, Option<_>))| {
            Some((name, one?, two?)).filter(|(_, one, two)| one != two)
        };
        fields(self)
            .into_iter()
            .zip(fields(other))
            .filter_map(told)
            .map(|(name, one, two): (&str, String, String)| format!("{name} {one} and {two}"))
            .collect()
    }

    /// Takes over what another result tells that this one does not.
    pub fn complete(&mut self, other: &Self) {
        let Self { muhash, hash_serialized_3, utreexo, .. } = self;
        *muhash = muhash.take().or_else(|| other.muhash.clone());
        *hash_serialized_3 = hash_serialized_3.take().or_else(|| other.hash_serialized_3.clone());
        *utreexo = utreexo.take().or_else(|| other.utreexo.clone());
    }
}

// ---- whether all runs came to the same result ----

/// The result that all others are held against: the first one.
#[derive(Debug, Clone)]
pub(super) struct AgreedResult {
    pub(super) who: String,
    pub(super) set: SetResult,
    pub(super) counts: RecordCounts,
}

impl AgreedResult {
    /// The first result, if it is what the chain's maker said.
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
        let wrong = chain.manifest.as_ref().map(|said| agreed.against(said)).unwrap_or_default();
        different(chain, who, "the chain's manifest", &wrong)?;
        Ok(agreed)
    }

    /// The fields that a manifest has otherwise, with both values.
    fn against(&self, said: &ChainManifest) -> Vec<String> {
        let (set, counts) = (&self.set, &self.counts);
        let numbers = [
            ("stop_height", u64::from(set.stop_height), u64::from(said.height)),
            ("coins", set.coins, said.coins),
            ("total_amount_sat", set.total_amount_sat, said.total_amount_sat),
            ("transactions", counts.transactions, said.transactions),
            ("inputs", counts.inputs, said.inputs),
            ("outputs", counts.outputs, said.outputs),
            ("bytes", counts.bytes, said.bytes),
        ];
        let mut wrong: Vec<String> = numbers
            .iter()
            .filter(|(_, found, said)| found != said)
            .map(|(name, found, said)| format!("{name} {found} and {said}"))
            .collect();
        if set.stop_hash != said.tip_hash {
            wrong.push(format!("stop_hash {} and {}", set.stop_hash, said.tip_hash));
        }
        wrong
    }

    /// Another result must be the same, as far as both tell.
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
        "{}: {one} and {two} do not agree: {}: one of them is wrong, so no time counts",
        chain.name,
        what.join(", ")
    )))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::{apus, manifest, utxo};
    use std::fs;

    /// The example beside the format's own page.
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
        assert!(error.to_string().contains("a report of version 2"), "{error}");
        fs::write(&path, "{}").unwrap();
        assert!(ApusReport::read(&path).is_err());
    }

    #[test]
    fn a_report_of_other_work_is_noticed() {
        let known = ChainManifest { height: 4_521, assumevalid_height: 4_000, ..manifest() };
        let said = |change: &dyn Fn(&mut ApusReport), subject: &Subject| {
            let folder = tempfile::tempdir().unwrap();
            let path = folder.path().join("report.json");
            fs::write(&path, example()).unwrap();
            let mut report = ApusReport::read(&path).unwrap();
            change(&mut report);
            report.differences(subject, Some(&known)).join(", ")
        };
        assert_eq!(said(&|_| (), &apus("sha256", 1)), "");
        assert_eq!(said(&|_| (), &apus("muhash", 1)), "aggregate sha256 and not muhash");
        let in_order = |validation, script_blocks| {
            move |report: &mut ApusReport| {
                report.engine = "utxo".to_owned();
                report.aggregate = None;
                (report.validation, report.script_blocks) = (validation, script_blocks);
            }
        };
        let [skips, runs] = [ScriptValidation::Assumevalid, ScriptValidation::Full];
        assert_eq!(said(&in_order(skips, 521), &utxo(skips)), "");
        assert_eq!(said(&in_order(runs, 4_521), &utxo(runs)), "");
        assert_eq!(said(&in_order(skips, 522), &utxo(skips)), "script_blocks 522 and not 521");
        assert_eq!(said(&in_order(runs, 4_520), &utxo(runs)), "script_blocks 4520 and not 4521");
        assert_eq!(
            said(&in_order(skips, 4_521), &utxo(runs)),
            "validation assumevalid and not full"
        );
        assert_eq!(said(&in_order(skips, 0), &apus("sha256", 1)).matches(" and not ").count(), 2);
        let node = Subject::Bitcoind { validation: skips, dbcache_mib: 450 };
        assert_eq!(said(&|_| (), &node), "a report of another program");
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
    fn what_the_maker_said_must_be_found() {
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
        assert!(
            error.starts_with("small: a and the chain's manifest do not agree: coins 2 and 8:")
        );
    }

    #[test]
    fn another_result_must_be_the_same() {
        let chain = chain(None);
        let mut agreed = AgreedResult::first(&chain, "a", &report()).unwrap();
        assert!(agreed.expect(&chain, "b", &report().set).is_ok());
        let other = SetResult { muhash: Some("x".to_owned()), ..report().set };
        let error = agreed.expect(&chain, "b", &other).unwrap_err().to_string();
        assert!(error.starts_with("small: a and b do not agree: muhash c and x"), "{error}");
    }
}

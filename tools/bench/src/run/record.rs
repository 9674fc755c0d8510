//! [`BenchRecord`]: all results of a benchmark. Its JSON is a contract: fields may be added, but never change
//! their meaning.
//!
//! It includes derived values, so that readers need no formulas. It contains no paths of the machine:
//! commands name files relative to the chain's folder.

use super::matrix::Subject;
use super::report::{PhaseTime, RecordCounts, SetResult};
use crate::chain::PageCache;
use crate::floor::{ChainFloor, MachineLimits};
use crate::machine::BenchMachine;
use crate::manifest::ChainManifest;
use crate::process::Usage;
use crate::table::MeasuredSpread;
use serde::{Deserialize, Serialize};

/// Version of the form. New fields keep it; changed meanings increment it.
pub const VERSION: u32 = 1;

/// A benchmark.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct BenchRecord {
    /// [`VERSION`].
    pub version: u32,
    /// When it began, as `2026-11-22T00:34:51Z`.
    pub date: String,
    /// Name of the profile.
    pub profile: String,
    /// Whether times mean anything: a profile with little work only checks results.
    pub timed: bool,
    /// The command line.
    pub command: Vec<String>,
    /// Version of Apus.
    pub apus: String,
    /// The commit that it was built from, if the build recorded it. Older records lack it.
    pub commit: Option<String>,
    /// Its optional features. Older records lack it.
    pub features: Option<Vec<String>>,
    /// Version string of bitcoind.
    pub bitcoind: Option<String>,
    /// Whether it looked up every output for BIP-30, as nodes do on regtest only; `None` without a node.
    /// Older records lack it: their nodes did.
    pub bip30_lookups: Option<bool>,
    /// The machine that ran the benchmark.
    pub machine: BenchMachine,
    /// State of the page cache for the block files.
    pub page_cache: PageCache,
    /// Share of them in memory before the first run, if the system reports it.
    pub cached_share: Option<f64>,
    /// Number of rounds; each round runs all subjects once.
    pub rounds: u32,
    /// The machine's limits.
    pub limits: Option<MachineLimits>,
    /// By chain, in the order given.
    pub chains: Vec<ChainRecord>,
    /// Facts needed to interpret the numbers.
    pub notes: Vec<String>,
}

/// All measurements on one chain.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct ChainRecord {
    /// Name of its folder.
    pub chain: String,
    /// The maker's description.
    pub manifest: Option<ChainManifest>,
    /// The amounts processed.
    pub counts: RecordCounts,
    /// The set that every run of Apus produced.
    pub set: SetResult,
    /// The set of bitcoind, which is the same.
    pub bitcoind_set: Option<SetResult>,
    /// The lower bound of the time.
    pub floor: Option<ChainFloor>,
    /// By subject.
    pub measured: Vec<SubjectMeasured>,
    /// Runs of Apus against runs of bitcoind with the same memory.
    pub ratios: Vec<Ratio>,
    /// One thread against more of them.
    pub scaling: Vec<Scaling>,
    /// Runs with an output against runs without. Older records lack it.
    #[serde(default)]
    pub outputs: Vec<OutputCost>,
}

/// All runs of one subject.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SubjectMeasured {
    /// The subject.
    pub subject: Subject,
    /// Its arguments.
    pub arguments: Vec<String>,
    /// The individual runs.
    pub runs: Vec<OneRun>,
    /// Wall time of the whole process, measured from outside.
    pub wall_seconds: MeasuredSpread,
    /// Processor time of all its threads.
    pub cpu_seconds: MeasuredSpread,
    /// The peak memory over all runs.
    pub rss_peak_bytes: Option<u64>,
    /// Bytes of blocks over the median time.
    pub bytes_per_second: f64,
    /// The median time over transactions.
    pub ns_per_transaction: f64,
    /// Blocks over the median time. Older records lack it.
    pub blocks_per_second: Option<f64>,
    /// Wall time of the phase `headers`, in which one thread works before all others start, over the
    /// processor time of all: the median of the runs.
    pub headers_share: Option<f64>,
    /// The median time over the floor of a whole run with as many threads.
    pub over_floor: Option<f64>,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OneRun {
    /// The round, counted from 1.
    pub round: u32,
    /// Wall time from before the process starts until it is gone.
    pub wall_seconds: f64,
    /// Processor time of all its threads.
    pub cpu_seconds: f64,
    /// Peak memory, without the page cache.
    pub rss_peak_bytes: Option<u64>,
    /// The phases that Apus reports.
    pub phases: Vec<PhaseTime>,
    /// From the first block that bitcoind connected to the last, by its log.
    pub connect_seconds: Option<f64>,
    /// Mean wall time of concurrent single-threaded runs, as many as this run has threads, each on its own
    /// processor. Older records lack it.
    #[serde(default)]
    pub side_by_side_seconds: Option<f64>,
}

/// How many times faster Apus was than bitcoind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Ratio {
    /// The subject.
    pub apus: Subject,
    /// The other program's subject.
    pub bitcoind: Subject,
    /// Wall time of bitcoind divided by Apus's: the ratio of the medians, and the lowest and highest ratio of
    /// any round.
    pub times_faster: MeasuredSpread,
}

/// The cost of an output, or of hints from a snapshot.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct OutputCost {
    /// The subject that writes it; the other subject writes nothing and is otherwise the same. A subject with
    /// hints from a snapshot is compared with one with hints from a hintsfile.
    pub subject: Subject,
    /// The first subject's wall time divided by the other's: the ratio of the medians, and the lowest and
    /// highest ratio of any round.
    pub over_null: MeasuredSpread,
}

/// The gain from more threads.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Scaling {
    /// The subject with more threads; the other is otherwise the same.
    pub subject: Subject,
    /// Its threads.
    pub threads: usize,
    /// Median wall time with one thread divided by that with all.
    pub times_faster: f64,
    /// The same ratio for as many concurrent single-threaded runs, counted as one, in place of threads: the gain
    /// if runs share only the machine. Older records lack it.
    #[serde(default)]
    pub side_by_side: Option<f64>,
}

// ---- derived numbers ----

impl OneRun {
    /// A run with only its process's usage.
    pub(crate) fn of(round: u32, usage: Usage) -> Self {
        let Usage { wall_seconds, cpu_seconds, rss_peak_bytes } = usage;
        Self {
            round,
            wall_seconds,
            cpu_seconds,
            rss_peak_bytes,
            phases: Vec::new(),
            connect_seconds: None,
            side_by_side_seconds: None,
        }
    }
}

/// Combines all runs of one subject; `None` without runs.
pub(super) fn measured(
    subject: &Subject,
    arguments: Vec<String>,
    runs: Vec<OneRun>,
    counts: &RecordCounts,
) -> Option<SubjectMeasured> {
    let spread =
        |of: fn(&OneRun) -> f64| MeasuredSpread::of(&runs.iter().map(of).collect::<Vec<_>>());
    let wall_seconds = spread(|run| run.wall_seconds)?;
    Some(SubjectMeasured {
        subject: subject.clone(),
        arguments,
        wall_seconds,
        cpu_seconds: spread(|run| run.cpu_seconds)?,
        rss_peak_bytes: runs.iter().filter_map(|run| run.rss_peak_bytes).max(),
        bytes_per_second: counts.bytes as f64 / wall_seconds.median,
        ns_per_transaction: wall_seconds.median * 1e9 / counts.transactions.max(1) as f64,
        blocks_per_second: Some(counts.blocks as f64 / wall_seconds.median),
        headers_share: headers_share(&runs),
        over_floor: None,
        runs,
    })
}

/// The share of all work that one thread does before the others start; `None` if no run reports it.
fn headers_share(runs: &[OneRun]) -> Option<f64> {
    let share = |run: &OneRun| {
        let headers = run.phases.iter().find(|phase| phase.phase == "headers")?;
        (run.cpu_seconds > 0.0).then(|| headers.wall_seconds / run.cpu_seconds)
    };
    Some(MeasuredSpread::of(&runs.iter().filter_map(share).collect::<Vec<_>>())?.median)
}

/// Sets each subject's ratio to the floor for as many threads, if known: `threads` is the floor's number for
/// all threads.
pub(super) fn over_floor(measured: &mut [SubjectMeasured], floor: &ChainFloor, threads: usize) {
    for measured in measured {
        let Subject::Apus { aggregate, par, .. } = &measured.subject else { continue };
        let Some(of) = aggregate.as_deref().and_then(|kind| floor.of(kind)) else { continue };
        let floor_ms = match *par {
            1 => of.run.one_thread_ms,
            par if par == threads => of.run.all_threads_ms,
            _ => continue,
        };
        measured.over_floor = Some(measured.wall_seconds.median * 1e3 / floor_ms);
    }
}

/// Each subject of Apus against bitcoind with the same memory and script validation.
pub(super) fn ratios(measured: &[SubjectMeasured]) -> Vec<Ratio> {
    let nodes = || measured.iter().filter(|it| matches!(it.subject, Subject::Bitcoind { .. }));
    let mut ratios = Vec::new();
    for apus in measured.iter().filter(|it| matches!(it.subject, Subject::Apus { .. })) {
        let alike = |subject: &Subject| (subject.dbcache_mib(), subject.validation());
        for node in nodes().filter(|node| alike(&node.subject) == alike(&apus.subject)) {
            ratios.extend(ratio(apus, node));
        }
    }
    ratios
}

fn ratio(apus: &SubjectMeasured, node: &SubjectMeasured) -> Option<Ratio> {
    let times_faster = times_as_long(node, apus)?;
    Some(Ratio { apus: apus.subject.clone(), bitcoind: node.subject.clone(), times_faster })
}

/// Wall time of one subject divided by another's; `None` if they have no round in common.
fn times_as_long(one: &SubjectMeasured, other: &SubjectMeasured) -> Option<MeasuredSpread> {
    let pairs = other.runs.iter().filter_map(|run| {
        let peer = one.runs.iter().find(|peer| peer.round == run.round)?;
        Some((peer.wall_seconds, run.wall_seconds))
    });
    let (ones, others): (Vec<f64>, Vec<f64>) = pairs.unzip();
    MeasuredSpread::of_ratios(&ones, &others)
}

/// Each subject with an output against the same one without, and hints from a snapshot against hints from a
/// hintsfile.
pub(super) fn outputs(measured: &[SubjectMeasured]) -> Vec<OutputCost> {
    let cost = |it: &SubjectMeasured| {
        let plainer = it.subject.plainer().filter(|plainer| *plainer != it.subject)?;
        let plainer = measured.iter().find(|other| other.subject == plainer)?;
        let over_null = times_as_long(it, plainer)?;
        Some(OutputCost { subject: it.subject.clone(), over_null })
    };
    measured.iter().filter_map(cost).collect()
}

/// Each subject with more than one thread against the same with one.
pub(super) fn scaling(measured: &[SubjectMeasured]) -> Vec<Scaling> {
    let mut found = Vec::new();
    for many in measured {
        let Subject::Apus { par: threads @ 2.., .. } = many.subject else { continue };
        let single = with_one_thread(&many.subject);
        if let Some(one) = measured.iter().find(|it| Some(&it.subject) == single.as_ref()) {
            let one_seconds = one.wall_seconds.median;
            let concurrent: Vec<f64> =
                many.runs.iter().filter_map(|run| run.side_by_side_seconds).collect();
            found.push(Scaling {
                subject: many.subject.clone(),
                threads,
                times_faster: one_seconds / many.wall_seconds.median,
                side_by_side: MeasuredSpread::of(&concurrent)
                    .map(|concurrent| threads as f64 * one_seconds / concurrent.median),
            });
        }
    }
    found
}

pub(super) fn with_one_thread(subject: &Subject) -> Option<Subject> {
    let mut single = subject.clone();
    match &mut single {
        Subject::Apus { par, .. } => *par = 1,
        Subject::Bitcoind { .. } => return None,
    }
    Some(single)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::run::tests::record;
    use std::path::{Path, PathBuf};

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
            let record: BenchRecord = serde_json::from_str(&text).unwrap();
            assert!(!crate::run::tables(&record).is_empty(), "{}", path.display());
        }
    }

    #[test]
    fn written_records_can_be_read() {
        let record = record(&["a", "b"]);
        let text = serde_json::to_string(&record).unwrap();
        let read: BenchRecord = serde_json::from_str(&text).unwrap();
        // The last digit of a float may differ.
        assert_eq!(read.chains[1].measured.len(), record.chains[1].measured.len());
        assert_eq!(read.chains[0].measured[0].runs, record.chains[0].measured[0].runs);
        assert_eq!((read.machine, read.limits), (record.machine, record.limits));
        let other = text.replace("\"version\"", "\"further\": [1], \"version\"");
        assert!(serde_json::from_str::<BenchRecord>(&other).is_ok(), "fields may be added");
    }
}

#[cfg(test)]
mod derive_tests {
    use super::*;
    use crate::floor::{ChainWork, FloorOf, FloorTimes};
    use crate::run::matrix::{SNAPSHOT_HINTS, ScriptValidation};
    use crate::run::report::PhaseTime;
    use crate::run::tests::{roots, utxo};

    const COUNTS: RecordCounts =
        RecordCounts { blocks: 10, transactions: 1_000, inputs: 1, outputs: 1, bytes: 1_000_000 };

    fn apus(aggregate: &str, par: usize) -> Subject {
        Subject::Apus {
            engine: "e".to_owned(),
            validation: ScriptValidation::Assumevalid,
            aggregate: Some(aggregate.to_owned()),
            par,
            dbcache_mib: 450,
            output: "null".to_owned(),
        }
    }

    fn of(subject: Subject, walls: &[f64]) -> SubjectMeasured {
        let run = |(round, wall_seconds): (u32, &f64)| OneRun {
            round,
            wall_seconds: *wall_seconds,
            cpu_seconds: 2.0 * wall_seconds,
            rss_peak_bytes: (round != 1).then_some(u64::from(round)),
            phases: Vec::new(),
            connect_seconds: None,
            side_by_side_seconds: (wall_seconds < &1.0).then_some(1.25),
        };
        measured(&subject, Vec::new(), (1..).zip(walls).map(run).collect(), &COUNTS).unwrap()
    }

    #[test]
    fn rates_use_the_median_and_memory_the_worst() {
        let measured = of(apus("a", 1), &[0.1, 0.4, 0.2]);
        assert_eq!(measured.wall_seconds, MeasuredSpread { median: 0.2, min: 0.1, max: 0.4 });
        assert_eq!(measured.cpu_seconds.median, 0.4);
        assert_eq!(measured.rss_peak_bytes, Some(3));
        assert_eq!(measured.bytes_per_second, 5_000_000.0);
        assert_eq!(measured.ns_per_transaction, 200_000.0);
        assert_eq!(super::measured(&apus("a", 1), Vec::new(), Vec::new(), &COUNTS), None);
    }

    #[test]
    fn ratios_compare_equal_memory_and_the_same_rounds() {
        let node = |dbcache_mib| Subject::Bitcoind {
            validation: ScriptValidation::Assumevalid,
            dbcache_mib,
        };
        let all = [
            of(apus("a", 1), &[1.0, 2.0, 1.0]),
            of(node(450), &[20.0, 30.0, 40.0]),
            of(node(900), &[1.0, 1.0, 1.0]),
        ];
        let ratios = ratios(&all);
        assert_eq!(ratios.len(), 1);
        assert_eq!(ratios[0].bitcoind, node(450));
        assert_eq!(ratios[0].times_faster, MeasuredSpread { median: 30.0, min: 15.0, max: 40.0 });
    }

    #[test]
    fn runs_with_scripts_are_compared_with_runs_with_scripts() {
        let both = [ScriptValidation::Assumevalid, ScriptValidation::Full];
        let node = |validation| Subject::Bitcoind { validation, dbcache_mib: 450 };
        let mut all: Vec<SubjectMeasured> = both.map(|it| of(utxo(it), &[1.0])).into();
        all.extend(both.map(|it| of(node(it), &[2.0])));
        let found: Vec<_> = ratios(&all).into_iter().map(|it| (it.apus, it.bitcoind)).collect();
        assert_eq!(found, both.map(|it| (utxo(it), node(it))));
    }

    #[test]
    fn an_output_is_compared_with_none() {
        let all = [
            of(crate::run::tests::apus("sha256", 2), &[1.0, 2.0]),
            of(roots(), &[1.5, 2.2]),
            of(crate::run::tests::apus("sha256", 1), &[4.0]),
        ];
        let [cost] = &outputs(&all)[..] else { panic!("{:?}", outputs(&all)) };
        assert_eq!(cost.subject, roots());
        assert!((cost.over_null.median - 3.7 / 3.0).abs() < 1e-9, "{cost:?}");
        assert_eq!((cost.over_null.min, cost.over_null.max), (1.1, 1.5));
        assert!(outputs(&all[1..]).is_empty());
        let file = of(crate::run::tests::apus("sha256", 2), &[2.0]);
        let mut snapshot = file.clone();
        if let Subject::Apus { engine, .. } = &mut snapshot.subject {
            SNAPSHOT_HINTS.clone_into(engine);
        }
        let found = outputs(&[file, snapshot.clone()]);
        assert_eq!((found.len(), &found[0].subject), (1, &snapshot.subject));
    }

    #[test]
    fn the_share_of_headers_is_relative_to_all_work() {
        let mut measured = of(apus("a", 1), &[2.0, 2.0, 2.0]);
        assert_eq!((measured.blocks_per_second, measured.headers_share), (Some(5.0), None));
        for (run, wall_seconds) in measured.runs.iter_mut().zip([0.5, 1.0, 2.0]) {
            run.phases = vec![PhaseTime { phase: "headers".to_owned(), wall_seconds }];
        }
        assert_eq!(headers_share(&measured.runs), Some(0.25));
    }

    #[test]
    fn scaling_compares_subjects_that_differ_only_in_threads() {
        let all = [
            of(apus("a", 1), &[1.0]),
            of(apus("a", 2), &[0.5]),
            of(apus("b", 2), &[0.1]),
            of(apus("a", 4), &[0.25]),
        ];
        let found: Vec<_> =
            scaling(&all).iter().map(|it| (it.threads, it.times_faster, it.side_by_side)).collect();
        assert_eq!(found, [(2, 2.0, Some(1.6)), (4, 4.0, Some(3.2))]);
    }

    #[test]
    fn the_floor_has_the_same_threads_and_proof() {
        let times = |one_thread_ms, all_threads_ms| FloorTimes { one_thread_ms, all_threads_ms };
        let run = times(100.0, 50.0);
        let floor = ChainFloor {
            work: ChainWork::default(),
            items: Vec::new(),
            floors: vec![FloorOf { aggregate: "a".to_owned(), validation: run, run }],
        };
        let mut all = [
            of(apus("a", 1), &[0.15]),
            of(apus("a", 2), &[0.10]),
            of(apus("a", 3), &[0.1]),
            of(apus("b", 1), &[0.1]),
            of(utxo(ScriptValidation::Assumevalid), &[0.1]),
        ];
        over_floor(&mut all, &floor, 2);
        let found: Vec<Option<f64>> = all.iter().map(|it| it.over_floor).collect();
        assert_eq!(found, [Some(1.5), Some(2.0), None, None, None]);
    }
}

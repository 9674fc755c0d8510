//! The runs of a benchmark: [`Subject`]s, made from tables of data.
//!
//! A new engine is a row of `ENGINES`; a new kind of benchmark is a row of [`profiles`]. The rest of this
//! crate only names engines that need a special way to start.

use ScriptValidation::{Assumevalid, Full};
use ThreadCount::{Cores, Count};

pub use super::subject::{
    CHAINSTATE, COINS, PROOFS, PROVE, ROOTS, SNAPSHOT_HINTS, ScriptValidation, Subject,
    SubjectNames, UTREEXO, VERIFY, connects, validating_engine,
};

/// An engine with its variants.
struct BenchEngine {
    engine: &'static str,
    validations: &'static [ScriptValidation],
    /// Kinds of proof; empty if it needs no proof.
    aggregates: &'static [&'static str],
}

/// All engines. The aggregate `none` sums nothing: it proves nothing, and bounds the cost of a proof.
const ENGINES: &[BenchEngine] = &[
    BenchEngine {
        engine: "swiftsync",
        validations: BOTH,
        aggregates: &["none", "sha256", "muhash", COINS],
    },
    BenchEngine {
        engine: SNAPSHOT_HINTS,
        validations: &[ScriptValidation::Assumevalid],
        aggregates: &["sha256"],
    },
    BenchEngine { engine: VERIFY, validations: BOTH, aggregates: &[] },
    BenchEngine { engine: "utxo", validations: BOTH, aggregates: &[] },
    BenchEngine { engine: "mergesync", validations: BOTH, aggregates: &[] },
    BenchEngine { engine: UTREEXO, validations: BOTH, aggregates: &[] },
    BenchEngine { engine: PROVE, validations: BOTH, aggregates: &[] },
];

/// With scripts skipped, and with scripts validated.
pub(super) const BOTH: &[ScriptValidation] =
    &[ScriptValidation::Assumevalid, ScriptValidation::Full];

/// A number of threads, before the machine is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ThreadCount {
    /// This number.
    Count(usize),
    /// One for each core.
    Cores,
}

/// A set of runs: the product of all its values.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// The engine.
    pub engine: String,
    /// Kinds of script validation.
    pub validations: Vec<ScriptValidation>,
    /// Kinds of proof; ignored by an engine without any.
    pub aggregates: Vec<String>,
    /// Worker threads.
    pub par: Vec<ThreadCount>,
    /// Memory for buffers, in MiB.
    pub dbcache_mib: Vec<u64>,
    /// Outputs: `null`, `snapshot`, `chainstate`, `utreexo` or `proofs`.
    pub outputs: Vec<String>,
}

/// The first grid of each engine and validation: it provides the defaults if the user selects the runs.
pub fn first_of_each(grids: Vec<Grid>) -> Vec<Grid> {
    let mut first: Vec<Grid> = Vec::new();
    for grid in grids {
        let same = |it: &Grid| it.engine == grid.engine && it.validations == grid.validations;
        if !first.iter().any(same) {
            first.push(grid);
        }
    }
    first
}

/// Every run of Apus in the grids, once each, on a machine with this many cores.
pub fn subjects(grids: &[Grid], cores: usize) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for grid in grids {
        let Some(engine) = ENGINES.iter().find(|engine| engine.engine == grid.engine) else {
            continue;
        };
        let known = |validation: &&ScriptValidation| engine.validations.contains(validation);
        for &validation in grid.validations.iter().filter(known) {
            for aggregate in engine.aggregates_of(grid, validation) {
                for (dbcache_mib, par, output) in places(grid) {
                    let par = match par {
                        ThreadCount::Count(count) => count,
                        ThreadCount::Cores => cores,
                    };
                    let subject = Subject::Apus {
                        engine: grid.engine.clone(),
                        validation,
                        aggregate: aggregate.clone(),
                        par,
                        dbcache_mib,
                        output: output.clone(),
                    };
                    if !subjects.contains(&subject) {
                        subjects.push(subject);
                    }
                }
            }
        }
    }
    subjects
}

impl BenchEngine {
    /// The engine's own kinds of proof in a grid; a single "none" if it needs no proof. An aggregate of
    /// outpoints alone cannot validate scripts.
    fn aggregates_of(&self, grid: &Grid, validation: ScriptValidation) -> Vec<Option<String>> {
        if self.aggregates.is_empty() {
            return vec![None];
        }
        let known = |aggregate: &&String| {
            self.aggregates.contains(&aggregate.as_str())
                && (validation == ScriptValidation::Assumevalid || *aggregate == COINS)
        };
        grid.aggregates.iter().filter(known).cloned().map(Some).collect()
    }
}

fn places(grid: &Grid) -> impl Iterator<Item = (u64, ThreadCount, &String)> {
    grid.dbcache_mib.iter().flat_map(move |&dbcache_mib| {
        grid.par
            .iter()
            .flat_map(move |&par| grid.outputs.iter().map(move |output| (dbcache_mib, par, output)))
    })
}

/// Whether the engine of this name has a choice of proofs.
pub fn has_aggregates(name: &str) -> bool {
    ENGINES.iter().any(|engine| engine.engine == name && !engine.aggregates.is_empty())
}

/// Values of `--aggregate`.
pub fn aggregates() -> impl Iterator<Item = &'static str> {
    let own = ENGINES.iter().filter(|engine| engine.engine != SNAPSHOT_HINTS);
    own.flat_map(|engine| engine.aggregates.iter().copied())
}

// ---- profiles ----

/// A kind of benchmark.
pub struct BenchProfile {
    /// Its name.
    pub name: &'static str,
    /// Its purpose, as one line for `--help`.
    pub about: &'static str,
    /// Number of rounds.
    pub rounds: u32,
    /// Whether its times mean anything: they do not with little work.
    pub timed: bool,
    /// The default chain, made if none is given.
    pub chain: ProfileChain,
    /// The runs of Apus.
    pub grids: Vec<Grid>,
    /// The runs of the node: kind of script validation, and memory in MiB.
    nodes: Vec<(ScriptValidation, &'static [u64])>,
}

/// A chain to make: see [`maker::MakeOptions`](crate::maker::MakeOptions).
pub struct ProfileChain {
    /// Full blocks.
    pub blocks: u32,
    /// Their target weight.
    pub block_weight: u32,
}

/// About 1.05 GB.
const LONG: ProfileChain = ProfileChain { blocks: 620, block_weight: 4_000_000 };
/// About 200 MB, for runs that validate scripts.
const SHORT: ProfileChain = ProfileChain { blocks: 120, block_weight: 4_000_000 };

/// Less memory than the coins of a chain need.
const DBCACHE_MIB_SMALL: u64 = 16;
/// The minimum of `apus sync --dbcache`.
const DBCACHE_MIB_MIN: u64 = 4;
/// A typical value for a node's initial sync.
const DBCACHE_MIB_LARGE: u64 = 4_500;

const SKIPPED: &[ScriptValidation] = &[Assumevalid];
const RUN: &[ScriptValidation] = &[Full];
const ONE_AND_ALL: &[ThreadCount] = &[Count(1), Cores];

/// A grid on all cores, with the usual memory and without output.
fn usual(engine: &str, validations: &[ScriptValidation], aggregates: &[&str]) -> Grid {
    Grid {
        engine: engine.to_owned(),
        validations: validations.to_vec(),
        aggregates: words(aggregates),
        par: vec![Cores],
        dbcache_mib: vec![450],
        outputs: words(&["null"]),
    }
}

fn words(words: &[&str]) -> Vec<String> {
    words.iter().map(|word| (*word).to_owned()).collect()
}

impl Grid {
    fn par(self, par: &[ThreadCount]) -> Self {
        Self { par: par.to_vec(), ..self }
    }

    fn dbcache(self, dbcache_mib: &[u64]) -> Self {
        Self { dbcache_mib: dbcache_mib.to_vec(), ..self }
    }

    fn outputs(self, outputs: &[&str]) -> Self {
        Self { outputs: words(outputs), ..self }
    }
}

/// A profile whose times mean something.
fn timed(
    name: &'static str,
    about: &'static str,
    rounds: u32,
    chain: ProfileChain,
    grids: Vec<Grid>,
    nodes: &[(ScriptValidation, &'static [u64])],
) -> BenchProfile {
    BenchProfile { name, about, rounds, timed: true, chain, grids, nodes: nodes.to_vec() }
}

/// All profiles.
pub fn profiles() -> Vec<BenchProfile> {
    const USUAL: &[u64] = &[450];
    let every_proof = ["none", "sha256", "muhash"];
    let with_little = [450, DBCACHE_MIB_SMALL];
    let hinted = || usual("swiftsync", SKIPPED, &["sha256"]);
    let snapshot_hinted = || usual(SNAPSHOT_HINTS, SKIPPED, &["sha256"]);
    let merged = || usual("mergesync", SKIPPED, &[]);
    vec![
        BenchProfile {
            name: "quick",
            about: "One round on a small chain; results only",
            rounds: 1,
            timed: false,
            chain: ProfileChain { blocks: 12, block_weight: 400_000 },
            grids: vec![
                usual("swiftsync", SKIPPED, &every_proof)
                    .par(ONE_AND_ALL)
                    .dbcache(&[450, DBCACHE_MIB_MIN]),
                usual("utxo", BOTH, &[]),
                usual("mergesync", BOTH, &[]),
            ],
            nodes: vec![(Assumevalid, USUAL)],
        },
        timed(
            "full",
            "Five rounds on 1 GB, with hints",
            5,
            LONG,
            vec![
                usual("swiftsync", SKIPPED, &every_proof).par(ONE_AND_ALL),
                // The cost of taking hints from a snapshot.
                snapshot_hinted().par(ONE_AND_ALL),
                // The cost of a snapshot, and the effect of little memory.
                hinted().outputs(&["snapshot"]),
                hinted().dbcache(&[DBCACHE_MIB_MIN]),
            ],
            &[(Assumevalid, USUAL)],
        ),
        timed(
            "connect",
            "Three rounds on 200 MB, without hints: scripts skipped, and scripts run",
            3,
            SHORT,
            vec![
                // The same with hints.
                hinted(),
                usual("utxo", SKIPPED, &[]).dbcache(&[450, DBCACHE_MIB_LARGE]),
                usual("utxo", RUN, &[]),
                usual("mergesync", BOTH, &[]),
            ],
            &[(Assumevalid, &[450, DBCACHE_MIB_LARGE]), (Full, USUAL)],
        ),
        // Every rule but the scripts: the gain without look-ups, also with little memory.
        timed(
            "rules",
            "Three rounds on 1 GB, without hints, scripts skipped: with the usual memory and with little",
            3,
            LONG,
            vec![
                merged().par(ONE_AND_ALL).dbcache(&with_little),
                usual("utxo", SKIPPED, &[]).dbcache(&with_little),
            ],
            &[(Assumevalid, &[450, DBCACHE_MIB_SMALL])],
        ),
        // Both programs write a node's chainstate to disk; for comparison, runs that only prove.
        timed(
            "chainstate",
            "Five rounds on 1 GB, scripts skipped: a chainstate, written by both",
            5,
            LONG,
            [hinted(), snapshot_hinted(), merged()]
                .map(|grid| grid.outputs(&["null", CHAINSTATE]))
                .into(),
            &[(Assumevalid, USUAL)],
        ),
        timed(
            "chainstate-full",
            "Three rounds on 200 MB, scripts run: the same",
            3,
            SHORT,
            vec![usual("mergesync", RUN, &[]).outputs(&[CHAINSTATE])],
            &[(Full, USUAL)],
        ),
        // With the undo data of a node: the gain over hints alone, and the cost of verifying the node.
        timed(
            "undo",
            "Three rounds on 1 GB with the node's undo data, scripts skipped: hints, and `apus verify`",
            3,
            LONG,
            vec![
                hinted(),
                usual("swiftsync", SKIPPED, &[COINS]).par(ONE_AND_ALL),
                usual(VERIFY, SKIPPED, &[]),
            ],
            &[(Assumevalid, USUAL)],
        ),
        timed(
            "undo-full",
            "Three rounds on 200 MB with the node's undo data, scripts run; and without",
            3,
            SHORT,
            vec![
                usual("swiftsync", RUN, &[COINS]),
                usual(VERIFY, RUN, &[]),
                usual("mergesync", RUN, &[]),
                usual("utxo", RUN, &[]),
            ],
            &[(Full, USUAL)],
        ),
        // The Utreexo forest: the cost of its roots in a sync, the speed of making proofs, and validating
        // blocks by proofs.
        timed(
            "utreexo",
            "Three rounds on 1 GB, scripts skipped: roots of the Utreexo forest, proofs, and blocks \
             validated by them",
            3,
            LONG,
            vec![
                hinted().outputs(&["null", ROOTS]),
                merged().outputs(&["null", ROOTS]),
                usual(UTREEXO, SKIPPED, &[]).par(ONE_AND_ALL),
                usual(PROVE, SKIPPED, &[]).outputs(&[PROOFS]),
            ],
            &[(Assumevalid, USUAL)],
        ),
    ]
}

impl BenchProfile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<Self> {
        profiles().into_iter().find(|profile| profile.name == name)
    }

    /// Every run of the node, with the given memory in MiB instead of the profile's, if any.
    pub fn nodes(&self, dbcache_mib: &[u64]) -> Vec<Subject> {
        let of = |&(validation, own): &(ScriptValidation, &'static [u64])| {
            let sizes = if dbcache_mib.is_empty() { own } else { dbcache_mib };
            let subject = move |&dbcache_mib| Subject::Bitcoind { validation, dbcache_mib };
            sizes.iter().map(subject).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_appears_once() {
        let full = BenchProfile::named("full").unwrap();
        let two = subjects(&full.grids, 2);
        let labels: Vec<String> = two.iter().map(Subject::to_string).collect();
        assert_eq!(labels.len(), 10, "{labels:#?}");
        assert!(labels.contains(&"apus swiftsync assumevalid none par=1 dbcache=450".to_owned()));
        assert!(labels.contains(&"apus swiftsync assumevalid sha256 par=2 dbcache=4".to_owned()));
        let snapshot = "apus swiftsync assumevalid sha256 par=2 dbcache=450 snapshot";
        assert!(labels.contains(&snapshot.to_owned()));
        let of_snapshot = |it: &&Subject| it.takes_snapshot();
        assert_eq!(two.iter().filter(of_snapshot).count(), 2);
        // One core: one thread is all threads.
        assert_eq!(subjects(&full.grids, 1).len(), 6);
        assert!(BenchProfile::named("slow").is_none());
    }

    #[test]
    fn connecting_is_compared_with_nodes_that_do_the_same() {
        let connect = BenchProfile::named("connect").unwrap();
        let labels = |subjects: Vec<Subject>| -> Vec<String> {
            subjects.iter().map(Subject::to_string).collect()
        };
        assert_eq!(
            labels(subjects(&connect.grids, 2)),
            [
                "apus swiftsync assumevalid sha256 par=2 dbcache=450",
                "apus utxo assumevalid par=2 dbcache=450",
                "apus utxo assumevalid par=2 dbcache=4500",
                "apus utxo full par=2 dbcache=450",
                "apus mergesync assumevalid par=2 dbcache=450",
                "apus mergesync full par=2 dbcache=450",
            ]
        );
        assert_eq!(
            labels(connect.nodes(&[])),
            ["bitcoind dbcache=450", "bitcoind dbcache=4500", "bitcoind assumevalid=0 dbcache=450"]
        );
        assert_eq!(
            labels(connect.nodes(&[9])),
            ["bitcoind dbcache=9", "bitcoind assumevalid=0 dbcache=9"]
        );
        let quick = labels(subjects(&BenchProfile::named("quick").unwrap().grids, 2));
        assert_eq!(
            quick[12..],
            [
                "apus utxo assumevalid par=2 dbcache=450",
                "apus utxo full par=2 dbcache=450",
                "apus mergesync assumevalid par=2 dbcache=450",
                "apus mergesync full par=2 dbcache=450",
            ]
        );
    }

    #[test]
    fn roots_and_proofs_are_compared_with_runs_without() {
        let utreexo = BenchProfile::named("utreexo").unwrap();
        let subjects = subjects(&utreexo.grids, 2);
        let labels: Vec<String> = subjects.iter().map(Subject::to_string).collect();
        assert_eq!(
            labels,
            [
                "apus swiftsync assumevalid sha256 par=2 dbcache=450",
                "apus swiftsync assumevalid sha256 par=2 dbcache=450 utreexo",
                "apus mergesync assumevalid par=2 dbcache=450",
                "apus mergesync assumevalid par=2 dbcache=450 utreexo",
                "apus utreexo assumevalid par=1 dbcache=450",
                "apus utreexo assumevalid par=2 dbcache=450",
                "apus prove assumevalid par=2 dbcache=450 proofs",
            ]
        );
        let by_proofs: Vec<bool> = subjects.iter().map(Subject::takes_proofs).collect();
        assert_eq!(by_proofs, [false, false, false, false, true, true, false]);
        assert_eq!(utreexo.nodes(&[]).len(), 1);
    }

    #[test]
    fn chainstates_are_compared_with_a_nodes() {
        let named = |name: &str| BenchProfile::named(name).unwrap();
        let labels = |name: &str| -> Vec<String> {
            subjects(&named(name).grids, 2).iter().map(Subject::to_string).collect()
        };
        let mut expected = Vec::new();
        for proof in [
            "apus swiftsync assumevalid sha256 par=2 dbcache=450",
            "apus snapshot-hints assumevalid sha256 par=2 dbcache=450",
            "apus mergesync assumevalid par=2 dbcache=450",
        ] {
            expected.extend([proof.to_owned(), format!("{proof} chainstate")]);
        }
        assert_eq!(labels("chainstate"), expected);
        assert_eq!(labels("chainstate-full"), ["apus mergesync full par=2 dbcache=450 chainstate"]);
        let node = |name: &str| named(name).nodes(&[])[0].to_string();
        assert_eq!(node("chainstate"), "bitcoind dbcache=450");
        assert_eq!(node("chainstate-full"), "bitcoind assumevalid=0 dbcache=450");
    }

    #[test]
    fn the_first_grid_of_each_kind_is_filled_in() {
        let kinds = |name: &str| -> Vec<(String, usize)> {
            let grids = first_of_each(BenchProfile::named(name).unwrap().grids);
            grids.into_iter().map(|grid| (grid.engine, grid.validations.len())).collect()
        };
        let of = |engine: &str, validations| (engine.to_owned(), validations);
        assert_eq!(kinds("full"), [of("swiftsync", 1), of(SNAPSHOT_HINTS, 1)]);
        let all = [of("swiftsync", 1), of("utxo", 2), of("mergesync", 2)];
        assert_eq!(kinds("quick"), all);
        let one = |engine: &str| of(engine, 1);
        let connect = [one("swiftsync"), one("utxo"), one("utxo"), of("mergesync", 2)];
        assert_eq!(kinds("connect"), connect);
        assert_eq!(kinds("rules"), [one("mergesync"), one("utxo")]);
    }

    #[test]
    fn unsupported_values_are_left_out() {
        let grid = Grid {
            engine: "swiftsync".to_owned(),
            validations: vec![ScriptValidation::Full, ScriptValidation::Assumevalid],
            aggregates: vec!["xor".to_owned(), "sha256".to_owned()],
            par: vec![ThreadCount::Count(3)],
            dbcache_mib: vec![10, 20],
            outputs: vec!["null".to_owned()],
        };
        let found = subjects(std::slice::from_ref(&grid), 2);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].dbcache_mib(), 20);
        assert!(subjects(&[Grid { engine: "lost".to_owned(), ..grid }], 2).is_empty());
        assert!(aggregates().eq(["none", "sha256", "muhash", "coins"]));
        assert!(has_aggregates("swiftsync") && !has_aggregates("utxo"));
        assert!(connects("utxo") && connects("mergesync") && !connects("swiftsync"));
    }
}

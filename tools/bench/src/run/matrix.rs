//! What is run: [`Subject`]s, made from tables of data.
//!
//! A new engine is a row of `ENGINES`; a new kind of benchmark is a row of [`PROFILES`]. Elsewhere in this crate engines are
//! named where they are started in a way of their own.

pub use super::profiles::{PROFILES, Profile, ProfileChain};
pub use super::subject::{Names, Subject, Validation};

/// An engine with what can be varied about it.
struct Engine {
    engine: &'static str,
    validations: &'static [Validation],
    /// Kinds of proof; none where it needs no proof.
    aggregates: &'static [&'static str],
    /// Whether it sees the coins that blocks spend: it takes no hints, and it runs the scripts of every
    /// block that is not below the assumed-valid one.
    connects: bool,
}

/// All engines. `none` sums nothing: it proves nothing, and bounds what a proof can cost.
const ENGINES: &[Engine] = &[
    Engine {
        engine: "swiftsync",
        validations: BOTH,
        aggregates: &["none", "sha256", "muhash", COINS],
        connects: false,
    },
    Engine {
        engine: SNAPSHOT_HINTS,
        validations: &[Validation::Assumevalid],
        aggregates: &["sha256"],
        connects: false,
    },
    Engine { engine: VERIFY, validations: BOTH, aggregates: &[], connects: true },
    Engine { engine: "utxo", validations: BOTH, aggregates: &[], connects: true },
    Engine { engine: "mergesync", validations: BOTH, aggregates: &[], connects: true },
    Engine { engine: UTREEXO, validations: BOTH, aggregates: &[], connects: true },
    Engine { engine: PROVE, validations: BOTH, aggregates: &[], connects: true },
];

/// Scripts skipped, and scripts run.
pub(super) const BOTH: &[Validation] = &[Validation::Assumevalid, Validation::Full];

/// The sums of whole coins, for which undo data say what is spent: those of a node's folder.
pub const COINS: &str = "coins";

/// `swiftsync` with hints out of a snapshot, which is made before.
pub const SNAPSHOT_HINTS: &str = "snapshot-hints";

/// `apus verify`, of a node's folder.
pub const VERIFY: &str = "verify";

/// The engine that goes by files of proofs, which are made before.
pub const UTREEXO: &str = "utreexo";

/// `apus utreexo prove`, which makes such files.
pub const PROVE: &str = "prove";

/// The output that is the roots of the Utreexo forest.
pub const ROOTS: &str = "utreexo";

/// The output that is a chainstate, as bitcoind writes one.
pub const CHAINSTATE: &str = "chainstate";

/// What `apus utreexo prove` writes.
pub const PROOFS: &str = "proofs";

/// The engine of `apus sync` by which blocks are judged under this name.
pub fn judged_by(name: &str) -> &str {
    match name {
        // Proofs are made of blocks that it has judged.
        PROVE => "mergesync",
        SNAPSHOT_HINTS => "swiftsync",
        own => own,
    }
}

/// Whether the engine of this name sees the coins that blocks spend, and takes no hints.
pub fn connects(name: &str) -> bool {
    ENGINES.iter().any(|engine| engine.engine == name && engine.connects)
}

/// How many threads, before the machine is known.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Threads {
    /// So many.
    Count(usize),
    /// One for each core.
    Cores,
}

/// What is combined with what: every value with every other.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Grid {
    /// The engine.
    pub engine: String,
    /// What is checked of scripts.
    pub validations: Vec<Validation>,
    /// Kinds of proof; of no meaning to an engine without any.
    pub aggregates: Vec<String>,
    /// Worker threads.
    pub par: Vec<Threads>,
    /// Memory for buffers, in MiB.
    pub dbcache_mib: Vec<u64>,
    /// What is written: `null`, `snapshot`, `chainstate`, `utreexo` or `proofs`.
    pub outputs: Vec<String>,
}

/// Of the grids those that come first for their engine and validation: what is filled in where
/// the user says what to run.
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

/// Every run of Apus that the grids ask for, each once, on a machine of so many cores.
pub fn subjects(grids: &[Grid], cores: usize) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for grid in grids {
        let Some(engine) = ENGINES.iter().find(|engine| engine.engine == grid.engine) else {
            continue;
        };
        let known = |validation: &&Validation| engine.validations.contains(validation);
        for &validation in grid.validations.iter().filter(known) {
            for aggregate in engine.aggregates_of(grid, validation) {
                for (dbcache_mib, par, output) in places(grid) {
                    let par = match par {
                        Threads::Count(count) => count,
                        Threads::Cores => cores,
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

impl Engine {
    /// Those kinds of proof of a grid that it has; a single "none" where it needs no proof.
    /// By outpoints alone no script is run.
    fn aggregates_of(&self, grid: &Grid, validation: Validation) -> Vec<Option<String>> {
        if self.aggregates.is_empty() {
            return vec![None];
        }
        let known = |aggregate: &&String| {
            self.aggregates.contains(&aggregate.as_str())
                && (validation == Validation::Assumevalid || *aggregate == COINS)
        };
        grid.aggregates.iter().filter(known).cloned().map(Some).collect()
    }
}

fn places(grid: &Grid) -> impl Iterator<Item = (u64, Threads, &String)> {
    grid.dbcache_mib.iter().flat_map(move |&dbcache_mib| {
        grid.par
            .iter()
            .flat_map(move |&par| grid.outputs.iter().map(move |output| (dbcache_mib, par, output)))
    })
}

/// Whether the engine of this name has kinds of proof to choose from.
pub fn has_aggregates(name: &str) -> bool {
    ENGINES.iter().any(|engine| engine.engine == name && !engine.aggregates.is_empty())
}

/// Words that `--aggregate` knows.
pub fn aggregates() -> impl Iterator<Item = &'static str> {
    let own = ENGINES.iter().filter(|engine| engine.engine != SNAPSHOT_HINTS);
    own.flat_map(|engine| engine.aggregates.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_comes_once() {
        let full = Profile::named("full").unwrap();
        let two = subjects(&full.grids(), 2);
        let labels: Vec<String> = two.iter().map(Subject::to_string).collect();
        assert_eq!(labels.len(), 10, "{labels:#?}");
        assert!(labels.contains(&"apus swiftsync assumevalid none par=1 dbcache=450".to_owned()));
        assert!(labels.contains(&"apus swiftsync assumevalid sha256 par=2 dbcache=4".to_owned()));
        let snapshot = "apus swiftsync assumevalid sha256 par=2 dbcache=450 snapshot";
        assert!(labels.contains(&snapshot.to_owned()));
        let of_snapshot = |it: &&Subject| it.takes_snapshot();
        assert_eq!(two.iter().filter(of_snapshot).count(), 2);
        // One core: one thread is all threads.
        assert_eq!(subjects(&full.grids(), 1).len(), 6);
        assert!(Profile::named("slow").is_none());
    }

    #[test]
    fn connecting_is_compared_with_nodes_that_do_the_same() {
        let connect = Profile::named("connect").unwrap();
        let labels = |subjects: Vec<Subject>| -> Vec<String> {
            subjects.iter().map(Subject::to_string).collect()
        };
        assert_eq!(
            labels(subjects(&connect.grids(), 2)),
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
        let quick = labels(subjects(&Profile::named("quick").unwrap().grids(), 2));
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
        let utreexo = Profile::named("utreexo").unwrap();
        let subjects = subjects(&utreexo.grids(), 2);
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
    fn what_a_node_needs_is_compared_with_what_a_node_makes() {
        let named = |name: &str| Profile::named(name).unwrap();
        let labels = |name: &str| -> Vec<String> {
            subjects(&named(name).grids(), 2).iter().map(Subject::to_string).collect()
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
            let grids = first_of_each(Profile::named(name).unwrap().grids());
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
    fn what_no_engine_has_is_left_out() {
        let grid = Grid {
            engine: "swiftsync".to_owned(),
            validations: vec![Validation::Full, Validation::Assumevalid],
            aggregates: vec!["xor".to_owned(), "sha256".to_owned()],
            par: vec![Threads::Count(3)],
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

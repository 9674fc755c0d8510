//! What is run: [`Subject`]s, made from tables of data.
//!
//! A new engine is a row of `ENGINES`; a new kind of benchmark is a row of `PROFILES`. Nothing
//! else in this crate names an engine or a profile.

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// An engine with what can be varied about it.
struct Engine {
    engine: &'static str,
    validation: &'static str,
    aggregates: &'static [&'static str],
}

/// All engines. `none` sums nothing: it proves nothing, and bounds what a proof can cost.
const ENGINES: &[Engine] = &[Engine {
    engine: "swiftsync",
    validation: "assumevalid",
    aggregates: &["none", "sha256", "muhash"],
}];

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
    /// Kinds of proof.
    pub aggregates: Vec<String>,
    /// Worker threads.
    pub par: Vec<Threads>,
    /// Memory for buffers, in MiB.
    pub dbcache_mib: Vec<u64>,
    /// What is written: `null` or `snapshot`.
    pub outputs: Vec<String>,
}

/// A kind of benchmark.
pub struct Profile {
    /// Its name.
    pub name: &'static str,
    /// Rounds: how often each subject is run.
    pub rounds: u32,
    /// Whether a time means anything: not with so little work.
    pub timed: bool,
    /// The chain that is made where none is given.
    pub chain: ProfileChain,
    /// What is run of Apus.
    grids: &'static [ProfileGrid],
    /// `-dbcache` of the node, in MiB.
    pub node_dbcache_mib: &'static [u64],
}

/// A chain to make: see [`maker::Options`](crate::maker::Options).
pub struct ProfileChain {
    /// Full blocks.
    pub blocks: u32,
    /// Weight that they come close to.
    pub block_weight: u32,
}

/// A [`Grid`] as data.
struct ProfileGrid {
    aggregates: &'static [&'static str],
    par: &'static [Threads],
    dbcache_mib: &'static [u64],
    outputs: &'static [&'static str],
}

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "quick",
        rounds: 1,
        timed: false,
        chain: ProfileChain { blocks: 12, block_weight: 400_000 },
        grids: &[ProfileGrid {
            aggregates: &["none", "sha256", "muhash"],
            par: &[Threads::Count(1), Threads::Cores],
            dbcache_mib: &[450, DBCACHE_MIB_MIN],
            outputs: &["null"],
        }],
        node_dbcache_mib: &[450],
    },
    Profile {
        name: "full",
        rounds: 5,
        timed: true,
        // Some 1.05 GB.
        chain: ProfileChain { blocks: 620, block_weight: 4_000_000 },
        grids: &[
            ProfileGrid {
                aggregates: &["none", "sha256", "muhash"],
                par: &[Threads::Count(1), Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["null"],
            },
            // What a snapshot costs, and how little memory will do.
            ProfileGrid {
                aggregates: &["sha256"],
                par: &[Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["snapshot"],
            },
            ProfileGrid {
                aggregates: &["sha256"],
                par: &[Threads::Cores],
                dbcache_mib: &[DBCACHE_MIB_MIN],
                outputs: &["null"],
            },
        ],
        node_dbcache_mib: &[450],
    },
];

/// The least that `apus sync --dbcache` takes.
const DBCACHE_MIB_MIN: u64 = 4;

/// Something that is run again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "program", rename_all = "snake_case")]
pub enum Subject {
    /// `apus sync`.
    Apus {
        /// `--engine`.
        engine: String,
        /// `--validation`.
        validation: String,
        /// `--aggregate`.
        aggregate: String,
        /// `--par`.
        par: usize,
        /// `--dbcache`.
        dbcache_mib: u64,
        /// `null`, or `snapshot` for a UTXO snapshot.
        output: String,
    },
    /// `bitcoind -reindex-chainstate`.
    Bitcoind {
        /// `-dbcache`.
        dbcache_mib: u64,
    },
}

impl Subject {
    /// Memory that it was given, in MiB.
    pub fn dbcache_mib(&self) -> u64 {
        match self {
            Self::Apus { dbcache_mib, .. } | Self::Bitcoind { dbcache_mib } => *dbcache_mib,
        }
    }
}

/// How subjects are called where room is short: engines and validations are named only if there is
/// more than one of them.
pub struct Names {
    engines: bool,
    validations: bool,
}

impl Names {
    /// Names for these.
    pub fn of<'a>(subjects: impl IntoIterator<Item = &'a Subject>) -> Self {
        let (mut engines, mut validations) = (BTreeSet::new(), BTreeSet::new());
        for subject in subjects {
            if let Subject::Apus { engine, validation, .. } = subject {
                engines.insert(engine);
                validations.insert(validation);
            }
        }
        Self { engines: engines.len() > 1, validations: validations.len() > 1 }
    }

    /// What one of them is called.
    pub fn name(&self, subject: &Subject) -> String {
        let Subject::Apus { engine, validation, aggregate, par, dbcache_mib, output } = subject
        else {
            return subject.to_string();
        };
        let mut words = vec!["apus"];
        words.extend(self.engines.then_some(engine.as_str()));
        words.extend(self.validations.then_some(validation.as_str()));
        let (par, dbcache) = (format!("par={par}"), format!("dbcache={dbcache_mib}"));
        words.extend([aggregate.as_str(), &par, &dbcache]);
        words.extend((output != "null").then_some(output.as_str()));
        words.join(" ")
    }
}

impl fmt::Display for Subject {
    /// In full.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apus { engine, validation, aggregate, par, dbcache_mib, output } => {
                write!(
                    f,
                    "apus {engine} {validation} {aggregate} par={par} dbcache={dbcache_mib}"
                )?;
                if output == "null" { Ok(()) } else { write!(f, " {output}") }
            }
            Self::Bitcoind { dbcache_mib } => write!(f, "bitcoind dbcache={dbcache_mib}"),
        }
    }
}

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// What is combined in it.
    pub fn grids(&self) -> Vec<Grid> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let grid = |grid: &ProfileGrid| Grid {
            aggregates: words(grid.aggregates),
            par: grid.par.to_vec(),
            dbcache_mib: grid.dbcache_mib.to_vec(),
            outputs: words(grid.outputs),
        };
        self.grids.iter().map(grid).collect()
    }
}

/// Every run of Apus that the grids ask for, each once, on a machine of so many cores.
pub fn subjects(grids: &[Grid], cores: usize) -> Vec<Subject> {
    let mut subjects = Vec::new();
    for grid in grids {
        for engine in ENGINES {
            let known = |aggregate: &&String| engine.aggregates.contains(&aggregate.as_str());
            for aggregate in grid.aggregates.iter().filter(known) {
                for (dbcache_mib, par, output) in places(grid) {
                    let par = match par {
                        Threads::Count(count) => count,
                        Threads::Cores => cores,
                    };
                    let subject = Subject::Apus {
                        engine: engine.engine.to_owned(),
                        validation: engine.validation.to_owned(),
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

fn places(grid: &Grid) -> impl Iterator<Item = (u64, Threads, &String)> {
    grid.dbcache_mib.iter().flat_map(move |&dbcache_mib| {
        grid.par
            .iter()
            .flat_map(move |&par| grid.outputs.iter().map(move |output| (dbcache_mib, par, output)))
    })
}

/// Words that `--aggregate` knows.
pub fn aggregates() -> impl Iterator<Item = &'static str> {
    ENGINES.iter().flat_map(|engine| engine.aggregates.iter().copied())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_combination_comes_once() {
        let full = Profile::named("full").unwrap();
        let two = subjects(&full.grids(), 2);
        let labels: Vec<String> = two.iter().map(Subject::to_string).collect();
        assert_eq!(labels.len(), 8, "{labels:#?}");
        assert!(labels.contains(&"apus swiftsync assumevalid none par=1 dbcache=450".to_owned()));
        assert!(labels.contains(&"apus swiftsync assumevalid sha256 par=2 dbcache=4".to_owned()));
        let snapshot = "apus swiftsync assumevalid sha256 par=2 dbcache=450 snapshot";
        assert!(labels.contains(&snapshot.to_owned()));
        // One core: one thread is all threads.
        assert_eq!(subjects(&full.grids(), 1).len(), 5);
        assert!(Profile::named("slow").is_none());
    }

    #[test]
    fn names_say_what_differs() {
        let all = subjects(&Profile::named("full").unwrap().grids(), 2);
        let names = Names::of(&all);
        assert_eq!(names.name(&all[0]), "apus none par=1 dbcache=450");
        assert_eq!(names.name(&all[6]), "apus sha256 par=2 dbcache=450 snapshot");
        let mut other = all[0].clone();
        if let Subject::Apus { engine, .. } = &mut other {
            *engine = "utxo".to_owned();
        }
        let names = Names::of([&all[0], &other]);
        assert_eq!(names.name(&other), "apus utxo none par=1 dbcache=450");
        assert_eq!(names.name(&Subject::Bitcoind { dbcache_mib: 4 }), "bitcoind dbcache=4");
    }

    #[test]
    fn what_no_engine_has_is_left_out() {
        let grid = Grid {
            aggregates: vec!["xor".to_owned(), "sha256".to_owned()],
            par: vec![Threads::Count(3)],
            dbcache_mib: vec![10, 20],
            outputs: vec!["null".to_owned()],
        };
        let found = subjects(&[grid], 2);
        assert_eq!(found.len(), 2);
        assert_eq!(found[1].dbcache_mib(), 20);
        assert!(aggregates().eq(["none", "sha256", "muhash"]));
    }

    #[test]
    fn subjects_are_told_apart_in_json() {
        let node = Subject::Bitcoind { dbcache_mib: 450 };
        let json = serde_json::to_value(&node).unwrap();
        assert_eq!(json, serde_json::json!({"program": "bitcoind", "dbcache_mib": 450}));
        assert_eq!(serde_json::from_value::<Subject>(json).unwrap(), node);
        assert_eq!(node.to_string(), "bitcoind dbcache=450");
    }
}

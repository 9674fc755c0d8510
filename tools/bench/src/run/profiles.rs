//! [`PROFILES`]: kinds of benchmarks, as tables of data.

use super::matrix::{
    BOTH, CHAINSTATE, COINS, Grid, PROOFS, PROVE, ROOTS, SNAPSHOT_HINTS, Subject, Threads, UTREEXO,
    VERIFY, Validation,
};

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
    /// What is run of the node.
    nodes: &'static [ProfileNode],
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
    engine: &'static str,
    validations: &'static [Validation],
    aggregates: &'static [&'static str],
    par: &'static [Threads],
    dbcache_mib: &'static [u64],
    outputs: &'static [&'static str],
}

/// On all cores, with the usual memory, and nothing written.
const fn usual(
    engine: &'static str,
    validations: &'static [Validation],
    aggregates: &'static [&'static str],
) -> ProfileGrid {
    ProfileGrid {
        engine,
        validations,
        aggregates,
        par: &[Threads::Cores],
        dbcache_mib: &[450],
        outputs: &["null"],
    }
}

/// On all cores, with the usual memory: what only proves, and what also writes a chainstate, as bitcoind does.
const fn with_chainstate(engine: &'static str, aggregates: &'static [&'static str]) -> ProfileGrid {
    let without = usual(engine, &[Validation::Assumevalid], aggregates);
    ProfileGrid { outputs: &["null", CHAINSTATE], ..without }
}

/// Runs of the node, as data.
struct ProfileNode {
    validation: Validation,
    dbcache_mib: &'static [u64],
}

/// All profiles.
pub const PROFILES: &[Profile] = &[
    Profile {
        name: "quick",
        rounds: 1,
        timed: false,
        chain: ProfileChain { blocks: 12, block_weight: 400_000 },
        grids: &[
            ProfileGrid {
                engine: "swiftsync",
                validations: &[Validation::Assumevalid],
                aggregates: &["none", "sha256", "muhash"],
                par: &[Threads::Count(1), Threads::Cores],
                dbcache_mib: &[450, DBCACHE_MIB_MIN],
                outputs: &["null"],
            },
            usual("utxo", BOTH, &[]),
            usual("mergesync", BOTH, &[]),
        ],
        nodes: &[ProfileNode { validation: Validation::Assumevalid, dbcache_mib: &[450] }],
    },
    Profile {
        name: "full",
        rounds: 5,
        timed: true,
        // Some 1.05 GB.
        chain: ProfileChain { blocks: 620, block_weight: 4_000_000 },
        grids: &[
            ProfileGrid {
                engine: "swiftsync",
                validations: &[Validation::Assumevalid],
                aggregates: &["none", "sha256", "muhash"],
                par: &[Threads::Count(1), Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["null"],
            },
            // What it costs to take hints out of a snapshot.
            ProfileGrid {
                engine: SNAPSHOT_HINTS,
                validations: &[Validation::Assumevalid],
                aggregates: &["sha256"],
                par: &[Threads::Count(1), Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["null"],
            },
            // What a snapshot costs, and how little memory will do.
            ProfileGrid {
                engine: "swiftsync",
                validations: &[Validation::Assumevalid],
                aggregates: &["sha256"],
                par: &[Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["snapshot"],
            },
            ProfileGrid {
                engine: "swiftsync",
                validations: &[Validation::Assumevalid],
                aggregates: &["sha256"],
                par: &[Threads::Cores],
                dbcache_mib: &[DBCACHE_MIB_MIN],
                outputs: &["null"],
            },
        ],
        nodes: &[ProfileNode { validation: Validation::Assumevalid, dbcache_mib: &[450] }],
    },
    Profile {
        name: "connect",
        rounds: 3,
        timed: true,
        // Some 200 MB.
        chain: ProfileChain { blocks: 120, block_weight: 4_000_000 },
        grids: &[
            // What hints make of it.
            usual("swiftsync", &[Validation::Assumevalid], &["sha256"]),
            ProfileGrid {
                engine: "utxo",
                validations: &[Validation::Assumevalid],
                aggregates: &[],
                par: &[Threads::Cores],
                dbcache_mib: &[450, DBCACHE_MIB_LARGE],
                outputs: &["null"],
            },
            usual("utxo", &[Validation::Full], &[]),
            usual("mergesync", BOTH, &[]),
        ],
        nodes: &[
            ProfileNode {
                validation: Validation::Assumevalid,
                dbcache_mib: &[450, DBCACHE_MIB_LARGE],
            },
            ProfileNode { validation: Validation::Full, dbcache_mib: &[450] },
        ],
    },
    // Every rule but the scripts: how much faster without look-ups, with little memory too.
    Profile {
        name: "rules",
        rounds: 3,
        timed: true,
        // Some 1.05 GB.
        chain: ProfileChain { blocks: 620, block_weight: 4_000_000 },
        grids: &[
            ProfileGrid {
                engine: "mergesync",
                validations: &[Validation::Assumevalid],
                aggregates: &[],
                par: &[Threads::Count(1), Threads::Cores],
                dbcache_mib: &[450, DBCACHE_MIB_SMALL],
                outputs: &["null"],
            },
            ProfileGrid {
                engine: "utxo",
                validations: &[Validation::Assumevalid],
                aggregates: &[],
                par: &[Threads::Cores],
                dbcache_mib: &[450, DBCACHE_MIB_SMALL],
                outputs: &["null"],
            },
        ],
        nodes: &[ProfileNode {
            validation: Validation::Assumevalid,
            dbcache_mib: &[450, DBCACHE_MIB_SMALL],
        }],
    },
    // What a node needs, from both: a chainstate on disk.
    Profile {
        name: "chainstate",
        rounds: 5,
        timed: true,
        // Some 1.05 GB.
        chain: ProfileChain { blocks: 620, block_weight: 4_000_000 },
        grids: &[
            with_chainstate("swiftsync", &["sha256"]),
            with_chainstate(SNAPSHOT_HINTS, &["sha256"]),
            with_chainstate("mergesync", &[]),
        ],
        nodes: &[ProfileNode { validation: Validation::Assumevalid, dbcache_mib: &[450] }],
    },
    // The same with every script.
    Profile {
        name: "chainstate-full",
        rounds: 3,
        timed: true,
        // Some 200 MB.
        chain: ProfileChain { blocks: 120, block_weight: 4_000_000 },
        grids: &[ProfileGrid {
            outputs: &[CHAINSTATE],
            ..usual("mergesync", &[Validation::Full], &[])
        }],
        nodes: &[ProfileNode { validation: Validation::Full, dbcache_mib: &[450] }],
    },
    // With the undo data of a node: what they add to hints, and what it takes to verify the node.
    Profile {
        name: "undo",
        rounds: 3,
        timed: true,
        // Some 1.05 GB.
        chain: ProfileChain { blocks: 620, block_weight: 4_000_000 },
        grids: &[
            usual("swiftsync", &[Validation::Assumevalid], &["sha256"]),
            ProfileGrid {
                engine: "swiftsync",
                validations: &[Validation::Assumevalid],
                aggregates: &[COINS],
                par: &[Threads::Count(1), Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["null"],
            },
            usual(VERIFY, &[Validation::Assumevalid], &[]),
        ],
        nodes: &[ProfileNode { validation: Validation::Assumevalid, dbcache_mib: &[450] }],
    },
    // The same with every script.
    Profile {
        name: "undo-full",
        rounds: 3,
        timed: true,
        // Some 200 MB.
        chain: ProfileChain { blocks: 120, block_weight: 4_000_000 },
        grids: &[
            usual("swiftsync", &[Validation::Full], &[COINS]),
            usual(VERIFY, &[Validation::Full], &[]),
            usual("mergesync", &[Validation::Full], &[]),
            usual("utxo", &[Validation::Full], &[]),
        ],
        nodes: &[ProfileNode { validation: Validation::Full, dbcache_mib: &[450] }],
    },
    // The Utreexo forest: what its roots cost beside a run, how fast proofs are made, and blocks judged by them.
    Profile {
        name: "utreexo",
        rounds: 3,
        timed: true,
        // Some 1.05 GB.
        chain: ProfileChain { blocks: 620, block_weight: 4_000_000 },
        grids: &[
            ProfileGrid {
                engine: "swiftsync",
                validations: &[Validation::Assumevalid],
                aggregates: &["sha256"],
                par: &[Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["null", ROOTS],
            },
            ProfileGrid {
                engine: "mergesync",
                validations: &[Validation::Assumevalid],
                aggregates: &[],
                par: &[Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["null", ROOTS],
            },
            ProfileGrid {
                engine: UTREEXO,
                validations: &[Validation::Assumevalid],
                aggregates: &[],
                par: &[Threads::Count(1), Threads::Cores],
                dbcache_mib: &[450],
                outputs: &["null"],
            },
            ProfileGrid {
                engine: PROVE,
                validations: &[Validation::Assumevalid],
                aggregates: &[],
                par: &[Threads::Cores],
                dbcache_mib: &[450],
                outputs: &[PROOFS],
            },
        ],
        nodes: &[ProfileNode { validation: Validation::Assumevalid, dbcache_mib: &[450] }],
    },
];

/// A part of what the coins of a chain take.
const DBCACHE_MIB_SMALL: u64 = 16;

/// The least that `apus sync --dbcache` takes.
const DBCACHE_MIB_MIN: u64 = 4;

/// What people give a node that has a whole chain before it.
const DBCACHE_MIB_LARGE: u64 = 4_500;

impl Profile {
    /// The profile of this name.
    pub fn named(name: &str) -> Option<&'static Self> {
        PROFILES.iter().find(|profile| profile.name == name)
    }

    /// What is combined in it.
    pub fn grids(&self) -> Vec<Grid> {
        let words = |words: &[&str]| words.iter().map(|word| (*word).to_owned()).collect();
        let grid = |grid: &ProfileGrid| Grid {
            engine: grid.engine.to_owned(),
            validations: grid.validations.to_vec(),
            aggregates: words(grid.aggregates),
            par: grid.par.to_vec(),
            dbcache_mib: grid.dbcache_mib.to_vec(),
            outputs: words(grid.outputs),
        };
        self.grids.iter().map(grid).collect()
    }

    /// Every run of the node, with other memory if some is given, in MiB.
    pub fn nodes(&self, dbcache_mib: &[u64]) -> Vec<Subject> {
        let of = |node: &ProfileNode| {
            let validation = node.validation;
            let sizes = if dbcache_mib.is_empty() { node.dbcache_mib } else { dbcache_mib };
            let subject = move |&dbcache_mib| Subject::Bitcoind { validation, dbcache_mib };
            sizes.iter().map(subject).collect::<Vec<_>>()
        };
        self.nodes.iter().flat_map(of).collect()
    }
}

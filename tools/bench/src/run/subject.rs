//! [`Subject`]: something that is run again and again, and what it is called.

use super::matrix::{COINS, PROOFS, SNAPSHOT_HINTS, UTREEXO, VERIFY, connects, judged_by};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// What a run checks of scripts.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum Validation {
    /// They are skipped up to the assumed-valid block.
    #[default]
    Assumevalid,
    /// All are run.
    Full,
}

impl Validation {
    /// Its name in records.
    pub fn word(self) -> &'static str {
        match self {
            Self::Assumevalid => "assumevalid",
            Self::Full => "full",
        }
    }
}

/// Something that is run again and again.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "program", rename_all = "snake_case")]
pub enum Subject {
    /// `apus sync`.
    Apus {
        /// `--engine`.
        engine: String,
        /// `--assumevalid`: the chain's block, or 0.
        validation: Validation,
        /// `--aggregate`; none where the engine needs no proof.
        aggregate: Option<String>,
        /// `--par`.
        par: usize,
        /// `--dbcache`.
        dbcache_mib: u64,
        /// `null`; `snapshot` for a UTXO snapshot, `chainstate` for a folder that bitcoind opens, `utreexo` for the roots of the Utreexo forest; `proofs` of
        /// `apus utreexo prove`.
        output: String,
    },
    /// `bitcoind -reindex-chainstate`.
    Bitcoind {
        /// `-assumevalid`: the chain's block, or 0. Older records were always with the block.
        #[serde(default)]
        validation: Validation,
        /// `-dbcache`.
        dbcache_mib: u64,
    },
}

impl Subject {
    /// Memory that it was given, in MiB.
    pub fn dbcache_mib(&self) -> u64 {
        match self {
            Self::Apus { dbcache_mib, .. } | Self::Bitcoind { dbcache_mib, .. } => *dbcache_mib,
        }
    }

    /// How many threads it was given; none where it takes one for each core.
    pub fn threads(&self) -> Option<usize> {
        match self {
            Self::Apus { par, .. } => Some(*par),
            Self::Bitcoind { .. } => None,
        }
    }

    /// Whether it needs the folder of a node, with its index and undo data.
    pub fn of_node(&self) -> bool {
        matches!(self, Self::Apus { engine, aggregate, .. }
            if engine == VERIFY || aggregate.as_deref() == Some(COINS))
    }

    /// Whether it goes by files of proofs, which have to be made before.
    pub fn takes_proofs(&self) -> bool {
        matches!(self, Self::Apus { engine, .. } if engine == UTREEXO)
    }

    /// Whether it takes hints out of a snapshot, which has to be made before.
    pub fn takes_snapshot(&self) -> bool {
        matches!(self, Self::Apus { engine, .. } if engine == SNAPSHOT_HINTS)
    }

    /// The same with nothing written, and hints out of a hintsfile; none where that is another command.
    pub fn plainer(&self) -> Option<Self> {
        let mut plainer = self.clone();
        match &mut plainer {
            Self::Apus { engine, output, .. } if output != PROOFS => {
                "null".clone_into(output);
                *engine = judged_by(engine).to_owned();
            }
            _ => return None,
        }
        Some(plainer)
    }

    /// Whether it sees the coins that blocks spend, and so runs the scripts of those that are not below the
    /// assumed-valid one.
    pub fn sees_coins(&self) -> bool {
        matches!(self, Self::Apus { engine, .. } if connects(engine)) || self.of_node()
    }

    /// What it checks of scripts.
    pub fn validation(&self) -> Validation {
        match self {
            Self::Apus { validation, .. } | Self::Bitcoind { validation, .. } => *validation,
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
        words.extend(self.validations.then_some(validation.word()));
        words.extend(aggregate.as_deref());
        let (par, dbcache) = (format!("par={par}"), format!("dbcache={dbcache_mib}"));
        words.extend([par.as_str(), &dbcache]);
        words.extend((output != "null").then_some(output.as_str()));
        words.join(" ")
    }
}

impl fmt::Display for Subject {
    /// In full.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Apus { .. } => {
                f.write_str(&Names { engines: true, validations: true }.name(self))
            }
            Self::Bitcoind { validation: Validation::Assumevalid, dbcache_mib } => {
                write!(f, "bitcoind dbcache={dbcache_mib}")
            }
            Self::Bitcoind { validation: Validation::Full, dbcache_mib } => {
                write!(f, "bitcoind assumevalid=0 dbcache={dbcache_mib}")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn utxo(validation: Validation) -> Subject {
        Subject::Apus {
            engine: "utxo".to_owned(),
            validation,
            aggregate: None,
            par: 2,
            dbcache_mib: 450,
            output: "null".to_owned(),
        }
    }

    #[test]
    fn names_say_what_differs() {
        let full = utxo(Validation::Full);
        let mut proof = full.clone();
        if let Subject::Apus { engine, validation, aggregate, output, .. } = &mut proof {
            *engine = "swiftsync".to_owned();
            *validation = Validation::Assumevalid;
            *aggregate = Some("sha256".to_owned());
            *output = "snapshot".to_owned();
        }
        assert_eq!(Names::of([&full]).name(&full), "apus par=2 dbcache=450");
        assert_eq!(Names::of([&proof]).name(&proof), "apus sha256 par=2 dbcache=450 snapshot");
        let all = Names::of([&full, &proof]);
        assert_eq!(all.name(&full), "apus utxo full par=2 dbcache=450");
        assert_eq!(full.to_string(), all.name(&full));
        assert_eq!(
            proof.to_string(),
            "apus swiftsync assumevalid sha256 par=2 dbcache=450 snapshot"
        );
        let node = |validation| Subject::Bitcoind { validation, dbcache_mib: 4 };
        assert_eq!(all.name(&node(Validation::Assumevalid)), "bitcoind dbcache=4");
        assert_eq!(all.name(&node(Validation::Full)), "bitcoind assumevalid=0 dbcache=4");
    }

    #[test]
    fn subjects_are_told_apart_in_json() {
        let node = Subject::Bitcoind { validation: Validation::Full, dbcache_mib: 450 };
        let expected = json!({"program": "bitcoind", "validation": "full", "dbcache_mib": 450});
        let utxo = utxo(Validation::Assumevalid);
        let utxo_json = json!({
            "program": "apus", "engine": "utxo", "validation": "assumevalid", "aggregate": null,
            "par": 2, "dbcache_mib": 450, "output": "null"
        });
        for (subject, expected) in [(node, expected), (utxo, utxo_json)] {
            let json = serde_json::to_value(&subject).unwrap();
            assert_eq!(json, expected);
            assert_eq!(serde_json::from_value::<Subject>(json).unwrap(), subject);
        }
    }

    #[test]
    fn a_node_of_an_older_record_skipped_scripts() {
        let json = json!({"program": "bitcoind", "dbcache_mib": 450});
        let read: Subject = serde_json::from_value(json).unwrap();
        assert_eq!(read.validation(), Validation::Assumevalid);
    }
}

//! [`Subject`]: a repeated run, and its names.

use crate::chain::BenchChain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

/// The sums of whole coins, which need undo data to know the spent coins: for a node's folder.
pub const COINS: &str = "coins";

/// `swiftsync` with hints from a snapshot, which is made in advance.
pub const SNAPSHOT_HINTS: &str = "snapshot-hints";

/// `apus verify`, of a node's folder.
pub const VERIFY: &str = "verify";

/// The engine that validates blocks by proof files, which are made in advance.
pub const UTREEXO: &str = "utreexo";

/// `apus utreexo prove`, which makes such files.
pub const PROVE: &str = "prove";

/// The roots of the Utreexo forest as an output.
pub const ROOTS: &str = "utreexo";

/// A chainstate as an output, in bitcoind's format.
pub const CHAINSTATE: &str = "chainstate";

/// The output of `apus utreexo prove`.
pub const PROOFS: &str = "proofs";

/// The engine of `apus sync` that validates blocks under this name.
pub fn validating_engine(name: &str) -> &str {
    match name {
        // It proves blocks that this engine has validated.
        PROVE => "mergesync",
        SNAPSHOT_HINTS => "swiftsync",
        own => own,
    }
}

/// Whether the engine of this name sees spent coins: it takes no hints, and it runs the scripts of every
/// block above the assumed-valid one.
pub fn connects(name: &str) -> bool {
    !["swiftsync", SNAPSHOT_HINTS].contains(&name)
}

/// The script validation of a run.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ScriptValidation {
    /// Scripts are skipped up to the assumed-valid block.
    #[default]
    Assumevalid,
    /// All scripts are run.
    Full,
}

impl ScriptValidation {
    /// Its name.
    pub fn word(self) -> &'static str {
        match self {
            Self::Assumevalid => "assumevalid",
            Self::Full => "full",
        }
    }
}

/// A repeated run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "program", rename_all = "snake_case")]
pub enum Subject {
    /// `apus sync`.
    Apus {
        /// `--engine`.
        engine: String,
        /// Which scripts it runs.
        validation: ScriptValidation,
        /// `--aggregate`; `None` if the engine needs no proof.
        aggregate: Option<String>,
        /// `--par`.
        par: usize,
        /// `--dbcache`.
        dbcache_mib: u64,
        /// `null`; `snapshot` for a UTXO snapshot, `chainstate` for a folder that bitcoind opens, `utreexo`
        /// for the roots of the Utreexo forest; `proofs` for `apus utreexo prove`.
        output: String,
    },
    /// `bitcoind -reindex-chainstate`.
    Bitcoind {
        /// `-assumevalid`: the chain's block, or 0. Older records always used the block.
        #[serde(default)]
        validation: ScriptValidation,
        /// `-dbcache`.
        dbcache_mib: u64,
    },
}

impl Subject {
    /// Its memory, in MiB.
    pub fn dbcache_mib(&self) -> u64 {
        match self {
            Self::Apus { dbcache_mib, .. } | Self::Bitcoind { dbcache_mib, .. } => *dbcache_mib,
        }
    }

    /// Its number of threads; `None` if it uses one for each core.
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

    /// Whether it needs proof files, which must be made in advance.
    pub fn takes_proofs(&self) -> bool {
        matches!(self, Self::Apus { engine, .. } if engine == UTREEXO)
    }

    /// Whether it takes hints from a snapshot, which must be made in advance.
    pub fn takes_snapshot(&self) -> bool {
        matches!(self, Self::Apus { engine, .. } if engine == SNAPSHOT_HINTS)
    }

    /// The same without output, and with hints from a hintsfile; `None` if that is another command.
    pub fn plainer(&self) -> Option<Self> {
        let mut plainer = self.clone();
        match &mut plainer {
            Self::Apus { engine, output, .. } if output != PROOFS => {
                "null".clone_into(output);
                *engine = validating_engine(engine).to_owned();
            }
            _ => return None,
        }
        Some(plainer)
    }

    /// Whether it sees spent coins, and so runs the scripts of blocks above the assumed-valid one.
    pub fn sees_coins(&self) -> bool {
        matches!(self, Self::Apus { engine, .. } if connects(engine)) || self.of_node()
    }

    /// Its script validation.
    pub fn validation(&self) -> ScriptValidation {
        match self {
            Self::Apus { validation, .. } | Self::Bitcoind { validation, .. } => *validation,
        }
    }
}

/// Short names of subjects: engines and validations appear only if there is more than one of them.
pub struct SubjectNames {
    engines: bool,
    validations: bool,
}

impl SubjectNames {
    /// Names for these subjects.
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

    /// The name of one of them.
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
                f.write_str(&SubjectNames { engines: true, validations: true }.name(self))
            }
            Self::Bitcoind { validation: ScriptValidation::Assumevalid, dbcache_mib } => {
                write!(f, "bitcoind dbcache={dbcache_mib}")
            }
            Self::Bitcoind { validation: ScriptValidation::Full, dbcache_mib } => {
                write!(f, "bitcoind assumevalid=0 dbcache={dbcache_mib}")
            }
        }
    }
}

// ---- which subjects can run on a chain ----
//
// Subjects that cannot run are left out with a note, so that one list of subjects serves chains and builds of
// all kinds.

/// The subjects that can run on `chain`, and notes on the others with reasons. `no_interpreter` is the reason
/// if the program cannot validate scripts, and `has_node` whether a node takes part.
pub(super) fn choose(
    subjects: &[Subject],
    chain: &BenchChain,
    no_interpreter: Option<&str>,
    has_node: bool,
) -> (Vec<Subject>, Vec<String>) {
    let (mut chosen, mut left_out) = (Vec::new(), Vec::<(String, Vec<String>)>::new());
    for subject in subjects {
        let Some(why) = obstacle(subject, chain, no_interpreter, has_node) else {
            chosen.push(subject.clone());
            continue;
        };
        match left_out.iter_mut().find(|(other, _)| *other == why) {
            Some((_, names)) => names.push(subject.to_string()),
            None => left_out.push((why, vec![subject.to_string()])),
        }
    }
    let text =
        |(why, names): (String, Vec<String>)| format!("left out {}: {why}", names.join(", "));
    (chosen, left_out.into_iter().map(text).collect())
}

/// The reason why a subject cannot run on a chain.
fn obstacle(
    subject: &Subject,
    chain: &BenchChain,
    no_interpreter: Option<&str>,
    has_node: bool,
) -> Option<String> {
    if subject.of_node() && !has_node {
        return Some("it needs a node's index and undo data: add --against bitcoind".to_owned());
    }
    let in_order = subject.sees_coins();
    if let Some(why) = no_interpreter.filter(|_| in_order) {
        // Even if scripts are mostly skipped: the chain continues above its assumed-valid block.
        return Some(why.to_owned());
    }
    match (subject.validation(), &chain.manifest) {
        (ScriptValidation::Assumevalid, None) if in_order => {
            Some("without manifest.json the assumed-valid block is unknown".to_owned())
        }
        (ScriptValidation::Full, None) => {
            Some("without manifest.json it is unknown whether the chain is signed".to_owned())
        }
        (ScriptValidation::Full, Some(manifest)) if !manifest.signed => {
            Some("the chain is not signed, so its scripts are not valid".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn utxo(validation: ScriptValidation) -> Subject {
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
    fn names_show_the_differences() {
        let full = utxo(ScriptValidation::Full);
        let mut proof = full.clone();
        if let Subject::Apus { engine, validation, aggregate, output, .. } = &mut proof {
            *engine = "swiftsync".to_owned();
            *validation = ScriptValidation::Assumevalid;
            *aggregate = Some("sha256".to_owned());
            *output = "snapshot".to_owned();
        }
        assert_eq!(SubjectNames::of([&full]).name(&full), "apus par=2 dbcache=450");
        assert_eq!(
            SubjectNames::of([&proof]).name(&proof),
            "apus sha256 par=2 dbcache=450 snapshot"
        );
        let all = SubjectNames::of([&full, &proof]);
        assert_eq!(all.name(&full), "apus utxo full par=2 dbcache=450");
        assert_eq!(full.to_string(), all.name(&full));
        assert_eq!(
            proof.to_string(),
            "apus swiftsync assumevalid sha256 par=2 dbcache=450 snapshot"
        );
        let node = |validation| Subject::Bitcoind { validation, dbcache_mib: 4 };
        assert_eq!(all.name(&node(ScriptValidation::Assumevalid)), "bitcoind dbcache=4");
        assert_eq!(all.name(&node(ScriptValidation::Full)), "bitcoind assumevalid=0 dbcache=4");
    }

    #[test]
    fn subjects_differ_in_json() {
        let node = Subject::Bitcoind { validation: ScriptValidation::Full, dbcache_mib: 450 };
        let expected = json!({"program": "bitcoind", "validation": "full", "dbcache_mib": 450});
        let utxo = utxo(ScriptValidation::Assumevalid);
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
        assert_eq!(read.validation(), ScriptValidation::Assumevalid);
    }
}

#[cfg(test)]
mod fitness_tests {
    use super::*;
    use crate::manifest::ChainManifest;
    use crate::run::tests::{apus, manifest, utxo};
    use apus_chain::Network;
    use std::path::PathBuf;

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

    /// The remaining subjects, as indices into the list.
    fn left(chain: &BenchChain, no_interpreter: Option<&str>) -> (Vec<usize>, Vec<String>) {
        let node = |validation| Subject::Bitcoind { validation, dbcache_mib: 450 };
        let all = [
            apus("sha256", 1),
            utxo(ScriptValidation::Assumevalid),
            utxo(ScriptValidation::Full),
            node(ScriptValidation::Assumevalid),
            node(ScriptValidation::Full),
            apus("coins", 1),
        ];
        let (chosen, left_out) = choose(&all, chain, no_interpreter, true);
        let places = (0..all.len()).filter(|&place| chosen.contains(&all[place])).collect();
        (places, left_out)
    }

    #[test]
    fn a_signed_chain_fits_every_run() {
        assert_eq!(left(&chain(Some(manifest())), None), (vec![0, 1, 2, 3, 4, 5], Vec::new()));
    }

    #[test]
    fn an_unsigned_chain_excludes_subjects_that_run_scripts() {
        let unsigned = ChainManifest { signed: false, ..manifest() };
        let (places, notes) = left(&chain(Some(unsigned)), None);
        assert_eq!(places, [0, 1, 3, 5]);
        assert_eq!(
            notes,
            ["left out apus utxo full par=2 dbcache=450, bitcoind assumevalid=0 dbcache=450: the \
              chain is not signed, so its scripts are not valid"]
        );
    }

    #[test]
    fn without_an_interpreter_engines_that_connect_blocks_are_left_out() {
        let (places, notes) = left(&chain(Some(manifest())), Some("none here"));
        assert_eq!(places, [0, 3, 4]);
        assert_eq!(
            notes,
            [
                "left out apus utxo assumevalid par=2 dbcache=450, apus utxo full par=2 dbcache=450, \
              apus swiftsync assumevalid coins par=1 dbcache=450: none here"
            ]
        );
    }

    #[test]
    fn a_chain_without_a_manifest_excludes_some_subjects() {
        let (places, notes) = left(&chain(None), None);
        assert_eq!(places, [0, 3]);
        assert_eq!(notes.len(), 2, "{notes:?}");
    }

    #[test]
    fn subjects_with_undo_data_need_a_node() {
        let all = [apus("sha256", 1), apus("coins", 1)];
        let (chosen, left_out) = choose(&all, &chain(Some(manifest())), None, false);
        assert_eq!(chosen, all[..1]);
        let notes = &left_out[0];
        assert!(notes.contains("coins par=1") && notes.contains("--against bitcoind"), "{notes}");
    }
}

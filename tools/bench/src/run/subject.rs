//! [`Subject`]: something that is run again and again, and what it is called.

use crate::chain::BenchChain;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;
use std::fmt;

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

/// Whether the engine of this name sees the coins that blocks spend: it takes no hints, and it runs the scripts of
/// every block that is not below the assumed-valid one.
pub fn connects(name: &str) -> bool {
    !["swiftsync", SNAPSHOT_HINTS].contains(&name)
}

/// What a run checks of scripts.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize,
)]
#[serde(rename_all = "lowercase")]
pub enum ScriptValidation {
    /// They are skipped up to the assumed-valid block.
    #[default]
    Assumevalid,
    /// All are run.
    Full,
}

impl ScriptValidation {
    /// As `apus sync --validation` takes it.
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
        /// `--validation`.
        validation: ScriptValidation,
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
        validation: ScriptValidation,
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
    pub fn validation(&self) -> ScriptValidation {
        match self {
            Self::Apus { validation, .. } | Self::Bitcoind { validation, .. } => *validation,
        }
    }
}

/// How subjects are called where room is short: engines and validations are named only if there is
/// more than one of them.
pub struct SubjectNames {
    engines: bool,
    validations: bool,
}

impl SubjectNames {
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

// ---- what can be run on a chain, and why the others cannot ----
//
// What cannot be run is left out with a word, so that one list of subjects does for chains and
// builds of all kinds.

/// Those subjects that can be run on `chain`, and in words which cannot, and why. `no_interpreter` says why
/// the program can run no scripts, if it cannot, and `has_node` whether a node takes part.
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

/// Why a subject cannot be run on a chain.
fn obstacle(
    subject: &Subject,
    chain: &BenchChain,
    no_interpreter: Option<&str>,
    has_node: bool,
) -> Option<String> {
    if subject.of_node() && !has_node {
        return Some("it goes by a node's index and undo data: give --against bitcoind".to_owned());
    }
    let in_order = subject.sees_coins();
    if let Some(why) = no_interpreter.filter(|_| in_order) {
        // Even if they skip most: the chain goes on above its assumed-valid block.
        return Some(why.to_owned());
    }
    match (subject.validation(), &chain.manifest) {
        (ScriptValidation::Assumevalid, None) if in_order => {
            Some("without a manifest.json it is not known which block to assume valid".to_owned())
        }
        (ScriptValidation::Full, None) => {
            Some("without a manifest.json it is not known whether it is signed".to_owned())
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
    fn names_say_what_differs() {
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
    fn subjects_are_told_apart_in_json() {
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

    /// What is left of all kinds of subjects, as places in the list.
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
    fn no_run_runs_scripts_of_an_unsigned_chain() {
        let unsigned = ChainManifest { signed: false, ..manifest() };
        let (places, said) = left(&chain(Some(unsigned)), None);
        assert_eq!(places, [0, 1, 3, 5]);
        assert_eq!(
            said,
            ["left out apus utxo full par=2 dbcache=450, bitcoind assumevalid=0 dbcache=450: the \
              chain is not signed, so its scripts are not valid"]
        );
    }

    #[test]
    fn without_an_interpreter_nothing_is_connected_in_order() {
        let (places, said) = left(&chain(Some(manifest())), Some("none here"));
        assert_eq!(places, [0, 3, 4]);
        assert_eq!(
            said,
            [
                "left out apus utxo assumevalid par=2 dbcache=450, apus utxo full par=2 dbcache=450, \
              apus swiftsync assumevalid coins par=1 dbcache=450: none here"
            ]
        );
    }

    #[test]
    fn without_a_manifest_too_little_is_known() {
        let (places, said) = left(&chain(None), None);
        assert_eq!(places, [0, 3]);
        assert_eq!(said.len(), 2, "{said:?}");
    }

    #[test]
    fn undo_data_are_a_nodes() {
        let all = [apus("sha256", 1), apus("coins", 1)];
        let (chosen, left_out) = choose(&all, &chain(Some(manifest())), None, false);
        assert_eq!(chosen, all[..1]);
        let said = &left_out[0];
        assert!(said.contains("coins par=1") && said.contains("--against bitcoind"), "{said}");
    }
}

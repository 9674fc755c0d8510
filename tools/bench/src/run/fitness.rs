//! [`choose`]: what of all subjects can be run on a chain, and why the others cannot.
//!
//! What cannot be run is left out with a word, so that one list of subjects does for chains and
//! builds of all kinds.

use super::chain::Chain;
use super::matrix::{Subject, Validation};

/// Subjects that are not run on a chain, all for the same reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LeftOut {
    pub(super) subjects: Vec<Subject>,
    pub(super) why: String,
}

impl LeftOut {
    /// In words.
    pub(super) fn text(&self) -> String {
        let names: Vec<String> = self.subjects.iter().map(Subject::to_string).collect();
        format!("left out {}: {}", names.join(", "), self.why)
    }
}

/// Those subjects that can be run on `chain`, and the others by reason. `no_interpreter` says why
/// the program can run no scripts, if it cannot, and `has_node` whether a node takes part.
pub(super) fn choose(
    subjects: &[Subject],
    chain: &Chain,
    no_interpreter: Option<&str>,
    has_node: bool,
) -> (Vec<Subject>, Vec<LeftOut>) {
    let (mut chosen, mut left_out) = (Vec::new(), Vec::<LeftOut>::new());
    for subject in subjects {
        let Some(why) = obstacle(subject, chain, no_interpreter, has_node) else {
            chosen.push(subject.clone());
            continue;
        };
        match left_out.iter_mut().find(|it| it.why == why) {
            Some(others) => others.subjects.push(subject.clone()),
            None => left_out.push(LeftOut { subjects: vec![subject.clone()], why }),
        }
    }
    (chosen, left_out)
}

/// Why a subject cannot be run on a chain.
fn obstacle(
    subject: &Subject,
    chain: &Chain,
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
        (Validation::Assumevalid, None) if in_order => {
            Some("without a manifest.json it is not known which block to assume valid".to_owned())
        }
        (Validation::Full, None) => {
            Some("without a manifest.json it is not known whether it is signed".to_owned())
        }
        (Validation::Full, Some(manifest)) if !manifest.signed => {
            Some("the chain is not signed, so its scripts are not valid".to_owned())
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::manifest::Manifest;
    use crate::run::testing::{apus, manifest, utxo};
    use apus_chain::Network;
    use std::path::PathBuf;

    fn chain(manifest: Option<Manifest>) -> Chain {
        Chain {
            name: "small".to_owned(),
            folder: PathBuf::new(),
            network: Network::Regtest,
            blocksdir: PathBuf::new(),
            hints: PathBuf::new(),
            manifest,
        }
    }

    /// What is left of all kinds of subjects, as places in the list.
    fn left(chain: &Chain, no_interpreter: Option<&str>) -> (Vec<usize>, Vec<String>) {
        let node = |validation| Subject::Bitcoind { validation, dbcache_mib: 450 };
        let all = [
            apus("sha256", 1),
            utxo(Validation::Assumevalid),
            utxo(Validation::Full),
            node(Validation::Assumevalid),
            node(Validation::Full),
            apus("coins", 1),
        ];
        let (chosen, left_out) = choose(&all, chain, no_interpreter, true);
        let places = (0..all.len()).filter(|&place| chosen.contains(&all[place])).collect();
        (places, left_out.iter().map(LeftOut::text).collect())
    }

    #[test]
    fn a_signed_chain_fits_every_run() {
        assert_eq!(left(&chain(Some(manifest())), None), (vec![0, 1, 2, 3, 4, 5], Vec::new()));
    }

    #[test]
    fn no_run_runs_scripts_of_an_unsigned_chain() {
        let unsigned = Manifest { signed: false, ..manifest() };
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
        let said = left_out[0].text();
        assert!(said.contains("coins par=1") && said.contains("--against bitcoind"), "{said}");
    }
}

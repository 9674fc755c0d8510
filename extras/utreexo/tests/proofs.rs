//! Published vectors of proofs: whether they hold, and the roots after their leaves are deleted and others
//! added.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_utreexo::{Fragment, NodeHash, PROOF_ROWS, Position, Proof, Roots, forest_rows};
use serde::Deserialize;
use sha2::{Digest, Sha256};
use std::path::PathBuf;

fn fixture<T: for<'de> Deserialize<'de>>(name: &str) -> T {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/utreexo");
    let path = folder.join(name);
    let text = std::fs::read(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    serde_json::from_slice(&text).unwrap()
}

fn leaf(preimage: u8) -> NodeHash {
    NodeHash(Sha256::digest([preimage]).into())
}

fn leaves(preimages: &[u8]) -> Vec<NodeHash> {
    preimages.iter().copied().map(leaf).collect()
}

fn hash(hex: &str) -> NodeHash {
    assert_eq!(hex.len(), 64);
    let byte = |at: usize| u8::from_str_radix(&hex[2 * at..2 * at + 2], 16).unwrap();
    NodeHash(std::array::from_fn(byte))
}

fn hashes(hex: &[String]) -> Vec<NodeHash> {
    hex.iter().map(|hex| hash(hex)).collect()
}

fn roots(leaves: u64, hex: &[String]) -> Roots {
    let mut bytes = [leaves.to_le_bytes(), (hex.len() as u64).to_le_bytes()].concat();
    hashes(hex).iter().for_each(|hash| bytes.extend(hash.0));
    Roots::read(&bytes).unwrap()
}

/// Converts targets from the forest's rows to the rows that proofs count. Targets outside the forest stay
/// outside.
fn of_forest(targets: &[u64], leaves: u64) -> Vec<u64> {
    let position = |target: &u64| Position::of_number(*target, forest_rows(leaves));
    let number = |target| position(target).map_or(u64::MAX, |at| at.number(PROOF_ROWS).unwrap());
    targets.iter().map(number).collect()
}

#[derive(Deserialize)]
struct Cases {
    proof_tests: Vec<ProofCase>,
    deletion_tests: Vec<DeletionCase>,
}

#[derive(Deserialize)]
struct ProofCase {
    numleaves: u64,
    roots: Vec<String>,
    targets: Vec<u64>,
    target_preimages: Vec<u8>,
    proofhashes: Vec<String>,
    expected: bool,
}

#[derive(Deserialize)]
struct DeletionCase {
    leaf_preimages: Vec<u8>,
    target_values: Vec<u64>,
    expected_roots: Vec<String>,
    proofhashes: Option<Vec<String>>,
}

impl DeletionCase {
    fn check(&self) -> bool {
        let Some(hex) = &self.proofhashes else { return false };
        let mut roots = Roots::default();
        roots.update(&Proof::default(), &[], &leaves(&self.leaf_preimages)).unwrap();
        let preimage = |target: &u64| leaf(self.leaf_preimages[*target as usize]);
        let spent: Vec<NodeHash> = self.target_values.iter().map(preimage).collect();
        let proof = Proof { targets: self.target_values.clone(), hashes: hashes(hex) };
        roots.update(&proof, &spent, &[]).unwrap();
        assert_eq!(roots.hashes(), hashes(&self.expected_roots), "{:?}", self.target_values);
        true
    }
}

#[test]
fn proofs_and_deletions() {
    for (name, proofs, deletions) in
        [("test_cases.json", 13, 14), ("pytreexo_test_cases.json", 14, 11)]
    {
        let cases: Cases = fixture(name);
        for case in &cases.proof_tests {
            let targets = of_forest(&case.targets, case.numleaves);
            let proof = Proof { targets, hashes: hashes(&case.proofhashes) };
            let roots = roots(case.numleaves, &case.roots);
            let result = roots.verify(&proof, &leaves(&case.target_preimages));
            assert_eq!(result.is_ok(), case.expected, "{name}, {:?}: {result:?}", case.targets);
        }
        let checked = cases.deletion_tests.iter().filter(|case| case.check()).count();
        assert_eq!((cases.proof_tests.len(), checked), (proofs, deletions), "{name}");
    }
}

#[derive(Deserialize)]
struct UpdateCase {
    roots: Vec<String>,
    leaves: u64,
    additional_preimages: Vec<u8>,
    del_hashes: Vec<String>,
    proof_hashes: Vec<String>,
    proof_targets: Vec<u64>,
    /// Nodes created by adding leaves, including those on the paths to roots.
    new_add_pos: Vec<u64>,
    new_add_hash: Vec<String>,
}

/// Roots created by adding have the positions and hashes in the vectors.
#[test]
fn leaves_deleted_and_added() {
    let cases: Vec<UpdateCase> = fixture("update_data_tests.json");
    let mut compared = 0;
    for case in &cases {
        let mut roots = roots(case.leaves, &case.roots);
        let proof =
            Proof { targets: case.proof_targets.clone(), hashes: hashes(&case.proof_hashes) };
        let added = leaves(&case.additional_preimages);
        roots.update(&proof, &hashes(&case.del_hashes), &added).unwrap();
        let leaves = roots.leaves();
        assert_eq!(leaves, case.leaves + added.len() as u64);
        let rows = (0..64).rev().filter(|row| leaves >> row & 1 == 1);
        for (row, root) in rows.zip(roots.hashes()) {
            let at = Position { row, place: (leaves >> row) - 1 };
            let number = at.number(forest_rows(leaves)).unwrap();
            if let Some(index) = case.new_add_pos.iter().position(|at| *at == number) {
                assert_eq!(*root, hash(&case.new_add_hash[index]), "{leaves} leaves, row {row}");
                compared += 1;
            }
        }
    }
    assert_eq!((cases.len(), compared), (8, 19));
}

#[derive(Deserialize)]
struct CachedCase {
    update: Update,
    cached_proof: Targets,
    cached_hashes: Vec<String>,
    initial_roots: Vec<String>,
    initial_leaves: u64,
    expected_roots: Vec<String>,
}

#[derive(Deserialize)]
struct Update {
    adds: Vec<u8>,
    proof: Targets,
    del_hashes: Vec<String>,
}

#[derive(Deserialize)]
struct Targets {
    targets: Vec<u64>,
    hashes: Vec<String>,
}

#[test]
fn proofs_before_blocks_and_roots_after_them() {
    let cases: Vec<CachedCase> = fixture("cached_proof_tests.json");
    assert_eq!(cases.len(), 8);
    for case in &cases {
        let mut roots = roots(case.initial_leaves, &case.initial_roots);
        let proof = |of: &Targets| Proof {
            targets: of_forest(&of.targets, case.initial_leaves),
            hashes: hashes(&of.hashes),
        };
        let cached = roots.verify(&proof(&case.cached_proof), &hashes(&case.cached_hashes));
        assert_eq!(cached, Ok(()), "{:?}", case.cached_proof.targets);
        let (spent, added) = (hashes(&case.update.del_hashes), leaves(&case.update.adds));
        roots.update(&proof(&case.update.proof), &spent, &added).unwrap();
        assert_eq!(roots.hashes(), hashes(&case.expected_roots));
    }
}

/// The roots equal those computed without the deleted leaves, whose places are empty from the start.
#[test]
fn a_deleted_leaf_counts_as_never_added() {
    let all: Vec<NodeHash> = (0..9).map(leaf).collect();
    let mut roots = Roots::default();
    roots.update(&Proof::default(), &[], &all[..4]).unwrap();
    let proof = Proof { targets: vec![1, 0], hashes: vec![NodeHash::parent(&all[2], &all[3])] };
    roots.update(&proof, &[all[1], all[0]], &all[4..]).unwrap();
    let mut survivors = Fragment::new(0).unwrap();
    survivors.push_empty(2).unwrap();
    all[2..].iter().for_each(|leaf| survivors.push(*leaf).unwrap());
    assert_eq!(Some(roots), survivors.roots());
}

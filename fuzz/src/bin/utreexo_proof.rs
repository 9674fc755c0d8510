//! A Utreexo proof, changed or not: it verifies exactly if a naive forest produces it. It then updates the roots
//! to those of the naive forest, with these leaves removed and others added. Also tests arbitrary bytes as a
//! proof.
//!
//! Inputs: at most 600 bytes.

#![no_main]

use apus_chain::Reader;
use apus_fuzz::Input;
use apus_fuzz::forest_model::{EMPTY, ForestModel, Node};
use apus_utreexo::{Fragment, NodeHash, Proof, Roots, TARGETS_MAX};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let count = input.u8() % 65;
    let [alive, chosen] = [(); 2].map(|()| u64::from_le_bytes(input.array()));
    // These leaves differ from those before; some are empty.
    let new = |number: u8| leaf(if number % 3 == 1 { 0 } else { 100 + number });
    let added: Vec<Node> = (0..input.u8() % 8).map(new).collect();
    let bit = |bits: u64, number: u8| bits >> number & 1 == 1;
    let is_alive = |number: &u8| bit(alive, *number);
    let mut leaves: Vec<Node> =
        (0..count).map(|n| if is_alive(&n) { leaf(n + 1) } else { EMPTY }).collect();
    let spent = (0..count).rev().filter(|n| is_alive(n) && bit(chosen, *n)).map(|n| leaf(n + 1));
    let spent: Vec<Node> = spent.collect();

    let (model, roots) = (ForestModel::new(&leaves), roots_of(&leaves));
    assert_eq!(model.roots, bare(roots.hashes()));
    let (targets, hashes) = model.proof(&spent).expect("they are there");
    let proof = Proof { targets, hashes: ours(&hashes) };
    let mut after = roots.clone();
    assert_eq!(after.update(&proof, &ours(&spent), &ours(&added)), Ok(()));
    leaves.iter_mut().filter(|leaf| spent.contains(leaf)).for_each(|leaf| *leaf = EMPTY);
    leaves.extend(&added);
    assert_eq!(bare(after.hashes()), ForestModel::new(&leaves).roots);

    let (mut edited, mut spent) = (proof, spent);
    for _ in 0..input.u8() % 4 {
        edit(&mut input, &mut edited, &mut spent);
    }
    let sound = model.proof(&spent);
    let holds = sound == Some((edited.targets.clone(), bare(&edited.hashes)));
    let verified = roots.verify(&edited, &ours(&spent));
    assert_eq!(verified.is_ok(), holds, "{verified:?}");
    let mut after = roots.clone();
    assert_eq!(after.update(&edited, &ours(&spent), &ours(&added)), verified);
    assert!(holds || after == roots);

    let rest = input.rest();
    let mut reader = Reader::new(rest);
    if let Ok(proof) = Proof::read(&mut reader, TARGETS_MAX) {
        let mut again = Vec::new();
        proof.write(&mut again);
        assert_eq!(again, &rest[..reader.position()]);
        // These leaves do not exist.
        let verified = roots.verify(&proof, &vec![NodeHash(leaf(255)); proof.targets.len()]);
        assert_eq!(verified.is_ok(), proof == Proof::default());
    }
});

/// Returns the leaf with this number; 0 is the empty leaf.
fn leaf(number: u8) -> Node {
    [number; 32]
}

fn ours(nodes: &[Node]) -> Vec<NodeHash> {
    nodes.iter().copied().map(NodeHash).collect()
}

fn bare(hashes: &[NodeHash]) -> Vec<Node> {
    hashes.iter().map(|hash| hash.0).collect()
}

fn roots_of(leaves: &[Node]) -> Roots {
    let mut fragment = Fragment::new(0).expect("room");
    leaves.iter().for_each(|leaf| fragment.push(NodeHash(*leaf)).expect("room"));
    fragment.roots().expect("from the first leaf on")
}

/// Changes one thing, or nothing if there is none of its kind.
fn edit(input: &mut Input<'_>, proof: &mut Proof, spent: &mut Vec<Node>) {
    let (kind, at, to) = (input.u8() % 12, usize::from(input.u8()), usize::from(input.u8()));
    let (targets, hashes) = (proof.targets.len(), proof.hashes.len());
    let both = targets.min(spent.len());
    let (mask, number) = (1 << (to % 8), u64::from_le_bytes(input.array()));
    match kind {
        0 if targets > 0 => proof.targets[at % targets] ^= 1 << (to % 64),
        1 if targets > 0 => proof.targets[at % targets] = number,
        2 if hashes > 0 => proof.hashes[at % hashes].0[to % 32] ^= mask,
        3 if hashes > 0 => drop(proof.hashes.remove(at % hashes)),
        4 if hashes > 0 => proof.hashes.insert(to % (hashes + 1), proof.hashes[at % hashes]),
        5 if targets > 0 => drop(proof.targets.remove(at % targets)),
        6 if both > 0 => {
            proof.targets.remove(at % both);
            spent.remove(at % both);
        }
        7 if !spent.is_empty() => {
            let at = at % spent.len();
            spent[at][to % 32] ^= mask;
        }
        8 if both > 0 => {
            proof.targets.push(proof.targets[at % both]);
            spent.push(spent[at % both]);
        }
        9 if targets > 0 => proof.targets.swap(at % targets, to % targets),
        10 if both > 0 => {
            proof.targets.swap(at % both, to % both);
            spent.swap(at % both, to % both);
        }
        11 => {
            proof.targets.push(number);
            spent.push(leaf(to as u8));
        }
        _ => {}
    }
}

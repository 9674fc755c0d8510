use super::*;
use crate::header::Header;
use crate::header_tree::HeaderTree;
use crate::header_tree::tests::{NOW, mine_child};
use crate::params::Network;
use proptest::collection::vec;
use proptest::prelude::*;
use std::num::NonZeroU32;

/// Regtest parameters with one block a day, so that fourteen blocks are two weeks.
fn daily() -> Params {
    let day = NonZeroU32::new(86_400).unwrap();
    Params { pow_target_spacing_seconds: day, ..Params::of(Network::Regtest).clone() }
}

/// A tree with a chain up to height `tip`, and the chain's hashes by height.
fn trunk(params: &Params, tip: Height) -> (HeaderTree, Vec<Header>) {
    let mut tree = HeaderTree::new(params, NOW);
    let mut headers = vec![params.genesis_header];
    for height in 0..tip {
        let next = mine_child(params, &headers[height as usize], 0);
        tree.accept(&next.to_bytes()).unwrap();
        headers.push(next);
    }
    (tree, headers)
}

/// Adds a branch of `count` headers on `from` and returns its last hash.
fn branch(tree: &mut HeaderTree, params: &Params, from: &Header, count: u32) -> BlockHash {
    let mut last = *from;
    for salt in 1..=count {
        last = mine_child(params, &last, salt);
        tree.accept(&last.to_bytes()).unwrap();
    }
    last.hash()
}

#[test]
fn without_an_assumed_valid_block_every_script_runs() {
    let params = daily();
    let (tree, _) = trunk(&params, 40);
    let best = HeaderChain::best_of(&tree);
    let checks = ScriptChecks::new(&params, &best, None);
    for height in [0, 1, 20, 40] {
        assert_eq!(checks.reason(height), Some(ScriptCheckReason::NoAssumedValid));
        assert!(checks.needed(height));
    }
}

#[test]
fn scripts_run_above_the_assumed_valid_block() {
    let params = daily();
    let (tree, headers) = trunk(&params, 40);
    let best = HeaderChain::best_of(&tree);
    let checks = ScriptChecks::new(&params, &best, Some(headers[20].hash()));
    assert_eq!(checks.reason(0), None);
    assert_eq!(checks.reason(20), None);
    assert!(!checks.needed(20) && checks.needed(21));
    assert_eq!(checks.reason(21), Some(ScriptCheckReason::AboveAssumedValid));
}

/// A block with fourteen on top has exactly fourteen days of work above it, which is not more than two weeks.
#[test]
fn scripts_run_in_the_last_two_weeks_of_work() {
    let params = daily();
    let (tree, headers) = trunk(&params, 40);
    let best = HeaderChain::best_of(&tree);
    let checks = ScriptChecks::new(&params, &best, Some(headers[40].hash()));
    assert_eq!(checks.reason(25), None);
    assert_eq!(checks.reason(26), Some(ScriptCheckReason::TooRecent));
    assert_eq!(checks.reason(40), Some(ScriptCheckReason::TooRecent));
    assert_eq!(checks.reason(41), Some(ScriptCheckReason::AboveAssumedValid));
    let short = HeaderChain::up_to(&tree, tree.find(&headers[14].hash()).unwrap()).unwrap();
    let checks = ScriptChecks::new(&params, &short, Some(headers[14].hash()));
    assert_eq!(checks.reason(0), Some(ScriptCheckReason::TooRecent));
}

#[test]
fn scripts_run_on_a_chain_with_too_little_work() {
    let (_, headers) = trunk(&daily(), 40);
    // Each regtest block takes two hashes, including the genesis block.
    for (minimum_chain_work, reason) in [(82, None), (83, Some(ScriptCheckReason::TooLittleWork))] {
        let params = Params { minimum_chain_work, ..daily() };
        let (tree, _) = trunk(&params, 40);
        let best = HeaderChain::best_of(&tree);
        assert_eq!(best.chain_work(), 82);
        let checks = ScriptChecks::new(&params, &best, Some(headers[40].hash()));
        assert_eq!(checks.reason(10), reason);
    }
}

#[test]
fn an_unknown_block_is_not_assumed() {
    let params = daily();
    let (mut tree, headers) = trunk(&params, 40);
    let best = HeaderChain::best_of(&tree);
    let lost = mine_child(&params, &mine_child(&params, &headers[40], 7), 8);
    tree.accept(&lost.to_bytes()).unwrap();
    for hash in [BlockHash([7; 32]), lost.hash()] {
        let checks = ScriptChecks::new(&params, &best, Some(hash));
        assert_eq!(checks.reason(1), Some(ScriptCheckReason::NotInHeaders));
    }
}

/// For each condition that ends the assumption, one height divides the chain.
#[test]
fn up_to_the_last_assumed_height_no_script_runs_and_above_it_all_do() {
    let params = daily();
    let (mut tree, headers) = trunk(&params, 40);
    let stale = branch(&mut tree, &params, &headers[10], 5);
    let best = HeaderChain::best_of(&tree);
    let cut = HeaderChain::up_to(&tree, tree.find(&headers[14].hash()).unwrap()).unwrap();
    let buried = HeaderChain::up_to(&tree, tree.find(&headers[15].hash()).unwrap()).unwrap();
    let poor = Params { minimum_chain_work: 83, ..daily() };
    let at = |height: usize| Some(headers[height].hash());
    let unknown = Some(BlockHash([7; 32]));
    for (checks, last) in [
        (ScriptChecks::new(&params, &best, at(20)), Some(20)),
        (ScriptChecks::new(&params, &best, at(25)), Some(25)),
        (ScriptChecks::new(&params, &best, at(26)), Some(25)),
        (ScriptChecks::new(&params, &best, at(40)), Some(25)),
        (ScriptChecks::new(&params, &best, at(0)), Some(0)),
        (ScriptChecks::new(&params, &best, None), None),
        (ScriptChecks::new(&params, &best, unknown), None),
        (ScriptChecks::new(&poor, &best, at(20)), None),
        (ScriptChecks::new(&params, &cut, at(14)), None),
        (ScriptChecks::new(&params, &buried, at(14)), Some(0)),
        (ScriptChecks::new(&params, &best, Some(stale)), None),
    ] {
        assert_eq!(checks.last_assumed(), last, "{checks:?}");
        for height in 0..50 {
            assert_eq!(checks.needed(height), last.is_none_or(|last| height > last), "{height}");
        }
    }
}

proptest! {
    /// Compares with Core's definition for each block of a chain with a fluctuating difficulty.
    #[test]
    fn the_last_two_weeks_match_the_definition(
        bits in vec(
            prop_oneof![0x1d00_8000u32..0x1d01_0000, 0x1c00_8000u32..0x1c10_0000, Just(0x1d00_ffff)],
            1..60,
        ),
        spacing in prop_oneof![600u32..100_000, Just(86_400)],
    ) {
        let tip_height = bits.len() as Height - 1;
        let work_to = |height: Height| -> u128 {
            bits[..=height as usize].iter().map(|&bits| block_work(bits)).sum()
        };
        let tip_proof = block_work(bits[tip_height as usize]);
        let recent = |height: Height| {
            let above = work_to(tip_height) - work_to(height);
            above * u128::from(spacing) / tip_proof <= 1_209_600
        };
        let expected = (0..=tip_height).find(|&height| recent(height)).unwrap();
        let from = recent_from(|height| bits[height as usize], tip_height, spacing);
        prop_assert_eq!(from, expected);
    }
}

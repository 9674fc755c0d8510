//! Jobs that begin with the roots of a block: they end with the same roots as a job from block 1, and with no others.

use crate::swiftsync::harness::{Chain, without_bip34};
use crate::utreexo::bridge::proofs_of;
use crate::utreexo::harness::{Ranges, above, engine, honest, run_by, trusted};
use crate::utreexo::valid::random;
use apus_chain::{BlockHash, Height, HeightRange, Params};
use apus_proofs::ProofsError;
use apus_proofs::engine::{ForestStart, ProvenError, RootsBlock, TrustedRoots};
use apus_testkit::chain::ChainBuilder;
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use apus_utreexo::Roots;
use proptest::prelude::*;

/// Roots that differ from the right ones in one bit, or in everything.
fn wrong(right: &Roots, place: usize, rng: &mut Rng) -> Roots {
    let mut bytes = Vec::new();
    right.write(&mut bytes);
    let roots = bytes.len() - 16;
    bytes[16 + place % roots] ^= 1 << rng.below(8);
    Roots::read(&bytes).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(8, 200) as u32))]

    #[test]
    fn the_roots_of_any_block_lead_to_the_same_roots(seed: u64, blocks in 2usize..30, at: u32) {
        let (chain, mut rng) = (random(seed, blocks), Rng::new(seed));
        let whole = honest(&chain, &mut rng).unwrap();
        let data = proofs_of(&chain.blocks);
        let height = 1 + at % (chain.stop() - 1);
        let right = &data.roots[height as usize];
        let part = above(&chain, (&data, right), height, &mut rng).unwrap().unwrap();
        prop_assert_eq!((&part.roots, part.coins), (&whole.roots, None));
        prop_assert_eq!(part.counts.blocks, u64::from(chain.stop() - height));
        let others = [
            wrong(right, at as usize, &mut rng),
            data.roots[height as usize - 1].clone(),
            data.roots[height as usize + 1].clone(),
        ];
        for other in others {
            let ended = above(&chain, (&data, &other), height, &mut rng).unwrap();
            prop_assert!(ended.is_err(), "{other} instead of {right}");
        }
    }
}

/// Ranges that do not begin with the roots of the job, or do not begin at its first block.
#[test]
fn other_ranges_are_refused() {
    let chain = random(80, 12);
    let (data, height) = (proofs_of(&chain.blocks), 90);
    let begin = |roots: &Roots| {
        let (stop, trusted) = (chain.stop(), trusted(roots, height));
        ForestStart::of_trusted(&trusted, &chain.params, &chain.headers, stop).unwrap()
    };
    let run = |first: Height, roots: &Roots| {
        let ranges = Ranges::of(&data, &[HeightRange::new(first, chain.stop() + 1)]);
        let engine = engine(&chain).starting_with(begin(roots));
        run_by(&engine, &chain, &ranges, &mut Rng::new(80))
    };
    let right = &data.roots[90];
    assert!(run(91, right).is_ok());
    let error = run(91, &data.roots[89]).unwrap_err();
    assert!(matches!(error, ProvenError::Before { first: 91, .. }), "{error}");
    let error = run(92, right).unwrap_err();
    assert!(matches!(error, ProvenError::Incomplete { .. }), "{error}");
    let error = run(1, right).unwrap_err();
    assert!(matches!(error, ProvenError::Surplus { .. }), "{error}");
}

/// Roots show no coinbases, so a job begins only where no later coinbase can repeat one below.
#[test]
fn bip30_decides_where_a_job_may_begin() {
    let mut builder = ChainBuilder::new(81);
    builder.empty_blocks(60);
    let begin = |params: &Params, height: Height, end: Height| {
        let chain = Chain::with(params, builder.blocks());
        ForestStart::of_trusted(&trusted(&Roots::default(), height), params, &chain.headers, end)
    };
    let refused = |params: &Params, height: Height, end: Height, said: &str| {
        let error = begin(params, height, end).unwrap_err();
        assert!(matches!(error, ProofsError::RootsBip30 { .. }), "{error}");
        assert!(error.to_string().contains(said), "{error}");
    };
    let never = without_bip34();
    refused(&never, 50, 60, "validate from block 1 on");
    let hash = Chain::of(&builder).headers.hash(40).copied();
    let known = Params { bip34_height: 40, bip34_hash: hash, ..never.clone() };
    refused(&known, 38, 60, "use the roots of block 39 or a later one");
    assert_eq!(begin(&known, 39, 60).unwrap().first(), 40);
    assert!(begin(&known, 40, 1_983_701).is_ok());
    refused(&known, 40, 1_983_702, "stop below block 1983702");
    let other = Params { bip34_hash: Some(BlockHash([1; 32])), ..known };
    refused(&other, 50, 60, "validate from block 1 on");
}

#[test]
fn blocks_that_no_job_can_begin_above_are_refused() {
    let chain = random(82, 3);
    let begin = |block: RootsBlock| {
        let trusted = TrustedRoots { block, ..trusted(&Roots::default(), 0) };
        ForestStart::of_trusted(&trusted, &chain.params, &chain.headers, 100)
    };
    let hash = |height: Height| RootsBlock::Hash(*chain.headers.hash(height).unwrap());
    assert_eq!(begin(hash(99)).unwrap().first(), 100);
    for block in [RootsBlock::Height(0), hash(0)] {
        assert!(matches!(begin(block), Err(ProofsError::RootsOfGenesis { .. })));
    }
    for block in [RootsBlock::Height(100), hash(101)] {
        assert!(matches!(begin(block), Err(ProofsError::NothingAboveRoots { end: 100, .. })));
    }
    for block in [RootsBlock::Height(104), RootsBlock::Hash(BlockHash([7; 32]))] {
        assert!(matches!(begin(block), Err(ProofsError::RootsOffChain { .. })));
    }
}

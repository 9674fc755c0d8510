//! Valid chains with honest data: one verdict, however they are cut and merged.

use crate::swiftsync::harness::Chain;
use crate::utreexo::bridge::proofs_of;
use crate::utreexo::harness::{Ranges, cuts, engine, honest, range, run};
use apus_chain::{BlockChecker, HeightRange, Reader};
use apus_proofs::engine::{AmountSums, Partial, ProofSource, ProvenError};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::effort::rounds;
use apus_testkit::oracle::forest;
use apus_testkit::rng::Rng;
use apus_utreexo::NodeHash;
use proptest::prelude::*;

pub(crate) fn random(seed: u64, blocks: usize) -> Chain {
    let mut builder = ChainBuilder::new(seed);
    builder.empty_blocks(100);
    builder.random_blocks(blocks, Shape::default());
    Chain::of(&builder)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(8, 200) as u32))]

    #[test]
    fn any_cut_and_any_order_give_the_same_verdict(seed: u64, blocks in 0usize..30) {
        let (chain, mut rng) = (random(seed, blocks), Rng::new(seed));
        let verdict = honest(&chain, &mut rng).unwrap();
        for _ in 0..2 {
            prop_assert_eq!(&honest(&chain, &mut rng).unwrap(), &verdict);
        }
        let (leaves, roots) = forest(&chain.blocks);
        let roots: Vec<NodeHash> = roots.into_iter().map(NodeHash).collect();
        prop_assert_eq!((verdict.roots.leaves(), verdict.roots.hashes()), (leaves, &roots[..]));
        let utxo = chain.utxo();
        let sums = AmountSums {
            coins: utxo.len() as u64,
            amount: utxo.values().map(|coin| u128::from(coin.output.value.to_sat())).sum(),
            bogosize: utxo.values().map(|it| 50 + it.output.script_pubkey.len() as u64).sum(),
        };
        prop_assert_eq!(verdict.coins, Some(sums));
        prop_assert_eq!(verdict.counts.blocks, u64::from(chain.stop()));
        let bytes: usize = chain.blocks[1..].iter().map(bitcoin::Block::total_size).sum();
        prop_assert_eq!(verdict.counts.bytes, bytes as u64);
    }
}

/// Each block must arrive exactly once, as in every pass, and in ascending order.
#[test]
fn blocks_must_arrive_once_each_in_ascending_order() {
    let chain = random(40, 6);
    let cuts = [HeightRange::new(1, 5), HeightRange::new(5, 8), HeightRange::new(8, 107)];
    let (data, engine) = (Ranges::of(&proofs_of(&chain.blocks), &cuts), engine(&chain));
    let of = |order: &[u32]| {
        let mut segment = engine.begin(data.range(HeightRange::new(5, 8)).unwrap())?;
        for &height in order {
            let mut checker = BlockChecker::new();
            chain.block(&mut checker, height, |block| engine.block(&mut segment, block))?;
        }
        engine.finish(segment)
    };
    for (order, stranger) in
        [(&[6][..], 6), (&[4], 4), (&[5, 5], 5), (&[5, 7], 7), (&[5, 6, 7, 8], 8)]
    {
        let error = of(order).unwrap_err();
        assert!(matches!(error, ProvenError::Unexpected(it) if it == stranger), "{error}");
    }
    let missing = of(&[5, 6]).unwrap_err().to_string();
    assert_eq!(missing, "the blocks 7..8 of the chain up to 7 were not processed");
    let whole = of(&[5, 6, 7]).unwrap().partial;
    assert_eq!(whole, range(&engine, &chain, &data, cuts[1]).unwrap());
    assert_eq!((whole.done().blocks, whole.ranges()), (3, &cuts[1..2]));
    let gap = engine.conclude(&whole, 7).unwrap_err();
    assert!(matches!(gap, ProvenError::Incomplete { missing, .. } if missing.end == 5), "{gap}");
    let mut low = range(&engine, &chain, &data, cuts[0]).unwrap();
    low.merge(&whole).unwrap();
    assert!(low.merge(&whole).is_err());
    assert!(engine.conclude(&low, 7).is_ok());
    let more = engine.conclude(&low, 6).unwrap_err();
    assert!(matches!(more, ProvenError::Surplus { .. }), "{more}");
}

/// A checkpoint keeps the whole partial result.
#[test]
fn partial_results_round_trip() {
    let (chain, mut rng) = (random(41, 12), Rng::new(41));
    let data = Ranges::of(&proofs_of(&chain.blocks), &cuts(&chain, &mut rng));
    let (engine, mut whole) = (engine(&chain), Partial::default());
    for (heights, ..) in &data.ranges {
        let part = range(&engine, &chain, &data, *heights).unwrap();
        let mut bytes = Vec::new();
        part.write(&mut bytes);
        let again = Partial::read(&mut Reader::new(&bytes)).unwrap();
        assert_eq!(again, part);
        whole.merge(&again).unwrap();
    }
    let verdict = engine.conclude(&whole, chain.stop()).unwrap();
    assert_eq!(verdict, run(&chain, &data, &mut rng).unwrap());
}

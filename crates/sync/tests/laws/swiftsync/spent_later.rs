//! Tests the set below the block where the hints stop, given the coins that the blocks in between spend.

use crate::swiftsync::harness::{
    Chain, Hints, KINDS, SECRET, coin_hints, equal_segments, index_hints, range_of, snapshot,
};
use crate::swiftsync::shapes::random_chain;
use apus_chain::{BlockChecker, HeightRange};
use apus_sync::engines::pass::{PartialResult, Pass};
use apus_sync::engines::swiftsync::aggregate::Aggregator;
use apus_sync::engines::swiftsync::{
    SPENT_LATER_KEY, SegmentHints, SpentByBlock, SpentLater, SpentLaterBuilder, SwiftSync,
    SwiftSyncError, Verdict,
};
use apus_testkit::chain::utxo_set;
use apus_testkit::rng::Rng;
use proptest::prelude::*;

const BLOCKS: u32 = 14;

const KEY: [u8; SPENT_LATER_KEY] = [9; SPENT_LATER_KEY];

/// Returns the coins that the blocks at these heights spend.
fn spent(chain: &Chain, heights: &[u32]) -> SpentLater {
    let (mut builder, mut checker) = (SpentLaterBuilder::new(KEY), BlockChecker::new());
    for &height in heights {
        builder.add(&chain.block(&mut checker, height, |block| SpentByBlock::new(block, &KEY)));
    }
    builder.finish()
}

/// Runs a sync to `last` with hints for the whole chain.
fn run(
    chain: &Chain,
    last: u32,
    spent: SpentLater,
    hints: impl Fn(HeightRange) -> SegmentHints,
) -> Result<(Verdict, Vec<Vec<u8>>), SwiftSyncError> {
    let aggregator = Aggregator::new(KINDS[0], &SECRET, *chain.headers.tip_hash(), [7; 32]);
    let engine = SwiftSync::new(&chain.params, &chain.headers, aggregator)
        .below_hints(spent)
        .with_muhash(true);
    let (mut whole, mut runs) = (engine.nothing(), Vec::new());
    for order in equal_segments(last, 3) {
        let done = chain.segment(&engine, hints(range_of(&order)), &order)?;
        whole.merge(&done.partial).unwrap();
        runs.push(done.run);
    }
    Ok((engine.conclude(&whole, last)?, runs))
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn the_set_equals_the_models_at_any_height(seed: u64, shuffle: u64) {
        let chain = Chain::of(&random_chain(seed, BLOCKS));
        let (hints, coins): (Hints, _) = (chain.hints(), snapshot(&chain.utxo()));
        for last in 1..BLOCKS {
            let mut above: Vec<u32> = (last + 1..=BLOCKS).collect();
            Rng::new(shuffle).shuffle(&mut above);
            let model = utxo_set(&chain.blocks[..=last as usize]);
            let named = run(&chain, last, spent(&chain, &above), |range| coin_hints(&coins, range));
            let placed = run(&chain, last, spent(&chain, &above), |range| index_hints(&hints, range));
            let (verdict, runs) = placed.unwrap();
            prop_assert_eq!(&verdict.coins.coins, &(model.len() as u64));
            prop_assert_eq!(
                crate::swiftsync::harness::shown(&verdict.muhash.unwrap()),
                apus_testkit::oracle::muhash(&model)
            );
            prop_assert_eq!(named.unwrap(), (verdict, runs));
        }
    }

    /// Without the spends of one block there are coins that are neither kept nor spent.
    #[test]
    fn leaving_out_a_block_makes_it_fail(seed: u64) {
        let chain = Chain::of(&random_chain(seed, BLOCKS));
        let hints = chain.hints();
        let last = BLOCKS / 2;
        let model = |at: u32| utxo_set(&chain.blocks[..=at as usize]);
        let below = model(last);
        for left_out in last + 1..=BLOCKS {
            let above: Vec<u32> = (last + 1..=BLOCKS).filter(|height| *height != left_out).collect();
            let inputs = chain.blocks[left_out as usize].txdata[1..].iter().flat_map(|tx| &tx.input);
            let matters = inputs.clone().any(|input| below.contains_key(&input.previous_output));
            let done = run(&chain, last, spent(&chain, &above), |range| index_hints(&hints, range));
            let unbalanced = matches!(done, Err(SwiftSyncError::Unbalanced { .. }));
            prop_assert_eq!((done.is_err(), unbalanced), (matters, matters), "block {}", left_out);
        }
    }
}

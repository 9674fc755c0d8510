//! Tests that the numbers that coins carry through both walks equal a slow and obvious count.

use crate::mergesync::harness::agree;
use crate::swiftsync::harness::Chain;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, Shape, coins_of};
use apus_testkit::effort::rounds;
use apus_testkit::oracle::proofs;
use proptest::prelude::*;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(rounds(12, 300) as u32))]

    /// The blocks of this test spend many of their own outputs.
    #[test]
    fn own_spends_have_no_number(seed: u64, blocks in 1usize..12) {
        let mut builder = ChainBuilder::new(seed);
        builder.empty_blocks(100);
        builder.random_blocks(blocks, Shape { transactions_max: 40, inputs_max: 6, outputs_max: 9 });
        prop_assert_eq!(agree(&Chain::of(&builder), seed).refused, None);
    }
}

/// A block spends its own outputs: before, between and after others, out of order.
#[test]
fn outputs_spent_in_their_block_have_no_number() {
    let mut builder = ChainBuilder::new(3);
    builder.empty_blocks(101);
    let coin = builder.mature_coin();
    let outputs = (0..7).map(|_| builder.output(1000, ScriptKind::OpTrue)).collect();
    let seven = builder.spend_coins(&[coin], outputs);
    let of = coins_of(&seven);
    let outputs = (0..2).map(|_| builder.output(300, ScriptKind::OpTrue)).collect();
    let again = builder.spend_coins(&[of[6].clone(), of[1].clone()], outputs);
    let outputs = vec![builder.output(200, ScriptKind::OpTrue)];
    let last = builder.spend_coins(&[coins_of(&again)[0].clone(), of[3].clone()], outputs);
    builder.add_plan(BlockPlan { transactions: vec![seven, again, last], ..BlockPlan::default() });
    for at in [0, 5, 2] {
        let outputs = vec![builder.output(10, ScriptKind::OpTrue)];
        let tx = builder.spend_coins(&[of[at].clone()], outputs);
        builder.block_with(vec![tx]);
    }
    for seed in 0..8 {
        assert_eq!(agree(&Chain::of(&builder), seed).refused, None);
    }
    let added: Vec<usize> =
        proofs(&builder.blocks()).iter().skip(101).map(|block| block.added.len()).collect();
    // The block has seven, two and one outputs, and the coinbase's, and spends four of them.
    assert_eq!(added[0], 7, "the model says the same");
}

//! Tests of a valid chain with wrong hints: every sync must fail, with either aggregate.

use crate::swiftsync::harness::{Chain, Hints, KINDS, equal_segments, index_hints};
use crate::swiftsync::shapes::{coin, data, mined, pay, random_chain, small_chain, spend};
use apus_sync::engines::swiftsync::{HintError, SwiftSyncError};
use apus_testkit::chain::{ChainBuilder, is_unspendable};
use bitcoin::Block;

/// Returns the number of a block's outputs that have an index in hints.
pub(crate) fn spendable_count(block: &Block) -> u32 {
    let outputs = block.txdata.iter().flat_map(|tx| &tx.output);
    outputs.filter(|output| !is_unspendable(&output.script_pubkey)).count() as u32
}

/// Returns the hints with the bit of one output flipped.
pub(crate) fn flipped(hints: &Hints, block: usize, index: u32) -> Hints {
    let mut hints = hints.clone();
    match hints[block].binary_search(&index) {
        Ok(place) => drop(hints[block].remove(place)),
        Err(place) => hints[block].insert(place, index),
    }
    hints
}

/// Returns every output of the chain, as (block in the hints, index).
fn all_outputs(chain: &Chain) -> Vec<(usize, u32)> {
    let blocks = chain.blocks[1..].iter().enumerate();
    blocks.flat_map(|(place, block)| (0..spendable_count(block)).map(move |i| (place, i))).collect()
}

/// Expects the sums alone to fail; returns the numbers of created and spent coins.
fn expect_unbalanced(chain: &Chain, hints: &Hints) -> (u64, u64) {
    let answers = KINDS.map(|kind| match chain.run(kind, hints).unwrap_err() {
        SwiftSyncError::Unbalanced { created, spent } => (created, spent),
        other => panic!("{other}"),
    });
    assert_eq!(answers[0], answers[1]);
    answers[0]
}

#[test]
fn one_wrong_bit_for_each_output_of_a_small_chain() {
    let chain = Chain::of(&small_chain());
    let hints = chain.hints();
    let outputs = all_outputs(&chain);
    let (mut claimed_spent, mut claimed_unspent) = (0, 0);
    for &(block, index) in &outputs {
        let survives = hints[block].contains(&index);
        let (created, spent) = expect_unbalanced(&chain, &flipped(&hints, block, index));
        if survives {
            assert_eq!(created, spent + 1);
            claimed_spent += 1;
        } else {
            assert_eq!(created + 1, spent);
            claimed_unspent += 1;
        }
    }
    assert!(claimed_spent > 8 && claimed_unspent > 8, "{claimed_spent} {claimed_unspent}");
}

#[test]
fn one_wrong_bit_in_random_chains() {
    for seed in 100..104 {
        let chain = Chain::of(&random_chain(seed, 12));
        let hints = chain.hints();
        for (block, index) in all_outputs(&chain) {
            expect_unbalanced(&chain, &flipped(&hints, block, index));
        }
    }
}

#[test]
fn every_exchange_of_a_spent_for_an_unspent_output() {
    let chain = Chain::of(&small_chain());
    let hints = chain.hints();
    let (unspent, spent): (Vec<_>, Vec<_>) =
        all_outputs(&chain).into_iter().partition(|&(block, i)| hints[block].contains(&i));
    for &(block, index) in &unspent {
        let half = flipped(&hints, block, index);
        for &(other_block, other_index) in &spent {
            let hints = flipped(&half, other_block, other_index);
            let (created, spent) = expect_unbalanced(&chain, &hints);
            assert_eq!(created, spent, "as many, but not the same ones");
        }
    }
}

/// Makes two transactions in one block or in two, whose outputs `spent` are spent later.
fn two_transactions(blocks: usize, spent: &[(usize, u32)]) -> Chain {
    let mut builder = ChainBuilder::new(3);
    let coinbases = [mined(&mut builder), mined(&mut builder)];
    let txs = coinbases.map(|coinbase| spend(&builder, &[coin(&coinbase, 0)], 4));
    for part in txs.chunks(2 / blocks) {
        builder.block_with(part.to_vec());
    }
    let inputs: Vec<_> = spent.iter().map(|&(tx, vout)| coin(&txs[tx], vout)).collect();
    builder.block_with(vec![spend(&builder, &inputs, 1)]);
    Chain::of(&builder)
}

/// Returns the hints with one block's replaced by `wrong`, after checking that they were `right`.
fn exchanged(chain: &Chain, block: usize, right: &[u32], wrong: &[u32]) -> Hints {
    let mut hints = chain.hints();
    assert_eq!(hints[block], right);
    hints[block] = wrong.to_vec();
    hints
}

#[test]
fn outputs_0_and_3_exchanged_for_1_and_2_of_one_transaction() {
    // The sums of the numbers are equal: 0 + 3 = 1 + 2. Output 0 of the block is the coinbase's.
    let chain = two_transactions(1, &[(0, 0), (0, 3)]);
    let hints = exchanged(&chain, 2, &[0, 2, 3, 5, 6, 7, 8], &[0, 1, 4, 5, 6, 7, 8]);
    expect_unbalanced(&chain, &hints);
    let chain = two_transactions(1, &[(0, 1), (0, 2)]);
    let hints = exchanged(&chain, 2, &[0, 1, 4, 5, 6, 7, 8], &[0, 2, 3, 5, 6, 7, 8]);
    expect_unbalanced(&chain, &hints);
}

#[test]
fn output_1_of_one_and_0_of_another_transaction_exchanged() {
    // A:1 and B:0 survive, but the hints say A:0 and B:1: the same ids and the same numbers are summed.
    let chain = two_transactions(1, &[(0, 0), (1, 1)]);
    let hints = exchanged(&chain, 2, &[0, 2, 3, 4, 5, 7, 8], &[0, 1, 3, 4, 6, 7, 8]);
    expect_unbalanced(&chain, &hints);
}

#[test]
fn equal_outputs_of_transactions_in_two_blocks_exchanged() {
    let chain = two_transactions(2, &[(0, 1)]);
    let mut hints = exchanged(&chain, 2, &[0, 1, 3, 4], &[0, 1, 2, 3, 4]);
    assert_eq!(hints[3], [0, 1, 2, 3, 4]);
    hints[3] = vec![0, 1, 3, 4];
    let (created, spent) = expect_unbalanced(&chain, &hints);
    assert_eq!(created, spent);
}

#[test]
fn nothing_survives_or_everything_does() {
    let chain = Chain::of(&small_chain());
    let none = vec![Vec::new(); chain.stop() as usize];
    expect_unbalanced(&chain, &none);
    let all = chain.blocks[1..].iter().map(|block| (0..spendable_count(block)).collect()).collect();
    expect_unbalanced(&chain, &all);
}

#[test]
fn an_index_past_the_blocks_last_spendable_output() {
    let chain = Chain::of(&small_chain());
    for (place, block) in chain.blocks[1..].iter().enumerate() {
        let spendable = spendable_count(block);
        for index in [spendable, spendable + 1, u32::MAX] {
            let mut hints = chain.hints();
            hints[place].push(index);
            let height = place as u32 + 1;
            let hash = *chain.headers.hash(height).unwrap();
            let error = HintError::IndexOutOfRange { height, hash, index, spendable };
            for kind in KINDS {
                assert_eq!(chain.run(kind, &hints), Err(error.clone().into()));
            }
        }
    }
}

#[test]
fn an_index_into_a_block_without_spendable_outputs() {
    let mut builder = ChainBuilder::new(4);
    let plan = apus_testkit::chain::BlockPlan {
        coinbase_outputs: Some(vec![data(1), data(2)]),
        ..Default::default()
    };
    let block = builder.add_plan(plan);
    let chain = Chain::of(&builder);
    assert!(chain.run(KINDS[0], &[vec![]]).is_ok());
    let hash = crate::swiftsync::harness::hash_of(&block);
    let error = HintError::IndexOutOfRange { height: 1, hash, index: 0, spendable: 0 };
    assert_eq!(chain.run(KINDS[0], &[vec![0]]), Err(error.into()));
}

#[test]
fn the_right_hints_of_each_lower_stop_height() {
    let builder = small_chain();
    let (chain, right) = (Chain::of(&builder), builder.hints());
    for stop in 1..chain.stop() {
        let early = builder.hints_at(chain.blocks[stop as usize].block_hash());
        let mut hints = right.clone();
        hints[..stop as usize].clone_from_slice(&early);
        if hints != right {
            expect_unbalanced(&chain, &hints);
        }
    }
}

#[test]
fn the_hints_of_a_stale_fork_of_the_same_height() {
    let mut builder = small_chain();
    let fork = builder.tip();
    let coins: Vec<_> = builder.utxo().keys().copied().collect();
    builder.block_with(vec![spend(&builder, &coins[..1], 2)]);
    let stale_tip = builder.tip();
    builder.set_tip(fork);
    builder.block_with(vec![spend(&builder, &coins[1..2], 2)]);
    builder.block_with(vec![builder.spend(&coins[2..3], vec![pay(1)])]);
    let chain = Chain::of(&builder);
    assert!(chain.run(KINDS[0], &chain.hints()).is_ok());
    let mut stale = builder.hints_at(stale_tip);
    stale.push(chain.hints().pop().unwrap());
    assert_eq!(stale.len(), chain.stop() as usize);
    expect_unbalanced(&chain, &stale);
}

#[test]
fn hints_that_are_one_block_out_of_step() {
    let chain = Chain::of(&small_chain());
    let mut hints = chain.hints();
    hints.rotate_right(1);
    for kind in KINDS {
        assert!(chain.run(kind, &hints).is_err());
    }
}

#[test]
fn the_error_says_what_to_do() {
    let chain = Chain::of(&small_chain());
    let division = equal_segments(chain.stop(), 1);
    let wrong = flipped(&chain.hints(), 0, 0);
    let error = chain.run_divided(KINDS[0], &division, |range| index_hints(&wrong, range));
    let text = error.unwrap_err().to_string();
    assert!(text.contains("other hints") && text.contains("does not balance"), "{text}");
    let none = vec![Vec::new(); chain.stop() as usize];
    assert!(!chain.run(KINDS[0], &none).unwrap_err().to_string().contains("the same number"));
}

//! Valid blocks: whatever the order of connecting, flushing and going back, the coins are those of
//! the model.

use crate::harness::*;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_testkit::chain::{Shape, utxo_set};
use apus_testkit::rng::Rng;
use proptest::prelude::*;
use std::sync::Arc;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_coins_are_those_of_the_model(seed: u64, threads in 0usize..3, every in 1usize..40) {
        let builder = random_chain(seed, 30);
        let blocks = builder.blocks();
        let chain = headers(&regtest(), &blocks);
        let store = Arc::new(MemoryStore::new());
        let mut state = open(&store, threads);
        for part in blocks[1..].chunks(every) {
            connect_all(&mut state, &chain, part).unwrap();
            state.begin_flush().unwrap();
        }
        state.finish_flush().unwrap();
        let expected = expected(builder.utxo());
        prop_assert_eq!(state.totals().coins, expected.len() as u64);
        prop_assert_eq!(state.totals().blocks, blocks.len() as u64 - 1);
        let transactions: usize = blocks[1..].iter().map(|block| block.txdata.len()).sum();
        prop_assert_eq!(state.totals().transactions, transactions as u64);
        prop_assert_eq!(stored(&store), expected);
        prop_assert_eq!(store.tip().unwrap().unwrap().height, chain.tip_height());
    }

    /// Back and forth between two branches, with flushes and restarts anywhere.
    #[test]
    fn a_branch_leaves_what_a_fresh_start_on_it_leaves(seed: u64, common in 0usize..8) {
        let mut builder = random_chain(seed, common);
        let fork = builder.tip();
        builder.random_blocks(6, Shape::default());
        let one = builder.blocks();
        builder.set_tip(fork);
        builder.random_blocks(7, Shape::default());
        let other = builder.blocks();
        let (params, mut rng) = (regtest(), Rng::new(seed));
        let store = Arc::new(MemoryStore::new());
        let mut state = open(&store, 2);
        let shared = 101 + common;
        connect_all(&mut state, &headers(&params, &one), &one[1..shared]).unwrap();
        for (from, branch) in [(&other, &one), (&one, &other), (&other, &one)] {
            let old = headers(&params, from);
            while state.tip().height as usize >= shared {
                let height = state.tip().height;
                let block = checked(&params, &old, height, &from[height as usize]);
                state.disconnect(&block).unwrap();
                if rng.one_in(3) {
                    state.flush().unwrap();
                }
                if rng.one_in(4) {
                    state.flush().unwrap();
                    drop(state);
                    state = open(&store, 1);
                }
            }
            let chain = headers(&params, branch);
            connect_all(&mut state, &chain, &branch[shared..]).unwrap();
            state.flush().unwrap();
            prop_assert_eq!(stored(&store), expected(&utxo_set(branch.iter())));
        }
    }
}

#[test]
fn undo_data_is_forgotten_below_where_it_is_kept_from() {
    let builder = random_chain(7, 10);
    let blocks = builder.blocks();
    let (params, chain) = (regtest(), headers(&regtest(), &blocks));
    let store = Arc::new(MemoryStore::new());
    let mut state = open(&store, 0);
    state.set_undo_from(106);
    connect_all(&mut state, &chain, &blocks[1..]).unwrap();
    state.flush().unwrap();
    drop(state);
    let mut state = open(&store, 0);
    for height in (106..=110).rev() {
        state.disconnect(&checked(&params, &chain, height, &blocks[height as usize])).unwrap();
    }
    let block = checked(&params, &chain, 105, &blocks[105]);
    let error = state.disconnect(&block).unwrap_err().to_string();
    assert!(error.contains("105") && error.contains("undo data is not there"), "{error}");
    state.flush().unwrap();
    assert_eq!(stored(&store), expected(&utxo_set(blocks[..106].iter())));
}

//! Tests with valid blocks: regardless of the order of connecting, flushing and disconnecting, the coins equal
//! the model's.

use crate::chainstate::harness::*;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_sync::engines::in_order::{Chainstate, ChainstateError, ChainstateOptions, Totals};
use apus_sync::engines::pass::Counts;
use apus_testkit::chain::{BlockPlan, ScriptKind, Shape, coins_of, utxo_set};
use apus_testkit::rng::Rng;
use proptest::prelude::*;
use std::sync::Arc;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn the_coins_match_the_model(seed: u64, threads in 0usize..3, every in 1usize..40) {
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
        prop_assert_eq!(state.totals().counts.blocks, blocks.len() as u64 - 1);
        let transactions: usize = blocks[1..].iter().map(|block| block.txdata.len()).sum();
        prop_assert_eq!(state.totals().counts.transactions, transactions as u64);
        prop_assert_eq!(state.sum(), Some(sum_of(&expected)));
        prop_assert_eq!(stored(&store), expected);
        prop_assert_eq!(store.tip().unwrap().unwrap().height, chain.tip_height());
    }

    /// Switches between two branches, with flushes and restarts at random moments.
    #[test]
    fn a_branch_gives_the_same_as_a_fresh_start_on_it(seed: u64, common in 0usize..8) {
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
            prop_assert_eq!(state.sum(), Some(sum_of(&stored(&store))));
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
    assert!(error.contains("105") && error.contains("undo data is missing"), "{error}");
    state.flush().unwrap();
    assert_eq!(stored(&store), expected(&utxo_set(blocks[..106].iter())));
}

#[test]
fn totals_go_back_with_the_blocks() {
    let blocks = random_chain(5, 20).blocks();
    let (params, chain) = (regtest(), headers(&regtest(), &blocks));
    let mut state = open(&Arc::new(MemoryStore::new()), 0);
    connect_all(&mut state, &chain, &blocks[1..]).unwrap();
    let tip = *state.tip();
    let below = checked(&params, &chain, tip.height - 1, &blocks[blocks.len() - 2]);
    let error = state.disconnect(&below).unwrap_err();
    assert!(matches!(error, ChainstateError::NotAtTip { tip: at, .. } if at == tip), "{error}");
    for height in (90..blocks.len()).rev() {
        let left = &blocks[..height];
        state.disconnect(&checked(&params, &chain, height as u32, &blocks[height])).unwrap();
        let coins = expected(&utxo_set(left.iter()));
        assert_eq!(seen(&state, coins.keys().copied()), coins);
        let txs = left[1..].iter().flat_map(|block| &block.txdata);
        let totals = Totals {
            counts: Counts {
                blocks: left.len() as u64 - 1,
                bytes: left[1..].iter().map(|block| block.total_size() as u64).sum(),
                transactions: txs.clone().count() as u64,
                inputs: txs
                    .clone()
                    .filter(|tx| !tx.is_coinbase())
                    .map(|tx| tx.input.len() as u64)
                    .sum(),
                outputs: txs.map(|tx| tx.output.len() as u64).sum(),
            },
            scripts: 0,
            coins: coins.len() as u64,
        };
        assert_eq!(*state.totals(), totals, "{height}");
    }
}

/// Undo data that waits for the next flush uses memory, so it makes a flush due as coins do.
#[test]
fn pending_undo_data_makes_a_flush_due() {
    let mut builder = random_chain(3, 1);
    let bytes_max = 24 << 20;
    let options = ChainstateOptions { cache_bytes: bytes_max, ..options(0) };
    let store: Arc<dyn CoinsStore> = Arc::new(MemoryStore::new());
    let mut state = Chainstate::open(&regtest(), store, options).unwrap();
    let scripts = [ScriptKind::Longest; 98];
    for _ in 0..18 {
        let outputs = scripts.map(|kind| builder.output(1_000, kind)).into();
        builder.add_plan(BlockPlan { coinbase_outputs: Some(outputs), ..BlockPlan::default() });
    }
    builder.empty_blocks(100);
    let made = builder.blocks().len();
    for block in made - 118..made - 100 {
        let coins = coins_of(&builder.blocks()[block].txdata[0]);
        let output = builder.output(1_000, ScriptKind::OpTrue);
        let longest =
            coins.into_iter().filter(|(_, coin)| coin.value.to_sat() == 1_000).collect::<Vec<_>>();
        let tx = builder.spend_coins(&longest, vec![output]);
        builder.block_with(vec![tx]);
    }
    let blocks = builder.blocks();
    let chain = headers(&regtest(), &blocks);
    let (spending, held) = (made, |state: &Chainstate| state.cache().stats().undo_bytes);
    connect_all(&mut state, &chain, &blocks[1..spending]).unwrap();
    // After this flush the store has their coins, so that only undo data waits.
    state.flush().unwrap();
    assert!(!state.flush_due() && held(&state) == 0);
    state.keep_connected();
    let mut sizes = Vec::new();
    for block in &blocks[spending..] {
        assert!(!state.flush_due(), "{} bytes wait", held(&state));
        connect(&mut state, &regtest(), &chain, block).unwrap();
        sizes.extend(state.take_connected().iter().map(|connected| connected.undo.len() as u64));
        let (least, found) = (sizes.iter().sum::<u64>(), held(&state));
        assert!((least..least + (least >> 4) + 4096).contains(&found), "{found} of {least}");
        let stats = state.cache().stats();
        assert!(stats.bytes <= bytes_max && stats.bytes >= found, "{stats:?}");
        if state.flush_due() {
            break;
        }
    }
    assert!(state.flush_due() && held(&state) > bytes_max / 2, "{}", held(&state));
    for last in sizes.iter().rev() {
        let before = held(&state);
        let height = state.tip().height;
        let block = checked(&regtest(), &chain, height, &blocks[height as usize]);
        state.disconnect(&block).unwrap();
        assert!(before - held(&state) >= *last);
    }
    assert_eq!(held(&state), 0);
    let next = state.tip().height as usize + 1;
    let end = next + sizes.len();
    connect_all(&mut state, &chain, &blocks[next..end]).unwrap();
    state.begin_flush().unwrap();
    assert!(held(&state) == 0 && !state.flush_due());
    state.finish_flush().unwrap();
}

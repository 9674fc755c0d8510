//! Tests that the chain state's sum always equals the sum of its coins.

use crate::chainstate::harness::*;
use apus_chain::{BlockHash, BlockUndo, CoinRef, CoinSum, KnownBlock, OutPoint, UndoCoin};
use apus_engine::utxo::store::{EachCoin, MemoryStore};
use apus_engine::utxo::{
    CoinBytes, CoinsStore, ConnectContext, ConnectedBlock, Flush, PreparedBlock, StoreError,
};
use apus_sync::engines::in_order::{Chainstate, ChainstateError};
use apus_testkit::chain::utxo_set;
use apus_testkit::rng::Rng;
use proptest::prelude::*;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10))]

    /// Connects blocks with or without prepared sums, prefetching and flushes, and disconnects them again.
    #[test]
    fn the_sum_matches_the_models_coins(
        seed: u64,
        threads in 0usize..3,
        prepared in 0u64..3,
        small_cache: bool,
    ) {
        let blocks = random_chain(seed, 25).blocks();
        let (params, chain) = (regtest(), headers(&regtest(), &blocks));
        let (store, mut rng) = (Arc::new(MemoryStore::new()), Rng::new(seed));
        let mut options = options(threads);
        if small_cache {
            options.cache_bytes = 1;
        }
        let mut state =
            Chainstate::open(&params, Arc::clone(&store) as Arc<dyn CoinsStore>, options).unwrap();
        state.keep_sum(KEY, CoinSum::default());
        state.keep_connected();
        let mut ready = Vec::new();
        for (height, block) in (1..).zip(&blocks[1..]) {
            let block = checked(&params, &chain, height, block);
            let with_sums = prepared == 2 || (prepared == 1 && rng.one_in(2));
            ready.push(Arc::new(match with_sums {
                true => PreparedBlock::with_sums(&params, block, &KEY),
                false => PreparedBlock::new(&params, block),
            }));
        }
        for (at, block) in ready.iter().enumerate() {
            if let Some(next) = ready.get(at + 1) {
                state.prefetch(next);
            }
            let context = ConnectContext { ancestry: &chain, check_scripts: false };
            state.begin(Arc::clone(block), &context).unwrap();
            if rng.one_in(4) {
                state.flush().unwrap();
            }
            state.settle().unwrap();
            let coins = expected(&utxo_set(blocks[..at + 2].iter()));
            prop_assert_eq!(state.sum(), Some(sum_of(&coins)));
            for ConnectedBlock { block, undo, spent } in state.take_connected() {
                prop_assert_eq!(spent, sum_of_undo(&block, &undo.whole()));
            }
        }
        for height in (1..blocks.len()).rev() {
            let block = checked(&params, &chain, height as u32, &blocks[height]);
            state.disconnect(&block).unwrap();
            if rng.one_in(4) {
                state.flush().unwrap();
            }
            let coins = expected(&utxo_set(blocks[..height].iter()));
            prop_assert_eq!(state.sum(), Some(sum_of(&coins)), "{}", height);
        }
        prop_assert_eq!(state.sum(), Some(CoinSum::default()));
    }
}

/// Returns the sum of the coins in a block's undo data, under its inputs' outpoints.
fn sum_of_undo(block: &PreparedBlock, undo: &[u8]) -> CoinSum {
    let undo = BlockUndo::read(undo).unwrap();
    let bytes = block.block().bytes();
    let inputs: Vec<OutPoint> = bytes
        .txs()
        .skip(1)
        .flat_map(|(_, tx)| tx.inputs().map(|input| OutPoint::from_bytes(input.outpoint())))
        .collect();
    assert_eq!(inputs.len(), undo.coins().len());
    let one = |(name, coin): (&OutPoint, &UndoCoin<'_>)| {
        let mut stored = Vec::new();
        coin.write_stored(&mut stored);
        KEY.coin(name, &stored)
    };
    inputs.iter().zip(undo.coins()).map(one).fold(CoinSum::default(), CoinSum::plus)
}

/// A store that once returns a coin different from the one put in, or undo data with a changed byte.
#[derive(Default)]
struct Lying {
    inner: Arc<MemoryStore>,
    given: AtomicU64,
    lies_at: u64,
    flips: Option<usize>,
}

impl CoinsStore for Lying {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.inner.tip()
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        let Some(coin) = self.inner.get(outpoint)? else { return Ok(None) };
        if self.given.fetch_add(1, Ordering::SeqCst) != self.lies_at {
            return Ok(Some(coin));
        }
        let CoinRef { height, coinbase, amount, .. } = coin.coin().as_ref();
        Ok(Some(CoinBytes::new(CoinRef { height, coinbase, amount, script: &[0x52, 0x53] })))
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        self.inner.write(flush)
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        let undo = self.inner.undo(block)?;
        Ok(undo.map(|mut undo| {
            self.flips.inspect(|at| undo[*at] ^= 1);
            undo
        }))
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.inner.for_each(each)
    }
}

#[test]
fn changed_coins_change_the_sum() {
    let blocks = random_chain(31, 20).blocks();
    let chain = headers(&regtest(), &blocks);
    let mut lies = 0;
    for lies_at in [0, 1, 5, u64::MAX] {
        let store = Arc::new(Lying { lies_at, ..Lying::default() });
        let (mut options, params) = (options(0), regtest());
        options.cache_bytes = 1;
        let given = Arc::clone(&store);
        let mut state = Chainstate::open(&params, store, options).unwrap();
        state.keep_sum(KEY, CoinSum::default());
        for block in &blocks[1..] {
            connect(&mut state, &params, &chain, block).unwrap();
            state.flush().unwrap();
        }
        let lied = given.given.load(Ordering::SeqCst) > lies_at;
        lies += u32::from(lied);
        assert_eq!(state.sum() == Some(sum_of(&stored(&given.inner))), !lied, "{lies_at}");
    }
    assert_eq!(lies, 3);
}

/// Changes each byte of a block's stored undo data in turn: disconnecting either restores exactly the spent
/// coins, or fails.
#[test]
fn changed_undo_data_are_refused() {
    let blocks = random_chain(33, 20).blocks();
    let (params, chain) = (regtest(), headers(&regtest(), &blocks));
    let inner = Arc::new(MemoryStore::new());
    let mut state = open(&inner, 0);
    connect_all(&mut state, &chain, &blocks[1..]).unwrap();
    // The highest block that spends coins of other blocks.
    let spends_some = |height: &usize| {
        let (before, after) =
            (utxo_set(blocks[..*height].iter()), utxo_set(blocks[..=*height].iter()));
        before.keys().any(|outpoint| !after.contains_key(outpoint))
    };
    let height = (1..blocks.len()).rev().find(spends_some).unwrap();
    for above in (height + 1..blocks.len()).rev() {
        state.disconnect(&checked(&params, &chain, above as u32, &blocks[above])).unwrap();
    }
    state.flush().unwrap();
    let (tip, sum) = (*state.tip(), state.sum().unwrap());
    let (before, at_tip) = (expected(&utxo_set(blocks[..height].iter())), stored(&inner));
    let length = inner.undo(&tip.hash).unwrap().unwrap().len();
    let mut refused = 0;
    for flips in (0..length).map(Some).chain([None]) {
        let store = Arc::new(Lying {
            inner: Arc::clone(&inner),
            flips,
            lies_at: u64::MAX,
            ..Lying::default()
        });
        let mut state = Chainstate::open(&params, store, options(0)).unwrap();
        state.keep_sum(KEY, sum);
        let block = checked(&params, &chain, height as u32, &blocks[height]);
        match state.disconnect(&block) {
            // The change may be, for example, in a coin that the block created itself.
            Ok(()) => assert!(
                state.sum() == Some(sum_of(&before))
                    && seen(&state, before.keys().copied()) == before
            ),
            Err(error) => {
                assert!(matches!(error, ChainstateError::Undo { .. }), "{error}");
                assert!(*state.tip() == tip && state.sum() == Some(sum));
                assert!(seen(&state, at_tip.keys().copied()) == at_tip);
                refused += 1;
            }
        }
    }
    assert!(refused > 8 && refused <= length, "{refused} of {length}");
}

#[test]
fn a_sum_is_kept_only_on_request_and_continues_from_the_given_one() {
    let blocks = random_chain(32, 3).blocks();
    let (params, chain) = (regtest(), headers(&regtest(), &blocks));
    let store = Arc::new(MemoryStore::new()) as Arc<dyn CoinsStore>;
    let mut state = Chainstate::open(&params, store, options(0)).unwrap();
    connect_all(&mut state, &chain, &blocks[1..90]).unwrap();
    assert_eq!(state.sum(), None);
    let given = CoinSum::from_bytes([7; 8]);
    state.keep_sum(KEY, given);
    assert_eq!(state.sum(), Some(given));
    connect_all(&mut state, &chain, &blocks[90..]).unwrap();
    let part = |to: usize| sum_of(&expected(&utxo_set(blocks[..to].iter())));
    assert_eq!(state.sum(), Some(given.plus(part(blocks.len())).minus(part(90))));
}

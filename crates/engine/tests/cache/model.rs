//! Random blocks and flushes, compared with a plain map.

use crate::store::TestStore;
use crate::{block, coin, outpoint};
use apus_chain::OutPoint;
use apus_engine::utxo::{CoinBytes, CoinsCache, CoinsDelta, CoinsStore, CoinsView};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::BTreeMap;
use std::sync::Arc;

/// Few enough to recur; several outputs per transaction.
const NAMES: u32 = 48;

fn name(number: u32) -> OutPoint {
    outpoint(number % NAMES / 3, number % 3)
}

#[derive(Debug, Clone)]
enum Step {
    /// Changes outpoints, each depending on its current state and a random byte.
    Block(Vec<(u32, u8)>),
    Begin,
    Finish,
    /// Makes the next writes fail.
    Fail(u32),
    /// Makes writes wait from now on.
    Shut,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        6 => vec((0..NAMES, any::<u8>()), 0..30).prop_map(Step::Block),
        2 => Just(Step::Begin),
        1 => Just(Step::Finish),
        1 => (1u32..3).prop_map(Step::Fail),
        1 => Just(Step::Shut),
    ];
    vec(step, 1..40)
}

type Coins = BTreeMap<OutPoint, CoinBytes>;

/// A valid block: spends existing coins, creates missing ones, and sometimes overwrites.
fn delta(changes: &[(u32, u8)], model: &mut Coins, number: &mut u32) -> CoinsDelta {
    let before = model.clone();
    let mut delta = CoinsDelta::new();
    for (at, chance) in changes {
        let name = name(*at);
        *number += 1;
        if model.contains_key(&name) && chance % 8 != 0 {
            delta.spend(name);
            model.remove(&name);
        } else {
            let fresh = !before.contains_key(&name) && chance % 3 != 0;
            delta.create(name, coin(*number), fresh);
            model.insert(name, coin(*number));
        }
    }
    for at in 0..NAMES {
        let (now, known) = (model.get(&name(at)), delta.get(&name(at)));
        assert_eq!(known.unwrap_or(before.get(&name(at))), now, "the block's own layer");
    }
    assert_eq!(delta.iter().count(), delta.len());
    delta
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(512))]
    #[test]
    fn the_cache_is_a_map(steps in steps()) {
        let store = Arc::new(TestStore::default());
        let cache = CoinsCache::new(Arc::clone(&store) as Arc<dyn CoinsStore>, 16 << 20);
        let (mut model, mut height, mut number) = (Coins::new(), 0, 0);
        // The store's coins when the last started flush has ended.
        let mut flushed = Coins::new();
        for step in &steps {
            match step {
                Step::Block(changes) => {
                    cache.apply(&delta(changes, &mut model, &mut number)).unwrap();
                    height += 1;
                }
                Step::Begin => {
                    store.open();
                    if cache.begin_flush(block(height), Vec::new(), 0).is_ok() {
                        flushed = model.clone();
                    }
                }
                Step::Finish => {
                    store.open();
                    if cache.finish_flush().is_ok() {
                        prop_assert_eq!(&store.coins(), &flushed);
                    }
                }
                Step::Fail(writes) => store.fail(*writes),
                Step::Shut => store.shut(),
            }
            for at in 0..NAMES {
                let found = cache.coin(&name(at)).unwrap();
                prop_assert_eq!(found.as_ref(), model.get(&name(at)));
            }
            let names: Vec<_> = (0..NAMES).rev().map(name).collect();
            let wanted: Vec<_> = names.iter().map(|name| model.get(name).cloned()).collect();
            prop_assert_eq!(cache.coins(&names).unwrap(), wanted);
        }
        store.open();
        store.fail(0);
        // The first call may report a failure; the second then writes the failed flush.
        let _ = cache.finish_flush();
        cache.finish_flush().unwrap();
        prop_assert_eq!(&store.coins(), &flushed);
        cache.flush(block(height), Vec::new(), 0).unwrap();
        prop_assert_eq!(&store.coins(), &model);
        prop_assert_eq!(store.tip().unwrap(), Some(block(height)));
    }
}

//! Look-ups while flushes are in progress.

use super::support::{Step, coin, coins_of, outpoint};
use apus_chain::Network;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};
use apus_engine::utxo::{CoinBytes, CoinsStore};
use apus_testkit::rng::Rng;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};
use std::thread;

const HEIGHTS: usize = 40;
const NAMES: u64 = 2000;

/// For each height, the coin of each outpoint after it; and the flushes between.
fn history() -> (Vec<Vec<Option<CoinBytes>>>, Vec<Step>) {
    let mut rng = Rng::new(21);
    let (mut states, mut steps) = (vec![vec![None; NAMES as usize]], Vec::new());
    for height in 1..=HEIGHTS {
        let mut state = states[height - 1].clone();
        let mut step = Step::new(height as u32);
        for _ in 0..NAMES / 2 {
            let name = rng.below(NAMES);
            let coin = if rng.one_in(3) { None } else { Some(coin(&mut rng)) };
            state[name as usize].clone_from(&coin);
            step = step.with(outpoint(name), coin);
        }
        states.push(state);
        steps.push(step);
    }
    (states, steps)
}

#[test]
fn look_ups_during_writes_see_the_old_or_new_state() {
    let (states, steps) = history();
    let folder = tempfile::tempdir().unwrap();
    let options = DiskOptions { cache_bytes: 1 << 20, table_bytes: 16 << 10 };
    let store = DiskStore::open(folder.path(), Network::Regtest, options).unwrap();
    let (begun, done) = (AtomicUsize::new(0), AtomicUsize::new(0));
    thread::scope(|scope| {
        for seed in 0..4 {
            let (store, states, begun, done) = (&store, &states, &begun, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while done.load(SeqCst) < HEIGHTS {
                    let name = rng.below(NAMES);
                    let low = done.load(SeqCst);
                    let found = store.get(&outpoint(name)).unwrap();
                    let high = begun.load(SeqCst);
                    let name = name as usize;
                    assert!(states[low..=high].iter().any(|state| state[name] == found));
                }
            });
        }
        for seed in 4..6 {
            let (store, states, begun, done) = (&store, &states, &begun, &done);
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                while done.load(SeqCst) < HEIGHTS {
                    let names: Vec<_> = (0..200).map(|_| rng.below(NAMES)).collect();
                    let wanted: Vec<_> = names.iter().copied().map(outpoint).collect();
                    let low = done.load(SeqCst);
                    let found = store.get_many(&wanted).unwrap();
                    let high = begun.load(SeqCst);
                    let is_state = |state: &Vec<Option<CoinBytes>>| {
                        names.iter().zip(&found).all(|(name, coin)| state[*name as usize] == *coin)
                    };
                    assert!(states[low..=high].iter().any(is_state), "a batch that mixes blocks");
                }
            });
        }
        let (store, states, begun, done) = (&store, &states, &begun, &done);
        scope.spawn(move || {
            while done.load(SeqCst) < HEIGHTS {
                let low = done.load(SeqCst);
                let found: Vec<_> = coins_of(store).unwrap();
                let high = begun.load(SeqCst);
                let is_state = |state: &Vec<Option<CoinBytes>>| {
                    let coins = state.iter().filter(|coin| coin.is_some()).count();
                    coins == found.len()
                        && (0..NAMES).all(|name| {
                            let at = found.binary_search_by_key(&outpoint(name), |(at, _)| *at);
                            state[name as usize].as_ref() == at.ok().map(|at| &found[at].1)
                        })
                };
                assert!(states[low..=high].iter().any(is_state), "coins that mix blocks");
            }
        });
        for (height, step) in steps.iter().enumerate() {
            begun.store(height + 1, SeqCst);
            step.write(store).unwrap();
            done.store(height + 1, SeqCst);
        }
    });
    let model = MemoryStore::new();
    steps.iter().for_each(|step| step.write(&model).unwrap());
    super::support::assert_same(&store, &model, 0);
}

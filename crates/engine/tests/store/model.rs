//! The disk store compared with a map, through random flushes and restarts.

use super::support::{Step, assert_same, block, outpoint, random_step};
use apus_chain::Network;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};
use apus_testkit::rng::Rng;
use proptest::collection::vec;
use proptest::prelude::*;
use std::path::Path;

#[derive(Debug, Clone)]
enum Act {
    Write { changes: u64, names: u64, seed: u64 },
    Settle,
    Reopen,
}

fn act() -> impl Strategy<Value = Act> {
    let write = (0u64..600, 1u64..2000, any::<u64>());
    prop_oneof![
        6 => write.prop_map(|(changes, names, seed)| Act::Write { changes, names, seed }),
        1 => Just(Act::Settle),
        2 => Just(Act::Reopen),
    ]
}

fn open(folder: &Path, options: DiskOptions) -> DiskStore {
    DiskStore::open(folder, Network::Regtest, options).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_store_equals_the_model(acts in vec(act(), 1..40), small: bool) {
        let folder = tempfile::tempdir().unwrap();
        let options = match small {
            // No cache, and tables so small that they fill several levels.
            true => DiskOptions { cache_bytes: 0, table_bytes: 4096 },
            false => DiskOptions::default(),
        };
        let (mut store, model) = (open(folder.path(), options), MemoryStore::new());
        let mut height = 0;
        for act in acts {
            match act {
                Act::Write { changes, names, seed } => {
                    let mut rng = Rng::new(seed);
                    let step = random_step(height, changes, names, &mut rng);
                    step.write(&store).unwrap();
                    step.write(&model).unwrap();
                    height += 1;
                    for _ in 0..20 {
                        let at = outpoint(rng.below(names));
                        prop_assert_eq!(store.get(&at).unwrap(), model.get(&at).unwrap());
                    }
                }
                Act::Settle => store.settle().unwrap(),
                Act::Reopen => {
                    drop(store);
                    store = open(folder.path(), options);
                }
            }
            prop_assert_eq!(store.tip().unwrap(), model.tip().unwrap());
        }
        assert_same(&store, &model, height);
    }
}

/// Enough data, in small enough tables, to use every level of the tree.
#[test]
fn a_store_with_every_level_matches_the_model() {
    let folder = tempfile::tempdir().unwrap();
    let options = DiskOptions { cache_bytes: 1 << 20, table_bytes: 8 << 10 };
    let (mut store, model) = (open(folder.path(), options), MemoryStore::new());
    let mut rng = Rng::new(7);
    for height in 0..60 {
        let step = random_step(height, 4000, 60_000, &mut rng);
        step.write(&store).unwrap();
        step.write(&model).unwrap();
        if height % 20 == 19 {
            store.settle().unwrap();
            assert_same(&store, &model, height);
            drop(store);
            store = open(folder.path(), options);
        }
        for _ in 0..200 {
            let at = outpoint(rng.below(60_100));
            assert_eq!(store.get(&at).unwrap(), model.get(&at).unwrap());
        }
    }
    assert_same(&store, &model, 60);
}

/// The size of a store on disk does not grow with the coins that passed through it.
#[test]
fn spent_coins_free_their_disk_space() {
    let folder = tempfile::tempdir().unwrap();
    let options = DiskOptions { cache_bytes: 1 << 20, table_bytes: 64 << 10 };
    let store = open(folder.path(), options);
    let mut rng = Rng::new(8);
    let mut sizes = Vec::new();
    for height in 0..120 {
        // The same thousand outpoints, created in one flush and spent in the next.
        let mut step = Step::new(height);
        for name in 0..1000 {
            let coin = (height % 2 == 0).then(|| super::support::coin(&mut rng));
            step = step.with(outpoint(name), coin);
        }
        step.write(&store).unwrap();
        store.settle().unwrap();
        let tables = std::fs::read_dir(folder.path().join("tree/tables")).unwrap();
        sizes.push(tables.map(|file| file.unwrap().metadata().unwrap().len()).sum::<u64>());
    }
    assert_eq!(store.tip().unwrap(), Some(block(119)));
    let (early, late) = (sizes[..60].iter().max(), sizes[60..].iter().max());
    assert!(late.unwrap() < &(early.unwrap() * 2), "{sizes:?}");
}

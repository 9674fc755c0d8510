//! The behaviour that every store must have, as one function.
//!
//! It also applies to the stores behind a network: `extras/coins` includes this file in its tests.

use super::support::{Step, assert_same, block, coin, coins_of, outpoint, random_step, undo};
use apus_chain::{OutPoint, Txid};
use apus_engine::utxo::store::{EachChange, MemoryStore};
use apus_engine::utxo::{Changes, CoinsStore, Flush, StoreError};
use apus_testkit::rng::Rng;
use std::path::Path;

/// Checks that a store conforms to the trait. `make` creates a new store, in an empty folder if it
/// needs one.
pub(crate) fn store_conformance(make: &dyn Fn(&Path) -> Box<dyn CoinsStore>) {
    let laws: [fn(&dyn CoinsStore); 6] = [
        a_new_store_is_empty,
        written_coins_can_be_read,
        coins_come_in_order,
        undo_data_comes_and_goes,
        a_write_that_fails_changes_nothing,
        the_store_behaves_like_the_model,
    ];
    for law in laws {
        let folder = tempfile::tempdir().unwrap();
        law(&*make(folder.path()));
    }
}

fn a_new_store_is_empty(store: &dyn CoinsStore) {
    assert_eq!(store.tip().unwrap(), None);
    assert_eq!(store.get(&outpoint(0)).unwrap(), None);
    assert_eq!(store.undo(&block(0).hash).unwrap(), None);
    assert_eq!(coins_of(store).unwrap(), []);
}

fn written_coins_can_be_read(store: &dyn CoinsStore) {
    let mut rng = Rng::new(1);
    let (old, new) = (coin(&mut rng), coin(&mut rng));
    let step = Step::new(1).with(outpoint(0), Some(old.clone())).with(outpoint(1), Some(old));
    step.write(store).unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(1)));
    // The step spends, replaces and creates coins, and spends one that never existed.
    let step = Step::new(2)
        .with(outpoint(0), None)
        .with(outpoint(1), Some(new.clone()))
        .with(outpoint(2), Some(new.clone()))
        .with(outpoint(3), None);
    step.write(store).unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(2)));
    let there = [0, 1, 2, 3].map(|number| store.get(&outpoint(number)).unwrap());
    assert_eq!(there, [None, Some(new.clone()), Some(new), None]);
    let many = [3, 2, 0, 1, 2].map(outpoint);
    let together = store.get_many(&many).unwrap();
    assert_eq!(together, many.map(|outpoint| store.get(&outpoint).unwrap()));
    assert_eq!(store.get_many(&[]).unwrap(), []);
    // Write a block that changes nothing, then step back to the previous block.
    for height in [3, 2] {
        Step::new(height).write(store).unwrap();
        assert_eq!(store.tip().unwrap(), Some(block(height)));
    }
    assert_eq!(coins_of(store).unwrap().len(), 2);
}

fn coins_come_in_order(store: &dyn CoinsStore) {
    let mut rng = Rng::new(2);
    let (low, high) = (Txid([0; 32]), Txid([255; 32]));
    let mut step = Step::new(1);
    for vout in [0, 1, 255, 256, 65_536, u32::MAX] {
        for txid in [low, high] {
            step = step.with(OutPoint { txid, vout }, Some(coin(&mut rng)));
        }
    }
    step.write(store).unwrap();
    let written: Vec<_> =
        step.changes.0.into_iter().map(|(at, coin)| (at, coin.unwrap())).collect();
    assert_eq!(coins_of(store).unwrap(), written);
    let mut seen = 0;
    let stopped = store.for_each(&mut |_, _| {
        seen += 1;
        Err(StoreError::InUse { place: "here".into() })
    });
    assert!(matches!(stopped, Err(StoreError::InUse { .. })) && seen == 1);
}

fn undo_data_comes_and_goes(store: &dyn CoinsStore) {
    let mut rng = Rng::new(3);
    let records: Vec<_> = (0..6).map(|height| undo(height, &mut rng)).collect();
    let there = |heights: &[bool; 6]| {
        for (record, there) in records.iter().zip(heights) {
            let bytes = there.then(|| record.bytes.clone());
            assert!(
                store.undo(&record.block.hash).unwrap() == bytes.map(Into::into),
                "{:?}",
                record.block
            );
        }
    };
    let write = |tip, heights: &[usize], undo_from| {
        let undo = heights.iter().map(|&height| records[height].clone()).collect();
        Step { undo, undo_from, ..Step::new(tip) }.write(store).unwrap();
    };
    write(3, &[3, 0, 2, 1], 0);
    there(&[true, true, true, true, false, false]);
    write(4, &[4], 2);
    there(&[false, false, true, true, true, false]);
    // Undo data that is already too old when written is not kept.
    write(5, &[1, 5], 3);
    there(&[false, false, false, true, true, true]);
    // Go back, and lower the limit: deleted undo data stays deleted, and can be written again.
    write(2, &[2], 1);
    there(&[false, false, true, true, true, true]);
    write(6, &[], 6);
    there(&[false; 6]);
}

fn a_write_that_fails_changes_nothing(store: &dyn CoinsStore) {
    struct Failing(Step);
    impl Changes for Failing {
        fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
            self.0.changes.for_each(each)?;
            Err(StoreError::Io { place: "a disk".into(), error: "is gone".into() })
        }
    }
    let mut rng = Rng::new(4);
    let first = random_step(1, 100, 200, &mut rng);
    first.write(store).unwrap();
    let before = coins_of(store).unwrap();
    let second = random_step(2, 100, 200, &mut rng);
    let changes = Failing(second.clone());
    let flush = Flush { tip: second.tip, changes: &changes, undo: &second.undo, undo_from: 2 };
    let failed = store.write(&flush).unwrap_err();
    assert_eq!(failed.to_string(), "a disk: is gone");
    assert_eq!(store.tip().unwrap(), Some(block(1)));
    assert!(coins_of(store).unwrap() == before);
    assert_eq!(store.undo(&block(1).hash).unwrap(), Some(first.undo[0].bytes.clone().into()));
    second.write(store).unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(2)));
}

fn the_store_behaves_like_the_model(store: &dyn CoinsStore) {
    let (model, mut rng) = (MemoryStore::new(), Rng::new(5));
    for height in 0..40 {
        let changes = rng.below(2000);
        let step = random_step(height, changes, 3000, &mut rng);
        step.write(store).unwrap();
        step.write(&model).unwrap();
        for _ in 0..100 {
            let at = outpoint(rng.below(3100));
            assert_eq!(store.get(&at).unwrap(), model.get(&at).unwrap());
        }
    }
    assert_same(store, &model, 40);
}

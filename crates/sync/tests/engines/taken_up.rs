//! Stores that outlive work folders: where a sync continues, and what it refuses.

use crate::coins_changed::{Harm, expect_refused};
use crate::harness::{Job, Place, World};
use crate::world::Truth;
use apus_engine::connect::UndoBytes;
use apus_engine::utxo::store::{MemoryStore, OWN_RECORD, UndoRecord};
use apus_engine::utxo::{CoinsStore, Flush};
use apus_sync::{Outcome, Stop};
use apus_testkit::storage::CrashStorage;
use std::sync::Arc;

/// A job with its coins on servers.
fn on_servers(world: &World) -> Job {
    Job { beyond: Some("the servers".to_owned()), ..world.job() }
}

/// Brings a store to a height, in a new work folder.
fn bring(world: &World, store: &Arc<MemoryStore>, height: u32) {
    let job = Job { stop: Stop::At(height), ..on_servers(world) };
    let place = Place::with(Arc::clone(store) as Arc<dyn CoinsStore>);
    job.expect(&Truth::of(&world.chain[..=height as usize]), &place);
}

/// Where the connected blocks begin, and the height of the coins below that nothing proves.
fn proven(outcome: &Outcome) -> (Option<u32>, Option<u32>) {
    let validation = &outcome.validation;
    (validation.connected_from, validation.trusted.map(|block| block.height))
}

#[test]
fn a_record_of_another_block_shows_that_the_store_lost_something() {
    let world = World::small(733);
    let store = Arc::new(MemoryStore::new());
    let own = || store.undo(&OWN_RECORD.hash).unwrap().unwrap();
    bring(&world, &store, 105);
    let earlier = own();
    bring(&world, &store, 112);
    let right = own();
    let keep = |bytes: &[u8]| {
        let bytes = UndoBytes::default().followed_by(bytes);
        let undo = [UndoRecord { block: OWN_RECORD, bytes }];
        let tip = store.tip().unwrap().unwrap();
        store.write(&Flush { tip, changes: &Harm(vec![]), undo: &undo, undo_from: 0 }).unwrap();
    };
    let place = || Place::with(Arc::clone(&store) as Arc<dyn CoinsStore>);
    for wrong in [&earlier[..], &right[1..], &[]] {
        keep(wrong);
        expect_refused(&on_servers(&world), &place());
    }
    keep(&right);
    let outcome = on_servers(&world).expect(&world.truth, &place());
    assert_eq!(proven(&outcome), (Some(1), None));
}

/// The servers lose all coins that were taken as found. The same work folder then connects all blocks itself.
#[test]
fn an_emptied_store_is_filled_from_the_first_block() {
    let world = World::small(734);
    let (filled, found) = (Arc::new(MemoryStore::new()), Arc::new(MemoryStore::new()));
    bring(&world, &filled, 112);
    let mut coins = Vec::new();
    let mut each = |outpoint: &_, coin: &apus_engine::utxo::CoinBytes| {
        coins.push((*outpoint, Some(coin.clone())));
        Ok(())
    };
    filled.for_each(&mut each).unwrap();
    let tip = filled.tip().unwrap().unwrap();
    found.write(&Flush { tip, changes: &Harm(coins), undo: &[], undo_from: 0 }).unwrap();
    let place = Place::with(found);
    let job = on_servers(&world);
    let outcome = Job { stop: Stop::At(115), ..job.clone() }.run(&place).unwrap();
    assert_eq!(proven(&outcome), (Some(113), Some(112)));

    let sandbox = tempfile::tempdir().unwrap();
    let place = Place { store: Arc::new(MemoryStore::new()), out: CrashStorage::new(), ..place };
    let outcome = job.keeping(sandbox.path()).expect(&world.truth, &place);
    assert_eq!(proven(&outcome), (Some(1), None));
}

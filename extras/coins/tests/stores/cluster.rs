//! Tests a store on a cluster without failures.

use super::laws::store_conformance;
use super::servers::{How, open};
use super::support::{Step, assert_same, coin, coins_of, outpoint, random_step};
use apus_chain::{Network, OutPoint, Txid};
use apus_coins::{Access, ClusterOptions, ClusterStore, CoinsReader};
use apus_engine::utxo::store::MemoryStore;
use apus_testkit::redis::RedisCluster;
use apus_testkit::rng::Rng;
use std::cell::Cell;
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::Duration;

#[test]
fn the_store_on_a_cluster_conforms() {
    let cluster = RedisCluster::start();
    let stores = Cell::new(0);
    store_conformance(&|_| {
        stores.set(stores.get() + 1);
        open(&cluster.url(&format!("law-{}", stores.get())))
    });
    a_store_persists(&cluster);
    a_bucket_of_any_size_is_listed_in_order(&cluster);
    stores_on_one_cluster_are_independent(&cluster);
    a_concurrent_reader_sees_one_block(&cluster);
}

/// No matter which buckets a flush has reached, all coins of a look-up belong to one block, which the result names.
fn a_concurrent_reader_sees_one_block(cluster: &RedisCluster) {
    let (place, mut rng) = (cluster.url("readers").parse().unwrap(), Rng::new(15));
    let none = CoinsReader::open(&place, Network::Regtest, &Access::default()).unwrap();
    let error = none.look_up(&[outpoint(0)]).unwrap_err().to_string();
    assert!(error.contains("no coins under this name"), "{error}");
    let store = open(&cluster.url("readers"));
    let coins = [(); 2].map(|()| coin(&mut rng));
    // Each block gives all of these names the same one of two coins.
    let names: Vec<_> = (0..400).map(outpoint).collect();
    let step = |height: u32| {
        let coin = &coins[height as usize % 2];
        names.iter().fold(Step::new(height), |step, name| step.with(*name, Some(coin.clone())))
    };
    step(0).write(&*store).unwrap();
    let ended = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| {
            for height in 1..40 {
                step(height).write(&*store).unwrap();
                // Leave time for a look-up without a flush in between.
                thread::sleep(Duration::from_millis(5));
            }
            ended.store(true, SeqCst);
        });
        let mut tips = BTreeSet::new();
        while !ended.load(SeqCst) {
            let seen = none.look_up(&names).unwrap();
            let of = &coins[seen.tip.height as usize % 2];
            assert!(seen.coins.iter().all(|coin| coin.as_ref() == Some(of)), "{:?}", seen.tip);
            tips.insert(seen.tip.height);
        }
        assert!(tips.len() > 1, "{tips:?}");
    });
}

fn a_store_persists(cluster: &RedisCluster) {
    let url = cluster.url("again");
    let (model, mut rng) = (MemoryStore::new(), Rng::new(11));
    for height in 0..6 {
        // Even if the options differ now, a store keeps its original number of buckets.
        let more = ClusterOptions { bucket_bits: 4 + height as u8, ..How::default().cluster() };
        let place = url.parse().unwrap();
        let store = ClusterStore::open(&place, Network::Regtest, &more).unwrap();
        assert_same(&store, &model, height);
        let step = random_step(height, 500, 1000, &mut rng);
        step.write(&store).unwrap();
        step.write(&model).unwrap();
        assert_same(&store, &model, height + 1);
    }
}

/// Txids with a common prefix cost an attacker nothing.
fn a_bucket_of_any_size_is_listed_in_order(cluster: &RedisCluster) {
    let store = open(&cluster.url("large"));
    let mut rng = Rng::new(12);
    let mut step = Step::new(1);
    for number in 0..10_000_u32 {
        let mut txid = [0; 32];
        txid[28..].copy_from_slice(&number.wrapping_mul(0x9e37_79b9).to_be_bytes());
        let at = OutPoint { txid: Txid(txid), vout: number % 3 };
        step = step.with(at, Some(coin(&mut rng)));
    }
    for number in 0..50 {
        step = step.with(outpoint(number), Some(coin(&mut rng)));
    }
    step.write(&*store).unwrap();
    let written: Vec<_> =
        step.changes.0.into_iter().map(|(at, coin)| (at, coin.unwrap())).collect();
    assert!(coins_of(&*store).unwrap() == written);
    let wanted: Vec<OutPoint> = written.iter().rev().map(|(at, _)| *at).collect();
    let found: Vec<_> = written.iter().rev().map(|(_, coin)| Some(coin.clone())).collect();
    assert!(store.get_many(&wanted).unwrap() == found);
}

fn stores_on_one_cluster_are_independent(cluster: &RedisCluster) {
    let (one, other) = (open(&cluster.url("one")), open(&cluster.url("other")));
    let mut rng = Rng::new(13);
    random_step(5, 100, 200, &mut rng).write(&*one).unwrap();
    assert_eq!(other.tip().unwrap(), None);
    assert_eq!(coins_of(&*other).unwrap(), []);
}

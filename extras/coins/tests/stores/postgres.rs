//! Tests a store on one server without failures.

use super::laws::store_conformance;
use super::servers::{How, open};
use super::support::{assert_same, coins_of, outpoint, random_step};
use apus_chain::Network;
use apus_coins::{Access, CoinsReader, PostgresOptions, PostgresStore};
use apus_coins::{BatchedStore, BatcherOptions};
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::MemoryStore;
use apus_testkit::line::LineRelay;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::rng::Rng;
use std::cell::Cell;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering::SeqCst};
use std::thread;
use std::time::{Duration, Instant};

#[test]
fn the_store_on_postgresql_conforms() {
    let server = PostgresServer::start();
    let stores = Cell::new(0);
    store_conformance(&|_| {
        stores.set(stores.get() + 1);
        open(&server.url(&format!("law-{}", stores.get())))
    });
    a_store_persists(&server);
    stores_in_one_database_are_independent(&server);
    look_ups_use_the_index(&server);
    readers_see_one_block(&server);
    batches_to_a_distant_server_are_concurrent(&server);
    a_server_that_takes_no_writes_is_only_read(&server);
}

/// A read-only server, like a standby, has the coins of some time ago. A writer must avoid it, whatever it
/// wants to read.
fn a_server_that_takes_no_writes_is_only_read(server: &PostgresServer) {
    let (url, mut rng) = (server.url("standby"), Rng::new(17));
    random_step(1, 100, 200, &mut rng).write(&*open(&url)).unwrap();
    server.sql("ALTER DATABASE postgres SET default_transaction_read_only = on");
    let (place, options) = (url.parse().unwrap(), How::default().postgres());
    let refused = PostgresStore::open(&place, Network::Regtest, &options);
    let message = refused.err().unwrap().to_string();
    assert!(message.contains("does not allow writes"), "{message}");
    let place = url.parse().unwrap();
    let reader = CoinsReader::open(&place, Network::Regtest, &Access::default()).unwrap();
    assert_eq!(reader.look_up(&[outpoint(1)]).unwrap().tip.height, 1);
}

/// Any number of coins takes one round trip, and at most one more.
fn batches_to_a_distant_server_are_concurrent(server: &PostgresServer) {
    let (delay, mut rng) = (Duration::from_millis(100), Rng::new(16));
    let far = LineRelay::far(server.port(), delay);
    let store = open(&server.url_at(far.address().port(), "far"));
    let step = random_step(1, 3000, 4000, &mut rng);
    step.write(&*store).unwrap();
    let batches = BatcherOptions { size: 100, in_flight: 16, ..BatcherOptions::default() };
    let store = BatchedStore::new(Arc::from(store), batches).unwrap();
    let wanted: Vec<_> = (0..1600).map(outpoint).collect();
    // Warm up: make connections and prepare statements.
    store.get_many(&wanted).unwrap();
    let started = Instant::now();
    let found = store.get_many(&wanted).unwrap();
    let took = started.elapsed();
    assert!(took >= delay && took < 8 * delay, "16 batches took {took:?}");
    for (outpoint, coin) in wanted.iter().zip(found) {
        assert_eq!(coin, step.changes.0.get(outpoint).cloned().flatten());
    }
}

fn a_store_persists(server: &PostgresServer) {
    let url = server.url("again");
    let (model, mut rng) = (MemoryStore::new(), Rng::new(11));
    for height in 0..6 {
        // Even if the options differ now, a store keeps its original number of partitions.
        let more = PostgresOptions { partitions: 5 + height as u16, ..How::default().postgres() };
        let place = url.parse().unwrap();
        let store = PostgresStore::open(&place, Network::Regtest, &more).unwrap();
        assert_same(&store, &model, height);
        let step = random_step(height, 500, 1000, &mut rng);
        step.write(&store).unwrap();
        step.write(&model).unwrap();
        assert_same(&store, &model, height + 1);
    }
    let parts = "SELECT count(*) FROM pg_inherits WHERE inhparent = 'again.coins'::regclass";
    assert_eq!(server.sql(parts), "5");
}

fn stores_in_one_database_are_independent(server: &PostgresServer) {
    let (one, other) = (open(&server.url("one")), open(&server.url("other")));
    let mut rng = Rng::new(13);
    random_step(5, 100, 200, &mut rng).write(&*one).unwrap();
    assert_eq!(other.tip().unwrap(), None);
    assert_eq!(coins_of(&*other).unwrap(), []);
}

/// No plan scans all coins, or partitions that cannot have the coin, although the server has no statistics.
fn look_ups_use_the_index(server: &PostgresServer) {
    let (url, mut rng) = (server.url("plans"), Rng::new(14));
    random_step(1, 3000, 4000, &mut rng).write(&*open(&url)).unwrap();
    // A session reports its counters when it ends, at the latest.
    let counted = |column: &str, enough: u64| -> u64 {
        let ask = format!(
            "SELECT coalesce(sum({column}), 0) FROM pg_stat_user_tables \
             WHERE schemaname = 'plans' AND relname LIKE 'coins%'"
        );
        let started = Instant::now();
        loop {
            let count = server.sql(&ask).parse().unwrap();
            if count >= enough || started.elapsed() > Duration::from_secs(20) {
                return count;
            }
        }
    };
    assert!(counted("n_tup_ins", 1000) >= 1000);
    let (whole, before) = (counted("seq_scan", 0), counted("idx_scan", 0));
    let store = open(&url);
    let mut once = before;
    for height in 2..5 {
        let wanted: Vec<_> = (0..500).map(|_| outpoint(rng.below(4000))).collect();
        store.get_many(&wanted).unwrap();
        once += wanted.len() as u64;
        let step = random_step(height, 300, 4000, &mut rng);
        step.write(&*store).unwrap();
        // Inserting a coin takes a check for an existing one, and so does deleting.
        once += step.changes.0.len() as u64;
    }
    drop(store);
    assert_eq!(counted("idx_scan", once), once, "a coin took more than one partition");
    assert_eq!(counted("seq_scan", 0), whole);
}

/// Each listing of all coins sees one block, and so does each look-up, while flushes are in progress.
fn readers_see_one_block(server: &PostgresServer) {
    let (store, mut rng) = (open(&server.url("readers")), Rng::new(15));
    let coins = [(); 2].map(|()| super::support::coin(&mut rng));
    // Each block gives all of these names the same one of two coins.
    let names: Vec<_> = (0..400).map(outpoint).collect();
    let step = |height: u32| {
        let coin = &coins[height as usize % 2];
        let step = super::support::Step::new(height);
        names.iter().fold(step, |step, name| step.with(*name, Some(coin.clone())))
    };
    step(0).write(&*store).unwrap();
    let (place, ended) = (server.url("readers").parse().unwrap(), AtomicBool::new(false));
    let reader = CoinsReader::open(&place, Network::Regtest, &Access::default()).unwrap();
    thread::scope(|scope| {
        scope.spawn(|| {
            for height in 1..15 {
                step(height).write(&*store).unwrap();
            }
            ended.store(true, SeqCst);
        });
        while !ended.load(SeqCst) {
            let listed: Vec<_> =
                coins_of(&*store).unwrap().into_iter().map(|(_, coin)| coin).collect();
            let found: Vec<_> = store.get_many(&names).unwrap().into_iter().flatten().collect();
            let seen = reader.look_up(&names).unwrap();
            let of = &coins[seen.tip.height as usize % 2];
            assert!(seen.coins.iter().all(|coin| coin.as_ref() == Some(of)), "{:?}", seen.tip);
            for seen in [listed, found] {
                assert_eq!(seen.len(), names.len());
                assert!(seen.iter().all(|coin| *coin == seen[0]), "coins of two blocks");
            }
        }
    });
}

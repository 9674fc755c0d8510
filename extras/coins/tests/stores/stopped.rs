//! Servers that are stopped as they are, with their connections: what is said to them is taken, and no answer
//! comes. For a while that is waited for; then it is an error, and no longer than that.

use super::servers::{How, Servers, open};
use super::support::outpoint;
use super::writing::{Model, step, wanted, while_written};
use apus_coins::{BatchedStore, BatcherOptions};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::effort::rounds;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use apus_testkit::rng::Rng;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Much longer than what is waited for, and much shorter than what a client without a limit would wait.
const LONG: Duration = Duration::from_secs(60);

/// Has the servers go on, also where a test fails in between: else those that end them would wait.
struct Stopped<'a, S: Servers>(&'a S);

impl<'a, S: Servers> Stopped<'a, S> {
    fn now(servers: &'a S) -> Self {
        servers.stop();
        Self(servers)
    }
}

impl<S: Servers> Drop for Stopped<'_, S> {
    fn drop(&mut self) {
        self.0.go_on();
    }
}

#[test]
fn a_cluster_that_stops_for_a_moment_is_waited_for() {
    servers_that_stop_for_a_moment_are_waited_for::<RedisCluster>();
}

#[test]
fn a_server_of_postgresql_that_stops_for_a_moment_is_waited_for() {
    servers_that_stop_for_a_moment_are_waited_for::<PostgresServer>();
}

/// Look-ups and flushes go on where they were, whatever they were at.
fn servers_that_stop_for_a_moment_are_waited_for<S: Servers>() {
    let (servers, mut model, mut rng) = (S::start(), Model::new(), Rng::new(81));
    let url = servers.url("moment");
    for _ in 0..rounds(2, 20) {
        while_written(&url, &mut model, |_| {
            thread::sleep(Duration::from_millis(rng.between(10, 300)));
            let stopped = Stopped::now(&servers);
            thread::sleep(Duration::from_millis(1500));
            drop(stopped);
        });
    }
}

#[test]
fn a_stopped_cluster_is_given_up() {
    stopped_servers_are_given_up::<RedisCluster>();
}

#[test]
fn a_stopped_server_of_postgresql_is_given_up() {
    stopped_servers_are_given_up::<PostgresServer>();
}

/// The error says what, where, for how long and what to do, and comes in time, from everything that the store
/// is asked, through the batcher too. What was written is there afterwards, and the store goes on.
fn stopped_servers_are_given_up<S: Servers>() {
    let (servers, mut model, mut rng) = (S::start(), Model::new(), Rng::new(82));
    let url = servers.url("given-up");
    let short = How { patience: Duration::from_secs(1), ..How::default() };
    for round in 0..rounds(3, 30) {
        let store: Arc<dyn CoinsStore> = Arc::from(short.open(&url).unwrap());
        let batched = BatchedStore::new(Arc::clone(&store), BatcherOptions::default()).unwrap();
        model.expect(&*store);
        step(model.next).write(&*store).unwrap();
        batched.get_many(&wanted()).unwrap();
        thread::scope(|scope| {
            let mut steps = model.next + 1..;
            let store = &*store;
            let writing = scope.spawn(move || {
                loop {
                    if let Err(error) = step(steps.next().unwrap()).write(store) {
                        return error;
                    }
                }
            });
            thread::sleep(Duration::from_millis(rng.between(0, 200)));
            let (_stopped, started) = (Stopped::now(&servers), Instant::now());
            let errors = [
                batched.get_many(&wanted()).unwrap_err(),
                writing.join().unwrap(),
                batched.get(&outpoint(0)).unwrap_err(),
                short.open(&url).err().unwrap(),
            ];
            for error in errors {
                assert!(matches!(error, StoreError::Away { .. }), "in round {round}: {error}");
                let error = error.to_string();
                assert!(error.starts_with(&format!("{url}: not heard for ")), "{error}");
                for words in ["can be reached from here", "--coins-timeout"] {
                    assert!(error.contains(words), "{error}");
                }
            }
            assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
        });
        // They answer again, if not at once. Which block the coins are of is known only once a flush that may be
        // half applied was brought to its end.
        let started = Instant::now();
        while let Err(error) = batched.get_many(&wanted()) {
            assert!(started.elapsed() < LONG, "{error}");
        }
        drop(batched);
        drop(store);
        model.expect(&*open(&url));
    }
    step(model.next).write(&*open(&url)).unwrap();
    model.expect(&*open(&url));
}

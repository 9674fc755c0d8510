//! Servers stopped with their connections open: they accept requests and never answer. The client waits for a
//! while and then fails, but waits no longer than that.

use super::servers::{How, Servers, open};
use super::support::outpoint;
use super::writing::{Model, step, wanted, while_written};
use apus_coins::{BatchedStore, BatcherOptions};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::effort::rounds;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use apus_testkit::rng::Rng;
use std::net::TcpListener;
use std::os::unix::net::UnixListener;
use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

/// Much longer than the time limit, and much shorter than a client without a limit would wait.
const LONG: Duration = Duration::from_secs(60);

/// Resumes the servers even if a test fails, because shutting them down would hang otherwise.
struct Stopped<'a, S: Servers>(&'a S);

impl<'a, S: Servers> Stopped<'a, S> {
    fn now(servers: &'a S) -> Self {
        servers.stop();
        Self(servers)
    }
}

impl<S: Servers> Drop for Stopped<'_, S> {
    fn drop(&mut self) {
        self.0.resume();
    }
}

#[test]
fn a_brief_stop_of_a_cluster_is_tolerated() {
    a_brief_stop_is_tolerated::<RedisCluster>();
}

#[test]
fn a_brief_stop_of_a_postgresql_server_is_tolerated() {
    a_brief_stop_is_tolerated::<PostgresServer>();
}

/// Look-ups and flushes continue where they were.
fn a_brief_stop_is_tolerated<S: Servers>() {
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
fn a_stopped_cluster_times_out() {
    stopped_servers_time_out::<RedisCluster>();
}

#[test]
fn a_stopped_postgresql_server_times_out() {
    stopped_servers_time_out::<PostgresServer>();
}

/// A listener accepts connections and never answers, as a server does that hangs.
#[test]
fn a_postgresql_server_that_never_answers_times_out() {
    let folder = tempfile::tempdir().unwrap();
    let port = TcpListener::bind("127.0.0.1:0").unwrap();
    let _socket = UnixListener::bind(folder.path().join(".s.PGSQL.5432")).unwrap();
    let place = port.local_addr().unwrap();
    let short = How { patience: Duration::from_secs(1), ..How::default() };
    for url in [
        format!("postgres://me@{place}/db/x"),
        format!("postgres://me@:5432/db/x?host={}", folder.path().display()),
    ] {
        let started = Instant::now();
        let error = short.open(&url).err().unwrap();
        assert!(matches!(error, StoreError::Away { .. }), "{error}");
        for words in [&url[..], "no answer for ", "--coins-timeout"] {
            assert!(error.to_string().contains(words), "{error}");
        }
        assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
    }
}

/// The error says what failed, where, for how long and what to do. Every operation of
/// the store returns it in time, through the batcher too. Afterwards the written data is available, and the store works
/// again.
fn stopped_servers_time_out<S: Servers>() {
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
                assert!(error.starts_with(&format!("{url}: no answer for ")), "{error}");
                for words in ["can be reached from here", "--coins-timeout"] {
                    assert!(error.contains(words), "{error}");
                }
            }
            assert!(started.elapsed() < LONG, "{:?}", started.elapsed());
        });
        // The servers answer again, if not at once. The store's block is known only once a half-applied flush was
        // completed.
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

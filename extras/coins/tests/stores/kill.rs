//! Tests with clients and servers killed at any moment: the store is at the block that it claims, and no written
//! data is lost. Also tests replaced writers.

use super::servers::{Servers, one_of, open};
use super::support::{block, coins_of, random_step};
use super::writing::{Model, step, while_written};
use apus_engine::utxo::StoreError;
use apus_testkit::effort::rounds;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use apus_testkit::rng::Rng;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, thread};

const URL: &str = "APUS_TEST_COINS_TO_WRITE";

/// The process to be killed: the test below starts it with the servers. It writes forever.
#[test]
#[ignore = "started by the test that kills it"]
fn writer() {
    // Running all ignored tests runs this one too; then it has no URL.
    let Ok(url) = env::var(URL) else { return };
    let store = open(&url);
    let mut height = store.tip().unwrap().map_or(0, |tip| tip.height + 1);
    loop {
        step(height).write(&*store).unwrap();
        height += 1;
    }
}

#[test]
fn a_killed_client_leaves_a_cluster_at_a_block() {
    a_killed_client_leaves_the_store_at_a_block::<RedisCluster>();
}

#[test]
fn a_killed_client_leaves_postgresql_at_a_block() {
    a_killed_client_leaves_the_store_at_a_block::<PostgresServer>();
}

fn a_killed_client_leaves_the_store_at_a_block<S: Servers>() {
    let (servers, mut model, mut rng) = (S::start(), Model::new(), Rng::new(41));
    let url = servers.url("client");
    let (mut kills, wanted) = (0, rounds(4, 100));
    while kills < wanted || model.next < 2 {
        let mut writer = Command::new(env::current_exe().unwrap())
            .args(["--exact", "kill::writer", "--ignored", "--nocapture"])
            .env(URL, &url)
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(rng.between(50, 700)));
        assert!(writer.try_wait().unwrap().is_none(), "the writer ended by itself");
        writer.kill().unwrap();
        writer.wait().unwrap();
        kills += 1;
        assert!(kills < 1000, "{} flushes in {kills} starts", model.next);
        model.expect(&*open(&url));
    }
}

#[test]
fn killed_servers_of_a_cluster_lose_nothing() {
    killed_servers_lose_nothing::<RedisCluster>(rounds(2, 50));
}

#[test]
fn a_killed_server_of_postgresql_loses_nothing() {
    killed_servers_lose_nothing::<PostgresServer>(rounds(3, 100));
}

/// Servers are killed one by one while the client keeps writing, then all at once, with the client.
fn killed_servers_lose_nothing<S: Servers>(rounds: u64) {
    let (mut servers, mut model, mut rng) = (S::start(), Model::new(), Rng::new(42));
    let url = servers.url("server");
    for _ in 0..rounds {
        while_written(&url, &mut model, |written| {
            thread::sleep(Duration::from_millis(rng.between(10, 400)));
            servers.kill(one_of::<S>(&mut rng));
            servers.restart();
            // The client recovers by itself.
            written.advance();
        });
    }
    (0..S::COUNT).for_each(|number| servers.kill(number));
    servers.restart();
    model.expect(&*open(&url));
}

/// A writer on PostgreSQL that does not know that another one replaced it; the crate's own tests cover
/// clusters. The server ends its session, as when a network is cut; another writer takes over; then the first
/// one wakes up.
#[test]
fn a_writer_that_was_replaced_changes_nothing() {
    let server = PostgresServer::start();
    let mut rng = Rng::new(54);
    let stale = open(&server.url("stale"));
    random_step(1, 100, 200, &mut rng).write(&*stale).unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'apus'";
    server.sql(end);
    // A writer that opens the store and writes nothing leaves the lease free and the record at the same
    // block.
    drop(open(&server.url("stale")));
    let late = random_step(9, 100, 200, &mut rng).write(&*stale);
    assert!(matches!(late, Err(StoreError::InUse { .. })), "{late:?}");
    server.sql(end);
    let other = open(&server.url("stale"));
    assert_eq!(other.tip().unwrap(), Some(block(1)));
    random_step(2, 100, 200, &mut rng).write(&*other).unwrap();
    let coins = coins_of(&*other).unwrap();
    drop(other);
    // The lease is free now, so only the record can reveal the other writer.
    let late = random_step(3, 100, 200, &mut rng).write(&*stale);
    assert!(matches!(late, Err(StoreError::InUse { .. })), "{late:?}");
    drop(stale);
    let store = open(&server.url("stale"));
    assert_eq!(store.tip().unwrap(), Some(block(2)));
    assert!(coins_of(&*store).unwrap() == coins);
    // The only writer continues after its session was ended.
    server.sql(end);
    random_step(3, 100, 200, &mut rng).write(&*store).unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(3)));
}

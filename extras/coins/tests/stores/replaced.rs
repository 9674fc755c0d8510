//! A writer on PostgreSQL that does not know that another one went on where it was. Those on a cluster are among the
//! tests of its steps, in the crate.

use super::servers::open;
use super::support::{block, coins_of, random_step};
use apus_engine::utxo::StoreError;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::rng::Rng;

/// Its session is ended by the server, as when a network is cut; another writer goes on; it wakes up.
#[test]
fn a_writer_that_was_replaced_changes_nothing() {
    let server = PostgresServer::start();
    let mut rng = Rng::new(54);
    let stale = open(&server.url("stale"));
    random_step(1, 100, 200, &mut rng).write(&*stale).unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'apus'";
    server.sql(end);
    // One that comes and writes nothing leaves the lease free and the record at the same block.
    drop(open(&server.url("stale")));
    let late = random_step(9, 100, 200, &mut rng).write(&*stale);
    assert!(matches!(late, Err(StoreError::InUse { .. })), "{late:?}");
    server.sql(end);
    let other = open(&server.url("stale"));
    assert_eq!(other.tip().unwrap(), Some(block(1)));
    random_step(2, 100, 200, &mut rng).write(&*other).unwrap();
    let coins = coins_of(&*other).unwrap();
    drop(other);
    // The lease is free now, so that the record alone can say it.
    let late = random_step(3, 100, 200, &mut rng).write(&*stale);
    assert!(matches!(late, Err(StoreError::InUse { .. })), "{late:?}");
    drop(stale);
    let store = open(&server.url("stale"));
    assert_eq!(store.tip().unwrap(), Some(block(2)));
    assert!(coins_of(&*store).unwrap() == coins);
    // One whose session was ended, and that is the only one, goes on.
    server.sql(end);
    random_step(3, 100, 200, &mut rng).write(&*store).unwrap();
    assert_eq!(store.tip().unwrap(), Some(block(3)));
}

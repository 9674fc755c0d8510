//! What a store is not opened for, by its name.

use super::support::{Step, coin, coins_of, outpoint, random_step};
use super::{open, options};
use apus_chain::Network;
use apus_coins::{Password, PostgresOptions, PostgresPlace, PostgresStore};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::postgres::{PostgresServer, PostgresSetup};
use apus_testkit::rng::Rng;
use std::net::TcpListener;
use std::time::Duration;

fn opened(url: &str, network: Network, options: &PostgresOptions) -> Result<(), StoreError> {
    let place: PostgresPlace = url.parse().unwrap();
    PostgresStore::open(&place, network, options).map(drop)
}

#[test]
fn what_is_not_right_is_told_by_name() {
    let setup = PostgresSetup { password: Some("right-word"), ..PostgresSetup::default() };
    let server = PostgresServer::with(setup);
    let url = server.url("refused");
    let with =
        |password: &str| PostgresOptions { password: Some(Password::new(password)), ..options() };
    for options in [options(), with("wrong-word")] {
        let error = opened(&url, Network::Regtest, &options).unwrap_err().to_string();
        assert!(error.contains("APUS_COINS_PASSWORD") && error.contains("127.0.0.1"), "{error}");
        assert!(!error.contains("wrong-word"), "{error}");
    }
    let right = with("right-word");
    let gone = url.replace("/postgres/", "/gone/");
    let error = opened(&gone, Network::Regtest, &right).unwrap_err().to_string();
    assert!(error.contains("createdb"), "{error}");

    let place: PostgresPlace = url.parse().unwrap();
    let store = PostgresStore::open(&place, Network::Regtest, &right).unwrap();
    let mut rng = Rng::new(51);
    let step = Step::new(1).with(outpoint(0), Some(coin(&mut rng)));
    step.write(&store).unwrap();
    let short = PostgresOptions { lease: Duration::from_millis(300), ..right.clone() };
    let error = opened(&url, Network::Regtest, &short).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);

    let error = opened(&url, Network::Main, &right).unwrap_err();
    let said = "is of the regtest chain, not of main";
    assert!(matches!(error, StoreError::OtherNetwork { .. }), "{error}");
    assert!(error.to_string().contains(said) && error.to_string().contains("/refused"), "{error}");

    server.sql("UPDATE refused.record SET format = 9");
    let error = opened(&url, Network::Regtest, &right).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 9, known: 1, .. }), "{error}");
    for damage in ["format = 0", "format = 1, hash = NULL", "format = 1, network = ''"] {
        server.sql(&format!("UPDATE refused.record SET {damage}"));
        let error = opened(&url, Network::Regtest, &right).unwrap_err();
        assert!(matches!(error, StoreError::Damaged { .. }), "{damage}: {error}");
    }
    server.sql("DELETE FROM refused.record");
    let error = opened(&url, Network::Regtest, &right).unwrap_err();
    assert!(matches!(error, StoreError::Damaged { .. }), "{error}");

    // A table of another's.
    server.sql("CREATE SCHEMA strange; CREATE TABLE strange.record (what text)");
    let error = opened(&server.url("strange"), Network::Regtest, &right).unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { what, .. } if what.contains("strange")),
        "{error}"
    );
    server.sql("CREATE SCHEMA half; CREATE TABLE half.coins (what text)");
    let error = opened(&server.url("half"), Network::Regtest, &right).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { what, .. } if what.contains("half")), "{error}");
    assert_eq!(server.sql("SELECT to_regclass('half.record') IS NULL"), "t");
}

#[test]
fn servers_that_are_not_there_or_forget_are_told_by_name() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("postgres://apus@127.0.0.1:{port}/postgres/none");
    let patience = Duration::from_millis(100);
    let error = opened(&url, Network::Regtest, &PostgresOptions { patience, ..options() });
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with(&url) && error.contains("can be reached from here"), "{error}");

    let setup = PostgresSetup { forgets: true, ..PostgresSetup::default() };
    let server = PostgresServer::with(setup);
    let error = opened(&server.url("x"), Network::Regtest, &options()).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1") && error.contains("set fsync to on"), "{error}");
}

#[test]
fn damage_and_mistakes_are_told_and_a_writer_that_was_replaced_changes_nothing() {
    let server = PostgresServer::start();
    changes_out_of_order(&server);
    rows_that_are_no_coins(&server);
    a_replaced_writer(&server);
}

fn changes_out_of_order(server: &PostgresServer) {
    use apus_engine::utxo::Changes;
    use apus_engine::utxo::Flush;
    use apus_engine::utxo::store::EachChange;
    struct Backwards;
    impl Changes for Backwards {
        fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
            let (low, high) = (outpoint(0).min(outpoint(1)), outpoint(0).max(outpoint(1)));
            each(&high, None)?;
            each(&low, None)
        }
    }
    let store = open(&server.url("order"));
    let tip = super::support::block(1);
    let flush = Flush { tip, changes: &Backwards, undo: &[], undo_from: 0 };
    assert!(matches!(store.write(&flush), Err(StoreError::Unordered { .. })));
    assert_eq!(store.tip().unwrap(), None);
    let mut rng = Rng::new(52);
    random_step(1, 100, 200, &mut rng).write(&store).unwrap();
}

fn rows_that_are_no_coins(server: &PostgresServer) {
    let store = open(&server.url("rows"));
    let mut rng = Rng::new(53);
    let step = Step::new(1).with(outpoint(0), Some(coin(&mut rng)));
    step.write(&store).unwrap();
    server.sql("UPDATE rows.coins SET coin = '\\x00'");
    assert!(matches!(store.get(&outpoint(0)), Err(StoreError::Coin { .. })));
    assert!(matches!(coins_of(&store), Err(StoreError::Coin { .. })));
    server.sql("UPDATE rows.coins SET outpoint = '\\x0102'");
    assert_eq!(store.get(&outpoint(0)).unwrap(), None);
    let error = coins_of(&store).unwrap_err();
    assert!(
        matches!(&error, StoreError::Damaged { what, .. } if what.contains("coins")),
        "{error}"
    );
}

/// Its session is ended by the server, as when a network is cut; another writer goes on; it wakes up.
fn a_replaced_writer(server: &PostgresServer) {
    let mut rng = Rng::new(54);
    let stale = open(&server.url("stale"));
    random_step(1, 100, 200, &mut rng).write(&stale).unwrap();
    let end = "SELECT count(pg_terminate_backend(pid)) FROM pg_stat_activity \
               WHERE application_name = 'apus'";
    server.sql(end);
    let other = open(&server.url("stale"));
    random_step(2, 100, 200, &mut rng).write(&other).unwrap();
    let coins = coins_of(&other).unwrap();
    drop(other);
    // The lease is free now, so that the record alone can say it.
    let late = random_step(3, 100, 200, &mut rng).write(&stale);
    assert!(matches!(late, Err(StoreError::InUse { .. })), "{late:?}");
    drop(stale);
    let store = open(&server.url("stale"));
    assert_eq!(store.tip().unwrap(), Some(super::support::block(2)));
    assert!(coins_of(&store).unwrap() == coins);
    // One whose session was ended, and that is the only one, goes on.
    server.sql(end);
    random_step(3, 100, 200, &mut rng).write(&store).unwrap();
    assert_eq!(store.tip().unwrap(), Some(super::support::block(3)));
}

//! What a store is not opened for, by its name.

use super::support::{Step, coin, outpoint};
use super::{open, options};
use apus_chain::Network;
use apus_coins::{ClusterOptions, ClusterPlace, ClusterStore, Password};
use apus_engine::utxo::{CoinsStore, StoreError};
use apus_testkit::redis::{RedisCluster, RedisSetup};
use apus_testkit::rng::Rng;
use std::net::TcpListener;
use std::time::Duration;

fn opened(url: &str, network: Network, options: &ClusterOptions) -> Result<(), StoreError> {
    let place: ClusterPlace = url.parse().unwrap();
    ClusterStore::open(&place, network, options).map(drop)
}

#[test]
fn what_is_not_right_is_told_by_name() {
    let cluster = RedisCluster::with(RedisSetup { password: Some("right-word"), forgets: false });
    let url = cluster.url("refused");
    let with =
        |password: &str| ClusterOptions { password: Some(Password::new(password)), ..options() };
    passwords(&url, &with);
    let right = with("right-word");

    let place: ClusterPlace = url.parse().unwrap();
    let store = ClusterStore::open(&place, Network::Regtest, &right).unwrap();
    let mut rng = Rng::new(51);
    let step = Step::new(1).with(outpoint(0), Some(coin(&mut rng)));
    step.write(&store).unwrap();
    let short = ClusterOptions { lease: Duration::from_millis(300), ..right.clone() };
    let error = opened(&url, Network::Regtest, &short).unwrap_err();
    assert!(matches!(error, StoreError::InUse { .. }), "{error}");
    drop(store);

    let error = opened(&url, Network::Main, &right).unwrap_err();
    let said = "is of the regtest chain, not of main";
    assert!(matches!(error, StoreError::OtherNetwork { .. }), "{error}");
    assert!(error.to_string().contains(said) && error.to_string().contains("/refused"), "{error}");

    // The record of another, and one that no store wrote.
    let other = cluster.url("strange");
    let set = |value: &str| {
        let said = cluster
            .ports()
            .map(|port| cluster.tell(port, &format!("SET strange:record {value}")).unwrap());
        assert!(said.iter().any(|said| said.starts_with("+OK")), "{said:?}");
    };
    set("hello");
    let error = opened(&other, Network::Regtest, &right).unwrap_err();
    assert!(matches!(&error, StoreError::Damaged { what, .. } if what.contains("strange:record")));
    let newer = [&b"APUSRCOI"[..], &9u32.to_le_bytes(), b"more"].concat();
    let digest = apus_hash::sha256(&newer);
    let escaped = newer.iter().chain(&digest[..8]).map(|byte| format!("\\x{byte:02x}"));
    set(&format!("\"{}\"", escaped.collect::<String>()));
    let error = opened(&other, Network::Regtest, &right).unwrap_err();
    assert!(matches!(error, StoreError::Newer { found: 9, known: 1, .. }), "{error}");
}

fn passwords(url: &str, with: &dyn Fn(&str) -> ClusterOptions) {
    for options in [options(), with("wrong-word")] {
        let error = opened(url, Network::Regtest, &options).unwrap_err().to_string();
        assert!(error.contains("APUS_COINS_PASSWORD") && error.contains("127.0.0.1"), "{error}");
        assert!(!error.contains("wrong-word"), "{error}");
    }
}

#[test]
fn servers_that_are_not_there_or_forget_are_told_by_name() {
    // A port that was free a moment ago.
    let port = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let url = format!("redis://127.0.0.1:{port}/none");
    let patience = Duration::from_millis(100);
    let error = opened(&url, Network::Regtest, &ClusterOptions { patience, ..options() });
    let error = error.unwrap_err().to_string();
    assert!(error.starts_with(&url) && error.contains("can be reached from here"), "{error}");

    let cluster = RedisCluster::with(RedisSetup { password: None, forgets: true });
    let error = opened(&cluster.url("x"), Network::Regtest, &options()).unwrap_err().to_string();
    assert!(error.contains("127.0.0.1") && error.contains("appendonly"), "{error}");
}

/// By default a server puts the writing of its log off while the disk is busy, and answers.
fn answers_before_writing(cluster: &RedisCluster) {
    let [_, port, _] = cluster.ports();
    let set = |to: &str| cluster.tell(port, &format!("CONFIG SET appendfsync {to}")).unwrap();
    assert_eq!(set("everysec"), "+OK\r\n");
    let error = opened(&cluster.url("x"), Network::Regtest, &options()).unwrap_err().to_string();
    assert!(error.contains(&port.to_string()) && error.contains("set appendfsync"), "{error}");
    for kept in ["no", "always"] {
        assert_eq!(set(kept), "+OK\r\n");
        opened(&cluster.url("x"), Network::Regtest, &options()).unwrap();
    }
}

#[test]
fn changes_out_of_order_are_refused_and_leave_nothing() {
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
    let cluster = RedisCluster::start();
    answers_before_writing(&cluster);
    let store = open(&cluster.url("order"));
    let tip = super::support::block(1);
    let flush = Flush { tip, changes: &Backwards, undo: &[], undo_from: 0 };
    assert!(matches!(store.write(&flush), Err(StoreError::Unordered { .. })));
    assert_eq!(store.tip().unwrap(), None);
    for port in cluster.ports() {
        let left = cluster.tell(port, "KEYS order:w:*").unwrap();
        assert_eq!(left, "*0\r\n");
    }
}

//! A server that encrypts: it has to be trusted, and to be the one that was named.
//!
//! Its certificate is of `localhost` alone, by an authority that no system trusts; the key of that
//! authority was thrown away. Whom a process trusts comes from its environment, so each question is
//! one for a process of its own.

use super::servers::{How, open};
use super::support::random_step;
use apus_chain::Network;
use apus_coins::PostgresStore;
use apus_engine::utxo::CoinsStore;
use apus_testkit::postgres::{PostgresServer, PostgresSetup};
use apus_testkit::rng::Rng;
use std::env;
use std::path::Path;
use std::process::Command;

const URL: &str = "APUS_TEST_COINS_BEHIND_TLS";
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tls");

/// The process that asks: the test below starts it. Says what came of it.
#[test]
#[ignore = "started by the test that says whom to trust"]
fn client() {
    // Those who run what is left out otherwise run this, too.
    let Ok(url) = env::var(URL) else { return };
    match PostgresStore::open(&url.parse().unwrap(), Network::Regtest, &How::default().postgres()) {
        Ok(store) => println!("opened at {:?}", store.tip().unwrap().map(|tip| tip.height)),
        Err(error) => println!("refused: {error}"),
    }
}

/// What a client says that trusts the authority of a file.
fn said(url: &str, trusts: &str) -> String {
    let said = Command::new(env::current_exe().unwrap())
        .args(["--exact", "tls::client", "--ignored", "--nocapture"])
        .env(URL, url)
        .env("SSL_CERT_FILE", trusts)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    String::from_utf8(said.stdout).unwrap()
}

#[test]
fn a_server_that_encrypts_has_to_be_trusted_and_the_one_that_was_named() {
    let path = |name| Path::new(FOLDER).join(name);
    let (certificate, key) = (path("server.pem"), path("server.key"));
    let tls =
        Some((&*Box::leak(certificate.into_boxed_path()), &*Box::leak(key.into_boxed_path())));
    let server = PostgresServer::with(PostgresSetup { tls, ..PostgresSetup::default() });
    let plain = server.url("x");
    random_step(7, 10, 20, &mut Rng::new(71)).write(&*open(&plain)).unwrap();
    let encrypted = format!("{}?sslmode=verify-full", plain.replace("127.0.0.1", "localhost"));
    let (ours, other) = (format!("{FOLDER}/authority.pem"), format!("{FOLDER}/server.pem"));

    assert!(said(&encrypted, &ours).contains("opened at Some(7)"), "{}", said(&encrypted, &ours));
    let by_address = format!("{plain}?sslmode=verify-full");
    for refused in [said(&by_address, &ours), said(&encrypted, &other)] {
        assert!(refused.contains("refused: postgres://"), "{refused}");
        assert!(refused.contains("SSL_CERT_FILE"), "{refused}");
    }
    // One that does not encrypt is not asked in the clear instead.
    let open_server = PostgresServer::start();
    let url =
        format!("{}?sslmode=verify-full", open_server.url("x").replace("127.0.0.1", "localhost"));
    let refused = said(&url, &ours);
    assert!(refused.contains("refused: postgres://"), "{refused}");
}

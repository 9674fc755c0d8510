//! A server that encrypts: it has to be trusted, and to be the one that was named.
//!
//! Its certificate is of `localhost` alone, by an authority that no system trusts; the key of that
//! authority was thrown away. Whom a process trusts comes from its environment, so each question is
//! one for a process of its own.

use super::servers::How;
use super::support::random_step;
use apus_testkit::postgres::{PostgresServer, PostgresSetup};
use apus_testkit::redis::{RedisCluster, RedisSetup, RedisTls};
use apus_testkit::rng::Rng;
use std::env;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

const URL: &str = "APUS_TEST_COINS_BEHIND_TLS";
const PASSWORD: &str = "right-word";
const FOLDER: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/stores/tls");

/// The process that asks: the test below starts it. Says what came of it.
#[test]
#[ignore = "started by the test that says whom to trust"]
fn client() {
    // Those who run what is left out otherwise run this, too.
    let Ok(url) = env::var(URL) else { return };
    let how = How { password: Some(PASSWORD), ..How::default() };
    match how.open(&url) {
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

fn file(name: &str) -> &'static Path {
    Box::leak(Path::new(FOLDER).join(name).into_boxed_path())
}

/// `encrypted` names a server as its certificate does, `by_address` the same one otherwise, and `clear` one that
/// does not encrypt.
fn it_has_to_be_trusted_and_the_one_that_was_named(encrypted: &str, by_address: &str, clear: &str) {
    let (ours, other) = (format!("{FOLDER}/authority.pem"), format!("{FOLDER}/server.pem"));
    let scheme = encrypted.split_once("://").unwrap().0;

    assert!(said(encrypted, &ours).contains("opened at Some(7)"), "{}", said(encrypted, &ours));
    let nowhere = format!("{FOLDER}/none.pem");
    for (url, trusts) in
        [(by_address, &ours), (encrypted, &other), (encrypted, &nowhere), (clear, &ours)]
    {
        let refused = said(url, trusts);
        assert!(refused.contains(&format!("refused: {scheme}://")), "{url}: {refused}");
        assert!(!refused.contains(PASSWORD), "{refused}");
        // One that does not encrypt may end the connection, which is no error of TLS.
        assert!(url == clear || refused.contains("SSL_CERT_FILE"), "{url}: {refused}");
    }
}

#[test]
fn a_server_of_postgresql_that_encrypts_has_to_be_trusted_and_the_one_that_was_named() {
    let tls = Some((file("server.pem"), file("server.key")));
    let setup = PostgresSetup { password: Some(PASSWORD), ..PostgresSetup::default() };
    let server = PostgresServer::with(PostgresSetup { tls, ..setup });
    let store = How { password: Some(PASSWORD), ..How::default() }.open(&server.url("x")).unwrap();
    random_step(7, 10, 20, &mut Rng::new(71)).write(&*store).unwrap();
    drop(store);
    let verified = |url: &str| format!("{url}?sslmode=verify-full");
    let named = |url: String| verified(&url.replace("127.0.0.1", "localhost"));
    let clear = PostgresServer::with(setup);
    it_has_to_be_trusted_and_the_one_that_was_named(
        &named(server.url("x")),
        &verified(&server.url("x")),
        &named(clear.url("x")),
    );
}

#[test]
fn a_cluster_that_encrypts_has_to_be_trusted_and_the_one_that_was_named() {
    let [certificate, key, authority] = ["server.pem", "server.key", "authority.pem"].map(file);
    let tls = Some(RedisTls { certificate, key, authority });
    let cluster =
        RedisCluster::with(RedisSetup { password: Some(PASSWORD), tls, ..RedisSetup::default() });
    // Without TLS the same set is there. The servers name each other, whom the certificate is of.
    let store = How { password: Some(PASSWORD), ..How::default() }.open(&cluster.url("x")).unwrap();
    random_step(7, 10, 20, &mut Rng::new(72)).write(&*store).unwrap();
    drop(store);
    let encrypted = cluster.tls_url("x");
    let clear = cluster.url("x").replace("redis://", "rediss://");
    it_has_to_be_trusted_and_the_one_that_was_named(
        &encrypted,
        &encrypted.replace("localhost", "127.0.0.1"),
        &clear.replace("127.0.0.1", "localhost"),
    );
    // The client does not ask again in the hope that it will be trusted.
    let started = Instant::now();
    assert!(said(&encrypted, &format!("{FOLDER}/server.pem")).contains("refused"));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

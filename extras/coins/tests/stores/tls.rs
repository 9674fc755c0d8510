//! Tests that a server with TLS must be trusted and must be the one named.
//!
//! Its certificate is only for `localhost`, from an authority that no system trusts; the authority's key was
//! deleted. The set of trusted authorities comes from a process's environment, so each case needs its own
//! process.

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

/// The client process: the test below starts it. Prints the result.
#[test]
#[ignore = "started by the test that sets the trusted authorities"]
fn client() {
    // Running all ignored tests runs this one too; then it has no URL.
    let Ok(url) = env::var(URL) else { return };
    let how = How { password: Some(PASSWORD), ..How::default() };
    match how.open(&url) {
        Ok(store) => println!("opened at {:?}", store.tip().unwrap().map(|tip| tip.height)),
        Err(error) => println!("refused: {error}"),
    }
}

/// The output of a client that trusts the authorities in a file.
fn output_of(url: &str, trusts: &str) -> String {
    let output = Command::new(env::current_exe().unwrap())
        .args(["--exact", "tls::client", "--ignored", "--nocapture"])
        .env(URL, url)
        .env("SSL_CERT_FILE", trusts)
        .env_remove("SSL_CERT_DIR")
        .output()
        .unwrap();
    String::from_utf8(output.stdout).unwrap()
}

fn file(name: &str) -> &'static Path {
    Box::leak(Path::new(FOLDER).join(name).into_boxed_path())
}

/// `encrypted` names a server as its certificate does, `by_address` names the same server differently, and
/// `clear` names one without TLS.
fn certificates_must_be_trusted_and_match_the_name(encrypted: &str, by_address: &str, clear: &str) {
    let (ours, other) = (format!("{FOLDER}/authority.pem"), format!("{FOLDER}/server.pem"));
    let scheme = encrypted.split_once("://").unwrap().0;

    assert!(
        output_of(encrypted, &ours).contains("opened at Some(7)"),
        "{}",
        output_of(encrypted, &ours)
    );
    let nowhere = format!("{FOLDER}/none.pem");
    for (url, trusts) in
        [(by_address, &ours), (encrypted, &other), (encrypted, &nowhere), (clear, &ours)]
    {
        let refused = output_of(url, trusts);
        assert!(refused.contains(&format!("refused: {scheme}://")), "{url}: {refused}");
        assert!(!refused.contains(PASSWORD), "{refused}");
        // A server without TLS may end the connection, which is not a TLS error.
        assert!(url == clear || refused.contains("SSL_CERT_FILE"), "{url}: {refused}");
    }
}

#[test]
fn a_postgresql_server_with_tls_must_be_trusted_and_match_its_name() {
    let tls = Some((file("server.pem"), file("server.key")));
    let setup = PostgresSetup { password: Some(PASSWORD), ..PostgresSetup::default() };
    let server = PostgresServer::with(PostgresSetup { tls, ..setup });
    let store = How { password: Some(PASSWORD), ..How::default() }.open(&server.url("x")).unwrap();
    random_step(7, 10, 20, &mut Rng::new(71)).write(&*store).unwrap();
    drop(store);
    let verified = |url: &str| format!("{url}?sslmode=verify-full");
    let named = |url: String| verified(&url.replace("127.0.0.1", "localhost"));
    let clear = PostgresServer::with(setup);
    certificates_must_be_trusted_and_match_the_name(
        &named(server.url("x")),
        &verified(&server.url("x")),
        &named(clear.url("x")),
    );
}

#[test]
fn a_cluster_with_tls_must_be_trusted_and_match_its_name() {
    let [certificate, key, authority] = ["server.pem", "server.key", "authority.pem"].map(file);
    let tls = Some(RedisTls { certificate, key, authority });
    let cluster =
        RedisCluster::with(RedisSetup { password: Some(PASSWORD), tls, ..RedisSetup::default() });
    // The same store can be opened without TLS. The servers announce each other by the name in the certificate.
    let store = How { password: Some(PASSWORD), ..How::default() }.open(&cluster.url("x")).unwrap();
    random_step(7, 10, 20, &mut Rng::new(72)).write(&*store).unwrap();
    drop(store);
    let encrypted = cluster.tls_url("x");
    let clear = cluster.url("x").replace("redis://", "rediss://");
    certificates_must_be_trusted_and_match_the_name(
        &encrypted,
        &encrypted.replace("localhost", "127.0.0.1"),
        &clear.replace("127.0.0.1", "localhost"),
    );
    // The client does not retry in the hope of being trusted.
    let started = Instant::now();
    assert!(output_of(&encrypted, &format!("{FOLDER}/server.pem")).contains("refused"));
    assert!(started.elapsed() < Duration::from_secs(4), "{:?}", started.elapsed());
}

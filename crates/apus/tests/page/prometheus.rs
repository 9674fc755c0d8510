//! [`Prometheus`]: a real server that scrapes a test's target, and `promtool`, which knows the conventions.
//!
//! A test that needs it fails if Prometheus is not installed; it is never skipped. The server listens only on
//! 127.0.0.1. Dropping it kills the server.

use apus_testkit::http;
use apus_testkit::programs::{PATIENCE, POLL_EVERY, Server, find_program, free_ports};
use serde_json::Value;
use std::fs;
use std::io::Write;
use std::net::TcpStream;
use std::process::{Command, Stdio};
use std::thread::sleep;
use std::time::Instant;
use tempfile::TempDir;

/// A running Prometheus. Dropping it kills it.
#[derive(Debug)]
pub(crate) struct Prometheus {
    _process: Server,
    port: u16,
    _folder: TempDir,
}

impl Prometheus {
    /// Starts a server that scrapes a port of this machine every second, with a token if given.
    ///
    /// # Panics
    /// If prometheus is not installed, or does not start.
    pub(crate) fn scraping(target: u16, token: Option<&str>) -> Self {
        let folder = tempfile::Builder::new().prefix("prometheus").tempdir().unwrap();
        let authorization = token
            .map(|token| format!("    authorization:\n      credentials: {token}\n"))
            .unwrap_or_default();
        let config = format!(
            "global:\n  scrape_interval: 1s\nscrape_configs:\n  - job_name: apus\n{authorization}    \
             static_configs:\n      - targets: ['127.0.0.1:{target}']\n"
        );
        let (file, said) = (folder.path().join("prometheus.yml"), folder.path().join("said"));
        fs::write(&file, config).unwrap();
        let [port] = free_ports();
        let mut command = Command::new(find_program("prometheus"));
        command
            .arg(format!("--config.file={}", file.display()))
            .arg(format!("--storage.tsdb.path={}", folder.path().join("data").display()))
            .arg(format!("--web.listen-address=127.0.0.1:{port}"));
        let listens = |_: &str| TcpStream::connect(("127.0.0.1", port)).is_ok();
        let process = Server::start(&mut command, &said, listens).unwrap();
        Self { _process: process, port, _folder: folder }
    }

    /// Waits until an expression has a result; returns the samples, each with its labels.
    ///
    /// # Panics
    /// If it has no result for too long.
    pub(crate) fn samples(&self, expression: &str) -> Vec<(Value, f64)> {
        let deadline = Instant::now() + PATIENCE;
        loop {
            let query: String = expression.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let answer = http::get(self.port, &format!("/api/v1/query?query={query}"), &[]);
            let body: Value = serde_json::from_str(&answer.body).unwrap_or_default();
            let found = body["data"]["result"].as_array().cloned().unwrap_or_default();
            if !found.is_empty() {
                let value = |it: &Value| it["value"][1].as_str().unwrap().parse().unwrap();
                return found.iter().map(|it| (it["metric"].clone(), value(it))).collect();
            }
            assert!(Instant::now() < deadline, "{expression} has no result: {body}");
            sleep(POLL_EVERY);
        }
    }
}

/// Returns the complaints of `promtool check metrics` about a text; empty if there are none.
///
/// # Panics
/// If there is no promtool next to prometheus.
pub(crate) fn complaints(metrics: &str) -> String {
    let promtool = find_program("prometheus").with_file_name("promtool");
    let mut process = Command::new(promtool)
        .args(["check", "metrics"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    process.stdin.take().unwrap().write_all(metrics.as_bytes()).unwrap();
    let output = process.wait_with_output().unwrap();
    let said = format!(
        "{}{}",
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    match output.status.success() {
        true => said,
        false => format!("{}: {said}", output.status),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promtool_knows_the_conventions() {
        let good = "# HELP a_bytes Bytes.\n# TYPE a_bytes gauge\na_bytes 1\n";
        assert_eq!(complaints(good), "");
        let bad = "# HELP a_milliseconds Time.\n# TYPE a_milliseconds gauge\na_milliseconds 1\n";
        assert!(complaints(bad).contains("base unit"), "{}", complaints(bad));
        assert_ne!(complaints("no metric at all\n"), "");
    }
}

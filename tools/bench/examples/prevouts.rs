//! Runs `apus-bench prevouts` on stores of each kind in turn: a folder, a Redis Cluster and PostgreSQL:
//!
//! ```sh
//! cargo run -p apus-bench --example prevouts -- target/release/apus --rounds 8
//! ```
//!
//! takes the program, starts servers on this machine, each only while it is measured, and prints the time for
//! the coins of a block from each store, with the consumer thread alone and with two helper threads. `--json
//! FILE` keeps everything. By default the block has 2,856 transactions with 2.5 inputs each, out of 400,000
//! coins. The tests use the same servers (`scripts/redis-server`, `scripts/postgres`).

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a tool for measurements"
)]

use apus_bench::TextTable;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::RedisCluster;
use serde_json::{Value, json};
use std::fs;
use std::path::PathBuf;
use std::process::{Command, Stdio};

/// The options of the command line.
struct Args {
    program: PathBuf,
    rounds: String,
    inputs: String,
    coins: String,
    threads: String,
    json: Option<PathBuf>,
}

impl Args {
    fn read(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let mut args = Self {
            program: fs::canonicalize(words.next()?).ok()?,
            rounds: "8".to_owned(),
            inputs: "7140".to_owned(),
            coins: "400000".to_owned(),
            threads: "2".to_owned(),
            json: None,
        };
        while let Some(word) = words.next() {
            let value = words.next()?;
            match word.as_str() {
                "--rounds" => args.rounds = value,
                "--inputs" => args.inputs = value,
                "--coins" => args.coins = value,
                "--threads" => args.threads = value,
                "--json" => args.json = Some(value.into()),
                _ => return None,
            }
        }
        Some(args)
    }

    /// The program's measurements of one store.
    fn measure(&self, store: &str) -> Value {
        let folder = tempfile::tempdir().unwrap();
        let found = folder.path().join("found.json");
        let status = Command::new(&self.program)
            .args(["prevouts", "--latency", "0", "--store", store])
            .args(["--inputs", &self.inputs, "--coins", &self.coins])
            .args(["--threads", &self.threads, "--rounds", &self.rounds, "--json"])
            .arg(&found)
            .stdout(Stdio::null())
            .status()
            .unwrap();
        assert!(status.success(), "{store}: {status}");
        serde_json::from_slice(&fs::read(&found).unwrap()).unwrap()
    }
}

fn main() {
    let Some(args) = Args::read(std::env::args().skip(1)) else {
        eprintln!(
            "usage: prevouts APUS-BENCH [--rounds N] [--inputs N] [--coins N] [--threads N,...] [--json FILE]"
        );
        std::process::exit(1);
    };
    let folder = tempfile::tempdir().unwrap();
    let mut found = vec![("local", args.measure(folder.path().join("coins").to_str().unwrap()))];
    {
        let cluster = RedisCluster::start();
        found.push(("redis", args.measure(&cluster.url("bench"))));
    }
    {
        let server = PostgresServer::start();
        found.push(("postgres", args.measure(&server.url("bench"))));
    }
    let columns = ["coins", "threads", "block ms", "least", "greatest"];
    let title = format!("Coins of a block of {} inputs, {} rounds", args.inputs, args.rounds);
    let mut table = TextTable::new(title, &columns);
    for (place, found) in &found {
        for with in found["latencies"][0]["measured"].as_array().unwrap() {
            // An entry without threads is the plain loop: one coin at a time.
            let Some(threads) = with["threads"].as_u64() else { continue };
            let ms = |name: &str| format!("{:.2}", with["block_ms"][name].as_f64().unwrap());
            let cells = [place.to_string(), threads.to_string()];
            table.row(cells.into_iter().chain(["median", "min", "max"].map(ms)));
        }
    }
    println!("{}", table.text());
    if let Some(path) = &args.json {
        let all: serde_json::Map<_, _> =
            found.into_iter().map(|(place, found)| (place.to_owned(), found)).collect();
        fs::write(path, format!("{:#}\n", json!({ "version": 1, "measured": all }))).unwrap();
    }
}

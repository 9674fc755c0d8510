//! Compares the engine `utxo` with its coins in the work folder, on a Redis Cluster and in PostgreSQL:
//!
//! ```sh
//! cargo run -p apus-bench --example coins -- target/release/apus target/chain --rounds 3 --dbcache 450,16 --delay-us 1000
//! ```
//!
//! takes the program and a chain made by `apus-bench chain make`, starts separate servers on this machine for
//! each run, and prints each run's time and its speed relative to local coins. Rounds are interleaved: each
//! place runs once per round. `--delay-us` adds runs over links that delay each request and each answer by
//! half this time, and runs over the same links without a delay, so that the links' own cost is in both.
//! `--json FILE` keeps everything; arguments after `--` go to `apus sync`. The tests use the same servers
//! (`scripts/redis-server`, `scripts/postgres`), which write their logs before they answer.

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a tool for measurements"
)]

use apus_bench::manifest::ChainManifest;
use apus_bench::run::BenchMachine;
use apus_bench::{MeasuredSpread, TextTable};
use apus_testkit::line::LineRelay;
use apus_testkit::postgres::PostgresServer;
use apus_testkit::redis::{RedisCluster, RedisFar};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

/// Where a run keeps its coins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
enum Place {
    Local,
    Redis(Line),
    Postgres(Line),
}

/// The link to the servers: direct, or through a proxy that adds this many microseconds.
type Line = Option<u64>;

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (name, line) = match self {
            Self::Local => ("local", &None),
            Self::Redis(line) => ("redis", line),
            Self::Postgres(line) => ("postgres", line),
        };
        match line {
            None => f.write_str(name),
            Some(0) => write!(f, "{name}, a link"),
            Some(us) => write!(f, "{name}, a link of {us} us"),
        }
    }
}

/// Servers for one run; they stop on drop.
enum Servers {
    None,
    Redis { url: String, _far: Option<RedisFar>, _cluster: RedisCluster },
    Postgres { url: String, _far: Option<LineRelay>, _server: PostgresServer },
}

impl Servers {
    fn start(place: Place) -> Self {
        let delay = Duration::from_micros;
        match place {
            Place::Local => Self::None,
            Place::Redis(line) => {
                let cluster = RedisCluster::start();
                let far = line.map(|us| cluster.far(delay(us)));
                let url = far.as_ref().map_or_else(|| cluster.url("run"), |far| far.url("run"));
                Self::Redis { url, _far: far, _cluster: cluster }
            }
            Place::Postgres(line) => {
                let server = PostgresServer::start();
                let far = line.map(|us| LineRelay::far(server.port(), delay(us)));
                let port = far.as_ref().map_or(server.port(), |far| far.address().port());
                Self::Postgres { url: server.url_at(port, "run"), _far: far, _server: server }
            }
        }
    }

    fn url(&self) -> Option<&str> {
        match self {
            Self::None => None,
            Self::Redis { url, .. } | Self::Postgres { url, .. } => Some(url),
        }
    }
}

/// The options of the command line.
struct Args {
    program: PathBuf,
    chain: PathBuf,
    rounds: u32,
    dbcaches: Vec<u64>,
    delay_us: Option<u64>,
    json: Option<PathBuf>,
    more: Vec<String>,
}

impl Args {
    fn read(mut words: impl Iterator<Item = String>) -> Option<Self> {
        let mut args = Self {
            program: fs::canonicalize(words.next()?).ok()?,
            chain: fs::canonicalize(words.next()?).ok()?,
            rounds: 3,
            dbcaches: vec![450, 16],
            delay_us: None,
            json: None,
            more: Vec::new(),
        };
        while let Some(word) = words.next() {
            match word.as_str() {
                "--rounds" => args.rounds = words.next()?.parse().ok()?,
                "--dbcache" => {
                    let sizes = words.next()?;
                    let sizes = sizes.split(',').map(|size| size.parse().ok());
                    args.dbcaches = sizes.collect::<Option<_>>()?;
                }
                "--delay-us" => args.delay_us = Some(words.next()?.parse().ok()?),
                "--json" => args.json = Some(words.next()?.into()),
                "--" => args.more.extend(words.by_ref()),
                _ => return None,
            }
        }
        Some(args)
    }

    fn places(&self) -> Vec<Place> {
        let mut lines = vec![None];
        if let Some(delay) = self.delay_us {
            lines.extend([Some(0), Some(delay)]);
        }
        let redis = lines.iter().copied().map(Place::Redis);
        let postgres = lines.iter().copied().map(Place::Postgres);
        [Place::Local].into_iter().chain(redis).chain(postgres).collect()
    }

    /// One run; returns its report.
    fn run(&self, place: Place, dbcache: u64, scratch: &Path) -> Value {
        let (manifest, servers) =
            (ChainManifest::read(&self.chain).unwrap(), Servers::start(place));
        let (work, report) = (scratch.join("work"), scratch.join("report.json"));
        // Leftovers of the previous run.
        let _ = (fs::remove_dir_all(&work), fs::remove_file(&report));
        let mut command = Command::new(&self.program);
        command
            .args(["sync", "--chain", "regtest", "--engine", "utxo", "--progress", "none"])
            .args(["--assumevalid", &manifest.assumevalid_hash])
            .args(["--out", "null", "--dbcache", &dbcache.to_string(), "--blocksdir"])
            .arg(self.chain.join("blocks"))
            .arg("--workdir")
            .arg(&work)
            .arg("--report")
            .arg(&report)
            .args(servers.url().into_iter().flat_map(|url| ["--coins", url]))
            .args(&self.more);
        let output = command.output().unwrap();
        let error = String::from_utf8_lossy(&output.stderr);
        assert!(output.status.success(), "{place}: {error}");
        serde_json::from_slice(&fs::read(&report).unwrap()).unwrap()
    }
}

/// All runs with one place and one size.
#[derive(Default)]
struct Runs {
    seconds: Vec<f64>,
    cpu_seconds: Vec<f64>,
    rss_peak_bytes: f64,
}

impl Runs {
    fn put(&mut self, report: &Value) {
        let number = |name: &str| report[name].as_f64().unwrap_or(f64::NAN);
        self.seconds.push(number("wall_seconds"));
        self.cpu_seconds.push(number("cpu_seconds"));
        self.rss_peak_bytes = self.rss_peak_bytes.max(number("rss_peak_bytes"));
    }
}

fn main() {
    let Some(args) = Args::read(std::env::args().skip(1)) else {
        eprintln!(
            "usage: coins APUS CHAIN [--rounds N] [--dbcache MiB,...] [--delay-us N] [--json FILE] [-- ARGS]"
        );
        std::process::exit(1);
    };
    let (machine, scratch) = (BenchMachine::here(), tempfile::tempdir().unwrap());
    let mut runs: BTreeMap<(u64, Place), Runs> = BTreeMap::new();
    let mut places = args.places();
    for round in 1..=args.rounds {
        for dbcache in &args.dbcaches {
            for place in &places {
                let report = args.run(*place, *dbcache, scratch.path());
                let seconds = &report["wall_seconds"];
                eprintln!("round {round}, --dbcache {dbcache}, {place}: {seconds} s");
                runs.entry((*dbcache, *place)).or_default().put(&report);
            }
        }
        places.reverse();
    }
    let columns =
        ["--dbcache", "coins", "seconds", "least", "greatest", "CPU", "peak MB", "speed vs. local"];
    let mut table = TextTable::new(format!("Engine utxo, {} rounds", args.rounds), &columns);
    let mut measured = Vec::new();
    for ((dbcache, place), of) in &runs {
        let spread = |values: &[f64]| MeasuredSpread::of(values).unwrap();
        let (seconds, cpu) = (spread(&of.seconds), spread(&of.cpu_seconds));
        let speed = spread(&runs[&(*dbcache, Place::Local)].seconds).median / seconds.median;
        let decimal = |value: f64| format!("{value:.2}");
        table.row([
            dbcache.to_string(),
            place.to_string(),
            decimal(seconds.median),
            decimal(seconds.min),
            decimal(seconds.max),
            decimal(cpu.median),
            format!("{:.0}", of.rss_peak_bytes / 1e6),
            decimal(speed),
        ]);
        measured.push(json!({
            "dbcache_mib": dbcache,
            "coins": place.to_string(),
            "wall_seconds": seconds,
            "cpu_seconds": cpu,
            "rss_peak_bytes": of.rss_peak_bytes,
            "speed_beside_local": speed,
        }));
    }
    println!("{}", table.text());
    if let Some(path) = &args.json {
        let all = json!({
            "version": 1,
            "machine": machine,
            "manifest": ChainManifest::read(&args.chain).unwrap(),
            "rounds": args.rounds,
            "measured": measured,
        });
        fs::write(path, format!("{all:#}\n")).unwrap();
    }
}

//! Measures the cost of sharing a sync among machines, against the same sync on one machine:
//!
//! ```sh
//! cargo run --release -p apus-bench --example cluster -- target/release/apus target/chain --rounds 5 --json cluster.json
//! ```
//!
//! takes the program and a chain made by `apus-bench chain make`. For each engine (`--engines
//! swiftsync,mergesync,utreexo`) it runs whole processes on this machine, interleaved, each with its own
//! servers and folders:
//!
//! - `sync, 1 thread` and `sync, 2 threads`: `apus sync`, on as many processors as it has threads;
//! - `1 worker`: `apus cluster serve` and a worker of one thread, pinned to the first processor, which the
//!   other processes may also use;
//! - `1 worker, 1 processor`: the same with coordinator, worker and queue on the first processor, so that the
//!   time includes all their work;
//! - `2 workers`: two of one thread each, each on its own processor, which coordinator and queue share with
//!   them;
//! - with `--workers N,N`, if there are enough processors, `N workers` in the same way.
//!
//! `--runs` selects some of these instead (`sync`, `sync2`, `worker`, `packed`, `workers2`, …) and skips the
//! other measurements: for `--validation full`, where a run takes minutes.
//!
//! Workers are ready before the coordinator starts; the time is that of the coordinator's process. Then
//! follow one untimed run per engine, which counts all traffic of the queue and the store, and runs up to a
//! quarter and a half of the chain, which measure the coordinator's memory. Finally it extrapolates the
//! measured serial part to the main chain and shows the arithmetic. Runs write no files (`--out null`).

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a tool for measurements"
)]

mod args;
mod counted;
mod extrapolated;
mod start;

use apus_bench::manifest::ChainManifest;
use apus_bench::run::BenchMachine;
use apus_bench::{MeasuredSpread, TextTable};
use args::{Args, Engine};
use serde_json::{Value, json};
use start::{Bench, Kind, RunCost};
use std::collections::BTreeMap;
use std::fs;

/// All runs of one kind.
#[derive(Default)]
struct Runs(Vec<RunCost>);

impl Runs {
    fn spread(&self, of: impl Fn(&RunCost) -> f64) -> MeasuredSpread {
        MeasuredSpread::of(&self.0.iter().map(of).collect::<Vec<_>>()).unwrap()
    }

    fn wall(&self) -> MeasuredSpread {
        self.spread(|ran| ran.wall_seconds)
    }

    fn measured(&self) -> Value {
        let shared = self.0.iter().any(|ran| ran.share().is_some());
        let share = |of: fn(&start::Share) -> f64| {
            shared.then(|| self.spread(|ran| ran.share().map_or(f64::NAN, |share| of(&share))))
        };
        json!({
            "wall_seconds": self.wall(),
            "cpu_seconds": self.spread(|ran| ran.cpu_seconds),
            "workers_cpu_seconds": self.spread(|ran| ran.workers_cpu_seconds),
            "queue_cpu_seconds": self.spread(|ran| ran.queue_cpu_seconds),
            "rss_peak_bytes": self.spread(|ran| ran.rss_peak_bytes),
            "serial_seconds": share(|share| share.serial_seconds),
            "handling_seconds": share(|share| share.handling_seconds),
            "parallel_seconds": share(|share| share.parallel_seconds),
            "serial_fraction": share(|share| share.serial_fraction),
            "jobs": share(|share| share.jobs),
        })
    }
}

type All = BTreeMap<(Engine, Kind), Runs>;

/// All rounds; each kind runs once per round.
fn timed(bench: &Bench<'_>, args: &Args) -> All {
    let (mut all, mut kinds) = (All::new(), args.kinds.clone());
    for round in 1..=args.rounds {
        for engine in &args.engines {
            for &kind in &kinds {
                let ran = bench.timed(*engine, kind);
                let (wall, cpu) = (ran.wall_seconds, ran.cpu_seconds);
                eprintln!(
                    "round {round}, {engine}, {kind}: {wall:.3} s, {cpu:.3} s of its processors"
                );
                all.entry((*engine, kind)).or_default().0.push(ran);
            }
        }
        kinds.reverse();
    }
    all
}

/// Ratio of the first kind's time to the second's, paired by round: the median over rounds.
fn ratio(first: &Runs, second: &Runs) -> MeasuredSpread {
    let pairs = first.0.iter().zip(&second.0);
    let ratios: Vec<f64> =
        pairs.map(|(one, other)| one.wall_seconds / other.wall_seconds).collect();
    MeasuredSpread::of(&ratios).unwrap()
}

fn times(all: &All, rounds: u32) -> TextTable {
    let columns = [
        "engine", "run", "seconds", "least", "greatest", "CPU", "workers", "queue", "peak MB",
        "serial %",
    ];
    let mut table = TextTable::new(format!("Whole processes, {rounds} rounds"), &columns);
    for ((engine, kind), runs) in all {
        let (wall, decimal) = (runs.wall(), |value: f64| format!("{value:.3}"));
        let serial = runs.0[0].share().map(|_| {
            100.0 * runs.spread(|ran| ran.share().map_or(f64::NAN, |it| it.serial_fraction)).median
        });
        table.row([
            engine.to_string(),
            kind.to_string(),
            decimal(wall.median),
            decimal(wall.min),
            decimal(wall.max),
            decimal(runs.spread(|ran| ran.cpu_seconds).median),
            decimal(runs.spread(|ran| ran.workers_cpu_seconds).median),
            decimal(runs.spread(|ran| ran.queue_cpu_seconds).median),
            format!("{:.1}", runs.spread(|ran| ran.rss_peak_bytes).median / 1e6),
            serial.map_or_else(String::new, decimal),
        ]);
    }
    table
}

fn ratios(all: &All, args: &Args) -> (TextTable, Value) {
    let columns = ["engine", "what", "median", "least", "greatest"];
    let mut table = TextTable::new("Ratios of wall times, pair by pair", &columns);
    let mut measured = Vec::new();
    let pairs = [
        ("1 worker : sync", Kind::Worker, Kind::Sync),
        ("1 worker on 1 processor : sync", Kind::Packed, Kind::Sync),
        ("1 worker : 2 workers", Kind::Worker, Kind::Workers(2)),
        ("1 worker on 1 processor : 2 workers on 2", Kind::Packed, Kind::Workers(2)),
        ("sync, 1 thread : 2 threads", Kind::Sync, Kind::SyncTwo),
    ];
    let pairs = pairs.map(|(what, first, second)| (what.to_owned(), first, second));
    let more = args.kinds.iter().filter(|kind| matches!(kind, Kind::Workers(3..)));
    let more = more.map(|kind| (format!("1 worker : {kind}"), Kind::Worker, *kind));
    let pairs: Vec<_> = pairs.into_iter().chain(more).collect();
    for engine in &args.engines {
        let of = |kind: Kind| all.get(&(*engine, kind));
        for &(ref what, first, second) in &pairs {
            let (Some(first), Some(second)) = (of(first), of(second)) else { continue };
            let ratio = ratio(first, second);
            let decimal = |value: f64| format!("{value:.3}");
            let cells = [decimal(ratio.median), decimal(ratio.min), decimal(ratio.max)];
            table.row([engine.to_string(), what.clone()].into_iter().chain(cells));
            measured.push(json!({ "engine": engine.to_string(), "what": what, "ratio": ratio }));
        }
    }
    (table, Value::Array(measured))
}

/// Shared runs of the smallest number of workers.
fn shared(all: &All, engine: Engine) -> Option<&[RunCost]> {
    let is_shared = |kind: &Kind| matches!(kind, Kind::Worker | Kind::Workers(_));
    let mut kinds = all.iter().filter(|((of, kind), _)| *of == engine && is_shared(kind));
    Some(&kinds.next()?.1.0)
}

fn main() {
    let Some(args) = Args::read(std::env::args().skip(1)) else {
        eprintln!("{}", args::USAGE);
        std::process::exit(1);
    };
    let (machine, scratch) = (BenchMachine::here(), tempfile::tempdir().unwrap());
    if machine.is_busy() {
        eprintln!("warning: other programs are running, so times will be too high");
    }
    let manifest = ChainManifest::read(&args.chain).unwrap();
    let bench = Bench::new(&args, &manifest, scratch.path());
    let all = timed(&bench, &args);
    println!("{}", times(&all, args.rounds).text());
    let (table, ratios) = ratios(&all, &args);
    println!("{}", table.text());
    let not_timed: &[Engine] = if args.only { &[] } else { &args.engines };
    let counted: Vec<counted::Traffic> =
        not_timed.iter().flat_map(|engine| bench.counted(*engine)).collect();
    println!("{}", counted::table(&counted).text());
    let memory: Vec<start::Memory> =
        not_timed.iter().flat_map(|engine| bench.memory(*engine)).collect();
    println!("{}", start::memory_table(&memory).text());
    let extrapolated: Vec<extrapolated::Extrapolation> = args
        .engines
        .iter()
        .filter_map(|engine| extrapolated::of(*engine, &manifest, shared(&all, *engine)?))
        .collect();
    println!("{}", extrapolated::table(&extrapolated).text());
    if let Some(path) = &args.json {
        let runs = all.iter().map(|((engine, kind), runs)| {
            let mut measured = runs.measured();
            measured["engine"] = engine.to_string().into();
            measured["run"] = kind.to_string().into();
            measured
        });
        let record = json!({
            "version": 1,
            "machine": machine,
            "manifest": manifest,
            "rounds": args.rounds,
            "validation": if args.full { "full" } else { "assumevalid" },
            "runs": runs.collect::<Vec<_>>(),
            "ratios": ratios,
            "counted": counted,
            "memory": memory,
            "extrapolated": extrapolated,
        });
        fs::write(path, format!("{record:#}\n")).unwrap();
    }
}

//! What it takes to share a run among machines, beside the same run on one:
//!
//! ```sh
//! cargo run --release -p apus-bench --example cluster -- target/release/apus target/chain --rounds 5 --json cluster.json
//! ```
//!
//! takes the program and a chain that `apus-bench chain make` made. For each engine (`--engines
//! swiftsync,mergesync,utreexo`) there are runs of whole processes on this machine, interleaved, each with servers and
//! folders of its own:
//!
//! - `sync, 1 thread` and `sync, 2 threads`: `apus sync`, on as many processors as it has threads;
//! - `1 worker`: `apus cluster serve` and a worker of one thread, which has the first processor for itself as far as the
//!   others leave it alone;
//! - `1 worker, 1 processor`: the same with coordinator, worker and queue on the first processor, so that all that they do
//!   is in the time;
//! - `2 workers`: two of one thread each, on a processor each, which coordinator and queue share with them;
//! - with `--workers N,N`, where there are so many processors, `N workers` in the same way.
//!
//! `--runs` names some of these instead (`sync`, `sync2`, `worker`, `packed`, `workers2`, …), and then nothing else is
//! run: for `--validation full`, by which a run takes minutes.
//!
//! Workers wait for the run before the coordinator is started; the time is that of its process. Then there is a run of each
//! engine that is not timed, in which all that goes through the queue and the store is counted, and runs
//! up to a quarter and a half of the chain, for what memory the coordinator takes. At the end stands what the measured
//! serial part would be on the main chain, with the arithmetic. Runs end with no files (`--out null`).

#![allow(
    clippy::print_stdout,
    clippy::print_stderr,
    clippy::unwrap_used,
    reason = "a tool for measurements"
)]

mod asked;
mod counted;
mod extrapolated;
mod start;

use apus_bench::manifest::ChainManifest;
use apus_bench::run::BenchMachine;
use apus_bench::{MeasuredSpread, TextTable};
use asked::{Asked, Engine};
use serde_json::{Value, json};
use start::{Bench, Kind, Ran};
use std::collections::BTreeMap;
use std::fs;

/// All runs of one kind.
#[derive(Default)]
struct Runs(Vec<Ran>);

impl Runs {
    fn spread(&self, of: impl Fn(&Ran) -> f64) -> MeasuredSpread {
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

/// All rounds; each kind has its turn before any has the next.
fn timed(bench: &Bench<'_>, asked: &Asked) -> All {
    let (mut all, mut kinds) = (All::new(), asked.kinds.clone());
    for round in 1..=asked.rounds {
        for engine in &asked.engines {
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

/// How much longer the first takes than the second, in the rounds' pairs: the median of these.
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
        let (wall, told) = (runs.wall(), |value: f64| format!("{value:.3}"));
        let serial = runs.0[0].share().map(|_| {
            100.0 * runs.spread(|ran| ran.share().map_or(f64::NAN, |it| it.serial_fraction)).median
        });
        table.row([
            engine.to_string(),
            kind.to_string(),
            told(wall.median),
            told(wall.min),
            told(wall.max),
            told(runs.spread(|ran| ran.cpu_seconds).median),
            told(runs.spread(|ran| ran.workers_cpu_seconds).median),
            told(runs.spread(|ran| ran.queue_cpu_seconds).median),
            format!("{:.1}", runs.spread(|ran| ran.rss_peak_bytes).median / 1e6),
            serial.map_or_else(String::new, told),
        ]);
    }
    table
}

fn ratios(all: &All, asked: &Asked) -> (TextTable, Value) {
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
    let more = asked.kinds.iter().filter(|kind| matches!(kind, Kind::Workers(3..)));
    let more = more.map(|kind| (format!("1 worker : {kind}"), Kind::Worker, *kind));
    let pairs: Vec<_> = pairs.into_iter().chain(more).collect();
    for engine in &asked.engines {
        let of = |kind: Kind| all.get(&(*engine, kind));
        for &(ref what, first, second) in &pairs {
            let (Some(first), Some(second)) = (of(first), of(second)) else { continue };
            let ratio = ratio(first, second);
            let told = |value: f64| format!("{value:.3}");
            let cells = [told(ratio.median), told(ratio.min), told(ratio.max)];
            table.row([engine.to_string(), what.clone()].into_iter().chain(cells));
            measured.push(json!({ "engine": engine.to_string(), "what": what, "ratio": ratio }));
        }
    }
    (table, Value::Array(measured))
}

/// Runs that machines shared, as few of them as there are.
fn shared(all: &All, engine: Engine) -> Option<&[Ran]> {
    let is_shared = |kind: &Kind| matches!(kind, Kind::Worker | Kind::Workers(_));
    let mut kinds = all.iter().filter(|((of, kind), _)| *of == engine && is_shared(kind));
    Some(&kinds.next()?.1.0)
}

fn main() {
    let Some(asked) = Asked::read(std::env::args().skip(1)) else {
        eprintln!("{}", asked::USAGE);
        std::process::exit(1);
    };
    let (machine, scratch) = (BenchMachine::here(), tempfile::tempdir().unwrap());
    if machine.is_busy() {
        eprintln!("warning: other programs are at work, and times will be greater than they are");
    }
    let manifest = ChainManifest::read(&asked.chain).unwrap();
    let bench = Bench::new(&asked, &manifest, scratch.path());
    let all = timed(&bench, &asked);
    println!("{}", times(&all, asked.rounds).text());
    let (table, ratios) = ratios(&all, &asked);
    println!("{}", table.text());
    let not_timed: &[Engine] = if asked.only { &[] } else { &asked.engines };
    let counted: Vec<counted::Counted> =
        not_timed.iter().flat_map(|engine| bench.counted(*engine)).collect();
    println!("{}", counted::table(&counted).text());
    let memory: Vec<start::Memory> =
        not_timed.iter().flat_map(|engine| bench.memory(*engine)).collect();
    println!("{}", start::memory_table(&memory).text());
    let extrapolated: Vec<extrapolated::Extrapolated> = asked
        .engines
        .iter()
        .filter_map(|engine| extrapolated::of(*engine, &manifest, shared(&all, *engine)?))
        .collect();
    println!("{}", extrapolated::table(&extrapolated).text());
    if let Some(path) = &asked.json {
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
            "rounds": asked.rounds,
            "validation": if asked.full { "full" } else { "assumevalid" },
            "runs": runs.collect::<Vec<_>>(),
            "ratios": ratios,
            "counted": counted,
            "memory": memory,
            "extrapolated": extrapolated,
        });
        fs::write(path, format!("{record:#}\n")).unwrap();
    }
}

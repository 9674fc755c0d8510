//! [`Bench`]: starts the processes of a run, each on its assigned processors, and reads their resource usage.

use crate::args::{Args, Engine};
use crate::counted::{Traffic, TrafficCounter};
use apus_bench::TextTable;
use apus_bench::manifest::ChainManifest;
use apus_testkit::nats::NatsServer;
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::Serialize;
use serde_json::Value;
use std::fmt;
use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};
use wait4::{ResourceUsage, Wait4};

/// Clock ticks per second in `/proc`, the same on every Linux.
const TICKS: f64 = 100.0;

/// A way to execute a sync.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) enum Kind {
    Sync,
    SyncTwo,
    Worker,
    Packed,
    /// This many workers, of one thread each, each on its own processor.
    Workers(usize),
}

impl Kind {
    /// The kinds that every invocation measures.
    pub(crate) const ALL: [Self; 5] =
        [Self::Sync, Self::Worker, Self::Workers(2), Self::Packed, Self::SyncTwo];

    /// Parses a name from the command line.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Some(match name {
            "sync" => Self::Sync,
            "sync2" => Self::SyncTwo,
            "worker" => Self::Worker,
            "packed" => Self::Packed,
            _ => Self::Workers(name.strip_prefix("workers")?.parse().ok().filter(|it| *it > 0)?),
        })
    }
}

impl fmt::Display for Kind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Sync => "sync, 1 thread",
            Self::SyncTwo => "sync, 2 threads",
            Self::Worker => "1 worker",
            Self::Packed => "1 worker, 1 processor",
            Self::Workers(count) => return write!(f, "{count} workers"),
        })
    }
}

/// Time and resources of one run.
pub(crate) struct RunCost {
    /// Wall time of `apus sync` or of the coordinator.
    pub(crate) wall_seconds: f64,
    pub(crate) cpu_seconds: f64,
    pub(crate) rss_peak_bytes: f64,
    /// Processor time of all workers together.
    pub(crate) workers_cpu_seconds: f64,
    pub(crate) queue_cpu_seconds: f64,
    report: Value,
}

/// The part of a run that machines cannot share, from its report.
pub(crate) struct Share {
    pub(crate) jobs: f64,
    pub(crate) serial_seconds: f64,
    /// The coordinator's share of this for jobs while workers were busy.
    pub(crate) handling_seconds: f64,
    pub(crate) parallel_seconds: f64,
    pub(crate) serial_fraction: f64,
}

impl RunCost {
    /// `None` if a single process did everything.
    pub(crate) fn share(&self) -> Option<Share> {
        let cluster = self.report.get("cluster").filter(|it| it.is_object())?;
        let number = |name: &str| cluster[name].as_f64();
        let phases = self.report["phases"].as_array()?.iter();
        let shared: f64 = phases
            .filter(|it| ["blocks", "join", "connect"].iter().any(|name| it["phase"] == *name))
            .filter_map(|it| it["wall_seconds"].as_f64())
            .sum();
        let workers = cluster["workers"].as_array()?.iter();
        let serial_seconds = number("serial_seconds")?;
        let around = (self.report["wall_seconds"].as_f64()? - shared).max(0.0);
        Some(Share {
            jobs: workers.filter_map(|worker| worker["segments"].as_f64()).sum(),
            serial_seconds,
            handling_seconds: serial_seconds - around,
            parallel_seconds: number("parallel_seconds")?,
            serial_fraction: number("serial_fraction")?,
        })
    }
}

/// The coordinator's peak memory for a prefix of the chain.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Memory {
    engine: String,
    blocks: u64,
    block_bytes: u64,
    jobs: f64,
    rss_peak_bytes: f64,
}

pub(crate) fn memory_table(of: &[Memory]) -> TextTable {
    let columns = ["engine", "blocks", "MB of blocks", "jobs", "peak MB"];
    let mut table = TextTable::new("Memory of the coordinator", &columns);
    for memory in of {
        table.row([
            memory.engine.clone(),
            memory.blocks.to_string(),
            format!("{:.1}", memory.block_bytes as f64 / 1e6),
            format!("{:.0}", memory.jobs),
            format!("{:.1}", memory.rss_peak_bytes / 1e6),
        ]);
    }
    table
}

/// Processors for a process: one of them, or any.
#[derive(Clone, Copy)]
enum On {
    Any,
    One(usize),
}

/// Calls `start` on a thread with these processors; processes that it starts inherit them.
fn on<T>(processors: On, start: impl FnOnce() -> T) -> T {
    let On::One(place) = processors else { return start() };
    let own = sched_getaffinity(None).unwrap();
    let mut allowed = (0..CpuSet::MAX_CPU).filter(|processor| own.is_set(*processor));
    let mut one = CpuSet::new();
    one.set(allowed.nth(place).expect("there are as many processors as workers"));
    sched_setaffinity(None, &one).unwrap();
    let started = start();
    sched_setaffinity(None, &own).unwrap();
    started
}

/// Runs the processes; see the module docs.
pub(crate) struct Bench<'b> {
    args: &'b Args,
    manifest: &'b ChainManifest,
    scratch: &'b Path,
}

impl<'b> Bench<'b> {
    /// Creates the inputs of the runs.
    pub(crate) fn new(args: &'b Args, manifest: &'b ChainManifest, scratch: &'b Path) -> Self {
        let bench = Self { args, manifest, scratch };
        if args.engines.contains(&Engine::Utreexo) {
            let mut command = bench.command("utreexo prove");
            command.args(["--chain", "regtest", "--assumevalid", &manifest.assumevalid_hash]);
            command.arg("--blocksdir").arg(args.chain.join("blocks"));
            command.arg("--out").arg(scratch.join("proofs"));
            bench.to_end(command);
        }
        bench
    }

    fn command(&self, name: &str) -> Command {
        let mut command = Command::new(&self.args.program);
        command.args(name.split(' ')).stdin(Stdio::null()).stdout(Stdio::null());
        command
    }

    fn to_end(&self, mut command: Command) {
        let output = command.output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    }

    /// The options of a run up to a height, or to the tip.
    fn options(&self, engine: Engine, height: Option<u32>, threads: usize) -> Vec<String> {
        let shown = |path: PathBuf| path.display().to_string();
        let chain = &self.args.chain;
        let mut pairs = vec![
            ("--chain", "regtest".to_owned()),
            ("--engine", engine.name().to_owned()),
            ("--blocksdir", shown(chain.join("blocks"))),
            ("--par", threads.to_string()),
            ("--dbcache", self.args.dbcache.to_string()),
            ("--out", "null".to_owned()),
            ("--workdir", shown(self.scratch.join("work"))),
            ("--report", shown(self.report())),
            ("--progress", "none".to_owned()),
        ];
        let hash = &self.manifest.assumevalid_hash;
        let assumed = match engine {
            _ if self.args.full => "0",
            Engine::Swiftsync => "hints",
            _ => hash,
        };
        pairs.push(("--assumevalid", assumed.to_owned()));
        if engine == Engine::Swiftsync {
            let hints = height.map(|height| self.hints(height));
            pairs.push(("--hints", shown(hints.unwrap_or_else(|| chain.join("chain.hints")))));
        }
        if engine == Engine::Utreexo {
            pairs.push(("--proofs", shown(self.scratch.join("proofs"))));
        }
        let bytes = self.args.segment_bytes;
        pairs.extend(bytes.map(|bytes| ("--segment-bytes", bytes.to_string())));
        pairs.extend(height.map(|height| ("--stopatheight", height.to_string())));
        pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]).collect()
    }

    /// Hints of the set after a block, made once.
    fn hints(&self, height: u32) -> PathBuf {
        let path = self.scratch.join(format!("hints-{height}"));
        if !path.exists() {
            let (mut command, out) = (self.command("sync"), format!("hints:{}", path.display()));
            let options = self.options(Engine::Mergesync, Some(height), 1).into_iter();
            command.args(options.map(|word| if word == "null" { out.clone() } else { word }));
            self.clean();
            self.to_end(command);
        }
        path
    }

    fn report(&self) -> PathBuf {
        self.scratch.join("report.json")
    }

    /// Removes the files of the previous run.
    fn clean(&self) {
        for name in ["work", "objects", "records"] {
            let _ = fs::remove_dir_all(self.scratch.join(name));
        }
        let _ = fs::remove_file(self.report());
    }

    /// Waits for the process of a run.
    fn ended(&self, mut run: Child, began: Instant, output: &Path) -> (f64, ResourceUsage) {
        let used = run.wait4().unwrap();
        let wall = began.elapsed().as_secs_f64();
        let text = fs::read_to_string(output).unwrap_or_default();
        assert!(used.status.success(), "{text}");
        (wall, used.rusage)
    }

    fn output_file(&self, name: &str) -> PathBuf {
        self.scratch.join(format!("{name}.output"))
    }

    fn spawn(&self, processors: On, mut command: Command, name: &str) -> Child {
        command.stderr(File::create(self.output_file(name)).unwrap());
        on(processors, || command.spawn()).unwrap()
    }

    fn read_report(&self) -> Value {
        serde_json::from_slice(&fs::read(self.report()).unwrap()).unwrap()
    }

    /// One timed run.
    pub(crate) fn timed(&self, engine: Engine, kind: Kind) -> RunCost {
        self.clean();
        match kind {
            Kind::Sync => self.alone(engine, 1, On::One(0)),
            Kind::SyncTwo => self.alone(engine, 2, On::Any),
            Kind::Worker => self.shared(engine, None, On::Any, &[On::One(0)], None),
            Kind::Packed => self.shared(engine, None, On::One(0), &[On::One(0)], None),
            Kind::Workers(count) => {
                let each: Vec<On> = (0..count).map(On::One).collect();
                self.shared(engine, None, On::Any, &each, None)
            }
        }
    }

    fn alone(&self, engine: Engine, threads: usize, processors: On) -> RunCost {
        let mut command = self.command("sync");
        command.args(self.options(engine, None, threads));
        let began = Instant::now();
        let run = self.spawn(processors, command, "sync");
        let (wall_seconds, used) = self.ended(run, began, &self.output_file("sync"));
        RunCost {
            wall_seconds,
            cpu_seconds: seconds(&used),
            rss_peak_bytes: used.maxrss as f64,
            workers_cpu_seconds: 0.0,
            queue_cpu_seconds: 0.0,
            report: self.read_report(),
        }
    }

    /// A shared run; coordinator and queue use the first processors, and each worker has its own.
    fn shared(
        &self,
        engine: Engine,
        height: Option<u32>,
        processors: On,
        workers: &[On],
        counting: Option<&mut TrafficCounter>,
    ) -> RunCost {
        let counts = counting.is_some();
        let start = if counts { NatsServer::start_counted } else { NatsServer::start };
        let server = on(processors, start);
        let options = self.options(engine, height, 1);
        let (url, objects) = (server.url(), self.scratch.join("objects"));
        let link = |command: &mut Command| {
            command.args(["--nats", &url, "--objects"]).arg(&objects);
        };
        let worker = |(place, processors): (usize, &On)| {
            let mut command = self.command("cluster work");
            link(&mut command);
            command.args(["--par", "1", "--name", &format!("worker-{place}")]);
            command.arg("--blocksdir").arg(self.args.chain.join("blocks"));
            command.arg("--scratchdir").arg(self.scratch.join("records"));
            if engine == Engine::Utreexo {
                command.arg("--proofs").arg(self.scratch.join("proofs"));
            }
            self.spawn(*processors, command, &format!("worker-{place}"))
        };
        let mut started: Vec<Child> = workers.iter().enumerate().map(worker).collect();
        for (place, worker) in started.iter_mut().enumerate() {
            let output = self.output_file(&format!("worker-{place}"));
            while !fs::read_to_string(&output).unwrap_or_default().contains("waiting for a run") {
                assert!(worker.try_wait().unwrap().is_none(), "a worker ended");
                sleep(Duration::from_millis(5));
            }
        }
        let mut command = self.command("cluster serve");
        link(&mut command);
        command.args(options);
        let (before, began) = (queue_seconds(&server), Instant::now());
        let run = self.spawn(processors, command, "serve");
        let counting = counting.map(|counting| counting.begin(&objects));
        let (wall_seconds, used) = self.ended(run, began, &self.output_file("serve"));
        let queue_cpu_seconds = queue_seconds(&server) - before;
        if let Some(counting) = counting {
            counting.end(server.counted());
        }
        let of_worker = |worker: &mut Child| {
            let used = worker.wait4().unwrap();
            assert!(used.status.success(), "a worker failed: see {}", self.scratch.display());
            seconds(&used.rusage)
        };
        RunCost {
            wall_seconds,
            cpu_seconds: seconds(&used),
            rss_peak_bytes: used.maxrss as f64,
            workers_cpu_seconds: started.iter_mut().map(of_worker).sum(),
            queue_cpu_seconds,
            report: self.read_report(),
        }
    }

    /// Counts the traffic of the queue and the store in a run with one worker.
    pub(crate) fn counted(&self, engine: Engine) -> Option<Traffic> {
        self.clean();
        let mut counting = TrafficCounter::new(engine, self.manifest.height);
        let ran = self.shared(engine, None, On::Any, &[On::Any], Some(&mut counting));
        Some(counting.of(ran.share()?.jobs))
    }

    /// The coordinator's memory for a quarter, a half and all of the chain.
    pub(crate) fn memory(&self, engine: Engine) -> Vec<Memory> {
        let tip = self.manifest.height;
        // Proof files have a fixed end.
        let heights: &[Option<u32>] = match engine {
            Engine::Utreexo => &[None],
            _ => &[Some(tip / 4), Some(tip / 2), None],
        };
        let of = |height: &Option<u32>| {
            height.filter(|_| engine == Engine::Swiftsync).map(|height| self.hints(height));
            self.clean();
            let ran = self.shared(engine, *height, On::Any, &[On::Any], None);
            let number = |name: &str| ran.report[name].as_u64().unwrap_or_default();
            Memory {
                engine: engine.to_string(),
                blocks: number("blocks"),
                block_bytes: number("bytes"),
                jobs: ran.share().map_or(f64::NAN, |share| share.jobs),
                rss_peak_bytes: ran.rss_peak_bytes,
            }
        };
        heights.iter().map(of).collect()
    }
}

fn seconds(used: &ResourceUsage) -> f64 {
    (used.utime + used.stime).as_secs_f64()
}

/// Processor time of a server so far; its fields follow its name, which is in parentheses (proc(5)).
fn queue_seconds(server: &NatsServer) -> f64 {
    let stat = fs::read_to_string(format!("/proc/{}/stat", server.id())).unwrap();
    let fields: Vec<&str> = stat.rsplit(") ").next().unwrap().split(' ').collect();
    let ticks = |at: usize| fields[at].parse::<f64>().unwrap();
    (ticks(11) + ticks(12)) / TICKS
}

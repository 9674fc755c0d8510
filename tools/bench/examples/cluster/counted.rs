//! [`Counting`]: bytes that go through the queue, and through the store of objects by what they are.
//!
//! Objects stay until a run ends, so that a look every few milliseconds sees nearly all of them; what the last of them
//! miss is little beside those of all jobs.

use crate::asked::Engine;
use apus_bench::TextTable;
use apus_sync::engines::pass::Pass;
use apus_sync::engines::swiftsync::SwiftSync;
use serde::Serialize;
use std::collections::HashMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{JoinHandle, sleep};
use std::time::Duration;

const LOOK_INTERVAL: Duration = Duration::from_millis(10);

/// The place behind a job, in what segments leave that are done in one step (`extras/jobs/src/queue`).
const RUNS: usize = 52;

/// What there was of a run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Counted {
    engine: String,
    jobs: f64,
    /// All that the queue's server got and gave, signs of life and questions for answers among it.
    queue_in_bytes: u64,
    queue_out_bytes: u64,
    /// What jobs were told.
    told_bytes: u64,
    /// What they left, without the runs in it.
    left_bytes: u64,
    /// Runs, records, answers, leaves.
    runs_bytes: u64,
    /// The headers of all blocks, which each worker reads once.
    headers_bytes: u64,
    /// What the coordinator takes part in, of each job, in kilobytes: all but runs.
    job_kilobytes: f64,
}

/// An object, as far as it counts.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    told: u64,
    left: u64,
    runs: u64,
    headers: u64,
}

/// See the module.
pub(crate) struct Counting {
    engine: Engine,
    headers_bytes: u64,
    all: Option<Seen>,
    queue: (u64, u64),
}

/// It is looked for objects.
pub(crate) struct Looking<'c> {
    counting: &'c mut Counting,
    over: Arc<AtomicBool>,
    thread: JoinHandle<HashMap<String, Seen>>,
}

impl Counting {
    /// For a run over so many blocks.
    pub(crate) fn new(engine: Engine, blocks: u32) -> Self {
        Self { engine, headers_bytes: 80 * u64::from(blocks), all: None, queue: (0, 0) }
    }

    /// Looks for objects in this folder.
    pub(crate) fn begin(&mut self, objects: &Path) -> Looking<'_> {
        let over = Arc::new(AtomicBool::new(false));
        let (folder, ends) = (objects.to_owned(), Arc::clone(&over));
        let (engine, headers) = (self.engine, self.headers_bytes);
        let thread = std::thread::spawn(move || {
            let mut seen = HashMap::new();
            while !ends.load(Ordering::Relaxed) {
                look(&folder, (engine, headers), &mut seen);
                sleep(LOOK_INTERVAL);
            }
            seen
        });
        Looking { counting: self, over, thread }
    }

    pub(crate) fn of(&self, jobs: f64) -> Counted {
        let Seen { told, left, runs, headers } = self.all.unwrap_or_default();
        let (queue_in_bytes, queue_out_bytes) = self.queue;
        let besides = told + left + queue_in_bytes + queue_out_bytes;
        Counted {
            engine: self.engine.to_string(),
            jobs,
            queue_in_bytes,
            queue_out_bytes,
            told_bytes: told,
            left_bytes: left,
            runs_bytes: runs,
            headers_bytes: headers,
            job_kilobytes: besides as f64 / jobs / 1e3,
        }
    }
}

impl Looking<'_> {
    /// The run is over, and this is what the queue's server got and gave.
    pub(crate) fn end(self, queue: (u64, u64)) {
        self.over.store(true, Ordering::Relaxed);
        let seen = self.thread.join().unwrap();
        let add = |all: Seen, one: &Seen| Seen {
            told: all.told + one.told,
            left: all.left + one.left,
            runs: all.runs + one.runs,
            headers: all.headers + one.headers,
        };
        self.counting.all = Some(seen.values().fold(Seen::default(), add));
        self.counting.queue = queue;
    }
}

/// Looks for objects that were not seen yet, in the one run that there is.
fn look(folder: &Path, of: (Engine, u64), seen: &mut HashMap<String, Seen>) {
    let runs = fs::read_dir(folder).into_iter().flatten().flatten();
    let objects = runs.flat_map(|run| fs::read_dir(run.path()).into_iter().flatten().flatten());
    for object in objects {
        let name = object.file_name().to_string_lossy().into_owned();
        // One that is being written has another name.
        if name.len() != 64 || seen.contains_key(&name) {
            continue;
        }
        if let Some(object) = read(&object.path(), of) {
            seen.insert(name, object);
        }
    }
}

fn read(path: &Path, (engine, headers): (Engine, u64)) -> Option<Seen> {
    let bytes = fs::read(path).ok()?;
    let length = bytes.len() as u64;
    let none = Seen::default();
    Some(if bytes.starts_with(b"APUSTOLD") {
        Seen { told: length, ..none }
    } else if bytes.starts_with(b"APUSDONE") {
        let runs = if engine == Engine::Swiftsync { runs(&bytes) } else { 0 };
        Seen { left: length - runs, runs, ..none }
    } else if length == headers {
        Seen { headers, ..none }
    } else {
        Seen { runs: length, ..none }
    })
}

/// The bytes of the runs in what a segment left.
fn runs(bytes: &[u8]) -> u64 {
    let (mut at, mut all) = (RUNS, 0);
    for _ in SwiftSync::RUNS {
        let length = bytes[at..].first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        at += 8 + length as usize;
        all += length;
    }
    all
}

pub(crate) fn table(of: &[Counted]) -> TextTable {
    let columns = [
        "engine",
        "jobs",
        "queue in",
        "queue out",
        "told",
        "left",
        "runs",
        "headers",
        "KB a job besides runs",
    ];
    let mut table = TextTable::new("What goes through queue and store, in KB", &columns);
    for counted in of {
        let kilobytes = |bytes: u64| format!("{:.1}", bytes as f64 / 1e3);
        table.row([
            counted.engine.clone(),
            format!("{:.0}", counted.jobs),
            kilobytes(counted.queue_in_bytes),
            kilobytes(counted.queue_out_bytes),
            kilobytes(counted.told_bytes),
            kilobytes(counted.left_bytes),
            kilobytes(counted.runs_bytes),
            kilobytes(counted.headers_bytes),
            format!("{:.1}", counted.job_kilobytes),
        ]);
    }
    table
}

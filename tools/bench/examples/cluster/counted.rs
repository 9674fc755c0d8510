//! [`TrafficCounter`]: counts the bytes through the queue, and through the object store by kind.
//!
//! Objects stay until the run ends, so that scanning every few milliseconds sees nearly all of them. The few
//! objects missed at the end are small compared with all others.

use crate::args::Engine;
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

/// Offset, after the job, of the run lengths in the result of a one-step segment (`extras/jobs/src/queue`).
const RUNS: usize = 52;

/// The bytes counted in one run.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Traffic {
    engine: String,
    jobs: f64,
    /// All bytes that the queue's server received and sent, including heartbeats and polls for answers.
    queue_in_bytes: u64,
    queue_out_bytes: u64,
    /// Payloads of the jobs.
    told_bytes: u64,
    /// Results of the jobs, without their runs.
    left_bytes: u64,
    /// Runs, records, answers, leaves.
    runs_bytes: u64,
    /// Headers of all blocks; each worker reads them once.
    headers_bytes: u64,
    /// Bytes per job that pass through the coordinator, in kilobytes: everything but runs.
    job_kilobytes: f64,
}

/// The counted sizes of one object.
#[derive(Debug, Clone, Copy, Default)]
struct Seen {
    payload: u64,
    left: u64,
    runs: u64,
    headers: u64,
}

/// Counts the bytes of one run; see the module docs.
pub(crate) struct TrafficCounter {
    engine: Engine,
    headers_bytes: u64,
    all: Option<Seen>,
    queue: (u64, u64),
}

/// A running scan for objects.
pub(crate) struct Scan<'c> {
    counting: &'c mut TrafficCounter,
    over: Arc<AtomicBool>,
    thread: JoinHandle<HashMap<String, Seen>>,
}

impl TrafficCounter {
    /// Counts a run over this number of blocks.
    pub(crate) fn new(engine: Engine, blocks: u32) -> Self {
        Self { engine, headers_bytes: 80 * u64::from(blocks), all: None, queue: (0, 0) }
    }

    /// Starts scanning this folder for objects.
    pub(crate) fn begin(&mut self, objects: &Path) -> Scan<'_> {
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
        Scan { counting: self, over, thread }
    }

    pub(crate) fn of(&self, jobs: f64) -> Traffic {
        let Seen { payload, left, runs, headers } = self.all.unwrap_or_default();
        let (queue_in_bytes, queue_out_bytes) = self.queue;
        let besides = payload + left + queue_in_bytes + queue_out_bytes;
        Traffic {
            engine: self.engine.to_string(),
            jobs,
            queue_in_bytes,
            queue_out_bytes,
            told_bytes: payload,
            left_bytes: left,
            runs_bytes: runs,
            headers_bytes: headers,
            job_kilobytes: besides as f64 / jobs / 1e3,
        }
    }
}

impl Scan<'_> {
    /// Ends the scan; `queue` is the bytes that the queue's server received and sent.
    pub(crate) fn end(self, queue: (u64, u64)) {
        self.over.store(true, Ordering::Relaxed);
        let seen = self.thread.join().unwrap();
        let add = |all: Seen, one: &Seen| Seen {
            payload: all.payload + one.payload,
            left: all.left + one.left,
            runs: all.runs + one.runs,
            headers: all.headers + one.headers,
        };
        self.counting.all = Some(seen.values().fold(Seen::default(), add));
        self.counting.queue = queue;
    }
}

/// Reads the objects not seen yet; the folder contains only one run.
fn look(folder: &Path, of: (Engine, u64), seen: &mut HashMap<String, Seen>) {
    let runs = fs::read_dir(folder).into_iter().flatten().flatten();
    let objects = runs.flat_map(|run| fs::read_dir(run.path()).into_iter().flatten().flatten());
    for object in objects {
        let name = object.file_name().to_string_lossy().into_owned();
        // An object that is still being written has another name.
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
        Seen { payload: length, ..none }
    } else if bytes.starts_with(b"APUSDONE") {
        let runs = if engine == Engine::Swiftsync { runs(&bytes) } else { 0 };
        Seen { left: length - runs, runs, ..none }
    } else if length == headers {
        Seen { headers, ..none }
    } else {
        Seen { runs: length, ..none }
    })
}

/// The bytes of the runs in a segment's result.
fn runs(bytes: &[u8]) -> u64 {
    let (mut at, mut all) = (RUNS, 0);
    for _ in SwiftSync::RUNS {
        let length = bytes[at..].first_chunk().map_or(0, |it| u64::from_le_bytes(*it));
        at += 8 + length as usize;
        all += length;
    }
    all
}

pub(crate) fn table(of: &[Traffic]) -> TextTable {
    let columns = [
        "engine",
        "jobs",
        "queue in",
        "queue out",
        "payload",
        "left",
        "runs",
        "headers",
        "KB per job without runs",
    ];
    let mut table = TextTable::new("Traffic of queue and store, in KB", &columns);
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

//! [`RunStatus`]: the shared status of a job. Bar, lines, JSON, log and page show it.
//!
//! The renderer writes the status and shows parts of it. The page's server reads it in a separate thread. For the page
//! alone, the status also keeps the history of rate and memory, and the last events.

use crate::estimate::{ProgressEstimate, StepRate, duration, keep_every_other, takes_of_peers};
#[cfg(feature = "web")]
use crate::failure::INTERRUPTED;
use crate::machine::{cpu_seconds, disk_read_bytes, idle_of_all, rss_bytes};
use apus_chain::{BlockHash, Height};
use apus_p2p::download::Limit;
use apus_sync::peers::network::NetworkStatus;
use apus_sync::{Worker, Workers};
use parking_lot::Mutex;
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, Instant};
#[cfg(feature = "web")]
use std::time::{SystemTime, UNIX_EPOCH};

/// Events kept for the page.
const NOTES_MAX: usize = 300;

/// Points of the history kept for the page.
const POINTS_MAX: usize = 600;

/// A job is limited by the processors if it uses at least this share of what its threads could use.
const BUSY: f64 = 0.85;

/// Seconds over which processor use is averaged.
const CPU_SECONDS: f64 = 3.0;

/// A job waits for its disk if it reads at least this many bytes per second from it; even the slowest disk can deliver
/// them.
const DISK_BYTES: f64 = 100_000.0;

/// Other programs occupy the processors if at most this share of all processor time is idle.
const IDLE: f64 = 0.1;

/// An event, with its time.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    /// Seconds since 1970.
    pub(crate) time: f64,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// A point of the history.
#[derive(Debug, Clone, Copy)]
pub(crate) struct StatusPoint {
    pub(crate) seconds: f64,
    pub(crate) rate: StepRate,
    pub(crate) memory_bytes: Option<u64>,
}

/// How a job ended.
#[derive(Debug, Clone)]
pub(crate) struct RunEnd {
    pub(crate) code: u8,
    pub(crate) text: String,
}

/// Constant facts about a job.
#[derive(Debug, Clone)]
pub(crate) struct RunFacts {
    pub(crate) command: &'static str,
    pub(crate) chain: &'static str,
    pub(crate) threads: usize,
    /// Whether the coins are on servers.
    pub(crate) on_servers: bool,
}

/// Blocks and bytes that this start processed, in all phases together.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ResourcesTaken {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

/// Counters of the machine at some time; `None` if the system does not report them.
#[derive(Debug, Clone, Copy)]
struct MachineUsage {
    seconds: f64,
    /// Processor time that this job used, in seconds.
    cpu: f64,
    disk_read_bytes: Option<u64>,
    /// Idle and total time of all processors, from [`idle_of_all`].
    idle: Option<(u64, u64)>,
}

impl MachineUsage {
    /// Returns what a job with low processor use waited for between this sample and `now`.
    fn waited_for(&self, now: &Self) -> Option<&'static str> {
        let read = now.disk_read_bytes?.saturating_sub(self.disk_read_bytes?) as f64;
        if read >= DISK_BYTES * (now.seconds - self.seconds) {
            return Some("disk");
        }
        let ((idle_now, all_now), (idle, all)) = (now.idle?, self.idle?);
        let (idle, all) = (idle_now.saturating_sub(idle), all_now.saturating_sub(all));
        (all > 0 && idle as f64 <= IDLE * all as f64).then_some("other programs")
    }
}

/// The shared status of a job.
pub(crate) struct RunStatus {
    pub(crate) about: RunFacts,
    /// When the job began.
    pub(crate) start: Instant,
    pub(crate) estimate: ProgressEstimate,
    pub(crate) taken: ResourcesTaken,
    pub(crate) coins: u64,
    pub(crate) chain_found: Option<(Height, BlockHash)>,
    /// The height at which the job waits for the next block, if it follows the tip and has reached it.
    pub(crate) tip: Option<Height>,
    pub(crate) peers: Option<NetworkStatus>,
    pub(crate) workers: Option<Workers>,
    pub(crate) notes: VecDeque<Note>,
    pub(crate) warnings: usize,
    pub(crate) points: Vec<StatusPoint>,
    point_every: f64,
    used: VecDeque<MachineUsage>,
    pub(crate) report: Option<Value>,
    pub(crate) ended: Option<RunEnd>,
    /// Seconds from the job's start to its end, once it has ended.
    stopped: Option<f64>,
}

/// The status with its lock, shared by one writer and several readers.
pub(crate) type StatusLock = Arc<Mutex<RunStatus>>;

impl RunStatus {
    pub(crate) fn new(about: RunFacts, estimate: ProgressEstimate) -> Self {
        Self {
            about,
            start: Instant::now(),
            estimate,
            taken: ResourcesTaken::default(),
            coins: 0,
            chain_found: None,
            tip: None,
            peers: None,
            workers: None,
            notes: VecDeque::new(),
            warnings: 0,
            points: Vec::new(),
            point_every: 1.0,
            used: VecDeque::new(),
            report: None,
            ended: None,
            stopped: None,
        }
    }

    /// Seconds since the job began.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// Seconds from the job's start to its end, or to now.
    #[cfg(feature = "web")]
    pub(crate) fn ended_seconds(&self) -> f64 {
        self.stopped.unwrap_or_else(|| self.seconds())
    }

    /// When the job began, in seconds since 1970.
    #[cfg(feature = "web")]
    pub(crate) fn began(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs_f64() - self.seconds()
    }

    /// The state, in one word.
    #[cfg(feature = "web")]
    pub(crate) fn word(&self) -> &'static str {
        match &self.ended {
            Some(RunEnd { code: 0, .. }) => "done",
            Some(RunEnd { code: INTERRUPTED, .. }) => "stopped",
            Some(_) => "failed",
            None if self.tip.is_some() => "waiting",
            None if self.stall().is_some() => "stalled",
            None => "running",
        }
    }

    /// Stops the clock: the job is over, although its result may still have to be reported.
    pub(crate) fn stop(&mut self) {
        self.stopped = Some(self.seconds());
        self.peers.iter_mut().for_each(|status| status.rate = 0);
    }

    pub(crate) fn note(&mut self, note: Note) {
        self.warnings += usize::from(note.kind == "warning");
        if self.notes.len() == NOTES_MAX {
            self.notes.pop_front();
        }
        self.notes.push_back(note);
    }

    /// Samples the machine's counters. The renderer calls this regularly.
    pub(crate) fn look(&mut self) {
        let seconds = self.seconds();
        if self.used.back().is_some_and(|last| seconds - last.seconds < 0.25) {
            return;
        }
        let (cpu, disk_read_bytes, idle) = (cpu_seconds(), disk_read_bytes(), idle_of_all());
        self.used.push_back(MachineUsage { seconds, cpu, disk_read_bytes, idle });
        while self.used.len() > 2 && self.used[1].seconds < seconds - CPU_SECONDS {
            self.used.pop_front();
        }
    }

    /// Processor cores in use, averaged over the last [`CPU_SECONDS`].
    pub(crate) fn cores_used(&self) -> Option<f64> {
        let (then, now) = (self.used.front()?, self.used.back()?);
        (now.seconds > then.seconds).then(|| (now.cpu - then.cpu) / (now.seconds - then.seconds))
    }

    /// Returns what limits the job: more of it, or no other programs, would make the job faster. `None` if unknown.
    pub(crate) fn limited_by(&self) -> Option<&'static str> {
        let step = self.estimate.running().filter(|_| self.tip.is_none())?;
        let used = self.cores_used()?;
        if used >= BUSY * self.about.threads as f64 {
            return Some("processor");
        }
        match self.peers.as_ref().and_then(|peers| peers.limited_by) {
            Some(Limit::Line) => return Some("download"),
            Some(Limit::Peers) => return Some("peers"),
            Some(Limit::Consumer) | None => {}
        }
        // Sequential work uses one thread at a time.
        match used {
            used if used >= BUSY => Some("one processor core"),
            _ if self.peers.is_some() && step.phase == apus_sync::Phase::Headers => Some("peers"),
            _ => self.used.front()?.waited_for(self.used.back()?),
        }
    }

    /// Adds a point to the history.
    pub(crate) fn tick(&mut self) {
        if self.ended.is_some() {
            return;
        }
        self.look();
        let seconds = self.seconds();
        if self.points.last().is_some_and(|last| seconds - last.seconds < 0.9 * self.point_every) {
            return;
        }
        let rate =
            self.estimate.running().map(crate::estimate::PhaseStep::rate).unwrap_or_default();
        self.points.push(StatusPoint { seconds, rate, memory_bytes: rss_bytes() });
        if self.points.len() > POINTS_MAX {
            keep_every_other(&mut self.points);
            self.point_every *= 2.0;
        }
    }
}

/// A job that uses at least this fraction of a core is working, even if it reports no progress.
const AT_WORK: f64 = 0.5;

/// A live worker machine sends heartbeats more often than this.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// A job that makes no progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stall {
    /// How long the job has made no progress.
    pub(crate) seconds: f64,
    pub(crate) waits_for: &'static str,
}

impl Stall {
    /// Formats the stall for programs.
    pub(crate) fn to_json(self) -> serde_json::Value {
        serde_json::json!({"seconds": self.seconds, "waits_for": self.waits_for})
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stalled for {}: waiting for {}", duration(self.seconds), self.waits_for)
    }
}

impl RunStatus {
    /// Seconds since the job last made progress; `None` if the job is over, or waits at the tip.
    pub(crate) fn quiet_seconds(&self) -> Option<f64> {
        let step = self.estimate.running()?;
        (self.ended.is_none() && self.tip.is_none()).then_some(step.quiet_seconds())
    }

    /// Returns the job's stall with its cause; `None` if it makes progress.
    pub(crate) fn stall(&self) -> Option<Stall> {
        let seconds = self.quiet_seconds()?;
        let step = self.estimate.running().filter(|step| step.is_stalled())?;
        if self.cores_used().is_some_and(|used| used >= AT_WORK) {
            return None;
        }
        let others_take_it = || {
            let (then, now) = (self.used.front()?, self.used.back()?);
            then.waited_for(now).filter(|it| *it == "other programs")
        };
        if let Some(workers) = &self.workers {
            let lives = |seen: Option<Duration>| seen.is_some_and(|seen| seen < SIGN_OF_LIFE);
            if workers.all.iter().any(|worker| lives(worker.seen)) {
                return None;
            }
            return Some(Stall { seconds, waits_for: "a worker machine (no worker responds)" });
        }
        let waits_for = match &self.peers {
            // Without a peer, more processors would not help.
            Some(peers) if takes_of_peers(step.phase) && peers.peers.is_empty() => {
                "a peer (no peer is connected)"
            }
            _ if others_take_it().is_some() => "the processors (other programs are using them)",
            Some(peers) if takes_of_peers(step.phase) && peers.rate == 0 => {
                "peers (no peer is sending)"
            }
            _ if self.about.on_servers => "the servers that keep the coins",
            _ => "the disk",
        };
        Some(Stall { seconds, waits_for })
    }
}

/// Formats a worker machine for programs.
pub(crate) fn worker_json(worker: &Worker) -> Value {
    json!({
        "name": worker.name, "segments": worker.segments, "blocks": worker.blocks,
        "bytes": worker.bytes, "busy_seconds": worker.busy.as_secs_f64(),
        "seen_seconds": worker.seen.map(|seen| seen.as_secs_f64()), "doing": worker.doing
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{ExpectedPhase, ProgressEstimate, STALL_SECONDS};
    use crate::status::{MachineUsage, RunFacts};
    use apus_sync::peers::network::NetworkStatus;
    use apus_sync::{Phase, Progress};

    #[test]
    fn a_job_that_reads_from_a_disk_waits_for_it() {
        let at =
            |seconds, read, idle| MachineUsage { seconds, cpu: 0.0, disk_read_bytes: read, idle };
        let begun = at(5.0, Some(7_000_000), Some((1_000, 2_000)));
        for (read, idle, limit) in [
            (Some(7_400_000), Some((1_000, 2_400)), Some("disk")),
            (Some(7_000_000), Some((1_000, 2_400)), Some("other programs")),
            (Some(7_100_000), Some((1_040, 2_400)), Some("other programs")),
            (Some(7_000_000), Some((1_200, 2_400)), None),
            (Some(7_000_000), Some((1_000, 2_000)), None),
            (Some(7_000_000), None, None),
            (None, Some((1_000, 2_400)), None),
        ] {
            assert_eq!(begun.waited_for(&at(7.0, read, idle)), limit, "{read:?} {idle:?}");
        }
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn the_system_reports_reads_and_idle_time() {
        let (idle, all) = idle_of_all().unwrap();
        assert!(idle > 0 && idle < all);
        assert!(disk_read_bytes().is_some());
    }

    /// Returns the status of a job `seconds` after its last progress, which was a second after its phase began.
    fn quiet_for(phase: Phase, seconds: f64) -> RunStatus {
        let about = RunFacts { command: "sync", chain: "main", threads: 2, on_servers: false };
        let mut watched =
            RunStatus::new(about, ProgressEstimate::new(vec![ExpectedPhase::of(phase)], 2));
        watched.estimate.started(phase, 0.0);
        for second in 0..=1 {
            let progress = Progress { bytes: second, bytes_total: 10, ..Progress::default() };
            watched.estimate.progress(phase, second as f64, progress, f64::INFINITY);
        }
        watched.estimate.tick(1.0 + seconds);
        watched
    }

    #[test]
    fn a_stalled_job_has_no_rate_and_no_time_left() {
        let waits = quiet_for(Phase::Connect, STALL_SECONDS - 1.0);
        assert_eq!(waits.stall(), None);
        assert!(waits.estimate.left_seconds().is_some());
        let stalled = quiet_for(Phase::Connect, STALL_SECONDS);
        assert_eq!(stalled.quiet_seconds(), Some(STALL_SECONDS));
        assert_eq!(stalled.estimate.left_seconds(), None);
        let step = stalled.estimate.running().unwrap();
        assert_eq!((step.rate().bytes, step.left_seconds()), (0.0, None));
        let stall = stalled.stall().unwrap();
        assert_eq!(stall.to_string(), "stalled for 15 s: waiting for the disk");
    }

    #[test]
    fn progress_ends_a_stall() {
        let mut watched = quiet_for(Phase::Connect, 20.0);
        let same = Progress { bytes: 1, bytes_total: 10, ..Progress::default() };
        watched.estimate.progress(Phase::Connect, 22.0, same, f64::INFINITY);
        assert!(watched.stall().is_some(), "an unchanged count is not progress");
        let more = Progress { bytes: 2, ..same };
        watched.estimate.progress(Phase::Connect, 23.0, more, f64::INFINITY);
        assert_eq!(watched.stall(), None);
        assert_eq!(watched.quiet_seconds(), Some(0.0));
    }

    #[test]
    fn a_stall_names_its_cause() {
        let waits_for = |watched: &RunStatus| watched.stall().unwrap().waits_for;
        let mut watched = quiet_for(Phase::Connect, 20.0);
        watched.about.on_servers = true;
        assert_eq!(waits_for(&watched), "the servers that keep the coins");
        // Other programs used the machine's processors for ten seconds.
        let used = |seconds, all| MachineUsage {
            seconds,
            cpu: 0.0,
            disk_read_bytes: Some(0),
            idle: Some((0, all)),
        };
        watched.used.extend([used(0.0, 0), used(10.0, 2_000)]);
        assert_eq!(waits_for(&watched), "the processors (other programs are using them)");
        watched.peers = Some(NetworkStatus::default());
        assert_eq!(waits_for(&watched), "a peer (no peer is connected)");
        let mut coins = quiet_for(Phase::Coins, 20.0);
        coins.peers = Some(NetworkStatus::default());
        assert_eq!(waits_for(&coins), "the disk", "coins do not come from peers");
        let seen =
            |seconds| Worker { seen: Some(Duration::from_secs(seconds)), ..Worker::default() };
        watched.workers = Some(Workers { all: vec![seen(60)], ..Workers::default() });
        assert!(waits_for(&watched).starts_with("a worker machine"));
        watched.workers = Some(Workers { all: vec![seen(60), seen(1)], ..Workers::default() });
        assert_eq!(watched.stall(), None, "one is working");
    }
}

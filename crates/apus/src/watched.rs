//! [`Watched`]: a run as all that show it see it: bar, lines, JSON, log and page.
//!
//! The renderer writes it and shows some of it; the page, whose server has a thread of its own, reads it. It also
//! keeps what only the page draws: the course of rate and memory, and the last events.

use crate::course::{RunCourse, StepRate, duration, keep_every_other, takes_of_peers};
#[cfg(feature = "web")]
use crate::failure::INTERRUPTED;
use crate::machine::{cpu_seconds, disk_read_bytes, idle_of_all, rss_bytes};
use apus_chain::{BlockHash, Height};
use apus_p2p::download::Limit;
use apus_sync::peers::network::NetworkStatus;
use apus_sync::{Worker, Workers};
use serde_json::{Value, json};
use std::collections::VecDeque;
use std::fmt;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
#[cfg(feature = "web")]
use std::time::{SystemTime, UNIX_EPOCH};

/// Events kept for the page.
const NOTES_MAX: usize = 300;

/// Points of the course kept for the page.
const POINTS_MAX: usize = 600;

/// Of what its threads could use of the processors, a run that is held up by these uses at least so much.
const BUSY: f64 = 0.85;

/// What is used of processors is that of so many seconds.
const CPU_SECONDS: f64 = 3.0;

/// A run that waits for its disk gets at least so many bytes of it a second, however slow it is.
const DISK_BYTES: f64 = 100_000.0;

/// Where other programs take the processors, no larger part of their time is left over.
const IDLE: f64 = 0.1;

/// What happened, with its time.
#[derive(Debug, Clone)]
pub(crate) struct Note {
    /// Seconds since 1970.
    pub(crate) time: f64,
    pub(crate) kind: &'static str,
    pub(crate) text: String,
}

/// A point of the course.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WatchedPoint {
    pub(crate) seconds: f64,
    pub(crate) rate: StepRate,
    pub(crate) memory_bytes: Option<u64>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub(crate) struct RunEnd {
    pub(crate) code: u8,
    pub(crate) text: String,
}

/// What does not change.
#[derive(Debug, Clone)]
pub(crate) struct About {
    pub(crate) command: &'static str,
    pub(crate) chain: &'static str,
    pub(crate) threads: usize,
    /// Whether the coins are on servers.
    pub(crate) on_servers: bool,
}

/// What this start did, whatever phases came to.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct ResourcesTaken {
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
}

/// What the machine did up to some time. What it does not tell is none.
#[derive(Debug, Clone, Copy)]
struct Used {
    seconds: f64,
    /// Seconds of processors that this run used.
    cpu: f64,
    disk_read_bytes: Option<u64>,
    /// See [`idle_of_all`].
    idle: Option<(u64, u64)>,
}

impl Used {
    /// What a run waits for that uses few of the processors, by what came of them since.
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

/// See the module.
pub(crate) struct Watched {
    pub(crate) about: About,
    /// When the run began.
    pub(crate) start: Instant,
    pub(crate) course: RunCourse,
    pub(crate) taken: ResourcesTaken,
    pub(crate) coins: u64,
    pub(crate) chain_found: Option<(Height, BlockHash)>,
    /// Where it waits, if it follows the tip and is there.
    pub(crate) tip: Option<Height>,
    pub(crate) peers: Option<NetworkStatus>,
    pub(crate) workers: Option<Workers>,
    pub(crate) notes: VecDeque<Note>,
    pub(crate) warnings: usize,
    pub(crate) points: Vec<WatchedPoint>,
    point_every: f64,
    used: VecDeque<Used>,
    pub(crate) report: Option<Value>,
    pub(crate) ended: Option<RunEnd>,
    /// After how many seconds it ended.
    stopped: Option<f64>,
}

/// The one that writes and those that read.
pub(crate) type Shared = Arc<Mutex<Watched>>;

/// Looks at it, whatever became of the thread that looked last: at worst it left a stale number.
pub(crate) fn lock(shared: &Mutex<Watched>) -> MutexGuard<'_, Watched> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Watched {
    pub(crate) fn new(about: About, course: RunCourse) -> Self {
        Self {
            about,
            start: Instant::now(),
            course,
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

    /// Seconds since the run began.
    pub(crate) fn seconds(&self) -> f64 {
        self.start.elapsed().as_secs_f64()
    }

    /// The same, until it ended.
    #[cfg(feature = "web")]
    pub(crate) fn ended_seconds(&self) -> f64 {
        self.stopped.unwrap_or_else(|| self.seconds())
    }

    /// When the run began, in seconds since 1970.
    #[cfg(feature = "web")]
    pub(crate) fn began(&self) -> f64 {
        let now = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        now.as_secs_f64() - self.seconds()
    }

    /// The state in a word.
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

    /// The run itself is over, whatever is still to be told of it.
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

    /// Looks at the processors; told now and then.
    pub(crate) fn look(&mut self) {
        let seconds = self.seconds();
        if self.used.back().is_some_and(|last| seconds - last.seconds < 0.25) {
            return;
        }
        let (cpu, disk_read_bytes, idle) = (cpu_seconds(), disk_read_bytes(), idle_of_all());
        self.used.push_back(Used { seconds, cpu, disk_read_bytes, idle });
        while self.used.len() > 2 && self.used[1].seconds < seconds - CPU_SECONDS {
            self.used.pop_front();
        }
    }

    /// Processors in use over the last seconds.
    pub(crate) fn cores_used(&self) -> Option<f64> {
        let (then, now) = (self.used.front()?, self.used.back()?);
        (now.seconds > then.seconds).then(|| (now.cpu - then.cpu) / (now.seconds - then.seconds))
    }

    /// What the run would be faster with more of, or would have more of without other programs; none where that is not known.
    pub(crate) fn limited_by(&self) -> Option<&'static str> {
        let step = self.course.running().filter(|_| self.tip.is_none())?;
        let used = self.cores_used()?;
        if used >= BUSY * self.about.threads as f64 {
            return Some("processor");
        }
        match self.peers.as_ref().and_then(|peers| peers.limited_by) {
            Some(Limit::Line) => return Some("download"),
            Some(Limit::Peers) => return Some("peers"),
            Some(Limit::Consumer) | None => {}
        }
        // What it does one after the other has one thread at a time.
        match used {
            used if used >= BUSY => Some("one processor core"),
            _ if self.peers.is_some() && step.phase == apus_sync::Phase::Headers => Some("peers"),
            _ => self.used.front()?.waited_for(self.used.back()?),
        }
    }

    /// Takes down a point of the course.
    pub(crate) fn tick(&mut self) {
        if self.ended.is_some() {
            return;
        }
        self.look();
        let seconds = self.seconds();
        if self.points.last().is_some_and(|last| seconds - last.seconds < 0.9 * self.point_every) {
            return;
        }
        let rate = self.course.running().map(crate::course::PhaseStep::rate).unwrap_or_default();
        self.points.push(WatchedPoint { seconds, rate, memory_bytes: rss_bytes() });
        if self.points.len() > POINTS_MAX {
            keep_every_other(&mut self.points);
            self.point_every *= 2.0;
        }
    }
}

/// A run that uses so much of a processor is at work, though it does not tell of it.
const AT_WORK: f64 = 0.5;

/// A machine that takes part gives a sign of life more often.
const SIGN_OF_LIFE: Duration = Duration::from_secs(15);

/// A run that makes no progress.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Stall {
    /// For how long.
    pub(crate) seconds: f64,
    pub(crate) waits_for: &'static str,
}

impl Stall {
    /// For programs.
    pub(crate) fn to_json(self) -> serde_json::Value {
        serde_json::json!({"seconds": self.seconds, "waits_for": self.waits_for})
    }
}

impl fmt::Display for Stall {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "stalled for {}: waiting for {}", duration(self.seconds), self.waits_for)
    }
}

impl Watched {
    /// How long ago the run last made progress; none where it makes none because it is over or at the tip.
    pub(crate) fn quiet_seconds(&self) -> Option<f64> {
        let step = self.course.running()?;
        (self.ended.is_none() && self.tip.is_none()).then_some(step.quiet_seconds())
    }

    /// Whether it stands still, and why.
    pub(crate) fn stall(&self) -> Option<Stall> {
        let seconds = self.quiet_seconds()?;
        let step = self.course.running().filter(|step| step.stands_still())?;
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
            return Some(Stall { seconds, waits_for: "a machine, none gives a sign of life" });
        }
        let waits_for = match &self.peers {
            // Without a peer there is nothing to do with more of the processors.
            Some(peers) if takes_of_peers(step.phase) && peers.peers.is_empty() => {
                "a peer, none is connected"
            }
            _ if others_take_it().is_some() => "the processors, which other programs take",
            Some(peers) if takes_of_peers(step.phase) && peers.rate == 0 => {
                "peers, none sends anything"
            }
            _ if self.about.on_servers => "the servers that keep the coins",
            _ => "the disk",
        };
        Some(Stall { seconds, waits_for })
    }
}

/// A machine that takes part, for programs.
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
    use crate::course::{Expected, RunCourse, STALL_SECONDS};
    use crate::watched::{About, Used};
    use apus_sync::peers::network::NetworkStatus;
    use apus_sync::{Phase, Progress};

    #[test]
    fn a_run_waits_for_the_disk_where_it_reads_from_one() {
        let at = |seconds, read, idle| Used { seconds, cpu: 0.0, disk_read_bytes: read, idle };
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
    fn the_system_tells_what_is_read_and_what_is_left_over() {
        let (idle, all) = idle_of_all().unwrap();
        assert!(idle > 0 && idle < all);
        assert!(disk_read_bytes().is_some());
    }

    /// A run that moved a second after its phase began, and is looked at later.
    fn quiet_for(phase: Phase, seconds: f64) -> Watched {
        let about = About { command: "sync", chain: "main", threads: 2, on_servers: false };
        let mut watched = Watched::new(about, RunCourse::new(vec![Expected::of(phase)], 2));
        watched.course.started(phase, 0.0);
        for second in 0..=1 {
            let progress = Progress { bytes: second, bytes_total: 10, ..Progress::default() };
            watched.course.progress(phase, second as f64, progress, f64::INFINITY);
        }
        watched.course.tick(1.0 + seconds);
        watched
    }

    #[test]
    fn a_run_that_stands_still_has_no_rate_and_no_time_left() {
        let waits = quiet_for(Phase::Connect, STALL_SECONDS - 1.0);
        assert_eq!(waits.stall(), None);
        assert!(waits.course.left_seconds().is_some());
        let stalled = quiet_for(Phase::Connect, STALL_SECONDS);
        assert_eq!(stalled.quiet_seconds(), Some(STALL_SECONDS));
        assert_eq!(stalled.course.left_seconds(), None);
        let step = stalled.course.running().unwrap();
        assert_eq!((step.rate().bytes, step.left_seconds()), (0.0, None));
        let stall = stalled.stall().unwrap();
        assert_eq!(stall.to_string(), "stalled for 15 s: waiting for the disk");
    }

    #[test]
    fn what_moves_again_is_no_stall() {
        let mut watched = quiet_for(Phase::Connect, 20.0);
        let same = Progress { bytes: 1, bytes_total: 10, ..Progress::default() };
        watched.course.progress(Phase::Connect, 22.0, same, f64::INFINITY);
        assert!(watched.stall().is_some(), "telling the same is no progress");
        let more = Progress { bytes: 2, ..same };
        watched.course.progress(Phase::Connect, 23.0, more, f64::INFINITY);
        assert_eq!(watched.stall(), None);
        assert_eq!(watched.quiet_seconds(), Some(0.0));
    }

    #[test]
    fn a_stall_names_its_cause() {
        let waits_for = |watched: &Watched| watched.stall().unwrap().waits_for;
        let mut watched = quiet_for(Phase::Connect, 20.0);
        watched.about.on_servers = true;
        assert_eq!(waits_for(&watched), "the servers that keep the coins");
        // A machine whose processors others took for ten seconds.
        let used = |seconds, all| Used {
            seconds,
            cpu: 0.0,
            disk_read_bytes: Some(0),
            idle: Some((0, all)),
        };
        watched.used.extend([used(0.0, 0), used(10.0, 2_000)]);
        assert_eq!(waits_for(&watched), "the processors, which other programs take");
        watched.peers = Some(NetworkStatus::default());
        assert_eq!(waits_for(&watched), "a peer, none is connected");
        let mut coins = quiet_for(Phase::Coins, 20.0);
        coins.peers = Some(NetworkStatus::default());
        assert_eq!(waits_for(&coins), "the disk", "coins come of no peer");
        let seen =
            |seconds| Worker { seen: Some(Duration::from_secs(seconds)), ..Worker::default() };
        watched.workers = Some(Workers { all: vec![seen(60)], ..Workers::default() });
        assert!(waits_for(&watched).starts_with("a machine"));
        watched.workers = Some(Workers { all: vec![seen(60), seen(1)], ..Workers::default() });
        assert_eq!(watched.stall(), None, "one is at work");
    }
}

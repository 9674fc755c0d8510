//! [`Watched`]: a run as all that show it see it: bar, lines, JSON, log and page.
//!
//! The renderer writes it and shows some of it; the page, whose server has a thread of its own, reads it. It also
//! keeps what only the page draws: the course of rate and memory, and the last events.

mod stall;

pub(crate) use stall::Stall;

use crate::course::{Course, Rate};
#[cfg(feature = "web")]
use crate::failure::INTERRUPTED;
use crate::machine::{cpu_seconds, disk_read_bytes, idle_of_all, rss_bytes};
use apus_chain::{BlockHash, Height};
use apus_p2p::download::Limit;
use apus_sync::Workers;
use apus_sync::peers::network::NetworkStatus;
use serde_json::Value;
use std::collections::VecDeque;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Instant;
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
pub(crate) struct Point {
    pub(crate) seconds: f64,
    pub(crate) rate: Rate,
    pub(crate) memory_bytes: Option<u64>,
}

/// How a run ended.
#[derive(Debug, Clone)]
pub(crate) struct Ended {
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
pub(crate) struct Taken {
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
    pub(crate) course: Course,
    pub(crate) taken: Taken,
    pub(crate) coins: u64,
    pub(crate) chain_found: Option<(Height, BlockHash)>,
    /// Where it waits, if it follows the tip and is there.
    pub(crate) tip: Option<Height>,
    pub(crate) peers: Option<NetworkStatus>,
    pub(crate) workers: Option<Workers>,
    pub(crate) notes: VecDeque<Note>,
    pub(crate) warnings: usize,
    pub(crate) points: Vec<Point>,
    point_every: f64,
    used: VecDeque<Used>,
    pub(crate) report: Option<Value>,
    pub(crate) ended: Option<Ended>,
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
    pub(crate) fn new(about: About, course: Course) -> Self {
        Self {
            about,
            start: Instant::now(),
            course,
            taken: Taken::default(),
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
            Some(Ended { code: 0, .. }) => "done",
            Some(Ended { code: INTERRUPTED, .. }) => "stopped",
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
        let rate = self.course.running().map(crate::course::Step::rate).unwrap_or_default();
        self.points.push(Point { seconds, rate, memory_bytes: rss_bytes() });
        if self.points.len() > POINTS_MAX {
            let mut keep = false;
            self.points.retain(|_| {
                keep = !keep;
                keep
            });
            self.point_every *= 2.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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
}

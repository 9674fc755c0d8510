//! [`Stall`]: a run that makes no progress, and what it waits for.

use super::Watched;
use crate::course::{duration, takes_of_peers};
use std::fmt;
use std::time::Duration;

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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::{Course, Expected, STALL_SECONDS};
    use crate::watched::{About, Used};
    use apus_sync::peers::network::NetworkStatus;
    use apus_sync::{Phase, Progress, Worker, Workers};

    /// A run that moved a second after its phase began, and is looked at later.
    fn quiet_for(phase: Phase, seconds: f64) -> Watched {
        let about = About { command: "sync", chain: "main", threads: 2, on_servers: false };
        let mut watched = Watched::new(about, Course::new(vec![Expected::of(phase)], 2));
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

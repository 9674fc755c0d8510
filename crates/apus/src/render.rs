//! Progress for people and programs: one observer that renders all events and keeps the times.

use crate::allocator;
use crate::args::ProgressArg;
use crate::machine::{cpu_seconds, rss_bytes};
use crate::peers;
use crate::print::{self, aside};
use crate::report::{PhaseReport, Sample, bytes, grouped};
use apus_chain::{BlockHash, Height};
use apus_sync::peers::Peers;
use apus_sync::peers::network::NetworkStatus;
use apus_sync::{ChainBy, DiskUse, Event, Observer, Phase, Progress, Worker, Workers};
use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};
use std::io::IsTerminal;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// How often a line is printed where there is no terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// And how often while nothing happens.
const WAITING_INTERVAL: Duration = Duration::from_secs(60);

/// How often the course of a run is noted; doubled whenever there are too many points.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

/// Points kept of a run's course.
const SAMPLES_MAX: usize = 2000;

/// How progress is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Style {
    Bar,
    Lines,
    Json,
    None,
}

/// Shows events and remembers what the report needs.
pub(crate) struct Renderer<'a> {
    /// Where blocks come from peers.
    peers: Option<&'a Peers<'a>>,
    style: Style,
    start: Instant,
    state: Mutex<State>,
}

struct State {
    bar: Option<ProgressBar>,
    phase: Option<Running>,
    phases: Vec<PhaseReport>,
    series: Vec<Sample>,
    sample_interval: Duration,
    last_sample: Option<Instant>,
    last_line: Instant,
    /// The tip that it was said to wait at, and with how many peers.
    waiting: Option<(Height, usize)>,
    warnings: Vec<String>,
    segments_resumed: usize,
    /// Where other machines take part, as they were told of last.
    workers: Option<Workers>,
}

struct Running {
    phase: Phase,
    start: Instant,
    cpu_start: Option<f64>,
    /// The first progress told: what earlier starts had done says nothing about this one's rate.
    first: Option<Progress>,
}

/// What is left when a run is over.
pub(crate) struct Record {
    pub(crate) wall_seconds: f64,
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) series: Vec<Sample>,
    pub(crate) warnings: Vec<String>,
    pub(crate) segments_resumed: usize,
    pub(crate) workers: Option<Workers>,
}

impl<'a> Renderer<'a> {
    pub(crate) fn new(progress: ProgressArg, peers: Option<&'a Peers<'a>>) -> Self {
        let style = match progress {
            ProgressArg::Auto if std::io::stderr().is_terminal() => Style::Bar,
            ProgressArg::Auto | ProgressArg::Plain => Style::Lines,
            ProgressArg::Json => Style::Json,
            ProgressArg::None => Style::None,
        };
        if style == Style::Json {
            print::speak_json();
        }
        let now = Instant::now();
        let state = State {
            bar: None,
            phase: None,
            phases: Vec::new(),
            series: Vec::new(),
            sample_interval: SAMPLE_INTERVAL,
            last_sample: None,
            last_line: now,
            waiting: None,
            warnings: Vec::new(),
            segments_resumed: 0,
            workers: None,
        };
        Self { peers, style, start: now, state: Mutex::new(state) }
    }

    /// Ends the rendering.
    pub(crate) fn into_record(self) -> Record {
        let wall_seconds = self.start.elapsed().as_secs_f64();
        let state = self.state.into_inner().unwrap_or_else(PoisonError::into_inner);
        if let Some(bar) = state.bar {
            bar.finish_and_clear();
        }
        Record {
            wall_seconds,
            phases: state.phases,
            series: state.series,
            warnings: state.warnings,
            segments_resumed: state.segments_resumed,
            workers: state.workers,
        }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // A thread that panicked while it rendered left at worst a stale line.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn say(&self, state: &State, text: &str) {
        match self.style {
            Style::Bar => match &state.bar {
                Some(bar) => bar.println(text),
                None => aside(text),
            },
            Style::Lines => aside(text),
            Style::Json | Style::None => {}
        }
    }

    fn chain_found(&self, state: &State, tip: BlockHash, height: Height, by: ChainBy) {
        let (files, how) = match by {
            ChainBy::Files { files: 1, index } => (1, in_files("in 1 file", index)),
            ChainBy::Files { files, index } => {
                (files, in_files(&format!("in {files} files"), index))
            }
            ChainBy::Peers => (0, "by headers from peers".to_owned()),
        };
        self.say(state, &format!("chain of {height} blocks {how}: {tip}"));
        self.json(serde_json::json!({
            "event": "chain", "height": height, "tip": tip.to_string(), "files": files
        }));
    }

    fn json(&self, mut event: serde_json::Value) {
        if self.style == Style::Json {
            event["seconds"] = self.start.elapsed().as_secs_f64().into();
            print::event(event);
        }
    }

    fn started(&self, state: &mut State, phase: Phase) {
        let now = Instant::now();
        state.phase = Some(Running { phase, start: now, cpu_start: cpu_seconds(), first: None });
        state.last_line = now;
        if self.style == Style::Bar {
            let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr_with_hz(10));
            bar.set_style(
                ProgressStyle::with_template("{spinner} {msg}")
                    .unwrap_or_else(|_| ProgressStyle::default_spinner()),
            );
            state.bar = Some(bar);
        }
        self.json(serde_json::json!({"event": "started", "phase": phase.name()}));
    }

    fn ended(&self, state: &mut State, phase: Phase, bytes: u64) {
        if let Some(bar) = state.bar.take() {
            bar.finish_and_clear();
        }
        let Some(running) = state.phase.take() else { return };
        let wall_seconds = running.start.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds().zip(running.cpu_start).map(|(now, then)| now - then);
        let name = phase.name();
        state.phases.push(PhaseReport { phase: name, wall_seconds, cpu_seconds, bytes });
        self.json(serde_json::json!({
            "event": "ended", "phase": name, "wall_seconds": wall_seconds, "bytes": bytes
        }));
    }

    fn progress(&self, state: &mut State, phase: Phase, progress: Progress) {
        // Going through the blocks once more, for hints, is not the run's course.
        let once_more = || state.phases.iter().any(|ended| ended.phase == Phase::Connect.name());
        if phase == Phase::Connect || phase == Phase::Blocks && !once_more() {
            self.sample(state, progress);
        }
        let Some(running) = state.phase.as_mut().filter(|running| running.phase == phase) else {
            return;
        };
        let first = *running.first.get_or_insert(progress);
        let elapsed = running.start.elapsed().as_secs_f64();
        match self.style {
            Style::Bar => {
                let mut text = self.line(phase, progress, first, elapsed);
                let workers = state.workers.iter().flat_map(|workers| &workers.all);
                for worker in workers.take(WORKERS_BELOW) {
                    text.push_str(&format!("\n  {}", worker_line(worker)));
                }
                if let Some(bar) = &state.bar {
                    bar.set_message(text);
                    bar.tick();
                }
            }
            Style::Lines | Style::Json if state.last_line.elapsed() >= LINE_INTERVAL => {
                state.last_line = Instant::now();
                self.say(state, &self.line(phase, progress, first, elapsed));
                self.json(serde_json::json!({
                    "peers": self.peers.map(|peers| peers_json(&peers.status())),
                    "event": "progress", "phase": phase.name(),
                    "left_seconds": estimate(progress, first, elapsed),
                    "blocks": progress.blocks, "blocks_total": progress.blocks_total,
                    "bytes": progress.bytes, "bytes_total": progress.bytes_total,
                    "coins": progress.coins, "rss_bytes": rss_bytes()
                }));
            }
            _ => {}
        }
    }

    fn line(&self, phase: Phase, progress: Progress, first: Progress, elapsed: f64) -> String {
        let line = line(phase, progress, first, elapsed);
        match self.peers {
            Some(peers) if phase != Phase::Coins && phase != Phase::Check => {
                format!("{line}; {}", peers::line(&peers.status()))
            }
            _ => line,
        }
    }

    /// A line for each machine; beside a bar they stand below it.
    fn workers(&self, state: &mut State, workers: Workers) {
        if self.style == Style::Lines && !workers.last {
            match workers.all.is_empty() {
                true => {
                    self.say(state, "no machine takes part yet: start `apus cluster work` on some")
                }
                false => workers.all.iter().for_each(|it| self.say(state, &worker_line(it))),
            }
        }
        let all = workers.all.iter().map(|worker| {
            serde_json::json!({
                "name": worker.name, "segments": worker.segments, "blocks": worker.blocks,
                "bytes": worker.bytes, "busy_seconds": worker.busy.as_secs_f64(),
                "seen_seconds": worker.seen.map(|seen| seen.as_secs_f64()), "doing": worker.doing
            })
        });
        self.json(serde_json::json!({
            "event": "workers", "workers": all.collect::<Vec<_>>(),
            "handling_seconds": workers.handling.as_secs_f64()
        }));
        state.workers = Some(workers);
    }

    /// At the tip nothing moves for minutes: what is said is said when it changes, and now and then.
    fn waiting(&self, state: &mut State, height: Height, tip: BlockHash) {
        let status = self.peers.map(Peers::status).unwrap_or_default();
        let text = format!(
            "at the tip, block {}, waiting for the next; {}",
            grouped(height.into()),
            peers::line(&status)
        );
        if let Some(bar) = &state.bar {
            bar.set_message(text.clone());
            bar.tick();
        }
        let now = (height, status.peers.len());
        if state.waiting == Some(now) && state.last_line.elapsed() < WAITING_INTERVAL {
            return;
        }
        if state.waiting.is_none() {
            self.say(state, "at the tip: Ctrl-C ends the run, and writes what it is to write");
        }
        (state.waiting, state.last_line) = (Some(now), Instant::now());
        if self.style == Style::Lines {
            self.say(state, &text);
        }
        self.json(serde_json::json!({
            "event": "waiting", "height": height, "tip": tip.to_string(),
            "peers": peers_json(&status)
        }));
    }

    /// Notes a point of the run's course; keeps every other one when there are too many.
    fn sample(&self, state: &mut State, progress: Progress) {
        let done = progress.blocks == progress.blocks_total;
        if state.last_sample.is_some_and(|last| last.elapsed() < state.sample_interval) && !done {
            return;
        }
        state.last_sample = Some(Instant::now());
        state.series.push(Sample {
            seconds: self.start.elapsed().as_secs_f64(),
            height: progress.blocks,
            bytes: progress.bytes,
        });
        if state.series.len() > SAMPLES_MAX {
            let mut keep = false;
            state.series.retain(|_| {
                keep = !keep;
                keep
            });
            state.sample_interval *= 2;
        }
    }
}

/// So many machines have a line below a bar.
const WORKERS_BELOW: usize = 16;

/// Less room on a disk is not worth a line.
const DISK_TOLD: u64 = 1_000_000_000;

fn in_files(files: &str, index: bool) -> String {
    let how = if index { "by Core's block index" } else { "by their headers" };
    format!("{files}, found {how}")
}

impl Observer for Renderer<'_> {
    fn event(&self, event: Event) {
        let mut state = self.lock();
        match event {
            Event::Started(phase) => self.started(&mut state, phase),
            Event::Ended { phase, bytes } => self.ended(&mut state, phase, bytes),
            Event::Progress(phase, progress) => self.progress(&mut state, phase, progress),
            Event::ChainFound { tip, height, by } => self.chain_found(&state, tip, height, by),
            Event::DiskNeeded { what, bytes: needed, free } => {
                let (what, for_what) = match what {
                    DiskUse::Progress => ("progress", "progress"),
                    DiskUse::Proofs => ("proofs", "files of proofs"),
                };
                if needed >= DISK_TOLD {
                    let (needed, free) = (bytes(needed), bytes(free));
                    let text = format!("up to {needed} of disk for {for_what}, {free} free");
                    self.say(&state, &text);
                }
                self.json(serde_json::json!({
                    "event": "disk", "for": what, "bytes": needed, "free": free
                }));
            }
            Event::Waiting { height, tip } => self.waiting(&mut state, height, tip),
            Event::Tip { height, tip } => {
                self.say(&state, &format!("new tip at height {height}: {tip}"));
                self.json(serde_json::json!({
                    "event": "tip", "height": height, "tip": tip.to_string()
                }));
            }
            Event::Resumed { segments, of } => {
                state.segments_resumed = segments;
                self.say(&state, &format!("going on: {segments} of {of} segments are done"));
                self.json(serde_json::json!({
                    "event": "resumed", "segments": segments, "of": of
                }));
            }
            Event::Warning(warning) => {
                let text = warning.to_string();
                if self.style != Style::None {
                    self.say(&state, &format!("warning: {text}"));
                }
                self.json(serde_json::json!({"event": "warning", "text": text}));
                state.warnings.push(text);
            }
            Event::Workers(workers) => self.workers(&mut state, workers),
            Event::MemoryFreed => {
                drop(state);
                allocator::give_back();
            }
        }
    }
}

fn peers_json(status: &NetworkStatus) -> serde_json::Value {
    let peers = status.peers.iter().map(|peer| {
        serde_json::json!({
            "address": peer.address, "user_agent": peer.user_agent, "inbound": peer.inbound,
            "encrypted": peer.encrypted, "rate": peer.rate, "bytes": peer.bytes,
            "in_flight": peer.in_flight, "stalled": peer.stalled
        })
    });
    peers.collect()
}

/// One line: height, percent, rates, coins, memory, time left. `first` is where this start began.
fn line(phase: Phase, progress: Progress, first: Progress, elapsed: f64) -> String {
    let mut parts = vec![phase.name().to_owned()];
    let fraction = counted(progress).map(|(count, all)| count(progress) as f64 / all as f64);
    if let Some(fraction) = fraction {
        parts.push(format!("{:.1} %", 100.0 * fraction.min(1.0)));
    }
    if progress.blocks_total > 0 {
        let (done, all) = (grouped(progress.blocks), grouped(progress.blocks_total));
        parts.push(format!("{done} of {all} blocks"));
    }
    let rate = |now: u64, then: u64| (now - then.min(now)) as f64 / elapsed.max(0.001);
    let blocks_rate = rate(progress.blocks, first.blocks);
    if progress.blocks > 0 {
        parts.push(format!("{} blocks/s", grouped(blocks_rate as u64)));
    }
    let bytes_rate = rate(progress.bytes, first.bytes);
    parts.push(format!("{}/s", bytes(bytes_rate as u64)));
    if progress.coins > 0 {
        parts.push(format!("{} coins", grouped(progress.coins)));
    }
    if let Some(rss) = rss_bytes() {
        parts.push(format!("{} memory", bytes(rss)));
    }
    if let Some(left) = estimate(progress, first, elapsed) {
        parts.push(format!("{} left", duration(left)));
    }
    parts.join(", ")
}

/// One of the numbers of a progress.
type Count = fn(Progress) -> u64;

/// What tells how far a phase is, and how much of it there is in all; none where that is not known.
fn counted(progress: Progress) -> Option<(Count, u64)> {
    match (progress.bytes_total, progress.blocks_total) {
        (0, 0) => None,
        // How many bytes the blocks have that are still to come from peers is not known.
        (0, blocks) => Some((|of| of.blocks, blocks)),
        (bytes, _) => Some((|of| of.bytes, bytes)),
    }
}

/// Seconds that are left of a phase, if that can be told.
fn estimate(progress: Progress, first: Progress, elapsed: f64) -> Option<f64> {
    let (count, all) = counted(progress)?;
    let (now, then) = (count(progress), count(first));
    let rate = now.saturating_sub(then) as f64 / elapsed.max(0.001);
    let left = all.saturating_sub(now) as f64 / rate;
    left.is_finite().then_some(left)
}

/// One line: what a machine did, how fast, when it was seen last, and what it does.
fn worker_line(worker: &Worker) -> String {
    let rate = worker.bytes as f64 / worker.busy.as_secs_f64().max(0.001);
    let seen = match worker.seen {
        None => "not seen by this start".to_owned(),
        Some(seen) => format!("seen {} ago, {}", duration(seen.as_secs_f64()), worker.doing),
    };
    let (name, segments) = (&worker.name, grouped(worker.segments));
    format!("{name}: {segments} jobs, {}/s for each thread, {seen}", bytes(rate as u64))
}

/// Seconds as people say them.
pub(crate) fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_tells_what_a_person_wants_to_know() {
        let progress = Progress {
            blocks: 400,
            blocks_total: 1000,
            bytes: 4_000_000,
            bytes_total: 10_000_000,
            coins: 1234,
        };
        let first = Progress { blocks: 200, bytes: 2_000_000, ..progress };
        let line = line(Phase::Blocks, progress, first, 2.0);
        for part in
            ["40.0 %", "400 of 1,000 blocks", "100 blocks/s", "1.0 MB/s", "1,234 coins", "6 s left"]
        {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn durations() {
        assert_eq!(duration(59.4), "59 s");
        assert_eq!(duration(61.0), "1 min 01 s");
        assert_eq!(duration(7260.0), "2 h 01 min");
    }
}

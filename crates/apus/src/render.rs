//! Progress for people and programs: one observer receives all events, records them for the report, and shows them as a
//! bar, as lines, as JSON, in a log and on a page.

mod bar;
mod watch;

pub(crate) use bar::{Canvas, ProgressBar};
pub(crate) use watch::RunDisplay;

use crate::allocator;
use crate::estimate::{keep_every_other, takes_blocks, takes_of_peers};
use crate::machine;
use crate::machine::{cpu_seconds, rss_bytes};
use crate::peers;
use crate::print::{self, aside};
use crate::report::{PhaseReport, ProgressSample, RunHistory, bytes, grouped};
use crate::status::{Note, ResourcesTaken, RunStatus, Stall, StatusLock, worker_json};
use apus_chain::{BlockHash, Height};
use apus_sync::peers::Peers;
use apus_sync::peers::network::NetworkStatus;
use apus_sync::{ChainBy, DiskUse, Event, Observer, Phase, Progress, Workers};
use bar::worker_line;
use parking_lot::Mutex;
use std::sync::mpsc::{RecvTimeoutError, channel};
use std::thread;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};
use watch::{RunLog, Style};

/// Interval between lines without a terminal.
const LINE_INTERVAL: Duration = Duration::from_secs(5);

/// Interval between progress lines in the log.
const LOG_INTERVAL: Duration = Duration::from_secs(60);

/// Interval between lines while the job waits at the tip.
const WAITING_INTERVAL: Duration = Duration::from_secs(60);

/// Interval between updates of the peers' status.
const PEERS_INTERVAL: Duration = Duration::from_millis(500);

/// Interval between checks for a stall.
const TICK_INTERVAL: Duration = Duration::from_secs(1);

/// Interval between recorded points of the progress; doubled whenever there are too many.
const SAMPLE_INTERVAL: Duration = Duration::from_millis(200);

/// Shown when the user has interrupted the job.
const STOPPING: &str = "Stopping and saving progress... (Ctrl-C again to quit at once)";

/// Maximum number of recorded points.
const SAMPLES_MAX: usize = 2000;

/// Shows events, and records them for the report.
pub(crate) struct Renderer<'a> {
    /// The peers, if they are the source of blocks.
    peers: Option<&'a Peers<'a>>,
    style: Style,
    start: Instant,
    shared: StatusLock,
    state: Mutex<RendererState>,
}

struct RendererState {
    bar: Option<ProgressBar>,
    log: Option<RunLog>,
    phase: Option<RunningPhase>,
    /// Phases that begin again with the next batch of blocks.
    paused: Vec<Phase>,
    history: RunHistory,
    sample_interval: Duration,
    last_sample: Option<Instant>,
    last_line: Instant,
    last_log: Instant,
    last_peers: Option<Instant>,
    /// Whether the current stall was reported.
    stalled: bool,
    /// The reached tip and the number of peers in the last report.
    waiting: Option<(Height, usize)>,
}

struct RunningPhase {
    phase: Phase,
    start: Instant,
    cpu_start: f64,
    /// The last reported progress, to compute the difference.
    last: Option<Progress>,
}

/// The record of a job that is over.
pub(crate) struct RunRecord {
    pub(crate) history: RunHistory,
    /// The last shared status.
    pub(crate) shared: StatusLock,
    log: Option<RunLog>,
}

impl RunRecord {
    /// Writes a last line to the log.
    pub(crate) fn note(&mut self, kind: &'static str, text: &str) {
        let note = note_now(kind, text.to_owned());
        if let Some(log) = &mut self.log {
            log.write(&note);
        }
        self.shared.lock().note(note);
    }
}

fn note_now(kind: &'static str, text: String) -> Note {
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs_f64();
    Note { time, kind, text }
}

impl<'a> Renderer<'a> {
    pub(crate) fn new(watch: RunDisplay, peers: Option<&'a Peers<'a>>) -> Self {
        let RunDisplay { style, log, shared } = watch;
        let now = Instant::now();
        let state = RendererState {
            bar: None,
            log,
            phase: None,
            paused: Vec::new(),
            history: RunHistory::default(),
            sample_interval: SAMPLE_INTERVAL,
            last_sample: None,
            last_line: now,
            last_log: now,
            last_peers: None,
            stalled: false,
            waiting: None,
        };
        let start = shared.lock().start;
        let renderer = Self { peers, style, start, shared, state: Mutex::new(state) };
        let mut state = renderer.state.lock();
        let about = renderer.shared.lock().about.clone();
        let text = format!("apus {} {} {}", crate::machine::version(), about.command, about.chain);
        renderer.note(&mut state, "begin", text);
        drop(state);
        renderer
    }

    /// Executes `work`, and checks for stalls in parallel, since no event reports one.
    pub(crate) fn beside<T>(&self, work: impl FnOnce() -> T) -> T {
        thread::scope(|scope| {
            // The sender is dropped when the work ends or panics, which ends the thread.
            let (_over, ended) = channel::<()>();
            let tick = move || {
                while ended.recv_timeout(TICK_INTERVAL) == Err(RecvTimeoutError::Timeout) {
                    self.tick();
                }
            };
            // If the thread cannot start, stalls are not shown.
            let _ = thread::Builder::new().name("clock".to_owned()).spawn_scoped(scope, tick);
            work()
        })
    }

    /// Updates time, peers and display between events.
    fn tick(&self) {
        let mut state = self.state.lock();
        let Some((phase, progress)) = state.phase.as_ref().map(|it| (it.phase, it.last)) else {
            return;
        };
        if self.shared.lock().tip.is_some() {
            return;
        }
        self.ask_peers(&mut state);
        let mut watched = self.shared.lock();
        watched.look();
        let seconds = watched.seconds();
        watched.estimate.tick(seconds);
        let stall = watched.stall();
        if stall.is_some() != state.stalled {
            state.last_line = Instant::now() - LINE_INTERVAL;
        }
        self.show(&mut state, &watched, phase, progress.unwrap_or_default());
        drop(watched);
        self.note_stall(&mut state, phase, stall);
    }

    /// Records and shows that the job has stalled or resumed.
    fn note_stall(&self, state: &mut RendererState, phase: Phase, stall: Option<Stall>) {
        let before = std::mem::replace(&mut state.stalled, stall.is_some());
        match stall {
            Some(stall) if !before => {
                self.note(state, "stalled", format!("{}: {stall}", phase.name()));
            }
            None if before => self.note(state, "stalled", format!("{} resumed", phase.name())),
            _ => {}
        }
    }

    /// Ends the display, and returns the record.
    pub(crate) fn into_record(self) -> RunRecord {
        let wall_seconds = self.start.elapsed().as_secs_f64();
        let state = self.state.into_inner();
        if let Some(mut bar) = state.bar {
            bar.clear();
        }
        self.shared.lock().stop();
        let phase = state.phase.map(|running| running.phase.name());
        let history = RunHistory { wall_seconds, phase, ..state.history };
        RunRecord { history, shared: self.shared, log: state.log }
    }

    /// Records an event for the log and the page.
    fn note(&self, state: &mut RendererState, kind: &'static str, text: String) {
        let note = note_now(kind, text);
        if let Some(log) = &mut state.log {
            log.write(&note);
        }
        self.shared.lock().note(note);
    }

    fn say(&self, state: &mut RendererState, text: &str) {
        match self.style {
            Style::Bar => {
                let text = print::wrapped(text, Canvas::here().width);
                match &mut state.bar {
                    Some(bar) => bar.print(&print::colored(&text)),
                    None => aside(text),
                }
            }
            Style::Lines => aside(text),
            Style::Json | Style::None => {}
        }
    }

    /// Prints a text, and records it for the log and the page.
    fn say_and_note(&self, state: &mut RendererState, kind: &'static str, text: String) {
        self.say(state, &text);
        self.note(state, kind, text);
    }

    fn chain_found(&self, state: &mut RendererState, tip: BlockHash, height: Height, by: ChainBy) {
        let (files, how) = match by {
            ChainBy::Files { files: 1, index } => (1, in_files("in 1 file", index)),
            ChainBy::Files { files, index } => {
                (files, in_files(&format!("in {files} files"), index))
            }
            ChainBy::Peers => (0, "found by headers from peers".to_owned()),
        };
        self.shared.lock().chain_found = Some((height, tip));
        self.say_and_note(state, "chain", format!("chain of {height} blocks {how}: {tip}"));
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

    fn started(&self, state: &mut RendererState, phase: Phase) {
        let now = Instant::now();
        state.phase =
            Some(RunningPhase { phase, start: now, cpu_start: cpu_seconds(), last: None });
        state.last_line = now;
        if self.style == Style::Bar && state.bar.is_none() {
            state.bar = Some(ProgressBar::new());
        }
        let mut watched = self.shared.lock();
        watched.tip = None;
        let seconds = watched.seconds();
        watched.estimate.started(phase, seconds);
        drop(watched);
        self.note(state, "phase", format!("{} started", phase.name()));
        self.json(serde_json::json!({"event": "started", "phase": phase.name()}));
    }

    /// Ends a phase, or pauses it until the next batch of blocks. The report has one entry for all batches.
    fn ended(&self, state: &mut RendererState, phase: Phase, of_input: u64, pauses: bool) {
        let Some(running) = state.phase.take() else { return };
        let wall_seconds = running.start.elapsed().as_secs_f64();
        let cpu_seconds = cpu_seconds() - running.cpu_start;
        let worked = self.worked_seconds(running.cpu_start);
        let name = phase.name();
        let phases = &mut state.history.phases;
        match phases
            .iter_mut()
            .find(|earlier| earlier.phase == name && state.paused.contains(&phase))
        {
            Some(earlier) => {
                earlier.wall_seconds += wall_seconds;
                earlier.cpu_seconds += cpu_seconds;
                earlier.bytes += of_input;
            }
            None => {
                phases.push(PhaseReport {
                    phase: name,
                    wall_seconds,
                    cpu_seconds,
                    bytes: of_input,
                });
            }
        }
        state.paused.retain(|paused| *paused != phase);
        let mut watched = self.shared.lock();
        let seconds = watched.seconds();
        if pauses {
            state.paused.push(phase);
            watched.estimate.paused(phase, seconds, worked);
        } else {
            watched.estimate.ended(phase, seconds, of_input, worked);
        }
        watched.estimate.keep();
        drop(watched);
        let input =
            if of_input > 0 { format!(", input {}", bytes(of_input)) } else { String::new() };
        let text = format!("{name} took {wall_seconds:.3} s{input}");
        self.note(state, "phase", text);
        self.json(serde_json::json!({
            "event": if pauses { "paused" } else { "ended" }, "phase": name,
            "wall_seconds": wall_seconds, "bytes": of_input
        }));
    }

    /// Returns the processor time used since `cpu_start`, or infinity if blocks come from files, so that all elapsed
    /// time counts as work. A slow disk or other programs delay later phases just as much; a slow network does not.
    fn worked_seconds(&self, cpu_start: f64) -> f64 {
        match self.peers {
            Some(_) => cpu_seconds() - cpu_start,
            None => f64::INFINITY,
        }
    }

    fn progress(&self, state: &mut RendererState, phase: Phase, progress: Progress) {
        // The series excludes a further pass over the blocks to write hints.
        let once_more = || {
            state.history.phases.iter().any(|ended| ended.phase == Phase::Connect.name())
                && !state.paused.contains(&Phase::Connect)
        };
        if phase == Phase::Connect || phase == Phase::Blocks && !once_more() {
            self.sample(state, progress);
        }
        let Some(running) = state.phase.as_mut().filter(|running| running.phase == phase) else {
            return;
        };
        let last = running.last.replace(progress);
        let cpu = self.worked_seconds(running.cpu_start);
        self.ask_peers(state);
        let mut watched = self.shared.lock();
        watched.look();
        let seconds = watched.seconds();
        watched.estimate.progress(phase, seconds, progress, cpu);
        watched.estimate.keep();
        if matches!(phase, Phase::Blocks | Phase::Connect | Phase::Coins) {
            watched.coins = watched.coins.max(progress.coins);
        }
        if let Some(last) = last.filter(|_| takes_blocks(phase)) {
            let ResourcesTaken { blocks, bytes } = watched.taken;
            watched.taken = ResourcesTaken {
                blocks: blocks + progress.blocks.saturating_sub(last.blocks),
                bytes: bytes + progress.bytes.saturating_sub(last.bytes),
            };
        }
        self.show(state, &watched, phase, progress);
        // Events arrive many times a second, and each line reads counters from the system.
        let due = state.last_log.elapsed() >= LOG_INTERVAL;
        let step = watched.estimate.running().filter(|_| due);
        let text = step.map(|step| bar::line(&watched, step));
        drop(watched);
        if let Some(text) = text {
            state.last_log = Instant::now();
            self.note(state, "progress", text);
        }
    }

    /// Shows the progress as a bar, a line or an event.
    fn show(
        &self,
        state: &mut RendererState,
        watched: &RunStatus,
        phase: Phase,
        progress: Progress,
    ) {
        let Some(step) = watched.estimate.running() else { return };
        let of_peers = || watched.peers.as_ref().filter(|_| takes_of_peers(phase)).map(peers::line);
        match self.style {
            Style::Bar if machine::was_interrupted() => {
                if let Some(bar) = &mut state.bar {
                    bar.leave(STOPPING);
                }
            }
            Style::Bar => {
                let RendererState { bar, history, .. } = state;
                let lines = || {
                    let canvas = Canvas::here();
                    let mut lines = bar::lines(watched, step, canvas);
                    lines.extend(of_peers().map(|text| canvas.fit(&text)));
                    let workers = history.workers.iter().flat_map(|workers| &workers.all);
                    for worker in workers.take(WORKERS_BELOW) {
                        lines.push(canvas.fit(&worker_line(worker)));
                    }
                    lines
                };
                if let Some(bar) = bar {
                    bar.show(lines);
                }
            }
            Style::Lines | Style::Json if state.last_line.elapsed() >= LINE_INTERVAL => {
                state.last_line = Instant::now();
                let text = bar::line(watched, step);
                self.say(
                    state,
                    &of_peers().map(|peers| format!("{text}; {peers}")).unwrap_or(text),
                );
                let rate = step.rate();
                self.json(serde_json::json!({
                    "peers": watched.peers.as_ref().map(all_peers),
                    "event": "progress", "phase": phase.name(),
                    "fraction": step.fraction(), "left_seconds": step.left_seconds(),
                    "run_fraction": watched.estimate.fraction(),
                    "run_left_seconds": watched.estimate.left_seconds(),
                    "blocks_rate": rate.blocks, "bytes_rate": rate.bytes,
                    "limited_by": watched.limited_by(),
                    "stalled": watched.stall().map(Stall::to_json),
                    "blocks": progress.blocks, "blocks_total": progress.blocks_total,
                    "bytes": progress.bytes, "bytes_total": progress.bytes_total,
                    "coins": progress.coins, "rss_bytes": rss_bytes()
                }));
            }
            _ => {}
        }
    }

    fn ask_peers(&self, state: &mut RendererState) {
        let Some(peers) = self.peers else { return };
        if state.last_peers.is_none_or(|last| last.elapsed() >= PEERS_INTERVAL) {
            state.last_peers = Some(Instant::now());
            let status = peers.status();
            let mut watched = self.shared.lock();
            let lost = |status: &NetworkStatus| status.last_lost.clone();
            let before = watched.peers.as_ref().and_then(lost);
            let now = lost(&status).filter(|now| before.as_ref() != Some(now));
            watched.peers = Some(status);
            drop(watched);
            if let Some(text) = now {
                self.note(state, "peer", format!("lost {text}"));
            }
        }
    }

    /// Shows a line for each worker machine, below the bar if there is one.
    fn workers(&self, state: &mut RendererState, workers: Workers) {
        if self.style == Style::Lines && !workers.last {
            match workers.all.is_empty() {
                true => self.say(
                    state,
                    "no worker machines yet: run `apus cluster work` on other machines",
                ),
                false => workers.all.iter().for_each(|it| self.say(state, &worker_line(it))),
            }
        }
        let all = workers.all.iter().map(worker_json);
        self.json(serde_json::json!({
            "event": "workers", "workers": all.collect::<Vec<_>>(),
            "handling_seconds": workers.handling.as_secs_f64()
        }));
        self.shared.lock().workers = Some(workers.clone());
        state.history.workers = Some(workers);
    }

    /// Shows that the job waits at the tip. Nothing may happen for minutes, so this prints only changes, and otherwise
    /// one line per [`WAITING_INTERVAL`].
    fn waiting(&self, state: &mut RendererState, height: Height, tip: BlockHash) {
        let status = self.peers.map(Peers::status).unwrap_or_default();
        let text = format!(
            "at the tip, block {}, waiting for the next block; {}",
            grouped(height.into()),
            peers::line(&status)
        );
        if let Some(bar) = &mut state.bar {
            bar.show(|| vec![Canvas::here().fit(&text)]);
        }
        let mut watched = self.shared.lock();
        watched.tip = Some(height);
        watched.peers = self.peers.map(|_| status.clone());
        drop(watched);
        let now = (height, status.peers.len());
        if state.waiting == Some(now) && state.last_line.elapsed() < WAITING_INTERVAL {
            return;
        }
        if state.waiting.is_none() {
            self.say(state, "at the tip: press Ctrl-C to write the outputs and stop");
        }
        if state.waiting.is_none_or(|(shown, _)| shown != height) {
            self.note(state, "tip", format!("at the tip, block {height} ({tip})"));
        }
        (state.waiting, state.last_line) = (Some(now), Instant::now());
        if self.style == Style::Lines {
            self.say(state, &text);
        }
        self.json(serde_json::json!({
            "event": "waiting", "height": height, "tip": tip.to_string(),
            "peers": all_peers(&status)
        }));
    }

    /// Records a point of the progress. If there are too many, keeps every other one.
    fn sample(&self, state: &mut RendererState, progress: Progress) {
        let done = progress.blocks == progress.blocks_total;
        if state.last_sample.is_some_and(|last| last.elapsed() < state.sample_interval) && !done {
            return;
        }
        state.last_sample = Some(Instant::now());
        state.history.series.push(ProgressSample {
            seconds: self.start.elapsed().as_secs_f64(),
            height: progress.blocks,
            bytes: progress.bytes,
        });
        if state.history.series.len() > SAMPLES_MAX {
            keep_every_other(&mut state.history.series);
            state.sample_interval *= 2;
        }
    }

    fn disk_needed(&self, state: &mut RendererState, what: DiskUse, needed: u64, free: u64) {
        let (what, for_what) = match what {
            DiskUse::Progress => ("progress", "temporary files"),
            DiskUse::Extra { word, what } => (word, what),
        };
        if needed >= DISK_SHOWN_MIN {
            let (needed, free) = (bytes(needed), bytes(free));
            self.say_and_note(
                state,
                "disk",
                format!("needs up to {needed} of disk for {for_what}; {free} free"),
            );
        }
        self.json(serde_json::json!({
            "event": "disk", "for": what, "bytes": needed, "free": free
        }));
    }
}

/// Maximum number of worker machines shown below a bar.
const WORKERS_BELOW: usize = 16;

/// Disk needs below this are not shown.
const DISK_SHOWN_MIN: u64 = 1_000_000_000;

fn in_files(files: &str, index: bool) -> String {
    let how = if index { "by Core's block index" } else { "by their headers" };
    format!("{files}, found {how}")
}

impl Observer for Renderer<'_> {
    fn event(&self, event: Event) {
        // All threads report segments, and only the page shows them, so these events skip the renderer's lock.
        match event {
            Event::Segment(range, to) => return self.shared.lock().estimate.map.note(range, to),
            Event::Segments(segments) => return self.shared.lock().estimate.map.begin(segments),
            Event::Ahead(phase, progress) => {
                return self.shared.lock().estimate.ahead(phase, progress);
            }
            _ => {}
        }
        let mut state = self.state.lock();
        match event {
            Event::Segment(..) | Event::Segments(_) | Event::Ahead(..) => {}
            Event::Started(phase) => self.started(&mut state, phase),
            Event::Ended { phase, bytes } => self.ended(&mut state, phase, bytes, false),
            Event::Paused { phase, bytes } => self.ended(&mut state, phase, bytes, true),
            Event::Progress(phase, progress) => self.progress(&mut state, phase, progress),
            Event::ChainFound { tip, height, by } => {
                self.chain_found(&mut state, tip, height, by);
            }
            Event::DiskNeeded { what, bytes, free } => {
                self.disk_needed(&mut state, what, bytes, free);
            }
            Event::Waiting { height, tip } => self.waiting(&mut state, height, tip),
            Event::Tip { height, tip } => {
                self.shared.lock().chain_found = Some((height, tip));
                self.say_and_note(&mut state, "tip", format!("new tip at height {height}: {tip}"));
                self.json(serde_json::json!({
                    "event": "tip", "height": height, "tip": tip.to_string()
                }));
            }
            Event::Resumed { segments, of } => {
                state.history.segments_resumed = segments;
                let text = format!("resuming: {segments} of {of} segments done already");
                self.say_and_note(&mut state, "resumed", text);
                self.json(serde_json::json!({
                    "event": "resumed", "segments": segments, "of": of
                }));
            }
            Event::Warning(warning) => {
                let text = warning.to_string();
                if self.style != Style::None {
                    self.say(&mut state, &format!("warning: {text}"));
                }
                self.json(serde_json::json!({"event": "warning", "text": text}));
                self.note(&mut state, "warning", text.clone());
                if warning.is_of_chain() {
                    state.history.lasting.push(text.clone());
                }
                state.history.warnings.push(text);
            }
            Event::Workers(workers) => self.workers(&mut state, workers),
            Event::MemoryFreed => {
                drop(state);
                allocator::give_back();
            }
        }
    }
}

fn all_peers(status: &NetworkStatus) -> serde_json::Value {
    status.peers.iter().map(peers::json).collect()
}

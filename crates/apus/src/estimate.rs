//! [`ProgressEstimate`]: estimates a job's progress over all its phases: fraction done, rate, and time left.
//!
//! A cost model gives each expected phase a [cost](PhaseCost) from the bytes of blocks and the number of coins. Once a
//! phase has run for a while, the time that it took replaces its modelled cost and scales the costs of the others. So
//! the percentage measures time rather than blocks, and it moves evenly on any machine. A phase that makes no progress
//! for [`STALL_SECONDS`] has no rate and no time left. Callers pass the time as an argument: nothing here reads a
//! clock.

mod expected;

pub(crate) use expected::{ExpectedPhase, RunMethod, SegmentMap, Writes, expected};

use apus_sync::{Phase, Progress};
use expected::{Amounts, PhaseCost};
use std::collections::VecDeque;

/// Rates are averages over this many seconds.
const RATE_SECONDS: f64 = 60.0;

/// Distance between the points that rates are computed from, in seconds.
const POINT_SECONDS: f64 = 0.5;

/// Minimum seconds that a phase must run before its measured time counts.
const MEASURED_SECONDS_MIN: f64 = 0.5;

/// Minimum fraction of a phase that must be done before its measured time counts.
const MEASURED_FRACTION_MIN: f64 = 0.002;

/// A phase that makes no progress for this many seconds has stalled.
pub(crate) const STALL_SECONDS: f64 = 15.0;

/// Bytes of blocks to assume until they are known: roughly those of the main chain.
const BYTES_UNKNOWN: f64 = 700e9;

/// Unspent coins per byte of blocks to assume until they are known: roughly those of the main chain.
const COINS_PER_BYTE: f64 = 0.3e-3;

/// Bounds on how much slower a machine is than the reference machine of the cost model. Beyond them the model is wrong.
const SCALE_MIN: f64 = 0.2;
const SCALE_MAX: f64 = 50.0;

/// Upper bound on the scale for look-ups: they are reads and checksums, whose speed hardly depends on the build.
const LOOK_UP_SCALE_MAX: f64 = 1.5;

/// The state of a phase.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepState {
    Waiting,
    Running,
    /// Waits for the next batch of blocks, after a part of its work.
    Paused,
    Done,
}

impl StepState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Paused => "paused",
            Self::Done => "done",
        }
    }
}

/// A phase of the job, with its progress.
#[derive(Debug, Clone)]
pub(crate) struct PhaseStep {
    pub(crate) phase: Phase,
    pub(crate) state: StepState,
    /// The last progress reported.
    pub(crate) progress: Progress,
    /// Bytes of the phase's input, once it is done.
    pub(crate) bytes: u64,
    /// How long the phase took, or has been running, in seconds.
    pub(crate) seconds: f64,
    cost: PhaseCost,
    /// Whether the phase takes place only if its work is announced before the blocks phase starts.
    if_announced: bool,
    began: f64,
    /// The first progress reported. Work done by earlier starts must not count towards this one's rate.
    first: Option<Progress>,
    /// The total work, if it was announced before the phase.
    ahead: Option<u64>,
    points: VecDeque<EstimatePoint>,
    /// Seconds that the job's threads worked in the phase, or the elapsed time if that is less.
    worked: f64,
    /// The part of it before the last pause.
    worked_before: f64,
    /// When the phase last made progress, and how long ago that is.
    moved: f64,
    quiet_seconds: f64,
}

/// The progress of a phase at some time.
#[derive(Debug, Clone, Copy)]
struct EstimatePoint {
    seconds: f64,
    progress: Progress,
}

/// Blocks and bytes of blocks per second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct StepRate {
    pub(crate) blocks: f64,
    pub(crate) bytes: f64,
}

impl PhaseStep {
    fn new(ExpectedPhase { phase, cost, if_announced }: ExpectedPhase) -> Self {
        Self {
            phase,
            state: StepState::Waiting,
            progress: Progress::default(),
            bytes: 0,
            seconds: 0.0,
            cost,
            if_announced,
            began: 0.0,
            first: None,
            ahead: None,
            points: VecDeque::new(),
            worked: 0.0,
            worked_before: 0.0,
            moved: 0.0,
            quiet_seconds: 0.0,
        }
    }

    /// Whether the phase has made no progress for [`STALL_SECONDS`].
    pub(crate) fn is_stalled(&self) -> bool {
        self.state == StepState::Running && self.quiet_seconds >= STALL_SECONDS
    }

    /// How long ago the phase last made progress, in seconds.
    pub(crate) fn quiet_seconds(&self) -> f64 {
        self.quiet_seconds
    }

    /// The fraction done; `None` if the total is unknown.
    pub(crate) fn fraction(&self) -> Option<f64> {
        match self.state {
            StepState::Waiting => Some(0.0),
            StepState::Done => Some(1.0),
            StepState::Running | StepState::Paused => self.fraction_of(self.progress),
        }
    }

    fn fraction_of(&self, progress: Progress) -> Option<f64> {
        let (done, all) = amounts(progress)?;
        // The blocks below belong to an earlier phase.
        let below = self.ahead.map_or(0, |ahead| all.saturating_sub(ahead));
        let (done, all) = (done.saturating_sub(below), all - below);
        (all > 0).then(|| (done as f64 / all as f64).min(1.0))
    }

    fn first_fraction(&self) -> f64 {
        self.first.and_then(|first| self.fraction_of(first)).unwrap_or_default()
    }

    /// The fraction of the phase that this start did.
    fn done_here(&self) -> f64 {
        self.fraction().map_or(0.0, |fraction| (fraction - self.first_fraction()).max(0.0))
    }

    /// The rate over the last minute; zero if the phase has stalled.
    pub(crate) fn rate(&self) -> StepRate {
        let (Some(old), Some(new)) = (self.points.front(), self.points.back()) else {
            return StepRate::default();
        };
        if self.is_stalled() {
            return StepRate::default();
        }
        let seconds = new.seconds - old.seconds;
        if seconds <= 0.0 {
            return StepRate::default();
        }
        let of = |new: u64, old: u64| new.saturating_sub(old) as f64 / seconds;
        StepRate {
            blocks: of(new.progress.blocks, old.progress.blocks),
            bytes: of(new.progress.bytes, old.progress.bytes),
        }
    }

    /// Seconds left at the rate of the last minute; `None` until the phase has run long enough to measure.
    pub(crate) fn left_seconds(&self) -> Option<f64> {
        let is_measured = self.seconds >= MEASURED_SECONDS_MIN && !self.is_stalled();
        if self.state != StepState::Running || !is_measured {
            return None;
        }
        let (old, new) = (self.points.front()?, self.points.back()?);
        let fraction = self.fraction()?;
        let moved = self.fraction_of(new.progress)? - self.fraction_of(old.progress)?;
        let left = (1.0 - fraction) * (new.seconds - old.seconds) / moved;
        left.is_finite().then_some(left)
    }

    /// Seconds that the whole phase takes, extrapolated from this start; `None` until it has run long enough to
    /// measure.
    fn whole_seconds(&self) -> Option<f64> {
        let here = self.done_here();
        let is_measured = match self.state {
            StepState::Waiting => false,
            StepState::Running | StepState::Paused => {
                here >= MEASURED_FRACTION_MIN && self.seconds >= MEASURED_SECONDS_MIN
            }
            StepState::Done => here > 0.0,
        };
        is_measured.then(|| self.seconds / here)
    }

    fn note(&mut self, seconds: f64, progress: Progress) {
        if self.first.is_none() || self.progress != progress {
            self.moved = seconds;
        }
        self.progress = progress;
        self.first.get_or_insert(progress);
        self.pass(seconds);
        let point = EstimatePoint { seconds, progress };
        let due = |last: &EstimatePoint| seconds - last.seconds >= POINT_SECONDS;
        match self.points.len() {
            // The newest point moves until the next one is due.
            count if count >= 2 && !due(&self.points[count - 2]) => self.points[count - 1] = point,
            _ => self.points.push_back(point),
        }
        while self.points.len() > 2 && seconds - self.points[1].seconds >= RATE_SECONDS {
            self.points.pop_front();
        }
    }

    /// Records how long the job's threads worked since the phase began or continued.
    fn work(&mut self, cpu_seconds: f64, threads: f64) {
        let worked = self.worked_before + cpu_seconds / self.cost.threads(threads);
        self.worked = self.seconds.min(worked);
    }

    /// Ends or pauses the phase.
    fn leave(&mut self, state: StepState, seconds: f64, cpu_seconds: f64, threads: f64) {
        (self.state, self.seconds) = (state, seconds - self.began);
        self.work(cpu_seconds, threads);
    }

    /// Continues after a pause, whose time does not count.
    fn resume(&mut self, seconds: f64) {
        self.state = StepState::Running;
        (self.began, self.moved) = (seconds - self.seconds, seconds);
        self.worked_before = self.worked;
        self.points.clear();
    }

    /// Advances the phase's time.
    fn pass(&mut self, seconds: f64) {
        self.seconds = seconds - self.began;
        self.quiet_seconds = seconds - self.moved;
    }
}

/// Returns the work done and the total work, in the best unit whose total is known; `None` if no total is known.
fn amounts(progress: Progress) -> Option<(u64, u64)> {
    let Progress { blocks, blocks_total, bytes, bytes_total, .. } = progress;
    let Progress { weight, weight_total, coins, coins_total, .. } = progress;
    let sizes = [(weight, weight_total), (bytes, bytes_total)];
    let mut pairs = sizes.into_iter().chain([(blocks, blocks_total), (coins, coins_total)]);
    pairs.find(|(_, total)| *total > 0)
}

/// The progress estimate of a job over all its phases.
#[derive(Debug, Clone)]
pub(crate) struct ProgressEstimate {
    steps: Vec<PhaseStep>,
    threads: usize,
    /// The highest fraction shown so far: progress never goes backwards.
    shown: f64,
    /// Bytes of all blocks, as far as known.
    block_bytes: f64,
    /// Number of coins that stay unspent, once the job has reported it.
    coins: Option<f64>,
    pub(crate) map: SegmentMap,
}

impl ProgressEstimate {
    /// Creates the estimate for a job with these phases and this number of threads.
    pub(crate) fn new(expected: Vec<ExpectedPhase>, threads: usize) -> Self {
        let steps = expected.into_iter().map(PhaseStep::new).collect();
        let (threads, map) = (threads.max(1), SegmentMap::default());
        Self { steps, threads, shown: 0.0, block_bytes: BYTES_UNKNOWN, coins: None, map }
    }

    /// The phases, in their order.
    pub(crate) fn steps(&self) -> &[PhaseStep] {
        &self.steps
    }

    /// The running phase.
    pub(crate) fn running(&self) -> Option<&PhaseStep> {
        self.steps.iter().find(|step| step.state == StepState::Running)
    }

    /// Begins a phase, and drops the expected phases before it, which were skipped; or continues a paused one.
    pub(crate) fn started(&mut self, phase: Phase, seconds: f64) {
        let is_paused =
            |step: &&mut PhaseStep| step.phase == phase && step.state == StepState::Paused;
        if let Some(step) = self.steps.iter_mut().find(is_paused) {
            step.resume(seconds);
            return;
        }
        let waits = |step: &PhaseStep| step.phase == phase && step.state == StepState::Waiting;
        let at = match self.steps.iter().position(waits) {
            Some(at) => {
                let mut before = 0..at;
                self.steps
                    .retain(|step| before.next().is_none() || step.state != StepState::Waiting);
                self.steps.iter().position(waits).unwrap_or(0)
            }
            None => {
                let is_past = |step: &PhaseStep| step.state != StepState::Waiting;
                let at = self.steps.iter().rposition(is_past).map_or(0, |last| last + 1);
                self.steps.insert(at, PhaseStep::new(ExpectedPhase::of(phase)));
                at
            }
        };
        let step = &mut self.steps[at];
        (step.state, step.began, step.moved) = (StepState::Running, seconds, seconds);
        if phase == Phase::Blocks {
            let stays = |step: &PhaseStep| {
                step.state != StepState::Waiting || !step.if_announced || step.ahead.is_some()
            };
            self.steps.retain(stays);
        }
    }

    /// Records how much work a later phase will have.
    pub(crate) fn ahead(&mut self, phase: Phase, progress: Progress) {
        if progress.coins_total > 0 {
            self.coins = Some(progress.coins_total as f64);
            return;
        }
        let Some((_, all)) = amounts(progress) else { return };
        let waits = |step: &&mut PhaseStep| step.phase == phase && step.state == StepState::Waiting;
        if let Some(step) = self.steps.iter_mut().find(waits) {
            step.ahead = Some(all);
            step.progress = progress;
        }
    }

    /// Advances the running phase's time to `seconds`; needs no new progress.
    pub(crate) fn tick(&mut self, seconds: f64) {
        let mut running = self.steps.iter_mut().filter(|step| step.state == StepState::Running);
        if let Some(step) = running.next() {
            step.pass(seconds);
        }
    }

    /// Records the running phase's progress. `cpu_seconds` is the time that all threads used in it.
    pub(crate) fn progress(
        &mut self,
        phase: Phase,
        seconds: f64,
        progress: Progress,
        cpu_seconds: f64,
    ) {
        let threads = self.threads as f64;
        let Some(step) = self.running_mut(phase) else { return };
        step.note(seconds, progress);
        step.work(cpu_seconds, threads);
        if matches!(phase, Phase::Blocks | Phase::Connect) {
            let fraction = amounts(progress).map_or(0.0, |(done, all)| done as f64 / all as f64);
            let by_fraction = progress.bytes as f64 / fraction;
            // Use the known total, or extrapolate from the blocks so far, or keep the guess.
            self.block_bytes = match progress.bytes_total {
                0 if by_fraction.is_finite() && by_fraction > 0.0 => by_fraction,
                0 => progress.weight_total as f64,
                known => known as f64,
            };
        }
        if progress.coins_total > 0 {
            self.coins = Some(progress.coins_total as f64);
        }
    }

    /// Returns the bytes of blocks and the number of coins, as far as known.
    fn amounts(&self) -> Amounts {
        let block_bytes = self.block_bytes;
        let of = |step: &PhaseStep| {
            let Progress { coins, coins_about, .. } = step.progress;
            let coins = coins.max(coins_about) as f64 / step.fraction()?;
            (coins > 0.0 && coins.is_finite()).then_some(coins)
        };
        let takes_blocks = |step: &&PhaseStep| matches!(step.phase, Phase::Blocks | Phase::Connect);
        let coins =
            self.coins.or_else(|| self.steps.iter().rev().filter(takes_blocks).find_map(of));
        Amounts { block_bytes, coins: coins.unwrap_or(COINS_PER_BYTE * block_bytes) }
    }

    /// Ends a phase.
    pub(crate) fn ended(&mut self, phase: Phase, seconds: f64, bytes: u64, cpu_seconds: f64) {
        let threads = self.threads as f64;
        if let Some(step) = self.running_mut(phase) {
            step.bytes = bytes;
            step.leave(StepState::Done, seconds, cpu_seconds, threads);
        }
    }

    /// Ends a phase for now.
    pub(crate) fn paused(&mut self, phase: Phase, seconds: f64, cpu_seconds: f64) {
        let threads = self.threads as f64;
        if let Some(step) = self.running_mut(phase) {
            step.leave(StepState::Paused, seconds, cpu_seconds, threads);
        }
    }

    fn running_mut(&mut self, phase: Phase) -> Option<&mut PhaseStep> {
        let runs = |step: &&mut PhaseStep| step.phase == phase && step.state == StepState::Running;
        self.steps.iter_mut().find(runs)
    }

    /// Seconds that a whole phase takes on the reference machine of the cost model. Blocks above the hints count in
    /// proportion to those below.
    fn cost(&self, step: &PhaseStep) -> f64 {
        let all = step.cost.seconds(self.amounts(), self.threads as f64);
        let below = self.steps.iter().find(|step| step.phase == Phase::Blocks);
        match (step.ahead, below.and_then(|below| amounts(below.progress))) {
            (Some(ahead), Some((_, below))) if below > 0 => all * ahead as f64 / below as f64,
            _ => all,
        }
    }

    /// Measures this machine's time as a multiple of the reference machine's, over the phases that `is_counted`
    /// selects.
    fn scale_of(&self, is_counted: impl Fn(&PhaseStep) -> bool) -> Option<f64> {
        let (mut worked, mut cost) = (0.0, 0.0);
        for step in self.steps.iter().filter(|step| is_counted(step)) {
            if step.whole_seconds().is_some() {
                worked += step.worked;
                cost += self.cost(step) * step.done_here();
            }
        }
        (cost > 0.0 && worked > 0.0).then(|| (worked / cost).clamp(SCALE_MIN, SCALE_MAX))
    }

    /// Seconds that a waiting phase takes on this machine; `None` until the machine's speed is measured.
    fn seconds_here(&self, step: &PhaseStep) -> Option<f64> {
        let of_coins = || self.scale_of(|step| step.phase == Phase::Coins);
        let is_heavy =
            |step: &PhaseStep| matches!(step.phase, Phase::Blocks | Phase::Connect | Phase::Join);
        let of_blocks = || {
            let without_scripts = |it: &PhaseStep| is_heavy(it) && !it.cost.runs_scripts();
            self.scale_of(without_scripts).or_else(|| self.scale_of(is_heavy))
        };
        let scale = match step.cost.is_of_coins() {
            true => of_coins().or_else(of_blocks),
            false => of_blocks(),
        };
        let (scale, looked_up) = (scale?, step.cost.looked_up_seconds(self.amounts()));
        Some(self.cost(step) * scale + looked_up * scale.min(LOOK_UP_SCALE_MAX))
    }

    /// The fraction of the whole job that is done.
    pub(crate) fn fraction(&self) -> f64 {
        let (mut done, mut all) = (0.0, 0.0);
        for step in &self.steps {
            let whole = step.whole_seconds().or_else(|| self.seconds_here(step));
            let whole = whole.unwrap_or_else(|| self.cost(step));
            done += match step.fraction() {
                Some(fraction) => whole * fraction,
                None => step.seconds.min(whole),
            };
            all += whole;
        }
        if all > 0.0 { (done / all).max(self.shown) } else { self.shown }
    }

    /// Keeps the fraction as a lower bound, so that it never decreases.
    pub(crate) fn keep(&mut self) {
        self.shown = self.fraction();
    }

    /// Seconds left for the whole job; `None` if unknown.
    pub(crate) fn left_seconds(&self) -> Option<f64> {
        let step = self.running()?;
        if step.is_stalled() {
            return None;
        }
        let now = match step.left_seconds() {
            Some(left) => left,
            // The phase's total is unknown: fall back on the cost model.
            None if step.fraction().is_none() => (self.seconds_here(step)? - step.seconds).max(0.0),
            None => return None,
        };
        let is_later =
            |step: &&PhaseStep| matches!(step.state, StepState::Waiting | StepState::Paused);
        // The time of a phase that runs all scripts is unknown until it runs.
        let is_known = |step: &PhaseStep| step.if_announced || !step.cost.runs_scripts();
        let seconds = |step: &PhaseStep| match step.whole_seconds() {
            Some(whole) => Some(whole * (1.0 - step.fraction().unwrap_or_default())),
            None => self.seconds_here(step).filter(|_| is_known(step)),
        };
        let later: Option<f64> = self.steps.iter().filter(is_later).map(seconds).sum();
        Some(now + later?)
    }
}

/// Whether a phase may download headers or blocks from peers.
pub(crate) fn takes_of_peers(phase: Phase) -> bool {
    takes_blocks(phase) || matches!(phase, Phase::Headers | Phase::Hints | Phase::Index)
}

/// Whether a phase processes blocks.
pub(crate) fn takes_blocks(phase: Phase) -> bool {
    matches!(
        phase,
        Phase::Blocks
            | Phase::Connect
            | Phase::Copy
            | Phase::Spends
            | Phase::Survey
            | Phase::Extra("index-blocks")
    )
}

/// Keeps every other point of a series, starting with the first.
pub(crate) fn keep_every_other<T>(points: &mut Vec<T>) {
    let mut keep = false;
    points.retain(|_| {
        keep = !keep;
        keep
    });
}

/// Formats seconds for people, in one or two units.
pub(crate) fn duration(seconds: f64) -> String {
    let seconds = seconds.round() as u64;
    match seconds {
        ..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        3600..86_400 => format!("{} h {:02} min", seconds / 3600, seconds / 60 % 60),
        _ => format!("{} d {} h", seconds / 86_400, seconds / 3600 % 24),
    }
}

#[cfg(test)]
mod tests;

//! [`RunCourse`]: how far a run is, over all its phases, how fast, and how long it takes yet.
//!
//! Each phase that is expected has a [cost](PhaseCost), by how many bytes of blocks and how many coins there are. Once a phase
//! has run for a while, what it took stands for its cost, and scales those of the others. So the percent of the run is one
//! of time that is needed, and moves evenly, whatever the machine. A phase that does not move for [`STALL_SECONDS`] has
//! no rate and no time left. Time is handed in: nothing here looks at a clock.

mod expected;

pub(crate) use expected::{Expected, RunWay, SegmentMap, Writes, expected};

use apus_sync::{Phase, Progress};
use expected::{Amounts, PhaseCost};
use std::collections::VecDeque;

/// Rates are those of so many seconds.
const RATE_SECONDS: f64 = 60.0;

/// How far apart the points are that rates are taken from, in seconds.
const POINT_SECONDS: f64 = 0.5;

/// So long a phase runs, in seconds, before what it took says something.
const TELLING_SECONDS: f64 = 0.5;

/// And so much of it must have been done.
const TELLING_FRACTION: f64 = 0.002;

/// A phase that does not move for so many seconds stands still.
pub(crate) const STALL_SECONDS: f64 = 15.0;

/// So many bytes of blocks there are, about as on the main chain, until it is known.
const BYTES_UNKNOWN: f64 = 700e9;

/// So many coins a byte of blocks leaves, about as on the main chain, until it is known.
const COINS_PER_BYTE: f64 = 0.3e-3;

/// A machine is at most so much faster or slower than the one that costs are of; beyond that, costs are wrong.
const SCALE_MIN: f64 = 0.2;
const SCALE_MAX: f64 = 50.0;

/// Looking coins up is reading and checksums, which hardly depend on how this program was compiled.
const LOOK_UP_SCALE_MAX: f64 = 1.5;

/// Where a phase is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum StepState {
    Waiting,
    Running,
    Done,
}

impl StepState {
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Waiting => "waiting",
            Self::Running => "running",
            Self::Done => "done",
        }
    }
}

/// A phase of the run.
#[derive(Debug, Clone)]
pub(crate) struct PhaseStep {
    pub(crate) phase: Phase,
    pub(crate) state: StepState,
    /// As last told.
    pub(crate) progress: Progress,
    /// Bytes of its input, once it is done.
    pub(crate) bytes: u64,
    /// How long it took, or runs, in seconds.
    pub(crate) seconds: f64,
    cost: PhaseCost,
    /// It only comes if it was told ahead before blocks are taken.
    if_told: bool,
    began: f64,
    /// The first progress told: what earlier starts had done says nothing about this one's rate.
    first: Option<Progress>,
    /// All that there is to do, where that was told ahead.
    ahead: Option<u64>,
    points: VecDeque<CoursePoint>,
    /// Seconds of work that the run's threads did in it, if that is less than passed.
    worked: f64,
    /// When it last moved, and how long ago that is.
    moved: f64,
    quiet_seconds: f64,
}

/// Where a phase was at some time.
#[derive(Debug, Clone, Copy)]
struct CoursePoint {
    seconds: f64,
    progress: Progress,
}

/// Blocks, and bytes of blocks, a second.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub(crate) struct StepRate {
    pub(crate) blocks: f64,
    pub(crate) bytes: f64,
}

impl PhaseStep {
    fn new(Expected { phase, cost, if_told }: Expected) -> Self {
        Self {
            phase,
            state: StepState::Waiting,
            progress: Progress::default(),
            bytes: 0,
            seconds: 0.0,
            cost,
            if_told,
            began: 0.0,
            first: None,
            ahead: None,
            points: VecDeque::new(),
            worked: 0.0,
            moved: 0.0,
            quiet_seconds: 0.0,
        }
    }

    /// Whether it has not moved for long.
    pub(crate) fn stands_still(&self) -> bool {
        self.state == StepState::Running && self.quiet_seconds >= STALL_SECONDS
    }

    /// How long ago it last moved.
    pub(crate) fn quiet_seconds(&self) -> f64 {
        self.quiet_seconds
    }

    /// How much is done; none where it is not known how much there is.
    pub(crate) fn fraction(&self) -> Option<f64> {
        match self.state {
            StepState::Waiting => Some(0.0),
            StepState::Done => Some(1.0),
            StepState::Running => self.fraction_of(self.progress),
        }
    }

    fn fraction_of(&self, progress: Progress) -> Option<f64> {
        let (done, all) = amounts(progress)?;
        // What lies below was another phase's.
        let below = self.ahead.map_or(0, |ahead| all.saturating_sub(ahead));
        let (done, all) = (done.saturating_sub(below), all - below);
        (all > 0).then(|| (done as f64 / all as f64).min(1.0))
    }

    fn first_fraction(&self) -> f64 {
        self.first.and_then(|first| self.fraction_of(first)).unwrap_or_default()
    }

    /// What this start did of it.
    fn done_here(&self) -> f64 {
        self.fraction().map_or(0.0, |fraction| (fraction - self.first_fraction()).max(0.0))
    }

    /// Over the last minute; none where it stands still.
    pub(crate) fn rate(&self) -> StepRate {
        let (Some(old), Some(new)) = (self.points.front(), self.points.back()) else {
            return StepRate::default();
        };
        if self.stands_still() {
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

    /// Seconds that it takes yet, by the rate of the last minute; none before that says something.
    pub(crate) fn left_seconds(&self) -> Option<f64> {
        let tells = self.seconds >= TELLING_SECONDS && !self.stands_still();
        if self.state != StepState::Running || !tells {
            return None;
        }
        let (old, new) = (self.points.front()?, self.points.back()?);
        let fraction = self.fraction()?;
        let moved = self.fraction_of(new.progress)? - self.fraction_of(old.progress)?;
        let left = (1.0 - fraction) * (new.seconds - old.seconds) / moved;
        left.is_finite().then_some(left)
    }

    /// Seconds that all of it takes, where this start tells.
    fn whole_seconds(&self) -> Option<f64> {
        let here = self.done_here();
        let tells = match self.state {
            StepState::Waiting => false,
            StepState::Running => here >= TELLING_FRACTION && self.seconds >= TELLING_SECONDS,
            StepState::Done => here > 0.0,
        };
        tells.then(|| self.seconds / here)
    }

    fn note(&mut self, seconds: f64, progress: Progress) {
        if self.first.is_none() || self.progress != progress {
            self.moved = seconds;
        }
        self.progress = progress;
        self.first.get_or_insert(progress);
        self.pass(seconds);
        let point = CoursePoint { seconds, progress };
        let due = |last: &CoursePoint| seconds - last.seconds >= POINT_SECONDS;
        match self.points.len() {
            // The newest one moves on until the next is due.
            count if count >= 2 && !due(&self.points[count - 2]) => self.points[count - 1] = point,
            _ => self.points.push_back(point),
        }
        while self.points.len() > 2 && seconds - self.points[1].seconds >= RATE_SECONDS {
            self.points.pop_front();
        }
    }

    /// It is so late.
    fn pass(&mut self, seconds: f64) {
        self.seconds = seconds - self.began;
        self.quiet_seconds = seconds - self.moved;
    }
}

/// What is done of how much, in whatever tells best; none where that is not known.
fn amounts(progress: Progress) -> Option<(u64, u64)> {
    let Progress { blocks, blocks_total, bytes, bytes_total, .. } = progress;
    let Progress { weight, weight_total, coins, coins_total, .. } = progress;
    let sizes = [(weight, weight_total), (bytes, bytes_total)];
    let mut pairs = sizes.into_iter().chain([(blocks, blocks_total), (coins, coins_total)]);
    pairs.find(|(_, total)| *total > 0)
}

/// See the module.
#[derive(Debug, Clone)]
pub(crate) struct RunCourse {
    steps: Vec<PhaseStep>,
    threads: usize,
    /// A percent that was told is not taken back.
    told: f64,
    /// Bytes of all blocks, as far as they are known.
    block_bytes: f64,
    /// How many coins the blocks leave, where the run has said it.
    coins: Option<f64>,
    pub(crate) map: SegmentMap,
}

impl RunCourse {
    /// A run that has these phases, on so many threads.
    pub(crate) fn new(expected: Vec<Expected>, threads: usize) -> Self {
        let steps = expected.into_iter().map(PhaseStep::new).collect();
        let (threads, map) = (threads.max(1), SegmentMap::default());
        Self { steps, threads, told: 0.0, block_bytes: BYTES_UNKNOWN, coins: None, map }
    }

    /// The phases, in their order.
    pub(crate) fn steps(&self) -> &[PhaseStep] {
        &self.steps
    }

    /// The phase that runs.
    pub(crate) fn running(&self) -> Option<&PhaseStep> {
        self.steps.iter().find(|step| step.state == StepState::Running)
    }

    /// A phase begins. Those that were to come before it are not needed.
    pub(crate) fn started(&mut self, phase: Phase, seconds: f64) {
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
                self.steps.insert(at, PhaseStep::new(Expected::of(phase)));
                at
            }
        };
        let step = &mut self.steps[at];
        (step.state, step.began, step.moved) = (StepState::Running, seconds, seconds);
        if phase == Phase::Blocks {
            let stays = |step: &PhaseStep| {
                step.state != StepState::Waiting || !step.if_told || step.ahead.is_some()
            };
            self.steps.retain(stays);
        }
    }

    /// A phase that is to come will have so much to do.
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

    /// It is so late, whether anything moved or not.
    pub(crate) fn tick(&mut self, seconds: f64) {
        let mut running = self.steps.iter_mut().filter(|step| step.state == StepState::Running);
        if let Some(step) = running.next() {
            step.pass(seconds);
        }
    }

    /// The running phase is so far. `cpu_seconds` is what all threads used in it.
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
        step.worked = step.seconds.min(cpu_seconds / step.cost.threads(threads));
        if matches!(phase, Phase::Blocks | Phase::Connect) {
            let fraction = amounts(progress).map_or(0.0, |(done, all)| done as f64 / all as f64);
            let by_fraction = progress.bytes as f64 / fraction;
            // Their sizes are known, or are like those so far, or are guessed.
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

    /// How much there is, as far as it is known.
    fn amounts(&self) -> Amounts {
        let block_bytes = self.block_bytes;
        let of = |step: &PhaseStep| {
            let Progress { coins, coins_about, .. } = step.progress;
            let coins = coins.max(coins_about) as f64 / step.fraction()?;
            (coins > 0.0 && coins.is_finite()).then_some(coins)
        };
        let takes_blocks = |step: &&PhaseStep| matches!(step.phase, Phase::Blocks | Phase::Connect);
        let told = self.coins.or_else(|| self.steps.iter().rev().filter(takes_blocks).find_map(of));
        Amounts { block_bytes, coins: told.unwrap_or(COINS_PER_BYTE * block_bytes) }
    }

    /// A phase is over.
    pub(crate) fn ended(&mut self, phase: Phase, seconds: f64, bytes: u64, cpu_seconds: f64) {
        let threads = self.threads as f64;
        if let Some(step) = self.running_mut(phase) {
            (step.state, step.bytes) = (StepState::Done, bytes);
            step.seconds = seconds - step.began;
            step.worked = step.seconds.min(cpu_seconds / step.cost.threads(threads));
        }
    }

    fn running_mut(&mut self, phase: Phase) -> Option<&mut PhaseStep> {
        let runs = |step: &&mut PhaseStep| step.phase == phase && step.state == StepState::Running;
        self.steps.iter_mut().find(runs)
    }

    /// Seconds that all of a step takes on the machine that costs are of. What there is above hints goes by how much
    /// that is beside what lies below.
    fn cost(&self, step: &PhaseStep) -> f64 {
        let all = step.cost.seconds(self.amounts(), self.threads as f64);
        let below = self.steps.iter().find(|step| step.phase == Phase::Blocks);
        match (step.ahead, below.and_then(|below| amounts(below.progress))) {
            (Some(ahead), Some((_, below))) if below > 0 => all * ahead as f64 / below as f64,
            _ => all,
        }
    }

    /// How much longer than there this machine takes, by what was done of such phases.
    fn scale_of(&self, is_telling: impl Fn(&PhaseStep) -> bool) -> Option<f64> {
        let (mut worked, mut cost) = (0.0, 0.0);
        for step in self.steps.iter().filter(|step| is_telling(step)) {
            if step.whole_seconds().is_some() {
                worked += step.worked;
                cost += self.cost(step) * step.done_here();
            }
        }
        (cost > 0.0 && worked > 0.0).then(|| (worked / cost).clamp(SCALE_MIN, SCALE_MAX))
    }

    /// Seconds that a step that has not begun takes here; none before anything tells how fast this machine is.
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

    /// How much of the whole run is done.
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
        if all > 0.0 { (done / all).max(self.told) } else { self.told }
    }

    /// Keeps what is told from going back.
    pub(crate) fn keep(&mut self) {
        self.told = self.fraction();
    }

    /// Seconds that the whole run takes yet; none where that cannot be told.
    pub(crate) fn left_seconds(&self) -> Option<f64> {
        let step = self.running()?;
        if step.stands_still() {
            return None;
        }
        let now = match step.left_seconds() {
            Some(left) => left,
            // How much there is of it is not known.
            None if step.fraction().is_none() => (self.seconds_here(step)? - step.seconds).max(0.0),
            None => return None,
        };
        let waiting = self.steps.iter().filter(|step| step.state == StepState::Waiting);
        // Before anything tells, what runs is short.
        let is_known = |step: &PhaseStep| step.if_told || !step.cost.runs_scripts();
        let seconds = |step: &PhaseStep| self.seconds_here(step).filter(|_| is_known(step));
        let later: Option<f64> = waiting.map(seconds).sum();
        Some(now + later?)
    }
}

/// Whether a phase may take headers or blocks of peers.
pub(crate) fn takes_of_peers(phase: Phase) -> bool {
    takes_blocks(phase) || matches!(phase, Phase::Headers | Phase::Hints | Phase::Index)
}

/// Whether blocks are what a phase goes over.
pub(crate) fn takes_blocks(phase: Phase) -> bool {
    matches!(phase, Phase::Blocks | Phase::Connect | Phase::Spends | Phase::Survey)
}

/// Of the points of a course that are too many, the first, the third and so on.
pub(crate) fn keep_every_other<T>(points: &mut Vec<T>) {
    let mut keep = false;
    points.retain(|_| {
        keep = !keep;
        keep
    });
}

/// Seconds as people say them.
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

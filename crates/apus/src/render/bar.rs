//! [`ProgressBar`]: lines at the end of a terminal that are redrawn in place. Their texts are several lines for a
//! terminal of some width ([`lines`]), or one line for logs and files ([`line()`]).
//!
//! The cursor stays at the beginning of the first line, and everything below it belongs to the bar. So the bar need not
//! know how many rows its lines take. When a terminal becomes narrower, some terminals wrap the lines and others cut
//! them off, and neither reports it. In both cases the bar removes itself completely, and never removes text above it.
//!
//! Other output starts where the lines start. So the bar must remove them before the shell takes over: when the user
//! suspends the job with Ctrl-Z ([`clear_when_stopped`]) or interrupts it ([`ProgressBar::leave`]). Only a kill leaves
//! them on the screen.

use crate::estimate::{PhaseStep, StepRate, StepState, duration};
use crate::machine::rss_bytes;
use crate::report::{bytes, grouped};
use crate::status::RunStatus;
use apus_sync::{Progress, Worker};
use console::Term;
use signal_hook::consts::SIGTSTP;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, Write};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

/// Minimum interval between drawings of the bar.
const INTERVAL: Duration = Duration::from_millis(100);

/// Switch line wrapping off and on again (`DECAWM`). While it is off, no line wraps, even if the terminal has become
/// narrower since we read its width.
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

/// Clears the screen from the beginning of the cursor's row.
const CLEAR_BELOW: &str = "\r\x1b[J";

/// A progress bar at the end of the terminal.
pub(crate) struct ProgressBar {
    term: Term,
    /// Whether the lines are on the screen.
    drawn: bool,
    /// Whether the bar must never be drawn again.
    left: bool,
    last: Option<Instant>,
    lines: Vec<String>,
}

impl ProgressBar {
    /// Creates a bar on standard error. Draws nothing yet.
    pub(crate) fn new() -> Self {
        clear_when_stopped();
        Self::at(Term::buffered_stderr())
    }

    fn at(term: Term) -> Self {
        Self { term, drawn: false, left: false, last: None, lines: Vec::new() }
    }

    /// Shows these lines, unless the last drawing is less than [`INTERVAL`] ago; then it does not even call `lines`.
    /// Ignores errors: a failure to draw must not stop the job.
    pub(crate) fn show(&mut self, lines: impl FnOnce() -> Vec<String>) {
        if self.left || self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        self.lines = lines();
        let _ = self.erase().and_then(|()| self.draw()).and_then(|()| self.term.flush());
    }

    /// Prints permanent text above the lines.
    pub(crate) fn print(&mut self, text: &str) {
        let printed = self.erase().and_then(|()| self.term.write_line(text));
        let _ = printed.and_then(|()| self.draw()).and_then(|()| self.term.flush());
    }

    /// Removes the lines.
    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        let _ = self.erase().and_then(|()| self.term.flush());
    }

    /// Removes the lines permanently, since the program may end at any moment, and prints why.
    pub(crate) fn leave(&mut self, why: &str) {
        if !self.left {
            self.left = true;
            self.clear();
            self.print(why);
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        // More lines than the terminal has rows would scroll it; and it may have become narrower since the lines were
        // formatted.
        let (rows, columns) = self.term.size();
        let (rows, columns) = (usize::from(rows).max(2) - 1, usize::from(columns).max(2) - 1);
        let cut = |line: &String| line.chars().take(columns).collect::<String>();
        let shown: Vec<String> = self.lines.iter().take(rows).map(cut).collect();
        self.drawn = !shown.is_empty();
        if !self.drawn {
            return Ok(());
        }
        write!(self.term, "{WRAP_OFF}{}{WRAP_ON}\r", shown.join("\n"))?;
        self.term.move_cursor_up(shown.len() - 1)
    }

    fn erase(&mut self) -> io::Result<()> {
        match std::mem::take(&mut self.drawn) {
            true => self.term.write_all(CLEAR_BELOW.as_bytes()),
            false => Ok(()),
        }
    }
}

/// Removes the lines before Ctrl-Z stops the program; they are drawn again when it continues. If this fails, the shell
/// overwrites them.
fn clear_when_stopped() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let Ok(mut signals) = Signals::new([SIGTSTP]) else { return };
        let wait = move || {
            for signal in &mut signals {
                let term = Term::stderr();
                let _ = (&term).write_all(CLEAR_BELOW.as_bytes());
                let _ = emulate_default_handler(signal);
            }
        };
        // If the thread cannot start, Ctrl-Z does nothing.
        let _ = thread::Builder::new().name("stop".to_owned()).spawn(wait);
    });
}

/// Formats a fraction as percent; shows 100 only if everything is done.
pub(crate) fn percent(fraction: f64) -> String {
    if fraction >= 1.0 {
        return "100 %".to_owned();
    }
    format!("{:.1} %", (100.0 * fraction).min(99.9))
}

/// Formats the facts next to the percentages: blocks, rates, coins, bottleneck, memory.
fn facts(watched: &RunStatus, step: &PhaseStep) -> Vec<String> {
    let Progress { blocks, blocks_total, coins, .. } = step.progress;
    let mut facts = Vec::new();
    if blocks_total > 0 {
        facts.push(format!("{} of {} blocks", grouped(blocks), grouped(blocks_total)));
    }
    let StepRate { blocks: blocks_rate, bytes: bytes_rate } = step.rate();
    if blocks_rate >= 1.0 {
        facts.push(format!("{} blocks/s", grouped(blocks_rate as u64)));
    }
    if bytes_rate >= 1.0 || step.is_stalled() {
        facts.push(format!("{}/s", bytes(bytes_rate as u64)));
    }
    if coins > 0 {
        facts.push(format!("{} coins", grouped(coins)));
    }
    if let Some(stall) = watched.stall() {
        facts.push(stall.to_string());
    } else if let Some(limit) = watched.limited_by() {
        facts.push(format!("limited by {limit}"));
    }
    if let Some(rss) = rss_bytes() {
        facts.push(format!("{} of memory", bytes(rss)));
    }
    facts
}

/// Formats one line: the phase, its progress and facts, and the progress of the whole job.
pub(crate) fn line(watched: &RunStatus, step: &PhaseStep) -> String {
    let mut parts = vec![step.phase.name().to_owned()];
    parts.extend(step.fraction().map(percent));
    parts.extend(facts(watched, step));
    parts.extend(step.left_seconds().map(|left| format!("{} left", duration(left))));
    let mut all = format!("{}; total {}", parts.join(", "), percent(watched.estimate.fraction()));
    if let Some(left) = watched.estimate.left_seconds() {
        all.push_str(&format!(", {} left", duration(left)));
    }
    all
}

/// The width and characters of a terminal.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Canvas {
    /// Number of columns. The last one stays empty, since some terminals wrap after it.
    pub(crate) width: usize,
    /// Whether the terminal shows characters outside ASCII.
    pub(crate) unicode: bool,
}

impl Canvas {
    fn room(self) -> usize {
        self.width.saturating_sub(1).max(20)
    }

    /// Shortens a text to fit in a line.
    pub(crate) fn fit(self, text: &str) -> String {
        Self::cut(text, self.room())
    }

    fn cut(text: &str, room: usize) -> String {
        if text.chars().count() <= room {
            return text.to_owned();
        }
        text.chars().take(room - 3).chain("...".chars()).collect()
    }

    /// Distributes items over as many lines as necessary; breaks no item that fits in a line.
    pub(crate) fn fill(self, items: &[String]) -> Vec<String> {
        let mut lines: Vec<String> = Vec::new();
        for item in items {
            let fits =
                |line: &String| line.chars().count() + 2 + item.chars().count() < self.room();
            match lines.last_mut().filter(|line| fits(line)) {
                Some(line) => {
                    line.push_str(", ");
                    line.push_str(item);
                }
                None => {
                    if let Some(line) = lines.last_mut() {
                        line.push(',');
                    }
                    // Leave room for a comma.
                    lines.push(Self::cut(item, self.room() - 1));
                }
            }
        }
        lines
    }

    /// Draws a bar followed by a text, over the whole line.
    fn bar(self, fraction: f64, text: &str) -> String {
        let (full, empty) = if self.unicode { ('█', '░') } else { ('#', '.') };
        let cells = self.room().saturating_sub(text.chars().count() + 3).max(5);
        let done = ((cells as f64 * fraction) as usize).min(cells);
        let bar: String = (0..cells).map(|cell| if cell < done { full } else { empty }).collect();
        self.fit(&format!("[{bar}] {text}"))
    }
}

/// Formats several lines: a bar for the whole job, all phases with their percentages, and facts about the running one.
pub(crate) fn lines(watched: &RunStatus, step: &PhaseStep, canvas: Canvas) -> Vec<String> {
    let fraction = watched.estimate.fraction();
    let mut text = percent(fraction);
    if let Some(left) = watched.estimate.left_seconds() {
        text.push_str(&format!(", {} left", duration(left)));
    }
    let mut lines = vec![canvas.bar(fraction, &text)];
    let phases = watched.estimate.steps().iter().map(|step| {
        let name = step.phase.name();
        match (step.state, step.fraction()) {
            (StepState::Waiting, _) => format!("{name} -"),
            (StepState::Done, _) => format!("{name} done"),
            (StepState::Running | StepState::Paused, None) => format!("{name} ..."),
            (StepState::Running | StepState::Paused, Some(fraction)) => {
                format!("{name} {}", percent(fraction))
            }
        }
    });
    lines.extend(canvas.fill(&phases.collect::<Vec<_>>()));
    lines.extend(canvas.fill(&facts(watched, step)));
    lines
}

/// Formats one line about a worker machine: its jobs, its speed, when it was last seen, and what it is doing.
pub(crate) fn worker_line(worker: &Worker) -> String {
    let rate = worker.bytes as f64 / worker.busy.as_secs_f64().max(0.001);
    let seen = match worker.seen {
        None => "not seen since this job started".to_owned(),
        Some(seen) => format!("seen {} ago, {}", duration(seen.as_secs_f64()), worker.doing),
    };
    let (name, segments) = (&worker.name, grouped(worker.segments));
    format!("{name}: {segments} jobs, {}/s per thread, {seen}", bytes(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::{ProgressEstimate, RunMethod, Writes, expected};
    use crate::status::RunFacts;
    use apus_sync::Phase;
    use proptest::prelude::*;

    fn watched() -> RunStatus {
        let about = RunFacts { command: "sync", chain: "main", threads: 2, on_servers: false };
        let expected = expected(RunMethod::Hints { connects: false }, false, true, Writes::Files);
        let mut watched = RunStatus::new(about, ProgressEstimate::new(expected, 2));
        watched.estimate.started(Phase::Blocks, 0.0);
        for second in 0..=4 {
            let progress = Progress {
                blocks: 100 * second,
                blocks_total: 1000,
                bytes: 1_000_000 * second,
                bytes_total: 10_000_000,
                coins: 1234,
                ..Progress::default()
            };
            watched.estimate.progress(Phase::Blocks, second as f64, progress, f64::INFINITY);
        }
        watched
    }

    #[test]
    fn a_line_has_the_facts_that_users_need() {
        let watched = watched();
        let step = watched.estimate.running().expect("blocks run");
        let line = line(&watched, step);
        for part in [
            "blocks, 40.0 %",
            "400 of 1,000 blocks",
            "100 blocks/s",
            "1.0 MB/s",
            "1,234 coins",
            "6 s left; total 39.9 %, 6 s left",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn a_terminal_shows_a_bar_and_all_phases() {
        let watched = watched();
        let step = watched.estimate.running().expect("blocks run");
        let lines = lines(&watched, step, Canvas { width: 60, unicode: false });
        assert!(lines[0].starts_with("[####"), "{lines:?}");
        assert!(lines[1].contains("blocks 40.0 %, coins -"), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("400 of 1,000 blocks")), "{lines:?}");
        // Skipped phases are not shown.
        assert!(!lines[1].contains("hints"), "{lines:?}");
    }

    #[test]
    fn percents_and_durations() {
        assert_eq!(percent(0.99999), "99.9 %");
        assert_eq!(percent(1.0), "100 %");
        assert_eq!(duration(59.4), "59 s");
        assert_eq!(duration(61.0), "1 min 01 s");
        assert_eq!(duration(7260.0), "2 h 01 min");
        assert_eq!(duration(200_000.0), "2 d 7 h");
    }

    proptest! {
        #[test]
        fn no_line_is_wider_than_the_terminal(
            width in 21usize..200,
            items in prop::collection::vec("[a-z ä]{1,90}", 0..12),
            fraction in 0.0f64..=1.0,
        ) {
            let canvas = Canvas { width, unicode: true };
            let mut lines = canvas.fill(&items);
            lines.push(canvas.bar(fraction, "40.0 %, 1 min 05 s left"));
            for line in lines {
                prop_assert!(line.chars().count() < width, "{line}");
            }
        }
    }
}

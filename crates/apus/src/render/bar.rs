//! [`ProgressBar`]: lines at the end of a terminal that are drawn anew in their place, and their texts: for a
//! terminal of some width ([`lines`]), and one for logs and files ([`line()`]).
//!
//! The cursor stands at the beginning of the first of them, and all below it is theirs. So nothing has to be known of
//! how many rows they take: when a terminal is made narrower, some break its lines into more rows and others cut them
//! off, and neither says so. Nothing of them is left behind, and nothing above them is lost.
//!
//! What else is written meanwhile begins where they do. So a shell must find them gone: when the user has the run
//! stopped by Ctrl-Z ([`clear_when_stopped`]), and when it is interrupted ([`ProgressBar::leave`]). Only a kill leaves them.

use crate::course::{PhaseStep, StepRate, StepState, duration};
use crate::machine::rss_bytes;
use crate::report::{bytes, grouped};
use crate::watched::Watched;
use apus_sync::{Progress, Worker};
use console::Term;
use signal_hook::consts::SIGTSTP;
use signal_hook::iterator::Signals;
use signal_hook::low_level::emulate_default_handler;
use std::io::{self, Write};
use std::sync::Once;
use std::thread;
use std::time::{Duration, Instant};

/// Drawn no more often than this.
const INTERVAL: Duration = Duration::from_millis(100);

/// No line goes on in the next row, even if the terminal has become narrower since its width was asked for; and what
/// is written later does again (`DECAWM`).
const WRAP_OFF: &str = "\x1b[?7l";
const WRAP_ON: &str = "\x1b[?7h";

/// From the beginning of the cursor's row to the end of the screen.
const CLEAR_BELOW: &str = "\r\x1b[J";

/// See the module.
pub(crate) struct ProgressBar {
    term: Term,
    /// Whether any line is there now.
    drawn: bool,
    /// Whether none is to be drawn any more.
    left: bool,
    last: Option<Instant>,
    lines: Vec<String>,
}

impl ProgressBar {
    /// At the end of standard error. Nothing is drawn yet.
    pub(crate) fn new() -> Self {
        clear_when_stopped();
        Self::at(Term::buffered_stderr())
    }

    fn at(term: Term) -> Self {
        Self { term, drawn: false, left: false, last: None, lines: Vec::new() }
    }

    /// Shows these lines, unless others were shown a moment ago: then they are not even made. That they cannot be
    /// shown is no reason to stop.
    pub(crate) fn show(&mut self, lines: impl FnOnce() -> Vec<String>) {
        if self.left || self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        self.lines = lines();
        let _ = self.erase().and_then(|()| self.draw()).and_then(|()| self.term.flush());
    }

    /// Puts text above the lines, where it stays.
    pub(crate) fn print(&mut self, text: &str) {
        let printed = self.erase().and_then(|()| self.term.write_line(text));
        let _ = printed.and_then(|()| self.draw()).and_then(|()| self.term.flush());
    }

    /// Takes the lines away.
    pub(crate) fn clear(&mut self) {
        self.lines.clear();
        let _ = self.erase().and_then(|()| self.term.flush());
    }

    /// Takes the lines away for good, since the program may end at any moment, and says why.
    pub(crate) fn leave(&mut self, why: &str) {
        if !self.left {
            self.left = true;
            self.clear();
            self.print(why);
        }
    }

    fn draw(&mut self) -> io::Result<()> {
        // What a terminal of few rows has no room for would be scrolled away; and it may have become narrower since
        // the lines were made.
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

/// Has the lines taken away before Ctrl-Z stops the program; they are drawn anew when it goes on. Where that cannot be
/// done, a shell writes over them.
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
        // Without the thread Ctrl-Z does nothing.
        let _ = thread::Builder::new().name("stop".to_owned()).spawn(wait);
    });
}

/// A percent, which is never 100 before all is done.
pub(crate) fn percent(fraction: f64) -> String {
    if fraction >= 1.0 {
        return "100 %".to_owned();
    }
    format!("{:.1} %", (100.0 * fraction).min(99.9))
}

/// Blocks, rates, coins, what holds the run up, memory: what there is to say beside percents.
fn facts(watched: &Watched, step: &PhaseStep) -> Vec<String> {
    let Progress { blocks, blocks_total, coins, .. } = step.progress;
    let mut facts = Vec::new();
    if blocks_total > 0 {
        facts.push(format!("{} of {} blocks", grouped(blocks), grouped(blocks_total)));
    }
    let StepRate { blocks: blocks_rate, bytes: bytes_rate } = step.rate();
    if blocks_rate >= 1.0 {
        facts.push(format!("{} blocks/s", grouped(blocks_rate as u64)));
    }
    if bytes_rate >= 1.0 || step.stands_still() {
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
        facts.push(format!("{} memory", bytes(rss)));
    }
    facts
}

/// One line: the phase and how far it is, what there is to say of it, and the whole run.
pub(crate) fn line(watched: &Watched, step: &PhaseStep) -> String {
    let mut parts = vec![step.phase.name().to_owned()];
    parts.extend(step.fraction().map(percent));
    parts.extend(facts(watched, step));
    parts.extend(step.left_seconds().map(|left| format!("{} left", duration(left))));
    let mut all = format!("{}; all {}", parts.join(", "), percent(watched.course.fraction()));
    if let Some(left) = watched.course.left_seconds() {
        all.push_str(&format!(", {} left", duration(left)));
    }
    all
}

/// What a bar is drawn with.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Canvas {
    /// Columns; the last one stays empty, since some terminals go on to the next line after it.
    pub(crate) width: usize,
    /// Whether it shows more than ASCII.
    pub(crate) unicode: bool,
}

impl Canvas {
    fn room(self) -> usize {
        self.width.saturating_sub(1).max(20)
    }

    /// Text that fits in a line.
    pub(crate) fn fit(self, text: &str) -> String {
        Self::cut(text, self.room())
    }

    fn cut(text: &str, room: usize) -> String {
        if text.chars().count() <= room {
            return text.to_owned();
        }
        text.chars().take(room - 3).chain("...".chars()).collect()
    }

    /// Items put into as many lines as they need; none is broken that fits in a line.
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
                    // A comma may follow.
                    lines.push(Self::cut(item, self.room() - 1));
                }
            }
        }
        lines
    }

    /// A bar with a text behind it, over the whole line.
    fn bar(self, fraction: f64, text: &str) -> String {
        let (full, empty) = if self.unicode { ('█', '░') } else { ('#', '.') };
        let cells = self.room().saturating_sub(text.chars().count() + 3).max(5);
        let done = ((cells as f64 * fraction) as usize).min(cells);
        let bar: String = (0..cells).map(|cell| if cell < done { full } else { empty }).collect();
        self.fit(&format!("[{bar}] {text}"))
    }
}

/// Several lines: a bar of the whole run, all phases with their percents, and what runs now.
pub(crate) fn lines(watched: &Watched, step: &PhaseStep, canvas: Canvas) -> Vec<String> {
    let fraction = watched.course.fraction();
    let mut told = percent(fraction);
    if let Some(left) = watched.course.left_seconds() {
        told.push_str(&format!(", {} left", duration(left)));
    }
    let mut lines = vec![canvas.bar(fraction, &told)];
    let phases = watched.course.steps().iter().map(|step| {
        let name = step.phase.name();
        match (step.state, step.fraction()) {
            (StepState::Waiting, _) => format!("{name} -"),
            (StepState::Done, _) => format!("{name} done"),
            (StepState::Running, None) => format!("{name} ..."),
            (StepState::Running, Some(fraction)) => format!("{name} {}", percent(fraction)),
        }
    });
    lines.extend(canvas.fill(&phases.collect::<Vec<_>>()));
    lines.extend(canvas.fill(&facts(watched, step)));
    lines
}

/// One line: what a machine did, how fast, when it was seen last, and what it does.
pub(crate) fn worker_line(worker: &Worker) -> String {
    let rate = worker.bytes as f64 / worker.busy.as_secs_f64().max(0.001);
    let seen = match worker.seen {
        None => "not seen by this start".to_owned(),
        Some(seen) => format!("seen {} ago, {}", duration(seen.as_secs_f64()), worker.doing),
    };
    let (name, segments) = (&worker.name, grouped(worker.segments));
    format!("{name}: {segments} jobs, {}/s for each thread, {seen}", bytes(rate as u64))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::course::{RunCourse, RunWay, Writes, expected};
    use crate::watched::About;
    use apus_sync::Phase;
    use proptest::prelude::*;

    fn watched() -> Watched {
        let about = About { command: "sync", chain: "main", threads: 2, on_servers: false };
        let expected = expected(RunWay::Hints { connects: false }, false, true, Writes::Files);
        let mut watched = Watched::new(about, RunCourse::new(expected, 2));
        watched.course.started(Phase::Blocks, 0.0);
        for second in 0..=4 {
            let progress = Progress {
                blocks: 100 * second,
                blocks_total: 1000,
                bytes: 1_000_000 * second,
                bytes_total: 10_000_000,
                coins: 1234,
                ..Progress::default()
            };
            watched.course.progress(Phase::Blocks, second as f64, progress, f64::INFINITY);
        }
        watched
    }

    #[test]
    fn a_line_tells_what_a_person_wants_to_know() {
        let watched = watched();
        let step = watched.course.running().expect("blocks run");
        let line = line(&watched, step);
        for part in [
            "blocks, 40.0 %",
            "400 of 1,000 blocks",
            "100 blocks/s",
            "1.0 MB/s",
            "1,234 coins",
            "6 s left; all 39.9 %, 6 s left",
        ] {
            assert!(line.contains(part), "{part} in {line}");
        }
    }

    #[test]
    fn a_terminal_shows_a_bar_and_all_phases() {
        let watched = watched();
        let step = watched.course.running().expect("blocks run");
        let lines = lines(&watched, step, Canvas { width: 60, unicode: false });
        assert!(lines[0].starts_with("[####"), "{lines:?}");
        assert!(lines[1].contains("blocks 40.0 %, coins -"), "{lines:?}");
        assert!(lines.iter().any(|line| line.contains("400 of 1,000 blocks")), "{lines:?}");
        // What is left out was said not to come when the phase began.
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

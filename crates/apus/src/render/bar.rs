//! [`Bar`]: lines at the end of a terminal that are drawn anew in their place.
//!
//! The cursor stands at the beginning of the first of them, and all below it is theirs. So nothing has to be known of
//! how many rows they take: when a terminal is made narrower, some break its lines into more rows and others cut them
//! off, and neither says so. Nothing of them is left behind, and nothing above them is lost.
//!
//! What else is written meanwhile begins where they do. So a shell must find them gone: when the user has the run
//! stopped by Ctrl-Z ([`clear_when_stopped`]), and when it is interrupted ([`Bar::leave`]). Only a kill leaves them.

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
pub(crate) struct Bar {
    term: Term,
    /// Whether any line is there now.
    drawn: bool,
    /// Whether none is to be drawn any more.
    left: bool,
    last: Option<Instant>,
    lines: Vec<String>,
}

impl Bar {
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

#[cfg(test)]
mod tests;

//! [`Bar`]: lines at the end of a terminal that are drawn anew in their place.
//!
//! The cursor stands at the beginning of the line below them, so that what the terminal itself writes there, as `^C`,
//! moves nothing; and how many rows they take is counted by the width that the terminal has when they are cleared, which
//! may not be the one that they were drawn in. So nothing of them is left behind.

use console::Term;
use std::io;
use std::time::{Duration, Instant};

/// Drawn no more often than this.
const INTERVAL: Duration = Duration::from_millis(100);

/// See the module.
pub(crate) struct Bar {
    term: Term,
    /// How wide each line is that is there now.
    drawn: Vec<usize>,
    last: Option<Instant>,
    lines: Vec<String>,
}

impl Bar {
    /// Nothing is drawn yet.
    pub(crate) fn new() -> Self {
        Self { term: Term::buffered_stderr(), drawn: Vec::new(), last: None, lines: Vec::new() }
    }

    /// Shows these lines, unless others were shown a moment ago. That they cannot be shown is no reason to stop.
    pub(crate) fn show(&mut self, lines: Vec<String>) {
        if self.last.is_some_and(|last| last.elapsed() < INTERVAL) {
            return;
        }
        self.last = Some(Instant::now());
        self.lines = lines;
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

    fn draw(&mut self) -> io::Result<()> {
        for line in &self.lines {
            self.term.write_line(line)?;
        }
        self.drawn = self.lines.iter().map(|line| line.chars().count()).collect();
        Ok(())
    }

    fn erase(&mut self) -> io::Result<()> {
        if self.drawn.is_empty() {
            return Ok(());
        }
        let (_, width) = self.term.size();
        let rows = rows(&self.drawn, width.into());
        self.drawn.clear();
        self.term.clear_line()?;
        self.term.move_cursor_up(rows)?;
        self.term.clear_to_end_of_screen()
    }
}

/// How many rows lines of these widths take.
fn rows(lines: &[usize], width: usize) -> usize {
    lines.iter().map(|line| line.div_ceil(width.max(1)).max(1)).sum()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_that_the_terminal_has_broken_take_more_rows() {
        assert_eq!(rows(&[79, 0, 12], 80), 3);
        assert_eq!(rows(&[79, 0, 12], 40), 4);
        assert_eq!(rows(&[80, 81], 40), 5);
        assert_eq!(rows(&[5], 0), 5);
    }
}

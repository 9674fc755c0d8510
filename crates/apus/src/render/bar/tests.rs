//! Draws a bar on a real pseudo-terminal, with two kinds of screen. When it becomes narrower, one reflows its lines,
//! like most terminals today, and the other cuts them off, like xterm.

use super::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// The screen of a terminal.
trait Screen {
    fn feed(&mut self, bytes: &[u8]);
    fn resize(&mut self, rows: u16, columns: u16);
    /// Returns the rows, from the oldest in the scrollback to the last on the screen, without trailing spaces.
    fn rows(&mut self) -> Vec<String>;
}

impl Screen for avt::Terminal {
    fn feed(&mut self, bytes: &[u8]) {
        self.feed(std::str::from_utf8(bytes).unwrap());
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        self.resize(columns.into(), rows.into());
    }

    fn rows(&mut self) -> Vec<String> {
        self.screen().all_lines().map(|line| line.text().trim_end().to_owned()).collect()
    }
}

fn not_zero(number: u16) -> NonZero<u16> {
    NonZero::new(number).unwrap()
}

impl Screen for vt100::Parser {
    fn feed(&mut self, bytes: &[u8]) {
        self.process(bytes);
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        self.screen_mut().set_size(not_zero(rows), not_zero(columns));
    }

    fn rows(&mut self) -> Vec<String> {
        let (_, columns) = self.screen().size();
        self.screen().rows(0, columns.get()).map(|row| row.trim_end().to_owned()).collect()
    }
}

/// A terminal with a bar.
struct Sandbox<'a> {
    screen: &'a mut dyn Screen,
    master: OwnedFd,
    bar: ProgressBar,
}

impl<'a> Sandbox<'a> {
    fn new(screen: &'a mut dyn Screen) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsStr::from_bytes(name.to_bytes());
        let open = || OpenOptions::new().read(true).write(true).open(name).unwrap();
        let bar = ProgressBar::at(Term::read_write_pair(open(), open()));
        let mut sandbox = Self { screen, master, bar };
        sandbox.resize(ROWS, 100);
        sandbox
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
        self.screen.resize(rows, columns);
    }

    /// Passes what the bar has written to the screen.
    fn arrive(&mut self) {
        // An invisible mark that ends the output.
        const MARK: &[u8] = b"\x1b[0m";
        self.bar.term.write_all(MARK).unwrap();
        self.bar.term.flush().unwrap();
        let (mut master, mut arrived) = (File::from(self.master.try_clone().unwrap()), Vec::new());
        while !arrived.ends_with(MARK) {
            let mut bytes = [0; 4096];
            let read = master.read(&mut bytes).unwrap();
            arrived.extend_from_slice(&bytes[..read]);
        }
        self.screen.feed(&arrived);
    }

    fn print(&mut self, text: &str) {
        self.bar.print(text);
        self.arrive();
    }

    fn show(&mut self, lines: &[String]) {
        self.bar.last = None;
        self.bar.show(|| lines.to_vec());
        self.arrive();
    }

    /// Returns the non-empty rows.
    fn rows(&mut self) -> Vec<String> {
        self.screen.rows().into_iter().filter(|row| !row.is_empty()).collect()
    }
}

const ROWS: u16 = 24;

/// Returns a bar's lines for a terminal of this width.
fn lines(columns: usize) -> Vec<String> {
    ["[####]", "phases", "facts"].map(|word| format!("{word:.<0$}", columns - 1)).to_vec()
}

/// Creates a screen with unlimited scrollback.
fn reflowing() -> avt::Terminal {
    avt::Terminal::with_scrollback(100, ROWS.into(), None).unwrap()
}

fn on_each_screen(test: impl Fn(&mut Sandbox<'_>)) {
    test(&mut Sandbox::new(&mut vt100::Parser::new(not_zero(ROWS), not_zero(100), 0)));
    test(&mut Sandbox::new(&mut reflowing()));
}

#[test]
fn a_narrower_terminal_keeps_the_text_above_and_shows_no_bar_twice() {
    on_each_screen(|sandbox| {
        let mut above = Vec::new();
        for columns in [100, 60, 33, 90, 25] {
            sandbox.resize(ROWS, columns);
            let text = format!("printed at {columns}");
            sandbox.print(&text);
            above.push(text);
            for _ in 0..2 {
                sandbox.show(&lines(columns.into()));
                assert_eq!(sandbox.rows(), [above.clone(), lines(columns.into())].concat());
            }
        }
        sandbox.bar.clear();
        sandbox.arrive();
        assert_eq!(sandbox.rows(), above);
    });
}

/// The terminal becomes narrower after we read its width, and before the lines arrive.
#[test]
fn lines_that_became_too_wide_in_transit_are_cut() {
    // `vt100` does not support switching line wrapping off, as xterm does.
    let mut screen = reflowing();
    let mut sandbox = Sandbox::new(&mut screen);
    sandbox.print("above");
    sandbox.screen.resize(ROWS, 40);
    sandbox.show(&lines(100));
    sandbox.resize(ROWS, 40);
    sandbox.show(&lines(40));
    assert_eq!(sandbox.rows(), [vec!["above".to_owned()], lines(40)].concat());
}

#[test]
fn lines_at_the_end_of_the_screen_and_on_a_small_one_leave_nothing_behind() {
    on_each_screen(|sandbox| {
        for number in 0..2 * ROWS {
            sandbox.print(&format!("line {number}"));
            sandbox.show(&lines(100));
        }
        let rows = sandbox.rows();
        assert_eq!(rows[rows.len() - 4..], [vec!["line 47".to_owned()], lines(100)].concat());
        assert_eq!(rows.iter().filter(|row| **row == lines(100)[0]).count(), 1, "{rows:?}");
        sandbox.resize(3, 100);
        sandbox.show(&lines(100));
        sandbox.show(&lines(100));
        let rows = sandbox.rows();
        assert_eq!(rows[rows.len() - 2..], lines(100)[..2], "there is no room for three");
        assert_eq!(rows.iter().filter(|row| **row == lines(100)[0]).count(), 1, "{rows:?}");
    });
}

#[test]
fn a_closed_bar_is_not_drawn_again() {
    on_each_screen(|sandbox| {
        sandbox.show(&lines(100));
        sandbox.bar.leave("it ends");
        sandbox.show(&lines(100));
        sandbox.bar.leave("it ends");
        sandbox.print("the last word");
        assert_eq!(sandbox.rows(), ["it ends", "the last word"]);
    });
}

//! A bar on a real pseudo-terminal, as two kinds of terminals show it: one that breaks its lines anew when it is made
//! narrower, as most of today do, and one that cuts them off, as xterm does.

use super::*;
use rustix::pty::{OpenptFlags, grantpt, openpt, ptsname, unlockpt};
use rustix::termios::{Winsize, tcsetwinsize};
use std::fs::{File, OpenOptions};
use std::io::Read;
use std::num::NonZero;
use std::os::fd::OwnedFd;
use std::os::unix::ffi::OsStrExt;

/// What a user looks at.
trait Screen {
    fn feed(&mut self, bytes: &[u8]);
    fn resize(&mut self, rows: u16, columns: u16);
    /// Rows from the oldest that was kept to the last on the screen, without what is empty at their ends.
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

/// A terminal, and a bar in it.
struct Desk<'a> {
    screen: &'a mut dyn Screen,
    master: OwnedFd,
    bar: ProgressBar,
}

impl<'a> Desk<'a> {
    fn new(screen: &'a mut dyn Screen) -> Self {
        let master = openpt(OpenptFlags::RDWR | OpenptFlags::NOCTTY).unwrap();
        grantpt(&master).unwrap();
        unlockpt(&master).unwrap();
        let name = ptsname(&master, Vec::new()).unwrap();
        let name = std::ffi::OsStr::from_bytes(name.to_bytes());
        let open = || OpenOptions::new().read(true).write(true).open(name).unwrap();
        let bar = ProgressBar::at(Term::read_write_pair(open(), open()));
        let mut desk = Self { screen, master, bar };
        desk.resize(ROWS, 100);
        desk
    }

    fn resize(&mut self, rows: u16, columns: u16) {
        let size = Winsize { ws_row: rows, ws_col: columns, ws_xpixel: 0, ws_ypixel: 0 };
        tcsetwinsize(&self.master, size).unwrap();
        self.screen.resize(rows, columns);
    }

    /// What the bar has written arrives at the screen.
    fn arrive(&mut self) {
        // A mark behind it, of which the screen shows nothing.
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

    /// The rows that are not empty.
    fn rows(&mut self) -> Vec<String> {
        self.screen.rows().into_iter().filter(|row| !row.is_empty()).collect()
    }
}

const ROWS: u16 = 24;

/// Lines of a bar for so many columns.
fn lines(columns: usize) -> Vec<String> {
    ["[####]", "phases", "facts"].map(|word| format!("{word:.<0$}", columns - 1)).to_vec()
}

/// A screen that keeps what was scrolled away from it.
fn reflowing() -> avt::Terminal {
    avt::Terminal::with_scrollback(100, ROWS.into(), None).unwrap()
}

fn on_each_screen(test: impl Fn(&mut Desk<'_>)) {
    test(&mut Desk::new(&mut vt100::Parser::new(not_zero(ROWS), not_zero(100), 0)));
    test(&mut Desk::new(&mut reflowing()));
}

#[test]
fn a_narrower_terminal_keeps_what_stands_above_and_shows_no_bar_twice() {
    on_each_screen(|desk| {
        let mut above = Vec::new();
        for columns in [100, 60, 33, 90, 25] {
            desk.resize(ROWS, columns);
            let said = format!("said at {columns}");
            desk.print(&said);
            above.push(said);
            for _ in 0..2 {
                desk.show(&lines(columns.into()));
                assert_eq!(desk.rows(), [above.clone(), lines(columns.into())].concat());
            }
        }
        desk.bar.clear();
        desk.arrive();
        assert_eq!(desk.rows(), above);
    });
}

/// The width is asked for, and before the lines are there the terminal is narrower.
#[test]
fn lines_that_have_become_too_wide_on_their_way_are_cut() {
    // `vt100` knows nothing of rows that do not go on in the next one, as xterm does.
    let mut screen = reflowing();
    let mut desk = Desk::new(&mut screen);
    desk.print("above");
    desk.screen.resize(ROWS, 40);
    desk.show(&lines(100));
    desk.resize(ROWS, 40);
    desk.show(&lines(40));
    assert_eq!(desk.rows(), [vec!["above".to_owned()], lines(40)].concat());
}

#[test]
fn lines_at_the_end_of_the_screen_and_on_a_low_one_leave_nothing_behind() {
    on_each_screen(|desk| {
        for number in 0..2 * ROWS {
            desk.print(&format!("line {number}"));
            desk.show(&lines(100));
        }
        let rows = desk.rows();
        assert_eq!(rows[rows.len() - 4..], [vec!["line 47".to_owned()], lines(100)].concat());
        assert_eq!(rows.iter().filter(|row| **row == lines(100)[0]).count(), 1, "{rows:?}");
        desk.resize(3, 100);
        desk.show(&lines(100));
        desk.show(&lines(100));
        let rows = desk.rows();
        assert_eq!(rows[rows.len() - 2..], lines(100)[..2], "for three there is no room");
        assert_eq!(rows.iter().filter(|row| **row == lines(100)[0]).count(), 1, "{rows:?}");
    });
}

#[test]
fn a_bar_that_was_left_is_not_drawn_again() {
    on_each_screen(|desk| {
        desk.show(&lines(100));
        desk.bar.leave("it ends");
        desk.show(&lines(100));
        desk.bar.leave("it ends");
        desk.print("the last word");
        assert_eq!(desk.rows(), ["it ends", "the last word"]);
    });
}

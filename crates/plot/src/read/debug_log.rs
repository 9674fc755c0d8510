//! The course of a node, from Bitcoin Core's `debug.log`.
//!
//! Each block that the node connects leaves a line `UpdateTip: new best=HASH height=N …`, and each
//! start of the node one with its name and version. Everything else is passed over, and so are the
//! tips of a chainstate that is validated in the background. A log is read once, with memory for one
//! line's beginning and for the points of a picture. It does not judge whether a chain makes sense:
//! a reorganization goes down and up again, as it did.

mod line;

use super::{Failure, ReadOptions, Since, Wrong};
use crate::course::{Measure, Point, Run, Scripts, Thinner};
use line::{Event, Line};
use std::io::{BufRead, Read};

/// Bytes of a line that are looked at: what is wanted stands within some hundred.
const LINE_BYTES_MAX: u64 = 4_096;
/// How far a clock may be set back between two blocks. It then seems to stand still.
const SET_BACK_MICROS_MAX: i64 = 2_000_000;

/// Reads a log to its end.
pub(super) fn parse(mut log: impl BufRead, options: &ReadOptions) -> Result<Run, Failure> {
    let mut reading = Reading::new(*options);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = log.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(Failure::Io)? == 0 {
            break;
        }
        let mut whole = line.ends_with(b"\n");
        if !whole && line.len() as u64 == LINE_BYTES_MAX {
            whole = true;
            log.skip_until(b'\n').map_err(Failure::Io)?;
        }
        reading.line(&line, whole).map_err(Failure::Content)?;
    }
    reading.finish().map_err(Failure::Content)
}

/// One start of a node.
struct Start {
    /// Which of the log's, from 1.
    number: u64,
    scripts: Scripts,
    version: Option<String>,
    /// Micros since 1970 of its first line, where the log has it.
    began: Option<i64>,
    first_tip: Option<Tip>,
    last_tip: Option<Tip>,
    course: Thinner,
    /// Whether times are whole seconds.
    coarse: bool,
    /// Whether it has reached the height to stop at.
    stopped: bool,
}

#[derive(Clone, Copy)]
struct Tip {
    line: u64,
    micros: i64,
    height: u64,
    /// By the measure that is asked for.
    far: u64,
}

impl Tip {
    /// How far the run was before this, its first block. What the blocks below one had of transactions is not told:
    /// then as far as after it.
    fn before(self, measure: Measure) -> u64 {
        match measure {
            Measure::Height | Measure::Bytes => self.height.saturating_sub(1),
            Measure::Transactions if self.height <= 1 => 0,
            Measure::Transactions => self.far,
        }
    }
}

impl Start {
    fn new(version: Option<String>, began: Option<i64>) -> Self {
        Self {
            number: 0,
            scripts: Scripts::Unknown,
            version,
            began,
            first_tip: None,
            last_tip: None,
            course: Thinner::new(),
            coarse: false,
            stopped: false,
        }
    }
}

/// What the lines so far have told.
struct Reading {
    options: ReadOptions,
    lines: u64,
    /// Starts of the node that were seen; a log may begin within one.
    starts: u64,
    /// The wanted one, once it was seen.
    wanted: Option<Start>,
    /// The last start that connected blocks: its number and its last height.
    busy: Option<(u64, u64)>,
}

impl Reading {
    fn new(options: ReadOptions) -> Self {
        Self { options, lines: 0, starts: 0, wanted: None, busy: None }
    }

    /// Takes the next line. One that is not whole was being written, or the disk was full: it may
    /// end anywhere.
    fn line(&mut self, text: &[u8], whole: bool) -> Result<(), Wrong> {
        self.lines += 1;
        let event = match Line::parse(text) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(_) if !whole => return Ok(()),
            Err(what) => return Err((Some(self.lines), what)),
        };
        match event {
            Line { time, event: Event::Start(version) } => {
                self.begin(Start::new(Some(version), Some(time.micros)));
                Ok(())
            }
            Line { event: Event::ScriptsRun, .. } => {
                self.scripts(Scripts::All);
                Ok(())
            }
            Line { event: Event::ScriptsAssumed, .. } => {
                self.scripts(Scripts::Assumed);
                Ok(())
            }
            Line { time, event: Event::Tip(line::Tip { height, transactions }) } => {
                if self.starts == 0 {
                    self.begin(Start::new(None, None));
                }
                let far = match (self.options.measure, transactions) {
                    (Measure::Height | Measure::Bytes, _) => height,
                    // The first block of all counts nowhere.
                    (Measure::Transactions, Some(transactions)) => transactions.saturating_sub(1),
                    (Measure::Transactions, None) if !whole => return Ok(()),
                    (Measure::Transactions, None) => {
                        let what = "a block's line without transactions, tx=NUMBER".to_owned();
                        return Err((Some(self.lines), what));
                    }
                };
                let tip = Tip { line: self.lines, micros: time.micros, height, far };
                self.tip(tip, time.coarse)
            }
        }
    }

    fn begin(&mut self, start: Start) {
        self.starts += 1;
        if self.options.start.is_none_or(|wanted| wanted.get() == self.starts) {
            self.wanted = Some(Start { number: self.starts, ..start });
        }
    }

    /// What the node said of scripts before its first block holds for them all, unless it takes some for valid
    /// later on; that it runs them again above those changes nothing.
    fn scripts(&mut self, said: Scripts) {
        let starts = self.starts;
        let current = self.wanted.as_mut().filter(|start| start.number == starts && !start.stopped);
        if let Some(start) = current
            && (start.first_tip.is_none() || said == Scripts::Assumed)
        {
            start.scripts = said;
        }
    }

    fn tip(&mut self, tip: Tip, coarse: bool) -> Result<(), Wrong> {
        self.busy = Some((self.starts, tip.height));
        if self.options.start.is_some_and(|wanted| wanted.get() != self.starts) {
            return Ok(());
        }
        let Some(start) = self.wanted.as_mut().filter(|start| !start.stopped) else {
            return Ok(());
        };
        let before = start.last_tip.map(|last| (last.micros, Some(last.line)));
        let before = before.or(start.began.map(|micros| (micros, None)));
        let mut micros = tip.micros;
        if let Some((last, line)) = before.filter(|(last, _)| *last > micros) {
            // A start has a line of its own, and whole seconds are rounded down.
            if last - micros > SET_BACK_MICROS_MAX {
                let back = (last - micros) as f64 / 1e6;
                let since = line.map_or("the start".to_owned(), |line| format!("line {line}"));
                let what = format!(
                    "the clock was set back by {back:.0} s since {since}, so that it is not \
                     known how long this start took"
                );
                return Err((Some(tip.line), what));
            }
            micros = last;
        }
        start.coarse |= coarse;
        let tip = Tip { micros, ..tip };
        let first = *start.first_tip.get_or_insert(tip);
        start.last_tip = Some(tip);
        let zero = match self.options.since {
            Since::Start => start.began.unwrap_or(first.micros),
            Since::FirstBlock => first.micros,
        };
        let seconds = (micros - zero) as f64 / 1e6;
        if first.line == tip.line && seconds > 0.0 {
            let height = first.before(self.options.measure);
            start.course.push(Point { seconds: 0.0, height });
        }
        start.course.push(Point { seconds, height: tip.far });
        start.stopped = self.options.stop_height.is_some_and(|stop| tip.height >= stop);
        Ok(())
    }

    fn finish(self) -> Result<Run, Wrong> {
        let starts = match self.starts {
            1 => "one start of a node".to_owned(),
            starts => format!("{starts} starts of a node"),
        };
        // Which connected blocks last, to be named where the wanted one did not.
        let Some((number, height)) = self.busy else {
            let what = match self.starts {
                0 => "no line of it says that a node connected a block: it is neither a debug.log of \
                      Bitcoin Core nor a report of `apus sync --report`"
                    .to_owned(),
                _ => format!("{starts}, and none connected a block"),
            };
            return Err((None, what));
        };
        let asked = match self.options.start {
            None => "the last".to_owned(),
            Some(start) => format!("start {start}"),
        };
        let Some(start) = self.wanted else { return Err((None, format!("{starts}, no {asked}"))) };
        let (Some(first), Some(last)) = (start.first_tip, start.last_tip) else {
            let other = format!("start {number} connected blocks up to height {height}");
            return Err((
                None,
                format!("{starts}: {asked} connected no block, but {other}: use --start {number}"),
            ));
        };
        if let Some(stop) = self.options.stop_height.filter(|_| !start.stopped) {
            let what = format!("{asked} of {starts} ended at height {}, not {stop}", last.height);
            return Err((None, what));
        }
        let before = first.before(self.options.measure);
        let mut run = Run::new(start.course.finish(), before);
        run.detail = start.version.unwrap_or_else(|| "Bitcoin Core".to_owned());
        if self.starts > 1 {
            run.detail.push_str(&format!(", start {} of {}", start.number, self.starts));
        }
        (run.scripts, run.of_node) = (start.scripts, true);
        run.resolution_seconds = if start.coarse { 1.0 } else { 1e-6 };
        Ok(run)
    }
}

#[cfg(test)]
mod tests;

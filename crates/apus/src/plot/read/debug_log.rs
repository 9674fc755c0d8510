//! The course of a node, from Bitcoin Core's `debug.log`.
//!
//! Each block that the node connects leaves a line `UpdateTip: new best=HASH height=N …`, and each
//! start of the node one with its name and version. Everything else is passed over, and so are the
//! tips of a chainstate that is validated in the background. A log is read once, with memory for one
//! line's beginning and for the points of a picture. It does not judge whether a chain makes sense:
//! a reorganization goes down and up again, as it did.

mod line;

use super::{ReadOptions, RunFileError, Since, Wrong};
use crate::plot::run::{PlotMeasure, PlotPoint, PlottedRun, ScriptsRun, Thinner};
use line::{LogEvent, LogLine, TipLine};
use std::io::{BufRead, Read};

/// Bytes of a line that are looked at: what is wanted stands within some hundred.
const LINE_BYTES_MAX: u64 = 4_096;
/// How far a clock may be set back between two blocks. It then seems to stand still.
const SET_BACK_MICROS_MAX: i64 = 2_000_000;

/// Reads a log to its end.
pub(super) fn parse(
    mut log: impl BufRead,
    options: &ReadOptions,
) -> Result<PlottedRun, RunFileError> {
    let mut reading = DebugLogReader::new(*options);
    let mut line = Vec::new();
    loop {
        line.clear();
        let read = log.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut line);
        if read.map_err(RunFileError::Io)? == 0 {
            break;
        }
        let mut whole = line.ends_with(b"\n");
        if !whole && line.len() as u64 == LINE_BYTES_MAX {
            whole = true;
            log.skip_until(b'\n').map_err(RunFileError::Io)?;
        }
        reading.line(&line, whole).map_err(RunFileError::Content)?;
    }
    reading.finish().map_err(RunFileError::Content)
}

/// One start of a node.
struct NodeStart {
    /// Which of the log's, from 1.
    number: u64,
    scripts: ScriptsRun,
    version: Option<String>,
    /// Micros since 1970 of its first line, where the log has it.
    began: Option<i64>,
    first_tip: Option<ConnectedTip>,
    last_tip: Option<ConnectedTip>,
    course: Thinner,
    /// Whether times are whole seconds.
    coarse: bool,
    /// Whether it has reached the height to stop at.
    stopped: bool,
}

#[derive(Clone, Copy)]
struct ConnectedTip {
    line: u64,
    micros: i64,
    height: u64,
    /// By the measure that is asked for.
    far: u64,
}

impl ConnectedTip {
    /// How far the run was before this, its first block. What the blocks below one had of transactions is not told:
    /// then as far as after it.
    fn before(self, measure: PlotMeasure) -> u64 {
        match measure {
            PlotMeasure::Height | PlotMeasure::Bytes => self.height.saturating_sub(1),
            PlotMeasure::Transactions if self.height <= 1 => 0,
            PlotMeasure::Transactions => self.far,
        }
    }
}

impl NodeStart {
    fn new(version: Option<String>, began: Option<i64>) -> Self {
        Self {
            number: 0,
            scripts: ScriptsRun::Unknown,
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
struct DebugLogReader {
    options: ReadOptions,
    lines: u64,
    /// Starts of the node that were seen; a log may begin within one.
    starts: u64,
    /// The wanted one, once it was seen.
    wanted: Option<NodeStart>,
    /// The last start that connected blocks: its number and its last height.
    busy: Option<(u64, u64)>,
}

impl DebugLogReader {
    fn new(options: ReadOptions) -> Self {
        Self { options, lines: 0, starts: 0, wanted: None, busy: None }
    }

    /// Takes the next line. One that is not whole was being written, or the disk was full: it may
    /// end anywhere.
    fn line(&mut self, text: &[u8], whole: bool) -> Result<(), Wrong> {
        self.lines += 1;
        let event = match LogLine::parse(text) {
            Ok(Some(line)) => line,
            Ok(None) => return Ok(()),
            Err(_) if !whole => return Ok(()),
            Err(what) => return Err((Some(self.lines), what)),
        };
        match event {
            LogLine { time, event: LogEvent::Start(version) } => {
                self.begin(NodeStart::new(Some(version), Some(time.micros)));
                Ok(())
            }
            LogLine { event: LogEvent::ScriptsRun, .. } => {
                self.scripts(ScriptsRun::All);
                Ok(())
            }
            LogLine { event: LogEvent::ScriptsAssumed, .. } => {
                self.scripts(ScriptsRun::Assumed);
                Ok(())
            }
            LogLine { time, event: LogEvent::Tip(TipLine { height, transactions }) } => {
                if self.starts == 0 {
                    self.begin(NodeStart::new(None, None));
                }
                let far = match (self.options.measure, transactions) {
                    (PlotMeasure::Height | PlotMeasure::Bytes, _) => height,
                    // The first block of all counts nowhere.
                    (PlotMeasure::Transactions, Some(transactions)) => {
                        transactions.saturating_sub(1)
                    }
                    (PlotMeasure::Transactions, None) if !whole => return Ok(()),
                    (PlotMeasure::Transactions, None) => {
                        let what = "a block's line without transactions, tx=NUMBER".to_owned();
                        return Err((Some(self.lines), what));
                    }
                };
                let tip = ConnectedTip { line: self.lines, micros: time.micros, height, far };
                self.tip(tip, time.coarse)
            }
        }
    }

    fn begin(&mut self, start: NodeStart) {
        self.starts += 1;
        if self.options.start.is_none_or(|wanted| wanted.get() == self.starts) {
            self.wanted = Some(NodeStart { number: self.starts, ..start });
        }
    }

    /// What the node said of scripts before its first block holds for them all, unless it takes some for valid
    /// later on; that it runs them again above those changes nothing.
    fn scripts(&mut self, said: ScriptsRun) {
        let starts = self.starts;
        let current = self.wanted.as_mut().filter(|start| start.number == starts && !start.stopped);
        if let Some(start) = current
            && (start.first_tip.is_none() || said == ScriptsRun::Assumed)
        {
            start.scripts = said;
        }
    }

    fn tip(&mut self, tip: ConnectedTip, coarse: bool) -> Result<(), Wrong> {
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
        let tip = ConnectedTip { micros, ..tip };
        let first = *start.first_tip.get_or_insert(tip);
        start.last_tip = Some(tip);
        let zero = match self.options.since {
            Since::Start => start.began.unwrap_or(first.micros),
            Since::FirstBlock => first.micros,
        };
        let seconds = (micros - zero) as f64 / 1e6;
        if first.line == tip.line && seconds > 0.0 {
            let height = first.before(self.options.measure);
            start.course.push(PlotPoint { seconds: 0.0, height });
        }
        start.course.push(PlotPoint { seconds, height: tip.far });
        start.stopped = self.options.stop_height.is_some_and(|stop| tip.height >= stop);
        Ok(())
    }

    fn finish(self) -> Result<PlottedRun, Wrong> {
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
        let mut run = PlottedRun::new(start.course.finish(), before);
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

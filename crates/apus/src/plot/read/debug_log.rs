//! Reads a node's progress from Bitcoin Core's `debug.log`.
//!
//! For each connected block, the node logs a line `UpdateTip: new best=HASH height=N …`, and for each start a line with
//! its name and version. The reader ignores everything else, including the tips of a chainstate that is validated in
//! the background. It reads a log once, with memory for the beginning of one line and for the points of a chart. It
//! does not check that heights form a chain: in a reorganization they go down and up again.

use super::{ReadOptions, RunFileError, Since, Wrong};
use crate::plot::read::HEIGHT_MAX;
use crate::plot::run::{PlotMeasure, PlotPoint, PlottedRun, ScriptsRun, Thinner};
use std::io::{BufRead, Read};

/// Bytes that are read of a line; the relevant part is within the first few hundred.
const LINE_BYTES_MAX: u64 = 4_096;
/// How far a clock may be set back between two blocks, in microseconds. The reader treats such a clock as standing
/// still.
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
    /// The start's number in the log, from 1.
    number: u64,
    scripts: ScriptsRun,
    version: Option<String>,
    /// Time of the start's first line, in microseconds since 1970, if the log has it.
    began: Option<i64>,
    first_tip: Option<ConnectedTip>,
    last_tip: Option<ConnectedTip>,
    course: Thinner,
    /// Whether times have only whole seconds.
    coarse: bool,
    /// Whether the node has reached the height to stop at.
    stopped: bool,
}

#[derive(Clone, Copy)]
struct ConnectedTip {
    line: u64,
    micros: i64,
    height: u64,
    /// Progress in the chosen measure.
    far: u64,
}

impl ConnectedTip {
    /// Returns the progress before this block, the run's first. The log lacks the number of transactions below it, so
    /// in that measure this returns the progress after the block.
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

/// The state after the lines read so far.
struct DebugLogReader {
    options: ReadOptions,
    lines: u64,
    /// Number of starts of the node so far; a log may begin in the middle of one.
    starts: u64,
    /// The wanted start, once the reader has found it.
    wanted: Option<NodeStart>,
    /// The last start that connected blocks: its number and its last height.
    busy: Option<(u64, u64)>,
}

impl DebugLogReader {
    fn new(options: ReadOptions) -> Self {
        Self { options, lines: 0, starts: 0, wanted: None, busy: None }
    }

    /// Processes the next line. A line that is not `whole` may end anywhere: the node was writing it, or the disk was
    /// full.
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
                    // The genesis block does not count.
                    (PlotMeasure::Transactions, Some(transactions)) => {
                        transactions.saturating_sub(1)
                    }
                    (PlotMeasure::Transactions, None) if !whole => return Ok(()),
                    (PlotMeasure::Transactions, None) => {
                        let what = "the line of a block has no transactions (tx=NUMBER)".to_owned();
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

    /// Records which scripts the node runs. A message before its first block holds for all blocks, unless the node
    /// later assumes some valid. If it afterwards runs scripts again, that changes nothing.
    fn scripts(&mut self, run: ScriptsRun) {
        let starts = self.starts;
        let current = self.wanted.as_mut().filter(|start| start.number == starts && !start.stopped);
        if let Some(start) = current
            && (start.first_tip.is_none() || run == ScriptsRun::Assumed)
        {
            start.scripts = run;
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
            // The first block is compared with the start's own line. Times in whole seconds are rounded down.
            if last - micros > SET_BACK_MICROS_MAX {
                let back = (last - micros) as f64 / 1e6;
                let since = line.map_or("the start".to_owned(), |line| format!("line {line}"));
                let what = format!(
                    "the clock was set back by {back:.0} s since {since}, so the time of this start is \
                     unknown"
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
        // If the wanted start connected no block, name the last start that did.
        let Some((number, height)) = self.busy else {
            let what = match self.starts {
                0 => "no line shows a connected block: this is neither a debug.log of Bitcoin Core nor a \
                      report of `apus sync --report`"
                    .to_owned(),
                _ => format!("{starts}, but no start connected a block"),
            };
            return Err((None, what));
        };
        let asked = match self.options.start {
            None => "the last".to_owned(),
            Some(start) => format!("start {start}"),
        };
        let Some(start) = self.wanted else {
            return Err((None, format!("the log has {starts}, but not {asked}")));
        };
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

/// A relevant line: an event and its time.
///
/// A line has the form `TIME [ (mocktime: TIME)] [[prefix] …] MESSAGE`, with prefixes for the thread, the place in the
/// source and the category, depending on the node's options (Bitcoin Core: `src/logging.cpp`, `src/validation.cpp`,
/// `src/init/common.cpp`). journald and containers add a prefix before this, which may have a time, too. So the node's
/// part of a line begins with the time immediately before a relevant message. Text from peers cannot imitate a tip: it
/// contains no `=`.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct LogLine {
    pub(super) time: LogTime,
    pub(super) event: LogEvent,
}

/// An event that matters for the progress.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum LogEvent {
    /// A node started: its name and version.
    Start(String),
    /// A block became the tip.
    Tip(TipLine),
    /// The node logged that it validates all signatures, now or from the next block on.
    ScriptsRun,
    /// The node logged that it assumes the signatures of some blocks valid.
    ScriptsAssumed,
}

/// The fields of a line about a new tip.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct TipLine {
    pub(super) height: u64,
    /// Number of transactions of the chain up to the tip, including the genesis block's, if the line has it.
    pub(super) transactions: Option<u64>,
}

/// A time stamp.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LogTime {
    /// Microseconds since 1970.
    pub(super) micros: i64,
    /// Whether the time has only whole seconds.
    pub(super) coarse: bool,
}

const TIP: &[u8] = b"UpdateTip: new best=";

/// Messages about scripts at the start of a node, and since version 30 also before blocks (Bitcoin Core:
/// `src/init.cpp`, `src/node/chainstate.cpp`, `src/validation.cpp`).
const SCRIPTS_RUN: [&[u8]; 2] =
    [b"Validating signatures for all blocks.", b"Enabling script verification at block #"];
const SCRIPTS_ASSUMED: [&[u8]; 2] =
    [b"Assuming ancestors of block ", b"Disabling script verification at block #"];

/// Upper bound on the bytes that other programs may write before the node's part of a line.
const BEFORE_MAX: usize = 256;

impl LogLine {
    /// Parses a line. Returns `None` if it is irrelevant, and an error if it seems relevant but cannot be parsed.
    pub(super) fn parse(line: &[u8]) -> Result<Option<Self>, String> {
        let (mut has_time, mut has_tip) = (false, false);
        for at in 0..line.len().min(BEFORE_MAX) {
            if at > 0 && !b" \t\"".contains(&line[at - 1]) {
                continue;
            }
            let rest = &line[at..];
            has_tip |= rest.starts_with(TIP);
            let Some((time, rest)) = LogTime::split(rest) else { continue };
            has_time = true;
            if let Some(found) = Self::at(time, rest)? {
                return Ok(Some(found));
            }
        }
        match has_tip && !has_time {
            true => Err("a block without a time: the node ran with -logtimestamps=0, so this log cannot be \
                         plotted"
                .to_owned()),
            false => Ok(None),
        }
    }

    /// Parses the rest of a line, after the time.
    fn at(time: LogTime, rest: &[u8]) -> Result<Option<Self>, String> {
        let message = message(rest);
        let event = if let Some(tip) = message.strip_prefix(TIP) {
            let height = height(tip).map_err(|what| format!("the line of a block lacks {what}"))?;
            LogEvent::Tip(TipLine { height, transactions: transactions(tip) })
        } else if let Some(version) = version(message) {
            LogEvent::Start(version)
        } else if SCRIPTS_RUN.iter().any(|words| message.starts_with(words)) {
            LogEvent::ScriptsRun
        } else if SCRIPTS_ASSUMED.iter().any(|words| message.starts_with(words)) {
            LogEvent::ScriptsAssumed
        } else {
            return Ok(None);
        };
        Ok(Some(Self { time, event }))
    }
}

/// Skips the prefixes, each in brackets and followed by a space. The prefix of a background validation stays part of
/// the message, which then does not match.
fn message(mut rest: &[u8]) -> &[u8] {
    loop {
        let close: &[u8] = match rest.first() {
            Some(b'[') if !rest.starts_with(b"[background") => b"] ",
            Some(b'(') if rest.starts_with(b"(mocktime: ") => b") ",
            _ => return rest,
        };
        let Some(end) = rest.windows(2).position(|pair| pair == close) else { return rest };
        rest = &rest[end + 2..];
    }
}

/// Parses the height after the hash.
fn height(tip: &[u8]) -> Result<u64, &'static str> {
    let hash = tip.iter().take_while(|byte| byte.is_ascii_hexdigit()).count();
    // Versions before 0.13 wrote two spaces.
    let rest = tip[hash..].trim_ascii_start().strip_prefix(b"height=");
    let rest = rest.filter(|_| hash == 64).ok_or("a hash")?;
    let digits = rest.iter().take_while(|byte| byte.is_ascii_digit()).count();
    let text = std::str::from_utf8(&rest[..digits]).unwrap_or_default();
    // A number at the very end of a truncated line may lack digits.
    let whole = rest.get(digits).is_some_and(|byte| b" \n\r".contains(byte));
    let height = text.parse().ok().filter(|height| whole && *height <= HEIGHT_MAX);
    height.ok_or("a height")
}

/// Parses the number after ` tx=`.
fn transactions(tip: &[u8]) -> Option<u64> {
    const BEFORE: &[u8] = b" tx=";
    let at = tip.windows(BEFORE.len()).position(|bytes| bytes == BEFORE)? + BEFORE.len();
    let digits = tip[at..].iter().take_while(|byte| byte.is_ascii_digit()).count();
    // A number at the very end of a truncated line may lack digits.
    let whole = tip.get(at + digits).is_some_and(|byte| b" \n\r".contains(byte));
    std::str::from_utf8(&tip[at..at + digits]).ok()?.parse().ok().filter(|_| whole)
}

/// Parses `Bitcoin Core version v30.0.0 (release build)` and the like; returns name and version.
fn version(message: &[u8]) -> Option<String> {
    const END: &[u8] = b" build)";
    // Text after it comes from a program that stores logs.
    let end = message.windows(END.len()).position(|bytes| bytes == END)?;
    let text = std::str::from_utf8(&message[..end]).ok().filter(|it| it.starts_with("Bitcoin"))?;
    let (name, version) = text.split_once(" version ")?;
    let (version, _) = version.rsplit_once(" (")?;
    version.starts_with('v').then(|| format!("{name} {version}"))
}

impl LogTime {
    /// Parses a time stamp at the beginning of a line; returns it, and the text after it and a space.
    fn split(line: &[u8]) -> Option<(Self, &[u8])> {
        let number = |range: std::ops::Range<usize>| -> Option<i64> {
            let digits = line.get(range)?;
            digits.iter().try_fold(0, |number, digit| {
                digit.is_ascii_digit().then(|| number * 10 + i64::from(digit - b'0'))
            })
        };
        let marks = [(4, b'-'), (7, b'-'), (13, b':'), (16, b':')];
        if marks.iter().any(|(at, mark)| line.get(*at) != Some(mark)) {
            return None;
        }
        // Versions before 0.18 wrote a space instead of the T, and no Z.
        let zone: &[u8] = match line.get(10)? {
            b'T' => b"Z ",
            b' ' => b" ",
            _ => return None,
        };
        let [year, month, day] = [number(0..4)?, number(5..7)?, number(8..10)?];
        let [hour, minute, second] = [number(11..13)?, number(14..16)?, number(17..19)?];
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let (micros, coarse, end) = match line.get(19)? {
            b'.' => (number(20..26)?, false, 26),
            _ => (0, true, 19),
        };
        let rest = line[end..].strip_prefix(zone)?;
        let days = days_since_1970(year, month, day)?;
        let seconds = ((days * 24 + hour) * 60 + minute) * 60 + second;
        let time = Self { micros: seconds * 1_000_000 + micros, coarse };
        Some((time, rest))
    }
}

/// Counts days since 1970 in the Gregorian calendar; `None` for a date that does not exist.
fn days_since_1970(year: i64, month: i64, day: i64) -> Option<i64> {
    const BEFORE: [i64; 13] = [0, 31, 59, 90, 120, 151, 181, 212, 243, 273, 304, 334, 365];
    let leap = year % 4 == 0 && (year % 100 != 0 || year % 400 == 0);
    let index = usize::try_from(month - 1).ok().filter(|index| *index < 12)?;
    let february = i64::from(leap && month == 2);
    if day < 1 || day > BEFORE[index + 1] - BEFORE[index] + february {
        return None;
    }
    // Leap days before this year.
    let before = year - 1;
    let leaps = before / 4 - before / 100 + before / 400;
    let of_1970 = 1969 / 4 - 1969 / 100 + 1969 / 400;
    let this_year = BEFORE[index] + i64::from(leap && month > 2) + day - 1;
    Some((year - 1970) * 365 + leaps - of_1970 + this_year)
}

#[cfg(test)]
mod tests;

#[cfg(test)]
mod line_tests {
    use super::*;
    use proptest::prelude::*;

    const HASH: &str = "0f9188f13cb7b2c71f2a335e3a4fc328bf5beb436012afca590b1a11466e2206";

    fn event(line: &str) -> Option<LogEvent> {
        LogLine::parse(line.as_bytes()).unwrap().map(|line| line.event)
    }

    #[test]
    fn days_follow_the_calendar() {
        // Seconds from `date -u -d DATE +%s`.
        for (date, seconds) in [
            ((1970, 1, 1), 0),
            ((2000, 2, 29), 951_782_400),
            ((2009, 1, 3), 1_230_940_800),
            ((2024, 12, 31), 1_735_603_200),
            ((2100, 3, 1), 4_107_542_400),
        ] {
            assert_eq!(days_since_1970(date.0, date.1, date.2), Some(seconds / 86_400), "{date:?}");
        }
        for (year, month, day) in
            [(2023, 2, 29), (2100, 2, 29), (2024, 0, 1), (2024, 13, 1), (2024, 4, 31), (2024, 4, 0)]
        {
            assert_eq!(days_since_1970(year, month, day), None);
        }
    }

    #[test]
    fn a_tip_is_recognised_after_every_prefix() {
        let tip = format!("UpdateTip: new best={HASH} height=300 version=0x30000000");
        for prefix in [
            "",
            "[initload] ",
            "[msghand] [src/validation.cpp:3381] [void UpdateTipLog(const A&, B::C)] ",
            "[validation.cpp:2845] [UpdateTip] [all:info] ",
            "(mocktime: 2026-11-22T00:17:42Z) [init] ",
        ] {
            let line = format!("2026-11-22T00:17:42Z {prefix}{tip}\n");
            let tip = TipLine { height: 300, transactions: None };
            assert_eq!(event(&line), Some(LogEvent::Tip(tip)), "{line}");
        }
        for prefix in ["[background validation] ", "[msghand] [background validation] ", "- ", "x"]
        {
            let line = format!("2026-11-22T00:17:42Z {prefix}{tip}\n");
            assert_eq!(event(&line), None, "{line}");
        }
    }

    #[test]
    fn a_line_is_recognised_after_the_prefixes_of_other_programs() {
        let tip = format!("UpdateTip: new best={HASH} height=300 version=0x30000000");
        let micros = 1_795_306_662_000_000;
        for before in [
            "Nov 22 00:17:43 host bitcoind[567]: ",
            "2026-11-22T00:17:43+0000 host bitcoind[567]: ",
            "2026-11-22T00:17:43.495731Z host bitcoind[567]: ",
            "2026-11-22T00:17:43.495731Z ",
            "2026-11-22T00:17:43.495731823Z stdout F ",
            "bitcoind-1  | ",
            "node\t",
            "{\"log\":\"",
        ] {
            for time in ["2026-11-22T00:17:42Z", "2026-11-22 00:17:42"] {
                let line = format!("{before}{time} [msghand] {tip}\n");
                let found = LogLine::parse(line.as_bytes()).unwrap().expect(&line);
                assert_eq!(found.time.micros, micros, "{line}");
                assert_eq!(found.event, LogEvent::Tip(TipLine { height: 300, transactions: None }));
                let said = LogLine::parse(format!("{before}{tip}\n").as_bytes());
                // The other program's time is used if the node wrote none.
                let is_time = before == "2026-11-22T00:17:43.495731Z ";
                assert!(said.is_err() || is_time || before.contains('Z'), "{said:?}");
            }
        }
        let old = format!(
            "2015-11-22 00:17:42 UpdateTip: new best={HASH}  height=300  log2_work=1 tx=301 \n"
        );
        assert_eq!(
            event(&old),
            Some(LogEvent::Tip(TipLine { height: 300, transactions: Some(301) }))
        );
        let start = "{\"log\":\"2026-11-22T00:17:42Z Bitcoin Core version v30.0.0 (release build)\\n\",\"stream\":\"stdout\"}";
        assert_eq!(event(start), Some(LogEvent::Start("Bitcoin Core v30.0.0".to_owned())));
        let far = " ".repeat(BEFORE_MAX) + "2026-11-22T00:17:42Z " + &tip;
        assert_eq!(event(&far), None);
    }

    #[test]
    fn the_number_of_transactions_is_read_if_it_is_complete() {
        for (rest, transactions) in [
            (" version=1 log2_work=9.2 tx=301 date='2026'\n", Some(301)),
            (" tx=301\n", Some(301)),
            (" tx=301", None),
            (" tx= date\n", None),
            (" tx=99999999999999999999 \n", None),
            (" version=1\n", None),
        ] {
            let line = format!("2026-11-22T00:17:42Z UpdateTip: new best={HASH} height=300{rest}");
            assert_eq!(
                event(&line),
                Some(LogEvent::Tip(TipLine { height: 300, transactions })),
                "{line}"
            );
        }
    }

    #[test]
    fn a_start_is_recognised_by_name_and_version() {
        for (message, name) in [
            ("Bitcoin Core version v30.0.0 (release build)\n", "Bitcoin Core v30.0.0"),
            (
                "[init] Bitcoin Knots version v29.4.3.knots20260508 (release build)\n",
                "Bitcoin Knots v29.4.3.knots20260508",
            ),
            (
                "Bitcoin Core version v31.99.0-b88bffe\u{e9} (debug build)\r\n",
                "Bitcoin Core v31.99.0-b88bffe\u{e9}",
            ),
        ] {
            let line = format!("2026-11-22T00:17:42.671833Z {message}");
            assert_eq!(event(&line), Some(LogEvent::Start(name.to_owned())));
        }
        for message in ["Bitcoin Core version 30 (release build)", "version v30 (release build)"] {
            assert_eq!(event(&format!("2026-11-22T00:17:42Z {message}\n")), None);
        }
    }

    #[test]
    fn messages_about_scripts_are_parsed() {
        for (message, what) in [
            ("Validating signatures for all blocks.", LogEvent::ScriptsRun),
            (
                "[init] Assuming ancestors of block 00 have valid signatures.",
                LogEvent::ScriptsAssumed,
            ),
            ("Disabling script verification at block #1 (00).", LogEvent::ScriptsAssumed),
            ("Enabling script verification at block #300 (00): too young.", LogEvent::ScriptsRun),
        ] {
            assert_eq!(event(&format!("2026-11-22T00:17:42Z {message}\n")), Some(what));
        }
        assert_eq!(
            event("2026-11-22T00:17:42Z Script verification uses 1 additional threads\n"),
            None
        );
    }

    #[test]
    fn times_have_seconds_or_micros() {
        let time = |text: &str| LogTime::split(text.as_bytes()).map(|(time, _)| time);
        let day = 1_795_305_600_000_000;
        assert_eq!(time("2026-11-22T00:00:00Z x"), Some(LogTime { micros: day, coarse: true }));
        assert_eq!(time("2026-11-22 00:00:00 x"), Some(LogTime { micros: day, coarse: true }));
        let fine = LogTime { micros: day + 3_723_000_001, coarse: false };
        assert_eq!(time("2026-11-22T01:02:03.000001Z "), Some(fine));
        assert_eq!(time("2026-11-22 01:02:03.000001 x"), Some(fine));
        for text in [
            "2026-11-22T00:00:00Z",
            "2026-11-22 00:00:00Z x",
            "2026-11-22T00:00:00 x",
            "2026-11-22T00:00:00.000001234Z x",
            "2026-11-22T00:00:00.01Z x",
            "2026-11-31T00:00:00Z x",
            "2026-11-22T24:00:00Z x",
            "2026-11-2XT00:00:00Z x",
            "",
        ] {
            assert_eq!(time(text), None, "{text}");
        }
    }

    #[test]
    fn a_block_that_cannot_be_parsed_is_an_error() {
        let time = "2026-11-22T00:17:42Z ";
        for (line, what) in [
            (format!("{time}UpdateTip: new best={HASH} height= version"), "a height"),
            (format!("{time}UpdateTip: new best={HASH} height=-1 "), "a height"),
            (format!("{time}UpdateTip: new best={HASH} height=2147483648 "), "a height"),
            (format!("{time}UpdateTip: new best={HASH} height=12"), "a height"),
            (format!("{time}UpdateTip: new best={HASH} version=1 height=1 "), "a hash"),
            (format!("{time}UpdateTip: new best=00 height=1 "), "a hash"),
            (format!("UpdateTip: new best={HASH} height=1 "), "-logtimestamps=0"),
        ] {
            let said = LogLine::parse(line.as_bytes()).unwrap_err();
            assert!(said.contains(what), "{line}: {said}");
        }
    }

    proptest! {
        #[test]
        fn random_bytes_never_cause_a_panic(prefix in "(2026-11-22T00:17:42(\\.123456)?Z )?(\\[[a-z]{0,9}\\]? ?)*",
            middle in "(UpdateTip: new best=[0-9a-f]{63,65} height=[0-9]{0,12}[ \n]?)?",
            bytes in prop::collection::vec(any::<u8>(), 0..99),
        ) {
            let line = [prefix.as_bytes(), middle.as_bytes(), &bytes].concat();
            if let Ok(Some(LogLine { event: LogEvent::Tip(TipLine { height, .. }), .. })) = LogLine::parse(&line) {
                prop_assert!(height <= HEIGHT_MAX);
            }
        }
    }
}

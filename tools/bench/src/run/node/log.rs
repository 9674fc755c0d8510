//! [`NodeLog`]: the facts about one run in Bitcoin Core's `debug.log`.
//!
//! It reads only a few kinds of lines, as versions 25 to 31 write them, and skips all others. Times are taken
//! from the log, with microseconds if the node was started with that option.

use std::io::{self, BufRead, Read};

/// Longer lines are cut: the relevant parts are at the start.
const LINE_BYTES_MAX: u64 = 4_096;

/// Lines kept in an extract: of blocks, and of all other kinds.
const TIP_LINES_MAX: usize = 400;
const OTHER_LINES_MAX: usize = 200;

/// One connected block.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct LogTip {
    /// Seconds since 1970.
    pub seconds: f64,
    /// The block's height.
    pub height: u32,
}

/// The facts from a run's log.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct NodeLog {
    /// The first block connected.
    pub first: Option<LogTip>,
    /// The last block connected.
    pub last: Option<LogTip>,
    /// The block whose ancestors are assumed valid.
    pub assumed: Option<String>,
    /// Whether the node logged that it assumes no block valid.
    pub validates_all: bool,
    /// Blocks at which it began to skip scripts, in versions that log this.
    pub scripts_off: Vec<u32>,
    /// Blocks at which it began to run them.
    pub scripts_on: Vec<u32>,
    /// Whether the node logged its shutdown.
    pub done: bool,
    /// Enough of its lines to draw the run's course: of block lines, the first, the last, and some between.
    pub extract: String,
}

/// Lines that may be kept, with their numbers.
#[derive(Default)]
struct LogExtract {
    tips: Vec<(u64, String)>,
    others: Vec<(u64, String)>,
}

impl LogExtract {
    fn into_text(self) -> String {
        let step = self.tips.len().div_ceil(TIP_LINES_MAX).max(1);
        let last = self.tips.last().cloned();
        let tips = self.tips.into_iter().step_by(step);
        let mut lines: Vec<(u64, String)> = tips.chain(last).chain(self.others).collect();
        lines.sort_by_key(|(number, _)| *number);
        lines.dedup();
        lines.into_iter().map(|(_, line)| line + "\n").collect()
    }
}

impl NodeLog {
    /// Reads the log of one run.
    pub fn read(mut lines: impl BufRead) -> io::Result<Self> {
        let (mut log, mut kept) = (Self::default(), LogExtract::default());
        let mut bytes = Vec::new();
        for number in 0.. {
            bytes.clear();
            if lines.by_ref().take(LINE_BYTES_MAX).read_until(b'\n', &mut bytes)? == 0 {
                break;
            }
            let line = String::from_utf8_lossy(&bytes);
            log.line(number, line.trim_end(), &mut kept);
        }
        log.extract = kept.into_text();
        Ok(log)
    }

    fn line(&mut self, number: u64, line: &str, kept: &mut LogExtract) {
        let Some((time, text)) = line.split_once(' ') else { return };
        let Some(seconds) = timestamp(time) else { return };
        if let Some(tip) = text.strip_prefix("UpdateTip: ") {
            let Some(height) = number_after(tip, " height=") else { return };
            let tip = LogTip { seconds, height };
            self.first.get_or_insert(tip);
            self.last = Some(tip);
            kept.tips.push((number, line.to_owned()));
            return;
        }
        if let Some(rest) = text.strip_prefix("Assuming ancestors of block ") {
            self.assumed = rest.split(' ').next().map(str::to_owned);
        }
        self.validates_all |= text == "Validating signatures for all blocks.";
        self.scripts_off.extend(number_after(text, "Disabling script verification at block #"));
        self.scripts_on.extend(number_after(text, "Enabling script verification at block #"));
        // Versions up to 30 write the form with the colon.
        self.done |= ["Shutdown: done", "Shutdown done"].contains(&text);
        // Drop lines with paths of the program and its data: they are private.
        if !text.contains('/') && kept.others.len() < OTHER_LINES_MAX {
            kept.others.push((number, line.to_owned()));
        }
    }

    /// Seconds from the first connected block to the last.
    pub fn connect_seconds(&self) -> Option<f64> {
        Some(self.last?.seconds - self.first?.seconds)
    }

    /// Checks that the run reached the block at `tip` and skipped all scripts up to `last`, the block
    /// `assumed` at that height.
    pub fn expect(&self, tip: u32, assumed: &str, last: u32) -> Result<(), String> {
        self.expect_tip(tip)?;
        if self.assumed.as_deref() != Some(assumed) {
            return Err(format!(
                "bitcoind's log does not say that the ancestors of {assumed} are assumed valid"
            ));
        }
        let ran = |height| {
            format!(
                "bitcoind ran scripts at block {height}, below the last one with transactions ({last}): the programs \
                 did not do the same work"
            )
        };
        if let Some(&height) = self.scripts_on.iter().find(|&&height| height <= last) {
            return Err(ran(height));
        }
        // A version that logs this at all logs it at the first block.
        let logs_scripts = !self.scripts_off.is_empty() || !self.scripts_on.is_empty();
        if logs_scripts && self.scripts_off.first() != Some(&1) {
            return Err(ran(1));
        }
        self.expect_done()
    }

    /// Checks that the run reached the block at `tip` and ran all scripts.
    pub fn expect_scripts(&self, tip: u32) -> Result<(), String> {
        self.expect_tip(tip)?;
        if !self.validates_all || self.assumed.is_some() {
            return Err(
                "bitcoind's log does not say that it validates the signatures of all blocks"
                    .to_owned(),
            );
        }
        if let Some(&height) = self.scripts_off.first() {
            return Err(format!(
                "bitcoind skipped scripts at block {height}, but should have run all of them"
            ));
        }
        self.expect_done()
    }

    /// Checks that the run reached the block at `tip` and shut down cleanly.
    pub fn expect_end(&self, tip: u32) -> Result<(), String> {
        self.expect_tip(tip)?;
        self.expect_done()
    }

    fn expect_tip(&self, wanted: u32) -> Result<(), String> {
        let found = self.last.map_or(0, |tip| tip.height);
        match found == wanted {
            true => Ok(()),
            false => Err(format!("bitcoind connected blocks up to height {found}, not {wanted}")),
        }
    }

    fn expect_done(&self) -> Result<(), String> {
        match self.done {
            true => Ok(()),
            false => Err("bitcoind's log does not end with its shutdown".to_owned()),
        }
    }
}

/// The number that follows `mark`.
fn number_after(text: &str, mark: &str) -> Option<u32> {
    let (_, rest) = text.split_once(mark)?;
    let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
    rest[..digits].parse().ok()
}

/// Seconds since 1970 of `2026-11-22T00:34:51.088949Z`, with or without the fraction.
fn timestamp(text: &str) -> Option<f64> {
    let (date, time) = text.strip_suffix('Z')?.split_once('T')?;
    let mut date = date.splitn(3, '-').map(str::parse::<i64>);
    let (year, month, day) = (date.next()?.ok()?, date.next()?.ok()?, date.next()?.ok()?);
    let mut time = time.splitn(3, ':');
    let (hour, minute) = (time.next()?.parse::<i64>().ok()?, time.next()?.parse::<i64>().ok()?);
    let second: f64 = time.next()?.parse().ok()?;
    if !(1970..10_000).contains(&year) || !(1..=12).contains(&month) {
        return None;
    }
    let days = days_since_1970(year, month, day);
    Some((days * 86_400 + hour * 3_600 + minute * 60) as f64 + second)
}

/// Days from 1970-01-01 to a Gregorian date. Years begin in March, so that the leap day comes last.
fn days_since_1970(year: i64, month: i64, day: i64) -> i64 {
    let (year, month) = if month < 3 { (year - 1, month + 9) } else { (year, month - 3) };
    let leap_days = year / 4 - year / 100 + year / 400;
    // Months from March on have 31, 30, 31, 30, 31 days, repeating.
    let days_before_month = (153 * month + 2) / 5;
    365 * year + leap_days + days_before_month + day - 1 - 719_468
}

#[cfg(test)]
mod tests;

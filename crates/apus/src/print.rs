//! Writes to standard output and standard error, which may be closed, full, or a pipe without a reader.

use crate::failure::Failure;
use apus_sync::{Event, Observer};
use console::{Color, Style, Term};
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether standard error carries only JSON events, for a program to read.
static SPEAKS_JSON: AtomicBool = AtomicBool::new(false);

/// Formats bytes as hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Switches standard error to JSON (`docs/formats/progress.md`).
pub(crate) fn speak_json() {
    SPEAKS_JSON.store(true, Ordering::Relaxed);
}

/// Whether standard error carries JSON.
pub(crate) fn speaks_json() -> bool {
    SPEAKS_JSON.load(Ordering::Relaxed)
}

/// Writes an event, if standard error carries JSON.
#[cfg(feature = "web")]
pub(crate) fn event_if_json(of: serde_json::Value) {
    if speaks_json() {
        event(of);
    }
}

/// Writes an event with its time.
pub(crate) fn event(mut event: serde_json::Value) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    event["time"] = since.as_secs_f64().into();
    let _ = writeln!(io::stderr().lock(), "{event}");
}

/// Reports the end of the program, with its error if it failed.
pub(crate) fn ending(result: &Result<(), Failure>) {
    let json = speaks_json();
    match result {
        Ok(()) if json => event(serde_json::json!({"event": "done", "code": 0})),
        Ok(()) => {}
        Err(Failure { code, message, .. }) if json => {
            event(serde_json::json!({"event": "failed", "code": code, "text": message}));
        }
        Err(Failure { message, .. }) => aside(format_args!("apus: {message}")),
    }
}

/// Returns the terminal's width; `None` without a terminal.
fn width_of(terminal: bool, term: &Term) -> Option<usize> {
    terminal.then(|| usize::from(term.size().1))
}

/// Breaks lines of prose that are wider than a terminal, between words. Indented lines stay whole: they may be commands
/// to copy.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    hanging(text, width, 0)
}

/// Does the same, and begins each continuation row of a broken line with `indent` spaces.
fn hanging(text: &str, width: usize, indent: usize) -> String {
    let width = width.max(indent + 20);
    let mut out = String::with_capacity(text.len() + text.len() / width * (indent + 1));
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if line.chars().count() < width || line.starts_with(' ') {
            out.push_str(line);
            continue;
        }
        let mut column = 0;
        for (number, word) in line.split(' ').enumerate() {
            let length = word.chars().count();
            if column > indent && column + 1 + length >= width {
                out.push('\n');
                out.extend(iter::repeat_n(' ', indent));
                column = indent;
            } else if number > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
    }
    out
}

/// Indent of continuation rows on standard error.
const ASIDE_INDENT: usize = 2;

/// Writes a line of results. A reader may close the pipe early; any other reason for lost results is a failure.
pub(crate) fn result(line: impl Display) -> Result<(), Failure> {
    result_is_read(line).map(drop)
}

/// Writes facts, each with its name in a line.
pub(crate) fn facts<'n>(
    facts: impl IntoIterator<Item = (&'n str, impl Display)>,
) -> Result<(), Failure> {
    let mut facts = facts.into_iter();
    facts.try_for_each(|(name, value)| result(format_args!("{name:<18} {value}")))
}

/// Writes a line of results, and returns whether a reader is still there.
pub(crate) fn result_is_read(line: impl Display) -> Result<bool, Failure> {
    let mut line = line.to_string();
    if let Some(width) = width_of(io::stdout().is_terminal(), &Term::stdout()) {
        line = wrapped(&line, width);
    }
    write_result(&line)
}

/// Writes a line of results that begins with `head`. Aligns continuation rows in a column after the head.
pub(crate) fn result_behind(head: &str, text: impl Display) -> Result<(), Failure> {
    let width = width_of(io::stdout().is_terminal(), &Term::stdout());
    write_result(&behind(head, &text.to_string(), width)).map(drop)
}

fn behind(head: &str, text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return format!("{head}{text}") };
    let indent = head.chars().count();
    let column = wrapped(text, width.saturating_sub(indent));
    format!("{head}{}", column.replace('\n', &format!("\n{}", " ".repeat(indent))))
}

fn write_result(line: &str) -> Result<bool, Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Ok(()) => Ok(true),
        Err(error) if error.kind() == ErrorKind::BrokenPipe => Ok(false),
        Err(error) => Err(Failure::io(Path::new("standard output"), error)),
    }
}

/// Writes a message to standard error. Ignores errors, which must not stop the program.
pub(crate) fn aside(line: impl Display) {
    let mut line = line.to_string();
    if let Some(width) = width_of(io::stderr().is_terminal(), &Term::stderr()) {
        line = hanging(&line, width, ASIDE_INDENT);
    }
    let _ = writeln!(io::stderr().lock(), "{}", colored(&line));
}

/// Colors the first word of an error or a warning, if standard error is a terminal with colors and `NO_COLOR` is not set.
pub(crate) fn colored(line: &str) -> String {
    let heads = [("apus:", Color::Red), ("error:", Color::Red), ("warning:", Color::Yellow)];
    for (head, color) in heads {
        if let Some(text) = line.strip_prefix(head) {
            let style = Style::new().fg(color).bold().for_stderr();
            return format!("{}{text}", style.apply_to(head));
        }
    }
    line.to_owned()
}

/// An observer that prints only warnings.
pub(crate) struct Warnings;

impl Observer for Warnings {
    fn event(&self, event: Event) {
        if let Event::Warning(warning) = event {
            aside(format_args!("warning: {warning}"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn continuation_rows_are_indented() {
        let text =
            "apus: one two three four five six seven\n  a command that stays in one line\nshort";
        assert_eq!(
            hanging(text, 22, 2),
            "apus: one two three\n  four five six seven\n  a command that stays in one line\nshort"
        );
        let word = "x".repeat(40);
        assert_eq!(hanging(&format!("{word} {word} y"), 30, 2), format!("{word}\n  {word}\n  y"));
        let value = "one two three four five six";
        assert_eq!(
            behind("disk   ", value, Some(28)),
            "disk   one two three four\n       five six"
        );
        assert_eq!(behind("disk   ", value, None), format!("disk   {value}"));
    }

    #[test]
    fn prose_wraps_between_words_and_commands_stay_whole() {
        let text = "Verified: headers and proof of work\n    a command with words that must stay together\nshort";
        assert_eq!(
            wrapped(text, 24),
            "Verified: headers and\nproof of work\n    a command with words that must stay together\nshort"
        );
        let hash = "0".repeat(64);
        assert_eq!(wrapped(&format!("a chain: {hash} and"), 40), format!("a chain:\n{hash}\nand"));
        assert!(wrapped(&"word ".repeat(50), 30).lines().all(|line| line.len() < 30));
    }
}

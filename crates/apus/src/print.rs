//! Standard output and standard error, which may be closed, full, or a pipe that is not read.

use crate::failure::Failure;
use apus_sync::{Event, Observer};
use console::Term;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::iter;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether a program listens, to which everything on the way is an event.
static SPEAKS_JSON: AtomicBool = AtomicBool::new(false);

/// Bytes in hexadecimal digits.
pub(crate) fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// From now on everything on the way is told as JSON (`docs/formats/progress.md`).
pub(crate) fn speak_json() {
    SPEAKS_JSON.store(true, Ordering::Relaxed);
}

/// Whether it is.
pub(crate) fn speaks_json() -> bool {
    SPEAKS_JSON.load(Ordering::Relaxed)
}

/// Tells of an event, where a program listens.
#[cfg(feature = "web")]
pub(crate) fn event_if_json(of: serde_json::Value) {
    if speaks_json() {
        event(of);
    }
}

/// Tells of an event, and when it was.
pub(crate) fn event(mut event: serde_json::Value) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    event["time"] = since.as_secs_f64().into();
    let _ = writeln!(io::stderr().lock(), "{event}");
}

/// Tells how the program ends.
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

/// How wide a terminal is; none where the text goes elsewhere.
fn width_of(terminal: bool, term: &Term) -> Option<usize> {
    terminal.then(|| usize::from(term.size().1))
}

/// Breaks lines of prose that are wider than a terminal, between words. What is indented is left alone: it may be
/// a command to copy.
pub(crate) fn wrapped(text: &str, width: usize) -> String {
    hanging(text, width, 0)
}

/// The same, and of a line that is broken all rows but the first begin with so many spaces.
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

/// How wide rows behind the first begin of what is told on the way.
const ASIDE_INDENT: usize = 2;

/// Writes a line of results. A reader that has seen enough is no failure; anything else that keeps
/// results from arriving is one.
pub(crate) fn result(line: impl Display) -> Result<(), Failure> {
    let mut line = line.to_string();
    if let Some(width) = width_of(io::stdout().is_terminal(), &Term::stdout()) {
        line = wrapped(&line, width);
    }
    write_result(&line)
}

/// Writes a line of results that begins with `head`. Where it is broken, all else stands in a column of its own behind
/// the head.
pub(crate) fn result_behind(head: &str, text: impl Display) -> Result<(), Failure> {
    let width = width_of(io::stdout().is_terminal(), &Term::stdout());
    write_result(&behind(head, &text.to_string(), width))
}

fn behind(head: &str, text: &str, width: Option<usize>) -> String {
    let Some(width) = width else { return format!("{head}{text}") };
    let indent = head.chars().count();
    let column = wrapped(text, width.saturating_sub(indent));
    format!("{head}{}", column.replace('\n', &format!("\n{}", " ".repeat(indent))))
}

fn write_result(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(Failure::io(Path::new("standard output"), error))
        }
        _ => Ok(()),
    }
}

/// Tells the user something on the way. That it is not heard is no reason to stop.
pub(crate) fn aside(line: impl Display) {
    let mut line = line.to_string();
    if let Some(width) = width_of(io::stderr().is_terminal(), &Term::stderr()) {
        line = hanging(&line, width, ASIDE_INDENT);
    }
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Tells of warnings on the way, and of nothing else.
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
    fn what_is_broken_hangs_below_its_beginning() {
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
    fn prose_is_broken_between_words_and_commands_are_not() {
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

//! Standard output and standard error, which may be closed, full, or a pipe that is not read.

use crate::failure::Failure;
use console::Term;
use std::fmt::Display;
use std::io::{self, ErrorKind, IsTerminal, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether a program listens, to which everything on the way is an event.
static SPEAKS_JSON: AtomicBool = AtomicBool::new(false);

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
    aside(event);
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
    let width = width.max(20);
    let mut out = String::with_capacity(text.len() + text.len() / width);
    for (number, line) in text.split('\n').enumerate() {
        if number > 0 {
            out.push('\n');
        }
        if line.chars().count() < width || line.starts_with(' ') {
            out.push_str(line);
            continue;
        }
        let mut column = 0;
        for word in line.split(' ') {
            let length = word.chars().count();
            if column > 0 && column + 1 + length >= width {
                out.push('\n');
                column = 0;
            } else if column > 0 {
                out.push(' ');
                column += 1;
            }
            out.push_str(word);
            column += length;
        }
    }
    out
}

/// Writes a line of results. A reader that has seen enough is no failure; anything else that keeps
/// results from arriving is one.
pub(crate) fn result(line: impl Display) -> Result<(), Failure> {
    let mut line = line.to_string();
    if let Some(width) = width_of(io::stdout().is_terminal(), &Term::stdout()) {
        line = wrapped(&line, width);
    }
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
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    use super::*;

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

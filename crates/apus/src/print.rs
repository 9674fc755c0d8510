//! Standard output and standard error, which may be closed, full, or a pipe that is not read.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

/// Whether a program listens, to which everything on the way is an event.
static SPEAKS_JSON: AtomicBool = AtomicBool::new(false);

/// From now on everything on the way is told as JSON (`docs/formats/progress.md`).
pub(crate) fn speak_json() {
    SPEAKS_JSON.store(true, Ordering::Relaxed);
}

/// Tells of an event, and when it was.
pub(crate) fn event(mut event: serde_json::Value) {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    event["time"] = since.as_secs_f64().into();
    aside(event);
}

/// Tells how the program ends.
pub(crate) fn ending(result: &Result<(), Failure>) {
    let json = SPEAKS_JSON.load(Ordering::Relaxed);
    match result {
        Ok(()) if json => event(serde_json::json!({"event": "done", "code": 0})),
        Ok(()) => {}
        Err(Failure { code, message }) if json => {
            event(serde_json::json!({"event": "failed", "code": code, "text": message}));
        }
        Err(Failure { message, .. }) => aside(format_args!("apus: {message}")),
    }
}

/// Writes a line of results. A reader that has seen enough is no failure; anything else that keeps
/// results from arriving is one.
pub(crate) fn result(line: impl Display) -> Result<(), Failure> {
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

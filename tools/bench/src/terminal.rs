//! What goes to the terminal, and comes from it: lines, Ctrl-C.

use crate::error::BenchError;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Interrupted: 128 and the number of SIGINT, as shells have it.
pub const INTERRUPTED: u8 = 130;

/// Writes a line of results. A reader that has seen enough is no failure.
pub(crate) fn result(line: impl Display) -> Result<(), BenchError> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(BenchError::io(Path::new("standard output"), error))
        }
        _ => Ok(()),
    }
}

/// Tells the user something on the way. That it is not heard is no reason to stop.
pub fn aside(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Set by Ctrl-C and by a polite kill; a second one ends the program at once. To be called once.
pub(crate) fn watch_signals() -> Result<Arc<AtomicBool>, BenchError> {
    let interrupt = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM] {
        let exit = i32::from(INTERRUPTED);
        let register = || {
            signal_hook::flag::register_conditional_shutdown(signal, exit, Arc::clone(&interrupt))?;
            signal_hook::flag::register(signal, Arc::clone(&interrupt))
        };
        register()
            .map_err(|error| BenchError::usage(format!("cannot watch for signals: {error}")))?;
    }
    Ok(interrupt)
}

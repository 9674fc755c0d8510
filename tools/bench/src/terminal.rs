//! Terminal output, and Ctrl-C.

use crate::error::BenchError;
use signal_hook::consts::{SIGINT, SIGTERM};
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Exit code of an interrupted program: 128 plus the number of SIGINT, as in shells.
pub const INTERRUPTED: u8 = 130;

/// Writes a line of results. A closed pipe is not an error.
pub(crate) fn result(line: impl Display) -> Result<(), BenchError> {
    let mut out = io::stdout().lock();
    match writeln!(out, "{line}").and_then(|()| out.flush()) {
        Err(error) if error.kind() != ErrorKind::BrokenPipe => {
            Err(BenchError::io(Path::new("standard output"), error))
        }
        _ => Ok(()),
    }
}

/// Prints a progress message to standard error; ignores errors.
pub fn aside(line: impl Display) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

/// Returns a flag that Ctrl-C and SIGTERM set; a second signal ends the program at once. Call it only once.
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

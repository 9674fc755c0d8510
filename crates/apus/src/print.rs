//! Standard output and standard error, which may be closed, full, or a pipe that is not read.

use crate::failure::Failure;
use std::fmt::Display;
use std::io::{self, ErrorKind, Write};
use std::path::Path;

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

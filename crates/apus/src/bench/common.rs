//! What the commands that measure have in common.

use crate::failure::{Failure, INTERRUPTED, INVALID, IO, USAGE};
use apus_bench::run::RunError;
use apus_sync::ErrorKind;
use serde::Serialize;
use std::fs;
use std::path::Path;

impl From<RunError> for Failure {
    fn from(error: RunError) -> Self {
        let code = match error.kind() {
            ErrorKind::Usage => USAGE,
            ErrorKind::Invalid => INVALID,
            ErrorKind::Io => IO,
            ErrorKind::Interrupted => INTERRUPTED,
        };
        Self { code, message: error.to_string() }
    }
}

/// Writes a file of JSON for programs and people.
pub(super) fn write_json(path: &Path, value: &impl Serialize) -> Result<(), Failure> {
    let text = serde_json::to_string_pretty(value).map_err(|error| Failure::io(path, error))?;
    fs::write(path, text + "\n").map_err(|error| Failure::io(path, error))
}

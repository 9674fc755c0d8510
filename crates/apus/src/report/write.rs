//! A report on its way into its file.

use super::{FailedReport, is_report};
use crate::failure::Failure;
use crate::print;
use apus_storage::{expect_own_draft, publish_file};
use apus_sync::{draft_of, parent};
use serde::Serialize;
use std::fs;
use std::path::Path;

/// Writes the report so that it is never seen in part.
pub(crate) fn write_report(path: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(parent(path))?;
        let text = serde_json::to_string_pretty(report)? + "\n";
        // The progress goes next: by then the report must be where a power cut leaves it.
        publish_file(path, &draft_of(path), text.as_bytes())
    };
    write().map_err(|error| Failure::making(path, &error, "name another --report"))
}

/// Writes why a run failed, unless the command line was at fault before it began. One that did not fit what lies there
/// takes no other run's report away. If it cannot be written, the first failure is still the one to tell.
pub(crate) fn leave_failed(path: Option<&Path>, report: &FailedReport) {
    let Some(path) = path else { return };
    if report.is_of_usage() && (!report.has_begun() || is_report(path)) {
        return;
    }
    if let Err(failure) = write_report(path, report) {
        let draft = draft_of(path);
        if matches!(expect_own_draft(&draft), Ok(Ok(()))) {
            let _ = fs::remove_file(draft);
        }
        print::aside(format_args!("apus: the report cannot be written: {}", failure.message));
    }
}

//! [`FailedReport`]: why a run ended without a result, for programs.
//!
//! It has no field that says what was found or verified: a reader that takes it for the report of a run that succeeded
//! finds nothing to go by.

use super::{PhaseReport, VERSION};
use crate::failure::{Failure, USAGE};
use crate::machine::{Machine, Program, cpu_seconds, rss_peak_bytes};
use crate::print;
use crate::report::is_report;
use apus_storage::{expect_own_draft, publish_file};
use apus_sync::{draft_of, parent};
use serde::Serialize;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// The report of a run that failed.
#[derive(Debug, Serialize)]
pub(crate) struct FailedReport {
    version: u32,
    /// Core's name of the chain.
    chain: &'static str,
    failure: WhyFailed,
    wall_seconds: f64,
    cpu_seconds: f64,
    rss_peak_bytes: Option<u64>,
    segments_resumed: usize,
    /// Those that ended.
    phases: Vec<PhaseReport>,
    warnings: Vec<String>,
    program: Program,
    machine: Machine,
}

/// What went wrong.
#[derive(Debug, Serialize)]
struct WhyFailed {
    /// The exit code.
    code: u8,
    class: &'static str,
    /// What, where, and what to do about it, as it was told.
    text: String,
    /// The phase in which it went wrong; null before the first and after the last.
    phase: Option<&'static str>,
    /// Of the block that it is about; null where it is about none.
    height: Option<u32>,
    hash: Option<String>,
}

/// How far a run came.
#[derive(Debug, Default)]
pub(crate) struct Reached {
    pub(crate) wall_seconds: f64,
    pub(crate) segments_resumed: usize,
    pub(crate) phases: Vec<PhaseReport>,
    pub(crate) warnings: Vec<String>,
    /// The phase that had begun and not ended.
    pub(crate) phase: Option<&'static str>,
}

impl FailedReport {
    /// Of a run that came so far.
    pub(crate) fn new(chain: &'static str, failure: &Failure, reached: Reached) -> Self {
        let block = failure.block;
        Self {
            version: VERSION,
            chain,
            failure: WhyFailed {
                code: failure.code,
                class: failure.class,
                text: failure.message.clone(),
                phase: reached.phase,
                height: block.map(|block| block.height),
                hash: block.map(|block| block.hash.to_string()),
            },
            wall_seconds: reached.wall_seconds,
            cpu_seconds: cpu_seconds(),
            rss_peak_bytes: rss_peak_bytes(),
            segments_resumed: reached.segments_resumed,
            phases: reached.phases,
            warnings: reached.warnings,
            program: Program::this(),
            machine: Machine::here(),
        }
    }
}

impl FailedReport {
    /// Whether what was asked for was at fault.
    pub(super) fn is_of_usage(&self) -> bool {
        self.failure.code == USAGE
    }

    /// Whether the run had begun.
    pub(super) fn has_begun(&self) -> bool {
        self.failure.phase.is_some() || !self.phases.is_empty()
    }
}

/// What a file holds, if it is JSON and no longer than a report.
pub(super) fn json(path: &Path) -> Option<serde_json::Value> {
    /// Many times the length of the longest.
    const BYTES_MAX: u64 = 16 << 20;
    let mut text = Vec::new();
    // A pipe would make this wait for who writes into it.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether a file is the report of a run that failed: the next run's may take its place.
pub(crate) fn is_failed_report(path: &Path) -> bool {
    let json = json(path).unwrap_or_default();
    let has = |field: &str| json.get(field).is_some();
    has("version") && has("program") && json.pointer("/failure/class").is_some()
}

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

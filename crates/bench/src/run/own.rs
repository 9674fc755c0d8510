//! One run of `apus sync`, as a user would start it.
//!
//! Each run has a work folder of its own and begins from nothing, so that the first is not better
//! off than the last.

use super::chain::Chain;
use super::error::{At, RunError};
use super::matrix::Subject;
use super::process;
use super::record::OneRun;
use super::report::Report;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Longer than any run should take.
const LIMIT: Duration = Duration::from_secs(6 * 3600);

/// How runs of Apus are started.
pub(super) struct Apus<'a> {
    /// The program.
    pub(super) program: &'a Path,
    /// A folder for everything that a run leaves.
    pub(super) scratch: &'a Path,
}

impl Apus<'_> {
    /// The arguments of one subject, the same for each of its runs.
    pub(super) fn arguments(&self, chain: &Chain, subject: &Subject) -> Option<Vec<String>> {
        let Subject::Apus { engine, validation, aggregate, par, dbcache_mib, output } = subject
        else {
            return None;
        };
        let shown = |path: &Path| path.display().to_string();
        let output = match output.as_str() {
            "snapshot" => format!("snapshot:{}", shown(&self.scratch.join(SNAPSHOT))),
            other => other.to_owned(),
        };
        let pairs = [
            ("--chain", chain.network.name().to_owned()),
            ("--blocksdir", shown(&chain.blocksdir)),
            ("--hints", shown(&chain.hints)),
            ("--engine", engine.clone()),
            ("--validation", validation.clone()),
            ("--aggregate", aggregate.clone()),
            ("--par", par.to_string()),
            ("--dbcache", dbcache_mib.to_string()),
            ("--out", output),
            ("--workdir", shown(&self.scratch.join("apus.work"))),
            ("--report", shown(&self.report())),
            ("--progress", "none".to_owned()),
        ];
        let arguments = pairs.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        Some(std::iter::once("sync".to_owned()).chain(arguments).collect())
    }

    /// Where a run leaves its report.
    pub(super) fn report(&self) -> PathBuf {
        self.scratch.join("report.json")
    }

    /// Runs it once.
    pub(super) fn run(
        &self,
        arguments: &[String],
        round: u32,
        interrupt: &AtomicBool,
    ) -> Result<(OneRun, Report), RunError> {
        remove_file(&self.report())?;
        remove_file(&self.scratch.join(SNAPSHOT))?;
        let mut command = Command::new(self.program);
        command.args(arguments);
        let usage = process::run(&mut command, &self.scratch.join("said"), LIMIT, interrupt)?;
        let report = Report::read(&self.report())?;
        let run = OneRun {
            round,
            wall_seconds: usage.wall_seconds,
            cpu_seconds: report.cpu_seconds.unwrap_or(0.0).max(usage.cpu_seconds),
            rss_peak_bytes: report.rss_peak_bytes.max(usage.rss_peak_bytes),
            phases: report.phases.clone(),
            connect_seconds: None,
        };
        Ok((run, report))
    }
}

/// Name of the snapshot that some subjects write.
const SNAPSHOT: &str = "utxo.dat";

/// Removes a file if it is there.
fn remove_file(path: &Path) -> Result<(), RunError> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => Err(error).at(path),
        _ => Ok(()),
    }
}

//! Parts of a report: worker machines ([`Cluster`]), the Utreexo forest ([`ForestReport`]), proofs ([`ProofsReport`])
//! and files ([`WrittenFile`]). Also the report of a failed job ([`FailedReport`]).

use crate::args::SinkArg;
use crate::failure::{Failure, USAGE};
use crate::machine::{Machine, Program, cpu_seconds, rss_peak_bytes};
use crate::print;
use crate::report::{PhaseReport, RunHistory, VERSION, bytes, grouped, is_report};
use apus_engine::script::hints::SignatureHintsReader;
use apus_engine::script::{SignatureMode, Signatures};
use apus_storage::{expect_own_draft, publish_file};
use apus_sync::{Phase, Workers, draft_of, parent};
use serde::Serialize;
use std::fmt;
use std::fs::{self, File};
use std::io::Read;
use std::path::Path;

/// How signatures were checked.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct SignaturesReport {
    /// As in `--signatures`; `libsecp256k1` also if this machine has nothing faster.
    pub(crate) mode: &'static str,
    /// ECDSA signatures that were proven many at a time.
    pub(crate) ecdsa: u64,
    /// BIP-340 signatures that were proven so.
    pub(crate) schnorr: u64,
    /// Inputs whose scripts ran in that mode.
    pub(crate) inputs: u64,
    /// Of these, inputs with a signature that was not proven, so that libsecp256k1 decided.
    pub(crate) inputs_by_libsecp256k1: u64,
    #[serde(skip)]
    is_fallback: bool,
    /// Signatures that were proven with a hint (`--sighints`).
    pub(crate) hinted: u64,
    /// Hints that were wrong.
    pub(crate) wrong_hints: u64,
    /// Whether the rest of the hints was not used, because too many were wrong.
    pub(crate) hints_ignored: bool,
    /// Blocks whose hints were damaged.
    pub(crate) damaged_hints: u64,
    #[serde(skip)]
    has_hints: bool,
    /// Whether the program found its own arithmetic wrong on this machine.
    pub(crate) faulty: bool,
}

impl SignaturesReport {
    pub(crate) fn of(signatures: &Signatures) -> Self {
        let counts = signatures.counts();
        Self {
            mode: match signatures.mode() {
                SignatureMode::Fast => "fast",
                SignatureMode::Shadow => "shadow",
                SignatureMode::Libsecp256k1 => "libsecp256k1",
            },
            ecdsa: counts.ecdsa,
            schnorr: counts.schnorr,
            inputs: counts.inputs,
            inputs_by_libsecp256k1: counts.unproven,
            hinted: counts.hinted,
            wrong_hints: counts.wrong_hints,
            hints_ignored: signatures.ignores_hints(),
            damaged_hints: signatures.hints().map_or(0, SignatureHintsReader::damaged),
            has_hints: signatures.hints().is_some(),
            is_fallback: signatures.is_fallback(),
            faulty: Signatures::are_faulty(),
        }
    }
}

impl fmt::Display for SignaturesReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_fallback {
            return write!(
                f,
                "Signatures: checked by libsecp256k1, because the self-test of all faster ways failed on this machine"
            );
        }
        if self.mode == "libsecp256k1" {
            return write!(f, "Signatures: checked by libsecp256k1");
        }
        let [ecdsa, schnorr, inputs] =
            [self.ecdsa, self.schnorr, self.inputs_by_libsecp256k1].map(grouped);
        write!(
            f,
            "Signatures: {ecdsa} ECDSA and {schnorr} BIP-340 proven many at a time; libsecp256k1 decided {inputs} \
             of {} inputs",
            grouped(self.inputs)
        )?;
        if self.has_hints {
            write!(f, "; {} with hints", grouped(self.hinted))?;
        }
        if self.wrong_hints > 0 {
            write!(
                f,
                ". Warning: {} of the signature hints were wrong",
                grouped(self.wrong_hints)
            )?;
        }
        if self.hints_ignored {
            f.write_str(", so the rest was not used: write the hints again (--out sighints:FILE)")?;
        }
        if self.damaged_hints > 0 {
            let blocks = if self.damaged_hints == 1 { "block are" } else { "blocks are" };
            let count = grouped(self.damaged_hints);
            write!(f, ". Warning: the hints of {count} {blocks} damaged: copy the file again")?;
        }
        if self.faulty {
            f.write_str(
                ". Warning: a test found wrong arithmetic on this machine, so libsecp256k1 checked the rest; test the \
                 processor and memory",
            )?;
        }
        Ok(())
    }
}

/// Numbers of threads to project times for.
const PROJECTED: [u64; 5] = [1, 2, 4, 16, 64];

/// The machines' work, and the part that they cannot share.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cluster {
    pub(crate) workers: Vec<ClusterWorker>,
    /// Time that this machine worked alone: everything except the blocks, plus handing out jobs and collecting results.
    pub(crate) serial_seconds: f64,
    /// Total working time of the threads of all machines.
    pub(crate) parallel_seconds: f64,
    /// The serial share of the sum of both; measured.
    pub(crate) serial_fraction: f64,
    /// Projections from these two numbers by Amdahl's law; not measured.
    pub(crate) projection: Vec<ScalingEstimate>,
}

/// A machine's share of the work in this start.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClusterWorker {
    pub(crate) name: String,
    pub(crate) segments: u64,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Total working time of its threads.
    pub(crate) busy_seconds: f64,
}

/// The projected time with another number of equally fast threads.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct ScalingEstimate {
    pub(crate) threads: u64,
    pub(crate) seconds: f64,
}

impl Cluster {
    pub(super) fn of(workers: &Workers, wall_seconds: f64, phases: &[PhaseReport]) -> Self {
        // Machines share all work of these phases.
        const SHARED: [Phase; 3] = [Phase::Blocks, Phase::Join, Phase::Connect];
        let shared = |it: &&PhaseReport| SHARED.iter().any(|phase| phase.name() == it.phase);
        let shared: f64 = phases.iter().filter(shared).map(|phase| phase.wall_seconds).sum();
        let handling = workers.handling.as_secs_f64();
        let serial_seconds = (wall_seconds - shared).max(0.0) + handling;
        let busy = workers.all.iter().map(|worker| worker.busy.as_secs_f64());
        let parallel_seconds: f64 = busy.sum();
        let projected = |threads: u64| {
            let seconds = serial_seconds + parallel_seconds / threads as f64;
            ScalingEstimate { threads, seconds }
        };
        let whole = serial_seconds + parallel_seconds;
        Self {
            workers: workers
                .all
                .iter()
                .map(|worker| ClusterWorker {
                    name: worker.name.clone(),
                    segments: worker.segments,
                    blocks: worker.blocks,
                    bytes: worker.bytes,
                    busy_seconds: worker.busy.as_secs_f64(),
                })
                .collect(),
            serial_seconds,
            parallel_seconds,
            serial_fraction: if whole > 0.0 { serial_seconds / whole } else { 1.0 },
            projection: PROJECTED.map(projected).into(),
        }
    }
}

impl fmt::Display for Cluster {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = ["machines"].into_iter().chain(std::iter::repeat(""));
        for (title, worker) in names.zip(&self.workers) {
            writeln!(
                f,
                "{title:<18} {}: {} jobs, {} blocks, {} in {:.1} thread-seconds",
                worker.name,
                grouped(worker.segments),
                grouped(worker.blocks),
                bytes(worker.bytes),
                worker.busy_seconds
            )?;
        }
        let percent = 100.0 * self.serial_fraction;
        let times: Vec<String> = self
            .projection
            .iter()
            .map(|it| format!("{}: {:.1} s", it.threads, it.seconds))
            .collect();
        writeln!(f, "{:<18} {percent:.2} % of the work, measured", "serial")?;
        let times = times.join(", ");
        writeln!(
            f,
            "{:<18} {times} (by Amdahl's law from the line above, not measured)",
            "projected, threads"
        )
    }
}

/// The Utreexo forest at the stop block.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only Utreexo makes one"))]
pub(crate) struct ForestReport {
    /// The number of leaves ever added.
    pub(crate) leaves: u64,
    /// The roots in hex, bytes in order, highest tree first; zeros if all leaves of the tree are deleted.
    pub(crate) roots: Vec<String>,
}

impl fmt::Display for ForestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {}", "utreexo leaves", grouped(self.leaves))?;
        let names = ["utreexo roots"].into_iter().chain(std::iter::repeat(""));
        names.zip(&self.roots).try_for_each(|(name, root)| writeln!(f, "{name:<18} {root}"))
    }
}

/// The proofs that a run made.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only Utreexo makes one"))]
pub(crate) struct ProofsReport {
    /// The first block whose proof this start made.
    pub(crate) from: u32,
    /// Number of files that this start wrote.
    pub(crate) files: u64,
    /// Number of blocks in these files.
    pub(crate) blocks: u64,
    /// Number of proved coins.
    pub(crate) coins: u64,
    /// Number of hashes in the proofs.
    pub(crate) hashes: u64,
    pub(crate) proof_bytes: u64,
    pub(crate) leaf_data_bytes: u64,
    pub(crate) file_bytes: u64,
}

impl fmt::Display for ProofsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (blocks, from, files) = (grouped(self.blocks), self.from, grouped(self.files));
        let coins = format!("{}, with {} hashes", grouped(self.coins), grouped(self.hashes));
        for (name, value) in [
            ("proofs", format!("of {blocks} blocks from height {from} on, in {files} files")),
            ("coins proved", coins),
            ("size of proofs", bytes(self.proof_bytes)),
            ("size of leaf data", bytes(self.leaf_data_bytes)),
        ] {
            writeln!(f, "{name:<18} {value}")?;
        }
        Ok(())
    }
}

/// The kind of file with the roots of the forest.
pub(super) const ROOTS: &str = "utreexo";

/// A file that a job wrote.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WrittenFile {
    /// The kind of file, as in `--out`.
    pub(crate) kind: &'static str,
    /// The description for people.
    #[serde(skip)]
    what: &'static str,
    pub(crate) path: String,
    /// The file's length; null if the system does not report it.
    pub(crate) bytes: Option<u64>,
}

impl WrittenFile {
    /// Lists the files among the outputs of a job that succeeded.
    pub(crate) fn all(outputs: &[SinkArg]) -> Vec<Self> {
        let file = |output: &SinkArg| {
            let (kind, what, path) = match output {
                SinkArg::File(form, path) => (form.name, form.written, path),
                SinkArg::Utreexo(path) => (ROOTS, "the roots of the Utreexo forest", path),
                SinkArg::SignatureHints(path) => ("sighints", "signature hints", path),
                SinkArg::Stats(path) => ("stats", "the chain in numbers", path),
                SinkArg::Chainstate(_)
                | SinkArg::Datadir(_)
                | SinkArg::Coins(_)
                | SinkArg::Null => return None,
            };
            let bytes = path.metadata().ok().map(|metadata| metadata.len());
            Some(Self { kind, what, path: path.display().to_string(), bytes })
        };
        outputs.iter().filter_map(file).collect()
    }
}

impl fmt::Display for WrittenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.map(|length| format!(" ({})", bytes(length))).unwrap_or_default();
        write!(f, "Written: {}{length}, {}.", self.path, self.what)
    }
}

// ---- failed jobs ----

/// The report of a failed job, for programs.
///
/// It has no field for results or verified rules, so a reader that mistakes it for the report of a successful job finds
/// none.
#[derive(Debug, Serialize)]
pub(crate) struct FailedReport {
    version: u32,
    /// Core's name of the chain.
    chain: &'static str,
    failure: FailureReport,
    wall_seconds: f64,
    cpu_seconds: f64,
    rss_peak_bytes: Option<u64>,
    segments_resumed: usize,
    /// The phases that ended before the failure.
    phases: Vec<PhaseReport>,
    warnings: Vec<String>,
    program: Program,
    machine: Machine,
}

/// A failure in a report.
#[derive(Debug, Serialize)]
struct FailureReport {
    /// The exit code.
    code: u8,
    class: &'static str,
    /// The error message as printed: what, where, and how to fix it.
    text: String,
    /// The phase that failed; null before the first phase and after the last.
    phase: Option<&'static str>,
    /// Height of the block at fault; null if there is none.
    height: Option<u32>,
    hash: Option<String>,
}

impl FailedReport {
    /// Creates the report from the failure and the job's history.
    pub(crate) fn new(chain: &'static str, failure: &Failure, history: RunHistory) -> Self {
        let block = failure.block;
        Self {
            version: VERSION,
            chain,
            failure: FailureReport {
                code: failure.code,
                class: failure.class,
                text: failure.message.clone(),
                phase: history.phase,
                height: block.map(|block| block.height),
                hash: block.map(|block| block.hash.to_string()),
            },
            wall_seconds: history.wall_seconds,
            cpu_seconds: cpu_seconds(),
            rss_peak_bytes: rss_peak_bytes(),
            segments_resumed: history.segments_resumed,
            phases: history.phases,
            warnings: history.warnings,
            program: Program::this(),
            machine: Machine::here(),
        }
    }
}

impl FailedReport {
    /// Whether the command line was at fault.
    pub(super) fn is_of_usage(&self) -> bool {
        self.failure.code == USAGE
    }

    /// Whether the job had begun.
    pub(super) fn has_begun(&self) -> bool {
        self.failure.phase.is_some() || !self.phases.is_empty()
    }
}

/// Reads a file as JSON; `None` if it is not JSON, or too long for a report.
pub(super) fn json(path: &Path) -> Option<serde_json::Value> {
    /// Far more than the length of any report.
    const BYTES_MAX: u64 = 16 << 20;
    let mut text = Vec::new();
    // Opening a pipe would wait for a writer.
    fs::metadata(path).ok().filter(fs::Metadata::is_file)?;
    File::open(path).and_then(|file| file.take(BYTES_MAX).read_to_end(&mut text)).ok()?;
    serde_json::from_slice(&text).ok()
}

/// Whether a file is the report of a failed job, which the next report may replace.
pub(crate) fn is_failed_report(path: &Path) -> bool {
    let json = json(path).unwrap_or_default();
    let has = |field: &str| json.get(field).is_some();
    has("version") && has("program") && json.pointer("/failure/class").is_some()
}

/// Writes the report atomically.
pub(crate) fn write_report(path: &Path, report: &impl Serialize) -> Result<(), Failure> {
    let write = || -> std::io::Result<()> {
        fs::create_dir_all(parent(path))?;
        let text = serde_json::to_string_pretty(report)? + "\n";
        // The caller deletes the progress next, so by then the report must survive a power cut.
        publish_file(path, &draft_of(path), text.as_bytes())
    };
    write().map_err(|error| Failure::making(path, &error, "use another --report"))
}

/// Writes a failure's report, unless it is a usage error that occurred before the job began, or one that would replace
/// the report of a successful job. If writing fails, prints that; the original failure remains the program's result.
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
        print::aside(format_args!("apus: cannot write the report: {}", failure.message));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_sync::Worker;
    use std::time::Duration;

    #[test]
    fn projections_follow_from_measurements() {
        let worker = |busy| Worker { busy: Duration::from_secs(busy), ..Worker::default() };
        let handling = Duration::from_secs(1);
        let workers = Workers { all: vec![worker(30), worker(66)], handling, last: true };
        let phase = |phase: Phase, wall_seconds| PhaseReport {
            phase: phase.name(),
            wall_seconds,
            cpu_seconds: 0.0,
            bytes: 0,
        };
        let phases = [phase(Phase::Headers, 1.0), phase(Phase::Blocks, 50.0)];
        let cluster = Cluster::of(&workers, 53.0, &phases);
        assert_eq!((cluster.serial_seconds, cluster.parallel_seconds), (4.0, 96.0));
        assert!((cluster.serial_fraction - 0.04).abs() < 1e-9);
        let times: Vec<f64> = cluster.projection.iter().map(|it| it.seconds).collect();
        assert_eq!(times, [100.0, 52.0, 28.0, 10.0, 5.5]);
        let text = cluster.to_string();
        assert!(text.contains("4.00 % of the work, measured"), "{text}");
        assert!(text.contains("4: 28.0 s") && text.contains("not measured"), "{text}");
    }
}

//! Parts of a report: machines that took part ([`Cluster`]), the Utreexo forest ([`ForestReport`]), proofs ([`ProofsReport`]),
//! files ([`WrittenFile`]).

use crate::args::SinkArg;
use crate::report::{PhaseReport, bytes, grouped};
use apus_sync::{Phase, Workers};
use serde::Serialize;
use std::fmt;

/// Threads for which times are projected.
const PROJECTED: [u64; 5] = [1, 2, 4, 16, 64];

/// What machines did, and which part of the run none of them could share.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Cluster {
    pub(crate) workers: Vec<ClusterWorker>,
    /// What this machine did alone: all but the blocks, and handing out jobs and taking in results.
    pub(crate) serial_seconds: f64,
    /// What threads of all machines did, added up.
    pub(crate) parallel_seconds: f64,
    /// Of both together, the part that is serial; measured.
    pub(crate) serial_fraction: f64,
    /// By Amdahl's law, from these two numbers; nothing of it was measured.
    pub(crate) projection: Vec<Projected>,
}

/// A machine's share, for this start.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct ClusterWorker {
    pub(crate) name: String,
    pub(crate) segments: u64,
    pub(crate) blocks: u64,
    pub(crate) bytes: u64,
    /// Of its threads, added up.
    pub(crate) busy_seconds: f64,
}

/// How long the run would take with so many threads like these.
#[derive(Debug, Clone, Copy, Serialize)]
pub(crate) struct Projected {
    pub(crate) threads: u64,
    pub(crate) seconds: f64,
}

impl Cluster {
    pub(super) fn of(workers: &Workers, wall_seconds: f64, phases: &[PhaseReport]) -> Self {
        // Where machines share a run they share these phases whole.
        const SHARED: [Phase; 3] = [Phase::Blocks, Phase::Join, Phase::Connect];
        let shared = |it: &&PhaseReport| SHARED.iter().any(|phase| phase.name() == it.phase);
        let shared: f64 = phases.iter().filter(shared).map(|phase| phase.wall_seconds).sum();
        let handling = workers.handling.as_secs_f64();
        let serial_seconds = (wall_seconds - shared).max(0.0) + handling;
        let busy = workers.all.iter().map(|worker| worker.busy.as_secs_f64());
        let parallel_seconds: f64 = busy.sum();
        let projected = |threads: u64| {
            let seconds = serial_seconds + parallel_seconds / threads as f64;
            Projected { threads, seconds }
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
                "{title:<18} {}: {} jobs, {} blocks, {} in {:.1} s of its threads",
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
            "{:<18} {times} (Amdahl's law on the line above, not measured)",
            "projected, threads"
        )
    }
}

/// What there is to say of the Utreexo forest at the stop block.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only Utreexo makes one"))]
pub(crate) struct ForestReport {
    /// How many leaves there have ever been.
    pub(crate) leaves: u64,
    /// Highest tree first, in the order of their bytes; zeros where all leaves of the tree are deleted.
    pub(crate) roots: Vec<String>,
}

impl fmt::Display for ForestReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:<18} {}", "utreexo leaves", grouped(self.leaves))?;
        let names = ["utreexo roots"].into_iter().chain(std::iter::repeat(""));
        names.zip(&self.roots).try_for_each(|(name, root)| writeln!(f, "{name:<18} {root}"))
    }
}

/// What there is to say of proofs that were made.
#[derive(Debug, Clone, Serialize)]
#[cfg_attr(not(feature = "utreexo"), allow(dead_code, reason = "only Utreexo makes one"))]
pub(crate) struct ProofsReport {
    /// The first block whose proof this start made.
    pub(crate) from: u32,
    /// Files that it wrote.
    pub(crate) files: u64,
    /// Blocks in them.
    pub(crate) blocks: u64,
    /// Coins that are proved.
    pub(crate) coins: u64,
    /// Hashes that this took.
    pub(crate) hashes: u64,
    pub(crate) proof_bytes: u64,
    pub(crate) leaf_data_bytes: u64,
    pub(crate) file_bytes: u64,
}

impl fmt::Display for ProofsReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (blocks, from, files) = (grouped(self.blocks), self.from, grouped(self.files));
        let coins = format!("{}, by {} hashes", grouped(self.coins), grouped(self.hashes));
        for (name, value) in [
            ("proofs", format!("of {blocks} blocks from {from} on, in {files} files")),
            ("coins proved", coins),
            ("bytes of proofs", bytes(self.proof_bytes)),
            ("of leaf data", bytes(self.leaf_data_bytes)),
        ] {
            writeln!(f, "{name:<18} {value}")?;
        }
        Ok(())
    }
}

/// A file that a run wrote.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct WrittenFile {
    /// As `--out` has it.
    pub(crate) kind: &'static str,
    pub(crate) path: String,
    /// Its length; null where the system does not tell.
    pub(crate) bytes: Option<u64>,
}

impl WrittenFile {
    /// Those among the outputs of a run that succeeded.
    pub(crate) fn all(outputs: &[SinkArg]) -> Vec<Self> {
        let file = |output: &SinkArg| {
            let (kind, path) = match output {
                SinkArg::Snapshot(path) => ("snapshot", path),
                SinkArg::Hints(path) => ("hints", path),
                SinkArg::Utreexo(path) => ("utreexo", path),
                SinkArg::Chainstate(_) | SinkArg::Datadir(_) | SinkArg::Null => return None,
            };
            let bytes = path.metadata().ok().map(|metadata| metadata.len());
            Some(Self { kind, path: path.display().to_string(), bytes })
        };
        outputs.iter().filter_map(file).collect()
    }
}

impl fmt::Display for WrittenFile {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let length = self.bytes.map(|length| format!(" ({})", bytes(length))).unwrap_or_default();
        write!(
            f,
            "Written: {}{length}, {}.",
            self.path,
            match self.kind {
                "snapshot" => "a UTXO snapshot",
                "hints" => "hints",
                _ => "the roots of the Utreexo forest",
            }
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_sync::Worker;
    use std::time::Duration;

    #[test]
    fn what_is_projected_follows_from_what_was_measured() {
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

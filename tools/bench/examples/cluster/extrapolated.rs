//! Extrapolates the measured serial part to the main chain, and shows the arithmetic.
//!
//! There are two serial parts. The first is the coordinator's handling of jobs while workers are busy: it
//! grows with jobs and, where it fetches coins, with coins; the larger of the two ratios counts. The second
//! is its work before and after the jobs: it grows with blocks (headers, places) or with coins (merging,
//! hashing); again the larger one counts. The workers' part grows with block bytes. All parts are scaled
//! proportionally from zero, so fixed costs of a run are multiplied too.
//!
//! Handling jobs delays no worker until it takes as long as all the workers' concurrent work. So there are
//! two figures: one counts it as serial, and one does not. The latter follows the article that proposed
//! shared syncs, which only counts the download of headers.

use crate::args::Engine;
use crate::start::{RunCost, Share};
use apus_bench::manifest::ChainManifest;
use apus_bench::{MeasuredSpread, TextTable};
use serde::Serialize;

/// Approximate numbers of the main chain in 2026.
const BLOCKS: f64 = 930_000.0;
const BLOCK_BYTES: f64 = 720e9;
const COINS: f64 = 170e6;

/// Approximate number of segments; each is one job per walk.
const SEGMENTS: f64 = 10_000.0;

/// An extrapolation to the main chain.
#[derive(Debug, Clone, Serialize)]
pub(crate) struct Extrapolation {
    engine: String,
    /// Measured, in seconds.
    handling_seconds: f64,
    around_seconds: f64,
    parallel_seconds: f64,
    /// Factors that scale each part.
    handling_ratio: f64,
    around_ratio: f64,
    parallel_ratio: f64,
    /// The extrapolated result.
    serial_seconds: f64,
    all_seconds: f64,
    parallel_percent: f64,
    /// The same without counting work concurrent with the workers as serial.
    beside_percent: f64,
    /// Number of worker threads at which the coordinator is as busy as each of them; `None` if it had nothing
    /// to do.
    threads_max: Option<f64>,
}

/// Extrapolates from shared runs.
pub(crate) fn of(
    engine: Engine,
    manifest: &ChainManifest,
    runs: &[RunCost],
) -> Option<Extrapolation> {
    let shares: Vec<Share> = runs.iter().filter_map(RunCost::share).collect();
    let median = |of: fn(&Share) -> f64| {
        MeasuredSpread::of(&shares.iter().map(of).collect::<Vec<_>>()).map(|it| it.median)
    };
    let walks = if engine == Engine::Mergesync { 2.0 } else { 1.0 };
    let jobs_ratio = walks * SEGMENTS / median(|share| share.jobs)?;
    let coins_ratio = COINS / manifest.coins as f64;
    let blocks_ratio = BLOCKS / f64::from(manifest.height);
    let coins = if engine == Engine::Utreexo { 0.0 } else { coins_ratio };
    let handling_seconds = median(|share| share.handling_seconds)?;
    let around_seconds = median(|share| share.serial_seconds - share.handling_seconds)?;
    let parallel_seconds = median(|share| share.parallel_seconds)?;
    let (handling_ratio, around_ratio) = (jobs_ratio.max(coins), blocks_ratio.max(coins));
    let parallel_ratio = BLOCK_BYTES / manifest.bytes as f64;
    let (handling, around) = (handling_seconds * handling_ratio, around_seconds * around_ratio);
    let (serial_seconds, parallel) = (handling + around, parallel_seconds * parallel_ratio);
    let all_seconds = serial_seconds + parallel;
    Some(Extrapolation {
        engine: engine.to_string(),
        handling_seconds,
        around_seconds,
        parallel_seconds,
        handling_ratio,
        around_ratio,
        parallel_ratio,
        serial_seconds,
        all_seconds,
        parallel_percent: 100.0 * (1.0 - serial_seconds / all_seconds),
        beside_percent: 100.0 * (1.0 - around / all_seconds),
        threads_max: (handling > 0.0).then_some(parallel / handling),
    })
}

pub(crate) fn table(of: &[Extrapolation]) -> TextTable {
    let columns = [
        "engine",
        "for jobs",
        "before and after",
        "shared",
        "serial s",
        "all s",
        "parallel %",
        "concurrent %",
        "max threads",
    ];
    let title = "Extrapolated to the main chain of 2026, not measured: seconds times ratio";
    let mut table = TextTable::new(title, &columns);
    for it in of {
        let part = |seconds: f64, ratio: f64| format!("{seconds:.3} x {ratio:.0}");
        table.row([
            it.engine.clone(),
            part(it.handling_seconds, it.handling_ratio),
            part(it.around_seconds, it.around_ratio),
            part(it.parallel_seconds, it.parallel_ratio),
            format!("{:.0}", it.serial_seconds),
            format!("{:.0}", it.all_seconds),
            format!("{:.3}", it.parallel_percent),
            format!("{:.3}", it.beside_percent),
            it.threads_max.map_or_else(String::new, |threads| format!("{threads:.0}")),
        ]);
    }
    table
}

//! [`side_by_side`]: as many runs with one thread each as another has threads, at once.
//!
//! They share nothing but the machine. What its memory, its disk and its clock take from processors that work at the
//! same time is no fault of a program with threads, which can only come near to it.

use super::chain::Chain;
use super::derive::with_one_thread;
use super::error::RunError;
use super::matrix::Subject;
use super::own::Apus;
use super::report::Report;
use std::path::Path;
use std::sync::atomic::AtomicBool;
use std::thread;

/// What a run takes beside its `--dbcache` at most, in MiB.
const BESIDE_DBCACHE_MIB: u64 = 100;

/// Runs them. Gives their mean wall time and their reports; none where the subject has one thread, or where memory of
/// so many bytes is too little for all at once.
pub(super) fn side_by_side(
    apus: &Apus<'_>,
    (chain, node): (&Chain, Option<&Path>),
    subject: &Subject,
    memory_bytes: Option<u64>,
    interrupt: &AtomicBool,
) -> Result<Option<(f64, Vec<Report>)>, RunError> {
    let places = subject.threads().filter(|threads| *threads > 1);
    let (Some(places), Some(single)) = (places, with_one_thread(subject)) else { return Ok(None) };
    let each_mib = subject.dbcache_mib().saturating_add(BESIDE_DBCACHE_MIB);
    let needed = each_mib.saturating_mul(places as u64).saturating_mul(1 << 20);
    if memory_bytes.is_none_or(|memory| memory < needed) {
        return Ok(None);
    }
    let one = |place: usize| {
        let apus = Apus { place: Some(place), ..*apus };
        let arguments = apus.arguments(chain, node, &single);
        arguments.map(|arguments| apus.run(&arguments, Some(1), 0, interrupt)).transpose()
    };
    let ended: Vec<_> = thread::scope(|scope| {
        let begun: Vec<_> = (0..places).map(|place| scope.spawn(move || one(place))).collect();
        begun.into_iter().map(|run| run.join()).collect()
    });
    let (mut seconds, mut reports) = (0.0, Vec::new());
    for run in ended {
        let run = run.unwrap_or_else(|panic| std::panic::resume_unwind(panic))?;
        let Some((run, report)) = run else { return Ok(None) };
        seconds += run.wall_seconds;
        reports.push(report);
    }
    Ok(Some((seconds / places as f64, reports)))
}

//! [`hash_beside`]: the set's `hash_serialized_3`, computed while other machines judge blocks.
//!
//! It is one long chain of compressions, for which other threads would wait at the end. It has nothing to do with
//! whether blocks are valid: where one is not, it is given up. Where coins are written out it is computed on their
//! way there, rather than read twice.

use crate::error::SyncError;
use crate::progress::stop_if_interrupted;
use crate::request::{OutputKind, Request, Source};
use crate::runs::{CoinsForm, MergeBudget, merge_runs};
use crate::sink::HashSink;
use crate::sink::put::SetHash;
use crate::workdir::RunInfo;
use std::panic::resume_unwind;
use std::sync::atomic::{AtomicBool, Ordering};

/// Does some work, and beside it, where there are threads for both and nothing else wants the coins, computes the
/// hash of those in some runs.
///
/// # Errors
/// Those of the work first.
pub fn hash_beside<T>(
    request: &Request<'_>,
    coins: Vec<RunInfo>,
    work: impl FnOnce() -> Result<T, SyncError>,
) -> Result<(T, Option<SetHash>), SyncError> {
    let are_written = !request.folders.is_empty()
        || request.outputs.iter().any(|output| output.kind == OutputKind::Snapshot);
    // With peers blocks above are connected, and the set becomes another one.
    let goes_on = matches!(request.source, Source::Peers(_));
    // Where machines share the run, this one waits for them meanwhile.
    let has_thread = request.env.threads >= 2 || request.env.machines.is_some();
    if !has_thread || are_written || goes_on {
        return Ok((work()?, None));
    }
    let halt = AtomicBool::new(false);
    std::thread::scope(|scope| {
        let builder = std::thread::Builder::new().name("coins".to_owned());
        let hashing = builder.spawn_scoped(scope, || hash(request, coins, &halt));
        let done = work();
        halt.store(done.is_err(), Ordering::Relaxed);
        // Without a thread for it the hash is computed at the end.
        let hashed = hashing.ok().map(|thread| match thread.join() {
            Ok(hashed) => hashed,
            Err(panic) => resume_unwind(panic),
        });
        let done = done?;
        Ok((done, hashed.transpose()?))
    })
}

/// The hash of the coins in some runs, unless it is halted.
fn hash(
    request: &Request<'_>,
    coins: Vec<RunInfo>,
    halt: &AtomicBool,
) -> Result<SetHash, SyncError> {
    let go_on = || match halt.load(Ordering::Relaxed) {
        true => Err(SyncError::Interrupted),
        false => stop_if_interrupted(request.env.interrupt),
    };
    let (mut sink, budget) = (HashSink::default(), MergeBudget::new(request.env.memory_bytes / 16));
    merge_runs::<CoinsForm>(request.env.workdir, coins, budget, &go_on, &mut |record| {
        go_on()?;
        sink.put_records(record)
    })?;
    Ok(SetHash { coins: sink.coins(), hash_serialized_3: sink.finish() })
}

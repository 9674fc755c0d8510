//! [`beside`]: jobs of a run that are done where it is given out, by a worker like any other in the same process.
//!
//! It has a connection of its own and no way to its coordinator but the queue, so what it leaves counts as that of other
//! machines does. When it cannot go on, that is told, and the run goes on without it.

use super::args::ServeArgs;
use super::{LOOK_INTERVAL, Means, WorkerBlocks, take_part};
#[cfg(feature = "utreexo")]
use crate::by_proofs::WorkerProofs;
use crate::failure::Failure;
use crate::machine::watch_signals;
use crate::print;
use apus_cluster::{Coordinator, LinkOptions, Worker};
use apus_jobs::QueueError;
use std::sync::atomic::{AtomicBool, Ordering};

/// Does a run, and its jobs beside it if that is wanted.
pub(super) fn beside(
    args: &ServeArgs,
    options: &LinkOptions,
    coordinator: &Coordinator,
    run: impl FnOnce() -> Result<(), Failure>,
) -> Result<(), Failure> {
    let Some(blocksdir) = args.sync.blocksdir.as_deref().filter(|_| args.work > 0) else {
        return run();
    };
    // Before there are threads.
    watch_signals()?;
    let worker = Worker::connect(options, None)?;
    let scratch = args.scratch.as_deref();
    let blocks = WorkerBlocks::Folder(blocksdir);
    #[cfg(feature = "utreexo")]
    let proofs = WorkerProofs { named: &args.sync.proofs.proofs, how: (&args.sync.peers).into() };
    let memory_bytes = (args.sync.run.dbcache << 20) / 2;
    let threads = args.work.into();
    let means = Means {
        blocks,
        #[cfg(feature = "utreexo")]
        proofs,
        scratch,
        memory_bytes,
        threads,
    };
    let over = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            if let Err(failure) = work(&worker, coordinator, &means, &over) {
                print::aside(format_args!(
                    "warning: no more jobs are done here, and other machines go on: {}",
                    failure.message
                ));
            }
        });
        let ended = run();
        // Its jobs go back where the run is not through.
        over.store(true, Ordering::Relaxed);
        ended
    })
}

/// Takes part in whatever run is open, until all is over.
fn work(
    worker: &Worker,
    coordinator: &Coordinator,
    means: &Means<'_>,
    over: &AtomicBool,
) -> Result<(), Failure> {
    while !over.load(Ordering::Relaxed) {
        let open = coordinator.opened();
        let seen = match worker.runs() {
            Ok(runs) => runs.into_iter().find(|seen| Some(seen.run) == open),
            // The coordinator says so, and decides how long that may be.
            Err(QueueError::Away(_)) => None,
            Err(error) => return Err(apus_sync::SyncError::from(error).into()),
        };
        match seen {
            Some(seen) => match take_part(worker, &seen, means, over) {
                Err(_) if over.load(Ordering::Relaxed) => return Ok(()),
                other => drop(other?),
            },
            None => worker.wait_for_run(LOOK_INTERVAL),
        }
    }
    Ok(())
}

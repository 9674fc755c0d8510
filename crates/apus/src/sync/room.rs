//! [`warn`]: says before anything runs that a disk may become full, where that can be foreseen.
//!
//! An estimate stops no run. Where the engine knows what its records take at most, it refuses by itself.

use super::{Job, JobSource};
use crate::args::SinkArg;
use crate::aside::bytes_in;
use crate::plan::{Blocks, Needs, Set, Way, tell_little_room};
use crate::workdir::WorkFolder;
use apus_datadir::BlockFiles;
use apus_sync::{DatadirBlocks, Engine, Event, Observer};
use std::path::Path;

/// Warns of each disk that has less free than the run may take. What is wrong with blocks or hints the run
/// tells by itself.
pub(super) fn warn(job: &Job<'_>, work_path: &Path, observer: &dyn Observer) {
    let JobSource::Files { blocksdir, .. } = &job.source else { return };
    let way = match (job.engine, job.hints) {
        (_, Some(_)) => Way::Hints,
        (None | Some(Engine::MergeSync), None) => Way::Joins,
        (Some(Engine::Utxo), None) if job.coins.is_some() => Way::InOrderOnServers,
        (Some(Engine::Utxo), None) => Way::InOrder,
        (Some(Engine::Utreexo), None) => return,
    };
    if job.bridge.is_some() || WorkFolder::has_plan(work_path) {
        return;
    }
    let Ok(files) = BlockFiles::open(blocksdir, job.chain.magic()) else { return };
    let old = job.outputs.iter().find_map(|sink| match sink {
        SinkArg::Chainstate(path) if path.is_dir() => Some(bytes_in(path)),
        _ => None,
    });
    let set = match job.hints {
        Some(hints) => Set::of_hints(hints, job.chain).unwrap_or_default(),
        None => Set::of_chainstate(old.unwrap_or_default()),
    };
    let needs = Needs {
        blocks: Blocks::of_size(files.bytes_total()),
        way,
        set,
        outputs: job.outputs,
        prune: matches!(job.kept, DatadirBlocks::Last),
        workdir: work_path,
        memory_bytes: job.run.dbcache << 20,
        threads: crate::machine::threads(job.run.par),
    };
    let _ = tell_little_room(&needs, &mut |warning| observer.event(Event::Warning(warning)));
}

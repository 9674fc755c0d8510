//! Makes hints of a set that was computed without any, and a commitment to it, with one more pass over the
//! blocks.
//!
//! The set is known by now, so a snapshot of it serves as its own hints; SwiftSync takes the blocks in any
//! order, proves again that these coins are the right ones, and writes the hintsfile. The pass has its own
//! work folder inside this sync's.

use super::{discard_progress, run};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{SyncError, UsageError};
use crate::folder::at;
use crate::progress::{Event, Observer};
use crate::request::{HintedTask, HintedValidity, HintsInput, Output, Request, RunEnv, Stop, Task};
use crate::runs::EachRecord;
use crate::sink::put::{Put, SetMuHash, SetRecords, Sinks, put_set};
use crate::sink::{SetInfo, SnapshotSink};
use crate::workdir::invalid::FailedBlocks;
use apus_chain::UtxoSetHash;
use apus_storage::{DirStorage, Storage, create_private_dir};

/// Name of the set's file.
const SET: &str = "set.dat";

/// Writes the hints and the commitment that `request` asks for, for a set with these records; `known` has its
/// hashes.
pub(super) fn write(
    request: &Request<'_>,
    set: SetInfo,
    known: &Put,
    records: impl FnOnce(&mut EachRecord<'_>) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let options = request.expect_connect()?;
    let outputs = request.outputs.iter().filter(|output| !output.kind.takes_coins());
    let outputs: Vec<Output> = outputs.cloned().collect();
    if outputs.is_empty() && !request.wants_commitment() {
        return Ok(());
    }
    let work = options.hints_folder.join("work");
    for folder in [&options.hints_folder, &work] {
        create_private_dir(folder).map_err(at(folder))?;
    }
    let folder = DirStorage::private(&options.hints_folder);
    // An earlier start's file may be incomplete; the set is the same in any case.
    folder.remove(SET).map_err(at(&options.hints_folder))?;
    let sinks: Sinks<'_> = vec![Box::new(SnapshotSink::create(&folder, SET, set)?)];
    let muhash = SetMuHash::Known(known.hashes.muhash);
    put_set(request, set, sinks, muhash, 0, SetRecords::given(records))?;
    let (storage, observer) =
        (DirStorage::private(&work), SecondPassObserver(request.env.observer));
    let pass = Request {
        source: request.source.clone(),
        task: Task::Hinted(HintedTask {
            hints: HintsInput::Snapshot(options.hints_folder.join(SET)),
            aggregate: AggregateKind::Sha256,
            // These blocks were connected, or the sync has already reported on its own hints.
            validity: HintedValidity::NotAsked,
            spent: None,
            connect: None,
        }),
        leave_witnesses: request.leave_witnesses,
        stop: Stop::AtHints,
        follow: false,
        outputs: &outputs,
        commitment: request.commitment,
        folders: &[],
        sets: &[],
        muhash: false,
        env: RunEnv {
            workdir: &storage,
            observer: &observer,
            is_shared: false,
            given: None,
            ..request.env
        },
    };
    let run_pass = || {
        // The pass must choose the chain on which this sync ended.
        let invalid = FailedBlocks::read(request.env.workdir, request.env.params.network)?;
        if !invalid.all().is_empty() {
            invalid.write(pass.env.workdir, request.env.params.network)?;
        }
        run(&pass)
    };
    let outcome = match run_pass() {
        Err(SyncError::Usage(UsageError::OtherRun { .. })) => {
            // An earlier start got this far with a set at a lower block, which is no longer needed.
            discard_progress(pass.env.workdir)?;
            run_pass()?
        }
        done => done?,
    };
    let found = outcome.set.hash_serialized_3().expect("hints lead to a set");
    let known = known.hashes.hash_serialized_3;
    if found != known {
        let (found, known) = (UtxoSetHash(found), UtxoSetHash(known));
        return Err(SyncError::io(format!(
            "the second pass over the blocks, for the hints, computed the set {found} instead of {known}. This is \
             a bug in Apus: please report it. No hints were written"
        )));
    }
    Ok(())
}

/// Passes on all events, except that an earlier start began this pass, and warnings about work done or skipped:
/// the sync itself reports its own.
struct SecondPassObserver<'a>(&'a dyn Observer);

impl Observer for SecondPassObserver<'_> {
    fn event(&self, event: Event) {
        match &event {
            Event::Resumed { .. } => {}
            Event::Warning(warning) if warning.is_of_run() => {}
            _ => self.0.event(event),
        }
    }
}

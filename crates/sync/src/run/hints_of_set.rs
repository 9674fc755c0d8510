//! Hints of a set that was computed without any, and a commitment to it: the blocks are gone through once more.
//!
//! The set is known by now, so it serves as hints for itself, in the form of a snapshot; SwiftSync
//! takes the blocks in any order, proves once more that these coins are the right ones, and leaves
//! the hintsfile behind. The pass has a work folder of its own, inside this run's.

use super::{discard_progress, run};
use crate::engines::swiftsync::aggregate::AggregateKind;
use crate::error::{SyncError, UsageError};
use crate::folder::at;
use crate::progress::{Event, Observer};
use crate::request::{HintedTask, HintedValidity, HintsInput, Output, Request, RunEnv, Stop, Task};
use crate::runs::EachRecord;
use crate::sink::put::{Put, SetMuHash, SetRecords, Sinks, put_set};
use crate::sink::{SetInfo, SnapshotSink};
use crate::workdir::invalid::PutAsideBlocks;
use apus_chain::UtxoSetHash;
use apus_storage::{DirStorage, Storage, create_private_dir};

/// Name of the set's file.
const SET: &str = "set.dat";

/// Writes the hints and the commitment that `request` asks for, of a set of these records, which is `known` by its hashes.
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
    // One of an earlier start may be whole or not; it is the same set in any case.
    folder.remove(SET).map_err(at(&options.hints_folder))?;
    let sinks: Sinks<'_> = vec![Box::new(SnapshotSink::create(&folder, SET, set)?)];
    let muhash = SetMuHash::Known(known.hashes.muhash);
    put_set(request, set, sinks, muhash, 0, SetRecords::given(records))?;
    let (storage, observer) = (DirStorage::private(&work), OfSecondPass(request.env.observer));
    let pass = Request {
        source: request.source.clone(),
        task: Task::Hinted(HintedTask {
            hints: HintsInput::Snapshot(options.hints_folder.join(SET)),
            aggregate: AggregateKind::Sha256,
            // These blocks were connected, or the run said of its own hints what there is to say.
            validity: HintedValidity::NotAsked,
            connect: None,
        }),
        leave_witnesses: request.leave_witnesses,
        stop: Stop::AtHints,
        follow: false,
        outputs: &outputs,
        commitment: request.commitment,
        folders: &[],
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
        // It is to choose the chain that this run ended with.
        let invalid = PutAsideBlocks::read(request.env.workdir, request.env.params.network)?;
        if !invalid.all().is_empty() {
            invalid.write(pass.env.workdir, request.env.params.network)?;
        }
        run(&pass)
    };
    let outcome = match run_pass() {
        Err(SyncError::Usage(UsageError::OtherRun { .. })) => {
            // An earlier start came here with a set further down, which is not asked for any more.
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
            "taking the blocks once more for the hints led to the set {found} and not to {known}: this \
             is a mistake in the program; no hints were written"
        )));
    }
    Ok(())
}

/// Passes everything on but that this pass was begun by an earlier start, and warnings of what was or
/// is not done: those are about the run itself, and it gives its own.
struct OfSecondPass<'a>(&'a dyn Observer);

impl Observer for OfSecondPass<'_> {
    fn event(&self, event: Event) {
        match &event {
            Event::Resumed { .. } => {}
            Event::Warning(warning) if warning.is_of_run() => {}
            _ => self.0.event(event),
        }
    }
}

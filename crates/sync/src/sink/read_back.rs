//! Reading back a `blocks` folder that was written: its index, and every block and its undo data.
//!
//! The folder is cut into parts, which threads take one after the other. Of several faults the first in
//! the folder is told, however many threads there were.

use crate::error::{IoError, SyncError};
use crate::folder::{BlocksRead, FolderKind, WrittenFolder};
use crate::progress::{Event, Phase, Progress, stop_if_interrupted};
use crate::request::Request;
use crate::sink::SetInfo;
use crate::source::{ChainSource, KeptWhole};
use crate::supply::context;
use apus_chain::{HeaderChain, Height};
use apus_datadir::{
    BlocksReadBack, Holds, LEVELDB_LOCK, PartRead, PartReader, ReadBackError, SpentAt,
    WrittenBlocks,
};
use core::ops::ControlFlow;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};

/// Reads back the `blocks` folder of the chain up to the height `last`, of which so many `transactions`
/// were processed, without the first block's. `spent` is for the blocks that have undo data.
pub fn read_blocks_back(
    request: &Request<'_>,
    chain: &HeaderChain,
    folder: &Path,
    last: Height,
    holds: Holds<'_>,
    transactions: u64,
    spent: &SpentAt<'_>,
) -> Result<BlocksRead, SyncError> {
    let written = WrittenBlocks {
        folder,
        params: request.env.params,
        blocks: last + 1,
        holds,
        context: &|height| context(request.env.params, chain, request.env.verifier, height),
        spent: Some(spent),
    };
    let mut go_on = |_| match request.env.interrupt.load(Ordering::Relaxed) {
        true => ControlFlow::Break(()),
        false => ControlFlow::Continue(()),
    };
    let failed = |error| failure(request, error);
    let Some(all) = BlocksReadBack::open(written, &mut go_on).map_err(failed)? else {
        return Err(SyncError::Interrupted);
    };
    if all.transactions() != transactions + 1 {
        let path = folder.join("index");
        let (found, known) = (all.transactions(), transactions + 1);
        let what = format!("its blocks have {found} transactions together, not {known}");
        return Err(failed(ReadBackError::Index { path, what }));
    }
    let found = check_parts(request, &all)?;
    let PartRead { blocks, undo, bytes, .. } = found;
    let (index_entries, undo_at_end) = (all.index_entries(), all.undo_at_end());
    Ok(BlocksRead { index_entries, blocks, undo, undo_at_end, bytes })
}

/// Makes whole what the source keeps of the blocks, which is no folder of the run's, and reads it back.
/// The blocks belong to the first of `folders`, a chainstate that they lie beside. Where they are not as
/// they should be, the index goes, so that no node believes it.
pub fn complete(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    set: SetInfo,
    folders: &mut [WrittenFolder],
) -> Result<(), SyncError> {
    if request.folders.iter().any(|folder| folder.kind == FolderKind::KeptDatadir) {
        // They were part of what got its name.
        return Ok(());
    }
    let Some(archive) = dir.archive() else { return Ok(()) };
    let Some(kept) = archive.write_index(dir.chain(), set.height)? else { return Ok(()) };
    request.env.observer.event(Event::Started(Phase::CheckBlocks));
    let found = read_kept_back(request, dir, &kept, set)?;
    request.env.observer.event(Event::Ended { phase: Phase::CheckBlocks, bytes: found.bytes });
    let beside = folders.iter_mut().find(|folder| folder.kind == FolderKind::Chainstate);
    if let Some(beside) = beside {
        beside.blocks_read_back = found;
    }
    Ok(())
}

/// Reads back blocks that the source kept, with their index, which goes again where something is wrong.
pub fn read_kept_back(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    KeptWhole { folder, blocks, .. }: &KeptWhole<'_>,
    set: SetInfo,
) -> Result<BlocksRead, SyncError> {
    let (last, count) = (set.height, set.transactions);
    // Blocks beside the chain are kept, and undo data of those alone that were connected.
    let holds = Holds { first: 0, tx_counts: None, whole: false };
    let chain = dir.chain();
    let spent = |height: Height| {
        let stored = blocks.stored(chain.hash(height)?).ok()?;
        stored.undo.map(|_| stored.spent)
    };
    let found = read_blocks_back(request, chain, folder, last, holds, count, &spent);
    found.map_err(|error| {
        let index = folder.join("index");
        if !index.join(LEVELDB_LOCK).exists() {
            // The error to tell is the first; what stays is removed by the next start. One with a lock a
            // node has opened, and it is no longer ours.
            let _ = fs::remove_dir_all(index);
        }
        match error {
            SyncError::Io(IoError::BlocksReadBack { error, workdir }) => {
                SyncError::Io(IoError::KeptReadBack {
                    error,
                    workdir,
                    folder: folder.display().to_string(),
                })
            }
            error => error,
        }
    })
}

/// What threads have come to.
#[derive(Default)]
struct ReadBackState {
    found: PartRead,
    /// The first in the folder, with its part.
    failure: Option<(usize, SyncError)>,
}

/// What threads on the parts share.
struct ReadBackParts<'p, 'r, 'a> {
    request: &'p Request<'r>,
    all: &'p BlocksReadBack<'a>,
    next: AtomicUsize,
    state: Mutex<ReadBackState>,
}

fn check_parts(request: &Request<'_>, all: &BlocksReadBack<'_>) -> Result<PartRead, SyncError> {
    let (next, state) = (AtomicUsize::new(0), Mutex::default());
    let parts = ReadBackParts { request, all, next, state };
    let more = request.env.threads.min(all.parts()).saturating_sub(1);
    std::thread::scope(|scope| {
        for _ in 0..more {
            let thread = std::thread::Builder::new().name("read-back".to_owned());
            if let Err(error) = thread.spawn_scoped(scope, || parts.work()) {
                parts.fail(0, SyncError::Io(IoError::Threads { wanted: more + 1, error }));
            }
        }
        parts.work();
    });
    let ReadBackState { found, failure } =
        parts.state.into_inner().unwrap_or_else(PoisonError::into_inner);
    failure.map_or(Ok(found), |(_, error)| Err(error))
}

impl ReadBackParts<'_, '_, '_> {
    /// Takes parts until there are none, or something has failed. They are claimed in ascending order,
    /// so all that lie before one that fails are looked at, too.
    fn work(&self) {
        let mut reader = PartReader::new();
        while self.state().failure.is_none() {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            if part >= self.all.parts() {
                return;
            }
            let checked = self.all.check(part, &mut reader);
            let checked = checked.map_err(|error| failure(self.request, error)).and_then(|found| {
                self.add(found);
                stop_if_interrupted(self.request.env.interrupt)
            });
            if let Err(error) = checked {
                self.fail(part, error);
            }
        }
    }

    fn add(&self, part: PartRead) {
        let found = &mut self.state().found;
        found.blocks += part.blocks;
        found.undo += part.undo;
        found.undo_coins += part.undo_coins;
        found.bytes += part.bytes;
        let progress = Progress {
            blocks: found.blocks,
            blocks_total: self.all.blocks(),
            bytes: found.bytes,
            bytes_total: self.all.bytes(),
            ..Progress::default()
        };
        self.request.env.observer.event(Event::Progress(Phase::CheckBlocks, progress));
    }

    fn fail(&self, part: usize, error: SyncError) {
        let failure = &mut self.state().failure;
        if failure.as_ref().is_none_or(|(before, _)| part < *before) {
            *failure = Some((part, error));
        }
    }

    fn state(&self) -> MutexGuard<'_, ReadBackState> {
        // A panic ends the run in any case.
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// What can be done about it: an index is written anew by each start, blocks are not.
fn failure(request: &Request<'_>, error: ReadBackError) -> SyncError {
    let workdir = request.env.workdir.describe("");
    match error {
        ReadBackError::Io { .. } => SyncError::io(format!(
            "what was written could not be read back: {error}, and start the same run again"
        )),
        error if error.is_about_index() => SyncError::io(format!(
            "{error}: the disk or its memory changed what was written, or this is a mistake in the program; \
             no folder was completed. Start the same run again, which writes the index anew"
        )),
        error => SyncError::Io(IoError::BlocksReadBack { error: Box::new(error), workdir }),
    }
}

//! Reads back a written `blocks` folder: its index, and every block with its undo data.
//!
//! The folder is cut into parts, which threads take in order. The reported fault is always the first in the
//! folder, regardless of the number of threads.

use crate::error::{IoError, SyncError};
use crate::folder::{BlocksRead, FolderKind, WrittenFolder};
use crate::progress::{Event, Phase, Progress, stop_if_interrupted, unless_interrupted};
use crate::request::Request;
use crate::sink::SetInfo;
use crate::source::{ChainSource, StoredBlocks};
use crate::supply::context;
use apus_chain::{HeaderChain, Height};
use apus_datadir::{
    BlocksReadBack, ExpectedFolder, LEVELDB_LOCK, PartRead, PartReader, ReadBackError, SpentAt,
    WrittenBlocks,
};
use parking_lot::Mutex;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Reads back the `blocks` folder of the chain up to height `last`. `transactions` is the number of
/// transactions in all blocks except the first. `spent` covers the blocks that have undo data.
pub fn read_blocks_back(
    request: &Request<'_>,
    chain: &HeaderChain,
    folder: &Path,
    last: Height,
    holds: ExpectedFolder<'_>,
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
    let mut go_on = |_| unless_interrupted(request.env.interrupt);
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

/// Completes the blocks that the source keeps outside the sync's own folders, and reads them back. The blocks
/// belong to the first of `folders`, which is the chainstate next to them. Removes their index if a block is
/// damaged, so that no node trusts it.
pub fn complete(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    set: SetInfo,
    folders: &mut [WrittenFolder],
) -> Result<(), SyncError> {
    if request.folders.iter().any(|folder| folder.kind == FolderKind::KeptDatadir) {
        // The blocks were part of a published folder.
        return Ok(());
    }
    let Some(archive) = dir.archive() else { return Ok(()) };
    let Some(kept) = archive.write_index(dir.chain(), set.height)? else { return Ok(()) };
    request.env.observer.event(Event::Started(Phase::CheckBlocks));
    let found = read_kept_back(request, dir, &kept, set)?;
    request.env.observer.event(Event::Ended { phase: Phase::CheckBlocks, bytes: found.bytes });
    let chainstate = folders.iter_mut().find(|folder| folder.kind == FolderKind::Chainstate);
    if let Some(chainstate) = chainstate {
        chainstate.blocks_read_back = found;
    }
    Ok(())
}

/// Reads back blocks that the source kept, with their index. Removes the index if any is damaged.
pub fn read_kept_back(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    StoredBlocks { folder, blocks, .. }: &StoredBlocks<'_>,
    set: SetInfo,
) -> Result<BlocksRead, SyncError> {
    let (last, count) = (set.height, set.transactions);
    // Blocks off the chain are kept too, but undo data only of connected blocks.
    let expected = ExpectedFolder { first: 0, tx_counts: None, whole: false };
    let chain = dir.chain();
    let spent = |height: Height| {
        let stored = blocks.stored(chain.hash(height)?).ok()?;
        stored.undo.map(|_| stored.spent)
    };
    let found = read_blocks_back(request, chain, folder, last, expected, count, &spent);
    found.map_err(|error| {
        let index = folder.join("index");
        if !index.join(LEVELDB_LOCK).exists() {
            // The first error is the one to report; the next start removes the rest. An index with a lock file
            // was opened by a node, so it belongs to that node.
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

/// The results of all threads.
#[derive(Default)]
struct ReadBackState {
    found: PartRead,
    /// The first failure in the folder, with its part.
    failure: Option<(usize, SyncError)>,
}

/// State shared by the threads.
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
    let ReadBackState { found, failure } = parts.state.into_inner();
    failure.map_or(Ok(found), |(_, error)| Err(error))
}

impl ReadBackParts<'_, '_, '_> {
    /// Reads parts until none are left or one has failed. Threads claim parts in ascending order, so all parts
    /// before a failing one are read, too.
    fn work(&self) {
        let mut reader = PartReader::new();
        while self.state.lock().failure.is_none() {
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
        let found = &mut self.state.lock().found;
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
        let failure = &mut self.state.lock().failure;
        if failure.as_ref().is_none_or(|(before, _)| part < *before) {
            *failure = Some((part, error));
        }
    }
}

/// Adds the remedy to an error: each start rewrites an index, but not the blocks.
fn failure(request: &Request<'_>, error: ReadBackError) -> SyncError {
    let workdir = request.env.workdir.describe("");
    match error {
        ReadBackError::Io { .. } => SyncError::io(format!(
            "reading back what was written failed: {error}; then rerun the same command"
        )),
        error if error.is_about_index() => SyncError::io(format!(
            "{error}: the disk or memory changed written data, or this is a bug in Apus. No folder was completed. \
             Check the disk, then rerun the same command to rewrite the index"
        )),
        error => SyncError::Io(IoError::BlocksReadBack { error: Box::new(error), workdir }),
    }
}

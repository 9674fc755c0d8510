//! [`DatadirKeeping`]: writes a data directory with blocks and undo data, from results of segments in any order.
//!
//! Blocks come from this machine's own folder. When a segment's answer arrives, its undo data are fetched at once
//! into a file of the work folder, so that a lost object is detected early and created again. They are written to the
//! directory once the undo data of all lower segments are. So memory holds one object at a time, and the disk holds
//! the segments that arrived early.

use crate::error::ClusterError;
use crate::queue::{JobQueue, ObjectRef, SentUndo};
use crate::scheduler::AnswerError;
use crate::scheduler::Scheduler;
use apus_chain::{CheckedBlock, Height, HeightRange, KnownBlock};
use apus_sync::engines::in_order::{BlockWithUndo, DatadirWriter};
use apus_sync::engines::mergesync::{MergeWork, sum_key};
use apus_sync::error::{StorageResult, SyncError};
use apus_sync::folder::{DatadirBlocks, FolderKind};
use apus_sync::request::{Request, first_of_last};
use apus_sync::sink::datadir::DraftWithBlocks;
use apus_sync::supply::in_order::take_in_order;
use apus_sync::workdir::names::SPILL;
use apus_sync::workdir::plan::Plan;
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::sync::Arc;

/// Writes a data directory with blocks and undo data.
pub(super) struct DatadirKeeping<'k> {
    work: &'k MergeWork<'k>,
    fetching: UndoFetch<'k>,
    keeper: DatadirWriter,
    /// The next block to write.
    next: Height,
    /// Segments that wait for a lower one.
    early: BTreeMap<Height, UndoFile>,
}

/// Fetches undo data from the object store.
#[derive(Clone, Copy)]
pub(super) struct UndoFetch<'f> {
    queue: &'f dyn JobQueue,
    request: &'f Request<'f>,
    /// The first block whose undo data are requested.
    pub(super) from: Height,
}

/// A file with the undo data of a segment; it does not exist if none are requested.
pub(super) struct UndoFile {
    range: HeightRange,
    name: String,
    /// Lengths of the concatenated objects in the file.
    lengths: Vec<usize>,
}

/// Whether a request includes a data directory.
pub(super) fn is_wanted(request: &Request<'_>) -> bool {
    request.folders.iter().any(|folder| matches!(folder.kind, FolderKind::Datadir(_)))
}

impl UndoFetch<'_> {
    /// Fetches the undo data of a segment, and checks that there is a record for each block.
    pub(super) fn undo(
        &self,
        range: HeightRange,
        objects: &[ObjectRef],
    ) -> Result<UndoFile, AnswerError> {
        let (request, here) = (self.request, AnswerError::Local);
        let storage = request.env.workdir;
        let name = format!("{SPILL}undo-{}.dat", range.start);
        let (mut count, mut lengths) = (0, Vec::with_capacity(objects.len()));
        let mut file = None;
        for object in objects {
            let bytes = Scheduler::object(self.queue, request, object)?;
            let records = SentUndo::all(&bytes);
            count += records.map_err(|error| AnswerError::Invalid(error.to_string()))?.len();
            let file = match &mut file {
                Some(file) => file,
                none => none.insert(storage.create(&name).at(storage, &name).map_err(here)?),
            };
            file.write_all(&bytes).at(storage, &name).map_err(here)?;
            lengths.push(bytes.len());
        }
        if let Some(mut file) = file {
            file.flush().at(storage, &name).map_err(here)?;
        }
        match count == self.kept(range).count() as usize {
            true => Ok(UndoFile { range, name, lengths }),
            false => Err(AnswerError::Invalid("its undo data are for other blocks".to_owned())),
        }
    }

    /// The blocks of a range whose undo data are requested.
    fn kept(&self, range: HeightRange) -> HeightRange {
        HeightRange::new(range.start.max(self.from).min(range.end), range.end)
    }
}

impl<'k> DatadirKeeping<'k> {
    /// Starts a data directory, if one is requested: from scratch, even if an earlier start wrote a part of it.
    pub(super) fn start(
        work: &'k MergeWork<'k>,
        queue: &'k dyn JobQueue,
        plan: &Plan,
    ) -> Result<Option<Self>, SyncError> {
        let (request, end) = (work.request, plan.last());
        let tip = KnownBlock { height: 0, hash: request.env.params.genesis_hash };
        let keeper =
            DatadirWriter::start(request, work.options, work.dir, 1, tip, end, sum_key(plan))?;
        let Some(keeper) = keeper else { return Ok(None) };
        let holds_all = |kind: &FolderKind| matches!(kind, FolderKind::Datadir(DatadirBlocks::All));
        let all = request.folders.iter().any(|folder| holds_all(&folder.kind));
        let from = if all { 1 } else { first_of_last(end).max(1) };
        let fetching = UndoFetch { queue, request, from };
        Ok(Some(Self { work, fetching, keeper, next: 1, early: BTreeMap::new() }))
    }

    /// Returns a fetcher for undo data.
    pub(super) fn fetching(&self) -> UndoFetch<'k> {
        self.fetching
    }

    /// Adds the undo data of a segment, and writes all segments that are next in order.
    pub(super) fn take(&mut self, undo: UndoFile) -> Result<(), SyncError> {
        self.early.insert(undo.range.start, undo);
        while let Some(undo) = self.early.remove(&self.next) {
            self.next = undo.range.end;
            self.write(&undo)?;
        }
        Ok(())
    }

    fn write(&mut self, undo: &UndoFile) -> Result<(), SyncError> {
        let (range, request) = (self.fetching.kept(undo.range), self.work.request);
        if range.is_empty() {
            return Ok(());
        }
        let (storage, name) = (request.env.workdir, &undo.name);
        let mut file = storage.open(name, 0).at(storage, name)?;
        let prepare = |block: CheckedBlock| {
            let raw = block.bytes().view().raw().to_vec();
            let id = KnownBlock { height: block.height(), hash: block.bytes().hash() };
            let bytes = raw.len() as u64;
            ((id, Arc::new(raw)), bytes)
        };
        let keeper = &mut self.keeper;
        take_in_order(&request.env, self.work.dir, (range, 0), &prepare, |ahead| {
            for length in &undo.lengths {
                let mut bytes = vec![0; *length];
                file.read_exact(&mut bytes).at(storage, name)?;
                let records = SentUndo::all(&bytes);
                let damaged = |error: crate::queue::WireError| {
                    SyncError::from(ClusterError::Message(format!("{name}: {error}")))
                };
                for SentUndo { undo, spent } in records.map_err(damaged)? {
                    let Some((_, ((id, raw), _))) = ahead.next()? else { break };
                    keeper.put(BlockWithUndo { id, raw, undo: undo.to_vec(), spent })?;
                }
                apus_sync::progress::stop_if_interrupted(request.env.interrupt)?;
            }
            Ok(())
        })?;
        drop(file);
        storage.remove(name).at(storage, name)
    }

    /// Finishes the directory.
    pub(super) fn end(self) -> Result<DraftWithBlocks, SyncError> {
        self.keeper.end()
    }
}

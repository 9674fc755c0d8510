//! [`FinishedRange`]: a finished segment, and [`RunInfo`], a run that it produced; their byte form, and how
//! they are made durable.
//!
//! A `.part`:
//!
//! ```text
//! 8     41 50 55 53 50 41 52 54   "APUSPART"
//! 4     version, 7
//! 32    id of the plan
//! 4     first height
//! 4     first height after
//! 28    for each run of the pass: bytes of its records (8), sections (4), XXH3 with 128 bits of its index (16)
//! …     the partial result
//! 32    SHA-256 of all bytes before
//! ```

use super::index::{Checksum, RunIndex, checksum};
use super::names::{is_asked_for, partial_name, run_name};
use super::{Workdir, names};
use crate::engines::pass::{FinishedSegment, PartialResult, Pass, RunKind};
use crate::error::{StorageResult, SyncError};
use apus_chain::{HeightRange, Reader};
use apus_hash::release;
use apus_storage::{Storage, draft_name};
use std::io::{ErrorKind, Write};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::{Builder, scope};

/// First bytes of a segment's partial result.
const MAGIC: &[u8; 8] = b"APUSPART";

/// Version of its file.
const VERSION: u32 = 7;

/// A finished segment in the folder.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FinishedRange<P> {
    /// Its heights.
    pub range: HeightRange,
    /// Its result.
    pub partial: P,
    /// Its runs, one of each kind that the pass produces.
    pub runs: Vec<RunInfo>,
    /// Whether it is durable, so that a later start finds it.
    pub stored: bool,
}

/// The finished segments of a pass.
pub type SegmentsOf<P> = Vec<FinishedRange<<P as Pass>::Partial>>;

/// A written run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RunInfo {
    /// The name in the storage.
    pub name: String,
    /// Length in bytes, without its index.
    pub bytes: u64,
    /// Number of sections: their index follows the run in its file.
    pub sections: u32,
    /// Checksum of the index.
    pub checksum: Checksum,
    /// The run itself, if it is in memory and not in a file yet.
    pub held: Option<Arc<HeldRun>>,
}

/// A run in memory.
#[derive(Debug, PartialEq, Eq)]
pub struct HeldRun {
    /// Its bytes.
    pub bytes: Vec<u8>,
    /// Its sections.
    pub index: Arc<RunIndex>,
}

impl Drop for HeldRun {
    fn drop(&mut self) {
        release(std::mem::take(&mut self.bytes));
    }
}

impl RunInfo {
    /// Makes a run in memory.
    pub fn held(name: String, bytes: Vec<u8>, index: RunIndex) -> Self {
        Self {
            name,
            bytes: bytes.len() as u64,
            sections: index.sections.len() as u32,
            checksum: checksum(&index.to_bytes()),
            held: Some(Arc::new(HeldRun { bytes, index: Arc::new(index) })),
        }
    }

    /// Returns whether the run gets its own file when it is stored: not if it is empty and only some syncs
    /// write it.
    pub fn has_file(&self) -> bool {
        self.bytes > 0 || !is_asked_for(&self.name)
    }

    /// Returns whether all these runs have files of the right length.
    pub(crate) fn are_all_there<'r>(
        runs: impl IntoIterator<Item = &'r Self>,
        storage: &dyn Storage,
    ) -> Result<bool, SyncError> {
        for run in runs {
            match storage.len(&run.name) {
                Ok(length) if length == run.file_bytes() => {}
                Err(error) if error.kind() != ErrorKind::NotFound => {
                    return Err(error).at(storage, &run.name);
                }
                _ => return Ok(false),
            }
        }
        Ok(true)
    }

    /// Returns the length of its file in bytes.
    pub fn file_bytes(&self) -> u64 {
        self.bytes + u64::from(self.sections) * RunIndex::ENTRY_BYTES
    }
}

impl<P> FinishedRange<P> {
    /// Makes a finished segment in memory, with runs of these kinds.
    pub fn held(range: HeightRange, finished: FinishedSegment<P>, kinds: &[RunKind]) -> Self {
        let run = |(kind, run): (&RunKind, Vec<u8>)| {
            let index = kind.index(&run);
            RunInfo::held(run_name(range, *kind), run, index)
        };
        let FinishedSegment { partial, runs } = finished;
        let runs = kinds.iter().zip(runs).map(run).collect();
        Self { range, partial, runs, stored: false }
    }

    /// Converts its result with `to`.
    pub fn map<R>(self, to: impl FnOnce(P) -> R) -> FinishedRange<R> {
        let Self { range, partial, runs, stored } = self;
        FinishedRange { range, partial: to(partial), runs, stored }
    }

    /// Returns the memory that its runs use until they are written.
    pub fn held_bytes(&self) -> u64 {
        self.runs.iter().filter(|run| run.held.is_some()).map(|run| run.bytes).sum()
    }

    /// Returns its run of a kind.
    pub fn run(&self, kind: RunKind) -> Option<&RunInfo> {
        let name = run_name(self.range, kind);
        self.runs.iter().find(|run| run.name == name)
    }

    /// Removes its runs of some kinds and returns them.
    pub fn take_runs(&mut self, kinds: &[RunKind]) -> Vec<RunInfo> {
        let names: Vec<String> = kinds.iter().map(|kind| run_name(self.range, *kind)).collect();
        self.runs.extract_if(.., |run| names.contains(&run.name)).collect()
    }

    /// Returns the names of its files.
    pub fn names(&self) -> impl Iterator<Item = String> {
        let runs = self.runs.iter().map(|run| run.name.clone());
        runs.chain([partial_name(self.range)])
    }
}

/// Returns the runs of a kind from finished segments.
pub fn runs_of<P>(done: &[FinishedRange<P>], kind: RunKind) -> Vec<RunInfo> {
    done.iter().filter_map(|done| done.run(kind)).cloned().collect()
}

impl<P: PartialResult> FinishedRange<P> {
    /// Returns the byte form under a plan, as described in the module.
    pub(super) fn to_bytes(&self, plan_id: &[u8; 32]) -> Vec<u8> {
        let mut out = names::begin(MAGIC, VERSION);
        out.extend_from_slice(plan_id);
        out.extend_from_slice(&self.range.start.to_le_bytes());
        out.extend_from_slice(&self.range.end.to_le_bytes());
        for run in &self.runs {
            out.extend_from_slice(&run.bytes.to_le_bytes());
            out.extend_from_slice(&run.sections.to_le_bytes());
            out.extend_from_slice(&run.checksum);
        }
        self.partial.write(&mut out);
        names::seal(out)
    }

    /// Reads the byte form; `None` if it is damaged, or of another plan, other heights or other kinds of runs.
    pub(super) fn from_bytes(
        bytes: &[u8],
        plan_id: &[u8; 32],
        range: HeightRange,
        kinds: &[RunKind],
    ) -> Option<Self> {
        let mut reader: Reader<'_> = names::open(bytes, MAGIC, VERSION)?;
        let ours = reader.array().ok()? == plan_id
            && reader.u32().ok()? == range.start
            && reader.u32().ok()? == range.end;
        if !ours {
            return None;
        }
        let mut runs = Vec::with_capacity(kinds.len());
        for kind in kinds {
            let (bytes, sections) = (reader.u64().ok()?, reader.u32().ok()?);
            let (name, checksum) = (run_name(range, *kind), *reader.array().ok()?);
            runs.push(RunInfo { name, bytes, sections, checksum, held: None });
        }
        let partial = P::read(&mut reader)?;
        reader.finish().ok()?;
        (partial.ranges() == [range]).then_some(Self { range, partial, runs, stored: true })
    }
}

// Syncing one file takes as long as syncing many at once, and the main chain has tens of thousands. So segments are
// made durable in batches: files are synced in parallel, and then all names together.

/// Number of threads that sync files at once: file systems then write the metadata of all files together.
const WAITING: usize = 8;

impl Workdir<'_> {
    /// Writes the runs of a finished segment into their files, and frees their memory. The runs are not durable
    /// yet, so a later start does not find the segment.
    pub fn write<P>(&self, done: &mut FinishedRange<P>) -> Result<(), SyncError> {
        for run in &mut done.runs {
            if let Some(held) = run.held.as_ref().filter(|_| run.has_file()) {
                let mut file = self.storage.create(&run.name).at(self.storage, &run.name)?;
                file.write_all(&held.bytes).at(self.storage, &run.name)?;
                file.write_all(&held.index.to_bytes()).at(self.storage, &run.name)?;
            }
            run.held = None;
        }
        Ok(())
    }

    /// Makes finished segments durable, and frees their memory. If one cannot be written, those before it are
    /// durable nevertheless.
    pub fn store<P: PartialResult>(&self, done: &mut [FinishedRange<P>]) -> Result<(), SyncError> {
        let mut new: Vec<&mut FinishedRange<P>> =
            done.iter_mut().filter(|done| !done.stored).collect();
        let mut files = Vec::new();
        let write = |done: &mut &mut FinishedRange<P>| self.write_whole(done, &mut files);
        let failed =
            new.iter_mut().map(write).enumerate().find_map(|(at, it)| Some((at, it.err()?)));
        let (count, failure) = failed.map_or((new.len(), None), |(at, error)| (at, Some(error)));
        self.wait_for(&files)?;
        for done in &new[..count] {
            let name = partial_name(done.range);
            self.storage.rename(&draft_name(&name), &name).at(self.storage, &name)?;
        }
        if count > 0 {
            self.storage.sync_names().at(self.storage, "")?;
        }
        new.iter_mut().take(count).for_each(|done| done.stored = true);
        failure.map_or(Ok(()), Err)
    }

    /// Writes all files of a segment, the partial result under a draft name, and adds them to the list of files
    /// to sync.
    fn write_whole<P: PartialResult>(
        &self,
        done: &mut FinishedRange<P>,
        files: &mut Vec<String>,
    ) -> Result<(), SyncError> {
        self.write(done)?;
        let name = draft_name(&partial_name(done.range));
        let mut file = self.storage.create(&name).at(self.storage, &name)?;
        file.write_all(&done.to_bytes(&self.plan_id)).at(self.storage, &name)?;
        let runs = done.runs.iter().filter(|run| run.has_file());
        files.extend(runs.map(|run| run.name.clone()).chain([name]));
        Ok(())
    }

    /// Syncs the content of files.
    fn wait_for(&self, files: &[String]) -> Result<(), SyncError> {
        let next = AtomicUsize::new(0);
        let wait = || {
            while let Some(name) = files.get(next.fetch_add(1, Ordering::Relaxed)) {
                self.storage.sync(name).at(self.storage, name).inspect_err(|_| {
                    // This stops the other threads.
                    next.store(files.len(), Ordering::Relaxed);
                })?;
            }
            Ok(())
        };
        scope(|scope| {
            // If the system has no threads left, this one waits for all files.
            let others = (1..WAITING.min(files.len())).map_while(|_| {
                Builder::new().name("disk".to_owned()).spawn_scoped(scope, wait).ok()
            });
            let others: Vec<_> = others.collect();
            let own = wait();
            let ended = others.into_iter().map(|thread| thread.join());
            let mut ended =
                ended.map(|end| end.unwrap_or_else(|panic| std::panic::resume_unwind(panic)));
            own.and_then(|()| ended.try_for_each(|end| end))
        })
    }
}

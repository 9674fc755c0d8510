//! [`JoinRecords`]: reads the records of all segments for a part of the join from the object store.
//!
//! Each segment's records are a run. Runs stay in memory while there is room; otherwise all runs in memory are merged
//! into one file. A part has records of all segments, ten thousand on the main chain, and that many small files would
//! cost more than their contents.

use crate::error::ClusterError;
use crate::queue::{JoinSource, ObjectPart, ObjectRef, Slice, digest};
use crate::worker::HeldJob;
use apus_storage::Storage;
use apus_sync::error::SyncError;
use apus_sync::runs::{OutputForm, RunForm, SpendForm, cut, merge_into_run};
use apus_sync::workdir::RunInfo;
use apus_sync::workdir::index::{RunIndex, SECTION_BYTES};
use core::marker::PhantomData;

/// Number of segments whose records are read in one batch.
const SOURCES_AT_ONCE: usize = 32;

/// The records of all segments for a part of the join.
pub(super) struct JoinRecords<'r> {
    task: &'r HeldJob<'r>,
    /// Memory for the records, in bytes.
    memory_bytes: u64,
    made: FetchedRecords<'r, OutputForm>,
    spent: FetchedRecords<'r, SpendForm>,
}

impl<'r> JoinRecords<'r> {
    pub(super) fn new(task: &'r HeldJob<'r>, storage: &'r dyn Storage, memory_bytes: u64) -> Self {
        let (made, spent) = (FetchedRecords::new(storage), FetchedRecords::new(storage));
        Self { task, memory_bytes, made, spent }
    }

    /// Reads the coins and spends of all segments, as runs.
    pub(super) fn all<'s>(
        mut self,
        sources: &'s [JoinSource],
    ) -> Result<[Vec<RunInfo>; 2], SyncError> {
        // A segment's coins and spends are adjacent: even indices are coins.
        let of_each = |it: &'s JoinSource| [(it.records, &it.made), (it.records, &it.spent)];
        let wanted: Vec<(ObjectRef, &Slice)> = sources.iter().flat_map(of_each).collect();
        let parts: Vec<ObjectPart> = wanted.iter().map(part).collect();
        self.task.parts_in_turn(&parts, 2 * SOURCES_AT_ONCE, &mut |first, got| {
            for (place, bytes) in (first..).zip(got) {
                expect_pieces(&wanted[place], &bytes)?;
                match place % 2 {
                    0 => self.made.take(bytes),
                    _ => self.spent.take(bytes),
                }
            }
            self.make_room()
        })?;
        Ok([self.made.finish(), self.spent.finish()])
    }

    fn make_room(&mut self) -> Result<(), SyncError> {
        if self.made.held_bytes() + self.spent.held_bytes() <= self.memory_bytes {
            return Ok(());
        }
        self.made.spill(self.task)?;
        self.spent.spill(self.task)
    }
}

/// Records of one form.
struct FetchedRecords<'f, F> {
    storage: &'f dyn Storage,
    /// Runs in memory, one for each segment with records.
    held: Vec<RunInfo>,
    /// Runs in files, merged from earlier runs in memory.
    files: Vec<RunInfo>,
    form: PhantomData<F>,
}

impl<'f, F: RunForm> FetchedRecords<'f, F> {
    fn new(storage: &'f dyn Storage) -> Self {
        Self { storage, held: Vec::new(), files: Vec::new(), form: PhantomData }
    }

    fn held_bytes(&self) -> u64 {
        self.held.iter().map(|run| run.bytes).sum()
    }

    /// Adds the records of a segment, which may have none.
    fn take(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            let name = format!("records-{}{}", F::NAME, self.held.len());
            // The records need no check: their digests match.
            let index = RunIndex::of_held(&bytes).unwrap_or_else(|| cut::<F>(&bytes));
            self.held.push(RunInfo::held(name, bytes, index));
        }
    }

    /// Merges all runs in memory into a file.
    fn spill(&mut self, task: &HeldJob<'_>) -> Result<(), SyncError> {
        if !self.held.is_empty() {
            let name = format!("merged-{}{}.run", F::NAME, self.files.len());
            let alive = |_| task.heartbeat();
            let run = merge_into_run::<F>(self.storage, &self.held, SECTION_BYTES, name, &alive)?;
            self.files.push(run);
            self.held.clear();
        }
        Ok(())
    }

    fn finish(mut self) -> Vec<RunInfo> {
        self.files.append(&mut self.held);
        self.files
    }
}

fn part((object, slice): &(ObjectRef, &Slice)) -> ObjectPart {
    ObjectPart { object: *object, offset: slice.offset, bytes: slice.bytes() }
}

/// Fails unless the bytes match the digests of a slice's pieces.
fn expect_pieces((object, slice): &(ObjectRef, &Slice), bytes: &[u8]) -> Result<(), SyncError> {
    let mut rest = bytes;
    for (length, digest) in &slice.pieces {
        let (piece, after) =
            rest.split_at_checked(*length as usize).ok_or_else(|| changed(object))?;
        expect_digest(object, digest, piece)?;
        rest = after;
    }
    if rest.is_empty() { Ok(()) } else { Err(changed(object)) }
}

/// Fails unless a part of an object has the expected digest.
pub(super) fn expect_digest(
    object: &ObjectRef,
    expected: &[u8; 32],
    part: &[u8],
) -> Result<(), SyncError> {
    (digest(part) == *expected).then_some(()).ok_or_else(|| changed(object))
}

/// The error of an object whose bytes have changed.
pub(super) fn changed(object: &ObjectRef) -> SyncError {
    let name = object.name();
    let why = format!("object {name}: its bytes have changed: the digest of a part does not match");
    ClusterError::Lost { object: object.digest, why }.into()
}

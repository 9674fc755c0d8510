//! [`JoinRecords`]: what segments left for a part of the join, from the store.
//!
//! Each segment's records are a run. They stay in memory while there is room. Where there is none, all that are there are
//! merged into one run in a file: a part has records of all segments, ten thousand on the main chain, and as many
//! files would cost more than what is in them.

use crate::error::ClusterError;
use crate::queue::{JoinSource, ObjectPart, ObjectRef, Slice, digest};
use crate::worker::Hand;
use apus_storage::Storage;
use apus_sync::error::SyncError;
use apus_sync::runs::{MadeForm, RunForm, SpentForm, cut, merge_into_run};
use apus_sync::workdir::RunInfo;
use apus_sync::workdir::index::{RunIndex, SECTION_BYTES};
use core::marker::PhantomData;

/// So many segments' records are asked for at once.
const SOURCES_AT_ONCE: usize = 32;

/// See the module.
pub(super) struct JoinRecords<'r> {
    hand: &'r Hand<'r>,
    /// Memory for them, in bytes.
    memory_bytes: u64,
    made: Fetched<'r, MadeForm>,
    spent: Fetched<'r, SpentForm>,
}

impl<'r> JoinRecords<'r> {
    pub(super) fn new(hand: &'r Hand<'r>, storage: &'r dyn Storage, memory_bytes: u64) -> Self {
        let (made, spent) = (Fetched::new(storage), Fetched::new(storage));
        Self { hand, memory_bytes, made, spent }
    }

    /// Coins and spends of all segments, as runs.
    pub(super) fn all<'s>(
        mut self,
        sources: &'s [JoinSource],
    ) -> Result<[Vec<RunInfo>; 2], SyncError> {
        // Those of a segment follow one another.
        let of_each = |it: &'s JoinSource| [(it.records, &it.made), (it.records, &it.spent)];
        let wanted: Vec<(ObjectRef, &Slice)> = sources.iter().flat_map(of_each).collect();
        let parts: Vec<ObjectPart> = wanted.iter().map(part).collect();
        self.hand.parts_in_turn(&parts, 2 * SOURCES_AT_ONCE, &mut |first, got| {
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
        self.made.spill(self.hand)?;
        self.spent.spill(self.hand)
    }
}

/// Records of a form.
struct Fetched<'f, F> {
    storage: &'f dyn Storage,
    /// A run of each segment that has some.
    held: Vec<RunInfo>,
    /// Of those for which there was no room.
    files: Vec<RunInfo>,
    form: PhantomData<F>,
}

impl<'f, F: RunForm> Fetched<'f, F> {
    fn new(storage: &'f dyn Storage) -> Self {
        Self { storage, held: Vec::new(), files: Vec::new(), form: PhantomData }
    }

    fn held_bytes(&self) -> u64 {
        self.held.iter().map(|run| run.bytes).sum()
    }

    /// Takes those of a segment, which may be none.
    fn take(&mut self, bytes: Vec<u8>) {
        if !bytes.is_empty() {
            let name = format!("records-{}{}", F::NAME, self.held.len());
            // Their digests were looked at.
            let index = RunIndex::of_held(&bytes).unwrap_or_else(|| cut::<F>(&bytes));
            self.held.push(RunInfo::held(name, bytes, index));
        }
    }

    /// Puts all that are in memory into a file.
    fn spill(&mut self, hand: &Hand<'_>) -> Result<(), SyncError> {
        if !self.held.is_empty() {
            let name = format!("merged-{}{}.run", F::NAME, self.files.len());
            let go_on = || hand.go_on();
            let run = merge_into_run::<F>(self.storage, &self.held, SECTION_BYTES, name, &go_on)?;
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

/// Fails unless these are the bytes of a slice's pieces.
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

/// Fails unless a part of an object has the digest that it should have.
pub(super) fn expect_digest(
    object: &ObjectRef,
    expected: &[u8; 32],
    part: &[u8],
) -> Result<(), SyncError> {
    (digest(part) == *expected).then_some(()).ok_or_else(|| changed(object))
}

/// An object has other bytes than it had.
pub(super) fn changed(object: &ObjectRef) -> SyncError {
    let name = object.name();
    let why =
        format!("object {name}: its bytes are others than they were, by the digest of a part");
    ClusterError::Lost { object: object.digest, why }.into()
}

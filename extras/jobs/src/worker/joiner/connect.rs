//! Connects a segment, with the coins that all parts of the join found for it.

use super::Joiner;
use super::records::expect_digest;
use super::segment::{ConnectInputs, connect_segment};
use crate::error::ClusterError;
use crate::queue::{ConnectDone, ConnectPayload, FoundPart, ObjectPart, ObjectRef, Sent, SentUndo};
use crate::worker::HeldJob;
use apus_chain::{Height, Reader};
use apus_sync::engines::mergesync::{
    BlockConnector, BlockUndoData, Fingerprint, SegmentPrevouts, SpendSummary,
};
use apus_sync::engines::pass::Work;
use apus_sync::error::SyncError;
use apus_sync::supply::Walker;
use apus_utreexo::{Fragment, LiveLeaf, NodeHash};

/// Number of parts' slices read in one batch.
const PARTS_AT_ONCE: usize = 64;

/// Number of a segment's own runs: answers, fingerprints, added leaves, spend summaries.
pub(super) const OWN_RUNS: usize = 4;

/// Encodes a segment's own runs, each after its length.
pub(super) fn write_own(runs: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in runs {
        out.extend_from_slice(&(run.len() as u64).to_le_bytes());
        out.extend_from_slice(run);
    }
    out
}

/// Number of leaves that the blocks of a segment add, from its own runs; 0 if they are not counted.
pub(super) fn leaf_count(runs: &[Vec<u8>]) -> u64 {
    let (counts, _) = runs.get(ADDED).map_or(&[][..], Vec::as_slice).as_chunks();
    counts.iter().map(|count| u64::from(u32::from_be_bytes(*count))).sum()
}

/// Index of the run with the numbers of added leaves among a segment's own runs.
const ADDED: usize = 2;

/// A segment's own runs, decoded.
struct OwnRead<'o> {
    /// Coins that its inputs spend.
    answers: &'o [u8],
    fingerprints: &'o [[u8; Fingerprint::SIZE]],
    /// Number of leaves that each block adds, if counted.
    added: &'o [[u8; 4]],
    /// The spend summary of each block that has one.
    claims: Vec<Option<SpendSummary<'o>>>,
}

impl<'o> OwnRead<'o> {
    /// Decodes the own runs of a segment with `blocks` blocks; `None` if they are invalid.
    fn read(bytes: &'o [u8], blocks: u32) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut run = || {
            let length = usize::try_from(reader.u64().ok()?).ok()?;
            reader.take(length).ok()
        };
        let (answers, prints, added, mut noted) = (run()?, run()?, run()?, run()?);
        let (fingerprints, rest) = prints.as_chunks();
        let (added, behind) = added.as_chunks();
        let mut claims = Vec::new();
        while !noted.is_empty() {
            let (of_block, after) = SpendSummary::read(noted)?;
            claims.push(of_block);
            noted = after;
        }
        let is_of_all = |count: usize| count == blocks as usize;
        let fits = rest.is_empty()
            && behind.is_empty()
            && (added.is_empty() || is_of_all(added.len()))
            && reader.remaining() == 0
            && is_of_all(fingerprints.len())
            && (claims.is_empty() || is_of_all(claims.len()));
        fits.then_some(Self { answers, fingerprints, added, claims })
    }
}

impl Joiner<'_> {
    pub(super) fn connect(
        &self,
        task: &HeldJob<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        let message = |text: String| SyncError::from(ClusterError::Message(text));
        let key = task.job.key;
        let payload = ConnectPayload::from_bytes(&task.object(&task.job.input)?, task.run, key);
        let payload = payload.map_err(|error| message(error.to_string()))?;
        let own = task.object(&payload.own)?;
        let joined = found(task, &payload.answers)?;
        let damaged = || message(format!("the coins that the join found for {key} are invalid"));
        let own = OwnRead::read(&own, key.range.count()).ok_or_else(damaged)?;
        let runs: Vec<&[u8]> = joined.iter().map(Vec::as_slice).chain([own.answers]).collect();
        let inputs = ConnectInputs {
            range: key.range,
            answers: SegmentPrevouts::read(key.range, &runs).ok_or_else(damaged)?,
            fingerprints: own.fingerprints,
            claims: &own.claims,
            key: self.key,
            connector: BlockConnector {
                params: self.params,
                chain: self.dir.chain(),
                existed: &payload.existed,
                scripts: self.scripts.as_ref(),
                assumed: self.assumed,
                sum_key: self.sum_key,
                bare: self.bare,
                numbered: self.numbered,
            },
        };
        let folder = self.scratch.folder()?;
        let storage = folder.storage();
        let (env, alive) = (self.env(&storage), || task.lease.alive());
        let mut undo =
            UndoOut { task, from: payload.undo_from, bytes: Vec::new(), objects: Vec::new() };
        let mut keep = |height, kept: &BlockUndoData| undo.put(height, kept);
        let connected = connect_segment(&env, &inputs, walker, &alive, &mut keep)?;
        let Some(bytes) = connected else { return Ok(None) };
        let undo = undo.finish()?;
        let fragment = match &payload.forest {
            Some(forest) => {
                let leaves = found(task, &forest.leaves)?;
                let counts = (key.range.start, own.added);
                Some(fragment(forest.first, counts, &leaves).ok_or_else(damaged)?)
            }
            None => None,
        };
        let blocks = u64::from(key.range.count());
        let done = ConnectDone { blocks, bytes, fragment, undo }.to_bytes(task.run, key);
        Ok(Some((done, Work { blocks, bytes, coins: 0 })))
    }
}

/// Collects undo data and stores them in objects.
struct UndoOut<'u> {
    task: &'u HeldJob<'u>,
    /// The first block whose undo data are requested.
    from: Height,
    /// Records that are not in an object yet.
    bytes: Vec<u8>,
    objects: Vec<ObjectRef>,
}

impl UndoOut<'_> {
    fn put(&mut self, height: Height, kept: &BlockUndoData) -> Result<(), SyncError> {
        if height < self.from {
            return Ok(());
        }
        SentUndo { undo: &kept.undo, spent: kept.spent }.write(&mut self.bytes);
        if self.bytes.len() > UNDO_BYTES {
            self.objects.push(self.task.put(std::mem::take(&mut self.bytes))?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<ObjectRef>, SyncError> {
        if !self.bytes.is_empty() {
            self.objects.push(self.task.put(self.bytes)?);
        }
        Ok(self.objects)
    }
}

/// Approximate length of an object with undo data; the coordinator holds one at a time in memory.
const UNDO_BYTES: usize = 8 << 20;

/// The fragment of the forest that a segment forms: `first` is the index of its first leaf, `added` the number of
/// leaves of each block from height `start` on, `survive` its surviving leaves. `None` if they contradict each other.
fn fragment(
    first: u64,
    (start, added): (Height, &[[u8; 4]]),
    survive: &[Vec<u8>],
) -> Option<Fragment> {
    let mut places = Vec::with_capacity(added.len());
    let mut count = 0_u64;
    for added in added {
        let added = u64::from(u32::from_be_bytes(*added));
        places.push((count, added));
        count += added;
    }
    let mut leaves = Vec::new();
    for run in survive {
        let (records, rest) = run.as_chunks::<LEAF_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        for record in records {
            let mut reader = Reader::new(record);
            let height = Height::from_be_bytes(*reader.array().ok()?);
            let number = u64::from(u32::from_be_bytes(*reader.array().ok()?));
            let (before, of_block) = *places.get(height.checked_sub(start)? as usize)?;
            let hash = NodeHash(*reader.array().ok()?);
            leaves.push(LiveLeaf { place: (number < of_block).then_some(before + number)?, hash });
        }
    }
    leaves.sort_unstable_by_key(|leaf| leaf.place);
    let mut fragment = Fragment::new(first).ok()?;
    fragment.push_live(count, &leaves).ok()?;
    Some(fragment)
}

/// Length of a surviving leaf: its block's height, its number there, its hash.
const LEAF_BYTES: usize = 40;

/// Reads and verifies the records that each part of the join found.
fn found(task: &HeldJob<'_>, wanted: &[FoundPart]) -> Result<Vec<Vec<u8>>, SyncError> {
    let parts: Vec<ObjectPart> = wanted.iter().map(|(part, _)| *part).collect();
    let mut all = Vec::with_capacity(wanted.len());
    task.parts_in_turn(&parts, PARTS_AT_ONCE, &mut |first, got| {
        for ((part, digest), bytes) in wanted[first..].iter().zip(&got) {
            expect_digest(&part.object, digest, bytes)?;
        }
        all.extend(got);
        Ok(())
    })?;
    Ok(all)
}

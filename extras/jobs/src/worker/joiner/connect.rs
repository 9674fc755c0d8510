//! The second walk over a segment, with the coins that all parts of the join found for it.

use super::Joiner;
use super::records::expect_digest;
use super::segment::{JudgedBy, judge_segment};
use crate::error::ClusterError;
use crate::queue::{ConnectDone, ConnectTold, FoundPart, ObjectPart, ObjectRef, Sent, SentUndo};
use crate::worker::Hand;
use apus_chain::{Height, Reader};
use apus_sync::engines::mergesync::{Answers, Claims, Fingerprint, Kept};
use apus_sync::engines::pass::Work;
use apus_sync::error::SyncError;
use apus_sync::supply::Walker;
use apus_utreexo::{Fragment, LiveLeaf, NodeHash};

/// So much of what parts found is asked for at once.
const PARTS_AT_ONCE: usize = 64;

/// What a segment leaves for itself: runs, each with its length before it.
pub(super) fn write_own(runs: &[Vec<u8>]) -> Vec<u8> {
    let mut out = Vec::new();
    for run in runs {
        out.extend_from_slice(&(run.len() as u64).to_le_bytes());
        out.extend_from_slice(run);
    }
    out
}

/// How many leaves the blocks of a segment add, by what it leaves for itself; 0 where they are not counted.
pub(super) fn leaf_count(runs: &[Vec<u8>]) -> u64 {
    let (counts, _) = runs.get(ADDED).map_or(&[][..], Vec::as_slice).as_chunks();
    counts.iter().map(|count| u64::from(u32::from_be_bytes(*count))).sum()
}

/// The place of the run of leaves that are added among those that a segment leaves for itself.
const ADDED: usize = 2;

/// What a segment leaves for itself, read.
struct OwnRead<'o> {
    /// Coins for its inputs.
    answers: &'o [u8],
    fingerprints: &'o [[u8; Fingerprint::SIZE]],
    /// How many leaves each block adds, where that is counted.
    added: &'o [[u8; 4]],
    /// What each block claims, as far as it was noted.
    claims: Vec<Option<Claims<'o>>>,
}

impl<'o> OwnRead<'o> {
    /// That of a segment of so many blocks; none where these bytes are not such.
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
            let (of_block, after) = Claims::read(noted)?;
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
        hand: &Hand<'_>,
        walker: &mut Walker<'_>,
    ) -> Result<Option<(Vec<u8>, Work)>, SyncError> {
        let message = |text: String| SyncError::from(ClusterError::Message(text));
        let key = hand.job.key;
        let told = ConnectTold::from_bytes(&hand.object(&hand.job.input)?, hand.run, key);
        let told = told.map_err(|error| message(error.to_string()))?;
        let own = hand.object(&told.own)?;
        let joined = found(hand, &told.answers)?;
        let damaged = || message(format!("what was found for {key} makes no sense"));
        let own = OwnRead::read(&own, key.range.count()).ok_or_else(damaged)?;
        let runs: Vec<&[u8]> = joined.iter().map(Vec::as_slice).chain([own.answers]).collect();
        let by = JudgedBy {
            range: key.range,
            answers: Answers::read(key.range, &runs).ok_or_else(damaged)?,
            fingerprints: own.fingerprints,
            claims: &own.claims,
            key: self.key,
            existed: &told.existed,
            assumed: self.assumed,
            bare: self.bare,
            numbered: self.numbered,
            sum_key: self.sum_key,
            scripts: self.scripts.as_ref(),
        };
        let folder = self.scratch.folder()?;
        let storage = folder.storage();
        let (env, alive) = (self.env(&storage), || hand.lease.alive());
        let mut undo =
            UndoOut { hand, from: told.undo_from, bytes: Vec::new(), objects: Vec::new() };
        let mut keep = |height, kept: &Kept| undo.put(height, kept);
        let judged = judge_segment(&env, self.dir, &by, walker, &alive, &mut keep)?;
        let Some(bytes) = judged else { return Ok(None) };
        let undo = undo.finish()?;
        let fragment = match &told.forest {
            Some(forest) => {
                let leaves = found(hand, &forest.leaves)?;
                let counts = (key.range.start, own.added);
                Some(fragment(forest.first, counts, &leaves).ok_or_else(damaged)?)
            }
            None => None,
        };
        let blocks = u64::from(key.range.count());
        let done = ConnectDone { blocks, bytes, fragment, undo }.to_bytes(hand.run, key);
        Ok(Some((done, Work { blocks, bytes, coins: 0 })))
    }
}

/// Undo data on their way to the store.
struct UndoOut<'u> {
    hand: &'u Hand<'u>,
    /// Those of blocks below are not wanted.
    from: Height,
    /// Records that are in no object yet.
    bytes: Vec<u8>,
    objects: Vec<ObjectRef>,
}

impl UndoOut<'_> {
    fn put(&mut self, height: Height, kept: &Kept) -> Result<(), SyncError> {
        if height < self.from {
            return Ok(());
        }
        SentUndo { undo: &kept.undo, spent: kept.spent }.write(&mut self.bytes);
        if self.bytes.len() > UNDO_BYTES {
            self.objects.push(self.hand.put(std::mem::take(&mut self.bytes))?);
        }
        Ok(())
    }

    fn finish(mut self) -> Result<Vec<ObjectRef>, SyncError> {
        if !self.bytes.is_empty() {
            self.objects.push(self.hand.put(self.bytes)?);
        }
        Ok(self.objects)
    }
}

/// Objects with undo data are little longer: the coordinator holds one at a time.
const UNDO_BYTES: usize = 8 << 20;

/// What the leaves of a segment make of the forest: they begin with this one, its blocks add so many each from a height
/// on, and these survive. None where that cannot be.
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

/// A leaf that survives: its block's height, its number there, its hash.
const LEAF_BYTES: usize = 40;

/// What each part of the join found.
fn found(hand: &Hand<'_>, wanted: &[FoundPart]) -> Result<Vec<Vec<u8>>, SyncError> {
    let parts: Vec<ObjectPart> = wanted.iter().map(|(part, _)| *part).collect();
    let mut all = Vec::with_capacity(wanted.len());
    hand.parts_in_turn(&parts, PARTS_AT_ONCE, &mut |first, got| {
        for ((part, digest), bytes) in wanted[first..].iter().zip(&got) {
            expect_digest(&part.object, digest, bytes)?;
        }
        all.extend(got);
        Ok(())
    })?;
    Ok(all)
}

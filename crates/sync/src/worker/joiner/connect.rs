//! The second walk over a segment, with the coins that all parts of the join found for it.

use super::Joiner;
use super::join::changed;
use crate::error::{ClusterError, SyncError};
use crate::mergesync::{JudgedBy, judge_segment};
use crate::queue::{ConnectDone, ConnectTold, ObjectPart, Sent};
use crate::supply::Walker;
use crate::worker::Hand;
use apus_chain::Reader;
use apus_engine::mergesync::Answers;
use apus_engine::pass::Work;
use apus_hash::sha256;

/// So many parts' answers are asked for at once.
const PARTS_AT_ONCE: usize = 64;

/// What a segment leaves for itself: runs, each with its length before it.
pub(super) fn write_own(runs: impl Iterator<Item = Vec<u8>>) -> Vec<u8> {
    let mut out = Vec::new();
    for run in runs {
        out.extend_from_slice(&(run.len() as u64).to_le_bytes());
        out.extend_from_slice(&run);
    }
    out
}

/// Its own answers, and the fingerprints of its blocks.
fn read_own(bytes: &[u8]) -> Option<(&[u8], &[[u8; 16]])> {
    let mut reader = Reader::new(bytes);
    let mut run = || {
        let length = usize::try_from(reader.u64().ok()?).ok()?;
        reader.take(length).ok()
    };
    let (answers, prints) = (run()?, run()?);
    let (prints, rest) = prints.as_chunks();
    rest.is_empty().then_some((answers, prints))
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
        let joined = answers(hand, &told.answers)?;
        let damaged = || message(format!("what was found for {key} makes no sense"));
        let (of_segment, fingerprints) = read_own(&own).ok_or_else(damaged)?;
        let runs: Vec<&[u8]> = joined.iter().map(Vec::as_slice).chain([of_segment]).collect();
        let by = JudgedBy {
            range: key.range,
            answers: Answers::read(key.range, &runs).ok_or_else(damaged)?,
            fingerprints,
            key: self.key,
            existed: &told.existed,
            assumed: self.assumed,
            scripts: self.scripts.as_ref(),
        };
        let folder = self.scratch.folder()?;
        let storage = folder.storage();
        let (request, alive) = (self.asked(&storage), || hand.lease.alive());
        let Some(bytes) = judge_segment(&request, self.dir, &by, walker, &alive)? else {
            return Ok(None);
        };
        let blocks = u64::from(key.range.count());
        let done = ConnectDone { blocks, bytes }.to_bytes(hand.run, key);
        Ok(Some((done, Work { blocks, bytes, coins: 0 })))
    }
}

/// What each part of the join found.
fn answers(hand: &Hand<'_>, wanted: &[(ObjectPart, [u8; 32])]) -> Result<Vec<Vec<u8>>, SyncError> {
    let mut all = Vec::with_capacity(wanted.len());
    for some in wanted.chunks(PARTS_AT_ONCE) {
        let parts: Vec<ObjectPart> = some.iter().map(|(part, _)| *part).collect();
        let got = hand.parts(&parts)?;
        for ((part, digest), bytes) in some.iter().zip(&got) {
            if sha256(bytes) != *digest {
                return Err(changed(&part.object));
            }
        }
        all.extend(got);
        hand.lease.alive();
    }
    Ok(all)
}

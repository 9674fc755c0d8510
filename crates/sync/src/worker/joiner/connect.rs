//! The second walk over a segment, with the coins that all parts of the join found for it.

use super::Joiner;
use super::join::changed;
use crate::error::{ClusterError, SyncError};
use crate::mergesync::{JudgedBy, judge_segment};
use crate::queue::{ConnectDone, ConnectTold, ObjectPart, Sent};
use crate::supply::Walker;
use crate::worker::Hand;
use apus_chain::Reader;
use apus_engine::mergesync::{Answers, Claims, Fingerprint};
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

/// The same, read.
struct Own<'o> {
    /// Coins for its inputs.
    answers: &'o [u8],
    fingerprints: &'o [[u8; Fingerprint::SIZE]],
    /// What each block claims, as far as it was noted.
    claims: Vec<Option<Claims<'o>>>,
}

impl<'o> Own<'o> {
    /// That of a segment of so many blocks; none where these bytes are not such.
    fn read(bytes: &'o [u8], blocks: u32) -> Option<Self> {
        let mut reader = Reader::new(bytes);
        let mut run = || {
            let length = usize::try_from(reader.u64().ok()?).ok()?;
            reader.take(length).ok()
        };
        let (answers, prints, _added, mut noted) = (run()?, run()?, run()?, run()?);
        let (fingerprints, rest) = prints.as_chunks();
        let mut claims = Vec::new();
        while !noted.is_empty() {
            let (of_block, after) = Claims::read(noted)?;
            claims.push(of_block);
            noted = after;
        }
        let is_of_all = |count: usize| count == blocks as usize;
        let fits = rest.is_empty()
            && reader.remaining() == 0
            && is_of_all(fingerprints.len())
            && (claims.is_empty() || is_of_all(claims.len()));
        fits.then_some(Self { answers, fingerprints, claims })
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
        let joined = answers(hand, &told.answers)?;
        let damaged = || message(format!("what was found for {key} makes no sense"));
        let own = Own::read(&own, key.range.count()).ok_or_else(damaged)?;
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

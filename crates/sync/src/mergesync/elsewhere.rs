//! What machines do of a run that they share: a part of the join, and the second walk over a segment.
//!
//! Where records and answers come from and go to is the caller's business; what is done with them is what one
//! machine does.

use super::join::join_keys;
use super::joined::Joined;
use super::judge::refusal;
use crate::error::SyncError;
use crate::request::Request;
use crate::runs::KeyRange;
use crate::source::ChainSource;
use crate::supply::Walker;
use crate::workdir::RunInfo;
use apus_chain::{Height, HeightRange, OutPoint};
use apus_engine::connect::ConnectContext;
use apus_engine::mergesync::{Answers, Fingerprint, FingerprintKey, Judge, Judged, SeenBlock};
use apus_engine::script::ScriptPool;
use std::collections::BTreeMap;

/// Joins the coins and spends of some keys. The runs have these keys at least.
pub(crate) fn join_part(
    request: &Request<'_>,
    runs: [Vec<RunInfo>; 2],
    keys: KeyRange,
    alive: &(dyn Fn() + Sync),
) -> Result<Joined, SyncError> {
    join_keys(request, runs, keys, alive)
}

/// By what the blocks of a segment are judged.
pub(crate) struct JudgedBy<'j> {
    pub(crate) range: HeightRange,
    /// The coins of their inputs.
    pub(crate) answers: Answers<'j>,
    /// Those of the first walk.
    pub(crate) fingerprints: &'j [[u8; Fingerprint::SIZE]],
    pub(crate) key: FingerprintKey,
    /// Outputs of blocks that were there before them.
    pub(crate) existed: &'j BTreeMap<Height, Vec<OutPoint>>,
    /// The last block whose scripts are taken for valid.
    pub(crate) assumed: Height,
    /// Runs the others.
    pub(crate) scripts: Option<&'j ScriptPool>,
}

/// Judges the blocks of a segment, the lowest first. How many bytes they have; none where the walk was halted.
pub(crate) fn judge_segment(
    request: &Request<'_>,
    dir: &dyn ChainSource,
    by: &JudgedBy<'_>,
    walker: &mut Walker<'_>,
    alive: &(dyn Fn() + Sync),
) -> Result<Option<u64>, SyncError> {
    let judge = Judge { params: request.params, scripts: by.scripts, sum_key: None, bare: 0 };
    let noted = |height: Height| {
        let print = by.fingerprints.get(height.checked_sub(by.range.start)? as usize);
        print.map(|print| Fingerprint(*print))
    };
    let mut bytes = 0;
    let mut one = |block: &SeenBlock<'_>| {
        let id = block.id();
        let coins: Vec<&[u8]> = by.answers.of_block(id.height).collect();
        let existed = by.existed.get(&id.height).map(Vec::as_slice).unwrap_or_default();
        let context =
            ConnectContext { ancestry: dir.chain(), check_scripts: id.height > by.assumed };
        let judged = judge.block(block, &coins, existed, &context).and_then(Judged::wait);
        judged.map_err(|error| refusal(request, dir, (id, error), alive))?;
        bytes += block.view().raw().len() as u64;
        alive();
        Ok(())
    };
    for height in by.range.heights() {
        let only = HeightRange::new(height, height + 1);
        if !walker.take_again(only, &by.key, &noted, &mut one)? {
            return Ok(None);
        }
    }
    Ok(Some(bytes))
}

//! What machines do of a run that they share: a part of the join, and the second walk over a segment.
//!
//! Where records and answers come from and go to is the caller's business; what is done with them is what one
//! machine does.

use crate::error::ClusterError;
use apus_chain::{CoinSumKey, HeaderChain, Height, HeightRange, OutPoint};
use apus_engine::connect::ConnectContext;
use apus_engine::script::ScriptPool;
use apus_proofs::roots::leaf_hasher;
use apus_sync::engines::mergesync::{
    Answers, BlockJudge, Claims, Fingerprint, FingerprintKey, Judged, Kept, NumberedCoin, SeenBlock,
};
use apus_sync::engines::mergesync::{
    HashKeys, JoinOptions, Joined, WantedHashes, join_keys, refusal,
};
use apus_sync::error::SyncError;
use apus_sync::request::RunEnv;
use apus_sync::runs::KeyRange;
use apus_sync::source::ChainSource;
use apus_sync::supply::Walker;
use apus_sync::workdir::RunInfo;
use std::collections::BTreeMap;

/// How a part is joined.
#[derive(Clone, Copy)]
pub(crate) struct PartOptions<'a> {
    /// The chain, where leaves of the Utreexo forest are wanted: those that survive, by height and number in the block.
    pub(crate) leaves: Option<&'a HeaderChain>,
    /// Whether the MuHash of the coins that survive is wanted.
    pub(crate) muhash: bool,
    /// The last block that is answered with bare coins.
    pub(crate) bare: Height,
}

/// Joins the coins and spends of some keys. The runs have these keys at least.
pub(crate) fn join_part(
    env: &RunEnv<'_>,
    runs: [Vec<RunInfo>; 2],
    keys: KeyRange,
    options: PartOptions<'_>,
    alive: &(dyn Fn() + Sync),
) -> Result<Joined, SyncError> {
    let PartOptions { leaves, muhash, bare } = options;
    let numbered = leaves.is_some();
    let hashes =
        leaves.map(|chain| WantedHashes { hasher: leaf_hasher, by: HashKeys::Numbers(chain) });
    let options = JoinOptions { numbered, hashes, muhash, bare, durable: false };
    join_keys(env, runs, keys, options, alive)
}

/// By what the blocks of a segment are judged.
pub(crate) struct JudgedBy<'j> {
    pub(crate) range: HeightRange,
    /// The coins of their inputs.
    pub(crate) answers: Answers<'j>,
    /// Those of the first walk.
    pub(crate) fingerprints: &'j [[u8; Fingerprint::SIZE]],
    /// What each block claims of its coins, as far as it was noted.
    pub(crate) claims: &'j [Option<Claims<'j>>],
    pub(crate) key: FingerprintKey,
    /// Outputs of blocks that were there before them.
    pub(crate) existed: &'j BTreeMap<Height, Vec<OutPoint>>,
    /// The last block whose scripts are taken for valid.
    pub(crate) assumed: Height,
    /// The last block whose coins come bare.
    pub(crate) bare: Height,
    /// Under which the coins are added up that a block spends, where blocks are kept.
    pub(crate) sum_key: Option<CoinSumKey>,
    /// Whether coins that are not bare have their numbers behind them.
    pub(crate) numbered: bool,
    /// Runs the others.
    pub(crate) scripts: Option<&'j ScriptPool>,
}

impl<'j> JudgedBy<'j> {
    /// The coins of a block's inputs; none where these are no coins with numbers, though they should be.
    fn coins(&self, height: Height) -> Option<Vec<&'j [u8]>> {
        let coins = self.answers.of_block(height);
        if !self.numbered || height <= self.bare {
            return Some(coins.collect());
        }
        coins.map(|coin| Some(NumberedCoin::read(coin)?.coin)).collect()
    }

    /// What a block claims, if its coins allow it, so that the block need not be read again.
    fn allowed(
        &self,
        env: &RunEnv<'_>,
        dir: &dyn ChainSource,
        height: Height,
    ) -> Option<&Claims<'_>> {
        let place = height.checked_sub(self.range.start)? as usize;
        let claims = self.claims.get(place)?.as_ref()?;
        let answers = self.answers.of_block(height);
        let allowed = self.sum_key.is_none()
            && height <= self.assumed
            && !self.existed.contains_key(&height)
            && claims.allowed(env.params, height, dir.chain(), answers);
        allowed.then_some(claims)
    }
}

/// What was found for a block cannot be right.
fn no_coins(height: Height) -> SyncError {
    ClusterError::Message(format!("what was found for block {height} makes no sense")).into()
}

/// Judges the blocks of a segment, the lowest first: by their claims, or where these are not enough by themselves. How
/// many bytes they have; none where the walk was halted. What is to be kept of each goes to `keep`.
pub(crate) fn judge_segment(
    env: &RunEnv<'_>,
    dir: &dyn ChainSource,
    by: &JudgedBy<'_>,
    walker: &mut Walker<'_>,
    alive: &(dyn Fn() + Sync),
    keep: &mut dyn FnMut(Height, &Kept) -> Result<(), SyncError>,
) -> Result<Option<u64>, SyncError> {
    let judge =
        BlockJudge { params: env.params, scripts: by.scripts, sum_key: by.sum_key, bare: by.bare };
    let noted = |height: Height| {
        let print = by.fingerprints.get(height.checked_sub(by.range.start)? as usize);
        print.map(|print| Fingerprint(*print))
    };
    let (mut bytes, mut by_claims) = (0, 0);
    let mut one = |block: &SeenBlock<'_>| {
        let id = block.id();
        let coins = by.coins(id.height).ok_or_else(|| no_coins(id.height))?;
        let existed = by.existed.get(&id.height).map(Vec::as_slice).unwrap_or_default();
        let context =
            ConnectContext { ancestry: dir.chain(), check_scripts: id.height > by.assumed };
        let judged = judge.block(block, &coins, existed, &context).and_then(Judged::wait);
        let kept = judged.map_err(|error| refusal(env, dir, (id, error), alive))?;
        kept.iter().try_for_each(|kept| keep(id.height, kept))?;
        bytes += block.view().raw().len() as u64;
        alive();
        Ok(())
    };
    for height in by.range.heights() {
        if let Some(claims) = by.allowed(env, dir, height) {
            by_claims += claims.block_bytes();
            alive();
            continue;
        }
        let only = HeightRange::new(height, height + 1);
        if !walker.take_again(only, &by.key, &noted, &mut one)? {
            return Ok(None);
        }
    }
    Ok(Some(bytes + by_claims))
}

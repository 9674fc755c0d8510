//! The computation of a mergesync job: joining a part, and connecting a segment.
//!
//! The caller reads and writes the records and prevouts. The computation is the same as on a single machine.

use crate::error::ClusterError;
use apus_chain::{CoinSumKey, HeaderChain, Height, HeightRange, OutPoint};
use apus_engine::connect::ConnectContext;
use apus_engine::script::ScriptPool;
use apus_proofs::roots::leaf_hasher;
use apus_sync::engines::mergesync::{
    BatchSpan, HashKeys, JoinOptions, JoinResult, WantedHashes, join_keys, refusal,
};
use apus_sync::engines::mergesync::{
    BlockConnector, BlockUndoData, Fingerprint, FingerprintKey, IndexedCoin, SeenBlock,
    SegmentPrevouts, SpendSummary, ValidatedBlock,
};
use apus_sync::error::SyncError;
use apus_sync::request::RunEnv;
use apus_sync::runs::KeyRange;
use apus_sync::source::ChainSource;
use apus_sync::supply::Walker;
use apus_sync::workdir::RunInfo;
use std::collections::BTreeMap;

/// Options of a part of the join.
#[derive(Clone, Copy)]
pub(crate) struct PartOptions<'a> {
    /// The chain, if leaves of the Utreexo forest are requested: the surviving ones, by height and number in the block.
    pub(crate) leaves: Option<&'a HeaderChain>,
    /// Whether the MuHash of the surviving coins is requested.
    pub(crate) muhash: bool,
    /// The last block whose coins have no scripts.
    pub(crate) bare: Height,
}

/// Joins the coins and spends with keys in `keys`. The runs may contain other keys, too.
pub(crate) fn join_part(
    env: &RunEnv<'_>,
    runs: [Vec<RunInfo>; 2],
    keys: KeyRange,
    options: PartOptions<'_>,
    alive: &(dyn Fn() + Sync),
) -> Result<JoinResult, SyncError> {
    let PartOptions { leaves, muhash, bare } = options;
    let numbered = leaves.is_some();
    let hashes =
        leaves.map(|chain| WantedHashes { hasher: leaf_hasher, by: HashKeys::Numbers(chain) });
    let options = JoinOptions {
        numbered,
        hashes,
        muhash,
        bare,
        durable: false,
        span: BatchSpan::WHOLE,
        next_base: None,
        overwritten: &[],
    };
    join_keys(env, runs, keys, options, alive)
}

/// Inputs for connecting the blocks of a segment.
pub(crate) struct ConnectInputs<'j> {
    pub(crate) range: HeightRange,
    /// The coins that the blocks spend.
    pub(crate) answers: SegmentPrevouts<'j>,
    /// The fingerprints of the blocks in the first pass.
    pub(crate) fingerprints: &'j [[u8; Fingerprint::SIZE]],
    /// The spend summary of each block that has one.
    pub(crate) claims: &'j [Option<SpendSummary<'j>>],
    pub(crate) key: FingerprintKey,
    /// For each block, the outputs that existed before it (BIP30).
    pub(crate) existed: &'j BTreeMap<Height, Vec<OutPoint>>,
    /// The last block whose scripts are assumed valid.
    pub(crate) assumed: Height,
    /// The last block whose coins have no scripts.
    pub(crate) bare: Height,
    /// The key of the sums of spent coins, if blocks are kept.
    pub(crate) sum_key: Option<CoinSumKey>,
    /// Whether coins with scripts are followed by their numbers.
    pub(crate) numbered: bool,
    /// Runs the scripts of blocks above `assumed`.
    pub(crate) scripts: Option<&'j ScriptPool>,
}

impl<'j> ConnectInputs<'j> {
    /// The coins of a block's inputs; `None` if a coin lacks its number.
    fn coins(&self, height: Height) -> Option<Vec<&'j [u8]>> {
        let coins = self.answers.of_block(height);
        if !self.numbered || height <= self.bare {
            return Some(coins.collect());
        }
        coins.map(|coin| Some(IndexedCoin::read(coin)?.coin)).collect()
    }

    /// The spend summary of a block, if its coins satisfy it, so that the block need not be read again.
    fn allowed(
        &self,
        env: &RunEnv<'_>,
        dir: &dyn ChainSource,
        height: Height,
    ) -> Option<&SpendSummary<'_>> {
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

/// The error of a block whose coins are invalid.
fn no_coins(height: Height) -> SyncError {
    ClusterError::Message(format!("the coins that the join found for block {height} are invalid"))
        .into()
}

/// Connects the blocks of a segment, by ascending height: with their spend summaries, or with the blocks themselves
/// if a summary is not enough. Returns the size of the blocks in bytes, or `None` if the walk was halted. Passes undo
/// data to `keep`.
pub(crate) fn connect_segment(
    env: &RunEnv<'_>,
    dir: &dyn ChainSource,
    inputs: &ConnectInputs<'_>,
    walker: &mut Walker<'_>,
    alive: &(dyn Fn() + Sync),
    keep: &mut dyn FnMut(Height, &BlockUndoData) -> Result<(), SyncError>,
) -> Result<Option<u64>, SyncError> {
    let connector = BlockConnector {
        params: env.params,
        scripts: inputs.scripts,
        sum_key: inputs.sum_key,
        bare: inputs.bare,
    };
    let noted = |height: Height| {
        let print = inputs.fingerprints.get(height.checked_sub(inputs.range.start)? as usize);
        print.map(|print| Fingerprint(*print))
    };
    let (mut bytes, mut by_claims) = (0, 0);
    let mut one = |block: &SeenBlock<'_>| {
        let id = block.id();
        let coins = inputs.coins(id.height).ok_or_else(|| no_coins(id.height))?;
        let existed = inputs.existed.get(&id.height).map(Vec::as_slice).unwrap_or_default();
        let context =
            ConnectContext { ancestry: dir.chain(), check_scripts: id.height > inputs.assumed };
        let connected =
            connector.block(block, &coins, existed, &context).and_then(ValidatedBlock::wait);
        let kept = connected.map_err(|error| refusal(env, dir, (id, error), alive))?;
        kept.iter().try_for_each(|kept| keep(id.height, kept))?;
        bytes += block.view().raw().len() as u64;
        alive();
        Ok(())
    };
    for height in inputs.range.heights() {
        if let Some(claims) = inputs.allowed(env, dir, height) {
            by_claims += claims.block_bytes();
            alive();
            continue;
        }
        let only = HeightRange::new(height, height + 1);
        if !walker.take_again(only, &inputs.key, &noted, &mut one)? {
            return Ok(None);
        }
    }
    Ok(Some(bytes + by_claims))
}

//! The computation of a mergesync job: joining a part, and connecting a segment.
//!
//! The caller reads and writes the records and prevouts. The computation is the same as on a single machine.

use apus_chain::{HeaderChain, Height, HeightRange};
use apus_proofs::roots::leaf_hasher;
use apus_sync::engines::mergesync::{
    BatchSpan, HashKeys, JoinOptions, JoinResult, WantedHashes, join_keys, refusal,
};
use apus_sync::engines::mergesync::{
    BlockConnector, BlockUndoData, Fingerprint, FingerprintKey, SeenBlock, SegmentPrevouts,
    SpendSummary, ValidatedBlock,
};
use apus_sync::error::SyncError;
use apus_sync::request::RunEnv;
use apus_sync::runs::KeyRange;
use apus_sync::supply::Walker;
use apus_sync::workdir::RunInfo;

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
    pub(crate) connector: BlockConnector<'j>,
}

/// Connects the blocks of a segment, by ascending height: with their spend summaries, or with the blocks themselves
/// if a summary is not enough. Returns the size of the blocks in bytes, or `None` if the walk was halted. Passes undo
/// data to `keep`.
pub(crate) fn connect_segment(
    env: &RunEnv<'_>,
    inputs: &ConnectInputs<'_>,
    walker: &mut Walker<'_>,
    alive: &(dyn Fn() + Sync),
    keep: &mut dyn FnMut(Height, &BlockUndoData) -> Result<(), SyncError>,
) -> Result<Option<u64>, SyncError> {
    let noted = |height: Height| {
        let print = inputs.fingerprints.get(height.checked_sub(inputs.range.start)? as usize);
        print.map(|print| Fingerprint(*print))
    };
    let answers = &inputs.answers;
    let (mut bytes, mut by_claims) = (0, 0);
    let mut one = |block: &SeenBlock<'_>| {
        let id = block.id();
        let connected = inputs.connector.block(block, answers.of_block(id.height));
        let connected = connected.and_then(ValidatedBlock::wait);
        let kept = connected.map_err(|error| refusal(env, (id, error)))?;
        kept.iter().try_for_each(|kept| keep(id.height, kept))?;
        bytes += block.view().raw().len() as u64;
        alive();
        Ok(())
    };
    for (place, height) in inputs.range.heights().enumerate() {
        let allowed = |claims: &&SpendSummary<'_>| {
            inputs.connector.allows(height, claims, answers.of_block(height))
        };
        if let Some(claims) = inputs.claims.get(place).and_then(Option::as_ref).filter(allowed) {
            by_claims += claims.block_bytes();
            alive();
            continue;
        }
        let only = HeightRange::new(height, height + 1);
        if !walker.take_again(only, &inputs.key, (&noted, &|_| None), &mut one)? {
            return Ok(None);
        }
    }
    Ok(Some(bytes + by_claims))
}

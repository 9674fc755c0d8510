//! Checks every block rule that needs no coins: a [`BlockChecker`] turns raw bytes into [`BlockBytes`].
//!
//! The checks run in Core's order (`validation.cpp`: `CheckBlock`, then `ContextualCheckBlock`), so
//! the first error has the same name as in Core. The header tree checks the header's own rules
//! (proof of work, difficulty, times, versions); engines check amounts, scripts and spending.
//!
//! It computes both ids of a transaction in order, while its bytes are in the cache. Ids of long transactions
//! are computed last and together, because lanes that hash messages of different lengths wait for the
//! longest.

mod checked;
mod survey;

pub use checked::{BlockError, CheckedBlock, TxError};
pub use survey::LOCKTIME_THRESHOLD;

use crate::block::{BlockLayout, BlockView, DecodeError, TxView, Visitor};
use crate::hashes::{BlockHash, Merkle, MerkleScratch, Txid, merkle_root};
use crate::header::{Header, Height};
use crate::params::Params;
use crate::read::{ReadError, Reader};
use crate::script::{
    BLOCK_SIGOPS_COST_MAX, ScriptError, ScriptVerifier, WITNESS_SCALE_FACTOR, height_push,
    witness_commitment,
};
use crate::signet::{SignetFault, check_signet_solution};
use apus_hash::{Message, sha256d, sha256d_each};
use survey::{BlockSurvey, Surveyor, WEIGHT_MAX};

/// What the header chain knows about a block before its bytes are read.
#[derive(Clone, Copy)]
pub struct BlockContext<'a> {
    /// The network's rules.
    pub params: &'a Params,
    /// The block's height.
    pub height: Height,
    /// The block's hash. Its header has passed every header rule.
    pub hash: BlockHash,
    /// Median time past of the previous block (BIP-113).
    pub median_time_past: u32,
    /// Runs the script of a signet block's solution; required on signet only.
    pub verifier: Option<&'a dyn ScriptVerifier>,
}

/// A block whose bytes passed the checks against its header and all rules that need no coins. Only
/// [`BlockChecker::check`] returns one, or a [`CheckedBlock`], the result of [`BlockChecker::check_owned`].
#[derive(Clone, Copy)]
pub struct BlockBytes<'a> {
    view: BlockView<'a>,
    txids: &'a [[u8; 32]],
    height: Height,
    hash: BlockHash,
    legacy_sigops: u64,
}

impl<'a> BlockBytes<'a> {
    /// Returns the block's height.
    pub fn height(&self) -> Height {
        self.height
    }

    /// Returns the block's hash.
    pub fn hash(&self) -> BlockHash {
        self.hash
    }

    /// Returns the block.
    pub fn view(&self) -> BlockView<'a> {
        self.view
    }

    /// Returns the number of signature operations that can be counted without coins (Core
    /// `consensus/tx_verify.cpp`, `GetLegacySigOpCount`).
    pub fn legacy_sigops(&self) -> u64 {
        self.legacy_sigops
    }

    /// Returns the transactions with their ids, in block order.
    pub fn txs(&self) -> impl ExactSizeIterator<Item = (Txid, TxView<'a>)> + use<'a> {
        self.txids.iter().map(|&txid| Txid(txid)).zip(self.view.txs())
    }

    /// Returns the ids of the transactions, in block order.
    #[inline]
    pub fn txids(&self) -> &'a [[u8; 32]] {
        self.txids
    }

    /// Returns the id of the transaction at an index in the block, if it exists.
    #[inline]
    pub fn txid(&self, place: usize) -> Option<Txid> {
        self.txids.get(place).map(|&txid| Txid(txid))
    }
}

/// Computes the ids of a block's transactions together, in block order.
pub fn txids_of(view: &BlockView<'_>) -> Vec<Txid> {
    let mut ids = Ids::default();
    ids.hash(view, false);
    ids.txids.into_iter().map(Txid).collect()
}

/// Checks blocks. Each thread needs its own, because it holds reusable working space.
#[derive(Default)]
pub struct BlockChecker {
    layout: BlockLayout,
    ids: Ids,
    merkle: MerkleScratch,
    fingerprints: Vec<u64>,
    /// The last height whose witnesses are skipped.
    skip_witnesses_up_to: Height,
}

impl BlockChecker {
    /// Creates empty working space.
    pub fn new() -> Self {
        Self::default()
    }

    /// Skips the witnesses of blocks up to this height, for blocks whose scripts are assumed valid: that
    /// assumption covers all properties of the witnesses. The checker verifies neither the witness commitment
    /// nor the weight that witnesses add, and hides the witnesses of the block. So it makes no difference
    /// which witnesses a copy has, or whether it has any. When Core processes its own blocks again, it also
    /// checks neither, but counts the signature operations in witnesses (`validation.cpp`, `ConnectBlock`: no
    /// `ContextualCheckBlock`).
    pub fn leave_witnesses(&mut self, up_to: Height) {
        self.skip_witnesses_up_to = up_to;
    }

    /// Checks the block at the start of `raw`. Bytes after it are ignored, as in Core.
    pub fn check<'a>(
        &'a mut self,
        raw: &'a [u8],
        context: &BlockContext<'_>,
    ) -> Result<BlockBytes<'a>, BlockError> {
        let checks_witnesses = context.height > self.skip_witnesses_up_to;
        let Self { layout, ids, merkle, fingerprints, .. } = self;
        let mut surveyor =
            Surveyor::new(context.height, locktime_cutoff(raw, context), fingerprints);
        let view = read(layout, raw, context, checks_witnesses, &mut surveyor)?;
        let survey = surveyor.finish(&view);
        let segwit = context.height >= context.params.segwit_height;
        let commitment = witness_commitment_of(&view).filter(|_| segwit && checks_witnesses);
        ids.hash(&view, commitment.is_some());
        let Ids { txids, wtxids, .. } = ids;
        check_context_free(&view, txids, context, merkle, &survey)?;
        check_final(&survey, txids)?;
        check_coinbase_height(&view, context)?;
        if checks_witnesses {
            check_witnesses(&view, txids, wtxids, commitment, &survey, merkle)?;
            check_weight(&view, &survey)?;
        }
        let (height, hash, legacy_sigops) = (context.height, context.hash, survey.sigops);
        Ok(BlockBytes { view, txids, height, hash, legacy_sigops })
    }

    /// Reads the block at the start of `raw`, which must have the expected hash. Checks no rules:
    /// use it for bytes of a block that was checked before.
    pub fn read<'a>(
        &'a mut self,
        raw: &'a [u8],
        context: &BlockContext<'_>,
    ) -> Result<BlockView<'a>, BlockError> {
        read(&mut self.layout, raw, context, context.height > self.skip_witnesses_up_to, &mut ())
    }

    /// Reads a block that was checked before, and compares it with the hash of its header and with the header's
    /// merkle root: then no byte has changed since, except in witnesses. Also returns the ids of its
    /// transactions. Refuses bytes after the block.
    pub fn read_same<'a>(
        &'a mut self,
        raw: &'a [u8],
        hash: &BlockHash,
    ) -> Result<(BlockView<'a>, &'a [[u8; 32]]), BlockError> {
        let Self { layout, ids, merkle, .. } = self;
        let view = layout.read(raw)?;
        if view.hash() != *hash {
            return Err(BlockError::OtherBlock { found: view.hash() });
        }
        let offset = view.raw().len();
        if let count @ 1.. = raw.len() - offset {
            return Err(DecodeError::Read(ReadError::Trailing { offset, count }).into());
        }
        ids.hash(&view, false);
        check_merkle_root(&view, &ids.txids, merkle)?;
        Ok((view, &ids.txids))
    }

    /// Checks a block whose parent, and so its height and median time, are unknown: applies every rule of
    /// [`check`](Self::check) that holds at any height. Ignores height and time of `context`.
    /// Returns the length of the block in `raw`.
    ///
    /// Checks witnesses, too (Core `validation.cpp`, `CheckWitnessMalleation`): a block has the witnesses
    /// that its coinbase commits to, or none at all, whether or not segwit is active at its height. The
    /// merkle root fixes everything else, so at most two byte strings pass under one header: one copy with
    /// the committed witnesses, and one without any.
    pub fn check_anywhere(
        &mut self,
        raw: &[u8],
        context: &BlockContext<'_>,
    ) -> Result<usize, BlockError> {
        let Self { layout, ids, merkle, fingerprints, .. } = self;
        let mut surveyor =
            Surveyor::new(context.height, locktime_cutoff(raw, context), fingerprints);
        let view = read(layout, raw, context, true, &mut surveyor)?;
        let survey = surveyor.finish(&view);
        let commitment = witness_commitment_of(&view);
        ids.hash(&view, commitment.is_some());
        let Ids { txids, wtxids, .. } = ids;
        check_context_free(&view, txids, context, merkle, &survey)?;
        if survey.witness.is_some() {
            check_witnesses(&view, txids, wtxids, commitment, &survey, merkle)?;
        }
        check_weight(&view, &survey)?;
        Ok(view.raw().len())
    }
}

/// Reads the block at the start of `raw`, which must have the expected hash, with or without its `witnesses`.
/// Passes all parts to a visitor.
fn read<'a>(
    layout: &'a mut BlockLayout,
    raw: &'a [u8],
    context: &BlockContext<'_>,
    witnesses: bool,
    visitor: &mut impl Visitor,
) -> Result<BlockView<'a>, BlockError> {
    let view = layout.read_shown(raw, visitor)?;
    let (found, length) = (view.hash(), view.raw().len());
    if found != context.hash {
        return Err(BlockError::OtherBlock { found });
    }
    if !witnesses {
        layout.hide_witnesses();
    }
    Ok(layout.view(&raw[..length]))
}

/// Checks the rules that do not depend on the chain (Core `validation.cpp`, `CheckBlock`), except
/// whether transactions are final.
fn check_context_free(
    view: &BlockView<'_>,
    txids: &[[u8; 32]],
    context: &BlockContext<'_>,
    merkle: &mut MerkleScratch,
    survey: &BlockSurvey,
) -> Result<(), BlockError> {
    // Precedes the check of the merkle root, as in Core.
    if let Err(NoSolution { is_verdict, why }) = check_signet(view, txids, context) {
        // The solution is part of the transactions.
        let mut is_whole =
            || is_coinbase_first(view) && check_merkle_root(view, txids, merkle).is_ok();
        return Err(match is_verdict && is_whole() {
            true => BlockError::Unsigned(why),
            false => BlockError::SignetSolution(why),
        });
    }
    check_merkle_root(view, txids, merkle)?;
    check_shape(view, survey)?;
    check_transactions(survey, txids)
}

/// Returns whether the first transaction is a coinbase. In a block with merkle tree nodes passed off as
/// transactions, it is not.
fn is_coinbase_first(view: &BlockView<'_>) -> bool {
    view.tx(0).is_some_and(|tx| tx.is_coinbase())
}

/// Why a block's solution is rejected.
struct NoSolution {
    /// Whether the scripts say so: without an interpreter, or if it fails, that is unknown.
    is_verdict: bool,
    why: String,
}

/// Checks the block's solution on a chain that requires one (BIP-325), and returns why it is
/// rejected. Without an interpreter it is rejected: an unchecked signature is no signature.
fn check_signet(
    view: &BlockView<'_>,
    txids: &[[u8; 32]],
    context: &BlockContext<'_>,
) -> Result<(), NoSolution> {
    if context.params.signet_challenge.is_none() {
        return Ok(());
    }
    let verifier = context
        .verifier
        .ok_or_else(|| NoSolution { is_verdict: false, why: "no script interpreter".to_owned() })?;
    let coinbase = view.tx(0).map_or(&[][..], |tx| tx.raw());
    let txids: Vec<Txid> = txids.iter().copied().map(Txid).collect();
    let header = Header::parse(view.header());
    check_signet_solution(context.params, &header, coinbase, &txids, verifier).map_err(|error| {
        NoSolution {
            is_verdict: !matches!(error.fault, SignetFault::Script(ScriptError::Setup(_))),
            why: error.fault.to_string(),
        }
    })
}

/// Checks the merkle root (Core `validation.cpp`, `CheckMerkleRoot`).
fn check_merkle_root(
    view: &BlockView<'_>,
    txids: &[[u8; 32]],
    scratch: &mut MerkleScratch,
) -> Result<(), BlockError> {
    let Merkle { root, mutated } = merkle_root(txids, scratch);
    if root != view.merkle_root().0 {
        return Err(BlockError::MerkleRoot);
    }
    if mutated { Err(BlockError::DuplicateTransactions) } else { Ok(()) }
}

/// Length of two nodes of the merkle tree, which can be read as a transaction.
const MERKLE_NODES_SIZE: usize = 64;

/// Checks the size limits and the position of the coinbase (Core `validation.cpp`, `CheckBlock`).
fn check_shape(view: &BlockView<'_>, survey: &BlockSurvey) -> Result<(), BlockError> {
    let (txs, size) = (view.tx_count(), survey.stripped_size);
    // Core also bounds four times the number of transactions. Every transaction has at least ten
    // bytes, so the bound on the bytes applies first.
    if txs == 0 || size * 4 > WEIGHT_MAX {
        return Err(BlockError::Length { txs, size });
    }
    if survey.coinbase != Some(0) {
        let nodes = view.txs().any(|tx| tx.stripped_size() == MERKLE_NODES_SIZE);
        return Err(if nodes { BlockError::MerkleNodes } else { BlockError::CoinbaseMissing });
    }
    match survey.second_coinbase {
        Some(tx) => Err(BlockError::CoinbaseMultiple { tx }),
        None => Ok(()),
    }
}

/// Checks the rules for each transaction on its own (Core `consensus/tx_check.cpp`), and the
/// signature operations of all together (Core `validation.cpp`, `CheckBlock`).
fn check_transactions(survey: &BlockSurvey, txids: &[[u8; 32]]) -> Result<(), BlockError> {
    if let Some((tx, error)) = survey.invalid {
        return Err(BlockError::Tx { tx, txid: Txid(txids[tx]), error });
    }
    let cost = survey.sigops * WITNESS_SCALE_FACTOR;
    if cost > BLOCK_SIGOPS_COST_MAX {
        return Err(BlockError::SigOps { cost });
    }
    Ok(())
}

/// Checks that all transactions are final (Core `validation.cpp`, `ContextualCheckBlock`).
fn check_final(survey: &BlockSurvey, txids: &[[u8; 32]]) -> Result<(), BlockError> {
    match survey.non_final {
        Some(tx) => Err(BlockError::NonFinal { tx, txid: Txid(txids[tx]) }),
        None => Ok(()),
    }
}

/// Checks the weight (BIP-141; Core `validation.cpp`, `ContextualCheckBlock`).
fn check_weight(view: &BlockView<'_>, survey: &BlockSurvey) -> Result<(), BlockError> {
    let weight = survey.weight(view.raw().len());
    if weight > WEIGHT_MAX { Err(BlockError::Weight { weight }) } else { Ok(()) }
}

/// Returns the time to compare lock times with: the median time past if BIP-113 is active, else the block's
/// own time (Core `validation.cpp`, `ContextualCheckBlock`). `raw` starts with the block's header, or is not
/// a block.
fn locktime_cutoff(raw: &[u8], context: &BlockContext<'_>) -> u32 {
    if context.height >= context.params.csv_height {
        return context.median_time_past;
    }
    raw.first_chunk().map_or(0, |header| Header::parse(header).time)
}

/// Checks the height at the start of the coinbase (BIP-34).
fn check_coinbase_height(
    view: &BlockView<'_>,
    context: &BlockContext<'_>,
) -> Result<(), BlockError> {
    if context.height < context.params.bip34_height {
        return Ok(());
    }
    let (push, length) = height_push(context.height);
    let begins = view
        .tx(0)
        .and_then(|coinbase| coinbase.inputs().next())
        .is_some_and(|input| input.script_sig().starts_with(&push[..length]));
    if begins { Ok(()) } else { Err(BlockError::CoinbaseHeight) }
}

/// The number of transactions whose txids are computed before their wtxids: few enough to stay in the
/// second-level cache.
const HASHED_TOGETHER: usize = 1024;

/// The length of a long transaction. These are few, and few of them have the same length.
const LONG_BYTES: usize = 2048;

/// The ids of one block's transactions, and working space.
#[derive(Debug, Default)]
struct Ids {
    /// The txids, which do not cover witnesses.
    txids: Vec<[u8; 32]>,
    /// The wtxids, if requested: zero for the coinbase, the txid for a transaction without a witness.
    wtxids: Vec<[u8; 32]>,
    /// Indices of transactions, and their hashes.
    places: Vec<u32>,
    hashes: Vec<[u8; 32]>,
    /// Indices of long transactions, and whether the wtxid is requested.
    long: Vec<(u32, bool)>,
}

fn is_long(tx: &TxView<'_>) -> bool {
    tx.raw().len() >= LONG_BYTES
}

impl Ids {
    /// Computes the txids of `view`, and the wtxids only if `wanted`.
    fn hash(&mut self, view: &BlockView<'_>, wanted: bool) {
        // All old contents will be overwritten.
        self.txids.resize(view.tx_count(), [0; 32]);
        self.wtxids.clear();
        self.long.clear();
        for first in (0..view.tx_count()).step_by(HASHED_TOGETHER) {
            let end = view.tx_count().min(first + HASHED_TOGETHER);
            // The id of a long transaction is computed last; hash an arbitrary value until then.
            let message = |index: usize| match view.tx_at(first + index) {
                tx if is_long(&tx) => Message::default(),
                tx => Message(tx.id_parts()),
            };
            sha256d_each(message, &mut self.txids[first..end]);
            if wanted {
                self.hash_with_witness(view, first, end);
            }
            let long = (first..end).filter(|&place| is_long(&view.tx_at(place)));
            self.long.extend(long.map(|place| (place as u32, false)));
        }
        self.hash_long(view, wanted);
        if let Some(coinbase) = self.wtxids.first_mut() {
            *coinbase = [0; 32];
        }
    }

    /// Computes the wtxids of the transactions `first..end` that are not long.
    fn hash_with_witness(&mut self, view: &BlockView<'_>, first: usize, end: usize) {
        let Self { txids, wtxids, places, hashes, .. } = self;
        wtxids.extend_from_slice(&txids[first..end]);
        let here = |&place: &usize| {
            let tx = view.tx_at(place);
            tx.has_witness() && !is_long(&tx)
        };
        places.clear();
        places.extend((first..end).filter(here).map(|place| place as u32));
        hashes.resize(places.len(), [0; 32]);
        let raw = |index: usize| view.tx_at(places[index] as usize).raw();
        sha256d_each(|index| Message::from(raw(index)), hashes);
        for (place, hash) in places.iter().zip(hashes) {
            wtxids[*place as usize] = *hash;
        }
    }

    /// Computes all ids of the long transactions.
    fn hash_long(&mut self, view: &BlockView<'_>, wanted: bool) {
        let Self { txids, wtxids, hashes, long, .. } = self;
        if wanted {
            long.extend_from_within(..);
            let half = long.len() / 2;
            long[half..].iter_mut().for_each(|(_, witness)| *witness = true);
        }
        hashes.resize(long.len(), [0; 32]);
        let message = |index: usize| {
            let (place, witness) = long[index];
            let tx = view.tx_at(place as usize);
            // Without a witness, both ids are the same.
            if witness && tx.has_witness() {
                Message::from(tx.raw())
            } else {
                Message(tx.id_parts())
            }
        };
        sha256d_each(message, hashes);
        for (&(place, witness), hash) in long.iter().zip(hashes) {
            let ids = if witness { &mut *wtxids } else { &mut *txids };
            ids[place as usize] = *hash;
        }
    }
}

/// Returns the witness commitment of the block's coinbase: the last output that has the form of one.
fn witness_commitment_of<'a>(block: &BlockView<'a>) -> Option<&'a [u8; 32]> {
    block.tx(0)?.outputs().filter_map(|output| witness_commitment(output.script())).last()
}

/// Checks that the witnesses match the coinbase's commitment, or that the block has neither. `commitment` is
/// `Some` only if segwit is active at the block's height; `wtxids` are needed only in that case.
fn check_witnesses(
    block: &BlockView<'_>,
    txids: &[[u8; 32]],
    wtxids: &[[u8; 32]],
    commitment: Option<&[u8; 32]>,
    survey: &BlockSurvey,
    merkle: &mut MerkleScratch,
) -> Result<(), BlockError> {
    let coinbase = block.tx(0).ok_or(BlockError::CoinbaseMissing)?;
    let Some(commitment) = commitment else {
        return match survey.witness {
            Some(tx) => Err(BlockError::UnexpectedWitness { tx, txid: Txid(txids[tx]) }),
            None => Ok(()),
        };
    };
    let nonce = reserved_value(&coinbase).ok_or(BlockError::WitnessNonceSize)?;
    let root = merkle_root(wtxids, merkle).root;
    if sha256d(&[root, nonce].concat()) != *commitment {
        return Err(BlockError::WitnessMerkleMatch);
    }
    Ok(())
}

/// Returns the coinbase's witness, which must be a single item of 32 bytes.
fn reserved_value(coinbase: &TxView<'_>) -> Option<[u8; 32]> {
    let mut reader = Reader::new(coinbase.witness());
    // A coinbase has one input, hence one stack: its count, then the item preceded by its length.
    let single = reader.compact_size().ok()? == 1 && reader.compact_size().ok()? == 32;
    let value = *reader.array().ok()?;
    single.then_some(value)
}

#[cfg(test)]
mod tests;

//! Are blocks invalid that the node takes for that? [`judge`] connects them in its stead, on the coins that the node has,
//! where no undo data say what they spend: a node writes none for a block that it refuses.
//!
//! The coins at the block where such a branch begins are those of the node, without what the blocks above it made, and
//! with what these spent, by their undo data. Only coins that the branch spends are kept in memory.

use super::VerifyWork;
use super::coins::{TakenCoins, open};
use super::finding::{FindingKind, FoundFault};
use super::index::Stored;
use super::survey::FolderSurvey;
use crate::engines::swiftsync::FullyError;
use crate::error::SyncError;
use crate::progress::stop_if_interrupted;
use apus_chain::{
    BlockBytes, BlockUndo, BlockUndoWriter, CoinRef, Header, HeaderChain, Height, KnownBlock,
    OutPoint, is_unspendable, write_coin,
};
use apus_datadir::{BlockFiles, UndoFiles};
use std::collections::{HashMap, HashSet};

/// A branch that begins deeper below the coins is not looked at: no node takes it in earnest any more.
const BLOCKS_BACK_MAX: Height = 1008;

/// What a coin that is looked for takes of memory, at most, but for a long script.
const COIN_BYTES: u64 = 256;

/// Whether blocks that are marked obey every rule, is a finding of each that does. `beside` are the blocks that are
/// stored beside the chain that ends with the coins.
pub(super) fn judge(
    work: &VerifyWork<'_>,
    files: &BlockFiles,
    taken: &TakenCoins,
    chain: &HeaderChain,
    beside: &[Stored],
) -> Result<(), SyncError> {
    let mut targets: Vec<Stored> =
        beside.iter().filter(|stored| stored.failed && stored.undo.is_none()).copied().collect();
    targets.sort_unstable_by_key(|stored| stored.block.height);
    let by_hash: HashMap<_, _> = beside.iter().map(|stored| (stored.block.hash, *stored)).collect();
    let mut judged = HashSet::new();
    while let Some(highest) = targets.pop() {
        if judged.contains(&highest.block.hash) {
            continue;
        }
        let Some(branch) = work.index.chain_to(&highest.block.hash) else { continue };
        let fork = fork(&branch, chain);
        let blocks: Option<Vec<Stored>> = (fork + 1..=highest.block.height)
            .map(|height| by_hash.get(branch.hash(height)?).copied())
            .collect();
        let back = chain.tip_height() - fork;
        let Some(blocks) = blocks.filter(|_| back <= BLOCKS_BACK_MAX) else { continue };
        judged.extend(blocks.iter().map(|stored| stored.block.hash));
        StaleBranch { work, files, taken, chain, branch: &branch, fork }.judge(&blocks)?;
    }
    Ok(())
}

/// The last height at which both have the same block.
fn fork(branch: &HeaderChain, chain: &HeaderChain) -> Height {
    let most = branch.tip_height().min(chain.tip_height());
    (0..=most).rev().find(|height| branch.hash(*height) == chain.hash(*height)).unwrap_or_default()
}

/// Coins that a branch spends, in stored form. None until one was found.
type Wanted = HashMap<OutPoint, Option<Vec<u8>>>;

struct StaleBranch<'a> {
    work: &'a VerifyWork<'a>,
    files: &'a BlockFiles,
    taken: &'a TakenCoins,
    /// The chain up to the node's coins.
    chain: &'a HeaderChain,
    branch: &'a HeaderChain,
    fork: Height,
}

impl StaleBranch<'_> {
    /// Connects the blocks of the branch, as far as they obey the rules.
    fn judge(&self, blocks: &[Stored]) -> Result<(), SyncError> {
        let VerifyWork { request, findings, .. } = *self.work;
        let survey = FolderSurvey::new(request, self.files, findings, self.branch, true)?;
        let Some(mut coins) = self.coins(&survey, blocks)? else { return Ok(()) };
        for stored in blocks {
            stop_if_interrupted(request.interrupt)?;
            let mut verdict = MarkVerdict::Unknown;
            survey.with_block(stored, &mut |block| {
                verdict = connect(&survey, block, &mut coins)?;
                Ok(())
            })?;
            match verdict {
                MarkVerdict::Valid if stored.failed && stored.undo.is_none() => {
                    let what = match self.work.index.pruned {
                        true => {
                            "the index marks it as invalid, and it obeys every rule, if the node's coins are right"
                        }
                        false => "the index marks it as invalid, and it obeys every rule",
                    };
                    let index = request.blocksdir().join("index");
                    let found = FoundFault::new(what).block(stored.block).of(&index);
                    findings.add(FindingKind::MarkedInvalid, found);
                }
                MarkVerdict::Valid => {}
                MarkVerdict::Invalid => {
                    self.work.marked_rightly(stored.block.hash);
                    break;
                }
                MarkVerdict::Unknown => break,
            }
        }
        Ok(())
    }

    /// The coins that the blocks spend, as far as they are there where the branch begins. None where they are more
    /// than memory has room for, or a block cannot be read.
    fn coins(
        &self,
        survey: &FolderSurvey<'_>,
        blocks: &[Stored],
    ) -> Result<Option<Wanted>, SyncError> {
        let request = self.work.request;
        let most = request.memory_bytes / COIN_BYTES;
        let (mut wanted, mut read) = (Wanted::new(), 0);
        for stored in blocks {
            survey.with_block(stored, &mut |block| {
                read += 1;
                let inputs = block.view().inputs().filter(|input| !input.is_null());
                wanted.extend(inputs.map(|input| (outpoint_of(input.outpoint()), None)));
                Ok(())
            })?;
            if wanted.len() as u64 > most {
                return Ok(None);
            }
        }
        // One that breaks a rule of its own has none above it that is looked at.
        if read == 0 {
            return Ok(None);
        }
        let mut reader = open(&self.taken.path, None)?;
        while let Some(coin) = super::coins::next(&mut reader, &self.taken.path)? {
            if coin.height <= self.fork
                && let Some(slot) = wanted.get_mut(&coin.outpoint)
            {
                *slot = Some(coin.bytes);
            }
        }
        let went_back = self.spent_above(&mut wanted)?;
        Ok(went_back.then_some(wanted))
    }

    /// Adds the coins that the node's own blocks spent above the fork. Tells whether all undo data were there.
    fn spent_above(&self, wanted: &mut Wanted) -> Result<bool, SyncError> {
        let VerifyWork { request, index, findings, .. } = *self.work;
        let survey = FolderSurvey::new(request, self.files, findings, self.chain, false)?;
        let is_above = |block: KnownBlock| {
            block.height > self.fork && self.chain.hash(block.height) == Some(&block.hash)
        };
        let own = match self.chain.tip_height() == self.fork {
            true => Vec::new(),
            false => index.stored(request, &is_above)?,
        };
        if own.len() as u64 != u64::from(self.chain.tip_height() - self.fork) {
            return Ok(false);
        }
        let Ok(mut files) = UndoFiles::open(self.files.dir(), self.files.magic()) else {
            return Ok(false);
        };
        let mut whole = true;
        for stored in &own {
            let Some((file, offset)) = stored.undo else { return Ok(false) };
            let mut is_read = false;
            survey.with_block(stored, &mut |block| {
                let prev = Header::parse(block.view().header()).prev;
                let Ok(undo) = files.read(file, offset, &prev) else { return Ok(()) };
                let Ok(undo) = BlockUndo::read(&undo) else { return Ok(()) };
                let inputs = block.view().inputs().filter(|input| !input.is_null());
                for (input, coin) in inputs.zip(undo.coins()) {
                    if coin.height() <= self.fork
                        && let Some(slot) = wanted.get_mut(&outpoint_of(input.outpoint()))
                    {
                        let bytes = slot.insert(Vec::new());
                        coin.write_stored(bytes);
                    }
                }
                is_read = true;
                Ok(())
            })?;
            whole &= is_read;
        }
        Ok(whole)
    }
}

/// What came of a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkVerdict {
    Valid,
    Invalid,
    Unknown,
}

fn outpoint_of(bytes: &[u8; OutPoint::SIZE]) -> OutPoint {
    OutPoint::from_bytes(bytes)
}

/// Judges a block by the coins that are there, takes away what it spends, and adds what it makes.
fn connect(
    survey: &FolderSurvey<'_>,
    block: &BlockBytes<'_>,
    coins: &mut Wanted,
) -> Result<MarkVerdict, SyncError> {
    let Some(judge) = survey.judge() else { return Ok(MarkVerdict::Unknown) };
    let mut undo = Vec::new();
    let mut writer = BlockUndoWriter::new(&mut undo, block.view().tx_count());
    for (number, (txid, tx)) in block.txs().enumerate() {
        if number > 0 {
            let spent: Option<Vec<Vec<u8>>> = tx
                .inputs()
                .map(|input| coins.get_mut(&outpoint_of(input.outpoint()))?.take())
                .collect();
            // It spends what is not there, or was spent before.
            let Some(spent) = spent else { return Ok(MarkVerdict::Invalid) };
            if writer.push_stored_tx(spent.iter().map(Vec::as_slice)).is_err() {
                return Ok(MarkVerdict::Unknown);
            }
        }
        for (vout, output) in (0..).zip(tx.outputs()) {
            let slot = coins.get_mut(&OutPoint { txid, vout });
            if let (Some(slot), Ok(amount)) = (slot, u64::try_from(output.value()))
                && !is_unspendable(output.script())
            {
                let (height, coinbase) = (block.height(), number == 0);
                let coin = CoinRef { height, coinbase, amount, script: output.script() };
                write_coin(slot.insert(Vec::new()), coin);
            }
        }
    }
    writer.finish();
    match judge.judge(block, &undo) {
        Ok(()) => Ok(MarkVerdict::Valid),
        Err(FullyError::Refused { .. }) => Ok(MarkVerdict::Invalid),
        Err(FullyError::Undo { .. }) => Ok(MarkVerdict::Unknown),
        Err(error) => Err(error.into()),
    }
}

//! Checks the blocks off the chain that ends at the coins, above it and on other branches, using the node's coins:
//! whether blocks marked as invalid are, and whether undo data has the coins that its block spends. A node writes no
//! undo data for a block that it rejects, and by their undo data alone blocks can prove nothing about it.
//!
//! The coins at the fork of such a branch are the node's coins, minus the coins that the blocks above the fork
//! created, plus the coins that these spent, taken from their undo data. Only coins that the branch spends are
//! kept in memory.

use super::VerifyWork;
use super::coins::{CoinsSnapshot, open};
use super::finding::{FindingKind, FoundFault};
use super::index::StoredEntry;
use super::survey::FolderSurvey;
use crate::engines::swiftsync::UndoPassError;
use crate::error::SyncError;
use crate::progress::stop_if_interrupted;
use apus_chain::{
    BlockBytes, BlockUndo, BlockUndoWriter, CoinRef, Header, HeaderChain, Height, KnownBlock,
    OutPoint, is_unspendable, write_coin,
};
use apus_datadir::{BlockFiles, UndoFiles};
use std::collections::{HashMap, HashSet};

/// Maximum depth of a checked branch's fork below the coins: no node would switch to a branch from deeper.
const BLOCKS_BACK_MAX: Height = 1008;

/// Maximum memory for each wanted coin, except for long scripts.
const COIN_BYTES: u64 = 256;

/// Reports a finding for each marked block that obeys every rule, and for each block whose undo data has other coins
/// than the block spends. `off_chain` are the stored blocks off the chain that ends at the coins. Returns the number of
/// blocks whose undo data was not compared, except far below the tip: no node disconnects these.
pub(super) fn check(
    work: &VerifyWork<'_>,
    files: &BlockFiles,
    taken: &CoinsSnapshot,
    chain: &HeaderChain,
    off_chain: &[StoredEntry],
) -> Result<usize, SyncError> {
    let is_target = |stored: &&StoredEntry| {
        let is_off = chain.hash(stored.block.height) != Some(&stored.block.hash);
        is_off && (stored.failed || stored.undo.is_some())
    };
    let mut targets: Vec<StoredEntry> = off_chain.iter().filter(is_target).copied().collect();
    targets.sort_unstable_by_key(|stored| stored.block.height);
    let by_hash: HashMap<_, _> =
        off_chain.iter().map(|stored| (stored.block.hash, *stored)).collect();
    let (mut checked, mut left_out) = (HashSet::new(), 0);
    while let Some(highest) = targets.pop() {
        if checked.contains(&highest.block.hash) {
            continue;
        }
        stop_if_interrupted(work.request.env.interrupt)?;
        let tree = &work.index.tree;
        let fork = tree.find(&highest.block.hash).and_then(|id| tree.fork_height(chain, id));
        let branch = work.index.chain_to(&highest.block.hash);
        let (Some(fork), Some(branch)) = (fork, branch) else { continue };
        let stored = |height| by_hash.get(branch.hash(height)?).copied();
        let blocks: Vec<StoredEntry> =
            (fork + 1..=highest.block.height).map_while(stored).collect();
        let is_whole = blocks.last() == Some(&highest);
        let is_deep = chain.tip_height() - fork > BLOCKS_BACK_MAX;
        // Blocks below one that is missing are a branch of their own.
        let from = fork + 1 + if is_whole || is_deep { 0 } else { blocks.len() as Height };
        let seen = (from..=highest.block.height).filter_map(stored);
        let seen: Vec<StoredEntry> =
            seen.filter(|stored| checked.insert(stored.block.hash)).collect();
        if is_deep {
            continue;
        }
        if !is_whole {
            left_out += seen.iter().filter(|stored| stored.undo.is_some()).count();
            continue;
        }
        let branch = StaleBranch { work, files, taken, chain, branch: &branch, fork };
        left_out += branch.check(&blocks)?;
    }
    Ok(left_out)
}

/// Coins that a branch spends, in stored form; `None` until a coin is found.
type WantedCoins = HashMap<OutPoint, Option<Vec<u8>>>;

struct StaleBranch<'a> {
    work: &'a VerifyWork<'a>,
    files: &'a BlockFiles,
    taken: &'a CoinsSnapshot,
    /// The chain up to the node's coins.
    chain: &'a HeaderChain,
    branch: &'a HeaderChain,
    fork: Height,
}

impl StaleBranch<'_> {
    /// Connects the blocks of the branch until one breaks a rule. Returns the number of blocks whose undo data was
    /// not compared.
    fn check(&self, blocks: &[StoredEntry]) -> Result<usize, SyncError> {
        let VerifyWork { request, findings, .. } = *self.work;
        let survey = FolderSurvey::new(request, self.files, findings, self.branch, true)?;
        let mut left_out = blocks.iter().filter(|stored| stored.undo.is_some()).count();
        let Some(mut coins) = self.coins(&survey, blocks)? else { return Ok(left_out) };
        let mut undo_files = UndoFiles::open(self.files.dir(), self.files.magic()).ok();
        for stored in blocks {
            stop_if_interrupted(request.env.interrupt)?;
            let mut verdict = MarkVerdict::Unknown;
            survey.with_block(stored, &mut |block| {
                let mut spent = Vec::new();
                verdict = connect(&survey, block, &mut coins, &mut spent)?;
                if verdict == MarkVerdict::Valid
                    && let Some((file, offset)) = stored.undo
                    && let Some(Ok(undo)) = undo_files
                        .as_mut()
                        .map(|it| it.read(file, offset, &Header::parse(block.view().header()).prev))
                    // The survey reported unreadable undo data, and readable data has only one form.
                    && BlockUndo::read(&undo).is_ok()
                    && undo != spent
                {
                    let what = "its undo data has other coins than the block spends";
                    findings.add(FindingKind::UndoWrong, FoundFault::new(what).block(stored.block));
                }
                Ok(())
            })?;
            if verdict != MarkVerdict::Unknown {
                left_out -= usize::from(stored.undo.is_some());
            }
            match verdict {
                MarkVerdict::Valid if stored.failed && stored.undo.is_none() => {
                    let what = match self.work.index.pruned {
                        true => {
                            "the index marks the block as invalid, but the block obeys every rule, if the node's \
                             coins are right"
                        }
                        false => {
                            "the index marks the block as invalid, but the block obeys every rule"
                        }
                    };
                    let index = request.blocksdir().join("index");
                    let found = FoundFault::new(what).block(stored.block).of(&index);
                    findings.add(FindingKind::MarkedInvalid, found);
                }
                MarkVerdict::Valid => {}
                MarkVerdict::Invalid if stored.connected => {
                    let what = "the node has connected this block, but it breaks a rule, if the coins below it are right";
                    let found = FoundFault::new(what).block(stored.block);
                    findings.add(FindingKind::BlockInvalid, found);
                    break;
                }
                MarkVerdict::Invalid => {
                    self.work.confirm_mark(stored.block.hash);
                    break;
                }
                MarkVerdict::Unknown => break,
            }
        }
        Ok(left_out)
    }

    /// Returns the coins at the fork that the blocks spend; `None` if they do not fit into memory, or a block
    /// cannot be read.
    fn coins(
        &self,
        survey: &FolderSurvey<'_>,
        blocks: &[StoredEntry],
    ) -> Result<Option<WantedCoins>, SyncError> {
        let request = self.work.request;
        let most = request.env.memory_bytes / COIN_BYTES;
        let (mut wanted, mut read) = (WantedCoins::new(), 0);
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
        // If a block breaks a rule on its own, nothing above it can be checked.
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

    /// Adds the coins that the node's blocks spent above the fork. Returns whether all undo data was
    /// available.
    fn spent_above(&self, wanted: &mut WantedCoins) -> Result<bool, SyncError> {
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

/// The result for a block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum MarkVerdict {
    Valid,
    Invalid,
    Unknown,
}

fn outpoint_of(bytes: &[u8; OutPoint::SIZE]) -> OutPoint {
    OutPoint::from_bytes(bytes)
}

/// Validates a block with these coins, removes the coins that it spends, and adds its outputs. Appends its undo data,
/// which is complete if the block is valid.
fn connect(
    survey: &FolderSurvey<'_>,
    block: &BlockBytes<'_>,
    coins: &mut WantedCoins,
    undo: &mut Vec<u8>,
) -> Result<MarkVerdict, SyncError> {
    let Some(connector) = survey.connector() else { return Ok(MarkVerdict::Unknown) };
    let mut writer = BlockUndoWriter::new(undo, block.view().tx_count());
    for (number, (txid, tx)) in block.txs().enumerate() {
        if number > 0 {
            let spent: Option<Vec<Vec<u8>>> = tx
                .inputs()
                .map(|input| coins.get_mut(&outpoint_of(input.outpoint()))?.take())
                .collect();
            // The block spends a coin that does not exist or is already spent.
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
    match connector.connect(block, undo) {
        Ok(()) => Ok(MarkVerdict::Valid),
        Err(UndoPassError::Refused { .. }) => Ok(MarkVerdict::Invalid),
        Err(UndoPassError::Undo { .. }) => Ok(MarkVerdict::Unknown),
        Err(error) => Err(error.into()),
    }
}

//! [`make_indexes`]: makes the indexes of a node's chain, from its block files to folders that the node starts on.

use crate::chain::IndexedChain;
use crate::coin_stats_index::CoinStatsTip;
use crate::databases::{Databases, WrittenDatabases};
use crate::error::{IndexesError, at};
use crate::forms::{IndexForm, IndexKind, index_folder};
use crate::node_coins::{NodeCoins, node_coins};
use crate::numbers::{NumbersDraft, NumbersPlace};
use crate::pass::{FilterFiles, INDEX_BLOCKS, IndexPass, PassCounts, PassRows, read_undo};
use crate::rows::{BUFFER_BYTES, RowFiles, RowsBudget};
use crate::salt::Salt;
use crate::{spender_index, txindex};
use apus_chain::{BlockHash, Height, HeightRange, KnownBlock, Params};
use apus_datadir::BlocksFolder;
use apus_storage::{DirStorage, Storage};
use apus_sync::engines::swiftsync::UndoSource;
use apus_sync::folder::{FolderDraft, FolderMark, complete_all, make_node_folder};
use apus_sync::source::{ChainSource, SearchOptions};
use apus_sync::system::runs_open_max;
use apus_sync::{BlocksDir, Event, Observer, Phase, SilentObserver, SyncError, UseIndex};
use std::collections::HashSet;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, AtomicU32};

/// The phase that writes the databases.
pub const INDEX_TABLES: Phase = Phase::Extra("index-tables");

/// Bytes of a chain's blocks for each transaction and each input: fewer than on the main chain, so that estimates are
/// upper bounds.
const TRANSACTION_BYTES: u64 = 350;
const INPUT_BYTES: u64 = 150;

/// Which indexes to make, and from what.
pub struct IndexesRequest<'a> {
    /// The chain's rules.
    pub params: &'a Params,
    /// The node's folder for this chain; the indexes go to `indexes` in it.
    pub folder: &'a Path,
    /// The folders of its blocks. No process changes them meanwhile.
    pub blocks: BlocksFolder,
    /// The last block to index: the one that the node's coins are at.
    pub tip: BlockHash,
    /// The coins after this block, if the caller knows them; otherwise those in `chainstate` are read.
    pub coins: Option<NodeCoins>,
    /// The indexes, each in one form.
    pub forms: &'a [IndexForm],
    /// A file for the chain in numbers, from the same pass.
    pub numbers: Option<&'a NumbersPlace>,
    /// Whether an existing index is moved aside; otherwise it is an error.
    pub replace: bool,
    /// A folder for temporary files, empty and used by no other program.
    pub scratch: &'a DirStorage,
    /// Worker threads, at least one.
    pub threads: usize,
    /// Memory for buffers, in bytes.
    pub memory_bytes: u64,
    /// Current time, in seconds since 1970.
    pub now: i64,
    /// Receives events.
    pub observer: &'a dyn Observer,
    /// Set by the caller to stop.
    pub interrupt: &'a AtomicBool,
}

impl IndexesRequest<'_> {
    /// Returns the length of a thread's read buffer: while one is taken, the disk fills the next.
    pub(crate) fn buffer_bytes(&self) -> u64 {
        (self.memory_bytes / 16 / self.threads.max(1) as u64).clamp(256 << 10, 4 << 20)
    }
}

/// What was made.
pub struct IndexesMade {
    /// The last block.
    pub tip: KnownBlock,
    /// Totals of the blocks.
    pub counts: PassCounts,
    /// The indexes.
    pub indexes: Vec<IndexMade>,
    /// The chain in numbers, which the caller publishes.
    pub numbers: Option<NumbersDraft>,
}

/// An index that was made.
#[derive(Debug)]
pub struct IndexMade {
    /// Its form.
    pub form: IndexForm,
    /// Its folder.
    pub path: PathBuf,
    /// Bytes of all its files.
    pub bytes: u64,
    /// Transactions of txindex, inputs of txospenderindex, and blocks of the others.
    pub rows: u64,
    /// Where the previous folder was moved.
    pub moved_to: Option<PathBuf>,
}

/// The disk space that indexes take, in bytes: upper bounds on usual chains.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct IndexesDisk {
    /// In the node's folder, at the end.
    pub indexes: u64,
    /// For temporary files.
    pub scratch: u64,
}

impl IndexesDisk {
    /// Estimates the space for blocks of this many bytes.
    pub fn of(forms: &[IndexForm], block_bytes: u64) -> Self {
        let (txs, inputs) = (block_bytes / TRANSACTION_BYTES, block_bytes / INPUT_BYTES);
        let rows = |count: u64, row: usize| count.saturating_mul(row as u64);
        let mut disk = Self::default();
        for form in forms {
            let (index, scratch) = match form {
                IndexForm::TxIndex => (rows(txs, 52), rows(txs, txindex::OLD_ROW)),
                IndexForm::TxIndexV2 => (rows(txs, 21), rows(txs, txindex::ROW)),
                IndexForm::TxoSpender => (rows(inputs, 27), rows(inputs, spender_index::ROW)),
                IndexForm::BlockFilter => (block_bytes / 40, block_bytes / 1000),
                IndexForm::CoinStats | IndexForm::CoinStatsOld => {
                    (block_bytes / 1000, block_bytes / 500)
                }
            };
            disk.indexes = disk.indexes.saturating_add(index);
            disk.scratch = disk.scratch.saturating_add(scratch);
        }
        disk
    }
}

/// Makes indexes. They get their names when all of them are complete: an interrupted attempt leaves the node as it was,
/// and the next one begins again.
///
/// # Errors
/// If an index exists already and is not to be replaced, if blocks or undo data are missing or damaged, and if the disk
/// fails.
pub fn make_indexes(request: &IndexesRequest<'_>) -> Result<IndexesMade, SyncError> {
    request.observer.event(Event::Started(INDEX_BLOCKS));
    discard_attempt(request.folder, request.scratch)?;
    let source = open_blocks(request)?;
    let undo = open_undo(request, &source)?;
    if !request.forms.is_empty() {
        make_node_folder(&request.folder.join("indexes"))?;
    }
    let drafts: Result<Vec<FolderDraft>, SyncError> = (request.forms.iter())
        .map(|form| FolderDraft::begin_at(&index_folder(request.folder, *form), request.replace))
        .collect();
    let drafts = drafts?;
    let folders = drafts.iter().map(|draft| draft.folder().to_owned()).collect();
    let written = write_indexes(request, &source, undo.as_deref(), folders);
    let written = written.inspect_err(|_| {
        // The first error is the one to report; the next start removes what stays.
        let _ = drafts.iter().try_for_each(FolderDraft::discard);
        let _ = clear(request.scratch);
    })?;
    clear(request.scratch)?;
    let mut published: Vec<(FolderMark, PathBuf)> = Vec::new();
    let mut indexes = Vec::new();
    for ((form, draft), (bytes, rows)) in request.forms.iter().zip(drafts).zip(written.indexes) {
        let path = index_folder(request.folder, *form);
        let (moved_to, mark) = draft.publish()?;
        published.push((mark, path.clone()));
        indexes.push(IndexMade { form: *form, path, bytes, rows, moved_to });
    }
    complete_all(published.iter().map(|(mark, path)| (mark, &**path)))?;
    let chain = source.chain();
    let tip = KnownBlock { height: chain.tip_height(), hash: *chain.tip_hash() };
    let WrittenIndexes { counts, numbers, .. } = written;
    Ok(IndexesMade { tip, counts, indexes, numbers })
}

/// Removes what an earlier attempt left in the node's `folder` and in the folder of temporary files, which both are locked.
///
/// # Errors
/// If the disk fails, and if another process makes the same indexes.
pub fn discard_attempt(folder: &Path, scratch: &DirStorage) -> Result<(), SyncError> {
    clear(scratch)?;
    IndexForm::ALL.iter().try_for_each(|form| FolderDraft::discard_at(&index_folder(folder, *form)))
}

/// Removes temporary files.
fn clear(scratch: &dyn Storage) -> Result<(), IndexesError> {
    for name in scratch.names().map_err(at(scratch, ""))? {
        if is_scratch_file(&name) {
            scratch.remove(&name).map_err(at(scratch, &name))?;
        }
    }
    Ok(())
}

/// Kinds of temporary files: the beginnings of their names, and the endings, with numbers between them.
const SCRATCH_FILES: [(&str, &str); 6] = [
    ("txindex-", ".rows"),
    ("txindex-v2-", ".rows"),
    ("txospenderindex-", ".rows"),
    ("filters-", ".part"),
    ("coinstats-", ".part"),
    ("numbers-", ".part"),
];

/// Returns whether a name is that of a temporary file of this crate.
pub fn is_scratch_file(name: &str) -> bool {
    SCRATCH_FILES.iter().any(|(start, end)| {
        let number = name.strip_prefix(start).and_then(|rest| rest.strip_suffix(end));
        number.is_some_and(|it| !it.is_empty() && it.bytes().all(|byte| byte.is_ascii_digit()))
    })
}

/// The name of the chain in numbers in messages.
pub const NUMBERS: &str = "the chain in numbers";

/// Fails unless the node's files have the undo data of all blocks up to `stop` or the last one: of each file it reads the
/// undo data of one block, before long work. `what` needs them. `use_index` decides about the chain; `now` is in seconds
/// since 1970.
///
/// # Errors
/// If undo data or blocks are missing or damaged, and if the block index cannot be read.
pub fn expect_undo_data(
    params: &Params,
    what: &str,
    blocks: &BlocksFolder,
    (use_index, stop): (UseIndex, Option<Height>),
    now: i64,
) -> Result<(), SyncError> {
    // Without the index, all block files would be read to find the blocks.
    if !blocks.index().join("CURRENT").is_file() {
        return Err(IndexesError::Unfit(without_undo(what, &blocks.index())).into());
    }
    let (observer, interrupt) = (&SilentObserver, &AtomicBool::new(false));
    let source = BlocksDir::open(blocks, params, now, use_index, observer, interrupt)?;
    let search = SearchOptions { threads: 1, observer, interrupt };
    let chain = source.chain();
    let last = stop.map_or(chain.tip_height(), |stop| stop.min(chain.tip_height()));
    let undo = if source.is_by_index() { source.undo(last, &search)? } else { None };
    let Some(undo) = undo else {
        return Err(IndexesError::Unfit(without_undo(what, &blocks.index())).into());
    };
    let hash = |height: Height| chain.hash(height).copied().unwrap_or_default();
    let mut undo = undo.reader(HeightRange::new(1, last + 1));
    let mut files = HashSet::new();
    for height in 1..=last {
        // The undo data of the blocks in a file are in a file of the same number.
        if source.place(height).is_some_and(|place| files.insert(place.file)) {
            read_undo(&mut *undo, height, &hash(height), &hash(height - 1))?;
        }
    }
    Ok(())
}

/// Finds the chain and its blocks through the node's index.
pub(crate) fn open_blocks(request: &IndexesRequest<'_>) -> Result<BlocksDir, SyncError> {
    let IndexesRequest { params, blocks, observer, interrupt, .. } = request;
    let stated = UseIndex::Stated(request.tip);
    let mut source = BlocksDir::open(blocks, params, request.now, stated, *observer, interrupt)?;
    source.set_buffer_bytes(request.buffer_bytes() as usize);
    Ok(source)
}

/// Opens the undo data, if an index needs them.
pub(crate) fn open_undo(
    request: &IndexesRequest<'_>,
    source: &BlocksDir,
) -> Result<Option<Box<dyn UndoSource>>, SyncError> {
    let needing = request.forms.iter().map(|form| form.kind()).find(|kind| kind.needs_undo());
    let of_numbers = request.numbers.map(|_| NUMBERS);
    let Some(what) = needing.map(IndexKind::name).or(of_numbers) else { return Ok(None) };
    let IndexesRequest { threads, observer, interrupt, .. } = *request;
    let search = SearchOptions { threads, observer, interrupt };
    let undo = source.undo(source.chain().tip_height(), &search)?;
    match undo {
        Some(undo) => Ok(Some(undo)),
        None => Err(IndexesError::Unfit(without_undo(what, &request.blocks.index())).into()),
    }
}

/// Says why an index cannot be made from blocks alone.
fn without_undo(what: &str, index: &Path) -> String {
    format!(
        "{what} needs the undo data of all blocks, and {} lacks some: a sync with hints writes undo data only for the last \
         blocks. `bitcoind -reindex` writes them; txindex and txospenderindex need none",
        index.display()
    )
}

/// What was written.
struct WrittenIndexes {
    /// Bytes and rows of each index.
    indexes: Vec<(u64, u64)>,
    counts: PassCounts,
    numbers: Option<NumbersDraft>,
}

/// Writes the indexes to `folders`, one for each form.
fn write_indexes(
    request: &IndexesRequest<'_>,
    source: &BlocksDir,
    undo: Option<&dyn UndoSource>,
    folders: Vec<PathBuf>,
) -> Result<WrittenIndexes, SyncError> {
    let IndexesRequest { params, forms, observer, interrupt, threads, .. } = *request;
    let chain = &IndexedChain::new(source.chain(), |height| source.place(height).map(Into::into));
    let databases = Databases { chain, forms, folders, interrupt };
    let (numbers, filters) = (AtomicU32::new(0), databases.make_filters_folder()?);
    let filters = filters.as_ref().map(|folder| FilterFiles { folder, numbers: &numbers });
    let rows = begin_rows(request, source.bytes_total())?;
    let pass = IndexPass {
        params,
        chain,
        source,
        undo,
        rows: &rows,
        filters,
        // They prove the undo data, so that no filter or number is wrong.
        stats: undo.is_some(),
        numbers: request.numbers.is_some(),
        check: None,
        scratch: request.scratch,
        threads,
        read_bytes: 2 * request.buffer_bytes(),
        observer,
        interrupt,
    };
    let (counts, mut parts) = pass.run()?;
    observer.event(Event::Ended { phase: INDEX_BLOCKS, bytes: source.bytes_total() });

    observer.event(Event::Started(INDEX_TABLES));
    let numbers = std::mem::take(&mut parts.numbers);
    let numbers = request.numbers.map(|place| place.write(numbers, source.chain().tip_hash()));
    let numbers = numbers.transpose()?;
    let node = || match request.coins {
        Some(coins) => Ok(coins),
        None => node_coins(&request.folder.join("chainstate"), &|| databases.stop()),
    };
    let WrittenDatabases { rows, coins } = databases.write(rows, parts, &node)?;
    expect_counts(&rows, counts)?;
    if let Some((made, node)) = coins {
        expect_coins(request, chain, made, node)?;
    }
    let mut indexes = Vec::new();
    for (form, folder) in forms.iter().zip(&databases.folders) {
        let of_rows = rows.iter().find(|(it, _)| it == form).map(|(_, rows)| *rows);
        let rows = of_rows.unwrap_or(u64::from(chain.headers.tip_height()) + 1);
        indexes.push((bytes_in(folder).map_err(at(&DirStorage::new(folder), ""))?, rows));
    }
    observer.event(Event::Ended { phase: INDEX_TABLES, bytes: 0 });
    Ok(WrittenIndexes { indexes, counts, numbers })
}

/// Sums up the bytes of all files in a folder.
fn bytes_in(folder: &Path) -> io::Result<u64> {
    let mut bytes = 0;
    for entry in fs::read_dir(folder)? {
        let entry = entry?;
        let there = entry.metadata()?;
        bytes += if there.is_dir() { bytes_in(&entry.path())? } else { there.len() };
    }
    Ok(bytes)
}

/// Returns among how many files the rows of each of `indexes` indexes may be divided: each thread has a buffer of each.
fn rows_files_max(memory_bytes: u64, threads: usize, indexes: u64) -> u64 {
    // With less memory than this for all buffers, files would be so few that they would be read again and again.
    let bytes = (memory_bytes / 2).max(32 << 20) / indexes / threads.max(1) as u64;
    (runs_open_max() / indexes).min(bytes / BUFFER_BYTES.start).max(1)
}

/// Begins the rows of the indexes that have some, and divides the memory among them.
fn begin_rows<'a>(
    request: &IndexesRequest<'a>,
    block_bytes: u64,
) -> Result<PassRows<'a>, IndexesError> {
    let has = |form| request.forms.contains(&form);
    let of_rows = [IndexForm::TxIndex, IndexForm::TxIndexV2, IndexForm::TxoSpender];
    let count = of_rows.into_iter().filter(|form| has(*form)).count().max(1) as u64;
    // The pass also needs memory for reading, and for what is not made of rows.
    let buffers_bytes = request.memory_bytes / 4 / count / request.threads.max(1) as u64;
    let budget = |form| RowsBudget {
        expected_bytes: IndexesDisk::of(&[form], block_bytes).scratch,
        buffers_bytes,
        sort_bytes: request.memory_bytes / count,
        files_max: rows_files_max(request.memory_bytes, request.threads, count),
    };
    let scratch: &dyn Storage = request.scratch;
    let old = IndexForm::TxIndex;
    let old_tx = has(old).then(|| RowFiles::new(scratch, "txindex", budget(old)));
    let mut tx = None;
    if has(IndexForm::TxIndexV2) {
        let rows = RowFiles::new(scratch, "txindex-v2", budget(IndexForm::TxIndexV2));
        tx = Some((Salt::random()?, rows));
    }
    let mut spender = None;
    if has(IndexForm::TxoSpender) {
        let rows = RowFiles::new(scratch, "txospenderindex", budget(IndexForm::TxoSpender));
        spender = Some((Salt::random()?, rows));
    }
    Ok(PassRows { old_tx, tx, spender })
}

/// Compares the numbers of rows with those of the blocks.
fn expect_counts(rows: &[(IndexForm, u64)], counts: PassCounts) -> Result<(), IndexesError> {
    for (form, rows) in rows {
        let expected = match form.kind() {
            IndexKind::TxoSpenderIndex => counts.inputs,
            _ => counts.transactions,
        };
        if *rows != expected {
            return Err(IndexesError::Damaged(format!(
                "{} got {rows} entries, but the blocks have {expected}: the disk or memory lost or changed some of them, \
                 or this is a bug in Apus. Nothing was changed. Check disk and memory, then rerun the same command",
                form.kind()
            )));
        }
    }
    Ok(())
}

/// Compares the coins that the blocks and undo data lead to with those of the node. An element of the MuHash has a whole
/// coin and its outpoint, so equal hashes prove each coin of the undo data that an earlier block made. Coins that a
/// block makes and spends itself are in no set: they were compared with the block's outputs.
fn expect_coins(
    request: &IndexesRequest<'_>,
    chain: &IndexedChain<'_>,
    made: CoinStatsTip,
    node: NodeCoins,
) -> Result<(), IndexesError> {
    let hash = |height| chain.headers.hash(height).copied();
    if request.params.has_uncounted_coins(chain.headers.tip_height(), hash) {
        // The node has coins of repeated coinbases, and the index never does.
        return Ok(());
    }
    if node.best == request.tip
        && (node.coins, node.amount, node.muhash) == (made.coins, made.amount, made.muhash)
    {
        return Ok(());
    }
    let node = match request.coins {
        Some(_) => "the coins that this run made".to_owned(),
        None => format!("the node's coins in {}", request.folder.join("chainstate").display()),
    };
    Err(IndexesError::Damaged(format!(
        "{node} differ from the result of the blocks and undo data in {}: some undo data or some coins are wrong. Nothing \
         was changed. `apus verify` says what is wrong, and what mends it",
        request.blocks.files.display()
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_our_temporary_files_have_their_names() {
        for name in ["txindex-0007.rows", "txindex-v2-1023.rows", "txospenderindex-0000.rows"] {
            assert!(is_scratch_file(name), "{name}");
        }
        for name in ["filters-1.part", "coinstats-840000.part", "numbers-10001.part"] {
            assert!(is_scratch_file(name), "{name}");
        }
        for name in ["a.rows", "film.part", "txindex-.rows", "txindex-7.part", "numbers-1x.part"] {
            assert!(!is_scratch_file(name), "{name}");
        }
    }

    #[test]
    fn buffers_of_all_threads_fit_the_memory() {
        for (mib, threads, indexes) in [(4, 64, 2), (4, 1, 3), (450, 64, 3), (450, 16, 2)] {
            let files = rows_files_max(mib << 20, threads, indexes);
            let power = 1 << files.ilog2();
            let all = power * BUFFER_BYTES.start * threads as u64 * indexes;
            assert!(all <= (mib << 19).max(32 << 20), "{mib} {threads} {indexes}: {all}");
            assert!(files >= 64, "{files}");
        }
    }
}

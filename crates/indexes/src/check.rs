//! [`check_indexes`]: compares a node's indexes with its blocks, undo data and coins. It changes nothing.
//!
//! A node checks next to nothing of an index, so a wrong entry would give wrong answers for ever. First the
//! databases are read from end to end, by a reader that shares no code with the writer; then one pass over the
//! blocks computes what each block must have there.
//!
//! Rows of transactions and inputs are in the order of a hash, not of blocks. Sorting them again would take as
//! long as making the index, so a keyed hash of each row is added to the sum of the row's block, in the index
//! and from the blocks. Equal sums prove equal rows, but for a chance of 1 in 2^64 for each wrong block; the
//! key is random, so that no one can prepare rows for it. Filters and statistics are computed again and
//! compared.

mod blocks;
mod coin_stats;
mod filters;
mod rows;

pub(crate) use blocks::{BlockCheck, FoundIndexes};

use crate::chain::IndexedChain;
use crate::error::IndexesError;
use crate::forms::IndexForm;
use crate::make::{
    INDEX_BLOCKS, INDEX_TABLES, IndexesRequest, index_folder, open_blocks, open_undo,
};
use crate::node_coins::node_coins;
use crate::pass::{IndexPass, PassRows};
use apus_chain::{BlockHash, Height, KnownBlock};
use apus_datadir::IndependentReadError;
use apus_sync::source::ChainSource;
use apus_sync::{ErrorKind, Event, SyncError};
use std::collections::{BTreeMap, HashMap};
use std::hash::{BuildHasher, RandomState};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, PoisonError};

/// A fault of an index. A node does not notice it, or does not start.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct IndexFault {
    /// The index.
    pub form: IndexForm,
    /// The block that its entry is about: the lowest with a fault.
    pub block: Option<KnownBlock>,
    /// The folder of the index, or a file in it.
    pub file: PathBuf,
    /// What is wrong.
    pub what: String,
    /// The number of faults found in the index.
    pub count: u64,
}

/// What a check of a node's indexes found.
#[derive(Debug, Default)]
pub struct IndexesChecked {
    /// The indexes that are there, with the height of the last block that was compared.
    pub indexes: Vec<(IndexForm, Height)>,
    /// The faults, one for each index; empty if all are right.
    pub faults: Vec<IndexFault>,
    /// What could not be compared, and why.
    pub unchecked: Vec<String>,
}

/// The faults so far, from all threads.
#[derive(Default)]
pub(crate) struct IndexFaults(Mutex<BTreeMap<IndexForm, IndexFault>>);

impl IndexFaults {
    pub(crate) fn add(
        &self,
        form: IndexForm,
        block: Option<KnownBlock>,
        file: &Path,
        what: impl ToString,
    ) {
        let what = what.to_string();
        let fault = IndexFault { form, block, file: file.to_owned(), what, count: 1 };
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match all.get_mut(&form) {
            None => {
                all.insert(form, fault);
            }
            Some(first) => {
                let height = |it: &IndexFault| it.block.map_or(Height::MAX, |block| block.height);
                let count = first.count + 1;
                if height(&fault) < height(first) {
                    *first = fault;
                }
                first.count = count;
            }
        }
    }
}

/// The chain that indexes are compared with.
pub(crate) struct CheckedChain<'a> {
    pub(crate) chain: &'a IndexedChain<'a>,
    /// The heights of blocks but genesis, by file and offset.
    by_place: HashMap<(u32, u32), Height>,
    hasher: RandomState,
    pub(crate) faults: &'a IndexFaults,
}

impl<'a> CheckedChain<'a> {
    fn new(chain: &'a IndexedChain<'a>, faults: &'a IndexFaults) -> Self {
        let places = (1..=chain.headers.tip_height()).map(|height| {
            let place = chain.place(height);
            ((place.file, place.offset), height)
        });
        Self { chain, by_place: places.collect(), hasher: RandomState::new(), faults }
    }

    /// The keyed hash of a row: its name, and the offset of the transaction.
    pub(crate) fn row(&self, name: &[u8], offset: u64) -> u64 {
        self.hasher.hash_one((name, offset))
    }

    pub(crate) fn block(&self, height: Height) -> KnownBlock {
        let hash = self.chain.headers.hash(height).copied().unwrap_or_default();
        KnownBlock { height, hash }
    }

    fn tip(&self) -> Height {
        self.chain.headers.tip_height()
    }

    /// Finds the best block of an index in the chain.
    fn best_block(&self, value: Option<&[u8]>) -> Result<Height, BestError> {
        let value = value.ok_or(BestError::Wrong("it has no best block".to_owned()))?;
        // A version, then the number of hashes.
        let hash = value.get(5..37).and_then(<[u8]>::first_chunk).filter(|_| value[4] > 0);
        let hash =
            hash.ok_or_else(|| BestError::Wrong("its best block is unreadable".to_owned()))?;
        let hash = BlockHash(*hash);
        self.chain.headers.height_of(&hash).ok_or(BestError::Elsewhere(hash))
    }
}

/// Why an index cannot be compared with the chain.
enum BestError {
    Wrong(String),
    /// Its best block is not in the chain.
    Elsewhere(BlockHash),
}

impl BestError {
    /// Adds the fault, or says what is not checked.
    fn tell(
        self,
        form: IndexForm,
        folder: &Path,
        chain: &CheckedChain<'_>,
        unchecked: &mut Vec<String>,
    ) {
        match self {
            Self::Wrong(what) => chain.faults.add(form, None, folder, what),
            Self::Elsewhere(hash) => unchecked.push(format!(
                "{} in {} is at the block {hash}, which is not one of the {} blocks up to the node's coins: start \
                 the node, so that both get to the same block, stop it, and check again",
                form.kind(),
                folder.display(),
                chain.tip() + 1
            )),
        }
    }
}

/// Returns the forms of indexes that a node's folder has. In the folder of txindex either or both may be.
pub fn forms_in(folder: &Path) -> Vec<IndexForm> {
    let is_there = |form: &IndexForm| {
        index_folder(folder, *form).join(form.database()).join("CURRENT").is_file()
    };
    IndexForm::ALL.into_iter().filter(is_there).collect()
}

/// Checks the indexes of a node against its blocks up to `tip` of the request, whose `forms` are those
/// [in the folder](forms_in). `muhash` is that of the coins at this block, if it is proven; without it, the
/// node's coins are read.
///
/// # Errors
///
/// Fails if blocks are missing or damaged, and if the disk fails. A fault of an index is no error.
pub fn check_indexes(
    request: &IndexesRequest<'_>,
    muhash: Option<[u8; 32]>,
) -> Result<IndexesChecked, SyncError> {
    let mut checked = IndexesChecked::default();
    let source = open_blocks(request)?;
    let undo = open_undo(request, &source);
    let undo = undo.or_else(|error| match error.kind() {
        ErrorKind::Usage | ErrorKind::Wrong => {
            checked.unchecked.push(format!("filters and statistics of coins: {error}"));
            Ok(None)
        }
        _ => Err(error),
    })?;
    let chain = &IndexedChain::new(source.chain(), |height| source.place(height).map(Into::into));
    let faults = IndexFaults::default();
    let chain = CheckedChain::new(chain, &faults);
    request.observer.event(Event::Started(INDEX_TABLES));
    let mut found = FoundIndexes::default();
    for form in request.forms {
        found.read(&chain, request.folder, *form, &mut checked)?;
    }
    request.observer.event(Event::Ended { phase: INDEX_TABLES, bytes: 0 });

    request.observer.event(Event::Started(INDEX_BLOCKS));
    let stats = undo.is_some() && found.has_statistics();
    let rows = PassRows { old_tx: None, tx: None, spender: None };
    let pass = IndexPass {
        params: request.params,
        chain: chain.chain,
        source: &source,
        undo: undo.as_deref(),
        rows: &rows,
        filters: None,
        stats,
        numbers: false,
        check: Some((&chain, &found)),
        scratch: request.scratch,
        threads: request.threads,
        read_bytes: 2 * request.buffer_bytes(),
        observer: request.observer,
        interrupt: request.interrupt,
    };
    let (_, parts) = pass.run()?;
    request.observer.event(Event::Ended { phase: INDEX_BLOCKS, bytes: source.bytes_total() });
    if stats {
        let muhash = match muhash {
            Some(muhash) => muhash,
            None => node_coins(&request.folder.join("chainstate"), &|| Ok(()))?.muhash,
        };
        let tip = found.compare_statistics(&chain, parts.stats)?;
        if tip.muhash != muhash && !is_before_repeat(request, &chain) {
            checked.unchecked.push(
                "statistics of coins, and the scripts of spent coins in filters: the node's undo data do not lead to \
                 its coins, so they are wrong, or the coins are"
                    .to_owned(),
            );
        }
    }
    let faults = faults.0.lock().unwrap_or_else(PoisonError::into_inner);
    checked.faults = faults.values().cloned().collect();
    Ok(checked)
}

/// Whether the statistics leave out a coin that is in the set, because a later coinbase will take its place.
fn is_before_repeat(request: &IndexesRequest<'_>, chain: &CheckedChain<'_>) -> bool {
    let tip = chain.tip();
    let left_out = request.params.bip30_unspendable.iter();
    let repeats = request.params.bip30_repeats.iter();
    left_out.filter(|it| it.height <= tip && chain.block(it.height) == **it).count()
        > repeats.filter(|it| it.height <= tip).count()
}

/// A database's fault as a fault of the index.
fn unreadable(
    chain: &CheckedChain<'_>,
    form: IndexForm,
    folder: &Path,
    error: &IndependentReadError,
) {
    chain.faults.add(form, None, folder, error);
}

impl From<IndependentReadError> for IndexesError {
    fn from(error: IndependentReadError) -> Self {
        Self::Damaged(error.to_string())
    }
}

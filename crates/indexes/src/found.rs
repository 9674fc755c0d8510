//! [`FoundIndexes`]: what a node's indexes have, for comparison with its blocks; and the faults ([`IndexFault`]).

mod blocks;
mod coin_stats;
mod filters;
mod rows;

pub(crate) use blocks::{BlockCheck, FoundIndexes};

use crate::chain::IndexedChain;
use crate::error::IndexesError;
use crate::forms::{IndexForm, index_folder};
use crate::locator::{best_block_of, blocks_of, height_in};
use apus_chain::{BlockHash, Height, KnownBlock};
use apus_datadir::{
    BlocksFolder, DatabaseLookUps, IndependentReadError, IndexError, for_each_entry, read_index,
};
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fs;
use std::hash::{BuildHasher, RandomState};
use std::io::ErrorKind;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

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
    /// Returns the faults, one for each index.
    pub(crate) fn all(&self) -> Vec<IndexFault> {
        self.0.lock().values().cloned().collect()
    }

    pub(crate) fn add(
        &self,
        form: IndexForm,
        block: Option<KnownBlock>,
        file: &Path,
        what: impl ToString,
    ) {
        let what = what.to_string();
        let fault = IndexFault { form, block, file: file.to_owned(), what, count: 1 };
        let mut all = self.0.lock();
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
    /// The folders of the node's blocks.
    blocks: &'a BlocksFolder,
    interrupt: &'a AtomicBool,
}

impl<'a> CheckedChain<'a> {
    pub(crate) fn new(
        chain: &'a IndexedChain<'a>,
        faults: &'a IndexFaults,
        blocks: &'a BlocksFolder,
        interrupt: &'a AtomicBool,
    ) -> Self {
        let places = (1..=chain.headers.tip_height()).map(|height| {
            let place = chain.place(height);
            ((place.file, place.offset), height)
        });
        let by_place = places.collect();
        Self { chain, by_place, hasher: RandomState::new(), faults, blocks, interrupt }
    }

    /// Reads all entries of a database, in order, as a node's look-ups find them.
    fn for_each_entry(
        &self,
        folder: &Path,
        mut each: impl FnMut(&[u8], &[u8]),
    ) -> Result<(), FoundError> {
        // Single records are looked up with this reader later. It does not compare the sequence numbers of entries.
        DatabaseLookUps::open(folder)?;
        let mut is_interrupted = false;
        for_each_entry(folder, &mut |key, value| {
            each(key, value);
            is_interrupted = self.interrupt.load(Ordering::Relaxed);
            if is_interrupted { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })?;
        if is_interrupted { Err(FoundError::Run(IndexesError::Interrupted)) } else { Ok(()) }
    }

    /// The keyed hash of a row: its name, and the offset of the transaction.
    pub(crate) fn row(&self, name: &[u8], offset: u64) -> u64 {
        self.hasher.hash_one((name, offset))
    }

    pub(crate) fn block(&self, height: Height) -> KnownBlock {
        let hash = self.chain.headers.hash(height).copied().unwrap_or_default();
        KnownBlock { height, hash }
    }

    pub(crate) fn tip(&self) -> Height {
        self.chain.headers.tip_height()
    }

    /// Finds the best block of an index in the chain.
    fn best_block(&self, value: Option<&[u8]>) -> Result<Height, BestError> {
        let value = value.ok_or(BestError::Wrong("it has no best block".to_owned()))?;
        let hash = best_block_of(value)
            .ok_or_else(|| BestError::Wrong("its best block is unreadable".to_owned()))?;
        self.chain.headers.height_of(&hash).ok_or(BestError::Elsewhere(hash))
    }

    /// Finds the highest block of the chain that an index names beside its best block.
    fn block_below(&self, value: Option<&[u8]>) -> Option<Height> {
        blocks_of(value?)?.iter().find_map(|hash| self.chain.headers.height_of(hash))
    }

    /// Whether the node has a block in its block index, if that can be read.
    fn is_known(&self, hash: &BlockHash) -> bool {
        let found = DatabaseLookUps::open(&self.blocks.index())
            .and_then(|mut index| height_in(&mut index, hash));
        !matches!(found, Ok(None))
    }

    /// The places where the node has blocks that are not of the chain; `None` if its block index is damaged: the audit
    /// reports that by itself.
    fn other_places(&self) -> Result<Option<HashSet<(u32, u32)>>, FoundError> {
        let mut others = HashSet::new();
        let read = read_index(&self.blocks.home, &mut |entry| {
            // Genesis spends nothing.
            let place = entry.data.filter(|_| entry.height > 0);
            if let Some((file, offset)) = place
                && let Ok(offset) = u32::try_from(offset)
                && !self.by_place.contains_key(&(file, offset))
            {
                others.insert((file, offset));
            }
            ControlFlow::Continue(())
        });
        match read.map_err(FoundError::from) {
            Ok(()) => Ok(Some(others)),
            Err(FoundError::Run(error)) => Err(FoundError::Run(error)),
            Err(_) => Ok(None),
        }
    }
}

/// Why a database was not read to its end.
enum FoundError {
    /// The database is faulty. Has the reader's message.
    Fault(String),
    /// The reader refuses it for a reason that is no fault.
    NotRead(String),
    /// The system failed to read, or the user stopped the work.
    Run(IndexesError),
}

impl From<IndependentReadError> for FoundError {
    fn from(error: IndependentReadError) -> Self {
        match error {
            IndependentReadError::Read { .. } => Self::Run(error.into()),
            IndependentReadError::LongLog { .. } => Self::NotRead(error.to_string()),
            error => Self::Fault(error.to_string()),
        }
    }
}

impl From<IndexError> for FoundError {
    fn from(error: IndexError) -> Self {
        match error {
            IndexError::Open { path, source } | IndexError::Read { path, source, .. } => {
                Self::Run(IndexesError::Read { path, source })
            }
            error => Self::Fault(error.to_string()),
        }
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
            Self::Elsewhere(hash) if !chain.is_known(&hash) => {
                let what = format!(
                    "its best block {hash} is not one that the node knows: the node would not start with -{}",
                    form.kind()
                );
                chain.faults.add(form, None, folder, what);
            }
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

/// Returns the forms of indexes that a node's folder has: those whose folder has files, though it may have no database
/// that a node can open. In the folder of txindex either or both may be.
pub fn forms_in(folder: &Path) -> Vec<IndexForm> {
    let depth = |form: &IndexForm| Path::new(form.database()).components().count();
    let is_there = |form: &IndexForm| has_files(&index_folder(folder, *form), depth(form));
    IndexForm::ALL.into_iter().filter(is_there).collect()
}

/// Returns whether a folder, or one of its folders down to a depth, has a file that is more than a trace of an attempt to
/// open a database, or cannot be read.
fn has_files(folder: &Path, depth: usize) -> bool {
    let entries = match fs::read_dir(folder) {
        Ok(entries) => entries,
        Err(error) => return error.kind() != ErrorKind::NotFound,
    };
    entries.into_iter().any(|entry| {
        let Ok(entry) = entry else { return true };
        let path = entry.path();
        match path.is_dir() && depth > 0 {
            true => has_files(&path, depth - 1),
            false => !matches!(entry.file_name().to_str(), Some("LOCK" | "LOG" | "LOG.old")),
        }
    })
}

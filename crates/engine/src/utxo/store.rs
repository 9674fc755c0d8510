//! [`CoinsStore`]: coins on a disk, or wherever they outlast the program.
//!
//! A store is always *at a block*: it holds exactly the coins unspent after it. [`CoinsStore::write`]
//! moves it from one block to another as a whole; a crash leaves it at the old block or the new
//! one. A store knows no rules and no chain.

mod disk;
mod memory;

pub use disk::{DiskOptions, DiskStore, FolderForm, OpenedStore, TreeBatch};
pub use memory::LatencyStore;
pub use memory::MemoryStore;

use crate::coin::CoinBytes;
use crate::connect::UndoBytes;
use apus_chain::{BlockHash, CoinError, Height, KnownBlock, Network, OutPoint};
use std::any::Any;
use std::time::Duration;

/// Why coins could not be read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store is of another chain.
    #[error("{place} is of the {found} chain, not of {wanted}: name another folder")]
    OtherNetwork {
        /// The store.
        place: String,
        /// Its chain.
        found: Network,
        /// The chain asked for.
        wanted: Network,
    },
    /// The store was written by a later version of this program.
    #[error(
        "{place} has format {found}, and this program knows up to {known}: use the version that \
         wrote it, or remove the folder to start anew"
    )]
    Newer {
        /// The store.
        place: String,
        /// Its format.
        found: u32,
        /// The latest format known here.
        known: u32,
    },
    /// Another process has it open.
    #[error("{place} is in use by another process: wait for that one or stop it")]
    InUse {
        /// The store.
        place: String,
    },
    /// The folder has other things in it.
    #[error("{place} is no store of a run: it holds {name}: name an empty folder or a new one")]
    Foreign {
        /// The folder.
        place: String,
        /// A name in it.
        name: String,
    },
    /// Changes did not come in their order: a mistake of the program, not of its data.
    #[error("{place}: the change of coin {outpoint} came out of order, and nothing was written")]
    Unordered {
        /// The store.
        place: String,
        /// The coin.
        outpoint: OutPoint,
    },
    /// A write failed half-way, so what a later one would build on is not known.
    #[error("{place} cannot be written after a write that failed: open it again")]
    Halted {
        /// The store.
        place: String,
    },
    /// The caller wants to give or take no more coins, for a reason of its own.
    #[error("stopped")]
    Stopped,
    /// What was read is not what was written.
    #[error("{place} is damaged ({what}): remove the folder to start anew")]
    Damaged {
        /// The store.
        place: String,
        /// What was found.
        what: String,
    },
    /// A coin that is not in the one form of a coin.
    #[error(
        "{place} is damaged: coin {outpoint} cannot be read ({error}): remove the folder to start anew"
    )]
    Coin {
        /// The store.
        place: String,
        /// The coin.
        outpoint: OutPoint,
        /// What is wrong.
        error: CoinError,
    },
    /// Servers that are away, for as long as they may be: the store has tried again for all that time.
    #[error("{place}: not heard for {} s: {error}", .waited.as_secs())]
    Away {
        /// The store.
        place: String,
        /// For how long.
        waited: Duration,
        /// What was seen last, and what to do.
        error: String,
    },
    /// The system would not read or write.
    #[error("{place}: {error}")]
    Io {
        /// The store.
        place: String,
        /// What it said.
        error: String,
    },
}

impl StoreError {
    /// What the store at `place` has is not what was written.
    pub fn damaged(place: &str, what: impl Into<String>) -> Self {
        Self::Damaged { place: place.to_owned(), what: what.into() }
    }

    /// A look-up came to nothing, in whatever store.
    pub fn look_up(error: impl ToString) -> Self {
        Self::io("the set of coins", error)
    }

    /// The system, a server or the way to it refused.
    pub fn io(place: &str, error: impl ToString) -> Self {
        Self::Io { place: place.to_owned(), error: error.to_string() }
    }
}

/// The coin that the store at `place` has as `bytes`.
pub fn stored_coin(place: &str, outpoint: OutPoint, bytes: &[u8]) -> Result<CoinBytes, StoreError> {
    CoinBytes::read(bytes).map_err(|error| StoreError::Coin {
        place: place.to_owned(),
        outpoint,
        error,
    })
}

/// The error that stands for a panic of a look-up.
pub fn panicked(panic: &(dyn Any + Send)) -> StoreError {
    let said = panic.downcast_ref::<&str>().copied();
    let said = said.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    StoreError::look_up(format!("a look-up panicked: {}", said.unwrap_or("without a message")))
}

/// Takes changed coins one by one: the coin that is there now, or none where one was spent.
pub type EachChange<'a> = dyn FnMut(&OutPoint, Option<&CoinBytes>) -> Result<(), StoreError> + 'a;

/// Takes coins one by one.
pub type EachCoin<'a> = dyn FnMut(&OutPoint, &CoinBytes) -> Result<(), StoreError> + 'a;

/// Coins that changed between two blocks.
pub trait Changes: Sync {
    /// Gives every change to `each`, by ascending outpoint (txid bytes, then vout). No outpoint
    /// comes twice.
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError>;
}

/// Undo data of one block: what it takes to go back to the block before.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoRecord {
    /// The block.
    pub block: KnownBlock,
    /// Its spent coins, encoded.
    pub bytes: UndoBytes,
}

/// Takes the answers to batches one by one: which of them, counted from 0, and its coins in the order in which
/// they were asked for.
pub type EachBatch<'a> = dyn FnMut(usize, Result<Vec<Option<CoinBytes>>, StoreError>) + 'a;

/// One step of a store from the block it is at to another.
#[derive(Clone, Copy)]
pub struct Flush<'a> {
    /// The block that the store is at afterwards.
    pub tip: KnownBlock,
    /// The coins that differ.
    pub changes: &'a dyn Changes,
    /// Undo data of blocks connected since.
    pub undo: &'a [UndoRecord],
    /// Undo data of blocks below this height may be forgotten.
    pub undo_from: Height,
}

impl Flush<'_> {
    /// Gives every change to `each`, for the store at `place`, and refuses those out of their order.
    pub fn for_each(&self, place: &str, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        let mut last = None;
        self.changes.for_each(&mut |outpoint, coin| {
            if last.replace(*outpoint).is_some_and(|last| last >= *outpoint) {
                return Err(StoreError::Unordered { place: place.to_owned(), outpoint: *outpoint });
            }
            each(outpoint, coin)
        })
    }
}

// ---- many look-ups as one: each coin is asked for once, and its answer goes to all that want it ----

/// Asks for each of several coins once, by ascending outpoint, and hands each answer to all that want
/// it.
pub fn each_once<P: Copy>(
    wanted: &mut [(OutPoint, P)],
    ask: impl FnOnce(&[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError>,
    give: impl FnMut(P, Option<CoinBytes>),
) -> Result<(), StoreError> {
    let found = ask(&each_name(wanted))?;
    give_each(wanted, found, give)
}

/// What is to be asked for where all of `wanted` is: each coin once, by ascending outpoint, which is the order
/// of `wanted` afterwards.
pub fn each_name<P: Copy>(wanted: &mut [(OutPoint, P)]) -> Vec<OutPoint> {
    wanted.sort_unstable_by_key(|(outpoint, _)| *outpoint);
    let mut asked: Vec<OutPoint> = wanted.iter().map(|(outpoint, _)| *outpoint).collect();
    asked.dedup();
    asked
}

/// Hands the answers to [`each_name`] of `wanted` to all that want them. Nothing is handed out where there are
/// more or fewer of them.
pub fn give_each<P: Copy>(
    wanted: &[(OutPoint, P)],
    found: Vec<Option<CoinBytes>>,
    mut give: impl FnMut(P, Option<CoinBytes>),
) -> Result<(), StoreError> {
    let names = || wanted.chunk_by(|(a, _), (b, _)| a == b);
    let asked = names().count();
    each_answered(&found, asked)?;
    for (same, coin) in names().zip(found) {
        if let Some(((_, last), others)) = same.split_last() {
            others.iter().for_each(|(_, place)| give(*place, coin.clone()));
            give(*last, coin);
        }
    }
    Ok(())
}

/// Refuses more or fewer answers than look-ups.
pub fn each_answered(found: &[Option<CoinBytes>], asked: usize) -> Result<(), StoreError> {
    match found.len() == asked {
        true => Ok(()),
        false => {
            Err(StoreError::look_up(format!("{} answers came to {asked} look-ups", found.len())))
        }
    }
}

/// Coins that outlast the program.
pub trait CoinsStore: Send + Sync {
    /// The block that the store is at; none where it is new.
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError>;

    /// Looks a coin up. Called by many threads at once, also while [`write`](Self::write) is under
    /// way; then the answer may be the one before or the one after.
    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError>;

    /// Looks several coins up, and gives them in the order of `wanted`. Otherwise as [`get`](Self::get).
    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        wanted.iter().map(|outpoint| self.get(outpoint)).collect()
    }

    /// Looks several batches of coins up, and gives each batch's answer once, as soon as it is there, in any order.
    /// An error is that of its batch alone. Where a store is asked for many things at once, and answers
    /// later, all of them are under way before the first answer is waited for. Otherwise as
    /// [`get_many`](Self::get_many).
    fn get_batches(&self, batches: &[&[OutPoint]], each: &mut EachBatch<'_>) {
        let batches = batches.iter().enumerate();
        batches.for_each(|(number, wanted)| each(number, self.get_many(wanted)));
    }

    /// How many batches [`get_batches`](Self::get_batches) should be given: 1 where each takes as long with
    /// others as alone after them.
    fn batches_at_once(&self) -> usize {
        1
    }

    /// How many coins a caller that wants many should look up with one call: 1 where each costs the
    /// same alone.
    fn at_once(&self) -> usize {
        1
    }

    /// Moves the store to another block, durably and as a whole.
    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError>;

    /// The undo data of a block, if it is there.
    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError>;

    /// Gives every coin to `each`, by ascending outpoint (txid bytes, then vout).
    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError>;
}

//! [`CoinsStore`]: coins on a disk, or in another place that outlasts the program.
//!
//! A store is always *at a block*: it holds exactly the coins that are unspent after it.
//! [`CoinsStore::write`] moves it from one block to another atomically; a crash leaves it at the
//! old block or the new one. A store knows no rules and no chain.

mod disk;
mod memory;

pub use disk::{DiskOptions, DiskStore, FolderForm, OpenedStore, TreeBatch};
pub use memory::MemoryStore;

use crate::coin::CoinBytes;
use crate::connect::UndoBytes;
use apus_chain::{BlockHash, CoinError, Height, KnownBlock, Network, OutPoint};
use std::any::Any;
use std::time::Duration;

/// Why coins could not be read or written.
#[derive(Debug, Clone, thiserror::Error)]
pub enum StoreError {
    /// The store belongs to another chain.
    #[error("{place} belongs to the {found} chain, not to {wanted}: use another folder")]
    OtherNetwork {
        /// The store.
        place: String,
        /// Its chain.
        found: Network,
        /// The requested chain.
        wanted: Network,
    },
    /// A later version of this program wrote the store.
    #[error(
        "{place} has format {found}, but this version of Apus supports only formats up to {known}. Use the version \
         that wrote the folder, or remove the folder to start over"
    )]
    Newer {
        /// The store.
        place: String,
        /// Its format.
        found: u32,
        /// The latest supported format.
        known: u32,
    },
    /// Another process has it open.
    #[error("{place} is in use by another process: stop that process, or wait until it ends")]
    InUse {
        /// The store.
        place: String,
    },
    /// The folder contains other files.
    #[error(
        "{place} is not an Apus store, because it contains {name}: use an empty or a new folder"
    )]
    Foreign {
        /// The folder.
        place: String,
        /// The name of one of them.
        name: String,
    },
    /// Changes came out of order: a bug of the program, not an error in its data.
    #[error("{place}: the change of coin {outpoint} came out of order, and nothing was written")]
    Unordered {
        /// The store.
        place: String,
        /// The coin.
        outpoint: OutPoint,
    },
    /// A write failed halfway, so the base of a later write is unknown.
    #[error("{place}: an earlier write failed, so nothing more can be written. Rerun the command")]
    Halted {
        /// The store.
        place: String,
    },
    /// The caller stopped the transfer of coins, for a reason of its own.
    #[error("stopped")]
    Stopped,
    /// The data read differs from the data written.
    #[error("{place} is damaged ({what}): remove the folder to start over")]
    Damaged {
        /// The store.
        place: String,
        /// The damage.
        what: String,
    },
    /// A stored coin is not in the one valid form.
    #[error(
        "{place} is damaged: coin {outpoint} cannot be read ({error}): remove the folder to start over"
    )]
    Coin {
        /// The store.
        place: String,
        /// The coin.
        outpoint: OutPoint,
        /// The error.
        error: CoinError,
    },
    /// Servers did not answer, although the store retried for the allowed time.
    #[error("{place}: no answer for {} s: {error}", .waited.as_secs())]
    Away {
        /// The store.
        place: String,
        /// How long the store retried.
        waited: Duration,
        /// The last error, and what to do.
        error: String,
    },
    /// The system could not read or write.
    #[error("{place}: {error}")]
    Io {
        /// The store.
        place: String,
        /// The error.
        error: String,
    },
}

impl StoreError {
    /// Returns the error that the store at `place` is damaged.
    pub fn damaged(place: &str, what: impl Into<String>) -> Self {
        Self::Damaged { place: place.to_owned(), what: what.into() }
    }

    /// Returns the error of a failed look-up, in any store.
    pub fn look_up(error: impl ToString) -> Self {
        Self::io("the set of coins", error)
    }

    /// Returns the error of the system, a server or the connection to it.
    pub fn io(place: &str, error: impl ToString) -> Self {
        Self::Io { place: place.to_owned(), error: error.to_string() }
    }
}

/// Reads the coin that the store at `place` has as `bytes`.
pub fn stored_coin(place: &str, outpoint: OutPoint, bytes: &[u8]) -> Result<CoinBytes, StoreError> {
    CoinBytes::read(bytes).map_err(|error| StoreError::Coin {
        place: place.to_owned(),
        outpoint,
        error,
    })
}

/// Returns the error that represents a panic in a look-up.
pub fn panicked(panic: &(dyn Any + Send)) -> StoreError {
    let message = panic.downcast_ref::<&str>().copied();
    let message = message.or_else(|| panic.downcast_ref::<String>().map(String::as_str));
    StoreError::look_up(format!("a look-up panicked: {}", message.unwrap_or("without a message")))
}

/// Receives changed coins one by one: the coin that now exists, or `None` if one was spent.
pub type EachChange<'a> = dyn FnMut(&OutPoint, Option<&CoinBytes>) -> Result<(), StoreError> + 'a;

/// Receives coins one by one.
pub type EachCoin<'a> = dyn FnMut(&OutPoint, &CoinBytes) -> Result<(), StoreError> + 'a;

/// Coins that changed between two blocks.
pub trait Changes: Sync {
    /// Passes every change to `each`, by ascending outpoint (txid bytes, then vout). No outpoint
    /// occurs twice.
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError>;
}

/// Undo data of one block, for disconnecting it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UndoRecord {
    /// The block.
    pub block: KnownBlock,
    /// Its spent coins, encoded.
    pub bytes: UndoBytes,
}

/// The name, among undo data, of what a program wants to keep with the coins: no block has this hash, and no flush
/// deletes undo data of this height.
pub const OWN_RECORD: KnownBlock = KnownBlock { height: Height::MAX, hash: BlockHash::ZERO };

/// Receives the answers to batches one by one: the index of the batch, and its coins in the order
/// of the request.
pub type EachBatch<'a> = dyn FnMut(usize, Result<Vec<Option<CoinBytes>>, StoreError>) + 'a;

/// A step of a store from its current block to another.
#[derive(Clone, Copy)]
pub struct Flush<'a> {
    /// The block that the store is at afterwards.
    pub tip: KnownBlock,
    /// The coins that differ.
    pub changes: &'a dyn Changes,
    /// Undo data of the blocks connected since.
    pub undo: &'a [UndoRecord],
    /// Undo data of blocks below this height may be deleted.
    pub undo_from: Height,
}

impl Flush<'_> {
    /// Passes every change to `each`, for the store at `place`, and rejects changes out of order.
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

// ---- batched look-ups: each coin is requested once, and its answer goes to all that want it ----

/// Requests each of several coins once, by ascending outpoint, and passes each answer to all that
/// want it.
pub fn each_once<P: Copy>(
    wanted: &mut [(OutPoint, P)],
    ask: impl FnOnce(&[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError>,
    give: impl FnMut(P, Option<CoinBytes>),
) -> Result<(), StoreError> {
    let found = ask(&each_name(wanted))?;
    give_each(wanted, found, give)
}

/// Sorts `wanted` by outpoint and returns the coins to request: each once, in that order.
pub fn each_name<P: Copy>(wanted: &mut [(OutPoint, P)]) -> Vec<OutPoint> {
    wanted.sort_unstable_by_key(|(outpoint, _)| *outpoint);
    let mut asked: Vec<OutPoint> = wanted.iter().map(|(outpoint, _)| *outpoint).collect();
    asked.dedup();
    asked
}

/// Passes the answers to [`each_name`] of `wanted` to all that want them. Passes nothing if the
/// number of answers is wrong.
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

/// Fails unless there are as many answers as look-ups.
pub fn each_answered(found: &[Option<CoinBytes>], asked: usize) -> Result<(), StoreError> {
    match found.len() == asked {
        true => Ok(()),
        false => Err(StoreError::look_up(format!("{} answers for {asked} look-ups", found.len()))),
    }
}

/// Coins that outlast the program.
pub trait CoinsStore: Send + Sync {
    /// Returns the block that the store is at; `None` if it is new.
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError>;

    /// Looks a coin up. Many threads may call this at once, also during a [`write`](Self::write);
    /// then the answer may be the old or the new one.
    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError>;

    /// Looks several coins up, and returns them in the order of `wanted`. Otherwise like
    /// [`get`](Self::get).
    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        wanted.iter().map(|outpoint| self.get(outpoint)).collect()
    }

    /// Looks several batches of coins up, and passes each batch's answer on once, as soon as it is
    /// available, in any order. An error affects only its batch. A store that answers many requests
    /// with delay starts all of them before it waits for the first answer. Otherwise like
    /// [`get_many`](Self::get_many).
    fn get_batches(&self, batches: &[&[OutPoint]], each: &mut EachBatch<'_>) {
        let batches = batches.iter().enumerate();
        batches.for_each(|(number, wanted)| each(number, self.get_many(wanted)));
    }

    /// Returns how many batches [`get_batches`](Self::get_batches) should be given: 1 if batches
    /// take as long together as one by one.
    fn batches_at_once(&self) -> usize {
        1
    }

    /// Returns how many coins a caller should look up in one call: 1 if batching saves nothing.
    fn at_once(&self) -> usize {
        1
    }

    /// Moves the store to another block, durably and atomically.
    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError>;

    /// Returns the undo data of a block, if it exists.
    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError>;

    /// Passes every coin to `each`, by ascending outpoint (txid bytes, then vout).
    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError>;
}

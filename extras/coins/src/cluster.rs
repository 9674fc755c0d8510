//! [`ClusterStore`]: coins on Redis Cluster.
//!
//! Coins lie in *buckets*, hashes of Redis that each have the coins of a range of txids. So a flush and
//! a look-up of many coins are a few commands for each bucket, in pipelines to all servers at once, and
//! all coins come in the order of their names though no server keeps an order. What is under which key:
//! `docs/formats/remote-coins.md`.
//!
//! # A flush is one step
//!
//! Redis Cluster has no transaction over several keys on several servers. So a flush is written ahead:
//!
//! 1. its changes go into *chunks*, under names that no other writer uses;
//! 2. one command puts the new tip, and which chunks are to be applied, into the *record*, if that is
//!    still what this writer knows. From here on the store is at the new block;
//! 3. the chunks are applied to the buckets;
//! 4. the record forgets the chunks, and they go.
//!
//! Who opens a store whose record names chunks does 3 before anything else. A chunk says what is there
//! afterwards, not what to do, so to apply it twice is to apply it once.
//!
//! # One writer
//!
//! A *lease* that must be renewed keeps a second writer out, and tells it so. Safety does not rest on
//! it, since a writer may be stopped for longer than any lease and go on where it was. Who opens the store
//! makes the record its own (`Record::claim`), so that step 2 of any writer before fails; only then
//! it removes what they wrote ahead. And each flush has a number, the *epoch*: a bucket takes no
//! change of an epoch older than that of the last change that it took.

mod apply;
mod buckets;
mod connections;
mod keys;
mod lease;
mod line;
mod reader;
mod record;
mod scan;
mod servers;
mod undo;
mod wal;

pub(crate) use buckets::Buckets;
pub(crate) use line::Answers;
pub(crate) use reader::ClusterReader;
pub(crate) use record::Record;
pub(crate) use wal::changes_as_written;

use crate::known::Known;
use crate::place::{ClusterPlace, Password};
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint};
use apus_engine::utxo::store::{EachBatch, EachCoin, Flush};
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};
use connections::Connections;
use keys::Keys;
use lease::Lease;
use record::Pending;
use std::sync::{Arc, PoisonError, RwLock};
use std::time::Duration;
use wal::{Change, ChunkWriter, Token};

/// How many coins are worth one way to the servers and back.
const AT_ONCE: usize = 100;

/// How many batches are worth one thread and its connections: half of what a block has, so that two read its answers.
const BATCHES_AT_ONCE: usize = 8;

/// What may be chosen of a store.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The servers' password, if they want one.
    pub password: Option<Password>,
    /// How many bits of a txid choose the bucket, 4 to 16; a store that is there has its own.
    pub bucket_bits: u8,
    /// How long a writer that is gone keeps others out.
    pub lease: Duration,
    /// For how long servers may be away, or silent, before that is an error.
    pub patience: Duration,
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            password: None,
            bucket_bits: 16,
            lease: Duration::from_secs(10),
            patience: Duration::from_secs(60),
        }
    }
}

/// Coins on Redis Cluster.
pub struct ClusterStore {
    // Fields are dropped in this order: others are let in when nothing is written any more.
    connections: Arc<Connections>,
    keys: Keys,
    buckets: Buckets,
    record: Known<Record>,
    /// Held for writing while chunks are applied, so that no list of all coins is of two blocks.
    moving: RwLock<()>,
    lease: Lease,
}

impl std::fmt::Debug for ClusterStore {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("ClusterStore").field("place", &self.place()).finish_non_exhaustive()
    }
}

impl ClusterStore {
    /// Opens the store at a place, for writing, or makes one where there is none. Brings a flush to its
    /// end whose writer did not come to it. Waits for as long as the lease of a writer that is gone
    /// lasts.
    pub fn open(
        place: &ClusterPlace,
        network: Network,
        options: &ClusterOptions,
    ) -> Result<Self, StoreError> {
        let connections = Arc::new(Connections::open(place, options)?);
        connections.expect_durable()?;
        let keys = Keys::new(&place.name);
        // What is not ours is not even locked.
        Record::read(&connections, &keys, network)?;
        let lease = Lease::take(&connections, &keys, options.lease)?;
        let record = Record::read_or_make(&connections, &keys, network, options.bucket_bits)?;
        let buckets = Buckets::new(record.bucket_bits);
        connections.run(apply::load)?;
        if let Some(pending) = record.pending {
            apply::chunks(&connections.apart(), &keys, buckets, record.epoch, &pending)?;
        }
        // Before anything goes that a writer before may still refer to.
        let record = record.claim(&connections, &keys)?;
        wal::remove_leftovers(&connections, &keys)?;
        let (record, moving) = (Known::new(connections.place(), record), RwLock::new(()));
        Ok(Self { connections, keys, buckets, record, moving, lease })
    }

    fn place(&self) -> &str {
        self.connections.place()
    }

    fn damaged(&self, what: impl Into<String>) -> StoreError {
        StoreError::Damaged { place: self.place().to_owned(), what: what.into() }
    }

    /// Step 1: everything of a flush into chunks. How many there are.
    fn write_ahead(
        &self,
        to: &Connections,
        token: &Token,
        flush: &Flush<'_>,
    ) -> Result<u32, StoreError> {
        let write = |number: u32, chunk: &[u8]| {
            self.lease.expect_held()?;
            wal::write(to, &self.keys, token, number, chunk)
        };
        let mut chunks = ChunkWriter::new(write);
        let mut last = None;
        flush.changes.for_each(&mut |outpoint, coin| {
            if last.replace(*outpoint).is_some_and(|last| last >= *outpoint) {
                let place = self.place().to_owned();
                return Err(StoreError::Unordered { place, outpoint: *outpoint });
            }
            chunks.put(Change::Coin(*outpoint, coin.map(CoinBytes::as_bytes)))
        })?;
        undo::changes(&self.connections, &self.keys, flush, &mut |change| chunks.put(change))?;
        chunks.finish()
    }
}

impl CoinsStore for ClusterStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.record.get().map(|record| record.tip)
    }

    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.get_many(std::slice::from_ref(outpoint))?.pop().flatten())
    }

    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        buckets::look_up_one(&self.connections, &self.keys, self.buckets, wanted)
    }

    fn get_batches(&self, batches: &[&[OutPoint]], each: &mut EachBatch<'_>) {
        buckets::look_up(&self.connections, &self.keys, self.buckets, batches, each);
    }

    fn batches_at_once(&self) -> usize {
        BATCHES_AT_ONCE
    }

    fn at_once(&self) -> usize {
        AT_ONCE
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        let mut writing = self.record.write()?;
        let record = writing.before;
        self.lease.expect_held()?;
        let token = Token::random(self.place())?;
        let apart = self.connections.apart();
        wal::announce(&self.connections, &self.keys, &token)?;
        let chunks = match self.write_ahead(&apart, &token, flush) {
            Ok(chunks) => chunks,
            Err(error) => {
                // What stays is removed when the store is opened next.
                let _ = wal::remove(&self.connections, &self.keys, &token);
                return Err(error);
            }
        };
        let pending = Pending { token, chunks };
        let epoch = record.epoch + 1;
        let next = Record { epoch, tip: Some(flush.tip), pending: Some(pending), ..record };
        writing.is_open();
        let _moving = self.moving.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = record.replace_by(&next, &self.connections, &self.keys) {
            // Who took the store over did not see what came after; other errors may hide that it was recorded.
            if matches!(error, StoreError::InUse { .. }) {
                let _ = wal::remove_all(&self.connections, &self.keys, &token, chunks);
            }
            return Err(error);
        }
        apply::chunks(&apart, &self.keys, self.buckets, epoch, &pending)?;
        let done = Record { pending: None, ..next };
        next.replace_by(&done, &self.connections, &self.keys)?;
        writing.ends(done);
        // The store is at its block, with or without what is left of the way there.
        let _ = wal::remove_all(&self.connections, &self.keys, &token, chunks);
        Ok(())
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        undo::read(&self.connections.apart(), &self.keys, block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        let _still = self.moving.read().unwrap_or_else(PoisonError::into_inner);
        scan::coins(&self.connections.apart(), &self.keys, self.buckets, &mut |outpoint, bytes| {
            each(outpoint, &buckets::coin(self.place(), *outpoint, bytes)?)
        })
        .map_err(|error| match error {
            scan::ScanError::Store(error) => error,
            scan::ScanError::Strange(what) => self.damaged(what),
        })
    }
}

#[cfg(test)]
mod tests;

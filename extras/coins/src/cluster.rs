//! [`ClusterStore`]: coins on Redis Cluster.
//!
//! Coins lie in *buckets*, hashes of Redis that each have the coins of a range of txids. So a flush and
//! a look-up of many coins are a few commands for each bucket, in pipelines to all servers at once, and
//! all coins come in the order of their names though no server keeps an order. What is under which key:
//! `docs/remote-coins.md`.
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
//! makes the record its own (`ClusterRecord::claim`), so that step 2 of any writer before fails; only then
//! it removes what they wrote ahead. And each flush has a number, the *epoch*: a bucket takes no
//! change of an epoch older than that of the last change that it took.

mod apply;
mod buckets;
mod connections;
mod line;
mod record;
mod scan;
mod servers;
#[cfg(test)]
mod tests;
mod undo;
mod wal;

use crate::store::{CoinsAtTip, KnownRecord, READ_AT_ONCE, RandomId, no_store};
use crate::url::{ClusterUrl, Password};
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint};
use apus_engine::utxo::store::{EachBatch, EachCoin, Flush, stored_coin};
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};
use buckets::Buckets;
use connections::ClusterConnections;
use record::{ClusterRecord, PendingFlush};
use redis::{RedisResult, cmd};
use servers::Servers;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, PoisonError, RwLock};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use wal::{ChunkWriter, StoreChange};

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
    connections: Arc<ClusterConnections>,
    buckets: Buckets,
    record: KnownRecord<ClusterRecord>,
    /// Held for writing while chunks are applied, so that no list of all coins is of two blocks.
    moving: RwLock<()>,
    lease: ClusterLease,
}

impl ClusterStore {
    /// Opens the store at a place, for writing, or makes one where there is none. Brings a flush to its
    /// end whose writer did not come to it. Waits for as long as the lease of a writer that is gone
    /// lasts.
    pub fn open(
        place: &ClusterUrl,
        network: Network,
        options: &ClusterOptions,
    ) -> Result<Self, StoreError> {
        let connections = Arc::new(ClusterConnections::open(place, options)?);
        connections.expect_durable()?;
        // What is not ours is not even locked.
        ClusterRecord::read(&connections, network)?;
        let lease = ClusterLease::take(&connections, options.lease)?;
        let record = ClusterRecord::read_or_make(&connections, network, options.bucket_bits)?;
        let buckets = Buckets::new(record.bucket_bits);
        connections.run(apply::load)?;
        if let Some(pending) = record.pending {
            apply::chunks(&connections.apart(), buckets, record.epoch, &pending)?;
        }
        // Before anything goes that a writer before may still refer to.
        let record = record.claim(&connections)?;
        wal::remove_leftovers(&connections)?;
        let (record, moving) = (KnownRecord::new(connections.place(), record), RwLock::new(()));
        Ok(Self { connections, buckets, record, moving, lease })
    }

    fn place(&self) -> &str {
        self.connections.place()
    }

    /// Step 1: everything of a flush into chunks. How many there are.
    fn write_ahead(
        &self,
        to: &ClusterConnections,
        token: &RandomId,
        flush: &Flush<'_>,
    ) -> Result<u32, StoreError> {
        let write = |number: u32, chunk: &[u8]| {
            self.lease.expect_held()?;
            wal::write(to, token, number, chunk)
        };
        let mut chunks = ChunkWriter::new(write);
        flush.for_each(self.place(), &mut |outpoint, coin| {
            chunks.put(StoreChange::Coin(*outpoint, coin.map(CoinBytes::as_bytes)))
        })?;
        undo::changes(&self.connections, flush, &mut |change| chunks.put(change))?;
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
        buckets::look_up_one(&self.connections, self.buckets, wanted)
    }

    fn get_batches(&self, batches: &[&[OutPoint]], each: &mut EachBatch<'_>) {
        buckets::look_up(&self.connections, self.buckets, batches, each);
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
        let token = RandomId::random(self.place())?;
        let apart = self.connections.apart();
        wal::announce(&self.connections, &token)?;
        let chunks = match self.write_ahead(&apart, &token, flush) {
            Ok(chunks) => chunks,
            Err(error) => {
                // What stays is removed when the store is opened next.
                let _ = wal::remove(&self.connections, &token);
                return Err(error);
            }
        };
        let pending = PendingFlush { token, chunks };
        let epoch = record.epoch + 1;
        let next = ClusterRecord { epoch, tip: Some(flush.tip), pending: Some(pending), ..record };
        writing.is_open();
        let _moving = self.moving.write().unwrap_or_else(PoisonError::into_inner);
        if let Err(error) = record.replace_by(&next, &self.connections) {
            // Who took the store over did not see what came after; other errors may hide that it was recorded.
            if matches!(error, StoreError::InUse { .. }) {
                let _ = wal::remove_all(&self.connections, &token, chunks);
            }
            return Err(error);
        }
        apply::chunks(&apart, self.buckets, epoch, &pending)?;
        let done = ClusterRecord { pending: None, ..next };
        next.replace_by(&done, &self.connections)?;
        writing.ends(done);
        // The store is at its block, with or without what is left of the way there.
        let _ = wal::remove_all(&self.connections, &token, chunks);
        Ok(())
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        undo::read(&self.connections.apart(), block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        let _still = self.moving.read().unwrap_or_else(PoisonError::into_inner);
        scan::coins(&self.connections.apart(), self.buckets, &mut |outpoint, bytes| {
            each(outpoint, &stored_coin(self.place(), *outpoint, bytes)?)
        })
    }
}

/// How often it is looked whether a flush is over.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Reads a store that another writes.
pub(crate) struct ClusterReader {
    connections: ClusterConnections,
    network: Network,
    patience: Duration,
}

impl ClusterReader {
    pub(crate) fn open(
        place: &ClusterUrl,
        network: Network,
        options: &ClusterOptions,
    ) -> Result<Self, StoreError> {
        let connections = ClusterConnections::open(place, options)?;
        Ok(Self { connections, network, patience: options.patience })
    }

    pub(crate) fn look_up(&self, wanted: &[OutPoint]) -> Result<CoinsAtTip, StoreError> {
        let place = self.connections.place();
        let started = Instant::now();
        loop {
            let before = self.record()?.ok_or_else(|| no_store(place))?;
            let tip = before.tip.ok_or_else(|| no_store(place))?;
            // While chunks are applied, some buckets are of one block and some of another.
            if before.pending.is_none() {
                let mut coins = Vec::with_capacity(wanted.len());
                let buckets = Buckets::new(before.bucket_bits);
                for some in wanted.chunks(READ_AT_ONCE) {
                    coins.extend(buckets::look_up_one(&self.connections, buckets, some)?);
                }
                if self.record()? == Some(before) {
                    return Ok(CoinsAtTip { tip, coins });
                }
            }
            if started.elapsed() > self.patience {
                return Err(StoreError::io(
                    place,
                    "it is between two blocks: wait for its writer, or have apus sync go on where \
                     that one was stopped",
                ));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn record(&self) -> Result<Option<ClusterRecord>, StoreError> {
        ClusterRecord::read(&self.connections, self.network)
    }
}

/// How often a lease that another holds is looked at.
const LOOK: Duration = Duration::from_millis(50);

/// Lets it last for longer where it is still this writer's, or there is none.
const RENEW: &str = "\
local there = redis.call('GET', KEYS[1])
if there and there ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1";

const GIVE_BACK: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// What the writer and the thread that renews share.
struct LeaseState {
    connections: Arc<ClusterConnections>,
    key: String,
    token: RandomId,
    lasts: Duration,
    lost: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

/// Says that a writer is there, for as long as it renews it. Given back as it is dropped.
///
/// It is for people: a second writer learns that there is one, and does no work in vain. What keeps the
/// coins right where a lease failed is told above.
struct ClusterLease {
    shared: Arc<LeaseState>,
    thread: Option<JoinHandle<()>>,
}

impl ClusterLease {
    /// Takes it, after waiting as long as it may take for one to go that is not renewed any more.
    fn take(connections: &Arc<ClusterConnections>, lasts: Duration) -> Result<Self, StoreError> {
        let place = || connections.place().to_owned();
        let (token, started) = (RandomId::random(connections.place())?, Instant::now());
        let shared = Arc::new(LeaseState {
            connections: Arc::clone(connections),
            key: connections.keys.lease(),
            token,
            lasts,
            lost: AtomicBool::new(false),
            ended: Mutex::new(false),
            end: Condvar::new(),
        });
        while !connections.run(|to| shared.renew(to))? {
            // A little more than it lasts: clocks differ.
            if started.elapsed() > lasts + lasts / 4 {
                return Err(StoreError::InUse { place: place() });
            }
            thread::sleep(LOOK.min(lasts));
        }
        let renewing = Arc::clone(&shared);
        let thread = thread::Builder::new().name("coins-lease".to_owned());
        let thread = thread.spawn(move || renewing.serve()).map_err(|error| {
            StoreError::io(connections.place(), format!("cannot start a thread: {error}"))
        })?;
        Ok(Self { shared, thread: Some(thread) })
    }

    /// Fails where another writer has it.
    fn expect_held(&self) -> Result<(), StoreError> {
        if self.shared.lost.load(Ordering::Relaxed) {
            return Err(StoreError::InUse { place: self.shared.connections.place().to_owned() });
        }
        Ok(())
    }
}

impl LeaseState {
    /// Whether it is this writer's for its time from now on.
    fn renew(&self, to: &mut Servers) -> RedisResult<bool> {
        let mut renew = cmd("EVAL");
        renew.arg(RENEW).arg(1).arg(&self.key).arg(&self.token.0);
        let renewed: u8 = to.ask(renew.arg(self.lasts.as_millis().max(1) as u64))?;
        Ok(renewed == 1)
    }

    fn serve(&self) {
        let every = self.lasts / 3;
        let mut ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        loop {
            let waited = self.end.wait_timeout_while(ended, every, |ended| !*ended);
            ended = waited.unwrap_or_else(PoisonError::into_inner).0;
            if *ended {
                return;
            }
            drop(ended);
            // What the servers do not answer decides nothing: a write would fail, too. The next time
            // comes soon enough to try again.
            if matches!(self.connections.once(every, |to| self.renew(to)), Ok(false)) {
                self.lost.store(true, Ordering::Relaxed);
                return;
            }
            ended = self.ended.lock().unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for ClusterLease {
    fn drop(&mut self) {
        *self.shared.ended.lock().unwrap_or_else(PoisonError::into_inner) = true;
        self.shared.end.notify_all();
        if let Some(thread) = self.thread.take() {
            // Nothing in it panics.
            let _ = thread.join();
        }
        // Where that fails it goes by itself.
        let _ = self.shared.connections.once(self.shared.lasts, |to| {
            let mut give_back = cmd("EVAL");
            give_back.arg(GIVE_BACK).arg(1).arg(&self.shared.key).arg(&self.shared.token.0);
            to.ask::<()>(&give_back)
        });
    }
}

/// What is read of a cluster's servers and written there, as functions of bytes: for those who try what
/// readers make of any bytes.
pub mod stored {
    use super::line::ServerAnswers;
    use super::{Buckets, ClusterRecord, wal};

    /// Puts the digest behind bytes that both records and chunks end with.
    pub fn sealed(bytes: &[u8]) -> Vec<u8> {
        let mut sealed = bytes.to_vec();
        wal::seal(&mut sealed);
        sealed
    }

    /// A record as it is written, where bytes are one.
    pub fn record(bytes: &[u8]) -> Option<Vec<u8>> {
        ClusterRecord::as_written(bytes)
    }

    /// A chunk as it is written, where bytes are one.
    pub fn chunk(bytes: &[u8]) -> Option<Vec<u8>> {
        wal::changes_as_written(bytes).map(|changes| sealed(&changes))
    }

    /// The field of a coin as it is written, where one of a bucket is a coin's. So many bits choose the bucket,
    /// 4 to 16.
    pub fn field(bits: u8, bucket: u16, field: &[u8]) -> Option<Vec<u8>> {
        let buckets = Buckets::new(bits.clamp(4, 16));
        let bucket = bucket >> (16 - bits.clamp(4, 16));
        let outpoint = buckets.outpoint(bucket, field)?;
        (buckets.of(&outpoint.txid) == bucket).then(|| buckets.field(&outpoint))
    }

    /// How many answers of a server bytes are, one after the other.
    pub fn answers(bytes: &[u8]) -> usize {
        let mut answers = ServerAnswers::new(bytes);
        std::iter::from_fn(|| answers.next().ok()).count()
    }
}

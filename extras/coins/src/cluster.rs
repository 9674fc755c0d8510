//! [`ClusterStore`]: coins on Redis Cluster.
//!
//! Coins are kept in *buckets*: Redis hashes that each hold the coins of a range of txids. So a flush or a
//! large look-up takes only a few commands per bucket, pipelined to all servers at once. All coins can be
//! listed in the order of their names, although no server keeps an order. `docs/remote-coins.md` lists the
//! keys.
//!
//! # A flush is atomic
//!
//! Redis Cluster has no transactions over several keys on several servers. So a flush is written ahead:
//!
//! 1. Its changes are written to *chunks*, under names that no other writer uses.
//! 2. One command puts the new tip, and the chunks to apply, into the *record*, provided that the record is
//!    still the one this writer knows. From here on the store is at the new block.
//! 3. The chunks are applied to the buckets.
//! 4. The record drops the chunks, and they are deleted.
//!
//! A writer that opens a store whose record names chunks first does step 3. A chunk states resulting values,
//! not operations, so applying it twice has the same effect as once.
//!
//! The first flush of a store skips steps 1 and 4, because there is nothing to lose yet (`fill`).
//!
//! # One writer
//!
//! A *lease*, which must be renewed, keeps a second writer out and lets it report why. Safety does not depend
//! on the lease, because a writer may be stopped for longer than any lease and then continue. A writer that
//! opens the store replaces the record (`ClusterRecord::claim`), so that step 2 of any earlier writer fails;
//! only then it deletes what they wrote ahead. Also, each flush has a number, the *epoch*: a bucket rejects
//! changes of an epoch older than its last change.

mod apply;
mod buckets;
mod connections;
#[cfg(test)]
pub(crate) mod fake;
mod fill;
mod line;
mod record;
mod scan;
mod servers;
#[cfg(test)]
mod tests;
mod undo;
mod wal;

use crate::store::{CoinsAtTip, KnownRecord, READ_AT_ONCE, RandomId, RecordWrite, no_store};
use crate::url::{ClusterUrl, Password};
use apus_chain::{BlockHash, KnownBlock, Network, OutPoint};
use apus_engine::utxo::store::{EachBatch, EachCoin, Flush, stored_coin};
use apus_engine::utxo::{CoinBytes, CoinsStore, StoreError};
use buckets::Buckets;
use connections::ClusterConnections;
use parking_lot::{Condvar, Mutex, RwLock};
use record::{ClusterRecord, PendingFlush};
use redis::{RedisResult, cmd};
use servers::Servers;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use wal::{ChunkWriter, StoreChange};

/// How many coins justify a round trip to the servers.
const AT_ONCE: usize = 100;

/// How many batches justify one thread and its connections: half of a block's batches, so that two threads
/// read its answers.
const BATCHES_AT_ONCE: usize = 8;

/// Options of a store.
#[derive(Debug, Clone)]
pub struct ClusterOptions {
    /// The servers' password, if they require one.
    pub password: Option<Password>,
    /// How many bits of a txid select the bucket, 4 to 16. An existing store keeps its own number.
    pub bucket_bits: u8,
    /// How long a vanished writer keeps others out.
    pub lease: Duration,
    /// How long servers may be unavailable or silent before that is an error.
    pub patience: Duration,
    /// Receives what could not be checked.
    pub notice: fn(&str),
}

impl Default for ClusterOptions {
    fn default() -> Self {
        Self {
            password: None,
            bucket_bits: 16,
            lease: Duration::from_secs(10),
            patience: Duration::from_secs(60),
            notice: |_| (),
        }
    }
}

/// A coin store on Redis Cluster.
pub struct ClusterStore {
    // Fields are dropped in this order, so that others are let in only when nothing is being written.
    connections: Arc<ClusterConnections>,
    buckets: Buckets,
    record: KnownRecord<ClusterRecord>,
    /// Held exclusively while chunks are applied, so that no listing mixes two blocks.
    moving: RwLock<()>,
    lease: ClusterLease,
}

impl ClusterStore {
    /// Opens a store for writing, or creates it. Completes the flush of a writer that stopped in the middle.
    /// Waits for a vanished writer's lease to expire.
    pub fn open(
        place: &ClusterUrl,
        network: Network,
        options: &ClusterOptions,
    ) -> Result<Self, StoreError> {
        let connections = Arc::new(ClusterConnections::open(place, options)?);
        connections.expect_durable(options.notice)?;
        // Check first, so that a foreign store is not even locked.
        ClusterRecord::read(&connections, network)?;
        let lease = ClusterLease::take(&connections, options.lease)?;
        let record = ClusterRecord::read_or_make(&connections, network, options.bucket_bits)?;
        let buckets = Buckets::new(record.bucket_bits);
        connections.run(apply::load)?;
        let record = match record.pending {
            Some(pending) if pending.chunks == fill::FILLING => fill::empty(&connections, record)?,
            Some(pending) => {
                apply::chunks(&connections.apart(), buckets, record.epoch, &pending)?;
                record
            }
            None => record,
        };
        // Claim the record before deleting anything that an earlier writer may still refer to.
        let record = record.claim(&connections)?;
        wal::remove_leftovers(&connections)?;
        let (record, moving) = (KnownRecord::new(connections.place(), record), RwLock::new(()));
        Ok(Self { connections, buckets, record, moving, lease })
    }

    fn place(&self) -> &str {
        self.connections.place()
    }

    /// Writes the first flush.
    fn fill(
        &self,
        mut writing: RecordWrite<'_, ClusterRecord>,
        flush: &Flush<'_>,
    ) -> Result<(), StoreError> {
        let (before, epoch) = (writing.before, writing.before.epoch + 1);
        let pending = Some(fill::pending(self.place())?);
        let begun = ClusterRecord { epoch, pending, ..before };
        writing.is_open();
        let _moving = self.moving.write();
        before.replace_by(&begun, &self.connections)?;
        let apart = self.connections.apart();
        let expect = || self.lease.expect_held();
        let to = (&apart, &*self.connections);
        if let Err(error) = fill::fill(to, self.buckets, epoch, flush, &expect) {
            // If this fails, too, the next writer empties the store.
            if let Ok(emptied) = fill::empty(&self.connections, begun) {
                writing.ends(emptied);
            }
            return Err(error);
        }
        let done = ClusterRecord { tip: Some(flush.tip), pending: None, ..begun };
        begun.replace_by(&done, &self.connections)?;
        writing.ends(done);
        Ok(())
    }

    /// Step 1: writes a flush into chunks. Returns how many there are.
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
        if record.tip.is_none() {
            return self.fill(writing, flush);
        }
        let token = RandomId::random(self.place())?;
        let apart = self.connections.apart();
        wal::announce(&self.connections, &token)?;
        let chunks = match self.write_ahead(&apart, &token, flush) {
            Ok(chunks) => chunks,
            Err(error) => {
                // Leftovers are removed when the store is next opened.
                let _ = wal::remove(&self.connections, &token);
                return Err(error);
            }
        };
        let pending = PendingFlush { token, chunks };
        let epoch = record.epoch + 1;
        let next = ClusterRecord { epoch, tip: Some(flush.tip), pending: Some(pending), ..record };
        writing.is_open();
        let _moving = self.moving.write();
        if let Err(error) = record.replace_by(&next, &self.connections) {
            // If another writer took the store over, it did not see these chunks. After other errors, the
            // record may name them.
            if matches!(error, StoreError::InUse { .. }) {
                let _ = wal::remove_all(&self.connections, &token, chunks);
            }
            return Err(error);
        }
        apply::chunks(&apart, self.buckets, epoch, &pending)?;
        let done = ClusterRecord { pending: None, ..next };
        next.replace_by(&done, &self.connections)?;
        writing.ends(done);
        // The store is at its block, whether the leftovers are removed or not.
        let _ = wal::remove_all(&self.connections, &token, chunks);
        Ok(())
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        undo::read(&self.connections.apart(), block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        let _still = self.moving.read();
        scan::coins(&self.connections.apart(), self.buckets, &mut |outpoint, bytes| {
            each(outpoint, &stored_coin(self.place(), *outpoint, bytes)?)
        })
    }
}

/// How often to check whether a flush is over.
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// Reads a store while another process writes it.
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

    /// Fails if there is no store.
    pub(crate) fn expect_store(&self) -> Result<(), StoreError> {
        self.record()?.map(drop).ok_or_else(|| no_store(self.connections.place()))
    }

    pub(crate) fn look_up(&self, wanted: &[OutPoint]) -> Result<CoinsAtTip, StoreError> {
        let place = self.connections.place();
        let started = Instant::now();
        loop {
            let before = self.record()?.ok_or_else(|| no_store(place))?;
            let tip = before.tip.ok_or_else(|| no_store(place))?;
            // While chunks are applied, buckets may belong to different blocks.
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
                    "the store is between two blocks: wait until its writer is done, or rerun `apus sync` to \
                     complete an interrupted flush",
                ));
            }
            thread::sleep(LOOK_AGAIN);
        }
    }

    fn record(&self) -> Result<Option<ClusterRecord>, StoreError> {
        ClusterRecord::read(&self.connections, self.network)
    }
}

/// How often to check a lease that another writer holds.
const LOOK: Duration = Duration::from_millis(50);

/// Extends the lease if this writer holds it, or takes it if it is free.
const RENEW: &str = "\
local there = redis.call('GET', KEYS[1])
if there and there ~= ARGV[1] then return 0 end
redis.call('SET', KEYS[1], ARGV[1], 'PX', ARGV[2])
return 1";

const GIVE_BACK: &str = "\
if redis.call('GET', KEYS[1]) == ARGV[1] then return redis.call('DEL', KEYS[1]) end
return 0";

/// State shared by the writer and the renewing thread.
struct LeaseState {
    connections: Arc<ClusterConnections>,
    key: String,
    token: RandomId,
    lasts: Duration,
    lost: AtomicBool,
    ended: Mutex<bool>,
    end: Condvar,
}

/// A writer's lease, kept by renewing it and given back on drop.
///
/// It exists for users: a second writer reports the first and does no work in vain. The module explains why
/// coins stay correct even if the lease fails.
struct ClusterLease {
    shared: Arc<LeaseState>,
    thread: Option<JoinHandle<()>>,
}

impl ClusterLease {
    /// Takes the lease. Waits long enough for an unrenewed one to expire.
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
            // Wait a little longer than the lease, because clocks differ.
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

    /// Fails if another writer holds the lease.
    fn expect_held(&self) -> Result<(), StoreError> {
        if self.shared.lost.load(Ordering::Relaxed) {
            return Err(StoreError::InUse { place: self.shared.connections.place().to_owned() });
        }
        Ok(())
    }
}

impl LeaseState {
    /// Renews the lease. Returns true if this writer holds it.
    fn renew(&self, to: &mut Servers) -> RedisResult<bool> {
        let mut renew = cmd("EVAL");
        renew.arg(RENEW).arg(1).arg(&self.key).arg(&self.token.0);
        let renewed: u8 = to.ask(renew.arg(self.lasts.as_millis().max(1) as u64))?;
        Ok(renewed == 1)
    }

    fn serve(&self) {
        let every = self.lasts / 3;
        let mut ended = self.ended.lock();
        loop {
            self.end.wait_while_for(&mut ended, |ended| !*ended, every);
            if *ended {
                return;
            }
            drop(ended);
            // No answer from the servers decides nothing, because a write would fail too. The next renewal
            // comes soon enough.
            if matches!(self.connections.once(every, |to| self.renew(to)), Ok(false)) {
                self.lost.store(true, Ordering::Relaxed);
                return;
            }
            ended = self.ended.lock();
        }
    }
}

impl Drop for ClusterLease {
    fn drop(&mut self) {
        *self.shared.ended.lock() = true;
        self.shared.end.notify_all();
        if let Some(thread) = self.thread.take() {
            // Nothing in the thread panics.
            let _ = thread.join();
        }
        // If this fails, the lease expires by itself.
        let _ = self.shared.connections.once(self.shared.lasts, |to| {
            let mut give_back = cmd("EVAL");
            give_back.arg(GIVE_BACK).arg(1).arg(&self.shared.key).arg(&self.shared.token.0);
            to.ask::<()>(&give_back)
        });
    }
}

/// The stored formats as functions of bytes, for fuzzing the parsers.
pub mod stored {
    use super::line::ServerAnswers;
    use super::{Buckets, ClusterRecord, wal};

    /// Appends the digest that ends both records and chunks.
    pub fn sealed(bytes: &[u8]) -> Vec<u8> {
        let mut sealed = bytes.to_vec();
        wal::seal(&mut sealed);
        sealed
    }

    /// Parses a record and encodes it again. `None` if it is invalid.
    pub fn record(bytes: &[u8]) -> Option<Vec<u8>> {
        ClusterRecord::as_written(bytes)
    }

    /// Parses a chunk and encodes it again. `None` if it is invalid.
    pub fn chunk(bytes: &[u8]) -> Option<Vec<u8>> {
        wal::changes_as_written(bytes).map(|changes| sealed(&changes))
    }

    /// Parses a coin's field in a bucket and encodes it again. `None` if it is invalid. `bits` select the
    /// bucket, 4 to 16.
    pub fn field(bits: u8, bucket: u16, field: &[u8]) -> Option<Vec<u8>> {
        let buckets = Buckets::new(bits.clamp(4, 16));
        let bucket = bucket >> (16 - bits.clamp(4, 16));
        let outpoint = buckets.outpoint(bucket, field)?;
        (buckets.of(&outpoint.txid) == bucket).then(|| buckets.field(&outpoint))
    }

    /// How many consecutive server answers the bytes contain.
    pub fn answers(bytes: &[u8]) -> usize {
        let mut answers = ServerAnswers::new(bytes);
        std::iter::from_fn(|| answers.next().ok()).count()
    }
}

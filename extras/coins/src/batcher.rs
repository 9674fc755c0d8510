//! [`Batcher`]: combines the small look-ups of many callers into large batches for one store.
//!
//! A [`Producer`] submits the coins that it wants and gets a [`Ticket`], which it later redeems for the
//! coins. The batcher combines the requests of all producers. It sends a batch to the store as soon as one of
//! these holds:
//!
//! * it is full;
//! * a producer with coins in it declared its block complete ([`Producer::complete`]);
//! * every producer waits for coins, so no further requests can arrive;
//! * its first coin has waited for the maximum time.
//!
//! So a caller that knows what it wants never waits for a timer, however few callers there are. The timer
//! serves callers that submit a little, do something else, and continue.
//!
//! Invariants: every submitted coin gets exactly one answer, even if the store fails or panics, or the
//! batcher ends. "No such coin" is an answer, not a failure. A failed batch is retried alone, after
//! growing pauses, and does not delay others. The number of batches in flight is bounded, and so is the
//! memory for their answers. The number of waiting coins is bounded too; at the bound, producers block. Answers
//! belong to the tickets: a caller that submits much before it redeems anything holds all of it.
//!
//! Batches in flight do not each occupy a thread. A thread sends all batches that are due to the store, up to
//! as many as the store [wants together](CoinsStore::batches_at_once), and receives their answers. Waking a
//! thread or a caller costs more than a batch, so a caller is woken only once, by its last answer.
//!
//! The batcher makes no decisions about coins, caches none, and uses only
//! [`get_batches`](CoinsStore::get_batches) of the store.

use apus_chain::{BlockHash, KnownBlock, MAX_SCRIPT_SIZE, OutPoint};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{CoinBytes, CoinsStore, Flush, StoreError};
use parking_lot::{Condvar, Mutex};
use queue::{BatchLimits, Cut, LookUpQueue, LookUpRequest, Portion};
use std::io;
use std::sync::Arc;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use worker::Later;

mod queue;
mod worker;

/// Fewest threads, unless fewer batches may be in flight: while some threads wait for the store, another must
/// be free for new coins.
const THREADS_MIN: usize = 8;

/// Options of a batcher.
#[derive(Debug, Clone, Copy)]
pub struct BatcherOptions {
    /// Coins in a full batch, at least 1.
    pub size: usize,
    /// How long a coin may wait for its batch to fill.
    pub deadline: Duration,
    /// Maximum number of batches in flight, at least 1.
    pub in_flight: usize,
    /// Memory limit for answers in flight, in bytes, assuming that every coin has the longest script. If it
    /// is too small for `in_flight` batches, fewer are used, but at least one.
    pub bytes_max: u64,
    /// How often to retry a batch after an I/O error.
    pub retries: u32,
    /// Pause before the first retry; doubles each time.
    pub back_off: Duration,
}

impl Default for BatcherOptions {
    fn default() -> Self {
        Self {
            size: 100,
            deadline: Duration::from_millis(10),
            in_flight: 32,
            bytes_max: 64 << 20,
            retries: 5,
            back_off: Duration::from_millis(20),
        }
    }
}

impl BatcherOptions {
    /// Upper bound for the size of a coin in an answer including overhead, in bytes.
    pub const ANSWER_BYTES_MAX: u64 = MAX_SCRIPT_SIZE as u64 + 240;

    /// The actual limit on batches in flight.
    fn batches_max(&self) -> usize {
        let batch_bytes = Self::ANSWER_BYTES_MAX.saturating_mul(self.size.max(1) as u64);
        let fit = usize::try_from(self.bytes_max / batch_bytes).unwrap_or(usize::MAX);
        self.in_flight.min(fit).max(1)
    }
}

/// Batches look-ups for one store. When dropped, it answers requests that no thread has started with
/// [`StoreError::Stopped`], and waits for batches in flight.
pub struct Batcher {
    shared: Arc<BatcherShared>,
    threads: Vec<JoinHandle<()>>,
}

/// State shared by threads and producers.
struct BatcherShared {
    store: Arc<dyn CoinsStore>,
    options: BatcherOptions,
    /// Batches that one thread sends to the store together.
    at_once: usize,
    state: Mutex<BatcherState>,
    /// Signals that work is due, or that the batcher ends.
    work: Condvar,
    /// Like `work`, for the thread that sleeps until the next deadline.
    watch: Condvar,
    /// Signals room for more coins, or that the batcher ends.
    room: Condvar,
}

struct BatcherState {
    queue: LookUpQueue<Portion>,
    /// Failed batches in flight, waiting to be retried.
    later: Vec<Later>,
    stats: BatcherStats,
    /// Producers blocked for lack of room.
    waiting_for_room: usize,
    /// Sleeping threads, and how many of them are being woken.
    asleep: usize,
    woken: usize,
    /// True while one more thread sleeps until the next deadline.
    watched: bool,
    closed: bool,
}

impl BatcherState {
    /// Arranges for this many sleeping threads to look for work. [`BatcherShared::notify`] wakes those not
    /// already being woken: a thread that wakes takes everything available.
    fn wake(&mut self, threads: usize) -> Wakeups {
        let sleepers = threads.min(self.asleep).saturating_sub(self.woken);
        self.woken += sleepers;
        // Wake the deadline watcher last, because another thread would have to take its place.
        let watcher = threads > 0 && self.asleep == 0 && std::mem::take(&mut self.watched);
        Wakeups { sleepers, watcher }
    }
}

/// Threads to wake once the lock is released.
#[must_use]
struct Wakeups {
    sleepers: usize,
    watcher: bool,
}

impl BatcherShared {
    /// Wakes threads. They need the lock at once, so the caller must have released it.
    fn notify(&self, woken: Wakeups) {
        for _ in 0..woken.sleepers {
            self.work.notify_one();
        }
        if woken.watcher {
            self.watch.notify_one();
        }
    }
}

impl Batcher {
    /// Starts the threads.
    pub fn new(store: Arc<dyn CoinsStore>, options: BatcherOptions) -> io::Result<Self> {
        let (size, in_flight) = (options.size.max(1), options.batches_max());
        let at_once = store.batches_at_once().clamp(1, in_flight);
        let threads = in_flight.div_ceil(at_once).max(THREADS_MIN).min(in_flight);
        let limits = BatchLimits {
            size,
            deadline: options.deadline,
            // As many coins may wait as may be in flight, so that no thread runs out of work.
            waiting_max: size.saturating_mul(in_flight),
        };
        let state = BatcherState {
            queue: LookUpQueue::new(limits),
            later: Vec::new(),
            stats: BatcherStats::default(),
            waiting_for_room: 0,
            asleep: 0,
            woken: 0,
            watched: false,
            closed: false,
        };
        let shared = Arc::new(BatcherShared {
            store,
            options: BatcherOptions { size, in_flight, ..options },
            at_once,
            state: Mutex::new(state),
            work: Condvar::new(),
            watch: Condvar::new(),
            room: Condvar::new(),
        });
        let mut batcher = Self { shared, threads: Vec::with_capacity(threads) };
        for number in 0..threads {
            let shared = Arc::clone(&batcher.shared);
            let builder = thread::Builder::new().name(format!("coins-{number}"));
            // On a failure, dropping the batcher ends the threads already started.
            batcher.threads.push(builder.spawn(move || shared.serve())?);
        }
        Ok(batcher)
    }

    /// Registers another caller.
    pub fn producer(&self) -> Producer {
        self.shared.state.lock().queue.open();
        Producer { shared: Arc::clone(&self.shared) }
    }

    /// The options in effect, after adjustment to their bounds.
    pub fn options(&self) -> &BatcherOptions {
        &self.shared.options
    }

    /// The statistics so far.
    pub fn stats(&self) -> BatcherStats {
        self.shared.state.lock().stats
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        let mut state = self.shared.state.lock();
        state.closed = true;
        let (left, later) = (state.queue.drain(), std::mem::take(&mut state.later));
        drop(state);
        self.shared.work.notify_all();
        self.shared.watch.notify_all();
        self.shared.room.notify_all();
        // Dropping a portion answers it, which must happen outside the lock.
        drop(left);
        self.shared.end_later(later);
        for thread in self.threads.drain(..) {
            // A thread catches panics of look-ups; nothing else in it can fail.
            let _ = thread.join();
        }
    }
}

/// A caller of a [`Batcher`].
pub struct Producer {
    shared: Arc<BatcherShared>,
}

impl Producer {
    /// Submits coins to look up. Blocks only while too many are waiting already.
    pub fn submit(&mut self, wanted: &[OutPoint]) -> Result<Ticket, StoreError> {
        let request = LookUpRequest::new(wanted);
        let ticket = Ticket { shared: Arc::clone(&self.shared), request: Arc::clone(&request) };
        // Dropping the rest on an early return answers it, so the ticket still completes.
        let mut rest = Portion::all(&request);
        let now = Instant::now();
        let mut state = self.shared.state.lock();
        while rest.len() > 0 {
            if state.closed {
                drop(state);
                return Err(StoreError::Stopped);
            }
            let room = state.queue.room();
            if room == 0 {
                state.stats.held_up += 1;
                state.waiting_for_room += 1;
                self.shared.room.wait(&mut state);
                state.waiting_for_room -= 1;
                continue;
            }
            let first = state.queue.len() == 0;
            let some = rest.cut(room);
            state.stats.taken_in += some.len() as u64;
            state.queue.push(some, now);
            let (full, len) = (state.queue.full_batches(), state.queue.len());
            state.stats.waiting_max = state.stats.waiting_max.max(len as u64);
            // A thread must know the deadline of the first coin. Waking one for every later coin would cost
            // more than the coins.
            let watch = usize::from(first && !state.watched);
            let woken = state.wake(full.div_ceil(self.shared.at_once).max(watch));
            drop(state);
            self.shared.notify(woken);
            if rest.len() == 0 {
                break;
            }
            state = self.shared.state.lock();
        }
        Ok(ticket)
    }

    /// Declares that nothing more follows for now, so the coins submitted so far go to the store at once.
    pub fn complete(&mut self) {
        let mut state = self.shared.state.lock();
        let due = state.queue.complete();
        let woken = state.wake(due.into());
        drop(state);
        self.shared.notify(woken);
    }

    /// Looks up coins that are all known now: [`submit`](Self::submit), [`complete`](Self::complete) and
    /// [`Ticket::wait`] in one call.
    pub fn coins(&mut self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        let ticket = self.submit(wanted)?;
        self.complete();
        ticket.wait()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // All remaining producers may be waiting now.
        let mut state = self.shared.state.lock();
        let due = state.queue.shut();
        let woken = state.wake(due.into());
        drop(state);
        self.shared.notify(woken);
    }
}

/// A pending look-up. If dropped, the look-up still happens and its result is discarded.
#[must_use = "it is needed to get the coins"]
pub struct Ticket {
    shared: Arc<BatcherShared>,
    request: Arc<LookUpRequest>,
}

impl Ticket {
    /// Waits for the coins, in the order of the request. Returns an error if a batch that contained some of
    /// them failed.
    pub fn wait(self) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        loop {
            if let Some(taken) = self.request.taken() {
                return taken;
            }
            let mut state = self.shared.state.lock();
            // A batcher thread decrements the count later, under this lock.
            if !self.request.is_done() {
                self.request.set_awaited(true);
                state.queue.wait_begins();
                // A thread woken without work would take a core from one that has some.
                let threads = self.shared.threads_wanted(&state, Instant::now());
                let woken = state.wake(threads);
                drop(state);
                self.shared.notify(woken);
            }
            self.request.wait();
        }
    }
}

#[cfg(test)]
mod tests;

// [`BatcherStats`]: a batcher's statistics.

/// Total and longest of several durations.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct WaitTimes {
    /// The sum.
    pub sum: Duration,
    /// The longest.
    pub longest: Duration,
}

impl WaitTimes {
    fn add(&mut self, time: Duration) {
        self.sum = self.sum.saturating_add(time);
        self.longest = self.longest.max(time);
    }
}

/// Statistics since a batcher started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatcherStats {
    /// Coins submitted.
    pub taken_in: u64,
    /// Coins of finished batches, successful or not.
    pub answered: u64,
    /// Batches started: the sum of the next four.
    pub batches: u64,
    /// Batches sent because they were full.
    pub full: u64,
    /// Batches sent because a producer's block was complete.
    pub complete: u64,
    /// Batches sent because all producers waited.
    pub idle: u64,
    /// Batches sent because the first coin had waited long enough.
    pub deadline: u64,
    /// Coins of the largest batch.
    pub size_max: u64,
    /// How long batches waited, counted from their first coin.
    pub waited: WaitTimes,
    /// How long the store took for batches, including retries and pauses.
    pub latency: WaitTimes,
    /// Retries.
    pub retries: u64,
    /// Batches that failed after all retries.
    pub failures: u64,
    /// Batches now in flight.
    pub in_flight: u64,
    /// Maximum number of batches in flight at a time.
    pub in_flight_max: u64,
    /// Maximum number of coins waiting at a time.
    pub waiting_max: u64,
    /// How often a producer was blocked for lack of room.
    pub held_up: u64,
}

// [`BatchedStore`]: a store whose look-ups go through a batcher.

/// Wraps a store that is reached over a network. All coins of one call are split into batches that are in
/// flight at the same time, combined with the coins of other callers. So a caller waits for a single round trip,
/// however many coins it wants, and should request all that it knows of.
pub struct BatchedStore {
    batcher: Batcher,
    store: Arc<dyn CoinsStore>,
}

impl BatchedStore {
    /// Starts the batcher's threads.
    pub fn new(store: Arc<dyn CoinsStore>, options: BatcherOptions) -> io::Result<Self> {
        Ok(Self { batcher: Batcher::new(Arc::clone(&store), options)?, store })
    }

    /// The batcher's statistics so far.
    pub fn stats(&self) -> BatcherStats {
        self.batcher.stats()
    }
}

impl CoinsStore for BatchedStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.store.tip()
    }

    /// Queries the store directly, because a single coin needs no batch.
    fn get(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.store.get(outpoint)
    }

    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        self.batcher.producer().coins(wanted)
    }

    fn at_once(&self) -> usize {
        let BatcherOptions { size, in_flight, .. } = *self.batcher.options();
        size.saturating_mul(in_flight)
    }

    fn write(&self, flush: &Flush<'_>) -> Result<(), StoreError> {
        self.store.write(flush)
    }

    fn undo(&self, block: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        self.store.undo(block)
    }

    fn for_each(&self, each: &mut EachCoin<'_>) -> Result<(), StoreError> {
        self.store.for_each(each)
    }
}

//! [`Batcher`]: between many callers who each want a few coins and one store that wants to be asked for
//! many at once.
//!
//! A [`Producer`] hands in what it wants and gets a [`Ticket`], by which it takes the coins later. What
//! all producers hand in is put together into batches. A batch goes to the store as soon as the first
//! of these is so:
//!
//! * it is full;
//! * a producer whose coins are in it said that its block is complete ([`Producer::complete`]);
//! * every producer waits for coins, so nothing can come that would be worth waiting for;
//! * its first coin has waited as long as one may.
//!
//! A caller that knows what it wants therefore never waits for a timer, however few callers there are.
//! The timer is for those that hand in a little, do something else, and go on.
//!
//! What always holds: each coin that was taken in is answered exactly once, also when the store fails
//! or panics, or the batcher ends. That a coin is not there is an answer and no failure. A batch that
//! fails is tried again by itself, later each time; others are not held up by it. Batches under way
//! are bounded in number and in the memory that their answers may take; coins that wait for their
//! batch are bounded too, and beyond that bound a producer waits to hand more in. Answers belong to
//! the tickets: a caller that hands in much before it takes anything holds it all.
//!
//! A batch under way is no thread. A thread hands the store what is due by then, as many batches as the store
//! [wants together](CoinsStore::batches_at_once), and takes their answers as they come; to wake a thread, or a
//! caller, costs more than a batch. So a caller is woken once, by its last answer.
//!
//! It decides nothing about coins, keeps none, and needs nothing of a store but
//! [`get_batches`](CoinsStore::get_batches).

use apus_chain::{BlockHash, KnownBlock, MAX_SCRIPT_SIZE, OutPoint};
use apus_engine::utxo::store::EachCoin;
use apus_engine::utxo::{CoinBytes, CoinsStore, Flush, StoreError};
use queue::{BatchLimits, Cut, LookUpQueue, LookUpRequest, Portion};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};
use worker::Later;

mod queue;
mod worker;

/// Threads at least, where as many batches may be under way: while some wait for the store, coins that come are to
/// find one that does not.
const THREADS_MIN: usize = 8;

/// How a batcher works.
#[derive(Debug, Clone, Copy)]
pub struct BatcherOptions {
    /// Coins of a full batch, at least 1.
    pub size: usize,
    /// How long a coin may wait for others to join its batch.
    pub deadline: Duration,
    /// Batches under way at most, at least 1.
    pub in_flight: usize,
    /// Memory that answers under way may take, in bytes, if every coin had the longest script. Where
    /// it does not reach for as many batches as may be under way there are fewer, and at least one.
    pub bytes_max: u64,
    /// How often a batch is tried again that the system would not read.
    pub retries: u32,
    /// How long to wait before the first of these; twice as long before each further one.
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
    /// What a coin takes at most in an answer, with what is kept beside it, in bytes.
    pub const ANSWER_BYTES_MAX: u64 = MAX_SCRIPT_SIZE as u64 + 240;

    /// Batches that may in fact be under way.
    fn batches_max(&self) -> usize {
        let batch_bytes = Self::ANSWER_BYTES_MAX.saturating_mul(self.size.max(1) as u64);
        let fit = usize::try_from(self.bytes_max / batch_bytes).unwrap_or(usize::MAX);
        self.in_flight.min(fit).max(1)
    }
}

/// See the module. Dropped, it answers what no thread has begun with [`StoreError::Stopped`], waits
/// for what is under way, and takes nothing more.
pub struct Batcher {
    shared: Arc<BatcherShared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads and the producers share.
struct BatcherShared {
    store: Arc<dyn CoinsStore>,
    options: BatcherOptions,
    /// Batches that one thread hands to the store together.
    at_once: usize,
    state: Mutex<BatcherState>,
    /// Something is due, or the end.
    work: Condvar,
    /// The same, for the thread that sleeps until the next time at which something is due.
    watch: Condvar,
    /// There is room, or the end.
    room: Condvar,
}

struct BatcherState {
    queue: LookUpQueue<Portion>,
    /// Batches under way that failed and are to be tried again.
    later: Vec<Later>,
    stats: BatcherStats,
    /// Producers that have more than there is room for.
    waiting_for_room: usize,
    /// Threads that sleep, and how many of them are being woken.
    asleep: usize,
    woken: usize,
    /// Whether one more sleeps until something is due.
    watched: bool,
    closed: bool,
}

impl BatcherState {
    /// Has so many threads on their way to look for work, of those that sleep; [`BatcherShared::notify`] wakes those that
    /// are still to be woken for that. One that is woken already takes all that is there once it comes.
    fn wake(&mut self, threads: usize) -> Woken {
        let sleepers = threads.min(self.asleep).saturating_sub(self.woken);
        self.woken += sleepers;
        // The one that watches the time goes last: another would have to be woken in its place.
        let watcher = threads > 0 && self.asleep == 0 && std::mem::take(&mut self.watched);
        Woken { sleepers, watcher }
    }
}

/// Threads that are to be woken once the lock is theirs to have.
#[must_use]
struct Woken {
    sleepers: usize,
    watcher: bool,
}

impl BatcherShared {
    /// Nothing that panics runs under the lock.
    fn lock(&self) -> MutexGuard<'_, BatcherState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Wakes threads. They want the lock at once, so the caller has let go of it.
    fn notify(&self, woken: Woken) {
        (0..woken.sleepers).for_each(|_| self.work.notify_one());
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
            // As many again wait as are under way: no thread runs out of work.
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
            // Those that were started before one could not be end as the batcher is dropped.
            batcher.threads.push(builder.spawn(move || shared.serve())?);
        }
        Ok(batcher)
    }

    /// One more caller that hands coins in.
    pub fn producer(&self) -> Producer {
        self.shared.lock().queue.open();
        Producer { shared: Arc::clone(&self.shared) }
    }

    /// How it works: as it was asked to, within its bounds.
    pub fn options(&self) -> &BatcherOptions {
        &self.shared.options
    }

    /// What it did so far.
    pub fn stats(&self) -> BatcherStats {
        self.shared.lock().stats
    }
}

impl Drop for Batcher {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.closed = true;
        let (left, later) = (state.queue.drain(), std::mem::take(&mut state.later));
        drop(state);
        self.shared.work.notify_all();
        self.shared.watch.notify_all();
        self.shared.room.notify_all();
        // Each is answered as it goes, under no lock.
        drop(left);
        self.shared.end_later(later);
        for thread in self.threads.drain(..) {
            // A thread catches what a look-up throws; nothing else in it can fail.
            let _ = thread.join();
        }
    }
}

/// One caller of a [`Batcher`].
pub struct Producer {
    shared: Arc<BatcherShared>,
}

impl Producer {
    /// Hands in what is wanted. Waits only where too much waits already.
    pub fn submit(&mut self, wanted: &[OutPoint]) -> Result<Ticket, StoreError> {
        let request = LookUpRequest::new(wanted);
        let ticket = Ticket { shared: Arc::clone(&self.shared), request: Arc::clone(&request) };
        // What is not handed in is answered as it goes, so that the ticket's number comes out.
        let mut rest = Portion::all(&request);
        let now = Instant::now();
        let mut state = self.shared.lock();
        while rest.len() > 0 {
            if state.closed {
                drop(state);
                return Err(StoreError::Stopped);
            }
            let room = state.queue.room();
            if room == 0 {
                state.stats.held_up += 1;
                state.waiting_for_room += 1;
                state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.waiting_for_room -= 1;
                continue;
            }
            let first = state.queue.len() == 0;
            let some = rest.cut(room);
            state.stats.taken_in += some.len() as u64;
            state.queue.push(some, now);
            let (full, len) = (state.queue.full_batches(), state.queue.len());
            state.stats.waiting_max = state.stats.waiting_max.max(len as u64);
            // The deadline of the first has to be known to a thread; to wake one for each that joins it would cost
            // more than the coins.
            let watch = usize::from(first && !state.watched);
            let woken = state.wake(full.div_ceil(self.shared.at_once).max(watch));
            drop(state);
            self.shared.notify(woken);
            if rest.len() == 0 {
                break;
            }
            state = self.shared.lock();
        }
        Ok(ticket)
    }

    /// Says that what was handed in so far is all for now: it goes to the store without delay.
    pub fn complete(&mut self) {
        let mut state = self.shared.lock();
        let due = state.queue.complete();
        let woken = state.wake(due.into());
        drop(state);
        self.shared.notify(woken);
    }

    /// Gets coins, all of them known now: as [`submit`](Self::submit), [`complete`](Self::complete) and
    /// [`Ticket::wait`] in one.
    pub fn coins(&mut self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        let ticket = self.submit(wanted)?;
        self.complete();
        ticket.wait()
    }
}

impl Drop for Producer {
    fn drop(&mut self) {
        // The others may all be waiting now.
        let mut state = self.shared.lock();
        let due = state.queue.shut();
        let woken = state.wake(due.into());
        drop(state);
        self.shared.notify(woken);
    }
}

/// Coins on their way. Dropped, they are looked up all the same, and forgotten.
#[must_use = "the coins are taken by it"]
pub struct Ticket {
    shared: Arc<BatcherShared>,
    request: Arc<LookUpRequest>,
}

impl Ticket {
    /// Waits for the coins, in the order in which they were asked for. Where a batch failed that some
    /// of them were in, its error.
    pub fn wait(self) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        loop {
            if let Some(taken) = self.request.taken() {
                return taken;
            }
            let mut state = self.shared.lock();
            // A thread of the batcher counts it out again, under this lock.
            if !self.request.is_done() {
                self.request.set_awaited(true);
                state.queue.wait_begins();
                // A thread that is woken for nothing takes the core of one that has something to do.
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

// [`BatcherStats`]: what a batcher did, in numbers.

/// Times, summed up.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Waited {
    /// All together.
    pub sum: Duration,
    /// The longest.
    pub longest: Duration,
}

impl Waited {
    fn add(&mut self, time: Duration) {
        self.sum = self.sum.saturating_add(time);
        self.longest = self.longest.max(time);
    }
}

/// What a batcher did since it was started.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BatcherStats {
    /// Coins taken in.
    pub taken_in: u64,
    /// Coins of batches that have ended, well or not.
    pub answered: u64,
    /// Batches begun: the sum of the next four.
    pub batches: u64,
    /// Of the batches, those that were full.
    pub full: u64,
    /// Those that went since a producer's block was complete.
    pub complete: u64,
    /// Those that went since all producers waited.
    pub idle: u64,
    /// Those that went since the first coin had waited long enough.
    pub deadline: u64,
    /// Coins of the largest batch.
    pub size_max: u64,
    /// How long batches waited, counted from their first coin.
    pub waited: Waited,
    /// How long the store took for batches, with all tries and pauses.
    pub latency: Waited,
    /// Tries after the first.
    pub retries: u64,
    /// Batches that failed for good.
    pub failures: u64,
    /// Batches under way now.
    pub in_flight: u64,
    /// Batches under way at most.
    pub in_flight_max: u64,
    /// Coins that waited for their batch at most.
    pub waiting_max: u64,
    /// How often a producer had to wait to hand more in.
    pub held_up: u64,
}

// [`BatchedStore`]: a store that is asked for much at once through a batcher.

/// Another store, which lies beyond a network. All coins that a caller wants with one call are cut into
/// batches that are under way side by side, together with those of other callers; so the caller waits
/// for one way there and back, whatever it wants, and should ask for all that it knows of.
pub struct BatchedStore {
    batcher: Batcher,
    store: Arc<dyn CoinsStore>,
}

impl BatchedStore {
    /// Starts the batcher's threads.
    pub fn new(store: Arc<dyn CoinsStore>, options: BatcherOptions) -> io::Result<Self> {
        Ok(Self { batcher: Batcher::new(Arc::clone(&store), options)?, store })
    }

    /// What the batcher did so far.
    pub fn stats(&self) -> BatcherStats {
        self.batcher.stats()
    }
}

impl CoinsStore for BatchedStore {
    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        self.store.tip()
    }

    /// One alone has nothing to wait for.
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

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
//! It decides nothing about coins, keeps none, and needs nothing of a store but
//! [`get_many`](CoinsStore::get_many).

mod batch;
mod metrics;
mod queue;
mod store;
mod worker;

pub use metrics::{BatcherStats, Waited};
pub use store::BatchedStore;

use super::store::{CoinsStore, StoreError};
use crate::coin::CoinBytes;
use apus_chain::{MAX_SCRIPT_SIZE, OutPoint};
use batch::{Item, Request};
use queue::{Due, Limits, Queue};
use std::io;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

/// How a batcher works.
#[derive(Debug, Clone, Copy)]
pub struct BatcherOptions {
    /// Coins of a full batch, at least 1.
    pub size: usize,
    /// How long a coin may wait for others to join its batch.
    pub deadline: Duration,
    /// Batches under way at most, at least 1: a thread each.
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
    shared: Arc<Shared>,
    threads: Vec<JoinHandle<()>>,
}

/// What the threads and the producers share.
struct Shared {
    store: Arc<dyn CoinsStore>,
    options: BatcherOptions,
    state: Mutex<State>,
    /// Something may be due.
    work: Condvar,
    /// There is room, or the end.
    room: Condvar,
    /// The end, for threads that wait to try again.
    end: Condvar,
}

struct State {
    queue: Queue<Item>,
    stats: BatcherStats,
    /// Producers that have more than there is room for.
    waiting_for_room: usize,
    closed: bool,
}

impl Shared {
    /// Nothing that panics runs under the lock.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Has so many threads look whether a batch is due. Those that are woken want the lock at once.
    fn wake(&self, threads: usize) {
        (0..threads).for_each(|_| self.work.notify_one());
    }
}

impl Batcher {
    /// Starts the threads.
    pub fn new(store: Arc<dyn CoinsStore>, options: BatcherOptions) -> io::Result<Self> {
        let (size, threads) = (options.size.max(1), options.batches_max());
        let limits = Limits {
            size,
            deadline: options.deadline,
            // As many again wait as are under way: no thread runs out of work.
            waiting_max: size.saturating_mul(threads),
        };
        let queue = Queue::new(limits);
        let stats = BatcherStats::default();
        let state = State { queue, stats, waiting_for_room: 0, closed: false };
        let shared = Arc::new(Shared {
            store,
            options: BatcherOptions { size, in_flight: threads, ..options },
            state: Mutex::new(state),
            work: Condvar::new(),
            room: Condvar::new(),
            end: Condvar::new(),
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
        let left = state.queue.drain();
        drop(state);
        for condition in [&self.shared.work, &self.shared.room, &self.shared.end] {
            condition.notify_all();
        }
        // Each is answered as it goes, under no lock.
        drop(left);
        for thread in self.threads.drain(..) {
            // A thread catches what a look-up throws; nothing else in it can fail.
            let _ = thread.join();
        }
    }
}

/// One caller of a [`Batcher`].
pub struct Producer {
    shared: Arc<Shared>,
}

impl Producer {
    /// Hands in what is wanted. Waits only where too much waits already.
    pub fn submit(&mut self, wanted: &[OutPoint]) -> Result<Ticket, StoreError> {
        let request = Request::new(wanted.len());
        let ticket = Ticket { shared: Arc::clone(&self.shared), request: Arc::clone(&request) };
        let mut places = wanted.iter().zip(0..).peekable();
        // Threads to be woken, once the lock is theirs to have.
        let mut due = 0;
        let mut state = self.shared.lock();
        while places.peek().is_some() {
            if state.closed {
                drop(state);
                // So that the ticket's number comes out, whatever becomes of it.
                places.for_each(|(outpoint, place)| drop(Item::new(*outpoint, &request, place)));
                return Err(StoreError::Stopped);
            }
            let room = state.queue.room();
            if room == 0 {
                self.shared.wake(std::mem::take(&mut due));
                state.stats.held_up += 1;
                state.waiting_for_room += 1;
                state = self.shared.room.wait(state).unwrap_or_else(PoisonError::into_inner);
                state.waiting_for_room -= 1;
                continue;
            }
            let (now, before) = (Instant::now(), state.queue.full_batches());
            let first = state.queue.len() == 0;
            for (outpoint, place) in places.by_ref().take(room) {
                state.queue.push(Item::new(*outpoint, &request, place), now);
                state.stats.taken_in += 1;
            }
            let (full, len) = (state.queue.full_batches() - before, state.queue.len());
            state.stats.waiting_max = state.stats.waiting_max.max(len as u64);
            // One that sleeps has to learn of the deadline of the first; to wake one for each that joins it would
            // cost more than the coins.
            due += full.max(usize::from(first));
        }
        drop(state);
        self.shared.wake(due);
        Ok(ticket)
    }

    /// Says that what was handed in so far is all for now: it goes to the store without delay.
    pub fn complete(&mut self) {
        let due = self.shared.lock().queue.complete();
        self.shared.wake(due.into());
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
        let due = self.shared.lock().queue.shut();
        self.shared.wake(due.into());
    }
}

/// Coins on their way. Dropped, they are looked up all the same, and forgotten.
#[must_use = "the coins are taken by it"]
pub struct Ticket {
    shared: Arc<Shared>,
    request: Arc<Request>,
}

impl Ticket {
    /// Waits for the coins, in the order in which they were asked for. Where a batch failed that some
    /// of them were in, its error.
    pub fn wait(self) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        if !self.request.is_done() {
            let (mut state, mut due) = (self.shared.lock(), false);
            // A thread of the batcher counts it out again, under this lock.
            if !self.request.is_done() {
                self.request.set_awaited(true);
                state.queue.wait_begins();
                // A thread that is woken for nothing takes the core of one that has something to do.
                due = matches!(state.queue.due(Instant::now()), Due::Now(_));
            }
            drop(state);
            self.shared.wake(due.into());
            self.request.wait();
        }
        self.request.take()
    }
}

#[cfg(test)]
mod tests;

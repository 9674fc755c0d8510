//! [`measure`]: blocks, looked up in turn by each number of callers, in each way.

use super::alone::alone;
use super::{Course, Decorated, VERSION, WithCallers};
use crate::machine::Machine;
use crate::prevouts::PrevoutsError;
use crate::prevouts::coins::{coin, outpoint};
use crate::stats::Spread;
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use apus_engine::utxo::batcher::{Batcher, BatcherOptions, BatcherStats, Producer};
use apus_engine::utxo::store::{EachChange, LatencyStore, MemoryStore};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Pauses that are measured by themselves.
const SLEEPS: usize = 20;

/// What to measure.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Transactions of a block.
    pub txs: u32,
    /// Inputs of each.
    pub inputs: u32,
    /// How long the store takes for a call at least.
    pub latency: Duration,
    /// Numbers of callers.
    pub callers: Vec<usize>,
    /// Coins of a full batch.
    pub batch: usize,
    /// How long a coin may wait for others.
    pub deadline: Duration,
    /// Batches under way at most.
    pub in_flight: usize,
    /// How often.
    pub rounds: u32,
}

/// What is being done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Event {
    /// A round begins.
    Round {
        /// From 1.
        round: u32,
        /// How many there are.
        of: u32,
    },
}

impl fmt::Display for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self::Round { round, of } = self;
        write!(f, "round {round} of {of}")
    }
}

/// How callers take their coins.
#[derive(Debug, Clone, Copy)]
enum Way {
    Each,
    Block,
}

/// Times of one way, and what the batcher did in the last round.
#[derive(Default)]
struct Times {
    first_ms: Vec<f64>,
    ms: Vec<f64>,
    done: Done,
}

/// What a batcher did for a block.
#[derive(Default)]
struct Done {
    batches: u64,
    timed_out: u64,
    in_flight_max: u64,
}

impl Done {
    fn between(before: &BatcherStats, after: &BatcherStats) -> Self {
        Self {
            batches: after.batches - before.batches,
            timed_out: after.deadline - before.deadline,
            in_flight_max: after.in_flight_max,
        }
    }
}

impl Times {
    fn course(&self) -> Option<Course> {
        Some(Course {
            first_ms: Spread::of(&self.first_ms)?,
            ms: Spread::of(&self.ms)?,
            batches: self.done.batches,
            timed_out: self.done.timed_out,
            in_flight_max: self.done.in_flight_max,
        })
    }
}

/// Times with so many callers.
struct WithTimes {
    callers: usize,
    alone_ms: Vec<f64>,
    each: Times,
    block: Times,
}

impl WithTimes {
    fn of(callers: usize) -> Self {
        Self { callers, alone_ms: Vec::new(), each: Times::default(), block: Times::default() }
    }

    fn told(&self) -> Option<WithCallers> {
        let alone_ms = Spread::of(&self.alone_ms)?;
        let (each, block) = (self.each.course()?, self.block.course()?);
        Some(WithCallers { callers: self.callers, alone_ms, each, block })
    }
}

/// Measures all that the plan names.
pub fn measure(
    plan: &Plan,
    machine: Machine,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(Event),
) -> Result<Decorated, PrevoutsError> {
    let _exact = ExactTimers::set();
    let slept_us = sleeps(plan.latency);
    let block = Block::of(plan);
    let store = block.store()?;
    let late = LatencyStore::remote(store, plan.latency, plan.batch);
    let store: Arc<dyn CoinsStore> = Arc::new(late);
    let mut plain_ms = Vec::new();
    let mut times: Vec<WithTimes> = plan.callers.iter().map(|it| WithTimes::of(*it)).collect();
    for round in 1..=plan.rounds {
        each(Event::Round { round, of: plan.rounds });
        plain_ms.push(block.plain(&*store, interrupt)?);
        for WithTimes { callers, alone_ms, each, block: all } in &mut times {
            alone_ms.push(alone(*callers, plan.latency));
            for (way, times) in [(Way::Each, each), (Way::Block, all)] {
                if interrupt.load(Ordering::Relaxed) {
                    return Err(PrevoutsError::Interrupted);
                }
                block.batched(plan, &store, (*callers, way), times)?;
            }
        }
    }
    Ok(Decorated {
        version: VERSION,
        machine,
        txs: plan.txs,
        inputs: plan.inputs,
        latency_us: plan.latency.as_micros() as u64,
        slept_us,
        batch: plan.batch,
        deadline_us: plan.deadline.as_micros().min(u64::MAX.into()) as u64,
        in_flight: plan.in_flight,
        rounds: plan.rounds,
        plain_ms: Spread::of(&plain_ms).ok_or(PrevoutsError::Interrupted)?,
        measured: times.iter().filter_map(WithTimes::told).collect(),
    })
}

/// Timers of this thread, and of threads that it starts, ring when they are to and not up to 50 us later, with
/// others, as Linux lets them by default. It stands for a server, which answers when it has the answer.
struct ExactTimers(Option<u64>);

impl ExactTimers {
    #[cfg(target_os = "linux")]
    fn set() -> Self {
        use rustix::thread::{current_timer_slack, set_current_timer_slack};
        let before = current_timer_slack().ok();
        let set = set_current_timer_slack(std::num::NonZeroU64::new(1));
        Self(before.filter(|_| set.is_ok()))
    }

    #[cfg(not(target_os = "linux"))]
    fn set() -> Self {
        Self(None)
    }
}

impl Drop for ExactTimers {
    fn drop(&mut self) {
        #[cfg(target_os = "linux")]
        if let Some(before) = self.0 {
            let before = std::num::NonZeroU64::new(before);
            // Where that fails its timers stay exact, which costs some wake-ups.
            let _ = rustix::thread::set_current_timer_slack(before);
        }
    }
}

/// How long pauses of so long really are where nothing else goes on, in microseconds.
fn sleeps(pause: Duration) -> Spread {
    let sleep = |_| {
        let started = Instant::now();
        thread::sleep(pause);
        started.elapsed().as_secs_f64() * 1e6
    };
    let slept: Vec<f64> = (0..SLEEPS).map(sleep).collect();
    Spread::of(&slept).expect("there are some")
}

/// The inputs of a block, transaction by transaction.
struct Block(Vec<Vec<OutPoint>>);

impl Block {
    fn of(plan: &Plan) -> Self {
        let tx = |tx| (0..plan.inputs).map(|input| outpoint(tx * plan.inputs + input)).collect();
        Self((0..plan.txs).map(tx).collect())
    }

    /// A store with its coins.
    fn store(&self) -> Result<MemoryStore, StoreError> {
        let store = MemoryStore::new();
        let coins = self.0.iter().flatten().copied().zip(0..);
        let coins = Numbered(coins.collect());
        let tip = KnownBlock { height: 1, hash: BlockHash::ZERO };
        store.write(&Flush { tip, changes: &coins, undo: &[], undo_from: 0 })?;
        Ok(store)
    }

    fn check(&self, tx: usize, found: &[Option<CoinBytes>]) -> Result<(), PrevoutsError> {
        let first = (tx * self.0[tx].len()) as u32;
        for ((number, outpoint), found) in (first..).zip(&self.0[tx]).zip(found) {
            if found.as_ref() != Some(&coin(number)) {
                let (outpoint, found) = (*outpoint, found.clone());
                return Err(PrevoutsError::Wrong { outpoint, found });
            }
        }
        Ok(())
    }

    /// One call for each transaction; the time in milliseconds.
    fn plain(&self, store: &dyn CoinsStore, interrupt: &AtomicBool) -> Result<f64, PrevoutsError> {
        let mut found = Vec::with_capacity(self.0.len());
        let started = Instant::now();
        for tx in &self.0 {
            if interrupt.load(Ordering::Relaxed) {
                return Err(PrevoutsError::Interrupted);
            }
            found.push(store.get_many(tx)?);
        }
        let took = started.elapsed();
        found.iter().enumerate().try_for_each(|(tx, found)| self.check(tx, found))?;
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Twice through a batcher of its own. A node's outlives its blocks, so only the first of them meets threads
    /// that have not begun, and memory that no thread has had.
    fn batched(
        &self,
        plan: &Plan,
        store: &Arc<dyn CoinsStore>,
        (callers, way): (usize, Way),
        times: &mut Times,
    ) -> Result<(), PrevoutsError> {
        let Plan { batch: size, deadline, in_flight, .. } = *plan;
        let options = BatcherOptions { size, deadline, in_flight, ..BatcherOptions::default() };
        let failed = |error| PrevoutsError::Threads { threads: in_flight, error };
        let batcher = Batcher::new(Arc::clone(store), options).map_err(failed)?;
        times.first_ms.push(self.through(&batcher, callers, way)?);
        let before = batcher.stats();
        times.ms.push(self.through(&batcher, callers, way)?);
        times.done = Done::between(&before, &batcher.stats());
        Ok(())
    }

    /// Time from when the first caller begins to when the last one has all, in milliseconds.
    fn through(&self, batcher: &Batcher, callers: usize, way: Way) -> Result<f64, PrevoutsError> {
        let producers: Vec<_> = (0..callers).map(|_| batcher.producer()).collect();
        let (next, ready) = (AtomicUsize::new(0), Barrier::new(callers));
        let call = |producer| {
            ready.wait();
            self.call(producer, &next, way)
        };
        let call = &call;
        let parts = thread::scope(|scope| {
            let start = |producer| scope.spawn(move || call(producer));
            let threads: Vec<_> = producers.into_iter().map(start).collect();
            let join = |thread: thread::ScopedJoinHandle<'_, _>| {
                thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
            };
            threads.into_iter().map(join).collect::<Vec<Result<Part, StoreError>>>()
        });
        let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (begun, ended) = (parts.iter().map(|it| it.begun), parts.iter().map(|it| it.ended));
        let took = ended.max().zip(begun.min()).map(|(end, start)| end - start);
        for (tx, found) in parts.iter().flat_map(|part| &part.found) {
            self.check(*tx, found)?;
        }
        Ok(took.unwrap_or_default().as_secs_f64() * 1e3)
    }

    /// One caller, until no transaction is left.
    fn call(&self, mut to: Producer, next: &AtomicUsize, way: Way) -> Result<Part, StoreError> {
        let begun = Instant::now();
        let (mut tickets, mut found) = (Vec::new(), Vec::new());
        loop {
            let tx = next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = self.0.get(tx) else { break };
            let ticket = to.submit(wanted)?;
            match way {
                Way::Each => found.push((tx, ticket.wait()?)),
                Way::Block => tickets.push((tx, ticket)),
            }
        }
        to.complete();
        // All are wanted, and the last ones come last: who waits for them first sleeps once.
        for (tx, ticket) in tickets.into_iter().rev() {
            found.push((tx, ticket.wait()?));
        }
        Ok(Part { begun, ended: Instant::now(), found })
    }
}

/// What one caller got.
struct Part {
    begun: Instant,
    ended: Instant,
    found: Vec<(usize, Vec<Option<CoinBytes>>)>,
}

/// Coins by their names, with the numbers that they follow from.
struct Numbered(BTreeMap<OutPoint, u32>);

impl Changes for Numbered {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, number)| each(outpoint, Some(&coin(*number))))
    }
}

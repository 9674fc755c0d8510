//! `apus-bench decorate`: measures looking up all coins of a block through the batcher, with a store of high
//! latency.
//!
//! A block has a given number of transactions and of inputs per transaction. Callers submit them to one
//! batcher in two ways: transaction by transaction, taking each one's coins before they submit the next; or
//! all at once, then marking the block as complete, and only then taking the coins. A validator can use the
//! second way, because it has the whole block. Each batcher gets two blocks, because a node's batcher serves
//! many; the first is reported separately. The baseline for both is a loop that asks the store for one
//! transaction at a time.
//!
//! The coins are in memory, and each call takes the configured latency, look-up included. So the benchmark
//! measures waiting, and the overhead of the batcher and its threads. It sleeps with the system's most exact
//! timers; it also measures and reports how long a sleep really takes. Another baseline is the same number of
//! threads that start together, wait for one answer and are woken by it: on a machine with few cores that is
//! most of the time of many callers, with any implementation. Every returned coin is compared with the stored
//! one.

mod latency_store;

use crate::commands::{Latency, show};
use crate::error::{BenchError, check_interrupt};
use crate::machine::BenchMachine;
use crate::prevouts::coins::{coin, outpoint};
use crate::prevouts::measure::{no_threads, wrong_coin};
use crate::table::{MeasuredSpread, TextTable, grouped};
use crate::terminal::{self, watch_signals};
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use apus_coins::{Batcher, BatcherOptions, BatcherStats, Producer};
use apus_engine::utxo::store::{EachChange, MemoryStore};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use clap::Args;
use latency_store::LatencyStore;
use parking_lot::{Condvar, Mutex};
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

/// Version of the JSON form. New fields keep it; changed meanings increment it.
pub const VERSION: u32 = 2;

/// The results of `apus-bench decorate`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct DecorateRecord {
    /// [`VERSION`].
    pub version: u32,
    /// The machine that ran the benchmark.
    pub machine: BenchMachine,
    /// Transactions per block.
    pub txs: u32,
    /// Inputs per transaction.
    pub inputs: u32,
    /// Minimum time of a call to the store, in microseconds.
    pub latency_us: u64,
    /// Real time of a sleep of that length on an idle thread, in microseconds. The made-up store oversleeps
    /// by the same amount, so every block's time includes it.
    pub slept_us: MeasuredSpread,
    /// Coins of a full batch.
    pub batch: usize,
    /// Time that a coin may wait for others, in microseconds.
    pub deadline_us: u64,
    /// Maximum number of batches in flight.
    pub in_flight: usize,
    /// Number of rounds.
    pub rounds: u32,
    /// A block without the batcher, one call to the store per transaction, in milliseconds.
    pub plain_ms: MeasuredSpread,
    /// A block whose transactions each wait for the deadline, in milliseconds, if it was asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub timer_ms: Option<MeasuredSpread>,
    /// Results by number of callers.
    pub measured: Vec<WithCallers>,
}

/// Results with a given number of callers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithCallers {
    /// Threads that submit look-ups.
    pub callers: usize,
    /// Baseline without a batcher, in milliseconds: the same number of threads start together, and each waits
    /// for one answer with the store's latency. This is the machine's own cost of the callers, with any
    /// implementation.
    pub alone_ms: MeasuredSpread,
    /// Each caller takes a transaction's coins before it submits the next one's.
    pub each: LookupTimes,
    /// Each caller submits all, marks the block as complete, and then takes the coins.
    pub block: LookupTimes,
}

/// Times of one way to get the coins of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookupTimes {
    /// Time for the first block of a batcher, in milliseconds.
    pub first_ms: MeasuredSpread,
    /// Time for the second block.
    pub ms: MeasuredSpread,
    /// Batches of the second block, in the last round.
    pub batches: u64,
    /// Of these, the batches that waited for the deadline.
    pub timed_out: u64,
    /// Maximum number of batches in flight at once, in the last round.
    pub in_flight_max: u64,
}

// ---- tables ----

/// Teranode's published numbers for its batcher, for 1,000 transactions of 3 inputs, a store of 500 us,
/// batches of 100 and a deadline of 10 ms, on an Apple M3 Max: pull request 864 of bsv-blockchain/teranode.
/// In that benchmark, a caller takes a transaction's coins before it submits the next one's, and a batch that
/// is not full waits for its deadline.
const PUBLISHED: &[(usize, f64)] = &[(1, 10_720.0), (4, 2_680.0), (16, 680.0), (64, 19.0)];
const PUBLISHED_SEQUENTIAL_MS: f64 = 10_680.0;

/// All times, by number of callers.
pub fn table(found: &DecorateRecord) -> TextTable {
    let columns = [
        "callers",
        "callers alone ms",
        "whole block ms",
        "greatest",
        "first ms",
        "batches",
        "each transaction ms",
        "greatest",
        "first ms",
        "batches",
        "Teranode's ms",
    ];
    let title = format!(
        "Coins of {} transactions of {} inputs, a store latency of {} ({:.0} us measured), batches \
         of {}, {} rounds",
        grouped(found.txs.into()),
        found.inputs,
        time(found.latency_us),
        found.slept_us.median,
        found.batch,
        found.rounds,
    );
    let mut table = TextTable::new(title, &columns);
    let same = (found.txs, found.inputs, found.latency_us, found.batch, found.deadline_us)
        == (1000, 3, 500, 100, 10_000);
    let theirs = |ms: Option<f64>| ms.filter(|_| same).map_or("-".to_owned(), milliseconds);
    let plain = &found.plain_ms;
    let none = || "-".to_owned();
    table.row([
        "no batcher".to_owned(),
        none(),
        none(),
        none(),
        none(),
        none(),
        milliseconds(plain.median),
        milliseconds(plain.max),
        none(),
        found.txs.to_string(),
        none(),
    ]);
    if let Some(timer) = &found.timer_ms {
        let times = [milliseconds(timer.median), milliseconds(timer.max)];
        let first = std::iter::once("1, with a timer".to_owned());
        let row = first.chain(std::iter::repeat_with(none).take(5)).chain(times);
        table.row(row.chain([none(), none(), theirs(Some(PUBLISHED_SEQUENTIAL_MS))]));
    }
    for WithCallers { callers, alone_ms, each, block } in &found.measured {
        let published = PUBLISHED.iter().find(|(count, _)| count == callers);
        let cells = |course: &LookupTimes| {
            let LookupTimes { first_ms, ms, batches, .. } = course;
            let [ms, greatest, first] = [ms.median, ms.max, first_ms.median].map(milliseconds);
            [ms, greatest, first, batches.to_string()]
        };
        let (block, each) = (cells(block), cells(each));
        let first = [callers.to_string(), milliseconds(alone_ms.median)];
        let row = first.into_iter().chain(block).chain(each);
        table.row(row.chain([theirs(published.map(|(_, ms)| *ms))]));
    }
    table
}

fn milliseconds(value: f64) -> String {
    format!("{value:.3}")
}

fn time(us: u64) -> String {
    if us.is_multiple_of(1000) { format!("{} ms", us / 1000) } else { format!("{us} us") }
}

// ---- rounds ----

/// Number of sleeps that measure how long a sleep really takes.
const SLEEPS: usize = 20;

const DECORATE_EXAMPLES: &str = "\
Examples:
  A block of 1,000 transactions, a store latency of 500 us, 1 to 64 callers:
    apus-bench decorate

  A store across a country, with JSON output:
    apus-bench decorate --latency 20ms --concurrency 1,8 --rounds 5 \\
         --json decorate.json

\"Whole block\": each caller submits all its look-ups and marks the block as
complete, so it waits for no timer. \"Each transaction\": it takes a
transaction's coins before it submits the next one's. Each batcher gets two
blocks, since a node's gets many; \"first\" is the time of the first one.
\"Callers alone\" only wait for one answer, without a batcher. With --timer, one
caller's transactions each wait for the deadline. The last column shows
Teranode's published numbers for the default block.";

/// Measure looking up the coins of a block through a batcher
#[derive(Debug, Args)]
#[command(after_help = DECORATE_EXAMPLES)]
pub struct DecorateArgs {
    /// Transactions of a block
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tx: u32,

    /// Inputs per transaction
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    inputs: u32,

    /// Latency of a call to the store: 0, or a number with us, ms or s
    #[arg(long, value_name = "TIME", default_value = "500us")]
    latency: Latency,

    /// Numbers of callers
    #[arg(long, value_name = "N,...", value_delimiter = ',', default_value = "1,4,16,64", value_parser = clap::value_parser!(u16).range(1..=1024))]
    concurrency: Vec<u16>,

    /// Coins of a full batch
    #[arg(long, value_name = "N", default_value_t = 100, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    batch: u32,

    /// How long a coin may wait for others to join its batch
    #[arg(long, value_name = "TIME", default_value = "10ms")]
    deadline: Latency,

    /// Maximum number of batches in flight
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: u16,

    /// Number of rounds
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Also measure one caller whose transactions each wait for the deadline, as in Teranode's baseline: some
    /// ten seconds a round
    #[arg(long)]
    timer: bool,

    /// Write all results as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measures, writes and shows the results.
///
/// # Errors
/// If an option is too large, a store or a thread fails, or the command is interrupted.
pub fn command(args: &DecorateArgs) -> Result<(), BenchError> {
    // Read the load before this benchmark adds its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    let inputs = u64::from(args.tx) * u64::from(args.inputs);
    if inputs > 10_000_000 {
        return Err(BenchError::usage(format!("{inputs} inputs: the maximum is 10000000")));
    }
    let mut log = |line: String| terminal::aside(line);
    let found = measure(args, machine, &interrupt, &mut log)?;
    show(args.json.as_deref(), &found, &table(&found))
}

/// How callers take their coins.
#[derive(Debug, Clone, Copy)]
enum CallerMode {
    Each,
    Block,
}

/// Times of one way, and the batcher's counters of the last round.
#[derive(Default)]
struct WayTimes {
    first_ms: Vec<f64>,
    ms: Vec<f64>,
    done: BatcherStats,
}

impl WayTimes {
    fn course(&self) -> Option<LookupTimes> {
        Some(LookupTimes {
            first_ms: MeasuredSpread::of(&self.first_ms)?,
            ms: MeasuredSpread::of(&self.ms)?,
            batches: self.done.batches,
            timed_out: self.done.deadline,
            in_flight_max: self.done.in_flight_max,
        })
    }
}

/// Times with a given number of callers.
#[derive(Default)]
struct WithTimes {
    callers: usize,
    alone_ms: Vec<f64>,
    each: WayTimes,
    block: WayTimes,
}

impl WithTimes {
    fn summary(&self) -> Option<WithCallers> {
        let alone_ms = MeasuredSpread::of(&self.alone_ms)?;
        let (each, block) = (self.each.course()?, self.block.course()?);
        Some(WithCallers { callers: self.callers, alone_ms, each, block })
    }
}

/// Measures everything in the plan.
pub fn measure(
    plan: &DecorateArgs,
    machine: BenchMachine,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<DecorateRecord, BenchError> {
    let _exact = ExactTimers::set();
    let slept_us = sleeps(plan.latency.0);
    let block = DecoratedBlock::of(plan);
    let store = block.store()?;
    let late = LatencyStore::new(store, plan.latency.0, plan.batch as usize);
    let store: Arc<dyn CoinsStore> = Arc::new(late);
    let (mut plain_ms, mut timer_ms) = (Vec::new(), Vec::new());
    let with = |&it: &u16| WithTimes { callers: it.into(), ..WithTimes::default() };
    let mut times: Vec<WithTimes> = plan.concurrency.iter().map(with).collect();
    for round in 1..=plan.rounds {
        each(format!("round {round} of {}", plan.rounds));
        plain_ms.push(block.plain(&*store, interrupt)?);
        if plan.timer {
            timer_ms.push(block.by_timer(plan, &store)?);
        }
        for WithTimes { callers, alone_ms, each, block: all } in &mut times {
            alone_ms.push(alone(*callers, plan.latency.0));
            for (way, times) in [(CallerMode::Each, each), (CallerMode::Block, all)] {
                check_interrupt(interrupt)?;
                block.batched(plan, &store, (*callers, way), times)?;
            }
        }
    }
    Ok(DecorateRecord {
        version: VERSION,
        machine,
        txs: plan.tx,
        inputs: plan.inputs,
        latency_us: plan.latency.0.as_micros() as u64,
        slept_us,
        batch: plan.batch as usize,
        deadline_us: plan.deadline.0.as_micros().min(u64::MAX.into()) as u64,
        in_flight: plan.in_flight.into(),
        rounds: plan.rounds,
        plain_ms: MeasuredSpread::of(&plain_ms).ok_or_else(BenchError::interrupted)?,
        timer_ms: MeasuredSpread::of(&timer_ms),
        measured: times.iter().filter_map(WithTimes::summary).collect(),
    })
}

/// Exact timers for this thread and the threads it starts. By default Linux may delay timers by up to 50 us
/// to combine them; a server answers as soon as it has the answer.
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
            // If that fails its timers stay exact, which costs some wake-ups.
            let _ = rustix::thread::set_current_timer_slack(before);
        }
    }
}

/// Real duration of sleeps of length `pause` on an idle thread, in microseconds.
fn sleeps(pause: Duration) -> MeasuredSpread {
    let sleep = |_| {
        let started = Instant::now();
        thread::sleep(pause);
        started.elapsed().as_secs_f64() * 1e6
    };
    let slept: Vec<f64> = (0..SLEEPS).map(sleep).collect();
    MeasuredSpread::of(&slept).expect("there are some")
}

/// The inputs of a block, transaction by transaction.
struct DecoratedBlock(Vec<Vec<OutPoint>>);

fn batcher(plan: &DecorateArgs, store: &Arc<dyn CoinsStore>) -> Result<Batcher, BenchError> {
    let in_flight = plan.in_flight.into();
    let (size, deadline) = (plan.batch as usize, plan.deadline.0);
    let options = BatcherOptions { size, deadline, in_flight, ..BatcherOptions::default() };
    Batcher::new(Arc::clone(store), options).map_err(|error| no_threads(in_flight, error))
}

impl DecoratedBlock {
    fn of(plan: &DecorateArgs) -> Self {
        let tx = |tx| (0..plan.inputs).map(|input| outpoint(tx * plan.inputs + input)).collect();
        Self((0..plan.tx).map(tx).collect())
    }

    /// A store with its coins.
    fn store(&self) -> Result<MemoryStore, StoreError> {
        let store = MemoryStore::new();
        let coins = self.0.iter().flatten().copied().zip(0..);
        let coins = NumberedCoins(coins.collect());
        let tip = KnownBlock { height: 1, hash: BlockHash::ZERO };
        store.write(&Flush { tip, changes: &coins, undo: &[], undo_from: 0 })?;
        Ok(store)
    }

    fn check(&self, tx: usize, found: &[Option<CoinBytes>]) -> Result<(), BenchError> {
        let first = (tx * self.0[tx].len()) as u32;
        for ((number, outpoint), found) in (first..).zip(&self.0[tx]).zip(found) {
            if found.as_ref() != Some(&coin(number)) {
                return Err(wrong_coin(outpoint, found.as_ref()));
            }
        }
        Ok(())
    }

    /// One call per transaction; returns the time in milliseconds.
    fn plain(&self, store: &dyn CoinsStore, interrupt: &AtomicBool) -> Result<f64, BenchError> {
        let mut found = Vec::with_capacity(self.0.len());
        let started = Instant::now();
        for tx in &self.0 {
            check_interrupt(interrupt)?;
            found.push(store.get_many(tx)?);
        }
        let took = started.elapsed();
        found.iter().enumerate().try_for_each(|(tx, found)| self.check(tx, found))?;
        Ok(took.as_secs_f64() * 1e3)
    }

    /// Two blocks through a new batcher. A node's batcher outlives its blocks, so only the first block meets
    /// threads that have not started, and memory that no thread has used.
    fn batched(
        &self,
        plan: &DecorateArgs,
        store: &Arc<dyn CoinsStore>,
        (callers, way): (usize, CallerMode),
        times: &mut WayTimes,
    ) -> Result<(), BenchError> {
        let batcher = batcher(plan, store)?;
        times.first_ms.push(self.through(&batcher, callers, way)?);
        let before = batcher.stats();
        times.ms.push(self.through(&batcher, callers, way)?);
        times.done = batcher.stats();
        times.done.batches -= before.batches;
        times.done.deadline -= before.deadline;
        Ok(())
    }

    /// One caller beside another one that never submits anything, so that no batch is known to be complete before its
    /// deadline; returns the time in milliseconds.
    fn by_timer(
        &self,
        plan: &DecorateArgs,
        store: &Arc<dyn CoinsStore>,
    ) -> Result<f64, BenchError> {
        let batcher = batcher(plan, store)?;
        let _silent = batcher.producer();
        self.through(&batcher, 1, CallerMode::Each)
    }

    /// Time from the first caller's start until the last one has all its coins, in milliseconds.
    fn through(
        &self,
        batcher: &Batcher,
        callers: usize,
        way: CallerMode,
    ) -> Result<f64, BenchError> {
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
            threads.into_iter().map(join).collect::<Vec<Result<CallerAnswers, StoreError>>>()
        });
        let parts = parts.into_iter().collect::<Result<Vec<_>, _>>()?;
        let (begun, ended) = (parts.iter().map(|it| it.begun), parts.iter().map(|it| it.ended));
        let took = ended.max().zip(begun.min()).map(|(end, start)| end - start);
        for (tx, found) in parts.iter().flat_map(|part| &part.found) {
            self.check(*tx, found)?;
        }
        Ok(took.unwrap_or_default().as_secs_f64() * 1e3)
    }

    /// Runs one caller until no transaction is left.
    fn call(
        &self,
        mut to: Producer,
        next: &AtomicUsize,
        way: CallerMode,
    ) -> Result<CallerAnswers, StoreError> {
        let begun = Instant::now();
        let (mut tickets, mut found) = (Vec::new(), Vec::new());
        loop {
            let tx = next.fetch_add(1, Ordering::Relaxed);
            let Some(wanted) = self.0.get(tx) else { break };
            let ticket = to.submit(wanted)?;
            match way {
                CallerMode::Each => found.push((tx, ticket.wait()?)),
                CallerMode::Block => tickets.push((tx, ticket)),
            }
        }
        to.complete();
        // All are needed, and the last ones arrive last: waiting for these first means sleeping once.
        for (tx, ticket) in tickets.into_iter().rev() {
            found.push((tx, ticket.wait()?));
        }
        Ok(CallerAnswers { begun, ended: Instant::now(), found })
    }
}

/// One caller's results.
struct CallerAnswers {
    begun: Instant,
    ended: Instant,
    found: Vec<(usize, Vec<Option<CoinBytes>>)>,
}

/// Numbers of coins by outpoint; a coin follows from its number.
struct NumberedCoins(BTreeMap<OutPoint, u32>);

impl Changes for NumberedCoins {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, number)| each(outpoint, Some(&coin(*number))))
    }
}

// ---- callers without a batcher ----

/// A caller that waits for its answer.
#[derive(Default)]
struct Caller {
    answered: Mutex<bool>,
    woken: Condvar,
}

/// Time from the first caller's start until the last one is woken, in milliseconds. They start together; each
/// start wakes a helper thread, which wakes its caller after a pause.
pub(super) fn alone(callers: usize, pause: Duration) -> f64 {
    let waiting: Vec<Caller> = (0..callers).map(|_| Caller::default()).collect();
    let (ready, asked) = (Barrier::new(callers), Caller::default());
    let (waiting, ready, asked) = (&waiting, &ready, &asked);
    let times = thread::scope(|scope| {
        scope.spawn(move || {
            asked.wait();
            thread::sleep(pause);
            waiting.iter().for_each(Caller::wake);
        });
        let call = move |caller: &Caller| {
            ready.wait();
            let begun = Instant::now();
            asked.wake();
            caller.wait();
            (begun, Instant::now())
        };
        let threads: Vec<_> =
            waiting.iter().map(|caller| scope.spawn(move || call(caller))).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, _>| {
            thread.join().unwrap_or_else(|panic| std::panic::resume_unwind(panic))
        };
        threads.into_iter().map(join).collect::<Vec<(Instant, Instant)>>()
    });
    let (begun, ended) = (times.iter().map(|it| it.0).min(), times.iter().map(|it| it.1).max());
    let took = ended.zip(begun).map(|(ended, begun)| ended - begun);
    took.unwrap_or_default().as_secs_f64() * 1e3
}

impl Caller {
    fn wait(&self) {
        self.woken.wait_while(&mut self.answered.lock(), |answered| !*answered);
    }

    /// Several threads may wake the same caller: the first one does.
    fn wake(&self) {
        let first = !std::mem::replace(&mut *self.answered.lock(), true);
        if first {
            self.woken.notify_one();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::error::ErrorKind;
    use std::sync::atomic::AtomicBool;
    use std::time::Duration;

    fn plan() -> DecorateArgs {
        DecorateArgs {
            tx: 50,
            inputs: 3,
            latency: Latency(Duration::from_micros(20)),
            concurrency: vec![4, 1],
            batch: 10,
            deadline: Latency(Duration::MAX),
            in_flight: 8,
            rounds: 2,
            timer: false,
            json: None,
        }
    }

    #[test]
    fn all_callers_get_all_coins_without_a_timer() {
        let mut lines = Vec::new();
        let mut log = |line: String| lines.push(line);
        let found =
            measure(&plan(), BenchMachine::here(), &AtomicBool::new(false), &mut log).unwrap();
        assert_eq!(lines, ["round 1 of 2", "round 2 of 2"]);
        let callers: Vec<_> = found.measured.iter().map(|with| with.callers).collect();
        assert_eq!(callers, [4, 1]);
        for WithCallers { callers, alone_ms, each, block } in &found.measured {
            assert_eq!((each.timed_out, block.timed_out), (0, 0), "{callers}");
            // A single caller sends one batch per transaction; a whole block is 15 batches, plus at most one
            // partial batch per caller.
            assert!(*callers > 1 || each.batches == 50, "{}", each.batches);
            assert!((15..=15 + *callers as u64).contains(&block.batches), "{}", block.batches);
            assert!([each, block].iter().all(|it| it.ms.min > 0.0 && it.first_ms.min > 0.0));
            assert!(alone_ms.min >= 0.02);
        }
        // Without the batcher, a block takes 50 sleeps in a row.
        assert!(found.plain_ms.min >= 1.0);
        let text = table(&found).text();
        for words in ["50 transactions", "no batcher", "20 us"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }

    #[test]
    fn with_a_timer_each_transaction_waits_for_the_deadline() {
        let deadline = Latency(Duration::from_millis(2));
        let plan = DecorateArgs { timer: true, deadline, rounds: 1, ..plan() };
        let found =
            measure(&plan, BenchMachine::here(), &AtomicBool::new(false), &mut |_| ()).unwrap();
        let timer = found.timer_ms.as_ref().unwrap();
        assert!(timer.min >= 100.0, "{timer:?}: 50 transactions wait 2 ms each");
        assert!(table(&found).text().contains("1, with a timer"));
    }

    #[test]
    fn an_interruption_ends_the_benchmark() {
        let interrupt = AtomicBool::new(true);
        let error = measure(&plan(), BenchMachine::here(), &interrupt, &mut |_| ()).unwrap_err();
        assert!(error.kind() == ErrorKind::Interrupted, "{error}");
    }
}

#[cfg(test)]
mod measure_tests {
    use super::*;

    #[test]
    fn callers_wait_for_the_pause() {
        for callers in [1, 5] {
            let took = alone(callers, Duration::from_millis(2));
            assert!(took >= 2.0, "{took} ms for {callers}");
        }
    }
}

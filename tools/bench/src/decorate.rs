//! `apus-bench decorate`: what it takes to look up all coins of a block through the batcher, where the
//! store answers late.
//!
//! A block is so many transactions with so many inputs each. Callers hand them to one batcher in two
//! ways: transaction by transaction, each taken before the next is handed in; or all first, then the
//! word that the block is complete, and only then taken. The second is what a validator can do, since
//! it has the block. Each batcher has two blocks, since a node's has many; the first is told apart. Beside both
//! stands a loop that asks the store for one transaction at a time.
//!
//! The coins are in memory, and each call for some of them takes as long as it is to, the look-up itself
//! included: so what is measured is waiting, and what the batcher and its threads add. The time is kept by
//! sleeping, with timers that are as exact as the system has them; how long a call's sleep really is, is
//! measured and told, too. So is what as many threads take that do nothing but begin together, wait for one answer and
//! are woken by it: on a machine with few cores that is most of the time of many callers, whoever answers. Every coin that comes back is compared with the one that was put there.

use crate::commands::{Latency, show};
use crate::error::{BenchError, go_on};
use crate::machine::BenchMachine;
use crate::prevouts::coins::{coin, outpoint};
use crate::prevouts::measure::{no_threads, wrong_coin};
use crate::table::{MeasuredSpread, TextTable, grouped};
use crate::terminal::{self, watch_signals};
use apus_chain::{BlockHash, KnownBlock, OutPoint};
use apus_coins::{Batcher, BatcherOptions, BatcherStats, Producer};
use apus_engine::utxo::store::{EachChange, LatencyStore, MemoryStore};
use apus_engine::utxo::{Changes, CoinBytes, CoinsStore, Flush, StoreError};
use clap::Args;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Arc, Barrier, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread;
use std::time::{Duration, Instant};

/// Version of the JSON form. New fields do not change it; another meaning of one does.
pub const VERSION: u32 = 2;

/// What `apus-bench decorate` found.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Decorated {
    /// [`VERSION`].
    pub version: u32,
    /// Where.
    pub machine: BenchMachine,
    /// Transactions of a block.
    pub txs: u32,
    /// Inputs of each.
    pub inputs: u32,
    /// How long the store takes for a call at least, in microseconds.
    pub latency_us: u64,
    /// How long a pause of that is here where nothing else goes on, in microseconds: what the system oversleeps is
    /// the made-up store's, and in every time of a block.
    pub slept_us: MeasuredSpread,
    /// Coins of a full batch.
    pub batch: usize,
    /// How long a coin may wait for others, in microseconds.
    pub deadline_us: u64,
    /// Batches under way at most.
    pub in_flight: usize,
    /// How often each was measured.
    pub rounds: u32,
    /// A block without the batcher, one call of the store for each transaction, in milliseconds.
    pub plain_ms: MeasuredSpread,
    /// By number of callers.
    pub measured: Vec<WithCallers>,
}

/// What was measured with so many callers.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct WithCallers {
    /// Threads that hand coins in.
    pub callers: usize,
    /// As many that begin together, of which each waits for one answer that takes as long as the store takes, without a
    /// batcher, in milliseconds: what this machine takes for so many callers, whoever answers.
    pub alone_ms: MeasuredSpread,
    /// Each takes a transaction's coins before it hands in the next one's.
    pub each: LookupTimes,
    /// Each hands all in, says that the block is complete, and takes them then.
    pub block: LookupTimes,
}

/// One way to get the coins of a block.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct LookupTimes {
    /// Time for the first block of a batcher, in milliseconds.
    pub first_ms: MeasuredSpread,
    /// Time for the block after that.
    pub ms: MeasuredSpread,
    /// Batches that this one took, in the last round.
    pub batches: u64,
    /// Of these, those that waited for the deadline.
    pub timed_out: u64,
    /// Batches under way at once, at most, in the last round.
    pub in_flight_max: u64,
}

// ---- tables ----

/// What Teranode says of its batcher, for 1,000 transactions of 3 inputs, a store of 500 us, batches
/// of 100 and a deadline of 10 ms, on an Apple M3 Max: pull request 864 of bsv-blockchain/teranode.
/// There a transaction's coins are taken before the next one's are handed in, and a batch that is
/// not full waits for its deadline.
const PUBLISHED: &[(usize, f64)] = &[(1, 10_720.0), (4, 2_680.0), (16, 680.0), (64, 19.0)];
const PUBLISHED_SEQUENTIAL_MS: f64 = 10_680.0;

/// All times, by numbers of callers.
pub fn table(found: &Decorated) -> TextTable {
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
        "Coins of {} transactions of {} inputs, a store that takes {} ({:.0} us as this system sleeps), batches \
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
        theirs(Some(PUBLISHED_SEQUENTIAL_MS)),
    ]);
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

/// Pauses that are measured by themselves.
const SLEEPS: usize = 20;

const DECORATE_EXAMPLES: &str = "\
Examples:
  A block of 1,000 transactions, a store that takes 500 us, from 1 to 64
  callers:
    apus-bench decorate

  A store across a country, for other programs:
    apus-bench decorate --latency 20ms --concurrency 1,8 --rounds 5 \\
         --json decorate.json

\"Whole block\": each caller hands in all it has and says that the block is
complete, so no timer is waited for. \"Each transaction\": it takes a
transaction's coins before it hands in the next one's. Each batcher has two
blocks, as a node's has many; \"first\" is what the first of them takes.
\"Callers alone\" only wait for one answer, without a batcher. The last column
is what Teranode published of its batcher for the default block.";

/// Measure looking up the coins of a block through a batcher
#[derive(Debug, Args)]
#[command(after_help = DECORATE_EXAMPLES)]
pub struct DecorateArgs {
    /// Transactions of a block
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..=100_000))]
    tx: u32,

    /// Inputs of each
    #[arg(long, value_name = "N", default_value_t = 3, value_parser = clap::value_parser!(u32).range(1..=1000))]
    inputs: u32,

    /// How long the store takes for a call: 0, or a number with us, ms or s
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

    /// Batches under way at most
    #[arg(long, value_name = "N", default_value_t = 32, value_parser = clap::value_parser!(u16).range(1..=1024))]
    in_flight: u16,

    /// Rounds: how often each is measured
    #[arg(long, value_name = "N", default_value_t = 5, value_parser = clap::value_parser!(u32).range(1..=1000))]
    rounds: u32,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// Measures, writes and shows what it found.
///
/// # Errors
/// Where something asked for is too much, a store or a thread fails, or it is interrupted.
pub fn command(args: &DecorateArgs) -> Result<(), BenchError> {
    // Asked before anything here makes a load of its own.
    let machine = BenchMachine::here();
    let interrupt = watch_signals()?;
    let inputs = u64::from(args.tx) * u64::from(args.inputs);
    if inputs > 10_000_000 {
        return Err(BenchError::usage(format!("{inputs} inputs: ask for 10000000 at most")));
    }
    let mut tell = |line: String| terminal::aside(line);
    let found = measure(args, machine, &interrupt, &mut tell)?;
    show(args.json.as_deref(), &found, &table(&found))
}

/// How callers take their coins.
#[derive(Debug, Clone, Copy)]
enum CallerMode {
    Each,
    Block,
}

/// Times of one way, and what the batcher did in the last round.
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

/// Times with so many callers.
#[derive(Default)]
struct WithTimes {
    callers: usize,
    alone_ms: Vec<f64>,
    each: WayTimes,
    block: WayTimes,
}

impl WithTimes {
    fn told(&self) -> Option<WithCallers> {
        let alone_ms = MeasuredSpread::of(&self.alone_ms)?;
        let (each, block) = (self.each.course()?, self.block.course()?);
        Some(WithCallers { callers: self.callers, alone_ms, each, block })
    }
}

/// Measures all that the plan names.
pub fn measure(
    plan: &DecorateArgs,
    machine: BenchMachine,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<Decorated, BenchError> {
    let _exact = ExactTimers::set();
    let slept_us = sleeps(plan.latency.0);
    let block = DecoratedBlock::of(plan);
    let store = block.store()?;
    let late = LatencyStore::remote(store, plan.latency.0, plan.batch as usize);
    let store: Arc<dyn CoinsStore> = Arc::new(late);
    let mut plain_ms = Vec::new();
    let with = |&it: &u16| WithTimes { callers: it.into(), ..WithTimes::default() };
    let mut times: Vec<WithTimes> = plan.concurrency.iter().map(with).collect();
    for round in 1..=plan.rounds {
        each(format!("round {round} of {}", plan.rounds));
        plain_ms.push(block.plain(&*store, interrupt)?);
        for WithTimes { callers, alone_ms, each, block: all } in &mut times {
            alone_ms.push(alone(*callers, plan.latency.0));
            for (way, times) in [(CallerMode::Each, each), (CallerMode::Block, all)] {
                go_on(interrupt)?;
                block.batched(plan, &store, (*callers, way), times)?;
            }
        }
    }
    Ok(Decorated {
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

    /// One call for each transaction; the time in milliseconds.
    fn plain(&self, store: &dyn CoinsStore, interrupt: &AtomicBool) -> Result<f64, BenchError> {
        let mut found = Vec::with_capacity(self.0.len());
        let started = Instant::now();
        for tx in &self.0 {
            go_on(interrupt)?;
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
        plan: &DecorateArgs,
        store: &Arc<dyn CoinsStore>,
        (callers, way): (usize, CallerMode),
        times: &mut WayTimes,
    ) -> Result<(), BenchError> {
        let in_flight = plan.in_flight.into();
        let (size, deadline) = (plan.batch as usize, plan.deadline.0);
        let options = BatcherOptions { size, deadline, in_flight, ..BatcherOptions::default() };
        let failed = |error| no_threads(in_flight, error);
        let batcher = Batcher::new(Arc::clone(store), options).map_err(failed)?;
        times.first_ms.push(self.through(&batcher, callers, way)?);
        let before = batcher.stats();
        times.ms.push(self.through(&batcher, callers, way)?);
        times.done = batcher.stats();
        times.done.batches -= before.batches;
        times.done.deadline -= before.deadline;
        Ok(())
    }

    /// Time from when the first caller begins to when the last one has all, in milliseconds.
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

    /// One caller, until no transaction is left.
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
        // All are wanted, and the last ones come last: who waits for them first sleeps once.
        for (tx, ticket) in tickets.into_iter().rev() {
            found.push((tx, ticket.wait()?));
        }
        Ok(CallerAnswers { begun, ended: Instant::now(), found })
    }
}

/// What one caller got.
struct CallerAnswers {
    begun: Instant,
    ended: Instant,
    found: Vec<(usize, Vec<Option<CoinBytes>>)>,
}

/// Coins by their names, with the numbers that they follow from.
struct NumberedCoins(BTreeMap<OutPoint, u32>);

impl Changes for NumberedCoins {
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        self.0.iter().try_for_each(|(outpoint, number)| each(outpoint, Some(&coin(*number))))
    }
}

// ---- callers without a batcher ----

/// A caller, until it has its answer.
#[derive(Default)]
struct Caller {
    answered: Mutex<bool>,
    woken: Condvar,
}

/// Time from when the first of so many callers begins to when the last one was woken, in milliseconds. They begin
/// together, and a thread that one of them wakes as it begins wakes each of them, a pause after that.
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
    fn lock(&self) -> MutexGuard<'_, bool> {
        self.answered.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait(&self) {
        let waits = self.woken.wait_while(self.lock(), |answered| !*answered);
        drop(waits.unwrap_or_else(PoisonError::into_inner));
    }

    /// Many may wake the same one: the first of them does.
    fn wake(&self) {
        let first = !std::mem::replace(&mut *self.lock(), true);
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
            json: None,
        }
    }

    #[test]
    fn all_callers_get_all_coins_without_a_timer() {
        let mut told = Vec::new();
        let mut tell = |line: String| told.push(line);
        let found =
            measure(&plan(), BenchMachine::here(), &AtomicBool::new(false), &mut tell).unwrap();
        assert_eq!(told, ["round 1 of 2", "round 2 of 2"]);
        let callers: Vec<_> = found.measured.iter().map(|with| with.callers).collect();
        assert_eq!(callers, [4, 1]);
        for WithCallers { callers, alone_ms, each, block } in &found.measured {
            assert_eq!((each.timed_out, block.timed_out), (0, 0), "{callers}");
            // A caller alone sends what it has; all of a block is 15 batches, and a rest for each
            // caller at most.
            assert!(*callers > 1 || each.batches == 50, "{}", each.batches);
            assert!((15..=15 + *callers as u64).contains(&block.batches), "{}", block.batches);
            assert!([each, block].iter().all(|it| it.ms.min > 0.0 && it.first_ms.min > 0.0));
            assert!(alone_ms.min >= 0.02);
        }
        // 50 pauses one after the other.
        assert!(found.plain_ms.min >= 1.0);
        let text = table(&found).text();
        for words in ["50 transactions", "no batcher", "20 us"] {
            assert!(text.contains(words), "{words:?} is not in {text}");
        }
    }

    #[test]
    fn an_interruption_ends_it() {
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

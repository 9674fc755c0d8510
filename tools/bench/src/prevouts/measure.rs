//! [`measure`]: fetches blocks in turn with each number of threads.
//!
//! Every thread count gets a block before any gets the next one, and each block has fresh inputs, so that no
//! turn benefits from CPU caches filled by another.

use super::coins::{LateView, coin, outpoint};
use super::{AtLatency, CoinsPlace, Prevouts, PrevoutsArgs, VERSION, WithThreads};
use crate::commands::Latency;
use crate::error::{BenchError, ErrorKind, check_interrupt};
use crate::machine::BenchMachine;
use crate::table::MeasuredSpread;
use apus_chain::OutPoint;
use apus_engine::utxo::fetch::PrevoutFetcher;
use apus_engine::utxo::{CoinBytes, CoinsView, StoreError};
use apus_testkit::rng::Rng;
use std::fmt::Display;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::{Duration, Instant};

/// Bytes of coins with long scripts that may be fetched ahead: a sync's default.
const AHEAD_BYTES: u64 = 64 << 20;

/// Shorter rounds use several blocks.
const ROUND: Duration = Duration::from_millis(100);

/// Approximate times of a look-up without latency, and of a sleep's overshoot.
const LOOK_UP: Duration = Duration::from_nanos(200);
const LOOK_UP_AT_SERVERS: Duration = Duration::from_micros(5);
const OVERSLEPT: Duration = Duration::from_micros(60);

/// Inputs of the warm-up blocks.
const FIRST_INPUTS: u32 = 200;

/// One way to get the coins of a block, and its time in each round.
struct FetchTurn {
    /// `None` asks the view in a plain loop.
    fetcher: Option<PrevoutFetcher>,
    took: Duration,
    rounds_ms: Vec<f64>,
}

/// Measures with coins that are in `view`.
pub(super) fn measure(
    plan: &PrevoutsArgs,
    machine: BenchMachine,
    view: &Arc<dyn CoinsView>,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<Prevouts, BenchError> {
    let mut blocks = RandomBlocks { coins: plan.coins, rng: Rng::new(0) };
    let mut latencies = Vec::new();
    for &Latency(latency) in &plan.latency {
        let view: Arc<dyn CoinsView> = match latency {
            Duration::ZERO => Arc::clone(view),
            latency => Arc::new(LateView { view: Arc::clone(view), latency }),
        };
        latencies.push(at_latency(plan, latency, &view, &mut blocks, interrupt, each)?);
    }
    Ok(Prevouts {
        version: VERSION,
        machine,
        place: plan.place(),
        coins: plan.coins,
        inputs: plan.inputs,
        rounds: plan.rounds,
        latencies,
    })
}

fn at_latency(
    plan: &PrevoutsArgs,
    latency: Duration,
    view: &Arc<dyn CoinsView>,
    blocks: &mut RandomBlocks,
    interrupt: &AtomicBool,
    each: &mut dyn FnMut(String),
) -> Result<AtLatency, BenchError> {
    let mut turns = turns(plan, latency)?;
    // Threads learn how slow look-ups are, as they have after the first block of a sync.
    for turn in &mut turns {
        let (first, _) = blocks.next(FIRST_INPUTS.min(plan.inputs));
        turn.fetch(view, first)?;
    }
    let count = blocks_of_round(plan, latency);
    for round in 0..plan.rounds {
        let (us, of) = (latency.as_micros(), plan.rounds);
        each(format!("latency {us} us: round {} of {of}", round + 1));
        turns.iter_mut().for_each(|turn| turn.took = Duration::ZERO);
        for _ in 0..count {
            for turn in &mut turns {
                check_interrupt(interrupt)?;
                let (wanted, numbers) = blocks.next(plan.inputs);
                let (coins, took) = turn.fetch(view, wanted)?;
                check(&numbers, &coins)?;
                turn.took += took;
                if count == 1 {
                    let threads = turn.fetcher.as_ref().map(PrevoutFetcher::threads);
                    let who =
                        threads.map_or("a plain loop".to_owned(), |it| format!("{it} threads"));
                    each(format!("  {who}: {:.3} s", took.as_secs_f64()));
                }
            }
        }
        for turn in &mut turns {
            turn.rounds_ms.push(turn.took.as_secs_f64() * 1e3 / f64::from(count));
        }
        if round + 1 < plan.rounds {
            turns.reverse();
        }
    }
    turns.sort_by_key(|turn| turn.fetcher.as_ref().map(PrevoutFetcher::threads));
    let latency_us = latency.as_micros() as u64;
    Ok(AtLatency { latency_us, blocks: count, measured: compared(&turns) })
}

/// All variants to compare. Look-ups without latency also measure the plain loop's own cost.
fn turns(plan: &PrevoutsArgs, latency: Duration) -> Result<Vec<FetchTurn>, BenchError> {
    let mut numbers: Vec<usize> = plan.threads.iter().map(|&threads| threads.into()).collect();
    numbers.push(0);
    numbers.sort_unstable();
    numbers.dedup();
    let fetcher = |threads| {
        PrevoutFetcher::new(threads, AHEAD_BYTES).map_err(|error| no_threads(threads, error))
    };
    let fetchers: Result<Vec<_>, _> = numbers.into_iter().map(|n| fetcher(n).map(Some)).collect();
    let plain = latency.is_zero().then_some(None);
    let all = plain.into_iter().chain(fetchers?);
    let turn = |fetcher| FetchTurn { fetcher, took: Duration::ZERO, rounds_ms: Vec::new() };
    Ok(all.map(turn).collect())
}

fn blocks_of_round(plan: &PrevoutsArgs, latency: Duration) -> u32 {
    let look_up = match (plan.place(), latency.is_zero()) {
        (_, false) => latency + OVERSLEPT,
        (CoinsPlace::Servers, true) => LOOK_UP_AT_SERVERS,
        (_, true) => LOOK_UP,
    };
    let block = look_up * plan.inputs;
    (ROUND.as_nanos() / block.as_nanos().max(1)).clamp(1, 1000) as u32
}

impl FetchTurn {
    /// Gets the coins of a block, and returns the time in milliseconds.
    fn fetch(
        &self,
        view: &Arc<dyn CoinsView>,
        wanted: Vec<OutPoint>,
    ) -> Result<(Vec<Option<CoinBytes>>, Duration), StoreError> {
        let mut coins = Vec::with_capacity(wanted.len());
        let started;
        if let Some(fetcher) = &self.fetcher {
            let inputs = wanted.len();
            started = Instant::now();
            let mut fetching = fetcher.start(Arc::clone(view), wanted);
            for index in 0..inputs {
                coins.push(fetching.take(index)?);
            }
        } else {
            started = Instant::now();
            for outpoint in &wanted {
                coins.push(view.coin(outpoint)?);
            }
        }
        Ok((coins, started.elapsed()))
    }
}

/// An endless sequence of blocks.
struct RandomBlocks {
    coins: u32,
    rng: Rng,
}

impl RandomBlocks {
    /// Random inputs, and the numbers of their coins.
    fn next(&mut self, inputs: u32) -> (Vec<OutPoint>, Vec<u32>) {
        let numbers = (0..inputs).map(|_| self.rng.below(self.coins.into()) as u32);
        let numbers: Vec<u32> = numbers.collect();
        (numbers.iter().map(|&number| outpoint(number)).collect(), numbers)
    }
}

fn check(numbers: &[u32], coins: &[Option<CoinBytes>]) -> Result<(), BenchError> {
    for (&number, found) in numbers.iter().zip(coins) {
        if found.as_ref() != Some(&coin(number)) {
            return Err(wrong_coin(&outpoint(number), found.as_ref()));
        }
    }
    Ok(())
}

fn compared(turns: &[FetchTurn]) -> Vec<WithThreads> {
    let threads = |turn: &FetchTurn| turn.fetcher.as_ref().map(PrevoutFetcher::threads);
    let off = turns.iter().find(|turn| threads(turn) == Some(0));
    let measured = |turn: &FetchTurn| {
        let block_ms = MeasuredSpread::of(&turn.rounds_ms)?;
        let times_faster =
            off.and_then(|off| MeasuredSpread::of_ratios(&off.rounds_ms, &turn.rounds_ms));
        Some(WithThreads { threads: threads(turn), block_ms, times_faster })
    };
    turns.iter().filter_map(measured).collect()
}

/// The error if threads could not be started.
pub(crate) fn no_threads(threads: usize, error: impl Display) -> BenchError {
    let message = format!("cannot start {threads} threads: {error}: use fewer (--threads)");
    BenchError::new(ErrorKind::Io, message)
}

/// The error if a returned coin differs from the stored one.
pub(crate) fn wrong_coin(outpoint: &OutPoint, found: Option<&CoinBytes>) -> BenchError {
    BenchError::different(format_args!(
        "coin {outpoint} came back as {found:?}: the store or the fetcher is broken"
    ))
}

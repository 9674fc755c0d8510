//! Joins all coins that segments created with all spends that they left open.
//!
//! The sizes of the runs' sections determine how the keys are divided into partitions of about equal bytes,
//! regardless of the distribution of the keys. Threads join one partition after another, and
//! [follow each other](SharedScan) through the runs; the results of a thread's partitions go into its own
//! runs.

use super::base_set::{BaseSet, OverwrittenCoin};
use super::coin_hashes::WantedHashes;
use super::join_result::JoinResult;
use super::part_sink::PartSink;
use super::spill::HeldMemory;
use crate::engines::mergesync::{FirstPass, Join, OutputRecord, SegmentSummary, SpendRecord};
use crate::engines::pass::RunKind;
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::RunEnv;
use crate::runs::{
    KeyRange, MergeBudget, OutputForm, RunMerger, Runs, SharedScan, SpendForm, divide,
};
use crate::workdir::index::prefix;
use crate::workdir::{FinishedRange, RunInfo, damaged, runs_of};
use apus_chain::Height;
use apus_storage::Storage;
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeSet;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};

/// Records between two checks for an interrupt.
const RECORDS_BETWEEN_LOOKS: u64 = 4096;

/// The segments' runs that the join reads.
pub(super) const JOINED_RUNS: [RunKind; 2] = [FirstPass::MADE, FirstPass::SPENT];

/// Bytes merged into longer runs between two progress reports.
const MERGED_BETWEEN_NEWS: u64 = 8 << 20;

/// Minimum size of a partition; a smaller one is not worth a pass through all runs.
const PART_BYTES_MIN: u64 = 256 << 10;

/// Minimum number of partitions for each thread, so that no thread waits long for the others at the end.
const PARTS_EACH: u64 = 8;

/// Maximum number of partitions in progress for each thread. Sections of runs stay in memory until the
/// slowest thread is done with them.
const AHEAD_EACH: usize = 2;

/// Memory for reading the segments' runs, not counting runs that are held in memory. For a small request it
/// exceeds the memory budget, because otherwise many short runs would have to be merged into longer ones first;
/// the segments, which took more, are freed by then.
pub(super) fn memory_bytes(env: &RunEnv<'_>) -> u64 {
    memory_for_joining(env.memory_bytes)
}

/// Computes this from a request's memory.
fn memory_for_joining(memory_bytes: u64) -> u64 {
    (memory_bytes / 2).max(memory_bytes.saturating_mul(4).min(64 << 20))
}

/// How many runs of coins, and of spends, are joined at a time, given a request's memory and threads: half of
/// the memory holds sections of them, which threads share. If there are too many, they are first merged into
/// longer ones with all of the memory, so that even tens of thousands of runs are written only once more, and
/// not twice.
pub(super) fn merge_budget(memory_bytes: u64, threads: usize) -> MergeBudget {
    let bytes = memory_for_joining(memory_bytes);
    MergeBudget::new(bytes / 4).by(threads).making(bytes)
}

/// Bytes of records in a partition. The partitions in progress, not counting the shared sections, take an
/// eighth of the memory.
fn part_bytes(memory_bytes: u64, threads: usize) -> u64 {
    let under_way = (AHEAD_EACH * threads) as u64;
    (memory_for_joining(memory_bytes) / (8 * under_way)).max(PART_BYTES_MIN)
}

/// Memory for the results of a thread's partitions, in bytes: answers, places, hashes.
pub(super) fn spill_bytes(memory_bytes: u64, threads: usize) -> [u64; 3] {
    let share = memory_for_joining(memory_bytes) / threads as u64;
    [share / 4, share / 16, share / 8]
}

/// Memory for the results of all partitions, in bytes.
fn held_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 16
}

/// Options of a join.
#[derive(Clone, Copy)]
pub struct JoinOptions<'a> {
    /// Whether coins are followed by their numbers.
    pub numbered: bool,
    /// The hashes of surviving coins, if they are wanted; the coins must be numbered then.
    pub hashes: Option<WantedHashes<'a>>,
    /// Whether to compute the MuHash of the surviving coins.
    pub muhash: bool,
    /// The last block that gets stripped coins.
    pub bare: Height,
    /// Whether results are made durable; otherwise they may stay in memory.
    pub durable: bool,
    /// The part of the chain that is joined.
    pub span: BatchSpan,
    /// The last block of this batch if its surviving coins become a base.
    pub next_base: Option<Height>,
    /// Coins of earlier batches that were overwritten, and whose hashes are wanted.
    pub overwritten: &'a [OverwrittenCoin],
}

/// The part of a chain that a join processes, in bytes of blocks, which may be estimates: for progress.
#[derive(Debug, Clone, Copy)]
pub struct BatchSpan {
    /// Blocks below.
    pub below: u64,
    /// The joined blocks.
    pub joined: u64,
    /// All blocks.
    pub all: u64,
    /// Whether no joined blocks follow.
    pub is_last: bool,
}

impl BatchSpan {
    /// All blocks at once, if their size does not matter.
    pub const WHOLE: Self = Self { below: 0, joined: 1 << 20, all: 1 << 20, is_last: true };

    /// The progress over all blocks when this many of the records are joined.
    fn progress(&self, records: u64, records_total: u64) -> Progress {
        let joined =
            u128::from(self.joined) * u128::from(records) / u128::from(records_total.max(1));
        let bytes = self.below + joined as u64;
        Progress { bytes, bytes_total: self.all, ..Progress::default() }
    }
}

/// Joins the coins of a base with the segments' records.
pub(super) fn join(
    env: &RunEnv<'_>,
    base: &BaseSet,
    done: &[FinishedRange<SegmentSummary>],
    options: JoinOptions<'_>,
) -> Result<JoinResult, SyncError> {
    env.observer.event(Event::Started(Phase::Join));
    let runs = JOINED_RUNS.map(|kind| runs_of(done, kind));
    let bytes_total: u64 = runs.iter().flatten().chain(&base.runs).map(|run| run.bytes).sum();
    let budget = merge_budget(env.memory_bytes, env.threads);
    let records_total: u64 =
        runs.iter().map(|runs| budget.bytes_to_merge(runs)).sum::<u64>() + bytes_total;
    let merged = AtomicU64::new(0);
    let go_on = |bytes| {
        let before = merged.fetch_add(bytes, Ordering::Relaxed);
        if before / MERGED_BETWEEN_NEWS < (before + bytes) / MERGED_BETWEEN_NEWS {
            let progress = options.span.progress(before + bytes, records_total);
            env.observer.event(Event::Progress(Phase::Join, progress));
        }
        stop_if_interrupted(env.interrupt)
    };
    let [made, spent] = runs;
    let made = Runs::open(env.workdir, made, budget, &go_on)?.with(&base.runs)?;
    let spent = Runs::open(env.workdir, spent, budget, &go_on)?;
    let of_bytes = bytes_total / part_bytes(env.memory_bytes, env.threads);
    let least = (bytes_total / PART_BYTES_MIN).min(PARTS_EACH * env.threads as u64);
    let parts = divide(made.sections().chain(spent.sections()), of_bytes.max(least).max(1));
    let joining = JoinThreads::new((env, options), base.at.height, made, spent, parts)?;
    let joined = joining.run(merged.into_inner(), records_total)?;
    let bytes = joining.close()?;
    let is_whole = joined.balance.is_even() && joined.balance.of_base == base.coins;
    if !is_whole {
        return Err(damaged(env.workdir));
    }
    let phase = Phase::Join;
    env.observer.event(match options.span.is_last {
        true => Event::Ended { phase, bytes },
        false => Event::Paused { phase, bytes },
    });
    Ok(joined)
}

/// Joins the records of some keys on this thread, and calls `alive` periodically.
pub fn join_keys(
    env: &RunEnv<'_>,
    [made, spent]: [Vec<RunInfo>; 2],
    keys: KeyRange,
    options: JoinOptions<'_>,
    alive: &(dyn Fn() + Sync),
) -> Result<JoinResult, SyncError> {
    let go_on = |_| {
        alive();
        stop_if_interrupted(env.interrupt)
    };
    let budget = MergeBudget::new(memory_bytes(env) / 8);
    let made = Runs::open(env.workdir, made, budget, &go_on)?;
    let spent = Runs::open(env.workdir, spent, budget, &go_on)?;
    let mut sink = PartSink::new(env, 0, &options)?;
    let both = (made.part(keys)?, spent.part(keys)?);
    join_records(env.workdir, both, (0, &mut sink), &go_on)?;
    made.close()?;
    spent.close()?;
    let joined = sink.finish(&HeldMemory::new(held_bytes(env.memory_bytes)), options.durable)?;
    match joined.balance.is_even() {
        true => Ok(joined),
        false => Err(damaged(env.workdir)),
    }
}

/// Joins coins, which up to a height are the base's, with spends. Calls `go_on` periodically with the bytes of
/// records since the last call; an error from it stops the join.
fn join_records(
    storage: &dyn Storage,
    (mut made, mut spent): (RunMerger<'_, OutputForm>, RunMerger<'_, SpendForm>),
    (base, sink): (Height, &mut PartSink<'_>),
    go_on: &dyn Fn(u64) -> Result<(), SyncError>,
) -> Result<(), SyncError> {
    let damaged = || damaged(storage);
    let mut join = Join::new(sink).above(base);
    let mut bytes = 0;
    made.next()?;
    spent.next()?;
    for number in 1u64.. {
        if number.is_multiple_of(RECORDS_BETWEEN_LOOKS) {
            go_on(std::mem::take(&mut bytes))?;
        }
        match (made.current(), spent.current()) {
            (Some(coin), spend) if spend.is_none_or(|spend| is_up_to(coin, spend)) => {
                bytes += coin.len() as u64;
                join.made(&OutputRecord::read(coin).ok_or_else(damaged)?.0)?;
                made.next()?;
            }
            (_, Some(spend)) => {
                bytes += spend.len() as u64;
                join.spent(&SpendRecord::read(spend).ok_or_else(damaged)?.0)?;
                spent.next()?;
            }
            (_, None) => break,
        }
    }
    let taken = join.finish()?;
    sink.joined.balance.all += taken.all;
    sink.joined.balance.of_base += taken.of_base;
    go_on(bytes)
}

/// State shared by the threads.
struct JoinThreads<'a> {
    env: &'a RunEnv<'a>,
    options: JoinOptions<'a>,
    /// The last block of the base.
    base: Height,
    made: SharedScan<'a, OutputForm>,
    spent: SharedScan<'a, SpendForm>,
    parts: Vec<KeyRange>,
    claims: Mutex<PartitionClaims>,
    /// A partition was joined, or a thread failed.
    moved: Condvar,
    halt: AtomicBool,
    /// Memory for the results.
    held: HeldMemory,
    /// Bytes of joined records.
    bytes: AtomicU64,
}

/// The partitions that threads are working on.
#[derive(Default)]
struct PartitionClaims {
    /// The first partition that no thread has claimed.
    next: usize,
    under_way: BTreeSet<usize>,
}

/// The result of a thread's partitions.
type Outcome = Result<JoinResult, SyncError>;

impl<'a> JoinThreads<'a> {
    fn new(
        (env, options): (&'a RunEnv<'a>, JoinOptions<'a>),
        base: Height,
        made: Runs<'a, OutputForm>,
        spent: Runs<'a, SpendForm>,
        parts: Vec<KeyRange>,
    ) -> Result<Self, SyncError> {
        Ok(Self {
            env,
            options,
            base,
            made: SharedScan::open(made, 0, env.threads)?,
            spent: SharedScan::open(spent, 0, env.threads)?,
            parts,
            claims: Mutex::default(),
            moved: Condvar::new(),
            halt: AtomicBool::new(false),
            held: HeldMemory::new(held_bytes(env.memory_bytes)),
            bytes: AtomicU64::new(0),
        })
    }

    /// Removes temporary files. Returns how many bytes of records were joined.
    fn close(self) -> Result<u64, SyncError> {
        self.made.close()?;
        self.spent.close()?;
        Ok(self.bytes.into_inner())
    }

    /// Joins all partitions. `merged` of `records_total` bytes are already processed.
    fn run(&self, merged: u64, records_total: u64) -> Outcome {
        let workers = self.env.threads.min(self.parts.len());
        let mut whole = JoinResult::default();
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel::<Outcome>(workers);
            let mut failure = None;
            for index in 0..workers {
                let send = send.clone();
                let spawned = std::thread::Builder::new()
                    .name(format!("join-{index}"))
                    .spawn_scoped(scope, move || drop(send.send(self.parts(index))));
                if let Err(error) = spawned {
                    self.halt();
                    failure = Some(SyncError::Io(IoError::Threads { wanted: workers, error }));
                    break;
                }
            }
            drop(send);
            loop {
                match receive.recv_timeout(PROGRESS_INTERVAL) {
                    Ok(Ok(joined)) => whole.add(joined),
                    Ok(Err(error)) => {
                        // Threads that were halted by a failing one report only the halt.
                        if matches!(failure, None | Some(SyncError::Interrupted)) {
                            failure = Some(error);
                        }
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let records = merged + self.bytes.load(Ordering::Relaxed);
                let progress = self.options.span.progress(records, records_total);
                self.env.observer.event(Event::Progress(Phase::Join, progress));
            }
            failure.map_or(Ok(()), Err)
        })?;
        Ok(whole)
    }

    /// Stops all threads.
    fn halt(&self) {
        self.halt.store(true, Ordering::Relaxed);
        // Wait for a thread that is just checking the flag, so that it gets the notification.
        drop(self.claims.lock());
        self.moved.notify_all();
    }

    /// Claims the next partition, once it is not too far ahead of the slowest thread; `None` if there are no
    /// more. `last` is the partition that this thread has just joined.
    fn claim(&self, last: Option<usize>) -> Option<usize> {
        let mut claims = self.claims.lock();
        if let Some(last) = last {
            claims.under_way.remove(&last);
            self.moved.notify_all();
        }
        let ahead = AHEAD_EACH * self.env.threads;
        let is_ahead = |claims: &mut PartitionClaims| {
            let lowest = claims.under_way.first().copied().unwrap_or(claims.next);
            claims.next < self.parts.len() && claims.next >= lowest + ahead && !self.halted()
        };
        self.moved.wait_while(&mut claims, is_ahead);
        if self.halted() || claims.next == self.parts.len() {
            return None;
        }
        let part = claims.next;
        claims.next += 1;
        claims.under_way.insert(part);
        Some(part)
    }

    fn halted(&self) -> bool {
        self.halt.load(Ordering::Relaxed)
    }

    /// Stops the thread if the join was halted; called periodically.
    fn go_on(&self, bytes: u64) -> Result<(), SyncError> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        match self.halted() {
            true => Err(SyncError::Interrupted),
            false => stop_if_interrupted(self.env.interrupt),
        }
    }

    /// Runs one thread: joins partitions until none is left.
    fn parts(&self, thread: usize) -> Outcome {
        let mut guard = HaltUnlessDone { of: self, done: false };
        let mut sink = PartSink::new(self.env, thread, &self.options)?;
        if thread == 0 {
            self.options.overwritten.iter().try_for_each(|coin| sink.hash_overwritten(coin))?;
        }
        let mut next = self.claim(None);
        while let Some(part) = next {
            self.part(self.parts[part], &mut sink)?;
            next = self.claim(Some(part));
        }
        // If the join was halted, fail before storing an incomplete result.
        self.go_on(0)?;
        let joined = sink.finish(&self.held, self.options.durable)?;
        guard.done = true;
        Ok(joined)
    }

    /// Joins a partition.
    fn part(&self, keys: KeyRange, sink: &mut PartSink<'_>) -> Result<(), SyncError> {
        // Take from both before anything else can fail: the next thread waits for both.
        let (made, spent) = (self.made.take(keys)?, self.spent.take(keys)?);
        let both = (self.made.merge(made)?, self.spent.merge(spent)?);
        join_records(self.env.workdir, both, (self.base, sink), &|bytes| self.go_on(bytes))
    }
}

/// Halts the other threads if this one fails or panics.
struct HaltUnlessDone<'j, 'a> {
    of: &'j JoinThreads<'a>,
    done: bool,
}

impl Drop for HaltUnlessDone<'_, '_> {
    fn drop(&mut self) {
        if !self.done {
            self.of.halt();
        }
    }
}

/// Whether the transaction of a coin's record does not sort after the transaction of a spend's record.
fn is_up_to(coin: &[u8], spend: &[u8]) -> bool {
    let (made, spent) = (prefix(coin), prefix(spend));
    made < spent || (made == spent && coin[..32] <= spend[..32])
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pass::held_bytes_max;
    use crate::progress::SilentObserver;
    use crate::workdir::index::SECTION_BYTES;
    use apus_chain::{Network, Params};
    use apus_testkit::storage::CrashStorage;
    use std::time::Duration;

    /// An attacker can make thousands of ids with equal first bytes.
    #[test]
    fn ids_are_compared_in_full() {
        let id = |first: u8, last: u8| {
            let mut record = [7; 40];
            (record[0], record[31]) = (first, last);
            record
        };
        // Bytes after the id do not belong to it.
        let with = |mut record: [u8; 40], behind: u8| {
            record[32..].fill(behind);
            record
        };
        for first in 1..3 {
            for last in 1..3 {
                let (this, other) = (id(first, last), id(2, 2));
                let (up_to, at_least) = ((first, last) <= (2, 2), (first, last) >= (2, 2));
                for behind in [0, 9] {
                    assert_eq!(is_up_to(&with(this, behind), &other), up_to, "{first} {last}");
                    assert_eq!(is_up_to(&other, &with(this, behind)), at_least, "{first} {last}");
                }
            }
        }
    }

    /// Sections stay in memory until the slowest thread is done with them.
    #[test]
    fn no_thread_is_far_ahead_of_the_slowest() {
        let (storage, stop) = (CrashStorage::new(), AtomicBool::new(false));
        let env = RunEnv::new(Params::of(Network::Regtest), &storage, &SilentObserver, &stop);
        let env = RunEnv { threads: 2, ..env };
        let options = JoinOptions {
            numbered: false,
            hashes: None,
            muhash: false,
            bare: 0,
            durable: false,
            span: BatchSpan::WHOLE,
            next_base: None,
            overwritten: &[],
        };
        let budget = MergeBudget::new(0);
        let made = Runs::open(&storage, Vec::new(), budget, &|_| Ok(())).unwrap();
        let spent = Runs::open(&storage, Vec::new(), budget, &|_| Ok(())).unwrap();
        let parts = vec![KeyRange::ALL; 7];
        let joining = JoinThreads::new((&env, options), 0, made, spent, parts).unwrap();
        let ahead: Vec<_> = (0..4).map(|_| joining.claim(None)).collect();
        assert_eq!(ahead, [Some(0), Some(1), Some(2), Some(3)]);
        std::thread::scope(|scope| {
            // Finishing a later partition makes no room.
            let next = scope.spawn(|| joining.claim(Some(2)));
            std::thread::sleep(Duration::from_millis(20));
            assert!(!next.is_finished());
            let mut claimed = [0, 1].map(|slowest| joining.claim(Some(slowest))).to_vec();
            claimed.push(next.join().unwrap());
            claimed.sort_unstable();
            assert_eq!(claimed, [Some(4), Some(5), Some(6)]);
        });
        assert_eq!(joining.claim(Some(3)), None, "all are claimed");
        joining.halt();
        assert_eq!(joining.claim(None), None);
    }

    #[test]
    fn memory_is_half_or_enough_for_one_pass() {
        let of = memory_for_joining;
        assert_eq!([0, 1, 4 << 10].map(of), [0, 4, 16 << 10]);
        assert_eq!([16 << 20, 100 << 20, 128 << 20].map(of), [64 << 20; 3]);
        assert_eq!([130 << 20, 450 << 20, u64::MAX].map(of), [65 << 20, 225 << 20, u64::MAX / 2]);
    }

    /// Holds for any number of threads, including the memory that segments hold, unless partitions have the
    /// minimum size.
    #[test]
    fn a_join_stays_within_the_memory_of_a_sync() {
        for (memory_bytes, threads) in
            [(450 << 20, 1), (450 << 20, 2), (450 << 20, 16), (8 << 30, 64)]
        {
            let budget = merge_budget(memory_bytes, threads);
            assert_eq!(budget.threads, threads);
            let sections = 2 * (budget.fan_in * SECTION_BYTES) as u64;
            let parts = (AHEAD_EACH * threads) as u64 * part_bytes(memory_bytes, threads);
            let [answers, places, hashes] = spill_bytes(memory_bytes, threads);
            assert!(answers > hashes && hashes > places && places > 0);
            let spilled = threads as u64 * (answers + places + hashes);
            let joining = memory_for_joining(memory_bytes);
            assert!(parts <= joining / 8 && parts > joining / 9, "{memory_bytes} {threads}");
            assert!(sections <= joining / 2 && spilled <= joining / 2);
            let held = held_bytes(memory_bytes) + held_bytes_max(memory_bytes);
            assert!(sections + parts + spilled + held <= memory_bytes, "{memory_bytes} {threads}");
            let making = (budget.open_max * SECTION_BYTES) as u64;
            assert!(making + held_bytes_max(memory_bytes) <= memory_bytes, "{threads}");
        }
    }
}

//! `hash_set`: computes `hash_serialized_3` of a set on all threads, if the set has no other consumer.
//!
//! The hash is one chain of compressions, in which each needs the one before. But most of the work is to read
//! and merge runs, and to build the hashed bytes of each coin. The threads do that work for one part of the
//! keys at a time, and a thread that finds the next part of the chain ready adds it. The threads run only a
//! bounded distance ahead of the chain, and [follow one another](SharedScan) through the runs. If memory is too
//! small for that, one thread merges, and another hashes.

use super::{HashSink, each_coin_of};
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::RunEnv;
use crate::runs::{
    CoinsForm, EachRecord, KeyRange, MergeBudget, Runs, SharedScan, divide, merge_runs,
};
use crate::supply::OnPanic;
use crate::workdir::RunInfo;
use apus_chain::{HashSerialized3, UtxoElements};
use parking_lot::{Condvar, Mutex};
use std::collections::BTreeMap;
use std::panic::resume_unwind;

/// Number of parts for each thread.
const PARTS_EACH: u64 = 16;

/// Parts in progress for each thread: parts that are claimed or wait for the chain.
const AHEAD: usize = 2;

/// Minimum size of a part: a smaller one is not worth opening readers.
const PART_BYTES_MIN: u64 = 1 << 20;

/// Records between two checks for an interrupt.
const RECORDS_BETWEEN_LOOKS: u64 = 4096;

/// Hashes the coins in these runs, whose total length is `bytes`.
pub(super) fn hash_set(
    env: &RunEnv<'_>,
    runs: Vec<RunInfo>,
    bytes_total: u64,
) -> Result<SetHash, SyncError> {
    if !has_memory(env) {
        return hash_by_one(env, runs, bytes_total);
    }
    let budget = MergeBudget::new(env.memory_bytes / 2).by(threads(env));
    let go_on = |_| stop_if_interrupted(env.interrupt);
    let runs = Runs::<CoinsForm>::open(env.workdir, runs, budget, &go_on)?;
    let parts = parts(&runs, env, bytes_total);
    let hashing = SetHasher::of(env, runs, parts)?;
    let hashed = hashing.run(bytes_total)?;
    hashing.runs.close()?;
    Ok(hashed)
}

/// Returns the number of threads: at least two if machines share a sync, because all of them wait for this one,
/// and a second thread can read coins while the first hashes.
fn threads(env: &RunEnv<'_>) -> usize {
    let least = if env.is_shared { 2 } else { 1 };
    env.threads.max(least)
}

/// Returns whether several threads are available, and memory for the coins that they read ahead of the chain.
fn has_memory(env: &RunEnv<'_>) -> bool {
    let threads = threads(env);
    threads > 1 && env.memory_bytes >= 16 * PART_BYTES_MIN * threads as u64
}

/// Divides all keys into parts, so small that all parts in progress fit into memory.
fn parts(runs: &Runs<'_, CoinsForm>, env: &RunEnv<'_>, bytes: u64) -> Vec<KeyRange> {
    let threads = threads(env) as u64;
    let for_memory = bytes / (env.memory_bytes / (16 * threads)).max(1);
    let wanted = (PARTS_EACH * threads).min(bytes / PART_BYTES_MIN + 1);
    divide(runs.sections(), wanted.max(for_memory))
}

/// Merges on one thread, which also hashes if it is the only one.
fn hash_by_one(
    env: &RunEnv<'_>,
    runs: Vec<RunInfo>,
    bytes_total: u64,
) -> Result<SetHash, SyncError> {
    let mut hash = HashSink::default();
    let total = Progress { bytes_total, ..Progress::default() };
    super::put::hand_out(env, total, &mut hash, &mut Vec::new(), None, |each| {
        merge_all(env, runs, each)
    })?;
    Ok(SetHash { coins: hash.coins(), hash_serialized_3: hash.finish() })
}

/// State shared by the threads.
struct SetHasher<'a> {
    env: &'a RunEnv<'a>,
    runs: SharedScan<'a, CoinsForm>,
    parts: Vec<KeyRange>,
    state: Mutex<SetHasherState>,
    /// Signals that the chain grew, or a thread failed.
    moved: Condvar,
}

#[derive(Default)]
struct SetHasherState {
    /// The chain; `None` while a thread adds to it.
    hash: Option<HashSerialized3>,
    /// The first part that is not in the chain.
    next: usize,
    /// The first part that no thread has claimed.
    unclaimed: usize,
    /// Parts ready for the chain beyond the next.
    ready: BTreeMap<usize, KeyPart>,
    /// Memory of parts already in the chain, for reuse.
    spare: Vec<UtxoElements>,
    bytes: u64,
    coins: u64,
    failure: Option<SyncError>,
    /// Whether a thread panicked; joining the threads reports it.
    panicked: bool,
}

/// The content of one part.
#[derive(Default)]
struct KeyPart {
    elements: UtxoElements,
    bytes: u64,
    coins: u64,
}

impl<'a> SetHasher<'a> {
    fn of(
        env: &'a RunEnv<'a>,
        runs: Runs<'a, CoinsForm>,
        parts: Vec<KeyRange>,
    ) -> Result<Self, SyncError> {
        let runs = SharedScan::open(runs, 0, threads(env))?;
        let state =
            SetHasherState { hash: Some(HashSerialized3::new()), ..SetHasherState::default() };
        Ok(Self { env, runs, parts, state: Mutex::new(state), moved: Condvar::new() })
    }

    fn run(&self, bytes_total: u64) -> Result<SetHash, SyncError> {
        let workers = threads(self.env).min(self.parts.len());
        std::thread::scope(|scope| {
            let mut threads = Vec::new();
            for _ in 0..workers {
                let builder = std::thread::Builder::new().name("coins".to_owned());
                match builder.spawn_scoped(scope, || self.work()) {
                    Ok(thread) => threads.push(thread),
                    Err(error) => {
                        self.fail(SyncError::Io(IoError::Threads { wanted: workers, error }));
                        break;
                    }
                }
            }
            self.watch(bytes_total);
            threads.into_iter().try_for_each(std::thread::ScopedJoinHandle::join)
        })
        .unwrap_or_else(|panic| resume_unwind(panic));
        let mut state = self.state.lock();
        match (state.failure.take(), state.hash.take()) {
            (None, Some(hash)) => {
                Ok(SetHash { coins: state.coins, hash_serialized_3: hash.finish().0 })
            }
            (failure, _) => Err(failure.unwrap_or(SyncError::Interrupted)),
        }
    }

    /// Records why there is no hash. A thread that waited for a failed one only reports an interrupt, which
    /// never replaces the cause.
    fn fail(&self, error: SyncError) {
        let mut state = self.state.lock();
        if matches!(state.failure, None | Some(SyncError::Interrupted)) {
            state.failure = Some(error);
        }
        self.moved.notify_all();
    }

    /// Reports the progress of the chain until it is complete or failed.
    fn watch(&self, bytes_total: u64) {
        let mut state = self.state.lock();
        loop {
            let over = state.next == self.parts.len() || state.failure.is_some() || state.panicked;
            let (bytes, coins) = (state.bytes, state.coins);
            let progress = Progress { bytes, bytes_total, coins, ..Progress::default() };
            self.env.observer.event(Event::Progress(Phase::Coins, progress));
            if over {
                return;
            }
            self.moved.wait_for(&mut state, PROGRESS_INTERVAL);
        }
    }

    /// Processes parts until all are hashed.
    fn work(&self) {
        let _guard = OnPanic(|| {
            self.state.lock().panicked = true;
            self.moved.notify_all();
        });
        while let Some((at, elements)) = self.claim() {
            match self.part(self.parts[at], elements) {
                Ok(part) => self.add(at, part),
                Err(error) => self.fail(error),
            }
        }
    }

    /// Waits until the chain is close enough, then claims the next part and memory for it.
    fn claim(&self) -> Option<(usize, UtxoElements)> {
        let mut state = self.state.lock();
        loop {
            let at = state.unclaimed;
            if at == self.parts.len() || state.failure.is_some() || state.panicked {
                return None;
            }
            if at < state.next + AHEAD * threads(self.env) {
                state.unclaimed += 1;
                return Some((at, state.spare.pop().unwrap_or_default()));
            }
            self.moved.wait(&mut state);
        }
    }

    /// Reads the coins of a range of keys.
    fn part(&self, keys: KeyRange, elements: UtxoElements) -> Result<KeyPart, SyncError> {
        let mut part = KeyPart { elements, ..KeyPart::default() };
        let mut merging = self.runs.merge(self.runs.take(keys)?)?;
        for number in 1u64.. {
            if number.is_multiple_of(RECORDS_BETWEEN_LOOKS) {
                stop_if_interrupted(self.env.interrupt)?;
            }
            let Some(record) = merging.next()? else { break };
            part.bytes += record.len() as u64;
            part.coins +=
                each_coin_of(record, |outpoint, coin| part.elements.push(&outpoint, coin))?;
        }
        Ok(part)
    }

    /// Stores a ready part, and adds parts to the chain in their order, unless another thread does so.
    fn add(&self, at: usize, part: KeyPart) {
        let mut state = self.state.lock();
        state.ready.insert(at, part);
        loop {
            let next = state.next;
            if state.hash.is_none() || !state.ready.contains_key(&next) {
                return;
            }
            let (Some(mut hash), Some(part)) = (state.hash.take(), state.ready.remove(&next))
            else {
                return;
            };
            drop(state);
            let KeyPart { mut elements, bytes, coins } = part;
            hash.append(&mut elements);
            state = self.state.lock();
            state.hash = Some(hash);
            state.next += 1;
            (state.bytes, state.coins) = (state.bytes + bytes, state.coins + coins);
            state.spare.push(elements);
            self.moved.notify_all();
        }
    }
}

/// Passes the records of all runs to `each`, in the order of a snapshot.
pub fn merge_all(
    env: &RunEnv<'_>,
    runs: Vec<RunInfo>,
    each: &mut EachRecord<'_>,
) -> Result<(), SyncError> {
    let budget = MergeBudget::new(env.memory_bytes / 2);
    let go_on = |_| stop_if_interrupted(env.interrupt);
    merge_runs::<CoinsForm>(env.workdir, runs, budget, &go_on, each)
}

/// The set's hash, and its number of coins.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SetHash {
    pub hash_serialized_3: [u8; 32],
    pub coins: u64,
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::progress::SilentObserver;
    use crate::runs::first_record;
    use crate::workdir::index::RunIndex;
    use apus_chain::{Network, Params};
    use apus_storage::Storage;
    use apus_testkit::rng::Rng;
    use apus_testkit::storage::CrashStorage;
    use proptest::prelude::*;
    use std::sync::atomic::AtomicBool;

    const SECTION_BYTES: usize = 64;

    fn env<'a>(workdir: &'a dyn Storage, interrupt: &'a AtomicBool) -> RunEnv<'a> {
        RunEnv::new(Params::of(Network::Regtest), workdir, &SilentObserver, interrupt)
    }

    /// Makes the record of one transaction, as in a run.
    fn record(txid: [u8; 32], vouts: &[u8], rng: &mut Rng) -> Vec<u8> {
        let mut group = vec![vouts.len() as u8];
        for vout in vouts {
            // Height, amount, and a script of one opcode.
            group.extend([
                *vout,
                (rng.next_u64() % 100) as u8,
                (rng.next_u64() % 100) as u8,
                7,
                0x51,
            ]);
        }
        [&txid[..], &(group.len() as u32).to_le_bytes(), &group].concat()
    }

    fn held(name: usize, bytes: &[u8]) -> RunInfo {
        let index = RunIndex::cut(bytes, SECTION_BYTES, first_record::<CoinsForm>);
        RunInfo::held(format!("{name}.run"), bytes.to_vec(), index)
    }

    /// Writes a run, and returns its description.
    fn written(storage: &dyn Storage, run: RunInfo) -> RunInfo {
        let held = run.held.as_ref().unwrap();
        let bytes = [&held.bytes[..], &held.index.to_bytes()].concat();
        storage.create(&run.name).unwrap().write_all(&bytes).unwrap();
        RunInfo { held: None, ..run }
    }

    /// Hashes the runs in about this many parts.
    fn in_parts(env: &RunEnv<'_>, runs: &[RunInfo], parts: u64) -> Result<SetHash, SyncError> {
        let budget = MergeBudget::new(1 << 30);
        let runs = Runs::<CoinsForm>::open(env.workdir, runs.to_vec(), budget, &|_| Ok(()))?;
        let parts = divide(runs.sections(), parts);
        SetHasher::of(env, runs, parts)?.run(0)
    }

    fn by_one(env: &RunEnv<'_>, runs: &[RunInfo]) -> SetHash {
        hash_by_one(env, runs.to_vec(), 0).unwrap()
    }

    /// Makes `txs` transactions and distributes them over `count` runs, some of which are files.
    fn some_runs(storage: &dyn Storage, txs: u64, count: usize, rng: &mut Rng) -> Vec<RunInfo> {
        let mut runs = vec![Vec::new(); count];
        for tx in 0..txs {
            // Some ids begin with the same bytes.
            let spread = if tx % 3 == 0 { tx } else { tx << 56 | tx };
            let mut txid = [0; 32];
            txid[..8].copy_from_slice(&spread.to_be_bytes());
            let vouts: Vec<u8> = (0..=(rng.next_u64() % 5) as u8).rev().collect();
            let run = (rng.next_u64() % count as u64) as usize;
            runs[run].push((txid, record(txid, &vouts, rng)));
        }
        let sorted = runs.into_iter().map(|mut run| {
            run.sort_unstable();
            run.dedup_by_key(|(txid, _)| *txid);
            run.into_iter().flat_map(|(_, record)| record).collect::<Vec<u8>>()
        });
        let held = sorted.enumerate().map(|(name, bytes)| held(name, &bytes));
        let place = |run: RunInfo| match run.name.as_bytes()[0] % 2 {
            0 => written(storage, run),
            _ => run,
        };
        held.map(place).collect()
    }

    proptest! {
        #[test]
        fn parts_on_any_threads_have_the_hash_of_the_whole(
            txs in 0u64..200,
            runs in 1usize..6,
            parts in 1u64..40,
            threads in 1usize..5,
            seed: u64,
        ) {
            let (storage, stop) = (CrashStorage::new(), AtomicBool::new(false));
            let runs = some_runs(&storage, txs, runs, &mut Rng::new(seed));
            let env = RunEnv { threads, ..env(&storage, &stop) };
            let hashed = in_parts(&env, &runs, parts).unwrap();
            prop_assert_eq!(hashed, by_one(&env, &runs));
        }
    }

    #[test]
    fn many_threads_take_parts_where_there_is_memory_for_it() {
        let (storage, stop) = (CrashStorage::new(), AtomicBool::new(false));
        let with = |threads, mebibytes: u64| RunEnv {
            threads,
            memory_bytes: mebibytes << 20,
            ..env(&storage, &stop)
        };
        assert!(has_memory(&with(2, 450)) && has_memory(&with(16, 256)));
        assert!(!has_memory(&with(1, 450)), "one thread");
        assert!(!has_memory(&with(16, 16)), "little memory");

        let runs = some_runs(&storage, 100, 3, &mut Rng::new(5));
        let env = with(2, 450);
        let hashed = hash_set(&env, runs.clone(), 10_000).unwrap();
        assert_eq!(hashed, by_one(&env, &runs));
        assert!(hashed.coins > 100);
    }

    #[test]
    fn damage_and_interruption_are_reported() {
        let (storage, stop) = (CrashStorage::new(), AtomicBool::new(false));
        let env = RunEnv { threads: 3, ..env(&storage, &stop) };
        let mut runs = some_runs(&storage, 400, 2, &mut Rng::new(9));
        // This coin ends in the middle of its script.
        let mut bad = record([255; 32], &[0], &mut Rng::new(1));
        let last = bad.len() - 2;
        bad[last] = 90;
        runs.push(held(7, &bad));
        let error = in_parts(&env, &runs, 20).unwrap_err();
        assert!(matches!(error, SyncError::Io(IoError::Group { txid, .. }) if txid.0 == [255; 32]));

        runs.pop();
        let file = runs.iter().find(|run| run.held.is_none()).unwrap();
        let mut bytes = Vec::new();
        storage.open(&file.name, 0).unwrap().read_to_end(&mut bytes).unwrap();
        bytes[file.bytes as usize / 2] ^= 1;
        storage.create(&file.name).unwrap().write_all(&bytes).unwrap();
        let error = in_parts(&env, &runs, 20).unwrap_err();
        assert!(
            matches!(&error, SyncError::Io(IoError::RunDamaged { run, .. }) if *run == file.name)
        );

        let many = some_runs(&storage, 20_000, 1, &mut Rng::new(3));
        stop.store(true, std::sync::atomic::Ordering::Relaxed);
        let error = in_parts(&env, &many, 2).unwrap_err();
        assert!(matches!(error, SyncError::Interrupted), "{error}");
    }
}

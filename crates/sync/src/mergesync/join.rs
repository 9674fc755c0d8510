//! The join: all coins that segments made with all spends that they left.
//!
//! Keys are divided into parts of about as many bytes each, by what the runs' sections hold, whatever the
//! keys are like. Threads join one part after the other; no two of them meet.

use super::joined::Joined;
use super::leaves::{LeafKeys, LeafSink};
use super::spill::{Held, Spill};
use crate::error::{IoError, SyncError};
use crate::progress::{Event, PROGRESS_INTERVAL, Phase, Progress, stop_if_interrupted};
use crate::request::Request;
use crate::runs::{
    Answers, Group, KeyRange, Made, MergeBudget, Merging, Places, RunWriter, Runs, Spent, divide,
};
use crate::sink::TotalsSink;
use crate::workdir::index::{SECTION_BYTES, prefix};
use crate::workdir::names::SPILL;
use crate::workdir::{Done, RunInfo, runs_of};
use apus_chain::{Height, OutPoint};
use apus_engine::mergesync::{
    AnswerRecord, Gathered, Join, JoinSink, MadeRecord, NumberedCoin, SpentRecord,
};
use apus_engine::pass::RunKind;
use apus_engine::utxo::CoinBytes;
use apus_storage::Storage;
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};

/// Records between two looks at whether the run is interrupted.
const RECORDS_BETWEEN_LOOKS: u64 = 4096;

/// What segments leave for it.
pub(super) const JOINED_RUNS: [RunKind; 2] = [RunKind::Made, RunKind::Spent];

/// The smallest parts for each thread, so that none waits long for the others at the end.
const PARTS_EACH: u64 = 128;

/// A smaller part is not worth its files.
const PART_BYTES_MIN: u64 = 1 << 20;

/// Memory that there is for what segments left, beside those of them that are held. Where the run has little it is more
/// than its budget: many short runs would have to be merged into longer ones before, and segments themselves, which took
/// more, are gone by then.
pub(super) fn memory_bytes(request: &Request<'_>) -> u64 {
    memory_for_joining(request.memory_bytes)
}

/// The same of a request's memory.
fn memory_for_joining(memory_bytes: u64) -> u64 {
    (memory_bytes / 2).max(memory_bytes.saturating_mul(4).min(64 << 20))
}

/// How many runs are joined at a time, by a request's memory and threads: half of what there is memory for is sections
/// of them, those of coins and those of spends.
pub(super) fn merge_budget(memory_bytes: u64, threads: usize) -> MergeBudget {
    let budget = MergeBudget::new(memory_for_joining(memory_bytes) / (4 * threads as u64));
    MergeBudget { threads, ..budget }
}

/// Memory for what comes of a part while it is joined, in bytes: answers, places, leaves.
fn spill_bytes(memory_bytes: u64, threads: usize) -> [u64; 3] {
    let share = memory_for_joining(memory_bytes) / threads as u64;
    [share / 4, share / 16, share / 8]
}

/// Memory for what came of all parts, in bytes.
fn held_bytes(memory_bytes: u64) -> u64 {
    memory_bytes / 16
}

/// How coins are joined.
#[derive(Clone, Copy)]
pub(super) struct JoinOptions<'a> {
    /// Whether they have the numbers of their leaves behind them.
    pub(super) numbered: bool,
    /// By what the leaves that survive are sorted, if they are wanted; then coins are numbered.
    pub(super) leaves: Option<LeafKeys<'a>>,
    /// Whether the MuHash of what survives is wanted.
    pub(super) muhash: bool,
    /// The last block that is answered with bare coins.
    pub(super) bare: Height,
    /// Whether what comes of it is made durable; else it may lie in memory.
    pub(super) durable: bool,
}

/// Joins what segments left.
pub(super) fn join(
    request: &Request<'_>,
    done: &[Done<Gathered>],
    options: JoinOptions<'_>,
) -> Result<Joined, SyncError> {
    request.observer.event(Event::Started(Phase::Join));
    let go_on = || stop_if_interrupted(request.interrupt);
    let runs = JOINED_RUNS.map(|kind| runs_of(done, kind));
    let bytes_total: u64 = runs.iter().flatten().map(|run| run.bytes).sum();
    let [made, spent] = runs;
    let budget = merge_budget(request.memory_bytes, request.threads);
    let made = Runs::open(request.workdir, made, budget, &go_on)?;
    let spent = Runs::open(request.workdir, spent, budget, &go_on)?;
    let parts = (bytes_total / PART_BYTES_MIN).clamp(1, PARTS_EACH * request.threads as u64);
    let parts = divide(made.sections().chain(spent.sections()), parts);
    let parts = grouped(&parts, request.threads);
    let (next, halt, bytes) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let alive = &|| ();
    let held = Held::new(held_bytes(request.memory_bytes));
    let joining = Joining { request, options, made, spent, parts, next, halt, held, bytes, alive };
    let joined = joining.run(bytes_total)?;
    joining.made.close()?;
    joining.spent.close()?;
    let bytes = joining.bytes.into_inner();
    request.observer.event(Event::Ended { phase: Phase::Join, bytes });
    Ok(joined)
}

/// Fewer parts of the same keys, each half of what is left for a thread: large ones first, since each looks for its
/// beginning in all runs, and small ones at the end.
fn grouped(parts: &[KeyRange], threads: usize) -> Vec<KeyRange> {
    let (mut grouped, mut left) = (Vec::new(), parts);
    while let [first, ..] = left {
        let (group, rest) = left.split_at((left.len() / (2 * threads)).max(1));
        let until = group.last().and_then(|last| last.until);
        grouped.push(KeyRange { from: first.from, until });
        left = rest;
    }
    grouped
}

/// Joins those of some keys on this thread, and calls `alive` every now and then.
pub(super) fn join_keys(
    request: &Request<'_>,
    [made, spent]: [Vec<RunInfo>; 2],
    keys: KeyRange,
    options: JoinOptions<'_>,
    alive: &(dyn Fn() + Sync),
) -> Result<Joined, SyncError> {
    let go_on = || {
        alive();
        stop_if_interrupted(request.interrupt)
    };
    let budget = MergeBudget::new(memory_bytes(request) / 8);
    let made = Runs::open(request.workdir, made, budget, &go_on)?;
    let spent = Runs::open(request.workdir, spent, budget, &go_on)?;
    let (next, halt, bytes) = (AtomicUsize::new(0), AtomicBool::new(false), AtomicU64::new(0));
    let (parts, held) = (vec![keys], Held::new(held_bytes(request.memory_bytes)));
    let joining = Joining { request, options, made, spent, parts, next, halt, held, bytes, alive };
    let joined = joining.part(0, keys)?;
    joining.made.close()?;
    joining.spent.close()?;
    Ok(joined)
}

/// What the threads share.
struct Joining<'a> {
    request: &'a Request<'a>,
    options: JoinOptions<'a>,
    made: Runs<'a, Made>,
    spent: Runs<'a, Spent>,
    parts: Vec<KeyRange>,
    /// The first part that no thread has claimed.
    next: AtomicUsize,
    halt: AtomicBool,
    /// Memory for what comes of it.
    held: Held,
    /// Bytes of records that were joined.
    bytes: AtomicU64,
    /// Called every now and then.
    alive: &'a (dyn Fn() + Sync),
}

/// A part's number, and what came of it.
type Outcome = (usize, Result<Joined, SyncError>);

impl Joining<'_> {
    fn run(&self, bytes_total: u64) -> Result<Joined, SyncError> {
        let workers = self.request.threads.min(self.parts.len());
        let mut parts = BTreeMap::new();
        std::thread::scope(|scope| {
            let (send, receive) = sync_channel::<Outcome>(workers);
            let mut failure = None;
            for index in 0..workers {
                let send = send.clone();
                let spawned = std::thread::Builder::new()
                    .name(format!("join-{index}"))
                    .spawn_scoped(scope, move || self.work(&send));
                if let Err(error) = spawned {
                    self.halt.store(true, Ordering::Relaxed);
                    failure = Some(SyncError::Io(IoError::Threads { wanted: workers, error }));
                    break;
                }
            }
            drop(send);
            loop {
                match receive.recv_timeout(PROGRESS_INTERVAL) {
                    Ok((part, Ok(joined))) => drop(parts.insert(part, joined)),
                    Ok((_, Err(error))) => {
                        self.halt.store(true, Ordering::Relaxed);
                        failure.get_or_insert(error);
                    }
                    Err(RecvTimeoutError::Timeout) => {}
                    Err(RecvTimeoutError::Disconnected) => break,
                }
                let bytes = self.bytes.load(Ordering::Relaxed);
                let progress = Progress { bytes, bytes_total, ..Progress::default() };
                self.request.observer.event(Event::Progress(Phase::Join, progress));
            }
            failure.map_or(Ok(()), Err)
        })?;
        let mut whole = Joined::default();
        parts.into_values().for_each(|part| whole.add(part));
        Ok(whole)
    }

    /// One thread's life.
    fn work(&self, send: &SyncSender<Outcome>) {
        while !self.halt.load(Ordering::Relaxed) {
            let part = self.next.fetch_add(1, Ordering::Relaxed);
            let Some(keys) = self.parts.get(part) else { return };
            if send.send((part, self.part(part, *keys))).is_err() {
                return;
            }
        }
    }

    /// Whether to go on, asked every now and then.
    fn go_on(&self, bytes: u64) -> Result<(), SyncError> {
        self.bytes.fetch_add(bytes, Ordering::Relaxed);
        (self.alive)();
        match self.halt.load(Ordering::Relaxed) {
            true => Err(SyncError::Interrupted),
            false => stop_if_interrupted(self.request.interrupt),
        }
    }

    /// Joins a part.
    fn part(&self, part: usize, keys: KeyRange) -> Result<Joined, SyncError> {
        let storage = self.request.workdir;
        let damaged = || SyncError::Io(IoError::WorkdirDamaged { file: storage.describe("") });
        let mut sink = Sink::new(self.request, part, &self.options)?;
        let mut join = Join::new(&mut sink);
        let mut made: Merging<'_, Made> = self.made.part(keys)?;
        let mut spent: Merging<'_, Spent> = self.spent.part(keys)?;
        let mut bytes = 0;
        made.next()?;
        spent.next()?;
        for number in 1u64.. {
            if number.is_multiple_of(RECORDS_BETWEEN_LOOKS) {
                self.go_on(std::mem::take(&mut bytes))?;
            }
            match (made.current(), spent.current()) {
                (Some(coin), spend) if spend.is_none_or(|spend| is_up_to(coin, spend)) => {
                    bytes += coin.len() as u64;
                    join.made(&MadeRecord::read(coin).ok_or_else(damaged)?.0)?;
                    made.next()?;
                }
                (_, Some(spend)) => {
                    bytes += spend.len() as u64;
                    join.spent(&SpentRecord::read(spend).ok_or_else(damaged)?.0)?;
                    spent.next()?;
                }
                (_, None) => break,
            }
        }
        join.finish()?;
        self.go_on(bytes)?;
        sink.finish(&self.held, self.options.durable)
    }
}

/// Whether the transaction of a coin's record does not come after that of a spend's.
fn is_up_to(coin: &[u8], spend: &[u8]) -> bool {
    let (made, spent) = (prefix(coin), prefix(spend));
    made < spent || (made == spent && coin[..32] <= spend[..32])
}

/// What comes of a part.
struct Sink<'s> {
    storage: &'s dyn Storage,
    numbered: bool,
    bare: Height,
    answers: Spill<'s, Answers>,
    places: Spill<'s, Places>,
    set: SetPart<'s>,
    leaves: Option<LeafSink<'s>>,
    group: Group,
    joined: Joined,
}

/// The coins of a part that no spend took. Their MuHash is computed here, if it is wanted, on all threads: handed out
/// later, they come one after the other.
struct SetPart<'s> {
    run: RunWriter<'s>,
    totals: TotalsSink,
}

impl SetPart<'_> {
    fn take(&mut self, record: &[u8]) -> Result<(), SyncError> {
        self.totals.put_records(record)?;
        self.run.write(record)
    }
}

impl<'s> Sink<'s> {
    fn new(
        request: &Request<'s>,
        part: usize,
        options: &JoinOptions<'s>,
    ) -> Result<Self, SyncError> {
        let JoinOptions { numbered, leaves, muhash, bare, durable } = *options;
        let storage = request.workdir;
        let [of_answers, of_places, of_leaves] = spill_bytes(request.memory_bytes, request.threads);
        let run = RunWriter::create(storage, format!("{SPILL}set-{part}.run"), SECTION_BYTES)?;
        let leaves = leaves.map(|by| {
            let name = format!("leaves-{part}");
            LeafSink::new(by, Spill::new(storage, name, of_leaves, durable))
        });
        Ok(Self {
            storage,
            numbered,
            bare,
            leaves,
            answers: Spill::new(storage, format!("answers-{part}"), of_answers, durable),
            places: Spill::new(storage, format!("places-{part}"), of_places, durable),
            set: SetPart { run, totals: TotalsSink::new(muhash) },
            group: Group::default(),
            joined: Joined::default(),
        })
    }

    /// What there is memory for stays there, unless all is to be `durable`.
    fn finish(mut self, held: &Held, durable: bool) -> Result<Joined, SyncError> {
        self.group.hand_on(&mut |record| self.set.take(record))?;
        let (muhash, totals) = self.set.totals.finish();
        let leaves = self.leaves.map(|leaves| leaves.finish(held)).transpose()?;
        Ok(Joined {
            leaves,
            answers: self.answers.finish(held)?,
            places: self.places.finish(held)?,
            coins: vec![self.set.run.finish(durable)?],
            totals,
            muhash,
            ..self.joined
        })
    }
}

impl Sink<'_> {
    /// A coin, and which one of its block's leaves it is, where that is told.
    fn read(
        &self,
        outpoint: &OutPoint,
        bytes: &[u8],
    ) -> Result<(CoinBytes, Option<u32>), SyncError> {
        let mut coin = NumberedCoin { coin: bytes, leaf: None };
        if self.numbered {
            // Bytes too short for a number are no coin either.
            coin = NumberedCoin::read(bytes).unwrap_or(NumberedCoin { coin: &[], leaf: None });
        }
        let failed = |error| SyncError::Io(IoError::Group { txid: outpoint.txid, error });
        Ok((CoinBytes::read(coin.coin).map_err(failed)?, coin.leaf))
    }

    /// Takes the leaf of a coin that no spend took.
    fn leaf(
        &mut self,
        outpoint: &OutPoint,
        coin: &CoinBytes,
        leaf: Option<u32>,
    ) -> Result<(), SyncError> {
        let Some(leaves) = &mut self.leaves else { return Ok(()) };
        let taken = leaf.map(|number| leaves.take(outpoint, coin.coin().as_ref(), number));
        match taken.transpose()? {
            Some(true) => Ok(()),
            // What its own block spends is no coin that a join comes upon.
            Some(false) | None => {
                let file = self.storage.describe("");
                Err(SyncError::Io(IoError::WorkdirDamaged { file }))
            }
        }
    }
}

impl JoinSink for Sink<'_> {
    type Error = SyncError;

    fn answer(&mut self, height: Height, place: u32, coin: &[u8]) -> Result<(), SyncError> {
        let record = AnswerRecord { height, place, coin };
        let bare = height <= self.bare;
        self.answers.push(|out| if bare { record.write_bare(out) } else { record.write(out) })
    }

    fn survives(
        &mut self,
        outpoint: &OutPoint,
        height: Height,
        index: u32,
        coin: &[u8],
    ) -> Result<(), SyncError> {
        self.places.push(|out| {
            out.extend_from_slice(&height.to_be_bytes());
            out.extend_from_slice(&index.to_be_bytes());
        })?;
        let (coin, leaf) = self.read(outpoint, coin)?;
        self.leaf(outpoint, &coin, leaf)?;
        self.group.take(outpoint, &coin, &mut |record| self.set.take(record))
    }

    fn overwritten(
        &mut self,
        outpoint: &OutPoint,
        _height: Height,
        coin: &[u8],
    ) -> Result<(), SyncError> {
        // It was never deleted, though it is in no set.
        let (coin, leaf) = self.read(outpoint, coin)?;
        self.leaf(outpoint, &coin, leaf)
    }

    fn exists(&mut self, height: Height, outpoint: &OutPoint) -> Result<(), SyncError> {
        self.joined.exists(height, *outpoint);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn groups_are_all_keys_and_get_smaller() {
        let cuts = || (1..64u64).map(|cut| cut << 50);
        let until = cuts().map(Some).chain([None]);
        let parts: Vec<KeyRange> = [0]
            .into_iter()
            .chain(cuts())
            .zip(until)
            .map(|(from, until)| KeyRange { from, until })
            .collect();
        for threads in [1, 2, 5, 64] {
            let (mut next, mut sizes) = (Some(0), Vec::new());
            for KeyRange { from, until } in grouped(&parts, threads) {
                assert_eq!(Some(from), next);
                sizes.push(until.unwrap_or(64 << 50).abs_diff(from) >> 50);
                next = until;
            }
            assert_eq!(next, None);
            assert_eq!(sizes[0], (32 / threads as u64).max(1));
            assert!(sizes.is_sorted_by(|a, b| a >= b) && sizes.ends_with(&[1]), "{sizes:?}");
        }
        assert_eq!(grouped(&[], 2), []);
    }

    /// Ids whose first bytes are alike can be made by the thousands.
    #[test]
    fn ids_are_compared_whole() {
        let id = |first: u8, last: u8| {
            let mut record = [7; 40];
            (record[0], record[31]) = (first, last);
            record
        };
        // What lies behind an id is no part of it.
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

    #[test]
    fn memory_is_half_or_what_joins_in_one_go() {
        let of = memory_for_joining;
        assert_eq!([0, 1, 4 << 10].map(of), [0, 4, 16 << 10]);
        assert_eq!([16 << 20, 100 << 20, 128 << 20].map(of), [64 << 20; 3]);
        assert_eq!([130 << 20, 450 << 20, u64::MAX].map(of), [65 << 20, 225 << 20, u64::MAX / 2]);
        for (memory_bytes, threads) in [(450 << 20, 1), (450 << 20, 2), (8_000 << 20, 16)] {
            let budget = merge_budget(memory_bytes, threads);
            assert_eq!(budget.threads, threads);
            // Coins and spends, on each thread.
            let sections = 2 * threads as u64 * budget.fan_in as u64;
            let bytes = sections * SECTION_BYTES as u64;
            let half = of(memory_bytes) / 2;
            assert!(bytes <= half && bytes > half / 2, "{memory_bytes} {threads}: {bytes}");
            // With what comes of them it is all memory that there is, but for a sixteenth.
            let [answers, places, leaves] = spill_bytes(memory_bytes, threads);
            assert!(answers > leaves && leaves > places && places > 0);
            let spilled = threads as u64 * (answers + places + leaves);
            let most = half * 7 / 8;
            assert!(spilled <= most && spilled > most - (1 << 10), "{memory_bytes}: {spilled}");
            assert_eq!(held_bytes(memory_bytes), memory_bytes / 16);
        }
    }
}

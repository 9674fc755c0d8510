//! Tests that every coin is answered once and correctly, for any behaviour of the store and the callers.

use super::*;
use apus_chain::{BlockHash, CoinRef, KnownBlock, Txid};
use apus_engine::utxo::store::{EachBatch, EachCoin, Flush};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};

/// Four outputs per transaction.
fn outpoint(number: u32) -> OutPoint {
    let mut txid = [0; 32];
    txid[..4].copy_from_slice(&(number / 4).to_le_bytes());
    OutPoint { txid: Txid(txid), vout: number % 4 }
}

fn outpoints(numbers: impl IntoIterator<Item = u32>) -> Vec<OutPoint> {
    numbers.into_iter().map(outpoint).collect()
}

/// One coin in five does not exist.
fn coin(at: &OutPoint) -> Option<CoinBytes> {
    let number = u32::from_le_bytes(*at.txid.0.first_chunk().unwrap()) * 4 + at.vout;
    let coin = CoinRef { height: number, coinbase: false, amount: 7, script: &[] };
    (number % 5 != 3).then(|| CoinBytes::new(coin))
}

fn coins(wanted: &[OutPoint]) -> Vec<Option<CoinBytes>> {
    wanted.iter().map(coin).collect()
}

/// The result of a call.
#[derive(Debug, Clone, Copy)]
enum Outcome {
    Answers,
    Fails,
    /// An error that a retry cannot fix.
    IsDamaged,
    Panics,
    /// Omits the last answer.
    IsShort,
    /// Gives no answer at all if other batches are requested too.
    IsSilent,
}

/// A store that follows a script, call by call, and answers normally after its end.
#[derive(Default)]
struct Scripted {
    outcomes: Mutex<Vec<Outcome>>,
    calls: Mutex<Vec<Vec<OutPoint>>>,
    /// How many batches it accepts in one call.
    together: usize,
    /// How many batches each call had.
    given: Mutex<Vec<usize>>,
    under_way: AtomicUsize,
    most: AtomicUsize,
    /// True while calls are kept from returning.
    shut: Mutex<bool>,
    opened: Condvar,
}

impl Scripted {
    fn new(mut outcomes: Vec<Outcome>) -> Arc<Self> {
        outcomes.reverse();
        Arc::new(Self { outcomes: Mutex::new(outcomes), ..Self::default() })
    }

    fn together(outcomes: Vec<Outcome>, together: usize) -> Arc<Self> {
        let mut store = Self::new(outcomes);
        Arc::get_mut(&mut store).unwrap().together = together;
        store
    }

    fn calls(&self) -> Vec<Vec<OutPoint>> {
        self.calls.lock().clone()
    }

    fn set_shut(&self, shut: bool) {
        *self.shut.lock() = shut;
        self.opened.notify_all();
    }
}

impl CoinsStore for Scripted {
    fn get_many(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        let now = self.under_way.fetch_add(1, SeqCst) + 1;
        self.most.fetch_max(now, SeqCst);
        self.calls.lock().push(wanted.to_vec());
        self.opened.wait_while(&mut self.shut.lock(), |shut| *shut);
        self.under_way.fetch_sub(1, SeqCst);
        let outcome = self.outcomes.lock().pop();
        let mut found = coins(wanted);
        let place = "there".to_owned();
        match outcome.unwrap_or(Outcome::Answers) {
            Outcome::Answers => {}
            Outcome::Fails => return Err(StoreError::Io { place, error: "is gone".to_owned() }),
            Outcome::IsDamaged => {
                return Err(StoreError::Damaged { place, what: "odd".to_owned() });
            }
            Outcome::Panics => panic!("as scripted"),
            Outcome::IsShort => drop(found.pop()),
            Outcome::IsSilent => return Err(StoreError::Halted { place }),
        }
        Ok(found)
    }

    /// Answers the last batch first, and then one that does not exist.
    fn get_batches(&self, batches: &[&[OutPoint]], each: &mut EachBatch<'_>) {
        self.given.lock().push(batches.len());
        for (number, wanted) in batches.iter().enumerate().rev() {
            match self.get_many(wanted) {
                Err(StoreError::Halted { .. }) => {}
                answer => each(number, answer),
            }
        }
        each(batches.len(), Ok(Vec::new()));
        // A second answer to the same batch is ignored.
        if batches.len() > 1 {
            each(batches.len() - 1, Ok(Vec::new()));
        }
    }

    fn batches_at_once(&self) -> usize {
        self.together
    }

    fn tip(&self) -> Result<Option<KnownBlock>, StoreError> {
        unreachable!("a batcher asks for coins alone")
    }

    fn get(&self, _: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        unreachable!("a batcher asks for many")
    }

    fn write(&self, _: &Flush<'_>) -> Result<(), StoreError> {
        unreachable!("a batcher writes nothing")
    }

    fn undo(&self, _: &BlockHash) -> Result<Option<Vec<u8>>, StoreError> {
        unreachable!("a batcher asks for coins alone")
    }

    fn for_each(&self, _: &mut EachCoin<'_>) -> Result<(), StoreError> {
        unreachable!("a batcher asks for coins alone")
    }
}

/// Options with a deadline that never comes, so a test that depends on it hangs.
fn options(size: usize, in_flight: usize) -> BatcherOptions {
    let back_off = Duration::from_micros(10);
    BatcherOptions {
        size,
        in_flight,
        deadline: Duration::MAX,
        bytes_max: u64::MAX,
        back_off,
        retries: 2,
    }
}

fn start(store: &Arc<Scripted>, options: BatcherOptions) -> Batcher {
    Batcher::new(Arc::clone(store) as Arc<dyn CoinsStore>, options).unwrap()
}

/// Waits for a condition that other threads bring about.
fn until(what: impl Fn() -> bool) {
    while !what() {
        thread::yield_now();
    }
}

/// The statistics once nothing is in flight: a caller may have its answer before that is counted.
fn settled(batcher: &Batcher) -> BatcherStats {
    until(|| batcher.stats().in_flight == 0);
    batcher.stats()
}

#[test]
fn a_complete_block_is_sent_at_once_in_full_batches() {
    let store = Scripted::new(Vec::new());
    let batcher = start(&store, options(100, 32));
    let mut producer = batcher.producer();
    let wanted = |tx: u32| outpoints(3 * tx..3 * tx + 3);
    let tickets: Vec<_> = (0..1010).map(|tx| producer.submit(&wanted(tx)).unwrap()).collect();
    producer.complete();
    for (tx, ticket) in (0..).zip(tickets) {
        assert_eq!(ticket.wait().unwrap(), coins(&wanted(tx)));
    }
    let stats = settled(&batcher);
    assert_eq!((stats.taken_in, stats.answered, stats.size_max), (3030, 3030, 100));
    // The last batch may be sent because the only producer waits, before its completion counts.
    assert_eq!((stats.batches, stats.full, stats.complete + stats.idle), (31, 30, 1));
    assert_eq!((stats.retries, stats.failures, stats.deadline, stats.in_flight), (0, 0, 0, 0));
    assert!(stats.waited.longest <= stats.waited.sum && !stats.latency.sum.is_zero());
}

#[test]
fn coins_are_sent_together_once_all_callers_wait() {
    let store = Scripted::new(Vec::new());
    let batcher = start(&store, options(1000, 4));
    let producers: Vec<_> = (0..4).map(|_| batcher.producer()).collect();
    thread::scope(|scope| {
        for (number, mut producer) in (0..).zip(producers) {
            scope.spawn(move || {
                for tx in 0..200 {
                    let wanted = outpoints([tx, tx + number, 1000 - tx]);
                    let ticket = producer.submit(&wanted).unwrap();
                    assert_eq!(ticket.wait().unwrap(), coins(&wanted));
                }
            });
        }
    });
    let stats = settled(&batcher);
    assert_eq!((stats.answered, stats.full, stats.deadline), (2400, 0, 0));
}

#[test]
fn a_partial_batch_is_sent_at_its_deadline() {
    let store = Scripted::new(Vec::new());
    let deadline = Duration::from_millis(1);
    let batcher = start(&store, BatcherOptions { deadline, ..options(100, 2) });
    let (mut one, _other) = (batcher.producer(), batcher.producer());
    assert_eq!(one.submit(&outpoints([1])).unwrap().wait().unwrap(), coins(&outpoints([1])));
    let stats = settled(&batcher);
    assert_eq!((stats.batches, stats.deadline), (1, 1));
    assert!(stats.waited.longest >= deadline);
}

#[test]
fn each_coin_is_requested_once_and_in_order() {
    let store = Scripted::new(Vec::new());
    let batcher = start(&store, options(100, 1));
    let (mut one, mut other) = (batcher.producer(), batcher.producer());
    let (first, second) = (outpoints([9, 2, 9, 40]), outpoints([2, 1, 40]));
    let (a, b) = (one.submit(&first).unwrap(), other.submit(&second).unwrap());
    one.complete();
    assert_eq!(a.wait().unwrap(), coins(&first));
    assert_eq!(b.wait().unwrap(), coins(&second));
    assert_eq!(store.calls(), [outpoints([1, 2, 9, 40])]);
    assert_eq!(one.coins(&[]).unwrap(), []);
    assert_eq!(settled(&batcher).batches, 1);
}

#[test]
fn a_failed_batch_is_retried_alone() {
    let store = Scripted::new(vec![Outcome::Fails, Outcome::IsShort]);
    let batcher = start(&store, options(10, 1));
    let wanted = outpoints(0..40);
    assert_eq!(batcher.producer().coins(&wanted).unwrap(), coins(&wanted));
    let mut asked = vec![outpoints(0..10); 2];
    asked.extend((0..4).map(|batch| outpoints(10 * batch..10 * batch + 10)));
    assert_eq!(store.calls(), asked);
    let stats = settled(&batcher);
    assert_eq!((stats.batches, stats.retries, stats.failures), (4, 2, 0));
}

#[test]
fn a_batch_that_keeps_failing_fails_only_its_own_coins() {
    let failures = [
        (vec![Outcome::Fails; 3], "there: is gone", 3),
        (vec![Outcome::IsDamaged], "there is damaged", 1),
        (vec![Outcome::Panics], "panicked: as scripted", 1),
        (vec![Outcome::IsShort; 3], "3 answers for 4 look-ups", 3),
    ];
    for (outcomes, message, calls) in failures {
        let store = Scripted::new(outcomes);
        let batcher = start(&store, options(4, 1));
        let mut producer = batcher.producer();
        // The first batch includes two coins of the second call.
        let (first, second) = (outpoints(0..2), outpoints(2..6));
        let a = producer.submit(&first).unwrap();
        let (b, c) = (producer.submit(&second).unwrap(), producer.submit(&[outpoint(9)]).unwrap());
        producer.complete();
        for ticket in [a, b] {
            let error = ticket.wait().unwrap_err().to_string();
            assert!(error.contains(message), "{error}");
        }
        assert_eq!(c.wait().unwrap(), coins(&[outpoint(9)]));
        assert_eq!((store.calls().len(), settled(&batcher).failures), (calls + 1, 1));
    }
}

#[test]
fn due_batches_are_sent_together_and_answered_separately() {
    // The store answers the last batch first, leaves the one before unanswered, then fails one.
    let outcomes = vec![Outcome::Answers, Outcome::IsSilent, Outcome::Fails];
    let store = Scripted::together(outcomes, 9);
    let batcher = start(&store, options(10, 4));
    assert_eq!((batcher.threads.len(), batcher.shared.at_once), (4, 4));
    let wanted = outpoints(0..40);
    assert_eq!(batcher.producer().coins(&wanted).unwrap(), coins(&wanted));
    let given = store.given.lock().clone();
    assert_eq!((given[0], given[1..].iter().sum::<usize>()), (4, 2), "two of four again");
    let stats = settled(&batcher);
    assert_eq!((stats.batches, stats.full, stats.in_flight_max), (4, 4, 4));
    assert_eq!((stats.retries, stats.failures, stats.in_flight), (2, 0, 0));
    // A batch may be retried before all four were sent.
    let mut calls = store.calls();
    calls.sort_unstable();
    calls.dedup();
    assert_eq!(calls.concat(), wanted);
}

#[test]
fn a_panic_fails_only_unanswered_batches() {
    let store = Scripted::together(vec![Outcome::Answers, Outcome::Panics], 9);
    let batcher = start(&store, options(2, 3));
    let mut producer = batcher.producer();
    let (first, last) = (outpoints(0..4), outpoints(4..6));
    let ticket = producer.submit(&[&first[..], &last].concat()).unwrap();
    assert!(ticket.wait().unwrap_err().to_string().contains("panicked: as scripted"));
    let stats = settled(&batcher);
    assert_eq!((stats.batches, stats.failures, stats.retries, stats.answered), (3, 2, 0, 6));
    assert_eq!(producer.coins(&first).unwrap(), coins(&first), "the thread continues");
}

#[test]
fn a_batch_that_waits_for_its_retry_occupies_no_thread() {
    let store = Scripted::new(vec![Outcome::Fails]);
    let back_off = Duration::MAX;
    let batcher = start(&store, BatcherOptions { back_off, ..options(1, 2) });
    let mut producer = batcher.producer();
    let waits = producer.submit(&[outpoint(1)]).unwrap();
    until(|| batcher.shared.state.lock().later.len() == 1);
    for number in 0..10 {
        let wanted = [outpoint(number)];
        assert_eq!(producer.coins(&wanted).unwrap(), coins(&wanted));
    }
    assert_eq!((batcher.stats().in_flight, batcher.stats().in_flight_max), (1, 2));
    drop(batcher);
    assert!(matches!(waits.wait(), Err(StoreError::Io { .. })));
}

#[test]
fn pauses_between_retries_grow() {
    let store = Scripted::new(vec![Outcome::Fails; 2]);
    let back_off = Duration::from_millis(2);
    let batcher = start(&store, BatcherOptions { back_off, ..options(1, 1) });
    let begun = Instant::now();
    assert_eq!(batcher.producer().coins(&[outpoint(1)]).unwrap(), [coin(&outpoint(1))]);
    assert!(begun.elapsed() >= 3 * back_off);
    assert!(settled(&batcher).latency.longest >= 3 * back_off);
}

#[test]
fn a_producer_too_far_ahead_blocks() {
    let store = Scripted::new(Vec::new());
    store.set_shut(true);
    let batcher = start(&store, options(2, 2));
    let wanted = outpoints(0..50);
    thread::scope(|scope| {
        let caller = scope.spawn(|| batcher.producer().coins(&wanted));
        // Two batches in flight and two waiting; the statistics at the end must show no more.
        until(|| batcher.stats().taken_in == 8 && batcher.stats().in_flight == 2);
        store.set_shut(false);
        assert_eq!(caller.join().unwrap().unwrap(), coins(&wanted));
    });
    assert_eq!((store.most.load(SeqCst), batcher.stats().waiting_max), (2, 4));
    assert!(batcher.stats().held_up > 0);
}

#[test]
fn dropping_the_batcher_answers_requests_that_did_not_start() {
    let store = Scripted::new(Vec::new());
    store.set_shut(true);
    let batcher = start(&store, options(2, 1));
    let (mut one, mut other) = (batcher.producer(), batcher.producer());
    let begun = one.submit(&outpoints(0..2)).unwrap();
    until(|| store.under_way.load(SeqCst) == 1);
    let waits = one.submit(&outpoints(2..4)).unwrap();
    thread::scope(|scope| {
        let stuck = scope.spawn(|| other.submit(&outpoints(4..9)).map(drop));
        until(|| batcher.shared.state.lock().stats.held_up > 0);
        let shared = Arc::clone(&batcher.shared);
        let end = scope.spawn(move || drop(batcher));
        assert!(matches!(stuck.join().unwrap(), Err(StoreError::Stopped)));
        assert!(matches!(waits.wait(), Err(StoreError::Stopped)));
        until(|| shared.state.lock().closed);
        store.set_shut(false);
        end.join().unwrap();
    });
    assert_eq!(begun.wait().unwrap(), coins(&outpoints(0..2)));
    assert!(matches!(one.coins(&outpoints(0..1)), Err(StoreError::Stopped)));
    assert_eq!(store.calls().len(), 1);
}

#[test]
fn dropping_the_batcher_does_not_wait_for_a_retry() {
    let store = Scripted::new(vec![Outcome::Fails]);
    let back_off = Duration::MAX;
    let batcher = start(&store, BatcherOptions { back_off, ..options(1, 1) });
    let ticket = batcher.producer().submit(&outpoints(0..1)).unwrap();
    until(|| !store.calls().is_empty());
    drop(batcher);
    assert!(matches!(ticket.wait(), Err(StoreError::Io { .. })));
}

#[test]
fn memory_limits_the_batches_in_flight() {
    let with = |size, bytes_max| BatcherOptions { bytes_max, ..options(size, 32) }.batches_max();
    let (batch, few) = (100 * BatcherOptions::ANSWER_BYTES_MAX, 5);
    assert_eq!(with(100, u64::MAX), 32);
    assert_eq!(with(100, few * batch), 5);
    assert_eq!(with(100, few * batch - 1), 4);
    assert_eq!(with(usize::MAX, 0), 1);
    let batcher =
        start(&Scripted::new(Vec::new()), BatcherOptions { bytes_max: batch, ..options(100, 32) });
    assert_eq!((batcher.threads.len(), batcher.options().in_flight), (1, 1));
}

/// One caller: its look-ups, each redeemed at once or at the end.
#[derive(Debug, Clone)]
struct Caller {
    requests: Vec<(Vec<u32>, bool)>,
}

fn caller() -> impl Strategy<Value = Caller> {
    let request = (vec(0u32..60, 0..12), any::<bool>());
    vec(request, 0..12).prop_map(|requests| Caller { requests })
}

/// Runs a caller. Each answer must be right, or an expected error.
fn call(caller: &Caller, mut producer: Producer, ended: &AtomicBool) -> usize {
    let (mut kept, mut failed) = (Vec::new(), 0);
    let mut settle = |ticket: Ticket, wanted: &[OutPoint]| match ticket.wait() {
        Ok(found) => assert_eq!(found, coins(wanted)),
        Err(StoreError::Stopped) => assert!(ended.load(SeqCst)),
        Err(_) => failed += 1,
    };
    for (numbers, at_once) in &caller.requests {
        let wanted = outpoints(numbers.iter().copied());
        match producer.submit(&wanted) {
            Ok(ticket) if *at_once => settle(ticket, &wanted),
            Ok(ticket) => kept.push((ticket, wanted)),
            Err(error) => assert!(matches!(error, StoreError::Stopped) && ended.load(SeqCst)),
        }
    }
    drop(producer);
    kept.into_iter().for_each(|(ticket, wanted)| settle(ticket, &wanted));
    failed
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]
    #[test]
    fn each_coin_is_answered_once_despite_failures(
        callers in vec(caller(), 1..5),
        size in 1usize..20,
        in_flight in 1usize..4,
        together in 0usize..4,
        outcomes in vec(0u8..12, 0..40),
        end_early: bool,
    ) {
        let outcome = |number| match number {
            0 => Outcome::Panics,
            1 => Outcome::IsDamaged,
            2 => Outcome::IsShort,
            3 => Outcome::IsSilent,
            4 => Outcome::Fails,
            _ => Outcome::Answers,
        };
        let store = Scripted::together(outcomes.into_iter().map(outcome).collect(), together);
        // A caller between two requests delays the others; this bounds by how long.
        let deadline = Duration::from_micros(50);
        let batcher = start(&store, BatcherOptions { deadline, ..options(size, in_flight) });
        let (shared, ended) = (Arc::clone(&batcher.shared), AtomicBool::new(false));
        let producers: Vec<_> = callers.iter().map(|_| batcher.producer()).collect();
        let failed: usize = thread::scope(|scope| {
            let ended = &ended;
            let calls = callers.iter().zip(producers);
            let threads: Vec<_> = calls
                .map(|(caller, producer)| scope.spawn(move || call(caller, producer, ended)))
                .collect();
            let batcher = if end_early {
                ended.store(true, SeqCst);
                drop(batcher);
                None
            } else {
                Some(batcher)
            };
            let failed = threads.into_iter().map(|thread| thread.join().unwrap()).sum();
            drop(batcher);
            failed
        });
        let state = shared.state.lock();
        let stats = state.stats;
        prop_assert_eq!(stats.full + stats.complete + stats.idle + stats.deadline, stats.batches);
        prop_assert_eq!(stats.in_flight, 0);
        prop_assert!(stats.in_flight_max <= in_flight as u64 && stats.size_max <= size as u64);
        prop_assert!(stats.waiting_max <= (size * in_flight) as u64);
        prop_assert!(end_early || (stats.answered == stats.taken_in && state.queue.len() == 0));
        prop_assert!(failed == 0 || stats.failures > 0);
        let asked = store.calls();
        prop_assert!(asked.iter().all(|call| call.windows(2).all(|pair| pair[0] < pair[1])));
        // Batches that a panic kept from being sent failed without a call.
        let tries = stats.batches + stats.retries;
        prop_assert!(asked.len() as u64 == tries || together > 1 && (asked.len() as u64) < tries);
        prop_assert!(store.given.lock().iter().all(|given| *given <= together.max(1)));
        prop_assert!(state.later.is_empty());
    }
}

//! Compares fetched coins with looked-up ones, under any scheduling of threads.

use super::*;
use apus_chain::{CoinRef, Txid};
use apus_testkit::rng::Rng;
use proptest::collection::vec;
use proptest::prelude::*;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};
use std::time::Duration;

/// More bytes than these tests fetch.
const AHEAD: u64 = 1 << 20;

pub(super) fn outpoint(number: u32) -> OutPoint {
    let mut txid = [0; 32];
    txid[..4].copy_from_slice(&number.to_le_bytes());
    OutPoint { txid: Txid(txid), vout: number % 3 }
}

fn outpoints(numbers: impl IntoIterator<Item = u32>) -> Vec<OutPoint> {
    numbers.into_iter().map(outpoint).collect()
}

fn number(outpoint: &OutPoint) -> u32 {
    u32::from_le_bytes(*outpoint.txid.0.first_chunk().unwrap())
}

/// A view's answer for a number: no coin for one in five, an error for one in eleven, and sometimes
/// a coin that needs an allocation.
fn answer(number: u32) -> Result<Option<CoinBytes>, StoreError> {
    if number % 11 == 7 {
        return Err(StoreError::Io { place: number.to_string(), error: "read".to_owned() });
    }
    if number % 5 == 3 {
        return Ok(None);
    }
    let script = vec![0x51; if number % 7 == 2 { 200 } else { 30 }];
    let coin = CoinRef { height: number, coinbase: false, amount: 5, script: &script };
    Ok(Some(CoinBytes::new(coin)))
}

/// Results as text: errors have no equality.
fn text(result: &Result<Option<CoinBytes>, StoreError>) -> String {
    format!("{result:?}")
}

/// A view that counts look-ups of each number, and is slow sometimes.
struct Counting {
    look_ups: Vec<AtomicUsize>,
    total: AtomicUsize,
    slow_one_in: Option<u32>,
}

impl Counting {
    fn new(numbers: u32, slow_one_in: Option<u32>) -> Arc<Self> {
        let look_ups = (0..numbers).map(|_| AtomicUsize::new(0)).collect();
        Arc::new(Self { look_ups, total: AtomicUsize::new(0), slow_one_in })
    }

    fn counts(&self) -> Vec<usize> {
        self.look_ups.iter().map(|count| count.load(Ordering::SeqCst)).collect()
    }

    fn total(&self) -> usize {
        self.total.load(Ordering::SeqCst)
    }
}

impl CoinsView for Counting {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        let number = number(outpoint);
        self.look_ups[number as usize].fetch_add(1, Ordering::SeqCst);
        self.total.fetch_add(1, Ordering::SeqCst);
        if self.slow_one_in.is_some_and(|one_in| number.is_multiple_of(one_in)) {
            thread::sleep(Duration::from_micros(50));
        }
        answer(number)
    }
}

/// A view that answers no look-up until it is opened.
#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    opened: Condvar,
    waiting: AtomicUsize,
    answered: AtomicUsize,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.opened.notify_all();
    }

    fn await_waiting(&self, count: usize) {
        while self.waiting.load(Ordering::SeqCst) < count {
            thread::yield_now();
        }
    }
}

impl CoinsView for Gate {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        self.waiting.fetch_add(1, Ordering::SeqCst);
        let mut open = self.open.lock().unwrap();
        while !*open {
            open = self.opened.wait(open).unwrap();
        }
        self.answered.fetch_add(1, Ordering::SeqCst);
        answer(number(outpoint))
    }
}

/// Number of inputs of a large block.
const MANY: u32 = 2000;

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn taken_coins_are_the_views_coins(
        threads in prop::sample::select(vec![0usize, 1, 2, 7, 64]),
        slow_one_in in prop::option::of(1u32..40),
        expected: bool,
        numbers in vec(0u32..300, 0..400),
        skips in vec(0usize..3, 1..20),
    ) {
        let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
        if expected {
            expect_slow(&fetcher);
        }
        let view = Counting::new(300, slow_one_in);
        let mut fetching = fetcher.start(Arc::<Counting>::clone(&view), outpoints(numbers.clone()));
        prop_assert_eq!(fetching.len(), numbers.len());
        prop_assert_eq!(fetching.is_empty(), numbers.is_empty());
        let (mut index, mut skips) = (0, skips.into_iter().cycle());
        while index < numbers.len() {
            prop_assert_eq!(text(&fetching.take(index)), text(&answer(numbers[index])));
            index += 1 + skips.next().unwrap();
        }
    }

    #[test]
    fn inputs_may_be_taken_in_any_order_and_again(
        threads in 0usize..4,
        indices in vec(0usize..50, 0..200),
    ) {
        let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
        let view = Counting::new(50, Some(2));
        let mut fetching = fetcher.start(view, outpoints(0..50));
        for index in indices {
            prop_assert_eq!(text(&fetching.take(index)), text(&answer(index as u32)));
        }
    }
}

#[test]
fn each_wanted_input_is_looked_up_once() {
    for threads in [0, 1, 2, 8, 64] {
        let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
        for slow_one_in in [None, Some(1000), Some(50)] {
            expect_slow(&fetcher);
            let view = Counting::new(MANY, slow_one_in);
            let mut fetching = fetcher.start(Arc::<Counting>::clone(&view), outpoints(0..MANY));
            for index in 0..MANY {
                assert_eq!(text(&fetching.take(index as usize)), text(&answer(index)));
            }
            drop(fetching);
            assert_eq!(view.counts(), vec![1; MANY as usize], "{threads} threads");
        }
    }
}

#[test]
fn repeated_inputs_are_looked_up_again() {
    let fetcher = PrevoutFetcher::new(2, AHEAD).unwrap();
    let view = Counting::new(2, None);
    let mut fetching = fetcher.start(Arc::<Counting>::clone(&view), outpoints([1, 0, 1, 1]));
    let found: Vec<_> = (0..4).map(|index| text(&fetching.take(index))).collect();
    assert_eq!(found, [1, 0, 1, 1].map(|number| text(&answer(number))));
    drop(fetching);
    assert_eq!(view.counts(), [1, 3]);
}

/// Look-ups of many threads are in progress at once: all of them, including the taking thread's,
/// wait at the gate before one is answered.
#[test]
fn slow_look_ups_run_in_parallel() {
    let fetcher = PrevoutFetcher::new(7, AHEAD).unwrap();
    expect_slow(&fetcher);
    await_sleep(&fetcher, 7);
    let gate = Arc::new(Gate::default());
    let mut fetching = fetcher.start(Arc::<Gate>::clone(&gate), outpoints(0..100));
    // Other threads look up the first coin, so the taking thread fetches another one.
    gate.await_waiting(7);
    thread::scope(|scope| {
        let taker = scope.spawn(move || text(&fetching.take(0)));
        gate.await_waiting(8);
        assert_eq!(gate.answered.load(Ordering::SeqCst), 0);
        gate.open();
        assert_eq!(taker.join().unwrap(), text(&answer(0)));
    });
}

#[test]
fn no_more_threads_are_woken_than_necessary() {
    let fetcher = PrevoutFetcher::new(3, AHEAD).unwrap();
    expect_slow(&fetcher);
    await_sleep(&fetcher, 3);
    let gate = Arc::new(Gate::default());
    let one = fetcher.start(Arc::<Gate>::clone(&gate), outpoints(0..1));
    assert_eq!(fetcher.pool.asleep(), 3);
    drop(one);
    let two = fetcher.start(Arc::<Gate>::clone(&gate), outpoints(0..2));
    gate.await_waiting(1);
    assert_eq!(fetcher.pool.asleep(), 2);
    gate.open();
    drop(two);
}

/// Makes look-ups count as slow, so that waking every thread pays off.
fn expect_slow(fetcher: &PrevoutFetcher) {
    let mut pace = FetchPace::of(0);
    for _ in 0..50 {
        pace.learn(1, Duration::from_secs(1));
    }
    fetcher.pool.remember(&pace);
}

fn await_sleep(fetcher: &PrevoutFetcher, threads: usize) {
    while fetcher.pool.asleep() < threads {
        thread::yield_now();
    }
}

/// The thread that meets slow look-ups wakes the others, although the block is small and no look-up
/// was slow before.
#[test]
fn slow_look_ups_wake_others() {
    let fetcher = PrevoutFetcher::new(3, AHEAD).unwrap();
    await_sleep(&fetcher, 3);
    let view = Counting::new(20, Some(1));
    let mut fetching = fetcher.start(Arc::<Counting>::clone(&view), outpoints(0..20));
    assert_eq!(view.total(), 0, "no thread was woken");
    // The clock measures at least 50 microseconds for each.
    for index in 0..3 {
        assert_eq!(text(&fetching.take(index)), text(&answer(index as u32)));
    }
    while view.total() < 20 {
        thread::yield_now();
    }
    for index in 3..20 {
        assert_eq!(text(&fetching.take(index)), text(&answer(index as u32)));
    }
}

#[test]
fn a_dropped_fetch_stops_and_releases_its_view() {
    let fetcher = PrevoutFetcher::new(4, AHEAD).unwrap();
    expect_slow(&fetcher);
    await_sleep(&fetcher, 4);
    let gate = Arc::new(Gate::default());
    let fetching = fetcher.start(Arc::<Gate>::clone(&gate), outpoints(0..1000));
    gate.await_waiting(4);
    fetching.job.abandon();
    gate.open();
    drop(fetching);
    assert_eq!(gate.answered.load(Ordering::SeqCst), 4, "look-ups that were in progress");
    assert_eq!(Arc::strong_count(&gate), 1);
    assert_eq!(fetcher.pool.open(), 0);
}

/// A view with batched look-ups.
struct Remote {
    at_once: usize,
    view: Arc<Counting>,
    calls: AtomicUsize,
}

impl Remote {
    fn new(at_once: usize) -> Arc<Self> {
        let view = Counting::new(MANY, None);
        Arc::new(Self { at_once, view, calls: AtomicUsize::new(0) })
    }
}

impl CoinsView for Remote {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        Ok(self.coins(&[*outpoint])?.remove(0))
    }

    fn coins(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        self.calls.fetch_add(1, Ordering::SeqCst);
        thread::sleep(Duration::from_micros(50));
        wanted.iter().map(|outpoint| self.view.coin(outpoint)).collect()
    }

    fn at_once(&self) -> usize {
        self.at_once
    }
}

/// Numbers that are answered without an error.
fn sound(count: usize) -> Vec<u32> {
    (0..MANY).filter(|number| number % 11 != 7).take(count).collect()
}

#[test]
fn a_view_with_batches_gets_batches() {
    for threads in [0, 1, 2, 7] {
        for (at_once, count) in [(2, 100), (8, 3), (50, 500), (1_000, 500), (usize::MAX, 40)] {
            let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
            expect_slow(&fetcher);
            let (view, numbers) = (Remote::new(at_once), sound(count));
            let wanted = outpoints(numbers.clone());
            let mut fetching = fetcher.start(Arc::<Remote>::clone(&view), wanted);
            // Skip some inputs.
            for index in (0..count).filter(|index| index % 9 != 4) {
                assert_eq!(text(&fetching.take(index)), text(&answer(numbers[index])));
            }
            drop(fetching);
            assert!(view.view.counts().iter().all(|count| *count < 2), "{threads} {at_once}");
            // A skipped input may split a call.
            let calls = view.calls.load(Ordering::SeqCst);
            let most = count.div_ceil(at_once) + count.div_ceil(9);
            assert!(calls <= most, "{threads} threads, {at_once} of {count}: {calls}");
        }
    }
}

#[test]
fn a_view_behind_a_network_is_queried_before_the_first_coin_is_taken() {
    let fetcher = PrevoutFetcher::new(3, AHEAD).unwrap();
    while fetcher.pool.asleep() < 3 {
        thread::yield_now();
    }
    let (view, numbers) = (Remote::new(40), sound(100));
    let mut fetching = fetcher.start(Arc::<Remote>::clone(&view), outpoints(numbers.clone()));
    while view.view.total.load(Ordering::SeqCst) < 100 {
        thread::yield_now();
    }
    for (index, number) in numbers.into_iter().enumerate() {
        assert_eq!(text(&fetching.take(index)), text(&answer(number)));
    }
    assert_eq!(view.calls.load(Ordering::SeqCst), 3);
}

#[test]
fn errors_and_panics_of_batches_are_reported() {
    for threads in [0, 2] {
        let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
        let mut fetching = fetcher.start(Remote::new(10), outpoints(0..20));
        // Number seven has no coin, and the numbers in the same call share its error.
        let found: Vec<_> = (0..20).map(|index| fetching.take(index).is_err()).collect();
        assert!(found[7] && found[18], "{found:?}");
        drop(fetching);
        let mut fetching = fetcher.start(Remote::new(10), outpoints([MANY]));
        let error = fetching.take(0).unwrap_err().to_string();
        assert!(error.contains("panicked"), "{error}");
    }
}

/// Answers at once below a number, and is a gate from there on.
struct GateFrom(u32, Gate);

impl CoinsView for GateFrom {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        if number(outpoint) < self.0 { answer(number(outpoint)) } else { self.1.coin(outpoint) }
    }
}

#[test]
fn claimed_look_ups_that_did_not_start_never_start() {
    for _ in 0..4 {
        let fetcher = PrevoutFetcher::new(1, AHEAD).unwrap();
        expect_slow(&fetcher);
        await_sleep(&fetcher, 1);
        // While look-ups are fast, more and more are claimed at once: the gate is among sixteen.
        let view = Arc::new(GateFrom(23, Gate::default()));
        let fetching = fetcher.start(Arc::<GateFrom>::clone(&view), outpoints(0..1000));
        view.1.await_waiting(1);
        fetching.job.abandon();
        view.1.open();
        drop(fetching);
        let answered = view.1.answered.load(Ordering::SeqCst);
        assert_eq!(answered, 1, "the look-up that was in progress");
    }
}

#[test]
fn unwanted_inputs_cannot_be_taken() {
    for threads in [0, 1] {
        let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
        let mut fetching = fetcher.start(Counting::new(3, None), outpoints(0..3));
        assert_eq!(text(&fetching.take(2)), text(&answer(2)));
        let taken = catch_unwind(AssertUnwindSafe(|| fetching.take(3)));
        assert!(taken.is_err());
    }
}

#[test]
fn a_fetch_outlives_its_fetcher() {
    let fetcher = PrevoutFetcher::new(2, AHEAD).unwrap();
    expect_slow(&fetcher);
    let view = Counting::new(MANY, Some(100));
    let mut fetching = fetcher.start(Arc::<Counting>::clone(&view), outpoints(0..MANY));
    assert_eq!(text(&fetching.take(0)), text(&answer(0)));
    drop(fetcher);
    for index in 1..MANY {
        assert_eq!(text(&fetching.take(index as usize)), text(&answer(index)));
    }
    drop(fetching);
    assert_eq!(view.counts(), vec![1; MANY as usize]);
}

#[test]
fn threads_end_with_their_fetcher() {
    for threads in [0, 1, 3] {
        let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
        assert_eq!(fetcher.threads(), threads);
        let pool = Arc::clone(&fetcher.pool);
        drop(fetcher);
        assert_eq!(Arc::strong_count(&pool), 1, "of {threads} threads");
    }
}

#[test]
fn threads_serve_in_order_of_start() {
    let fetcher = PrevoutFetcher::new(1, AHEAD).unwrap();
    expect_slow(&fetcher);
    await_sleep(&fetcher, 1);
    let (first, second) = (Arc::new(Gate::default()), Counting::new(10, None));
    let one = fetcher.start(Arc::<Gate>::clone(&first), outpoints(0..10));
    let two = fetcher.start(Arc::<Counting>::clone(&second), outpoints(0..10));
    first.await_waiting(1);
    assert_eq!(second.total(), 0, "the only thread works on the first job");
    first.open();
    while second.total() < 10 {
        thread::yield_now();
    }
    assert_eq!(first.answered.load(Ordering::SeqCst), 10);
    drop((one, two));
}

/// Panics when this number is looked up.
struct Panics(u32, AtomicBool);

impl CoinsView for Panics {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        if number(outpoint) == self.0 {
            self.1.store(true, Ordering::SeqCst);
            panic!("a broken view");
        }
        answer(number(outpoint))
    }
}

#[test]
fn a_panic_in_another_thread_is_an_error() {
    let fetcher = PrevoutFetcher::new(1, AHEAD).unwrap();
    expect_slow(&fetcher);
    await_sleep(&fetcher, 1);
    let view = Arc::new(Panics(9, AtomicBool::new(false)));
    let mut fetching = fetcher.start(Arc::<Panics>::clone(&view), outpoints(0..20));
    while !view.1.load(Ordering::SeqCst) {
        thread::yield_now();
    }
    for index in 0..20 {
        let taken = fetching.take(index);
        if index == 9 {
            let error = taken.unwrap_err().to_string();
            assert!(error.contains("a look-up panicked: a broken view"), "{error}");
        } else {
            assert_eq!(text(&taken), text(&answer(index as u32)));
        }
    }
}

/// The payload of a look-up's panic. Dropping it panics again, where no look-up is caught.
struct Payload;

impl Drop for Payload {
    fn drop(&mut self) {
        panic!("a panic where none is expected");
    }
}

/// A view that ends each thread that queries it, except the taking one.
struct Ending {
    at_once: usize,
    taking: thread::ThreadId,
    ended: AtomicUsize,
}

impl CoinsView for Ending {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        if thread::current().id() == self.taking {
            return answer(number(outpoint));
        }
        self.ended.fetch_add(1, Ordering::SeqCst);
        std::panic::panic_any(Payload);
    }

    fn at_once(&self) -> usize {
        self.at_once
    }
}

/// Takes all coins, and returns how many were lost with a thread that ended.
fn take_all(fetching: &mut CoinsFetch, numbers: &[u32]) -> usize {
    let taken = numbers.iter().enumerate().map(|(index, number)| match fetching.take(index) {
        Err(error) => {
            assert!(error.to_string().contains("ended"), "{error}");
            1
        }
        found => {
            assert_eq!(text(&found), text(&answer(*number)));
            0
        }
    });
    taken.sum()
}

#[test]
fn a_panic_outside_a_look_up_blocks_no_other_thread() {
    for at_once in [1, 10] {
        let fetcher = PrevoutFetcher::new(3, AHEAD).unwrap();
        expect_slow(&fetcher);
        await_sleep(&fetcher, 3);
        let (taking, ended) = (thread::current().id(), AtomicUsize::new(0));
        let view = Arc::new(Ending { at_once, taking, ended });
        let numbers = sound(400);
        let wanted = outpoints(numbers.clone());
        let mut fetching = fetcher.start(Arc::<Ending>::clone(&view), wanted.clone());
        while view.ended.load(Ordering::SeqCst) < 2 {
            thread::yield_now();
        }
        let lost = take_all(&mut fetching, &numbers);
        assert!((2..=3 * 10).contains(&lost), "{lost} at {at_once}");
        // Dropping waits for all counted threads.
        drop(fetching);
        assert_eq!(Arc::strong_count(&view), 1);
        // At most one other thread is left.
        let mut fetching = fetcher.start(Arc::<Ending>::clone(&view), wanted);
        assert!(take_all(&mut fetching, &numbers) <= 10);
    }
}

/// A view that omits the last answer.
struct Short;

impl CoinsView for Short {
    fn coin(&self, outpoint: &OutPoint) -> Result<Option<CoinBytes>, StoreError> {
        answer(number(outpoint))
    }

    fn coins(&self, wanted: &[OutPoint]) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        wanted.iter().skip(1).map(|outpoint| self.coin(outpoint)).collect()
    }

    fn at_once(&self) -> usize {
        10
    }
}

#[test]
fn a_missing_answer_is_an_error() {
    for threads in [0, 2] {
        let fetcher = PrevoutFetcher::new(threads, AHEAD).unwrap();
        let mut fetching = fetcher.start(Arc::new(Short), outpoints(sound(30)));
        let error = fetching.take(0).unwrap_err().to_string();
        assert!(error.contains(" answers for "), "{error}");
    }
}

/// Connects, abandons and interleaves many blocks on few cores.
#[test]
fn many_concurrent_fetches_finish_under_contention() {
    let fetcher = PrevoutFetcher::new(8, AHEAD).unwrap();
    thread::scope(|scope| {
        for seed in 0..4 {
            let fetcher = &fetcher;
            scope.spawn(move || {
                let mut rng = Rng::new(seed);
                for _ in 0..60 {
                    connect_some(fetcher, &mut rng);
                }
            });
        }
    });
    assert_eq!(fetcher.pool.open(), 0);
}

fn connect_some(fetcher: &PrevoutFetcher, rng: &mut Rng) {
    let slow = rng.one_in(2).then(|| rng.between(2, 200) as u32);
    let view = Counting::new(1200, slow);
    let mut alive = Vec::new();
    for _ in 0..rng.between(1, 4) {
        let count = if rng.one_in(2) { rng.below(1200) } else { rng.below(20) };
        let numbers: Vec<u32> = (0..count).map(|_| rng.below(1200) as u32).collect();
        let fetching = fetcher.start(Arc::<Counting>::clone(&view), outpoints(numbers.clone()));
        alive.push((numbers, fetching));
    }
    for (numbers, mut fetching) in alive {
        let stop = if rng.one_in(3) { rng.index(numbers.len() + 1) } else { numbers.len() };
        for (index, &number) in numbers[..stop].iter().enumerate() {
            assert_eq!(text(&fetching.take(index)), text(&answer(number)));
        }
    }
    assert_eq!(Arc::strong_count(&view), 1, "no thread holds the view any more");
}

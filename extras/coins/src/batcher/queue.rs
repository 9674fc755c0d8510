//! [`LookUpQueue`]: the coins waiting for their batches, and when a batch is due. It has no threads and no
//! clock. Its elements [`LookUpRequest`], [`Portion`] and [`LookUpBatch`] record which caller an answer is for,
//! and which portions go to the store together.
//!
//! The coins of one call are a request. It waits as one portion, which is split when a batch is full. A
//! portion is answered as a whole, or, if dropped unanswered, with an error. So whatever happens to the
//! thread that holds it, the request is notified exactly once.

use apus_chain::OutPoint;
use apus_engine::utxo::store::{each_name, give_each};
use apus_engine::utxo::{CoinBytes, StoreError};
use parking_lot::{Condvar, Mutex};
use std::collections::VecDeque;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Limits on batches.
#[derive(Debug, Clone, Copy)]
pub(super) struct BatchLimits {
    /// Items in a full batch.
    pub(super) size: usize,
    /// How long the first item may wait for others.
    pub(super) deadline: Duration,
    /// Maximum number of items that may wait; at least one full batch.
    pub(super) waiting_max: usize,
}

/// The reason why a batch is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Cause {
    /// It is full.
    Size,
    /// A producer's block is complete.
    Complete,
    /// All producers wait.
    Idle,
    /// Its first item has waited long enough.
    Deadline,
}

/// When the next batch is due.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Due {
    /// Now.
    Now(Cause),
    /// At this time, unless something happens before.
    At(Instant),
    /// Not until something happens.
    Never,
}

/// A group of items that can be split at the front.
pub(super) trait Cut {
    /// The number of items.
    fn len(&self) -> usize;

    /// Splits off the first `count` items, or all if there are fewer.
    #[must_use]
    fn cut(&mut self, count: usize) -> Self;
}

/// Items in order of arrival.
pub(super) struct LookUpQueue<T> {
    limits: BatchLimits,
    /// Never contains an empty portion.
    portions: VecDeque<(T, Instant)>,
    /// The number of items.
    items: usize,
    /// The number of leading items up to the end of the last complete block.
    complete: usize,
    producers: usize,
    waiting: usize,
}

impl<T: Cut> LookUpQueue<T> {
    pub(super) fn new(limits: BatchLimits) -> Self {
        Self { limits, portions: VecDeque::new(), items: 0, complete: 0, producers: 0, waiting: 0 }
    }

    /// How many more items may wait.
    pub(super) fn room(&self) -> usize {
        self.limits.waiting_max.saturating_sub(self.items)
    }

    pub(super) fn len(&self) -> usize {
        self.items
    }

    /// How many full batches are waiting.
    pub(super) fn full_batches(&self) -> usize {
        self.items / self.limits.size
    }

    pub(super) fn push(&mut self, portion: T, now: Instant) {
        if portion.len() > 0 {
            self.items += portion.len();
            self.portions.push_back((portion, now));
        }
    }

    /// Marks everything waiting as complete. Returns true if anything waits.
    pub(super) fn complete(&mut self) -> bool {
        self.complete = self.items;
        self.complete > 0
    }

    /// Adds a producer.
    pub(super) fn open(&mut self) {
        self.producers += 1;
    }

    /// Removes a producer, and makes the waiting items due, because fewer requests can follow. Returns true if
    /// any item waits.
    pub(super) fn shut(&mut self) -> bool {
        self.producers -= 1;
        self.complete()
    }

    /// Records that a producer starts to wait for its coins.
    pub(super) fn wait_begins(&mut self) {
        self.waiting += 1;
    }

    /// Records that this many producers no longer wait.
    pub(super) fn wait_ends(&mut self, count: usize) {
        self.waiting -= count;
    }

    /// When a batch is due.
    pub(super) fn due(&self, now: Instant) -> Due {
        let Some((_, first)) = self.portions.front() else { return Due::Never };
        let deadline = first.checked_add(self.limits.deadline);
        if self.items >= self.limits.size {
            Due::Now(Cause::Size)
        } else if self.complete > 0 {
            Due::Now(Cause::Complete)
        } else if self.waiting >= self.producers {
            Due::Now(Cause::Idle)
        } else {
            match deadline {
                Some(deadline) if deadline <= now => Due::Now(Cause::Deadline),
                Some(deadline) => Due::At(deadline),
                None => Due::Never,
            }
        }
    }

    /// Takes the items of the next batch, which must be due, and how long the first of them waited.
    pub(super) fn take(&mut self, now: Instant) -> (Vec<T>, Duration) {
        let first = self.portions.front();
        let waited = first.map(|(_, came)| now.saturating_duration_since(*came));
        let mut left = self.items.min(self.limits.size);
        self.items -= left;
        self.complete = self.complete.saturating_sub(left);
        let mut taken = Vec::new();
        while left > 0
            && let Some((portion, _)) = self.portions.front_mut()
        {
            let some = portion.cut(left);
            left -= some.len();
            taken.push(some);
            if portion.len() == 0 {
                self.portions.pop_front();
            }
        }
        (taken, waited.unwrap_or_default())
    }

    /// Takes everything that waits.
    pub(super) fn drain(&mut self) -> Vec<T> {
        (self.complete, self.items) = (0, 0);
        self.portions.drain(..).map(|(portion, _)| portion).collect()
    }
}

/// The coins of one [`Producer::submit`](super::Producer::submit) call.
pub(super) struct LookUpRequest {
    wanted: Box<[OutPoint]>,
    answers: Mutex<BatchAnswers>,
    done: Condvar,
}

struct BatchAnswers {
    coins: Vec<Option<CoinBytes>>,
    left: usize,
    /// True if the caller is counted among the waiting producers.
    awaited: bool,
    /// The first error.
    error: Option<StoreError>,
}

impl LookUpRequest {
    pub(super) fn new(wanted: &[OutPoint]) -> Arc<Self> {
        let (coins, left) = (vec![None; wanted.len()], wanted.len());
        let answers = BatchAnswers { coins, left, awaited: false, error: None };
        let wanted = wanted.into();
        Arc::new(Self { wanted, answers: Mutex::new(answers), done: Condvar::new() })
    }

    /// Stores the answers to some places. Returns true if they were the last.
    fn answer(
        &self,
        places: Range<usize>,
        coins: Result<&mut [Option<CoinBytes>], StoreError>,
    ) -> bool {
        let mut answers = self.answers.lock();
        // Each place is answered once.
        answers.left -= places.len();
        match coins {
            Ok(coins) => answers.coins[places].swap_with_slice(coins),
            Err(error) => {
                answers.error.get_or_insert(error);
            }
        }
        answers.left == 0
    }

    /// Wakes the waiting caller, once all answers have arrived.
    pub(super) fn wake(&self) {
        self.done.notify_all();
    }

    /// Sets whether the caller counts as waiting. Returns the previous value.
    pub(super) fn set_awaited(&self, awaited: bool) -> bool {
        std::mem::replace(&mut self.answers.lock().awaited, awaited)
    }

    pub(super) fn is_done(&self) -> bool {
        self.answers.lock().left == 0
    }

    pub(super) fn wait(&self) {
        self.done.wait_while(&mut self.answers.lock(), |answers| answers.left > 0);
    }

    /// Takes the answers, once all have arrived.
    pub(super) fn taken(&self) -> Option<Result<Vec<Option<CoinBytes>>, StoreError>> {
        let mut answers = self.answers.lock();
        (answers.left == 0).then(|| match answers.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut answers.coins)),
        })
    }
}

/// A contiguous part of a request's coins.
pub(super) struct Portion {
    request: Arc<LookUpRequest>,
    /// The places without an answer.
    places: Range<usize>,
}

impl Portion {
    /// All coins of a request.
    pub(super) fn all(request: &Arc<LookUpRequest>) -> Self {
        Self { request: Arc::clone(request), places: 0..request.wanted.len() }
    }

    fn wanted(&self) -> &[OutPoint] {
        &self.request.wanted[self.places.clone()]
    }

    /// Answers the portion. Returns the request if this completes it, so that its caller can be woken.
    fn answer(
        mut self,
        coins: Result<&mut [Option<CoinBytes>], StoreError>,
    ) -> Option<Arc<LookUpRequest>> {
        let places = std::mem::take(&mut self.places);
        let last = !places.is_empty() && self.request.answer(places, coins);
        last.then(|| Arc::clone(&self.request))
    }
}

impl Cut for Portion {
    fn len(&self) -> usize {
        self.places.len()
    }

    fn cut(&mut self, count: usize) -> Self {
        let end = (self.places.start + count).min(self.places.end);
        let first = std::mem::replace(&mut self.places.start, end)..end;
        Self { request: Arc::clone(&self.request), places: first }
    }
}

impl Drop for Portion {
    fn drop(&mut self) {
        let places = std::mem::take(&mut self.places);
        if !places.is_empty() && self.request.answer(places, Err(StoreError::Stopped)) {
            self.request.wake();
        }
    }
}

/// Coins to look up together.
pub(super) struct LookUpBatch {
    portions: Vec<Portion>,
    /// The coins of all portions, by ascending outpoint, each with its place.
    wanted: Vec<(OutPoint, usize)>,
    /// When it was first sent.
    pub(super) begun: Instant,
    /// How often it was sent.
    pub(super) tries: u32,
}

impl LookUpBatch {
    pub(super) fn new(portions: Vec<Portion>, now: Instant) -> Self {
        let wanted = portions.iter().flat_map(Portion::wanted).copied().zip(0..).collect();
        Self { portions, wanted, begun: now, tries: 0 }
    }

    /// How many coins it has.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    /// The distinct coins to request from the store, by ascending outpoint.
    pub(super) fn asked(&mut self) -> Vec<OutPoint> {
        each_name(&mut self.wanted)
    }

    /// Maps the store's answers to places.
    pub(super) fn placed(
        &self,
        found: Vec<Option<CoinBytes>>,
    ) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        let mut coins = vec![None; self.wanted.len()];
        give_each(&self.wanted, found, |place, coin| coins[place] = coin)?;
        Ok(coins)
    }

    /// Answers all portions. Returns the requests that this completes.
    pub(super) fn answer(
        self,
        coins: Result<Vec<Option<CoinBytes>>, StoreError>,
    ) -> Vec<Arc<LookUpRequest>> {
        let portions = self.portions.into_iter();
        match coins {
            Ok(mut coins) => {
                let mut rest = &mut coins[..];
                let answered = portions.filter_map(|portion| {
                    let (some, others) = std::mem::take(&mut rest).split_at_mut(portion.len());
                    rest = others;
                    portion.answer(Ok(some))
                });
                answered.collect()
            }
            Err(error) => {
                portions.filter_map(|portion| portion.answer(Err(error.clone()))).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: Duration = Duration::from_millis(1);

    impl Cut for Range<u32> {
        fn len(&self) -> usize {
            ExactSizeIterator::len(self)
        }

        fn cut(&mut self, count: usize) -> Self {
            let end = self.end.min(self.start + count as u32);
            std::mem::replace(&mut self.start, end)..end
        }
    }

    fn queue(size: usize) -> (LookUpQueue<Range<u32>>, Instant) {
        let mut queue =
            LookUpQueue::new(BatchLimits { size, deadline: 10 * MS, waiting_max: 2 * size });
        queue.open();
        (queue, Instant::now())
    }

    fn push(queue: &mut LookUpQueue<Range<u32>>, items: Range<u32>, now: Instant) {
        queue.push(items, now);
    }

    /// The items of a batch.
    fn take(queue: &mut LookUpQueue<Range<u32>>, now: Instant) -> (Vec<u32>, Duration) {
        let (portions, waited) = queue.take(now);
        assert!(portions.iter().all(|portion| !portion.is_empty()));
        (portions.into_iter().flatten().collect(), waited)
    }

    #[test]
    fn a_full_batch_is_due_at_once_and_no_other() {
        let (mut queue, start) = queue(100);
        assert_eq!(queue.due(start), Due::Never);
        push(&mut queue, 0..99, start);
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
        push(&mut queue, 99..100, start);
        assert_eq!(queue.due(start), Due::Now(Cause::Size));
        push(&mut queue, 100..130, start);
        assert_eq!((queue.room(), queue.full_batches(), queue.len()), (70, 1, 130));
        assert_eq!(take(&mut queue, start).0, (0..100).collect::<Vec<_>>());
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
    }

    #[test]
    fn the_first_item_sets_the_deadline() {
        let (mut queue, start) = queue(3);
        push(&mut queue, 0..1, start);
        push(&mut queue, 1..5, start + 4 * MS);
        let (first, waited) = take(&mut queue, start + 5 * MS);
        assert_eq!((first, waited), (vec![0, 1, 2], 5 * MS));
        // The next batch's first item arrived later.
        assert_eq!(queue.due(start + 13 * MS), Due::At(start + 14 * MS));
        assert_eq!(queue.due(start + 14 * MS), Due::Now(Cause::Deadline));
        assert_eq!(take(&mut queue, start + 15 * MS), (vec![3, 4], 11 * MS));
        assert_eq!(queue.due(start + 99 * MS), Due::Never);
    }

    #[test]
    fn the_end_of_a_block_sends_everything_before_it() {
        let (mut queue, start) = queue(4);
        assert!(!queue.complete(), "nothing is waiting");
        push(&mut queue, 0..6, start);
        assert!(queue.complete());
        push(&mut queue, 6..7, start);
        assert_eq!(queue.due(start), Due::Now(Cause::Size));
        assert_eq!(take(&mut queue, start).0.len(), 4);
        // An item that joined before the end of the block goes along; a later one does not.
        assert_eq!(queue.due(start), Due::Now(Cause::Complete));
        assert_eq!(take(&mut queue, start).0, [4, 5, 6]);
        push(&mut queue, 7..8, start);
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
    }

    #[test]
    fn a_batch_is_due_at_once_if_all_producers_wait() {
        let (mut queue, start) = queue(4);
        queue.open();
        push(&mut queue, 0..1, start);
        queue.wait_begins();
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
        queue.wait_begins();
        assert_eq!(queue.due(start), Due::Now(Cause::Idle));
        queue.wait_ends(1);
        assert_eq!(queue.due(start), Due::At(start + 10 * MS));
        assert!(queue.shut());
        assert_eq!(queue.due(start), Due::Now(Cause::Complete), "a departed producer adds nothing");
        assert!(queue.drain().into_iter().flatten().eq([0]));
        assert_eq!(queue.due(start), Due::Never);
    }

    #[test]
    fn an_unrepresentable_deadline_never_comes() {
        let limits = BatchLimits { size: 4, deadline: Duration::MAX, waiting_max: 4 };
        let (mut queue, start) = (LookUpQueue::new(limits), Instant::now());
        queue.open();
        push(&mut queue, 0..1, start);
        assert_eq!(queue.due(start), Due::Never);
    }
}

//! [`LookUpRequest`], [`Portion`] and [`LookUpBatch`]: coins that were taken in, whom their answers are for, and which of them
//! go to the store together.
//!
//! What one caller hands in is a request. It waits as one portion, which is cut where a batch is full. A portion
//! is answered as a whole or, if it goes without that, by an error as it is dropped: whatever becomes of the
//! thread that has it, its request learns of it, once.

use super::queue::Cut;
use apus_chain::OutPoint;
use apus_engine::utxo::store::{each_name, give_each};
use apus_engine::utxo::{CoinBytes, StoreError};
use std::ops::Range;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Instant;

/// What one call of [`Producer::submit`](super::Producer::submit) wants.
pub(super) struct LookUpRequest {
    wanted: Box<[OutPoint]>,
    answers: Mutex<BatchAnswers>,
    done: Condvar,
}

struct BatchAnswers {
    coins: Vec<Option<CoinBytes>>,
    left: usize,
    /// Whether its caller is counted among those that wait.
    awaited: bool,
    /// The first error that came.
    error: Option<StoreError>,
}

impl LookUpRequest {
    pub(super) fn new(wanted: &[OutPoint]) -> Arc<Self> {
        let (coins, left) = (vec![None; wanted.len()], wanted.len());
        let answers = BatchAnswers { coins, left, awaited: false, error: None };
        let wanted = wanted.into();
        Arc::new(Self { wanted, answers: Mutex::new(answers), done: Condvar::new() })
    }

    /// Nothing that panics runs under the lock.
    fn lock(&self) -> MutexGuard<'_, BatchAnswers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts the answers to some of its places down. Whether they were the last ones.
    fn answer(
        &self,
        places: Range<usize>,
        coins: Result<&mut [Option<CoinBytes>], StoreError>,
    ) -> bool {
        let mut answers = self.lock();
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

    /// Wakes who waits for it, now that all answers are there.
    pub(super) fn wake(&self) {
        self.done.notify_all();
    }

    /// Notes that its caller waits from now on, or that it does not any more. What was noted before.
    pub(super) fn set_awaited(&self, awaited: bool) -> bool {
        std::mem::replace(&mut self.lock().awaited, awaited)
    }

    pub(super) fn is_done(&self) -> bool {
        self.lock().left == 0
    }

    pub(super) fn wait(&self) {
        let unfinished = |answers: &mut BatchAnswers| answers.left > 0;
        let answers = self.done.wait_while(self.lock(), unfinished);
        drop(answers.unwrap_or_else(PoisonError::into_inner));
    }

    /// The answers, if all are there.
    pub(super) fn taken(&self) -> Option<Result<Vec<Option<CoinBytes>>, StoreError>> {
        let mut answers = self.lock();
        (answers.left == 0).then(|| match answers.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut answers.coins)),
        })
    }
}

/// Some of the coins that a request wants, side by side there.
pub(super) struct Portion {
    request: Arc<LookUpRequest>,
    /// Those that have no answer yet.
    places: Range<usize>,
}

impl Portion {
    /// All that a request wants.
    pub(super) fn all(request: &Arc<LookUpRequest>) -> Self {
        Self { request: Arc::clone(request), places: 0..request.wanted.len() }
    }

    fn wanted(&self) -> &[OutPoint] {
        &self.request.wanted[self.places.clone()]
    }

    /// Answers. The request, if it has all its answers by that: it is to be woken.
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

/// Coins that are asked for together.
pub(super) struct LookUpBatch {
    portions: Vec<Portion>,
    /// All that its portions want, by ascending outpoint, each with its place among them.
    wanted: Vec<(OutPoint, usize)>,
    /// When it was asked for first.
    pub(super) begun: Instant,
    /// How often it was asked for.
    pub(super) tries: u32,
}

impl LookUpBatch {
    pub(super) fn new(portions: Vec<Portion>, now: Instant) -> Self {
        let wanted = portions.iter().flat_map(Portion::wanted).copied().zip(0..).collect();
        Self { portions, wanted, begun: now, tries: 0 }
    }

    /// How many coins it is for.
    pub(super) fn len(&self) -> usize {
        self.wanted.len()
    }

    /// What the store is to be asked for: each coin once, by ascending outpoint.
    pub(super) fn asked(&mut self) -> Vec<OutPoint> {
        each_name(&mut self.wanted)
    }

    /// The answers by place, where what came are the answers to what was asked.
    pub(super) fn placed(
        &self,
        found: Vec<Option<CoinBytes>>,
    ) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        let mut coins = vec![None; self.wanted.len()];
        give_each(&self.wanted, found, |place, coin| coins[place] = coin)?;
        Ok(coins)
    }

    /// Answers all of it. The requests that have all their answers by that.
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

//! [`Item`] and [`Request`]: a coin that was taken in, and whom its answer is for.
//!
//! An item is answered by [`Item::answer`] or, if it goes without that, by an error as it is dropped:
//! whatever becomes of the thread that has it, its request learns of it, once.

use crate::coin::CoinBytes;
use crate::utxo::store::StoreError;
use apus_chain::OutPoint;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// What one call of [`Producer::submit`](super::Producer::submit) wants.
pub(super) struct Request {
    answers: Mutex<Answers>,
    done: Condvar,
}

struct Answers {
    coins: Vec<Option<CoinBytes>>,
    left: usize,
    /// Whether its caller is counted among those that wait.
    awaited: bool,
    /// The first error that came.
    error: Option<StoreError>,
}

impl Request {
    pub(super) fn new(coins: usize) -> Arc<Self> {
        let answers =
            Answers { coins: vec![None; coins], left: coins, awaited: false, error: None };
        Arc::new(Self { answers: Mutex::new(answers), done: Condvar::new() })
    }

    /// Nothing that panics runs under the lock.
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts an answer down. Whether it was the last one.
    fn answer(&self, place: usize, answer: Result<Option<CoinBytes>, StoreError>) -> bool {
        let mut answers = self.lock();
        match answer {
            Ok(coin) => answers.coins[place] = coin,
            Err(error) => {
                answers.error.get_or_insert(error);
            }
        }
        // Each item answers once, and there is one for each place.
        answers.left -= 1;
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
        let unfinished = |answers: &mut Answers| answers.left > 0;
        let answers = self.done.wait_while(self.lock(), unfinished);
        drop(answers.unwrap_or_else(PoisonError::into_inner));
    }

    /// The answers, which are there.
    pub(super) fn take(&self) -> Result<Vec<Option<CoinBytes>>, StoreError> {
        let mut answers = self.lock();
        match answers.error.take() {
            Some(error) => Err(error),
            None => Ok(std::mem::take(&mut answers.coins)),
        }
    }
}

/// One coin that is wanted.
pub(super) struct Item {
    pub(super) outpoint: OutPoint,
    request: Option<Arc<Request>>,
    place: usize,
}

impl Item {
    pub(super) fn new(outpoint: OutPoint, request: &Arc<Request>, place: usize) -> Self {
        Self { outpoint, request: Some(Arc::clone(request)), place }
    }

    /// Answers. The request, if it has all its answers by that: it is to be woken.
    pub(super) fn answer(
        mut self,
        answer: Result<Option<CoinBytes>, StoreError>,
    ) -> Option<Arc<Request>> {
        let request = self.request.take()?;
        request.answer(self.place, answer).then_some(request)
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if let Some(request) = self.request.take()
            && request.answer(self.place, Err(StoreError::Stopped))
        {
            request.wake();
        }
    }
}

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
    /// The first error that came.
    error: Option<StoreError>,
}

impl Request {
    pub(super) fn new(coins: usize) -> Arc<Self> {
        let answers = Answers { coins: vec![None; coins], left: coins, error: None };
        Arc::new(Self { answers: Mutex::new(answers), done: Condvar::new() })
    }

    /// Nothing that panics runs under the lock.
    fn lock(&self) -> MutexGuard<'_, Answers> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn answer(&self, place: usize, answer: Result<Option<CoinBytes>, StoreError>) {
        let mut answers = self.lock();
        match answer {
            Ok(coin) => answers.coins[place] = coin,
            Err(error) => {
                answers.error.get_or_insert(error);
            }
        }
        // Each item answers once, and there is one for each place.
        answers.left -= 1;
        if answers.left == 0 {
            drop(answers);
            self.done.notify_all();
        }
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

    pub(super) fn answer(mut self, answer: Result<Option<CoinBytes>, StoreError>) {
        if let Some(request) = self.request.take() {
            request.answer(self.place, answer);
        }
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        if let Some(request) = self.request.take() {
            request.answer(self.place, Err(StoreError::Stopped));
        }
    }
}

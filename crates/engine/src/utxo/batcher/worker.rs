//! The threads of a batcher: each takes a batch that is due, asks the store, and answers.

use super::batch::{Item, Request};
use super::queue::{Cause, Due};
use super::{Shared, State};
use crate::coin::CoinBytes;
use crate::utxo::store::{StoreError, panicked};
use crate::utxo::view::each_once;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The longest pause between two tries.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

impl Shared {
    /// The life of one thread.
    pub(super) fn serve(&self) {
        while let Some(items) = self.next() {
            let started = Instant::now();
            let (answers, tries) = self.ask(&items);
            let took = started.elapsed();
            let (count, failed) = (items.len() as u64, answers.is_err());
            let done = answer(items, answers);
            let mut state = self.lock();
            state.stats.in_flight -= 1;
            state.stats.latency.add(took);
            state.stats.retries += u64::from(tries - 1);
            state.stats.failures += u64::from(failed);
            state.stats.answered += count;
            // Counted out before it is woken: it may hand in more at once, and others do not wait yet. One that
            // does not wait by now finds that all is there.
            let waited = done.iter().filter(|request| request.set_awaited(false));
            let waited: Vec<_> = waited.collect();
            state.queue.wait_ends(waited.len());
            drop(state);
            waited.iter().for_each(|request| request.wake());
        }
    }

    /// Waits for a batch that is due; none at the end.
    fn next(&self) -> Option<Vec<Item>> {
        let mut state = self.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            match state.queue.due(now) {
                Due::Now(cause) => return Some(self.take(state, cause, now)),
                Due::At(then) => {
                    let wait = then.saturating_duration_since(now);
                    let woken = self.work.wait_timeout(state, wait);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                }
                Due::Never => {
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                }
            }
        }
    }

    fn take(&self, mut state: MutexGuard<'_, State>, cause: Cause, now: Instant) -> Vec<Item> {
        let (items, waited) = state.queue.take(now);
        let stats = &mut state.stats;
        stats.batches += 1;
        match cause {
            Cause::Size => stats.full += 1,
            Cause::Complete => stats.complete += 1,
            Cause::Idle => stats.idle += 1,
            Cause::Deadline => stats.deadline += 1,
        }
        stats.size_max = stats.size_max.max(items.len() as u64);
        stats.waited.add(waited);
        stats.in_flight += 1;
        stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
        // Another may be due as well, or has a deadline that a thread must wait for.
        let more = !matches!(state.queue.due(now), Due::Never);
        let wanted = state.waiting_for_room > 0;
        drop(state);
        self.wake(more.into());
        if wanted {
            self.room.notify_all();
        }
        items
    }

    /// Asks the store, again where it may help, and says how often.
    fn ask(&self, items: &[Item]) -> (Result<Vec<Option<CoinBytes>>, StoreError>, u32) {
        let mut wanted: Vec<_> = items.iter().map(|item| item.outpoint).zip(0..).collect();
        let mut coins = vec![None; items.len()];
        let mut pause = self.options.back_off;
        let mut tries = 1;
        loop {
            let give = |place: usize, coin| coins[place] = coin;
            let asking = || each_once(&mut wanted, |asked| self.store.get_many(asked), give);
            // What a store leaves broken behind a panic is its own, and here nothing was given yet.
            let error = match catch_unwind(AssertUnwindSafe(asking)) {
                Ok(Ok(())) => return (Ok(coins), tries),
                Ok(Err(error)) => error,
                Err(panic) => return (Err(panicked(&*panic)), tries),
            };
            let may_help = matches!(error, StoreError::Io { .. }) && tries <= self.options.retries;
            if !may_help || !self.pause(pause) {
                return (Err(error), tries);
            }
            tries += 1;
            pause = pause.saturating_mul(2).min(BACK_OFF_MAX);
        }
    }

    /// Lets time pass; false where the end came instead.
    fn pause(&self, time: Duration) -> bool {
        let going_on = |state: &mut State| !state.closed;
        let waited = self.end.wait_timeout_while(self.lock(), time, going_on);
        !waited.unwrap_or_else(PoisonError::into_inner).0.closed
    }
}

/// Answers all items. The requests that have all their answers by that.
fn answer(
    items: Vec<Item>,
    answers: Result<Vec<Option<CoinBytes>>, StoreError>,
) -> Vec<Arc<Request>> {
    match answers {
        Ok(coins) => {
            items.into_iter().zip(coins).filter_map(|(item, coin)| item.answer(Ok(coin))).collect()
        }
        Err(error) => {
            items.into_iter().filter_map(|item| item.answer(Err(error.clone()))).collect()
        }
    }
}

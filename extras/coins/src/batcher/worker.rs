//! The batcher's threads. Each takes the batches that are due, sends them to the store in one call, and
//! passes each answer on as it arrives.
//!
//! A thread sleeps while nothing is due, or while the maximum number of batches is in flight. A batch that
//! waits for its retry occupies no thread.

use super::queue::{Cause, Due, LookUpBatch, Portion};
use super::{BatcherShared, BatcherState};
use apus_chain::OutPoint;
use apus_engine::utxo::store::panicked;
use apus_engine::utxo::{CoinBytes, StoreError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// Longest pause between retries.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// A failed batch that waits for its retry.
pub(super) struct Later {
    batch: LookUpBatch,
    /// When to retry; `None` if that time cannot be represented.
    at: Option<Instant>,
    /// The failure.
    error: StoreError,
}

impl BatcherShared {
    /// The main loop of one thread.
    pub(super) fn serve(&self) {
        while let Some(batches) = self.next() {
            self.ask(batches);
        }
    }

    /// Waits for batches that are due. Returns `None` at the end.
    fn next(&self) -> Option<Vec<LookUpBatch>> {
        let mut state = self.state.lock();
        loop {
            if state.closed {
                return None;
            }
            let now = Instant::now();
            let mut batches = self.take_again(&mut state, now);
            let new = self.take_new(&mut state, now, self.at_once.saturating_sub(batches.len()));
            if !new.is_empty() || !batches.is_empty() {
                let threads = self.threads_wanted(&state, now);
                let (woken, room) = (state.wake(threads), state.waiting_for_room > 0);
                drop(state);
                self.notify(woken);
                if room && !new.is_empty() {
                    self.room.notify_all();
                }
                batches.extend(new.into_iter().map(|portions| LookUpBatch::new(portions, now)));
                return Some(batches);
            }
            match self.due(&state, now) {
                Due::At(then) if !state.watched => {
                    state.watched = true;
                    self.watch.wait_until(&mut state, then);
                    state.watched = false;
                }
                _ => {
                    state.asleep += 1;
                    self.work.wait(&mut state);
                    state.asleep -= 1;
                    state.woken = state.woken.saturating_sub(1);
                }
            }
        }
    }

    /// How many threads must look for due work, or wait until some is due: zero without any work, or if a
    /// thread waits for it already.
    pub(super) fn threads_wanted(&self, state: &BatcherState, now: Instant) -> usize {
        match self.due(state, now) {
            Due::Now(_) => 1,
            Due::At(_) => usize::from(!state.watched),
            Due::Never => 0,
        }
    }

    /// When the next work is due.
    fn due(&self, state: &BatcherState, now: Instant) -> Due {
        let again = state.later.iter().filter_map(|later| later.at).min();
        let new = match self.has_room(state) {
            true => state.queue.due(now),
            false => Due::Never,
        };
        match (again, new) {
            (_, Due::Now(cause)) => Due::Now(cause),
            (Some(again), Due::At(new)) => Due::At(again.min(new)),
            (Some(again), Due::Never) => Due::At(again),
            (None, new) => new,
        }
    }

    /// Returns true if another batch may be in flight.
    fn has_room(&self, state: &BatcherState) -> bool {
        state.stats.in_flight < self.options.in_flight as u64
    }

    /// Takes the batches whose retry is due.
    fn take_again(&self, state: &mut BatcherState, now: Instant) -> Vec<LookUpBatch> {
        let mut again = Vec::new();
        while again.len() < self.at_once
            && let Some(place) =
                state.later.iter().position(|later| later.at.is_some_and(|at| at <= now))
        {
            state.stats.retries += 1;
            again.push(state.later.swap_remove(place).batch);
        }
        again
    }

    /// Takes up to `count` due batches from the queue.
    fn take_new(&self, state: &mut BatcherState, now: Instant, count: usize) -> Vec<Vec<Portion>> {
        let mut taken = Vec::new();
        while taken.len() < count
            && self.has_room(state)
            && let Due::Now(cause) = state.queue.due(now)
        {
            let before = state.queue.len();
            let (portions, waited) = state.queue.take(now);
            let stats = &mut state.stats;
            stats.batches += 1;
            match cause {
                Cause::Size => stats.full += 1,
                Cause::Complete => stats.complete += 1,
                Cause::Idle => stats.idle += 1,
                Cause::Deadline => stats.deadline += 1,
            }
            stats.size_max = stats.size_max.max((before - state.queue.len()) as u64);
            stats.waited.add(waited);
            stats.in_flight += 1;
            stats.in_flight_max = stats.in_flight_max.max(stats.in_flight);
            taken.push(portions);
        }
        taken
    }

    /// Sends batches to the store, and passes each answer on as it arrives.
    fn ask(&self, mut batches: Vec<LookUpBatch>) {
        batches.iter_mut().for_each(|batch| batch.tries += 1);
        let asked: Vec<Vec<OutPoint>> = batches.iter_mut().map(LookUpBatch::asked).collect();
        let asked: Vec<&[OutPoint]> = asked.iter().map(Vec::as_slice).collect();
        let mut unanswered: Vec<Option<LookUpBatch>> = batches.into_iter().map(Some).collect();
        let mut each = |number: usize, answer| {
            // A second answer to the same batch is ignored.
            if let Some(batch) = unanswered.get_mut(number).and_then(Option::take) {
                self.answer(batch, answer, true);
            }
        };
        // Unwind-safe: any state that a panic corrupts is the store's own.
        let asking = AssertUnwindSafe(|| self.store.get_batches(&asked, &mut each));
        let panic = catch_unwind(asking).err();
        for batch in unanswered.into_iter().flatten() {
            let error = match &panic {
                Some(panic) => panicked(&**panic),
                None => StoreError::look_up("the store did not answer a batch"),
            };
            self.answer(batch, Err(error), panic.is_none());
        }
    }

    /// Passes on a batch's answer, or schedules a retry if that may help.
    fn answer(
        &self,
        batch: LookUpBatch,
        answer: Result<Vec<Option<CoinBytes>>, StoreError>,
        may_help: bool,
    ) {
        let answer = answer.and_then(|found| batch.placed(found));
        match answer {
            Err(error @ StoreError::Io { .. }) if may_help => self.try_later(batch, error),
            answer => self.end(batch, answer),
        }
    }

    /// Schedules a retry after a pause; fails the batch if its retries are used up.
    fn try_later(&self, batch: LookUpBatch, error: StoreError) {
        let mut state = self.state.lock();
        if state.closed || batch.tries > self.options.retries {
            drop(state);
            return self.end(batch, Err(error));
        }
        let times = 1_u32.checked_shl(batch.tries - 1).unwrap_or(u32::MAX);
        let pause = self
            .options
            .back_off
            .saturating_mul(times)
            .min(BACK_OFF_MAX.max(self.options.back_off));
        let at = Instant::now().checked_add(pause);
        state.later.push(Later { batch, at, error });
        // A thread must learn of this time, which may precede all others that it knows.
        let watched = std::mem::take(&mut state.watched);
        let mut woken = state.wake(usize::from(!watched));
        woken.watcher |= watched;
        drop(state);
        self.notify(woken);
    }

    /// Fails batches that wait for a retry, with their last errors.
    pub(super) fn end_later(&self, later: Vec<Later>) {
        later.into_iter().for_each(|Later { batch, error, .. }| self.end(batch, Err(error)));
    }

    /// Answers a whole batch.
    fn end(&self, batch: LookUpBatch, answer: Result<Vec<Option<CoinBytes>>, StoreError>) {
        let (took, count, failed) = (batch.begun.elapsed(), batch.len() as u64, answer.is_err());
        let done = batch.answer(answer);
        let mut state = self.state.lock();
        state.stats.in_flight -= 1;
        state.stats.latency.add(took);
        state.stats.failures += u64::from(failed);
        state.stats.answered += count;
        // Stop counting the callers as waiting before they wake: one may submit more at once, while others do
        // not wait yet. A caller that is not waiting by now will find its answers complete.
        let waited = done.iter().filter(|request| request.set_awaited(false));
        let waited: Vec<_> = waited.collect();
        state.queue.wait_ends(waited.len());
        // Another batch may start now, and this thread may have other answers to wait for.
        let threads = self.threads_wanted(&state, Instant::now());
        let woken = state.wake(threads);
        drop(state);
        self.notify(woken);
        waited.iter().for_each(|request| request.wake());
    }
}

//! The threads of a batcher: each takes batches that are due, hands them to the store with one call, and answers
//! each as its answer comes.
//!
//! A thread sleeps while nothing is due, or as many batches are under way as may be. A batch that is to be tried
//! again waits for its time without a thread, so it holds up none that has something to do.

use super::queue::{Cause, Due, LookUpBatch, Portion};
use super::{BatcherShared, BatcherState};
use apus_chain::OutPoint;
use apus_engine::utxo::store::panicked;
use apus_engine::utxo::{CoinBytes, StoreError};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::PoisonError;
use std::time::{Duration, Instant};

/// The longest pause between two tries.
const BACK_OFF_MAX: Duration = Duration::from_secs(5);

/// A batch that failed, until it is tried again.
pub(super) struct Later {
    batch: LookUpBatch,
    /// When; never where that is beyond all time.
    at: Option<Instant>,
    /// Why it failed.
    error: StoreError,
}

impl BatcherShared {
    /// The life of one thread.
    pub(super) fn serve(&self) {
        while let Some(batches) = self.next() {
            self.ask(batches);
        }
    }

    /// Waits for batches that are due; none at the end.
    fn next(&self) -> Option<Vec<LookUpBatch>> {
        let mut state = self.lock();
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
            state = match self.due(&state, now) {
                Due::At(then) if !state.watched => {
                    state.watched = true;
                    let wait = then.saturating_duration_since(now);
                    let woken = self.watch.wait_timeout(state, wait);
                    state = woken.unwrap_or_else(PoisonError::into_inner).0;
                    state.watched = false;
                    state
                }
                _ => {
                    state.asleep += 1;
                    state = self.work.wait(state).unwrap_or_else(PoisonError::into_inner);
                    state.asleep -= 1;
                    state.woken = state.woken.saturating_sub(1);
                    state
                }
            };
        }
    }

    /// How many threads have to look for what is due, or wait until something is: none where there is nothing that
    /// one is not waiting for.
    pub(super) fn threads_wanted(&self, state: &BatcherState, now: Instant) -> usize {
        match self.due(state, now) {
            Due::Now(_) => 1,
            Due::At(_) => usize::from(!state.watched),
            Due::Never => 0,
        }
    }

    /// When there is something to do.
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

    /// Whether one more batch may be under way.
    fn has_room(&self, state: &BatcherState) -> bool {
        state.stats.in_flight < self.options.in_flight as u64
    }

    /// The batches whose time to be tried again has come.
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

    /// What of the queue is due, as up to `count` batches.
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

    /// Hands batches to the store, and each answer on as it comes.
    fn ask(&self, mut batches: Vec<LookUpBatch>) {
        batches.iter_mut().for_each(|batch| batch.tries += 1);
        let asked: Vec<Vec<OutPoint>> = batches.iter_mut().map(LookUpBatch::asked).collect();
        let asked: Vec<&[OutPoint]> = asked.iter().map(Vec::as_slice).collect();
        let mut unanswered: Vec<Option<LookUpBatch>> = batches.into_iter().map(Some).collect();
        let mut each = |number: usize, answer| {
            // What comes twice is not looked at.
            if let Some(batch) = unanswered.get_mut(number).and_then(Option::take) {
                self.answer(batch, answer, true);
            }
        };
        // What a store leaves broken behind a panic is its own.
        let asking = AssertUnwindSafe(|| self.store.get_batches(&asked, &mut each));
        let panic = catch_unwind(asking).err();
        for batch in unanswered.into_iter().flatten() {
            let error = match &panic {
                Some(panic) => panicked(&**panic),
                None => StoreError::look_up("no answer came to a batch"),
            };
            self.answer(batch, Err(error), panic.is_none());
        }
    }

    /// Hands the answer to a batch on, or has it tried again where that may help.
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

    /// Has a batch tried again, after a pause; ends it where that was done often enough.
    fn try_later(&self, batch: LookUpBatch, error: StoreError) {
        let mut state = self.lock();
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
        // One has to learn of the time, which may come before all that it knows of.
        let watched = std::mem::take(&mut state.watched);
        let mut woken = state.wake(usize::from(!watched));
        woken.watcher |= watched;
        drop(state);
        self.notify(woken);
    }

    /// Ends those that are to be tried again with what they failed with.
    pub(super) fn end_later(&self, later: Vec<Later>) {
        later.into_iter().for_each(|Later { batch, error, .. }| self.end(batch, Err(error)));
    }

    /// Answers all of a batch.
    fn end(&self, batch: LookUpBatch, answer: Result<Vec<Option<CoinBytes>>, StoreError>) {
        let (took, count, failed) = (batch.begun.elapsed(), batch.len() as u64, answer.is_err());
        let done = batch.answer(answer);
        let mut state = self.lock();
        state.stats.in_flight -= 1;
        state.stats.latency.add(took);
        state.stats.failures += u64::from(failed);
        state.stats.answered += count;
        // Counted out before it is woken: it may hand in more at once, and others do not wait yet. One that
        // does not wait by now finds that all is there.
        let waited = done.iter().filter(|request| request.set_awaited(false));
        let waited: Vec<_> = waited.collect();
        state.queue.wait_ends(waited.len());
        // There is room for one more, and this thread may have other answers to wait for.
        let threads = self.threads_wanted(&state, Instant::now());
        let woken = state.wake(threads);
        drop(state);
        self.notify(woken);
        waited.iter().for_each(|request| request.wake());
    }
}

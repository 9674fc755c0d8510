//! The waiting work of all batches, and the progress of each batch.
//!
//! One lock covers all of it, and is held briefly while work is added, taken or reported. If a
//! batch is no longer listed, no caller waits for its verdict.

use super::work::{ScriptFailure, ScriptJob, ScriptTicket};
use crate::script::interpreter::Interpreter;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Work for the threads of a pool.
pub(super) struct ScriptQueue {
    interpreter: Arc<dyn Interpreter>,
    state: Mutex<ScriptQueueState>,
    /// Signals work, or that the pool is closing.
    work: Condvar,
    /// Signals that a batch is finished, or has more work to help with.
    news: Condvar,
}

#[derive(Default)]
struct ScriptQueueState {
    batches: BTreeMap<u64, BatchProgress>,
    next_number: u64,
    closed: bool,
}

/// The progress of a batch.
struct BatchProgress {
    ticket: Arc<ScriptTicket>,
    jobs: VecDeque<ScriptJob>,
    /// Pieces taken but not reported yet.
    running: usize,
    /// True once the caller adds no more work.
    complete: bool,
    failure: Option<ScriptFailure>,
}

impl BatchProgress {
    fn take(&mut self) -> Option<(Arc<ScriptTicket>, ScriptJob)> {
        let job = self.jobs.pop_front()?;
        self.running += 1;
        Some((Arc::clone(&self.ticket), job))
    }

    fn is_done(&self) -> bool {
        self.complete && self.running == 0 && self.jobs.is_empty()
    }

    fn report(&mut self, result: Result<(), ScriptFailure>) {
        self.running -= 1;
        let Err(failure) = result else { return };
        let place = |failure: &ScriptFailure| (failure.tx_index, failure.input);
        if self.failure.as_ref().is_none_or(|known| place(&failure) < place(known)) {
            self.failure = Some(failure);
        }
    }
}

impl ScriptQueue {
    pub(super) fn new(interpreter: Arc<dyn Interpreter>) -> Self {
        let (work, news) = (Condvar::new(), Condvar::new());
        Self { interpreter, state: Mutex::default(), work, news }
    }

    /// Code that holds the lock never panics, so the guarded data is always consistent.
    fn lock(&self) -> MutexGuard<'_, ScriptQueueState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn wait<'a>(
        &self,
        on: &Condvar,
        state: MutexGuard<'a, ScriptQueueState>,
    ) -> MutexGuard<'a, ScriptQueueState> {
        on.wait(state).unwrap_or_else(PoisonError::into_inner)
    }

    /// Adds a new batch to the list.
    pub(super) fn open(&self, flags: u32) -> Arc<ScriptTicket> {
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        let ticket = Arc::new(ScriptTicket::new(number, flags));
        let progress = BatchProgress {
            ticket: Arc::clone(&ticket),
            jobs: VecDeque::new(),
            running: 0,
            complete: false,
            failure: None,
        };
        state.batches.insert(number, progress);
        ticket
    }

    /// Adds work to a batch.
    pub(super) fn add(&self, ticket: &ScriptTicket, job: ScriptJob) {
        let mut state = self.lock();
        if let Some(progress) = state.batches.get_mut(&ticket.number) {
            progress.jobs.push_back(job);
            self.work.notify_one();
        }
    }

    /// Marks a batch as complete: no more work will be added.
    pub(super) fn complete(&self, ticket: &ScriptTicket) {
        if let Some(progress) = self.lock().batches.get_mut(&ticket.number) {
            progress.complete = true;
        }
    }

    /// Removes a batch from the list: drops its waiting work, and ignores reports of its running
    /// work.
    pub(super) fn remove(&self, ticket: &ScriptTicket) {
        ticket.cancel();
        let removed = self.lock().batches.remove(&ticket.number);
        // Freed after the lock is released.
        drop(removed);
    }

    /// Closes the queue: threads stop after their current work.
    pub(super) fn close(&self) {
        self.lock().closed = true;
        self.work.notify_all();
    }

    /// Runs work of all batches, the oldest first, until the queue is closed.
    pub(super) fn serve(&self) {
        let mut state = self.lock();
        while !state.closed {
            match state.batches.values_mut().find_map(BatchProgress::take) {
                Some((ticket, job)) => state = self.run(state, &ticket, job),
                None => state = self.wait(&self.work, state),
            }
        }
    }

    /// Runs work of one batch until all of it is done.
    pub(super) fn help(&self, ticket: &ScriptTicket) -> Result<(), ScriptFailure> {
        let mut state = self.lock();
        loop {
            let progress = state
                .batches
                .get_mut(&ticket.number)
                .expect("only its verdict removes a batch, and it is waiting here");
            if progress.is_done() {
                return progress.failure.take().map_or(Ok(()), Err);
            }
            match progress.take() {
                Some((ticket, job)) => state = self.run(state, &ticket, job),
                None => state = self.wait(&self.news, state),
            }
        }
    }

    /// Runs a piece of work without the lock, and reports it.
    fn run<'a>(
        &'a self,
        state: MutexGuard<'a, ScriptQueueState>,
        ticket: &ScriptTicket,
        job: ScriptJob,
    ) -> MutexGuard<'a, ScriptQueueState> {
        drop(state);
        let (result, parts) = job.run(ticket, &*self.interpreter);
        let mut state = self.lock();
        let Some(progress) = state.batches.get_mut(&ticket.number) else { return state };
        progress.report(result);
        if !parts.is_empty() {
            // Queue the parts at the front, so that few transactions are divided at a time.
            parts.into_iter().rev().for_each(|part| progress.jobs.push_front(part));
            self.work.notify_all();
            self.news.notify_all();
        } else if progress.is_done() {
            self.news.notify_all();
        }
        state
    }
}

//! The waiting work of all batches, and the progress of each batch.
//!
//! One lock covers all of it, and is held briefly while work is added, taken or reported. If a
//! batch is no longer listed, no caller waits for its verdict.

use super::work::{ScriptFailure, ScriptJob, ScriptTicket};
use super::worker::ScriptWorker;
use crate::script::interpreter::Interpreter;
use crate::script::signatures::Signatures;
use apus_chain::KnownBlock;
use std::collections::{BTreeMap, VecDeque};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

/// Work for the threads of a pool.
pub(super) struct ScriptQueue {
    interpreter: Arc<dyn Interpreter>,
    signatures: Arc<Signatures>,
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
    /// For the next threads that help: a prover's tables take time to make.
    idle_workers: Vec<ScriptWorker>,
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
        if self.failure.as_ref().is_none_or(|known| failure.is_before(known)) {
            self.failure = Some(failure);
        }
    }
}

impl ScriptQueue {
    pub(super) fn new(interpreter: Arc<dyn Interpreter>, signatures: Arc<Signatures>) -> Self {
        let (work, news) = (Condvar::new(), Condvar::new());
        Self { interpreter, signatures, state: Mutex::default(), work, news }
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
    pub(super) fn open(&self, flags: u32, block: KnownBlock) -> Arc<ScriptTicket> {
        let hints = self.signatures.hints_of(block);
        let mut state = self.lock();
        let number = state.next_number;
        state.next_number += 1;
        let ticket = Arc::new(ScriptTicket::new(number, flags, hints));
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

    /// Returns how signatures are checked.
    pub(super) fn signatures(&self) -> &Signatures {
        &self.signatures
    }

    /// Runs work of all batches, the oldest first, until the queue is closed.
    pub(super) fn serve(&self) {
        let mut worker = ScriptWorker::new(&self.signatures);
        let mut state = self.lock();
        loop {
            let next = if state.closed {
                None
            } else {
                state.batches.values_mut().find_map(BatchProgress::take)
            };
            match next {
                Some((ticket, job)) => state = self.run(state, &mut worker, &ticket, job),
                None if worker.has_undecided() => state = self.settle(state, &mut worker),
                None if state.closed => return,
                None => state = self.wait(&self.work, state),
            }
        }
    }

    /// Runs work of one batch until all of it is done.
    pub(super) fn help(&self, ticket: &ScriptTicket) -> Result<(), ScriptFailure> {
        let idle = self.lock().idle_workers.pop();
        let mut worker = idle.unwrap_or_else(|| ScriptWorker::new(&self.signatures));
        let mut state = self.lock();
        loop {
            let progress = state
                .batches
                .get_mut(&ticket.number)
                .expect("only its verdict removes a batch, and it is waiting here");
            if progress.is_done() {
                let failure = progress.failure.take();
                state.idle_workers.push(worker);
                drop(state);
                failure.map_or(Ok(()), Err)?;
                self.signatures.keep_learned(&ticket.hints);
                return Ok(());
            }
            match progress.take() {
                Some((ticket, job)) => state = self.run(state, &mut worker, &ticket, job),
                None if worker.has_undecided() => state = self.settle(state, &mut worker),
                None => state = self.wait(&self.news, state),
            }
        }
    }

    /// Runs a piece of work without the lock, and reports what is decided.
    fn run<'a>(
        &'a self,
        state: MutexGuard<'a, ScriptQueueState>,
        worker: &mut ScriptWorker,
        ticket: &Arc<ScriptTicket>,
        job: ScriptJob,
    ) -> MutexGuard<'a, ScriptQueueState> {
        drop(state);
        let parts = worker.run(ticket, job, &*self.interpreter);
        if parts.is_empty() && worker.is_full() {
            worker.settle();
        }
        let mut state = self.lock();
        if !parts.is_empty()
            && let Some(progress) = state.batches.get_mut(&ticket.number)
        {
            // Queue the parts at the front, so that few transactions are divided at a time.
            parts.into_iter().rev().for_each(|part| progress.jobs.push_front(part));
            self.work.notify_all();
            self.news.notify_all();
        }
        self.report(state, worker)
    }

    /// Decides the inputs that wait, without the lock, and reports them.
    fn settle<'a>(
        &'a self,
        state: MutexGuard<'a, ScriptQueueState>,
        worker: &mut ScriptWorker,
    ) -> MutexGuard<'a, ScriptQueueState> {
        drop(state);
        worker.settle();
        self.report(self.lock(), worker)
    }

    /// Reports the work whose inputs are all decided.
    fn report<'a>(
        &'a self,
        mut state: MutexGuard<'a, ScriptQueueState>,
        worker: &mut ScriptWorker,
    ) -> MutexGuard<'a, ScriptQueueState> {
        self.signatures.count(worker.take_counts());
        let mut is_news = false;
        for (ticket, result) in worker.reports() {
            if let Some(progress) = state.batches.get_mut(&ticket.number) {
                progress.report(result);
                is_news |= progress.is_done();
            }
        }
        if is_news {
            self.news.notify_all();
        }
        state
    }
}

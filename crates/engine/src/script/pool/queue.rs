//! The waiting work of all batches, and the progress of each batch.
//!
//! One lock covers all of it, and is held briefly while work is added, taken or reported. If a
//! batch is no longer listed, no caller waits for its verdict.

use super::work::{ScriptFailure, ScriptJob, ScriptTicket};
use super::worker::ScriptWorker;
use crate::script::interpreter::Interpreter;
use crate::script::signatures::Signatures;
use apus_chain::KnownBlock;
use parking_lot::{Condvar, Mutex, MutexGuard};
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

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

    /// Adds a new batch to the list.
    pub(super) fn open(&self, flags: u32, block: KnownBlock) -> Arc<ScriptTicket> {
        let hints = self.signatures.hints_of(block);
        let mut state = self.state.lock();
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
        let mut state = self.state.lock();
        if let Some(progress) = state.batches.get_mut(&ticket.number) {
            progress.jobs.push_back(job);
            self.work.notify_one();
        }
    }

    /// Marks a batch as complete: no more work will be added.
    pub(super) fn complete(&self, ticket: &ScriptTicket) {
        if let Some(progress) = self.state.lock().batches.get_mut(&ticket.number) {
            progress.complete = true;
        }
    }

    /// Removes a batch from the list: drops its waiting work, and ignores reports of its running
    /// work.
    pub(super) fn remove(&self, ticket: &ScriptTicket) {
        ticket.cancel();
        let removed = self.state.lock().batches.remove(&ticket.number);
        // Freed after the lock is released.
        drop(removed);
    }

    /// Closes the queue: threads stop after their current work.
    pub(super) fn close(&self) {
        self.state.lock().closed = true;
        self.work.notify_all();
    }

    /// Returns how signatures are checked.
    pub(super) fn signatures(&self) -> &Signatures {
        &self.signatures
    }

    /// Runs work of all batches, the oldest first, until the queue is closed.
    pub(super) fn serve(&self) {
        let mut worker = ScriptWorker::new(&self.signatures);
        let mut state = self.state.lock();
        loop {
            let next = if state.closed {
                None
            } else {
                state.batches.values_mut().find_map(BatchProgress::take)
            };
            match next {
                Some((ticket, job)) => self.run(&mut state, &mut worker, &ticket, job),
                None if worker.has_undecided() => self.settle(&mut state, &mut worker),
                None if state.closed => return,
                None => self.work.wait(&mut state),
            }
        }
    }

    /// Runs work of one batch until all of it is done.
    pub(super) fn help(&self, ticket: &ScriptTicket) -> Result<(), ScriptFailure> {
        let idle = self.state.lock().idle_workers.pop();
        let mut worker = idle.unwrap_or_else(|| ScriptWorker::new(&self.signatures));
        let mut state = self.state.lock();
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
                Some((ticket, job)) => self.run(&mut state, &mut worker, &ticket, job),
                None if worker.has_undecided() => self.settle(&mut state, &mut worker),
                None => self.news.wait(&mut state),
            }
        }
    }

    /// Runs a piece of work without the lock, and reports what is decided.
    fn run(
        &self,
        state: &mut MutexGuard<'_, ScriptQueueState>,
        worker: &mut ScriptWorker,
        ticket: &Arc<ScriptTicket>,
        job: ScriptJob,
    ) {
        let parts = MutexGuard::unlocked(state, || {
            let parts = worker.run(ticket, job, &*self.interpreter);
            if parts.is_empty() && worker.is_full() {
                worker.settle();
            }
            parts
        });
        if !parts.is_empty()
            && let Some(progress) = state.batches.get_mut(&ticket.number)
        {
            // Queue the parts at the front, so that few transactions are divided at a time.
            parts.into_iter().rev().for_each(|part| progress.jobs.push_front(part));
            self.work.notify_all();
            self.news.notify_all();
        }
        self.report(state, worker);
    }

    /// Decides the inputs that wait, without the lock, and reports them.
    fn settle(&self, state: &mut MutexGuard<'_, ScriptQueueState>, worker: &mut ScriptWorker) {
        MutexGuard::unlocked(state, || worker.settle());
        self.report(state, worker);
    }

    /// Reports the work whose inputs are all decided.
    fn report(&self, state: &mut ScriptQueueState, worker: &mut ScriptWorker) {
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
    }
}

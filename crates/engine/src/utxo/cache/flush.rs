//! Flushes: a background thread writes a frozen generation to the store.
//!
//! A generation that could not be written stays readable and is the next to be written: nothing
//! newer may reach the store before it. The cache decides which coins are in it.

use super::table::CacheTable;
use crate::utxo::store::{Changes, CoinsStore, EachChange, Flush, StoreError, UndoRecord};
use apus_chain::{Height, KnownBlock};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::thread::JoinHandle;

/// The data that one flush writes.
pub(super) struct FlushJob {
    /// Sorted by ascending leading bits of the txid.
    pub(super) tables: Vec<Arc<CacheTable>>,
    pub(super) tip: KnownBlock,
    pub(super) undo: Vec<UndoRecord>,
    pub(super) undo_from: Height,
}

impl Changes for FlushJob {
    /// Shards divide the txids by their leading bits, so sorting each shard and writing them in
    /// order gives the order that a store requires.
    fn for_each(&self, each: &mut EachChange<'_>) -> Result<(), StoreError> {
        for table in &self.tables {
            for key in table.sorted() {
                let (outpoint, coin) = table.change(&key);
                each(outpoint, coin)?;
            }
        }
        Ok(())
    }
}

enum FlushPhase {
    /// All frozen data, if any, is also in the store.
    Clean,
    Writing,
    Failed {
        job: FlushJob,
        error: StoreError,
        reported: bool,
    },
}

struct FlushState {
    phase: FlushPhase,
    thread: Option<JoinHandle<()>>,
    /// Undo data of flushes that could not start.
    undo: Vec<UndoRecord>,
}

/// The single flush that may be in progress.
pub(super) struct Flusher {
    store: Arc<dyn CoinsStore>,
    state: Mutex<FlushState>,
    ended: Condvar,
    flushes: AtomicU64,
}

impl Flusher {
    pub(super) fn new(store: Arc<dyn CoinsStore>) -> Self {
        let state = FlushState { phase: FlushPhase::Clean, thread: None, undo: Vec::new() };
        Self { store, state: Mutex::new(state), ended: Condvar::new(), flushes: AtomicU64::new(0) }
    }

    /// Returns the number of flushes that reached the store.
    pub(super) fn flushes(&self) -> u64 {
        self.flushes.load(Ordering::Relaxed)
    }

    /// Waits until no flush is in progress, and fails as long as a failed flush is not written.
    pub(super) fn wait(&self) -> Result<(), StoreError> {
        self.clean().map(drop)
    }

    /// Like [`wait`](Self::wait), but keeps the undo data for the next flush on failure.
    pub(super) fn wait_with(&self, undo: &mut Vec<UndoRecord>) -> Result<(), StoreError> {
        match self.clean() {
            Ok(mut state) => {
                let kept = std::mem::take(&mut state.undo);
                undo.splice(..0, kept);
                Ok(())
            }
            Err(error) => {
                self.lock()?.undo.append(undo);
                Err(error)
            }
        }
    }

    /// Starts to write. No other flush may be in progress.
    pub(super) fn start(self: &Arc<Self>, job: FlushJob) -> Result<(), StoreError> {
        let mut state = self.lock()?;
        self.spawn(&mut state, job)
    }

    /// Waits for the current flush. A failure is reported once; the next call retries the failed
    /// flush.
    pub(super) fn finish(self: &Arc<Self>) -> Result<(), StoreError> {
        let mut state = self.ended()?;
        if matches!(state.phase, FlushPhase::Failed { reported: true, .. })
            && let FlushPhase::Failed { job, .. } =
                std::mem::replace(&mut state.phase, FlushPhase::Clean)
        {
            self.spawn(&mut state, job)?;
            drop(state);
            state = self.ended()?;
        }
        Self::report(&mut state)
    }

    fn lock(&self) -> Result<MutexGuard<'_, FlushState>, StoreError> {
        self.state.lock().map_err(|_| super::poisoned())
    }

    fn ended(&self) -> Result<MutexGuard<'_, FlushState>, StoreError> {
        let state = self.lock()?;
        let writing = |state: &mut FlushState| matches!(state.phase, FlushPhase::Writing);
        self.ended.wait_while(state, writing).map_err(|_| super::poisoned())
    }

    fn clean(&self) -> Result<MutexGuard<'_, FlushState>, StoreError> {
        let mut state = self.ended()?;
        Self::report(&mut state)?;
        Ok(state)
    }

    fn report(state: &mut FlushState) -> Result<(), StoreError> {
        match &mut state.phase {
            FlushPhase::Failed { error, reported, .. } => {
                *reported = true;
                Err(error.clone())
            }
            _ => Ok(()),
        }
    }

    fn spawn(self: &Arc<Self>, state: &mut FlushState, job: FlushJob) -> Result<(), StoreError> {
        join(state.thread.take());
        state.phase = FlushPhase::Writing;
        // The job is sent only after the thread exists, so that it is not lost if the thread cannot
        // start.
        let (give, take) = std::sync::mpsc::sync_channel(1);
        let flusher = Arc::clone(self);
        let thread = std::thread::Builder::new().name("coins flush".into()).spawn(move || {
            if let Ok(job) = take.recv() {
                flusher.write(job);
            }
        });
        match thread {
            Ok(thread) => {
                state.thread = Some(thread);
                give.send(job).map_err(|_| super::poisoned())
            }
            Err(error) => {
                let error = super::error(format!("cannot start a thread to write: {error}"));
                state.phase = FlushPhase::Failed { job, error: error.clone(), reported: true };
                Err(error)
            }
        }
    }

    fn write(&self, job: FlushJob) {
        let FlushJob { tip, undo_from, .. } = job;
        let flush = Flush { tip, changes: &job, undo: &job.undo, undo_from };
        // If the store panics, callers must not wait for this thread forever.
        let written =
            catch_unwind(AssertUnwindSafe(|| self.store.write(&flush))).unwrap_or_else(|_| {
                Err(super::error("the store failed in the middle of a write".into()))
            });
        let phase = match written {
            Ok(()) => {
                self.flushes.fetch_add(1, Ordering::Relaxed);
                drop(job);
                FlushPhase::Clean
            }
            Err(error) => FlushPhase::Failed { job, error, reported: false },
        };
        if let Ok(mut state) = self.state.lock() {
            state.phase = phase;
        }
        self.ended.notify_all();
    }

    /// Waits for the thread itself: afterwards it no longer writes to the store.
    pub(super) fn stop(&self) {
        let thread = self.lock().ok().and_then(|mut state| state.thread.take());
        join(thread);
    }
}

fn join(thread: Option<JoinHandle<()>>) {
    if let Some(thread) = thread {
        // The thread catches panics, and its result is in the state.
        let _ = thread.join();
    }
}

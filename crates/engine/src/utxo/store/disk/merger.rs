//! [`Merger`]: a thread that merges tables while coins are read and written.
//!
//! It changes what files there are, never what coins there are. A failure is told to the next
//! writer, which cannot go on for ever without it.

use super::StoreError;
use super::tree::Tree;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::{self, JoinHandle};

/// Batches that may wait to be merged before writers wait too: each slows look-ups down.
const UNMERGED_MAX: usize = 12;

#[derive(Default)]
struct State {
    /// There may be something to do.
    wanted: bool,
    /// It is being done.
    running: bool,
    closing: bool,
    failure: Option<StoreError>,
}

impl State {
    fn busy(&self) -> bool {
        (self.wanted || self.running) && self.failure.is_none()
    }
}

struct Shared {
    tree: Arc<Tree>,
    state: Mutex<State>,
    changed: Condvar,
}

/// The thread. It ends when this is dropped.
pub(super) struct Merger {
    shared: Arc<Shared>,
    thread: Option<JoinHandle<()>>,
}

impl Merger {
    pub(super) fn start(tree: Arc<Tree>) -> std::io::Result<Self> {
        let shared = Shared { tree, state: Mutex::default(), changed: Condvar::new() };
        let shared = Arc::new(shared);
        let theirs = Arc::clone(&shared);
        let thread = thread::Builder::new().name("coins-merge".into()).spawn(move || theirs.run());
        Ok(Self { shared, thread: Some(thread?) })
    }

    /// Says that a batch was added.
    pub(super) fn wake(&self) {
        self.shared.state().wanted = true;
        self.shared.changed.notify_all();
    }

    /// Waits while too many batches are not merged; tells of a failure, once.
    pub(super) fn make_room(&self) -> Result<(), StoreError> {
        let unmerged = || self.shared.tree.unmerged();
        self.wait_while(|state| state.busy() && unmerged() >= UNMERGED_MAX)
    }

    /// Waits until there is nothing to merge; tells of a failure, once.
    pub(super) fn settle(&self) -> Result<(), StoreError> {
        self.wait_while(|state| state.busy())
    }

    fn wait_while(&self, condition: impl FnMut(&mut State) -> bool) -> Result<(), StoreError> {
        let state = self.shared.changed.wait_while(self.shared.state(), condition);
        let failure = state.unwrap_or_else(PoisonError::into_inner).failure.take();
        failure.map_or(Ok(()), Err)
    }
}

impl Drop for Merger {
    fn drop(&mut self) {
        self.shared.state().closing = true;
        self.shared.changed.notify_all();
        self.shared.tree.stop_merging();
        if let Some(thread) = self.thread.take() {
            // It catches what the library panics with, and has nothing else to panic with.
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn run(&self) {
        loop {
            let idle = |state: &mut State| !state.wanted && !state.closing;
            let state = self.changed.wait_while(self.state(), idle);
            let mut state = state.unwrap_or_else(PoisonError::into_inner);
            if state.closing {
                return;
            }
            (state.wanted, state.running) = (false, true);
            drop(state);
            let merged = self.tree.merge();
            let mut state = self.state();
            state.running = false;
            match merged {
                Ok(more) => state.wanted |= more,
                Err(error) => state.failure = Some(error),
            }
            drop(state);
            self.changed.notify_all();
        }
    }
}

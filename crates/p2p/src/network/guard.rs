//! What becomes of a network one of whose threads panics.
//!
//! A panic is a fault of this program. A caller must not wait for what that thread no longer
//! does, so all of the network ends, and says why to every caller from then on. Nothing is mended.

use super::peer::Turns;
use super::state::State;
use super::{NetworkError, Shared};
use crate::transport::Closer;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::thread;

/// Each thread of the network holds one, in front of all else.
pub(super) struct Guard<'a>(pub(super) &'a Shared);

impl Drop for Guard<'_> {
    fn drop(&mut self) {
        if !thread::panicking() {
            return;
        }
        let thread = thread::current().name().unwrap_or("without a name").to_owned();
        self.0.ended.store(true, Ordering::Relaxed);
        self.0.lock().break_down(NetworkError::Panicked { thread });
        self.0.wake.notify_all();
        self.0.changed.notify_all();
    }
}

/// However the thread that writes to a peer ends: the one that reads learns of it, even where it
/// waits for answers.
pub(super) struct WriterEnd {
    pub(super) closer: Closer,
    pub(super) turns: Arc<Turns>,
}

impl Drop for WriterEnd {
    fn drop(&mut self) {
        self.closer.close();
        self.turns.end();
    }
}

impl State {
    /// Nothing will ever come any more.
    fn break_down(&mut self, error: NetworkError) {
        // The first reason is the one.
        let error = self.broken.get_or_insert(error).clone();
        self.fail(error);
        self.end();
    }
}

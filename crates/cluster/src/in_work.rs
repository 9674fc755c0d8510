//! [`InWork`]: which jobs a machine is at.

use crate::beat::{Beat, Doing};
use apus_sync::RunId;
use std::collections::BTreeMap;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
#[derive(Default)]
pub(crate) struct InWork {
    next: u64,
    /// By a number of its own, since a job may be given twice.
    leased: BTreeMap<u64, Doing>,
    segments: u64,
}

impl InWork {
    pub(crate) fn beat(&self, run: &RunId, name: &str) -> Beat {
        Beat::new(run, name, self.segments, self.leased.values().cloned().collect())
    }

    pub(crate) fn begin(&mut self, doing: Doing) -> u64 {
        self.next += 1;
        self.leased.insert(self.next, doing);
        self.next
    }

    pub(crate) fn block(&mut self, lease: u64) {
        if let Some(doing) = self.leased.get_mut(&lease) {
            doing.done += 1;
        }
    }

    pub(crate) fn answered(&mut self) {
        self.segments += 1;
    }

    pub(crate) fn end(&mut self, lease: u64) {
        self.leased.remove(&lease);
    }
}

pub(crate) fn lock(doing: &Mutex<InWork>) -> MutexGuard<'_, InWork> {
    doing.lock().unwrap_or_else(PoisonError::into_inner)
}

//! [`KnownRecord`]: what the one who writes knows of the record on the servers.
//!
//! Between the moment that a write may have changed it and the moment that this is known, it is not: after a
//! write that failed there a store is *halted*, and what the servers have is found out by opening it again.

use crate::access::io_error;
use apus_engine::utxo::StoreError;
use std::fmt;
use std::sync::{Mutex, MutexGuard, PoisonError};

/// See the module.
pub(crate) struct KnownRecord<R> {
    place: String,
    record: Mutex<Option<R>>,
}

impl<R: Copy> KnownRecord<R> {
    /// The record of the store at `place`, as it was opened.
    pub(crate) fn new(place: &str, record: R) -> Self {
        Self { place: place.to_owned(), record: Mutex::new(Some(record)) }
    }

    /// The record. Waits for a write that is under way.
    pub(crate) fn get(&self) -> Result<R, StoreError> {
        self.write().map(|writing| writing.before)
    }

    /// Keeps others from writing until the answer is dropped. Fails where the store is halted.
    pub(crate) fn write(&self) -> Result<RecordWrite<'_, R>, StoreError> {
        let record = self.record.lock().unwrap_or_else(PoisonError::into_inner);
        match *record {
            Some(before) => Ok(RecordWrite { record, before }),
            None => Err(StoreError::Halted { place: self.place.clone() }),
        }
    }
}

/// The one write that is under way.
pub(crate) struct RecordWrite<'a, R> {
    record: MutexGuard<'a, Option<R>>,
    /// The record before it.
    pub(crate) before: R,
}

impl<R> RecordWrite<'_, R> {
    /// From here on the servers may have the old record or the new one.
    pub(crate) fn is_open(&mut self) {
        *self.record = None;
    }

    /// The servers have this one.
    pub(crate) fn ends(mut self, after: R) {
        *self.record = Some(after);
    }
}

/// The name of a flush, or of a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RandomId(pub(crate) [u8; 16]);

impl RandomId {
    /// Drawn by the system, for the store at a place.
    pub(crate) fn random(place: &str) -> Result<Self, StoreError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            io_error(place, format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for RandomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_store_is_halted_from_a_write_that_may_have_happened_on() {
        let known = KnownRecord::new("there", 1);
        // One that changed nothing.
        drop(known.write().unwrap());
        assert_eq!(known.get().unwrap(), 1);
        let mut writing = known.write().unwrap();
        writing.is_open();
        writing.ends(2);
        assert_eq!(known.write().unwrap().before, 2);
        known.write().unwrap().is_open();
        for error in [known.get().err(), known.write().err()] {
            let error = error.unwrap();
            assert!(matches!(&error, StoreError::Halted { place } if place == "there"), "{error}");
        }
    }
}

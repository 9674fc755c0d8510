//! What stores of both kinds share: [`KnownRecord`], which the one who writes knows of the record on the servers;
//! [`CoinsAtTip`], which the one who reads gets; and what their errors say.
//!
//! Between the moment that a write may have changed it and the moment that this is known, the record is not known: after a
//! write that failed there a store is *halted*, and what the servers have is found out by opening it again.

use apus_chain::KnownBlock;
use apus_engine::utxo::{CoinBytes, StoreError};
use std::error::Error;
use std::fmt;
use std::io;
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
            StoreError::io(place, format!("the system gives no random numbers: {error}"))
        })?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for RandomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// Coins that are looked up with one way to the servers and back.
pub(crate) const READ_AT_ONCE: usize = 500;

/// What a look-up found.
#[derive(Debug, Clone)]
pub struct CoinsAtTip {
    /// The block that the store was at.
    pub tip: KnownBlock,
    /// The coins, in the order in which they were asked for; none where there is no such coin.
    pub coins: Vec<Option<CoinBytes>>,
}

/// The error where there is nothing to read.
pub(crate) fn no_store(place: &str) -> StoreError {
    StoreError::io(
        place,
        "there are no coins under this name: see whether it is right; apus sync --coins and apus \
                coins copy make some",
    )
}

/// What to do about an error of TLS.
pub(crate) const WHOM_TO_TRUST: &str = "the server's certificate has to be of its name, and from one whom this system trusts; \
     SSL_CERT_FILE can name others";

/// Whether an error is one of TLS, and not of the connection below.
///
/// Errors of TLS: a server that is not trusted, or is not the one that was named, or a system that trusts no authority. They
/// do not go away by themselves, so the client does not ask again.
pub(crate) fn is_tls_error(error: &(dyn Error + 'static)) -> bool {
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>()
        || error.is::<rustls_native_certs::Error>()
        || within.is_some_and(|within| within.is::<rustls::Error>())
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

    #[test]
    fn those_of_tls_are_told_from_those_below() {
        let tls = rustls::Error::DecryptError;
        assert!(is_tls_error(&tls));
        assert!(is_tls_error(&io::Error::new(io::ErrorKind::InvalidData, tls)));
        assert!(!is_tls_error(&io::Error::new(io::ErrorKind::InvalidData, "odd")));
        assert!(!is_tls_error(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}

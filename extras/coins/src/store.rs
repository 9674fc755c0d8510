//! Code shared by both kinds of stores: [`KnownRecord`], the writer's copy of the servers' record;
//! [`CoinsAtTip`], a reader's result; and error messages.
//!
//! The record is unknown between a write that may have changed it and the answer to that write. If such a
//! write fails, the store is *halted*: only opening it again reveals what the servers have.

use apus_chain::KnownBlock;
use apus_engine::utxo::{CoinBytes, StoreError};
use parking_lot::{Mutex, MutexGuard};
use std::error::Error;
use std::fmt;
use std::io;

/// A writer's copy of the record on the servers.
pub(crate) struct KnownRecord<R> {
    place: String,
    record: Mutex<Option<R>>,
}

impl<R: Copy> KnownRecord<R> {
    /// Starts with the record of the store at `place`, as it was opened.
    pub(crate) fn new(place: &str, record: R) -> Self {
        Self { place: place.to_owned(), record: Mutex::new(Some(record)) }
    }

    /// The record. Waits for a write in progress.
    pub(crate) fn get(&self) -> Result<R, StoreError> {
        self.write().map(|writing| writing.before)
    }

    /// Starts a write, which excludes others until the result is dropped. Fails if the store is halted.
    pub(crate) fn write(&self) -> Result<RecordWrite<'_, R>, StoreError> {
        let record = self.record.lock();
        match *record {
            Some(before) => Ok(RecordWrite { record, before }),
            None => Err(StoreError::Halted { place: self.place.clone() }),
        }
    }
}

/// The write in progress.
pub(crate) struct RecordWrite<'a, R> {
    record: MutexGuard<'a, Option<R>>,
    /// The record before the write.
    pub(crate) before: R,
}

impl<R> RecordWrite<'_, R> {
    /// Records that from now on the servers may have the old record or the new one.
    pub(crate) fn is_open(&mut self) {
        *self.record = None;
    }

    /// Ends the write: the servers have this record.
    pub(crate) fn ends(mut self, after: R) {
        *self.record = Some(after);
    }
}

/// A random name of a flush or a writer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct RandomId(pub(crate) [u8; 16]);

impl RandomId {
    /// Gets a random id from the system, for the store at `place`.
    pub(crate) fn random(place: &str) -> Result<Self, StoreError> {
        let mut bytes = [0; 16];
        getrandom::fill(&mut bytes).map_err(|error| {
            StoreError::io(place, format!("the system provides no random numbers: {error}"))
        })?;
        Ok(Self(bytes))
    }
}

impl fmt::Display for RandomId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
    }
}

/// How many coins to look up in one round trip.
pub(crate) const READ_AT_ONCE: usize = 500;

/// The result of a look-up.
#[derive(Debug, Clone)]
pub struct CoinsAtTip {
    /// The block that the store was at.
    pub tip: KnownBlock,
    /// The coins in the order of the request; `None` if there is no such coin.
    pub coins: Vec<Option<CoinBytes>>,
}

/// The error if there is no store to read.
pub(crate) fn no_store(place: &str) -> StoreError {
    StoreError::io(
        place,
        "no coins under this name: check the name, or create the store with apus sync --coins or apus \
         coins copy",
    )
}

/// What to do about a TLS error.
pub(crate) const WHOM_TO_TRUST: &str = "the server's certificate must match its name and be issued by an \
    authority that this system trusts; to trust others, set SSL_CERT_FILE to a file of their certificates";

/// Returns true for a TLS error, as opposed to an error of the connection below.
///
/// TLS errors mean that a server is not trusted or is not the one named, or that the system trusts no
/// authority. They are permanent, so the client does not retry.
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
    fn a_store_is_halted_after_a_write_that_may_have_happened() {
        let known = KnownRecord::new("there", 1);
        // This write changes nothing.
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
    fn tls_errors_are_distinguished_from_connection_errors() {
        let tls = rustls::Error::DecryptError;
        assert!(is_tls_error(&tls));
        assert!(is_tls_error(&io::Error::new(io::ErrorKind::InvalidData, tls)));
        assert!(!is_tls_error(&io::Error::new(io::ErrorKind::InvalidData, "odd")));
        assert!(!is_tls_error(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}

//! Errors of TLS: a server that is not trusted, or is not the one that was named, or a system that trusts no authority. They
//! do not go away by themselves, so the client does not ask again.

use std::error::Error;
use std::io;

/// What to do about them.
pub(crate) const WHOM_TO_TRUST: &str = "the server's certificate has to be of its name, and from one whom this system trusts; \
     SSL_CERT_FILE can name others";

/// Whether an error is one of TLS, and not of the connection below.
pub(crate) fn is_tls(error: &(dyn Error + 'static)) -> bool {
    let within = error.downcast_ref::<io::Error>().and_then(io::Error::get_ref);
    error.is::<rustls::Error>()
        || error.is::<rustls_native_certs::Error>()
        || within.is_some_and(|within| within.is::<rustls::Error>())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn those_of_tls_are_told_from_those_below() {
        let tls = rustls::Error::DecryptError;
        assert!(is_tls(&tls));
        assert!(is_tls(&io::Error::new(io::ErrorKind::InvalidData, tls)));
        assert!(!is_tls(&io::Error::new(io::ErrorKind::InvalidData, "odd")));
        assert!(!is_tls(&io::Error::from(io::ErrorKind::ConnectionReset)));
    }
}

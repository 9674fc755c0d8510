//! [`Place`]: where a store is, as its user names it.
//!
//! A password is no part of it. What stands on a command line is seen by every user of the machine and
//! kept by shells, so a place with a password in it is refused, and the refusal does not repeat it.

mod cluster;
mod postgres;

pub use cluster::ClusterPlace;
pub use postgres::PostgresPlace;

use std::fmt;
use std::str::FromStr;

/// What a store is called where its user gives no name.
const NAME: &str = "apus";

/// The longest name of a store: it is a part of each key, or a schema's.
const NAME_BYTES_MAX: usize = 32;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Place {
    /// On a Redis Cluster.
    Cluster(ClusterPlace),
    /// On PostgreSQL.
    Postgres(PostgresPlace),
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        match text.starts_with("postgres") {
            true => text.parse().map(Self::Postgres),
            false => text.parse().map(Self::Cluster),
        }
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(place) => place.fmt(f),
            Self::Postgres(place) => place.fmt(f),
        }
    }
}

/// Why a text names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It begins otherwise.
    #[error(
        "not a store: name it as redis://HOST:PORT,HOST:PORT/NAME, or rediss:// with TLS, or as \
         postgres://USER@HOST:PORT/DATABASE/NAME, with ?sslmode=verify-full for TLS"
    )]
    Scheme,
    /// It has a password in it, which is not repeated.
    #[error(
        "a password, or a user of Redis, stands in it, where others can read it: take it out, change it, and \
         give it by the environment variable APUS_COINS_PASSWORD or by --coins-password-file"
    )]
    Password,
    /// A server has no name.
    #[error("{0:?} is no server: name each as HOST:PORT, with commas between")]
    Node(String),
    /// What follows a question mark is not known.
    #[error(
        "{0:?} is nothing that can be asked for: only sslmode=disable and sslmode=verify-full are"
    )]
    Setting(String),
    /// A user or a database of PostgreSQL has no name that could be one.
    #[error("{0:?} is no name of a user or a database: use letters, digits, - and _")]
    Login(String),
    /// The store's name is none.
    #[error(
        "{0:?} is no name of a store: use up to {NAME_BYTES_MAX} letters, digits, - and _ after the slash"
    )]
    Name(String),
}

/// The name of a store, which may be left out.
fn store_name(text: &str) -> Result<String, PlaceError> {
    let name = if text.is_empty() { NAME } else { text };
    match name.len() <= NAME_BYTES_MAX && is_plain(name) {
        true => Ok(name.to_owned()),
        false => Err(PlaceError::Name(name.to_owned())),
    }
}

/// Whether a name needs no care wherever it stands.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// A server: a name or an address, which is in brackets where it has colons, and perhaps a port.
fn host_and_port(text: &str, default: u16) -> Result<(String, u16), PlaceError> {
    let none = || PlaceError::Node(text.to_owned());
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(none)?,
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(none)?,
        None if port.is_empty() => default,
        None => return Err(none()),
    };
    let may_stand = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    let sound = !host.is_empty() && host.chars().all(may_stand);
    sound.then(|| (host.to_owned(), port)).ok_or_else(none)
}

/// A server as it stands in a place.
struct Server<'a>(&'a str, u16);

impl fmt::Display for Server<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self(host, port) = self;
        match host.contains(':') {
            true => write!(f, "[{host}]:{port}"),
            false => write!(f, "{host}:{port}"),
        }
    }
}

/// A password, which is shown by nothing.
#[derive(Clone)]
pub struct Password(String);

impl Password {
    /// Takes a text for the password.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// For the server alone.
    pub(crate) fn reveal(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_kind_is_known_by_how_it_begins() {
        let redis: Place = "redis://a:1/x".parse().unwrap();
        assert!(matches!(&redis, Place::Cluster(place) if place.name == "x"));
        let postgres: Place = "postgres://me@a/coins".parse().unwrap();
        assert!(matches!(&postgres, Place::Postgres(place) if place.database == "coins"));
        assert_eq!(redis.to_string(), "redis://a:1/x");
        assert_eq!(postgres.to_string(), "postgres://me@a:5432/coins/apus");
        assert_eq!("http://a".parse::<Place>(), Err(PlaceError::Scheme));
    }

    #[test]
    fn a_password_is_shown_by_nothing() {
        assert!(!format!("{:?}", Password::new("secret")).contains("secret"));
    }
}

//! [`Place`]: where a store is, as its user names it.
//!
//! A password is no part of it. What stands on a command line is seen by every user of the machine and
//! kept by shells, so a place with a password in it is refused. No refusal repeats anything of the text: where a
//! password is looked for, it may stand somewhere else.

mod cluster;
mod postgres;

pub use cluster::ClusterPlace;
pub use postgres::PostgresPlace;

use std::fmt;
use std::net::IpAddr;
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

impl Place {
    /// Whether a password may go to all servers that are named.
    pub fn may_have(&self, password: &Password) -> Result<(), Exposed> {
        match self {
            Self::Cluster(place) => place.may_have(password),
            Self::Postgres(place) => password.reveal(&place.host, place.tls).map(drop),
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
    /// A server has no name: which, counted from 1.
    #[error(
        "server {0} in it has no name that could be one: write each as HOST:PORT, with commas between{NOT_REPEATED}"
    )]
    Node(usize),
    /// PostgreSQL has something else than one server.
    #[error("its server has no name that could be one: write one HOST:PORT{NOT_REPEATED}")]
    Host,
    /// What follows a question mark is not known.
    #[error(
        "what follows its question mark is nothing that can be asked for: only sslmode=disable and \
         sslmode=verify-full are, and nothing of Redis{NOT_REPEATED}"
    )]
    Setting,
    /// A user of PostgreSQL has no name that could be one.
    #[error("its user has no name that could be one: use letters, digits, - and _{NOT_REPEATED}")]
    User,
    /// A database of PostgreSQL has none.
    #[error(
        "its database has no name that could be one: use letters, digits, - and _{NOT_REPEATED}"
    )]
    Database,
    /// The store's name is none.
    #[error(
        "its last part is no name of a store: use up to {NAME_BYTES_MAX} letters, digits, - and _ after the \
         slash{NOT_REPEATED}"
    )]
    Name,
}

/// Why a message does not show what it is about.
const NOT_REPEATED: &str = " (it is not repeated here, since a password may stand in it)";

/// The name of a store, which may be left out.
fn store_name(text: &str) -> Result<String, PlaceError> {
    let name = if text.is_empty() { NAME } else { text };
    match name.len() <= NAME_BYTES_MAX && is_plain(name) {
        true => Ok(name.to_owned()),
        false => Err(PlaceError::Name),
    }
}

/// Whether a name needs no care wherever it stands.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// A server: a name or an address, which is in brackets where it has colons, and perhaps a port.
fn host_and_port(text: &str, default: u16) -> Option<(String, u16)> {
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']')?,
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0)?,
        None if port.is_empty() => default,
        None => return None,
    };
    let may_stand = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    let sound = !host.is_empty() && host.chars().all(may_stand);
    sound.then(|| (host.to_owned(), port))
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

/// A password, which is shown by nothing, and goes to no other machine without TLS unless its user says that the line is
/// private.
#[derive(Clone)]
pub struct Password {
    text: String,
    line_is_private: bool,
}

/// A password would go over a line that others may read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the password would go to {host} in the clear, and who is on the way could read it: have TLS by rediss:// in place of \
     redis://, or by ?sslmode=verify-full behind postgres://, or give --coins-private-line where nobody else reads what goes \
     there"
)]
pub struct Exposed {
    /// Where it would go.
    pub host: String,
}

impl Password {
    /// Takes a text for the password.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), line_is_private: false }
    }

    /// The same, which may go without TLS, since nobody else reads what goes to the servers.
    #[must_use]
    pub fn on_a_private_line(self) -> Self {
        Self { line_is_private: true, ..self }
    }

    /// For a server alone, which is spoken to with TLS or without.
    pub(crate) fn reveal(&self, host: &str, tls: bool) -> Result<&str, Exposed> {
        match tls || self.line_is_private || is_loopback(host) {
            true => Ok(&self.text),
            false => Err(Exposed { host: host.to_owned() }),
        }
    }
}

/// Whether what goes there stays on this machine. Of names only one is known: what others mean is said by servers.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
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

    #[test]
    fn a_password_goes_to_no_other_machine_in_the_clear() {
        let password = Password::new("secret");
        let may_have = |place: &str, password: &Password| {
            place.parse::<Place>().unwrap().may_have(password).map_err(|error| error.to_string())
        };
        for place in [
            "redis://127.0.0.1:1,localhost:2,[::1]:3/x",
            "rediss://192.0.2.1,far.example/x",
            "postgres://me@127.0.0.2/db",
            "postgres://me@far.example/db?sslmode=verify-full",
        ] {
            assert_eq!(may_have(place, &password), Ok(()), "{place}");
        }
        for place in [
            "redis://192.0.2.1/x",
            "redis://127.0.0.1,192.0.2.1/x",
            "redis://localhost.example/x",
            "postgres://me@192.0.2.1/db",
            "postgres://me@[2001:db8::1]/db?sslmode=disable",
        ] {
            let told = may_have(place, &password).unwrap_err();
            for word in ["rediss://", "sslmode=verify-full", "--coins-private-line"] {
                assert!(told.contains(word), "{place}: {told}");
            }
            assert!(!told.contains("secret"));
            assert_eq!(may_have(place, &password.clone().on_a_private_line()), Ok(()), "{place}");
        }
    }

    #[test]
    fn no_refusal_repeats_what_may_be_a_password() {
        for text in [
            "secret",
            "redis:secret@a",
            "redis://secret@a",
            "redis://a,secret!:1/x",
            "redis://me:secret/x",
            "redis://me:1:secret/x",
            "redis://a/x?pwd=secret",
            "redis://a?secret",
            "redis://a/x/secret",
            "redis://a/x#secret",
            "rediss://[secret",
            "postgres:secret@a",
            "postgres://secret!@a",
            "postgres://me;secret@a/db",
            "postgres://me:secret/db",
            "postgres://a,secret/db",
            "postgres://a/secret!",
            "postgres://a/db/x/secret",
            "postgres://a/db?pwd=secret",
            "postgres://a/db?sslmode=verify-full&pass=secret",
        ] {
            let error = text.parse::<Place>().expect_err(text);
            let told = format!("{error} {error:?}");
            assert!(!told.contains("secret"), "{text}: {told}");
        }
    }
}

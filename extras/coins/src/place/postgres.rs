//! [`PostgresPlace`]: `postgres://[USER@]HOST[:PORT][/DATABASE[/NAME]][?sslmode=verify-full]`.

use super::{PlaceError, Server, host_and_port, is_plain, store_name};
use std::fmt;
use std::str::FromStr;

/// The port of PostgreSQL.
const PORT: u16 = 5432;

/// The user and the database where none are named.
const LOGIN: &str = "apus";

/// The server's own names are no longer.
const LOGIN_BYTES_MAX: usize = 63;

/// Where a store on PostgreSQL is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresPlace {
    /// Whether the connection is encrypted and the server has to show whose it is.
    pub tls: bool,
    /// The server.
    pub host: String,
    /// Where it listens.
    pub port: u16,
    /// As whom to ask.
    pub user: String,
    /// The database.
    pub database: String,
    /// Tells stores in the same database apart: each is a schema.
    pub name: String,
}

impl FromStr for PostgresPlace {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let rest = ["postgres://", "postgresql://"].iter().find_map(|it| text.strip_prefix(it));
        let rest = rest.ok_or(PlaceError::Scheme)?;
        let (rest, settings) = rest.split_once('?').unwrap_or((rest, ""));
        if settings.contains("password") {
            return Err(PlaceError::Password);
        }
        let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
        // What stands before the last sign may be a password with signs in it.
        let (user, server) = server.rsplit_once('@').unwrap_or((LOGIN, server));
        if user.contains(':') || path.contains('@') {
            return Err(PlaceError::Password);
        }
        let (database, name) = path.split_once('/').unwrap_or((path, ""));
        let (host, port) = host_and_port(server, PORT).ok_or(PlaceError::Host)?;
        Ok(Self {
            tls: tls(settings)?,
            host,
            port,
            user: login(user).ok_or(PlaceError::User)?,
            database: login(if database.is_empty() { LOGIN } else { database })
                .ok_or(PlaceError::Database)?,
            name: store_name(name)?,
        })
    }
}

/// Whether encryption is asked for. What would encrypt and not look whom it speaks to, or go on without,
/// is not to be had.
fn tls(settings: &str) -> Result<bool, PlaceError> {
    match settings {
        "" | "sslmode=disable" => Ok(false),
        "sslmode=verify-full" => Ok(true),
        _ => Err(PlaceError::Setting),
    }
}

fn login(text: &str) -> Option<String> {
    let sound = !text.is_empty() && text.len() <= LOGIN_BYTES_MAX && is_plain(text);
    sound.then(|| text.to_owned())
}

impl fmt::Display for PostgresPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, port, user, database, name } = self;
        let settings = if *tls { "?sslmode=verify-full" } else { "" };
        write!(f, "postgres://{user}@{}/{database}/{name}{settings}", Server(host, *port))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<PostgresPlace, PlaceError> {
        text.parse()
    }

    #[test]
    fn servers_databases_and_names_are_read() {
        let place = |user: &str, host: &str, port, database: &str, name: &str, tls| PostgresPlace {
            tls,
            host: host.to_owned(),
            port,
            user: user.to_owned(),
            database: database.to_owned(),
            name: name.to_owned(),
        };
        let cases = [
            ("postgres://a", place("apus", "a", 5432, "apus", "apus", false)),
            ("postgresql://me@a:1/", place("me", "a", 1, "apus", "apus", false)),
            ("postgres://me@a/db?sslmode=disable", place("me", "a", 5432, "db", "apus", false)),
            (
                "postgres://[::1]:7/db/x?sslmode=verify-full",
                place("apus", "::1", 7, "db", "x", true),
            ),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).unwrap(), expected, "{text}");
            assert_eq!(read(&expected.to_string()).unwrap(), expected);
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in [
            "postgres://u:secret@a/db",
            "postgres://u:sec/ret@a/db",
            "postgres://u:se@cret@a/db",
            "postgres://a/db?password=secret",
            "postgres://a/db?sslmode=disable&password=secret",
        ] {
            let error = read(text).unwrap_err();
            assert_eq!(error, PlaceError::Password, "{text}");
            assert!(error.to_string().contains("APUS_COINS_PASSWORD"));
        }
    }

    #[test]
    fn what_is_wrong_is_told_by_its_place() {
        for (text, error) in [
            ("postgres://u@a,b/db", PlaceError::Host),
            ("postgres://u;v@a/db", PlaceError::User),
            ("postgres://u@a/d.b/x", PlaceError::Database),
            ("postgres://u@a/db/x.y", PlaceError::Name),
            ("postgres://u@a/db/x?pwd=secret", PlaceError::Setting),
        ] {
            assert_eq!(read(text), Err(error));
        }
    }

    #[test]
    fn other_texts_name_no_place() {
        for text in [
            "postgres://",
            "postgres:a",
            "postgres://@a",
            "postgres://u@",
            "postgres://u@a:0/db",
            "postgres://u@a,b/db",
            "postgres://u@a/d b",
            "postgres://u@a/db/x/y",
            "postgres://u@a/db/\"; DROP SCHEMA public",
            "postgres://u@a/db?sslmode=require",
            "postgres://u@a/db?sslmode=verify-full&x=1",
        ] {
            let error = read(text).unwrap_err();
            assert_ne!(error, PlaceError::Password, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "postgres://[a-z0-9.:,/@?=\\[\\]-]{0,40}") {
            if let Ok(place) = read(&text) {
                prop_assert_eq!(read(&place.to_string()), Ok(place));
            }
        }
    }
}

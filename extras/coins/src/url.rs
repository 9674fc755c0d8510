//! [`StoreUrl`]: where a store is, as its user names it.
//!
//! A password is no part of it. What stands on a command line is seen by every user of the machine and
//! kept by shells, so a place with a password in it is refused. No refusal repeats anything of the text: where a
//! password is looked for, it may stand somewhere else.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// What a store is called where its user gives no name.
const NAME: &str = "apus";

/// The longest name of a store: it is a part of each key, or a schema's.
const NAME_BYTES_MAX: usize = 32;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoreUrl {
    /// On a Redis Cluster.
    Cluster(ClusterUrl),
    /// On PostgreSQL.
    Postgres(PostgresUrl),
}

impl FromStr for StoreUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        match text.starts_with("postgres") {
            true => text.parse().map(Self::Postgres),
            false => text.parse().map(Self::Cluster),
        }
    }
}

impl StoreUrl {
    /// Whether a password may go to all servers that are named.
    pub fn may_have(&self, password: &Password) -> Result<(), PasswordExposed> {
        match self {
            Self::Cluster(place) => place.may_have(password),
            Self::Postgres(place) => password.reveal(&place.host, place.tls).map(drop),
        }
    }
}

impl fmt::Display for StoreUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Cluster(place) => place.fmt(f),
            Self::Postgres(place) => place.fmt(f),
        }
    }
}

/// Why a text names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
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
fn store_name(text: &str) -> Result<String, StoreUrlError> {
    let name = if text.is_empty() { NAME } else { text };
    match name.len() <= NAME_BYTES_MAX && is_plain(name) {
        true => Ok(name.to_owned()),
        false => Err(StoreUrlError::Name),
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
struct HostPort<'a>(&'a str, u16);

impl fmt::Display for HostPort<'_> {
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
pub struct PasswordExposed {
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
    pub(crate) fn reveal(&self, host: &str, tls: bool) -> Result<&str, PasswordExposed> {
        match tls || self.line_is_private || is_loopback(host) {
            true => Ok(&self.text),
            false => Err(PasswordExposed { host: host.to_owned() }),
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

/// The port of Redis.
const REDIS_PORT: u16 = 6379;

/// Where a store on a Redis Cluster is, or on one server alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterUrl {
    /// Whether the connections are encrypted.
    pub tls: bool,
    /// Some of the servers, by which the others are found.
    pub nodes: Vec<(String, u16)>,
    /// Tells stores on the same servers apart.
    pub name: String,
}

impl FromStr for ClusterUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let schemes = [("redis://", false), ("rediss://", true)];
        let found = schemes.iter().find_map(|(name, tls)| Some((text.strip_prefix(name)?, *tls)));
        let (rest, tls) = found.ok_or(StoreUrlError::Scheme)?;
        if rest.contains('@') || rest.contains("password=") {
            return Err(StoreUrlError::Password);
        }
        if rest.contains('?') {
            return Err(StoreUrlError::Setting);
        }
        let (nodes, name) = rest.split_once('/').unwrap_or((rest, ""));
        let nodes = nodes.split(',').zip(1..).map(|(node, number)| {
            host_and_port(node, REDIS_PORT).ok_or(StoreUrlError::Node(number))
        });
        let nodes = nodes.collect::<Result<_, _>>()?;
        Ok(Self { tls, nodes, name: store_name(name)? })
    }
}

impl ClusterUrl {
    /// Whether a password may go to all servers that are named.
    fn may_have(&self, password: &Password) -> Result<(), PasswordExposed> {
        self.nodes.iter().try_for_each(|(host, _)| password.reveal(host, self.tls).map(drop))
    }
}

impl fmt::Display for ClusterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss://" } else { "redis://" })?;
        for (index, (host, port)) in self.nodes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", HostPort(host, *port))?;
        }
        write!(f, "/{}", self.name)
    }
}

/// The port of PostgreSQL.
const POSTGRES_PORT: u16 = 5432;

/// The user and the database where none are named.
const LOGIN: &str = "apus";

/// The server's own names are no longer.
const LOGIN_BYTES_MAX: usize = 63;

/// Where a store on PostgreSQL is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresUrl {
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

impl FromStr for PostgresUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let rest = ["postgres://", "postgresql://"].iter().find_map(|it| text.strip_prefix(it));
        let rest = rest.ok_or(StoreUrlError::Scheme)?;
        let (rest, settings) = rest.split_once('?').unwrap_or((rest, ""));
        if settings.contains("password") {
            return Err(StoreUrlError::Password);
        }
        let (server, path) = rest.split_once('/').unwrap_or((rest, ""));
        // What stands before the last sign may be a password with signs in it.
        let (user, server) = server.rsplit_once('@').unwrap_or((LOGIN, server));
        if user.contains(':') || path.contains('@') {
            return Err(StoreUrlError::Password);
        }
        let (database, name) = path.split_once('/').unwrap_or((path, ""));
        let (host, port) = host_and_port(server, POSTGRES_PORT).ok_or(StoreUrlError::Host)?;
        Ok(Self {
            tls: tls(settings)?,
            host,
            port,
            user: login(user).ok_or(StoreUrlError::User)?,
            database: login(if database.is_empty() { LOGIN } else { database })
                .ok_or(StoreUrlError::Database)?,
            name: store_name(name)?,
        })
    }
}

/// Whether encryption is asked for. What would encrypt and not look whom it speaks to, or go on without,
/// is not to be had.
fn tls(settings: &str) -> Result<bool, StoreUrlError> {
    match settings {
        "" | "sslmode=disable" => Ok(false),
        "sslmode=verify-full" => Ok(true),
        _ => Err(StoreUrlError::Setting),
    }
}

fn login(text: &str) -> Option<String> {
    let sound = !text.is_empty() && text.len() <= LOGIN_BYTES_MAX && is_plain(text);
    sound.then(|| text.to_owned())
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, port, user, database, name } = self;
        let settings = if *tls { "?sslmode=verify-full" } else { "" };
        write!(f, "postgres://{user}@{}/{database}/{name}{settings}", HostPort(host, *port))
    }
}

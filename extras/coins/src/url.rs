//! [`StoreUrl`]: a store's URL.
//!
//! It must not contain a password. Every user of the machine can see command lines, and shells save them, so
//! a URL with a password is refused. No error repeats any part of the URL, because the password may be
//! anywhere in it.

#[cfg(test)]
mod tests;

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

/// The default name of a store.
const NAME: &str = "apus";

/// Longest name of a store, in bytes: it is a part of each key, or a schema's name.
const NAME_BYTES_MAX: usize = 32;

/// The URL of a store.
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
    /// Checks whether a password may go to all servers named in the URL.
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

/// Why a store URL is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum StoreUrlError {
    /// It has an unknown scheme.
    #[error(
        "not a store: write redis://HOST:PORT,HOST:PORT/NAME (rediss:// for TLS, USER@ before the first host for a \
         user) or postgres://USER@HOST:PORT/DATABASE/NAME (with ?sslmode=verify-full for TLS, or ?host=/FOLDER for a socket)"
    )]
    Scheme,
    /// It contains a password, which is not repeated.
    #[error(
        "the URL contains a password, which others may read. Remove it, change the password, and pass the new one in \
         the environment variable APUS_COINS_PASSWORD or with --coins-password-file FILE"
    )]
    Password,
    /// A server's address is invalid; its number, counted from 1.
    #[error("server {0} is invalid: write each as HOST:PORT, separated by commas{NOT_REPEATED}")]
    Node(usize),
    /// The address of the PostgreSQL server is invalid.
    #[error("the server is invalid: write a single HOST:PORT{NOT_REPEATED}")]
    Host,
    /// The part after the question mark is unknown.
    #[error(
        "the part after the question mark is not a valid setting: PostgreSQL takes sslmode=disable, \
         sslmode=verify-full or host=/FOLDER, and Redis takes no settings{NOT_REPEATED}"
    )]
    Setting,
    /// The user name is invalid.
    #[error("the user name is invalid: use letters, digits, - and _{NOT_REPEATED}")]
    User,
    /// The PostgreSQL database name is invalid.
    #[error("the database name is invalid: use letters, digits, - and _{NOT_REPEATED}")]
    Database,
    /// The store name is invalid.
    #[error(
        "the store name is invalid: use up to {NAME_BYTES_MAX} letters, digits, - and _ after the \
         slash{NOT_REPEATED}"
    )]
    Name,
}

/// Why a message does not show the invalid part.
const NOT_REPEATED: &str = " (not shown here, because it may contain a password)";

/// Parses the optional name of a store.
fn store_name(text: &str) -> Result<String, StoreUrlError> {
    let name = if text.is_empty() { NAME } else { text };
    match name.len() <= NAME_BYTES_MAX && is_plain(name) {
        true => Ok(name.to_owned()),
        false => Err(StoreUrlError::Name),
    }
}

/// Returns true if a name needs no quoting anywhere.
fn is_plain(name: &str) -> bool {
    name.chars().all(|c| c.is_ascii_alphanumeric() || c == '-' || c == '_')
}

/// Parses a server: a name or an address, in brackets if it has colons, and an optional port.
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

/// A server as written in a URL.
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

/// A password. It is never displayed, and goes to another machine only over TLS, unless the user declares the
/// connection private.
#[derive(Clone)]
pub struct Password {
    text: String,
    line_is_private: bool,
}

/// The password would go over a connection that others may read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error(
    "the password would go to {host} in the clear, where others could read it: use TLS (rediss:// instead of redis://, \
     or ?sslmode=verify-full at the end of a postgres:// URL), or pass --coins-private-line if no one else can \
     read that connection"
)]
pub struct PasswordExposed {
    /// The host that it would go to.
    pub host: String,
}

impl Password {
    /// Creates a password from text.
    pub fn new(text: impl Into<String>) -> Self {
        Self { text: text.into(), line_is_private: false }
    }

    /// The same password, allowed without TLS because no one else can read the connection.
    #[must_use]
    pub fn on_a_private_line(self) -> Self {
        Self { line_is_private: true, ..self }
    }

    /// Returns the password for one server, given whether TLS is used.
    pub(crate) fn reveal(&self, host: &str, tls: bool) -> Result<&str, PasswordExposed> {
        match tls || self.line_is_private || is_loopback(host) {
            true => Ok(&self.text),
            false => Err(PasswordExposed { host: host.to_owned() }),
        }
    }
}

/// Returns true for a host on this machine. Only one name is known for sure: name servers define the others.
fn is_loopback(host: &str) -> bool {
    host == "localhost"
        || is_socket(host)
        || host.parse().is_ok_and(|address: IpAddr| address.is_loopback())
}

/// Returns true for the folder of a Unix socket.
pub(crate) fn is_socket(host: &str) -> bool {
    host.starts_with('/')
}

impl fmt::Debug for Password {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Password")
    }
}

/// Redis's default port.
const REDIS_PORT: u16 = 6379;

/// The URL of a store on a Redis Cluster, or on a single Redis server.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterUrl {
    /// True if the connections are encrypted.
    pub tls: bool,
    /// The user to log in as, if it is not the default user.
    pub user: Option<String>,
    /// Some of the servers, used to find the others.
    pub nodes: Vec<(String, u16)>,
    /// Distinguishes stores on the same servers.
    pub name: String,
}

impl FromStr for ClusterUrl {
    type Err = StoreUrlError;

    fn from_str(text: &str) -> Result<Self, StoreUrlError> {
        let schemes = [("redis://", false), ("rediss://", true)];
        let found = schemes.iter().find_map(|(name, tls)| Some((text.strip_prefix(name)?, *tls)));
        let (rest, tls) = found.ok_or(StoreUrlError::Scheme)?;
        // Everything before the last `@` may be a password, which may contain more of them.
        let (user, rest) = match rest.rsplit_once('@') {
            Some((user, rest)) => (Some(user), rest),
            None => (None, rest),
        };
        if user.is_some_and(|user| user.contains([':', '@'])) || rest.contains("password=") {
            return Err(StoreUrlError::Password);
        }
        let user = user.map(|user| login(user).ok_or(StoreUrlError::User)).transpose()?;
        if rest.contains('?') {
            return Err(StoreUrlError::Setting);
        }
        let (nodes, name) = rest.split_once('/').unwrap_or((rest, ""));
        let nodes = nodes.split(',').zip(1..).map(|(node, number)| {
            host_and_port(node, REDIS_PORT).ok_or(StoreUrlError::Node(number))
        });
        let nodes = nodes.collect::<Result<_, _>>()?;
        Ok(Self { tls, user, nodes, name: store_name(name)? })
    }
}

impl ClusterUrl {
    /// Checks whether a password may go to all servers named in the URL.
    fn may_have(&self, password: &Password) -> Result<(), PasswordExposed> {
        self.nodes.iter().try_for_each(|(host, _)| password.reveal(host, self.tls).map(drop))
    }
}

impl fmt::Display for ClusterUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss://" } else { "redis://" })?;
        if let Some(user) = &self.user {
            write!(f, "{user}@")?;
        }
        for (index, (host, port)) in self.nodes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", HostPort(host, *port))?;
        }
        write!(f, "/{}", self.name)
    }
}

/// PostgreSQL's default port.
const POSTGRES_PORT: u16 = 5432;

/// The default user and database.
const LOGIN: &str = "apus";

/// PostgreSQL's own limit on names, in bytes.
const LOGIN_BYTES_MAX: usize = 63;

/// The URL of a store on PostgreSQL.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PostgresUrl {
    /// True if the connection is encrypted and the server must prove its identity.
    pub tls: bool,
    /// The server, or the folder of its Unix socket.
    pub host: String,
    /// Its port.
    pub port: u16,
    /// The user to log in as.
    pub user: String,
    /// The database.
    pub database: String,
    /// Distinguishes stores in the same database: each is a schema.
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
        // Everything before the last `@` may be a password, which may contain more of them.
        let (user, server) = server.rsplit_once('@').unwrap_or((LOGIN, server));
        if user.contains(':') || path.contains('@') {
            return Err(StoreUrlError::Password);
        }
        let (database, name) = path.split_once('/').unwrap_or((path, ""));
        let (tls, socket) = postgres_settings(settings)?;
        let (host, port) = match socket {
            // As in PostgreSQL's own URLs, only a port may stand before the path.
            Some(folder) => {
                let port = if server.is_empty() { Some(POSTGRES_PORT) } else { port_alone(server) };
                (folder, port.ok_or(StoreUrlError::Host)?)
            }
            None => host_and_port(server, POSTGRES_PORT).ok_or(StoreUrlError::Host)?,
        };
        Ok(Self {
            tls,
            host,
            port,
            user: login(user).ok_or(StoreUrlError::User)?,
            database: login(if database.is_empty() { LOGIN } else { database })
                .ok_or(StoreUrlError::Database)?,
            name: store_name(name)?,
        })
    }
}

/// Whether TLS is requested, and the folder of a Unix socket. Modes that encrypt without verifying the server, or that
/// may fall back to plaintext, are not supported.
fn postgres_settings(settings: &str) -> Result<(bool, Option<String>), StoreUrlError> {
    match settings {
        "" | "sslmode=disable" => Ok((false, None)),
        "sslmode=verify-full" => Ok((true, None)),
        _ => {
            let may_stand = |c: char| c.is_ascii_alphanumeric() || "/.-_".contains(c);
            let folder = settings.strip_prefix("host=").filter(|folder| is_socket(folder));
            let folder = folder.filter(|folder| folder.chars().all(may_stand));
            folder.map(|folder| (false, Some(folder.to_owned()))).ok_or(StoreUrlError::Setting)
        }
    }
}

/// Parses `:PORT`.
fn port_alone(text: &str) -> Option<u16> {
    text.strip_prefix(':')?.parse().ok().filter(|port| *port > 0)
}

fn login(text: &str) -> Option<String> {
    let sound = !text.is_empty() && text.len() <= LOGIN_BYTES_MAX && is_plain(text);
    sound.then(|| text.to_owned())
}

impl fmt::Display for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { tls, host, port, user, database, name } = self;
        if is_socket(host) {
            return write!(f, "postgres://{user}@:{port}/{database}/{name}?host={host}");
        }
        let settings = if *tls { "?sslmode=verify-full" } else { "" };
        write!(f, "postgres://{user}@{}/{database}/{name}{settings}", HostPort(host, *port))
    }
}

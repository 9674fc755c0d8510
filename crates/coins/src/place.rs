//! [`Place`]: where a store is, as its user names it: `redis://HOST:PORT[,HOST:PORT…][/NAME]`.
//!
//! A password is no part of it. What stands on a command line is seen by every user of the machine and
//! kept by shells, so a place with a user or a password in it is refused, and the refusal does not
//! repeat it.

use std::fmt;
use std::str::FromStr;

/// The port of Redis.
const PORT: u16 = 6379;

/// What a store is called where its user gives no name.
const NAME: &str = "apus";

/// The longest name of a store: it is a part of each key.
const NAME_BYTES_MAX: usize = 32;

/// Where a store is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Place {
    /// Whether the connections are encrypted.
    pub tls: bool,
    /// Some of the servers, by which the others are found.
    pub nodes: Vec<(String, u16)>,
    /// Tells stores on the same servers apart.
    pub name: String,
}

/// Why a text names no place.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PlaceError {
    /// It begins otherwise.
    #[error("not a store: name it as redis://HOST:PORT,HOST:PORT/NAME, or rediss:// with TLS")]
    Scheme,
    /// It has a password in it, which is not repeated.
    #[error(
        "a user or a password stands in it, where others can read it: take it out, change it, and \
         give it by the environment variable APUS_COINS_PASSWORD or by --coins-password-file"
    )]
    Password,
    /// A server has no name.
    #[error("{0:?} is no server: name each as HOST:PORT, with commas between")]
    Node(String),
    /// The store's name is none.
    #[error(
        "{0:?} is no name of a store: use up to {NAME_BYTES_MAX} letters, digits, - and _ after the slash"
    )]
    Name(String),
}

impl FromStr for Place {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let schemes = [("redis://", false), ("rediss://", true)];
        let found = schemes.iter().find_map(|(name, tls)| Some((text.strip_prefix(name)?, *tls)));
        let (rest, tls) = found.ok_or(PlaceError::Scheme)?;
        if rest.contains('@') || rest.contains("password=") {
            return Err(PlaceError::Password);
        }
        let (nodes, name) = match rest.split_once('/') {
            None | Some((_, "")) => (rest.trim_end_matches('/'), NAME),
            Some(parts) => parts,
        };
        let may_stand = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.len() > NAME_BYTES_MAX || !name.chars().all(may_stand) {
            return Err(PlaceError::Name(name.to_owned()));
        }
        let nodes = nodes.split(',').map(node).collect::<Result<_, _>>()?;
        Ok(Self { tls, nodes, name: name.to_owned() })
    }
}

/// A server: a name or an address, which is in brackets where it has colons, and perhaps a port.
fn node(text: &str) -> Result<(String, u16), PlaceError> {
    let none = || PlaceError::Node(text.to_owned());
    let (host, port) = match text.strip_prefix('[') {
        Some(rest) => rest.split_once(']').ok_or_else(none)?,
        None => text.find(':').map_or((text, ""), |colon| text.split_at(colon)),
    };
    let port = match port.strip_prefix(':') {
        Some(port) => port.parse().ok().filter(|port| *port > 0).ok_or_else(none)?,
        None if port.is_empty() => PORT,
        None => return Err(none()),
    };
    let may_stand = |c: char| c.is_ascii_alphanumeric() || ".-_:%".contains(c);
    let sound = !host.is_empty() && host.chars().all(may_stand);
    sound.then(|| (host.to_owned(), port)).ok_or_else(none)
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss://" } else { "redis://" })?;
        for (index, (host, port)) in self.nodes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            if host.contains(':') {
                write!(f, "{comma}[{host}]:{port}")?;
            } else {
                write!(f, "{comma}{host}:{port}")?;
            }
        }
        write!(f, "/{}", self.name)
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
    use proptest::prelude::*;

    fn read(text: &str) -> Result<Place, PlaceError> {
        text.parse()
    }

    #[test]
    fn servers_and_names_are_read() {
        let place = |tls, nodes: &[(&str, u16)], name: &str| Place {
            tls,
            nodes: nodes.iter().map(|(host, port)| ((*host).to_owned(), *port)).collect(),
            name: name.to_owned(),
        };
        let cases = [
            ("redis://a:7000", place(false, &[("a", 7000)], "apus")),
            ("redis://a:7000/", place(false, &[("a", 7000)], "apus")),
            ("rediss://a,b.c:1/main_2", place(true, &[("a", 6379), ("b.c", 1)], "main_2")),
            ("redis://[::1]:7,[fe80::1]/x", place(false, &[("::1", 7), ("fe80::1", 6379)], "x")),
        ];
        for (text, expected) in cases {
            assert_eq!(read(text).unwrap(), expected, "{text}");
            assert_eq!(read(&expected.to_string()).unwrap(), expected);
        }
    }

    #[test]
    fn a_password_is_refused_and_not_repeated() {
        for text in ["redis://:secret@a:1", "redis://u:secret@a", "redis://a?password=secret"] {
            let error = read(text).unwrap_err();
            assert_eq!(error, PlaceError::Password);
            assert!(!error.to_string().contains("secret"));
            assert!(error.to_string().contains("APUS_COINS_PASSWORD"));
        }
        assert!(!format!("{:?}", Password::new("secret")).contains("secret"));
    }

    #[test]
    fn other_texts_name_no_place() {
        let cases = [
            "",
            "a:1",
            "http://a",
            "redis://",
            "redis://a:",
            "redis://a:0",
            "redis://a:65536",
            "redis://a,,b",
            "redis://[::1",
            "redis://[::1]7",
            "redis://a b",
            "redis://::1",
            "redis://a/b c",
            "redis://a/b/c",
            "redis://a/name-that-is-longer-than-a-name-can-be",
        ];
        for text in cases {
            let error = read(text).unwrap_err();
            assert_ne!(error, PlaceError::Password, "{text}");
        }
    }

    proptest! {
        #[test]
        fn what_is_read_is_written_the_same(text in "rediss?://[a-z0-9.:,/@\\[\\]-]{0,40}") {
            if let Ok(place) = read(&text) {
                prop_assert_eq!(read(&place.to_string()), Ok(place));
            }
        }
    }
}

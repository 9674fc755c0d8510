//! [`ClusterPlace`]: `redis://HOST:PORT[,HOST:PORT…][/NAME]`.

use super::{Exposed, Password, PlaceError, Server, host_and_port, store_name};
use std::fmt;
use std::str::FromStr;

/// The port of Redis.
const PORT: u16 = 6379;

/// Where a store on a Redis Cluster is, or on one server alone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ClusterPlace {
    /// Whether the connections are encrypted.
    pub tls: bool,
    /// Some of the servers, by which the others are found.
    pub nodes: Vec<(String, u16)>,
    /// Tells stores on the same servers apart.
    pub name: String,
}

impl FromStr for ClusterPlace {
    type Err = PlaceError;

    fn from_str(text: &str) -> Result<Self, PlaceError> {
        let schemes = [("redis://", false), ("rediss://", true)];
        let found = schemes.iter().find_map(|(name, tls)| Some((text.strip_prefix(name)?, *tls)));
        let (rest, tls) = found.ok_or(PlaceError::Scheme)?;
        if rest.contains('@') || rest.contains("password=") {
            return Err(PlaceError::Password);
        }
        if rest.contains('?') {
            return Err(PlaceError::Setting);
        }
        let (nodes, name) = rest.split_once('/').unwrap_or((rest, ""));
        let nodes = nodes
            .split(',')
            .zip(1..)
            .map(|(node, number)| host_and_port(node, PORT).ok_or(PlaceError::Node(number)));
        let nodes = nodes.collect::<Result<_, _>>()?;
        Ok(Self { tls, nodes, name: store_name(name)? })
    }
}

impl ClusterPlace {
    /// Whether a password may go to all servers that are named.
    pub(super) fn may_have(&self, password: &Password) -> Result<(), Exposed> {
        self.nodes.iter().try_for_each(|(host, _)| password.reveal(host, self.tls).map(drop))
    }
}

impl fmt::Display for ClusterPlace {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.tls { "rediss://" } else { "redis://" })?;
        for (index, (host, port)) in self.nodes.iter().enumerate() {
            let comma = if index == 0 { "" } else { "," };
            write!(f, "{comma}{}", Server(host, *port))?;
        }
        write!(f, "/{}", self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn read(text: &str) -> Result<ClusterPlace, PlaceError> {
        text.parse()
    }

    #[test]
    fn servers_and_names_are_read() {
        let place = |tls, nodes: &[(&str, u16)], name: &str| ClusterPlace {
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
    }

    #[test]
    fn what_is_wrong_is_told_by_its_place() {
        for (text, error) in [
            ("redis://a:1,b,c d,e/x", PlaceError::Node(3)),
            ("redis://a/x?pwd=secret", PlaceError::Setting),
            ("redis://a/x.y", PlaceError::Name),
        ] {
            assert_eq!(read(text), Err(error));
        }
        assert!(PlaceError::Node(3).to_string().starts_with("server 3 "));
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

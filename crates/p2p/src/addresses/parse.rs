//! Addresses as users write them.

use super::{Host, NodeAddress, default_port};
use crate::services::Services;
use apus_chain::Network;
use std::net::{IpAddr, Ipv6Addr};

/// Characters of a Tor version 3 name before `.onion`.
const ONION_V3_CHARS: usize = 56;

/// A text is no address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseAddressError {
    /// The host is neither an IP address nor a name.
    #[error(
        "{text:?} names no host: write an IP address or a name, then perhaps a colon and the port, \
         and put IPv6 into brackets before a port"
    )]
    Host {
        /// The text, shortened to 80 characters.
        text: String,
    },
    /// The port is no number from 1 to 65,535.
    #[error("{text:?} has no port from 1 to 65535 after the colon")]
    Port {
        /// The text, shortened to 80 characters.
        text: String,
    },
    /// The name ends in `.onion` and is no Tor version 3 name.
    #[error(
        "{text:?} is no onion service of version 3, whose names have 56 letters and digits before \
         .onion"
    )]
    Onion {
        /// The text, shortened to 80 characters.
        text: String,
    },
}

/// Reads `HOST`, `HOST:PORT`, `IPV6` or `[IPV6]:PORT`; the port is the network's unless given.
/// Names, those in `.onion` too, stay names.
pub fn parse_address(text: &str, network: Network) -> Result<NodeAddress, ParseAddressError> {
    let shown = || text.chars().take(80).collect::<String>();
    let (host, port) = split(text);
    let port = match port {
        None => default_port(network),
        Some(digits) => {
            let all_digits = digits.bytes().all(|byte| byte.is_ascii_digit());
            let port = digits.parse().ok().filter(|&port| all_digits && port > 0);
            port.ok_or_else(|| ParseAddressError::Port { text: shown() })?
        }
    };
    let bare = host.strip_prefix('[').and_then(|host| host.strip_suffix(']'));
    let host = if let Some(bare) = bare {
        let ip: Option<Ipv6Addr> = bare.parse().ok();
        ip.map(|ip| Host::Ip(IpAddr::V6(ip).to_canonical()))
    } else if let Ok(ip) = host.parse::<IpAddr>() {
        Some(Host::Ip(ip.to_canonical()))
    } else {
        is_name(host).then(|| Host::Name(host.to_ascii_lowercase()))
    };
    let host = host.ok_or_else(|| ParseAddressError::Host { text: shown() })?;
    if let Host::Name(name) = &host
        && let Some(onion) = name.strip_suffix(".onion")
    {
        let base32 = |byte: u8| byte.is_ascii_lowercase() || (b'2'..=b'7').contains(&byte);
        let service = onion.rsplit('.').next().unwrap_or_default();
        if service.len() != ONION_V3_CHARS || !service.bytes().all(base32) {
            return Err(ParseAddressError::Onion { text: shown() });
        }
    }
    Ok(NodeAddress { host, port, services: Services::default(), time: 0 })
}

/// Host and port; an IPv6 address without brackets is all host.
fn split(text: &str) -> (&str, Option<&str>) {
    if text.starts_with('[') {
        return match text.split_once("]:") {
            Some((host, port)) => (&text[..=host.len()], Some(port)),
            None => (text, None),
        };
    }
    match text.rsplit_once(':') {
        Some((host, port)) if !host.contains(':') => (host, Some(port)),
        _ => (text, None),
    }
}

/// Whether a text can be a name of the domain name system. What looks like a mistyped IPv4 address
/// is none: no top level domain is a number.
fn is_name(text: &str) -> bool {
    let label = |label: &str| {
        let inner = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=63).contains(&label.len()) && label.bytes().all(inner) && !label.starts_with('-')
    };
    let name = text.strip_suffix('.').unwrap_or(text);
    let last_is_number =
        name.rsplit('.').next().is_some_and(|last| last.bytes().all(|b| b.is_ascii_digit()));
    name.len() <= 253 && name.split('.').all(label) && !last_is_number
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const ONION: &str = "kpgvmscirrdqpekbqjsvw5teanhatztpp2gl6eee4zkowvwfxwenqaid.onion";

    fn parsed(text: &str) -> Result<(Host, u16), ParseAddressError> {
        parse_address(text, Network::Main).map(|address| (address.host, address.port))
    }

    fn ip(text: &str) -> Host {
        Host::Ip(text.parse().unwrap())
    }

    #[test]
    fn reads_what_users_write() {
        let name = |text: &str| Host::Name(text.into());
        for (text, host, port) in [
            ("1.2.3.4", ip("1.2.3.4"), 8333),
            ("1.2.3.4:18444", ip("1.2.3.4"), 18444),
            ("::1", ip("::1"), 8333),
            ("2a00::1:2", ip("2a00::1:2"), 8333),
            ("[2a00::1]", ip("2a00::1"), 8333),
            ("[2a00::1]:65535", ip("2a00::1"), 65535),
            ("[::ffff:1.2.3.4]:5", ip("1.2.3.4"), 5),
            ("localhost", name("localhost"), 8333),
            ("Node-1.Example.ORG:1", name("node-1.example.org"), 1),
            ("seed.example.", name("seed.example."), 8333),
            (ONION, name(ONION), 8333),
            (&format!("{ONION}:8334"), name(ONION), 8334),
        ] {
            assert_eq!(parsed(text), Ok((host, port)), "{text}");
        }
        assert_eq!(parse_address("h", Network::Signet).unwrap().port, 38333);
    }

    #[test]
    fn says_what_is_wrong() {
        let long = "a".repeat(64);
        for text in [
            "",
            ":8333",
            "1.2.3",
            "1.2.3.400",
            "[1.2.3.4]:1",
            "[::1",
            "::1]:5",
            "a b",
            "-a.b",
            "a..b",
            "[::1]x",
            "fe80::1%eth0",
            &long,
            "ö.example",
        ] {
            let error = parsed(text).unwrap_err();
            assert!(matches!(error, ParseAddressError::Host { .. }), "{text}: {error}");
        }
        for text in ["h:", "h:0", "h:65536", "h:+1", "h:x", "[::1]:", "1.2.3.4:-1", "http://a"] {
            let error = parsed(text).unwrap_err();
            assert!(matches!(error, ParseAddressError::Port { .. }), "{text}: {error}");
        }
        for text in ["expyuzz4wqqyqhjn.onion", "x.onion:5", &format!("1{}", &ONION[1..])] {
            let error = parsed(text).unwrap_err();
            assert!(matches!(error, ParseAddressError::Onion { .. }), "{text}: {error}");
        }
    }

    proptest! {
        #[test]
        fn reads_back_what_is_shown(bits in any::<u128>(), v4 in any::<u32>(), six in any::<bool>(), port in 1u16..) {
            let ip: IpAddr = if six { Ipv6Addr::from(bits).into() } else { std::net::Ipv4Addr::from(v4).into() };
            let mut address = NodeAddress::from(std::net::SocketAddr::new(ip, port));
            let read = parse_address(&address.to_string(), Network::Main).unwrap();
            address.host = Host::Ip(ip.to_canonical());
            prop_assert_eq!(read, address);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let _ = parsed(&text);
        }
    }
}

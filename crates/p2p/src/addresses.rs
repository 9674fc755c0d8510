//! Node addresses: parsing what users write, telling public addresses from others, and grouping addresses
//! that one operator likely controls.
//!
//! The [`AddressBook`] picks the next address to try and is saved to a file. Nothing here uses sockets or a
//! clock, except [`resolve_seeds`], which asks the system's resolver.

mod book;
mod file;
mod seeds;

pub use book::AddressBook;
pub use file::{FILE_BYTES_MAX, RestoredBook};
pub use seeds::{default_port, dns_seeds, resolve_seeds, seeds_by_name};

use apus_chain::Network;
use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

/// Services that a peer offers (BIP-144, BIP-159, BIP-324 and Core `protocol.h`, `ServiceFlags`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Hash)]
pub struct Services(pub u64);

impl Services {
    /// All blocks (`NODE_NETWORK`).
    pub const NETWORK: Self = Self(1);
    /// Blocks with witnesses (`NODE_WITNESS`).
    pub const WITNESS: Self = Self(1 << 3);
    /// The last 288 blocks (`NODE_NETWORK_LIMITED`).
    pub const NETWORK_LIMITED: Self = Self(1 << 10);
    /// The encrypted transport (`NODE_P2P_V2`).
    pub const P2P_V2: Self = Self(1 << 11);

    /// Returns true if these include all of `other`.
    #[must_use]
    pub const fn has(self, other: Self) -> bool {
        self.0 & other.0 == other.0
    }

    /// The union of both sets.
    #[must_use]
    pub const fn with(self, other: Self) -> Self {
        Self(self.0 | other.0)
    }
}

/// The host part of a node's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    /// IPv4 or IPv6.
    Ip(IpAddr),
    /// A Tor version 3 service, identified by its public key of 32 bytes (BIP-155).
    TorV3([u8; 32]),
    /// A host name given by the user.
    Name(String),
}

/// A node's address.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct NodeAddress {
    /// The host.
    pub host: Host,
    /// The port.
    pub port: u16,
    /// The services that it reportedly offers.
    pub services: Services,
    /// When anyone last reported seeing it, in seconds since 1970.
    pub time: u32,
}

impl From<SocketAddr> for NodeAddress {
    fn from(address: SocketAddr) -> Self {
        Self {
            host: Host::Ip(address.ip()),
            port: address.port(),
            services: Services::default(),
            time: 0,
        }
    }
}

impl fmt::Display for Host {
    /// Writes IPv6 in brackets and a Tor service as its key.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(IpAddr::V4(ip)) => ip.fmt(f),
            Self::Ip(IpAddr::V6(ip)) => write!(f, "[{ip}]"),
            Self::TorV3(key) => {
                f.write_str("tor:")?;
                key.iter().try_for_each(|byte| write!(f, "{byte:02x}"))
            }
            Self::Name(name) => f.write_str(name),
        }
    }
}

impl fmt::Display for NodeAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

/// Length of a Tor version 3 name, without `.onion`.
const ONION_V3_CHARS: usize = 56;

/// An invalid address.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ParseAddressError {
    /// The host is neither an IP address nor a name.
    #[error(
        "{text:?} is not a valid host: write an IP address or a host name, optionally followed by a \
         colon and the port; put IPv6 in brackets before a port"
    )]
    Host {
        /// The input, shortened to 80 characters.
        text: String,
    },
    /// The port is not a number from 1 to 65,535.
    #[error("{text:?} has an invalid port: write a number from 1 to 65535 after the colon")]
    Port {
        /// The input, shortened to 80 characters.
        text: String,
    },
    /// The name ends in `.onion` but is not a Tor version 3 name.
    #[error(
        "{text:?} is not a version 3 onion service: such names have 56 letters and digits before \
         .onion"
    )]
    Onion {
        /// The input, shortened to 80 characters.
        text: String,
    },
}

/// Parses `HOST`, `HOST:PORT`, `IPV6` or `[IPV6]:PORT`. The port defaults to the network's. Names stay names,
/// `.onion` names included.
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

/// Splits host and port. An IPv6 address without brackets is all host.
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

/// Returns true if the text can be a DNS name. A mistyped IPv4 address is not one: no top-level domain is a
/// number.
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

/// Addresses that one operator can get cheaply together (Core `netgroup.cpp`, `GetGroup`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum NetGroup {
    /// The first 16 bits of an IPv4 address, or of the IPv4 address embedded in an IPv6 one.
    V4([u8; 2]),
    /// The first 32 bits of an IPv6 address.
    V6([u8; 4]),
    /// The first 4 bits of a Tor service's key, because an operator can create any number of keys.
    Tor(u8),
    /// A name is its own group.
    Name(String),
}

impl NetGroup {
    fn of(host: &Host) -> Self {
        match host {
            Host::Ip(ip) => match ip.to_canonical() {
                IpAddr::V4(ip) => Self::v4(ip),
                IpAddr::V6(ip) => match carried(ip) {
                    Some(ip) => Self::v4(ip),
                    None => {
                        let [a, b, c, d, ..] = ip.octets();
                        Self::V6([a, b, c, d])
                    }
                },
            },
            Host::TorV3([first, ..]) => Self::Tor(first >> 4),
            Host::Name(name) => Self::Name(name.clone()),
        }
    }

    const fn v4(ip: Ipv4Addr) -> Self {
        let [a, b, ..] = ip.octets();
        Self::V4([a, b])
    }
}

/// The IPv4 address embedded in an IPv6 address of a tunnel or translator (Core `netaddress.cpp`,
/// `HasLinkedIPv4`): 6to4 (RFC 3964), Teredo (RFC 4380), RFC 6052 and RFC 6145.
fn carried(ip: Ipv6Addr) -> Option<Ipv4Addr> {
    let octets = ip.octets();
    let four = |at: usize| [octets[at], octets[at + 1], octets[at + 2], octets[at + 3]];
    match ip.segments() {
        [0x2002, ..] => Some(four(2).into()),
        [0x2001, 0, ..] => Some(four(12).map(|byte| !byte).into()),
        [0x64, 0xff9b, 0, 0, 0, 0, ..] | [0, 0, 0, 0, 0xffff, 0, ..] => Some(four(12).into()),
        _ => None,
    }
}

/// Returns true if a host that a peer reported can be on the public network (Core `netaddress.cpp`,
/// `IsRoutable`; stricter: no multicast, nothing reserved). Never true for names: only users give them.
fn is_routable(host: &Host) -> bool {
    match host {
        Host::Ip(ip) => match ip.to_canonical() {
            IpAddr::V4(ip) => is_routable_v4(ip),
            IpAddr::V6(ip) => is_routable_v6(ip) && carried(ip).is_none_or(is_routable_v4),
        },
        Host::TorV3(_) => true,
        Host::Name(_) => false,
    }
}

const fn is_routable_v4(ip: Ipv4Addr) -> bool {
    let [a, b, ..] = ip.octets();
    let special = ip.is_private()
        || ip.is_loopback()
        || ip.is_link_local()
        || ip.is_documentation()
        || ip.is_multicast()
        || a == 0
        || a >= 240
        || (a == 100 && b & 0xc0 == 64)
        || (a == 198 && b & 0xfe == 18);
    !special
}

const fn is_routable_v6(ip: Ipv6Addr) -> bool {
    let [a, b, ..] = ip.segments();
    let special = ip.is_unspecified()
        || ip.is_loopback()
        || ip.is_multicast()
        || ip.is_unique_local()
        || ip.is_unicast_link_local()
        // Documentation (RFC 3849), ORCHID (RFC 4843) and ORCHIDv2 (RFC 7343).
        || (a == 0x2001 && (b == 0x0db8 || b & 0xfff0 == 0x10 || b & 0xfff0 == 0x20));
    !special
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
    fn reads_addresses_as_users_write_them() {
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
    fn reports_invalid_addresses() {
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
        fn displayed_addresses_parse_back(
            bits in any::<u128>(), v4 in any::<u32>(), six in any::<bool>(), port in 1u16..,
        ) {
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

    fn host(text: &str) -> Host {
        Host::Ip(text.parse().unwrap())
    }

    #[test]
    fn private_and_reserved_hosts_are_not_routable() {
        for ip in [
            "0.0.0.0",
            "0.1.2.3",
            "10.1.2.3",
            "127.0.0.1",
            "172.16.0.1",
            "172.31.255.255",
            "192.168.1.1",
            "169.254.1.1",
            "100.64.0.1",
            "100.127.255.255",
            "198.18.0.1",
            "198.19.255.255",
            "192.0.2.1",
            "198.51.100.1",
            "203.0.113.1",
            "224.0.0.1",
            "240.0.0.1",
            "255.255.255.255",
            "::",
            "::1",
            "fe80::1",
            "fc00::1",
            "fd87:d87e:eb43::1",
            "ff02::1",
            "2001:db8::1",
            "2001:10::1",
            "2001:2f::1",
            "::ffff:10.0.0.1",
            "2002:0a00:0001::1",
            "64:ff9b::127.0.0.1",
        ] {
            assert!(!is_routable(&host(ip)), "{ip}");
        }
        for ip in [
            "1.2.3.4",
            "100.63.0.1",
            "100.128.0.1",
            "172.32.0.1",
            "198.17.0.1",
            "198.20.0.1",
            "223.255.255.255",
            "2a00:1450::1",
            "2001:470::1",
            "2001:30::1",
            "::ffff:8.8.8.8",
            "2002:0808:0808::1",
        ] {
            assert!(is_routable(&host(ip)), "{ip}");
        }
        assert!(is_routable(&Host::TorV3([7; 32])));
        assert!(!is_routable(&Host::Name("node.example".into())));
    }

    #[test]
    fn neighbouring_addresses_share_a_group() {
        let group = |ip| NetGroup::of(&host(ip));
        assert_eq!(group("1.2.3.4"), group("1.2.255.255"));
        assert_ne!(group("1.2.3.4"), group("1.3.3.4"));
        assert_eq!(group("2a00:1450:1::1"), group("2a00:1450:ffff::2"));
        assert_ne!(group("2a00:1450::1"), group("2a00:1451::1"));
        // Every way to embed the IPv4 address gives the same group.
        for dressed in [
            "::ffff:1.2.3.4",
            "2002:0102:0304::",
            "64:ff9b::1.2.3.4",
            "::ffff:0:1.2.3.4",
            "2001:0:4136:e378:8000:63bf:fefd:fcfb",
        ] {
            assert_eq!(group(dressed), NetGroup::V4([1, 2]), "{dressed}");
        }
        assert_eq!(NetGroup::of(&Host::TorV3([0x5f; 32])), NetGroup::Tor(5));
        assert_ne!(NetGroup::of(&Host::Name("a".into())), NetGroup::of(&Host::Name("b".into())));
    }

    proptest! {
        #[test]
        fn every_ip_has_a_group_and_a_verdict(bits in any::<u128>(), v4 in any::<u32>()) {
            for host in [Host::Ip(Ipv6Addr::from(bits).into()), Host::Ip(Ipv4Addr::from(v4).into())] {
                let _ = (NetGroup::of(&host), is_routable(&host));
            }
        }
    }
}

//! Which addresses can be reached over the public networks, and which are likely in one hand.

use super::Host;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Addresses that one operator gets cheaply together (Core `netgroup.cpp`, `GetGroup`).
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub(super) enum Group {
    /// The first 16 bits of an IPv4 address, or of the one that an IPv6 address carries.
    V4([u8; 2]),
    /// The first 32 bits of an IPv6 address.
    V6([u8; 4]),
    /// The first 4 bits of a Tor service's key: an operator can have as many of those as it likes.
    Tor(u8),
    /// A name is a group of its own.
    Name(String),
}

impl Group {
    pub(super) fn of(host: &Host) -> Self {
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

/// The IPv4 address behind an IPv6 one of a tunnel or translator (Core `netaddress.cpp`,
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

/// Whether a host that a peer told of can be one of the public network (Core `netaddress.cpp`,
/// `IsRoutable`; stricter: no multicast, nothing reserved). Names never are: only users give them.
pub(super) fn is_routable(host: &Host) -> bool {
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

    fn host(text: &str) -> Host {
        Host::Ip(text.parse().unwrap())
    }

    #[test]
    fn what_is_not_public_is_not_routable() {
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
    fn neighbours_are_in_one_group() {
        let group = |ip| Group::of(&host(ip));
        assert_eq!(group("1.2.3.4"), group("1.2.255.255"));
        assert_ne!(group("1.2.3.4"), group("1.3.3.4"));
        assert_eq!(group("2a00:1450:1::1"), group("2a00:1450:ffff::2"));
        assert_ne!(group("2a00:1450::1"), group("2a00:1451::1"));
        // However an IPv4 address is dressed.
        for dressed in [
            "::ffff:1.2.3.4",
            "2002:0102:0304::",
            "64:ff9b::1.2.3.4",
            "::ffff:0:1.2.3.4",
            "2001:0:4136:e378:8000:63bf:fefd:fcfb",
        ] {
            assert_eq!(group(dressed), Group::V4([1, 2]), "{dressed}");
        }
        assert_eq!(Group::of(&Host::TorV3([0x5f; 32])), Group::Tor(5));
        assert_ne!(Group::of(&Host::Name("a".into())), Group::of(&Host::Name("b".into())));
    }

    proptest! {
        #[test]
        fn every_ip_has_a_group_and_a_verdict(bits in any::<u128>(), v4 in any::<u32>()) {
            for host in [Host::Ip(Ipv6Addr::from(bits).into()), Host::Ip(Ipv4Addr::from(v4).into())] {
                let _ = (Group::of(&host), is_routable(&host));
            }
        }
    }
}

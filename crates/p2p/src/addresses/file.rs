//! The address book as text: a header line, then one line for each address.
//!
//! The text is untrusted: its addresses obey the same rules as addresses from peers, and damaged lines are
//! counted and skipped. The user's addresses and bans are not saved.
//!
//! ```text
//! apus-addresses 1 main
//! 8.1.1.1 8333 409 1799999995 1799999995 0
//! tor:a7a7…a7 8333 c09 1799992700 0 0
//! ```
//!
//! The fields are host (IPv4, IPv6, or `tor:` and the key of a version 3 service), port, services
//! (hexadecimal), time of the last report, time of the last handshake (0: never), and the number of failures
//! since then. The file has at most 4 MiB.

use super::book::AddressSource;
use super::{AddressBook, Host, NodeAddress, Services};
use std::fmt::Write as _;
use std::net::IpAddr;

/// First word of the file.
const KIND: &str = "apus-addresses";

/// The only version.
const VERSION: &str = "1";

/// Upper bound for the file of a full book, in bytes. Longer files are refused.
pub const FILE_BYTES_MAX: usize = 4 << 20;

/// More failures have no further effect.
const FAILURES_MAX: u32 = 100;

/// The result of reading a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RestoredBook {
    /// How many addresses were new.
    pub added: usize,
    /// How many addresses were known already, useless, or over a limit.
    pub left_out: usize,
    /// How many lines were damaged.
    pub bad_lines: usize,
}

/// A line after the header.
struct AddressLine {
    address: NodeAddress,
    success: i64,
    failures: u32,
}

impl AddressBook {
    /// Encodes the book as text, without the user's addresses.
    pub fn encode(&self) -> String {
        let mut text = format!("{KIND} {VERSION} {}\n", self.network);
        for entry in self.entries.iter().filter(|entry| entry.source != AddressSource::User) {
            let NodeAddress { host, port, services, time } = &entry.address;
            let host = match host {
                Host::Ip(ip) => ip.to_string(),
                other => other.to_string(),
            };
            let (services, success, failures) = (services.0, entry.success, entry.failures);
            // Writing to a string cannot fail.
            let _ = writeln!(text, "{host} {port} {services:x} {time} {success} {failures}");
        }
        text
    }

    /// Adds the addresses of a file's text. Returns `None` if it is not an address book. Times after `now`
    /// (seconds since 1970) count as `now`.
    pub fn restore(&mut self, text: &[u8], now: i64) -> Option<RestoredBook> {
        let mut lines = text.split(|&byte| byte == b'\n');
        let head = format!("{KIND} {VERSION} {}", self.network);
        if text.len() > FILE_BYTES_MAX || lines.next() != Some(head.as_bytes()) {
            return None;
        }
        let mut restored = RestoredBook::default();
        for line in lines.filter(|line| !line.is_empty()) {
            let Some(AddressLine { mut address, success, failures }) = parse_line(line) else {
                restored.bad_lines += 1;
                continue;
            };
            address.time = address.time.min(u32::try_from(now.max(0)).unwrap_or(u32::MAX));
            if !self.add(address.clone(), AddressSource::Trusted, now) {
                restored.left_out += 1;
            } else if let Some(entry) = self.entry_mut(&address) {
                restored.added += 1;
                entry.success = success.clamp(0, now.max(0));
                entry.failures = failures.min(FAILURES_MAX);
            }
        }
        Some(restored)
    }
}

fn parse_line(line: &[u8]) -> Option<AddressLine> {
    let mut words = str::from_utf8(line).ok()?.split(' ');
    let host = parse_host(words.next()?)?;
    let port = words.next()?.parse().ok()?;
    let services = Services(u64::from_str_radix(words.next()?, 16).ok()?);
    let time = words.next()?.parse().ok()?;
    let success = words.next()?.parse().ok()?;
    let failures = words.next()?.parse().ok()?;
    let address = NodeAddress { host, port, services, time };
    words.next().is_none().then_some(AddressLine { address, success, failures })
}

fn parse_host(word: &str) -> Option<Host> {
    let Some(digits) = word.strip_prefix("tor:") else {
        return word.parse::<IpAddr>().ok().map(Host::Ip);
    };
    let mut key = [0; 32];
    if digits.len() != 2 * key.len() {
        return None;
    }
    for (byte, pair) in key.iter_mut().zip(digits.as_bytes().chunks_exact(2)) {
        let digit = |at: usize| char::from(pair[at]).to_digit(16);
        *byte = u8::try_from(digit(0)? * 16 + digit(1)?).ok()?;
    }
    Some(Host::TorV3(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PeerId;
    use apus_chain::Network;
    use proptest::prelude::*;
    use std::net::SocketAddr;

    const NOW: i64 = 1_800_000_000;

    fn book(network: Network) -> AddressBook {
        let mut book = AddressBook::new(network, 1);
        book.set_onion(true);
        book
    }

    #[test]
    fn an_encoded_book_is_restored() {
        let mut full = book(Network::Main);
        let seeds: Vec<SocketAddr> =
            ["8.1.1.1:8333", "8.2.1.1:8334", "[2a00::1]:8333"].map(|a| a.parse().unwrap()).into();
        full.add_from_dns(&seeds, NOW);
        let onion = NodeAddress {
            host: Host::TorV3([0xa7; 32]),
            port: 8333,
            services: Services(0xc09),
            time: NOW as u32 - 100,
        };
        full.add_from_peer(PeerId(1), &onion, std::slice::from_ref(&onion), NOW);
        full.add_user("9.9.9.9:8333".parse::<SocketAddr>().unwrap().into());
        full.connected(&seeds[0].into(), Services(0x409), NOW - 5);
        full.failed(&seeds[1].into(), NOW);
        let text = full.encode();
        assert!(
            text.starts_with("apus-addresses 1 main\n8.1.1.1 8333 409 1799999995 1799999995 0\n"),
            "{text}"
        );
        assert!(text.contains(&format!("\ntor:{} 8333 c09 ", "a7".repeat(32))), "{text}");
        assert!(!text.contains("9.9.9.9"), "{text}");

        let mut again = book(Network::Main);
        let restored = again.restore(text.as_bytes(), NOW).unwrap();
        assert_eq!(restored, RestoredBook { added: 4, left_out: 0, bad_lines: 0 });
        assert_eq!(again.encode(), text);
        let restored = again.restore(text.as_bytes(), NOW).unwrap();
        assert_eq!(restored, RestoredBook { added: 0, left_out: 4, bad_lines: 0 });
    }

    #[test]
    fn damaged_lines_are_counted_and_useless_addresses_skipped() {
        let lines: &[&[u8]] = &[
            b"apus-addresses 1 main",
            b"8.1.1.1 8333 9 1799000000 0 0",
            b"8.1.1.1 8333 9 1799000000 0 0 0",
            b"8.2.1.1 65536 9 1799000000 0 0",
            b"8.2.1.1 8333 9 -1 0 0",
            b"8.2.1.1 8333 9 1799000000 0",
            b"tor:abcd 8333 9 1799000000 0 0",
            b"node.example 8333 9 1799000000 0 0",
            b"\xff\xfe",
            b"127.0.0.1 8333 9 1799000000 0 0",
            b"8.3.1.1 22 9 1799000000 0 0",
            b"8.4.1.1 8333 400 1799000000 0 0",
            b"8.5.1.1 8333 9 1600000000 0 0",
            b"8.6.1.1 8333 9 4294967295 9223372036854775807 4294967295",
        ];
        let mut book = book(Network::Main);
        let restored = book.restore(&lines.join(&b'\n'), NOW).unwrap();
        assert_eq!(restored, RestoredBook { added: 2, left_out: 4, bad_lines: 7 });
        assert!(book.encode().ends_with("8.6.1.1 8333 9 1800000000 1800000000 100\n"));
    }

    #[test]
    fn a_file_of_another_kind_version_or_network_is_refused() {
        let mut book = book(Network::Main);
        for head in
            ["", "apus-addresses 2 main\n", "apus-addresses 1 signet\n", "apus-addresses 1 main "]
        {
            assert_eq!(book.restore(head.as_bytes(), NOW), None, "{head}");
        }
        let mut long = book.encode().into_bytes();
        long.resize(FILE_BYTES_MAX, b'\n');
        assert!(book.restore(&long, NOW).is_some());
        long.push(b'\n');
        assert_eq!(book.restore(&long, NOW), None);
    }

    proptest! {
        #[test]
        fn no_bytes_make_it_panic(bytes in proptest::collection::vec(any::<u8>(), 0..300)) {
            let mut text = b"apus-addresses 1 main\n".to_vec();
            text.extend(&bytes);
            book(Network::Main).restore(&text, NOW).unwrap();
            let _ = book(Network::Main).restore(&bytes, i64::MIN);
        }

        #[test]
        fn any_line_reads_back(
            v4 in any::<u32>(), port in any::<u16>(), services in any::<u64>(), time in any::<u32>(),
            success in 0..NOW, failures in 0..=FAILURES_MAX,
        ) {
            let ip = std::net::Ipv4Addr::from(v4);
            let line = format!("{ip} {port} {services:x} {time} {success} {failures}");
            let read = parse_line(line.as_bytes()).unwrap();
            let address = NodeAddress { host: Host::Ip(ip.into()), port, services: Services(services), time };
            prop_assert_eq!((read.address, read.success, read.failures), (address, success, failures));
        }
    }
}

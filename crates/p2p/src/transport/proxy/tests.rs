//! Tests with honest and dishonest proxies that serve one connection each.

use super::*;
use crate::message::Services;
use std::io::Write;
use std::net::{Ipv4Addr, Ipv6Addr, TcpListener};
use std::thread::JoinHandle;
use std::time::Instant;

const PATIENCE: Duration = Duration::from_secs(60);

fn address(host: Host) -> NodeAddress {
    NodeAddress { host, port: 8333, services: Services::default(), time: 0 }
}

fn read(mut stream: &TcpStream, count: usize) -> Vec<u8> {
    let mut bytes = vec![0; count];
    stream.read_exact(&mut bytes).unwrap();
    bytes
}

/// A proxy that answers the greeting and the request with these bytes, one by one, then `rest`. It returns
/// the request without the greeting.
fn proxy(
    greeting: &'static [u8],
    answer: Vec<u8>,
    request_bytes: usize,
) -> (SocketAddr, JoinHandle<Vec<u8>>) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    let proxy = thread::spawn(move || {
        let mut stream = listener.accept().unwrap().0;
        assert_eq!(read(&stream, 4), [5, 2, 0, 2]);
        stream.write_all(greeting).unwrap();
        let request = read(&stream, request_bytes);
        for byte in answer {
            stream.write_all(&[byte]).unwrap();
        }
        request
    });
    (address, proxy)
}

#[test]
fn a_proxy_gets_the_target_address() {
    let key = [3; 32];
    let onion = onion_name(&key);
    let name = |name: &str| [&[3, name.len() as u8], name.as_bytes()].concat();
    for (host, target) in [
        (Host::Ip(Ipv4Addr::new(1, 2, 3, 4).into()), vec![1, 1, 2, 3, 4]),
        (Host::Ip(Ipv6Addr::LOCALHOST.into()), {
            let mut target = vec![4];
            target.extend(Ipv6Addr::LOCALHOST.octets());
            target
        }),
        (Host::Name("seed.example".to_owned()), name("seed.example")),
        (Host::TorV3(key), name(&onion)),
    ] {
        let expected = [&[5, 1, 0][..], &target, &8333u16.to_be_bytes()].concat();
        for bound in [&[1, 9, 9, 9, 9][..], &[4; 17], b"\x03\x05proxy"] {
            // The bytes after the answer belong to the peer, and none of them is lost.
            let answer = [&[5, 0, 0], bound, &[0, 80], b"hello"].concat();
            let (socket, proxy) = proxy(&[5, 0], answer, expected.len());
            let stream = open(&address(host.clone()), Some(socket), PATIENCE).unwrap();
            assert_eq!(proxy.join().unwrap(), expected);
            assert_eq!(read(&stream, 5), b"hello");
        }
    }
}

#[test]
fn refusals_are_reported() {
    let host = || address(Host::Ip(Ipv4Addr::new(1, 2, 3, 4).into()));
    for (greeting, answer, says) in [
        (&[5, 0][..], vec![5, 5, 0, 1, 0, 0, 0, 0, 0, 0], "refused"),
        (&[5, 0], vec![5, 4, 0, 1, 0, 0, 0, 0, 0, 0], "host is unreachable"),
        (&[5, 0], vec![5, 0xf0, 0, 1], "unknown code"),
        (&[5, 0], vec![4, 0, 0, 1], "not SOCKS5"),
        (&[5, 0], vec![5, 0, 0, 9], "unknown kind"),
        (&[5, 0], vec![5, 0, 0, 1, 0], "closed the connection"),
    ] {
        let (socket, proxy) = proxy(greeting, answer, 10);
        let error = open(&host(), Some(socket), PATIENCE).unwrap_err();
        assert!(matches!(error, PeerError::Proxy { .. }), "{error}");
        assert!(error.to_string().contains(says), "{error}");
        assert!(error.to_string().contains("1.2.3.4:8333"), "{error}");
        proxy.join().unwrap();
    }
    for (greeting, says) in [(&[5, 0xff][..], "authentication"), (b"HT", "not a SOCKS5 proxy")] {
        let (socket, proxy) = proxy(greeting, vec![], 0);
        let error = open(&host(), Some(socket), PATIENCE).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        proxy.join().unwrap();
    }
}

/// Tor uses another circuit for each name and password.
#[test]
fn each_connection_has_a_name_of_its_own() {
    let login = |verdict: u8| {
        let (socket, proxy) = proxy(&[5, 2], vec![1, verdict, 5, 1, 0, 1], 35);
        let error = open(&address(Host::Name("a".to_owned())), Some(socket), PATIENCE).unwrap_err();
        (proxy.join().unwrap(), error.to_string())
    };
    let ((one, error), (other, refused)) = (login(0), login(1));
    assert!(error.contains("general failure"), "{error}");
    assert!(refused.contains("a user name and password of its own"), "{refused}");
    for login in [&one, &other] {
        assert_eq!((login[0], login[1], login[18]), (1, 16, 16));
    }
    assert_ne!(one[2..18], other[2..18]);
}

#[test]
fn a_silent_proxy_does_not_block_us() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let socket = listener.local_addr().unwrap();
    let start = Instant::now();
    let wait = Duration::from_millis(100);
    let error = open(&address(Host::TorV3([0; 32])), Some(socket), wait).unwrap_err();
    assert!(error.to_string().contains("took longer than 100ms"), "{error}");
    assert!(start.elapsed() < PATIENCE);
    drop(listener);
    let error = open(&address(Host::TorV3([0; 32])), Some(socket), PATIENCE).unwrap_err();
    assert!(matches!(error, PeerError::Proxy { .. }), "{error}");
}

#[test]
fn names_too_long_for_a_request_are_refused() {
    let socket = SocketAddr::from((Ipv4Addr::LOCALHOST, 1));
    for name in [String::new(), "a".repeat(256)] {
        let error = open(&address(Host::Name(name)), Some(socket), PATIENCE).unwrap_err();
        assert!(error.to_string().contains("255"), "{error}");
    }
}

#[test]
fn tor_names_are_not_resolved() {
    for host in [
        Host::TorV3([1; 32]),
        Host::Name("abc.onion".to_owned()),
        Host::Name("abc.ONION.".to_owned()),
    ] {
        let error = open(&address(host), None, PATIENCE).unwrap_err();
        assert!(error.to_string().contains("only through a proxy"), "{error}");
    }
}

#[test]
fn names_are_looked_up_without_a_proxy() {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let port = listener.local_addr().unwrap().port();
    let by_name = NodeAddress { port, ..address(Host::Name("localhost".to_owned())) };
    open(&by_name, None, PATIENCE).unwrap();
    let missing = Host::Name("no such name".to_owned());
    let error = open(&address(missing), None, PATIENCE).unwrap_err();
    assert!(matches!(error, PeerError::Connect { .. }), "{error}");
    assert!(error.to_string().contains("no such name:8333"), "{error}");
}

#[test]
fn addresses_are_formatted_as_users_write_them() {
    let text = |host| address_text(&address(host));
    assert_eq!(text(Host::Ip(Ipv4Addr::LOCALHOST.into())), "127.0.0.1:8333");
    assert_eq!(text(Host::Ip(Ipv6Addr::LOCALHOST.into())), "[::1]:8333");
    assert_eq!(text(Host::Name("a.b".to_owned())), "a.b:8333");
    assert!(text(Host::TorV3([0; 32])).ends_with(".onion:8333"));
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[test]
fn digests_match_the_standard() {
    let known = [
        ("", "a7ffc6f8bf1ed76651c14756a061d662f580ff4de43b49fa82d80a4b80f8434a"),
        ("abc", "3a985da74fe225b2045c172d6bd390bd855f086e3e9d525b46bfe24511431532"),
        (
            "abcdbcdecdefdefgefghfghighijhijkijkljklmklmnlmnomnopnopq",
            "41c0dba2a9d6240849100376a8235e2c82e1b9998a999e21db32dd97496d3376",
        ),
    ];
    for (message, digest) in known {
        assert_eq!(hex(&sha3_256(message.as_bytes())), digest);
    }
}

/// Extracts the key from a name in a slower way.
fn key_of(name: &str) -> [u8; 32] {
    let digits = name.bytes().map(|c| BASE32.iter().position(|&d| d == c).unwrap());
    let bits: Vec<bool> =
        digits.flat_map(|digit| (0..5).rev().map(move |bit| digit >> bit & 1 == 1)).collect();
    let byte = |bits: &[bool]| bits.iter().fold(0, |byte, &bit| byte << 1 | u8::from(bit));
    let bytes: Vec<u8> = bits.chunks(8).map(byte).collect();
    bytes[..32].try_into().unwrap()
}

#[test]
fn real_onion_names_are_derived_from_their_keys() {
    // Examples from the Tor specification.
    for name in [
        "pg6mmjiyjmcrsslvykfwnntlaru7p5svn6y2ymmju6nubxndf4pscryd",
        "sp3k262uwy4r2k3ycr5awluarykdpag6a7y33jxop4cs2lu5uz5sseqd",
        "xa4r2iadxm55fbnqgwwi5mymqdcofiu3w6rpbtqn7b2dyn7mgwj64jyd",
    ] {
        assert_eq!(onion_name(&key_of(name)), format!("{name}.onion"));
    }
}

//! Tests the codec with round trips, against the independent crate `bitcoin`, and with noise.

use super::*;
use crate::addresses::{Host, NodeAddress};
use crate::transport::PeerError;
use bitcoin::consensus::encode::{deserialize, serialize};
use bitcoin::p2p::message::RawNetworkMessage;
use proptest::collection::vec;
use proptest::prelude::*;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

const COMMANDS: [&str; 19] = [
    "version",
    "verack",
    "sendaddrv2",
    "wtxidrelay",
    "sendheaders",
    "ping",
    "pong",
    "getaddr",
    "addr",
    "addrv2",
    "getheaders",
    "headers",
    "inv",
    "getdata",
    "notfound",
    "block",
    "tx",
    "uproof",
    "",
];

fn ip() -> impl Strategy<Value = IpAddr> {
    prop_oneof![
        any::<u32>().prop_map(|ip| IpAddr::V4(ip.into())),
        any::<u128>().prop_map(|ip| Ipv6Addr::from(ip).to_canonical()),
    ]
}

fn address(host: impl Strategy<Value = Host>) -> impl Strategy<Value = NodeAddress> {
    (host, any::<u16>(), any::<u64>(), any::<u32>()).prop_map(|(host, port, services, time)| {
        NodeAddress { host, port, services: Services(services), time }
    })
}

fn inventory() -> impl Strategy<Value = Vec<Inventory>> {
    let kind = prop_oneof![
        Just(InventoryKind::Block),
        Just(InventoryKind::WitnessBlock),
        (3..1000u32).prop_map(InventoryKind::Other),
    ];
    vec((kind, any::<[u8; 32]>()).prop_map(|(kind, hash)| Inventory { kind, hash }), 0..40)
}

fn version() -> impl Strategy<Value = VersionMessage> {
    let numbers = (any::<u32>(), any::<u64>(), any::<i64>(), any::<u64>());
    (numbers, "[a-zA-Z0-9 .,;_/:?@()-]{0,256}", any::<i32>(), any::<bool>()).prop_map(
        |((protocol, services, time, nonce), user_agent, start_height, relay)| VersionMessage {
            protocol,
            services: Services(services),
            time,
            nonce,
            user_agent,
            start_height,
            relay,
        },
    )
}

/// Messages that the crate `bitcoin` can read too, with addresses for `addr` or `addrv2`.
fn message(addrv2: bool) -> impl Strategy<Value = Message> {
    let host = (ip(), any::<[u8; 32]>(), any::<bool>()).prop_map(move |(ip, key, tor)| {
        if tor && addrv2 { Host::TorV3(key) } else { Host::Ip(ip) }
    });
    let hash = || any::<[u8; 32]>().prop_map(BlockHash);
    prop_oneof![
        version().prop_map(Message::Version),
        Just(Message::Verack),
        Just(Message::SendAddrV2),
        Just(Message::WtxidRelay),
        Just(Message::SendHeaders),
        any::<u64>().prop_map(Message::Ping),
        any::<u64>().prop_map(Message::Pong),
        Just(Message::GetAddr),
        vec(address(host), 0..40).prop_map(Message::Addresses),
        (vec(hash(), 0..=LOCATOR_MAX), hash())
            .prop_map(|(locator, stop)| Message::GetHeaders { locator, stop }),
        vec(vec(any::<u8>(), 80).prop_map(|raw| raw.try_into().unwrap()), 0..20)
            .prop_map(Message::Headers),
        inventory().prop_map(Message::Inv),
        inventory().prop_map(Message::GetData),
        inventory().prop_map(Message::NotFound),
    ]
}

fn either() -> impl Strategy<Value = (Message, bool)> {
    prop_oneof![(message(false), Just(false)), (message(true), Just(true))]
}

/// A message in the form that the crate `bitcoin` reads: with the header of the plaintext transport.
fn framed(command: CommandName, payload: &[u8]) -> Vec<u8> {
    let mut bytes = bitcoin::p2p::Magic::REGTEST.to_bytes().to_vec();
    bytes.extend(command.to_bytes());
    bytes.extend((payload.len() as u32).to_le_bytes());
    bytes.extend(&apus_hash::sha256d(payload)[..4]);
    bytes.extend(payload);
    bytes
}

proptest! {
    #[test]
    fn messages_read_back((message, addrv2) in either()) {
        let (command, payload) = encode(&message, addrv2);
        prop_assert_eq!(decode(command, payload.into_owned()), Ok(message.clone()));
    }

    #[test]
    fn another_crate_reads_and_writes_the_same((message, addrv2) in either()) {
        let (command, payload) = encode(&message, addrv2);
        let bytes = framed(command, &payload);
        let theirs: RawNetworkMessage = deserialize(&bytes).unwrap();
        prop_assert_eq!(theirs.cmd(), command.name().unwrap());
        prop_assert_eq!(serialize(&theirs), bytes);
    }

    #[test]
    fn blocks_stay_as_they_are(block: Vec<u8>) {
        let message = Message::Block(block.clone());
        let (command, payload) = encode(&message, true);
        prop_assert_eq!(&*payload, &block[..]);
        prop_assert_eq!(decode(command, block).unwrap(), message);
    }

    #[test]
    fn noise_makes_no_panic(command in prop::sample::select(&COMMANDS), payload: Vec<u8>) {
        let _ = decode(CommandName::new(command), payload);
    }

    #[test]
    fn damage_makes_no_panic((message, addrv2) in either(), place: prop::sample::Index, to: u8) {
        let (command, payload) = encode(&message, addrv2);
        let mut payload = payload.into_owned();
        if !payload.is_empty() {
            let place = place.index(payload.len());
            payload[place] = to;
        }
        let _ = decode(command, payload);
    }

    #[test]
    fn half_a_message_is_an_error((message, addrv2) in either(), place: prop::sample::Index) {
        let (command, payload) = encode(&message, addrv2);
        // The optional fields of `version`, and the empty `ping` of old peers, are tested below.
        prop_assume!(!matches!(message, Message::Version(_)) && !payload.is_empty());
        let len = place.index(payload.len());
        prop_assume!(len > 0);
        prop_assert!(decode(command, payload[..len].to_vec()).is_err());
    }

    #[test]
    fn bytes_after_the_last_field_mean_nothing((message, addrv2) in either(), rest: Vec<u8>) {
        let (command, payload) = encode(&message, addrv2);
        let bytes = [&payload[..], &rest].concat();
        prop_assert_eq!(decode(command, bytes), Ok(message.clone()));
    }
}

/// A payload that starts with a count, followed by as many entries.
fn counted(before: &[u8], count: u16, entry: &[u8], after: &[u8]) -> Vec<u8> {
    let mut payload = before.to_vec();
    apus_chain::write_compact_size(&mut payload, u64::from(count));
    (0..count).for_each(|_| payload.extend(entry));
    payload.extend(after);
    payload
}

#[test]
fn counts_are_limited_by_the_protocol() {
    let address_v2 = b"\0\0\0\0\x01\x01\x04\x7f\0\0\x01\x20\x8d";
    type Bytes = &'static [u8];
    let cases: [(&str, Bytes, u16, Bytes, Bytes); 7] = [
        ("headers", b"", 2_000, &[0; 81], b""),
        ("inv", b"", 50_000, &[0; 36], b""),
        ("getdata", b"", 50_000, &[0; 36], b""),
        ("notfound", b"", 50_000, &[0; 36], b""),
        ("addr", b"", 1_000, &[7; 30], b""),
        ("addrv2", b"", 1_000, address_v2, b""),
        ("getheaders", &[0; 4], 101, &[0; 32], &[0; 32]),
    ];
    for (name, before, most, entry, after) in cases {
        let command = CommandName::new(name);
        decode(command, counted(before, most, entry, after)).unwrap();
        let error = decode(command, counted(before, most + 1, entry, after)).unwrap_err();
        assert!(error.to_string().contains("above the limit"), "{name}: {error}");
    }
}

#[test]
fn a_count_without_entries_is_an_error() {
    for (name, before, count) in
        [("headers", 0, 2_000), ("inv", 0, 50_000), ("addr", 0, 1_000), ("getheaders", 4, 101)]
    {
        let payload = counted(&vec![0; before], count, b"", b"");
        let error = decode(CommandName::new(name), payload).unwrap_err();
        assert!(error.to_string().contains("the data ends"), "{name}: {error}");
    }
}

#[test]
fn version_may_end_after_each_of_its_later_fields() {
    let full = VersionMessage {
        protocol: 70_016,
        services: Services::NETWORK,
        time: -1,
        nonce: 5,
        user_agent: "/a:1/".to_owned(),
        start_height: 9,
        relay: false,
    };
    let message = Message::Version(full.clone());
    let payload = encode(&message, false).1;
    let read = |len: usize| decode(CommandName::new("version"), payload[..len].to_vec());
    let mut shorter = VersionMessage { relay: true, ..full };
    assert_eq!(read(payload.len() - 1), Ok(Message::Version(shorter.clone())));
    shorter.start_height = -1;
    assert_eq!(read(payload.len() - 5), Ok(Message::Version(shorter.clone())));
    shorter.user_agent.clear();
    assert_eq!(read(payload.len() - 11), Ok(Message::Version(shorter.clone())));
    shorter.nonce = 0;
    assert_eq!(read(46), Ok(Message::Version(shorter)));
    for len in [0, 4, 45, 47, 79, payload.len() - 2, payload.len() - 6] {
        assert!(read(len).is_err(), "{len} of {} bytes", payload.len());
    }
}

#[test]
fn a_user_agent_is_short_and_harmless() {
    let read = |user_agent: &[u8]| {
        let mut payload = vec![0; 80];
        apus_chain::write_compact_size(&mut payload, user_agent.len() as u64);
        payload.extend(user_agent);
        decode(CommandName::new("version"), payload)
    };
    let Ok(Message::Version(version)) = read(b"/x:1/\x1b[2J\r\n\xff<b>") else { panic!() };
    assert_eq!(version.user_agent, "/x:1/2Jb");
    assert!(read(&[b'a'; 256]).is_ok());
    assert!(read(&[b'a'; 257]).is_err());
}

#[test]
fn headers_with_transactions_are_refused() {
    let mut payload = counted(b"", 3, &[0; 81], b"");
    payload[1 + 2 * 81 - 1] = 1;
    let error = decode(CommandName::new("headers"), payload);
    assert_eq!(error.unwrap_err().flaw, PayloadFlaw::HeaderWithTransactions { index: 1 });
}

/// Knots headers are longer, and bit 31 of their version is set.
#[test]
fn headers_of_knots_are_identified() {
    let mut header = [7; 164];
    header[..4].copy_from_slice(&0xa000_0000_u32.to_le_bytes());
    let read = |header: &[u8]| {
        decode(CommandName::new("headers"), [&[1], header, &[0]].concat()).unwrap_err()
    };
    for count in [1, 0xfd, 0xff] {
        header[80] = count;
        let error = read(&header);
        assert_eq!(error.flaw, PayloadFlaw::OfKnots { index: 0 });
        assert!(PeerError::from(error).to_string().contains("Bitcoin Knots"));
    }
    header[3] = 0x20;
    assert_ne!(read(&header).flaw, PayloadFlaw::OfKnots { index: 0 });
}

fn addresses(command: &str, entries: &[&[u8]]) -> Result<Vec<NodeAddress>, MessageError> {
    let mut payload = vec![entries.len() as u8];
    payload.extend(entries.concat());
    match decode(CommandName::new(command), payload)? {
        Message::Addresses(addresses) => Ok(addresses),
        other => panic!("{other:?}"),
    }
}

#[test]
fn unreachable_addresses_are_skipped() {
    let entry = |network: u8, address: &[u8]| {
        [&[1, 0, 0, 0, 9, network, address.len() as u8], address, &[0x20, 0x8d]].concat()
    };
    let good = entry(1, &[1, 2, 3, 4]);
    let mapped = [&[0; 10][..], &[0xff, 0xff, 1, 2, 3, 4]].concat();
    let onion_cat = [&[0xfd, 0x87, 0xd8, 0x7e, 0xeb, 0x43][..], &[1; 10]].concat();
    let internal = [&[0xfd, 0x6b, 0x88, 0xc0, 0x87, 0x24][..], &[1; 10]].concat();
    for (network, address) in [
        (2, &mapped[..]),
        (2, &onion_cat),
        (2, &internal),
        (3, &[1; 10]),
        (5, &[1; 32]),
        (6, &[0xfc; 16]),
        (99, &[]),
        (99, &[1; 200]),
    ] {
        let found = addresses("addrv2", &[&entry(network, address), &good]).unwrap();
        let ip = IpAddr::V4(Ipv4Addr::new(1, 2, 3, 4));
        let expected =
            NodeAddress { host: Host::Ip(ip), port: 8333, services: Services(9), time: 1 };
        assert_eq!(found, [expected], "network {network}");
    }
    for (network, len) in [(1, 3), (1, 5), (2, 4), (4, 31), (4, 33)] {
        let error = addresses("addrv2", &[&entry(network, &vec![1; len])]).unwrap_err();
        assert!(matches!(error.flaw, PayloadFlaw::AddressLength { .. }), "{error}");
    }
    let old =
        |address: &[u8]| [&[1, 0, 0, 0, 9, 0, 0, 0, 0, 0, 0, 0], address, &[0x20, 0x8d]].concat();
    let found = addresses("addr", &[&old(&onion_cat), &old(&mapped), &old(&internal)]).unwrap();
    assert_eq!(found, addresses("addrv2", &[&good]).unwrap());
}

#[test]
fn addresses_that_a_format_cannot_hold_are_skipped() {
    let with = |host| NodeAddress { host, port: 1, services: Services(0), time: 0 };
    let ip = with(Host::Ip(Ipv4Addr::LOCALHOST.into()));
    let tor = with(Host::TorV3([7; 32]));
    let all = Message::Addresses(vec![with(Host::Name("a.b".to_owned())), tor.clone(), ip.clone()]);
    for (addrv2, expected) in [(false, vec![ip.clone()]), (true, vec![tor, ip])] {
        let (command, payload) = encode(&all, addrv2);
        assert_eq!(decode(command, payload.into_owned()), Ok(Message::Addresses(expected)));
    }
}

#[test]
fn unknown_messages_have_a_name_and_a_payload() {
    for (command, name) in [
        (CommandName::new("feefilter"), "feefilter"),
        (CommandName::from_bytes(*b"block\0\0\0\0\0\0!"), "block\\x00\\x00\\x00\\x00\\x00\\x00!"),
        (CommandName::NONE, ""),
    ] {
        let expected = Message::Other { name: name.to_owned(), payload: vec![1, 2, 3] };
        assert_eq!(decode(command, vec![1, 2, 3]), Ok(expected));
    }
    // A ping without a number needs no answer (BIP-31).
    let other = Message::Other { name: "ping".to_owned(), payload: Vec::new() };
    assert_eq!(decode(CommandName::new("ping"), vec![]), Ok(other));
    let asked = Message::Other { name: "geturoot".to_owned(), payload: vec![7; 32] };
    let (command, payload) = encode(&asked, false);
    assert_eq!((command, &*payload), (CommandName::new("geturoot"), &[7; 32][..]));
}

#[test]
fn names_are_printable_and_end_with_zeros() {
    assert_eq!(CommandName::new("block").name(), Some("block"));
    assert_eq!(CommandName::new("twelve bytes").name(), Some("twelve bytes"));
    assert_eq!(CommandName::new("twelve bytes more").name(), Some("twelve bytes"));
    assert_eq!(CommandName::NONE.name(), None);
    assert_eq!(CommandName::from_bytes(*b"block\0\0\0\0\0\0x").name(), None);
    assert_eq!(CommandName::from_bytes(*b"bl\x1bck\0\0\0\0\0\0\0").name(), None);
    assert_eq!(CommandName::from_bytes(*b"bl\x7fck\0\0\0\0\0\0\0").name(), None);
}

proptest! {
    #[test]
    fn no_byte_of_a_name_reaches_a_terminal_raw(bytes: [u8; 12]) {
        let shown = CommandName::from_bytes(bytes).to_string();
        prop_assert!(shown.chars().all(|c| c.is_ascii_graphic() || c == ' '), "{:?}", shown);
        prop_assert_eq!(CommandName::from_bytes(bytes).to_bytes(), bytes);
    }
}

//! BIP-324's test vectors, and message names.

use super::*;
use proptest::prelude::*;

fn written(name: &str) -> Vec<u8> {
    let mut out = Vec::new();
    write_name(CommandName::new(name), &mut out);
    out
}

#[test]
fn ids_match_the_table() {
    for (name, number) in
        [("addr", 1), ("block", 2), ("getdata", 11), ("headers", 13), ("notfound", 17)]
    {
        assert_eq!(written(name), [number]);
    }
    for (name, number) in [
        ("ping", 18),
        ("tx", 21),
        ("cfcheckpt", 27),
        ("addrv2", 28),
        ("uproof", 29),
        ("geturoot", 36),
    ] {
        assert_eq!(written(name), [number]);
    }
    assert_eq!(written("version"), b"\0version\0\0\0\0\0");
}

#[test]
fn both_name_forms_round_trip_and_unknown_ids_are_refused() {
    for name in NAMES.into_iter().chain(["version", "verack", "sendaddrv2"]) {
        let bytes = written(name);
        assert_eq!(read_name(&bytes).unwrap(), (CommandName::new(name), bytes.len()));
    }
    assert_eq!(read_name(b"\0block\0\0\0\0\0\0\0rest").unwrap(), (CommandName::new("block"), 13));
    for unknown in [37, 128, 255] {
        assert_eq!(read_name(&[unknown, 1, 2]).unwrap(), (CommandName::NONE, 1));
    }
    assert!(read_name(b"").is_err());
    assert!(read_name(b"\0version\0\0\0\0").is_err());
}

proptest! {
    #[test]
    fn reads_stay_within_the_contents(contents: Vec<u8>) {
        if let Ok((_, len)) = read_name(&contents) {
            prop_assert!(len <= contents.len());
        }
    }
}

fn bytes(hex: &str) -> Vec<u8> {
    (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
}

fn array<const N: usize>(hex: &str) -> [u8; N] {
    bytes(hex).try_into().unwrap()
}

/// A line of BIP-324's `packet_encoding_test_vectors.csv`.
struct Vector {
    packets_before: usize,
    secret: &'static str,
    ours: &'static str,
    theirs: &'static str,
    role: Role,
    contents: &'static str,
    ignored: bool,
    terminators: [&'static str; 2],
    packet: &'static str,
}

const VECTORS: [Vector; 3] = [
    Vector {
        packets_before: 1,
        secret: "e79f04ad4c684525ff3e3cf7c19f4cdb11193d387d7f3fe82a948a0c3165f5fe",
        ours: "4eff53ea1945e57b5d170565e760d771e5d496101c1005c302fd687af80d8b858c5a681c474fc4c0546ee464a1b95899ecb9d4f50c2c0854fe029fc054ae6777",
        theirs: "824a1da0530fa695b95b375fee2a56ec96ce375ddd2fcf8367cc8ec1c0b751a3304bbef5dc96543acaac50c24be8cb39906ef8521727de0c6e96c2060a026bd7",
        role: Role::Initiator,
        contents: "1f",
        ignored: false,
        terminators: ["38d7b65a6d58a08b2506e799caacd4f6", "d6156094782d98fa27f37758dcd0677f"],
        packet: "d88ea86cdd6b61592e038741b474eeef0de0802412",
    },
    Vector {
        packets_before: 999,
        secret: "53a915e6d8f6c5bbb93e537081085e9e642dc525649acf05be74e3a825e20921",
        ours: "715d7b8357dd4d15a07b3f8c6764ebd9927140f75047fb50478c33ea8889d710511cdf39aa0fd6b1e94ea660d87f9d97bffc548646f9e2aaebc1468fe563fb97",
        theirs: "cea7abc3112397b894bd3e89a615248af473f897bbdd30997c20e53e7ce499a295e55c4c5655cd3d21191e76c8af0aa1bbea10fd1b540a42d0fbed388dc59877",
        role: Role::Responder,
        contents: "e4",
        ignored: false,
        terminators: ["0442c66254045c5018d828d42afaa69f", "930c6d7cbf8c7c2006ed287c2ba6d941"],
        packet: "0d5892533b0453c777d5ff3f217c94297e7927bb45",
    },
    Vector {
        packets_before: 255,
        secret: "f360308206fb441c7713b1a24ba4096a2fa0d5401411198b7008f82ae85257fe",
        ours: "3d4aa6a71a8a734e014b4d9e6b62989f022c1e2238ae476b11465cb86fe8cf7243db6f9472e188590705cf9b35121e06e57cb106a6043ab147b7c73871da8222",
        theirs: "f0ebc3c872339622fbf2ab1b8aa2117c4d752b64eac9203962c03a47497a89c0dd298348e5bb63d3433c48ed6da6bc2e2dbe78f7b91247dd29f1f51a858d464a",
        role: Role::Responder,
        contents: "b766200432932708a77dd15337bf70ca58397907a1cd31ecd1b43fab27fa0de0e85d5c4dea99543e79a75b149d325044934efccf679a764f683b2fbcb7c6dc4baea9797554779aff937f5195c172892c38dc423bc809885e5a19d07733e7c5f5806ffb865074cf2c46fbb5be4f9b5833c6829b8217ccb301dad7cb49e4fbcad1",
        ignored: true,
        terminators: ["e09f7df050a3f76bc8d5a21697fefb9b", "b8951fd528743d2e8625de363d9ae0e7"],
        packet: "98178b6e498f808c90b098c8ceb09c5630d50925323d051d379adb85be9e3b7d3e5a4c0eafa3fb69abcf60e631262278395c4ec017b1a2c8b4aa6a25e65afa99ea3e73038d152b392b2f754a655f3fd034fd633e7889072c3e1351bff97494a6737785a00016c294e0f62219eb6becfcd14e5f81841118275a460780178b050615ab02e56efc0c777844620ba3de42bb54674842",
    },
];

#[test]
fn the_bip_test_vectors_match() {
    for vector in &VECTORS {
        let secret = SecretKey::from_slice(&bytes(vector.secret)).unwrap();
        let ours = OurKey { secret, public: ElligatorSwift::from_array(array(vector.ours)) };
        let session = ours.agree(array(vector.theirs), vector.role, Network::Main);
        let mut out = session.outbound().unwrap();
        let terminators = [out.terminator, session.inbound().unwrap().terminator];
        assert_eq!(terminators, vector.terminators.map(array));
        for _ in 0..vector.packets_before {
            out.lengths.apply([0; 3]);
            out.packets.seal(&[], &mut [0]).unwrap();
        }
        let contents = bytes(vector.contents);
        let length = out.lengths.apply([contents.len() as u8, 0, 0]);
        let mut body = [&[if vector.ignored { 0x80 } else { 0 }], &contents[..]].concat();
        let tag = out.packets.seal(&[], &mut body).unwrap();
        assert_eq!([&length[..], &body, &tag].concat(), bytes(vector.packet));
    }
}

#[test]
fn many_packets_round_trip() {
    let [left, right] =
        [(1, 2), (3, 4)].map(|(secret, more)| OurKey::new(&[secret; 32], &[more; 32]).unwrap());
    let ours = left.agree(right.public(), Role::Initiator, Network::Signet);
    let theirs = right.agree(left.public(), Role::Responder, Network::Signet);
    let (mut out, mut into) = (ours.outbound().unwrap(), theirs.inbound().unwrap());
    assert_eq!(out.terminator, into.terminator);
    for number in 0..1_000u32 {
        let contents = number.to_le_bytes().repeat(number as usize % 70);
        let aad = &contents[..contents.len() / 2];
        let length = out.lengths.apply([number as u8, 7, 9]);
        assert_eq!(into.lengths.apply(length), [number as u8, 7, 9]);
        let mut packet = contents.clone();
        let tag = out.packets.seal(aad, &mut packet).unwrap();
        packet.extend(tag);
        into.packets.open(aad, &mut packet).unwrap();
        assert_eq!(packet, contents);
    }
    // A packet that was altered, truncated, repeated, or authenticated with other data is rejected.
    let mut packet = vec![1, 2, 3];
    let tag = out.packets.seal(&[], &mut packet).unwrap();
    packet.extend(tag);
    for bad in [packet[1..].to_vec(), vec![], [&packet[..], &[0]].concat()] {
        assert!(into.packets.open(&[], &mut bad.clone()).is_err());
    }
    assert!(into.packets.open(b"more", &mut packet.clone()).is_err());
    assert!(into.packets.open(&[], &mut packet.clone()).is_ok());
    assert!(into.packets.open(&[], &mut packet).is_err());
}

#[test]
fn networks_have_different_keys() {
    let [left, right] = [1, 2].map(|secret| OurKey::new(&[secret; 32], &[0; 32]).unwrap());
    let of = |network| left.agree(right.public(), Role::Initiator, network);
    let [one, two] = [Network::Main, Network::Regtest].map(|n| of(n).outbound().unwrap());
    assert_ne!(one.terminator, two.terminator);
}

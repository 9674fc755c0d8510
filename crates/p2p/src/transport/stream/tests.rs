//! Plaintext message headers.

use super::*;
use crate::transport::PeerFault;
use proptest::prelude::*;

const NETWORK: Network = Network::Regtest;

fn read(header: &[u8; 24], payload: &[u8]) -> Result<(CommandName, Vec<u8>), PeerError> {
    let mut reader = V1Reader::new(NETWORK);
    assert_eq!(reader.header(header)?, payload.len());
    reader.payload(payload.to_vec())
}

#[test]
fn a_verack_of_main_matches_captured_traffic() {
    // Every capture of network traffic contains these bytes.
    let known = *b"\xf9\xbe\xb4\xd9verack\0\0\0\0\0\0\0\0\0\0\x5d\xf6\xe0\xe2";
    assert_eq!(header(Network::Main, CommandName::new("verack"), b""), known);
}

#[test]
fn foreign_bytes_end_the_connection() {
    let good = header(NETWORK, CommandName::new("ping"), b"12345678");
    assert!(read(&good, b"12345678").is_ok());
    assert!(matches!(read(&good, b"12345679"), Err(PeerError::Protocol { .. })));

    let other = header(Network::Main, CommandName::new("ping"), b"12345678");
    let error = read(&other, b"12345678").unwrap_err();
    assert!(matches!(error, PeerError::WrongNetwork { found: Network::Main, .. }), "{error}");
    assert_eq!(error.kind(), PeerFault::Misbehaved);

    let mut noise = good;
    noise[0] ^= 1;
    assert!(matches!(read(&noise, b"12345678"), Err(PeerError::Protocol { .. })));
}

#[test]
fn a_block_needs_no_checksum() {
    let good = header(NETWORK, BLOCK, b"block");
    assert_eq!(read(&good, b"blocK").unwrap(), (BLOCK, b"blocK".to_vec()));
    for other in ["blocks", "cmpctblock", "headers", "version", "inv"] {
        let good = header(NETWORK, CommandName::new(other), b"block");
        assert!(read(&good, b"blocK").is_err(), "{other}");
    }
}

#[test]
fn payloads_are_limited_to_four_million_bytes() {
    let mut bytes = header(NETWORK, CommandName::new("block"), b"");
    let mut reader = V1Reader::new(NETWORK);
    bytes[16..20].copy_from_slice(&4_000_000u32.to_le_bytes());
    assert_eq!(reader.header(&bytes).unwrap(), 4_000_000);
    for len in [4_000_001, u32::MAX] {
        bytes[16..20].copy_from_slice(&len.to_le_bytes());
        assert!(matches!(reader.header(&bytes), Err(PeerError::TooLong { .. })));
    }
}

#[test]
fn a_connection_in_plaintext_is_recognized_by_its_first_bytes() {
    let first = |network, command| {
        *header(network, CommandName::new(command), b"").first_chunk::<16>().unwrap()
    };
    assert!(is_v1(&first(NETWORK, "version"), NETWORK).unwrap());
    assert!(!is_v1(&first(NETWORK, "verack"), NETWORK).unwrap());
    assert!(!is_v1(&[7; 16], NETWORK).unwrap());
    let other = is_v1(&first(Network::Signet, "version"), NETWORK);
    assert!(matches!(other, Err(PeerError::WrongNetwork { found: Network::Signet, .. })));
}

proptest! {
    #[test]
    fn a_header_reads_back(name in "[a-z0-9]{1,12}", payload: Vec<u8>) {
        let command = CommandName::new(&name);
        let (back, bytes) = read(&header(NETWORK, command, &payload), &payload).unwrap();
        prop_assert_eq!((back, bytes), (command, payload));
    }

    #[test]
    fn no_header_makes_a_panic(header: [u8; 20]) {
        let mut bytes = [0; 24];
        bytes[..4].copy_from_slice(&NETWORK.magic());
        bytes[4..].copy_from_slice(&header);
        let _ = V1Reader::new(NETWORK).header(&bytes);
    }
}

//! Headers of messages in plaintext, and memory that is used again.

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
fn verack_of_the_main_chain() {
    // As in every capture of the network's traffic.
    let known = *b"\xf9\xbe\xb4\xd9verack\0\0\0\0\0\0\0\0\0\0\x5d\xf6\xe0\xe2";
    assert_eq!(header(Network::Main, CommandName::new("verack"), b""), known);
}

#[test]
fn what_is_not_ours_ends_the_connection() {
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
fn a_block_is_proved_by_its_header() {
    let good = header(NETWORK, BLOCK, b"block");
    assert_eq!(read(&good, b"blocK").unwrap(), (BLOCK, b"blocK".to_vec()));
    for other in ["blocks", "cmpctblock", "headers", "version", "inv"] {
        let good = header(NETWORK, CommandName::new(other), b"block");
        assert!(read(&good, b"blocK").is_err(), "{other}");
    }
}

#[test]
fn four_million_bytes_and_no_more() {
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
fn a_connection_in_plaintext_is_known_by_its_first_bytes() {
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

const SIZE: usize = 1 << 20;

fn block(size: usize, home: &Arc<Buffers>) -> BlockBuffer {
    BlockBuffer::new(vec![1; size], home)
}

#[test]
fn memory_is_used_again_where_it_fits() {
    let buffers = Arc::new(Buffers::beside(0));
    assert!(buffers.take(SIZE).is_none());
    let first = block(SIZE, &buffers);
    let place = first.as_ptr();
    assert_eq!(first[..4], [1; 4]);
    drop(first);
    let least = SIZE / 5 * 4 + 1;
    for other in [SIZE + 1, least - 1, SIZE / 2, 0] {
        assert!(buffers.take(other).is_none(), "{other}");
    }
    let again = buffers.take(least).unwrap();
    assert_eq!(again.as_ptr(), place);
    assert!(buffers.take(SIZE).is_none());
}

#[test]
fn what_lies_unused_is_bounded() {
    for (bytes, most) in [(0, 4 * SIZE), (16 << 20, 4 * SIZE), (128 << 20, 16 * SIZE)] {
        let buffers = Arc::new(Buffers::beside(bytes));
        let held = || buffers.lock().iter().map(Vec::capacity).sum::<usize>();
        let blocks: Vec<BlockBuffer> = (0..40).map(|_| block(SIZE, &buffers)).collect();
        drop(blocks);
        assert_eq!(held(), most);
        // Those that came last stay.
        drop(block(2 * SIZE, &buffers));
        assert_eq!(held(), most);
        assert!(buffers.take(2 * SIZE).is_some());
        // What is larger than all the room, small ones and what was taken out are not kept.
        drop(block(most + 1, &buffers));
        assert_eq!(held(), most - 2 * SIZE);
        drop(block(100, &buffers));
        drop(BlockBuffer::new(Vec::new(), &buffers));
        assert!(buffers.take(100).is_none());
    }
    let none = Arc::new(Buffers::default());
    drop(block(SIZE, &none));
    assert!(none.take(SIZE).is_none());
}

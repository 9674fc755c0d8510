//! Peers that send too slowly, too much, or invalid messages.

use super::super::stream;
use super::raw::{framed, version};
use super::*;
use crate::message::CommandName;
use std::io::Write;

/// A plaintext connection, and the raw peer at its other end.
fn with_raw_peer() -> (Connection, RawPeer) {
    let (listener, address) = listener();
    let raw = thread::spawn(move || {
        let mut raw = RawPeer::accept(&listener);
        raw.shake_as_responder();
        raw
    });
    let connection = connect(&address, &dial(TransportChoice::V1)).unwrap();
    (connection, raw.join().unwrap())
}

#[test]
fn a_message_may_arrive_byte_by_byte() {
    let (mut connection, mut raw) = with_raw_peer();
    connection.reader.set_tick(Duration::from_millis(10)).unwrap();
    let block = Rng::new(3).bytes(40);
    let bytes = framed(&Message::Block(block.clone()));
    let before = connection.reader.bytes_received();
    for (sent, byte) in bytes.iter().enumerate() {
        assert_eq!(connection.reader.read().unwrap(), None, "after {sent} bytes");
        raw.send_bytes(&[*byte]);
    }
    assert_eq!(next(&mut connection.reader).unwrap(), Message::Block(block));
    assert_eq!(connection.reader.bytes_received() - before, bytes.len() as u64);
}

#[test]
fn a_trickling_peer_does_not_block_a_reader() {
    let (mut connection, mut raw) = with_raw_peer();
    connection.reader.set_tick(Duration::from_millis(100)).unwrap();
    let bytes = framed(&Message::Block(vec![0; 3_000_000]));
    let dripping = thread::spawn(move || {
        // The peer sends for many ticks and is never silent for a whole one.
        for byte in bytes.chunks(50).take(1_000) {
            raw.0.write_all(byte).unwrap();
            thread::sleep(Duration::from_millis(1));
        }
        raw
    });
    let mut calls = 0;
    while !dripping.is_finished() {
        assert_eq!(connection.reader.read().unwrap(), None);
        calls += 1;
    }
    assert!(calls >= 3, "{calls} calls in a second of trickling");
    assert!(connection.reader.bytes_received() > 10_000);
    dripping.join().unwrap();
}

#[test]
fn a_byte_by_byte_handshake_times_out() {
    for encrypted in [false, true] {
        let bytes = if encrypted { vec![7; 300] } else { framed(&Message::Version(version())) };
        let start = Instant::now();
        let (made, _) = accepting(&hasty(TransportChoice::Auto), |mut raw| {
            for byte in bytes.into_iter().take(20) {
                raw.send_bytes(&[byte]);
                thread::sleep(Duration::from_millis(30));
            }
        });
        let error = made.unwrap_err();
        assert!(matches!(error, PeerError::Timeout { .. }), "{error}");
        assert_eq!(error.kind(), PeerFault::Gone);
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn silence_times_out() {
    for choice in [TransportChoice::V1, TransportChoice::V2, TransportChoice::Auto] {
        let (listener, address) = listener();
        let silent = thread::spawn(move || RawPeer::accept(&listener).is_closed());
        let error = connect(&address, &hasty(choice)).unwrap_err();
        assert!(matches!(error, PeerError::Timeout { .. }), "{error}");
        assert!(silent.join().unwrap());
        let (made, _) = accepting(&hasty(choice), |mut raw| assert!(raw.is_closed()));
        assert!(matches!(made, Err(PeerError::Timeout { .. })));
    }
}

#[test]
fn an_invalid_message_ends_the_connection() {
    let good = framed(&Message::Ping(5));
    let changed = |place: usize, to: &[u8]| {
        let mut bytes = good.clone();
        bytes[place..place + to.len()].copy_from_slice(to);
        bytes
    };
    let headers = stream::header(NETWORK, CommandName::new("headers"), &[1, 2]);
    for (bytes, says) in [
        (changed(0, &[1, 2, 3, 4]), "begins with 01020304"),
        (changed(0, &Network::Main.magic()), "network main"),
        (changed(16, &4_000_001u32.to_le_bytes()), "more than 4000000"),
        (changed(16, &[0xff; 4]), "more than 4000000"),
        (changed(20, &[good[20] ^ 1]), "wrong checksum"),
        (changed(31, &[1]), "wrong checksum"),
        ([&headers[..], &[1, 2]].concat(), "the data ends"),
    ] {
        let (mut connection, mut raw) = with_raw_peer();
        raw.send(&Message::Ping(4));
        raw.send_bytes(&bytes);
        assert_eq!(next(&mut connection.reader).unwrap(), Message::Ping(4));
        let error = next(&mut connection.reader).unwrap_err();
        assert!(error.to_string().contains(says), "{error}");
        assert_eq!(error.kind(), PeerFault::Misbehaved);
        // Nothing after it is read.
        raw.send(&Message::Ping(6));
        assert!(matches!(connection.reader.read(), Err(PeerError::Closed)));
        drop(connection);
        assert!(raw.is_closed());
    }
}

#[test]
fn unknown_messages_are_reported_by_name() {
    let (mut connection, mut raw) = with_raw_peer();
    let payload = Rng::new(4).bytes(200_000);
    raw.send_bytes(&stream::header(NETWORK, CommandName::new("novelty"), &payload));
    raw.send_bytes(&payload);
    let unknown = next(&mut connection.reader).unwrap();
    assert!(matches!(unknown, Message::Other { name, .. } if name == "novelty"));
}

#[test]
fn a_closed_connection_is_reported_even_within_a_message() {
    for len in [0, 10, 24, 31] {
        let (mut connection, mut raw) = with_raw_peer();
        raw.send_bytes(&framed(&Message::Ping(5))[..len]);
        drop(raw);
        let error = next(&mut connection.reader).unwrap_err();
        assert!(matches!(error, PeerError::Closed), "{error}");
        assert_eq!(error.kind(), PeerFault::Gone);
    }
}

#[test]
fn a_peer_that_does_not_read_does_not_block_a_writer() {
    for choice in [TransportChoice::V1, TransportChoice::V2] {
        let (mut left, right) = pair(choice, choice);
        left.writer.set_timeout(Duration::from_millis(200));
        let block = vec![0; PAYLOAD_BYTES_MAX];
        let start = Instant::now();
        let error = loop {
            assert!(start.elapsed() < PATIENCE, "the peer takes everything");
            if let Err(error) = left.writer.write_block(&block) {
                break error;
            }
        };
        assert!(matches!(error, PeerError::Timeout { .. }), "{error}");
        // Nothing can follow half a message.
        assert!(matches!(left.writer.write(&Message::GetAddr), Err(PeerError::Closed)));
        drop(right);
    }
}

#[test]
fn noise_is_refused() {
    let mut rng = Rng::new(5);
    for round in 0..20 {
        let len = rng.index(9_000);
        let mut noise = rng.bytes(len);
        if round % 4 == 0 && len > 16 {
            noise[..16].copy_from_slice(&framed(&Message::Version(version()))[..16]);
        }
        let (made, _) = accepting(&hasty(TransportChoice::Auto), |mut raw| {
            raw.send_bytes(&noise);
            raw.is_closed();
        });
        assert!(made.is_err(), "{len} bytes of noise");
    }
    let (made, _) = accepting(&dial(TransportChoice::V1), |mut raw| raw.send_bytes(&[7; 24]));
    assert!(matches!(made, Err(PeerError::Protocol { .. })));
}

#[test]
fn a_peer_of_another_network_is_distinguished_from_an_encrypted_one() {
    let other = Dial { network: Network::Signet, ..dial(TransportChoice::V1) };
    let (_, right) = meet(&other, &dial(TransportChoice::Auto));
    let error = right.unwrap_err();
    assert!(matches!(error, PeerError::WrongNetwork { found: Network::Signet, .. }), "{error}");
}

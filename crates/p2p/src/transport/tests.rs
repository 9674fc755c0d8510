//! Connections over real sockets: with ourselves, and with arbitrary peers.

mod encrypted;
mod hostile;
mod raw;
mod versions;

use super::*;
use crate::message::{Message, PAYLOAD_BYTES_MAX};
use apus_testkit::rng::Rng;
use raw::{RawPeer, listener, local};
use std::sync::atomic::Ordering;
use std::thread;
use std::time::Instant;

const NETWORK: Network = Network::Regtest;
/// Longer than any successful operation takes on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn dial(transport: TransportChoice) -> Dial {
    let nonce = getrandom::u64().unwrap();
    Dial { transport, connect_timeout: PATIENCE, ..Dial::new(NETWORK, nonce) }
}

/// Options with a short handshake timeout.
fn hasty(transport: TransportChoice) -> Dial {
    Dial { handshake_timeout: Duration::from_millis(150), ..dial(transport) }
}

type ConnectResult = Result<Connection, PeerError>;

/// The results on both sides of one connection.
fn meet(left: &Dial, right: &Dial) -> (ConnectResult, ConnectResult) {
    let (listener, address) = listener();
    thread::scope(|scope| {
        let accepted = scope.spawn(move || accept(listener.accept().unwrap().0, right));
        (connect(&address, left), accepted.join().unwrap())
    })
}

/// Accepts a peer that performs `act`. Returns both results.
fn accepting<T: Send>(dial: &Dial, act: impl FnOnce(RawPeer) -> T + Send) -> (ConnectResult, T) {
    let (listener, address) = listener();
    thread::scope(|scope| {
        let peer = scope.spawn(move || act(RawPeer::connect(&address)));
        (accept(listener.accept().unwrap().0, dial), peer.join().unwrap())
    })
}

fn pair(left: TransportChoice, right: TransportChoice) -> (Connection, Connection) {
    let (left, right) = meet(&dial(left), &dial(right));
    (left.unwrap(), right.unwrap())
}

/// The next message, after any number of ticks.
fn next(reader: &mut MessageReader) -> Result<Message, PeerError> {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no message within {PATIENCE:?}");
        if let Some(message) = reader.read()? {
            return Ok(message);
        }
    }
}

#[test]
fn both_sides_learn_about_each_other() {
    for (choices, transport) in [
        ([TransportChoice::Auto, TransportChoice::Auto], Transport::V2),
        ([TransportChoice::V2, TransportChoice::V2], Transport::V2),
        ([TransportChoice::V1, TransportChoice::Auto], Transport::V1),
        ([TransportChoice::V1, TransportChoice::V1], Transport::V1),
    ] {
        let [mut left, mut right] = choices.map(dial);
        (left.start_height, right.start_height) = (7, 8);
        right.services = Services::NETWORK.with(Services::WITNESS);
        left.required_services = Services::NETWORK;
        let (ours, theirs) = meet(&left, &right);
        let (ours, theirs) = (ours.unwrap(), theirs.unwrap());
        assert_eq!([ours.peer.transport, theirs.peer.transport], [transport; 2]);
        assert_eq!([ours.peer.version.start_height, theirs.peer.version.start_height], [8, 7]);
        assert_eq!(ours.peer.version.nonce, right.our_nonce);
        assert_eq!(ours.peer.version.user_agent, right.user_agent);
        assert_eq!(ours.peer.address.services, right.services);
        assert!(!ours.peer.version.relay);
        assert!(ours.peer.wants_addrv2 && theirs.peer.wants_addrv2);
    }
}

/// Messages of all sizes, concentrated around buffer boundaries.
fn traffic(rng: &mut Rng) -> Vec<Message> {
    let mut messages = vec![Message::GetAddr, Message::Ping(3), Message::SendHeaders];
    let sizes = [0, 1, 70_000, 65_500, 65_536, 262_144, 300_000, 1_048_576, PAYLOAD_BYTES_MAX];
    for size in sizes {
        messages.push(Message::Block(rng.bytes(size)));
        messages.push(Message::Pong(size as u64));
    }
    messages.extend((0..500).map(Message::Ping));
    let header = |_| *rng.bytes(80).first_chunk().unwrap();
    messages.push(Message::Headers((0..2_000).map(header).collect()));
    messages.extend((0..300).map(|size| Message::Block(vec![9; size * 37])));
    messages
}

fn messages_cross(transport: TransportChoice) {
    let (mut left, mut right) = pair(transport, TransportChoice::Auto);
    let messages = traffic(&mut Rng::new(1));
    let before = right.reader.bytes_received();
    let watched = right.reader.bytes_received_counter();
    thread::scope(|scope| {
        // In both directions at once.
        scope.spawn(|| messages.iter().for_each(|message| left.writer.write(message).unwrap()));
        scope.spawn(|| messages.iter().for_each(|message| right.writer.write(message).unwrap()));
        scope.spawn(|| {
            for message in &messages {
                assert!(next(&mut left.reader).unwrap() == *message);
            }
        });
        for message in &messages {
            assert!(next(&mut right.reader).unwrap() == *message);
        }
    });
    let payloads = messages.iter().map(|message| crate::message::encode(message, true).1.len());
    let bytes = right.reader.bytes_received() - before;
    assert!(bytes > payloads.sum::<usize>() as u64);
    assert_eq!(watched.load(Ordering::Relaxed), right.reader.bytes_received());
}

#[test]
fn messages_cross_in_plaintext() {
    messages_cross(TransportChoice::V1);
}

#[test]
fn messages_cross_encrypted() {
    messages_cross(TransportChoice::V2);
}

#[test]
fn a_block_is_written_without_a_copy() {
    for choice in [TransportChoice::V1, TransportChoice::V2] {
        let (mut left, mut right) = pair(choice, choice);
        let block = Rng::new(2).bytes(100_000);
        left.writer.write_block(&block).unwrap();
        assert_eq!(next(&mut right.reader).unwrap(), Message::Block(block));
    }
}

#[test]
fn a_message_larger_than_the_protocol_allows_is_not_sent() {
    for choice in [TransportChoice::V1, TransportChoice::V2] {
        let (mut left, mut right) = pair(choice, choice);
        let error = left.writer.write_block(&vec![0; PAYLOAD_BYTES_MAX + 1]).unwrap_err();
        assert!(matches!(error, PeerError::Io(_)), "{error}");
        assert!(matches!(next(&mut right.reader), Err(PeerError::Closed)));
    }
}

#[test]
fn addresses_are_sent_in_the_form_that_the_peer_wants() {
    let tor = NodeAddress { host: crate::addresses::Host::TorV3([5; 32]), ..local(1) };
    let message = Message::Addresses(vec![tor]);
    let (mut left, mut right) = pair(TransportChoice::Auto, TransportChoice::Auto);
    left.writer.write(&message).unwrap();
    assert_eq!(next(&mut right.reader).unwrap(), message);

    let (listener, address) = listener();
    let raw = thread::spawn(move || {
        let mut raw = RawPeer::accept(&listener);
        raw.shake_as_responder();
        raw.next()
    });
    let mut left = connect(&address, &dial(TransportChoice::V1)).unwrap();
    assert!(!left.peer.wants_addrv2);
    left.writer.write(&message).unwrap();
    assert_eq!(raw.join().unwrap(), Message::Addresses(vec![]));
}

#[test]
fn a_peer_that_hangs_up_on_encryption_is_retried_in_plaintext() {
    for patient in [false, true] {
        let (listener, address) = listener();
        let right = dial(TransportChoice::Auto);
        let accepted = thread::spawn(move || {
            let mut first = RawPeer::accept(&listener);
            if patient {
                // Unread data makes the close a reset; otherwise it is an orderly end.
                first.read_bytes(24);
            }
            drop(first);
            accept(listener.accept().unwrap().0, &right)
        });
        let connection = connect(&address, &dial(TransportChoice::Auto)).unwrap();
        assert_eq!(connection.peer.transport, Transport::V1);
        assert_eq!(accepted.join().unwrap().unwrap().peer.transport, Transport::V1);
    }
}

#[test]
fn a_dialler_that_requires_encryption_refuses_plaintext() {
    let (listener, address) = listener();
    let closing = thread::spawn(move || drop(listener.accept().unwrap()));
    let error = connect(&address, &dial(TransportChoice::V2)).unwrap_err();
    assert!(matches!(error, PeerError::ClosedDuringV2Handshake), "{error}");
    assert_eq!(error.kind(), PeerFault::Unreachable);
    closing.join().unwrap();

    let (left, right) = meet(&dial(TransportChoice::V1), &dial(TransportChoice::V2));
    assert!(matches!(left, Err(PeerError::Closed)));
    assert!(matches!(right, Err(PeerError::Handshake { .. })));
}

#[test]
fn a_missing_peer_is_reported_at_once() {
    let (listener, address) = listener();
    drop(listener);
    let error = connect(&address, &dial(TransportChoice::Auto)).unwrap_err();
    assert!(matches!(error, PeerError::Connect { .. }), "{error}");
    assert_eq!(error.kind(), PeerFault::Unreachable);
}

#[test]
fn a_closer_ends_a_waiting_reader() {
    for choice in [TransportChoice::V1, TransportChoice::V2] {
        let (left, mut right) = pair(choice, choice);
        let closer = right.closer();
        right.reader.set_tick(PATIENCE).unwrap();
        let start = Instant::now();
        thread::scope(|scope| {
            let reading = scope.spawn(|| right.reader.read());
            thread::sleep(Duration::from_millis(50));
            closer.close();
            closer.clone().close();
            assert!(matches!(reading.join().unwrap(), Err(PeerError::Closed)));
        });
        assert!(start.elapsed() < PATIENCE);
        assert!(matches!(right.writer.write(&Message::GetAddr), Err(PeerError::Closed)));
        drop(left);
    }
}

#[test]
fn a_reader_returns_after_its_tick() {
    let (_left, mut right) = pair(TransportChoice::Auto, TransportChoice::Auto);
    right.reader.set_tick(Duration::from_millis(20)).unwrap();
    let start = Instant::now();
    assert_eq!(right.reader.read().unwrap(), None);
    assert!((Duration::from_millis(15)..PATIENCE).contains(&start.elapsed()));
    right.reader.set_tick(Duration::ZERO).unwrap();
    assert_eq!(right.reader.read().unwrap(), None);
}

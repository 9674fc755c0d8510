//! Peers with unusual handshakes.

use super::raw::version;
use super::*;
use crate::message::VersionMessage;

/// The result of connecting to a peer that answers our `version` with these messages.
fn answered(dial: &Dial, answers: Vec<Message>) -> ConnectResult {
    let (listener, address) = listener();
    thread::scope(|scope| {
        scope.spawn(move || {
            let mut raw = RawPeer::accept(&listener);
            answers.iter().for_each(|answer| raw.send(answer));
            raw.is_closed();
        });
        let made = connect(&address, dial);
        // Closing lets the other thread end.
        if let Ok(made) = &made {
            made.closer().close();
        }
        made
    })
}

fn v1() -> Dial {
    dial(TransportChoice::V1)
}

fn says(version: VersionMessage) -> Message {
    Message::Version(version)
}

#[test]
fn unexpected_messages_are_ignored() {
    let ping = || Message::Ping(1);
    let other = VersionMessage { start_height: 99, ..version() };
    let made = answered(
        &v1(),
        vec![
            ping(),
            Message::Verack,
            Message::SendAddrV2,
            says(version()),
            Message::WtxidRelay,
            says(other),
            Message::Block(vec![1; 1_000]),
            Message::Verack,
        ],
    );
    let peer = made.unwrap().peer;
    // The first `version` counts, and `sendaddrv2` only after it.
    assert_eq!(peer.version, version());
    assert!(!peer.wants_addrv2);
    let made = answered(&v1(), vec![says(version()), Message::SendAddrV2, Message::Verack]);
    assert!(made.unwrap().peer.wants_addrv2);
}

#[test]
fn too_many_unexpected_messages_end_the_connection() {
    let flood = |count| {
        let mut messages = vec![Message::Ping(1); count];
        messages.extend([says(version()), Message::Verack]);
        messages
    };
    assert!(answered(&v1(), flood(100)).is_ok());
    let error = answered(&v1(), flood(101)).unwrap_err();
    assert!(matches!(error, PeerError::Handshake { .. }), "{error}");
}

#[test]
fn an_incomplete_handshake_fails() {
    let hasty = hasty(TransportChoice::V1);
    for answers in [
        vec![],
        vec![Message::Verack],
        vec![says(version())],
        vec![Message::Verack, says(version())],
        vec![says(version()), says(version())],
    ] {
        let error = answered(&hasty, answers).unwrap_err();
        assert!(matches!(error, PeerError::Timeout { .. }), "{error}");
    }
}

#[test]
fn peers_older_than_core_accepts_are_refused() {
    let with = |protocol| {
        answered(&v1(), vec![says(VersionMessage { protocol, ..version() }), Message::Verack])
    };
    assert!(with(31_800).is_ok());
    assert!(with(70_017).is_ok());
    for protocol in [0, 31_799, u32::MAX] {
        let error = with(protocol).unwrap_err();
        assert!(matches!(error, PeerError::Handshake { .. }), "{error}");
        assert_eq!(error.kind(), PeerFault::Misbehaved);
    }
}

#[test]
fn a_connection_to_ourselves_is_refused() {
    let ourselves = dial(TransportChoice::Auto);
    let (left, right) = meet(&ourselves, &ourselves);
    let error = right.unwrap_err();
    assert!(matches!(error, PeerError::ConnectedToSelf), "{error}");
    assert_eq!(error.kind(), PeerFault::Unreachable);
    assert!(left.is_err());
    let mirror = VersionMessage { nonce: ourselves.our_nonce, ..version() };
    let plain = Dial { transport: TransportChoice::V1, ..ourselves };
    assert!(matches!(answered(&plain, vec![says(mirror)]), Err(PeerError::ConnectedToSelf)));
}

#[test]
fn a_peer_that_lacks_required_services_is_useless() {
    let full = Services::NETWORK.with(Services::WITNESS);
    let with = |services, required_services| {
        let dial = Dial { required_services, ..v1() };
        answered(&dial, vec![says(VersionMessage { services, ..version() }), Message::Verack])
    };
    assert!(with(full, full).is_ok());
    assert!(with(full.with(Services::P2P_V2), full).is_ok());
    let error = with(Services::NETWORK.with(Services::NETWORK_LIMITED), full).unwrap_err();
    assert!(matches!(error, PeerError::MissingServices { .. }), "{error}");
    assert_eq!(error.kind(), PeerFault::Unreachable);
    // An inbound peer need not offer any services.
    let picky = Dial { required_services: full, ..v1() };
    assert!(meet(&v1(), &picky).1.is_ok());
}

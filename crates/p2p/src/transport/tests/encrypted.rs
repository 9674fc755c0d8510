//! Encrypted peers that do what our code does not: decoys, the longest garbage, damage.

use super::super::v2::LENGTH_BYTES;
use super::raw::{framed, version};
use super::*;
use bip324::{CipherSession, GarbageResult, Handshake, PacketType, VersionResult};

/// An encrypted peer built from the other crate, with none of our code.
struct Encrypted {
    raw: RawPeer,
    cipher: CipherSession,
}

impl Encrypted {
    /// Connects with this garbage and these decoys.
    fn connect(mut raw: RawPeer, garbage: &[u8], decoys: &[&[u8]]) -> Self {
        let mut out = vec![0; Handshake::send_key_len(Some(garbage))];
        let handshake = Handshake::new(NETWORK.magic(), bip324::Role::Initiator).unwrap();
        let handshake = handshake.send_key(Some(garbage), &mut out).unwrap();
        raw.send_bytes(&out);
        let key = raw.read_bytes(64);
        let handshake = handshake.receive_key(*key.first_chunk().unwrap()).unwrap();
        let mut out = vec![0; Handshake::send_version_len(Some(decoys))];
        let mut handshake = handshake.send_version(&mut out, Some(decoys)).unwrap();
        raw.send_bytes(&out);
        let mut seen = raw.read_bytes(16);
        let mut handshake = loop {
            match handshake.receive_garbage(&seen).unwrap() {
                GarbageResult::FoundGarbage { handshake, .. } => break handshake,
                GarbageResult::NeedMoreData(same) => handshake = same,
            }
            seen.extend(raw.read_bytes(1));
        };
        let length = raw.read_bytes(LENGTH_BYTES);
        let length = handshake.decrypt_packet_len(*length.first_chunk().unwrap()).unwrap();
        let mut packet = raw.read_bytes(length);
        let VersionResult::Complete { cipher } = handshake.receive_version(&mut packet).unwrap()
        else {
            panic!("ours sends no decoys")
        };
        Self { raw, cipher }
    }

    fn packet(&mut self, contents: &[u8], kind: PacketType) -> Vec<u8> {
        self.cipher.outbound().encrypt_to_vec(contents, kind, None)
    }

    fn send(&mut self, contents: &[u8], kind: PacketType) {
        let packet = self.packet(contents, kind);
        self.raw.send_bytes(&packet);
    }

    /// Sends a message under its long name.
    fn send_message(&mut self, message: &Message) {
        let bytes = framed(message);
        let contents = [&[0], &bytes[4..16], &bytes[24..]].concat();
        self.send(&contents, PacketType::Genuine);
    }

    fn shake(&mut self) {
        self.send_message(&Message::Version(version()));
        self.send_message(&Message::Verack);
    }
}

/// A connection to an encrypted peer that then performs an action, and its next message.
fn after_handshake(
    act: impl FnOnce(&mut Encrypted) + Send + 'static,
) -> Result<Message, PeerError> {
    let (listener, address) = listener();
    let peer = thread::spawn(move || {
        let mut peer = Encrypted::connect(RawPeer::connect(&address), b"", &[]);
        peer.shake();
        act(&mut peer);
        peer
    });
    let accepted = accept(listener.accept().unwrap().0, &dial(TransportChoice::Auto));
    let message = next(&mut accepted.unwrap().reader);
    drop(peer.join().unwrap());
    message
}

#[test]
fn garbage_and_decoys_are_skipped() {
    let large = vec![1; 100_000];
    for (garbage, decoys) in [
        (vec![], vec![]),
        (vec![7; 4_095], vec![]),
        (vec![7; 5], vec![&b""[..], b"decoy", &large]),
        (vec![7; 4_095], vec![&large[..]; 3]),
    ] {
        let (made, _peer) = accepting(&dial(TransportChoice::V2), |raw| {
            let mut peer = Encrypted::connect(raw, &garbage, &decoys);
            peer.send(b"before all else", PacketType::Decoy);
            peer.shake();
            peer.raw.0.shutdown(Shutdown::Write).unwrap();
            // Drop it later: a close with unread data would destroy what it sent.
            peer
        });
        let mut connection = made.unwrap();
        assert_eq!(connection.peer.version, version());
        assert!(matches!(next(&mut connection.reader), Err(PeerError::Closed)));
    }
}

#[test]
fn decoys_between_messages_are_skipped() {
    let message = after_handshake(|peer| {
        for size in [0, 1, 5_000, 500_000] {
            peer.send(&vec![3; size], PacketType::Decoy);
        }
        peer.send_message(&Message::Ping(6));
    });
    assert_eq!(message.unwrap(), Message::Ping(6));
}

#[test]
fn unassigned_ids_are_ignored() {
    for number in [37, 200] {
        let message = after_handshake(move |peer| peer.send(&[number, 1, 2], PacketType::Genuine));
        assert!(matches!(message.unwrap(), Message::Other { name, .. } if name.is_empty()));
    }
}

#[test]
fn damage_ends_the_connection() {
    for place in [0, 3, 4, 12, 20] {
        let error = after_handshake(move |peer| {
            let mut packet = peer.packet(&[18, 1, 2, 3, 4, 5, 6, 7, 8], PacketType::Genuine);
            packet[place] ^= 1;
            // An altered length makes a longer packet.
            packet.resize(1_000, 0);
            peer.raw.send_bytes(&packet);
        });
        let error = error.unwrap_err();
        assert!(
            matches!(error, PeerError::Protocol { .. } | PeerError::Closed),
            "place {place}: {error}"
        );
    }
}

#[test]
fn oversized_and_truncated_packets_are_refused() {
    let whole = after_handshake(|peer| {
        let contents = [&b"\0block\0\0\0\0\0\0\0"[..], &vec![5; PAYLOAD_BYTES_MAX]].concat();
        peer.send(&contents, PacketType::Genuine);
    });
    assert!(matches!(whole, Ok(Message::Block(block)) if block.len() == PAYLOAD_BYTES_MAX));
    for kind in [PacketType::Genuine, PacketType::Decoy] {
        let error = after_handshake(move |peer| {
            peer.send(&vec![0; 1 + 12 + PAYLOAD_BYTES_MAX + 1], kind);
        });
        let error = error.unwrap_err();
        assert!(error.to_string().contains("4000030"), "{error}");
    }
    for contents in [&b""[..], b"\0block"] {
        let error = after_handshake(|peer| peer.send(contents, PacketType::Genuine)).unwrap_err();
        assert!(matches!(error, PeerError::Protocol { .. }), "{error}");
    }
}

#[test]
fn garbage_is_limited() {
    let (made, _) = accepting(&dial(TransportChoice::V2), |mut raw| {
        raw.send_bytes(&vec![7; 64 + 4_095 + 16]);
        raw.is_closed();
    });
    let error = made.unwrap_err();
    assert!(matches!(error, PeerError::Protocol { .. }), "{error}");
}

#[test]
fn peers_of_different_networks_fail_the_handshake() {
    // Its keys derive from the magic, so neither side finds the end of the other's garbage. The timeout is
    // long enough for the keys to arrive on any machine before either side gives up.
    let patient = Dial { handshake_timeout: Duration::from_secs(10), ..dial(TransportChoice::V2) };
    let other = Dial { network: Network::Signet, ..patient.clone() };
    let (left, right) = meet(&other, &patient);
    // A side whose peer happens to send almost the most garbage allowed need not wait: it sees that there is
    // no terminator.
    let texts = ["use another chain", "bytes of garbage without a terminator"];
    let is_reported = |error: PeerError| texts.iter().any(|text| error.to_string().contains(text));
    // The first to give up closes the connection.
    assert!([left.err(), right.err()].map(|error| error.is_some_and(is_reported)).contains(&true));
}

//! [`RawPeer`]: a plaintext peer that sends whatever a test wants.

use super::super::stream::{self, HEADER_BYTES, V1Reader};
use super::{NETWORK, PATIENCE};
use crate::addresses::{Host, NodeAddress};
use crate::message::{Message, Services, VersionMessage, decode, encode};
use crate::transport::socket::{Deadline, is_timeout};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};

/// An address on this machine.
pub(super) fn local(port: u16) -> NodeAddress {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port)).into()
}

/// A listener, and its address.
pub(super) fn listener() -> (TcpListener, NodeAddress) {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap().into();
    (listener, address)
}

/// A plain `version` message.
pub(super) fn version() -> VersionMessage {
    VersionMessage {
        protocol: 70_015,
        services: Services(0),
        time: 0,
        nonce: 1,
        user_agent: "/raw/".to_owned(),
        start_height: 3,
        relay: true,
    }
}

/// A message in the plaintext transport.
pub(super) fn framed(message: &Message) -> Vec<u8> {
    let (command, payload) = encode(message, true);
    [&stream::header(NETWORK, command, &payload), &payload[..]].concat()
}

pub(super) struct RawPeer(pub(super) TcpStream);

impl RawPeer {
    fn new(stream: TcpStream) -> Self {
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        stream.set_nodelay(true).unwrap();
        Self(stream)
    }

    pub(super) fn connect(address: &NodeAddress) -> Self {
        let Host::Ip(ip) = address.host else { panic!("{address:?}") };
        Self::new(TcpStream::connect((ip, address.port)).unwrap())
    }

    pub(super) fn accept(listener: &TcpListener) -> Self {
        Self::new(listener.accept().unwrap().0)
    }

    pub(super) fn send_bytes(&mut self, bytes: &[u8]) {
        // A peer that has seen enough closes; the test must detect that.
        let _ = self.0.write_all(bytes);
    }

    pub(super) fn send(&mut self, message: &Message) {
        self.send_bytes(&framed(message));
    }

    pub(super) fn read_bytes(&mut self, count: usize) -> Vec<u8> {
        let mut bytes = vec![0; count];
        self.0.read_exact(&mut bytes).unwrap();
        bytes
    }

    /// The next message.
    pub(super) fn next(&mut self) -> Message {
        let mut reader = V1Reader::new(NETWORK);
        let header = self.read_bytes(HEADER_BYTES);
        let len = reader.header(header.first_chunk().unwrap()).unwrap();
        let (command, payload) = reader.payload(self.read_bytes(len)).unwrap();
        decode(command, payload).unwrap()
    }

    /// Performs the handshake as the side that was dialled.
    pub(super) fn shake_as_responder(&mut self) {
        assert!(matches!(self.next(), Message::Version(_)));
        self.send(&Message::Version(version()));
        self.send(&Message::Verack);
        assert_eq!(self.next(), Message::Verack);
    }

    /// Returns true if the other side disconnected.
    pub(super) fn is_closed(&mut self) -> bool {
        let deadline = Deadline::new(PATIENCE, "closing");
        while deadline.remaining().is_ok() {
            match self.0.read(&mut [0; 4096]) {
                Ok(0) => return true,
                Ok(_) => {}
                Err(error) => return !is_timeout(&error),
            }
        }
        false
    }
}

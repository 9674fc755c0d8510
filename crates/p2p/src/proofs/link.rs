//! [`Link`]: a connection to one of the peers.

use super::ProofPeerError;
use crate::addresses::NodeAddress;
use crate::message::Message;
use crate::peer_error::PeerError;
use crate::transport::{Connection, Dial, connect};

/// See the module.
#[derive(Debug)]
pub(super) struct Link {
    peer: usize,
    name: String,
    connection: Connection,
    /// Pings so far. Their numbers are those of this connection, so that a late pong is no other one's.
    pings: u64,
    /// Bytes that had come when the last message was whole.
    at_message: u64,
}

impl Link {
    /// Connects to a peer, which has a place among the others.
    pub(super) fn open(
        peer: usize,
        address: &NodeAddress,
        dial: &Dial,
    ) -> Result<Self, ProofPeerError> {
        let name = address.to_string();
        let connection = match connect(address, dial) {
            Ok(connection) => connection,
            Err(error) => return Err(ProofPeerError::of(name, error)),
        };
        Ok(Self { peer, name, connection, pings: 0, at_message: 0 })
    }

    /// Its place.
    pub(super) const fn peer(&self) -> usize {
        self.peer
    }

    /// Its address.
    pub(super) fn name(&self) -> &str {
        &self.name
    }

    /// All bytes that came, those of an unfinished message among them.
    pub(super) fn received(&self) -> u64 {
        self.connection.reader.bytes_received()
    }

    pub(super) fn send(&mut self, message: &Message) -> Result<(), PeerError> {
        self.connection.writer.write(message)
    }

    /// Sends a ping, and tells its number.
    pub(super) fn ping(&mut self) -> Result<u64, PeerError> {
        self.pings += 1;
        self.send(&Message::Ping(self.pings))?;
        Ok(self.pings)
    }

    /// The next message, and how many bytes came for it; none if it is not all here after a moment.
    pub(super) fn receive(&mut self) -> Result<Option<(Message, u64)>, PeerError> {
        let Some(message) = self.connection.reader.read()? else { return Ok(None) };
        let bytes = self.received() - self.at_message;
        self.at_message += bytes;
        Ok(Some((message, bytes)))
    }
}

//! [`MessageWriter`]: messages to a peer, in either transport.

use super::v1;
use super::v2::V2Writer;
use crate::deadline::{Deadline, send};
use crate::message::{Command, Message, PAYLOAD_BYTES_MAX, encode};
use crate::peer_error::PeerError;
use apus_chain::Network;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::time::Duration;

/// How long a message may take to write, unless told otherwise.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// How messages become bytes.
pub(crate) enum Encoder {
    V1(Network),
    V2(Box<V2Writer>),
}

/// The sending half of a connection.
///
/// Whatever fails closes the connection: half a message cannot be taken back.
pub struct MessageWriter {
    stream: Arc<TcpStream>,
    encoder: Encoder,
    /// Whether the peer reads `addrv2`.
    addrv2: bool,
    timeout: Duration,
}

impl MessageWriter {
    pub(crate) const fn new(stream: Arc<TcpStream>, encoder: Encoder) -> Self {
        Self { stream, encoder, addrv2: false, timeout: WRITE_TIMEOUT }
    }

    /// Sets how long a message may take until the peer's side took all of it (20 s if not set).
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Goes over from the handshake's limit to that of single messages.
    pub(crate) const fn after_handshake(&mut self, addrv2: bool) {
        self.addrv2 = addrv2;
        self.timeout = WRITE_TIMEOUT;
    }

    /// Writes a message.
    ///
    /// # Errors
    /// When the connection is over, the peer does not read in time, or the message is larger than
    /// the protocol allows.
    pub fn write(&mut self, message: &Message) -> Result<(), PeerError> {
        let (command, payload) = encode(message, self.addrv2);
        self.write_payload(command, &payload)
    }

    /// Writes a block that the caller keeps.
    ///
    /// # Errors
    /// As [`MessageWriter::write`].
    pub fn write_block(&mut self, block: &[u8]) -> Result<(), PeerError> {
        self.write_payload(Command::new("block"), block)
    }

    fn write_payload(&mut self, command: Command, payload: &[u8]) -> Result<(), PeerError> {
        let result = self.try_write(command, payload);
        if result.is_err() {
            // An error means that it is closed already.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        result
    }

    fn try_write(&mut self, command: Command, payload: &[u8]) -> Result<(), PeerError> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            let what = format!("`{command}` of {} bytes is no message", payload.len());
            return Err(PeerError::Io(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let deadline = Deadline::new(self.timeout, "the peer's taking a message");
        match &mut self.encoder {
            Encoder::V1(network) => {
                let header = v1::header(*network, command, payload);
                let mut parts = [IoSlice::new(&header), IoSlice::new(payload)];
                send(&self.stream, &mut parts, &deadline)
            }
            Encoder::V2(encoder) => {
                let packet = encoder.packet(command, payload)?;
                send(&self.stream, &mut [IoSlice::new(packet)], &deadline)?;
                encoder.sent();
                Ok(())
            }
        }
    }
}

impl fmt::Debug for MessageWriter {
    /// Without keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageWriter")
            .field("addrv2", &self.addrv2)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

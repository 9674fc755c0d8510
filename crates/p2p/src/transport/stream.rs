//! [`MessageReader`] and [`MessageWriter`]: messages over a connection, in either transport.
//!
//! The plaintext transport is here, the encrypted one in [`v2`](super::v2). In plaintext, a header of 24
//! bytes precedes each payload: network magic (4), command (12), payload length (4), and the first four bytes
//! of the payload's SHA256d (4) (Core `protocol.h`, `CMessageHeader`). A foreign header, an oversized
//! payload, or a wrong checksum (except of a block) ends the connection; on a wrong checksum Core only drops
//! the message.
//!
//! Large messages reuse memory ([`Buffers`]). Otherwise the system would zero new memory page by page for
//! every block and take it back soon afterwards. With hundreds of blocks of several megabytes a second, that
//! took a tenth of all time.

use super::error::PeerError;
use super::socket::{Body, Buffers, Deadline, ReceiveBuffer, send};
use super::v2::{LENGTH_BYTES, V2Reader, V2Writer};
use crate::message::{COMMAND_BYTES, CommandName, Message, PAYLOAD_BYTES_MAX, decode, encode};
use apus_chain::Network;
use apus_hash::sha256d;
use std::fmt;
use std::io::{self, IoSlice};
use std::net::{Shutdown, TcpStream};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// How long [`MessageReader::read`] waits by default.
pub(crate) const TICK: Duration = Duration::from_millis(200);

/// The decoder of the transport in use.
pub(crate) enum Decoder {
    V1(V1Reader),
    V2(Box<V2Reader>),
}

/// The receiving half of a connection.
///
/// Never waits long: receiving a message may take many calls of [`MessageReader::read`].
pub struct MessageReader {
    incoming: ReceiveBuffer,
    decoder: Decoder,
    /// The message being received, once its length is known.
    body: Option<Body>,
    tick: Duration,
    /// Bytes received when the last message, or decoy, was complete.
    whole: Arc<AtomicU64>,
    /// True once an error was returned: the following bytes cannot be trusted.
    over: bool,
}

impl MessageReader {
    pub(crate) fn new(incoming: ReceiveBuffer, decoder: Decoder, tick: Duration) -> Self {
        Self { incoming, decoder, body: None, tick, whole: Arc::default(), over: false }
    }

    /// Sets how long [`MessageReader::read`] waits, from a millisecond to a day.
    ///
    /// # Errors
    /// If the system refuses.
    pub fn set_tick(&mut self, tick: Duration) -> Result<(), PeerError> {
        self.tick = tick;
        self.incoming.set_tick(tick)
    }

    /// Sets the source of memory for blocks, to which dropped [`BlockBuffer`](super::BlockBuffer)s return
    /// theirs.
    pub fn use_buffers(&mut self, buffers: &Arc<Buffers>) {
        self.incoming.use_buffers(buffers);
    }

    /// Total bytes received, including the bytes of an unfinished message.
    #[must_use]
    pub fn bytes_received(&self) -> u64 {
        self.incoming.received().load(Ordering::Relaxed)
    }

    /// The counter behind [`MessageReader::bytes_received`], for other threads to watch.
    #[must_use]
    pub fn bytes_received_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(self.incoming.received())
    }

    /// How many bytes were received when the last message, or decoy, was complete; for other threads to watch.
    #[must_use]
    pub fn whole_counter(&self) -> Arc<AtomicU64> {
        Arc::clone(&self.whole)
    }

    /// Reads the next message. Returns `None` if it is not complete within the tick (200 ms by default); the
    /// next call continues with it.
    ///
    /// # Errors
    /// If the connection is over or the peer broke the protocol. Nothing can be read after that.
    pub fn read(&mut self) -> Result<Option<Message>, PeerError> {
        if self.over {
            return Err(PeerError::Closed);
        }
        let result = self.read_for_a_tick();
        self.over = result.is_err();
        result
    }

    fn read_for_a_tick(&mut self) -> Result<Option<Message>, PeerError> {
        let start = Instant::now();
        let mut late = false;
        loop {
            if let Some((command, payload)) = self.take_message()? {
                return Ok(Some(decode(command, payload)?));
            }
            if late {
                return Ok(None);
            }
            let more = match &mut self.body {
                Some(body) => body.wait(&mut self.incoming)?,
                None => self.incoming.wait()?,
            };
            // A peer that sends a byte now and then must not block us here.
            late = !more || start.elapsed() >= self.tick;
        }
    }

    /// Takes the next message if it is complete.
    fn take_message(&mut self) -> Result<Option<(CommandName, Vec<u8>)>, PeerError> {
        loop {
            if self.body.is_none() {
                let Some(length) = self.take_length()? else { return Ok(None) };
                self.body = Some(Body::new(length));
            }
            let Some(mut body) = self.body.take() else { return Ok(None) };
            if !body.take_from(&mut self.incoming) {
                self.body = Some(body);
                return Ok(None);
            }
            let message = match &mut self.decoder {
                Decoder::V1(decoder) => Some(decoder.payload(body.into_bytes())?),
                Decoder::V2(decoder) => decoder.packet(body.into_bytes())?,
            };
            self.whole.store(self.bytes_received(), Ordering::Relaxed);
            if message.is_some() {
                return Ok(message);
            }
        }
    }

    /// Takes the bytes before a payload, if available. Returns the payload's length.
    fn take_length(&mut self) -> Result<Option<usize>, PeerError> {
        match &mut self.decoder {
            Decoder::V1(decoder) => self
                .incoming
                .take::<HEADER_BYTES>()
                .map(|header| decoder.header(&header))
                .transpose(),
            Decoder::V2(decoder) => self
                .incoming
                .take::<LENGTH_BYTES>()
                .map(|length| decoder.length(length))
                .transpose(),
        }
    }
}

impl fmt::Debug for MessageReader {
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageReader")
            .field("bytes_received", &self.bytes_received())
            .finish_non_exhaustive()
    }
}

/// Default time limit for writing a message.
const WRITE_TIMEOUT: Duration = Duration::from_secs(20);

/// The encoder of the transport in use.
pub(crate) enum Encoder {
    V1(Network),
    V2(Box<V2Writer>),
}

/// The sending half of a connection.
///
/// Any failure closes the connection, because half a message cannot be taken back.
pub struct MessageWriter {
    stream: Arc<TcpStream>,
    encoder: Encoder,
    /// True if the peer understands `addrv2`.
    addrv2: bool,
    timeout: Duration,
}

impl MessageWriter {
    pub(crate) const fn new(stream: Arc<TcpStream>, encoder: Encoder) -> Self {
        Self { stream, encoder, addrv2: false, timeout: WRITE_TIMEOUT }
    }

    /// Sets how long a message may take until the peer's side has accepted all of it (20 s by default).
    pub const fn set_timeout(&mut self, timeout: Duration) {
        self.timeout = timeout;
    }

    /// Switches from the handshake's time limit to that of single messages.
    pub(crate) const fn after_handshake(&mut self, addrv2: bool) {
        self.addrv2 = addrv2;
        self.timeout = WRITE_TIMEOUT;
    }

    /// Writes a message.
    ///
    /// # Errors
    /// If the connection is over, the peer does not read in time, or the message exceeds the protocol's
    /// limit.
    pub fn write(&mut self, message: &Message) -> Result<(), PeerError> {
        let (command, payload) = encode(message, self.addrv2);
        self.write_payload(command, &payload)
    }

    /// Writes a block from borrowed bytes.
    ///
    /// # Errors
    /// Like [`MessageWriter::write`].
    pub fn write_block(&mut self, block: &[u8]) -> Result<(), PeerError> {
        self.write_payload(CommandName::new("block"), block)
    }

    fn write_payload(&mut self, command: CommandName, payload: &[u8]) -> Result<(), PeerError> {
        let result = self.try_write(command, payload);
        if result.is_err() {
            // An error means that it is closed already.
            let _ = self.stream.shutdown(Shutdown::Both);
        }
        result
    }

    fn try_write(&mut self, command: CommandName, payload: &[u8]) -> Result<(), PeerError> {
        if payload.len() > PAYLOAD_BYTES_MAX {
            let what = format!("`{command}` of {} bytes exceeds the message limit", payload.len());
            return Err(PeerError::Io(io::Error::new(io::ErrorKind::InvalidInput, what)));
        }
        let deadline = Deadline::new(self.timeout, "sending a message to the peer");
        match &mut self.encoder {
            Encoder::V1(network) => {
                let header = header(*network, command, payload);
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
    /// Omits the keys.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MessageWriter")
            .field("addrv2", &self.addrv2)
            .field("timeout", &self.timeout)
            .finish_non_exhaustive()
    }
}

/// Length of a message header.
pub(crate) const HEADER_BYTES: usize = 24;
/// The prefix that identifies a plaintext connection: magic and the command `version`, in bytes.
pub(crate) const PREFIX_BYTES: usize = 16;

const BLOCK: CommandName = CommandName::new("block");

/// Decodes messages from headers and payloads.
#[derive(Debug)]
pub(crate) struct V1Reader {
    network: Network,
    command: CommandName,
    checksum: [u8; 4],
}

impl V1Reader {
    pub(crate) const fn new(network: Network) -> Self {
        Self { network, command: CommandName::NONE, checksum: [0; 4] }
    }

    /// Checks a header. Returns the length of its payload.
    pub(crate) fn header(&mut self, header: &[u8; HEADER_BYTES]) -> Result<usize, PeerError> {
        let (magic, rest) = split::<4>(header);
        let (command, rest) = split::<COMMAND_BYTES>(rest);
        let (len, rest) = split::<4>(rest);
        let (checksum, _) = split::<4>(rest);
        check_magic(magic, self.network)?;
        let command = CommandName::from_bytes(command);
        let len = u32::from_le_bytes(len) as usize;
        if len > PAYLOAD_BYTES_MAX {
            let what = format!("message `{command}`");
            return Err(PeerError::TooLong { what, bytes: len, limit: PAYLOAD_BYTES_MAX });
        }
        (self.command, self.checksum) = (command, checksum);
        Ok(len)
    }

    /// Checks the payload of the last header.
    ///
    /// The checksum of a block is not checked: its header commits to every byte, and the consumer verifies
    /// that anyway. Hashing the block once more would be a seventh of all work.
    pub(crate) fn payload(&self, payload: Vec<u8>) -> Result<(CommandName, Vec<u8>), PeerError> {
        if self.command != BLOCK && checksum(&payload) != self.checksum {
            return Err(PeerError::protocol(format!(
                "message `{}` of {} bytes has a wrong checksum",
                self.command,
                payload.len()
            )));
        }
        Ok((self.command, payload))
    }
}

/// Creates the header of a message.
pub(crate) fn header(network: Network, command: CommandName, payload: &[u8]) -> [u8; HEADER_BYTES] {
    let mut header = [0; HEADER_BYTES];
    header[..4].copy_from_slice(&network.magic());
    header[4..16].copy_from_slice(&command.to_bytes());
    header[16..20].copy_from_slice(&(payload.len() as u32).to_le_bytes());
    header[20..].copy_from_slice(&checksum(payload));
    header
}

/// Returns true if these bytes start a plaintext connection (BIP-324, "V1 prefix"). A plaintext prefix of
/// another network is an error, because no key looks like that.
pub(crate) fn is_v1(first: &[u8; PREFIX_BYTES], network: Network) -> Result<bool, PeerError> {
    let (magic, command) = split::<4>(first);
    if command != CommandName::new("version").to_bytes() {
        return Ok(false);
    }
    check_magic(magic, network).map(|()| true)
}

fn check_magic(found: [u8; 4], wanted: Network) -> Result<(), PeerError> {
    if found == wanted.magic() {
        return Ok(());
    }
    Err(match Network::from_magic(found) {
        Some(found) => PeerError::WrongNetwork { found, wanted },
        None => PeerError::protocol(format!(
            "a message begins with {:08x}, not with {:08x}",
            u32::from_be_bytes(found),
            u32::from_be_bytes(wanted.magic())
        )),
    })
}

fn checksum(payload: &[u8]) -> [u8; 4] {
    split::<4>(&sha256d(payload)).0
}

/// Splits a slice into its first `N` bytes and the rest. It must be long enough.
fn split<const N: usize>(bytes: &[u8]) -> ([u8; N], &[u8]) {
    let (first, rest) = bytes.split_first_chunk().expect("a header's fields fit the header");
    (*first, rest)
}

#[cfg(test)]
mod tests;

//! The encrypted transport of BIP-324: its handshake, then packets instead of headers and payloads.
//!
//! A packet is an encrypted length (3), then encrypted contents with a leading byte of flags, then
//! the tag that proves them (16). Curve and ciphers are other crates'; what is here is the order of
//! things and their limits, which are those of the plaintext transport. A packet that cannot be
//! proved ends the connection. Decoys are read and forgotten; no time is spent to hide how this
//! program behaves, beyond garbage of random length, and keys are not wiped from memory: what is
//! said is public, and a listener on this machine hears it anyway.

mod cipher;
mod keys;

pub(crate) use cipher::LENGTH_BYTES;
pub(crate) use keys::Role;

use super::incoming::{Body, Incoming};
use super::short_ids::{self, NAME_BYTES_MAX};
use crate::deadline::{Deadline, send};
use crate::message::{Command, PAYLOAD_BYTES_MAX};
use crate::peer_error::PeerError;
use apus_chain::Network;
use cipher::{LengthCipher, PacketCipher, TAG_BYTES};
use keys::{Direction, KEY_BYTES, OurKey, Session, TERMINATOR_BYTES};
use std::io::IoSlice;
use std::net::TcpStream;

/// Bytes of flags before a packet's contents.
const FLAGS_BYTES: usize = 1;
/// Most bytes of garbage before its terminator.
const GARBAGE_BYTES_MAX: usize = 4_095;
/// The flag of a packet that means nothing.
const IGNORE: u8 = 1 << 7;
/// Greatest packet after its length, in bytes.
const PACKET_BYTES_MAX: usize = FLAGS_BYTES + NAME_BYTES_MAX + PAYLOAD_BYTES_MAX + TAG_BYTES;

/// Turns packets into messages.
pub(crate) struct V2Reader {
    lengths: LengthCipher,
    packets: PacketCipher,
}

impl V2Reader {
    /// Takes an encrypted length; returns how many bytes of packet follow.
    pub(crate) fn length(&mut self, bytes: [u8; LENGTH_BYTES]) -> Result<usize, PeerError> {
        let [low, middle, high] = self.lengths.apply(bytes);
        let length = u32::from_le_bytes([low, middle, high, 0]) as usize;
        let length = FLAGS_BYTES + length + TAG_BYTES;
        if length > PACKET_BYTES_MAX {
            let what = "a packet".to_owned();
            return Err(PeerError::TooLong { what, bytes: length, limit: PACKET_BYTES_MAX });
        }
        Ok(length)
    }

    /// Takes the packet that belongs to the last length; none if it is a decoy.
    pub(crate) fn packet(
        &mut self,
        mut packet: Vec<u8>,
    ) -> Result<Option<(Command, Vec<u8>)>, PeerError> {
        if !self.open(&[], &mut packet)? {
            return Ok(None);
        }
        let (command, name_bytes) = short_ids::read(&packet[FLAGS_BYTES..])?;
        packet.drain(..FLAGS_BYTES + name_bytes);
        Ok(Some((command, packet)))
    }

    /// Decrypts flags and contents; false if they are a decoy.
    fn open(&mut self, aad: &[u8], packet: &mut Vec<u8>) -> Result<bool, PeerError> {
        self.packets.open(aad, packet).map_err(|_| {
            PeerError::protocol("v2 transport: a packet that its tag does not prove")
        })?;
        Ok(packet.first().is_some_and(|flags| flags & IGNORE == 0))
    }
}

/// Memory that is kept from message to message, in bytes.
const SCRATCH_BYTES_MAX: usize = 256 << 10;

/// Turns messages into packets.
pub(crate) struct V2Writer {
    lengths: LengthCipher,
    packets: PacketCipher,
    packet: Vec<u8>,
}

impl V2Writer {
    /// The packet of a message.
    pub(crate) fn packet(&mut self, command: Command, payload: &[u8]) -> Result<&[u8], PeerError> {
        self.seal(&[], |contents| {
            short_ids::write(command, contents);
            contents.extend_from_slice(payload);
        })?;
        Ok(&self.packet)
    }

    /// Makes a packet of what `write` appends.
    fn seal(&mut self, aad: &[u8], write: impl FnOnce(&mut Vec<u8>)) -> Result<(), PeerError> {
        const CONTENTS: usize = LENGTH_BYTES + FLAGS_BYTES;
        self.packet.clear();
        self.packet.resize(CONTENTS, 0);
        write(&mut self.packet);
        let length = (self.packet.len() - CONTENTS) as u32;
        let [low, middle, high, _] = length.to_le_bytes();
        let length = self.lengths.apply([low, middle, high]);
        let tag = self.packets.seal(aad, &mut self.packet[LENGTH_BYTES..]);
        let tag =
            tag.map_err(|_| PeerError::protocol("v2 transport: a packet cannot be sealed"))?;
        self.packet[..LENGTH_BYTES].copy_from_slice(&length);
        self.packet.extend_from_slice(&tag);
        Ok(())
    }

    /// Gives back the memory of a large packet: many peers may ask for a block now and then.
    pub(crate) fn sent(&mut self) {
        self.packet.truncate(SCRATCH_BYTES_MAX);
        self.packet.shrink_to(SCRATCH_BYTES_MAX);
    }
}

/// Agrees on keys with the peer. The responder knows already that these are no bytes of plaintext.
pub(crate) fn handshake(
    stream: &TcpStream,
    incoming: &mut Incoming,
    network: Network,
    role: Role,
    deadline: &Deadline,
) -> Result<(V2Reader, V2Writer), PeerError> {
    let (ours, garbage) = (OurKey::random()?, random_garbage()?);
    send(stream, &mut [IoSlice::new(&ours.public()), IoSlice::new(&garbage)], deadline)?;
    let theirs = incoming.take_until::<KEY_BYTES>(deadline)?;
    let session = ours.agree(theirs, role, network);
    // Keys depend on the chain, so those of two chains go on waiting for each other.
    let deadline = &deadline.of("the encrypted handshake with a node that may be of another chain");
    let writer = send_version(&session, &garbage, stream, deadline)?;
    let reader = receive_version(&session, incoming, deadline)?;
    Ok((reader, writer))
}

/// Ends the garbage, which the first packet proves, and sends the version packet: an empty one.
fn send_version(
    session: &Session,
    garbage: &[u8],
    stream: &TcpStream,
    deadline: &Deadline,
) -> Result<V2Writer, PeerError> {
    let Direction { lengths, packets, terminator } = session.outbound().ok_or_else(no_keys)?;
    let mut writer = V2Writer { lengths, packets, packet: Vec::new() };
    writer.seal(garbage, |_| {})?;
    send(stream, &mut [IoSlice::new(&terminator), IoSlice::new(&writer.packet)], deadline)?;
    Ok(writer)
}

/// Takes the peer's garbage, and its packets up to the first that is no decoy: the version packet,
/// whose contents mean nothing yet.
fn receive_version(
    session: &Session,
    incoming: &mut Incoming,
    deadline: &Deadline,
) -> Result<V2Reader, PeerError> {
    let Direction { lengths, packets, terminator } = session.inbound().ok_or_else(no_keys)?;
    let mut garbage = take_garbage(incoming, terminator, deadline)?;
    let mut reader = V2Reader { lengths, packets };
    loop {
        let length = reader.length(incoming.take_until::<LENGTH_BYTES>(deadline)?)?;
        let mut packet = Body::new(length).read_until(incoming, deadline)?;
        if reader.open(&garbage, &mut packet)? {
            return Ok(reader);
        }
        // Proved by the first packet, whatever it was.
        garbage.clear();
    }
}

/// Takes all up to the terminator.
fn take_garbage(
    incoming: &mut Incoming,
    terminator: [u8; TERMINATOR_BYTES],
    deadline: &Deadline,
) -> Result<Vec<u8>, PeerError> {
    loop {
        let here = incoming.available();
        let here = &here[..here.len().min(GARBAGE_BYTES_MAX + TERMINATOR_BYTES)];
        if let Some(end) = here.windows(TERMINATOR_BYTES).position(|bytes| bytes == terminator) {
            let garbage = here[..end].to_vec();
            incoming.consume(end + TERMINATOR_BYTES);
            return Ok(garbage);
        }
        if here.len() == GARBAGE_BYTES_MAX + TERMINATOR_BYTES {
            return Err(PeerError::protocol(format!(
                "v2 transport: {GARBAGE_BYTES_MAX} bytes of garbage and no end"
            )));
        }
        incoming.wait_until(deadline)?;
    }
}

/// Random bytes of random length, so that no two handshakes look alike.
fn random_garbage() -> Result<Vec<u8>, PeerError> {
    let mut bytes = vec![0; 2 + GARBAGE_BYTES_MAX];
    getrandom::fill(&mut bytes).map_err(|error| PeerError::Io(std::io::Error::other(error)))?;
    let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) % (GARBAGE_BYTES_MAX + 1);
    bytes.truncate(len);
    Ok(bytes)
}

fn no_keys() -> PeerError {
    PeerError::Io(std::io::Error::other("the library of ciphers makes no keys"))
}

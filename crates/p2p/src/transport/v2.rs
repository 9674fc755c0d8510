//! The encrypted transport of BIP-324: its handshake, then packets instead of headers and payloads.
//!
//! A packet is an encrypted length (3), then encrypted contents with a leading byte of flags, then
//! the tag that proves them (16). The cipher is another crate's; what is here is the order of
//! things and their limits, which are those of the plaintext transport. A packet that cannot be
//! proved ends the connection. Decoys are read and forgotten; no time is spent to hide how this
//! program behaves, beyond garbage of random length.

use super::PeerError;
use super::incoming::{Body, Deadline, Incoming};
use super::short_ids::{self, NAME_BYTES_MAX};
use super::writer::send;
use crate::message::{Command, PAYLOAD_BYTES_MAX};
use apus_chain::Network;
use bip324::{
    GarbageResult, Handshake, InboundCipher, Initialized, OutboundCipher, PacketType, Role,
    SentVersion, VersionResult,
};
use std::io::IoSlice;
use std::net::TcpStream;

/// Bytes of an encrypted length.
pub(crate) const LENGTH_BYTES: usize = 3;
/// Bytes of a packet beside length and contents: flags and tag.
const FLAGS_BYTES: usize = 1;
const TAG_BYTES: usize = 16;
/// Bytes of a public key as it is sent.
const KEY_BYTES: usize = 64;
/// Most bytes of garbage, and the terminator after it.
const GARBAGE_BYTES_MAX: usize = 4_095;
const TERMINATOR_BYTES: usize = 16;
/// The flag of a packet that means nothing.
const IGNORE: u8 = 1 << 7;
/// Greatest packet after its length, in bytes.
const PACKET_BYTES_MAX: usize = FLAGS_BYTES + NAME_BYTES_MAX + PAYLOAD_BYTES_MAX + TAG_BYTES;

/// Turns packets into messages.
pub(crate) struct V2Reader {
    cipher: InboundCipher,
}

impl V2Reader {
    /// Takes an encrypted length; returns how many bytes of packet follow.
    pub(crate) fn length(&mut self, bytes: [u8; LENGTH_BYTES]) -> Result<usize, PeerError> {
        check_length(self.cipher.decrypt_packet_len(bytes))
    }

    /// Takes the packet that belongs to the last length; none if it is a decoy.
    pub(crate) fn packet(
        &mut self,
        mut packet: Vec<u8>,
    ) -> Result<Option<(Command, Vec<u8>)>, PeerError> {
        self.cipher.decrypt_in_place(&mut packet, None).map_err(broken)?;
        if packet.first().is_none_or(|flags| flags & IGNORE != 0) {
            return Ok(None);
        }
        packet.truncate(packet.len() - TAG_BYTES);
        let (command, name_bytes) = short_ids::read(&packet[FLAGS_BYTES..])?;
        packet.drain(..FLAGS_BYTES + name_bytes);
        Ok(Some((command, packet)))
    }
}

/// Memory that is kept from message to message, in bytes.
const SCRATCH_BYTES_MAX: usize = 256 << 10;

/// Turns messages into packets.
pub(crate) struct V2Writer {
    cipher: OutboundCipher,
    contents: Vec<u8>,
    packet: Vec<u8>,
}

impl V2Writer {
    /// The packet of a message.
    pub(crate) fn packet(&mut self, command: Command, payload: &[u8]) -> Result<&[u8], PeerError> {
        self.contents.clear();
        short_ids::write(command, &mut self.contents);
        self.contents.extend_from_slice(payload);
        self.packet.resize(OutboundCipher::encryption_buffer_len(self.contents.len()), 0);
        self.cipher
            .encrypt(&self.contents, &mut self.packet, PacketType::Genuine, None)
            .map_err(broken)?;
        Ok(&self.packet)
    }

    /// Gives back the memory of a large packet: many peers may ask for a block now and then.
    pub(crate) fn sent(&mut self) {
        for scratch in [&mut self.contents, &mut self.packet] {
            scratch.truncate(SCRATCH_BYTES_MAX);
            scratch.shrink_to(SCRATCH_BYTES_MAX);
        }
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
    let garbage = random_garbage()?;
    let mut out = vec![0; Handshake::<Initialized>::send_key_len(Some(&garbage))];
    let handshake = Handshake::<Initialized>::new(network.magic(), role)
        .and_then(|handshake| handshake.send_key(Some(&garbage), &mut out))
        .map_err(broken)?;
    send(stream, &mut [IoSlice::new(&out)], deadline)?;
    let key = incoming.take_until::<KEY_BYTES>(deadline)?;
    let handshake = handshake.receive_key(key).map_err(broken)?;
    let mut out = vec![0; Handshake::send_version_len(None)];
    let handshake = handshake.send_version(&mut out, None).map_err(broken)?;
    send(stream, &mut [IoSlice::new(&out)], deadline)?;
    let (inbound, outbound) = receive_version(handshake, incoming, deadline)?;
    let writer = V2Writer { cipher: outbound, contents: Vec::new(), packet: Vec::new() };
    Ok((V2Reader { cipher: inbound }, writer))
}

/// Skips the peer's garbage and its decoys up to the version packet, whose contents mean nothing
/// yet.
fn receive_version(
    mut handshake: Handshake<SentVersion>,
    incoming: &mut Incoming,
    deadline: &Deadline,
) -> Result<(InboundCipher, OutboundCipher), PeerError> {
    let mut seen = Vec::new();
    let (mut handshake, used) = loop {
        let here = incoming.available();
        let here = &here[..here.len().min(GARBAGE_BYTES_MAX + TERMINATOR_BYTES)];
        seen.clear();
        seen.extend_from_slice(here);
        match handshake.receive_garbage(&seen).map_err(broken)? {
            GarbageResult::FoundGarbage { handshake, consumed_bytes } => {
                break (handshake, consumed_bytes);
            }
            GarbageResult::NeedMoreData(same) => handshake = same,
        }
        incoming.wait_until(deadline)?;
    };
    incoming.consume(used);
    loop {
        let length = incoming.take_until::<LENGTH_BYTES>(deadline)?;
        let length = handshake.decrypt_packet_len(length).map_err(broken)?;
        let mut packet = Body::new(check_length(length)?).read_until(incoming, deadline)?;
        match handshake.receive_version(&mut packet).map_err(broken)? {
            VersionResult::Complete { cipher } => return Ok(cipher.into_split()),
            VersionResult::Decoy(same) => handshake = same,
        }
    }
}

fn check_length(length: usize) -> Result<usize, PeerError> {
    if length > PACKET_BYTES_MAX {
        return Err(PeerError::protocol(format!(
            "a packet of {length} bytes, more than {PACKET_BYTES_MAX}"
        )));
    }
    Ok(length)
}

/// Random bytes of random length, so that no two handshakes look alike.
fn random_garbage() -> Result<Vec<u8>, PeerError> {
    let mut bytes = vec![0; 2 + GARBAGE_BYTES_MAX];
    getrandom::fill(&mut bytes).map_err(|error| PeerError::Io(std::io::Error::other(error)))?;
    let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) % (GARBAGE_BYTES_MAX + 1);
    bytes.truncate(len);
    Ok(bytes)
}

fn broken(error: bip324::Error) -> PeerError {
    PeerError::protocol(format!("v2 transport: {error}"))
}

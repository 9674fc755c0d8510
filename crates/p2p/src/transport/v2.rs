//! The encrypted transport of BIP-324: its handshake, then packets in place of headers and payloads.
//!
//! A packet is an encrypted length (3 bytes), then encrypted contents that start with a flags byte, then the
//! authentication tag (16 bytes). Other crates provide the curve and the ciphers (decision 0016). This module
//! derives the keys, counts the nonces, rotates the keys, and enforces the same limits as the
//! plaintext transport. A mistake in these is never silent: no peer would understand the second packet. A
//! packet that fails authentication ends the connection. Decoys are read and discarded. Apart from garbage of
//! random length, nothing hides how this program behaves, and keys are not wiped from memory: the traffic is
//! public, and a listener on this machine can read it anyway.

use super::error::PeerError;
use super::socket::{Body, Deadline, ReceiveBuffer, send};
use crate::message::{COMMAND_BYTES, CommandName, PAYLOAD_BYTES_MAX};
use apus_chain::Network;
use chacha20::ChaCha20;
use chacha20::cipher::{KeyIvInit, StreamCipher, StreamCipherSeek};
use ring::aead;
use ring::hkdf::{HKDF_SHA256, Prk, Salt};
use secp256k1::ellswift::{ElligatorSwift, ElligatorSwiftParty};
use secp256k1::{Secp256k1, SecretKey};
use std::io::IoSlice;
use std::net::TcpStream;

/// Length of the flags before a packet's contents.
const FLAGS_BYTES: usize = 1;
/// Maximum bytes of garbage before the terminator.
const GARBAGE_BYTES_MAX: usize = 4_095;
/// Maximum bytes of garbage that this side sends. btcd, and utreexod with its code, search only this many bytes
/// for the terminator and close the connection after one more (btcd `v2transport/transport.go`,
/// `CompleteHandshake`).
const GARBAGE_BYTES_SENT_MAX: usize = GARBAGE_BYTES_MAX - 1;
/// The flag of a decoy packet.
const IGNORE: u8 = 1 << 7;
/// Largest packet without its length, in bytes.
const PACKET_BYTES_MAX: usize = FLAGS_BYTES + NAME_BYTES_MAX + PAYLOAD_BYTES_MAX + TAG_BYTES;

/// Decodes packets into messages.
pub(crate) struct V2Reader {
    lengths: LengthCipher,
    packets: PacketCipher,
}

impl V2Reader {
    /// Decrypts a length and returns how many bytes of packet follow.
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

    /// Decodes the packet of the last length. Returns `None` for a decoy.
    pub(crate) fn packet(
        &mut self,
        mut packet: Vec<u8>,
    ) -> Result<Option<(CommandName, Vec<u8>)>, PeerError> {
        if !self.open(&[], &mut packet)? {
            return Ok(None);
        }
        let (command, name_bytes) = read_name(&packet[FLAGS_BYTES..])?;
        packet.drain(..FLAGS_BYTES + name_bytes);
        Ok(Some((command, packet)))
    }

    /// Decrypts flags and contents. Returns false for a decoy.
    fn open(&mut self, aad: &[u8], packet: &mut Vec<u8>) -> Result<bool, PeerError> {
        self.packets
            .open(aad, packet)
            .map_err(|_| PeerError::protocol("v2 transport: a packet failed authentication"))?;
        Ok(packet.first().is_some_and(|flags| flags & IGNORE == 0))
    }
}

/// Maximum memory kept between messages, in bytes.
const SCRATCH_BYTES_MAX: usize = 256 << 10;

/// Encodes messages as packets.
pub(crate) struct V2Writer {
    lengths: LengthCipher,
    packets: PacketCipher,
    packet: Vec<u8>,
}

impl V2Writer {
    /// Encodes a message as a packet.
    pub(crate) fn packet(
        &mut self,
        command: CommandName,
        payload: &[u8],
    ) -> Result<&[u8], PeerError> {
        self.seal(&[], |contents| {
            write_name(command, contents);
            contents.extend_from_slice(payload);
        })?;
        Ok(&self.packet)
    }

    /// Creates a packet from the bytes that `write` appends.
    fn seal(&mut self, aad: &[u8], write: impl FnOnce(&mut Vec<u8>)) -> Result<(), PeerError> {
        const CONTENTS: usize = LENGTH_BYTES + FLAGS_BYTES;
        self.packet.clear();
        self.packet.resize(CONTENTS, 0);
        write(&mut self.packet);
        let length = (self.packet.len() - CONTENTS) as u32;
        let [low, middle, high, _] = length.to_le_bytes();
        let length = self.lengths.apply([low, middle, high]);
        let tag = self.packets.seal(aad, &mut self.packet[LENGTH_BYTES..]);
        let tag = tag.map_err(|_| PeerError::protocol("v2 transport: cannot encrypt a packet"))?;
        self.packet[..LENGTH_BYTES].copy_from_slice(&length);
        self.packet.extend_from_slice(&tag);
        Ok(())
    }

    /// Frees the memory of a large packet, because many peers may ask for a block now and then.
    pub(crate) fn sent(&mut self) {
        self.packet.truncate(SCRATCH_BYTES_MAX);
        self.packet.shrink_to(SCRATCH_BYTES_MAX);
    }
}

/// Agrees on keys with the peer. The responder has already ruled out plaintext.
pub(crate) fn handshake(
    stream: &TcpStream,
    incoming: &mut ReceiveBuffer,
    network: Network,
    role: Role,
    deadline: &Deadline,
) -> Result<(V2Reader, V2Writer), PeerError> {
    let (ours, garbage) = (OurKey::random()?, random_garbage()?);
    send(stream, &mut [IoSlice::new(&ours.public()), IoSlice::new(&garbage)], deadline)?;
    let theirs = incoming.take_until::<KEY_BYTES>(deadline)?;
    let session = ours.agree(theirs, role, network);
    // Keys depend on the chain, so peers of different chains wait for each other until the timeout.
    let deadline = &deadline.of("the encrypted handshake (with a node that may use another chain)");
    let writer = send_version(&session, &garbage, stream, deadline)?;
    let reader = receive_version(&session, incoming, deadline)?;
    Ok((reader, writer))
}

/// Ends the garbage, which the first packet authenticates, and sends the version packet, which is empty.
fn send_version(
    session: &SessionKeys,
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

/// Reads the peer's garbage, and its packets up to the first that is not a decoy: the version packet, whose
/// contents have no meaning yet.
fn receive_version(
    session: &SessionKeys,
    incoming: &mut ReceiveBuffer,
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
        // Only the first packet authenticates the garbage, even if it is a decoy.
        garbage.clear();
    }
}

/// Reads everything up to the terminator.
fn take_garbage(
    incoming: &mut ReceiveBuffer,
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
                "v2 transport: {GARBAGE_BYTES_MAX} bytes of garbage without a terminator"
            )));
        }
        incoming.wait_until(deadline)?;
    }
}

/// Random bytes of random length, so that no two handshakes look alike.
fn random_garbage() -> Result<Vec<u8>, PeerError> {
    let mut bytes = vec![0; 2 + GARBAGE_BYTES_SENT_MAX];
    getrandom::fill(&mut bytes).map_err(|error| PeerError::Io(std::io::Error::other(error)))?;
    let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) % (GARBAGE_BYTES_SENT_MAX + 1);
    bytes.truncate(len);
    Ok(bytes)
}

fn no_keys() -> PeerError {
    PeerError::Io(std::io::Error::other("cannot create encryption keys"))
}

/// Message names with a short id, which is the index here plus one.
const NAMES: [&str; 36] = [
    "addr",
    "block",
    "blocktxn",
    "cmpctblock",
    "feefilter",
    "filteradd",
    "filterclear",
    "filterload",
    "getblocks",
    "getblocktxn",
    "getdata",
    "getheaders",
    "headers",
    "inv",
    "mempool",
    "merkleblock",
    "notfound",
    "ping",
    "pong",
    "sendcmpct",
    "tx",
    "getcfilters",
    "cfilter",
    "getcfheaders",
    "cfheaders",
    "getcfcheckpt",
    "cfcheckpt",
    "addrv2",
    "uproof",
    "getuproof",
    "uttls",
    "getuttls",
    "usummary",
    "utreexotx",
    "uroot",
    "geturoot",
];

/// Longest encoded name, in bytes.
pub(crate) const NAME_BYTES_MAX: usize = 1 + COMMAND_BYTES;

/// Writes a name in its shortest form.
fn write_name(command: CommandName, out: &mut Vec<u8>) {
    match NAMES.iter().position(|&name| command == CommandName::new(name)) {
        Some(place) => out.push(place as u8 + 1),
        None => {
            out.push(0);
            out.extend(command.to_bytes());
        }
    }
}

/// The name at the start of the contents, and its encoded length in bytes. Unassigned ids are reserved for
/// the future, so their messages are ignored.
fn read_name(contents: &[u8]) -> Result<(CommandName, usize), PeerError> {
    let Some((&first, rest)) = contents.split_first() else {
        return Err(PeerError::protocol("a packet has no message name"));
    };
    if first == 0 {
        let name = rest.first_chunk::<COMMAND_BYTES>();
        let name =
            name.ok_or_else(|| PeerError::protocol("a packet ends within its message name"))?;
        return Ok((CommandName::from_bytes(*name), NAME_BYTES_MAX));
    }
    let known = NAMES.get(usize::from(first) - 1);
    Ok((known.map_or(CommandName::NONE, |name| CommandName::new(name)), 1))
}

/// Length of an encoded public key.
const KEY_BYTES: usize = 64;
/// Length of the garbage terminator.
const TERMINATOR_BYTES: usize = 16;

/// The side that initiated the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// We connected.
    Initiator,
    /// The peer did.
    Responder,
}

/// Our key for one connection.
struct OurKey {
    secret: SecretKey,
    public: ElligatorSwift,
}

impl OurKey {
    fn random() -> Result<Self, PeerError> {
        let (mut secret, mut more) = (KeyBytes::default(), KeyBytes::default());
        for bytes in [&mut secret, &mut more] {
            getrandom::fill(bytes).map_err(|error| PeerError::Io(std::io::Error::other(error)))?;
        }
        Self::new(&secret, &more)
            .ok_or_else(|| PeerError::protocol("the random bytes are not a valid key".to_owned()))
    }

    /// Creates a key from a secret. `more` selects one of the public key's many encodings.
    fn new(secret: &KeyBytes, more: &KeyBytes) -> Option<Self> {
        let secret = SecretKey::from_slice(secret).ok()?;
        // This needs a full context, although the type suggests that a verification context is enough.
        let public = ElligatorSwift::from_seckey(&Secp256k1::new(), secret, Some(*more));
        Some(Self { secret, public })
    }

    /// The encoded public key.
    fn public(&self) -> [u8; KEY_BYTES] {
        self.public.to_array()
    }

    /// Derives the keys of a session with the owner of `theirs`.
    fn agree(&self, theirs: [u8; KEY_BYTES], role: Role, network: Network) -> SessionKeys {
        let theirs = ElligatorSwift::from_array(theirs);
        let (first, second, party) = match role {
            Role::Initiator => (self.public, theirs, ElligatorSwiftParty::A),
            Role::Responder => (theirs, self.public, ElligatorSwiftParty::B),
        };
        let shared = ElligatorSwift::shared_secret(first, second, self.secret, party, None);
        let salt = [&b"bitcoin_v2_shared_secret"[..], &network.magic()].concat();
        SessionKeys { keys: Salt::new(HKDF_SHA256, &salt).extract(shared.as_secret_bytes()), role }
    }
}

/// The secret that both sides share.
struct SessionKeys {
    keys: Prk,
    role: Role,
}

/// One direction of a session.
struct Direction {
    lengths: LengthCipher,
    packets: PacketCipher,
    /// Ends the sender's garbage.
    terminator: [u8; TERMINATOR_BYTES],
}

impl SessionKeys {
    /// The keys for packets that we send. `None` only if a dependency has a bug.
    fn outbound(&self) -> Option<Direction> {
        self.of_sender(self.role)
    }

    /// The keys for packets that the peer sends.
    fn inbound(&self) -> Option<Direction> {
        self.of_sender(match self.role {
            Role::Initiator => Role::Responder,
            Role::Responder => Role::Initiator,
        })
    }

    fn of_sender(&self, sender: Role) -> Option<Direction> {
        let (lengths, packets, at) = match sender {
            Role::Initiator => (&b"initiator_L"[..], &b"initiator_P"[..], 0),
            Role::Responder => (&b"responder_L"[..], &b"responder_P"[..], TERMINATOR_BYTES),
        };
        let terminators = self.derive(b"garbage_terminators")?;
        Some(Direction {
            lengths: LengthCipher::new(self.derive(lengths)?),
            packets: PacketCipher::new(&self.derive(packets)?)?,
            terminator: terminators[at..].first_chunk().copied()?,
        })
    }

    fn derive(&self, what: &[u8]) -> Option<KeyBytes> {
        let mut key = KeyBytes::default();
        self.keys.expand(&[what], HKDF_SHA256).ok()?.fill(&mut key).ok()?;
        Some(key)
    }
}

/// A symmetric key.
type KeyBytes = [u8; 32];

/// Length of an authentication tag.
const TAG_BYTES: usize = 16;

/// Packets per key (BIP-324, `REKEY_INTERVAL`).
const REKEY_INTERVAL: u64 = 224;

/// The packet was altered, or is not the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct AuthenticationError;

/// Encrypts and authenticates packet contents (BIP-324, `FSChaCha20Poly1305`).
struct PacketCipher {
    key: aead::LessSafeKey,
    /// Packets so far.
    count: u64,
}

impl PacketCipher {
    fn new(key: &KeyBytes) -> Option<Self> {
        Some(Self { key: packet_key(key)?, count: 0 })
    }

    /// Encrypts `contents` in place. Returns the tag that authenticates them and `aad`.
    fn seal(
        &mut self,
        aad: &[u8],
        contents: &mut [u8],
    ) -> Result<[u8; TAG_BYTES], AuthenticationError> {
        let (nonce, aad) = (self.nonce((self.count % REKEY_INTERVAL) as u32), aead::Aad::from(aad));
        let tag = self
            .key
            .seal_in_place_separate_tag(nonce, aad, contents)
            .map_err(|_| AuthenticationError)?;
        self.next()?;
        tag.as_ref().try_into().map_err(|_| AuthenticationError)
    }

    /// Decrypts a packet in place, and removes the tag at its end.
    fn open(&mut self, aad: &[u8], packet: &mut Vec<u8>) -> Result<(), AuthenticationError> {
        let (nonce, aad) = (self.nonce((self.count % REKEY_INTERVAL) as u32), aead::Aad::from(aad));
        let length =
            self.key.open_in_place(nonce, aad, packet).map_err(|_| AuthenticationError)?.len();
        packet.truncate(length);
        self.next()
    }

    /// The nonce: the packet's number under this key (`u32::MAX` for rekeying), and the key's number.
    fn nonce(&self, packet: u32) -> aead::Nonce {
        let mut nonce = [0; aead::NONCE_LEN];
        nonce[..4].copy_from_slice(&packet.to_le_bytes());
        nonce[4..].copy_from_slice(&(self.count / REKEY_INTERVAL).to_le_bytes());
        aead::Nonce::assume_unique_for_key(nonce)
    }

    /// Advances the count. The next key is the encryption of zeros under the last one.
    fn next(&mut self) -> Result<(), AuthenticationError> {
        if self.count % REKEY_INTERVAL == REKEY_INTERVAL - 1 {
            let (nonce, mut key) = (self.nonce(u32::MAX), KeyBytes::default());
            let aad = aead::Aad::empty();
            // The tag is not sent.
            let sealed = self.key.seal_in_place_separate_tag(nonce, aad, &mut key);
            let _tag = sealed.map_err(|_| AuthenticationError)?;
            self.key = packet_key(&key).ok_or(AuthenticationError)?;
        }
        self.count += 1;
        Ok(())
    }
}

fn packet_key(key: &KeyBytes) -> Option<aead::LessSafeKey> {
    aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key).ok().map(aead::LessSafeKey::new)
}

/// Length of an encrypted length.
pub(crate) const LENGTH_BYTES: usize = 3;

/// Encrypts lengths (BIP-324, `FSChaCha20`). Only the following packet authenticates them.
struct LengthCipher {
    key: KeyBytes,
    /// Lengths so far.
    count: u64,
}

impl LengthCipher {
    const fn new(key: KeyBytes) -> Self {
        Self { key, count: 0 }
    }

    /// Encrypts or decrypts the next length.
    fn apply(&mut self, mut length: [u8; LENGTH_BYTES]) -> [u8; LENGTH_BYTES] {
        let mut nonce = [0; 12];
        nonce[4..].copy_from_slice(&(self.count / REKEY_INTERVAL).to_le_bytes());
        // One keystream covers all lengths under a key, and then the next key.
        let mut stream = ChaCha20::new(&self.key.into(), &nonce.into());
        stream.seek(self.count % REKEY_INTERVAL * LENGTH_BYTES as u64);
        stream.apply_keystream(&mut length);
        self.count += 1;
        if self.count.is_multiple_of(REKEY_INTERVAL) {
            let mut key = KeyBytes::default();
            stream.apply_keystream(&mut key);
            self.key = key;
        }
        length
    }
}

#[cfg(test)]
mod tests;

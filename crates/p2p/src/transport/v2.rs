//! The encrypted transport of BIP-324: its handshake, then packets instead of headers and payloads.
//!
//! A packet is an encrypted length (3), then encrypted contents with a leading byte of flags, then
//! the tag that proves them (16). Curve and ciphers are other crates' (decision 0016); what is here is
//! which key comes from which, which nonce is next, when a key ends, and the limits, which are those of
//! the plaintext transport. A mistake in those is never silent: no peer would understand the second
//! packet. A packet that cannot be proved ends the connection. Decoys are read and forgotten; no time is
//! spent to hide how this program behaves, beyond garbage of random length, and keys are not wiped from
//! memory: what is said is public, and a listener on this machine hears it anyway.

use super::error::PeerError;
use super::socket::{Body, Deadline, Incoming, send};
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

/// Bytes of flags before a packet's contents.
const FLAGS_BYTES: usize = 1;
/// Most bytes of garbage before its terminator.
const GARBAGE_BYTES_MAX: usize = 4_095;
/// Most bytes of garbage that this side sends. btcd, and utreexod with its code, look for the terminator after at most so
/// many, and close the connection after one more (btcd `v2transport/transport.go`, `CompleteHandshake`).
const GARBAGE_BYTES_SENT_MAX: usize = GARBAGE_BYTES_MAX - 1;
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
    ) -> Result<Option<(CommandName, Vec<u8>)>, PeerError> {
        if !self.open(&[], &mut packet)? {
            return Ok(None);
        }
        let (command, name_bytes) = read_name(&packet[FLAGS_BYTES..])?;
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

/// Takes the peer's garbage, and its packets up to the first that is no decoy: the version packet,
/// whose contents mean nothing yet.
fn receive_version(
    session: &SessionKeys,
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
    let mut bytes = vec![0; 2 + GARBAGE_BYTES_SENT_MAX];
    getrandom::fill(&mut bytes).map_err(|error| PeerError::Io(std::io::Error::other(error)))?;
    let len = usize::from(u16::from_le_bytes([bytes[0], bytes[1]])) % (GARBAGE_BYTES_SENT_MAX + 1);
    bytes.truncate(len);
    Ok(bytes)
}

fn no_keys() -> PeerError {
    PeerError::Io(std::io::Error::other("the library of ciphers makes no keys"))
}

/// The names with a number, which is their place in here plus one.
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

/// Most bytes of a name.
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

/// The name that contents begin with, and its length in bytes. Numbers without a name are left for
/// later times, so their messages mean nothing and do no harm.
fn read_name(contents: &[u8]) -> Result<(CommandName, usize), PeerError> {
    let Some((&first, rest)) = contents.split_first() else {
        return Err(PeerError::protocol("a packet without a message's name"));
    };
    if first == 0 {
        let name = rest.first_chunk::<COMMAND_BYTES>();
        let name = name.ok_or_else(|| PeerError::protocol("a packet ends within a name"))?;
        return Ok((CommandName::from_bytes(*name), NAME_BYTES_MAX));
    }
    let known = NAMES.get(usize::from(first) - 1);
    Ok((known.map_or(CommandName::NONE, |name| CommandName::new(name)), 1))
}

/// Bytes of a public key as it is sent.
const KEY_BYTES: usize = 64;
/// Bytes that end the garbage.
const TERMINATOR_BYTES: usize = 16;

/// Which side began.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Role {
    /// We connected.
    Initiator,
    /// They did.
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
            .ok_or_else(|| PeerError::protocol("the random bytes are no key".to_owned()))
    }

    /// Of a secret; `more` chooses among the many forms of its public key.
    fn new(secret: &KeyBytes, more: &KeyBytes) -> Option<Self> {
        let secret = SecretKey::from_slice(secret).ok()?;
        // Which needs the whole context, not one for verification as the type asks.
        let public = ElligatorSwift::from_seckey(&Secp256k1::new(), secret, Some(*more));
        Some(Self { secret, public })
    }

    /// As it is sent.
    fn public(&self) -> [u8; KEY_BYTES] {
        self.public.to_array()
    }

    /// The keys of a session with the owner of `theirs`.
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

/// What only the two sides know.
struct SessionKeys {
    keys: Prk,
    role: Role,
}

/// One direction of a session.
struct Direction {
    lengths: LengthCipher,
    packets: PacketCipher,
    /// Ends the garbage of the side that sends.
    terminator: [u8; TERMINATOR_BYTES],
}

impl SessionKeys {
    /// What we send; none only if a crate is broken.
    fn outbound(&self) -> Option<Direction> {
        self.of_sender(self.role)
    }

    /// What they send.
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

/// A key.
type KeyBytes = [u8; 32];

/// Bytes that prove the contents.
const TAG_BYTES: usize = 16;

/// Packets under one key (BIP-324, `REKEY_INTERVAL`).
const REKEY_INTERVAL: u64 = 224;

/// The packet is not what its sender encrypted, or not the next one.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Unproved;

/// Contents and their proof (BIP-324, `FSChaCha20Poly1305`).
struct PacketCipher {
    key: aead::LessSafeKey,
    /// Packets so far.
    count: u64,
}

impl PacketCipher {
    fn new(key: &KeyBytes) -> Option<Self> {
        Some(Self { key: packet_key(key)?, count: 0 })
    }

    /// Encrypts `contents` in place; returns what proves them, and `aad`, to the other side.
    fn seal(&mut self, aad: &[u8], contents: &mut [u8]) -> Result<[u8; TAG_BYTES], Unproved> {
        let (nonce, aad) = (self.nonce((self.count % REKEY_INTERVAL) as u32), aead::Aad::from(aad));
        let tag =
            self.key.seal_in_place_separate_tag(nonce, aad, contents).map_err(|_| Unproved)?;
        self.next()?;
        tag.as_ref().try_into().map_err(|_| Unproved)
    }

    /// Decrypts a packet, which ends in its tag, in place, and cuts the tag off.
    fn open(&mut self, aad: &[u8], packet: &mut Vec<u8>) -> Result<(), Unproved> {
        let (nonce, aad) = (self.nonce((self.count % REKEY_INTERVAL) as u32), aead::Aad::from(aad));
        let length = self.key.open_in_place(nonce, aad, packet).map_err(|_| Unproved)?.len();
        packet.truncate(length);
        self.next()
    }

    /// The packet's number under this key, or what no packet has, and the number of the key.
    fn nonce(&self, packet: u32) -> aead::Nonce {
        let mut nonce = [0; aead::NONCE_LEN];
        nonce[..4].copy_from_slice(&packet.to_le_bytes());
        nonce[4..].copy_from_slice(&(self.count / REKEY_INTERVAL).to_le_bytes());
        aead::Nonce::assume_unique_for_key(nonce)
    }

    /// The next key is what the last one makes of zeros.
    fn next(&mut self) -> Result<(), Unproved> {
        if self.count % REKEY_INTERVAL == REKEY_INTERVAL - 1 {
            let (nonce, mut key) = (self.nonce(u32::MAX), KeyBytes::default());
            let aad = aead::Aad::empty();
            // Its tag is not sent.
            let sealed = self.key.seal_in_place_separate_tag(nonce, aad, &mut key);
            let _tag = sealed.map_err(|_| Unproved)?;
            self.key = packet_key(&key).ok_or(Unproved)?;
        }
        self.count += 1;
        Ok(())
    }
}

fn packet_key(key: &KeyBytes) -> Option<aead::LessSafeKey> {
    aead::UnboundKey::new(&aead::CHACHA20_POLY1305, key).ok().map(aead::LessSafeKey::new)
}

/// Bytes of an encrypted length.
pub(crate) const LENGTH_BYTES: usize = 3;

/// Lengths (BIP-324, `FSChaCha20`): nothing proves them but the packet after.
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
        // One stream for all lengths under a key, and then for the next key.
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

//! Connections to peers: [`connect`] to an address, or [`accept`] one that comes.
//!
//! What comes back is a [`Connection`] on which both sides have agreed, in the encrypted transport
//! of BIP-324 or in plaintext, directly or through a proxy. Its halves may live on two threads;
//! neither waits without a limit. Which peers to connect to, and what to say then, is the caller's
//! concern.
//!
//! Both sides agree by `version` and `verack` (Core `net_processing.cpp`). Transactions and compact
//! blocks are never agreed on. All of it ends by one deadline, and after a bounded number of other
//! messages.

mod error;
mod proxy;
mod socket;
mod stream;
#[cfg(test)]
mod tests;
mod v2;

pub use error::{PeerError, PeerFault};
pub use socket::{BlockBuffer, Buffers};
pub use stream::{MessageReader, MessageWriter};

use crate::addresses::NodeAddress;
use crate::message::{Message, PROTOCOL_VERSION, Services, VersionMessage};
use apus_chain::Network;
use socket::{Deadline, Incoming};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stream::{Decoder, Encoder, TICK, V1Reader};
use v2::Role;

/// A transport that messages are sent in.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// In plaintext.
    V1,
    /// Encrypted (BIP-324).
    V2,
}

/// Which transports may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Encrypted if the peer knows that, else plaintext.
    #[default]
    Auto,
    /// Plaintext only.
    V1,
    /// Encrypted only.
    V2,
}

/// How connections are made, and what peers are told of us.
#[derive(Debug, Clone)]
pub struct Dial {
    /// The network.
    pub network: Network,
    /// What we offer.
    pub services: Services,
    /// What those must offer that we connect to.
    pub required_services: Services,
    /// Height of our best block.
    pub start_height: i32,
    /// Our name, at most 256 bytes (BIP-14).
    pub user_agent: String,
    /// A SOCKS5 proxy that connects us, also to names and to Tor services.
    pub proxy: Option<SocketAddr>,
    /// Which transports may be used.
    pub transport: TransportChoice,
    /// Limit for a name's look-up, the connection and the proxy's part together.
    pub connect_timeout: Duration,
    /// Limit for all that both sides say before the connection can be used.
    pub handshake_timeout: Duration,
    /// A random number of this run, to know ourselves by.
    pub our_nonce: u64,
}

impl Dial {
    /// As Core does it: 5 s to connect, 60 s to shake hands, either transport, no proxy. Nothing is
    /// offered and nothing required.
    #[must_use]
    pub fn new(network: Network, our_nonce: u64) -> Self {
        Self {
            network,
            services: Services::default(),
            required_services: Services::default(),
            start_height: 0,
            user_agent: concat!("/apus:", env!("CARGO_PKG_VERSION"), "/").to_owned(),
            proxy: None,
            transport: TransportChoice::default(),
            connect_timeout: Duration::from_secs(5),
            handshake_timeout: Duration::from_secs(60),
            our_nonce,
        }
    }
}

/// What is known of a peer once connected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Where it is, with the services that it said it offers.
    pub address: NodeAddress,
    /// What it said of itself.
    pub version: VersionMessage,
    /// Whether it wants addresses as `addrv2`.
    pub wants_addrv2: bool,
    /// How messages are sent.
    pub transport: Transport,
}

/// A peer with which hands are shaken.
#[derive(Debug)]
pub struct Connection {
    /// Messages from it.
    pub reader: MessageReader,
    /// Messages to it.
    pub writer: MessageWriter,
    /// What is known of it.
    pub peer: PeerInfo,
    stream: Arc<TcpStream>,
}

impl Connection {
    /// What closes the connection, from any thread.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.stream))
    }
}

/// Closes a connection from any thread.
#[derive(Debug, Clone)]
pub struct Closer(Arc<TcpStream>);

impl Closer {
    /// Ends the connection: a thread that reads or writes finds it closed at once. More than once
    /// is no harm.
    pub fn close(&self) {
        // An error means that it is closed already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Connects to a peer and shakes hands.
///
/// A peer that hangs up on the encrypted transport is asked once again in plaintext, if the choice
/// is open (as Core does). Each attempt has both limits of [`Dial`] for itself.
///
/// # Errors
/// When there is no peer, or none of use: see [`PeerError::kind`].
pub fn connect(address: &NodeAddress, dial: &Dial) -> Result<Connection, PeerError> {
    let attempt = |transport| {
        let stream = proxy::open(address, dial.proxy, dial.connect_timeout)?;
        let deadline = handshake_deadline(dial);
        establish(stream, address.clone(), Side::Outbound, transport, dial, &deadline)
    };
    match dial.transport {
        TransportChoice::V1 => attempt(Transport::V1),
        TransportChoice::V2 => attempt(Transport::V2),
        TransportChoice::Auto => match attempt(Transport::V2) {
            Err(PeerError::ClosedDuringV2Handshake) => attempt(Transport::V1),
            other => other,
        },
    }
}

/// Shakes hands with a peer that connected to us, in the transport that it chose.
///
/// # Errors
/// When it breaks the protocol, takes too long or is ourselves: see [`PeerError::kind`].
pub fn accept(stream: TcpStream, dial: &Dial) -> Result<Connection, PeerError> {
    let address = NodeAddress::from(stream.peer_addr()?);
    let deadline = handshake_deadline(dial);
    // Which one it is, is seen by the first bytes.
    establish(stream, address, Side::Inbound, Transport::V2, dial, &deadline)
}

fn handshake_deadline(dial: &Dial) -> Deadline {
    Deadline::new(dial.handshake_timeout, "the handshake")
}

/// From an open socket to a connection.
fn establish(
    stream: TcpStream,
    mut address: NodeAddress,
    side: Side,
    transport: Transport,
    dial: &Dial,
    deadline: &Deadline,
) -> Result<Connection, PeerError> {
    stream.set_nodelay(true)?;
    let stream = Arc::new(stream);
    let mut incoming = Incoming::new(Arc::clone(&stream), TICK.min(dial.handshake_timeout))?;
    let transport = match side {
        Side::Outbound => transport,
        Side::Inbound => detect(&mut incoming, dial, deadline)?,
    };
    let (decoder, encoder) = match transport {
        Transport::V1 => (Decoder::V1(V1Reader::new(dial.network)), Encoder::V1(dial.network)),
        Transport::V2 => agree_on_keys(&stream, &mut incoming, side, dial, deadline)?,
    };
    let mut reader = MessageReader::new(incoming, decoder, TICK);
    let mut writer = MessageWriter::new(Arc::clone(&stream), encoder);
    let agreed = shake(&mut reader, &mut writer, side, dial, deadline)?;
    reader.set_tick(TICK)?;
    writer.after_handshake(agreed.wants_addrv2);
    address.services = agreed.version.services;
    let peer =
        PeerInfo { address, version: agreed.version, wants_addrv2: agreed.wants_addrv2, transport };
    Ok(Connection { reader, writer, peer, stream })
}

/// Which transport the other side begins in.
fn detect(
    incoming: &mut Incoming,
    dial: &Dial,
    deadline: &Deadline,
) -> Result<Transport, PeerError> {
    let first = loop {
        match incoming.available().first_chunk() {
            Some(first) => break first,
            None => incoming.wait_until(deadline)?,
        }
    };
    match (stream::is_v1(first, dial.network)?, dial.transport) {
        (true, TransportChoice::V2) => Err(PeerError::Handshake {
            what: "the peer speaks in plaintext, which is not allowed here".to_owned(),
        }),
        (true, _) | (false, TransportChoice::V1) => Ok(Transport::V1),
        (false, _) => Ok(Transport::V2),
    }
}

fn agree_on_keys(
    stream: &TcpStream,
    incoming: &mut Incoming,
    side: Side,
    dial: &Dial,
    deadline: &Deadline,
) -> Result<(Decoder, Encoder), PeerError> {
    let role = match side {
        Side::Outbound => Role::Initiator,
        Side::Inbound => Role::Responder,
    };
    match v2::handshake(stream, incoming, dial.network, role, deadline) {
        Ok((reader, writer)) => Ok((Decoder::V2(reader.into()), Encoder::V2(writer.into()))),
        // As in Core: a peer that said a word knows this transport.
        Err(PeerError::Closed) if side == Side::Outbound && incoming.is_untouched() => {
            Err(PeerError::ClosedDuringV2Handshake)
        }
        Err(error) => Err(error),
    }
}

/// Oldest protocol that is spoken with (Core `node/protocol_version.h`, `MIN_PEER_PROTO_VERSION`).
const PROTOCOL_VERSION_MIN: i32 = 31_800;
/// First protocol whose peers are told of `addrv2` (Core `net_processing.cpp`, on `version`).
const ADDRV2_PROTOCOL_VERSION: u32 = 70_016;
/// Most messages without a place in the handshake; Core ignores them without a limit.
const IGNORED_MAX: u32 = 100;

/// Which side asked for the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// We did.
    Outbound,
    /// The peer did.
    Inbound,
}

/// What the peer said of itself.
#[derive(Debug)]
pub(crate) struct VersionHandshake {
    pub(crate) version: VersionMessage,
    pub(crate) wants_addrv2: bool,
}

/// Shakes hands. The side that asked for the connection speaks first.
pub(crate) fn shake(
    reader: &mut MessageReader,
    writer: &mut MessageWriter,
    side: Side,
    dial: &Dial,
    deadline: &Deadline,
) -> Result<VersionHandshake, PeerError> {
    let mut write = |message: &Message| {
        writer.set_timeout(deadline.remaining()?);
        writer.write(message)
    };
    if side == Side::Outbound {
        write(&our_version(dial))?;
    }
    let mut version: Option<VersionMessage> = None;
    let (mut wants_addrv2, mut ignored) = (false, 0);
    loop {
        deadline.remaining()?;
        match (reader.read()?, &version) {
            (None, _) => {}
            (Some(Message::Version(theirs)), None) => {
                check(&theirs, side, dial)?;
                if side == Side::Inbound {
                    write(&our_version(dial))?;
                }
                if theirs.protocol >= ADDRV2_PROTOCOL_VERSION {
                    write(&Message::SendAddrV2)?;
                }
                write(&Message::Verack)?;
                version = Some(theirs);
            }
            (Some(Message::SendAddrV2), Some(_)) => wants_addrv2 = true,
            (Some(Message::Verack), Some(version)) => {
                return Ok(VersionHandshake { version: version.clone(), wants_addrv2 });
            }
            (Some(_), _) => ignored += 1,
        }
        if ignored > IGNORED_MAX {
            let what = format!("more than {IGNORED_MAX} other messages before `verack`");
            return Err(PeerError::Handshake { what });
        }
    }
}

fn our_version(dial: &Dial) -> Message {
    // A clock before 1970 is told as 1970.
    let time = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_secs();
    Message::Version(VersionMessage {
        protocol: PROTOCOL_VERSION,
        services: dial.services,
        time: time.cast_signed(),
        nonce: dial.our_nonce,
        user_agent: dial.user_agent.clone(),
        start_height: dial.start_height,
        relay: false,
    })
}

fn check(theirs: &VersionMessage, side: Side, dial: &Dial) -> Result<(), PeerError> {
    if theirs.nonce == dial.our_nonce {
        return Err(PeerError::ConnectedToSelf);
    }
    // As in Core a version above 2^31 is a negative one.
    let protocol = theirs.protocol.cast_signed();
    if protocol < PROTOCOL_VERSION_MIN {
        return Err(PeerError::Handshake {
            what: format!("protocol version {protocol} is older than {PROTOCOL_VERSION_MIN}"),
        });
    }
    if side == Side::Outbound && !theirs.services.has(dial.required_services) {
        let (offered, wanted) = (theirs.services, dial.required_services);
        return Err(PeerError::MissingServices { offered, wanted });
    }
    Ok(())
}

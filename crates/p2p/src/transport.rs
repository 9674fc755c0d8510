//! Connections to peers: [`connect`] dials an address, [`accept`] takes an incoming connection.
//!
//! Both return a [`Connection`] after a complete handshake, over the encrypted transport of BIP-324 or in
//! plaintext, directly or through a proxy. Its two halves may live on different threads; neither waits
//! without a limit. The caller decides which peers to connect to, and what to send afterwards.
//!
//! The handshake is `version` and `verack` (Core `net_processing.cpp`). It never enables transactions or
//! compact blocks. One deadline bounds all of it, and so does a limit on other messages.

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
use socket::{Deadline, ReceiveBuffer};
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};
use stream::{Decoder, Encoder, TICK, V1Reader};
use v2::Role;

/// A message transport.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// Plaintext.
    V1,
    /// Encrypted (BIP-324).
    V2,
}

/// The transports that may be used.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum TransportChoice {
    /// Encrypted if the peer supports it, otherwise plaintext.
    #[default]
    Auto,
    /// Plaintext only.
    V1,
    /// Encrypted only.
    V2,
}

/// How to make connections, and what to tell peers about us.
#[derive(Debug, Clone)]
pub struct Dial {
    /// The network.
    pub network: Network,
    /// The services that we offer.
    pub services: Services,
    /// The services that a peer we dial must offer.
    pub required_services: Services,
    /// Height of our best block.
    pub start_height: i32,
    /// Our user agent, at most 256 bytes (BIP-14).
    pub user_agent: String,
    /// A SOCKS5 proxy for all connections, including those to names and Tor services.
    pub proxy: Option<SocketAddr>,
    /// The transports that may be used.
    pub transport: TransportChoice,
    /// Time limit for name resolution, connecting and the proxy together.
    pub connect_timeout: Duration,
    /// Time limit for the handshake.
    pub handshake_timeout: Duration,
    /// A random number of this execution, for detecting connections to ourselves.
    pub our_nonce: u64,
}

impl Dial {
    /// Core's defaults: 5 s to connect, 60 s for the handshake, either transport, no proxy. Offers and
    /// requires no services.
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

/// Facts about a connected peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PeerInfo {
    /// Its address, with the services it announced.
    pub address: NodeAddress,
    /// Its `version` message.
    pub version: VersionMessage,
    /// True if it wants addresses as `addrv2`.
    pub wants_addrv2: bool,
    /// The transport in use.
    pub transport: Transport,
}

/// A connection after the handshake.
#[derive(Debug)]
pub struct Connection {
    /// Receives messages.
    pub reader: MessageReader,
    /// Sends messages.
    pub writer: MessageWriter,
    /// The peer.
    pub peer: PeerInfo,
    stream: Arc<TcpStream>,
}

impl Connection {
    /// Returns a handle that closes the connection from any thread.
    #[must_use]
    pub fn closer(&self) -> Closer {
        Closer(Arc::clone(&self.stream))
    }
}

/// A handle that closes a connection from any thread.
#[derive(Debug, Clone)]
pub struct Closer(Arc<TcpStream>);

impl Closer {
    /// Closes the connection. Threads that are reading or writing return at once. Closing twice is harmless.
    pub fn close(&self) {
        // An error means that it is closed already.
        let _ = self.0.shutdown(Shutdown::Both);
    }
}

/// Connects to a peer and performs the handshake.
///
/// If the peer disconnects on the encrypted transport and the choice is [`TransportChoice::Auto`], tries once
/// more in plaintext, as Core does. Both time limits of [`Dial`] apply to each attempt separately.
///
/// # Errors
/// If there is no peer, or no useful one: see [`PeerError::kind`].
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

/// Performs the handshake with a peer that connected to us, in the transport that it chose.
///
/// # Errors
/// If the peer breaks the protocol, takes too long or is ourselves: see [`PeerError::kind`].
pub fn accept(stream: TcpStream, dial: &Dial) -> Result<Connection, PeerError> {
    let address = NodeAddress::from(stream.peer_addr()?);
    let deadline = handshake_deadline(dial);
    // The first bytes then reveal the actual transport.
    establish(stream, address, Side::Inbound, Transport::V2, dial, &deadline)
}

fn handshake_deadline(dial: &Dial) -> Deadline {
    Deadline::new(dial.handshake_timeout, "the handshake")
}

/// Turns an open socket into a connection.
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
    let mut incoming = ReceiveBuffer::new(Arc::clone(&stream), TICK.min(dial.handshake_timeout))?;
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

/// Detects the transport that the other side uses.
fn detect(
    incoming: &mut ReceiveBuffer,
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
            what: "the peer uses plaintext, but encryption is required".to_owned(),
        }),
        (true, _) | (false, TransportChoice::V1) => Ok(Transport::V1),
        (false, _) => Ok(Transport::V2),
    }
}

fn agree_on_keys(
    stream: &TcpStream,
    incoming: &mut ReceiveBuffer,
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
        // As in Core: a peer that sent anything supports this transport.
        Err(PeerError::Closed) if side == Side::Outbound && incoming.is_untouched() => {
            Err(PeerError::ClosedDuringV2Handshake)
        }
        Err(error) => Err(error),
    }
}

/// Oldest accepted protocol version (Core `node/protocol_version.h`, `MIN_PEER_PROTO_VERSION`).
const PROTOCOL_VERSION_MIN: i32 = 31_800;
/// First protocol version whose peers get a `sendaddrv2` (Core `net_processing.cpp`, on `version`).
const ADDRV2_PROTOCOL_VERSION: u32 = 70_016;
/// Maximum number of messages that do not belong in the handshake; Core ignores any number of them.
const IGNORED_MAX: u32 = 100;

/// The side that initiated the connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Side {
    /// We did.
    Outbound,
    /// The peer did.
    Inbound,
}

/// The result of the handshake.
#[derive(Debug)]
pub(crate) struct VersionHandshake {
    pub(crate) version: VersionMessage,
    pub(crate) wants_addrv2: bool,
}

/// Performs the handshake. The initiator sends first.
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
    // A clock before 1970 is sent as 1970.
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
    // As in Core, a version of 2^31 or more counts as negative.
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

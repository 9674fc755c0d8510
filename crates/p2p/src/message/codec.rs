//! [`decode`] and [`encode`]: converts messages from and to payloads.
//!
//! No count leads to an allocation before it is checked against the protocol's limit and against the bytes
//! present. As in Core, bytes after the last field are ignored: that is how the protocol grows. A truncated
//! message, or one over a limit, is an error; Core ignores some such messages and continues. Addresses of
//! unreachable networks are skipped, as BIP-155 allows.

use super::{CommandName, Inventory, InventoryKind, Message, Services, VersionMessage};
use crate::addresses::{Host, NodeAddress};
use apus_chain::{
    BlockHash, HEADER_SIZE, Header, KNOTS_CHAIN, ReadError, Reader, write_compact_size,
};
use std::borrow::Cow;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

/// Largest payload of a message, in bytes (Core `net.h`, `MAX_PROTOCOL_MESSAGE_LENGTH`).
pub const PAYLOAD_BYTES_MAX: usize = 4_000_000;
/// Maximum number of headers in a message (Core `net_processing.h`, `MAX_HEADERS_RESULTS`).
pub const HEADERS_MAX: usize = 2_000;
/// Maximum number of entries of an inventory (Core `net_processing.cpp`, `MAX_INV_SZ`).
pub const INVENTORY_MAX: usize = 50_000;
/// Maximum number of addresses in a message (Core `net_processing.cpp`, `MAX_ADDR_TO_SEND`).
pub const ADDRESSES_MAX: usize = 1_000;
/// Maximum number of hashes in a locator (Core `net_processing.cpp`, `MAX_LOCATOR_SZ`).
pub const LOCATOR_MAX: usize = 101;
/// Maximum bytes in a user agent (Core `net.h`, `MAX_SUBVERSION_LENGTH`).
pub const USER_AGENT_BYTES_MAX: usize = 256;
/// This program's protocol version: the first with `addrv2` (Core `node/protocol_version.h`).
pub const PROTOCOL_VERSION: u32 = 70_016;

/// Inventory types (Core `protocol.h`, `GetDataMsg`).
const MSG_BLOCK: u32 = 2;
const MSG_WITNESS_BLOCK: u32 = MSG_BLOCK | 1 << 30;
/// Length of an inventory entry: type and hash.
const INVENTORY_BYTES: usize = 36;
/// Length of a node address in `version`: services, IPv6 address, port.
const VERSION_ADDRESS_BYTES: usize = 26;

/// An invalid message payload.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("invalid `{command}` payload: {flaw}")]
pub struct MessageError {
    /// The message's name.
    pub command: CommandName,
    /// The reason.
    pub flaw: PayloadFlaw,
}

/// Why a payload is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum PayloadFlaw {
    /// It ends within a field, or a count exceeds its limit.
    #[error(transparent)]
    Malformed(#[from] ReadError),
    /// A header claims to be followed by transactions.
    #[error("header {index} claims to have transactions")]
    HeaderWithTransactions {
        /// The header's index in the message, from 0.
        index: usize,
    },
    /// A header has Bitcoin Knots' own proof of work.
    #[error("header {index} is {KNOTS_CHAIN}")]
    OfKnots {
        /// The header's index in the message, from 0.
        index: usize,
    },
    /// An address has the wrong length for its network (BIP-155).
    #[error("address of {found} bytes in network {network}, which has addresses of {needed} bytes")]
    AddressLength {
        /// The network's number in BIP-155.
        network: u8,
        /// The actual length, in bytes.
        found: usize,
        /// The correct length, in bytes.
        needed: usize,
    },
}

/// Parses a message's payload. A block or an unknown message takes over the payload's memory.
///
/// # Errors
/// If the payload is invalid for the command.
pub fn decode(command: CommandName, payload: Vec<u8>) -> Result<Message, MessageError> {
    if command == CommandName::new("block") {
        return Ok(Message::Block(payload));
    }
    let read = read(command, &payload).map_err(|flaw| MessageError { command, flaw })?;
    Ok(read.unwrap_or_else(|| Message::Other { name: command.to_string(), payload }))
}

/// Returns `None` for an unknown message.
fn read(command: CommandName, payload: &[u8]) -> Result<Option<Message>, PayloadFlaw> {
    let reader = &mut Reader::new(payload);
    Ok(Some(match command.name().unwrap_or_default() {
        "version" => Message::Version(read_version(reader)?),
        "verack" => Message::Verack,
        "sendaddrv2" => Message::SendAddrV2,
        "wtxidrelay" => Message::WtxidRelay,
        "sendheaders" => Message::SendHeaders,
        // Before BIP-31 a ping had no number and needed no answer.
        "ping" if !payload.is_empty() => Message::Ping(reader.u64()?),
        "pong" => Message::Pong(reader.u64()?),
        "getaddr" => Message::GetAddr,
        "addr" => Message::Addresses(read_addr(reader)?),
        "addrv2" => Message::Addresses(read_addrv2(reader)?),
        "getheaders" => read_getheaders(reader)?,
        "headers" => Message::Headers(read_headers(reader)?),
        "inv" => Message::Inv(read_inventory(reader)?),
        "getdata" => Message::GetData(read_inventory(reader)?),
        "notfound" => Message::NotFound(read_inventory(reader)?),
        _ => return Ok(None),
    }))
}

/// The name and payload of a message. Addresses are encoded as `addrv2` if requested; otherwise as `addr`,
/// skipping addresses that it cannot express.
///
/// The caller must keep within the limits: peers reject messages that exceed them.
#[must_use]
pub fn encode(message: &Message, addrv2: bool) -> (CommandName, Cow<'_, [u8]>) {
    let mut out = Vec::new();
    match message {
        Message::Block(block) => return (CommandName::new("block"), Cow::Borrowed(block)),
        Message::Other { name, payload } => {
            return (CommandName::new(name), Cow::Borrowed(payload));
        }
        Message::Version(version) => write_version(version, &mut out),
        Message::Ping(number) | Message::Pong(number) => out.extend(number.to_le_bytes()),
        Message::Addresses(addresses) if addrv2 => write_addrv2(addresses, &mut out),
        Message::Addresses(addresses) => write_addr(addresses, &mut out),
        Message::GetHeaders { locator, stop } => write_getheaders(locator, *stop, &mut out),
        Message::Headers(headers) => write_headers(headers, &mut out),
        Message::Inv(inventory) | Message::GetData(inventory) | Message::NotFound(inventory) => {
            write_inventory(inventory, &mut out);
        }
        _ => {}
    }
    (CommandName::new(name(message, addrv2)), Cow::Owned(out))
}

fn name(message: &Message, addrv2: bool) -> &str {
    match message {
        Message::Version(_) => "version",
        Message::Verack => "verack",
        Message::SendAddrV2 => "sendaddrv2",
        Message::WtxidRelay => "wtxidrelay",
        Message::SendHeaders => "sendheaders",
        Message::Ping(_) => "ping",
        Message::Pong(_) => "pong",
        Message::GetAddr => "getaddr",
        Message::Addresses(_) if addrv2 => "addrv2",
        Message::Addresses(_) => "addr",
        Message::GetHeaders { .. } => "getheaders",
        Message::Headers(_) => "headers",
        Message::Inv(_) => "inv",
        Message::GetData(_) => "getdata",
        Message::NotFound(_) => "notfound",
        Message::Block(_) => "block",
        Message::Other { name, .. } => name,
    }
}

/// Parses `version`. Trailing fields after the two addresses may be missing (Core `net_processing.cpp`,
/// `ProcessMessage`, on `version`).
fn read_version(reader: &mut Reader<'_>) -> Result<VersionMessage, ReadError> {
    let mut version = VersionMessage {
        protocol: reader.u32()?,
        services: Services(reader.u64()?),
        time: reader.u64()?.cast_signed(),
        nonce: 0,
        user_agent: String::new(),
        start_height: -1,
        relay: true,
    };
    reader.take(VERSION_ADDRESS_BYTES)?;
    if reader.remaining() > 0 {
        reader.take(VERSION_ADDRESS_BYTES)?;
        version.nonce = reader.u64()?;
    }
    if reader.remaining() > 0 {
        let len = reader.compact_max(USER_AGENT_BYTES_MAX as u64)? as usize;
        version.user_agent = harmless(reader.take(len)?);
    }
    if reader.remaining() > 0 {
        version.start_height = reader.u32()?.cast_signed();
    }
    if reader.remaining() > 0 {
        version.relay = reader.u8()? != 0;
    }
    Ok(version)
}

/// Sends neither address: ours is not the peer's business, and it knows its own.
fn write_version(version: &VersionMessage, out: &mut Vec<u8>) {
    out.extend(version.protocol.to_le_bytes());
    out.extend(version.services.0.to_le_bytes());
    out.extend(version.time.to_le_bytes());
    out.extend([0; 2 * VERSION_ADDRESS_BYTES]);
    out.extend(version.nonce.to_le_bytes());
    write_compact_size(out, version.user_agent.len() as u64);
    out.extend(version.user_agent.as_bytes());
    out.extend(version.start_height.to_le_bytes());
    out.push(u8::from(version.relay));
}

/// The characters of a peer's text that are safe for a terminal or a log (Core `util/strencodings.cpp`,
/// `SAFE_CHARS_DEFAULT`).
fn harmless(text: &[u8]) -> String {
    let safe = |c: &char| c.is_ascii_alphanumeric() || " .,;-_/:?@()".contains(*c);
    text.iter().map(|&byte| char::from(byte)).filter(safe).collect()
}

fn read_getheaders(reader: &mut Reader<'_>) -> Result<Message, ReadError> {
    reader.u32()?;
    let count = reader.compact_max(LOCATOR_MAX as u64)?;
    let locator =
        (0..count).map(|_| Ok(BlockHash(*reader.array()?))).collect::<Result<_, ReadError>>()?;
    Ok(Message::GetHeaders { locator, stop: BlockHash(*reader.array()?) })
}

fn write_getheaders(locator: &[BlockHash], stop: BlockHash, out: &mut Vec<u8>) {
    debug_assert!(locator.len() <= LOCATOR_MAX, "a locator of {} hashes", locator.len());
    out.extend(PROTOCOL_VERSION.to_le_bytes());
    write_compact_size(out, locator.len() as u64);
    out.extend(locator.iter().flat_map(|hash| hash.0));
    out.extend(stop.0);
}

fn read_headers(reader: &mut Reader<'_>) -> Result<Vec<[u8; HEADER_SIZE]>, PayloadFlaw> {
    let count = reader.compact_max(HEADERS_MAX as u64)? as usize;
    let mut headers = Vec::with_capacity(count.min(reader.remaining() / (HEADER_SIZE + 1)));
    for index in 0..count {
        let header = *reader.array()?;
        // A longer header continues where the number of transactions belongs, which must be 0.
        match reader.compact_u64() {
            Ok(0) => headers.push(header),
            _ if Header::parse(&header).is_extended() => {
                return Err(PayloadFlaw::OfKnots { index });
            }
            Ok(_) => return Err(PayloadFlaw::HeaderWithTransactions { index }),
            Err(error) => return Err(error.into()),
        }
    }
    Ok(headers)
}

fn write_headers(headers: &[[u8; HEADER_SIZE]], out: &mut Vec<u8>) {
    debug_assert!(headers.len() <= HEADERS_MAX, "{} headers in a message", headers.len());
    out.reserve(headers.len() * (HEADER_SIZE + 1) + 3);
    write_compact_size(out, headers.len() as u64);
    for header in headers {
        out.extend(header);
        out.push(0);
    }
}

fn read_inventory(reader: &mut Reader<'_>) -> Result<Vec<Inventory>, ReadError> {
    let count = reader.compact_max(INVENTORY_MAX as u64)? as usize;
    let mut inventory = Vec::with_capacity(count.min(reader.remaining() / INVENTORY_BYTES));
    for _ in 0..count {
        let kind = match reader.u32()? {
            MSG_BLOCK => InventoryKind::Block,
            MSG_WITNESS_BLOCK => InventoryKind::WitnessBlock,
            other => InventoryKind::Other(other),
        };
        inventory.push(Inventory { kind, hash: *reader.array()? });
    }
    Ok(inventory)
}

fn write_inventory(inventory: &[Inventory], out: &mut Vec<u8>) {
    debug_assert!(inventory.len() <= INVENTORY_MAX, "{} entries in a message", inventory.len());
    out.reserve(inventory.len() * INVENTORY_BYTES + 3);
    write_compact_size(out, inventory.len() as u64);
    for entry in inventory {
        let kind = match entry.kind {
            InventoryKind::Block => MSG_BLOCK,
            InventoryKind::WitnessBlock => MSG_WITNESS_BLOCK,
            InventoryKind::Other(other) => other,
        };
        out.extend(kind.to_le_bytes());
        out.extend(entry.hash);
    }
}

/// Length of an `addr` entry: time, services, IPv6 address, port.
const ADDR_BYTES: usize = 30;
/// Shortest `addrv2` entry: time, services, network, length, port.
const ADDRV2_BYTES_LEAST: usize = 9;
/// Longest address (BIP-155).
const ADDRV2_BYTES_MAX: u64 = 512;

/// BIP-155 networks that this program can reach.
const IPV4: u8 = 1;
const IPV6: u8 = 2;
const TORV3: u8 = 4;

/// IPv6 prefixes with a special meaning in `addr`: Tor's old addresses (OnionCat), and Core's internal ones
/// (Core `netaddress.h`, `TORV2_IN_IPV6_PREFIX`, `INTERNAL_IN_IPV6_PREFIX`).
const EMBEDDED: [[u8; 6]; 2] =
    [[0xfd, 0x87, 0xd8, 0x7e, 0xeb, 0x43], [0xfd, 0x6b, 0x88, 0xc0, 0x87, 0x24]];

/// Decodes the 16 address bytes of `addr`. Returns `None` if the address is unreachable.
fn ip_of(bytes: [u8; 16]) -> Option<IpAddr> {
    let embedded = EMBEDDED.iter().any(|prefix| bytes.starts_with(prefix));
    (!embedded).then(|| Ipv6Addr::from(bytes).to_canonical())
}

fn read_addr(reader: &mut Reader<'_>) -> Result<Vec<NodeAddress>, ReadError> {
    let count = reader.compact_max(ADDRESSES_MAX as u64)? as usize;
    let mut addresses = Vec::with_capacity(count.min(reader.remaining() / ADDR_BYTES));
    for _ in 0..count {
        let time = reader.u32()?;
        let services = Services(reader.u64()?);
        let ip = ip_of(*reader.array()?);
        let port = u16::from_be_bytes(*reader.array()?);
        addresses.extend(ip.map(|ip| NodeAddress { host: Host::Ip(ip), port, services, time }));
    }
    Ok(addresses)
}

fn write_addr(addresses: &[NodeAddress], out: &mut Vec<u8>) {
    debug_assert!(addresses.len() <= ADDRESSES_MAX, "{} addresses in a message", addresses.len());
    let with_ip = |address: &NodeAddress| match address.host {
        Host::Ip(ip) => Some(ip),
        Host::TorV3(_) | Host::Name(_) => None,
    };
    let count = addresses.iter().filter_map(with_ip).count();
    write_compact_size(out, count as u64);
    for address in addresses {
        let Some(ip) = with_ip(address) else { continue };
        out.extend(address.time.to_le_bytes());
        out.extend(address.services.0.to_le_bytes());
        out.extend(match ip {
            IpAddr::V4(ip) => ip.to_ipv6_mapped().octets(),
            IpAddr::V6(ip) => ip.octets(),
        });
        out.extend(address.port.to_be_bytes());
    }
}

fn read_addrv2(reader: &mut Reader<'_>) -> Result<Vec<NodeAddress>, PayloadFlaw> {
    let count = reader.compact_max(ADDRESSES_MAX as u64)? as usize;
    let mut addresses = Vec::with_capacity(count.min(reader.remaining() / ADDRV2_BYTES_LEAST));
    for _ in 0..count {
        addresses.extend(read_entry(reader)?);
    }
    Ok(addresses)
}

/// Reads one entry. Returns `None` if its network is unreachable.
fn read_entry(reader: &mut Reader<'_>) -> Result<Option<NodeAddress>, PayloadFlaw> {
    let (time, services) = (reader.u32()?, Services(reader.compact_u64()?));
    let (network, len) = (reader.u8()?, reader.compact_max(ADDRV2_BYTES_MAX)?);
    let bytes = reader.take(len as usize)?;
    let port = u16::from_be_bytes(*reader.array()?);
    let host = match network {
        IPV4 => Some(Host::Ip(Ipv4Addr::from(sized(network, bytes)?).into())),
        IPV6 => ipv6(sized(network, bytes)?).map(Host::Ip),
        TORV3 => Some(Host::TorV3(sized(network, bytes)?)),
        _ => None,
    };
    Ok(host.map(|host| NodeAddress { host, port, services, time }))
}

fn sized<const N: usize>(network: u8, bytes: &[u8]) -> Result<[u8; N], PayloadFlaw> {
    let wrong = PayloadFlaw::AddressLength { network, found: bytes.len(), needed: N };
    bytes.try_into().map_err(|_| wrong)
}

/// Decodes an address of the IPv6 network. Addresses with a special prefix are not valid there and are
/// skipped (Core `netaddress.h`, `UnserializeV2Stream`).
fn ipv6(bytes: [u8; 16]) -> Option<IpAddr> {
    ip_of(bytes).filter(IpAddr::is_ipv6)
}

fn write_addrv2(addresses: &[NodeAddress], out: &mut Vec<u8>) {
    debug_assert!(addresses.len() <= ADDRESSES_MAX, "{} addresses in a message", addresses.len());
    let expressible = |address: &&NodeAddress| !matches!(address.host, Host::Name(_));
    write_compact_size(out, addresses.iter().filter(expressible).count() as u64);
    for address in addresses.iter().filter(expressible) {
        out.extend(address.time.to_le_bytes());
        write_compact_size(out, address.services.0);
        match &address.host {
            Host::Ip(ip) => match ip.to_canonical() {
                IpAddr::V4(ip) => write_host(IPV4, &ip.octets(), out),
                IpAddr::V6(ip) => write_host(IPV6, &ip.octets(), out),
            },
            Host::TorV3(key) => write_host(TORV3, key, out),
            Host::Name(_) => {}
        }
        out.extend(address.port.to_be_bytes());
    }
}

fn write_host(network: u8, bytes: &[u8], out: &mut Vec<u8>) {
    out.push(network);
    write_compact_size(out, bytes.len() as u64);
    out.extend(bytes);
}

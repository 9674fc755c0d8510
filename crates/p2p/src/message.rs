//! [`Message`]: the peer-to-peer messages that this program understands.
//!
//! Hashes are in internal byte order. Blocks and headers are raw bytes: the caller parses and checks them.

mod codec;
#[cfg(test)]
mod tests;

pub use codec::{
    ADDRESSES_MAX, HEADERS_MAX, INVENTORY_MAX, LOCATOR_MAX, MessageError, PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION, PayloadFlaw, USER_AGENT_BYTES_MAX, decode, encode,
};

pub use crate::addresses::Services;

use crate::addresses::NodeAddress;
use apus_chain::BlockHash;
use std::fmt;

/// The kind of object that an [`Inventory`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InventoryKind {
    /// A block. In a request: without witnesses.
    Block,
    /// A request for a block with its witnesses (BIP-144).
    WitnessBlock,
    /// Anything else; not used here.
    Other(u32),
}

/// An object that a peer has, wants, or lacks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inventory {
    /// The object's kind.
    pub kind: InventoryKind,
    /// The object's hash.
    pub hash: [u8; 32],
}

impl Inventory {
    /// Creates a request for a block with its witnesses.
    #[must_use]
    pub const fn witness_block(hash: BlockHash) -> Self {
        Self { kind: InventoryKind::WitnessBlock, hash: hash.0 }
    }
}

/// A peer-to-peer message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first message from each side.
    Version(VersionMessage),
    /// The reply to `version`, which completes the handshake.
    Verack,
    /// The peer understands `addrv2` (BIP-155); sent between `version` and `verack`.
    SendAddrV2,
    /// The peer announces transactions by wtxid (BIP-339); sent between `version` and `verack`.
    WtxidRelay,
    /// Asks the peer to announce new blocks by their headers (BIP-130).
    SendHeaders,
    /// Must be answered with a pong of the same number.
    Ping(u64),
    /// The answer to a ping.
    Pong(u64),
    /// A request for addresses.
    GetAddr,
    /// Node addresses, from `addr` or `addrv2`.
    Addresses(Vec<NodeAddress>),
    /// A request for the headers after the first locator block that is on the peer's chain.
    GetHeaders {
        /// Block hashes, the highest first.
        locator: Vec<BlockHash>,
        /// The last header wanted; zero for as many as a message holds.
        stop: BlockHash,
    },
    /// At most 2,000 headers.
    Headers(Vec<[u8; 80]>),
    /// Objects that the peer has.
    Inv(Vec<Inventory>),
    /// A request for objects.
    GetData(Vec<Inventory>),
    /// Requested objects that the peer lacks.
    NotFound(Vec<Inventory>),
    /// A block, with witnesses if they were requested.
    Block(Vec<u8>),
    /// A message that this program does not know.
    Other {
        /// Its name.
        name: String,
        /// Its payload.
        payload: Vec<u8>,
    },
}

/// A peer's description of itself (Core `net_processing.cpp`, `PushNodeVersion`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionMessage {
    /// Its protocol version.
    pub protocol: u32,
    /// The services that it offers.
    pub services: Services,
    /// Its clock, in seconds since 1970.
    pub time: i64,
    /// A random number, for detecting connections to oneself.
    pub nonce: u64,
    /// The name of its software.
    pub user_agent: String,
    /// Height of its best block.
    pub start_height: i32,
    /// True if it wants transactions.
    pub relay: bool,
}

/// Length of a message name in the header (Core `protocol.h`, `MESSAGE_TYPE_SIZE`).
pub const COMMAND_BYTES: usize = 12;

/// A message name: up to 12 printable bytes, padded with zeros.
///
/// A peer may send any 12 bytes; [`CommandName::name`] returns `None` for invalid ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandName([u8; COMMAND_BYTES]);

impl CommandName {
    /// Placeholder for an unknown name, such as an unassigned short id of BIP-324.
    pub const NONE: Self = Self([0; COMMAND_BYTES]);

    /// Creates the command of this name, truncated to 12 bytes.
    #[must_use]
    pub const fn new(name: &str) -> Self {
        let name = name.as_bytes();
        let mut bytes = [0; COMMAND_BYTES];
        let mut at = 0;
        while at < name.len() && at < COMMAND_BYTES {
            bytes[at] = name[at];
            at += 1;
        }
        Self(bytes)
    }

    /// Wraps these bytes of a message header without checking them.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; COMMAND_BYTES]) -> Self {
        Self(bytes)
    }

    /// Returns the bytes for a message header.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        self.0
    }

    /// The name, if the bytes are valid: printable ASCII, then only zeros (Core `protocol.cpp`,
    /// `CMessageHeader::IsMessageTypeValid`).
    #[must_use]
    pub fn name(&self) -> Option<&str> {
        let len = self.0.iter().position(|&byte| byte == 0).unwrap_or(COMMAND_BYTES);
        let (name, rest) = self.0.split_at(len);
        let printable = name.iter().all(|byte| (b' '..=b'~').contains(byte));
        (len > 0 && printable && rest.iter().all(|&byte| byte == 0))
            .then(|| str::from_utf8(name).ok())
            .flatten()
    }
}

impl fmt::Display for CommandName {
    /// Writes the name, or the escaped bytes if they are not a valid name.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        let len = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        write!(f, "{}", self.0[..len].escape_ascii())
    }
}

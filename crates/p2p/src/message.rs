//! [`Message`]: what peers say to each other, as far as this program listens.
//!
//! Hashes are in internal order. Blocks and headers are bytes: the caller parses and checks them.

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

/// What an [`Inventory`] names.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum InventoryKind {
    /// A block; as a request, one without witnesses.
    Block,
    /// A request for a block with its witnesses (BIP-144).
    WitnessBlock,
    /// Anything else; of no use here.
    Other(u32),
}

/// Something that a peer has, wants, or has not.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Inventory {
    /// What it is.
    pub kind: InventoryKind,
    /// Its hash.
    pub hash: [u8; 32],
}

impl Inventory {
    /// A request for a block with its witnesses.
    #[must_use]
    pub const fn witness_block(hash: BlockHash) -> Self {
        Self { kind: InventoryKind::WitnessBlock, hash: hash.0 }
    }
}

/// A message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Message {
    /// The first one of each side.
    Version(VersionMessage),
    /// The answer to it, which ends the handshake.
    Verack,
    /// The peer understands `addrv2` (BIP-155); between `version` and `verack`.
    SendAddrV2,
    /// The peer announces transactions by wtxid (BIP-339); between `version` and `verack`.
    WtxidRelay,
    /// New blocks are to be announced by their headers (BIP-130).
    SendHeaders,
    /// To be answered with the same number.
    Ping(u64),
    /// The answer to a ping.
    Pong(u64),
    /// A request for addresses.
    GetAddr,
    /// Addresses of nodes, by `addr` or `addrv2`.
    Addresses(Vec<NodeAddress>),
    /// A request for the headers after the first block of the locator that the peer's chain has.
    GetHeaders {
        /// Hashes of blocks, the highest first.
        locator: Vec<BlockHash>,
        /// The last header wanted; zero for as many as a message takes.
        stop: BlockHash,
    },
    /// At most 2,000 headers.
    Headers(Vec<[u8; 80]>),
    /// Things that the peer has.
    Inv(Vec<Inventory>),
    /// A request for things.
    GetData(Vec<Inventory>),
    /// What the peer was asked for and has not.
    NotFound(Vec<Inventory>),
    /// A block, with witnesses if it was asked for so.
    Block(Vec<u8>),
    /// A message that is not known here.
    Other {
        /// Its name.
        name: String,
        /// Its payload.
        payload: Vec<u8>,
    },
}

/// What a peer says of itself (Core `net_processing.cpp`, `PushNodeVersion`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VersionMessage {
    /// Protocol version.
    pub protocol: u32,
    /// What it offers.
    pub services: Services,
    /// Its clock, in seconds since 1970.
    pub time: i64,
    /// A random number, to know oneself by.
    pub nonce: u64,
    /// Its name.
    pub user_agent: String,
    /// Height of its best block.
    pub start_height: i32,
    /// Whether it wants transactions.
    pub relay: bool,
}

/// Bytes of a name in the message header (Core `protocol.h`, `MESSAGE_TYPE_SIZE`).
pub const COMMAND_BYTES: usize = 12;

/// The name of a message: up to 12 printable bytes, filled up with zeros.
///
/// Any 12 bytes may come from a peer. Those that are no name have no [`CommandName::name`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct CommandName([u8; COMMAND_BYTES]);

impl CommandName {
    /// What stands for a message whose name is not known, as for an unassigned short id of BIP-324.
    pub const NONE: Self = Self([0; COMMAND_BYTES]);

    /// The command of this name, cut off after 12 bytes.
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

    /// These bytes of a message header, whatever they are.
    #[must_use]
    pub const fn from_bytes(bytes: [u8; COMMAND_BYTES]) -> Self {
        Self(bytes)
    }

    /// The bytes for a message header.
    #[must_use]
    pub const fn to_bytes(self) -> [u8; COMMAND_BYTES] {
        self.0
    }

    /// The name, if the bytes are one: printable ASCII, then only zeros (Core `protocol.cpp`,
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
    /// The name; of bytes that are none, what they are, with escapes.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if let Some(name) = self.name() {
            return f.write_str(name);
        }
        let len = self.0.iter().rposition(|&byte| byte != 0).map_or(0, |last| last + 1);
        write!(f, "{}", self.0[..len].escape_ascii())
    }
}

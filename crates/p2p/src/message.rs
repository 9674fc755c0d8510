//! [`Message`]: what peers say to each other, as far as this program listens.
//!
//! Hashes are in internal order. Blocks and headers are bytes: the caller parses and checks them.

mod addresses;
mod codec;
mod command;
#[cfg(test)]
mod tests;

pub use crate::services::Services;
pub use codec::{
    ADDRESSES_MAX, HEADERS_MAX, INVENTORY_MAX, LOCATOR_MAX, MessageError, PAYLOAD_BYTES_MAX,
    PROTOCOL_VERSION, USER_AGENT_BYTES_MAX, decode, encode,
};
pub use command::{COMMAND_BYTES, Command};

use crate::addresses::NodeAddress;
use crate::utreexo::UtreexoMessage;
use apus_chain::BlockHash;

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
    Version(Version),
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
    /// About proofs of coins (BIP-183, draft).
    Utreexo(UtreexoMessage),
    /// A message of no use here, by its name.
    Other(String),
}

/// What a peer says of itself (Core `net_processing.cpp`, `PushNodeVersion`).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Version {
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

//! What people want to know of a network.

use crate::PeerId;
use crate::download::Limit;

/// A peer, for people.
#[derive(Debug, Clone)]
pub struct PeerStatus {
    /// Which.
    pub id: PeerId,
    /// Its address.
    pub address: String,
    /// What it calls itself.
    pub user_agent: String,
    /// Whether the connection is encrypted.
    pub encrypted: bool,
    /// Whether it connected to us.
    pub inbound: bool,
    /// Bytes of blocks a second, lately.
    pub rate: u64,
    /// Bytes of blocks that came from it.
    pub bytes: u64,
    /// Blocks that it was asked for and that have not come.
    pub in_flight: usize,
    /// Whether it owes blocks and is silent.
    pub stalled: bool,
}

/// How the network is.
#[derive(Debug, Clone)]
pub struct NetworkStatus {
    /// The peers there are.
    pub peers: Vec<PeerStatus>,
    /// Height of the best header.
    pub headers: u32,
    /// The greatest height that a peer said it is at.
    pub headers_claimed: u32,
    /// Bytes of blocks a second, lately.
    pub rate: u64,
    /// Bytes of blocks that came.
    pub bytes: u64,
    /// What holds the download up; none where nothing is asked for.
    pub limited_by: Option<Limit>,
}

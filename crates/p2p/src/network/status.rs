//! What people want to know of a network.

use super::state::State;
use crate::PeerId;
use crate::download::{Limit, Totals};
use crate::transport::Transport;
use apus_chain::Height;

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
    /// Blocks that came from it.
    pub blocks: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Blocks that it was asked for and that have not come.
    pub in_flight: usize,
    /// Whether it owes blocks and is silent.
    pub stalled: bool,
}

/// How the network is.
#[derive(Debug, Clone, Default)]
pub struct NetworkStatus {
    /// The peers there are.
    pub peers: Vec<PeerStatus>,
    /// What became of the peer that was lost last, or could not be reached.
    pub last_lost: Option<String>,
    /// Height of the best header.
    pub headers: u32,
    /// The greatest height that a peer said it is at.
    pub headers_claimed: u32,
    /// Bytes of blocks a second, lately.
    pub rate: u64,
    /// What came so far, also from peers that are gone.
    pub totals: Totals,
    /// What holds the download up; none where nothing is asked for.
    pub limited_by: Option<Limit>,
}

impl State {
    /// The height that peers say they are at.
    fn claimed(&self) -> Height {
        let handles = self.peers.values().filter_map(|peer| peer.handle.as_ref());
        let heights = handles.map(|handle| handle.info.version.start_height);
        heights.filter_map(|height| Height::try_from(height).ok()).max().unwrap_or(0)
    }

    pub(super) fn status(&self, now: u64) -> NetworkStatus {
        let status = self.download.status(now);
        let peers = self.peers.iter().filter_map(|(&id, peer)| {
            let handle = peer.handle.as_ref()?;
            let of = status.peers.iter().find(|status| status.peer == id);
            Some(PeerStatus {
                id,
                address: handle.info.address.to_string(),
                user_agent: handle.info.version.user_agent.clone(),
                encrypted: handle.info.transport == Transport::V2,
                inbound: peer.is_inbound(),
                rate: of.map_or(0, |of| of.rate),
                blocks: of.map_or(0, |of| of.blocks),
                bytes: of.map_or(0, |of| of.bytes),
                in_flight: of.map_or(0, |of| of.in_flight),
                stalled: of.is_some_and(|of| of.stalled),
            })
        });
        NetworkStatus {
            last_lost: self.last_lost.clone(),
            peers: peers.collect(),
            headers: self.best().0,
            headers_claimed: self.claimed(),
            rate: status.rate,
            totals: status.totals,
            limited_by: (!self.mailboxes.is_empty()).then_some(status.limited_by),
        }
    }
}

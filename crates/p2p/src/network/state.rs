//! The network's state, under one lock.

use super::mailbox::{HashRequests, Mailboxes};
use super::peer::{NetworkPeer, WriterCommand};
use super::serve::RawHeaders;
use super::{NetworkError, NetworkOptions};
use crate::PeerId;
use crate::addresses::{AddressBook, NodeAddress};
use crate::download::{self, Download, Limit};
use crate::headers::{self, HeaderList, HeaderSync};
use crate::message::{Inventory, InventoryKind, Message};
use crate::transport::PeerError;
use apus_chain::{BlockHash, HEADER_SIZE, HeaderChain, Height};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::TrySendError;

/// Headers from this many peers are enough to start: the most-work chain of several peers is
/// hardly ever behind, and the sync ends at the best tip of all of them anyway.
const ENOUGH_PEERS: usize = 4;

/// How long to wait for other peers, which may have more headers, in milliseconds.
const ATTEMPTS_MS: u64 = 8_000;

/// Maximum number of invalid blocks remembered; the oldest are forgotten. Making one takes a block's proof of work.
const REMEMBERED_MAX: usize = 256;

/// Blocks that a caller found invalid.
#[derive(Debug, Default)]
pub(super) struct InvalidBlockHashes(pub(super) VecDeque<BlockHash>);

impl InvalidBlockHashes {
    /// Adds a block. Returns true if it is new.
    pub(super) fn put(&mut self, hash: BlockHash) -> bool {
        if self.0.contains(&hash) {
            return false;
        }
        if self.0.len() >= REMEMBERED_MAX {
            self.0.pop_front();
        }
        self.0.push_back(hash);
        true
    }
}

/// Maximum number of rejections listed.
const LISTED_MAX: usize = 3;

/// Headers rejected as invalid, except for their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedHeaders {
    /// Number of rejections.
    pub count: u64,
    /// The first distinct ones: from whom, and why.
    pub first: Vec<String>,
}

impl RefusedHeaders {
    pub(super) fn note(&mut self, what: String) {
        self.count += 1;
        if self.first.len() < LISTED_MAX && !self.first.contains(&what) {
            self.first.push(what);
        }
    }
}

pub(super) struct NetworkState {
    pub(super) headers: HeaderSync,
    pub(super) download: Download,
    pub(super) book: AddressBook,
    pub(super) peers: HashMap<PeerId, NetworkPeer>,
    pub(super) next_peer: u32,
    pings: u64,
    /// The chain whose blocks are requested.
    pub(super) chain: Option<Arc<HeaderChain>>,
    /// Height of its last block to request without witnesses.
    pub(super) without_witnesses: Height,
    /// The chain announced to peers; all of its blocks are available.
    pub(super) served: Option<Arc<HeaderChain>>,
    /// The peers dialled first. `None` before that.
    pub(super) first_attempts: Option<Vec<PeerId>>,
    /// With this many peers there is no need to wait for more.
    enough_peers: usize,
    pub(super) mailboxes: Mailboxes,
    pub(super) hash_requests: HashRequests,
    /// Blocks found invalid.
    pub(super) invalid: InvalidBlockHashes,
    /// Raw headers to serve. `None` if no peer can connect to us.
    raw: Option<RawHeaders>,
    /// Headers not taken yet by [`Self::take_new_headers`].
    new: HeaderList,
    /// Since when no peer has the wanted blocks.
    pub(super) stuck_since: Option<u64>,
    /// When to check that next.
    pub(super) usefulness_at: u64,
    /// True while a caller waits for headers.
    pub(super) settling: bool,
    /// When something useful last arrived.
    pub(super) useful_at: u64,
    /// Headers of peers that were rejected as invalid.
    pub(super) refused: RefusedHeaders,
    /// The last disconnected or unreachable peer, and why.
    pub(super) last_lost: Option<String>,
    pub(super) failure: Option<NetworkError>,
    /// Why the network stopped permanently.
    pub(super) broken: Option<NetworkError>,
    /// True if the user named the peers to connect to.
    pub(super) keeps_named: bool,
    /// Recently disconnected peers, whose blocks callers may still report as damaged.
    pub(super) lost: VecDeque<(PeerId, NodeAddress)>,
    /// User-named peers that misbehaved, until they are dialled again.
    pub(super) misbehaved: HashSet<PeerId>,
    pub(super) ended: bool,
}

impl NetworkState {
    pub(super) fn new(options: &NetworkOptions, seed: u64) -> Self {
        let mut book = AddressBook::new(options.params.network, seed);
        book.set_onion(options.proxy.is_some());
        // If the saved addresses are unreadable, the network finds new ones.
        let _ = book.restore(&options.addresses, super::unix_time());
        let mut headers = HeaderSync::new(&options.params, super::unix_time());
        // Headers that do not fit are downloaded again.
        headers.restore(options.headers.iter());
        let raw = options.listen.map(|_| {
            let mut raw = RawHeaders::new(&options.params.genesis_header);
            raw.add(headers.tree(), options.headers.iter());
            raw
        });
        Self {
            headers,
            raw,
            new: HeaderList::default(),
            download: Download::new(download::DownloadOptions {
                bytes_max: options.bytes_max,
                ..download::DownloadOptions::default()
            }),
            book,
            peers: HashMap::new(),
            next_peer: 0,
            pings: 0,
            chain: None,
            without_witnesses: 0,
            served: None,
            first_attempts: None,
            enough_peers: if options.connect.is_empty() { ENOUGH_PEERS } else { 1 },
            mailboxes: Mailboxes::default(),
            hash_requests: HashRequests::default(),
            invalid: InvalidBlockHashes::default(),
            stuck_since: None,
            usefulness_at: 0,
            settling: false,
            useful_at: 0,
            refused: RefusedHeaders::default(),
            last_lost: None,
            failure: None,
            broken: None,
            keeps_named: !options.connect.is_empty(),
            lost: VecDeque::new(),
            misbehaved: HashSet::new(),
            ended: false,
        }
    }

    /// Height and hash of the best header.
    pub(super) fn best(&self) -> (Height, BlockHash) {
        let height = (self.headers.best_chain().len() - 1) as Height;
        (height, *self.headers.tree().hash(self.headers.best()))
    }

    /// Returns true once the responding peers have sent all their headers, and enough peers were asked.
    pub(super) fn has_headers(&self, now: u64) -> bool {
        let connected = self.peers.values().filter(|peer| peer.is_connected()).count();
        let asked = self.first_attempts.as_ref().is_some_and(|first| {
            let pending = |id| self.peers.get(id).is_some_and(|peer| !peer.is_connected());
            !first.iter().any(pending) && connected >= self.enough_peers
        });
        let late = now >= ATTEMPTS_MS;
        (late || asked && self.best().0 > 0) && self.headers.is_synced(now)
    }

    pub(super) fn take_new_headers(&mut self) -> HeaderList {
        std::mem::take(&mut self.new)
    }

    pub(super) fn raw_header(&self, hash: &BlockHash) -> Option<[u8; HEADER_SIZE]> {
        let tree = self.headers.tree();
        self.raw.as_ref()?.get(tree, tree.find(hash)?)
    }

    /// A nonce that no ping had before.
    pub(super) fn next_nonce(&mut self) -> u64 {
        self.pings += 1;
        self.pings
    }

    /// Queues a message. Disconnects a peer that does not read.
    pub(super) fn send(&mut self, id: PeerId, outgoing: WriterCommand) {
        let Some(handle) = self.peers.get(&id).and_then(|peer| peer.handle.as_ref()) else {
            return;
        };
        match handle.outgoing.try_send(outgoing) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => handle.closer.close(),
        }
    }

    /// Handles any message except blocks and requests. Returns true if a caller may be waiting for it.
    pub(super) fn message(
        &mut self,
        id: PeerId,
        message: Message,
        now: u64,
    ) -> Result<bool, PeerError> {
        match message {
            Message::Ping(nonce) => self.send(id, WriterCommand::Message(Message::Pong(nonce))),
            Message::Pong(nonce) => {
                self.pong(id, nonce, now);
                self.fence_passed(id, nonce, now);
            }
            Message::Headers(raw) => return self.take_headers(id, raw, now),
            Message::Inv(items) => {
                // The last block implies the ones before it.
                let block = items.iter().rfind(|item| item.kind == InventoryKind::Block);
                if let Some(item) = block {
                    self.headers.announced(id, &BlockHash(item.hash), now);
                    self.note_chain_of(id);
                    self.disconnect_if_invalid(id);
                }
            }
            Message::NotFound(items) => {
                for item in items {
                    self.download.not_found(id, &BlockHash(item.hash), now);
                }
            }
            Message::Addresses(addresses) => {
                if let Some(from) = self.peers.get(&id).and_then(|peer| peer.address.clone()) {
                    self.book.add_from_peer(id, &from, &addresses, super::unix_time());
                }
            }
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn take_headers(
        &mut self,
        id: PeerId,
        raw: Vec<[u8; HEADER_SIZE]>,
        now: u64,
    ) -> Result<bool, PeerError> {
        let before = self.headers.candidate_height();
        let learned = self.headers.headers(id, &raw, now);
        let new = self.headers.take_new();
        if let Some(raw) = &mut self.raw {
            raw.add(self.headers.tree(), new.iter());
        }
        self.new.append(new);
        let learned = learned.map_err(|error| PeerError::Headers { what: error.to_string() })?;
        if learned.new_headers > 0 || self.headers.candidate_height() > before {
            self.useful_at = now;
        }
        self.note_chain_of(id);
        self.disconnect_if_invalid(id);
        Ok(true)
    }

    /// Updates the download with how much of the wanted chain the peer shares.
    pub(super) fn note_chain_of(&mut self, id: PeerId) {
        let Some(chain) = &self.chain else { return };
        let Some(best) = self.headers.peer_best(id) else { return };
        let tree = self.headers.tree();
        let Some(header) = tree.connected(best) else { return };
        let Some(common) = tree.fork_height(chain, best) else { return };
        self.download.peer_has(id, common, header.height);
    }

    pub(super) fn set_chain(&mut self, chain: Arc<HeaderChain>, now: u64) {
        let fork = match &self.chain {
            Some(before) => (0..=before.tip_height().min(chain.tip_height()))
                .rev()
                .find(|height| before.hash(*height) == chain.hash(*height))
                .unwrap_or(0),
            None => 0,
        };
        self.download.chain_changed(fork, &|height| chain.hash(height).copied());
        self.chain = Some(chain);
        self.renew_hash_requests();
        let ids: Vec<PeerId> = self.peers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.note_chain_of(id));
        self.act(now);
    }

    /// Makes `chain` available to peers, and announces its tip to inbound ones.
    pub(super) fn serve(&mut self, chain: Arc<HeaderChain>) {
        let tip = *chain.tip_hash();
        let known = self.served.replace(chain);
        if known.is_some_and(|known| *known.tip_hash() == tip) {
            return;
        }
        let inbound = self.peers.iter().filter(|(_, peer)| peer.is_inbound());
        let inbound: Vec<PeerId> = inbound.map(|(&id, _)| id).collect();
        for id in inbound {
            let item = Inventory { kind: InventoryKind::Block, hash: tip.0 };
            self.send(id, WriterCommand::Message(Message::Inv(vec![item])));
        }
    }

    /// Carries out the actions of headers and download.
    pub(super) fn act(&mut self, now: u64) {
        for action in self.headers.actions() {
            match action {
                headers::HeaderAction::GetHeaders { peer, locator, stop } => {
                    self.send(peer, WriterCommand::Message(Message::GetHeaders { locator, stop }));
                }
                headers::HeaderAction::Disconnect { peer, why } => {
                    self.hang_up(peer, &why.to_string(), why.into());
                }
            }
        }
        for action in self.download.tick(now) {
            match action {
                download::DownloadAction::Request { peer, blocks } => {
                    let items = blocks.iter().map(|block| self.wanted(*block)).collect();
                    self.send(peer, WriterCommand::Message(Message::GetData(items)));
                    self.fence(peer, &blocks);
                }
                download::DownloadAction::Disconnect { peer, why } => {
                    self.hang_up(peer, &why.to_string(), why.into());
                }
            }
        }
    }

    /// Creates a block request: with witnesses, unless that part of the chain is wanted without them.
    fn wanted(&self, (height, hash): (Height, BlockHash)) -> Inventory {
        let is_known = || self.chain.as_ref().is_some_and(|it| it.hash(height) == Some(&hash));
        if height <= self.without_witnesses && is_known() {
            return Inventory { kind: InventoryKind::Block, hash: hash.0 };
        }
        Inventory::witness_block(hash)
    }

    /// Returns true if blocks of the chain are wanted, but no connected peer can be asked for one. Blocks off
    /// the chain do not count: no peer is at fault for lacking them.
    pub(super) fn is_stuck(&self, now: u64) -> bool {
        !self.mailboxes.is_empty() && {
            let status = self.download.status(now);
            let unavailable = status.unavailable > self.hash_requests.len();
            unavailable && status.limited_by == Limit::Peers && status.in_flight == 0
        }
    }

    /// Fails all callers: nothing will arrive any more.
    pub(super) fn fail(&mut self, error: NetworkError) {
        self.failure = Some(error);
        self.close_mailboxes();
    }

    pub(super) fn end(&mut self) {
        self.ended = true;
        self.close_mailboxes();
        for peer in self.peers.values() {
            if let Some(handle) = &peer.handle {
                handle.closer.close();
            }
        }
    }

    fn close_mailboxes(&self) {
        self.mailboxes.close_all();
        self.hash_requests.close_all();
    }

    /// Returns true if a caller is waiting for anything.
    pub(super) fn is_awaited(&self) -> bool {
        !self.mailboxes.is_empty() || !self.hash_requests.is_empty() || self.settling
    }

    /// Restarts the timeout, because a caller starts to wait.
    pub(super) fn begin_to_wait(&mut self, now: u64) {
        if !self.is_awaited() {
            self.useful_at = now;
            self.failure = self.broken.clone();
        }
    }
}

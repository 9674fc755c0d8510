//! What the network knows, under one lock.

use super::mailbox::{Mailboxes, Wishes};
use super::peer::{NetworkPeer, Outgoing};
use super::serve::RawHeaders;
use super::{NetworkError, NetworkOptions};
use crate::PeerId;
use crate::addresses::{AddressBook, NodeAddress};
use crate::download::{self, Download, Limit};
use crate::headers::{self, HeaderSync};
use crate::message::{Inventory, InventoryKind, Message};
use crate::transport::PeerError;
use apus_chain::{BlockHash, BlockPlace, HEADER_SIZE, HeaderChain, Height};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::mpsc::TrySendError;

/// Peers that were found, and whose headers are good enough to begin with: the most-work chain of
/// several is hardly ever behind, and the run ends at the tip of all of them in any case.
const ENOUGH_PEERS: usize = 4;

/// How long to wait for other peers, which may have more headers, in milliseconds.
const ATTEMPTS_MS: u64 = 8_000;

/// So many are remembered, the last ones: each took the work of a block.
const REMEMBERED_MAX: usize = 256;

/// Blocks that a caller found invalid.
#[derive(Debug, Default)]
pub(super) struct InvalidBlockHashes(pub(super) VecDeque<BlockHash>);

impl InvalidBlockHashes {
    /// Whether it is new.
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

/// So many refusals are told.
const TOLD: usize = 3;

/// Headers that were refused for what they are, not for their times.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct RefusedHeaders {
    /// How many times.
    pub count: u64,
    /// Of whom, and why: the first ones, each once.
    pub first: Vec<String>,
}

impl RefusedHeaders {
    pub(super) fn note(&mut self, what: String) {
        self.count += 1;
        if self.first.len() < TOLD && !self.first.contains(&what) {
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
    /// The chain whose blocks are asked for.
    pub(super) chain: Option<Arc<HeaderChain>>,
    /// The last block of it that is asked for without its witnesses.
    pub(super) without_witnesses: Height,
    /// The chain that others are told of: one whose blocks are here.
    pub(super) served: Option<Arc<HeaderChain>>,
    /// The attempts to connect that were made first; none before they are.
    pub(super) first_attempts: Option<Vec<PeerId>>,
    /// With so many one need not wait for more.
    enough_peers: usize,
    pub(super) mailboxes: Mailboxes,
    pub(super) wishes: Wishes,
    /// Blocks that proved invalid.
    pub(super) invalid: InvalidBlockHashes,
    /// For peers that ask for headers; none where no peer can connect to us.
    raw: Option<RawHeaders>,
    /// Headers that were not handed out yet.
    new: Vec<[u8; HEADER_SIZE]>,
    /// Since when no peer has what is wanted.
    pub(super) stuck_since: Option<u64>,
    /// When that is asked next.
    pub(super) usefulness_at: u64,
    /// Whether a caller waits for headers.
    pub(super) settling: bool,
    /// When something useful came last.
    pub(super) useful_at: u64,
    /// Headers of peers that were refused for what they are.
    pub(super) refused: RefusedHeaders,
    /// Why the last peer that went did.
    pub(super) last_lost: Option<String>,
    pub(super) failure: Option<NetworkError>,
    /// Why nothing will ever come any more.
    pub(super) broken: Option<NetworkError>,
    /// Whether the user named the peers to connect to.
    pub(super) keeps_named: bool,
    /// The peers that were lost last, while blocks of theirs may await judgement.
    pub(super) lost: VecDeque<(PeerId, NodeAddress)>,
    /// Those of the user's that misbehaved, until they are dialled again.
    pub(super) misbehaved: HashSet<PeerId>,
    pub(super) ended: bool,
}

impl NetworkState {
    pub(super) fn new(options: &NetworkOptions, seed: u64) -> Self {
        let mut book = AddressBook::new(options.params.network, seed);
        book.set_onion(options.proxy.is_some());
        // What does not read well is found again.
        let _ = book.restore(&options.addresses, super::unix_time());
        let mut headers = HeaderSync::new(&options.params, super::unix_time());
        // What does not fit is downloaded again.
        headers.restore(options.headers.iter().copied());
        let raw = options.listen.map(|_| {
            let mut raw = RawHeaders::new(&options.params.genesis_header);
            raw.add(headers.tree(), &options.headers);
            raw
        });
        Self {
            headers,
            raw,
            new: Vec::new(),
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
            wishes: Wishes::default(),
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

    /// Whether the peers that answer have told all their headers, and enough were asked.
    pub(super) fn has_headers(&self, now: u64) -> bool {
        let connected = self.peers.values().filter(|peer| peer.is_connected()).count();
        let asked = self.first_attempts.as_ref().is_some_and(|first| {
            let pending = |id| self.peers.get(id).is_some_and(|peer| !peer.is_connected());
            !first.iter().any(pending) && connected >= self.enough_peers
        });
        let late = now >= ATTEMPTS_MS;
        (late || asked && self.best().0 > 0) && self.headers.is_synced(now)
    }

    pub(super) fn take_new_headers(&mut self) -> Vec<[u8; HEADER_SIZE]> {
        std::mem::take(&mut self.new)
    }

    pub(super) fn raw_header(&self, hash: &BlockHash) -> Option<[u8; HEADER_SIZE]> {
        let tree = self.headers.tree();
        self.raw.as_ref()?.get(tree, tree.find(hash)?)
    }

    /// A number that no ping had before.
    pub(super) fn next_nonce(&mut self) -> u64 {
        self.pings += 1;
        self.pings
    }

    /// Queues a message. A peer that does not read is hung up on.
    pub(super) fn send(&mut self, id: PeerId, outgoing: Outgoing) {
        let Some(handle) = self.peers.get(&id).and_then(|peer| peer.handle.as_ref()) else {
            return;
        };
        match handle.outgoing.try_send(outgoing) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => handle.closer.close(),
        }
    }

    /// Takes a message of any kind but blocks and requests. Tells whether a caller may wait for it.
    pub(super) fn message(
        &mut self,
        id: PeerId,
        message: Message,
        now: u64,
    ) -> Result<bool, PeerError> {
        match message {
            Message::Ping(nonce) => self.send(id, Outgoing::Message(Message::Pong(nonce))),
            Message::Pong(nonce) => {
                self.pong(id, nonce, now);
                self.fence_passed(id, nonce, now);
            }
            Message::Headers(raw) => return self.take_headers(id, raw, now),
            Message::Inv(items) => {
                // The last one leads to those before it.
                let block = items.iter().rfind(|item| item.kind == InventoryKind::Block);
                if let Some(item) = block {
                    self.headers.announced(id, &BlockHash(item.hash), now);
                    self.note_chain_of(id);
                    self.part_if_invalid(id);
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
            raw.add(self.headers.tree(), &new);
        }
        self.new.extend(new);
        let learned = learned.map_err(|error| PeerError::Headers { what: error.to_string() })?;
        if learned.new_headers > 0 || self.headers.candidate_height() > before {
            self.useful_at = now;
        }
        self.note_chain_of(id);
        self.part_if_invalid(id);
        Ok(true)
    }

    /// Tells the download how far the peer shares the chain that is asked for.
    pub(super) fn note_chain_of(&mut self, id: PeerId) {
        let Some(chain) = &self.chain else { return };
        let Some(best) = self.headers.peer_best(id) else { return };
        let tree = self.headers.tree();
        let Some(header) = tree.connected(best) else { return };
        let common = match tree.place_of(chain, tree.hash(best)) {
            BlockPlace::Active(height) => height,
            BlockPlace::Above(_) => chain.tip_height(),
            BlockPlace::Stale { fork_height, .. } => fork_height,
            BlockPlace::Orphan | BlockPlace::Rejected | BlockPlace::Unknown => return,
        };
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
        self.renew_wishes();
        let ids: Vec<PeerId> = self.peers.keys().copied().collect();
        ids.into_iter().for_each(|id| self.note_chain_of(id));
        self.act(now);
    }

    /// Peers may have the blocks of `chain`: those that connected to us are told of its tip.
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
            self.send(id, Outgoing::Message(Message::Inv(vec![item])));
        }
    }

    /// Does what headers and download want done.
    pub(super) fn act(&mut self, now: u64) {
        for action in self.headers.actions() {
            match action {
                headers::HeaderAction::GetHeaders { peer, locator, stop } => {
                    self.send(peer, Outgoing::Message(Message::GetHeaders { locator, stop }));
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
                    self.send(peer, Outgoing::Message(Message::GetData(items)));
                    self.fence(peer, &blocks);
                }
                download::DownloadAction::Disconnect { peer, why } => {
                    self.hang_up(peer, &why.to_string(), why.into());
                }
            }
        }
    }

    /// A request for a block: with its witnesses, unless it is one of the chain that is wanted without.
    fn wanted(&self, (height, hash): (Height, BlockHash)) -> Inventory {
        let is_known = || self.chain.as_ref().is_some_and(|it| it.hash(height) == Some(&hash));
        if height <= self.without_witnesses && is_known() {
            return Inventory { kind: InventoryKind::Block, hash: hash.0 };
        }
        Inventory::witness_block(hash)
    }

    /// Whether blocks of the chain are wanted, and no peer is there that could be asked for one. A
    /// block beside the chain does not count: that no peer has it is no peer's fault.
    pub(super) fn is_stuck(&self, now: u64) -> bool {
        !self.mailboxes.is_empty() && {
            let status = self.download.status(now);
            let unavailable = status.unavailable > self.wishes.len();
            unavailable && status.limited_by == Limit::Peers && status.in_flight == 0
        }
    }

    /// Nothing will come any more.
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
        self.wishes.close_all();
    }

    /// Whether a caller waits for anything.
    pub(super) fn is_awaited(&self) -> bool {
        !self.mailboxes.is_empty() || !self.wishes.is_empty() || self.settling
    }

    /// A caller begins to wait: patience begins anew.
    pub(super) fn begin_to_wait(&mut self, now: u64) {
        if !self.is_awaited() {
            self.useful_at = now;
            self.failure = self.broken.clone();
        }
    }
}

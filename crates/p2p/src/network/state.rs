//! What the network knows, under one lock.

use super::by_hash::{Fences, Wishes};
use super::invalid::InvalidBlocks;
use super::liveness::Liveness;
use super::mailbox::{Mailbox, Mailboxes};
use super::peer::{Outgoing, Turns};
use super::presence::Verdict;
use super::raw_headers::RawHeaders;
use super::{NetworkError, NetworkOptions};
use crate::PeerId;
use crate::addresses::{AddressBook, NodeAddress, Reach};
use crate::download::{self, Download, Limit, Received};
use crate::headers::{self, HeaderSync};
use crate::message::{Inventory, InventoryKind, Message};
use crate::transport::{BlockBytes, Closer, Fault, PeerError, PeerInfo};
use apus_chain::{
    BlockHash, BlockPlace, HEADER_SIZE, HeaderChain, HeaderStatus, Height, HeightRange,
};
use std::collections::{HashMap, HashSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::sync::mpsc::{SyncSender, TrySendError};

/// Peers that were found, and whose headers are good enough to begin with: the most-work chain of
/// several is hardly ever behind, and the run ends at the tip of all of them in any case.
const ENOUGH_PEERS: usize = 4;

/// So long others are waited for who may have more headers, in milliseconds.
const ATTEMPTS_MS: u64 = 8_000;

/// Peers that were there, are gone and still remembered.
const LOST_MAX: usize = 64;

/// A connected peer, as other threads see it.
pub(super) struct Handle {
    pub(super) outgoing: SyncSender<Outgoing>,
    pub(super) closer: Closer,
    pub(super) received: Arc<AtomicU64>,
    /// What was received when the last whole message had come.
    pub(super) at_message: Arc<AtomicU64>,
    /// Requests of its that are being answered.
    pub(super) turns: Arc<Turns>,
    pub(super) info: PeerInfo,
}

/// A peer, from the moment that somebody dials.
pub(super) struct Peer {
    /// Its address; none where it connected to us.
    pub(super) address: Option<NodeAddress>,
    /// There once the handshake is done.
    pub(super) handle: Option<Handle>,
    /// Why we hung up, if we did, and what that says about it.
    why: Option<(String, Verdict)>,
    pub(super) liveness: Liveness,
    pub(super) fences: Fences,
    /// When it last asked for blocks; before that, when it came.
    pub(super) asked_at: u64,
}

pub(super) struct State {
    pub(super) headers: HeaderSync,
    pub(super) download: Download,
    pub(super) book: AddressBook,
    pub(super) peers: HashMap<PeerId, Peer>,
    next_peer: u32,
    pings: u64,
    /// The chain whose blocks are asked for.
    pub(super) chain: Option<Arc<HeaderChain>>,
    /// The chain that others are told of: one whose blocks are here.
    pub(super) served: Option<Arc<HeaderChain>>,
    /// The attempts to connect that were made first; none before they are.
    pub(super) first_attempts: Option<Vec<PeerId>>,
    /// With so many one need not wait for more.
    enough_peers: usize,
    pub(super) mailboxes: Mailboxes,
    pub(super) wishes: Wishes,
    /// Blocks that proved invalid.
    pub(super) invalid: InvalidBlocks,
    raw: RawHeaders,
    /// Headers that were not handed out yet.
    new: Vec<[u8; HEADER_SIZE]>,
    /// Since when no peer has what is wanted.
    pub(super) stuck_since: Option<u64>,
    /// When that is asked next.
    pub(super) usefulness_at: u64,
    /// Whether somebody waits for headers.
    pub(super) settling: bool,
    /// When something useful came last.
    pub(super) useful_at: u64,
    /// Why the last peer that went did.
    pub(super) last_lost: Option<String>,
    pub(super) failure: Option<NetworkError>,
    /// Why nothing will ever come any more.
    pub(super) broken: Option<NetworkError>,
    /// Whether the user named the peers to connect to.
    keeps_named: bool,
    /// The peers that were lost last, while blocks of theirs may await judgement.
    lost: VecDeque<(PeerId, NodeAddress)>,
    /// Those of the user's that misbehaved, until they are dialled again.
    pub(super) misbehaved: HashSet<PeerId>,
    pub(super) ended: bool,
}

impl Peer {
    fn is_connected(&self) -> bool {
        self.handle.is_some()
    }

    /// Whether it connected to us.
    pub(super) fn is_inbound(&self) -> bool {
        self.address.is_none()
    }

    /// Whether we hung up on it.
    pub(super) fn is_leaving(&self) -> bool {
        self.why.is_some()
    }
}

impl State {
    pub(super) fn new(options: &NetworkOptions, seed: u64) -> Self {
        let mut book = AddressBook::new(options.params.network, seed);
        book.set_reach(Reach { onion: options.proxy.is_some(), ..Reach::default() });
        // What does not read well is found again.
        let _ = book.restore(&options.addresses, super::unix_time());
        let mut headers = HeaderSync::new(&options.params, super::unix_time());
        // What does not fit is downloaded again.
        headers.restore(options.headers.iter().copied());
        let mut raw = RawHeaders::new(&options.params.genesis_header);
        raw.add(headers.tree(), &options.headers);
        Self {
            headers,
            raw,
            new: Vec::new(),
            download: Download::new(download::Options {
                bytes_max: options.bytes_max,
                ..download::Options::default()
            }),
            book,
            peers: HashMap::new(),
            next_peer: 0,
            pings: 0,
            chain: None,
            served: None,
            first_attempts: None,
            enough_peers: if options.connect.is_empty() { ENOUGH_PEERS } else { 1 },
            mailboxes: Mailboxes::default(),
            wishes: Wishes::default(),
            invalid: InvalidBlocks::default(),
            stuck_since: None,
            usefulness_at: 0,
            settling: false,
            useful_at: 0,
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

    /// Whether those who answer have told all headers they have, and enough were asked.
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
        self.raw.get(tree, tree.find(hash)?)
    }

    /// A number that no ping had before.
    pub(super) fn next_nonce(&mut self) -> u64 {
        self.pings += 1;
        self.pings
    }

    /// A place for a peer that we connect to.
    pub(super) fn new_peer(&mut self, address: Option<NodeAddress>, now: u64) -> PeerId {
        let id = PeerId(self.next_peer);
        self.next_peer += 1;
        let peer = Peer {
            address,
            handle: None,
            why: None,
            liveness: Liveness::new(now),
            fences: Fences::default(),
            asked_at: now,
        };
        self.peers.insert(id, peer);
        id
    }

    /// The handshake is done.
    pub(super) fn connected(
        &mut self,
        id: PeerId,
        handle: Handle,
        now: u64,
    ) -> Result<(), PeerError> {
        let Some(peer) = self.peers.get_mut(&id).filter(|_| !self.ended) else {
            handle.closer.close();
            return Err(PeerError::Closed);
        };
        let version = &handle.info.version;
        let services = version.services;
        if let Some(address) = &peer.address {
            self.book.connected(address, services, super::unix_time());
        }
        let outbound = !peer.is_inbound();
        peer.handle = Some(handle);
        self.send(id, Outgoing::Message(Message::SendHeaders));
        self.ping(id, now);
        if outbound {
            self.send(id, Outgoing::Message(Message::GetAddr));
            self.headers.peer_connected(id, now);
            self.download.peer_added(id, services, now);
            self.note_chain_of(id);
            self.ask_for_wishes(id);
        }
        self.act(now);
        Ok(())
    }

    /// A peer's thread has ended.
    pub(super) fn gone(&mut self, id: PeerId, reason: &PeerError, now: u64) {
        let Some(peer) = self.peers.remove(&id) else { return };
        if let Some(handle) = &peer.handle {
            handle.closer.close();
        }
        self.headers.peer_gone(id, now);
        self.download.peer_gone(id);
        self.book.peer_gone(id);
        if let Some(address) = &peer.address {
            let unix = super::unix_time();
            let (why, verdict) = match &peer.why {
                Some((why, verdict)) => (why.clone(), *verdict),
                None if reason.kind() == Fault::Misbehaved => {
                    (reason.to_string(), Verdict::Misbehaved)
                }
                None if peer.handle.is_none() => (reason.to_string(), Verdict::Useless),
                None => (reason.to_string(), Verdict::Blameless),
            };
            self.last_lost = Some(format!("{address}: {why}"));
            match verdict {
                Verdict::Misbehaved => self.book.misbehaved(address, unix),
                Verdict::Useless => self.book.failed(address, unix),
                Verdict::Blameless => self.book.disconnected(address, unix),
            }
            if verdict == Verdict::Misbehaved && self.keeps_named {
                self.misbehaved.insert(id);
            }
            // One that was never reached has sent nothing.
            if peer.handle.is_some() {
                self.lost.push_back((id, address.clone()));
                if self.lost.len() > LOST_MAX {
                    self.lost.pop_front();
                }
            }
        }
        self.act(now);
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

    /// Takes a message of any kind but blocks and requests. Tells whether somebody may wait for it.
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
        self.raw.add(self.headers.tree(), &new);
        self.new.extend(new);
        let learned = learned.map_err(|error| PeerError::Protocol { what: error.to_string() })?;
        if learned.new_headers > 0 || self.headers.candidate_height() > before {
            self.useful_at = now;
        }
        self.note_chain_of(id);
        self.part_if_invalid(id);
        Ok(true)
    }

    /// Tells the download how far the peer shares the chain that is asked for.
    fn note_chain_of(&mut self, id: PeerId) {
        let Some(chain) = &self.chain else { return };
        let Some(best) = self.headers.peer_best(id) else { return };
        let tree = self.headers.tree();
        let HeaderStatus::Connected(header) = tree.status(best) else { return };
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

    /// Others may have the blocks of `chain`: those who connected to us are told of its tip.
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

    pub(super) fn want(&mut self, range: HeightRange, now: u64) -> Arc<Mailbox> {
        self.begin_to_wait(now);
        let mailbox = self.mailboxes.open(range);
        if self.failure.is_some() || self.ended {
            mailbox.close();
        }
        if let Some(chain) = &self.chain {
            self.download.want(range, &|height| chain.hash(height).copied());
        }
        self.act(now);
        mailbox
    }

    pub(super) fn unwant(&mut self, range: HeightRange, now: u64) {
        self.download.unwant(range);
        for hash in self.mailboxes.remove(range) {
            self.download.consumed(&hash);
        }
        self.renew_wishes();
        self.act(now);
    }

    pub(super) fn block(&mut self, id: PeerId, hash: BlockHash, raw: BlockBytes, now: u64) {
        match self.download.block(id, &hash, raw.len() as u64, now) {
            // Whether it was useful is known when it is judged.
            Received::Wanted(height) => self.hand_out(height, hash, raw),
            Received::Duplicate(_) | Received::NoRoom(_) | Received::Unrequested => {}
        }
    }

    /// Hands a block to who asked for it by its hash, to who asked for its height, or to both.
    fn hand_out(&mut self, height: Height, hash: BlockHash, raw: BlockBytes) {
        let of_chain = self.mailboxes.of(height).filter(|_| self.download.is_on_chain(&hash));
        let of_chain = of_chain.map(|mailbox| &**mailbox);
        match (self.wishes.mailbox(&hash, of_chain.is_some()), of_chain) {
            (Some(wish), Some(of_chain)) => {
                wish.put(height, hash, raw.clone());
                of_chain.put(height, hash, raw);
            }
            (Some(mailbox), None) | (None, Some(mailbox)) => mailbox.put(height, hash, raw),
            (None, None) => {
                self.download.consumed(&hash);
            }
        }
    }

    /// A block was good.
    pub(super) fn accepted(&mut self, hash: &BlockHash, now: u64) {
        self.useful_at = now;
        self.download.consumed(hash);
        self.act(now);
    }

    /// A block was given back by one who did not look at it.
    pub(super) fn returned(&mut self, hash: &BlockHash, now: u64) {
        self.download.consumed(hash);
        self.act(now);
    }

    /// A copy was damaged. Where it came from; its sender may be gone already.
    pub(super) fn damaged(&mut self, hash: &BlockHash, now: u64) -> Option<String> {
        let sender = self.download.damaged(hash)?;
        let there = self.peers.get(&sender).and_then(|peer| peer.handle.as_ref());
        let address = match there {
            Some(handle) => Some(handle.info.address.to_string()),
            None => {
                let gone = self.lost.iter().find(|(id, _)| *id == sender);
                gone.inspect(|(_, address)| self.book.misbehaved(address, super::unix_time()))
                    .map(|(_, address)| address.to_string())
            }
        };
        self.act(now);
        address
    }

    /// Does what headers and download want done.
    pub(super) fn act(&mut self, now: u64) {
        for action in self.headers.actions() {
            match action {
                headers::Action::GetHeaders { peer, locator, stop } => {
                    self.send(peer, Outgoing::Message(Message::GetHeaders { locator, stop }));
                }
                headers::Action::Disconnect { peer, why } => {
                    self.hang_up(peer, &why.to_string(), why.into());
                }
            }
        }
        for action in self.download.tick(now) {
            match action {
                download::Action::Request { peer, blocks } => {
                    let items = blocks.iter().map(|(_, hash)| Inventory::witness_block(*hash));
                    self.send(peer, Outgoing::Message(Message::GetData(items.collect())));
                    self.fence(peer, &blocks);
                }
                download::Action::Disconnect { peer, why } => {
                    self.hang_up(peer, &why.to_string(), why.into());
                }
            }
        }
    }

    /// Ends a connection; the peer's thread will tell that it is gone.
    pub(super) fn hang_up(&mut self, id: PeerId, why: &str, verdict: Verdict) {
        let Some(peer) = self.peers.get_mut(&id) else { return };
        if let Some(handle) = &peer.handle {
            // The first reason is the one.
            peer.why.get_or_insert_with(|| (why.to_owned(), verdict));
            handle.closer.close();
        }
    }

    /// Whether blocks of the chain are wanted, and nobody is there who could be asked for one. That
    /// nobody has a block beside the chain says nothing about anybody.
    pub(super) fn is_stuck(&self, now: u64) -> bool {
        !self.mailboxes.is_empty() && {
            let status = self.download.status(now);
            let unavailable = status.unavailable > self.wishes.len();
            unavailable && status.limited_by == Limit::Peers && status.in_flight == 0
        }
    }

    /// Ends all connections that we made.
    pub(super) fn part_with_all(&mut self, why: &str) {
        let outbound = self.peers.iter().filter(|(_, peer)| !peer.is_inbound());
        let outbound: Vec<PeerId> = outbound.map(|(&id, _)| id).collect();
        outbound.into_iter().for_each(|id| self.hang_up(id, why, Verdict::Blameless));
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

    /// Whether somebody waits for something.
    pub(super) fn is_awaited(&self) -> bool {
        !self.mailboxes.is_empty() || !self.wishes.is_empty() || self.settling
    }

    /// Somebody begins to wait: patience begins anew.
    pub(super) fn begin_to_wait(&mut self, now: u64) {
        if !self.is_awaited() {
            self.useful_at = now;
            self.failure = self.broken.clone();
        }
    }
}

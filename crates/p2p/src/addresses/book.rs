//! [`AddressBook`]: the addresses that are known, and which to try next.
//!
//! Most of them come from strangers, which may want to be the only ones we talk to. So no stranger
//! can fill the book: what one peer, the group of one peer, and one group of
//! addresses may put into it is limited, and what is there gives way only if it failed or is old.
//! And no two connections go to the same group, unless the user named the addresses.
//!
//! Invariant: `index` has exactly the entries, `groups` and `sources` count those that no user named.

use super::{Host, NetGroup, NodeAddress, Services, is_routable};
use crate::PeerId;
use apus_chain::Network;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

/// Addresses in the book, besides those that the user named: some 5 MB.
const ADDRESSES_MAX: usize = 20_000;

/// Addresses of one group in the book.
const GROUP_MAX: usize = 64;

/// Addresses in the book that came from peers of one group.
const SOURCE_MAX: usize = 2000;

/// Addresses of a message that are looked at, and those that a peer may give at first; after that it
/// may give one in ten seconds (Core `net_processing.cpp`, `MAX_ADDR_PROCESSING_TOKEN_BUCKET`,
/// `MAX_ADDR_RATE_PER_SECOND`).
const PEER_ALLOWANCE: usize = 1000;

/// See [`PEER_ALLOWANCE`].
const SECONDS_AN_ADDRESS: i64 = 10;

/// Peers whose allowance is kept in mind. Those of others are used up.
const PEERS_MAX: usize = 1024;

/// Hosts that are kept in mind for having misbehaved.
const BANS_MAX: usize = 10_000;

/// How long one that misbehaved is left alone.
const BAN_SECONDS: i64 = DAY_SECONDS;

/// An address that was not heard of for so long, and that never answered, is forgotten (Core
/// `addrman.cpp`, `ADDRMAN_HORIZON`).
const HORIZON_SECONDS: i64 = 30 * DAY_SECONDS;

/// How much older an address counts that a peer told of (Core `net_processing.cpp`, `ProcessAddrs`).
const HEARSAY_SECONDS: i64 = 2 * 60 * 60;

/// Lower ports belong to other services; only users may name nodes there.
const PORT_MIN: u16 = 1024;

/// What an address has to offer to be of use.
const SERVICES: Services = Services::NETWORK.with(Services::WITNESS);

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Where an address comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddressSource {
    User,
    /// A seed, or an earlier run.
    Trusted,
    /// A peer of this group.
    Peer(NetGroup),
}

#[derive(Debug)]
pub(super) struct AddressEntry {
    pub(super) address: NodeAddress,
    pub(super) source: AddressSource,
    /// It was picked, and nothing was said of it since but that it is connected.
    in_use: bool,
    /// When it last proved to be a node; 0 for never.
    pub(super) success: i64,
    /// Failures since then.
    pub(super) failures: u32,
    /// When it may be tried again.
    not_before: i64,
}

impl AddressEntry {
    fn is_users(&self) -> bool {
        self.source == AddressSource::User
    }

    /// Whether it may give way: never known to be good, and failing or long unheard of.
    fn is_worthless(&self, now: i64) -> bool {
        let old = now.saturating_sub(i64::from(self.address.time)) > HORIZON_SECONDS;
        !self.is_users() && !self.in_use && self.success == 0 && (self.failures > 0 || old)
    }

    /// Waits longer after each failure: ten minutes to a day, or ten seconds to ten minutes for the
    /// user's own.
    fn back_off(&mut self, now: i64) {
        let (first, most) = if self.is_users() { (10, 600) } else { (600, DAY_SECONDS) };
        let doubled = self.failures.saturating_sub(1).min(16);
        self.not_before = now.saturating_add((first << doubled).min(most));
    }
}

/// How many addresses a peer may still give.
#[derive(Debug)]
struct Allowance {
    count: usize,
    /// Up to when the time was turned into addresses.
    since: i64,
}

/// Addresses of nodes, all times in seconds since 1970.
#[derive(Debug)]
pub struct AddressBook {
    pub(super) network: Network,
    /// Whether Tor services can be connected to, through a proxy.
    onion: bool,
    random: Random,
    pub(super) entries: Vec<AddressEntry>,
    /// How many of them the user named.
    users: usize,
    index: HashMap<(Host, u16), usize>,
    groups: HashMap<NetGroup, usize>,
    sources: HashMap<NetGroup, usize>,
    peers: HashMap<PeerId, Allowance>,
    bans: HashMap<Host, i64>,
}

impl AddressBook {
    /// An empty book. What it picks follows from `seed`, which the caller keeps secret.
    pub fn new(network: Network, seed: u64) -> Self {
        Self {
            network,
            onion: false,
            random: Random(seed),
            entries: Vec::new(),
            users: 0,
            index: HashMap::new(),
            groups: HashMap::new(),
            sources: HashMap::new(),
            peers: HashMap::new(),
            bans: HashMap::new(),
        }
    }

    /// Says whether Tor services can be connected to, which else are neither added nor picked.
    pub fn set_onion(&mut self, onion: bool) {
        self.onion = onion;
    }

    fn reaches(&self, host: &Host) -> bool {
        self.onion || !matches!(host, Host::TorV3(_))
    }

    /// Adds an address that the user named: it is picked before all others, whatever its group.
    pub fn add_user(&mut self, address: NodeAddress, now: i64) {
        let address = canonical(address);
        let known = self.position(&address).map(|at| self.remove(at));
        self.push(address, AddressSource::User, now);
        if let Some(known) = known
            && let Some(entry) = self.entries.last_mut()
        {
            (entry.in_use, entry.success) = (known.in_use, known.success);
        }
    }

    /// Adds addresses from seeds: how many are new. They count as some days old, so that fresher
    /// ones count for more (Core `net.cpp`, `ThreadDNSAddressSeed`).
    pub fn add_from_dns(&mut self, addresses: &[SocketAddr], now: i64) -> usize {
        let mut count = 0;
        for &address in addresses {
            let age = 3 * DAY_SECONDS + self.random.below(4 * DAY_SECONDS as u64) as i64;
            let time = clamp_time(now.saturating_sub(age));
            let address = NodeAddress { services: SERVICES, time, ..address.into() };
            count += usize::from(self.add(address, AddressSource::Trusted, now));
        }
        count
    }

    /// Adds addresses that `peer`, which is at `from`, told of: how many are new.
    pub fn add_from_peer(
        &mut self,
        peer: PeerId,
        from: &NodeAddress,
        addresses: &[NodeAddress],
        now: i64,
    ) -> usize {
        let allowed = self.spend_allowance(peer, addresses.len().min(PEER_ALLOWANCE), now);
        let source = NetGroup::of(&canonical(from.clone()).host);
        let mut count = 0;
        for address in &addresses[..allowed] {
            let mut address = address.clone();
            let told = i64::from(address.time);
            // Core `net_processing.cpp`, `ProcessAddrs`: what cannot be counts as five days old.
            let time = if told <= 100_000_000 || told > now.saturating_add(600) {
                now.saturating_sub(5 * DAY_SECONDS)
            } else {
                told
            };
            address.time = clamp_time(time.saturating_sub(HEARSAY_SECONDS));
            count += usize::from(self.add(address, AddressSource::Peer(source.clone()), now));
        }
        count
    }

    fn spend_allowance(&mut self, peer: PeerId, wanted: usize, now: i64) -> usize {
        if !self.peers.contains_key(&peer) && self.peers.len() >= PEERS_MAX {
            return 0;
        }
        let full = Allowance { count: PEER_ALLOWANCE, since: now };
        let allowance = self.peers.entry(peer).or_insert(full);
        let gained = now.saturating_sub(allowance.since).max(0) / SECONDS_AN_ADDRESS;
        allowance.since = allowance.since.saturating_add(gained * SECONDS_AN_ADDRESS);
        let gained = usize::try_from(gained).unwrap_or(PEER_ALLOWANCE);
        allowance.count = allowance.count.saturating_add(gained).min(PEER_ALLOWANCE);
        let spent = wanted.min(allowance.count);
        allowance.count -= spent;
        spent
    }

    /// A peer is gone: its allowance is forgotten.
    pub fn peer_gone(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    /// Adds an address that no user named, if it can be of use and there is room. Whether it is new.
    pub(super) fn add(&mut self, address: NodeAddress, source: AddressSource, now: i64) -> bool {
        let address = canonical(address);
        if !self.is_useful(&address) {
            return false;
        }
        if let Some(at) = self.position(&address) {
            let known = &mut self.entries[at].address;
            known.time = known.time.max(address.time);
            known.services = known.services.with(address.services);
            return false;
        }
        let old = now.saturating_sub(i64::from(address.time)) > HORIZON_SECONDS;
        let group = NetGroup::of(&address.host);
        // Private networks are in few groups, and have no strangers.
        let crowded = self.is_public()
            && (self.groups.get(&group).is_some_and(|&count| count >= GROUP_MAX)
                || matches!(&source, AddressSource::Peer(of)
                    if self.sources.get(of).is_some_and(|&count| count >= SOURCE_MAX)));
        if old || crowded || !self.has_room(now) {
            return false;
        }
        self.push(address, source, now);
        true
    }

    fn is_public(&self) -> bool {
        self.network != Network::Regtest
    }

    fn is_useful(&self, address: &NodeAddress) -> bool {
        let public = is_routable(&address.host) && address.port >= PORT_MIN;
        let named = matches!(address.host, Host::Name(_));
        let place = if self.is_public() { public } else { address.port > 0 && !named };
        place && self.reaches(&address.host) && address.services.has(SERVICES)
    }

    /// Makes room, if some of a few entries chosen at random may give way.
    fn has_room(&mut self, now: i64) -> bool {
        if self.entries.len().saturating_sub(self.users) < ADDRESSES_MAX {
            return true;
        }
        for _ in 0..8 {
            let at = self.random.below(self.entries.len() as u64) as usize;
            if self.entries[at].is_worthless(now) {
                self.remove(at);
                return true;
            }
        }
        false
    }

    fn push(&mut self, address: NodeAddress, source: AddressSource, now: i64) {
        if source == AddressSource::User {
            self.users += 1;
        } else {
            *self.groups.entry(NetGroup::of(&address.host)).or_default() += 1;
        }
        if let AddressSource::Peer(group) = &source {
            *self.sources.entry(group.clone()).or_default() += 1;
        }
        self.index.insert((address.host.clone(), address.port), self.entries.len());
        let entry = AddressEntry {
            address,
            source,
            in_use: false,
            success: 0,
            failures: 0,
            not_before: now,
        };
        self.entries.push(entry);
    }

    fn remove(&mut self, at: usize) -> AddressEntry {
        let entry = self.entries.swap_remove(at);
        let NodeAddress { host, port, .. } = &entry.address;
        if entry.is_users() {
            self.users -= 1;
        } else {
            forget_one(&mut self.groups, &NetGroup::of(host));
        }
        if let AddressSource::Peer(group) = &entry.source {
            forget_one(&mut self.sources, group);
        }
        self.index.remove(&(host.clone(), *port));
        if let Some(moved) = self.entries.get(at) {
            self.index.insert((moved.address.host.clone(), moved.address.port), at);
        }
        entry
    }

    fn position(&self, address: &NodeAddress) -> Option<usize> {
        self.index.get(&(address.host.clone(), address.port)).copied()
    }

    pub(super) fn entry_mut(&mut self, address: &NodeAddress) -> Option<&mut AddressEntry> {
        let at = self.position(&canonical(address.clone()))?;
        self.entries.get_mut(at)
    }

    /// An address to connect to now, the user's first, then one that proved good before or, as
    /// often, one that is new. It is in use, and its group with it, until it is said to have
    /// [failed](Self::failed), [misbehaved](Self::misbehaved) or [gone](Self::disconnected).
    pub fn pick(&mut self, now: i64) -> Option<NodeAddress> {
        let mut random = self.random;
        let (mut users, mut good, mut new) = (Draw::default(), Draw::default(), Draw::default());
        for (at, entry) in self.ready(now) {
            let draw = match (entry.is_users(), entry.success) {
                (true, _) => &mut users,
                (false, 0) => &mut new,
                (false, _) => &mut good,
            };
            draw.offer(at, &mut random);
        }
        let prefers_good = random.below(2) == 0;
        self.random = random;
        let (first, second) = if prefers_good { (good, new) } else { (new, good) };
        let at = users.drawn().or_else(|| first.drawn()).or_else(|| second.drawn())?;
        let entry = self.entries.get_mut(at)?;
        entry.in_use = true;
        Some(entry.address.clone())
    }

    /// How many addresses [`pick`](Self::pick) could give now, if only one of each were wanted. When
    /// it is 0, seeds are to be asked.
    pub fn ready_count(&self, now: i64) -> usize {
        self.ready(now).count()
    }

    fn ready(&self, now: i64) -> impl Iterator<Item = (usize, &AddressEntry)> {
        let in_use = self.entries.iter().filter(|entry| entry.in_use && !entry.is_users());
        let used: HashSet<NetGroup> =
            in_use.filter(|_| self.is_public()).map(|e| NetGroup::of(&e.address.host)).collect();
        self.entries.iter().enumerate().filter(move |(_, entry)| {
            let host = &entry.address.host;
            !entry.in_use
                && entry.not_before <= now
                && (entry.is_users()
                    || (self.reaches(host)
                        && !self.is_banned(host, now)
                        && !used.contains(&NetGroup::of(host))))
        })
    }

    /// A handshake with it was done, in which it told its services.
    pub fn connected(&mut self, address: &NodeAddress, services: Services, now: i64) {
        if let Some(entry) = self.entry_mut(address) {
            entry.success = now.max(1);
            entry.failures = 0;
            entry.address.services = services;
            entry.address.time = clamp_time(now);
        }
    }

    /// It could not be connected to, or ended the connection before the handshake was done, or was
    /// of no use.
    pub fn failed(&mut self, address: &NodeAddress, now: i64) {
        if let Some(entry) = self.entry_mut(address) {
            entry.in_use = false;
            entry.failures = entry.failures.saturating_add(1);
            entry.back_off(now);
        }
    }

    /// The connection ended, and the peer is not to blame.
    pub fn disconnected(&mut self, address: &NodeAddress, now: i64) {
        if let Some(entry) = self.entry_mut(address) {
            entry.in_use = false;
            entry.back_off(now);
        }
    }

    /// It did what no honest node does: its host is left alone for a day. A host that others may
    /// share, because it is not public, only with this port.
    pub fn misbehaved(&mut self, address: &NodeAddress, now: i64) {
        let until = now.saturating_add(BAN_SECONDS);
        if let Some(entry) = self.entry_mut(address) {
            entry.in_use = false;
            entry.failures = entry.failures.saturating_add(1);
            entry.not_before = until;
        }
        let host = canonical(address.clone()).host;
        if !is_routable(&host) {
            return;
        }
        if self.bans.len() >= BANS_MAX {
            self.bans.retain(|_, until| *until > now);
        }
        if self.bans.len() < BANS_MAX {
            self.bans.insert(host, until);
        }
    }

    /// Whether a host misbehaved within a day.
    pub fn is_banned(&self, host: &Host, now: i64) -> bool {
        self.bans.get(host).is_some_and(|&until| until > now)
    }

    /// How many addresses are known.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether none is known.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// An IPv4 address in IPv6's clothes is that IPv4 address.
fn canonical(mut address: NodeAddress) -> NodeAddress {
    if let Host::Ip(ip) = &mut address.host {
        *ip = ip.to_canonical();
    }
    address
}

fn clamp_time(time: i64) -> u32 {
    u32::try_from(time.max(0)).unwrap_or(u32::MAX)
}

fn forget_one(counts: &mut HashMap<NetGroup, usize>, group: &NetGroup) {
    if let Some(count) = counts.get_mut(group) {
        *count -= 1;
        if *count == 0 {
            counts.remove(group);
        }
    }
}

/// One of any number of things, each as likely as any other.
#[derive(Debug, Default)]
struct Draw {
    offered: u64,
    drawn: usize,
}

impl Draw {
    fn offer(&mut self, at: usize, random: &mut Random) {
        self.offered += 1;
        if random.below(self.offered) == 0 {
            self.drawn = at;
        }
    }

    fn drawn(&self) -> Option<usize> {
        (self.offered > 0).then_some(self.drawn)
    }
}

/// SplitMix64. What it picks cannot be told without its state.
#[derive(Debug, Clone, Copy)]
struct Random(u64);

impl Random {
    /// A number less than `bound`, which is not 0.
    fn below(&mut self, bound: u64) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.0;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^= mixed >> 31;
        ((u128::from(mixed) * u128::from(bound)) >> 64) as u64
    }
}

#[cfg(test)]
mod tests;

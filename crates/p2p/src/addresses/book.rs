//! [`AddressBook`]: the known addresses, and which one to try next.
//!
//! Most addresses come from strangers, who may want to become our only peers. So no stranger can fill the
//! book: there are limits for each peer, for each peer's group and for each group of addresses, and an entry
//! is evicted only if it failed or is old. No two connections go to the same group, unless the user named the
//! addresses.
//!
//! Invariant: `index` has exactly the entries; `groups` and `sources` count the entries that no user named.

use super::{Host, NetGroup, NodeAddress, Services, is_routable};
use crate::PeerId;
use apus_chain::Network;
use std::collections::{HashMap, HashSet};
use std::net::SocketAddr;

/// Maximum number of addresses in the book, besides the user's: about 5 MB.
const ADDRESSES_MAX: usize = 20_000;

/// Maximum number of addresses of one group in the book.
const GROUP_MAX: usize = 64;

/// Maximum number of addresses in the book that came from peers of one group.
const SOURCE_MAX: usize = 2000;

/// Maximum number of addresses read from one message, and a peer's initial allowance. After that, a peer may give one
/// address every ten seconds (Core `net_processing.cpp`, `MAX_ADDR_PROCESSING_TOKEN_BUCKET`,
/// `MAX_ADDR_RATE_PER_SECOND`).
const PEER_ALLOWANCE: usize = 1000;

/// Seconds until a peer that used up [`PEER_ALLOWANCE`] may give another address.
const SECONDS_AN_ADDRESS: i64 = 10;

/// Maximum number of peers whose allowance is remembered. Any other peer has none left.
const PEERS_MAX: usize = 1024;

/// Maximum number of banned hosts remembered.
const BANS_MAX: usize = 10_000;

/// How long a misbehaving host is banned.
const BAN_SECONDS: i64 = DAY_SECONDS;

/// An address that never answered is forgotten when this long has passed since it was last reported (Core
/// `addrman.cpp`, `ADDRMAN_HORIZON`).
const HORIZON_SECONDS: i64 = 30 * DAY_SECONDS;

/// Age added to an address that a peer reported, because it is hearsay (Core `net_processing.cpp`,
/// `ProcessAddrs`).
const HEARSAY_SECONDS: i64 = 2 * 60 * 60;

/// Lower ports belong to other services; only users may name nodes there.
const PORT_MIN: u16 = 1024;

/// Services that an address must offer to be useful.
const SERVICES: Services = Services::NETWORK.with(Services::WITNESS);

const DAY_SECONDS: i64 = 24 * 60 * 60;

/// Origin of an address.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum AddressSource {
    User,
    /// A seed, or the file of an earlier start.
    Trusted,
    /// A peer of this group.
    Peer(NetGroup),
}

#[derive(Debug)]
pub(super) struct AddressEntry {
    pub(super) address: NodeAddress,
    pub(super) source: AddressSource,
    /// True once it was picked, until the caller reports a failure or the end of the connection.
    in_use: bool,
    /// When it last proved to be a node; 0 if never.
    pub(super) success: i64,
    /// Failures since its last success.
    pub(super) failures: u32,
    /// When it may be tried again.
    not_before: i64,
}

impl AddressEntry {
    fn is_users(&self) -> bool {
        self.source == AddressSource::User
    }

    /// Returns true if the entry may be evicted: it never proved good, and it fails or was last reported long
    /// ago.
    fn is_worthless(&self, now: i64) -> bool {
        let old = now.saturating_sub(i64::from(self.address.time)) > HORIZON_SECONDS;
        !self.is_users() && !self.in_use && self.success == 0 && (self.failures > 0 || old)
    }

    /// Waits longer after each failure: ten minutes to a day, or ten seconds to ten minutes for the user's
    /// addresses.
    fn back_off(&mut self, now: i64) {
        let (first, most) = if self.is_users() { (10, 600) } else { (600, DAY_SECONDS) };
        let doubled = self.failures.saturating_sub(1).min(16);
        self.not_before = now.saturating_add((first << doubled).min(most));
    }
}

/// How many more addresses a peer may give.
#[derive(Debug)]
struct Allowance {
    count: usize,
    /// The time up to which elapsed seconds were converted to allowance.
    since: i64,
}

/// The addresses of nodes. All times are in seconds since 1970.
#[derive(Debug)]
pub struct AddressBook {
    pub(super) network: Network,
    /// True if Tor services are reachable, through a proxy.
    onion: bool,
    random: Random,
    pub(super) entries: Vec<AddressEntry>,
    /// How many of the entries the user named.
    users: usize,
    index: HashMap<(Host, u16), usize>,
    groups: HashMap<NetGroup, usize>,
    sources: HashMap<NetGroup, usize>,
    peers: HashMap<PeerId, Allowance>,
    bans: HashMap<Host, i64>,
}

impl AddressBook {
    /// Creates an empty book. `seed` determines the picks; the caller keeps it secret.
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

    /// Sets whether Tor services are reachable. If not, they are neither added nor picked.
    pub fn set_onion(&mut self, onion: bool) {
        self.onion = onion;
    }

    fn reaches(&self, host: &Host) -> bool {
        self.onion || !matches!(host, Host::TorV3(_))
    }

    /// Adds an address that the user named. It is picked before all others, regardless of its group.
    pub fn add_user(&mut self, address: NodeAddress) {
        let address = canonical(address);
        let known = self.position(&address).map(|at| self.remove(at));
        self.push(address, AddressSource::User);
        if let Some(known) = known
            && let Some(entry) = self.entries.last_mut()
        {
            (entry.in_use, entry.success) = (known.in_use, known.success);
        }
    }

    /// Adds addresses from seeds and returns how many are new. They count as some days old, so that fresher
    /// ones are preferred (Core `net.cpp`, `ThreadDNSAddressSeed`).
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

    /// Adds addresses reported by `peer`, whose own address is `from`. Returns how many are new.
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
            let reported = i64::from(address.time);
            // Core `net_processing.cpp`, `ProcessAddrs`: an impossible time counts as five days ago.
            let time = if reported <= 100_000_000 || reported > now.saturating_add(600) {
                now.saturating_sub(5 * DAY_SECONDS)
            } else {
                reported
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

    /// Forgets the allowance of a peer that is gone.
    pub fn peer_gone(&mut self, peer: PeerId) {
        self.peers.remove(&peer);
    }

    /// Adds an address that no user named, if it is useful and there is room. Returns true if it is new.
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
        // Private networks have few groups and no strangers.
        let crowded = self.is_public()
            && (self.groups.get(&group).is_some_and(|&count| count >= GROUP_MAX)
                || matches!(&source, AddressSource::Peer(of)
                    if self.sources.get(of).is_some_and(|&count| count >= SOURCE_MAX)));
        if old || crowded || !self.has_room(now) {
            return false;
        }
        self.push(address, source);
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

    /// Makes room by evicting one of a few entries drawn at random, if one may be evicted.
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

    fn push(&mut self, address: NodeAddress, source: AddressSource) {
        if source == AddressSource::User {
            self.users += 1;
        } else {
            *self.groups.entry(NetGroup::of(&address.host)).or_default() += 1;
        }
        if let AddressSource::Peer(group) = &source {
            *self.sources.entry(group.clone()).or_default() += 1;
        }
        self.index.insert((address.host.clone(), address.port), self.entries.len());
        let entry =
            AddressEntry { address, source, in_use: false, success: 0, failures: 0, not_before: 0 };
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

    /// Picks an address to connect to now: the user's first, then with equal odds one that proved good before
    /// or a new one. The address and its group stay in use until the caller reports that it
    /// [failed](Self::failed), [misbehaved](Self::misbehaved) or [disconnected](Self::disconnected).
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

    /// Up to `most` addresses of nodes that reportedly offer these services: first the nodes that answered before, and
    /// otherwise in random order.
    pub fn with_services(&mut self, services: Services, most: usize, now: i64) -> Vec<NodeAddress> {
        let offers = |entry: &&AddressEntry| {
            let NodeAddress { host, services: offered, .. } = &entry.address;
            offered.has(services) && self.reaches(host) && !self.is_banned(host, now)
        };
        let offering = self.entries.iter().filter(offers);
        let mut found: Vec<(bool, u64, &NodeAddress)> = Vec::new();
        let mut random = self.random;
        for entry in offering {
            found.push((entry.success == 0, random.below(u64::MAX), &entry.address));
        }
        found.sort_unstable_by_key(|(is_new, draw, _)| (*is_new, *draw));
        let found = found.into_iter().take(most).map(|(.., address)| address.clone()).collect();
        self.random = random;
        found
    }

    /// How many addresses [`pick`](Self::pick) could return now. At 0, ask the seeds.
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
                // No entry waits for longer than a day, unless the clock was set back.
                && (entry.not_before <= now || entry.not_before > now.saturating_add(DAY_SECONDS))
                && (entry.is_users()
                    || (self.reaches(host)
                        && !self.is_banned(host, now)
                        && !used.contains(&NetGroup::of(host))))
        })
    }

    /// Records a completed handshake and the services that the node sent in it.
    pub fn connected(&mut self, address: &NodeAddress, services: Services, now: i64) {
        if let Some(entry) = self.entry_mut(address) {
            entry.success = now.max(1);
            entry.failures = 0;
            entry.address.services = services;
            entry.address.time = clamp_time(now);
        }
    }

    /// Records that connecting to an address failed, that it disconnected before the end of the handshake, or
    /// that it was useless.
    pub fn failed(&mut self, address: &NodeAddress, now: i64) {
        if let Some(entry) = self.entry_mut(address) {
            entry.in_use = false;
            entry.failures = entry.failures.saturating_add(1);
            entry.back_off(now);
        }
    }

    /// Records that the connection ended without the peer's fault.
    pub fn disconnected(&mut self, address: &NodeAddress, now: i64) {
        if let Some(entry) = self.entry_mut(address) {
            entry.in_use = false;
            entry.back_off(now);
        }
    }

    /// Bans the host for a day, because it did what no honest node does. If the host is not public, others
    /// may share it, so the ban covers only this port.
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

    /// Returns true if a host misbehaved within the last day.
    pub fn is_banned(&self, host: &Host, now: i64) -> bool {
        self.bans.get(host).is_some_and(|&until| until > now)
    }

    /// How many addresses the book has.
    pub const fn len(&self) -> usize {
        self.entries.len()
    }

    /// Returns true if the book is empty.
    pub const fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

/// Turns an IPv4-mapped IPv6 address into the IPv4 address.
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

/// Draws one of any number of items, each with the same probability.
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

/// SplitMix64. Its output cannot be predicted without its state.
#[derive(Debug, Clone, Copy)]
struct Random(u64);

impl Random {
    /// A number less than `bound`, which must not be 0.
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

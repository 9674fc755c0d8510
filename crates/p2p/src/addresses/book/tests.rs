//! Which addresses enter the book, and which ones it picks.

use super::*;
use apus_testkit::rng::Rng;
use proptest::prelude::*;
use std::net::IpAddr;
use std::net::Ipv4Addr;

const NOW: i64 = 1_800_000_000;

fn at(ip: &str) -> NodeAddress {
    let ip: IpAddr = ip.parse().unwrap();
    NodeAddress { host: Host::Ip(ip), port: 8333, services: SERVICES, time: NOW as u32 }
}

/// Addresses in distinct groups, from the `first` on.
fn spread(first: u32, count: u32) -> Vec<NodeAddress> {
    let ip = |i: u32| Ipv4Addr::from(0x0b00_0001 + ((first + i) << 16)).to_string();
    (0..count).map(|i| at(&ip(i))).collect()
}

/// Addresses of one group.
fn crowd(count: u32) -> Vec<NodeAddress> {
    (0..count).map(|i| at(&Ipv4Addr::from(0x0801_0000 + i).to_string())).collect()
}

fn book() -> AddressBook {
    AddressBook::new(Network::Main, 7)
}

/// Adds addresses as a peer that is unrelated to them.
fn tell(book: &mut AddressBook, peer: u32, addresses: &[NodeAddress]) -> usize {
    let from = at(&format!("9.{peer}.0.1"));
    book.add_from_peer(PeerId(peer), &from, addresses, NOW)
}

fn picks(book: &mut AddressBook, now: i64) -> Vec<NodeAddress> {
    std::iter::from_fn(|| book.pick(now)).collect()
}

fn check(book: &AddressBook) {
    assert_eq!(book.index.len(), book.entries.len());
    let (mut groups, mut sources) = (HashMap::new(), HashMap::new());
    for (i, entry) in book.entries.iter().enumerate() {
        assert_eq!(book.position(&entry.address), Some(i));
        if !entry.is_users() {
            *groups.entry(NetGroup::of(&entry.address.host)).or_insert(0) += 1;
        }
        if let AddressSource::Peer(group) = &entry.source {
            *sources.entry(group.clone()).or_insert(0) += 1;
        }
    }
    assert_eq!((groups, sources), (book.groups.clone(), book.sources.clone()));
    assert_eq!(book.users, book.entries.iter().filter(|entry| entry.is_users()).count());
}

#[test]
fn nodes_are_found_by_their_services() {
    let mut book = book();
    let wanted = Services(1 << 12 | 1 << 13);
    let all = spread(0, 9);
    let offering = |address: &NodeAddress, services: Services| NodeAddress {
        services: SERVICES.with(services),
        ..address.clone()
    };
    // Half of the bits is not enough.
    let bridges: Vec<_> = all[..5].iter().map(|it| offering(it, wanted)).collect();
    let others: Vec<_> = all[5..].iter().map(|it| offering(it, Services(1 << 12))).collect();
    tell(&mut book, 1, &[&bridges[..], &others].concat());
    let found = |book: &mut AddressBook, most| -> Vec<Host> {
        book.with_services(wanted, most, NOW).into_iter().map(|it| it.host).collect()
    };
    let hosts: HashSet<Host> = bridges.iter().map(|it| it.host.clone()).collect();
    assert_eq!(found(&mut book, 9).into_iter().collect::<HashSet<_>>(), hosts);
    assert_eq!((found(&mut book, 2).len(), found(&mut book, 0).len()), (2, 0));
    // One that proved to be a node comes first; what a node itself says replaces what others said.
    book.connected(&bridges[3], SERVICES.with(wanted), NOW);
    book.connected(&bridges[4], SERVICES, NOW);
    assert_eq!(found(&mut book, 9)[0], bridges[3].host);
    assert!(!found(&mut book, 9).contains(&bridges[4].host));
    book.misbehaved(&bridges[3], NOW);
    assert_eq!(found(&mut book, 9).len(), 3);
    check(&book);
}

#[test]
fn accepts_only_useful_addresses() {
    let mut book = book();
    let no_witness = NodeAddress { services: Services::NETWORK, ..at("8.1.1.1") };
    let pruned = NodeAddress {
        services: Services::NETWORK_LIMITED.with(Services::WITNESS),
        ..at("8.2.1.1")
    };
    let ssh = NodeAddress { port: 22, ..at("8.3.1.1") };
    let old = NodeAddress { time: NOW as u32 - 31 * 86_400, ..at("8.4.1.1") };
    let onion = NodeAddress { host: Host::TorV3([1; 32]), ..at("8.5.1.1") };
    let name = NodeAddress { host: Host::Name("node.example".into()), ..at("8.6.1.1") };
    let bad = [no_witness, pruned, ssh, old, onion.clone(), name, at("10.0.0.1")];
    assert_eq!(tell(&mut book, 1, &bad), 0);
    let good = [at("8.7.1.1"), at("::ffff:8.8.1.1"), at("2a00::1"), at("8.8.1.1")];
    assert_eq!(tell(&mut book, 1, &good), 3, "one address is listed twice");
    book.set_onion(true);
    assert_eq!(tell(&mut book, 1, std::slice::from_ref(&onion)), 1);
    book.set_onion(false);
    assert!(!picks(&mut book, NOW).contains(&onion), "no longer reachable");
    check(&book);
}

#[test]
fn regtest_accepts_any_address_and_any_group_size() {
    let mut book = AddressBook::new(Network::Regtest, 7);
    let local: Vec<_> =
        (0..100).map(|i| NodeAddress { port: 1000 + i, ..at("127.0.0.1") }).collect();
    assert_eq!(tell(&mut book, 1, &local), 100);
    assert_eq!(picks(&mut book, NOW).len(), 100);
    // One of them misbehaves; the others stay.
    book.misbehaved(&local[0], NOW);
    assert!(!book.is_banned(&local[1].host, NOW));
}

#[test]
fn an_impossible_time_counts_as_five_days_ago() {
    let mut book = book();
    for (i, time) in [0, NOW as u32 + 601, u32::MAX].into_iter().enumerate() {
        let address = NodeAddress { time, ..at(&format!("8.{i}.1.1")) };
        tell(&mut book, 1, &[address]);
    }
    let expected = (NOW - 5 * DAY_SECONDS - HEARSAY_SECONDS) as u32;
    assert!(book.entries.iter().all(|entry| entry.address.time == expected));
}

#[test]
fn a_peer_may_report_a_thousand_addresses_then_one_every_ten_seconds() {
    let mut book = book();
    let from = at("9.1.0.1");
    let peer = PeerId(1);
    let many = spread(0, 1500);
    assert_eq!(book.add_from_peer(peer, &from, &many, NOW), 1000);
    assert_eq!(book.add_from_peer(peer, &from, &many[1000..], NOW + 9), 0);
    assert_eq!(book.add_from_peer(peer, &from, &many[1000..], NOW + 39), 3);
    assert_eq!(book.add_from_peer(peer, &from, &many[1003..], NOW - 99), 0, "the clock goes back");
    assert_eq!(book.add_from_peer(peer, &from, &many[1003..], NOW + 40), 1);
    assert_eq!(book.add_from_peer(peer, &from, &many[1004..], NOW + 1_000_000), 496);
    check(&book);
    book.peer_gone(peer);
    assert!(book.peers.is_empty());
    (0..2000).for_each(|i| _ = book.add_from_peer(PeerId(i), &from, &[], NOW));
    assert_eq!(book.peers.len(), PEERS_MAX);
}

#[test]
fn no_group_and_no_source_can_fill_the_book() {
    let mut book = book();
    assert_eq!(tell(&mut book, 1, &crowd(500)), GROUP_MAX);
    // Many peers of one group report addresses.
    let mut count = 0;
    for i in 0..5 {
        let from = at(&format!("9.9.0.{i}"));
        count += book.add_from_peer(PeerId(10 + i), &from, &spread(1000 * i, 1000), NOW);
    }
    assert_eq!(count, SOURCE_MAX);
    check(&book);
}

#[test]
fn a_full_book_drops_only_failed_addresses() {
    let mut book = book();
    let seeds = |third: u8| -> Vec<SocketAddr> {
        // 64 addresses in each of 320 groups.
        let ip = |i: u32| Ipv4Addr::new(20 + (i / 64 / 256) as u8, (i / 64) as u8, third, i as u8);
        (0..20_480).map(|i| SocketAddr::from((ip(i), 8333))).collect()
    };
    assert_eq!(book.add_from_dns(&seeds(1), NOW), ADDRESSES_MAX);
    assert_eq!(tell(&mut book, 1, &spread(5000, 50)), 0);
    let addresses: Vec<_> = book.entries.iter().map(|entry| entry.address.clone()).collect();
    addresses.iter().take(10_000).for_each(|address| book.failed(address, NOW));
    book.add_user(at("8.8.8.8"));
    let added = tell(&mut book, 1, &spread(5000, 50));
    assert!((45..=50).contains(&added), "{added}");
    assert_eq!(book.len(), ADDRESSES_MAX + 1);
    let untried = addresses[10_000..].iter().all(|address| book.position(address).is_some());
    assert!(untried);
    check(&book);
}

#[test]
fn each_group_gets_one_connection_unless_the_user_named_the_address() {
    let mut book = book();
    tell(&mut book, 1, &crowd(50));
    tell(&mut book, 1, &spread(0, 5));
    let users = [at("8.1.9.1"), at("8.1.9.2")];
    users.iter().for_each(|address| book.add_user(address.clone()));
    let picked = picks(&mut book, NOW);
    assert!(picked[..2].iter().all(|address| users.contains(address)), "{picked:?}");
    assert_eq!(picked.len(), 2 + 1 + 5);
    let one = picked.iter().find(|a| crowd(50).iter().any(|c| c.host == a.host)).unwrap();
    book.failed(one, NOW);
    assert_eq!(book.ready_count(NOW), 49, "its group is free again, but the address is not");
    assert_eq!(book.pick(NOW).map(|a| NetGroup::of(&a.host)), Some(NetGroup::of(&one.host)));
    assert_eq!(book.pick(NOW), None);
}

#[test]
fn a_connected_address_stays_in_use_when_the_user_names_it() {
    let mut book = book();
    tell(&mut book, 1, &[at("8.1.1.1")]);
    let picked = book.pick(NOW).unwrap();
    book.add_user(picked.clone());
    assert_eq!(book.pick(NOW), None);
    book.disconnected(&picked, NOW);
    assert!(book.pick(NOW + 10).is_some());
}

#[test]
fn waits_longer_after_each_failure() {
    for (users, expected) in [
        (false, [600, 1200, 2400, 4800, 9600, 19_200, 38_400, 76_800, 86_400, 86_400]),
        (true, [10, 20, 40, 80, 160, 320, 600, 600, 600, 600]),
    ] {
        let (mut book, address, mut now) = (book(), at("8.1.1.1"), NOW);
        if users {
            book.add_user(address.clone());
        } else {
            tell(&mut book, 1, std::slice::from_ref(&address));
        }
        for wait in expected {
            let picked = book.pick(now).unwrap();
            assert_eq!(book.pick(now + 1_000_000), None, "it is being tried");
            book.failed(&picked, now);
            assert_eq!(book.pick(now + wait - 1), None);
            now += wait;
        }
        let picked = book.pick(now).unwrap();
        book.connected(&picked, Services(0x409), now);
        book.disconnected(&picked, now);
        assert_eq!(book.pick(now + expected[0] - 1), None);
        let again = book.pick(now + expected[0]).unwrap();
        assert_eq!((again.services, again.time), (Services(0x409), now as u32));
        (0..100).for_each(|_| book.failed(&again, i64::MAX));
    }
}

#[test]
fn a_misbehaving_host_is_banned_for_a_day_on_any_port() {
    let mut book = book();
    let other_port = NodeAddress { port: 8334, ..at("8.1.1.1") };
    tell(&mut book, 1, &[at("8.1.1.1"), other_port]);
    let picked = book.pick(NOW).unwrap();
    book.misbehaved(&picked, NOW);
    assert!(book.is_banned(&picked.host, NOW + DAY_SECONDS - 1));
    assert_eq!(book.pick(NOW + DAY_SECONDS - 1), None);
    assert!(book.pick(NOW + DAY_SECONDS).is_some());
    spread(0, 20_000).iter().for_each(|address| book.misbehaved(address, NOW));
    assert_eq!(book.bans.len(), BANS_MAX);
    book.misbehaved(&at("8.3.1.1"), NOW + DAY_SECONDS);
    assert_eq!(book.bans.len(), 1);
}

#[test]
fn good_and_new_addresses_are_both_picked() {
    let (mut good, mut new) = (0, 0);
    for seed in 0..200 {
        let mut book = AddressBook::new(Network::Main, seed);
        let addresses = spread(0, 1000);
        tell(&mut book, 1, &addresses);
        addresses[..10].iter().for_each(|a| book.connected(a, SERVICES, NOW));
        let picked = book.pick(NOW).unwrap();
        let is_good = addresses[..10].iter().any(|address| address.host == picked.host);
        *(if is_good { &mut good } else { &mut new }) += 1;
    }
    assert!(good > 70 && new > 70, "{good} good, {new} new");
}

#[test]
fn every_address_is_picked_eventually() {
    let mut seen = HashSet::new();
    for seed in 0..300 {
        let mut book = AddressBook::new(Network::Main, seed);
        tell(&mut book, 1, &spread(0, 20));
        seen.insert(book.pick(NOW).unwrap().host);
    }
    assert_eq!(seen.len(), 20);
    let first = |seed| {
        let mut book = AddressBook::new(Network::Main, seed);
        tell(&mut book, 1, &spread(0, 20));
        picks(&mut book, NOW)
    };
    assert_eq!(first(5), first(5), "the seed determines the picks");
    assert_ne!(first(5), first(6));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Counts stay right, limits hold, and no group is used twice, for any events in any order.
    #[test]
    fn holds_its_invariants(seed in any::<u64>()) {
        let mut rng = Rng::new(seed);
        let mut book = AddressBook::new(Network::Main, seed);
        let (mut now, mut in_use) = (NOW, Vec::<NodeAddress>::new());
        for _ in 0..300 {
            now += rng.below(2000) as i64;
            let ip = Ipv4Addr::new(11 + rng.below(2) as u8, rng.below(8) as u8, 0, rng.below(90) as u8);
            let address = NodeAddress { time: now as u32, ..at(&ip.to_string()) };
            match rng.below(8) {
                0 => book.add_user(address.clone()),
                1..=3 => {
                    let from = at(&format!("9.{}.0.1", rng.below(3)));
                    book.add_from_peer(PeerId(rng.below(9) as u32), &from, &[address], now);
                }
                4 => in_use.extend(book.pick(now)),
                _ if in_use.is_empty() => {}
                kind => {
                    let at = rng.index(in_use.len());
                    let address = in_use[at].clone();
                    match kind {
                        5 => book.connected(&address, SERVICES, now),
                        6 => book.failed(&in_use.swap_remove(at), now),
                        _ if rng.one_in(9) => book.misbehaved(&in_use.swap_remove(at), now),
                        _ => book.disconnected(&in_use.swap_remove(at), now),
                    }
                }
            }
            check(&book);
            let strangers: Vec<NetGroup> = book
                .entries
                .iter()
                .filter(|entry| entry.in_use && !entry.is_users())
                .map(|entry| NetGroup::of(&entry.address.host))
                .collect();
            prop_assert_eq!(strangers.iter().collect::<HashSet<_>>().len(), strangers.len());
        }
    }
}

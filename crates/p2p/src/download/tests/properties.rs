//! Properties of the download, over many seeds and in simulated time.

use super::simulation::{Behaviour, Consumer, Node, Simulation};
use super::*;
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;

const EVERYTHING: Consumer =
    Consumer { in_order: false, segment: 128, segments: 32, rate: f64::INFINITY };

fn sizes(seed: u64, count: usize, low: u64, high: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| rng.between(low, high)).collect()
}

/// Downloads `count` blocks of about a megabyte from these nodes. Returns the ideal time divided by the actual time.
fn efficiency(nodes: Vec<Node>, honest: &[Node], count: usize, line: f64) -> f64 {
    let sum: f64 = honest.iter().map(|node| node.rate).sum();
    let options = DownloadOptions { bytes_max: 1 << 30, ..DownloadOptions::default() };
    let sizes = sizes(7, count, 500_000, 1_500_000);
    let mut simulation = Simulation::new(1, options, sizes, line, nodes, EVERYTHING);
    let ideal = simulation.bytes() as f64 / sum.min(line);
    let took = simulation.run(10 * ideal as u64 + 60_000) as f64;
    println!("{took} ms of {ideal:.0} ms: {:.4}; {:?}", ideal / took, simulation.download.totals);
    ideal / took
}

#[test]
fn eight_equal_peers_come_within_a_twentieth_of_their_sum() {
    let nodes = vec![Node::steady(20.0, 25); 8];
    assert!(efficiency(nodes.clone(), &nodes, 1_500, f64::INFINITY) > 0.95);
}

#[test]
fn eight_peers_fill_a_line_that_carries_half_their_sum() {
    let nodes = vec![Node::steady(20.0, 25); 8];
    assert!(efficiency(nodes.clone(), &nodes, 1_500, 80.0 * 125.0) > 0.95);
}

#[test]
fn one_stalling_peer_of_eight_costs_less_than_a_twentieth() {
    for behaviour in [
        Behaviour::Pauses { at: 20_000, length: u64::MAX / 2 },
        Behaviour::Silent,
        Behaviour::Dies(20_000),
    ] {
        let mut nodes = vec![Node::steady(20.0, 25); 8];
        let honest = nodes[1..].to_vec();
        nodes[0] = nodes[0].with(behaviour);
        assert!(efficiency(nodes, &honest, 1_500, f64::INFINITY) > 0.95, "{behaviour:?}");
    }
}

#[test]
fn one_fast_peer_and_many_slow_ones_are_all_used_in_full() {
    let mut nodes = vec![Node::steady(8.0, 25); 7];
    nodes.push(Node::steady(800.0, 25));
    assert!(efficiency(nodes.clone(), &nodes, 4_000, f64::INFINITY) > 0.95);
}

#[test]
fn distant_peers_are_used_in_full() {
    let nodes = vec![Node::steady(100.0, 150); 8];
    assert!(efficiency(nodes.clone(), &nodes, 4_000, f64::INFINITY) > 0.95);
}

/// A peer asked for many small blocks can end up owing as many large ones while others are idle.
#[test]
fn large_blocks_right_after_small_ones_are_shared_out() {
    for (peers, large) in [(2, 40), (4, 40), (4, 120), (8, 300)] {
        let nodes = vec![Node::steady(20.0, 50); peers];
        let mut sizes = sizes(7, 2_200, 200, 300);
        sizes.extend(vec![1_800_000; large]);
        sizes.extend(self::sizes(8, 500, 200, 300));
        let options = DownloadOptions { bytes_max: 1 << 30, ..DownloadOptions::default() };
        let rate: f64 = nodes.iter().map(|node| node.rate).sum();
        let mut simulation = Simulation::new(1, options, sizes, f64::INFINITY, nodes, EVERYTHING);
        let ideal = simulation.bytes() as f64 / rate;
        let took = simulation.run(1_000_000) as f64;
        println!("{took} ms of {ideal:.0} ms: {:?}", simulation.download.totals);
        assert!(took < 1.1 * ideal + 3_000.0, "{took} ms of {ideal} ms");
    }
}

#[test]
fn a_consumer_that_needs_order_hardly_waits_for_slow_peers() {
    let mut nodes = vec![Node::steady(20.0, 25); 8];
    nodes.extend([Node::steady(0.5, 25), Node::steady(2.0, 100)]);
    let options = DownloadOptions::default();
    let consumer = Consumer { in_order: true, segment: 64, segments: 4, rate: f64::INFINITY };
    let rate: f64 = nodes.iter().map(|node| node.rate).sum();
    let sizes = sizes(7, 1_500, 500_000, 1_500_000);
    let mut simulation = Simulation::new(1, options, sizes, f64::INFINITY, nodes, consumer);
    let ideal = simulation.bytes() as f64 / rate;
    let took = simulation.run(1_000_000) as f64;
    println!("{:.4} {:?}", ideal / took, simulation.download.totals);
    assert!(ideal / took > 0.9, "{took} ms of {ideal} ms");
}

#[test]
fn a_trickling_peer_does_not_delay_the_download() {
    let honest = vec![Node::steady(20.0, 25); 6];
    let mut nodes = vec![Node::steady(0.02, 25); 2];
    nodes.extend(&honest);
    assert!(efficiency(nodes, &honest, 1_500, f64::INFINITY) > 0.95);
}

/// A node with random rate, latency, chain and behaviour. The first node of each world is honest.
fn random_node(rng: &mut Rng, blocks: u32) -> Node {
    let mbit = [2.0, 8.0, 20.0, 100.0][rng.index(4)];
    let node = Node::steady(mbit, rng.between(1, 200));
    let at = rng.below(30_000);
    let node = node.with(match rng.below(12) {
        0 => Behaviour::Silent,
        1 => Behaviour::Pauses { at, length: rng.below(20_000) },
        2 => Behaviour::Dies(at),
        3 => Behaviour::Damages(rng.between(1, 50)),
        4 => Behaviour::Refuses(rng.between(1, 50)),
        5 => Behaviour::LeavesOut(rng.between(1, 50)),
        6 => Behaviour::Chatters(rng.between(1, 50)),
        _ => Behaviour::Steady,
    });
    match rng.below(6) {
        0 => Node { best: rng.below(u64::from(blocks)) as u32, ..node },
        1 => Node { services: Services::NETWORK_LIMITED.with(Services::WITNESS), ..node },
        2 => Node { rate: node.rate / 1_000.0, ..node },
        _ => node,
    }
}

/// A world determined by its seed, and its time limit in milliseconds: twice what its honest peer would need
/// alone, plus a minute to detect the bad peers.
fn world(seed: u64) -> (Simulation, u64) {
    let mut rng = Rng::new(seed);
    let count = rng.between(20, 600) as usize;
    let (low, high) =
        [(200, 300), (200, 100_000), (50_000, 400_000), (100_000, 4_000_000)][rng.index(4)];
    let count = if high > 1_000_000 { count / 6 + 1 } else { count };
    let sizes = sizes(seed, count, low, high);
    let honest = Node::steady([8.0, 20.0, 100.0][rng.index(3)], rng.between(1, 200));
    let mut nodes = vec![honest];
    nodes.extend((0..rng.below(9)).map(|_| random_node(&mut rng, count as u32)));
    let spare: Vec<_> = (0..rng.below(4)).map(|_| random_node(&mut rng, count as u32)).collect();
    let line = [f64::INFINITY, honest.rate * 2.0, honest.rate / 2.0][rng.index(3)];
    let options = DownloadOptions {
        bytes_max: [1, 3_000_000, 20_000_000, 200_000_000][rng.index(4)],
        in_flight_max: [1, 4, 128][rng.index(3)],
        copies_max: 1 + rng.index(3),
    };
    let consumer = Consumer {
        in_order: rng.one_in(2),
        segment: rng.between(1, 64) as u32,
        segments: 1 + rng.index(8),
        rate: [f64::INFINITY, honest.rate / 2.0][rng.index(2)],
    };
    let bytes: u64 = sizes.iter().sum();
    let alone = bytes as f64 / honest.rate.min(line).min(consumer.rate);
    // If almost nothing may be in flight, every block costs a round trip.
    let trips = count as f64 * 2.0 * (honest.latency as f64 + 1.0);
    let most = 2.0 * (alone + trips) + 60_000.0;
    let mut simulation = Simulation::new(seed, options, sizes, line, nodes, consumer);
    simulation.step();
    simulation.spare.extend(spare);
    (simulation, most as u64)
}

/// Runs many seeds. A failure prints its seed, which the environment variable then selects.
fn seeds(count: u64, run: impl Fn(u64)) {
    let only = std::env::var("DOWNLOAD_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in only.map_or(0..rounds(count, 40 * count), |seed: u64| seed..seed + 1) {
        println!("DOWNLOAD_SEED={seed}");
        run(seed);
    }
}

#[test]
fn every_wanted_block_is_consumed_once_in_any_world_with_an_honest_peer() {
    seeds(200, |seed| {
        let (mut simulation, most) = world(seed);
        simulation.run(most);
        let status = simulation.download.status(simulation.now);
        assert_eq!((status.awaited, status.unconsumed), (0, 0));
    });
}

#[test]
fn honest_peers_are_used_in_full_despite_the_others() {
    seeds(25, |seed| {
        let mut rng = Rng::new(seed);
        let mbit = |rng: &mut Rng| [8.0, 20.0, 100.0][rng.index(3)];
        let honest: Vec<_> = (0..rng.between(2, 6))
            .map(|_| Node::steady(mbit(&mut rng), rng.between(1, 150)))
            .collect();
        let mut nodes = honest.clone();
        nodes.extend((0..rng.below(4)).map(|_| random_node(&mut rng, 1_000)));
        let options = DownloadOptions { bytes_max: 1 << 30, ..DownloadOptions::default() };
        let rate: f64 = honest.iter().map(|node| node.rate).sum();
        let (low, high) = [(20_000, 60_000), (500_000, 1_500_000)][rng.index(2)];
        // The honest peers need one minute for this many blocks.
        let count = (60_000.0 * rate / (low + high) as f64 * 2.0) as usize;
        let sizes = sizes(seed, count, low, high);
        let mut simulation =
            Simulation::new(seed, options, sizes, f64::INFINITY, nodes, EVERYTHING);
        let ideal = simulation.bytes() as f64 / rate;
        let took = simulation.run(10 * ideal as u64) as f64;
        println!("{:.3} {:?}", ideal / took, simulation.dropped);
        let is_honest = |(peer, _): &(PeerId, Blame)| (peer.0 as usize) < honest.len();
        assert!(!simulation.dropped.iter().any(is_honest), "{:?}", simulation.dropped);
        assert!(took < 1.05 * ideal + 3_000.0, "{took} ms of {ideal} ms");
    });
}

#[test]
fn the_limiting_factor_is_reported() {
    let run = |rate| {
        let nodes = vec![Node::steady(20.0, 25); 4];
        let options = DownloadOptions { bytes_max: 20_000_000, ..DownloadOptions::default() };
        let consumer = Consumer { rate, ..EVERYTHING };
        let sizes = sizes(3, 300, 500_000, 1_500_000);
        let mut simulation = Simulation::new(3, options, sizes, f64::INFINITY, nodes, consumer);
        simulation.run(600_000);
        assert_eq!(simulation.dropped, []);
        let part = |limit| {
            let count = simulation.limits.iter().filter(|other| **other == limit).count();
            count as f64 / simulation.limits.len() as f64
        };
        (part(Limit::Line), part(Limit::Consumer))
    };
    assert!(run(f64::INFINITY).0 > 0.95);
    let (_, consumer) = run(2_000.0);
    assert!(consumer > 0.8, "{consumer}");
}

/// Checks that the window and the peers agree with each other.
fn check(download: &Download) {
    let mut owned = BTreeMap::new();
    for (id, peer) in &download.peers {
        for owed in peer.counted_on() {
            assert!(!peer.stalled);
            owned.entry(owed.key).or_insert_with(Vec::new).push(*id);
        }
    }
    let free: Vec<_> = download.window.all_free().collect();
    assert!(free.iter().all(|key| !owned.contains_key(key)));
    for (key, ids) in owned {
        // A peer that still owes a block already received may yet bring a copy.
        if let Some(owners) = download.window.owners(key) {
            let mut owners = owners.to_vec();
            owners.sort_unstable();
            assert_eq!(owners, ids, "{key:?}");
        }
    }
    let known = free.len() + download.window.in_flight() + download.window.handed_out();
    assert_eq!(known, download.window.len());
}

/// Performs one random event.
fn happen(download: &mut Download, rng: &mut Rng, now: u64, owed: &[(PeerId, BlockHash)]) {
    let height = rng.below(40) as u32;
    let peer = PeerId(rng.below(6) as u32);
    let hash = |fork: u64, height: Height| BlockHash([(height as u8) ^ ((fork as u8) << 6); 32]);
    let any = hash(rng.below(3), height);
    let fork = rng.below(3);
    let chain = |at: Height| Some(hash(if at < 20 { 0 } else { fork }, at));
    let range = HeightRange::new(height, height + rng.below(10) as u32);
    let (asked, block) = match owed.len() {
        0 => (peer, any),
        len => owed[rng.index(len)],
    };
    match rng.below(18) {
        0 | 1 => drop(download.want(range, &chain)),
        2 => download.unwant(range),
        3 => download.want_hash(height, any),
        4 => download.unwant_hash(&any),
        5 => download.chain_changed(19, &chain),
        6 => drop(download.consumed(&any)),
        7 if rng.one_in(4) => drop(download.damaged(&any)),
        8 => download.peer_added(peer, Services(rng.next_u64()), now),
        9 => download.peer_added(peer, Services::NETWORK.with(Services::WITNESS), now),
        10 => download.peer_has(peer, height, height + rng.below(300) as u32),
        11 => download.peer_has_hash(peer, any),
        12 if rng.one_in(4) => download.peer_gone(peer),
        13 => download.progress(peer, rng.below(2_000_000), now),
        14 => download.not_found(asked, &block, now),
        15 => drop(download.block(peer, &any, rng.below(2_000_000), now)),
        _ => drop(download.block(asked, &block, rng.below(2_000_000), now)),
    }
}

#[test]
fn window_and_peers_always_agree() {
    seeds(300, |seed| {
        let mut rng = Rng::new(seed);
        let mut download =
            Download::new(DownloadOptions { bytes_max: 6_000_000, ..DownloadOptions::default() });
        let (mut now, mut owed) = (0, Vec::new());
        for _ in 0..400 {
            now += [0, 1, 50, 700][rng.index(4)];
            happen(&mut download, &mut rng, now, &owed);
            check(&download);
            download.replacements(rng.index(3));
            for action in download.tick(now) {
                if let DownloadAction::Request { peer, blocks } = action {
                    owed.extend(blocks.into_iter().map(|block| (peer, block.1)));
                }
            }
            check(&download);
            assert!(download.window.handed_out_bytes < 6_000_000 + 2_000_000);
            let status = download.status(now);
            assert_eq!(status.awaited, download.window.all_free().count() + status.in_flight);
        }
    });
}

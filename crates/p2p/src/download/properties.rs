//! What the download promises, over many seeds and in simulated time.

use super::simulation::{Behaviour, Consumer, Node, Simulation};
use super::*;
use apus_testkit::rng::Rng;

const EVERYTHING: Consumer =
    Consumer { in_order: false, segment: 128, segments: 32, rate: f64::INFINITY };

fn sizes(seed: u64, count: usize, low: u64, high: u64) -> Vec<u64> {
    let mut rng = Rng::new(seed);
    (0..count).map(|_| rng.between(low, high)).collect()
}

/// Megabytes of blocks from these nodes: the time it took, by what it takes at the least.
fn efficiency(nodes: Vec<Node>, honest: &[Node], count: usize, line: f64) -> f64 {
    let sum: f64 = honest.iter().map(|node| node.rate).sum();
    let options = Options { bytes_max: 1 << 30, ..Options::default() };
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
fn eight_peers_on_a_line_that_carries_half_of_them_fill_it() {
    let nodes = vec![Node::steady(20.0, 25); 8];
    assert!(efficiency(nodes.clone(), &nodes, 1_500, 80.0 * 125.0) > 0.95);
}

#[test]
fn one_of_eight_that_stalls_costs_less_than_a_twentieth() {
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
fn one_fast_peer_among_slow_ones_is_used_in_full_and_so_are_they() {
    let mut nodes = vec![Node::steady(8.0, 25); 7];
    nodes.push(Node::steady(800.0, 25));
    assert!(efficiency(nodes.clone(), &nodes, 4_000, f64::INFINITY) > 0.95);
}

#[test]
fn far_peers_are_used_in_full() {
    let nodes = vec![Node::steady(100.0, 150); 8];
    assert!(efficiency(nodes.clone(), &nodes, 4_000, f64::INFINITY) > 0.95);
}

#[test]
fn a_drip_holds_nothing_up() {
    let honest = vec![Node::steady(20.0, 25); 6];
    let mut nodes = vec![Node::steady(0.02, 25); 2];
    nodes.extend(&honest);
    assert!(efficiency(nodes, &honest, 1_500, f64::INFINITY) > 0.95);
}

/// A node of random rate, distance, chain and behaviour; the first of a world is honest.
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

/// A world that its seed decides, and the most that it may take, in milliseconds: what its honest
/// peer would need alone, twice, and a minute for finding the others out.
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
    let options = Options {
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
    // Where next to nothing may be in flight every block costs a round trip.
    let trips = count as f64 * 2.0 * (honest.latency as f64 + 1.0);
    let most = 2.0 * (alone + trips) + 60_000.0;
    let mut simulation = Simulation::new(seed, options, sizes, line, nodes, consumer);
    simulation.step();
    simulation.spare.extend(spare);
    (simulation, most as u64)
}

#[test]
fn every_wanted_block_is_consumed_once_in_any_world_with_an_honest_peer() {
    let only = std::env::var("DOWNLOAD_SEED").ok().map(|seed| seed.parse().unwrap());
    for seed in only.map_or(0..400, |seed: u64| seed..seed + 1) {
        println!("seed {seed}");
        let (mut simulation, most) = world(seed);
        simulation.run(most);
        let status = simulation.download.status(simulation.now);
        assert_eq!((status.awaited, status.unconsumed, status.unconsumed_bytes), (0, 0, 0));
    }
}

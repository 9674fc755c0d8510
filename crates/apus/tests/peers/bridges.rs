//! Blocks from peers with proofs from bridges. One of the bridges may lie, fall silent or be behind.

use super::proofs::{EACH, World, inventor};
use super::relay::{Fate, NodeLine};
use crate::sandbox::Ended;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::utreexod::Utreexod;
use serde_json::{Value, json};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

const SYNC: &str = "sync --chain regtest --engine utreexo --workdir w.work --assumevalid 0";

pub(super) fn bridges(ports: &[u16]) -> String {
    ports.iter().map(|port| format!(" --proofs peer:127.0.0.1:{port}")).collect()
}

/// Whether the file of roots has what the bridge says about a height.
#[track_caller]
fn expect_roots(world: &World, bridge: &Utreexod, height: u32, said: &Ended) {
    assert!(
        world.sandbox.read("roots") == roots_of(bridge, height),
        "other roots at {height}: {said}"
    );
    let report = world.sandbox.json("report.json");
    assert_eq!((&report["stop_height"], &report["blocks"]), (&json!(height), &json!(height)));
    ["roots", "report.json"].iter().for_each(|name| world.sandbox.remove(name));
}

/// The roots that the bridge has after a height, as a file.
pub(super) fn roots_of(bridge: &Utreexod, height: u32) -> Vec<u8> {
    let record = bridge.record(height);
    let mut expected = record["numleaves"].as_u64().unwrap().to_le_bytes().to_vec();
    let roots = record["roots"].as_array().unwrap();
    expected.extend((roots.len() as u64).to_le_bytes());
    let byte = |hex: &[u8]| u8::from_str_radix(std::str::from_utf8(hex).unwrap(), 16).unwrap();
    for root in roots {
        expected.extend(root.as_str().unwrap().as_bytes().chunks(2).map(byte));
    }
    expected
}

pub(super) fn tip(world: &World) -> u32 {
    world.blocks.len() as u32 - 1
}

const OUT: &str = "--out utreexo:roots --report report.json";

/// Runs the commands of a page after a mark, with these changes.
pub(super) fn follow(world: &World, mark: &str, changes: &[(&str, &str)]) -> Vec<Ended> {
    let page = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/utreexo.md");
    let page = std::fs::read_to_string(page).unwrap();
    let (_, after) = page.split_once(&format!("<!-- journey: {mark} -->\n```sh\n")).unwrap();
    let (commands, _) = after.split_once("```").unwrap();
    let run = |line: &str| {
        let line = changes.iter().fold(line.to_owned(), |line, (from, to)| line.replace(from, to));
        let line = line.strip_prefix("apus ").unwrap().to_owned();
        world.sandbox.apus(&line).succeeds()
    };
    commands.replace("\\\n", "").lines().map(run).collect()
}

#[test]
fn a_bridge_alone_gives_blocks_and_proofs() {
    let (world, bridge) = World::random(61);
    let node = format!("127.0.0.1:{}", bridge.p2p_port());
    let changes = [("192.168.1.10", &*node), ("sync ", &*format!("sync --chain regtest {OUT} "))];
    let said = follow(&world, "bridge", &changes);
    expect_roots(&world, &bridge, tip(&world), &said[0]);
}

#[test]
fn ordinary_nodes_give_the_blocks() {
    let (world, bridge) = World::random(62);
    let [node, port] =
        [world.node.p2p_port(), bridge.p2p_port()].map(|it| format!("127.0.0.1:{it}"));
    let changes = [
        ("192.168.1.10", &*port),
        ("192.168.1.20", &*node),
        ("sync ", &*format!("sync --chain regtest --report report.json {EACH} ")),
    ];
    let said = follow(&world, "peers-and-bridge", &changes);
    expect_roots(&world, &bridge, tip(&world), &said[0]);
}

/// A relay to a node, and the number of connections to it.
fn counted(port: u16) -> (NodeLine, Arc<AtomicUsize>) {
    let connections = Arc::<AtomicUsize>::default();
    let count = Arc::clone(&connections);
    let line = NodeLine::to(port, move |name, _| {
        count.fetch_add(usize::from(name == "version"), Ordering::Relaxed);
        Fate::Passes
    });
    (line, connections)
}

/// Bridges are known by their services; a peer that is none gives only blocks.
#[test]
fn bridges_are_found_among_the_peers() {
    let (world, bridge) = World::random(71);
    let (node, to_node) = counted(world.node.p2p_port());
    let (found, to_bridge) = counted(bridge.p2p_port());
    let both = format!("--connect 127.0.0.1:{} --connect 127.0.0.1:{}", node.port(), found.port());
    let changes = [
        ("--connect 192.168.1.20 --connect 192.168.1.10", &*both),
        ("sync ", &*format!("sync --chain regtest {OUT} {EACH} --v2transport 0 ")),
    ];
    let said = follow(&world, "found-bridge", &changes);
    expect_roots(&world, &bridge, tip(&world), &said[0]);
    let [to_node, to_bridge] = [to_node, to_bridge].map(|count| count.load(Ordering::Relaxed));
    assert!(to_node == 1 && to_bridge > 1, "{to_node} {to_bridge}");
    // Spent coins come from the same bridges.
    let made = "sync --chain regtest --blocksdir blocks --engine mergesync --assumevalid 0";
    world
        .sandbox
        .apus(&format!("{made} --out hints:main.hints --out snapshot:expected.dat"))
        .succeeds();
    let line = format!(
        "sync --chain regtest --hints main.hints {both} --spent peers --assumevalid 0 --v2transport 0 \
         --out snapshot:set.dat --report report.json"
    );
    world.sandbox.apus(&line).succeeds();
    assert!(world.sandbox.read("set.dat") == world.sandbox.read("expected.dat"));
    assert_eq!(world.sandbox.json("report.json")["validation"], "full");
    // Without a bridge there is nothing to wait for but another peer.
    let line = format!(
        "sync --chain regtest --connect 127.0.0.1:{} --engine utreexo --proofs peers --patience 5 --v2transport 0 \
         --workdir other.work",
        node.port()
    );
    let said = ["found no Utreexo bridge node in", "bits 12 and 13", "peer:HOST:PORT"];
    world.sandbox.start(&line).wait().fails(3, &said);
    for (rest, said) in [
        ("--blocksdir blocks --engine utreexo --proofs peers", "leave out --blocksdir"),
        (
            "--connect a --engine utreexo --proofs peers --proofs peer:b",
            "leave out --proofs peer:b",
        ),
        ("--connect a --engine utreexo --proofs peers --proofs f", "one folder or from peers"),
        (
            "--connect a --hints main.hints --assumevalid 0 --spent peers --spent peer:b",
            "leave out --spent peer:b",
        ),
    ] {
        world.sandbox.apus(&format!("sync --chain regtest {rest}")).fails(1, &[said]);
    }
}

/// Blocks are requested many at a time, as proofs are.
#[test]
fn distant_nodes_cost_no_round_trip_per_block() {
    let (world, bridge) = World::random(63);
    let delay = Duration::from_millis(30);
    let far = NodeLine::far(world.node.p2p_port(), delay, |_, _| Fate::Passes);
    let line = format!(
        "{SYNC} {OUT} --connect 127.0.0.1:{} {} --v2transport 0 --par 1",
        far.port(),
        bridges(&[bridge.p2p_port()])
    );
    let said = world.sandbox.apus(&line).succeeds();
    expect_roots(&world, &bridge, tip(&world), &said);
    let (batches, blocks) = (far.batches(), world.blocks.len());
    assert!(batches < blocks / 3, "{batches} for {blocks} blocks");
}

/// Killed in the middle; meanwhile the chain grows.
#[test]
fn a_killed_sync_goes_on_where_the_chain_has_grown() {
    for of_peers in [true, false] {
        let (world, bridge) = World::random(64);
        let source = match of_peers {
            true => format!("--connect 127.0.0.1:{}", world.node.p2p_port()),
            false => "--blocksdir blocks".to_owned(),
        };
        let proofs = AtomicUsize::new(0);
        let stops = NodeLine::to(bridge.p2p_port(), move |name, _| {
            match name == "uproof" && proofs.fetch_add(1, Ordering::Relaxed) >= 60 {
                true => Fate::IsLost,
                false => Fate::Passes,
            }
        });
        let line =
            |port| format!("{SYNC} {OUT} {source} {EACH} --v2transport 0 {}", bridges(&[port]));
        let mut run = world.sandbox.start(&line(stops.port()));
        assert!(run.until(|| world.kept() > 10));
        run.signal(&["KILL"]);
        assert_eq!(run.wait().code, None);
        let kept = world.kept();
        world.node.mine(3);
        let last = tip(&world) + 3;
        let mut files = BlockFiles::regtest();
        let blocks: Vec<_> = (0..=last).map(|height| world.node.block_at(height)).collect();
        files.blocks(&blocks);
        files.write(&world.sandbox.path("blocks"));
        let newer = Utreexod::with_blocks_of(&world.node);
        let said = world.sandbox.apus(&line(newer.p2p_port())).succeeds();
        assert_eq!(world.sandbox.json("report.json")["segments_resumed"], kept);
        expect_roots(&world, &newer, last, &said);
    }
}

/// One bridge alters its answers, beside an honest one.
#[test]
fn a_liar_is_left_out() {
    let (world, bridge) = World::random(65);
    let connect = format!("--connect 127.0.0.1:{}", world.node.p2p_port());
    // A hash, a leaf, a number of leaves that differs from that of the targets, a root, another block.
    for (lied, place) in
        [("uproof", 33), ("uproof", usize::MAX), ("uroot", 60), ("uroot", 3), ("uproof", 0)]
    {
        let lies = Arc::new(AtomicUsize::new(0));
        let count = Arc::clone(&lies);
        let liar = NodeLine::to(bridge.p2p_port(), move |name, payload| {
            let long = payload.get(32).is_some_and(|count| *count > 0);
            if name == lied && (long || name == "uroot") {
                count.fetch_add(1, Ordering::Relaxed);
                let last = payload.len() - 1;
                payload[place.min(last)] ^= 1;
            }
            Fate::Passes
        });
        for more in ["--par 1".to_owned(), EACH.to_owned()] {
            let ports = [liar.port(), bridge.p2p_port()];
            let line = format!("{SYNC} {OUT} {connect} {} --v2transport 0 {more}", bridges(&ports));
            let left_out = format!("asks 127.0.0.1:{} nothing more", liar.port());
            // Chance decides who is asked what and which answer is read, so the liar may find nothing to lie about, and a
            // lie may come too late.
            let is_left_out = (0..20).any(|_| {
                let before = lies.load(Ordering::Relaxed);
                let said = world.sandbox.apus(&line).succeeds();
                expect_roots(&world, &bridge, tip(&world), &said);
                // Above 252 leaves, the third byte belongs to a place that nobody checks.
                let is_reported = said.stderr.contains(&left_out) || lied == "uroot" && place == 3;
                is_reported && lies.load(Ordering::Relaxed) > before
            });
            assert!(is_left_out, "{lied} {place}");
        }
    }
}

/// A range that spends nothing passes with forged roots; the ranges below it show that.
#[test]
fn an_invented_forest_is_replaced() {
    let mut chain = apus_testkit::chain::ChainBuilder::new(66);
    chain.empty_blocks(12);
    let world = World::of(&chain, true);
    let bridge = Utreexod::with_blocks_of(&world.node);
    let liar = inventor(&world, &bridge);
    // Only the range that began with the lie is repeated, and by then the liar is honest.
    let ports = [liar.port(), liar.port()];
    let line = format!(
        "{SYNC} {OUT} --blocksdir blocks {} {EACH} --v2transport 0 --par 1",
        bridges(&ports)
    );
    let said = world.sandbox.apus(&line).succeeds();
    expect_roots(&world, &bridge, tip(&world), &said);
}

#[test]
fn a_silent_bridge_is_left_out() {
    let (world, bridge) = World::random(67);
    let proofs = AtomicUsize::new(0);
    let silent = NodeLine::to(bridge.p2p_port(), move |name, _| match name {
        "uproof" | "pong" if proofs.fetch_add(1, Ordering::Relaxed) > 20 => Fate::IsLost,
        _ => Fate::Passes,
    });
    let line = format!(
        "{SYNC} {OUT} --connect 127.0.0.1:{} {} --v2transport 0 --patience 6",
        world.node.p2p_port(),
        bridges(&[silent.port(), bridge.p2p_port()])
    );
    let said = world.sandbox.apus(&line).succeeds();
    expect_roots(&world, &bridge, tip(&world), &said);
}

/// The blocks reach further than the bridge; then the bridge gets the missing ones.
#[test]
fn a_bridge_that_is_behind_is_waited_for() {
    let (world, bridge) = World::random(68);
    let last = tip(&world);
    let file = |world: &World, last: u32| {
        let blocks: Vec<_> = (0..=last).map(|height| world.node.block_at(height)).collect();
        let mut files = BlockFiles::regtest();
        files.blocks(&blocks);
        files.write(&world.sandbox.path("blocks"));
    };
    let network = |on: bool| world.node.call("setnetworkactive", &[Value::Bool(on)]);
    network(false);
    let has_peers = || !world.node.call("getpeerinfo", &[]).as_array().unwrap().is_empty();
    while has_peers() {
        std::thread::sleep(Duration::from_millis(20));
    }
    world.node.mine(2);
    file(&world, last + 2);
    let line = format!("{SYNC} {OUT} --blocksdir blocks {}", bridges(&[bridge.p2p_port()]));
    let said = world.sandbox.apus(&format!("{line} --patience 2")).succeeds();
    let ends = format!("Apus ends at block {last}, 2 blocks below the tip");
    assert!(said.stderr.contains(&ends), "{said}");
    expect_roots(&world, &bridge, last, &said);
    // A height that the user asks for is not given up.
    let said = world.sandbox.apus(&format!("{line} --patience 2 --stopatheight {}", last + 2));
    said.fails(3, &[&format!("sends no roots of block {} (", last + 2)]);
    let waits = world.sandbox.start(&line);
    network(true);
    let port = json!(format!("127.0.0.1:{}", bridge.p2p_port()));
    world.node.call("addnode", &[port, json!("onetry")]);
    // The bridge looks for blocks when it hears of one.
    world.node.mine(1);
    let said = waits.wait().succeeds();
    expect_roots(&world, &bridge, last + 2, &said);
}

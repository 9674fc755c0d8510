//! A sync that begins with the roots of an earlier one, with proofs from real bridge nodes.

use super::bridges::{bridges, follow, roots_of, tip};
use super::proofs::{EACH, World};
use super::relay::{Fate, NodeLine};
use crate::sandbox::Ended;
use apus_testkit::utreexod::Utreexod;
use serde_json::{Value, json};
use std::sync::atomic::{AtomicUsize, Ordering};

/// The block of the roots.
const AT: u32 = 90;

/// A sync above [`AT`] with these roots and proofs.
fn line(world: &World, roots: &str, ports: &[u16], more: &str) -> String {
    format!(
        "sync --chain regtest --connect 127.0.0.1:{} --assumevalid 0 --roots {roots} {} --out utreexo:new-roots \
         --report report.json --v2transport 0 {more}",
        world.node.p2p_port(),
        bridges(ports)
    )
}

/// A random chain, a bridge, and its roots after [`AT`] in a file.
fn world(seed: u64) -> (World, Utreexod) {
    let (world, bridge) = World::random(seed);
    world.sandbox.write("roots", &roots_of(&bridge, AT));
    (world, bridge)
}

/// Asserts that a sync ended with the bridge's roots, and that its report claims nothing about the blocks below.
#[track_caller]
fn expect_above(world: &World, bridge: &Utreexod, said: &Ended) {
    assert!(world.sandbox.read("new-roots") == roots_of(bridge, tip(world)), "other roots: {said}");
    let report = world.sandbox.json("report.json");
    let above = tip(world) - AT;
    for (field, value) in [
        ("blocks", json!(above)),
        ("script_blocks", json!(above)),
        ("connected_from", json!(AT + 1)),
        ("validation", json!("assumevalid")),
        ("coins", Value::Null),
        ("bogosize", Value::Null),
        ("total_amount_sat", Value::Null),
    ] {
        assert_eq!(report[field], value, "{field}");
    }
    let hash = world.blocks[AT as usize].block_hash().to_string();
    assert_eq!(report["trusted"], json!({"height": AT, "hash": hash}));
    for (rule, is_verified) in report["verified"].as_object().unwrap() {
        assert_eq!(*is_verified, json!(rule == "minimum_chain_work"), "{rule}");
    }
    assert!(report["assumed"][0].as_str().unwrap().contains("the roots of block 90"), "{report}");
    let last = said.stdout.trim_end().lines().last().unwrap();
    assert!(last.contains("did not validate blocks 1 to 90") && last.contains(&hash), "{said}");
    ["new-roots", "report.json"].iter().for_each(|name| world.sandbox.remove(name));
}

/// A sync, and a week later another one from its roots.
#[test]
fn a_later_sync_begins_where_the_first_ended() {
    let (world, bridge) = World::random(81);
    let [node, port] =
        [world.node.p2p_port(), bridge.p2p_port()].map(|it| format!("127.0.0.1:{it}"));
    let run = |mark: &str, roots: &str, more: &str| {
        let changes = [
            ("192.168.1.10", &*port),
            ("192.168.1.20", &*node),
            ("roots@900000", roots),
            ("sync ", &*format!("sync --chain regtest {more} ")),
        ];
        follow(&world, mark, &changes).remove(0)
    };
    let said = run("peers-and-bridge", "", &format!("--stopatheight {AT}"));
    assert!(world.sandbox.read("roots") == roots_of(&bridge, AT), "{said}");
    let (_, option) = said.stdout.split_once("--roots ").unwrap();
    let named = option.split_whitespace().next().unwrap();
    for roots in [named, &format!("roots@{AT}")] {
        let said = run("roots", roots, &format!("--report report.json {EACH}"));
        expect_above(&world, &bridge, &said);
    }
}

/// Both are named, and no honest bridge is blamed, whatever is wrong with the roots.
#[test]
fn wrong_roots_are_refused_before_any_work() {
    let (world, bridge) = world(82);
    let other = Utreexod::with_blocks_of(&world.node);
    let ports = [bridge.p2p_port(), other.p2p_port()];
    world.sandbox.edit("roots", |bytes| *bytes.last_mut().unwrap() ^= 1);
    let refused = |roots: &str, at: u32, what: &str| {
        let said = world.sandbox.apus(&line(&world, roots, &ports, ""));
        let block = format!("block {at} ({})", world.blocks[at as usize].block_hash());
        let [one, two] = ports.map(|port| format!("127.0.0.1:{port} has {what}"));
        let said = said.fails(4, &["the roots in roots", &block, &one, &two, "of another block"]);
        assert!(!said.stderr.contains("nothing more"), "{said}");
        assert!(!world.sandbox.has("new-roots.work/plan"));
    };
    refused("roots@90", AT, "root ");
    world.sandbox.edit("roots", |bytes| *bytes.last_mut().unwrap() ^= 1);
    refused("roots@91", AT + 1, &format!("{} leaves, not ", leaves(&bridge, AT + 1)));
    // A bridge that has the wrong roots, too, is alone with its proofs.
    world.sandbox.edit("roots", |bytes| *bytes.last_mut().unwrap() ^= 1);
    let liar = NodeLine::to(bridge.p2p_port(), |name, payload| {
        if name == "uroot" {
            forge(payload);
        }
        Fate::Passes
    });
    let said = world.sandbox.apus(&line(&world, "roots@90", &[liar.port()], ""));
    said.fails(4, &["Or the roots of block 90", "in roots, with which this sync began, are wrong"]);
}

/// Changes the last root, behind which is the proof of its place.
fn forge(payload: &mut [u8]) {
    // The number of leaves and the place take one byte or three each.
    let mut at = 0;
    for _ in 0..2 {
        at += if payload[at] == 0xfd { 3 } else { 1 };
    }
    let roots = usize::from(payload[at + 32]);
    payload[at + 32 + 32 * roots] ^= 1;
}

fn leaves(bridge: &Utreexod, height: u32) -> u64 {
    bridge.record(height)["numleaves"].as_u64().unwrap()
}

/// A bridge that has other roots than the user and another bridge is left out.
#[test]
fn a_bridge_with_other_roots_is_left_out() {
    let (world, bridge) = world(83);
    let liar = NodeLine::to(bridge.p2p_port(), |name, payload| {
        if name == "uroot" {
            forge(payload);
        }
        Fate::Passes
    });
    let ports = [liar.port(), bridge.p2p_port()];
    let said = world.sandbox.apus(&line(&world, "roots@90", &ports, "")).succeeds();
    let left_out = format!("asks 127.0.0.1:{} nothing more", liar.port());
    assert!(
        said.stderr.contains(&left_out) && said.stderr.contains("not those in roots"),
        "{said}"
    );
    expect_above(&world, &bridge, &said);
}

/// A killed sync resumes from the same roots only.
#[test]
fn a_killed_sync_resumes_from_its_roots() {
    let (world, bridge) = world(84);
    let proofs = AtomicUsize::new(0);
    let stops = NodeLine::to(bridge.p2p_port(), move |name, _| {
        match name == "uproof" && proofs.fetch_add(1, Ordering::Relaxed) >= 20 {
            true => Fate::IsLost,
            false => Fate::Passes,
        }
    });
    let line =
        |roots: &str, port| line(&world, roots, &[port], &format!("{EACH} --workdir w.work"));
    let mut run = world.sandbox.start(&line("roots@90", stops.port()));
    assert!(run.until(|| world.kept() > 5));
    run.signal(&["KILL"]);
    assert_eq!(run.wait().code, None);
    let kept = world.kept();
    world.sandbox.write("others", &roots_of(&bridge, AT + 1));
    for (roots, said) in
        [("others@91", "from block 91 on, not 92"), ("", "from block 91 on, not 1")]
    {
        let line = line(roots, bridge.p2p_port());
        let line = if roots.is_empty() { line.replace("--roots ", "") } else { line };
        world.sandbox.apus(&line).fails(1, &["the progress of another sync", said]);
    }
    let said = world.sandbox.apus(&line("roots@90", bridge.p2p_port())).succeeds();
    assert_eq!(world.sandbox.json("report.json")["segments_resumed"], kept);
    expect_above(&world, &bridge, &said);
}

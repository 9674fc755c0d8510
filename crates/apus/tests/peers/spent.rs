//! Every rule with hints and blocks from peers, with the spent coins of bridges. One of the bridges may lie.

use super::bridges::follow;
use super::proofs::{EACH, World};
use super::relay::{Fate, NodeLine};
use crate::sandbox::Ended;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::utreexod::Utreexod;
use serde_json::json;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

/// Hints, and the set, from another engine.
fn prepare(world: &World) {
    let line = "sync --chain regtest --blocksdir blocks --engine mergesync --assumevalid 0";
    world
        .sandbox
        .apus(&format!("{line} --out hints:main.hints --out snapshot:expected.dat"))
        .succeeds();
}

fn world(seed: u64) -> (World, Utreexod) {
    let (world, bridge) = World::random(seed);
    prepare(&world);
    (world, bridge)
}

/// The command line of a sync with spent coins from bridges at these ports.
fn line(world: &World, ports: &[u16], more: &str) -> String {
    let spent: String =
        ports.iter().map(|port| format!(" --spent peer:127.0.0.1:{port}")).collect();
    format!(
        "sync --chain regtest --workdir w.work --connect 127.0.0.1:{} --hints main.hints --assumevalid 0{spent} \
         --out snapshot:set.dat --report report.json --v2transport 0 {more}",
        world.node.p2p_port()
    )
}

#[track_caller]
fn expect_set(world: &World, said: &Ended) {
    assert!(
        world.sandbox.read("set.dat") == world.sandbox.read("expected.dat"),
        "another set: {said}"
    );
    let report = world.sandbox.json("report.json");
    let all = json!(world.blocks.len() - 1);
    assert_eq!((&report["validation"], &report["blocks"]), (&json!("full"), &all), "{said}");
    assert_eq!(report["aggregate"], "coins", "{report}");
    ["set.dat", "report.json"].iter().for_each(|name| world.sandbox.remove(name));
}

#[test]
fn spent_coins_suffice_to_check_every_rule() {
    let (world, bridge) = world(71);
    let [node, port] =
        [world.node.p2p_port(), bridge.p2p_port()].map(|it| format!("127.0.0.1:{it}"));
    let changes = [
        ("192.168.1.10", &*port),
        ("192.168.1.20", &*node),
        ("sync ", "sync --chain regtest --report report.json "),
    ];
    let said = follow(&world, "spent", &changes);
    expect_set(&world, &said[0]);
    for more in ["--par 1".to_owned(), EACH.to_owned()] {
        let said = world.sandbox.apus(&line(&world, &[bridge.p2p_port()], &more)).succeeds();
        expect_set(&world, &said);
    }
}

/// The place of the first leaf in the payload of a `uproof` without hashes and targets, if it has leaves.
fn leaves(payload: &[u8]) -> Option<usize> {
    (payload.get(32..34) == Some(&[0, 0]) && payload.get(34).is_some_and(|it| *it > 0 && *it < 253))
        .then_some(35)
}

/// Coinbase mark, height, amount and script of one coin: a wrong one never gives a set.
#[test]
fn a_wrong_coin_fails_the_sync() {
    let (world, bridge) = world(72);
    for (at, bit) in [(0, 1), (0, 2), (0, 4), (4, 1), (5, 1), (12, 1), (12, 2), (14, 1), (16, 1)] {
        for nth in [0, 20] {
            let (seen, lied) = (AtomicUsize::new(0), Arc::<AtomicUsize>::default());
            let counts = Arc::clone(&lied);
            let liar = NodeLine::to(bridge.p2p_port(), move |name, payload| {
                if name == "uproof"
                    && let Some(first) = leaves(payload)
                    && seen.fetch_add(1, Ordering::Relaxed) == nth
                {
                    let place = (first + at).min(payload.len() - 1);
                    payload[place] ^= bit;
                    counts.fetch_add(1, Ordering::Relaxed);
                }
                Fate::Passes
            });
            let said = world.sandbox.apus(&line(&world, &[liar.port()], "--par 1"));
            assert_eq!(lied.load(Ordering::Relaxed), 1, "{said}");
            assert!(matches!(said.code, Some(3 | 4)), "{at} {bit}: {said}");
            assert!(!world.sandbox.has("set.dat"), "{at} {bit}: {said}");
            if world.sandbox.has("w.work") {
                std::fs::remove_dir_all(world.sandbox.path("w.work")).unwrap();
            }
            world.sandbox.remove("report.json");
        }
    }
    let said = world.sandbox.apus(&line(&world, &[bridge.p2p_port()], "")).succeeds();
    expect_set(&world, &said);
}

/// The block that created the coin shows who lies.
#[test]
fn of_two_bridges_the_liar_is_left_out() {
    let (world, bridge) = world(73);
    for (at, bit) in [(0, 1), (0, 2), (4, 1), (12, 1)] {
        let liar = NodeLine::to(bridge.p2p_port(), move |name, payload| {
            if name == "uproof"
                && let Some(first) = leaves(payload)
            {
                payload[first + at] ^= bit;
            }
            Fate::Passes
        });
        for ports in [[liar.port(), bridge.p2p_port()], [bridge.p2p_port(), liar.port()]] {
            let said = world.sandbox.apus(&line(&world, &ports, EACH)).succeeds();
            let left_out = format!("asks 127.0.0.1:{} nothing more", liar.port());
            assert!(said.stderr.contains(&left_out), "{said}");
            expect_set(&world, &said);
        }
        // Two that lie in different ways.
        let other = NodeLine::to(bridge.p2p_port(), move |name, payload| {
            if name == "uproof"
                && let Some(first) = leaves(payload)
            {
                payload[first + 4] ^= 2;
            }
            Fate::Passes
        });
        let ports = [liar.port(), other.port()];
        // Without its kind of script, the first one's answer is not even read.
        let said: &[&str] = if at == 12 { &[] } else { &["sent a wrong coin"] };
        world.sandbox.apus(&line(&world, &ports, "")).fails(4, said);
        assert!(!world.sandbox.has("set.dat"));
        std::fs::remove_dir_all(world.sandbox.path("w.work")).unwrap();
        world.sandbox.remove("report.json");
    }
}

/// Too few leaves, another block, silence, and no connection.
#[test]
fn a_bridge_that_fails_is_left_out() {
    let (world, bridge) = world(74);
    for kind in 0..4 {
        let answers = AtomicUsize::new(0);
        let fails = NodeLine::to(bridge.p2p_port(), move |name, payload| {
            if name != "uproof" && name != "pong" || answers.fetch_add(1, Ordering::Relaxed) < 40 {
                return Fate::Passes;
            }
            match kind {
                0 if name == "uproof" => payload[34] = payload[34].saturating_sub(1),
                1 if name == "uproof" => payload[0] ^= 1,
                2 => return Fate::IsLost,
                3 => return Fate::StopsRelay,
                _ => {}
            }
            Fate::Passes
        });
        let ports = [fails.port(), bridge.p2p_port()];
        let said = world.sandbox.apus(&line(&world, &ports, "--patience 6")).succeeds();
        let then = if kind < 2 { "nothing more" } else { "again if these fail" };
        let left_out = format!("asks 127.0.0.1:{} {then}", fails.port());
        assert!(said.stderr.contains(&left_out), "{kind}: {said}");
        expect_set(&world, &said);
    }
    let none = NodeLine::to(bridge.p2p_port(), |name, _| match name {
        "uproof" => Fate::StopsRelay,
        _ => Fate::Passes,
    });
    let said = world.sandbox.apus(&line(&world, &[none.port()], ""));
    said.fails(3, &["cannot get the spent coins: ", "rerun the command to resume"]);
}

#[test]
fn a_killed_sync_resumes() {
    let (world, bridge) = world(75);
    let answers = AtomicUsize::new(0);
    let stops = NodeLine::to(bridge.p2p_port(), move |name, _| {
        match name == "uproof" && answers.fetch_add(1, Ordering::Relaxed) >= 60 {
            true => Fate::IsLost,
            false => Fate::Passes,
        }
    });
    let mut run = world.sandbox.start(&line(&world, &[stops.port()], EACH));
    assert!(run.until(|| world.kept() > 10));
    run.signal(&["KILL"]);
    assert_eq!(run.wait().code, None);
    let kept = world.kept();
    let said = world.sandbox.apus(&line(&world, &[bridge.p2p_port()], EACH)).succeeds();
    assert_eq!(world.sandbox.json("report.json")["segments_resumed"], kept);
    expect_set(&world, &said);
}

/// The data directory has the undo data of all blocks: the indexes and the chain in numbers need them.
#[test]
fn a_data_directory_has_all_undo_data() {
    let mut chain = ChainBuilder::new(76);
    chain.random_blocks(430, Shape::default());
    let world = World::of(&chain, true);
    let bridge = Utreexod::with_blocks_of(&world.node);
    prepare(&world);
    let answers = AtomicUsize::new(0);
    let line = |port: u16| {
        format!(
            "sync --chain regtest --workdir w.work --connect 127.0.0.1:{} --hints main.hints --assumevalid 0 \
             --spent peer:127.0.0.1:{port} --out datadir:node --index all --out stats:chain.csv --v2transport 0",
            world.node.p2p_port()
        )
    };
    // Killed once before the end, and once with a wrong coin: neither leaves undo data that a later start takes for
    // proven.
    let liar = NodeLine::to(bridge.p2p_port(), move |name, payload| {
        if name == "uproof"
            && let Some(first) = leaves(payload)
            && answers.fetch_add(1, Ordering::Relaxed) == 2
        {
            payload[first + 5] ^= 1;
        }
        Fate::Passes
    });
    world.sandbox.apus(&line(liar.port())).fails(4, &[]);
    let said = world.sandbox.apus(&line(bridge.p2p_port())).succeeds();
    world.sandbox.apus("verify --chain regtest --datadir node").succeeds();
    world.sandbox.apus("index --chain regtest --datadir node --numbers again.csv").succeeds();
    assert!(world.sandbox.read("chain.csv") == world.sandbox.read("again.csv"), "other numbers");
    let node = Bitcoind::start_in(
        &world.sandbox.path("node"),
        "regtest",
        &["-coinstatsindex=1", "-blockfilterindex=1"],
    );
    let node = node.unwrap_or_else(|error| panic!("{error}: {said}"));
    assert_eq!(node.best_block_hash(), world.node.best_block_hash());
    let tip = node.height();
    let is_synced = |name: &str| {
        let info = node.call("getindexinfo", &[]);
        info[name]["synced"] == true && info[name]["best_block_height"] == tip
    };
    for name in ["coinstatsindex", "basic block filter index"] {
        for _ in 0..600 {
            if is_synced(name) {
                break;
            }
            std::thread::sleep(std::time::Duration::from_millis(50));
        }
        assert!(is_synced(name), "{name}: {}", node.log());
    }
    assert_eq!(node.txoutset_info(), world.node.txoutset_info());
    // Blocks and undo data come back: the node can disconnect and connect them.
    let first = node.block_at(2).block_hash();
    node.invalidate_block(first);
    assert_eq!(node.height(), 1);
    node.reconsider_block(first);
    assert_eq!(node.height(), tip);
}

#[test]
fn contradictory_options_are_refused() {
    let (world, _bridge) = world(77);
    let line = "sync --chain regtest --connect 127.0.0.1:1";
    for (more, said) in [
        ("--spent peer:127.0.0.1", "is for blocks from peers with --hints"),
        ("--hints main.hints --spent blocks", "write peer:, not blocks"),
        (
            "--hints main.hints --assumevalid hints --spent peer:127.0.0.1",
            "leave out --assumevalid hints",
        ),
        (
            "--hints main.hints --spent peer:127.0.0.1 --assumevalid 0 --witnesses skip",
            "--spent needs them",
        ),
    ] {
        world.sandbox.apus(&format!("{line} {more}")).fails(1, &[said]);
    }
}

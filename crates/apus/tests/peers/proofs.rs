//! Proofs from a real Utreexo bridge node, and from one whose messages are altered in transit.

use super::relay::{Fate, NodeLine};
use crate::sandbox::{Ended, Sandbox};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ChainBuilder, Shape};
use apus_testkit::utreexod::Utreexod;
use bitcoin::hashes::Hash;
use bitcoin::{Amount, Block, BlockHash, ScriptBuf, TxOut};
use std::net::TcpListener;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

/// One block per range, so that there are many requests and many ranges to keep.
pub(super) const EACH: &str = "--segment-bytes 1 --checkpoint-seconds 0";

/// A chain in block files on a sandbox, and the node that has it.
pub(super) struct World {
    pub(super) sandbox: Sandbox,
    pub(super) node: Bitcoind,
    pub(super) blocks: Vec<Block>,
}

impl World {
    /// A world with these blocks, and a block of today if `today`: without one a bridge answers nothing.
    pub(super) fn of(chain: &ChainBuilder, today: bool) -> Self {
        let node = Bitcoind::start(&["-maxtipage=2000000000"]);
        let mut blocks = chain.blocks();
        for block in &blocks[1..] {
            node.submit_block(block).unwrap();
        }
        if today {
            node.mine(1);
            blocks.push(node.block_at(chain.height() + 1));
        }
        let sandbox = Sandbox::empty();
        let mut files = BlockFiles::regtest();
        files.blocks(&blocks);
        files.write(&sandbox.path("blocks"));
        Self { sandbox, node, blocks }
    }

    /// A world with a random chain that spends coins.
    pub(super) fn random(seed: u64) -> (Self, Utreexod) {
        let mut chain = ChainBuilder::new(seed);
        chain.random_blocks(130, Shape::default());
        let world = Self::of(&chain, true);
        let bridge = Utreexod::with_blocks_of(&world.node);
        (world, bridge)
    }

    /// The command line of a sync with proofs from peers at these ports.
    fn line(ports: &[u16], more: &str) -> String {
        let peers: Vec<String> =
            ports.iter().map(|port| format!("--proofs peer:127.0.0.1:{port}")).collect();
        format!(
            "sync --chain regtest --blocksdir blocks --engine utreexo {} --workdir w.work {more}",
            peers.join(" ")
        )
    }

    fn run(&self, ports: &[u16], more: &str) -> Ended {
        self.sandbox.apus(&Self::line(ports, more))
    }

    /// Asserts that a sync ends with the roots that another engine computes from blocks only.
    #[track_caller]
    fn expect_valid(&self, ports: &[u16], more: &str) -> Ended {
        let out = "--assumevalid 0 --out utreexo:roots --report report.json";
        let said = self.run(ports, &format!("{out} {more}")).succeeds();
        if !self.sandbox.has("expected") {
            let other = "sync --chain regtest --blocksdir blocks --engine mergesync";
            self.sandbox.apus(&format!("{other} --out utreexo:expected")).succeeds();
        }
        assert!(self.sandbox.read("roots") == self.sandbox.read("expected"), "other roots: {said}");
        let report = self.sandbox.json("report.json");
        assert_eq!(report["blocks"], self.blocks.len() - 1);
        assert_eq!(report["validation"], "full");
        ["roots", "report.json"].iter().for_each(|name| self.sandbox.remove(name));
        said
    }

    /// A block as messages name it.
    fn named(&self, hash: [u8; 32]) -> String {
        let hash = BlockHash::from_byte_array(hash);
        let height = self.blocks.iter().position(|block| block.block_hash() == hash).unwrap();
        format!("block {height} ({hash})")
    }

    /// The number of ranges kept.
    pub(super) fn kept(&self) -> usize {
        self.sandbox.names("w.work").iter().filter(|name| name.ends_with(".part")).count()
    }
}

#[test]
fn a_bridges_proofs_suffice_to_check_every_rule() {
    let (world, bridge) = World::random(41);
    for more in ["--v2transport 1", "--v2transport 0 --par 1", &format!("{EACH} --par 3")] {
        let said = world.expect_valid(&[bridge.p2p_port()], more);
        assert!(said.stdout.contains("no set was kept"), "{said}");
    }
}

/// Requests for many blocks go out together, so a distant peer does not cost a round trip per block.
#[test]
fn a_distant_peer_costs_no_round_trip_per_block() {
    let (world, bridge) = World::random(52);
    let far = NodeLine::far(bridge.p2p_port(), Duration::from_millis(30), |_, _| Fate::Passes);
    world.expect_valid(&[far.port()], "--v2transport 0 --par 1");
    let (batches, blocks) = (far.batches(), world.blocks.len());
    assert!(batches < blocks / 3, "{batches} for {blocks} blocks");
}

/// Proofs of blocks from a node are those of blocks in files, also where the chain has grown.
#[test]
fn proofs_are_made_of_a_nodes_blocks() {
    let mut chain = ChainBuilder::new(53);
    chain.random_blocks(130, Shape::default());
    let world = World::of(&chain, true);
    let made = |source: &str, out: &str| {
        let line = format!(
            "utreexo prove --chain regtest {source} --assumevalid 0 --every 40 --out {out} --workdir {out}.work"
        );
        world.sandbox.start(&line).wait().succeeds();
    };
    let node = format!("--connect 127.0.0.1:{}", world.node.p2p_port());
    made("--blocksdir blocks", "files");
    let line = format!(
        "utreexo prove --chain regtest {node} --assumevalid 0 --every 40 --out killed --workdir w.work {EACH}"
    );
    let mut run = world.sandbox.start(&line);
    assert!(run.until(|| world.kept() > 10));
    run.signal(&["KILL"]);
    assert_eq!(run.wait().code, None);
    world.sandbox.start(&line).wait().succeeds();
    made(&format!("{node} --stopatheight 80"), "net");
    made(&node, "net");
    let names = world.sandbox.names("files");
    for folder in ["net", "killed"] {
        assert_eq!((names.len(), &names), (4, &world.sandbox.names(folder)));
        for name in &names {
            let [files, other] =
                ["files", folder].map(|it| world.sandbox.read(&format!("{it}/{name}")));
            assert!(files == other, "{folder}/{name}");
        }
    }
    let prove = "utreexo prove --chain regtest --out x";
    world.sandbox.apus(prove).fails(1, &["--blocksdir"]);
    for more in ["--follow", "--blocks keep"] {
        let line = format!("{prove} {node} {more}");
        world.sandbox.apus(&line).fails(1, &["leave out --follow and --blocks keep"]);
    }
}

#[test]
fn a_node_without_proofs_is_refused() {
    let mut chain = ChainBuilder::new(42);
    chain.empty_blocks(3);
    let world = World::of(&chain, true);
    let port = world.node.p2p_port();
    let lacks =
        ["is not a Utreexo bridge node", "bit 12 (NODE_UTREEXO) and bit 13 (NODE_UTREEXO_ARCHIVE)"];
    world.run(&[port], "").fails(1, &[&format!("127.0.0.1:{port}"), lacks[0], lacks[1]]);
    // Apus reports a bad peer even if there are others.
    let bridge = Utreexod::with_blocks_of(&world.node);
    world.run(&[bridge.p2p_port(), port], "").fails(1, &lacks);
    world.expect_valid(&[bridge.p2p_port()], "");
}

/// The bridge's last block is old, so it answers nothing.
#[test]
fn a_bridge_that_is_not_in_sync_is_reported() {
    let mut chain = ChainBuilder::new(43);
    chain.random_blocks(3, Shape::default());
    let world = World::of(&chain, false);
    let bridge = Utreexod::with_blocks_of(&world.node);
    let peer = format!("127.0.0.1:{}", bridge.p2p_port());
    let said = world.run(&[bridge.p2p_port()], "--patience 1");
    said.fails(3, &[&format!("{peer} sends no roots of block 3 ("), "24 hours"]);
}

#[test]
fn an_unreachable_peer_is_reported() {
    let (world, bridge) = World::random(44);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    world.run(&[free], "").fails(3, &[&format!("cannot connect to 127.0.0.1:{free}")]);
    let said = world.expect_valid(&[free, bridge.p2p_port()], "");
    let warned = format!("cannot connect to 127.0.0.1:{free}");
    assert!(said.stderr.contains(&warned) && said.stderr.contains("other peers"), "{said}");
}

/// The node is killed, with all its connections, and another one takes its place later.
#[test]
fn another_node_can_replace_a_killed_bridge() {
    let (world, bridge) = World::random(45);
    let port = bridge.p2p_port();
    let (victim, proofs) = (Mutex::new(Some(bridge)), AtomicUsize::new(0));
    let relay = NodeLine::to(port, move |name, _| {
        if name == "uproof" && proofs.fetch_add(1, Ordering::Relaxed) == 60 {
            drop(victim.lock().unwrap().take());
        }
        Fate::Passes
    });
    let peer = format!("127.0.0.1:{}", relay.port());
    let out = format!("--assumevalid 0 --out utreexo:roots --report report.json {EACH}");
    let said = world.run(&[relay.port()], &format!("{out} --v2transport 0"));
    said.fails(3, &[&peer, "6 attempts", "rerun the command to resume"]);
    let kept = world.kept();
    assert!(kept > 10, "{kept}");
    let again = Utreexod::with_blocks_of(&world.node);
    world.run(&[again.p2p_port()], &out).succeeds();
    assert_eq!(world.sandbox.json("report.json")["segments_resumed"], kept);
    ["roots", "report.json"].iter().for_each(|name| world.sandbox.remove(name));
    world.expect_valid(&[again.p2p_port()], EACH);
}

/// Apus replaces broken connections, and uses another peer if the first one accepts no more.
#[test]
fn broken_connections_are_replaced() {
    let (world, bridge) = World::random(46);
    let messages = AtomicUsize::new(0);
    let breaks = NodeLine::to(bridge.p2p_port(), move |name, _| {
        let is_answer = name == "uproof" || name == "uroot";
        match is_answer && messages.fetch_add(1, Ordering::Relaxed) % 40 == 39 {
            true => Fate::EndsAll,
            false => Fate::Passes,
        }
    });
    world.expect_valid(&[breaks.port()], "--v2transport 0");
    world.expect_valid(&[breaks.port()], &format!("{EACH} --v2transport 0"));
    let proofs = AtomicUsize::new(0);
    let ends = NodeLine::to(bridge.p2p_port(), move |name, _| {
        match name == "uproof" && proofs.fetch_add(1, Ordering::Relaxed) >= 30 {
            true => Fate::StopsRelay,
            false => Fate::Passes,
        }
    });
    world.expect_valid(&[ends.port(), bridge.p2p_port()], "--v2transport 0");
}

/// The peer flips one bit: in a hash, in a leaf, in a root, or in the hash of the proof's block.
#[test]
fn a_peer_that_lies_is_reported_with_the_block() {
    let (world, bridge) = World::random(47);
    let all: &[(&str, usize)] = &[("uproof", 33), ("uproof", usize::MAX)];
    for &(lied, place) in all {
        let about: Arc<Mutex<Option<[u8; 32]>>> = Arc::default();
        let notes = Arc::clone(&about);
        let liar = NodeLine::to(bridge.p2p_port(), move |name, payload| {
            let mut about = notes.lock().unwrap();
            // A proof with hashes, rather than three zeros after the block.
            if name == lied && about.is_none() && payload.get(32).is_some_and(|count| *count > 0) {
                *about = Some(*payload.first_chunk().unwrap());
                let last = payload.len() - 1;
                payload[place.min(last)] ^= 1;
            }
            Fate::Passes
        });
        let said = world.run(&[liar.port()], "--v2transport 0 --par 1");
        let block = world.named(about.lock().unwrap().unwrap());
        let from = format!("from 127.0.0.1:{}", liar.port());
        said.fails(4, &[&format!("proofs of {block}"), &from, "Get other proofs"]);
        // Apus repeats only the range of that block.
        world.expect_valid(&[bridge.p2p_port()], "--par 1");
    }
    let liar = NodeLine::to(bridge.p2p_port(), |name, payload| {
        if name == "uroot" {
            let last = payload.len() - 1;
            payload[last] ^= u8::from(payload[last] != 0);
            payload[60] ^= 1;
        }
        Fate::Passes
    });
    let said = world.run(&[liar.port()], "--v2transport 0");
    said.fails(4, &[&format!("from 127.0.0.1:{}", liar.port()), "do not lead to the roots"]);
    let other = NodeLine::to(bridge.p2p_port(), |name, payload| {
        if name == "uproof" {
            payload[0] ^= 1;
        }
        Fate::Passes
    });
    let said = world.run(&[other.port()], "--v2transport 0");
    said.fails(3, &["was asked for the proof of block 1 (", "but sent data of block"]);
}

/// A line to a bridge that, once each, changes the roots at the beginning and at the end of a range of block 7 alone. With
/// the seventh leaf, the trees of four and of two leaves do not change.
pub(super) fn inventor(world: &World, bridge: &Utreexod) -> NodeLine {
    let hash = |height: usize| world.blocks[height].block_hash().to_byte_array();
    let (before, after) = (hash(6), hash(7));
    let asked = [AtomicUsize::new(0), AtomicUsize::new(0)];
    NodeLine::to(bridge.p2p_port(), move |name, payload| {
        // The number of leaves, the position and the number of roots take a byte each.
        let about = payload.get(2..34).filter(|_| name == "uroot").map(<[u8]>::to_vec);
        let turn = |at: usize| asked[at].fetch_add(1, Ordering::Relaxed);
        // Each is requested as the end of one range and as the beginning of the next.
        let lies = match about {
            Some(block) if block == before => turn(0) == 1,
            Some(block) if block == after => turn(1) == 0,
            _ => false,
        };
        if lies {
            payload[35] ^= 1;
        }
        Fate::Passes
    })
}

/// A range that spends nothing needs no proof, so it passes with forged roots if it ends with roots that follow from
/// them. The range below exposes it, and the sync cannot be resumed from it.
#[test]
fn an_invented_forest_is_exposed() {
    let mut chain = ChainBuilder::new(51);
    chain.empty_blocks(12);
    let world = World::of(&chain, true);
    let bridge = Utreexod::with_blocks_of(&world.node);
    let liar = inventor(&world, &bridge);
    let said = world.run(&[liar.port()], &format!("{EACH} --v2transport 0 --par 1"));
    said.fails(4, &["do not fit together: the range from block 7 on", "Get other proofs"]);
    assert!(!world.sandbox.has("w.work/plan"));
    world.expect_valid(&[bridge.p2p_port()], EACH);
}

/// Apus notices a missing answer when the next one arrives, and silence after a timeout.
#[test]
fn a_peer_that_withholds_answers_is_noticed() {
    let (world, bridge) = World::random(48);
    // It is asked again, since it may only be behind its own peers for a moment.
    for most in [10, usize::MAX] {
        let proofs = AtomicUsize::new(0);
        let leaves_out = NodeLine::to(bridge.p2p_port(), move |name, _| {
            match name == "uproof" && (9..most).contains(&proofs.fetch_add(1, Ordering::Relaxed)) {
                true => Fate::IsLost,
                false => Fate::Passes,
            }
        });
        let peer = format!("127.0.0.1:{}", leaves_out.port());
        if most == 10 {
            world.expect_valid(&[leaves_out.port()], "--v2transport 0 --par 1");
        } else {
            let said = world.run(&[leaves_out.port()], "--v2transport 0 --par 1 --patience 2");
            said.fails(3, &[&format!("{peer} sends no proof of block 10 (")]);
        }
    }
    let lost = Arc::<AtomicUsize>::default();
    let counts = Arc::clone(&lost);
    let silent = NodeLine::to(bridge.p2p_port(), move |name, _| match name {
        "uproof" | "pong" => {
            counts.fetch_add(1, Ordering::Relaxed);
            Fate::IsLost
        }
        _ => Fate::Passes,
    });
    let said = world.run(&[silent.port()], "--v2transport 0 --patience 1");
    said.fails(3, &[&format!("127.0.0.1:{}", silent.port()), "took longer than 1s"]);
    // The user can interrupt the wait.
    lost.store(0, Ordering::Relaxed);
    let mut waits = world.sandbox.start(&World::line(&[silent.port()], "--v2transport 0"));
    assert!(waits.until(|| lost.load(Ordering::Relaxed) > 0));
    waits.signal(&["INT"]);
    waits.wait().fails(130, &["interrupted"]);
    world.expect_valid(&[bridge.p2p_port()], "");
}

/// One block spends more coins with scripts of 10,000 bytes than fit into a message with their leaves.
#[test]
fn a_proof_longer_than_a_message_is_fetched_in_parts() {
    let mut chain = ChainBuilder::new(49);
    chain.empty_blocks(105);
    let mut script = Vec::new();
    for _ in 0..19 {
        // OP_PUSHDATA2 of 520 bytes.
        script.extend([0x4d, 0x08, 0x02]);
        script.extend([7; 520]);
    }
    script.push(0x51);
    let script_pubkey = ScriptBuf::from_bytes(script);
    let mut coins = Vec::new();
    for _ in 0..5 {
        let (coin, _) = chain.mature_coin();
        let output = TxOut { value: Amount::from_sat(1000), script_pubkey: script_pubkey.clone() };
        let tx = chain.spend(&[coin], vec![output; 95]);
        coins.extend(apus_testkit::chain::coins_of(&tx));
        chain.block_with(vec![tx]);
    }
    let anyone =
        TxOut { value: Amount::from_sat(1), script_pubkey: ScriptBuf::from_bytes(vec![0x51]) };
    let tx = chain.spend_coins(&coins, vec![anyone]);
    chain.block_with(vec![tx]);
    chain.random_blocks(5, Shape::default());
    let world = World::of(&chain, true);
    let bridge = Utreexod::with_blocks_of(&world.node);
    world.expect_valid(&[bridge.p2p_port()], "--v2transport 1");
    let (longest, parts) = (Arc::<AtomicUsize>::default(), Arc::<AtomicUsize>::default());
    let (of_relay, counts) = (Arc::clone(&longest), Arc::clone(&parts));
    let relay = NodeLine::to(bridge.p2p_port(), move |name, payload| {
        if name == "uproof" {
            of_relay.fetch_max(payload.len(), Ordering::Relaxed);
            counts.fetch_add(1, Ordering::Relaxed);
        }
        Fate::Passes
    });
    world.expect_valid(&[relay.port()], "--v2transport 0");
    assert!(longest.load(Ordering::Relaxed) > 4_000_000, "{longest:?}");
    // The long proof takes four more messages: targets, hashes, and twice leaves.
    let once = world.blocks.len() - 1;
    assert!(parts.load(Ordering::Relaxed) >= once + 4, "{parts:?}");
}

#[test]
fn contradictory_options_are_refused() {
    let mut chain = ChainBuilder::new(50);
    chain.empty_blocks(2);
    let sandbox = Sandbox::of(&chain);
    let line = "sync --chain regtest --blocksdir blocks --engine utreexo";
    for (proofs, said) in [
        ("--proofs peer:127.0.0.1 --proofs blocks", "leave out --proofs blocks"),
        ("--proofs peer:", "needs the address"),
        ("--proofs peer:127.0.0.1:x", "a number from 1 to 65535"),
        ("--proofs nothing --proxy 127.0.0.1:9050", "--proxy is for peers"),
    ] {
        sandbox.apus(&format!("{line} {proofs}")).fails(1, &[said]);
    }
}

//! Proofs from a real bridge node of Utreexo, and from one whose line is tampered with.

use super::relay::{Fate, NodeLine};
use crate::desk::{Desk, Ended};
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

/// One block a range, so that there is much to be asked and kept.
const EACH: &str = "--segment-bytes 1 --checkpoint-seconds 0";

/// A chain in block files on a desk, and the node that has it.
struct World {
    desk: Desk,
    node: Bitcoind,
    blocks: Vec<Block>,
}

impl World {
    /// These blocks, and one of today if `today`: without one a bridge answers nothing.
    fn of(chain: &ChainBuilder, today: bool) -> Self {
        let node = Bitcoind::start(&["-maxtipage=2000000000"]);
        let mut blocks = chain.blocks();
        for block in &blocks[1..] {
            node.submit_block(block).unwrap();
        }
        if today {
            node.mine(1);
            blocks.push(node.block_at(chain.height() + 1));
        }
        let desk = Desk::empty();
        let mut files = BlockFiles::regtest();
        files.blocks(&blocks);
        files.write(&desk.path("blocks"));
        Self { desk, node, blocks }
    }

    /// A chain that spends.
    fn random(seed: u64) -> (Self, Utreexod) {
        let mut chain = ChainBuilder::new(seed);
        chain.random_blocks(130, Shape::default());
        let world = Self::of(&chain, true);
        let bridge = Utreexod::with_blocks_of(&world.node);
        (world, bridge)
    }

    /// A run by the proofs of peers at these ports.
    fn line(ports: &[u16], more: &str) -> String {
        let peers: Vec<String> =
            ports.iter().map(|port| format!("--proofs peer:127.0.0.1:{port}")).collect();
        format!(
            "sync --chain regtest --blocksdir blocks --engine utreexo {} --workdir w.work {more}",
            peers.join(" ")
        )
    }

    fn run(&self, ports: &[u16], more: &str) -> Ended {
        self.desk.apus(&Self::line(ports, more))
    }

    /// The whole run ends with the roots that another engine computes from the blocks alone.
    #[track_caller]
    fn expect_valid(&self, ports: &[u16], more: &str) -> Ended {
        let out = "--assumevalid 0 --out utreexo:roots --report report.json";
        let said = self.run(ports, &format!("{out} {more}")).succeeds();
        if !self.desk.has("expected") {
            let other = "sync --chain regtest --blocksdir blocks --engine mergesync";
            self.desk.apus(&format!("{other} --out utreexo:expected")).succeeds();
        }
        assert!(self.desk.read("roots") == self.desk.read("expected"), "other roots: {said}");
        let report = self.desk.json("report.json");
        assert_eq!(report["blocks"], self.blocks.len() - 1);
        assert_eq!(report["validation"], "full");
        ["roots", "report.json"].iter().for_each(|name| self.desk.remove(name));
        said
    }

    /// What messages call a block.
    fn named(&self, hash: [u8; 32]) -> String {
        let hash = BlockHash::from_byte_array(hash);
        let height = self.blocks.iter().position(|block| block.block_hash() == hash).unwrap();
        format!("block {height} ({hash})")
    }

    /// Ranges that are kept.
    fn kept(&self) -> usize {
        self.desk.names("w.work").iter().filter(|name| name.ends_with(".part")).count()
    }
}

#[test]
fn all_rules_by_the_proofs_of_a_bridge() {
    let (world, bridge) = World::random(41);
    for more in ["--v2transport 1", "--v2transport 0 --par 1", &format!("{EACH} --par 3")] {
        let said = world.expect_valid(&[bridge.p2p_port()], more);
        assert!(said.stdout.contains("no set was kept"), "{said}");
    }
}

/// The questions of many blocks go together, so that a far peer costs no wait for each.
#[test]
fn a_peer_that_is_far_away() {
    let (world, bridge) = World::random(52);
    let far = NodeLine::far(bridge.p2p_port(), Duration::from_millis(30), |_, _| Fate::Passes);
    world.expect_valid(&[far.port()], "--v2transport 0 --par 1");
    let (batches, blocks) = (far.batches(), world.blocks.len());
    assert!(batches < blocks / 3, "{batches} for {blocks} blocks");
}

#[test]
fn a_node_without_proofs_is_refused() {
    let mut chain = ChainBuilder::new(42);
    chain.empty_blocks(3);
    let world = World::of(&chain, true);
    let port = world.node.p2p_port();
    let lacks = ["is no bridge node", "bit 12 (NODE_UTREEXO) and bit 13 (NODE_UTREEXO_ARCHIVE)"];
    world.run(&[port], "").fails(1, &[&format!("127.0.0.1:{port}"), lacks[0], lacks[1]]);
    // One that is bad is told, also beside others.
    let bridge = Utreexod::with_blocks_of(&world.node);
    world.run(&[bridge.p2p_port(), port], "").fails(1, &lacks);
    world.expect_valid(&[bridge.p2p_port()], "");
}

/// Its last block is of long ago, so it says nothing at all.
#[test]
fn a_bridge_that_is_not_in_sync_is_told() {
    let mut chain = ChainBuilder::new(43);
    chain.random_blocks(3, Shape::default());
    let world = World::of(&chain, false);
    let bridge = Utreexod::with_blocks_of(&world.node);
    let peer = format!("127.0.0.1:{}", bridge.p2p_port());
    let said = world.run(&[bridge.p2p_port()], "");
    said.fails(3, &[&format!("{peer} gives no roots of block 3 ("), "24 hours"]);
}

#[test]
fn nothing_where_a_peer_should_be() {
    let (world, bridge) = World::random(44);
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    world.run(&[free], "").fails(3, &[&format!("cannot connect to 127.0.0.1:{free}")]);
    let said = world.expect_valid(&[free, bridge.p2p_port()], "");
    let warned = format!("cannot connect to 127.0.0.1:{free}");
    assert!(said.stderr.contains(&warned) && said.stderr.contains("other peers"), "{said}");
}

/// The node itself is killed, with all its connections, and another one is there later.
#[test]
fn a_bridge_that_is_killed() {
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
    said.fails(3, &[&peer, "6 attempts", "the same command goes on from there"]);
    let kept = world.kept();
    assert!(kept > 10, "{kept}");
    let again = Utreexod::with_blocks_of(&world.node);
    world.run(&[again.p2p_port()], &out).succeeds();
    assert_eq!(world.desk.json("report.json")["segments_resumed"], kept);
    ["roots", "report.json"].iter().for_each(|name| world.desk.remove(name));
    world.expect_valid(&[again.p2p_port()], EACH);
}

/// Connections that break are made anew, and with another peer where the first takes none any more.
#[test]
fn a_line_that_breaks() {
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
            true => Fate::EndsAllForGood,
            false => Fate::Passes,
        }
    });
    world.expect_valid(&[ends.port(), bridge.p2p_port()], "--v2transport 0");
}

/// One bit of a hash, of a leaf, of a root, of what block it is about.
#[test]
fn a_peer_that_lies_is_told_with_the_block() {
    let (world, bridge) = World::random(47);
    let all: &[(&str, usize)] = &[("uproof", 33), ("uproof", usize::MAX)];
    for &(lied, place) in all {
        let about: Arc<Mutex<Option<[u8; 32]>>> = Arc::default();
        let notes = Arc::clone(&about);
        let liar = NodeLine::to(bridge.p2p_port(), move |name, payload| {
            let mut about = notes.lock().unwrap();
            // One with hashes, and not three zeros behind the block.
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
        // Its range is done again, and no other.
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
    said.fails(4, &[&format!("from 127.0.0.1:{}", liar.port()), "other roots"]);
    let other = NodeLine::to(bridge.p2p_port(), |name, payload| {
        if name == "uproof" {
            payload[0] ^= 1;
        }
        Fate::Passes
    });
    let said = world.run(&[other.port()], "--v2transport 0");
    said.fails(
        3,
        &["was asked for the proof of block 1 (", "and answers with what is about block"],
    );
}

/// A range that spends nothing needs no proof, so it passes from roots that were never there if it ends with such as
/// follow from them: it is found out by the range below, and nothing of the run is gone on from.
#[test]
fn a_forest_that_never_was() {
    let mut chain = ChainBuilder::new(51);
    chain.empty_blocks(12);
    let world = World::of(&chain, true);
    let bridge = Utreexod::with_blocks_of(&world.node);
    // With the seventh leaf the trees of four and of two stay as they are.
    let hash = |height: usize| world.blocks[height].block_hash().to_byte_array();
    let (before, after) = (hash(6), hash(7));
    let asked = [AtomicUsize::new(0), AtomicUsize::new(0)];
    let liar = NodeLine::to(bridge.p2p_port(), move |name, payload| {
        // Leaves and position have one byte each, and the number of roots.
        let about = payload.get(2..34).filter(|_| name == "uroot").map(<[u8]>::to_vec);
        let turn = |at: usize| asked[at].fetch_add(1, Ordering::Relaxed);
        // Each is asked for as the end of one range and as the beginning of the next.
        let lies = match about {
            Some(block) if block == before => turn(0) == 1,
            Some(block) if block == after => turn(1) == 0,
            _ => false,
        };
        if lies {
            payload[35] ^= 1;
        }
        Fate::Passes
    });
    let said = world.run(&[liar.port()], &format!("{EACH} --v2transport 0 --par 1"));
    said.fails(4, &["do not fit together: the one from block 7 on", "Get other proofs"]);
    assert!(!world.desk.has("w.work/plan"));
    world.expect_valid(&[bridge.p2p_port()], EACH);
}

/// An answer that is left out is known by what comes behind it, and silence by the time.
#[test]
fn a_peer_that_keeps_something_back() {
    let (world, bridge) = World::random(48);
    let proofs = AtomicUsize::new(0);
    let leaves_out = NodeLine::to(bridge.p2p_port(), move |name, _| {
        match name == "uproof" && proofs.fetch_add(1, Ordering::Relaxed) == 9 {
            true => Fate::IsLost,
            false => Fate::Passes,
        }
    });
    let said = world.run(&[leaves_out.port()], "--v2transport 0 --par 1");
    let peer = format!("127.0.0.1:{}", leaves_out.port());
    said.fails(3, &[&format!("{peer} gives no proof of block 10 (")]);
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
    // A wait can be interrupted.
    lost.store(0, Ordering::Relaxed);
    let mut waits = world.desk.start(&World::line(&[silent.port()], "--v2transport 0"));
    assert!(waits.until(|| lost.load(Ordering::Relaxed) > 0));
    waits.signal(&["INT"]);
    waits.wait().fails(130, &["interrupted"]);
    world.expect_valid(&[bridge.p2p_port()], "");
}

/// As many coins with scripts of 10,000 bytes are spent in one block that no message here holds their leaves.
#[test]
fn a_proof_that_is_longer_than_a_message() {
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
    // Targets, hashes, and twice leaves.
    let once = world.blocks.len() - 1;
    assert!(parts.load(Ordering::Relaxed) >= once + 4, "{parts:?}");
}

#[test]
fn lines_that_make_no_sense_are_refused() {
    let mut chain = ChainBuilder::new(50);
    chain.empty_blocks(2);
    let desk = Desk::of(&chain);
    let line = "sync --chain regtest --blocksdir blocks --engine utreexo";
    for (proofs, said) in [
        ("--proofs peer:127.0.0.1 --proofs blocks", "leave out --proofs blocks"),
        ("--proofs peer:", "needs the address"),
        ("--proofs peer:127.0.0.1:x", "no port from 1 to 65535"),
        ("--proofs nothing --proxy 127.0.0.1:9050", "--proxy is for peers"),
    ] {
        desk.apus(&format!("{line} {proofs}")).fails(1, &[said]);
    }
}

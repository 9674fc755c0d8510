//! The last blocks in every kind of folder: a node disconnects as many of them as it may ever have to.

use crate::handover::node_checks::PRUNE;
use crate::handover::written::sync;
use crate::lived::{CHAIN, Lived, grow, submit};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::Shape;
use apus_testkit::effort::rounds;
use std::fs;

/// Number of blocks to add: more than the last blocks that a node must keep.
const ADDED_BLOCKS: usize = 310;

/// How many blocks the node disconnects: first as many as are kept.
const DEPTHS: [u32; 4] = [287, 1, 2, 100];

/// A node on a folder that the program made.
struct RunningNode {
    name: &'static str,
    args: &'static [&'static str],
    node: Bitcoind,
}

/// The folders are those in which the program did not connect or does not keep every block. Their nodes get the same
/// blocks as a node that built its own folder.
#[test]
fn nodes_disconnect_their_last_blocks() {
    let (mut lived, reference) = Lived::running(81, &[]);
    grow(&mut lived.chain, &reference, ADDED_BLOCKS);
    lived.sandbox.write_results(&lived.chain);
    // Make the node write everything to disk.
    let set = reference.txoutset_info();
    let port = reference.p2p_port();
    for name in ["kept", "joined"] {
        fs::create_dir_all(lived.sandbox.path(&format!("{name}/regtest"))).unwrap();
    }
    let kept = |name: &str, way: &str| {
        format!(
            "sync --chain regtest --connect 127.0.0.1:{port} {way} --blocks keep \
             --out chainstate:{name}/regtest/chainstate"
        )
    };
    let pruned =
        |name: &str, way: &str| format!("{} --prune", sync(way, &format!("datadir:{name}")));
    let lines = [
        ("every-rule", pruned("every-rule", "--assumevalid 0"), &[PRUNE][..]),
        ("by-hints", pruned("by-hints", "--hints msb.hints"), &[PRUNE]),
        ("by-snapshot", pruned("by-snapshot", "--hints snapshot:node.dat"), &[PRUNE]),
        ("kept", kept("kept", "--hints msb.hints"), &[]),
        ("joined", kept("joined", "--engine mergesync"), &[]),
    ];
    let mut nodes: Vec<RunningNode> = Vec::new();
    for (name, line, args) in lines {
        lived.sandbox.apus(&format!("{line} --report {name}.json")).succeeds();
        let undo = lived.sandbox.json(&format!("{name}.json"))["folders"][0]["undo_at_end"].clone();
        assert!(undo.as_u64() >= Some(288), "{name}: {undo}");
        let node = Bitcoind::start_in(&lived.sandbox.path(name), CHAIN, args).unwrap();
        assert_eq!(node.txoutset_info(), set, "{name}");
        nodes.push(RunningNode { name, args, node });
    }
    for (round, depth) in DEPTHS.into_iter().take(rounds(3, 4) as usize).enumerate() {
        let fork = lived.chain.blocks()[(lived.chain.height() - depth) as usize].block_hash();
        lived.chain.set_tip(fork);
        for _ in 0..=depth {
            let block = lived.chain.random_block(Shape { transactions_max: 3, ..Shape::default() });
            submit(&reference, &block);
            nodes.iter().for_each(|running| submit(&running.node, &block));
        }
        let set = reference.txoutset_info();
        assert_eq!(set.best_block, lived.chain.tip(), "{depth} blocks disconnected");
        for RunningNode { name, node, .. } in &nodes {
            assert_eq!(node.txoutset_info(), set, "{name}, {depth} blocks disconnected");
        }
        nodes = nodes.into_iter().map(|running| running.again(round % 2 == 0)).collect();
        for RunningNode { name, node, .. } in &nodes {
            assert_eq!(node.txoutset_info(), set, "{name}, started again after {depth}");
        }
    }
}

impl RunningNode {
    /// Restarts the node, after a kill if `by_force`. After a kill it continues from its last write.
    fn again(self, by_force: bool) -> Self {
        let Self { name, args, node } = self;
        let folder = if by_force { node.kill() } else { node.stop() };
        let node = Bitcoind::start_in(folder.path(), CHAIN, args).unwrap();
        Self { name, args, node }
    }
}

//! The last blocks of every kind of folder: a node goes back over as many as nodes ever do.

use crate::handover::judge::PRUNE;
use crate::handover::written::sync;
use crate::lived::{CHAIN, Lived, grow, submit};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::chain::Shape;
use apus_testkit::effort::rounds;
use std::fs;

/// More than a node keeps of its last blocks.
const MORE: usize = 310;

/// How far nodes go back: as far as is kept, first of all.
const DEPTHS: [u32; 4] = [287, 1, 2, 100];

/// A node on a folder that the program made.
struct Living {
    name: &'static str,
    args: &'static [&'static str],
    node: Bitcoind,
}

/// Folders in which not every block was connected by the program, or not every one is kept. They get the
/// same blocks as the node that made its own folder.
#[test]
fn a_node_goes_back_over_its_last_blocks() {
    let (mut lived, reference) = Lived::running(81, &[]);
    grow(&mut lived.chain, &reference, MORE);
    lived.desk.write_results(&lived.chain);
    // The node writes all that it has.
    let set = reference.txoutset_info();
    let port = reference.p2p_port();
    for name in ["kept", "joined"] {
        fs::create_dir_all(lived.desk.path(&format!("{name}/regtest"))).unwrap();
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
    let mut nodes: Vec<Living> = Vec::new();
    for (name, line, args) in lines {
        lived.desk.apus(&format!("{line} --report {name}.json")).succeeds();
        let undo = lived.desk.json(&format!("{name}.json"))["folders"][0]["undo_at_end"].clone();
        assert!(undo.as_u64() >= Some(288), "{name}: {undo}");
        let node = Bitcoind::start_in(&lived.desk.path(name), CHAIN, args).unwrap();
        assert_eq!(node.txoutset_info(), set, "{name}");
        nodes.push(Living { name, args, node });
    }
    for (round, depth) in DEPTHS.into_iter().take(rounds(3, 4) as usize).enumerate() {
        let fork = lived.chain.blocks()[(lived.chain.height() - depth) as usize].block_hash();
        lived.chain.set_tip(fork);
        for _ in 0..=depth {
            let block = lived.chain.random_block(Shape { transactions_max: 3, ..Shape::default() });
            submit(&reference, &block);
            nodes.iter().for_each(|living| submit(&living.node, &block));
        }
        let set = reference.txoutset_info();
        assert_eq!(set.best_block, lived.chain.tip(), "back by {depth}");
        for Living { name, node, .. } in &nodes {
            assert_eq!(node.txoutset_info(), set, "{name}, back by {depth}");
        }
        nodes = nodes.into_iter().map(|living| living.again(round % 2 == 0)).collect();
        for Living { name, node, .. } in &nodes {
            assert_eq!(node.txoutset_info(), set, "{name}, started again after {depth}");
        }
    }
}

impl Living {
    /// Ends the node, by force or not, and starts it again. Killed it goes on from what it wrote last.
    fn again(self, by_force: bool) -> Self {
        let Self { name, args, node } = self;
        let folder = if by_force { node.kill() } else { node.stop() };
        let node = Bitcoind::start_in(folder.path(), CHAIN, args).unwrap();
        Self { name, args, node }
    }
}

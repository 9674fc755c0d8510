//! Every kind of folder that the program writes for a node, and how it is made from the reference's chain.

use super::world::{REFERENCE, World};
use crate::sandbox::Sandbox;
use apus_testkit::rng::Rng;
use std::fs;
use std::thread::sleep;
use std::time::Duration;

/// The data directory on the sandbox that a node will run on.
pub(crate) const NODE: &str = "node";

/// The number of last blocks that a node keeps, with undo data (Core `validation.h`, `MIN_BLOCKS_TO_KEEP`). Every
/// folder has them.
const KEPT: u32 = 288;

/// Longer than most runs take here: some are over before their signal arrives.
const RUN_MILLIS: u64 = 500;

/// The option that makes all indexes of a folder.
pub(crate) const INDEX_ALL: &str = " --index all";

/// The kind of output.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Way {
    /// A whole data directory, from another node's blocks.
    Datadir,
    /// A data directory for a pruned node, from another node's blocks.
    Pruned,
    /// Coins for a node's existing blocks.
    Chainstate,
    /// A rebuild of a node's coins.
    Reindex,
    /// Coins and blocks, from a peer.
    Peers,
    /// Coins and blocks from a peer, with blocks joined below the last ones.
    PeersJoined,
}

/// How the run is disturbed before it may finish.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Fate {
    Left,
    Interrupted,
    Killed,
}

/// A kind of folder.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Kind {
    pub(crate) name: &'static str,
    /// `None` picks a random way.
    way: Option<Way>,
    hints: bool,
    fate: Fate,
    /// Whether the program makes all indexes, and the node uses them.
    indexes: bool,
}

const fn kind(name: &'static str, way: Way, hints: bool) -> Kind {
    Kind { name, way: Some(way), hints, fate: Fate::Left, indexes: false }
}

/// All kinds.
pub(crate) const KINDS: [Kind; 15] = [
    kind("datadir", Way::Datadir, false),
    kind("datadir-hints", Way::Datadir, true),
    kind("pruned", Way::Pruned, false),
    kind("pruned-hints", Way::Pruned, true),
    kind("chainstate", Way::Chainstate, false),
    kind("chainstate-hints", Way::Chainstate, true),
    kind("reindex", Way::Reindex, false),
    kind("reindex-hints", Way::Reindex, true),
    kind("peers", Way::Peers, false),
    kind("peers-hints", Way::Peers, true),
    kind("peers-joined", Way::PeersJoined, false),
    Kind { indexes: true, ..kind("indexes", Way::Datadir, false) },
    Kind { indexes: true, ..kind("indexes-reindex", Way::Reindex, true) },
    Kind { name: "interrupted", way: None, hints: false, fate: Fate::Interrupted, indexes: false },
    Kind { name: "killed", way: None, hints: false, fate: Fate::Killed, indexes: false },
];

/// A folder for a node.
#[derive(Debug)]
pub(crate) struct Folder {
    /// Whether a node must run on it with `-prune`.
    pub(crate) pruned: bool,
    /// Blocks above this height have undo data.
    pub(crate) floor: u32,
    /// The height of its coins.
    pub(crate) height: u32,
    /// Whether it has all indexes.
    pub(crate) indexed: bool,
    /// The command that made it.
    pub(crate) line: String,
}

impl Folder {
    /// Makes the program write a folder of a kind.
    pub(crate) fn make(world: &mut World, kind: Kind) -> Self {
        let (way, hinted) = match kind.way {
            Some(way) => (way, kind.hints),
            None => any(&mut world.rng),
        };
        let tip = world.height();
        let below = way != Way::Reindex && world.rng.one_in(4);
        let height = if below { tip - world.rng.below(30) as u32 } else { tip };
        let hints = hinted.then(|| world.write_hints(height));
        let mut line = prepare(world, way);
        if let Some((hints, _)) = hints {
            line.push_str(&format!(" --hints {hints}"));
        }
        if height < tip {
            line.push_str(&format!(" --stopatheight {height}"));
        }
        line.push_str(&options(&mut world.rng, way, hinted));
        if kind.indexes {
            line.push_str(INDEX_ALL);
        }
        if kind.fate != Fate::Left {
            line.push_str(" --checkpoint-seconds 0");
        }
        run(&world.sandbox, &line, kind.fate, &mut world.rng);
        let kept = height.saturating_sub(KEPT);
        let floor = match (way, hints) {
            (Way::Pruned, _) => kept,
            (Way::Peers, Some((_, hinted))) => kept.min(hinted),
            _ => 0,
        };
        Self { pruned: way == Way::Pruned, floor, height, indexed: kind.indexes, line }
    }
}

/// Picks a random way, and whether to use hints.
fn any(rng: &mut Rng) -> (Way, bool) {
    let ways =
        [Way::Datadir, Way::Pruned, Way::Chainstate, Way::Reindex, Way::Peers, Way::PeersJoined];
    let way = ways[rng.index(ways.len())];
    (way, way != Way::PeersJoined && rng.one_in(2))
}

/// Prepares the input of a way; returns the beginning of its command.
fn prepare(world: &mut World, way: Way) -> String {
    match way {
        Way::Chainstate | Way::Reindex => world.copy_reference(NODE),
        Way::Peers | Way::PeersJoined => {
            fs::create_dir_all(world.sandbox.path("node/regtest")).unwrap()
        }
        // Make the reference write everything to disk, for others to read.
        Way::Datadir | Way::Pruned => drop(world.reference().txoutset_info()),
    }
    let from = format!("sync --chain regtest --blocksdir {REFERENCE}/regtest/blocks");
    match way {
        Way::Datadir => format!("{from} --out datadir:{NODE}"),
        Way::Pruned => format!("{from} --out datadir:{NODE} --prune"),
        Way::Chainstate => {
            world.sandbox.remove("node/regtest/chainstate");
            format!(
                "sync --chain regtest --blocksdir {NODE}/regtest/blocks \
                 --out chainstate:{NODE}/regtest/chainstate"
            )
        }
        Way::Reindex => reindex(),
        Way::Peers | Way::PeersJoined => format!(
            "sync --chain regtest --connect 127.0.0.1:{} --blocks keep{} \
             --out chainstate:{NODE}/regtest/chainstate",
            world.reference().p2p_port(),
            if way == Way::PeersJoined { " --engine mergesync" } else { "" },
        ),
    }
}

/// The command that rebuilds the coins of the node in the folder.
pub(crate) fn reindex() -> String {
    format!("reindex --chain regtest --datadir {NODE} --replace")
}

/// Random options that must not affect the result.
fn options(rng: &mut Rng, way: Way, hinted: bool) -> String {
    let mut options = format!(" --par {}", rng.below(4));
    if rng.one_in(2) {
        options.push_str(" --dbcache 4");
    }
    match (hinted, rng.below(3)) {
        // Only the coins prove undo data.
        (true, _) if way == Way::Datadir => options.push_str(" --assumevalid 0"),
        (true, 0) => options.push_str(" --aggregate muhash"),
        (true, 1) => options.push_str(" --segment-bytes 20000"),
        (false, 0) => options.push_str(" --assumevalid 0"),
        _ => {}
    }
    // `apus reindex` has no such option.
    if !hinted && !matches!(way, Way::PeersJoined | Way::Reindex) && rng.one_in(2) {
        options.push_str(" --engine utxo");
    }
    options
}

/// Runs the program to the end, after a few disturbed runs.
fn run(sandbox: &Sandbox, line: &str, fate: Fate, rng: &mut Rng) {
    let signal = match fate {
        Fate::Left => None,
        Fate::Interrupted => Some("INT"),
        Fate::Killed => Some("KILL"),
    };
    for signal in signal.into_iter().cycle().take(rng.between(1, 4) as usize) {
        let run = sandbox.start(line);
        sleep(Duration::from_micros(rng.below(RUN_MILLIS * 1000)));
        run.signal(&[signal]);
        let ended = run.wait();
        match ended.code {
            Some(0) => return,
            Some(130) | None => {}
            _ => panic!("{ended}"),
        }
    }
    let ended = sandbox.start(line).wait();
    // A run that was killed at the very end has left its output.
    let done = fate == Fate::Killed && ended.stderr.contains("exists already");
    assert!(done || ended.code == Some(0), "{ended}");
}

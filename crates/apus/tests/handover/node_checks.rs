//! Assertions about a node on a folder that the program wrote.

use crate::lived::{CHAIN, Lived, chain_dir, grow, submit};
use apus_testkit::bitcoind::{Bitcoind, TxOutSetInfo};
use apus_testkit::chain::Shape;
use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Longer than a node takes to connect the blocks that it has.
const PATIENCE: Duration = Duration::from_secs(20);

/// Arguments for all checks that a node has: it reads each block and its undo data, disconnects all blocks and connects
/// them again (Core `validation.cpp`, `CVerifyDB`).
pub(crate) const ALL_CHECKS: &[&str] = &["-checklevel=4", "-checkblocks=0"];

/// The argument of a pruned node.
pub(crate) const PRUNE: &str = "-prune=550";

/// Asserts that the node starts, and has this set once it has connected the blocks that it finds. Keeps it running.
#[track_caller]
pub(crate) fn starts(datadir: &Path, args: &[&str], set: &TxOutSetInfo) -> Bitcoind {
    let node = Bitcoind::start_in(datadir, CHAIN, args).unwrap();
    let deadline = Instant::now() + PATIENCE;
    while node.best_block_hash() != set.best_block && Instant::now() < deadline {
        sleep(Duration::from_millis(5));
    }
    assert_eq!(node.txoutset_info(), *set, "{args:?}");
    node
}

/// Asserts that the node starts with all checks, completes them on all blocks, and has this set.
#[track_caller]
pub(crate) fn passes_all_checks(datadir: &Path, set: &TxOutSetInfo) -> Bitcoind {
    // Remove the log, which has lines of earlier starts.
    let _ = fs::remove_file(chain_dir(datadir).join("debug.log"));
    let node = starts(datadir, ALL_CHECKS, set);
    let verified = format!("No coin database inconsistencies in last {} blocks", set.height);
    assert!(node.log().contains(&verified), "{}", node.log());
    node
}

/// Asserts that a node with all blocks of `lived` starts, by default and with all checks, disconnects blocks to below
/// the hand-over and connects them again, switches to a longer branch, spends old coins, mines, and restarts.
pub(crate) fn lives_on(lived: &mut Lived, datadir: &Path) {
    starts(datadir, &[], &lived.set).stop();
    let mut node = passes_all_checks(datadir, &lived.set);
    let back = lived.below_tip(5);
    node.invalidate_block(back);
    assert_eq!(node.txoutset_info(), lived.set_at(lived.set.height - 6));
    node.reconsider_block(back);
    assert_eq!(node.txoutset_info(), lived.set);
    // Add a longer branch from below the hand-over. Its blocks spend coins of any age.
    let old = lived.chain.tip();
    lived.chain.set_tip(lived.below_tip(3));
    for _ in 0..6 {
        submit(&node, &lived.chain.random_block(Shape::default()));
    }
    assert_eq!(node.txoutset_info(), lived.set_at(lived.chain.height()));
    let mined = node.mine(2);
    let set = node.txoutset_info();
    node.restart(ALL_CHECKS);
    assert_eq!((node.best_block_hash(), node.txoutset_info()), (mined[1], set));
    node.stop();
    lived.chain.set_tip(old);
}

/// Asserts that a pruned node starts, mines, accepts blocks that spend coins of any age, and restarts. Without
/// `-prune` it refuses to start, and changes nothing.
pub(crate) fn lives_on_pruned(lived: &mut Lived, datadir: &Path) {
    refuses_unpruned(datadir);
    let mut node = starts(datadir, &[PRUNE], &lived.set);
    let old = lived.chain.tip();
    grow(&mut lived.chain, &node, 6);
    assert_eq!(node.txoutset_info(), lived.set_at(lived.chain.height()));
    let mined = node.mine(2);
    let set = node.txoutset_info();
    node.restart(&[PRUNE, ALL_CHECKS[0], ALL_CHECKS[1]]);
    assert_eq!((node.best_block_hash(), node.txoutset_info()), (mined[1], set));
    node.stop();
    lived.chain.set_tip(old);
    refuses_unpruned(datadir);
}

fn refuses_unpruned(datadir: &Path) {
    let refusal = Bitcoind::start_in(datadir, CHAIN, &[]).unwrap_err();
    assert!(refusal.contains("unpruned mode"), "{refusal}");
}

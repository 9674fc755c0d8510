//! No node's coins are touched unasked: under a running node, without the word for it, and whenever
//! a run fails, is interrupted or is killed.

use crate::desk::{Desk, Running};
use crate::handover::judge::{passes_all_checks, starts};
use crate::handover::reindex::REINDEX;
use crate::lived::{CHAIN, Lived};
use apus_testkit::bitcoind::Bitcoind;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const CHAINSTATE: &str = "node/regtest/chainstate";

/// Makes a chainstate in the node's place.
const SYNC: &str = "sync --chain regtest --blocksdir node/regtest/blocks --out \
                    chainstate:node/regtest/chainstate";

/// What a folder holds, by names within it.
pub(crate) type Files = BTreeMap<PathBuf, Vec<u8>>;

/// All files with their content.
pub(crate) fn tree(folder: &Path) -> Files {
    let (mut files, mut left) = (Files::new(), vec![folder.to_owned()]);
    while let Some(next) = left.pop() {
        for entry in fs::read_dir(next).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                left.push(path);
            } else {
                let name = path.strip_prefix(folder).unwrap().to_owned();
                files.insert(name, fs::read(path).unwrap());
            }
        }
    }
    files
}

/// A run that stands still once `reached`.
fn halted(desk: &Desk, line: &str, reached: impl Fn() -> bool) -> Running {
    // A run that is too fast to be caught is of no use, and changes nothing for the next.
    for _ in 0..50 {
        let mut run = desk.start(line);
        let caught = run.until(&reached);
        run.signal(&["STOP"]);
        if caught && !run.has_ended() {
            return run;
        }
        panic_unless_fresh(desk);
    }
    panic!("never caught: {line}");
}

fn panic_unless_fresh(desk: &Desk) {
    for name in ["node/regtest/chainstate.old", "node/regtest/chainstate.old-2"] {
        if desk.has(name) {
            desk.remove(CHAINSTATE);
            fs::rename(desk.path(name), desk.path(CHAINSTATE)).unwrap();
        }
    }
}

#[test]
fn a_running_node_is_left_alone() {
    let (lived, node) = Lived::running(40, &[]);
    let in_use = ["in use", "stop it first"];
    // The node's log goes on, and nothing of its own is written meanwhile.
    node.txoutset_info();
    let before = tree(&lived.desk.path(CHAINSTATE));
    for way in ["", "--hints msb.hints", "--assumevalid 0 --replace"] {
        lived.desk.start(&format!("{REINDEX} {way}")).wait().fails(1, &in_use);
    }
    lived.desk.start(&format!("{SYNC} --replace")).wait().fails(1, &in_use);
    lived.desk.start(SYNC).wait().fails(1, &["exists already", "--replace"]);
    assert!(tree(&lived.desk.path(CHAINSTATE)) == before);
    // Beside it, everything else goes.
    lived.desk.start(&SYNC.replace(CHAINSTATE, "beside")).wait().succeeds();
    node.mine(1);
    node.stop();
}

#[test]
fn a_node_cannot_start_while_its_coins_are_made() {
    let lived = Lived::new(41, &[]);
    let work = lived.desk.path("node/regtest/chainstate.work/lock");
    let run = halted(&lived.desk, &format!("{REINDEX} --replace"), || work.exists());
    let refusal = Bitcoind::start_in(&lived.desk.path("node"), CHAIN, &[]).unwrap_err();
    assert!(refusal.contains("Cannot obtain a lock"), "{refusal}");
    run.signal(&["CONT"]);
    run.wait().succeeds();
    passes_all_checks(&lived.desk.path("node"), &lived.set).stop();
}

/// `sync` does not lock a node out, for it may not be one's folder at all. So the node can have been
/// started when its coins are to be moved aside.
#[test]
fn a_node_that_was_started_meanwhile_keeps_its_coins() {
    let lived = Lived::new(42, &[]);
    let work = lived.desk.path("node/regtest/chainstate.work/lock");
    let line = format!("{SYNC} --replace");
    let run = halted(&lived.desk, &line, || work.exists());
    let node = starts(&lived.desk.path("node"), &[], &lived.set);
    run.signal(&["CONT"]);
    run.wait().fails(1, &["in use", "stop it first"]);
    assert!(!lived.desk.has("node/regtest/chainstate.old"));
    // The same for a run that goes on with what an earlier start kept.
    lived.desk.start(&line).wait().fails(1, &["in use", "stop it first"]);
    assert_eq!(node.txoutset_info(), lived.set);
    node.mine(1);
    let set = node.txoutset_info();
    node.stop();
    passes_all_checks(&lived.desk.path("node"), &set).stop();
}

#[test]
fn coins_that_are_there_stay_without_the_word_for_it() {
    let lived = Lived::new(43, &[]);
    let before = tree(&lived.desk.path("node"));
    let exists = ["exists already", "--replace"];
    lived.desk.start(REINDEX).wait().fails(1, &exists);
    lived.desk.start(&format!("{REINDEX} --hints msb.hints")).wait().fails(1, &exists);
    lived.desk.start(SYNC).wait().fails(1, &exists);
    let into = "sync --chain regtest --blocksdir node/regtest/blocks --out datadir:node";
    for way in ["", "--prune", "--prune --hints msb.hints"] {
        let said = ["node/regtest/blocks is in node, which is written whole"];
        lived.desk.start(&format!("{into} {way}")).wait().fails(1, &said);
    }
    lived.desk.start(&format!("{into} --hints msb.hints")).wait().fails(1, &["undo data"]);
    // Nor are they replaced by what hints lead to that nothing vouches for, where there are no undo data.
    let hidden = ["index", "rev00000.dat"].map(|name| {
        (lived.desk.path(&format!("node/regtest/blocks/{name}")), lived.desk.path(name))
    });
    for (place, aside) in &hidden {
        fs::rename(place, aside).unwrap();
    }
    let said = ["Bitcoin Core would check it", "--assumevalid hints"];
    let line = format!("{SYNC} --replace --hints msb.hints");
    lived.desk.start_as_typed(&line).wait().fails(1, &said);
    for (place, aside) in &hidden {
        fs::rename(aside, place).unwrap();
    }
    let mut after = tree(&lived.desk.path("node"));
    // A lock file may be made where there was none.
    after.retain(|path, _| before.contains_key(path) || path.file_name().unwrap() != ".lock");
    assert!(before == after);
}

/// A bad block, hints that lie, a signal, a kill: the old coins are what they were.
#[test]
fn coins_that_are_there_stay_when_a_run_ends_badly() {
    let lived = Lived::new(44, &["-blocksxor=0"]);
    let chainstate = || tree(&lived.desk.path(CHAINSTATE));
    let before = chainstate();
    let line = format!("{REINDEX} --replace --checkpoint-seconds 0");
    let work = lived.desk.path("node/regtest/chainstate.work/lock");
    for signal in ["INT", "TERM", "KILL"] {
        let run = halted(&lived.desk, &line, || work.exists());
        run.signal(&[signal, "CONT"]);
        let ended = run.wait();
        let code = if signal == "KILL" { None } else { Some(130) };
        assert_eq!(ended.code, code, "{ended}");
        assert!(chainstate() == before, "after {signal}");
    }
    for name in ["chainstate.work", "chainstate.incomplete"] {
        let name = format!("node/regtest/{name}");
        if lived.desk.has(&name) {
            lived.desk.remove(&name);
        }
    }
    // Every hint turned round.
    lived.desk.edit("msb.hints", |hints| {
        let last = hints.len() - 1;
        hints[last] ^= 0xff;
    });
    let ended = lived.desk.start(&format!("{line} --hints msb.hints")).wait();
    ended.fails(4, &["msb.hints"]);
    assert!(chainstate() == before);
    // One byte of one block's transactions.
    let block = lived.chain.blocks()[60].clone();
    let bytes = bitcoin::consensus::serialize(&block);
    lived.desk.edit("node/regtest/blocks/blk00000.dat", |file| {
        let at = file.windows(bytes.len()).position(|window| window == bytes).unwrap();
        file[at + bytes.len() - 1] ^= 1;
    });
    lived.desk.start(&line).wait().fails(4, &["60"]);
    assert!(chainstate() == before);
    assert!(!lived.desk.has("node/regtest/chainstate.old"));
    starts(&lived.desk.path("node"), &[], &lived.set).stop();
}

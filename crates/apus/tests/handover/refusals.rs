//! Apus never touches a node's coins unasked: not under a running node, not without `--replace`, and not when a run
//! fails, is interrupted or is killed.

use crate::handover::node_checks::{passes_all_checks, starts};
use crate::handover::reindex::REINDEX;
use crate::lived::{CHAIN, Lived};
use crate::sandbox::{Running, Sandbox};
use apus_testkit::bitcoind::Bitcoind;
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

const CHAINSTATE: &str = "node/regtest/chainstate";

/// Writes a chainstate in place of the node's.
const SYNC: &str = "sync --chain regtest --blocksdir node/regtest/blocks --out \
                    chainstate:node/regtest/chainstate";

/// The content of a folder, by names within it.
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

/// Starts a run and stops it with a signal once `reached`.
fn halted(sandbox: &Sandbox, line: &str, reached: impl Fn() -> bool) -> Running {
    // A run that ends before the signal does not count, and does not affect the next one.
    for _ in 0..50 {
        let mut run = sandbox.start(line);
        let caught = run.until(&reached);
        run.signal(&["STOP"]);
        if caught && !run.has_ended() {
            return run;
        }
        panic_unless_fresh(sandbox);
    }
    panic!("never caught: {line}");
}

fn panic_unless_fresh(sandbox: &Sandbox) {
    for name in ["node/regtest/chainstate.old", "node/regtest/chainstate.old-2"] {
        if sandbox.has(name) {
            sandbox.remove(CHAINSTATE);
            fs::rename(sandbox.path(name), sandbox.path(CHAINSTATE)).unwrap();
        }
    }
}

#[test]
fn the_coins_of_a_running_node_are_not_touched() {
    let (lived, node) = Lived::running(40, &[]);
    let in_use = ["in use", "stop it first"];
    // The node's log grows, but no other file of the node changes.
    node.txoutset_info();
    let before = tree(&lived.sandbox.path(CHAINSTATE));
    for way in ["", "--hints msb.hints", "--assumevalid 0 --replace"] {
        lived.sandbox.start(&format!("{REINDEX} {way}")).wait().fails(1, &in_use);
    }
    lived.sandbox.start(&format!("{SYNC} --replace")).wait().fails(1, &in_use);
    lived.sandbox.start(SYNC).wait().fails(1, &["exists already", "--replace"]);
    assert!(tree(&lived.sandbox.path(CHAINSTATE)) == before);
    // A chainstate in another folder is allowed.
    lived.sandbox.start(&SYNC.replace(CHAINSTATE, "other")).wait().succeeds();
    node.mine(1);
    node.stop();
}

#[test]
fn a_node_cannot_start_while_its_coins_are_made() {
    let lived = Lived::new(41, &[]);
    let work = lived.sandbox.path("node/regtest/chainstate.work/lock");
    let run = halted(&lived.sandbox, &format!("{REINDEX} --replace"), || work.exists());
    let refusal = Bitcoind::start_in(&lived.sandbox.path("node"), CHAIN, &[]).unwrap_err();
    assert!(refusal.contains("Cannot obtain a lock"), "{refusal}");
    run.signal(&["CONT"]);
    run.wait().succeeds();
    passes_all_checks(&lived.sandbox.path("node"), &lived.set).stop();
}

/// `sync` does not lock a node out, since the folder may not be a node's at all. So the node may have been started by
/// the time its coins must be moved aside.
#[test]
fn a_node_started_during_the_run_keeps_its_coins() {
    let lived = Lived::new(42, &[]);
    let work = lived.sandbox.path("node/regtest/chainstate.work/lock");
    let line = format!("{SYNC} --replace");
    let run = halted(&lived.sandbox, &line, || work.exists());
    let node = starts(&lived.sandbox.path("node"), &[], &lived.set);
    run.signal(&["CONT"]);
    run.wait().fails(1, &["in use", "stop it first"]);
    assert!(!lived.sandbox.has("node/regtest/chainstate.old"));
    // A run that resumes an earlier start's progress is refused, too.
    lived.sandbox.start(&line).wait().fails(1, &["in use", "stop it first"]);
    assert_eq!(node.txoutset_info(), lived.set);
    node.mine(1);
    let set = node.txoutset_info();
    node.stop();
    passes_all_checks(&lived.sandbox.path("node"), &set).stop();
}

#[test]
fn existing_coins_stay_without_replace() {
    let lived = Lived::new(43, &[]);
    let before = tree(&lived.sandbox.path("node"));
    let exists = ["exists already", "--replace"];
    lived.sandbox.start(REINDEX).wait().fails(1, &exists);
    lived.sandbox.start(&format!("{REINDEX} --hints msb.hints")).wait().fails(1, &exists);
    lived.sandbox.start(SYNC).wait().fails(1, &exists);
    let into = "sync --chain regtest --blocksdir node/regtest/blocks --out datadir:node";
    for way in ["", "--prune", "--prune --hints msb.hints", "--hints msb.hints"] {
        let said = ["node/regtest/blocks is in node, which Apus writes as a whole"];
        lived.sandbox.start(&format!("{into} {way}")).wait().fails(1, &said);
    }
    // Without undo data, the result of hints that are not anchored does not replace them, either.
    let hidden = ["index", "rev00000.dat"].map(|name| {
        (lived.sandbox.path(&format!("node/regtest/blocks/{name}")), lived.sandbox.path(name))
    });
    for (place, aside) in &hidden {
        fs::rename(place, aside).unwrap();
    }
    let said = ["which Bitcoin Core would check", "--assumevalid hints"];
    let line = format!("{SYNC} --replace --hints msb.hints");
    lived.sandbox.start_as_typed(&line).wait().fails(1, &said);
    for (place, aside) in &hidden {
        fs::rename(aside, place).unwrap();
    }
    let mut after = tree(&lived.sandbox.path("node"));
    // A new lock file is allowed.
    after.retain(|path, _| before.contains_key(path) || path.file_name().unwrap() != ".lock");
    assert!(before == after);
}

/// After a bad block, wrong hints, a signal or a kill the old coins are unchanged.
#[test]
fn existing_coins_stay_when_a_run_fails() {
    let lived = Lived::new(44, &["-blocksxor=0"]);
    let chainstate = || tree(&lived.sandbox.path(CHAINSTATE));
    let before = chainstate();
    let line = format!("{REINDEX} --replace --checkpoint-seconds 0");
    let work = lived.sandbox.path("node/regtest/chainstate.work/lock");
    for signal in ["INT", "TERM", "KILL"] {
        let run = halted(&lived.sandbox, &line, || work.exists());
        run.signal(&[signal, "CONT"]);
        let ended = run.wait();
        let code = if signal == "KILL" { None } else { Some(130) };
        assert_eq!(ended.code, code, "{ended}");
        assert!(chainstate() == before, "after {signal}");
    }
    for name in ["chainstate.work", "chainstate.incomplete"] {
        let name = format!("node/regtest/{name}");
        if lived.sandbox.has(&name) {
            lived.sandbox.remove(&name);
        }
    }
    // Invert every hint.
    lived.sandbox.edit("msb.hints", |hints| {
        let last = hints.len() - 1;
        hints[last] ^= 0xff;
    });
    let ended = lived.sandbox.start(&format!("{line} --hints msb.hints")).wait();
    ended.fails(4, &["msb.hints"]);
    assert!(chainstate() == before);
    // Change one byte in the transactions of one block.
    let block = lived.chain.blocks()[60].clone();
    let bytes = bitcoin::consensus::serialize(&block);
    lived.sandbox.edit("node/regtest/blocks/blk00000.dat", |file| {
        let at = file.windows(bytes.len()).position(|window| window == bytes).unwrap();
        file[at + bytes.len() - 1] ^= 1;
    });
    lived.sandbox.start(&line).wait().fails(4, &["60"]);
    assert!(chainstate() == before);
    assert!(!lived.sandbox.has("node/regtest/chainstate.old"));
    starts(&lived.sandbox.path("node"), &[], &lived.set).stop();
}

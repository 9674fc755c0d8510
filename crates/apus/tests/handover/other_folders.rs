//! A node whose block files are in another folder, through `-blocksdir` (in its `bitcoin.conf` or on its command line)
//! or through links.

use crate::handover::node_checks::passes_all_checks;
use crate::lived::fixture;
use crate::sandbox::{REGTEST, Sandbox};
use apus_testkit::bitcoind::TxOutSetInfo;
use std::fs;
use std::os::unix::fs::symlink;

/// A data directory `node` with only the index, and a folder `disk` with the block files.
fn divided() -> (Sandbox, TxOutSetInfo) {
    let (sandbox, set) = fixture(REGTEST);
    fs::create_dir_all(sandbox.path("disk/regtest/blocks")).unwrap();
    for name in sandbox.names("node/regtest/blocks") {
        if name.ends_with(".dat") {
            let file = |folder: &str| sandbox.path(&format!("{folder}/regtest/blocks/{name}"));
            fs::rename(file("node"), file("disk")).unwrap();
        }
    }
    (sandbox, set)
}

fn configure(sandbox: &Sandbox, text: &str) {
    let disk = sandbox.path("disk").display().to_string();
    sandbox.write("node/bitcoin.conf", text.replace("DISK", &disk).as_bytes());
}

#[test]
fn a_node_with_its_blocks_on_another_disk_is_planned_verified_and_rebuilt() {
    let (sandbox, set) = divided();
    configure(
        &sandbox,
        "[main]\nblocksdir=/nowhere\n[regtest]\n blocksdir = DISK # the large one\n",
    );
    sandbox
        .apus("plan --datadir node")
        .succeeds()
        .says(&["regtest: ", "has enough disk and memory"]);
    let verify = "verify --datadir node --progress none --assumevalid default";
    sandbox.apus(verify).succeeds().says(&["The node's data are valid"]);
    // Apus must not write into the folder with the blocks, either.
    let within = "disk/regtest/blocks/work";
    sandbox.apus(&format!("{verify} --workdir {within}")).fails(1, &["Apus writes nothing"]);
    let said = sandbox.start("reindex --datadir node --replace").wait().succeeds();
    said.says(&["bitcoind -datadir=node -chain=regtest"]);
    passes_all_checks(&sandbox.path("node"), &set).stop();
    sandbox.remove("node/regtest/chainstate.old");
    // Repeat with the option on the node's command line instead of in its configuration.
    sandbox.remove("node/bitcoin.conf");
    sandbox
        .start("reindex --datadir node/regtest --blocksdir disk --replace")
        .wait()
        .succeeds()
        .says(&["bitcoind -datadir=node -chain=regtest -blocksdir=disk"]);
    sandbox.apus("plan --datadir node --blocksdir disk").succeeds();
    sandbox.apus("plan --datadir node --blocksdir disk/regtest/blocks").succeeds();
}

#[test]
fn the_chain_and_relative_paths_come_from_the_configuration() {
    let (sandbox, _) = divided();
    // The data directory has blocks of two chains.
    fs::create_dir_all(sandbox.path("node/signet/blocks")).unwrap();
    for conf in ["regtest=1\nblocksdir=../disk\n", "chain=regtest\nblocksdir=disk/\n"] {
        configure(&sandbox, conf);
        sandbox.apus("plan --datadir node").succeeds().says(&["regtest: "]);
    }
    configure(&sandbox, "regtest=1\nblocksdir=other\n");
    let said =
        ["blocksdir=other", "relative to the folder where the node was started", "--blocksdir DIR"];
    sandbox.apus("plan --datadir node").fails(1, &said);
    // The node starts with the given options, and its chain is chosen only once.
    configure(&sandbox, "regtest=1\nblocksdir=DISK\n");
    let said = sandbox.start("reindex --datadir node --replace").wait().succeeds();
    assert!(said.stdout.contains("  bitcoind -datadir=node\n"), "{said}");
    // This folder's configuration names another data directory, and has the other options as well.
    fs::create_dir(sandbox.path("home")).unwrap();
    let conf = format!("datadir={}\nregtest=1\n", sandbox.path("node").display());
    sandbox.write(
        "home/bitcoin.conf",
        (conf + &format!("blocksdir={}\n", sandbox.path("disk").display())).as_bytes(),
    );
    sandbox.apus("plan --datadir home").succeeds().says(&["regtest: "]);
}

#[test]
fn missing_files_or_a_missing_index_are_reported() {
    let (sandbox, _) = divided();
    let said = ["node/regtest/blocks has a block index but no block files", "--blocksdir DIR"];
    for command in ["plan", "verify", "reindex --replace"] {
        sandbox.apus(&format!("{command} --datadir node")).fails(1, &said);
        let said = ["no block index in disk/regtest/blocks/index", "-blocksdir", "--datadir"];
        sandbox.apus(&format!("{command} --datadir disk")).fails(4, &said);
    }
    configure(&sandbox, "blocksdir=DISK/gone\n");
    sandbox.apus("plan --datadir node").fails(1, &["disk/gone/regtest/blocks", "mounted"]);
    symlink("gone", sandbox.path("link")).unwrap();
    let said = ["link: broken link to gone: mount the disk"];
    sandbox.apus("plan --datadir node --blocksdir link").fails(3, &said);
    sandbox.apus("plan --datadir link").fails(3, &said);
}

#[test]
fn links_to_block_files_work_like_the_files() {
    let (sandbox, _) = divided();
    for name in sandbox.names("disk/regtest/blocks") {
        let link = sandbox.path(&format!("node/regtest/blocks/{name}"));
        symlink(sandbox.path(&format!("disk/regtest/blocks/{name}")), link).unwrap();
    }
    let verify = "verify --datadir node --progress none --assumevalid default";
    sandbox.apus(verify).succeeds().says(&["The node's data are valid"]);
    // A link without a target is reported differently from a node without files and from an empty key.
    for name in ["blk00000.dat", "xor.dat"] {
        let file = format!("disk/regtest/blocks/{name}");
        if !sandbox.has(&file) {
            continue;
        }
        fs::rename(sandbox.path(&file), sandbox.path("aside")).unwrap();
        for line in ["plan --datadir node", verify, "sync --blocksdir node/regtest/blocks"] {
            let said = [name, "is a broken link to", ": mount the disk"];
            sandbox.apus(&format!("{line} --chain regtest")).fails(3, &said);
        }
        fs::rename(sandbox.path("aside"), sandbox.path(&file)).unwrap();
    }
}

/// All commands report a damaged index, one of another version, and a missing one in the same way, with the fix.
#[test]
fn an_unusable_index_is_reported_with_its_fix() {
    let (sandbox, _) = fixture(REGTEST);
    let index = "node/regtest/blocks/index";
    let names = sandbox.names(index);
    let manifest = names.iter().find(|name| name.starts_with("MANIFEST")).unwrap();
    let manifest = format!("{index}/{manifest}");
    let whole = sandbox.read(&manifest);
    sandbox.edit(&manifest, |bytes| bytes[10] ^= 1);
    let mends = ["`bitcoind -reindex`", "`apus sync --blocksdir DIR --out datadir:DIR`"];
    sandbox.start("reindex --datadir node --replace").wait().fails(4, &mends);
    sandbox.write(&manifest, &whole);
    let table = names.iter().find(|name| name.ends_with(".ldb") || name.ends_with(".log")).unwrap();
    sandbox.remove(&format!("{index}/{table}"));
    sandbox.start("reindex --datadir node --replace").wait().fails(4, &mends);
    sandbox.remove(&format!("{index}/CURRENT"));
    for command in ["reindex --replace", "verify", "plan"] {
        let said = ["no block index", "`bitcoind -reindex`", "`apus sync --blocksdir node"];
        sandbox.start(&format!("{command} --datadir node")).wait().fails(4, &said);
    }
}

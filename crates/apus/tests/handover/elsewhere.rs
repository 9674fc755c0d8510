//! A node whose block files are elsewhere: by `-blocksdir`, in its `bitcoin.conf` or on its command line, and by links.

use crate::desk::{Desk, REGTEST};
use crate::handover::judge::passes_all_checks;
use crate::lived::fixture;
use apus_testkit::bitcoind::TxOutSetInfo;
use std::fs;
use std::os::unix::fs::symlink;

/// A data directory `node` with the index alone, and a folder `disk` that has the block files.
fn divided() -> (Desk, TxOutSetInfo) {
    let (desk, set) = fixture(REGTEST);
    fs::create_dir_all(desk.path("disk/regtest/blocks")).unwrap();
    for name in desk.names("node/regtest/blocks") {
        if name.ends_with(".dat") {
            let file = |folder: &str| desk.path(&format!("{folder}/regtest/blocks/{name}"));
            fs::rename(file("node"), file("disk")).unwrap();
        }
    }
    (desk, set)
}

fn configure(desk: &Desk, text: &str) {
    let disk = desk.path("disk").display().to_string();
    desk.write("node/bitcoin.conf", text.replace("DISK", &disk).as_bytes());
}

#[test]
fn a_node_with_its_blocks_on_another_disk_is_planned_verified_and_rebuilt() {
    let (desk, set) = divided();
    configure(&desk, "[main]\nblocksdir=/nowhere\n[regtest]\n blocksdir = DISK # the large one\n");
    desk.apus("plan --datadir node").succeeds().says(&["regtest: ", "There is enough"]);
    let verify = "verify --datadir node --progress none --assumevalid default";
    desk.apus(verify).succeeds().says(&["All that the node believes is true"]);
    // Another folder that is only looked at.
    let within = "disk/regtest/blocks/work";
    desk.apus(&format!("{verify} --workdir {within}")).fails(1, &["nothing is written"]);
    let said = desk.start("reindex --datadir node --replace").wait().succeeds();
    said.says(&["bitcoind -datadir=node -chain=regtest"]);
    passes_all_checks(&desk.path("node"), &set).stop();
    desk.remove("node/regtest/chainstate.old");
    // The same where the command line of the node says it, and not its configuration.
    desk.remove("node/bitcoin.conf");
    desk.start("reindex --datadir node/regtest --blocksdir disk --replace")
        .wait()
        .succeeds()
        .says(&["bitcoind -datadir=node -chain=regtest -blocksdir=disk"]);
    desk.apus("plan --datadir node --blocksdir disk").succeeds();
    desk.apus("plan --datadir node --blocksdir disk/regtest/blocks").succeeds();
}

#[test]
fn the_chain_and_relative_paths_are_those_of_the_configuration() {
    let (desk, _) = divided();
    // Of two chains it has blocks.
    fs::create_dir_all(desk.path("node/signet/blocks")).unwrap();
    for conf in ["regtest=1\nblocksdir=../disk\n", "chain=regtest\nblocksdir=disk/\n"] {
        configure(&desk, conf);
        desk.apus("plan --datadir node").succeeds().says(&["regtest: "]);
    }
    configure(&desk, "regtest=1\nblocksdir=elsewhere\n");
    let said = ["blocksdir=elsewhere", "begins where the node was started", "--blocksdir DIR"];
    desk.apus("plan --datadir node").fails(1, &said);
    // A node starts with what it is told, and its chain is chosen once.
    configure(&desk, "regtest=1\nblocksdir=DISK\n");
    let said = desk.start("reindex --datadir node --replace").wait().succeeds();
    assert!(said.stdout.contains("  bitcoind -datadir=node\n"), "{said}");
    // A folder that leads to another data directory, with the options beside it.
    fs::create_dir(desk.path("home")).unwrap();
    let conf = format!("datadir={}\nregtest=1\n", desk.path("node").display());
    desk.write(
        "home/bitcoin.conf",
        (conf + &format!("blocksdir={}\n", desk.path("disk").display())).as_bytes(),
    );
    desk.apus("plan --datadir home").succeeds().says(&["regtest: "]);
}

#[test]
fn where_files_or_index_are_not_is_told() {
    let (desk, _) = divided();
    let said = ["node/regtest/blocks has a block index and no block files", "--blocksdir DIR"];
    for command in ["plan", "verify", "reindex --replace"] {
        desk.apus(&format!("{command} --datadir node")).fails(1, &said);
        let said = ["no block index in disk/regtest/blocks/index", "-blocksdir", "--datadir"];
        desk.apus(&format!("{command} --datadir disk")).fails(4, &said);
    }
    configure(&desk, "blocksdir=DISK/gone\n");
    desk.apus("plan --datadir node").fails(1, &["disk/gone/regtest/blocks", "mounted"]);
    symlink("gone", desk.path("link")).unwrap();
    let said = ["link: this is a link to gone, which is not there: mount the disk"];
    desk.apus("plan --datadir node --blocksdir link").fails(3, &said);
    desk.apus("plan --datadir link").fails(3, &said);
}

#[test]
fn links_to_block_files_are_as_good_as_these() {
    let (desk, _) = divided();
    for name in desk.names("disk/regtest/blocks") {
        let link = desk.path(&format!("node/regtest/blocks/{name}"));
        symlink(desk.path(&format!("disk/regtest/blocks/{name}")), link).unwrap();
    }
    let verify = "verify --datadir node --progress none --assumevalid default";
    desk.apus(verify).succeeds().says(&["All that the node believes is true"]);
    // What a link leads to is missing: it is no node without files, and no key is no empty key.
    for name in ["blk00000.dat", "xor.dat"] {
        let file = format!("disk/regtest/blocks/{name}");
        if !desk.has(&file) {
            continue;
        }
        fs::rename(desk.path(&file), desk.path("aside")).unwrap();
        for line in ["plan --datadir node", verify, "sync --blocksdir node/regtest/blocks"] {
            let said = [name, "is a link to", "which is not there: mount"];
            desk.apus(&format!("{line} --chain regtest")).fails(3, &said);
        }
        fs::rename(desk.path("aside"), desk.path(&file)).unwrap();
    }
}

/// A damaged index, one of another version, and none: the same for all commands, with what mends it.
#[test]
fn an_index_of_no_use_is_told_with_what_mends_it() {
    let (desk, _) = fixture(REGTEST);
    let index = "node/regtest/blocks/index";
    let names = desk.names(index);
    let manifest = names.iter().find(|name| name.starts_with("MANIFEST")).unwrap();
    let manifest = format!("{index}/{manifest}");
    let whole = desk.read(&manifest);
    desk.edit(&manifest, |bytes| bytes[10] ^= 1);
    let mends = ["`bitcoind -reindex`", "`apus sync --blocksdir DIR --out datadir:DIR`"];
    desk.start("reindex --datadir node --replace").wait().fails(4, &mends);
    desk.write(&manifest, &whole);
    let table = names.iter().find(|name| name.ends_with(".ldb") || name.ends_with(".log")).unwrap();
    desk.remove(&format!("{index}/{table}"));
    desk.start("reindex --datadir node --replace").wait().fails(4, &mends);
    desk.remove(&format!("{index}/CURRENT"));
    for command in ["reindex --replace", "verify", "plan"] {
        let said = ["no block index", "`bitcoind -reindex`", "`apus sync --blocksdir node"];
        desk.start(&format!("{command} --datadir node")).wait().fails(4, &said);
    }
}

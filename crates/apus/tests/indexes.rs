//! `apus index` beside a real node: the same entries as the node's own, and a node that continues from them, through new
//! blocks, reorganizations and restarts.

mod model;

use crate::handover::database::{Entries, entries, expect_uncompressed};
use crate::lived::{CHAIN, Lived, fixture, grow, submit};
use crate::sandbox::{Fixture, MAIN, REGTEST, SIGNET, Sandbox};
use apus_testkit::bitcoind::{Bitcoind, find};
use apus_testkit::chain::Shape;
use apus_testkit::rng::Rng;
use bitcoin::{Block, OutPoint, Transaction};
use model::{IndexModel, NodeFiles};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::process::Command;
use std::thread::sleep;
use std::time::{Duration, Instant};

const INDEX: &str = "index --chain regtest --datadir node --index";

/// The options of a node's indexes.
fn options(newer: bool) -> Vec<&'static str> {
    let mut options = vec!["-txindex", "-blockfilterindex", "-coinstatsindex"];
    if newer {
        options.push("-txospenderindex");
    }
    options
}

/// Whether the node that tests run with has txospenderindex, which came with version 31.
fn is_newer() -> bool {
    let help = Command::new(find()).arg("-help").output();
    String::from_utf8_lossy(&help.unwrap().stdout).contains("-txospenderindex")
}

/// Waits until all indexes of a node are at its tip.
fn until_synced(node: &Bitcoind) {
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        let all = node.call("getindexinfo", &[]);
        let height = u64::from(node.height());
        let is_there = |it: &Value| it["synced"] == true && it["best_block_height"] == height;
        let all = all.as_object().unwrap();
        if !all.is_empty() && all.values().all(is_there) {
            return;
        }
        assert!(Instant::now() < deadline, "{all:?}");
        sleep(Duration::from_millis(5));
    }
}

/// Reads a database of `indexes` in a data directory.
fn database(datadir: &Path, name: &str) -> Entries {
    let folder = datadir.join(CHAIN).join("indexes").join(name);
    expect_uncompressed(&folder);
    entries(&folder)
}

/// Expects the same entries, whatever the place of a filter.
fn expect_same(ours: &Entries, theirs: &Entries, name: &str) {
    let shown = |entries: &Entries| -> Entries {
        let filters = name.starts_with("blockfilter");
        let places = entries.iter().filter(|(key, _)| !filters || ***key != *b"P");
        places
            .map(|(key, value)| {
                let length = if filters && key[0] == b't' { 96 } else { value.len() };
                (key.clone(), value[..length].to_vec())
            })
            .collect()
    };
    let (ours, theirs) = (shown(ours), shown(theirs));
    for (key, value) in &theirs {
        assert_eq!(ours.get(key), Some(value), "{name}: {key:02x?}");
    }
    assert_eq!(ours.len(), theirs.len(), "{name}");
}

/// Makes indexes for the version of the node at hand, and compares them with the node's own.
#[test]
fn the_entries_are_those_of_a_node() {
    let lived = Lived::new(70, &["-fastprune"]);
    let sandbox = &lived.sandbox;
    sandbox.copy(&sandbox.path("node"), "other");
    let (node, other) = (sandbox.path("node"), sandbox.path("other"));
    let newer = is_newer();
    let version = if newer { "31" } else { "29" };
    let made = sandbox.start(&format!("{INDEX} all --index-for {version}")).wait().succeeds();
    made.says(&[
        "bitcoind -datadir=node -chain=regtest -txindex -blockfilterindex -coinstatsindex",
    ]);
    let theirs = Bitcoind::start_in(&other, CHAIN, &options(newer)).unwrap();
    until_synced(&theirs);
    theirs.stop();
    let stats = if newer { "coinstatsindex/db" } else { "coinstats/db" };
    for name in ["txindex", "blockfilter/basic/db", stats] {
        expect_same(&database(&node, name), &database(&other, name), name);
    }
    expect_model(&node);
    assert_eq!(sandbox.names("node/regtest/indexes.work"), [""; 0]);
    assert!(!sandbox.has("node/regtest/indexes.work"));
}

/// Compares txindex and txospenderindex with what a plain implementation makes of the node's files.
fn expect_model(datadir: &Path) {
    let files = NodeFiles::read(&datadir.join(CHAIN));
    expect_same(&database(datadir, "txindex"), &IndexModel::old_txindex(&files), "txindex");
    if datadir.join(CHAIN).join("indexes/txospenderindex").exists() {
        let found = database(datadir, "txospenderindex/db");
        expect_same(&found, &IndexModel::txospenderindex(&files, &found), "txospenderindex");
    }
}

/// What a node's indexes answer about the blocks of a chain.
fn expect_answers(node: &Bitcoind, chain: &[Block], spender: bool) {
    let heights = [1, 50, 101, chain.len() - 3, chain.len() - 1];
    for height in heights {
        let block = &chain[height];
        for tx in [&block.txdata[0], block.txdata.last().unwrap()] {
            expect_found(node, tx, block);
        }
        let filter = node.call("getblockfilter", &[json!(block.block_hash().to_string())]);
        assert!(filter["header"].as_str().is_some_and(|it| it.len() == 64), "{filter}");
        let of = json!(block.block_hash().to_string());
        let stats = node.call("gettxoutsetinfo", &[json!("muhash"), of]);
        assert_eq!(stats["height"], height);
    }
    if !spender {
        return;
    }
    for block in &chain[chain.len() - 20..] {
        let Some(tx) = block.txdata.get(1) else { continue };
        let OutPoint { txid, vout } = tx.input[0].previous_output;
        let asked = json!([{"txid": txid.to_string(), "vout": vout}]);
        let found = node.call("gettxspendingprevout", &[asked, json!({"mempool_only": false})]);
        assert_eq!(found[0]["spendingtxid"], tx.compute_txid().to_string(), "{found}");
    }
}

fn expect_found(node: &Bitcoind, tx: &Transaction, block: &Block) {
    let txid = json!(tx.compute_txid().to_string());
    let found = node.call("getrawtransaction", &[txid, json!(1)]);
    assert_eq!(found["blockhash"], block.block_hash().to_string());
}

/// The node starts on the indexes without building anything, and answers about old and new blocks after it mined,
/// changed to another branch and started again.
#[test]
fn a_node_continues() {
    let mut lived = Lived::new(71, &["-fastprune"]);
    let datadir = lived.sandbox.path("node");
    let newer = is_newer();
    lived.sandbox.start(&format!("{INDEX} all")).wait().succeeds();
    let log = datadir.join(CHAIN).join("debug.log");
    fs::remove_file(&log).unwrap();
    let options = options(newer);
    let mut node = Bitcoind::start_in(&datadir, CHAIN, &options).unwrap();
    until_synced(&node);
    assert!(!node.log().contains("Syncing"), "{}", node.log());
    expect_answers(&node, &lived.chain.blocks(), newer);
    grow(&mut lived.chain, &node, 12);
    // A branch that forks off below the hand-over.
    lived.chain.set_tip(lived.below_tip(22));
    for _ in 0..24 {
        submit(&node, &lived.chain.random_block(Shape::default()));
    }
    assert_eq!(node.best_block_hash(), lived.chain.tip());
    until_synced(&node);
    expect_answers(&node, &lived.chain.blocks(), newer);
    node.restart(&options);
    until_synced(&node);
    expect_answers(&node, &lived.chain.blocks(), newer);
    // The node's own sums over its coins and over its index are the same.
    let by_index = node.call("gettxoutsetinfo", &[json!("muhash")]);
    let by_coins = node.call("gettxoutsetinfo", &[json!("muhash"), Value::Null, json!(false)]);
    assert_eq!(by_index["muhash"], by_coins["muhash"]);
    node.stop();
}

/// The rows in all forms, on real blocks. The chain's folder is made from blocks alone.
#[test]
fn rows_of_real_blocks_are_right() {
    for (chain, folder) in [(MAIN, ""), (SIGNET, "/signet")] {
        let sandbox = Sandbox::with(chain);
        let Fixture { chain, .. } = chain;
        let line =
            format!("sync --chain {chain} --blocksdir blocks --out datadir:node --assumevalid 0");
        sandbox.start(&line).wait().succeeds();
        let files = NodeFiles::read(&sandbox.path(&format!("node{folder}")));
        let index = format!("index --chain {chain} --datadir node --index txindex,txospenderindex");
        let read = |name: &str| entries(&sandbox.path(&format!("node{folder}/indexes/{name}")));
        sandbox.start(&index).wait().succeeds();
        expect_same(&read("txindex"), &IndexModel::old_txindex(&files), "old txindex");
        sandbox.start(&format!("{index} --index-for master --replace")).wait().succeeds();
        let found = read("txindex");
        expect_same(&found, &IndexModel::txindex(&files, &found), "txindex");
        let found = read("txospenderindex/db");
        expect_same(&found, &IndexModel::txospenderindex(&files, &found), "txospenderindex");
        assert!(sandbox.has(&format!("node{folder}/indexes/txindex.old/CURRENT")));
    }
}

#[test]
fn a_killed_attempt_changes_nothing() {
    let (sandbox, _) = fixture(REGTEST);
    let line = format!("{INDEX} all --replace");
    let started = Instant::now();
    sandbox.start(&line).wait().succeeds();
    let whole = started.elapsed();
    sandbox.remove("node/regtest/indexes");
    let mut rng = Rng::new(9);
    let (mut killed, mut most) = (0, whole);
    for _ in 0..40 {
        let run = sandbox.start(&line);
        sleep(Duration::from_micros(rng.below(most.as_micros() as u64)));
        let by = ["KILL", "INT"][killed % 2];
        run.signal(&[by]);
        let code = run.wait().code;
        match code {
            // It may have been interrupted before it could handle that.
            None | Some(130) => killed += 1,
            _ => most = most * 3 / 4,
        }
        if code == Some(130) {
            let drafts = sandbox.names("node/regtest/indexes");
            assert!(!drafts.iter().any(|name| name.ends_with(".incomplete")), "{drafts:?}");
        }
        let present = sandbox.names("node/regtest/indexes");
        for name in present.iter().filter(|name| !name.contains('.')) {
            let database = ["CURRENT", "db/CURRENT", "basic/db/CURRENT"];
            let has = |file: &str| sandbox.has(&format!("node/regtest/indexes/{name}/{file}"));
            assert!(database.into_iter().any(has), "{name}");
        }
        if killed >= 6 {
            break;
        }
    }
    assert!(killed > 0, "{whole:?} {most:?}");
    sandbox.start(&line).wait().succeeds();
    let present = sandbox.names("node/regtest/indexes");
    assert!(!present.iter().any(|name| name.ends_with(".incomplete")), "{present:?}");
    assert!(!sandbox.has("node/regtest/indexes.work"));
    for name in ["txindex", "blockfilter", "coinstatsindex", "coinstats", "txospenderindex"] {
        assert!(!sandbox.has(&format!("node/regtest/indexes/{name}/apus.incomplete")), "{name}");
    }
    expect_model(&sandbox.path("node"));
}

/// Kills the run whenever an index or the numbers get a name: the previous ones are in place or moved aside until the new
/// ones are complete.
#[test]
fn indexes_and_numbers_survive_kills_at_the_end() {
    let (sandbox, _) = fixture(REGTEST);
    let line = format!("{INDEX} txindex,coinstatsindex --numbers chain.csv --replace --par 1");
    sandbox.start(&line).wait().succeeds();
    let (numbers, indexes) = (sandbox.read("chain.csv"), "node/regtest/indexes");
    let databases = ["txindex", "coinstatsindex/db"];
    let entries_of = |name: &str| entries(&sandbox.path(&format!("{indexes}/{name}")));
    let before = databases.map(entries_of);
    for moment in [
        "txindex.incomplete/CURRENT",
        "txindex.old",
        "coinstatsindex.old",
        "../../../chain.csv.incomplete",
    ] {
        let mut run = sandbox.start(&line);
        run.until(|| sandbox.has(&format!("{indexes}/{moment}")));
        run.signal(&["KILL"]);
        run.wait();
        assert!(sandbox.read("chain.csv") == numbers, "{moment}");
        for (name, before) in databases.iter().zip(&before) {
            let folder = name.split('/').next().unwrap_or_default();
            let there = sandbox.has(&format!("{indexes}/{folder}"));
            let old = name.replacen(folder, &format!("{folder}.old"), 1);
            assert!(entries_of(if there { name } else { &old }) == *before, "{moment}: {name}");
        }
        sandbox.start(&line).wait().succeeds();
        assert!(databases.map(entries_of) == before && sandbox.read("chain.csv") == numbers);
        let left = sandbox.names(indexes).into_iter().chain(sandbox.names(""));
        let left: Vec<String> = left.filter(|name| name.ends_with(".incomplete")).collect();
        assert!(left.is_empty() && !sandbox.has("node/regtest/indexes.work"), "{left:?}");
        for name in sandbox.names(indexes).iter().filter(|name| name.contains(".old")) {
            sandbox.remove(&format!("{indexes}/{name}"));
        }
    }
}

#[test]
fn a_damaged_block_is_named() {
    let (sandbox, _) = fixture(REGTEST);
    let whole = sandbox.read("node/regtest/blocks/blk00000.dat");
    let middle = whole.len() / 2;
    sandbox.edit("node/regtest/blocks/blk00000.dat", |bytes| bytes[middle] ^= 1);
    let failed = sandbox.start(&format!("{INDEX} txindex")).wait();
    failed.fails(4, &["block ", "blk00000.dat at byte ", "bitcoind -reindex"]);
    assert_eq!(sandbox.names("node/regtest/indexes"), [""; 0], "drafts stay");
    sandbox.write("node/regtest/blocks/blk00000.dat", &whole);
    // The rest of the file is preallocated.
    sandbox.edit("node/regtest/blocks/rev00000.dat", |bytes| bytes[6_000] ^= 1);
    let failed = sandbox.start(&format!("{INDEX} blockfilterindex")).wait();
    failed.fails(4, &["block ", "rev00000.dat", "at byte ", "bitcoind -reindex"]);
    // These are not made from undo data.
    sandbox.start(&format!("{INDEX} txindex,txospenderindex")).wait().succeeds();
}

/// Filters and numbers have the scripts of spent coins, which no block header proves. The undo data have the right
/// checksum.
#[test]
fn wrong_undo_data_make_no_filters_and_numbers() {
    let (sandbox, _) = fixture(REGTEST);
    let rev = "node/regtest/blocks/rev00000.dat";
    let (whole, key) = (sandbox.read(rev), sandbox.read("node/regtest/blocks/xor.dat"));
    let files = NodeFiles::read(&sandbox.path("node/regtest"));
    // A block that spends a coin which it makes itself, and one that spends coins of others.
    for height in [303, 301] {
        let below = files.hash(height - 1);
        let mut bytes: Vec<u8> = whole.iter().zip(key.iter().cycle()).map(|(a, b)| a ^ b).collect();
        let mut at = 8;
        let (start, end) = loop {
            let size: [u8; 4] = bytes[at - 4..at].try_into().unwrap();
            let end = at + u32::from_le_bytes(size) as usize;
            let sum = checksum(&below, &bytes[at..end]);
            if bytes[end..end + 32] == sum {
                break (at, end);
            }
            at = end + 32 + 8;
        };
        // The script of the last coin.
        assert!(end - start > 1, "{height}");
        bytes[end - 1] ^= 3;
        let sum = checksum(&below, &bytes[start..end]);
        bytes[end..end + 32].copy_from_slice(&sum);
        bytes.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
        sandbox.write(rev, &bytes);
        let failed = sandbox.start(&format!("{INDEX} blockfilterindex --numbers no.csv")).wait();
        failed.fails(4, &["undo data", "apus verify"]);
        assert_eq!(sandbox.names("node/regtest/indexes"), [""; 0], "drafts stay");
        let line = "sync --chain regtest --blocksdir node/regtest/blocks --out snapshot:no.dat";
        let failed = sandbox.start(&format!("{line} --out stats:no.csv")).wait();
        failed.fails(4, &["apus verify"]);
        for name in ["no.csv", "no.dat"] {
            assert!(!sandbox.has(name), "{name}");
        }
        sandbox.remove("no.dat.work");
    }
}

/// The checksum of a block's undo data follows from the block below, too.
fn checksum(below: &[u8; 32], undo: &[u8]) -> [u8; 32] {
    apus_hash::sha256d(&[below, undo].concat())
}

/// What an attempt left takes disk space that the next one needs, so it goes first.
#[test]
fn leftovers_are_removed_before_anything_is_measured() {
    let (sandbox, _) = fixture(REGTEST);
    for name in ["indexes/txindex.incomplete", "indexes.work"] {
        fs::create_dir_all(sandbox.path(&format!("node/regtest/{name}"))).unwrap();
    }
    sandbox.write("node/regtest/indexes/txindex.incomplete/apus.incomplete", b"");
    sandbox.write("node/regtest/indexes/txindex.incomplete/000003.ldb", b"half");
    sandbox.write("node/regtest/indexes.work/txindex-0000.rows", b"rows");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(sandbox.path("node/regtest/indexes.work"), mode).unwrap();
    // It gets no further than to the node's coins.
    sandbox.remove("node/regtest/chainstate/CURRENT");
    sandbox.start(&format!("{INDEX} txindex")).wait().fails(4, &["chainstate"]);
    assert_eq!(sandbox.names("node/regtest/indexes"), [""; 0]);
    assert!(!sandbox.has("node/regtest/indexes.work"));
}

#[test]
fn a_new_chainstate_is_not_made_without_the_undo_data_of_its_indexes() {
    let (sandbox, _) = fixture(REGTEST);
    sandbox.remove("node/regtest/blocks/rev00000.dat");
    let line = "reindex --chain regtest --datadir node --replace --index blockfilterindex";
    let said = ["undo data of block 1 ", "rev00000.dat", "bitcoind -reindex"];
    sandbox.start(line).wait().fails(4, &said);
    assert!(!sandbox.has("node/regtest/chainstate.old"));
}

#[test]
fn files_of_others_stay() {
    let (sandbox, _) = fixture(REGTEST);
    fs::create_dir(sandbox.path("mine")).unwrap();
    sandbox.write("mine/film.part", b"film");
    let mode = std::os::unix::fs::PermissionsExt::from_mode(0o700);
    fs::set_permissions(sandbox.path("mine"), mode).unwrap();
    let refused = sandbox.start(&format!("{INDEX} txindex --workdir mine")).wait();
    refused.fails(1, &["film.part", "another --workdir"]);
    assert_eq!(sandbox.read("mine/film.part"), b"film");
    // The folder of indexes has nothing else.
    let below = "node/regtest/indexes/txindex.incomplete/x";
    for option in ["--numbers", "--report", "--workdir"] {
        let line = format!("{INDEX} txindex {option} {below}");
        sandbox.start(&line).wait().fails(1, &["indexes", "use a place outside"]);
    }
    assert!(!sandbox.has("node/regtest/indexes"));
}

#[test]
fn what_cannot_be_made_is_refused_before_the_work() {
    let (sandbox, _) = fixture(REGTEST);
    let fails =
        |line: &str, code, said: &[&str]| drop(sandbox.start(line).wait().fails(code, said));
    fails(
        &format!("{INDEX} txospenderindex --index-for 29"),
        1,
        &["version 29", "txospenderindex"],
    );
    fails(&format!("{INDEX} txindexes"), 1, &["use txindex, blockfilterindex"]);
    fails(&format!("{INDEX} txindex --index-for 28"), 1, &["29, 30, 31 or master"]);
    sandbox.start(&format!("{INDEX} txindex")).wait().succeeds();
    fails(&format!("{INDEX} txindex,coinstatsindex"), 1, &["has a txindex already", "--replace"]);
    fails(&format!("{INDEX} coinstatsindex --workdir node"), 1, &["not a file of `apus index`"]);
    assert_eq!(sandbox.names("node/regtest/indexes"), ["txindex"]);
    let node = Bitcoind::start_in(&sandbox.path("node"), CHAIN, &[]).unwrap();
    sandbox.start(&format!("{INDEX} coinstatsindex")).wait().fails(1, &["stop it first"]);
    node.stop();
    let sync = "sync --chain regtest --blocksdir blocks --index all --out";
    fails(&format!("{sync} snapshot:new.dat"), 1, &["--out datadir:DIR", "apus index"]);
    fails(&format!("{sync} datadir:new --prune"), 1, &["--prune keeps only the last"]);
    // The blocks come without the coins that they spend.
    let peers =
        "sync --chain regtest --connect 127.0.0.1:9 --hints msb.hints --out datadir:new --index";
    fails(&format!("{peers} txindex,coinstatsindex"), 1, &["coinstatsindex", "with hints"]);
    for name in ["new", "new.dat", "new.incomplete", "new.work"] {
        assert!(!sandbox.has(name), "{name}");
    }
}

/// A sync and a rebuild of the chainstate make indexes, too: a node starts on them without building anything.
#[test]
fn new_folders_get_their_indexes() {
    let lived = Lived::new(72, &["-fastprune"]);
    let newer = is_newer();
    for (line, datadir) in [
        ("sync --chain regtest --blocksdir node/regtest/blocks --out datadir:new", "new"),
        ("reindex --chain regtest --datadir node --replace", "node"),
    ] {
        let made = lived.sandbox.start(&format!("{line} --index all")).wait().succeeds();
        let command = format!("bitcoind -datadir={datadir} -chain=regtest -txindex");
        made.says(&[&command]);
        let datadir = lived.sandbox.path(datadir);
        expect_model(&datadir);
        for name in ["indexes.work", "indexes/txindex/apus.incomplete", "apus.incomplete"] {
            assert!(!datadir.join(CHAIN).join(name).exists(), "{name}");
        }
        let _ = fs::remove_file(datadir.join(CHAIN).join("debug.log"));
        let node = Bitcoind::start_in(&datadir, CHAIN, &options(newer)).unwrap();
        until_synced(&node);
        assert!(!node.log().contains("Syncing"), "{}", node.log());
        expect_answers(&node, &lived.chain.blocks(), newer);
        node.stop();
    }
    // Indexes that stay beside new coins are compared with them.
    for line in ["plan", "reindex --replace"] {
        let line = format!("{line} --chain regtest --datadir node");
        let said = "txindex: at the same block; the node uses it as it is";
        lived.sandbox.start(&line).wait().succeeds().says(&[said]);
    }
}

/// The numbers come from the same pass as indexes, or alone.
#[test]
fn the_chain_in_numbers_is_written() {
    let (sandbox, _) = fixture(REGTEST);
    let line = "index --chain regtest --datadir node --numbers";
    let said = sandbox.start(&format!("{line} alone.csv")).wait();
    assert!(said.stdout.contains("The numbers of the blocks 0 to 315 are in"), "{said}");
    assert!(!sandbox.has("node/regtest/indexes"));
    sandbox.start(&format!("{line} beside.csv --index txindex")).wait().succeeds();
    assert_eq!(sandbox.read("alone.csv"), sandbox.read("beside.csv"));
    let text = String::from_utf8(sandbox.read("alone.csv")).unwrap();
    assert!(text.starts_with("height,hash,time,transactions,"), "{text}");
    assert_eq!(text.lines().count(), 317);
    let refused = sandbox.start(&format!("{line} alone.csv")).wait();
    refused.fails(1, &["alone.csv exists already", "--replace"]);
    sandbox.write("old.csv", b"of a shorter chain");
    std::os::unix::fs::symlink("old.csv", sandbox.path("link.csv")).unwrap();
    let refused = sandbox.start(&format!("{line} link.csv --replace")).wait();
    refused.fails(1, &["link.csv is a link"]);
    sandbox.start(&format!("{line} old.csv --replace")).wait().succeeds();
    assert_eq!(sandbox.read("alone.csv"), sandbox.read("old.csv"));

    sandbox.apus("plot --numbers alone.csv --out growth.svg").succeeds();
    let svg = String::from_utf8(sandbox.read("growth.svg")).unwrap();
    roxmltree::Document::parse(&svg).unwrap();
    for title in ["Coins in the UTXO set", "Their amount", "Bytes of all blocks"] {
        assert!(svg.contains(title), "{title}");
    }
    let lines: Vec<&str> = text.lines().collect();
    for (file, said) in [
        (lines[1..].join("\n") + "\n", "line 1: its first line does not name"),
        (lines[..1].join("\n") + "\n", "it has no block"),
        (format!("{}\n0,ab\n", lines[0]), "line 2: a number is missing"),
        ([lines[0], lines[2], lines[2]].join("\n") + "\n", "line 3: heights must ascend"),
        (text[..text.len() - 1].to_owned(), "line 317: the line does not end"),
        (String::new(), "it is empty"),
    ] {
        sandbox.write("bad.csv", file.as_bytes());
        sandbox.apus("plot --numbers bad.csv --out bad.svg").fails(4, &["bad.csv", said]);
    }
}

/// A sync counts the undo data that it writes, or those of the node that gave the blocks.
#[test]
fn a_sync_writes_the_chain_in_numbers() {
    let (sandbox, _) = fixture(REGTEST);
    let line = "index --chain regtest --datadir node --numbers";
    for name in ["node.csv", "node.parquet"] {
        sandbox.start(&format!("{line} {name}")).wait().succeeds();
    }
    assert!(sandbox.read("node.parquet").starts_with(b"PAR1"));
    let sync = "sync --chain regtest --blocksdir node/regtest/blocks";
    for (number, how) in [
        "--out datadir:of-all --index txindex",
        "--out datadir:pruned --prune",
        "--hints msb.hints --assumevalid hints",
        "--engine utxo --par 1 --out snapshot:set.dat",
    ]
    .into_iter()
    .enumerate()
    {
        for kind in ["csv", "parquet"].into_iter().take(2 - number.min(1)) {
            let name = format!("{number}.{kind}");
            let how = how.replace("datadir:", &format!("datadir:{kind}-"));
            let ended =
                sandbox.start(&format!("{sync} {how} --out stats:{name}")).wait().succeeds();
            ended.says(&[&format!("Written: {name}"), "the chain in numbers"]);
            assert!(sandbox.read(&name) == sandbox.read(&format!("node.{kind}")), "{how}");
        }
    }
    assert!(!sandbox.has("node/regtest/indexes"));
    let left: Vec<String> =
        sandbox.names("").into_iter().filter(|name| name.ends_with(".work")).collect();
    assert!(left.is_empty(), "{left:?}");
    let other = format!("{sync} --out stats:0.csv");
    sandbox.start(&other).wait().fails(1, &["0.csv exists already", "--replace"]);
    sandbox.start(&format!("{other} --stopatheight 200 --replace")).wait().succeeds();
    let text = String::from_utf8(sandbox.read("0.csv")).unwrap();
    let whole = String::from_utf8(sandbox.read("node.csv")).unwrap();
    assert!(text.lines().count() == 202 && whole.starts_with(&text));
    sandbox.start(&format!("{sync} --replace")).wait().fails(1, &["--replace needs", "stats:FILE"]);
}

#[test]
fn numbers_that_a_sync_cannot_give_are_refused_before_the_work() {
    let (sandbox, _) = fixture(REGTEST);
    sandbox.copy(&sandbox.path("node/regtest/blocks"), "no-index");
    sandbox.remove("no-index/index");
    sandbox.copy(&sandbox.path("node/regtest/blocks"), "no-undo");
    sandbox.remove("no-undo/rev00000.dat");
    let peer = "--connect 127.0.0.1:9";
    for (how, code, said) in [
        ("--blocksdir no-index", 1, ["undo data of all blocks", "--out datadir:DIR"]),
        ("--blocksdir no-undo", 4, ["rev00000.dat", "--out datadir:DIR"]),
        (peer, 1, ["only in a data directory", "--out datadir:DIR"]),
        (&format!("{peer} --out datadir:new --prune"), 1, ["--prune", "leave it out"]),
        (&format!("{peer} --out datadir:new --hints msb.hints"), 1, ["with hints", "--hints"]),
        ("--blocksdir no-undo --out stats:y.csv", 1, ["once", "stats:FILE"]),
    ] {
        let line = format!("sync --chain regtest {how} --out stats:x.csv");
        sandbox.start(&line).wait().fails(code, &said);
        for name in ["x.csv", "y.csv", "x.csv.incomplete", "x.csv.work", "new", "new.work"] {
            assert!(!sandbox.has(name), "{line}: {name}");
        }
    }
    // The run itself writes the undo data that these blocks lack.
    let line = "sync --chain regtest --blocksdir no-index --out datadir:new --out stats:x.csv";
    sandbox.start(line).wait().succeeds();
    assert!(sandbox.has("x.csv"));
}

/// Under hints, blocks from peers come without the coins that they spend. Only the last 288 are connected, which gives
/// their undo data.
#[test]
fn blocks_without_undo_data_give_two_indexes() {
    let (sandbox, _) = fixture(REGTEST);
    let node = Bitcoind::start_in(&sandbox.path("node"), CHAIN, &[]).unwrap();
    let peer = format!("sync --chain regtest --connect 127.0.0.1:{}", node.p2p_port());
    let indexes = "txindex,txospenderindex";
    let line = format!("{peer} --hints msb.hints --out datadir:new --index {indexes}");
    sandbox.start(&line).wait().succeeds();
    node.stop();
    expect_model(&sandbox.path("new"));
    let line = "index --chain regtest --datadir new --index coinstatsindex";
    let said = ["coinstatsindex needs the undo data of all blocks", "bitcoind -reindex"];
    sandbox.start(line).wait().fails(1, &said);
    assert_eq!(sandbox.names("new/regtest/indexes"), ["txindex", "txospenderindex"]);
}

//! `apus verify` on nodes in every state, and on damage of every kind.

use crate::lived::{CHAIN, Lived, fixture, grow, submit};
use crate::peers::nodes::wait_for;
use crate::sandbox::{REGTEST, Sandbox};
use apus_chain::{BlockUndo, BlockUndoWriter, Header, OutPoint, UndoError, undo_checksum};
use apus_chain::{CoinRef, Txid, write_coin, write_compact_size};
use apus_datadir::chainstate::{ChainstateDbError, ChainstateWriter, read_node};
use apus_datadir::{IndexEntry, Obfuscation, read_index};
use apus_storage::DirStorage;
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::ChainBuilder;
use apus_testkit::effort::rounds;
use apus_testkit::leveldb::hide;
use apus_testkit::rng::Rng;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::fs;
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const VERIFY: &str = "verify --chain regtest --datadir node --progress none --report report.json";

/// The findings in the report, by kind.
pub(crate) fn findings(sandbox: &Sandbox) -> BTreeMap<String, Value> {
    let report = sandbox.json("report.json");
    let all = report["findings"].as_array().unwrap().clone();
    all.into_iter().map(|it| (it["kind"].as_str().unwrap().to_owned(), it)).collect()
}

/// Runs a verification and returns the findings; asserts that the exit code matches, and that no progress is left.
pub(crate) fn verify(sandbox: &Sandbox, options: &str) -> BTreeMap<String, Value> {
    if sandbox.has("report.json") {
        sandbox.remove("report.json");
    }
    let said = sandbox.start_as_typed(&format!("{VERIFY} {options}")).wait();
    assert!(sandbox.has("report.json"), "{said}");
    let found = findings(sandbox);
    let code = match found.contains_key("block_invalid") {
        true => 2,
        false if found.is_empty() => 0,
        false => 4,
    };
    assert_eq!(said.code, Some(code), "{said}");
    for kind in found.keys() {
        assert!(said.stdout.contains(&format!("\n{kind}")), "{kind}: {said}");
    }
    assert!(!sandbox.has("apus-regtest-verify.work"), "there is progress left");
    found
}

pub(crate) fn files(folder: &Path) -> BTreeMap<PathBuf, Vec<u8>> {
    let mut all = BTreeMap::new();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            all.extend(files(&path));
        } else {
            all.insert(path.clone(), fs::read(&path).unwrap());
        }
    }
    all
}

#[test]
fn a_sound_node_is_proven_and_not_changed() {
    for (seed, args) in [(100, &["-blocksxor=0", "-fastprune"][..]), (101, &["-blocksxor=1"])] {
        let lived = Lived::new(seed, args);
        let before = files(&lived.sandbox.path("node"));
        assert!(verify(&lived.sandbox, "").is_empty());
        assert!(files(&lived.sandbox.path("node")) == before);
        let report = lived.sandbox.json("report.json");
        let (proof, set) = (&report["proof"], &lived.set);
        assert_eq!((&report["proven"], &proof["by_hints"]), (&json!(true), &json!(true)));
        assert_eq!(
            (&proof["stop_height"], &proof["coins"]),
            (&json!(set.height), &json!(set.txouts))
        );
        assert_eq!(proof["hash_serialized_3"], set.hash_serialized_3);
        assert_eq!(proof["muhash"], set.muhash);
        assert_eq!(proof["script_blocks"], set.height);
        // Stale blocks; some of them were connected once.
        assert_eq!(report["looked_at"], 3 + 2 + 5);
    }
}

/// A verification writes signature hints, and the next one needs libsecp256k1 for fewer signatures.
#[test]
fn a_verification_writes_hints_that_the_next_one_uses() {
    let lived = Lived::new(112, &[]);
    let signatures = || lived.sandbox.json("report.json")["proof"]["signatures"].clone();
    assert!(verify(&lived.sandbox, "--signatures shadow --out sighints:made").is_empty());
    let learned = signatures();
    assert!(learned["ecdsa"].as_u64() > Some(0), "{learned}");
    assert!(verify(&lived.sandbox, "--signatures shadow --sighints made").is_empty());
    let used = signatures();
    // Stale blocks have no hints.
    assert!(used["hinted"].as_u64() > Some(0), "{used}");
    assert_eq!((&used["ecdsa"], &used["wrong_hints"]), (&learned["ecdsa"], &json!(0)));
}

/// A running node's coins on disk are as old as its last write.
#[test]
fn a_running_node_is_verified() {
    let (mut lived, node) = Lived::running(102, &[]);
    // The node has not written its coins or its index yet.
    assert!(verify(&lived.sandbox, "").is_empty());
    assert_eq!(lived.sandbox.json("report.json")["proven"], false);
    assert_eq!(node.txoutset_info(), lived.set);
    grow(&mut lived.chain, &node, 7);
    assert!(verify(&lived.sandbox, "").is_empty());
    let report = lived.sandbox.json("report.json");
    assert_eq!(report["proof"]["stop_height"], lived.set.height);
    assert_eq!(report["proof"]["hash_serialized_3"], lived.set.hash_serialized_3);
    grow(&mut lived.chain, &node, 1);
    assert_eq!(node.best_block_hash(), lived.chain.tip());
    node.kill();
    assert!(verify(&lived.sandbox, "").is_empty());
    assert_eq!(lived.sandbox.json("report.json")["proven"], true);
}

/// The fixture's node is another one, with another version of index and coins.
#[test]
fn the_fixtures_node_is_verified() {
    let (sandbox, set) = fixture(REGTEST);
    assert!(verify(&sandbox, "--par 1 --dbcache 4").is_empty());
    assert_eq!(sandbox.json("report.json")["proof"]["hash_serialized_3"], set.hash_serialized_3);
}

#[test]
fn the_remaining_blocks_of_a_pruned_node_are_verified() {
    let (mut lived, node) = Lived::running(103, &["-prune=1", "-fastprune"]);
    grow(&mut lived.chain, &node, 400);
    let pruned = node.call("pruneblockchain", &[json!(200)]).as_u64().unwrap();
    node.stop();
    assert!(verify(&lived.sandbox, "").is_empty());
    let report = lived.sandbox.json("report.json");
    assert_eq!((&report["proven"], &report["proof"]), (&json!(false), &Value::Null));
    let from = report["stored_from"].as_u64().unwrap();
    assert!(from > 1 && from >= pruned, "{from}, {pruned}");
    let looked_at = report["looked_at"].as_u64().unwrap();
    assert!(looked_at > u64::from(lived.chain.height()) - from, "{looked_at}");
    // The remaining blocks are checked against the rules.
    let entry = entry_at(&lived.sandbox, &lived.chain, lived.chain.height());
    change_undo(&lived.sandbox, &entry, |amount| amount / 2);
    let found = verify(&lived.sandbox, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["block_invalid"]);
    assert!(found["block_invalid"]["what"].as_str().unwrap().contains("if its undo data is right"));
}

/// A node that gets a pruned block again has no undo data for it.
#[test]
fn a_pruned_node_may_have_an_old_block_again() {
    let (mut lived, node) = Lived::running(104, &["-prune=1", "-fastprune"]);
    grow(&mut lived.chain, &node, 400);
    node.call("pruneblockchain", &[json!(200)]);
    let whole = Bitcoind::start(&[]);
    lived.chain.blocks()[1..].iter().for_each(|block| submit(&whole, block));
    let address = json!(format!("127.0.0.1:{}", whole.p2p_port()));
    node.call("addnode", &[address, json!("onetry")]);
    let from = node.call("getblockchaininfo", &[])["pruneheight"].as_u64().unwrap() as usize;
    for height in [50, from - 1] {
        fetch(&node, &lived.chain.blocks()[height].block_hash().to_string());
    }
    node.stop();
    assert!(verify(&lived.sandbox, "").is_empty());
}

/// Makes a node get a block from a peer.
fn fetch(node: &Bitcoind, block: &str) {
    let has_block = || node.try_call("getblock", &[json!(block), json!(0)]).is_ok();
    assert!(!has_block());
    let began = Instant::now();
    while !has_block() {
        assert!(began.elapsed() < Duration::from_secs(60), "the block does not come");
        if let Some(peer) = node.call("getpeerinfo", &[]).as_array().unwrap().first() {
            // The peer may not have said yet that it has the block.
            let _ = node.try_call("getblockfrompeer", &[json!(block), peer["id"].clone()]);
        }
        std::thread::sleep(Duration::from_millis(100));
    }
}

/// `verify` finds a flipped byte anywhere and names its file, unless the node does not use the byte.
#[test]
fn flipped_bytes_are_found() {
    let lived = Lived::new(104, &["-blocksxor=0", "-fastprune"]);
    let folder = lived.sandbox.path("node").join(CHAIN);
    let mut rng = Rng::new(11);
    let whole = files(&folder);
    let records = records(&lived.sandbox);
    let of_kind = |begin: &str| -> Vec<PathBuf> {
        let named = |path: &&PathBuf| path.strip_prefix(&folder).unwrap().starts_with(begin);
        whole.keys().filter(named).cloned().collect()
    };
    let blocks: Vec<PathBuf> = of_kind("blocks")
        .into_iter()
        .filter(|path| path.extension().is_some_and(|it| it == "dat") && !path.ends_with("xor.dat"))
        .collect();
    let databases: Vec<PathBuf> = of_kind("chainstate")
        .into_iter()
        .chain(of_kind("blocks/index"))
        .filter(|path| path.extension().is_some_and(|it| it == "ldb" || it == "log"))
        .filter(|path| !whole[path].is_empty())
        .collect();
    let (mut found_in_blocks, mut found_in_databases) = (0, 0);
    for round in 0..rounds(16, 400) {
        let paths = if round % 2 == 0 { &blocks } else { &databases };
        let path = &paths[rng.index(paths.len())];
        let mut bytes = whole[path].clone();
        let end = bytes.iter().rposition(|byte| *byte != 0).map_or(bytes.len(), |last| last + 1);
        let at = rng.index(end);
        bytes[at] ^= 1 << rng.below(8);
        fs::write(path, &bytes).unwrap();
        let found = verify(&lived.sandbox, "");
        fs::write(path, &whole[path]).unwrap();
        let says = |kinds: &[&str]| kinds.iter().any(|kind| found.contains_key(*kind));
        let name = path.file_name().unwrap().to_string_lossy().into_owned();
        let context = || format!("{} at byte {at}: {found:?}", path.display());
        if round % 2 == 1 {
            // Tables have padding at the end; the end of a log may be cut off.
            let matters = name.ends_with(".ldb") && at + 48 < bytes.len();
            assert!(!matters || !found.is_empty(), "{}", context());
            found_in_databases += u32::from(!found.is_empty());
            continue;
        }
        let is_undo = name.starts_with("rev");
        let matters = records.iter().any(|(file, start, end)| {
            // A node does not read the magic and size of a record of undo data, but this program does.
            *file == name && (*start..*end).contains(&(at as u64))
        });
        assert_eq!(matters, !found.is_empty(), "{}", context());
        if matters {
            let kinds: &[&str] = if is_undo { &["undo_damaged"] } else { &["block_damaged"] };
            assert!(says(kinds), "{}", context());
            let file = found[kinds[0]]["file"].as_str().unwrap();
            assert!(file.ends_with(&name), "{}", context());
            found_in_blocks += 1;
        }
    }
    // Enlarge a record's size to include bytes after the block.
    let (name, start, _) = records.iter().find(|(name, ..)| name.starts_with("blk")).unwrap();
    let path = folder.join("blocks").join(name);
    let mut bytes = whole[&path].clone();
    bytes[*start as usize + 4] += 1;
    fs::write(&path, &bytes).unwrap();
    let found = verify(&lived.sandbox, "");
    fs::write(&path, &whole[&path]).unwrap();
    let what = found["block_damaged"]["what"].as_str().unwrap();
    assert!(what.contains("1 bytes are left over"), "{what}");
    assert!(
        found_in_blocks > 4 && found_in_databases > 4,
        "{found_in_blocks}, {found_in_databases}"
    );
    assert!(verify(&lived.sandbox, "").is_empty());
}

/// The records of blocks and undo data, as stretches of files.
fn records(sandbox: &Sandbox) -> Vec<(String, u64, u64)> {
    let blocksdir = sandbox.path("node").join(CHAIN).join("blocks");
    let mut records = Vec::new();
    for entry in index(sandbox) {
        let places = [("blk", entry.data, 0), ("rev", entry.undo, 32)];
        for (kind, place, checksum) in places {
            // The genesis block is not checked.
            let Some((file, offset)) = place.filter(|_| entry.height > 0) else { continue };
            let name = format!("{kind}{file:05}.dat");
            let bytes = fs::read(blocksdir.join(&name)).unwrap();
            let size = &bytes[offset as usize - 4..offset as usize];
            let size = u64::from(u32::from_le_bytes(size.try_into().unwrap()));
            records.push((name, offset - 8, offset + size + checksum));
        }
    }
    records
}

fn index(sandbox: &Sandbox) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    read_index(&sandbox.path("node").join(CHAIN).join("blocks"), &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    })
    .unwrap();
    entries
}

fn entry_at(sandbox: &Sandbox, chain: &ChainBuilder, height: u32) -> IndexEntry {
    let hash = chain.blocks()[height as usize].block_hash();
    let is_it = |entry: &IndexEntry| entry.hash.to_string() == hash.to_string();
    index(sandbox).into_iter().find(is_it).unwrap()
}

/// Changes the amount of the first coin in a block's undo data.
fn change_undo(sandbox: &Sandbox, entry: &IndexEntry, change: impl Fn(u64) -> u64) {
    replace_undo(sandbox, entry, |old| {
        let undo = BlockUndo::read(old).unwrap();
        let (mut new, mut is_first) = (Vec::new(), true);
        let mut writer = BlockUndoWriter::new(&mut new, undo.tx_count());
        for tx in 1..undo.tx_count() {
            let coins: Vec<_> = undo.spent_by(tx).unwrap().iter().map(|coin| coin.coin()).collect();
            writer.push_tx(coins.iter().map(|coin| {
                let amount =
                    if std::mem::take(&mut is_first) { change(coin.amount) } else { coin.amount };
                CoinRef { amount, ..coin.as_ref() }
            }));
        }
        writer.finish();
        new
    });
}

/// Replaces a block's undo data by as many other bytes, and updates the checksum.
fn replace_undo(sandbox: &Sandbox, entry: &IndexEntry, make: impl FnOnce(&[u8]) -> Vec<u8>) {
    let (file, offset) = entry.undo.unwrap();
    let blocksdir = sandbox.path("node").join(CHAIN).join("blocks");
    let path = blocksdir.join(format!("rev{file:05}.dat"));
    let key = fs::read(blocksdir.join("xor.dat"))
        .map_or(Obfuscation::NONE, |key| Obfuscation::new(key.try_into().unwrap()));
    let mut bytes = fs::read(&path).unwrap();
    key.apply(&mut bytes, 0);
    let start = offset as usize;
    let size = u32::from_le_bytes(bytes[start - 4..start].try_into().unwrap()) as usize;
    let old = bytes[start..start + size].to_vec();
    let new = make(&old);
    assert_eq!(new.len(), size, "it must fit into the same place");
    assert_ne!(new, old);
    bytes[start..start + size].copy_from_slice(&new);
    let sum = undo_checksum(&Header::parse(&entry.header).prev, &new);
    bytes[start + size..start + size + 32].copy_from_slice(&sum);
    key.apply(&mut bytes, 0);
    fs::write(&path, bytes).unwrap();
}

/// The heights of the last blocks that spend something, highest first.
fn spending(lived: &Lived) -> Vec<u32> {
    let blocks = lived.chain.blocks();
    let spends = |height: &u32| blocks[*height as usize].txdata.len() > 1;
    (1..=lived.set.height).rev().filter(spends).collect()
}

#[test]
fn undo_data_with_other_coins_is_found() {
    let lived = Lived::new(105, &[]);
    let height = spending(&lived)[0];
    change_undo(&lived.sandbox, &entry_at(&lived.sandbox, &lived.chain, height), |amount| {
        amount ^ 1
    });
    let found = verify(&lived.sandbox, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["undo_wrong"]);
    assert_eq!(
        (&found["undo_wrong"]["height"], &found["undo_wrong"]["count"]),
        (&json!(height), &json!(1))
    );
    let report = lived.sandbox.json("report.json");
    assert_eq!(report["proof"]["by_hints"], false);
    assert_eq!(report["proof"]["hash_serialized_3"], lived.set.hash_serialized_3);
}

/// Nodes still read the undo data of Core before 0.15, which lists the version of a coin's transaction.
#[test]
fn undo_data_of_old_nodes_is_no_fault() {
    let lived = Lived::new(105, &[]);
    let entry = entry_at(&lived.sandbox, &lived.chain, spending(&lived)[0]);
    replace_undo(&lived.sandbox, &entry, |old| {
        let mut new = old.to_vec();
        // After the numbers of transactions and coins, and the height.
        let version = 3 + new[2..].iter().position(|byte| byte & 0x80 == 0).unwrap();
        assert_eq!(std::mem::replace(&mut new[version], 1), 0);
        assert!(matches!(BlockUndo::read(&new), Err(UndoError::Old { .. })));
        new
    });
    assert_eq!(verify(&lived.sandbox, "").len(), 0);
    let report = lived.sandbox.json("report.json");
    assert_eq!(report["proof"]["hash_serialized_3"], lived.set.hash_serialized_3);
    assert_eq!(report["proven"], false);
    let why = report["unproven"].as_str().unwrap();
    assert!(why.contains("Bitcoin Core before 0.15") && why.contains("(blocks: 1)"), "{why}");
}

/// Keys and values of coins.
type Coins = Vec<(OutPoint, Vec<u8>)>;

/// Changes the node's coins, at the same block.
fn change_coins(sandbox: &Sandbox, change: impl FnOnce(&mut Coins)) {
    let dir = sandbox.path("node").join(CHAIN).join("chainstate");
    let mut coins = Coins::new();
    let read = read_node(&dir, &mut |outpoint, bytes| {
        coins.push((outpoint, bytes.to_vec()));
        Ok::<_, ChainstateDbError>(())
    })
    .unwrap();
    change(&mut coins);
    fs::remove_dir_all(&dir).unwrap();
    fs::create_dir(&dir).unwrap();
    let storage = DirStorage::new(&dir);
    let mut writer = ChainstateWriter::new(&storage, read.best, read.key).unwrap();
    for same in coins.chunk_by(|(a, _), (b, _)| a.txid == b.txid) {
        let mut group = Vec::new();
        write_compact_size(&mut group, same.len() as u64);
        for (outpoint, bytes) in same {
            write_compact_size(&mut group, u64::from(outpoint.vout));
            group.extend_from_slice(bytes);
        }
        writer.put_group(&same[0].0.txid, &group).unwrap();
    }
    writer.finish().unwrap();
}

#[test]
fn coins_that_contradict_the_blocks_are_found() {
    let lived = Lived::new(106, &[]);
    let whole = files(&lived.sandbox.path("node").join(CHAIN).join("chainstate"));
    let restore = || {
        fs::remove_dir_all(lived.sandbox.path("node").join(CHAIN).join("chainstate")).unwrap();
        fs::create_dir(lived.sandbox.path("node").join(CHAIN).join("chainstate")).unwrap();
        whole.iter().for_each(|(path, bytes)| fs::write(path, bytes).unwrap());
    };
    let mut names = Vec::new();
    let mut named = |found: &BTreeMap<String, Value>, kinds: &[&str], outpoint: OutPoint| {
        assert_eq!(found.keys().collect::<Vec<_>>(), kinds, "{found:?}");
        assert_eq!(found[kinds[0]]["outpoint"], outpoint.to_string());
        names.push(kinds[0].to_owned());
    };
    // Change every field of a coin. The value has a number for height and coinbase flag, one for the amount, and a
    // script.
    for byte in 0..3 {
        let mut which = None;
        change_coins(&lived.sandbox, |coins| {
            // The code of a low height, and of a whole number of bitcoins, takes a byte each.
            let small = |(_, bytes): &&mut (OutPoint, Vec<u8>)| bytes[0] < 0x40 && bytes[1] < 0x40;
            let (outpoint, bytes) = coins.iter_mut().find(small).unwrap();
            match byte {
                // Change the height, the coinbase flag, the amount, or a byte of the script.
                0 => bytes[0] ^= 2,
                1 => bytes[0] ^= 1,
                _ => *bytes.last_mut().unwrap() ^= 1,
            }
            which = Some(*outpoint);
        });
        named(&verify(&lived.sandbox, ""), &["coin_wrong"], which.unwrap());
        restore();
    }
    let mut which = None;
    change_coins(&lived.sandbox, |coins| which = Some(coins.remove(coins.len() / 2).0));
    named(&verify(&lived.sandbox, ""), &["coin_missing"], which.unwrap());
    restore();
    let unknown = OutPoint { txid: Txid([0x42; 32]), vout: 7 };
    change_coins(&lived.sandbox, |coins| {
        let mut bytes = Vec::new();
        let coin = CoinRef { height: 3, coinbase: false, amount: 50_000, script: &[0x51] };
        write_coin(&mut bytes, coin);
        coins.push((unknown, bytes));
        coins.sort_by_key(|(outpoint, _)| outpoint.txid.0);
    });
    named(&verify(&lived.sandbox, ""), &["coin_unknown"], unknown);
    restore();
    assert!(verify(&lived.sandbox, "").is_empty());
    assert_eq!(names.len(), 5);
}

/// LevelDB reads a table that the manifest adds and removes at once, and the node would spend its coin.
#[test]
fn a_coin_that_only_leveldb_sees_is_found() {
    let lived = Lived::new(111, &[]);
    let dir = lived.sandbox.path("node").join(CHAIN).join("chainstate");
    let read = read_node(&dir, &mut |_, _| Ok::<_, ChainstateDbError>(()));
    let obfuscation = read.unwrap().key;
    let outpoint = OutPoint { txid: Txid([0xfe; 32]), vout: 0 };
    let mut value = Vec::new();
    let coin = CoinRef { height: 5, coinbase: false, amount: 100_000_000_000, script: &[0x51] };
    write_coin(&mut value, coin);
    obfuscation.apply(&mut value, 0);
    let key = [b"C", &outpoint.txid.0[..], &[0]].concat();
    hide(&[(key, Some(value))], &dir);
    let found = verify(&lived.sandbox, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["coins_damaged"], "{found:?}");
    assert!(found["coins_damaged"]["file"].as_str().unwrap().contains("MANIFEST"), "{found:?}");
    // Show what a node would do with the coin.
    let node = Bitcoind::start_in(&lived.sandbox.path("node"), CHAIN, &[]).unwrap();
    assert_eq!(node.txoutset_info().txouts, lived.set.txouts + 1);
    let asked = [json!(outpoint.txid.to_string()), json!(0)];
    assert_eq!(node.call("gettxout", &asked)["value"], json!(1000.0));
    node.stop();
    // The node has merged the coin's table with the others.
    let found = verify(&lived.sandbox, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["coin_unknown"], "{found:?}");
    assert_eq!(found["coin_unknown"]["outpoint"], outpoint.to_string());
}

/// A node that assumes scripts valid accepts an invalid signature.
#[test]
fn a_block_that_the_node_assumed_valid_is_found_invalid() {
    let (sandbox, mut chain) = (Sandbox::empty(), ChainBuilder::new(107));
    let _trunk = chain.empty_blocks(110);
    let wrong = chain.block_with_a_wrong_signature();
    // Core assumes no block valid with less than two weeks of work above it.
    let _above = chain.empty_blocks(2100);
    let tip = chain.tip();
    let mut files = BlockFiles::regtest();
    files.blocks(&chain.blocks());
    fs::create_dir_all(sandbox.path("node/regtest/blocks")).unwrap();
    files.write(&sandbox.path("node/regtest/blocks"));
    let assumed = format!("-assumevalid={tip}");
    // The node gets all headers before it connects a block.
    let believed = [assumed.as_str(), "-minimumchainwork=0", "-reindex"];
    let node = Bitcoind::start_in(&sandbox.path("node"), CHAIN, &believed).unwrap();
    wait_for(&node, chain.height());
    assert_eq!(node.best_block_hash(), tip);
    node.stop();
    let found = verify(&sandbox, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["block_invalid"]);
    let finding = &found["block_invalid"];
    assert_eq!(
        (&finding["height"], &finding["hash"]),
        (&json!(111), &json!(wrong.block_hash().to_string()))
    );
    assert!(finding["what"].as_str().unwrap().contains("script-verify-flag-failed"), "{finding}");
    // Under the node's assumptions, the block is valid.
    assert!(verify(&sandbox, &format!("--assumevalid {tip}")).is_empty());
    let report = sandbox.json("report.json");
    assert!(report["proof"]["assumed_script_blocks"].as_u64().unwrap() > 111);
}

#[test]
fn missing_files_are_reported() {
    let lived = Lived::new(108, &["-fastprune"]);
    let node = lived.sandbox.path("node").join(CHAIN);
    for (name, kind) in [
        ("blocks/blk00001.dat", "block_missing"),
        ("blocks/rev00001.dat", "undo_damaged"),
        ("chainstate/MANIFEST", "coins_damaged"),
    ] {
        let path = match name.ends_with("MANIFEST") {
            false => node.join(name),
            true => files(&node.join("chainstate"))
                .into_keys()
                .find(|path| path.to_string_lossy().contains("MANIFEST"))
                .unwrap(),
        };
        let away = lived.sandbox.path("away");
        fs::rename(&path, &away).unwrap();
        let found = verify(&lived.sandbox, "");
        fs::rename(&away, &path).unwrap();
        assert_eq!(found.keys().collect::<Vec<_>>(), [kind], "{found:?}");
        let file = found[kind]["file"].as_str().unwrap();
        assert!(file.ends_with(path.file_name().unwrap().to_str().unwrap()), "{file}");
    }
    lived.sandbox.remove("node/regtest/chainstate");
    // Without the node's coins, `verify` still checks everything else.
    let found = verify(&lived.sandbox, "");
    assert_eq!(found.keys().collect::<Vec<_>>(), ["coins_damaged"]);
    let proof = &lived.sandbox.json("report.json")["proof"];
    assert_eq!(proof["by_hints"], false);
    assert_eq!(proof["hash_serialized_3"], lived.set.hash_serialized_3);
}

#[test]
fn an_interrupted_verification_resumes() {
    let (mut lived, node) = Lived::running(109, &[]);
    grow(&mut lived.chain, &node, 60);
    node.stop();
    lived.sandbox.copy(&lived.sandbox.path("node"), "other");
    let line = format!("{VERIFY} --par 1 --segment-bytes 2000 --checkpoint-seconds 0");
    let mut times = 0;
    loop {
        let mut running = lived.sandbox.start_as_typed(&line);
        let part = lived.sandbox.path("apus-regtest-verify.work/proof");
        let parts = || fs::read_dir(&part).map_or(0, Iterator::count);
        let before = parts();
        running.until(|| parts() > before + 3);
        if running.has_ended() {
            let said = running.wait();
            assert_eq!(said.code, Some(0), "{said}");
            break;
        }
        running.signal(&["KILL"]);
        running.wait();
        let report = lived.sandbox.path("report.json");
        if report.exists() {
            // The interrupted run had printed everything, and was about to end.
            fs::remove_file(report).unwrap();
            continue;
        }
        times += 1;
        // Findings about one node do not apply to another, although it has the same chain.
        lived
            .sandbox
            .start_as_typed(&line.replace("--datadir node", "--datadir other"))
            .wait()
            .fails(1, &["apus-regtest-verify.work", "another node"]);
    }
    assert!(times > 1, "it was killed {times} times");
    assert!(findings(&lived.sandbox).is_empty());
    assert_eq!(lived.sandbox.json("report.json")["coins_of_earlier"], true);
    assert!(!lived.sandbox.has("apus-regtest-verify.work"));
}

/// The cases are unsuitable arguments, and places where Apus must not write.
#[test]
fn usage_errors_are_reported_before_anything_is_written() {
    let (sandbox, _) = fixture(REGTEST);
    fs::create_dir(sandbox.path("mine")).unwrap();
    sandbox.write("mine/letter.txt", b"dear");
    // A verification uses these names, too.
    fs::create_dir(sandbox.path("coins")).unwrap();
    sandbox.write("coins/coins.dat", b"a snapshot of another owner");
    fs::create_dir_all(sandbox.path("set/set")).unwrap();
    let before = files(&sandbox.path(""));
    for (options, said) in [
        ("--assumevalid hints", "--assumevalid hints needs --hints"),
        ("--workdir node/regtest/work", "where Apus writes nothing"),
        ("--workdir mine", "letter.txt"),
        ("--workdir coins", "coins.dat, which is not a file of `apus verify`"),
        ("--workdir set", "set, which is not a file of `apus verify`"),
        ("--chain main", "use --chain regtest"),
    ] {
        let line = format!("verify --chain regtest --datadir node {options}");
        let line = line.replace("--chain regtest --datadir node --chain", "--datadir node --chain");
        sandbox.apus_as_typed(&line).fails(1, &[said]);
        assert!(files(&sandbox.path("")) == before, "{options}");
    }
}

/// A node that starts from a snapshot trusts the blocks below it. Apus checks them by every rule, with or without undo
/// data.
#[test]
fn a_snapshots_blocks_are_checked_by_every_rule() {
    let lived = Lived::new(110, &[]);
    let line = "snapshot verify node.dat --chain regtest --blocksdir node/regtest/blocks \
                --assumevalid 0 --report report.json";
    let verify = || lived.sandbox.start_as_typed(line).wait();
    for (engine, aggregate) in [("swiftsync", json!("coins")), ("mergesync", Value::Null)] {
        let said = verify().succeeds();
        assert!(said.stdout.contains("These blocks obey the requested rules"), "{said}");
        let report = lived.sandbox.json("report.json");
        assert_eq!((&report["engine"], &report["aggregate"]), (&json!(engine), &aggregate));
        assert_eq!(report["script_blocks"], lived.set.height);
        assert_eq!(report["stop_hash"], lived.set.best_block.to_string());
        lived.sandbox.remove("report.json");
        if engine == "swiftsync" {
            lived.sandbox.remove("node/regtest/blocks/index");
            lived.sandbox.remove("node/regtest/blocks/rev00000.dat");
        }
    }
    // Change a coin but not its key: the last byte belongs to a script.
    lived.sandbox.edit("node.dat", |bytes| *bytes.last_mut().unwrap() ^= 1);
    verify().fails(4, &["not the right contents"]);
}

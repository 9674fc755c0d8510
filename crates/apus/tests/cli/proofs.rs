//! `apus utreexo`: the proofs that utreexod 0.6.0 gives for the blocks of two chains, byte by byte.

use crate::sandbox::{REGTEST, Sandbox};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::utreexod::recorded_proofs;
use apus_utreexo::{Proof, RangeFile, TARGETS_MAX};
use bitcoin::Network;
use bitcoin::blockdata::constants::genesis_block;
use bitcoin::consensus::encode::deserialize;
use serde_json::{Value, json};
use std::fs::File;

fn bytes_of(hex: &str) -> Vec<u8> {
    (0..hex.len() / 2).map(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).unwrap()).collect()
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// A folder with the blocks that utreexod proved, and its record of each.
fn random_chain() -> (Sandbox, Vec<Value>) {
    let records = recorded_proofs("random-proofs.jsonl.gz");
    let mut blocks = vec![genesis_block(bitcoin::Network::Regtest)];
    let block = |record: &Value| deserialize(&bytes_of(record["block"].as_str().unwrap())).unwrap();
    blocks.extend(records.iter().map(block));
    let sandbox = Sandbox::empty();
    let mut files = BlockFiles::new(Network::Regtest.magic().to_bytes());
    files.blocks(&blocks);
    files.write(&sandbox.path("blocks"));
    (sandbox, records)
}

/// Compares the proofs in the folder `name` with utreexod's records.
fn expect_the_same(sandbox: &Sandbox, name: &str, records: &[Value]) {
    let (mut records, mut targets) = (records.iter(), 0);
    for file in sandbox.names(name) {
        let file = File::open(sandbox.path(&format!("{name}/{file}"))).unwrap();
        let mut file = RangeFile::open(file).unwrap();
        let mut last = Value::Null;
        for height in file.heights().heights() {
            let record = records.next().unwrap();
            let mut entry = Vec::new();
            file.entry(height, &mut entry).unwrap();
            let mut reader = apus_chain::Reader::new(&entry);
            let proof = Proof::read(&mut reader, TARGETS_MAX).unwrap();
            assert_eq!(json!(height), record["height"]);
            assert_eq!(file.block(height).unwrap().hash.to_string(), record["hash"]);
            assert_eq!(json!(proof.targets), record["prooftargets"], "{height}");
            let hashes: Vec<String> = proof.hashes.iter().map(|it| hex(&it.0)).collect();
            assert_eq!(json!(hashes), record["proofhashes"], "{height}");
            // utreexod repeats the number of leaf data.
            let (proof_bytes, data) = entry.split_at(reader.position());
            let mut whole = proof_bytes.to_vec();
            assert!(proof.targets.len() < 0xfd);
            whole.push(proof.targets.len() as u8);
            whole.extend(data);
            assert_eq!(hex(&whole), record["proof"], "{height}");
            targets += proof.targets.len();
            last = record.clone();
        }
        assert_eq!(json!(file.after().leaves()), last["numleaves"]);
        let roots: Vec<String> = file.after().hashes().iter().map(|it| hex(&it.0)).collect();
        assert_eq!(json!(roots), last["roots"]);
    }
    assert_eq!(records.next(), None);
    let all: usize = sandbox.json("report.json")["proofs"]["coins"].as_u64().unwrap() as usize;
    assert!(targets == all && targets > 8, "{targets}");
}

#[test]
fn proofs_equal_utreexods() {
    let (sandbox, records) = random_chain();
    let prove = "utreexo prove --chain regtest --blocksdir blocks --report report.json";
    for (out, options) in [
        ("proofs-whole", ""),
        ("proofs-each", "--every 1 --par 1"),
        (
            "proofs-small",
            "--every 7 --par 4 --dbcache 4 --segment-bytes 3000 --checkpoint-seconds 0",
        ),
        ("proofs-full", "--every 1000 --assumevalid 0"),
    ] {
        let said = sandbox.apus(&format!("{prove} --out {out} {options}")).succeeds();
        assert!(said.stderr.contains("the forest stays in"), "{said}");
        said.says(&["mergesync", "coins proved", "603", "utreexo leaves"]);
        expect_the_same(&sandbox, out, &records);
        let last = &records[records.len() - 1];
        let report = sandbox.json("report.json");
        assert_eq!(report["utreexo"]["roots"], last["roots"]);
        assert_eq!(report["proofs"]["blocks"], json!(166));
        sandbox.remove("report.json");
        let said = sandbox.apus(&format!("utreexo check {out}")).succeeds();
        said.says(&["from block 1 to 166", "166 proofs of 603 coins"]);
    }
    let said = sandbox.apus("utreexo info proofs-whole").succeeds();
    said.says(&["files              2", "regtest", "166: 1 to 166", "603", "roots at the end"]);
}

#[test]
fn proofs_of_a_nodes_blocks_equal_utreexods() {
    let sandbox = Sandbox::with(REGTEST);
    let records = recorded_proofs("regtest-315-proofs.jsonl.gz");
    let prove =
        "utreexo prove --chain regtest --blocksdir blocks --report report.json --out proofs";
    sandbox.apus(prove).succeeds();
    expect_the_same(&sandbox, "proofs", &records);
}

/// A run to a higher stop height adds the missing proofs. A run with another folder names the file that conflicts with
/// it.
#[test]
fn a_later_run_adds_the_missing_proofs() {
    let (sandbox, records) = random_chain();
    let prove = "utreexo prove --chain regtest --blocksdir blocks --every 50";
    let said = sandbox.apus(&format!("{prove} --out proofs --stopatheight 120")).succeeds();
    said.says(&["of 120 blocks from height 1 on, in 3 files"]);
    assert!(sandbox.has("proofs.work/forest"));
    let lower = sandbox.apus(&format!("{prove} --out proofs --stopatheight 119"));
    lower.fails(1, &["at block 120 above the stop height", "proofs.work/forest"]);
    let other = sandbox.apus(&format!("{prove} --out proofs --workdir other.work"));
    other.fails(1, &["proofs-00000001-00000051.dat exists, but", "--workdir"]);
    let other = sandbox.apus(&format!("{prove} --out others --workdir proofs.work"));
    other.fails(1, &["at block 120", "only the proofs of blocks below 1:"]);
    let said = sandbox.apus(&format!("{prove} --out proofs --report report.json")).succeeds();
    said.says(&["of 46 blocks from height 121 on, in 2 files"]);
    let report = sandbox.json("report.json");
    assert_eq!(report["utreexo"]["leaves"], records[165]["numleaves"]);
    sandbox.apus(&format!("{prove} --out proofs-at-once")).succeeds();
    for name in ["proofs-00000001-00000051.dat", "proofs-00000051-00000101.dat"] {
        let [a, b] =
            ["proofs", "proofs-at-once"].map(|folder| sandbox.read(&format!("{folder}/{name}")));
        assert!(a == b, "{name}");
    }
    sandbox.apus("utreexo check proofs").succeeds().says(&["from block 1 to 166"]);
}

/// Apus reports the need before it reads the first block, and only for blocks without proofs.
#[test]
fn the_disk_need_is_reported_first() {
    let (sandbox, _) = random_chain();
    let prove = "utreexo prove --chain regtest --blocksdir blocks --out proofs --progress json";
    let disk_needs = |more: &str| {
        let said = sandbox.apus(&format!("{prove} {more}")).succeeds();
        let lines = said.stderr.lines().filter_map(|line| serde_json::from_str(line).ok());
        let events: Vec<Value> = lines.collect();
        let at = |event: &str, what: &str| {
            let is_it = |line: &Value| {
                line["event"] == event && (line["for"] == what || line["phase"] == what)
            };
            events.iter().position(is_it).unwrap_or_else(|| panic!("no {event} {what}: {said}"))
        };
        let [progress, proofs] = ["progress", "proofs"].map(|what| at("disk", what));
        assert!(progress < proofs && proofs < at("started", "blocks"), "{said}");
        let bytes = |at: usize| events[at]["bytes"].as_u64().unwrap();
        assert!(events[proofs]["free"].as_u64().unwrap() > bytes(proofs), "{said}");
        (bytes(progress), bytes(proofs))
    };
    let (progress, proofs) = disk_needs("--stopatheight 120");
    assert!(proofs > 0 && progress > proofs, "85 percent and 80: {progress} and {proofs}");
    let (again, rest) = disk_needs("");
    // The two needs add up to 80 percent; each is rounded down by less than 80 bytes.
    let all = again / 85 * 80;
    assert!((all - 160..=all).contains(&(proofs + rest)), "{proofs} and {rest}, not {all}");
}

#[test]
fn folders_without_valid_proofs_are_refused() {
    let (sandbox, _) = random_chain();
    sandbox
        .apus("utreexo prove --chain regtest --blocksdir blocks --every 40 --out proofs")
        .succeeds();
    sandbox.apus("utreexo info blocks").fails(1, &["has no proof files"]);
    sandbox
        .apus("utreexo check proofs/proofs-00000001-00000041.dat")
        .fails(1, &["is not a folder"]);
    sandbox.apus("utreexo info nothing.dat").fails(3, &["nothing.dat"]);
    sandbox
        .apus("utreexo prove --chain regtest --blocksdir blocks --out blocks")
        .fails(1, &["given twice"]);
    sandbox.edit("proofs/proofs-00000081-00000121.dat", |bytes| bytes[900] ^= 1);
    sandbox.apus("utreexo check proofs").fails(4, &["proofs-00000081-00000121.dat", "damaged"]);
    sandbox.remove("proofs/proofs-00000081-00000121.dat");
    sandbox
        .apus("utreexo check proofs")
        .fails(4, &["begins at block 121", "should begin at block 81"]);
    sandbox
        .apus("utreexo info proofs/proofs-00000121-00000161.dat")
        .succeeds()
        .says(&["121 to 160"]);
    sandbox.remove("proofs/proofs-00000001-00000041.dat");
    sandbox.remove("proofs/proofs-00000121-00000161.dat");
    sandbox.remove("proofs/proofs-00000161-00000167.dat");
    sandbox.apus("utreexo check proofs").fails(4, &["begins with block 41"]);
}

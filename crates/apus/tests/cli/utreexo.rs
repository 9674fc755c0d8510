//! `--out utreexo:FILE`: every engine, including the one that validates with proofs, gives Floresta's roots for the
//! first blocks of signet.

use crate::bridge::proofs_of;
use crate::proof_files::write_files;
use crate::sandbox::{Sandbox, fixtures};
use apus_chain::HeightRange;
use apus_testkit::blkfile::BlockFiles;
use bitcoin::consensus::encode::deserialize_hex;
use bitcoin::{Block, Network};
use serde_json::{Value, json};

fn signet(name: &str) -> Vec<Value> {
    let text = std::fs::read(fixtures().join("floresta").join(name)).unwrap();
    serde_json::from_slice(&text).unwrap()
}

fn blocks() -> Vec<Block> {
    let blocks = signet("signet_blocks.json");
    let block = |block: &Value| deserialize_hex(block["block"].as_str().unwrap()).unwrap();
    blocks.iter().map(block).collect()
}

/// A folder with the first blocks of signet, and the roots after each.
fn sandbox() -> (Sandbox, Vec<Value>) {
    let (blocks, sandbox) = (blocks(), Sandbox::empty());
    let mut files = BlockFiles::new(Network::Signet.magic().to_bytes());
    files.blocks(&blocks);
    files.write(&sandbox.path("blocks"));
    (sandbox, signet("signet_roots.json"))
}

/// The expected output file for these roots.
fn file(roots: &Value) -> Vec<u8> {
    let hashes = roots["roots"].as_array().unwrap();
    let hash = |hex: &Value| {
        let hex = hex.as_str().unwrap();
        (0..32).map(|at| u8::from_str_radix(&hex[2 * at..][..2], 16).unwrap()).collect::<Vec<_>>()
    };
    let mut bytes = roots["numleaves"].as_u64().unwrap().to_le_bytes().to_vec();
    bytes.extend((hashes.len() as u64).to_le_bytes());
    hashes.iter().for_each(|hex| bytes.extend(hash(hex)));
    bytes
}

#[test]
fn every_engine_gives_the_roots_of_signets_first_blocks() {
    let (sandbox, roots) = sandbox();
    let sync = "sync --chain signet --blocksdir blocks --report report.json --out utreexo:roots";
    // The first roots are the roots after block 1.
    for height in [1, 2, 77, 120] {
        let expected = &roots[height - 1];
        for way in ["--engine mergesync --out hints:h", "--engine utxo", "--hints h"] {
            let line = format!("{sync} --stopatheight {height} {way}");
            let said = sandbox.apus(&line).succeeds();
            assert!(said.stdout.contains("utreexo leaves"), "{said}");
            assert!(sandbox.read("roots") == file(expected), "at {height}, {way}");
            let report = &sandbox.json("report.json")["utreexo"];
            assert_eq!(
                report,
                &json!({
                    "leaves": expected["numleaves"],
                    "roots": expected["roots"],
                })
            );
            ["roots", "report.json"].iter().for_each(|name| sandbox.remove(name));
        }
        sandbox.remove("h");
    }
}

/// Writes proof files into the folder `proofs`, for the ranges between these heights.
fn write_proofs(sandbox: &Sandbox, cuts: &[u32]) {
    let (blocks, range) = (blocks(), |cut: &[u32]| HeightRange::new(cut[0], cut[1]));
    let ranges: Vec<HeightRange> = cuts.windows(2).map(range).collect();
    write_files(sandbox, Network::Signet, "proofs", &blocks, &proofs_of(&blocks), &ranges);
}

#[test]
fn validation_with_proofs_gives_the_same_roots() {
    let (sandbox, roots) = sandbox();
    write_proofs(&sandbox, &[1, 41, 78, 121]);
    let sync = "sync --chain signet --blocksdir blocks --proofs proofs";
    for height in [77, 120] {
        let out = "--assumevalid 0 --report report.json --out utreexo:roots";
        let said = sandbox.apus(&format!("{sync} --stopatheight {height} {out}")).succeeds();
        assert!(said.stdout.contains("no set was kept"), "{said}");
        assert!(said.stdout.contains("every script"), "{said}");
        assert!(sandbox.read("roots") == file(&roots[height - 1]), "at {height}");
        let report = sandbox.json("report.json");
        assert_eq!(report["utreexo"]["roots"], roots[height - 1]["roots"]);
        let said = |field: &str| report[field].clone();
        assert_eq!((said("engine"), said("validation")), (json!("utreexo"), json!("full")));
        assert_eq!((said("muhash"), said("coin_transactions")), (Value::Null, Value::Null));
        assert_eq!((said("coins"), said("script_blocks")), (json!(height), json!(height)));
        let verified = &report["verified"];
        for what in ["blocks", "scripts", "amounts", "order", "bip30", "supply"] {
            assert_eq!(verified[what], json!(true), "{what}");
        }
        ["roots", "report.json"].iter().for_each(|name| sandbox.remove(name));
    }
    sandbox.apus(&format!("{sync} --stopatheight 100")).fails(1, &["--stopatheight 77 or 120"]);
}

/// Hostile files, blocks that no sync can begin above, and options that do not fit.
#[test]
fn roots_to_begin_with_are_checked() {
    let (sandbox, roots) = sandbox();
    write_proofs(&sandbox, &[1, 41, 121]);
    sandbox.write("roots", &file(&roots[76]));
    let sync = "sync --chain signet --blocksdir blocks --assumevalid 0";
    let from = |roots: &str, more: &str| {
        sandbox.apus(&format!("{sync} --proofs proofs --roots {roots} {more}"))
    };
    let said = from("roots@77", "--out utreexo:new --report report.json").succeeds();
    assert!(sandbox.read("new") == file(&roots[119]), "{said}");
    said.says(&[
        "all other rules only in blocks 78 to 120, with every script",
        "not validate blocks 1 to 77",
    ]);
    assert_eq!(sandbox.json("report.json")["connected_from"], 78);
    let stale = "00000008819873e925422c1ff0f99f7cc9bbb232af63a077a480a3633bee1ef7";
    let (none, block) = ("roots@4000000000", "roots@".to_owned() + stale);
    for (roots, more, said) in [
        ("roots", "", "add its hash or height, as in roots@900000"),
        ("roots@", "", "add its hash or height, as in roots@900000"),
        ("roots@+77", "", "add its hash or height"),
        ("@77", "", "give the file before the @"),
        ("roots@0", "", "after the genesis block the forest is empty"),
        (none, "", "block 4000000000 is not in the best chain, which ends at block 120 ("),
        ("roots@120", "", "the sync ends at block 120: nothing is left"),
        ("roots@77", "--stopatheight 77", "the sync ends at block 77: nothing is left"),
        ("roots@77", "--hints h", "leave out --hints"),
        ("roots@77", "--out snapshot:s", "keeps no UTXO set"),
        ("roots@77", "--out utreexo:roots", "given twice"),
        ("roots@77", "--report roots", "given twice"),
    ] {
        from(roots, more).fails(1, &[said]);
    }
    from(&block, "").fails(1, &[&format!("block {stale} is not in the best chain")]);
    let line = format!("{sync} --engine mergesync --roots roots@77");
    sandbox.apus(&line).fails(1, &["add --proofs, or leave out --roots"]);
    from("nothing@77", "").fails(3, &["nothing"]);
    from("roots@78", "").fails(4, &["Or the roots of block 78 (", "in roots, with which"]);
    let right = sandbox.read("roots");
    let cut = |at: usize| right[..at].to_vec();
    let more = [&right[..], &[0; 32]].concat();
    let many = [&right[..8], &[9, 0, 0, 0, 0, 0, 0, 0], &right[16..]].concat();
    for bytes in [vec![], cut(15), cut(16), cut(right.len() - 1), more, many, vec![0xff; 9000]] {
        sandbox.write("roots", &bytes);
        from("roots@77", "").fails(4, &["roots is not a file of Utreexo roots, or it is damaged"]);
    }
}

#[test]
fn contradictory_options_are_refused() {
    let (sandbox, _) = sandbox();
    write_proofs(&sandbox, &[1, 121]);
    let sync = "sync --chain signet --blocksdir blocks";
    for (line, said) in [
        (
            format!("{sync} --engine utreexo"),
            "needs proofs: give their folder with --proofs DIR, a bridge node",
        ),
        (format!("{sync} --engine mergesync --proofs proofs"), "leave out --engine or --proofs"),
        (format!("{sync} --proofs proofs --hints h"), "leave out --hints"),
        (format!("{sync} --proofs proofs --out snapshot:s"), "keeps no UTXO set"),
        (format!("{sync} --proofs proofs --out datadir:d"), "keeps no UTXO set"),
        (
            "sync --chain signet --connect 127.0.0.1 --proofs proofs --follow".to_owned(),
            "leave out --follow",
        ),
    ] {
        sandbox.apus(&line).fails(1, &[said]);
    }
}

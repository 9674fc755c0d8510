//! `apus utreexo caches`: a table and a report of what remembered leaves save.

use crate::sandbox::{REGTEST, Sandbox};

/// The cells of a table's line.
fn cells(line: &str) -> Vec<&str> {
    line.split("  ").map(str::trim).filter(|cell| !cell.is_empty()).collect()
}

#[test]
fn a_table_and_a_report_say_the_same() {
    let sandbox = Sandbox::with(REGTEST);
    let prove = "utreexo prove --chain regtest --blocksdir blocks --out proofs --report made.json";
    sandbox.apus(prove).succeeds();
    let (made, line) = (sandbox.json("made.json"), "utreexo caches proofs");
    let said = sandbox
        .apus(&format!("{line} --leaves 5,0,1000000 --look-ahead 200000,3 --report caches.json"));
    let said = said.succeeds();
    let (lines, report) = (said.stdout.lines().collect::<Vec<_>>(), sandbox.json("caches.json"));
    let names: Vec<&str> = lines[2..].iter().map(|line| cells(line)[0]).collect();
    let wanted = [
        "none",
        "5 clairvoyant",
        "5 look-ahead 3",
        "5 look-ahead 200,000",
        "1,000,000 clairvoyant",
        "1,000,000 look-ahead 3",
        "1,000,000 look-ahead 200,000",
    ];
    assert_eq!(names, wanted, "{said}");
    let of = |index: usize, field: &str| report["caches"][index][field].as_u64().unwrap();
    let proofs = &made["proofs"];
    assert_eq!(report["blocks"], proofs["blocks"]);
    assert_eq!(report["coins"], proofs["coins"]);
    assert_eq!(report["leaves"], made["utreexo"]["leaves"]);
    for field in ["hashes", "proof_bytes", "leaf_data_bytes"] {
        assert_eq!(report["caches"][0][field], proofs[field], "{field}");
        assert!(of(1, field) < of(0, field), "{field}");
    }
    assert_eq!(report["caches"][2]["look_ahead_blocks"], 3);
    let none = cells(lines[2]);
    assert_eq!([none[1], none[2], none[6], none[9]], ["0", "0.0 %", "100.0 %", "100.0 %"]);
    for all in [4, 6] {
        assert_eq!((of(all, "hashes"), of(all, "leaf_data_bytes")), (0, 0));
        assert_eq!(cells(lines[2 + all])[2], "100.0 %");
        assert_eq!(report["caches"][all]["remembered"], report["coins"]);
    }
    sandbox.apus(&format!("{line} --report caches.json")).fails(1, &["caches.json exists already"]);
}

#[test]
fn folders_without_all_proofs_are_refused() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.apus("utreexo caches blocks").fails(1, &["blocks", "has no proof files"]);
    sandbox.apus("utreexo caches nowhere").fails(1, &["nowhere is not a folder"]);
    sandbox
        .apus("utreexo prove --chain regtest --blocksdir blocks --out proofs --every 40")
        .succeeds();
    let first = "proofs/proofs-00000001-00000041.dat";
    sandbox.remove(first);
    let line = "utreexo caches proofs";
    sandbox.apus(line).fails(1, &["begins at block 41", "proofs from block 1 on are needed"]);
    sandbox.apus(&format!("{line} --leaves many")).fails(1, &["many"]);
}

//! The work folder: damaged, mistaken for something else, or not ours.

use crate::sandbox::{REGTEST, Sandbox};
use std::fs;

const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --par 1 \
                    --segment-bytes 5000 --checkpoint-seconds 0 --out snapshot:utxo.dat --workdir progress.work";

/// A run that stopped with all segments done, because it could not write its output.
fn all_but_written() -> Sandbox {
    let sandbox = Sandbox::with(REGTEST);
    fs::create_dir(sandbox.path("utxo.dat.incomplete")).unwrap();
    sandbox.apus(SYNC).fails(3, &["utxo.dat.incomplete: Is a directory", "progress is kept in"]);
    sandbox.remove("utxo.dat.incomplete");
    assert!(sandbox.names("progress.work").len() > 20);
    sandbox
}

fn expect_done(sandbox: &Sandbox) {
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
    assert!(!sandbox.has("progress.work"));
}

/// Returns a file in the work folder with this ending, the same one each time.
fn one(sandbox: &Sandbox, end: &str) -> String {
    let mut names = sandbox.names("progress.work");
    names.sort();
    let name = names.iter().filter(|name| name.ends_with(end)).nth(1);
    format!("progress.work/{}", name.unwrap())
}

#[test]
fn a_damaged_result_is_computed_again() {
    for (end, harm) in [
        (".part", (|bytes| bytes[60] ^= 1) as fn(&mut Vec<u8>)),
        (".part", |bytes| bytes.truncate(bytes.len() / 2)),
        (".part", Vec::clear),
        (".run", |bytes| bytes.truncate(bytes.len() - 1)),
        (".run", |bytes| bytes.push(0)),
        (".hints", |bytes| bytes.truncate(bytes.len() - 1)),
    ] {
        let sandbox = all_but_written();
        sandbox.edit(&one(&sandbox, end), harm);
        sandbox.apus(SYNC).succeeds();
        expect_done(&sandbox);
    }
    for end in [".part", ".run", ".hints"] {
        let sandbox = all_but_written();
        sandbox.remove(&one(&sandbox, end));
        sandbox.apus(SYNC).succeeds();
        expect_done(&sandbox);
    }
}

#[test]
fn damaged_coins_are_noticed_and_the_next_start_repairs_them() {
    for place in [0, 40, 70] {
        let sandbox = all_but_written();
        let name = one(&sandbox, ".run");
        sandbox.edit(&name, |bytes| bytes[place] ^= 0x10);
        sandbox.apus(SYNC).fails(3, &[&name, "damaged", "rerun the same command"]);
        assert!(!sandbox.has("utxo.dat"));
        sandbox.apus(SYNC).succeeds();
        expect_done(&sandbox);
    }
}

#[test]
fn a_damaged_plan_is_reported_with_its_remedy() {
    let sandbox = all_but_written();
    sandbox.edit("progress.work/plan", |bytes| bytes[30] ^= 1);
    let said = ["progress.work/plan is damaged", "remove the folder to start over"];
    let ended = sandbox.apus(SYNC).fails(3, &said);
    assert!(!ended.stderr.contains("progress is kept"), "{ended}");
    sandbox.remove("progress.work");
    sandbox.apus(SYNC).succeeds();
    expect_done(&sandbox);
}

#[test]
fn files_of_others_in_the_folder_stay() {
    let sandbox = all_but_written();
    sandbox.write("progress.work/notes.txt", b"mine");
    sandbox.write("progress.work/merge-9.run", b"left by a crash");
    sandbox.apus(SYNC).succeeds();
    assert_eq!(sandbox.names("progress.work"), ["notes.txt"]);
    assert_eq!(sandbox.read("progress.work/notes.txt"), b"mine");
}

#[test]
fn a_folder_with_other_files_is_never_a_work_folder() {
    let sandbox = Sandbox::with(REGTEST);
    fs::create_dir(sandbox.path("documents")).unwrap();
    sandbox.write("documents/plan", b"To do: nothing.");
    sandbox.write("documents/letter.txt", b"Dear");
    fs::create_dir(sandbox.path("photos")).unwrap();
    sandbox.write("photos/lock", b"of hair");
    sandbox.write("photos/a.jpg", b"");
    for (folder, code, said) in [
        (".", 1, ["not a file of a sync", "use another --workdir"]),
        ("blocks", 1, ["not a file of a sync", "use another --workdir"]),
        ("photos", 1, ["not a file of a sync", "use another --workdir"]),
        ("documents", 3, ["documents/plan is damaged", "Otherwise use another --workdir"]),
    ] {
        let line = SYNC.replace("progress.work", folder);
        let before = sandbox.names(folder);
        sandbox.apus(&line).fails(code, &said);
        assert_eq!(sandbox.names(folder), before);
    }
    // The names are like ours, but Apus did not make these files.
    fs::create_dir_all(sandbox.path("letters/coins")).unwrap();
    sandbox.write("letters/addresses", b"Santa Claus, North Pole");
    sandbox.write("letters/coins/list", b"of old ones");
    let line = SYNC.replace("progress.work", "letters");
    sandbox.apus(&line).fails(1, &["letters/ holds addresses", "not a file of a sync"]);
    let mut names = sandbox.names("letters");
    names.sort();
    assert_eq!(names, ["addresses", "coins"]);
    // They stay even if a run fails before it looks for progress, or if a folder has one of our names.
    fs::create_dir_all(sandbox.path("empty")).unwrap();
    fs::create_dir_all(sandbox.path("diary/hints/work")).unwrap();
    fs::create_dir_all(sandbox.path("diary/coins/tree")).unwrap();
    fs::create_dir_all(sandbox.path("album/kept")).unwrap();
    for name in ["diary/letter.txt", "diary/positions", "diary/hints/work/a", "diary/coins/tree/b"]
    {
        sandbox.write(name, b"mine");
    }
    for folder in ["diary", "album"] {
        let line =
            line.replace("letters", folder).replace("--blocksdir blocks", "--blocksdir empty");
        sandbox.apus(&line).fails(1, &["not a file of a sync"]);
    }
    for name in ["diary/letter.txt", "diary/positions", "diary/hints/work/a", "diary/coins/tree/b"]
    {
        assert_eq!(sandbox.read(name), b"mine", "{name}");
    }
    assert!(sandbox.has("album/kept"));
    sandbox.remove("letters/addresses");
    sandbox.apus(&line).succeeds();
    assert_eq!(sandbox.read("letters/coins/list"), b"of old ones");
    sandbox.remove("utxo.dat");
    fs::create_dir(sandbox.path("progress.work")).unwrap();
    sandbox.apus(SYNC).succeeds();
    expect_done(&sandbox);
}

#[test]
fn progress_under_wrong_hints_does_not_block_right_hints() {
    let sandbox = Sandbox::with(REGTEST);
    let right = sandbox.read("msb.hints");
    // The hints now lack a coinbase's coin, although no block spends it.
    let none = right.windows(3).rposition(|bytes| bytes == [1, 0, 0x80]).unwrap();
    sandbox.edit("msb.hints", |bytes| {
        bytes.splice(none..none + 3, [0]);
    });
    sandbox.apus(SYNC).fails(4, &["the aggregate does not balance", "the hints are wrong"]);
    assert!(!sandbox.has("progress.work"));
    sandbox.write("msb.hints", &right);
    sandbox.apus(SYNC).succeeds();
    expect_done(&sandbox);
}

/// The plan holds the run's secret, and the rest shows what its user is doing.
#[test]
fn other_users_cannot_read_the_progress() {
    use std::os::unix::fs::PermissionsExt;
    let sandbox = all_but_written();
    let mode = |name: &str| fs::metadata(sandbox.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("progress.work"), 0o700);
    for name in sandbox.names("progress.work") {
        assert_eq!(mode(&format!("progress.work/{name}")), 0o600, "{name}");
    }
    // Also check the coins and positions of a run that connects blocks.
    fs::create_dir(sandbox.path("utxo.dat.incomplete")).unwrap();
    for (engine, progress) in [("utxo", "connected"), ("mergesync", "joined")] {
        let work = format!("{engine}.work");
        let line = format!(
            "sync --chain regtest --blocksdir blocks --assumevalid 0 --engine {engine} --workdir \
             {work} --checkpoint-seconds 0 --out snapshot:utxo.dat --out datadir:{engine}"
        );
        sandbox.apus(&line).fails(3, &["utxo.dat.incomplete"]);
        assert_eq!(mode(&work), 0o700);
        for name in ["positions", progress] {
            assert!(sandbox.has(&format!("{work}/{name}")), "{engine}: {name}");
        }
        for name in sandbox.names(&work) {
            let there = sandbox.path(&format!("{work}/{name}"));
            let wanted = if there.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode(&format!("{work}/{name}")), wanted, "{engine}: {name}");
        }
    }
}

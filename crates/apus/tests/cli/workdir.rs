//! The work folder in the hands of others: damaged, mistaken for something else, or not ours.

use crate::desk::{Desk, REGTEST};
use std::fs;

const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints --par 1 \
                    --segment-bytes 5000 --checkpoint-seconds 0 --out snapshot:utxo.dat --workdir progress.work";

/// A run that stopped with all segments done, because its output could not be written.
fn all_but_written() -> Desk {
    let desk = Desk::with(REGTEST);
    fs::create_dir(desk.path("utxo.dat.incomplete")).unwrap();
    desk.apus(SYNC).fails(3, &["utxo.dat.incomplete: Is a directory", "progress is kept in"]);
    desk.remove("utxo.dat.incomplete");
    assert!(desk.names("progress.work").len() > 20);
    desk
}

fn expect_done(desk: &Desk) {
    assert!(desk.read("utxo.dat") == desk.read("node.dat"));
    assert!(!desk.has("progress.work"));
}

/// Any of the folder's files with this ending, the same each time.
fn one(desk: &Desk, end: &str) -> String {
    let mut names = desk.names("progress.work");
    names.sort();
    let name = names.iter().filter(|name| name.ends_with(end)).nth(1);
    format!("progress.work/{}", name.unwrap())
}

#[test]
fn a_damaged_result_is_computed_anew() {
    for (end, harm) in [
        (".part", (|bytes| bytes[60] ^= 1) as fn(&mut Vec<u8>)),
        (".part", |bytes| bytes.truncate(bytes.len() / 2)),
        (".part", Vec::clear),
        (".run", |bytes| bytes.truncate(bytes.len() - 1)),
        (".run", |bytes| bytes.push(0)),
        (".hints", |bytes| bytes.truncate(bytes.len() - 1)),
    ] {
        let desk = all_but_written();
        desk.edit(&one(&desk, end), harm);
        desk.apus(SYNC).succeeds();
        expect_done(&desk);
    }
    for end in [".part", ".run", ".hints"] {
        let desk = all_but_written();
        desk.remove(&one(&desk, end));
        desk.apus(SYNC).succeeds();
        expect_done(&desk);
    }
}

#[test]
fn damaged_coins_are_noticed_and_mended_by_the_next_start() {
    for place in [0, 40, 70] {
        let desk = all_but_written();
        let name = one(&desk, ".run");
        desk.edit(&name, |bytes| bytes[place] ^= 0x10);
        desk.apus(SYNC).fails(3, &[&name, "damaged", "start the same run again"]);
        assert!(!desk.has("utxo.dat"));
        desk.apus(SYNC).succeeds();
        expect_done(&desk);
    }
}

#[test]
fn a_damaged_plan_is_told_with_its_remedy() {
    let desk = all_but_written();
    desk.edit("progress.work/plan", |bytes| bytes[30] ^= 1);
    let said = ["progress.work/plan is damaged", "remove the folder to start anew"];
    let ended = desk.apus(SYNC).fails(3, &said);
    assert!(!ended.stderr.contains("progress is kept"), "{ended}");
    desk.remove("progress.work");
    desk.apus(SYNC).succeeds();
    expect_done(&desk);
}

#[test]
fn what_others_put_into_the_folder_stays() {
    let desk = all_but_written();
    desk.write("progress.work/notes.txt", b"mine");
    desk.write("progress.work/merge-9.run", b"left by a crash");
    desk.apus(SYNC).succeeds();
    assert_eq!(desk.names("progress.work"), ["notes.txt"]);
    assert_eq!(desk.read("progress.work/notes.txt"), b"mine");
}

#[test]
fn a_folder_with_other_files_is_never_a_work_folder() {
    let desk = Desk::with(REGTEST);
    fs::create_dir(desk.path("documents")).unwrap();
    desk.write("documents/plan", b"To do: nothing.");
    desk.write("documents/letter.txt", b"Dear");
    fs::create_dir(desk.path("photos")).unwrap();
    desk.write("photos/lock", b"of hair");
    desk.write("photos/a.jpg", b"");
    for (folder, code, said) in [
        (".", 1, ["no file of a run", "name another --workdir"]),
        ("blocks", 1, ["no file of a run", "name another --workdir"]),
        ("photos", 1, ["no file of a run", "name another --workdir"]),
        ("documents", 3, ["documents/plan is damaged", "otherwise name another --workdir"]),
    ] {
        let line = SYNC.replace("progress.work", folder);
        let before = desk.names(folder);
        desk.apus(&line).fails(code, &said);
        assert_eq!(desk.names(folder), before);
    }
    // Names like ours, and nothing of ours behind them.
    fs::create_dir_all(desk.path("letters/coins")).unwrap();
    desk.write("letters/addresses", b"Santa Claus, North Pole");
    desk.write("letters/coins/list", b"of old ones");
    let line = SYNC.replace("progress.work", "letters");
    desk.apus(&line).fails(1, &["letters/ holds addresses", "no file of a run"]);
    let mut names = desk.names("letters");
    names.sort();
    assert_eq!(names, ["addresses", "coins"]);
    // Nor where a run fails before it looks for progress, or a name of ours is a folder's.
    fs::create_dir_all(desk.path("empty")).unwrap();
    fs::create_dir_all(desk.path("diary/hints/work")).unwrap();
    fs::create_dir_all(desk.path("diary/coins/tree")).unwrap();
    fs::create_dir_all(desk.path("album/kept")).unwrap();
    for name in ["diary/letter.txt", "diary/positions", "diary/hints/work/a", "diary/coins/tree/b"]
    {
        desk.write(name, b"mine");
    }
    for folder in ["diary", "album"] {
        let line =
            line.replace("letters", folder).replace("--blocksdir blocks", "--blocksdir empty");
        desk.apus(&line).fails(1, &["no file of a run"]);
    }
    for name in ["diary/letter.txt", "diary/positions", "diary/hints/work/a", "diary/coins/tree/b"]
    {
        assert_eq!(desk.read(name), b"mine", "{name}");
    }
    assert!(desk.has("album/kept"));
    desk.remove("letters/addresses");
    desk.apus(&line).succeeds();
    assert_eq!(desk.read("letters/coins/list"), b"of old ones");
    desk.remove("utxo.dat");
    fs::create_dir(desk.path("progress.work")).unwrap();
    desk.apus(SYNC).succeeds();
    expect_done(&desk);
}

#[test]
fn progress_under_wrong_hints_is_not_in_the_way_of_right_ones() {
    let desk = Desk::with(REGTEST);
    let right = desk.read("msb.hints");
    // The coinbase of some block has no coin any more: nothing spends it.
    let none = right.windows(3).rposition(|bytes| bytes == [1, 0, 0x80]).unwrap();
    desk.edit("msb.hints", |bytes| {
        bytes.splice(none..none + 3, [0]);
    });
    desk.apus(SYNC).fails(4, &["the aggregate does not balance", "the hints are wrong"]);
    assert!(!desk.has("progress.work"));
    desk.write("msb.hints", &right);
    desk.apus(SYNC).succeeds();
    expect_done(&desk);
}

/// The plan holds the run's secret, and the rest says what its user is doing.
#[test]
fn other_users_cannot_read_the_progress() {
    use std::os::unix::fs::PermissionsExt;
    let desk = all_but_written();
    let mode = |name: &str| fs::metadata(desk.path(name)).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode("progress.work"), 0o700);
    for name in desk.names("progress.work") {
        assert_eq!(mode(&format!("progress.work/{name}")), 0o600, "{name}");
    }
    // Coins and positions of a run that connects blocks.
    fs::create_dir(desk.path("utxo.dat.incomplete")).unwrap();
    for (engine, progress) in [("utxo", "connected"), ("mergesync", "joined")] {
        let work = format!("{engine}.work");
        let line = format!(
            "sync --chain regtest --blocksdir blocks --assumevalid 0 --engine {engine} --workdir \
             {work} --checkpoint-seconds 0 --out snapshot:utxo.dat --out datadir:{engine}"
        );
        desk.apus(&line).fails(3, &["utxo.dat.incomplete"]);
        assert_eq!(mode(&work), 0o700);
        for name in ["positions", progress] {
            assert!(desk.has(&format!("{work}/{name}")), "{engine}: {name}");
        }
        for name in desk.names(&work) {
            let there = desk.path(&format!("{work}/{name}"));
            let wanted = if there.is_dir() { 0o700 } else { 0o600 };
            assert_eq!(mode(&format!("{work}/{name}")), wanted, "{engine}: {name}");
        }
    }
}

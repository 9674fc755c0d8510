//! Lines that are well written and still cannot be: told at once, before any work is done.

use crate::desk::{Desk, REGTEST};
use std::fs;
use std::os::unix::fs::symlink;

/// The fixture's run, in which the case is the only thing wrong.
fn regtest(more: &str) -> String {
    format!("sync --chain regtest --blocksdir blocks --hints msb.hints {more}")
}

/// Runs, and sees to it that nothing at all is left behind.
#[track_caller]
fn fails_at_once(desk: &Desk, line: &str, code: i32, said: &[&str]) {
    let before = desk.names("");
    let ended = desk.apus(line).fails(code, said);
    assert_eq!(desk.names(""), before, "{ended}");
}

#[test]
fn outputs_that_cannot_be_written_are_told_first() {
    let desk = Desk::with(REGTEST);
    desk.write("mine.txt", b"precious");
    symlink("nowhere", desk.path("dangling")).unwrap();
    let remedy = "remove it, or name another output";
    for (more, code, said) in [
        ("--out snapshot:mine.txt", 1, &["mine.txt exists already", remedy][..]),
        ("--out hints:mine.txt", 1, &["mine.txt exists already", remedy]),
        ("--out hints:msb.hints", 1, &["msb.hints exists already", remedy]),
        ("--report mine.txt", 1, &["mine.txt exists already", remedy]),
        ("--report msb.hints", 1, &["msb.hints exists already", remedy]),
        ("--out snapshot:dangling", 1, &["dangling exists already", remedy]),
        ("--out snapshot:blocks", 1, &["blocks is a folder"]),
        ("--report blocks", 1, &["blocks is a folder"]),
        ("--out snapshot:..", 1, &[".. is a folder"]),
        ("--out snapshot:mine.txt/utxo.dat", 3, &["mine.txt: this is no folder"]),
        ("--out snapshot:mine.txt/a/b/utxo.dat", 3, &["so mine.txt/a/b cannot be made"]),
        ("--report dangling/report.json", 3, &["dangling: this is no folder"]),
        ("--out snapshot:a --out hints:a", 1, &["a is named twice"]),
        ("--out snapshot:a --out hints:./a", 1, &["./a is named twice"]),
        ("--out snapshot:a --out snapshot:blocks/../a", 1, &["blocks/../a is named twice"]),
        ("--out snapshot:a --out hints:a.incomplete", 1, &["a.incomplete is named twice"]),
        ("--out snapshot:a --report a", 1, &["a is named twice"]),
        ("--out snapshot:a --workdir a", 1, &["a is named twice"]),
        ("--out snapshot:a --report a.work", 1, &["a.work is named twice"]),
        ("--workdir mine.txt", 1, &["mine.txt is a file, not a folder", "--workdir"]),
    ] {
        fails_at_once(&desk, &regtest(more), code, said);
    }
    let convert = "hints convert msb.hints --to btcd --out";
    for (out, code, said) in [
        ("mine.txt", 1, &["mine.txt exists already", remedy][..]),
        ("msb.hints", 1, &["msb.hints exists already", remedy]),
        ("blocks", 1, &["blocks is a folder"]),
        ("mine.txt/such", 3, &["mine.txt: this is no folder"]),
    ] {
        fails_at_once(&desk, &format!("{convert} {out}"), code, said);
    }
}

#[test]
fn a_file_of_another_kind_is_told_what_it_is() {
    let desk = Desk::with(REGTEST);
    let convert = "hints convert msb.hints --to btcd --out btcd.hints";
    desk.apus(convert).succeeds();
    let sync = |hints: &str| {
        format!("sync --chain regtest --blocksdir blocks --out snapshot:o --hints {hints}")
    };
    for (line, code, said) in [
        (sync("node.dat"), 1, &["node.dat is a UTXO snapshot", "give it as snapshot:node.dat"][..]),
        (sync("snapshot:msb.hints"), 1, &["msb.hints is a hintsfile", "without `snapshot:`"]),
        (sync("btcd.hints"), 1, &["encoding btcd", "apus hints convert btcd.hints --to bip456"]),
        (sync("blocks/blk00000.dat"), 4, &["no BIP-456 hintsfile", "apus hints convert"]),
        (sync("snapshot:blocks/blk00000.dat"), 4, &["no snapshot", "dumptxoutset"]),
        (sync("blocks"), 3, &["blocks: Is a directory"]),
        (sync("snapshot:blocks"), 3, &["blocks: Is a directory"]),
        (sync("nosuch"), 3, &["nosuch: No such file"]),
        (sync("snapshot:nosuch"), 3, &["nosuch: No such file"]),
        ("hints info node.dat".to_owned(), 1, &["is a UTXO snapshot", "apus snapshot info"]),
        ("hints info blocks/xor.dat".to_owned(), 4, &["no known encoding", "--from"]),
        ("hints info nosuch".to_owned(), 3, &["nosuch: No such file"]),
        ("hints info blocks".to_owned(), 3, &["blocks: it is a folder"]),
        ("snapshot info msb.hints".to_owned(), 1, &["is a hintsfile", "apus hints info"]),
        ("snapshot info blocks/xor.dat".to_owned(), 4, &["no snapshot"]),
        ("snapshot info nosuch".to_owned(), 3, &["nosuch: No such file"]),
        ("snapshot info blocks".to_owned(), 3, &["blocks: it is a folder"]),
    ] {
        fails_at_once(&desk, &line, code, said);
    }
}

#[test]
fn a_folder_of_another_kind_is_told_what_to_give() {
    let desk = Desk::with(REGTEST);
    fs::create_dir(desk.path("datadir")).unwrap();
    fs::rename(desk.path("blocks"), desk.path("datadir/blocks")).unwrap();
    fs::create_dir(desk.path("empty")).unwrap();
    let sync = |blocksdir: &str| {
        format!("sync --chain regtest --hints msb.hints --out snapshot:o --blocksdir {blocksdir}")
    };
    for (blocksdir, code, said) in [
        ("nosuch", 3, &["nosuch: No such file", "`blocks` folder"][..]),
        ("msb.hints", 3, &["msb.hints: Not a directory", "`blocks` folder"]),
        ("datadir", 3, &["no blk00000.dat", "in datadir", "`regtest/blocks`"]),
        ("empty", 3, &["no blk00000.dat", "in empty"]),
    ] {
        fails_at_once(&desk, &sync(blocksdir), code, said);
    }
}

#[test]
fn folders_around_outputs_are_made() {
    let desk = Desk::with(REGTEST);
    let outputs = "--out snapshot:a/b/utxo.dat --out hints:a/c/o.hints --report d/e/run.json";
    desk.apus(&regtest(outputs)).succeeds();
    assert_eq!(desk.read("a/b/utxo.dat"), desk.read("node.dat"));
    assert_eq!(desk.json("d/e/run.json")["stop_height"], 315);
    assert_eq!(
        (desk.names("a"), desk.names("d/e")),
        (vec!["b".into(), "c".into()], vec!["run.json".into()])
    );
    desk.apus("hints convert msb.hints --to btcd --out f/g/btcd.hints").succeeds();
    // What nothing came into goes again.
    let gone =
        regtest("--out snapshot:h/i/utxo.dat").replace("msb.hints", "snapshot:blocks/blk00000.dat");
    fails_at_once(&desk, &gone, 4, &["no snapshot"]);
}

#[test]
fn the_chain_is_that_of_the_blocks() {
    for fixture in [REGTEST, crate::desk::SIGNET, crate::desk::MAIN] {
        let desk = Desk::with(fixture);
        if fixture.chain == "signet" && !cfg!(feature = "kernel") {
            continue;
        }
        let ended = desk.apus("hints check msb.hints --blocksdir blocks").succeeds();
        ended.says(&[&format!("chain              {}\n", fixture.chain)]);
    }
}

#[test]
fn the_wrong_chain_is_told_the_right_one() {
    let desk = Desk::with(REGTEST);
    let run = "--blocksdir blocks --out snapshot:o";
    for (line, said) in [
        (format!("sync {run} --hints msb.hints --chain main"), "use --chain regtest"),
        (format!("sync {run} --hints msb.hints --chain signet"), "use --chain regtest"),
        (format!("sync {run} --hints snapshot:node.dat --chain main"), "use --chain regtest"),
        ("hints check msb.hints --blocksdir blocks --chain main".to_owned(), "use --chain regtest"),
        (
            "snapshot verify node.dat --blocksdir blocks --chain main".to_owned(),
            "of chain regtest, not of main",
        ),
    ] {
        fails_at_once(&desk, &line, 1, &[said]);
    }
    let other = Desk::with(crate::desk::SIGNET);
    desk.write("signet.dat", &other.read("node.dat"));
    let line = regtest("").replace("msb.hints", "snapshot:signet.dat");
    fails_at_once(&desk, &line, 1, &["signet.dat", "of chain signet, not of regtest"]);
}

#[test]
fn a_stop_height_that_the_hints_do_not_have_is_refused() {
    let desk = Desk::with(REGTEST);
    for hints in ["msb.hints", "snapshot:node.dat"] {
        let line = regtest("--stopatheight 314").replace("msb.hints", hints);
        let said = ["stop at height 314", "hints are for height 315"];
        fails_at_once(&desk, &line, 1, &said);
    }
}

#[cfg(not(feature = "kernel"))]
#[test]
fn a_build_that_runs_no_scripts_says_so_first() {
    let desk = Desk::with(REGTEST);
    for more in ["", "--assumevalid 0", "--blocksdir gone"] {
        let source = if more.contains("gone") { "" } else { "--blocksdir blocks" };
        let line = format!("sync --chain regtest {source} --out snapshot:o {more}");
        let said = ["built without the kernel feature", "--hints", "--assumevalid"];
        fails_at_once(&desk, &line, 1, &said);
    }
}

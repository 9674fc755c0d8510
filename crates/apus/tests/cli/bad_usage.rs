//! Valid command lines that cannot work: Apus says so at once, before any work is done.

use crate::sandbox::{REGTEST, Sandbox};
use std::fs;
use std::os::unix::fs::symlink;

/// A valid sync of the fixture, with the options that make it fail.
fn regtest(more: &str) -> String {
    format!("sync --chain regtest --blocksdir blocks --hints msb.hints {more}")
}

/// Runs a command line that must fail, and checks that it leaves no file behind.
#[track_caller]
fn fails_at_once(sandbox: &Sandbox, line: &str, code: i32, said: &[&str]) {
    let before = sandbox.names("");
    let ended = sandbox.apus(line).fails(code, said);
    assert_eq!(sandbox.names(""), before, "{ended}");
}

#[test]
fn outputs_that_cannot_be_written_are_reported_first() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.write("mine.txt", b"precious");
    symlink("nowhere", sandbox.path("dangling")).unwrap();
    let remedy = "remove it, or use another output";
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
        ("--out snapshot:mine.txt/utxo.dat", 3, &["mine.txt: not a folder"]),
        ("--out snapshot:mine.txt/a/b/utxo.dat", 3, &["so Apus cannot create mine.txt/a/b"]),
        ("--report dangling/report.json", 3, &["dangling: not a folder"]),
        ("--out snapshot:a --out hints:a", 1, &["a is given twice"]),
        ("--out snapshot:a --out hints:./a", 1, &["./a is given twice"]),
        ("--out snapshot:a --out snapshot:blocks/../a", 1, &["blocks/../a is given twice"]),
        ("--out snapshot:a --out hints:a.incomplete", 1, &["a.incomplete is given twice"]),
        ("--out snapshot:a --report a", 1, &["a is given twice"]),
        ("--out snapshot:a --workdir a", 1, &["a is given twice"]),
        ("--out snapshot:a --report a.work", 1, &["a.work is given twice"]),
        ("--workdir mine.txt", 1, &["mine.txt is a file, not a work folder", "--workdir"]),
    ] {
        fails_at_once(&sandbox, &regtest(more), code, said);
    }
    let convert = "hints convert msb.hints --to btcd --out";
    for (out, code, said) in [
        ("mine.txt", 1, &["mine.txt exists already", remedy][..]),
        ("msb.hints", 1, &["msb.hints exists already", remedy]),
        ("blocks", 1, &["blocks is a folder"]),
        ("mine.txt/such", 3, &["mine.txt: not a folder"]),
    ] {
        fails_at_once(&sandbox, &format!("{convert} {out}"), code, said);
    }
}

#[test]
fn errors_say_what_kind_of_file_it_is() {
    let sandbox = Sandbox::with(REGTEST);
    let convert = "hints convert msb.hints --to btcd --out btcd.hints";
    sandbox.apus(convert).succeeds();
    let sync = |hints: &str| {
        format!("sync --chain regtest --blocksdir blocks --out snapshot:o --hints {hints}")
    };
    for (line, code, said) in [
        (sync("node.dat"), 1, &["node.dat is a UTXO snapshot", "give it as snapshot:node.dat"][..]),
        (sync("snapshot:msb.hints"), 1, &["msb.hints is a hintsfile", "without `snapshot:`"]),
        (sync("btcd.hints"), 1, &["encoding btcd", "apus hints convert btcd.hints --to bip456"]),
        (sync("blocks/blk00000.dat"), 4, &["not a BIP-456 hintsfile", "apus hints convert"]),
        (sync("snapshot:blocks/blk00000.dat"), 4, &["not a snapshot", "dumptxoutset"]),
        (sync("blocks"), 3, &["blocks: Is a directory"]),
        (sync("snapshot:blocks"), 3, &["blocks: Is a directory"]),
        (sync("nosuch"), 3, &["nosuch: No such file"]),
        (sync("snapshot:nosuch"), 3, &["nosuch: No such file"]),
        ("hints info node.dat".to_owned(), 1, &["is a UTXO snapshot", "apus snapshot info"]),
        ("hints info blocks/xor.dat".to_owned(), 4, &["no known encoding", "--from"]),
        ("hints info nosuch".to_owned(), 3, &["nosuch: No such file"]),
        ("hints info blocks".to_owned(), 3, &["blocks: this is a folder"]),
        ("snapshot info msb.hints".to_owned(), 1, &["is a hintsfile", "apus hints info"]),
        ("snapshot info blocks/xor.dat".to_owned(), 4, &["not a snapshot"]),
        ("snapshot info nosuch".to_owned(), 3, &["nosuch: No such file"]),
        ("snapshot info blocks".to_owned(), 3, &["blocks: this is a folder"]),
    ] {
        fails_at_once(&sandbox, &line, code, said);
    }
}

#[test]
fn errors_say_which_folder_to_give() {
    let sandbox = Sandbox::with(REGTEST);
    fs::create_dir(sandbox.path("datadir")).unwrap();
    fs::rename(sandbox.path("blocks"), sandbox.path("datadir/blocks")).unwrap();
    fs::create_dir(sandbox.path("empty")).unwrap();
    let sync = |blocksdir: &str| {
        format!("sync --chain regtest --hints msb.hints --out snapshot:o --blocksdir {blocksdir}")
    };
    for (blocksdir, code, said) in [
        ("nosuch", 3, &["nosuch: No such file", "`blocks` folder"][..]),
        ("msb.hints", 3, &["msb.hints: Not a directory", "`blocks` folder"]),
        ("datadir", 3, &["no blk00000.dat", "in datadir", "`regtest/blocks`"]),
        ("empty", 3, &["no blk00000.dat", "in empty"]),
    ] {
        fails_at_once(&sandbox, &sync(blocksdir), code, said);
    }
}

#[test]
fn missing_folders_around_outputs_are_created() {
    let sandbox = Sandbox::with(REGTEST);
    let outputs = "--out snapshot:a/b/utxo.dat --out hints:a/c/o.hints --report d/e/run.json";
    sandbox.apus(&regtest(outputs)).succeeds();
    assert_eq!(sandbox.read("a/b/utxo.dat"), sandbox.read("node.dat"));
    assert_eq!(sandbox.json("d/e/run.json")["stop_height"], 315);
    assert_eq!(
        (sandbox.names("a"), sandbox.names("d/e")),
        (vec!["b".into(), "c".into()], vec!["run.json".into()])
    );
    sandbox.apus("hints convert msb.hints --to btcd --out f/g/btcd.hints").succeeds();
    // Apus removes folders that stay empty.
    let gone =
        regtest("--out snapshot:h/i/utxo.dat").replace("msb.hints", "snapshot:blocks/blk00000.dat");
    fails_at_once(&sandbox, &gone, 4, &["not a snapshot"]);
}

#[test]
fn the_blocks_determine_the_chain() {
    for fixture in [REGTEST, crate::sandbox::SIGNET, crate::sandbox::MAIN] {
        let sandbox = Sandbox::with(fixture);
        if fixture.chain == "signet" && !cfg!(feature = "kernel") {
            continue;
        }
        let ended = sandbox.apus("hints check msb.hints --blocksdir blocks").succeeds();
        ended.says(&[&format!("chain              {}\n", fixture.chain)]);
    }
}

#[test]
fn errors_name_the_right_chain() {
    let sandbox = Sandbox::with(REGTEST);
    let run = "--blocksdir blocks --out snapshot:o";
    for (line, said) in [
        (format!("sync {run} --hints msb.hints --chain main"), "use --chain regtest"),
        (format!("sync {run} --hints msb.hints --chain signet"), "use --chain regtest"),
        (format!("sync {run} --hints snapshot:node.dat --chain main"), "use --chain regtest"),
        ("hints check msb.hints --blocksdir blocks --chain main".to_owned(), "use --chain regtest"),
        (
            "snapshot verify node.dat --blocksdir blocks --chain main".to_owned(),
            "for chain regtest, not main",
        ),
    ] {
        fails_at_once(&sandbox, &line, 1, &[said]);
    }
    let other = Sandbox::with(crate::sandbox::SIGNET);
    sandbox.write("signet.dat", &other.read("node.dat"));
    let line = regtest("").replace("msb.hints", "snapshot:signet.dat");
    fails_at_once(&sandbox, &line, 1, &["signet.dat", "for chain signet, not regtest"]);
}

#[test]
fn a_stop_height_that_the_hints_do_not_have_is_refused() {
    let sandbox = Sandbox::with(REGTEST);
    for hints in ["msb.hints", "snapshot:node.dat"] {
        let line = regtest("--stopatheight 314").replace("msb.hints", hints);
        let said = ["stop height 314", "hints are for height 315"];
        fails_at_once(&sandbox, &line, 1, &said);
    }
}

#[cfg(not(feature = "kernel"))]
#[test]
fn a_build_that_runs_no_scripts_says_so_first() {
    let sandbox = Sandbox::with(REGTEST);
    for more in ["", "--assumevalid 0", "--blocksdir gone"] {
        let source = if more.contains("gone") { "" } else { "--blocksdir blocks" };
        let line = format!("sync --chain regtest {source} --out snapshot:o {more}");
        let said = ["built without the feature kernel", "--hints", "--assumevalid"];
        fails_at_once(&sandbox, &line, 1, &said);
    }
}

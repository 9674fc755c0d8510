//! What the program says of itself, and to those who mistype.

use crate::desk::Desk;

const COMMANDS: [&str; 10] = [
    "",
    "sync",
    "reindex",
    "hints",
    "hints info",
    "hints check",
    "hints convert",
    "snapshot",
    "snapshot info",
    "snapshot verify",
];

#[test]
fn every_command_has_help_on_standard_output() {
    let desk = Desk::empty();
    for command in COMMANDS {
        for flag in ["--help", "-h"] {
            let ended = desk.apus(&format!("{command} {flag}")).succeeds();
            assert_eq!(ended.stderr, "", "{command} {flag}");
            assert!(ended.stdout.contains("Usage: apus"), "{ended}");
        }
    }
    desk.apus("help snapshot verify").succeeds().says(&["Usage: apus snapshot verify"]);
}

#[test]
fn commands_that_do_something_show_examples() {
    let desk = Desk::empty();
    for command in COMMANDS {
        if !["", "hints", "snapshot"].contains(&command) {
            let example = format!("apus {command} ");
            desk.apus(&format!("{command} --help")).succeeds().says(&["Examples:\n", &example]);
        }
    }
    desk.apus("--help").succeeds().says(&["`apus sync --help` shows examples", "Exit codes: 0"]);
}

#[test]
fn help_tells_what_is_proven_and_what_is_assumed() {
    let help = Desk::empty().apus("sync --help").succeeds();
    help.says(&["What is checked of them:", "What is assumed", "goes on where it stopped"]);
}

#[test]
fn the_version_is_the_packages() {
    let version = concat!("apus ", env!("CARGO_PKG_VERSION"), "\n");
    for flag in ["--version", "-V"] {
        assert_eq!(Desk::empty().apus(flag).succeeds().stdout, version);
    }
}

#[test]
fn a_mistyped_line_is_told_what_was_expected() {
    let desk = Desk::empty();
    let run = "sync --blocksdir blocks --hints x.hints";
    for (line, said) in [
        ("", &["Usage: apus <COMMAND>", "sync "][..]),
        ("hints", &["info", "check", "convert"]),
        ("snapshot", &["info", "verify"]),
        ("snyc", &["unrecognized subcommand 'snyc'", "'sync'"]),
        ("hints chekc", &["'check'"]),
        ("sync", &["--blocksdir DIR", "--connect NODE"]),
        ("sync --blocksdir blocks --engine swiftsync", &["needs --hints"]),
        (&format!("{run} --engine utxo"), &["no use for hints"]),
        ("sync --hints x.hints", &["--blocksdir DIR"]),
        (&format!("{run} --outt null"), &["'--outt'", "'--out'"]),
        (&format!("{run} --chain mainnet"), &["mainnet", "main, test, testnet4, signet"]),
        (
            &format!("{run} --out utxo.dat"),
            &["use snapshot:FILE, hints:FILE, chainstate:DIR, datadir:DIR or null"],
        ),
        (
            &format!("{run} --out snapshot:"),
            &["use snapshot:FILE, hints:FILE, chainstate:DIR, datadir:DIR or null"],
        ),
        (
            &format!("{run} --out blocks:x"),
            &["use snapshot:FILE, hints:FILE, chainstate:DIR, datadir:DIR or null"],
        ),
        (&format!("{run} --par many"), &["--par"]),
        (&format!("{run} --par 5000"), &["1024"]),
        (&format!("{run} --dbcache 1"), &["4..=1048576"]),
        (&format!("{run} --dbcache -1"), &["-1"]),
        (&format!("{run} --segment-bytes 0"), &["--segment-bytes"]),
        (&format!("{run} --stopatheight tip"), &["--stopatheight"]),
        (&format!("{run} --hints-order big"), &["msb", "lsb"]),
        (&format!("{run} --aggregate xor"), &["sha256, muhash"]),
        (&format!("{run} --engine utreexo"), &["swiftsync"]),
        (&format!("{run} --validation full"), &["leave out --hints"]),
        (&format!("{run} --progress loud"), &["auto, plain, json, none"]),
        (&format!("{run} --hints y.hints"), &["cannot be used multiple times"]),
        ("sync --blocksdir blocks --hints snapshot:", &["needs the name of a file"]),
        ("sync --blocksdir blocks --hints=", &["name a file"]),
        ("hints info", &["<FILE>"]),
        ("hints info x --from zip", &["zip", "bitmap, delta, offsets or offsets-height"]),
        ("hints convert x --out y", &["--to <FORMAT>"]),
        ("hints convert x --to btcd", &["--out <FILE>"]),
        ("hints convert x --out y --to zip", &["bip456-lsb", "btcd", "delta or offsets"]),
        ("hints convert x --out y --to offsets --stop-block 00", &["--stop-block"]),
        ("snapshot verify x", &["--blocksdir <DIR>"]),
    ] {
        desk.apus(line).fails(1, said);
    }
}

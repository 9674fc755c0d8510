//! Help, versions, options from environment and file, and errors for mistyped lines.

use crate::cli::fixtures::sync;
use crate::sandbox::{REGTEST, Sandbox};

const COMMANDS: [&str; 31] = [
    "",
    "sync",
    "plan",
    "reindex",
    "index",
    "verify",
    "hints",
    "hints info",
    "hints check",
    "hints convert",
    "snapshot",
    "snapshot info",
    "snapshot verify",
    "snapshot export",
    "snapshot find",
    "utreexo",
    "utreexo prove",
    "utreexo info",
    "utreexo check",
    "utreexo caches",
    "completions",
    "man",
    "submit",
    "coins",
    "coins get",
    "coins copy",
    "plot",
    "cluster",
    "cluster serve",
    "cluster work",
    "cluster status",
];

/// The commands of this build, which may lack features.
fn commands() -> impl Iterator<Item = &'static str> {
    COMMANDS.into_iter().filter(|command| match command.split(' ').next() {
        _ if ["snapshot export", "snapshot find"].contains(command) => cfg!(feature = "tables"),
        Some("coins") => cfg!(feature = "remote-coins"),
        Some("cluster") => cfg!(feature = "cluster"),
        Some("utreexo") => cfg!(feature = "utreexo"),
        _ => true,
    })
}

#[test]
fn every_command_has_help_and_its_own_commands_show_examples() {
    let sandbox = Sandbox::empty();
    for command in commands() {
        let short = sandbox.apus(&format!("{command} -h")).succeeds().says(&["Usage: apus"]);
        let long = sandbox.apus(&format!("{command} --help")).succeeds().says(&["Usage: apus"]);
        assert_eq!((short.stderr.as_str(), long.stderr.as_str()), ("", ""), "{command}");
        if !["", "hints", "snapshot", "utreexo", "cluster", "coins"].contains(&command) {
            let help = long.says(&["Examples:\n", &format!("apus {command} ")]).stdout;
            // A narrower terminal would wrap each longer line, with a single word on the second line.
            let after = help.split("Examples:\n").nth(1).unwrap();
            let long: Vec<_> = after.lines().filter(|line| line.chars().count() > 80).collect();
            assert!(long.is_empty(), "{command}: {long:#?}");
        }
    }
    sandbox.apus("help snapshot verify").succeeds().says(&["Usage: apus snapshot verify"]);
    sandbox.apus("--help").succeeds().says(&["Exit codes: 0"]);
}

/// The important options fit on one screen; the rest is in `--help`.
#[test]
fn short_help_is_short() {
    let sandbox = Sandbox::empty();
    let help = |line: &str| {
        let script = "COLUMNS=80 exec \"$0\" \"$@\"";
        sandbox.start_in_shell(script, line).wait().succeeds().stdout
    };
    let begins = |line: &str, with: &str| {
        let rest = line.strip_prefix(with);
        rest.is_some_and(|rest| rest.starts_with(|letter: char| letter.is_ascii_lowercase()))
    };
    let commands = help("-h").lines().filter(|line| begins(line, "  ")).count();
    assert!((8..=12).contains(&commands), "{commands} commands");
    let short = help("sync -h");
    let is_option = |line: &&str| line.trim_start().starts_with('-');
    let options = short.lines().filter(is_option).count();
    assert!((15..=20).contains(&options) && short.lines().count() <= 45, "{options}: {short}");
    let heads = ["Input:", "Output:", "Checks:", "Resources:", "Progress:", "Network:", "Options:"];
    for text in [short, help("sync --help")] {
        let found: Vec<&str> = text.lines().filter(|line| heads.contains(line)).collect();
        let mut sorted = (found.clone(), heads.to_vec());
        sorted.0.sort_unstable();
        sorted.1.sort_unstable();
        assert_eq!(sorted.0, sorted.1, "{found:?}");
    }
}

/// Apus wraps lines only for a terminal: lines that scripts read stay whole.
#[test]
fn no_line_is_wider_than_the_terminal() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.copy(&crate::sandbox::fixtures().join("regtest-315/regtest"), "node/regtest");
    sandbox.edit("node/regtest/blocks/rev00000.dat", |bytes| bytes[5_000] ^= 1);
    for (size, width, line) in [
        ("cols 80 rows 30", 80, "--help"),
        ("cols 80 rows 30", 80, "plan --help"),
        ("cols 0 rows 0", 80, "sync --help"),
        ("cols 60 rows 30", 60, "plan --blocksdir blocks --dbcache 1048576 --out datadir:node"),
        (
            "cols 60 rows 30",
            60,
            "sync --blocksdir blocks --hints msb.hints --assumevalid hints --out datadir:new",
        ),
        ("cols 70 rows 30", 70, "verify --datadir node --progress none"),
    ] {
        let script = format!("exec script -qc \"stty {size}; '$0' $*\" /dev/null");
        let shown = sandbox.start_in_shell(&script, line).wait().succeeds().stdout;
        // Bold on, and off.
        let plain = |line: &str| {
            let parts = line.trim_end().split('\x1b').enumerate();
            let text = |(number, part): (usize, &str)| match number {
                0 => part.to_owned(),
                _ => part.split_once('m').map_or("", |(_, text)| text).to_owned(),
            };
            parts.map(text).collect::<String>()
        };
        let lines: Vec<String> = shown.lines().map(plain).collect();
        assert!(lines.len() > 2, "{shown}");
        let wide = lines.iter().filter(|line| line.chars().count() > width);
        assert_eq!(wide.collect::<Vec<_>>(), Vec::<&String>::new(), "{line}");
    }
    let said = sandbox.apus("plan --blocksdir blocks --dbcache 1048576 --out datadir:node");
    assert!(said.stderr.starts_with("apus: ") && said.stderr.lines().count() == 1, "{said}");
    assert!(said.stderr.len() > 60, "{said}");
}

#[test]
fn the_version_is_the_packages() {
    let version = concat!("apus ", env!("CARGO_PKG_VERSION"), "\n");
    assert_eq!(Sandbox::empty().apus("-V").succeeds().stdout, version);
    let long = Sandbox::empty().apus("--version").succeeds().stdout;
    assert!(long.starts_with(version), "{long}");
    let kernel = if cfg!(feature = "kernel") { "kernel" } else { "features  " };
    for part in ["\ncommit    ", "\nfeatures  ", "\nplatform  ", "\nSHA-256   ", kernel] {
        assert!(long.contains(part), "{part:?} in {long}");
    }
}

/// An option that is not on the line can come from the environment; the line takes precedence.
#[test]
fn options_come_from_the_environment() {
    let sandbox = Sandbox::with(REGTEST);
    let line = sync(REGTEST, "msb.hints");
    let with = |variables: &str, more: &str| {
        let script = format!("{variables} exec \"$0\" \"$@\"");
        sandbox.start_in_shell(&script, &format!("{line} {more}")).wait()
    };
    with("APUS_STOPATHEIGHT=loud", "")
        .fails(1, &["error: APUS_STOPATHEIGHT: ", "'loud'", "--stopatheight"]);
    let ended = with("APUS_STOPATHEIGHT=7", "--stopatheight loud").fails(1, &["'loud'"]);
    assert!(!ended.stderr.contains("APUS_"), "{ended}");
    with("APUS_PAR=loud", "--par 1").succeeds();
    with("APUS_REPORT=report.json", "").succeeds();
    assert!(sandbox.json("report.json")["machine"].is_object());
}

/// Flags take the same words in the environment as in a file.
#[test]
fn flags_take_the_same_words_everywhere() {
    let sandbox = Sandbox::with(REGTEST);
    let line = "sync --blocksdir blocks --conf apus.conf --report";
    let has_muhash = |file: &str, variables: &str, name: &str| {
        sandbox.write("apus.conf", file.as_bytes());
        let script = format!("{variables} exec \"$0\" \"$@\"");
        sandbox.start_in_shell(&script, &format!("{line} {name}.json")).wait().succeeds();
        sandbox.json(&format!("{name}.json"))["muhash"].is_string()
    };
    for (word, given) in [("1", true), ("true", true), ("0", false), ("false", false)] {
        let in_file = format!("muhash={word}");
        assert_eq!(has_muhash(&in_file, "", &format!("file-{word}")), given);
        let variables = format!("APUS_MUHASH={word}");
        assert_eq!(has_muhash("", &variables, &format!("env-{word}")), given);
    }
    let script = "APUS_MUHASH=yes exec \"$0\" \"$@\"";
    let ended = sandbox.start_in_shell(script, "sync --blocksdir blocks").wait();
    ended.fails(1, &["error: APUS_MUHASH: ", "'yes'", "--muhash", "1 or 0, true or false"]);
    sandbox.write("apus.conf", b"muhash=yes");
    sandbox.apus(&format!("{line} r.json")).fails(1, &["apus.conf:1: --muhash takes 1 or 0"]);
}

/// Options can also come from a file, which ranks below the command line and the environment.
#[test]
fn options_come_from_a_file() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.write(
        "apus.conf",
        b"# mine\npar=1\n\n[sync]\nblocksdir=blocks\nhints=msb.hints\nreport=r.json\n",
    );
    let line = "sync --conf apus.conf --assumevalid hints";
    let script = |variables: &str| {
        let script = format!("{variables} exec \"$0\" \"$@\"");
        sandbox.start_in_shell(&script, line).wait()
    };
    script("").succeeds();
    assert_eq!(
        (&sandbox.json("r.json")["threads"], &sandbox.json("r.json")["chain"]),
        (&1.into(), &"regtest".into())
    );
    sandbox.remove("r.json");
    script("APUS_PAR=2").succeeds();
    assert_eq!(sandbox.json("r.json")["threads"], 2);
    sandbox.write("apus.conf", b"par=loud");
    let place = ["error: apus.conf:1: ", "'loud'", "--par"];
    sandbox.apus(&format!("{line} --blocksdir blocks")).fails(1, &place);
    sandbox.write("apus.conf", b"\n[sync]\nout=null\nout=paper:x\n");
    sandbox.apus(line).fails(1, &["error: apus.conf:4: ", "'paper:x'", "--out"]);
    sandbox.write("apus.conf", b"\nparr=1");
    sandbox.apus(line).fails(1, &["apus.conf:2: there is no option --parr"]);
    sandbox.apus("sync --conf nowhere").fails(3, &["nowhere: No such file"]);
}

#[test]
fn completions_and_manuals_cover_every_command() {
    let sandbox = Sandbox::empty();
    for shell in ["bash", "zsh", "fish"] {
        let completions = sandbox.apus(&format!("completions {shell}")).succeeds().stdout;
        for word in ["reindex", "utreexo", "--blocksdir", "stopatheight"] {
            assert!(completions.contains(word), "{word} for {shell}");
        }
    }
    sandbox.apus_as_typed("man man").succeeds().says(&["man -l man/apus.1"]);
    let page = String::from_utf8(sandbox.read("man/apus-sync.1")).unwrap();
    assert!(page.contains("blocksdir") && page.contains("Examples"), "{page}");
    sandbox.write("taken", b"a file");
    sandbox.apus("man taken").fails(3, &["taken"]);
}

#[test]
fn errors_of_mistyped_lines_say_what_was_expected() {
    let sandbox = Sandbox::empty();
    let run = "sync --blocksdir blocks --hints x.hints";
    for (line, said) in [
        ("", &["Usage: apus [OPTIONS] <COMMAND>", "sync "][..]),
        ("hints", &["info", "check", "convert"]),
        ("snapshot", &["info", "verify"]),
        ("utreexo", &["prove", "info", "check", "caches"]),
        ("utreexo prove --blocksdir b", &["--out <DIR>"]),
        ("cluster", &["serve", "work", "status"]),
        ("cluster work --nats nats://a --objects o", &["--blocksdir <DIR>"]),
        ("cluster serve --nats nats://a --objects o", &["--blocksdir DIR"]),
        ("cluster status --nats http://a", &["--nats http://a"]),
        ("snyc", &["unrecognized subcommand 'snyc'", "'sync'"]),
        ("hints chekc", &["'check'"]),
        ("sync", &["--blocksdir DIR", "--connect NODE"]),
        ("sync --blocksdir blocks --engine swiftsync", &["needs --hints"]),
        (&format!("{run} --engine utxo"), &["takes no hints"]),
        (&format!("{run} --engine mergesync"), &["mergesync takes no hints"]),
        ("sync --engine mergesync --out null", &["--blocksdir"]),
        ("sync --blocksdir blocks --assumevalid hints", &["--hints"]),
        ("reindex --datadir node --assumevalid hints", &["--hints"]),
        ("sync --hints x.hints", &["--blocksdir DIR"]),
        (&format!("{run} --outt null"), &["'--outt'", "'--out'"]),
        (&format!("{run} --chain mainnet"), &["mainnet", "main, test, testnet4, signet"]),
        (
            &format!("{run} --out utxo.dat"),
            &[
                "use snapshot:FILE, hints:FILE, csv:FILE, sqlite:FILE, parquet:FILE, utreexo:FILE, sighints:FILE, stats:FILE, chainstate:DIR, datadir:DIR, coins:URL or null",
            ],
        ),
        (
            &format!("{run} --out snapshot:"),
            &[
                "use snapshot:FILE, hints:FILE, csv:FILE, sqlite:FILE, parquet:FILE, utreexo:FILE, sighints:FILE, stats:FILE, chainstate:DIR, datadir:DIR, coins:URL or null",
            ],
        ),
        (
            &format!("{run} --out blocks:x"),
            &[
                "use snapshot:FILE, hints:FILE, csv:FILE, sqlite:FILE, parquet:FILE, utreexo:FILE, sighints:FILE, stats:FILE, chainstate:DIR, datadir:DIR, coins:URL or null",
            ],
        ),
        (&format!("{run} --par many"), &["--par"]),
        (&format!("{run} --par 5000"), &["1024"]),
        (&format!("{run} --dbcache 1"), &["a whole number of MiB", "from 4 to 1048576"]),
        (&format!("{run} --dbcache 2GB"), &["'2GB'", "a whole number of MiB, such as 2000"]),
        (&format!("{run} --proxy 9050"), &["an IP address and a port", "such as 127.0.0.1:9050"]),
        (&format!("{run} --dbcache -1"), &["-1"]),
        (&format!("{run} --segment-bytes 0"), &["--segment-bytes"]),
        (&format!("{run} --stopatheight tip"), &["--stopatheight"]),
        (&format!("{run} --hints-order big"), &["msb", "lsb"]),
        (&format!("{run} --aggregate xor"), &["sha256, muhash"]),
        (&format!("{run} --engine forest"), &["swiftsync", "utreexo"]),
        (&format!("{run} --assumevalid 0,default"), &["give one block"]),
        (&format!("{run} --assumevalid all"), &["64 hexadecimal digits, 0, default or hints"]),
        (
            &format!("{run} --assumevalid 0,hints"),
            &["--assumevalid 0 runs every", "use only one of the two"],
        ),
        (
            &format!("{run} --assumevalid hints,{}", "0".repeat(64)),
            &["--assumevalid 0 runs every", "use only one of the two"],
        ),
        (&format!("{run} --witnesses some"), &["check, skip"]),
        (
            "sync --blocksdir blocks --witnesses skip --out datadir:node",
            &["--witnesses skip drops the witnesses", "--out datadir:DIR needs"],
        ),
        (&format!("{run} --progress loud"), &["auto, plain, json, none"]),
        (&format!("{run} --hints y.hints"), &["cannot be used multiple times"]),
        ("sync --blocksdir blocks --hints snapshot:", &["needs the name of a file"]),
        ("sync --blocksdir blocks --hints=", &["give a file"]),
        ("hints info", &["<FILE>"]),
        ("hints info x --from bip456-lsb --hints-order msb", &["leave out --hints-order"]),
        ("snapshot verify x --blocksdir b --hints-order lsb", &["--hints-order"]),
        ("hints info x --from zip", &["zip", "bitmap, delta, offsets or offsets-height"]),
        ("hints convert x --out y", &["--to <FORMAT>"]),
        ("hints convert x --to btcd", &["--out <FILE>"]),
        ("hints convert x --out y --to zip", &["bip456-lsb", "btcd", "delta or offsets"]),
        ("hints convert x --out y --to offsets --stop-block 00", &["--stop-block"]),
        ("snapshot verify x", &["--blocksdir <DIR>"]),
        (
            "snapshot verify x --blocksdir b --assumevalid hints",
            &["--assumevalid hints needs --hints"],
        ),
        ("verify", &["--datadir <DIR>"]),
        ("verify --datadir nowhere", &["nowhere is not the data directory"]),
    ] {
        sandbox.apus(line).fails(1, said);
    }
}

#[test]
fn bitcoin_core_options_get_advice_on_their_spelling_in_apus() {
    let sandbox = Sandbox::empty();
    for (words, said) in [
        ("-chain=regtest", &["'-chain'", "as in --chain"][..]),
        ("-blocksdir=x", &["as in --blocksdir"]),
        ("--regtest", &["--chain regtest"]),
        ("--testnet", &["--chain test\n"]),
        ("-signet", &["--chain signet"]),
        ("--prune=550", &["no size", "--out datadir:node --prune", "-prune=550"]),
        ("--listen=1", &["0.0.0.0:8333", "--listen"]),
        ("--listen 23431", &["127.0.0.1:23431", "0.0.0.0:23431"]),
        ("--listen here", &["0.0.0.0:8333", "127.0.0.1:8333"]),
        ("--port=8333", &["--listen 0.0.0.0:8333"]),
    ] {
        let ended = sandbox.apus(&format!("sync {words} --out null")).fails(1, said);
        assert!(ended.stderr.contains("try '--help'"), "{ended}");
    }
    sandbox.apus("reindex -datadir=node").fails(1, &["as in --datadir"]);
}

#[test]
fn a_build_names_the_feature_that_it_lacks() {
    let sandbox = Sandbox::empty();
    sandbox.write("page.conf", b"web=127.0.0.1:0\n");
    for (line, feature, is_in) in [
        ("cluster status", "cluster", cfg!(feature = "cluster")),
        ("coins get x:0 --coins redis://a", "remote-coins", cfg!(feature = "remote-coins")),
        ("sync --coins redis://a", "remote-coins", cfg!(feature = "remote-coins")),
        ("sync --web 127.0.0.1:0", "web", cfg!(feature = "web")),
        ("sync --conf page.conf", "web", cfg!(feature = "web")),
        ("utreexo info", "utreexo", cfg!(feature = "utreexo")),
        ("sync --proofs proofs", "utreexo", cfg!(feature = "utreexo")),
        ("sync --engine utreexo", "utreexo", cfg!(feature = "utreexo")),
    ] {
        let ended = sandbox.apus(line).fails(1, &[]);
        let named = ended.stderr.contains(&format!("the feature {feature}"));
        assert_eq!(named, !is_in, "{ended}");
        assert!(is_in || ended.stderr.contains("--features extras"), "{ended}");
    }
}

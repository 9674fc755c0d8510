//! Invalid command lines, and a build that cannot run scripts.

use std::process::{Command, Output, Stdio};

fn apus(line: &str) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_apus"));
    command.arg("submit").args(line.split_ascii_whitespace()).stdin(Stdio::null());
    command.output().unwrap()
}

fn refused(line: &str, about: &str) {
    let Output { status, stdout, stderr } = apus(line);
    let said = String::from_utf8(stderr).unwrap();
    assert_eq!(status.code(), Some(1), "{line}: {said}");
    assert!(said.contains(about), "{line}: {said}");
    assert_eq!(stdout, b"", "{line}");
}

#[test]
fn activation_heights_are_as_in_bitcoind_and_for_regtest() {
    let regtest = "--chain regtest --testactivationheight";
    refused(&format!("{regtest} segwit"), "NAME@HEIGHT");
    refused(&format!("{regtest} taproot@3"), "unknown deployment");
    refused(&format!("{regtest} csv@-1"), "invalid height");
    refused(
        "--chain signet --testactivationheight csv@1",
        "--testactivationheight needs --chain regtest",
    );
    refused("--chain mainnet", "unknown chain");
}

#[test]
#[cfg(not(feature = "kernel"))]
fn without_an_interpreter_no_block_is_validated() {
    refused("--chain regtest", "cannot validate blocks");
}

#[test]
#[cfg(feature = "kernel")]
fn an_empty_input_has_no_answers() {
    for chain in ["main", "test", "testnet4", "signet", "regtest"] {
        let ended = apus(&format!("--chain {chain}"));
        assert!(ended.status.success() && ended.stdout.is_empty() && ended.stderr.is_empty());
    }
}

#[test]
#[cfg(feature = "kernel")]
fn folders_of_others_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    std::fs::write(folder.path().join("diary.txt"), "dear diary").unwrap();
    let line = format!("--chain regtest --workdir {}", folder.path().display());
    refused(&line, "diary.txt");
}

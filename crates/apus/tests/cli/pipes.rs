//! Standard output and standard error that are not read, or cannot be written.

use crate::desk::{Desk, REGTEST};

const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints \
                    --out snapshot:utxo.dat --progress json";

#[test]
fn a_reader_that_has_seen_enough_stops_nothing() {
    for redirect in ["", "2>&1 >/dev/null"] {
        let desk = Desk::with(REGTEST);
        let script =
            format!(r#"{{ "$0" "$@" {redirect}; echo $? >code; }} | true; exit $(cat code)"#);
        desk.start_in_shell(&script, SYNC).wait().succeeds();
        assert!(desk.read("utxo.dat") == desk.read("node.dat"));
        for line in ["--help", "hints info msb.hints", "snapshot info node.dat"] {
            desk.start_in_shell(&script, line).wait().succeeds();
        }
    }
}

#[test]
fn progress_that_cannot_be_written_stops_nothing() {
    let desk = Desk::with(REGTEST);
    desk.start_in_shell(r#"exec "$0" "$@" 2>/dev/full"#, SYNC).wait().succeeds();
    assert!(desk.read("utxo.dat") == desk.read("node.dat"));
}

#[test]
fn results_that_cannot_be_written_are_a_failure() {
    let desk = Desk::with(REGTEST);
    let full = r#"exec "$0" "$@" >/dev/full"#;
    let said = ["standard output: No space left on device"];
    for line in [
        SYNC,
        "hints info msb.hints",
        "hints check msb.hints --chain regtest --blocksdir blocks",
        "hints convert msb.hints --to btcd --out btcd",
        "snapshot info node.dat",
        "snapshot verify node.dat --chain regtest --blocksdir blocks",
    ] {
        desk.start_in_shell(full, line).wait().fails(3, &said);
    }
    // What was written to files is as good as ever.
    assert!(desk.read("utxo.dat") == desk.read("node.dat"));
}

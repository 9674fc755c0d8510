//! Standard output and standard error that are not being read, or cannot be written; hints and snapshots that come
//! through a pipe, or compressed.

use crate::sandbox::{REGTEST, Sandbox};
use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};
use std::io::Write;
use std::process::Command;

const SYNC: &str = "sync --chain regtest --blocksdir blocks --hints msb.hints \
                    --out snapshot:utxo.dat --progress json";

#[test]
fn a_reader_that_closes_the_pipe_does_not_stop_the_run() {
    for redirect in ["", "2>&1 >/dev/null"] {
        let sandbox = Sandbox::with(REGTEST);
        let script =
            format!(r#"{{ "$0" "$@" {redirect}; echo $? >code; }} | true; exit $(cat code)"#);
        sandbox.start_in_shell(&script, SYNC).wait().succeeds();
        assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
        for line in ["--help", "hints info msb.hints", "snapshot info node.dat"] {
            sandbox.start_in_shell(&script, line).wait().succeeds();
        }
    }
}

#[test]
fn progress_that_cannot_be_written_does_not_stop_the_run() {
    let sandbox = Sandbox::with(REGTEST);
    sandbox.start_in_shell(r#"exec "$0" "$@" 2>/dev/full"#, SYNC).wait().succeeds();
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
}

#[test]
fn results_that_cannot_be_written_are_a_failure() {
    let sandbox = Sandbox::with(REGTEST);
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
        sandbox.start_in_shell(full, line).wait().fails(3, &said);
    }
    // The output files are correct.
    assert!(sandbox.read("utxo.dat") == sandbox.read("node.dat"));
}

/// A pipe can be read once, so the program keeps what it needs twice.
#[test]
fn hints_and_snapshots_come_through_a_pipe() {
    let sandbox = Sandbox::with(REGTEST);
    let sync = "sync --blocksdir blocks --progress none --hints";
    for (file, line) in [
        ("msb.hints", format!("{sync} pipe --out snapshot:by-hints")),
        ("node.dat", format!("{sync} snapshot:pipe --out snapshot:by-snapshot")),
        ("msb.hints", "hints info pipe".to_owned()),
        ("msb.hints", "hints check pipe --blocksdir blocks".to_owned()),
        ("msb.hints", "hints convert pipe --to btcd --out btcd".to_owned()),
        ("node.dat", "snapshot info pipe".to_owned()),
        ("node.dat", "snapshot verify pipe --blocksdir blocks".to_owned()),
        ("msb.hints", "plan --blocksdir blocks --hints pipe".to_owned()),
    ] {
        let script = format!(
            "rm -f pipe; mkfifo pipe; cat {file} >pipe & \"$0\" \"$@\"; code=$?; rm pipe; exit $code"
        );
        sandbox.start_in_shell(&script, &line).wait().succeeds();
        assert!(!sandbox.names("").iter().any(|name| name.contains("unpacked")), "{line}");
    }
    for name in ["by-hints", "by-snapshot"] {
        assert!(sandbox.read(name) == sandbox.read("node.dat"), "{name}");
    }
    let stdin = r#"cat node.dat | "$0" "$@""#;
    sandbox.start_in_shell(stdin, "snapshot info /dev/stdin").wait().succeeds().says(&["20,326"]);
}

/// A run is interrupted while it waits for input that never comes.
#[test]
fn the_first_signal_ends_a_wait_for_a_pipe() {
    let sandbox = Sandbox::with(REGTEST);
    assert!(Command::new("mkfifo").arg(sandbox.path("pipe")).status().unwrap().success());
    for line in [
        "sync --blocksdir blocks --hints pipe --out snapshot:s",
        "sync --blocksdir blocks --hints snapshot:pipe --out snapshot:s",
        "snapshot verify pipe --blocksdir blocks",
        "snapshot info pipe",
        "hints convert pipe --to btcd --out btcd",
    ] {
        let mut run = sandbox.start(line);
        run.until_thread("input");
        run.signal(&["TERM"]);
        run.wait().fails(130, &["interrupted"]);
    }
}

#[test]
fn hints_and_snapshots_may_be_compressed() {
    let sandbox = Sandbox::with(REGTEST);
    for name in ["msb.hints", "node.dat"] {
        let bytes = sandbox.read(name);
        let mut gzip = GzEncoder::new(Vec::new(), Compression::fast());
        gzip.write_all(&bytes).unwrap();
        sandbox.write(&format!("{name}.gz"), &gzip.finish().unwrap());
        let mut xz = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).unwrap();
        xz.write_all(&bytes).unwrap();
        sandbox.write(&format!("{name}.xz"), &xz.finish().unwrap());
        let level = ruzstd::encoding::CompressionLevel::Fastest;
        sandbox
            .write(&format!("{name}.zst"), &ruzstd::encoding::compress_to_vec(&bytes[..], level));
    }
    for packed in ["gz", "xz", "zst"] {
        let sync = "sync --blocksdir blocks --progress none --hints";
        let out = format!("--out snapshot:{packed}");
        sandbox.apus(&format!("{sync} msb.hints.{packed} {out}")).succeeds();
        assert!(sandbox.read(packed) == sandbox.read("node.dat"), "{packed}");
        sandbox.apus(&format!("snapshot info node.dat.{packed}")).succeeds().says(&["20,326"]);
        sandbox.apus(&format!("hints info msb.hints.{packed}")).succeeds().says(&["20,326"]);
    }
    sandbox.apus("hints convert msb.hints.xz --to btcd --out btcd").succeeds();
    sandbox.apus("sync --blocksdir blocks --hints snapshot:node.dat.zst --out null").succeeds();
    sandbox.apus("snapshot verify node.dat.gz --blocksdir blocks").succeeds();
    // Apus looks at the content, not the name, and reports a truncated file.
    let said = ["msb.hints.gz is a hintsfile", "give it without `snapshot:`"];
    sandbox.apus("sync --blocksdir blocks --hints snapshot:msb.hints.gz").fails(1, &said);
    let said = ["node.dat.xz is a UTXO snapshot: give it as snapshot:node.dat.xz"];
    sandbox.apus("sync --blocksdir blocks --hints node.dat.xz").fails(1, &said);
    sandbox.edit("node.dat.zst", |bytes| bytes.truncate(bytes.len() / 2));
    let said = ["cannot unpack this zstd file", "`zstd -d node.dat.zst`"];
    for line in
        ["snapshot info node.dat.zst", "sync --blocksdir blocks --hints snapshot:node.dat.zst"]
    {
        sandbox.apus(line).fails(4, &said);
    }
}

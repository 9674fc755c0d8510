//! Core's block index with one of its LevelDB files replaced: never a panic, and no block twice.
//!
//! Input: which file, whether its checksums are corrected, then its bytes.
//!
//! Inputs: at most 45000 bytes.

#![no_main]

use apus_chain::BlockHash;
use apus_datadir::{STATUS_HAVE_DATA, read_index};
use apus_fuzz::{Input, leveldb, write};
use libfuzzer_sys::fuzz_target;
use std::ops::ControlFlow;

/// The files of `fixtures/regtest-315`, and a log that is not one of them.
const FILES: [(&str, &[u8]); 7] = [
    ("CURRENT", include_bytes!("../../../fixtures/regtest-315/regtest/blocks/index/CURRENT")),
    (
        "MANIFEST-000010",
        include_bytes!("../../../fixtures/regtest-315/regtest/blocks/index/MANIFEST-000010"),
    ),
    ("000012.log", include_bytes!("../../../fixtures/regtest-315/regtest/blocks/index/000012.log")),
    ("000013.log", &[]),
    ("000005.ldb", include_bytes!("../../../fixtures/regtest-315/regtest/blocks/index/000005.ldb")),
    ("000008.ldb", include_bytes!("../../../fixtures/regtest-315/regtest/blocks/index/000008.ldb")),
    ("000011.ldb", include_bytes!("../../../fixtures/regtest-315/regtest/blocks/index/000011.ldb")),
];

/// The numbers of the tables, which come last among the files.
const TABLES: [u8; 3] = [5, 8, 11];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let choice = input.u8();
    let place = usize::from(choice & 0x3f) % FILES.len();
    let (name, original) = FILES[place];
    let mut bytes = input.rest().to_vec();
    let intact = bytes == original;
    if choice & 0x80 != 0 {
        leveldb::repair(name, &mut bytes);
    }
    let mut files = FILES.map(|(name, bytes)| (name, bytes.to_vec()));
    files[place].1 = bytes;
    if choice & 0x40 != 0 {
        // The lengths that the manifest lists match the tables, whatever their bytes are.
        let lengths = files[4..].iter().map(|(_, bytes)| bytes.len());
        files[1].1 = leveldb::manifest(12, &TABLES.into_iter().zip(lengths).collect::<Vec<_>>());
    }
    let dir = tempfile::tempdir().expect("a temporary folder");
    for (name, bytes) in &files {
        write(&dir.path().join("index").join(name), bytes);
    }

    let mut last: Option<BlockHash> = None;
    let mut count = 0;
    let read = read_index(dir.path(), &mut |entry| {
        assert!(last.replace(entry.hash).is_none_or(|last| last < entry.hash), "out of order");
        assert_eq!(entry.data.is_some(), entry.status & STATUS_HAVE_DATA != 0);
        count += 1;
        ControlFlow::Continue(())
    });
    if intact {
        assert_eq!((count, read.is_ok()), (316, true), "the index as the node left it");
    }
});

//! An undo file, and the file of positions that a data directory in the making has: never a panic,
//! never more memory than the file has bytes, and undo data only under a right checksum.
//!
//! Input: which of the two, whether the checks are made right, a place, then the bytes.
//!
//! Inputs: at most 4096 bytes.

#![no_main]

use apus_chain::BlockHash;
use apus_datadir::{BlockPositions, BlockStore, Obfuscation, UndoFiles};
use apus_fuzz::{Input, write};
use bitcoin::hashes::{Hash, sha256, sha256d};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

const MAGIC: [u8; 4] = [0xfa, 0xbf, 0xb5, 0xda];
const PREV: BlockHash = BlockHash([7; 32]);

/// Lengths of the head and of a record of a file of positions, and of the check at its end.
const HEAD: usize = 28;
const RECORD: usize = 136;
const CHECK: usize = 8;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let (choice, place) = (input.u8(), u64::from(input.u16()));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bytes = input.rest().to_vec();
    if choice & 1 == 0 {
        undo(dir.path(), bytes, place, choice & 2 != 0);
    } else {
        positions(dir.path(), bytes, choice & 2 != 0);
    }
});

fn undo(dir: &Path, mut bytes: Vec<u8>, place: u64, repair: bool) {
    if repair && bytes.len() >= 40 {
        // A whole record at the beginning.
        let size = bytes.len() - 40;
        bytes[..4].copy_from_slice(&MAGIC);
        bytes[4..8].copy_from_slice(&(size as u32).to_le_bytes());
        let sum = checksum(&bytes[8..8 + size]);
        bytes[8 + size..].copy_from_slice(&sum);
        write(&dir.join("rev00000.dat"), &bytes);
        let read = UndoFiles::open(dir, MAGIC).expect("no key").read(0, 8, &PREV);
        assert_eq!(read.expect("a sound record"), &bytes[8..8 + size]);
    }
    write(&dir.join("rev00000.dat"), &bytes);
    let mut files = UndoFiles::open(dir, MAGIC).expect("no key");
    if let Ok(undo) = files.read(0, place, &PREV) {
        let end = place as usize + undo.len();
        assert_eq!(undo, &bytes[place as usize..end]);
        assert_eq!(bytes[end..end + 32], checksum(&undo));
    }
}

fn checksum(undo: &[u8]) -> [u8; 32] {
    sha256d::Hash::hash(&[&PREV.0, undo].concat()).to_byte_array()
}

fn positions(dir: &Path, mut bytes: Vec<u8>, repair: bool) {
    if repair && bytes.len() >= HEAD {
        let head = [&b"APUSPOSN"[..], &2u32.to_le_bytes(), &MAGIC, &[0; 12]].concat();
        bytes[..HEAD].copy_from_slice(&head);
        for (height, record) in (0u32..).zip(bytes[HEAD..].chunks_exact_mut(RECORD)) {
            let (body, check) = record.split_at_mut(RECORD - CHECK);
            let sum = sha256::Hash::hash(&[&height.to_le_bytes()[..], body].concat());
            check.copy_from_slice(&sum.to_byte_array()[..CHECK]);
        }
    }
    let path = dir.join("positions");
    write(&path, &bytes);
    let mut count = 0;
    if let Ok(positions) = BlockPositions::open(&path) {
        let heights = positions.heights();
        assert!(heights.len() <= bytes.len() / RECORD);
        let _ = positions.for_each(heights.end, &mut |height, stored| {
            assert_eq!(positions.read(height).expect("it was read"), stored);
            count += 1;
            Ok(())
        });
    }
    // There are no blocks, so nothing can be gone on with.
    for keep in 1..=count.min(3) {
        let folder = dir.join("blocks");
        let opened = BlockStore::open(&folder, &path, MAGIC, Obfuscation::NONE, 0..keep);
        assert!(opened.is_err(), "blocks that are not there");
    }
}

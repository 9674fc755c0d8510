//! An undo file, and the log of a growing `blocks` folder: never a panic, never more memory than the file has
//! bytes, undo data only if its checksum is right, and blocks only at their positions.
//!
//! Input: which of the two, whether the checksums are corrected, a position, then the bytes.
//!
//! Inputs: at most 4096 bytes.

#![no_main]

use apus_chain::BlockHash;
use apus_datadir::{BlockStore, Obfuscation, UndoFiles};
use apus_fuzz::{Input, write};
use bitcoin::hashes::{Hash, sha256, sha256d};
use libfuzzer_sys::fuzz_target;
use std::path::Path;

const MAGIC: [u8; 4] = [0xfa, 0xbf, 0xb5, 0xda];
const PREV: BlockHash = BlockHash([7; 32]);

/// Lengths of the log's head, of its records of blocks and of undo data, and of the check at their end.
const HEAD: usize = 24;
const BLOCK: usize = 105;
const UNDO: usize = 73;
const CHECK: usize = 8;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let (choice, place) = (input.u8(), u64::from(input.u16()));
    let dir = tempfile::tempdir().expect("a temporary folder");
    let bytes = input.rest().to_vec();
    if choice & 1 == 0 {
        undo(dir.path(), bytes, place, choice & 2 != 0);
    } else {
        log(dir.path(), bytes, choice & 2 != 0);
    }
});

fn undo(dir: &Path, mut bytes: Vec<u8>, place: u64, repair: bool) {
    if repair && bytes.len() >= 40 {
        // The file begins with a whole record.
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

fn log(dir: &Path, mut bytes: Vec<u8>, repair: bool) {
    let (folder, path) = (dir.join("blocks"), dir.join("log"));
    std::fs::create_dir(&folder).expect("a folder");
    let mut made = Made::default();
    if repair && bytes.len() >= HEAD {
        let head = [&b"APUSKEPT"[..], &2u32.to_le_bytes(), &MAGIC, &[0; 8]].concat();
        bytes[..HEAD].copy_from_slice(&head);
        made = Made::of(&mut bytes);
        write(&folder.join("xor.dat"), &[0; 8]);
        write(&folder.join("blk00000.dat"), &made.blocks);
        write(&folder.join("rev00000.dat"), &made.undo);
    }
    write(&path, &bytes);
    let opened = BlockStore::open(&folder, &path, MAGIC, Obfuscation::NONE, None);
    let Ok(store) = opened else {
        assert!(made.heads.is_empty() || made.is_wrong, "files that are as the log says");
        return;
    };
    // The store has everything that the log lists, or nothing.
    assert_eq!(store.block_count(), made.heads.len());
    assert!(!made.is_wrong, "a block or undo data twice");
    for (header, undo) in &made.heads {
        let hash = BlockHash(sha256d::Hash::hash(header).to_byte_array());
        let block = store.read(&hash).expect("it is where it is").expect("it is there");
        assert_eq!(&block[..80], header);
        assert_eq!(store.has_undo(&hash), *undo);
        assert_eq!(&store.stored(&hash).expect("it is listed").header, header);
    }
}

/// The files that a log lists.
#[derive(Default)]
struct Made {
    blocks: Vec<u8>,
    undo: Vec<u8>,
    /// Headers, and whether their blocks have undo data.
    heads: Vec<([u8; 80], bool)>,
    /// Something is listed twice, or undo data without its block.
    is_wrong: bool,
}

impl Made {
    /// Makes the records consistent, so that each follows the one before, and makes their files.
    fn of(log: &mut [u8]) -> Self {
        let (mut made, mut at) = (Self::default(), HEAD);
        loop {
            let length = match log.get(at) {
                Some(b'b') => BLOCK,
                Some(b'u') => UNDO,
                _ => return made,
            };
            let Some(record) = log.get_mut(at..at + length) else { return made };
            let body = &mut record[1..length - CHECK];
            match length {
                BLOCK => made.block(body),
                _ => made.undo(body),
            }
            let whole = [&(at as u64).to_le_bytes(), &record[..length - CHECK]].concat();
            let sum = sha256::Hash::hash(&whole).to_byte_array();
            record[length - CHECK..].copy_from_slice(&sum[..CHECK]);
            at += length;
        }
    }

    fn block(&mut self, body: &mut [u8]) {
        let header: [u8; 80] = body[..80].try_into().expect("80 bytes");
        let size = 80 + u32::from(body[92] % 64);
        let place = [1, 0, self.blocks.len() as u32 + 8, size];
        for (field, number) in body[80..].chunks_exact_mut(4).zip(place) {
            field.copy_from_slice(&number.to_le_bytes());
        }
        self.blocks.extend([&MAGIC, &size.to_le_bytes(), &header[..]].concat());
        self.blocks.resize(self.blocks.len() + size as usize - 80, 0);
        self.is_wrong |= self.heads.iter().any(|(known, _)| *known == header);
        self.heads.push((header, false));
    }

    fn undo(&mut self, body: &mut [u8]) {
        let size = u32::from(body[36] % 64);
        match self.heads.last_mut() {
            Some((header, undo)) => {
                body[..32].copy_from_slice(&sha256d::Hash::hash(header).to_byte_array());
                self.is_wrong |= *undo;
                *undo = true;
            }
            None => self.is_wrong = true,
        }
        body[32..36].copy_from_slice(&(self.undo.len() as u32 + 8).to_le_bytes());
        body[36..40].copy_from_slice(&size.to_le_bytes());
        self.undo.resize(self.undo.len() + size as usize + 40, 0);
    }
}

//! Benchmarks de-obfuscating and reading blocks against the naive way: byte by byte, block by block or field
//! by field. The files are in the page cache, so this measures CPU time.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_datadir::{BlockFiles, BlockLocation, BlockReader, Obfuscation};
use divan::counter::{BytesCount, ItemsCount};
use divan::{Bencher, black_box};
use std::fs::{self, File};
use std::io::{BufReader, Read, Seek, SeekFrom};
use std::ops::ControlFlow;
use std::path::{Path, PathBuf};
use tempfile::TempDir;

fn main() {
    divan::main();
}

const KEY: [u8; 8] = [0x9a, 0x3c, 0x01, 0xfe, 0x77, 0x10, 0xc4, 0x5b];
const MAGIC: [u8; 4] = [0xf9, 0xbe, 0xb4, 0xd9];

/// The lengths of a field, a page and a block.
const LENGTHS: [usize; 3] = [36, 4 << 10, 1 << 20];

mod obfuscation {
    use super::*;

    #[divan::bench(args = LENGTHS)]
    fn ours(bencher: Bencher, length: usize) {
        let key = Obfuscation::new(KEY);
        let mut bytes = vec![0x5a; length];
        let bencher = bencher.counter(BytesCount::new(length));
        bencher.bench_local(|| key.apply(black_box(&mut bytes), black_box(3)));
    }

    #[divan::bench(args = LENGTHS)]
    fn byte_by_byte(bencher: Bencher, length: usize) {
        let mut bytes = vec![0x5a; length];
        let bencher = bencher.counter(BytesCount::new(length));
        bencher.bench_local(|| plainly(black_box(&mut bytes), black_box(3)));
    }
}

/// The naive way: handles one byte at a time and counts the position in the key.
fn plainly(bytes: &mut [u8], file_offset: u64) {
    let mut at = (file_offset % 8) as usize;
    for byte in bytes {
        *byte ^= KEY[at];
        at = if at == 7 { 0 } else { at + 1 };
    }
}

/// A folder of obfuscated block files, and the positions of its blocks.
struct Folder {
    /// Removes the folder when dropped.
    _folder: TempDir,
    files: BlockFiles,
    places: Vec<(u32, BlockLocation)>,
    bytes: u64,
}

fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

impl Folder {
    /// 4,521 blocks of about 220 bytes, like the first blocks of the chain, or 8 blocks of today's size.
    fn new(kind: &str) -> Self {
        let mut plain = Vec::new();
        if kind == "early" {
            plain = fs::read(fixtures().join("main-4521/blocks/blk00000.dat")).unwrap();
        } else {
            for entry in fs::read_dir(fixtures().join("main-blocks")).unwrap() {
                let block = fs::read(entry.unwrap().path()).unwrap();
                if block.len() > 900_000 {
                    let length = (block.len() as u32).to_le_bytes();
                    let record = [&MAGIC[..], &length, &block].concat();
                    (0..4).for_each(|_| plain.extend_from_slice(&record));
                }
            }
        }
        let folder = tempfile::tempdir().unwrap();
        Obfuscation::new(KEY).apply(&mut plain, 0);
        fs::write(folder.path().join("blk00000.dat"), plain).unwrap();
        fs::write(folder.path().join("xor.dat"), KEY).unwrap();
        let files = BlockFiles::open(folder.path(), MAGIC).unwrap();
        let mut places = Vec::new();
        files
            .scan(&mut |_, place| {
                places.push((places.len() as u32, place));
                ControlFlow::Continue(())
            })
            .unwrap();
        let bytes = places.iter().map(|(_, place)| u64::from(place.size)).sum();
        Self { _folder: folder, files, places, bytes }
    }

    fn path(&self) -> PathBuf {
        self.files.dir().join("blk00000.dat")
    }

    fn measure(&self, bencher: Bencher, work: impl FnMut() -> u64) {
        let counted = bencher.counter(ItemsCount::new(self.places.len()));
        counted.counter(BytesCount::new(self.bytes)).bench_local(work);
    }
}

/// Reads all blocks of a file in order. An item is a block.
mod read_blocks {
    use super::*;

    const KINDS: [&str; 2] = ["early", "today"];

    /// Uses the smallest and the largest buffer of a sync's thread, in KiB.
    #[divan::bench(args = KINDS, consts = [256, 4096])]
    fn ours<const KIB: usize>(bencher: Bencher, kind: &str) {
        let folder = Folder::new(kind);
        let mut reader = BlockReader::new(&folder.files, KIB << 10);
        let mut wanted = folder.places.clone();
        folder.measure(bencher, || {
            let mut sum = 0;
            let mut each = |_: u32, _: BlockLocation, block: &[u8]| {
                sum += u64::from(black_box(block)[68]);
                ControlFlow::Continue(())
            };
            reader.read(&mut wanted, &mut each).unwrap();
            sum
        });
    }

    /// Opens a file, seeks and allocates for each block.
    #[divan::bench(args = KINDS)]
    fn block_by_block(bencher: Bencher, kind: &str) {
        let folder = Folder::new(kind);
        let (path, key) = (folder.path(), Obfuscation::new(KEY));
        folder.measure(bencher, || {
            let mut sum = 0;
            for (_, place) in &folder.places {
                let mut file = File::open(&path).unwrap();
                file.seek(SeekFrom::Start(place.offset)).unwrap();
                let mut block = vec![0; place.size as usize];
                file.read_exact(&mut block).unwrap();
                key.apply(&mut block, place.offset);
                sum += u64::from(black_box(&block)[68]);
            }
            sum
        });
    }

    /// Reads fields of 36 bytes through a one-page buffer and de-obfuscates each on its own, like
    /// deserializing from a stream.
    #[divan::bench(args = KINDS)]
    fn field_by_field(bencher: Bencher, kind: &str) {
        let folder = Folder::new(kind);
        let (path, key) = (folder.path(), Obfuscation::new(KEY));
        folder.measure(bencher, || {
            let mut sum = 0;
            for (_, place) in &folder.places {
                let mut file = File::open(&path).unwrap();
                file.seek(SeekFrom::Start(place.offset)).unwrap();
                let mut file = BufReader::with_capacity(4 << 10, file);
                let (mut at, end) = (place.offset, place.offset + u64::from(place.size));
                while at < end {
                    let mut field = [0; 36];
                    let field = &mut field[..(end - at).min(36) as usize];
                    file.read_exact(field).unwrap();
                    key.apply(field, at);
                    sum += u64::from(black_box(&*field)[0]);
                    at += field.len() as u64;
                }
            }
            sum
        });
    }
}

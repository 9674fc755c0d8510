//! Two readers of LevelDB that share no code with the product: one reads every entry through the library
//! `rusty-leveldb`, the other reads by hand how the tables' blocks are stored.

use rusty_leveldb::{DB, LdbIterator, Options};
use std::collections::BTreeMap;
use std::fs;
use std::path::Path;

/// Keys and values.
pub(crate) type Entries = BTreeMap<Vec<u8>, Vec<u8>>;

/// The last bytes of a table's footer.
const TABLE_MAGIC: [u8; 8] = 0xdb47_7524_8b80_fb57_u64.to_le_bytes();
const FOOTER_SIZE: usize = 48;
/// Bytes after a block: the kind of compression, and a checksum.
const TRAILER_SIZE: usize = 5;

/// Reads all entries of the database in `folder`, from a copy, since the library changes what it opens.
pub(crate) fn entries(folder: &Path) -> Entries {
    let copy = tempfile::tempdir().unwrap();
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        fs::copy(&path, copy.path().join(path.file_name().unwrap())).unwrap();
    }
    let options = Options { create_if_missing: false, paranoid_checks: true, ..Options::default() };
    let mut database = DB::open(copy.path(), options).unwrap();
    let mut iterator = database.new_iter().unwrap();
    let mut entries = Entries::new();
    while let Some((key, value)) = iterator.next() {
        assert_eq!(entries.insert(key, value), None, "a duplicate key");
    }
    entries
}

/// Expects that no block of any table is compressed: a node's LevelDB could not read it, and would corrupt the
/// database in the attempt. Returns the number of blocks.
pub(crate) fn expect_uncompressed(folder: &Path) -> usize {
    let mut blocks = 0;
    for entry in fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        if path.extension().is_some_and(|extension| extension == "ldb") {
            blocks += uncompressed_blocks(&fs::read(&path).unwrap());
        }
    }
    blocks
}

fn uncompressed_blocks(table: &[u8]) -> usize {
    let (rest, magic) = table.split_at(table.len() - TABLE_MAGIC.len());
    assert_eq!(magic, TABLE_MAGIC);
    let mut footer = &rest[rest.len() - (FOOTER_SIZE - TABLE_MAGIC.len())..];
    let mut blocks = 0;
    // The footer names two blocks, which have the positions of the others.
    for _ in 0..2 {
        let named = block(table, &mut footer);
        blocks += 1;
        for mut value in values(named) {
            block(table, &mut value);
            blocks += 1;
        }
    }
    blocks
}

/// Reads a position from `handle`; returns the block there.
fn block<'a>(table: &'a [u8], handle: &mut &[u8]) -> &'a [u8] {
    let offset = varint(handle);
    let end = offset + varint(handle);
    assert_eq!(table[end], 0, "the block at {offset} is compressed");
    assert!(end + TRAILER_SIZE <= table.len());
    &table[offset..end]
}

/// The values of a block's entries.
fn values(block: &[u8]) -> Vec<&[u8]> {
    let restarts = u32::from_le_bytes(block[block.len() - 4..].try_into().unwrap()) as usize;
    let mut left = &block[..block.len() - 4 * (restarts + 1)];
    let mut values = Vec::new();
    while !left.is_empty() {
        let (_shared, apart, length) = (varint(&mut left), varint(&mut left), varint(&mut left));
        values.push(&left[apart..apart + length]);
        left = &left[apart + length..];
    }
    values
}

/// Reads LevelDB's variable-length number, least significant seven bits first.
fn varint(bytes: &mut &[u8]) -> usize {
    let (mut number, mut shift) = (0, 0);
    loop {
        let (first, rest) = bytes.split_first().unwrap();
        *bytes = rest;
        number |= usize::from(first & 0x7f) << shift;
        shift += 7;
        if first & 0x80 == 0 {
            return number;
        }
    }
}

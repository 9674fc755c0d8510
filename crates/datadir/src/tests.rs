//! Helpers for this crate's tests: synthetic blocks, real blocks, folders of block files.

use crate::files::{BlockFiles, BlockLocation, Obfuscation};
use crate::index::{IndexEntry, read_index};
use crate::store::SpentCoins;
use apus_chain::{CoinSum, CoinSumKey, KeyedCoinSum, Network, write_compact_size};
use core::ops::ControlFlow;
use std::fs;
use std::path::{Path, PathBuf};

/// The magic of all synthetic files.
pub(crate) const MAGIC: [u8; 4] = Network::Regtest.magic();

/// A key with eight different bytes, so that no mistake goes unnoticed.
pub(crate) const KEY: [u8; 8] = [0x68, 0x44, 0xbe, 0x81, 0x9b, 0x4e, 0xbc, 0xbf];

/// Made-up coins for a block with this undo data; the sum only identifies the undo data.
pub(crate) fn spends(undo: &[u8]) -> SpentCoins<'_> {
    let [a, b, c, d, e, f, g, h, ..] = apus_hash::sha256(undo);
    let (key, sum) = (CoinSumKey::new([a; 16]), CoinSum::from_bytes([a, b, c, d, e, f, g, h]));
    SpentCoins { undo, sum: KeyedCoinSum { key, sum } }
}
pub(crate) fn fixtures() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures")
}

/// Makes a block with a valid outline and nothing else: its header begins with `seed`, every transaction has
/// one input and one output, and every other one has a witness.
pub(crate) fn synthetic_block(seed: u32, txs: usize, script: usize) -> Vec<u8> {
    let mut block = seed.to_le_bytes().to_vec();
    block.resize(80, 0x11);
    write_compact_size(&mut block, txs as u64);
    for tx in 0..txs {
        let has_witness = tx % 2 == 1;
        block.extend_from_slice(&2u32.to_le_bytes());
        if has_witness {
            block.extend_from_slice(&[0, 1]);
        }
        block.push(1);
        block.extend_from_slice(&[0x22; 36]);
        block.extend_from_slice(&[1, 0x51, 0xff, 0xff, 0xff, 0xff]);
        block.push(1);
        block.extend_from_slice(&5_000u64.to_le_bytes());
        write_compact_size(&mut block, script as u64);
        block.resize(block.len() + script, 0x33);
        if has_witness {
            block.extend_from_slice(&[1, 2, 0x44, 0x44]);
        }
        block.extend_from_slice(&[0; 4]);
    }
    block
}

/// Reads all block entries of an index, in key order.
pub(crate) fn index_entries(blocksdir: &Path) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    let read = read_index(blocksdir, &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    read.unwrap();
    entries
}

/// Appends a record; returns the position of its block in file 0.
pub(crate) fn push_record(out: &mut Vec<u8>, magic: [u8; 4], block: &[u8]) -> BlockLocation {
    push_record_of_size(out, magic, block, block.len() as u32)
}

/// Appends a record that claims `size`, regardless of the length of `block`.
pub(crate) fn push_record_of_size(
    out: &mut Vec<u8>,
    magic: [u8; 4],
    block: &[u8],
    size: u32,
) -> BlockLocation {
    out.extend_from_slice(&magic);
    out.extend_from_slice(&size.to_le_bytes());
    let offset = out.len() as u64;
    out.extend_from_slice(block);
    BlockLocation { file: 0, offset, size }
}

/// Makes a folder with these files, numbered from 0, and `zeros` preallocated bytes in each.
pub(crate) fn block_folder(
    key: Option<[u8; 8]>,
    contents: &[&[u8]],
    zeros: usize,
) -> (tempfile::TempDir, BlockFiles) {
    let dir = tempfile::tempdir().unwrap();
    if let Some(key) = key {
        fs::write(dir.path().join("xor.dat"), key).unwrap();
    }
    for (number, plain) in contents.iter().enumerate() {
        let mut bytes = plain.to_vec();
        Obfuscation::new(key.unwrap_or_default()).apply(&mut bytes, 0);
        bytes.resize(bytes.len() + zeros, 0);
        fs::write(dir.path().join(format!("blk{number:05}.dat")), bytes).unwrap();
    }
    let files = BlockFiles::open(dir.path(), MAGIC).unwrap();
    (dir, files)
}

/// Reads real blocks of the main chain, by file name.
pub(crate) fn fixture_blocks() -> Vec<(String, Vec<u8>)> {
    let mut blocks = Vec::new();
    for folder in ["main-blocks", "main-fork"] {
        for entry in fs::read_dir(fixtures().join(folder)).unwrap() {
            let path = entry.unwrap().path();
            if path.extension().is_some_and(|ending| ending == "raw") {
                let name = path.file_name().unwrap().to_string_lossy().into_owned();
                blocks.push((name, fs::read(&path).unwrap()));
            }
        }
    }
    assert!(blocks.len() >= 14);
    blocks
}

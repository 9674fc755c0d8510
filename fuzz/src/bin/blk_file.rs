//! Block files: whatever they contain, every block that a scan finds is at the reported position.
//!
//! Input: switches, a key, then the bytes of a file as they lie on disk.
//!
//! Inputs: at most 20000 bytes.

#![no_main]

use apus_chain::Network;
use apus_datadir::{BlkError, BlockFiles, BlockLocation, BlockReader};
use apus_fuzz::{Input, folder};
use libfuzzer_sys::fuzz_target;
use std::ops::ControlFlow;

const NAMES: [&str; 2] = ["blk00000.dat", "blk00001.dat"];

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let switches = input.u8();
    let key: [u8; 8] = if switches & 1 != 0 { input.array() } else { [0; 8] };
    let buffer_bytes = usize::from(input.u16());
    let mut disk = input.rest().to_vec();
    if switches & 2 != 0 {
        apply(&key, &mut disk, 0);
    }
    if switches & 4 != 0 {
        disk.resize(disk.len() + 5_000, 0);
    }
    let network = Network::ALL[usize::from(switches >> 4) % Network::ALL.len()];
    let half = if switches & 8 != 0 { disk.len() / 2 } else { disk.len() };
    let halves = disk.split_at(half);
    let dir = folder([("xor.dat", &key[..]), (NAMES[0], halves.0), (NAMES[1], halves.1)]);
    let files = BlockFiles::open(dir.path(), network.magic()).expect("a folder of block files");

    let mut found: Vec<(BlockLocation, [u8; 80])> = Vec::new();
    let scanned = files.scan(&mut |header, location| {
        found.push((location, *header));
        ControlFlow::Continue(())
    });
    match scanned {
        Ok(summary) => assert_eq!(summary.records, found.len() as u64),
        Err(BlkError::NoBlocks { .. } | BlkError::WrongChain { .. }) => assert!(found.is_empty()),
        Err(error) => panic!("a regular file can be scanned: {error}"),
    }
    for pair in found.windows(2) {
        let (before, after) = (pair[0].0, pair[1].0);
        let apart = before.file < after.file || before.end() + 8 <= after.offset;
        assert!(apart, "{before:?} and {after:?} overlap");
    }
    let plain = [halves.0, halves.1].map(|bytes| {
        let mut plain = bytes.to_vec();
        apply(&key, &mut plain, 0);
        plain
    });
    let sound: Vec<_> = sound_records(&plain[0], network.magic()).collect();
    let places: Vec<_> = found.iter().map(|(place, _)| (place.offset, place.size)).collect();
    assert!(places.starts_with(&sound), "{sound:?} were not all found: {places:?}");
    check_read(&files, buffer_bytes, &found, &plain);
});

/// Returns offset and size of the blocks at a file's start that are directly followed by another record.
fn sound_records(file: &[u8], magic: [u8; 4]) -> impl Iterator<Item = (u64, u32)> {
    let mut at = 0;
    std::iter::from_fn(move || {
        let head: [u8; 8] = *file.get(at..)?.first_chunk()?;
        let size = u32::from_le_bytes([head[4], head[5], head[6], head[7]]);
        let end = at + 8 + size as usize;
        let sound = head[..4] == magic
            && (80..=4_000_000).contains(&size)
            && file.get(end..)?.starts_with(&magic);
        let offset = at as u64 + 8;
        at = end;
        sound.then_some((offset, size))
    })
}

/// Checks that the block at every position found can be read, and equals the bytes on disk under the key.
fn check_read(
    files: &BlockFiles,
    buffer_bytes: usize,
    found: &[(BlockLocation, [u8; 80])],
    plain: &[Vec<u8>],
) {
    let mut wanted: Vec<_> = (0..).zip(found).map(|(key, (place, _))| (key, *place)).collect();
    let mut count = 0;
    let read = BlockReader::new(files, buffer_bytes).read(&mut wanted, &mut |key, place, block| {
        assert_eq!(place, found[key as usize].0);
        assert!((80..=4_000_000).contains(&block.len()));
        let file = &plain[place.file as usize];
        assert!(block == &file[place.offset as usize..place.end() as usize]);
        assert!(block.starts_with(&found[key as usize].1));
        // If a block revealed its own size, the record has another one.
        let located = files.locate(place.file, place.offset).expect("the file is there");
        let stated =
            file[place.offset as usize - 4..].first_chunk().map(|n| u32::from_le_bytes(*n));
        assert!(located == Some(place) || stated != Some(place.size));
        count += 1;
        ControlFlow::Continue(())
    });
    assert!(read.is_ok() && count == found.len());
}

fn apply(key: &[u8; 8], bytes: &mut [u8], offset: usize) {
    for (at, byte) in (offset..).zip(bytes) {
        *byte ^= key[at % 8];
    }
}

//! Valid and damaged proof files are read or refused.

use super::*;
use crate::NodeHash;
use crc32c::{crc32c, crc32c_append};
use proptest::prelude::*;
use std::io::{Cursor, ErrorKind};

fn roots(leaves: u64, byte: u8) -> Roots {
    let hashes = (0..leaves.count_ones()).map(|index| NodeHash([byte + index as u8; 32]));
    Roots { leaves, hashes: hashes.collect() }
}

fn head(first: Height, leaves: u64) -> RangeHead {
    RangeHead { network: [1, 2, 3, 4], first, before: BlockHash([9; 32]), roots: roots(leaves, 1) }
}

/// The number of leaves after a block; the last block reaches the number in `after`.
fn leaves_after(head: &RangeHead, blocks: usize, after: &Roots, index: usize) -> u64 {
    if index + 1 == blocks {
        after.leaves
    } else {
        (head.roots.leaves + index as u64).min(after.leaves)
    }
}

fn write(head: &RangeHead, entries: &[Vec<u8>], after: &Roots) -> Vec<u8> {
    let mut writer = RangeWriter::new(Vec::new(), head).unwrap();
    for (index, entry) in entries.iter().enumerate() {
        let leaves = leaves_after(head, entries.len(), after, index);
        writer.put(&BlockHash([index as u8; 32]), leaves, entry).unwrap();
    }
    writer.finish(after).unwrap()
}

fn open(bytes: &[u8]) -> Result<RangeFile<Cursor<&[u8]>>, RangeFileError> {
    RangeFile::open(Cursor::new(bytes))
}

/// Opens the file and reads all of it.
fn read_all(bytes: &[u8]) -> Result<Vec<Vec<u8>>, RangeFileError> {
    let mut file = open(bytes)?;
    let heights = file.heights().heights();
    heights
        .map(|height| {
            let mut entry = vec![1, 2, 3];
            file.entry(height, &mut entry).map(|()| entry)
        })
        .collect()
}

/// A file of three entries; the tail begins at byte 103.
fn example() -> Vec<u8> {
    write(&head(7, 1), &[vec![5; 2], vec![], vec![6; 1]], &roots(3, 8))
}

/// Recomputes the checksum of a changed file.
fn resealed(mut bytes: Vec<u8>) -> Vec<u8> {
    let foot = bytes.len() - FOOT_BYTES;
    let (head, tail) = (HEAD_BYTES + 16 + 32, foot - 16 - 2 * 32 - 3 * RECORD_BYTES);
    let crc = crc32c_append(crc32c(&bytes[..head]), &bytes[tail..foot + 12]);
    bytes[foot + 12..foot + 16].copy_from_slice(&crc.to_le_bytes());
    bytes
}

/// The error message for a changed file.
fn refused(change: impl FnOnce(&mut Vec<u8>)) -> String {
    let mut bytes = example();
    change(&mut bytes);
    open(&resealed(bytes)).unwrap_err().to_string()
}

proptest! {
    #[test]
    fn files_round_trip(
        first in 1u32..COIN_HEIGHT_MAX - 8,
        leaves: (u64, u64),
        entries in prop::collection::vec(prop::collection::vec(any::<u8>(), 0..70), 1..6),
    ) {
        let (before, after) = (leaves.0.min(leaves.1), leaves.0.max(leaves.1));
        let (head, after) = (head(first, before >> 1), roots(after >> 1, 7));
        let bytes = write(&head, &entries, &after);
        let mut file = open(&bytes).unwrap();
        prop_assert_eq!(file.head(), &head);
        prop_assert_eq!(file.after(), &after);
        prop_assert_eq!(file.heights(), HeightRange::new(first, first + entries.len() as u32));
        for (index, entry) in entries.iter().enumerate().rev() {
            let (height, mut found) = (first + index as u32, vec![0; 3]);
            file.entry(height, &mut found).unwrap();
            prop_assert_eq!(&found, entry);
            let block = file.block(height).unwrap();
            prop_assert_eq!((block.hash, block.length), (BlockHash([index as u8; 32]), entry.len() as u32));
            let leaves = leaves_after(&head, entries.len(), &after, index);
            prop_assert_eq!(block.leaves_after, leaves);
        }
        for height in [first - 1, file.heights().end] {
            let refused = file.entry(height, &mut vec![]);
            prop_assert!(matches!(refused, Err(RangeFileError::NoBlock { .. })), "{refused:?}");
            prop_assert!(file.block(height).is_none());
        }
    }

    #[test]
    fn arbitrary_bytes_never_panic(
        bytes in prop::collection::vec(any::<u8>(), 0..400),
        tail: (u8, u8), blocks in 0u32..4,
    ) {
        prop_assert!(open(&bytes).is_err());
        let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &bytes].concat();
        bytes.extend([u64::from(tail.0) + u64::from(tail.1 & 1) * 256].map(u64::to_le_bytes)[0]);
        bytes.extend(blocks.to_le_bytes());
        bytes.extend([0; 4]);
        bytes.extend(END_MAGIC);
        prop_assert!(open(&bytes).is_err());
    }

    #[test]
    fn names_round_trip(start in 0u32..100_000_000, count in 1u32..100_000_000) {
        let end = (start + count).min(99_999_999);
        prop_assume!(start < end);
        let range = HeightRange::new(start, end);
        prop_assert_eq!(range_of_name(&range_file_name(range)), Some(range));
    }
}

#[test]
fn flipped_bits_and_missing_bytes_are_errors() {
    let bytes = example();
    assert_eq!(read_all(&bytes).unwrap(), [vec![5; 2], vec![], vec![6; 1]]);
    for end in 0..bytes.len() {
        assert!(open(&bytes[..end]).is_err(), "{end}");
        let without = [&bytes[..end], &bytes[end + 1..]].concat();
        assert!(read_all(&without).is_err(), "{end}");
    }
    for bit in 0..bytes.len() * 8 {
        let mut flipped = bytes.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        assert!(read_all(&flipped).is_err(), "bit {bit}");
    }
    assert!(open(&[&bytes[..], &[0]].concat()).is_err());
}

#[test]
fn errors_name_the_fault_and_its_offset() {
    let error = |bytes: &[u8]| read_all(bytes).unwrap_err().to_string();
    let bytes = example();
    let short = "a file of 100 bytes is not a proof file: it needs at least 164";
    assert_eq!(error(&bytes[..100]), short);
    let mut damaged = bytes.clone();
    damaged[100] ^= 1;
    assert_eq!(
        error(&damaged),
        "the entry of block 7 is damaged: wrong checksum for 2 bytes at byte 100"
    );
    let mut damaged = bytes.clone();
    damaged[20] ^= 1;
    let offset = bytes.len() - 12;
    assert_eq!(
        error(&damaged),
        format!("the head, tail or foot of the file is damaged: wrong checksum at byte {offset}")
    );
    assert!(
        refused(|bytes| bytes[0] = 0)
            .contains("wrong magic [00, 50, 55, 53, 50, 52, 46, 0a] at byte 0")
    );
    let end = bytes.len() - 8;
    assert!(refused(|bytes| bytes[end] = 1).contains(&format!("] at byte {end}")));
    assert_eq!(
        refused(|bytes| bytes[8] = 2),
        "unknown version 2 at byte 8: only version 1 is supported"
    );
}

#[test]
fn fields_with_right_checksums_are_checked_against_each_other() {
    let foot = example().len() - FOOT_BYTES;
    let heights =
        |first: u32| refused(move |bytes| bytes[16..20].copy_from_slice(&first.to_le_bytes()));
    assert!(heights(0).starts_with("3 blocks from height 0 on are invalid"), "{}", heights(0));
    assert!(heights(COIN_HEIGHT_MAX - 1).contains("are invalid for a proof file"));
    assert!(heights(u32::MAX).contains("are invalid for a proof file"));
    let edge = [16, COIN_HEIGHT_MAX - 2];
    let mut bytes = example();
    bytes[16..20].copy_from_slice(&edge[1].to_le_bytes());
    assert!(open(&resealed(bytes)).is_ok());
    let tail = refused(|bytes| bytes[foot + 8] = 5);
    assert_eq!(tail, "the tail of 5 blocks cannot begin at byte 103");
    assert!(refused(|bytes| bytes[foot + 7] = 1).starts_with("the tail of 3 blocks cannot begin"));
    let roots = refused(|bytes| bytes[60] = 2);
    assert!(roots.starts_with("invalid roots at byte 52: a forest of 1 leaves"), "{roots}");
    let huge = refused(|bytes| bytes[60..68].fill(0xff));
    assert!(huge.starts_with("invalid roots at byte 52"), "{huge}");
    let roots = refused(|bytes| bytes[103 + 3 * 56] = 1);
    assert!(roots.starts_with("invalid roots at byte 271"), "{roots}");
    // The first entry begins too early and too late; the last ends before the tail and in it.
    for (byte, value) in [(143, 99), (143, 101)] {
        let entry = refused(|bytes| bytes[byte] = value);
        assert_eq!(entry, format!("the entry of block 7 cannot have 2 bytes at byte {value}"));
    }
    for value in [0, 2] {
        let entry = refused(|bytes| bytes[103 + 2 * 56 + 48] = value);
        assert_eq!(entry, format!("the entry of block 9 cannot have {value} bytes at byte 102"));
    }
    // Fewer leaves than before the file or than after the block before, more than at the end, and another
    // number at the end.
    for (block, leaves, before) in
        [(7, 0, 1), (8, 0, 1), (8, 4, 1), (9, 1, 2), (9, 2, 2), (9, 4, 2)]
    {
        let error = refused(|bytes| bytes[103 + 56 * (block - 7) + 32] = leaves);
        let cannot = format!(
            "block {block} cannot have {leaves} leaves after it: there are {before} before it, and 3 after \
             the last block"
        );
        assert_eq!(error, cannot);
    }
    // An entry that overlaps the ones after it.
    let entry = refused(|bytes| bytes[151] = 3);
    assert_eq!(entry, "the entry of block 8 cannot have 0 bytes at byte 102");
    let entry = refused(|bytes| bytes[151] = 4);
    assert_eq!(entry, "the entry of block 7 cannot have 4 bytes at byte 100");
}

/// Found by the fuzzer: a range that ends before it begins.
#[test]
fn an_empty_range_from_height_0_is_invalid() {
    let mut bytes = [&MAGIC[..], &VERSION.to_le_bytes(), &[0; 40 + 16 + 72]].concat();
    bytes.extend((HEAD_BYTES as u64 + 16).to_le_bytes());
    bytes.extend([0; 8]);
    bytes.extend(END_MAGIC);
    let error = open(&bytes).unwrap_err().to_string();
    assert!(error.starts_with("0 blocks from height 0 on are invalid"), "{error}");
    assert_eq!(heights(0, 0), None);
}

/// A file that claims any length and reads as endless zeros.
struct Endless(u64, u64);

impl std::io::Read for Endless {
    fn read(&mut self, out: &mut [u8]) -> std::io::Result<usize> {
        out.fill(0);
        Ok(out.len())
    }
}

impl std::io::Seek for Endless {
    fn seek(&mut self, to: std::io::SeekFrom) -> std::io::Result<u64> {
        self.1 = match to {
            std::io::SeekFrom::Start(at) => at,
            std::io::SeekFrom::End(_) => self.0,
            std::io::SeekFrom::Current(_) => self.1,
        };
        Ok(self.1)
    }
}

#[test]
fn endless_files_take_no_memory() {
    assert!(RangeFile::open(Endless(u64::MAX, 0)).is_err());
    let foot = |tail: u64, blocks: u32| {
        let mut bytes = example();
        let foot = bytes.len() - FOOT_BYTES;
        bytes[foot..foot + 8].copy_from_slice(&tail.to_le_bytes());
        bytes[foot + 8..foot + 12].copy_from_slice(&blocks.to_le_bytes());
        open(&bytes).unwrap_err()
    };
    for (tail, blocks) in [(0, u32::MAX), (u64::MAX, 1), (0, RANGE_BLOCKS_MAX + 1), (0, 0), (60, 4)]
    {
        assert!(matches!(foot(tail, blocks), RangeFileError::Tail { .. }), "{tail} {blocks}");
    }
}

#[test]
fn a_writer_refuses_the_same_as_a_reader() {
    let kind = |result: std::io::Result<_>| result.map(|_: Vec<u8>| ()).unwrap_err().kind();
    for first in [0, COIN_HEIGHT_MAX + 1, u32::MAX] {
        let writer = RangeWriter::new(Vec::new(), &head(first, 0));
        assert_eq!(writer.unwrap_err().kind(), ErrorKind::InvalidInput, "{first}");
    }
    let writer = RangeWriter::new(Vec::new(), &head(1, 0)).unwrap();
    assert_eq!(kind(writer.finish(&roots(0, 0))), ErrorKind::InvalidInput);
    let mut writer = RangeWriter::new(Vec::new(), &head(COIN_HEIGHT_MAX, 0)).unwrap();
    assert_eq!(writer.bytes(), 68);
    writer.put(&BlockHash([0; 32]), 0, &[1, 2]).unwrap();
    assert_eq!(writer.bytes(), 70);
    let refused = writer.put(&BlockHash([0; 32]), 0, &[]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    let mut writer = RangeWriter::new(Vec::new(), &head(1, 2)).unwrap();
    let refused = writer.put(&BlockHash([0; 32]), 1, &[]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    writer.put(&BlockHash([0; 32]), 2, &[]).unwrap();
    assert_eq!(kind(writer.finish(&roots(3, 0))), ErrorKind::InvalidInput);
    let mut writer = RangeWriter::new(std::io::sink(), &head(1, 0)).unwrap();
    let long = vec![0; ENTRY_BYTES_MAX as usize + 1];
    let refused = writer.put(&BlockHash([0; 32]), 0, &long);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
    for _ in 0..RANGE_BLOCKS_MAX {
        writer.put(&BlockHash([0; 32]), 0, &[]).unwrap();
    }
    let refused = writer.put(&BlockHash([0; 32]), 0, &[]);
    assert_eq!(refused.unwrap_err().kind(), ErrorKind::InvalidInput);
}

#[test]
fn other_names_are_invalid() {
    let range = HeightRange::new(1, 900_001);
    assert_eq!(range_file_name(range), "proofs-00000001-00900001.dat");
    for name in [
        "proofs-1-900001.dat",
        "proofs-00000001-00000001.dat",
        "proofs-00000002-00000001.dat",
        "proofs-+0000001-00900001.dat",
        "proofs-00000001-00900001.dat.tmp",
        "xproofs-00000001-00900001.dat",
        "proofs-00000001_00900001.dat",
        "proofs-000000001-00900001.dat",
        "proofs-00000001-00900001",
        "",
    ] {
        assert_eq!(range_of_name(name), None, "{name}");
    }
}

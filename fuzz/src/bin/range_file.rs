//! Files of proofs: an accepted file is written back from its parts, byte for byte; an entry is returned only
//! if its checksum is right. If the first byte is odd, the checksums are corrected first.
//!
//! Inputs: at most 4096 bytes.

#![no_main]

use apus_fuzz::Input;
use apus_utreexo::{RangeFile, RangeFileError, RangeWriter};
use libfuzzer_sys::fuzz_target;
use std::io::Cursor;

/// Bytes of the head before the roots, of a block's record in the tail, and of the foot.
const HEAD: usize = 52;
const RECORD: usize = 56;
const FOOT: usize = 24;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let is_repaired = input.u8() % 2 == 1;
    let mut bytes = input.rest().to_vec();
    if is_repaired {
        repair(&mut bytes);
    }
    let Ok(mut file) = RangeFile::open(Cursor::new(&bytes)) else { return };
    let heights = file.heights();
    assert_eq!(heights.count() as usize, file.blocks().len());
    let mut writer = RangeWriter::new(Vec::new(), file.head()).expect("memory takes anything");
    let (mut entry, mut all) = (Vec::new(), true);
    for height in heights.heights() {
        let block = *file.block(height).expect("one of its heights");
        match file.entry(height, &mut entry) {
            Ok(()) => {
                let from = block.offset as usize;
                assert_eq!(entry, bytes[from..from + block.length as usize]);
                writer.put(&block.hash, block.leaves_after, &entry).expect("memory takes anything");
            }
            Err(RangeFileError::EntryChecksum { .. }) => all = false,
            Err(error) => panic!("{error}"),
        }
    }
    assert!(all || !is_repaired, "a corrected checksum is refused");
    assert!(file.block(heights.end).is_none());
    if all {
        let again = writer.finish(file.after()).expect("memory takes anything");
        assert_eq!(again, bytes);
    }
});

/// Corrects the checksums, as far as the fields locate them.
fn repair(bytes: &mut [u8]) -> Option<()> {
    let foot = bytes.len().checked_sub(FOOT)?;
    let number = |bytes: &[u8], at: usize| {
        Some(usize::try_from(u64::from_le_bytes(*bytes.get(at..)?.first_chunk()?)).ok()?)
    };
    let half = |bytes: &[u8], at: usize| {
        Some(u32::from_le_bytes(*bytes.get(at..)?.first_chunk()?) as usize)
    };
    let (tail, blocks) = (number(bytes, foot)?, half(bytes, foot + 8)?);
    for block in 0..blocks {
        let record = tail.checked_add(block.checked_mul(RECORD)?)?;
        if record.checked_add(RECORD)? > foot {
            break;
        }
        let (offset, length) = (number(bytes, record + 40)?, half(bytes, record + 48)?);
        if let Some(entry) = bytes.get(offset..offset.saturating_add(length)) {
            let crc = crc32c::crc32c(entry);
            bytes[record + 52..record + 56].copy_from_slice(&crc.to_le_bytes());
        }
    }
    let head = HEAD.checked_add(number(bytes, HEAD + 8)?.checked_mul(32)?)?.checked_add(16)?;
    let crc = crc32c::crc32c(bytes.get(..head)?);
    let crc = crc32c::crc32c_append(crc, bytes.get(tail..foot)?);
    let crc = crc32c::crc32c_append(crc, &bytes[foot..foot + 12]);
    bytes[foot + 12..foot + 16].copy_from_slice(&crc.to_le_bytes());
    Some(())
}

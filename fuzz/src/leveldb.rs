//! Corrects the checksums of damaged LevelDB files, so that the data is read.

use std::ops::Range;

/// Repairs a file that is a table or, by its name, a log.
pub fn repair(name: &str, bytes: &mut [u8]) {
    if name.ends_with(".ldb") {
        repair_table(bytes);
    } else {
        repair_log(bytes);
    }
}

/// Returns the manifest of a database with these tables, by number and length. No key is below the tables'
/// smallest key.
pub fn manifest(log_number: u8, tables: &[(u8, usize)]) -> Vec<u8> {
    let comparator = b"leveldb.BytewiseComparator";
    let mut edit = vec![1, comparator.len() as u8];
    edit.extend(comparator);
    edit.extend([2, log_number]);
    for &(number, length) in tables {
        edit.extend([7, 0, number]);
        // Seven bits a byte; the last one is not marked.
        edit.extend([length | 0x80, length >> 7 | 0x80, length >> 14].map(|group| group as u8));
        // A key of eight bytes is an empty one with its sequence number.
        edit.extend([[8].as_slice(), &[0xff; 8], &[8], &[0; 8]].concat());
    }
    let [low, high] = (edit.len() as u16).to_le_bytes();
    let mut log = vec![0, 0, 0, 0, low, high, 1];
    log.extend(edit);
    repair_log(&mut log);
    log
}

/// Repairs a log's records. Checksum, length and kind precede each, and none crosses a block of 32 KiB.
fn repair_log(bytes: &mut [u8]) {
    for block in bytes.chunks_mut(32 << 10) {
        let mut at = 0;
        while let Some(&[_, _, _, _, low, high, _]) = block.get(at..at + 7) {
            let end = at + 7 + usize::from(u16::from_le_bytes([low, high]));
            let Some(record) = block.get_mut(at..end) else { break };
            let sum = masked(&record[6..]);
            record[..4].copy_from_slice(&sum);
            at = end;
        }
    }
}

/// Repairs a table: its footer locates the index, whose values locate the blocks of entries.
fn repair_table(bytes: &mut [u8]) {
    let Some(footer) = bytes.len().checked_sub(48) else { return };
    let mut at = footer;
    let (_, index) = (handle(bytes, &mut at), handle(bytes, &mut at));
    let Some(index) = index else { return };
    for block in values(bytes, index.clone()) {
        seal(bytes, block);
    }
    seal(bytes, index);
}

/// Returns the positions in an index block's values.
fn values(bytes: &[u8], index: Range<usize>) -> Vec<Range<usize>> {
    let mut blocks = Vec::new();
    // The block ends with restart points of four bytes each, and their count.
    let Some((rest, count)) = bytes.get(index).and_then(|index| index.split_last_chunk()) else {
        return blocks;
    };
    let restarts = u32::from_le_bytes(*count) as usize * 4;
    let index = &rest[..rest.len().saturating_sub(restarts)];
    let mut at = 0;
    while let (Some(_), Some(own), Some(length)) =
        (varint(index, &mut at), varint(index, &mut at), varint(index, &mut at))
    {
        let Some(value) = at.checked_add(own) else { break };
        let mut inside = value;
        blocks.extend(handle(index, &mut inside));
        let Some(next) = value.checked_add(length).filter(|next| *next < index.len()) else {
            break;
        };
        at = next;
    }
    blocks
}

/// Corrects the trailer of a block: the kind of compression, and a checksum of both.
fn seal(bytes: &mut [u8], block: Range<usize>) {
    let Some(end) = block.end.checked_add(5) else { return };
    if let Some(whole) = bytes.get_mut(block.start..end) {
        let (body, sum) = whole.split_at_mut(whole.len() - 4);
        sum.copy_from_slice(&masked(body));
    }
}

fn handle(bytes: &[u8], at: &mut usize) -> Option<Range<usize>> {
    let (offset, size) = (varint(bytes, at)?, varint(bytes, at)?);
    Some(offset..offset.checked_add(size)?)
}

fn varint(bytes: &[u8], at: &mut usize) -> Option<usize> {
    let mut value = 0usize;
    for shift in (0..63).step_by(7) {
        let byte = *bytes.get(*at)?;
        *at += 1;
        value |= usize::from(byte & 0x7f) << shift;
        if byte < 0x80 {
            return Some(value);
        }
    }
    None
}

/// Computes the CRC-32C (Castagnoli), masked as LevelDB does.
fn masked(bytes: &[u8]) -> [u8; 4] {
    let mut sum = u32::MAX;
    for byte in bytes {
        sum ^= u32::from(*byte);
        for _ in 0..8 {
            sum = if sum & 1 == 1 { (sum >> 1) ^ 0x82f6_3b78 } else { sum >> 1 };
        }
    }
    (!sum).rotate_right(15).wrapping_add(0xa282_ead8).to_le_bytes()
}

//! Signature hints. A table that is accepted is written back unchanged. A file gives a block's table only if its
//! bytes are in the file. A draft is continued or refused; a writer that continues it loses no block that it adds.
//!
//! Input: which of them, and whether checksums are corrected first; then the bytes.
//!
//! Inputs: at most 2048 bytes.

#![no_main]

use apus_chain::{BlockHash, Network};
use apus_engine::script::hints::{HintTable, SignatureHintsReader, SignatureHintsWriter};
use apus_fuzz::{Input, folder};
use libfuzzer_sys::fuzz_target;
use xxhash_rust::xxh3::xxh3_64;

/// Bytes before the records and after the index, and of a record before its table.
const HEAD: usize = 16;
const FOOT: usize = 72;
const RECORD: usize = 16;

const NETWORK: Network = Network::Regtest;

/// The hash of every block: [`repair`] gives all records its first bytes.
const HASH: BlockHash = BlockHash([7; 32]);

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let kind = input.u8();
    let mut bytes = input.rest().to_vec();
    if kind & 4 != 0 {
        repair(&mut bytes, kind & 3 != 2);
    }
    match kind & 3 {
        0 | 3 => table(&bytes),
        1 => file(&bytes),
        _ => draft(&bytes),
    }
});

fn table(bytes: &[u8]) {
    let Ok(table) = HintTable::decode(bytes) else { return };
    table.get(bytes.len() as u64);
    assert_eq!(encoding(&table), bytes);
}

fn encoding(table: &HintTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    bytes
}

fn file(bytes: &[u8]) {
    let folder = folder([("hints", bytes)]);
    let Ok(reader) = SignatureHintsReader::open(&folder.path().join("hints"), NETWORK) else {
        return;
    };
    let mut found = 0;
    for height in 0..=reader.stop_height() {
        if let Some(table) = reader.block(height, &HASH) {
            let encoding = encoding(&table);
            assert!(bytes.windows(encoding.len()).any(|window| window == encoding));
            found += 1;
        }
    }
    assert!(found + reader.damaged() <= u64::from(reader.blocks()));
}

fn draft(bytes: &[u8]) {
    let folder = folder([("hints.incomplete", bytes)]);
    let path = folder.path().join("hints");
    let Ok(writer) = SignatureHintsWriter::create_or_continue(&path, NETWORK) else { return };
    let hints: Vec<(u64, bool)> = (0..20).map(|key| (key * key, key % 3 == 0)).collect();
    let (height, stop) = (5, 255);
    writer.add(height, &HASH, &hints).expect("the folder takes anything");
    let blocks = writer.blocks();
    let summary = writer.finish(stop, &HASH).expect("the folder takes anything");
    // A draft with a right checksum may also have blocks above.
    assert!(summary.blocks as usize <= blocks);
    let reader = SignatureHintsReader::open(&path, NETWORK).expect("a finished file");
    let table = reader.block(height, &HASH).expect("an added block");
    assert!(hints.iter().all(|(key, bit)| table.get(*key) == *bit));
}

/// Corrects the head, the block and the checksum of each record, and the checksum of a complete file, as far as
/// the fields locate them. Makes heights smaller than 256.
fn repair(bytes: &mut [u8], is_complete: bool) -> Option<()> {
    let head = bytes.get_mut(..HEAD)?;
    head[..12].copy_from_slice(b"APUSSIGH\x01\0\0\0");
    head[12..].copy_from_slice(&NETWORK.magic());
    let foot = bytes.len().checked_sub(FOOT).filter(|at| is_complete && *at >= HEAD);
    let end = match foot {
        Some(foot) => {
            usize::try_from(u64::from_le_bytes(*bytes[foot + 48..].first_chunk()?)).ok()?
        }
        None => bytes.len(),
    };
    let mut at = HEAD;
    while let Some(record) = bytes.get_mut(at..end).filter(|rest| rest.len() >= RECORD) {
        record[5..8].fill(0);
        record[8..12].copy_from_slice(&HASH.0[..4]);
        let length = u32::from_le_bytes(*record[12..].first_chunk()?) as usize;
        let record = record.get_mut(..RECORD + length)?;
        let checksum = xxh3_64(&record[4..]) as u32;
        record[..4].copy_from_slice(&checksum.to_le_bytes());
        at += RECORD + length;
    }
    let foot = foot?;
    let hashed = [&bytes[..HEAD], bytes.get(end..foot + FOOT - 16)?].concat();
    bytes[foot + 56..foot + 64].copy_from_slice(&xxh3_64(&hashed).to_le_bytes());
    bytes[foot + 64..].copy_from_slice(b"APUSSIGE");
    Some(())
}

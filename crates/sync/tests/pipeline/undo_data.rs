//! Changes undo data in ways that the undo data alone cannot show.

use apus_chain::{
    BlockHash, BlockUndo, BlockUndoWriter, CoinRef, Reader, read_coin, undo_checksum, write_coin,
};
use bitcoin::Block;
use bitcoin::hashes::Hash;
use std::fs;
use std::path::Path;

/// Returns the records of undo data in a file: offset and content of each.
fn undo_records(bytes: &[u8]) -> Vec<(usize, Vec<u8>)> {
    let (mut records, mut at) = (Vec::new(), 0);
    while at < bytes.len() {
        let size = u32::from_le_bytes(*bytes[at + 4..].first_chunk().unwrap()) as usize;
        records.push((at + 8, bytes[at + 8..at + 8 + size].to_vec()));
        at += 8 + size + 32;
    }
    records
}

/// Flips the coinbase mark of the first coin in a block's undo data, and fixes the checksum.
pub(crate) fn change_a_coin(blocks: &Path, chain: &[Block]) {
    let (path, key) = (blocks.join("rev00000.dat"), fs::read(blocks.join("xor.dat")).unwrap());
    let mask = |bytes: &mut [u8]| {
        bytes.iter_mut().zip(key.iter().cycle()).for_each(|(byte, mask)| *byte ^= mask);
    };
    let mut bytes = fs::read(&path).unwrap();
    mask(&mut bytes);
    let records = undo_records(&bytes);
    assert!(records.len() >= chain.len() - 1, "in the order of the chain");
    for ((at, content), block) in records.into_iter().zip(&chain[1..]) {
        let undo = BlockUndo::read(&content).unwrap();
        let mut stored = vec![Vec::new(); undo.coins().len()];
        undo.coins().iter().zip(&mut stored).for_each(|(coin, out)| coin.write_stored(out));
        let Some(first) = stored.first_mut() else { continue };
        let old = first.clone();
        let old = read_coin(&mut Reader::new(&old)).unwrap();
        first.clear();
        write_coin(first, CoinRef { coinbase: !old.as_ref().coinbase, ..old.as_ref() });
        let (mut other, mut rest) = (Vec::new(), &stored[..]);
        let mut writer = BlockUndoWriter::new(&mut other, undo.tx_count());
        for tx in 1..undo.tx_count() {
            let (coins, after) = rest.split_at(undo.spent_by(tx).unwrap().len());
            rest = after;
            writer.push_stored_tx(coins.iter().map(Vec::as_slice)).unwrap();
        }
        writer.finish();
        if other.len() == content.len() {
            let prev = BlockHash(block.header.prev_blockhash.to_byte_array());
            bytes[at..at + other.len()].copy_from_slice(&other);
            bytes[at + other.len()..][..32].copy_from_slice(&undo_checksum(&prev, &other));
            mask(&mut bytes);
            return fs::write(path, bytes).unwrap();
        }
    }
    panic!("no block spends a coin");
}

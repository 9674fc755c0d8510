//! Undo data of a block: accepted data has the one form that is written, coin for coin.
//!
//! Inputs: at most 8192 bytes.

#![no_main]

use apus_chain::{BlockUndo, BlockUndoWriter, Reader, read_coin_strict};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let Ok(undo) = BlockUndo::read(data) else { return };
    let (mut again, mut stored_again) = (Vec::new(), Vec::new());
    let mut writer = BlockUndoWriter::new(&mut again, undo.tx_count());
    let mut stored_writer = BlockUndoWriter::new(&mut stored_again, undo.tx_count());
    let mut count = 0;
    for tx in 1..undo.tx_count() {
        let coins = undo.spent_by(tx).expect("a transaction of the block");
        count += coins.len();
        let read: Vec<_> = coins.iter().map(|coin| coin.coin()).collect();
        writer.push_tx(read.iter().map(|coin| coin.as_ref()));
        let stored: Vec<Vec<u8>> = coins
            .iter()
            .map(|coin| {
                let mut bytes = Vec::new();
                coin.write_stored(&mut bytes);
                bytes
            })
            .collect();
        for (bytes, coin) in stored.iter().zip(&read) {
            let back = read_coin_strict(&mut Reader::new(bytes)).expect("a stored coin");
            assert_eq!(back.as_ref(), coin.as_ref());
        }
        stored_writer
            .push_stored_tx(stored.iter().map(Vec::as_slice))
            .expect("coins in their stored form");
    }
    writer.finish();
    stored_writer.finish();
    assert_eq!(count, undo.coins().len());
    assert_eq!(again, data);
    assert_eq!(stored_again, data);
});

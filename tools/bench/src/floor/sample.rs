//! A block to measure with where no chain is given.

use apus_chain::{HEADER_SIZE, write_compact_size};

/// Transactions of the block: together some 1.1 MB.
const TRANSACTIONS: u64 = 3_000;

/// The bytes of a block of transactions with two inputs and two outputs each, in the form with
/// witnesses. They parse, and that is all that is right about them.
pub fn made_up_block() -> Vec<u8> {
    let mut block = vec![0; HEADER_SIZE];
    write_compact_size(&mut block, TRANSACTIONS);
    for _ in 0..TRANSACTIONS {
        block.extend_from_slice(&[2, 0, 0, 0, 0, 1]);
        block.push(2);
        for _ in 0..2 {
            // Outpoint, empty script, sequence.
            block.extend_from_slice(&[7; 36]);
            block.push(0);
            block.extend_from_slice(&[0xff; 4]);
        }
        block.push(2);
        for _ in 0..2 {
            block.extend_from_slice(&[1; 8]);
            block.extend_from_slice(&[22, 0, 20]);
            block.extend_from_slice(&[9; 20]);
        }
        for _ in 0..2 {
            // A signature and a key.
            block.extend_from_slice(&[2, 71]);
            block.extend_from_slice(&[3; 71]);
            block.push(33);
            block.extend_from_slice(&[2; 33]);
        }
        block.extend_from_slice(&[0; 4]);
    }
    block
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::BlockLayout;

    #[test]
    fn it_is_a_block_of_the_usual_transactions() {
        let (block, mut layout) = (made_up_block(), BlockLayout::new());
        let view = layout.read(&block).unwrap();
        assert_eq!(view.tx_count() as u64, TRANSACTIONS);
        assert_eq!(view.input_count() as u64, 2 * TRANSACTIONS);
        assert_eq!(view.output_count() as u64, 2 * TRANSACTIONS);
        assert!(view.txs().all(|tx| tx.has_witness()));
    }
}

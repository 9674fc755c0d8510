//! [`block_len`]: where a block ends, judged by its own counts and lengths instead of the size
//! that a damaged record claims.
//!
//! Only the outline is followed, nothing is stored. Unlike Core's deserialization
//! (`primitives/transaction.h`, `UnserializeTransaction`) it refuses transactions without inputs
//! or outputs: a run of zeros, which is what a torn write leaves behind, would otherwise read as many of them.
//! No rule is checked beyond that, so an answer means "plausible", never "valid".

use apus_chain::{ReadError, Reader};

/// Length of a block header in bytes.
pub(crate) const HEADER: usize = 80;

/// Length of the block at the start of `bytes`; `None` if no block is there, or not all of it.
/// With it comes how many bytes were looked at to find out.
pub(crate) fn block_len(bytes: &[u8]) -> (Option<usize>, usize) {
    let mut reader = Reader::new(bytes);
    let whole = walk(&mut reader);
    (whole.then(|| reader.position()), reader.position())
}

fn walk(reader: &mut Reader<'_>) -> bool {
    let mut block = || -> Result<bool, ReadError> {
        reader.take(HEADER)?;
        let count = reader.compact_size()?;
        for _ in 0..count {
            if !transaction(reader)? {
                return Ok(false);
            }
        }
        Ok(count > 0)
    };
    block().unwrap_or(false)
}

/// Every round of every loop takes bytes or ends, so a count costs no more than the input is long.
fn transaction(reader: &mut Reader<'_>) -> Result<bool, ReadError> {
    reader.take(4)?;
    let mut inputs = reader.compact_size()?;
    let has_witness = inputs == 0;
    if has_witness {
        // BIP-144: no inputs is the marker, and the only flag in use is 1.
        if reader.u8()? != 1 {
            return Ok(false);
        }
        inputs = reader.compact_size()?;
    }
    for _ in 0..inputs {
        reader.take(36)?;
        skip_bytes(reader)?;
        reader.take(4)?;
    }
    let outputs = reader.compact_size()?;
    for _ in 0..outputs {
        reader.take(8)?;
        skip_bytes(reader)?;
    }
    if has_witness {
        for _ in 0..inputs {
            for _ in 0..reader.compact_size()? {
                skip_bytes(reader)?;
            }
        }
    }
    reader.take(4)?;
    Ok(inputs > 0 && outputs > 0)
}

fn skip_bytes(reader: &mut Reader<'_>) -> Result<(), ReadError> {
    let count = reader.compact_size()?;
    reader.take(count)?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{fixture_blocks, synthetic_block};
    use proptest::prelude::*;

    #[test]
    fn real_blocks_end_where_they_end() {
        for (name, block) in fixture_blocks() {
            assert_eq!(block_len(&block).0, Some(block.len()), "{name}");
            let mut longer = block.clone();
            longer.extend_from_slice(&[0xee; 50]);
            assert_eq!(block_len(&longer).0, Some(block.len()), "{name}");
            for keep in [0, 79, 80, 81, block.len() / 2, block.len() - 1] {
                assert_eq!(block_len(&block[..keep]).0, None, "{name} cut to {keep}");
            }
        }
    }

    #[test]
    fn a_block_whose_end_became_zeros_is_none() {
        for (name, mut block) in fixture_blocks() {
            // A single transaction may well survive zeros in its scripts; the count may not.
            if block[HEADER] == 1 {
                continue;
            }
            let half = block.len() / 2;
            block[half..].fill(0);
            block.resize(block.len() + 100_000, 0);
            assert_eq!(block_len(&block).0, None, "{name}");
        }
    }

    #[test]
    fn zeros_are_no_block() {
        assert_eq!(block_len(&[0; 200]).0, None);
        let mut block = vec![0; HEADER];
        block.push(3);
        block.resize(400, 0);
        assert_eq!(block_len(&block).0, None);
    }

    proptest! {
        #[test]
        fn any_bytes_give_an_answer_within_them(bytes in proptest::collection::vec(0u8..4, 0..600)) {
            let (length, looked) = block_len(&bytes);
            prop_assert!(length.is_none_or(|length| length == looked));
            prop_assert!(looked <= bytes.len());
        }

        #[test]
        fn made_up_blocks_end_where_they_end(seed: u32, txs in 1usize..20, script in 0usize..300) {
            let block = synthetic_block(seed, txs, script);
            prop_assert_eq!(block_len(&block).0, Some(block.len()));
        }
    }
}

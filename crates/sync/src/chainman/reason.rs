//! Core's words for what is wrong with bytes, headers and blocks.
//!
//! Two of Core's checks share the reason `bad-blk-sigops`; the one that needs no coins is told
//! apart by the message that Core adds to it. Nothing else is added to Core's reject reasons.

use apus_chain::{BlockError, DecodeError, ReadError};

/// What Core's deserialization says (`serialize.h`, `streams.h`, `primitives/transaction.h`).
pub(super) fn decode_reason(error: &DecodeError) -> &'static str {
    match error {
        DecodeError::Read(ReadError::End { .. } | ReadError::Trailing { .. }) => {
            "DataStream::read(): end of data"
        }
        DecodeError::Read(ReadError::NonCanonical { .. }) => "non-canonical ReadCompactSize()",
        DecodeError::Read(ReadError::TooLarge { .. }) => "ReadCompactSize(): size too large",
        DecodeError::SuperfluousWitness { .. } => "Superfluous witness record",
        DecodeError::UnknownFlag { .. } => "Unknown transaction optional data",
        // Core would read it and then find that it is too long, whatever else is wrong.
        DecodeError::TooLong { .. } => "bad-blk-length",
    }
}

/// Core's reject reason of a block.
pub(super) fn block_reason(error: &BlockError) -> &'static str {
    match error {
        BlockError::Decode(error) => decode_reason(error),
        BlockError::SigOps { .. } => "bad-blk-sigops, out-of-bounds SigOpCount",
        other => other.reason(),
    }
}

/// Whether an error depends on the block's place in the chain (Core `validation.cpp`,
/// `ContextualCheckBlock`); the others are of `CheckBlock`, or of reading the bytes.
pub(super) const fn is_contextual(error: &BlockError) -> bool {
    matches!(
        error,
        BlockError::NonFinal { .. }
            | BlockError::CoinbaseHeight
            | BlockError::WitnessNonceSize
            | BlockError::WitnessMerkleMatch
            | BlockError::UnexpectedWitness { .. }
            | BlockError::Weight { .. }
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::BlockLayout;

    fn reason_of(raw: &[u8]) -> &'static str {
        decode_reason(&BlockLayout::new().read(raw).unwrap_err())
    }

    #[test]
    fn bytes_that_are_no_block_have_cores_words() {
        let header = [0; 80];
        let block = |rest: &[u8]| [&header[..], rest].concat();
        assert_eq!(reason_of(&header[..79]), "DataStream::read(): end of data");
        assert_eq!(reason_of(&block(&[1, 1, 0])), "DataStream::read(): end of data");
        assert_eq!(reason_of(&block(&[0xfd, 1, 0])), "non-canonical ReadCompactSize()");
        assert_eq!(reason_of(&block(&[0xfe, 1, 0, 0, 3])), "ReadCompactSize(): size too large");
        let no_witness = [1, 2, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 0];
        assert_eq!(reason_of(&block(&no_witness)), "Superfluous witness record");
        let unknown_flag = [1, 2, 0, 0, 0, 0, 2, 0, 0, 0, 0, 0, 0];
        assert_eq!(reason_of(&block(&unknown_flag)), "Unknown transaction optional data");
        assert_eq!(reason_of(&vec![0; 4_000_001]), "bad-blk-length");
    }

    #[test]
    fn cores_two_groups_of_checks_are_told_apart() {
        let context_free =
            [BlockError::MerkleRoot, BlockError::SigOps { cost: 1 }, BlockError::CoinbaseMissing];
        assert!(!context_free.iter().any(is_contextual));
        let contextual = [
            BlockError::CoinbaseHeight,
            BlockError::WitnessMerkleMatch,
            BlockError::Weight { weight: 1 },
        ];
        assert!(contextual.iter().all(is_contextual));
    }
}

//! The commitment to witnesses (BIP-141; Core `validation.cpp`, `CheckWitnessMalleation`).

use super::error::BlockError;
use super::survey::Survey;
use crate::block::{BlockView, TxView};
use crate::hashes::Txid;
use crate::merkle::{MerkleScratch, merkle_root};
use crate::read::Reader;
use crate::script::witness_commitment;
use apus_hash::sha256d;

/// What the block's coinbase says of its witnesses: the last output that looks like a commitment
/// counts.
pub(super) fn witness_commitment_of<'a>(block: &BlockView<'a>) -> Option<&'a [u8; 32]> {
    block.tx(0)?.outputs().filter_map(|output| witness_commitment(output.script())).last()
}

/// Checks that the witnesses are those that the coinbase commits to, or that there are none.
/// `commitment` is there only if segwit is active at the block's height; `wtxids` are the ids with
/// witnesses that it is then about.
pub(super) fn check_witnesses(
    block: &BlockView<'_>,
    txids: &[[u8; 32]],
    wtxids: &[[u8; 32]],
    commitment: Option<&[u8; 32]>,
    survey: &Survey,
    merkle: &mut MerkleScratch,
) -> Result<(), BlockError> {
    let coinbase = block.tx(0).ok_or(BlockError::CoinbaseMissing)?;
    let Some(commitment) = commitment else {
        return match survey.witness {
            Some(tx) => Err(BlockError::UnexpectedWitness { tx, txid: Txid(txids[tx]) }),
            None => Ok(()),
        };
    };
    let nonce = reserved_value(&coinbase).ok_or(BlockError::WitnessNonceSize)?;
    let root = merkle_root(wtxids, merkle).root;
    if sha256d(&[root, nonce].concat()) != *commitment {
        return Err(BlockError::WitnessMerkleMatch);
    }
    Ok(())
}

/// The coinbase's witness, which must be a single item of 32 bytes.
fn reserved_value(coinbase: &TxView<'_>) -> Option<[u8; 32]> {
    let mut reader = Reader::new(coinbase.witness());
    // A coinbase has one input, hence one stack: its count, then the item with its length.
    let single = reader.compact_size().ok()? == 1 && reader.compact_size().ok()? == 32;
    let value = *reader.array().ok()?;
    single.then_some(value)
}

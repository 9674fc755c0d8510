//! The commitment to witnesses (BIP-141; Core `validation.cpp`, `CheckWitnessMalleation`).

use super::error::BlockError;
use crate::block::{BlockView, TxView};
use crate::hashes::Txid;
use crate::merkle::{MerkleScratch, merkle_root};
use crate::read::Reader;
use crate::script::witness_commitment;
use apus_hash::{Message, sha256d, sha256d_many};

/// Working space, reused between blocks.
#[derive(Debug, Default)]
pub(super) struct WitnessScratch {
    ids: Vec<[u8; 32]>,
}

/// Checks that the witnesses are those that the coinbase commits to, or that there are none.
/// `active` says whether segwit is active at the block's height.
pub(super) fn check_witnesses(
    block: &BlockView<'_>,
    txids: &[[u8; 32]],
    active: bool,
    scratch: &mut WitnessScratch,
    merkle: &mut MerkleScratch,
) -> Result<(), BlockError> {
    let coinbase = block.tx(0).ok_or(BlockError::CoinbaseMissing)?;
    // The last output that looks like a commitment counts.
    let commitment = coinbase.outputs().filter_map(|o| witness_commitment(o.script())).last();
    match commitment {
        Some(commitment) if active => {
            let nonce = reserved_value(&coinbase).ok_or(BlockError::WitnessNonceSize)?;
            witness_ids(block, txids, &mut scratch.ids);
            let root = merkle_root(&scratch.ids, merkle).root;
            if sha256d(&[root, nonce].concat()) != *commitment {
                return Err(BlockError::WitnessMerkleMatch);
            }
            Ok(())
        }
        _ => match block.txs().position(|tx| tx.has_witness()) {
            Some(tx) => Err(BlockError::UnexpectedWitness { tx, txid: Txid(txids[tx]) }),
            None => Ok(()),
        },
    }
}

/// The coinbase's witness, which must be a single item of 32 bytes.
fn reserved_value(coinbase: &TxView<'_>) -> Option<[u8; 32]> {
    let mut reader = Reader::new(coinbase.witness());
    // A coinbase has one input, hence one stack: its count, then the item with its length.
    let single = reader.compact_size().ok()? == 1 && reader.compact_size().ok()? == 32;
    let value = *reader.array().ok()?;
    single.then_some(value)
}

/// Ids with witness: zero for the coinbase, the plain id where there is no witness.
fn witness_ids(block: &BlockView<'_>, txids: &[[u8; 32]], ids: &mut Vec<[u8; 32]>) {
    ids.clear();
    ids.extend_from_slice(txids);
    ids[0] = [0; 32];
    let with_witness: Vec<usize> = block
        .txs()
        .enumerate()
        .skip(1)
        .filter(|(_, tx)| tx.has_witness())
        .map(|(i, _)| i)
        .collect();
    let messages: Vec<Message<'_>> = with_witness
        .iter()
        .filter_map(|&index| block.tx(index))
        .map(|tx| Message::from(tx.raw()))
        .collect();
    let mut hashes = vec![[0; 32]; messages.len()];
    sha256d_many(&messages, &mut hashes);
    for (index, hash) in with_witness.into_iter().zip(hashes) {
        ids[index] = hash;
    }
}

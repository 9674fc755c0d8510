//! The commitment to witnesses (BIP-141; Core `validation.cpp`, `CheckWitnessMalleation`).

use super::error::BlockError;
use super::survey::Survey;
use crate::block::{BlockView, TxView};
use crate::hashes::Txid;
use crate::merkle::{MerkleScratch, merkle_root};
use crate::read::Reader;
use crate::script::witness_commitment;
use apus_hash::{Message, sha256d, sha256d_each};

/// Working space, reused between blocks.
#[derive(Debug, Default)]
pub(super) struct WitnessScratch {
    ids: Vec<[u8; 32]>,
    /// Places of the transactions with witnesses, and what they hash to.
    places: Vec<u32>,
    hashes: Vec<[u8; 32]>,
}

/// Checks that the witnesses are those that the coinbase commits to, or that there are none.
/// `active` says whether segwit is active at the block's height.
pub(super) fn check_witnesses(
    block: &BlockView<'_>,
    txids: &[[u8; 32]],
    active: bool,
    survey: &Survey,
    scratch: &mut WitnessScratch,
    merkle: &mut MerkleScratch,
) -> Result<(), BlockError> {
    let coinbase = block.tx(0).ok_or(BlockError::CoinbaseMissing)?;
    // The last output that looks like a commitment counts.
    let commitment = coinbase.outputs().filter_map(|o| witness_commitment(o.script())).last();
    match commitment {
        Some(commitment) if active => {
            let nonce = reserved_value(&coinbase).ok_or(BlockError::WitnessNonceSize)?;
            scratch.hash(block, txids);
            let root = merkle_root(&scratch.ids, merkle).root;
            if sha256d(&[root, nonce].concat()) != *commitment {
                return Err(BlockError::WitnessMerkleMatch);
            }
            Ok(())
        }
        _ => match survey.witness {
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

impl WitnessScratch {
    /// Ids with witness: zero for the coinbase, the plain id where there is no witness.
    fn hash(&mut self, block: &BlockView<'_>, txids: &[[u8; 32]]) {
        let Self { ids, places, hashes } = self;
        ids.clear();
        ids.extend_from_slice(txids);
        ids[0] = [0; 32];
        places.clear();
        let with_witness = (0..).zip(block.txs()).skip(1).filter(|(_, tx)| tx.has_witness());
        places.extend(with_witness.map(|(place, _)| place));
        hashes.resize(places.len(), [0; 32]);
        let raw = |index: usize| block.tx_at(places[index] as usize).raw();
        sha256d_each(|index| Message::from(raw(index)), hashes);
        for (place, hash) in places.iter().zip(hashes) {
            ids[*place as usize] = *hash;
        }
    }
}

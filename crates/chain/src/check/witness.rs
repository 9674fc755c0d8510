//! The commitment to witnesses (BIP-141; Core `validation.cpp`, `CheckWitnessMalleation`).

use super::error::BlockError;
use super::survey::Survey;
use crate::block::{BlockView, TxView};
use crate::hashes::Txid;
use crate::merkle::{MerkleScratch, merkle_root};
use crate::read::Reader;
use crate::script::witness_commitment;
use apus_hash::{Message, sha256d, sha256d_each};

/// The ids with witnesses of one block, and working space.
#[derive(Debug, Default)]
pub(super) struct WitnessScratch {
    /// Zero for the coinbase, the plain id where there is no witness.
    ids: Vec<[u8; 32]>,
    /// Places of the transactions with witnesses, and what they hash to.
    places: Vec<u32>,
    hashes: Vec<[u8; 32]>,
}

/// What the block's coinbase says of its witnesses: the last output that looks like a commitment
/// counts.
pub(super) fn witness_commitment_of<'a>(block: &BlockView<'a>) -> Option<&'a [u8; 32]> {
    block.tx(0)?.outputs().filter_map(|output| witness_commitment(output.script())).last()
}

/// Checks that the witnesses are those that the coinbase commits to, or that there are none.
/// `commitment` is there only if segwit is active at the block's height; then `scratch` has the
/// block's ids.
pub(super) fn check_witnesses(
    block: &BlockView<'_>,
    txids: &[[u8; 32]],
    commitment: Option<&[u8; 32]>,
    survey: &Survey,
    scratch: &WitnessScratch,
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
    let root = merkle_root(&scratch.ids, merkle).root;
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

impl WitnessScratch {
    /// Forgets the block before.
    pub(super) fn clear(&mut self) {
        self.ids.clear();
    }

    /// Adds the ids of the transactions from `first` on, whose plain ids are `txids`.
    pub(super) fn hash(&mut self, block: &BlockView<'_>, first: usize, txids: &[[u8; 32]]) {
        let Self { ids, places, hashes } = self;
        ids.extend_from_slice(txids);
        ids[0] = [0; 32];
        places.clear();
        let here = (first..first + txids.len()).skip(usize::from(first == 0));
        places.extend(here.filter(|&tx| block.tx_at(tx).has_witness()).map(|tx| tx as u32));
        hashes.resize(places.len(), [0; 32]);
        let raw = |index: usize| block.tx_at(places[index] as usize).raw();
        sha256d_each(|index| Message::from(raw(index)), hashes);
        for (place, hash) in places.iter().zip(hashes) {
            ids[*place as usize] = *hash;
        }
    }
}

//! The ids of a block's transactions, without and with witnesses.
//!
//! The order of the work is all that there is to it: ids of the same transactions are computed one
//! after the other while their bytes are near, and those of long ones last and together, since lanes
//! that hash messages of different lengths wait for the longest. Whether the ids are the right ones
//! is for others to judge.

use crate::block::{BlockView, TxView};
use apus_hash::{Message, sha256d_each};

/// Transactions whose ids are computed before those with witnesses are: few enough to be still in
/// the second-level cache then.
const HASHED_TOGETHER: usize = 1024;

/// Transactions of so many bytes are few, and few of them have the same length.
const LONG_BYTES: usize = 2048;

/// The ids of one block's transactions, and working space.
#[derive(Debug, Default)]
pub(super) struct Ids {
    /// Without witnesses.
    pub(super) txids: Vec<[u8; 32]>,
    /// With witnesses, where they were asked for: zero for the coinbase, the plain id where there
    /// is no witness.
    pub(super) wtxids: Vec<[u8; 32]>,
    /// Places of transactions, and what they hash to.
    places: Vec<u32>,
    hashes: Vec<[u8; 32]>,
    /// Places of long transactions, and whether the id with witness is meant.
    long: Vec<(u32, bool)>,
}

fn is_long(tx: &TxView<'_>) -> bool {
    tx.raw().len() >= LONG_BYTES
}

impl Ids {
    /// Computes the ids of `view`, those with witnesses only if they are `wanted`.
    pub(super) fn hash(&mut self, view: &BlockView<'_>, wanted: bool) {
        // What was there is overwritten, all of it.
        self.txids.resize(view.tx_count(), [0; 32]);
        self.wtxids.clear();
        self.long.clear();
        for first in (0..view.tx_count()).step_by(HASHED_TOGETHER) {
            let end = view.tx_count().min(first + HASHED_TOGETHER);
            // The id of a long one comes last; until then it is as good as any.
            let message = |index: usize| match view.tx_at(first + index) {
                tx if is_long(&tx) => Message::default(),
                tx => Message(tx.id_parts()),
            };
            sha256d_each(message, &mut self.txids[first..end]);
            if wanted {
                self.hash_with_witness(view, first, end);
            }
            let long = (first..end).filter(|&place| is_long(&view.tx_at(place)));
            self.long.extend(long.map(|place| (place as u32, false)));
        }
        self.hash_long(view, wanted);
        if let Some(coinbase) = self.wtxids.first_mut() {
            *coinbase = [0; 32];
        }
    }

    /// The ids with witnesses of the transactions `first..end` that are not long.
    fn hash_with_witness(&mut self, view: &BlockView<'_>, first: usize, end: usize) {
        let Self { txids, wtxids, places, hashes, .. } = self;
        wtxids.extend_from_slice(&txids[first..end]);
        let here = |&place: &usize| {
            let tx = view.tx_at(place);
            tx.has_witness() && !is_long(&tx)
        };
        places.clear();
        places.extend((first..end).filter(here).map(|place| place as u32));
        hashes.resize(places.len(), [0; 32]);
        let raw = |index: usize| view.tx_at(places[index] as usize).raw();
        sha256d_each(|index| Message::from(raw(index)), hashes);
        for (place, hash) in places.iter().zip(hashes) {
            wtxids[*place as usize] = *hash;
        }
    }

    /// All ids of the long transactions.
    fn hash_long(&mut self, view: &BlockView<'_>, wanted: bool) {
        let Self { txids, wtxids, hashes, long, .. } = self;
        if wanted {
            long.extend_from_within(..);
            let half = long.len() / 2;
            long[half..].iter_mut().for_each(|(_, witness)| *witness = true);
        }
        hashes.resize(long.len(), [0; 32]);
        let message = |index: usize| {
            let (place, witness) = long[index];
            let tx = view.tx_at(place as usize);
            // Without a witness both ids are the same.
            if witness && tx.has_witness() {
                Message::from(tx.raw())
            } else {
                Message(tx.id_parts())
            }
        };
        sha256d_each(message, hashes);
        for (&(place, witness), hash) in long.iter().zip(hashes) {
            let ids = if witness { &mut *wtxids } else { &mut *txids };
            ids[place as usize] = *hash;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::block::BlockLayout;
    use crate::read::write_compact_size;
    use apus_hash::sha256d;
    use proptest::prelude::*;

    /// A transaction with one witness item of the length given, or in the plain form.
    fn tx(script_len: usize, witness: Option<usize>) -> Vec<u8> {
        let mut raw = vec![2, 0, 0, 0];
        if witness.is_some() {
            raw.extend([0, 1]);
        }
        raw.push(1);
        raw.extend([script_len as u8; 36]);
        write_compact_size(&mut raw, script_len as u64);
        raw.extend(vec![7; script_len]);
        raw.extend([0xff; 4]);
        raw.extend([1, 9, 0, 0, 0, 0, 0, 0, 0, 1, 0x51]);
        if let Some(length) = witness {
            raw.push(1);
            write_compact_size(&mut raw, length as u64);
            raw.extend(vec![3; length]);
        }
        raw.extend([0; 4]);
        raw
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(32))]

        /// Short and long ones in any mixture, with and without witnesses, in more than one batch.
        #[test]
        fn ids_are_those_of_the_definition(
            kinds in proptest::collection::vec(
                (
                    prop_oneof![4 => 0usize..100, 1 => 1_900usize..2_100, 1 => 0usize..9_000],
                    proptest::option::of(
                        prop_oneof![4 => 0usize..100, 1 => 1_900usize..2_100, 1 => 0usize..9_000],
                    ),
                ),
                1..40,
            ),
            copies in prop_oneof![Just(1usize), Just(40)],
        ) {
            let txs: Vec<Vec<u8>> = kinds.iter().map(|&(script, witness)| tx(script, witness)).collect();
            let txs: Vec<Vec<u8>> = (0..copies).flat_map(|_| txs.clone()).collect();
            prop_assume!(txs.iter().map(Vec::len).sum::<usize>() < 3_900_000);
            let mut raw = vec![0; 80];
            write_compact_size(&mut raw, txs.len() as u64);
            raw.extend(txs.concat());
            let mut layout = BlockLayout::new();
            let view = layout.read(&raw).unwrap();
            let plain: Vec<_> = view.txs().map(|tx| sha256d(&tx.id_parts().concat())).collect();
            let mut whole: Vec<_> = txs.iter().map(|tx| sha256d(tx)).collect();
            whole[0] = [0; 32];
            let mut ids = Ids::default();
            ids.hash(&view, true);
            prop_assert_eq!(&ids.txids, &plain);
            prop_assert_eq!(&ids.wtxids, &whole);
            ids.hash(&view, false);
            prop_assert_eq!(&ids.txids, &plain);
            prop_assert!(ids.wtxids.is_empty());
            let same = crate::txids_of(&view).into_iter().map(|txid| txid.0);
            prop_assert_eq!(same.collect::<Vec<_>>(), plain);
        }
    }
}

//! Tests the ids of transactions of any length.

use super::*;
use crate::block::BlockLayout;
use crate::read::write_compact_size;
use apus_hash::sha256d;
use proptest::prelude::*;

/// A transaction with one witness item of the given length, or in the plain form.
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

    /// Mixes short and long transactions, with and without witnesses, in more than one batch.
    #[test]
    fn ids_match_the_definition(
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

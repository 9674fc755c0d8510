use super::*;
use crate::block::BlockLayout;
use crate::coin::{read_coin_strict, write_coin};
use crate::hashes::OutPoint;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;

const COIN: CoinRef<'_> = CoinRef { height: 3, coinbase: true, amount: 0, script: &[0x51] };

fn written(txs: &[Vec<CoinRef<'_>>]) -> Vec<u8> {
    let mut out = Vec::new();
    let mut writer = BlockUndoWriter::new(&mut out, txs.len() + 1);
    for coins in txs {
        writer.push_tx(coins.iter().copied());
    }
    writer.finish();
    out
}

#[test]
fn known_coins_have_their_form() {
    let hash = [7; 20];
    let script = [&[0x76, 0xa9, 20], &hash[..], &[0x88, 0xac]].concat();
    let coin =
        CoinRef { height: 203_998, coinbase: false, amount: 60_000_000_000, script: &script };
    let genesis = CoinRef { height: 0, coinbase: true, amount: 1, script: &[0x51] };
    let bytes = written(&[vec![coin], vec![COIN, genesis]]);
    let expected = [
        // One transaction besides the coinbase spends one coin: 2 * 203998, the zero, 600 BTC.
        &[2, 1, 0x97, 0xf2, 0x3c, 0, 0x83, 0x58, 0][..],
        &hash,
        // The other spends two; a coin of height 0 has no zero.
        &[2, 7, 0, 0, 7, 0x51],
        &[1, 1, 7, 0x51],
    ];
    assert_eq!(bytes, expected.concat());
}

#[test]
fn transactions_are_found_by_index() {
    let bytes = written(&[vec![COIN], vec![], vec![COIN; 2]]);
    let undo = BlockUndo::read(&bytes).unwrap();
    assert_eq!(undo.tx_count(), 4);
    let counts: Vec<_> = (0..6).map(|tx| undo.spent_by(tx).map(<[_]>::len)).collect();
    assert_eq!(counts, [Some(0), Some(1), Some(0), Some(2), None, None]);
    assert_eq!(undo.spent_by(usize::MAX), None);
    let empty = BlockUndo::read(&[0]).unwrap();
    assert_eq!((empty.tx_count(), empty.spent_by(0)), (1, Some(&[][..])));
}

#[test]
fn other_forms_are_rejected() {
    // One transaction, one coin of height 3.
    assert!(BlockUndo::read(&[1, 1, 7, 0, 0, 7, 0x51]).is_ok());
    let trailing = UndoError::Read(ReadError::Trailing { offset: 7, count: 1 });
    assert_eq!(BlockUndo::read(&[1, 1, 7, 0, 0, 7, 0x51, 0]), Err(trailing));
    let end = UndoError::Read(ReadError::End { offset: 1, needed: 1 });
    assert_eq!(BlockUndo::read(&[1]), Err(end));
    let unspendable = UndoError::Coin(CoinError::Unspendable { offset: 5 });
    assert_eq!(BlockUndo::read(&[1, 1, 7, 0, 0, 7, 0x6a]), Err(unspendable));
}

/// Core before 0.15 wrote no height unless a transaction's last coin was spent, and then that transaction's version.
#[test]
fn the_form_of_old_nodes_is_recognized() {
    let last = [7, 1, 0, 7, 0x51];
    let earlier = [0, 0, 7, 0x51];
    let read = |coins: &[&[u8]]| {
        let bytes = [&[1, coins.len() as u8], &coins.concat()[..]].concat();
        BlockUndo::read(&bytes).map(drop)
    };
    let new = [7, 0, 0, 7, 0x51];
    assert_eq!(read(&[&new]), Ok(()));
    assert_eq!(read(&[&last]), Err(UndoError::Old { offset: 2 }));
    assert_eq!(read(&[&new, &earlier, &last]), Err(UndoError::Old { offset: 7 }));
    // Nodes cannot read the rest.
    assert!(matches!(read(&[&earlier, &[7, 0, 0, 7, 0x6a]]), Err(UndoError::Coin(_))));
}

#[test]
fn huge_counts_allocate_no_memory() {
    for bytes in [&[0xfe, 0, 0, 0, 2][..], &[1, 0xfe, 0, 0, 0, 2], &[0xfe, 0, 0, 0, 2, 0, 0]] {
        assert!(matches!(BlockUndo::read(bytes), Err(UndoError::Read(ReadError::End { .. }))));
    }
}

#[test]
#[should_panic(expected = "fewer transactions")]
fn a_missing_transaction_is_noticed() {
    BlockUndoWriter::new(&mut Vec::new(), 2).finish();
}

#[test]
#[should_panic(expected = "more transactions")]
fn an_extra_transaction_is_noticed() {
    BlockUndoWriter::new(&mut Vec::new(), 1).push_tx([].into_iter());
}

#[test]
fn invalid_stored_coins_are_rejected() {
    let mut out = Vec::new();
    let mut writer = BlockUndoWriter::new(&mut out, 2);
    assert!(writer.push_stored_tx([&[0x80][..]].into_iter()).is_err());
}

proptest! {
    #[test]
    fn undo_data_round_trips(
        txs in vec(
            vec(
                (1u32..1 << 31, any::<bool>(), 0..=crate::amount::MAX_MONEY, vec(0u8..0x60, 0..40)),
                0..4,
            ),
            0..5,
        ),
    ) {
        let coins: Vec<Vec<CoinRef<'_>>> = txs.iter().map(|coins| {
            coins.iter().map(|(height, coinbase, amount, script)| CoinRef {
                height: *height, coinbase: *coinbase, amount: *amount, script,
            }).collect()
        }).collect();
        let bytes = written(&coins);
        let undo = BlockUndo::read(&bytes).unwrap();
        prop_assert_eq!(undo.tx_count(), coins.len() + 1);
        let mut from_stored = Vec::new();
        let mut writer = BlockUndoWriter::new(&mut from_stored, coins.len() + 1);
        for (index, coins) in coins.iter().enumerate() {
            let found = undo.spent_by(index + 1).unwrap();
            prop_assert_eq!(found.len(), coins.len());
            let mut stored = Vec::new();
            for (found, coin) in found.iter().zip(coins) {
                let read = found.coin();
                prop_assert_eq!(read.as_ref(), *coin);
                let mut bytes = Vec::new();
                found.write_stored(&mut bytes);
                let mut expected = Vec::new();
                write_coin(&mut expected, *coin);
                prop_assert_eq!(&bytes, &expected);
                stored.push(bytes);
            }
            writer.push_stored_tx(stored.iter().map(Vec::as_slice)).unwrap();
        }
        writer.finish();
        prop_assert_eq!(from_stored, bytes);
    }

    /// Makes bytes that are almost valid undo data, and noise.
    #[test]
    fn reading_accepts_one_form_only(
        bytes in prop_oneof![
            vec(any::<u8>(), 0..60),
            vec(prop_oneof![0u8..3, 6u8..8, any::<u8>()], 0..60),
        ],
        damage in any::<prop::sample::Index>(),
        change: u8,
    ) {
        let mut near = written(&[vec![COIN; 2], vec![], vec![COIN]]);
        let at = damage.index(near.len());
        near[at] = change;
        for bytes in [bytes, near] {
            let Ok(undo) = BlockUndo::read(&bytes) else { continue };
            let coins: Vec<Vec<Coin<'_>>> = (1..undo.tx_count())
                .map(|tx| undo.spent_by(tx).unwrap().iter().map(UndoCoin::coin).collect())
                .collect();
            let coins: Vec<_> =
                coins.iter().map(|coins| coins.iter().map(Coin::as_ref).collect()).collect();
            prop_assert_eq!(written(&coins), bytes);
        }
    }
}

/// Reads a file of the regtest node's data directory and removes its obfuscation (Core `util/obfuscation.h`):
/// each byte XORed with the key at its position.
fn node_file(name: &str) -> Vec<u8> {
    let blocks = concat!(env!("CARGO_MANIFEST_DIR"), "/../../fixtures/regtest-315/regtest/blocks");
    let key = std::fs::read(format!("{blocks}/xor.dat")).unwrap();
    let mut bytes = std::fs::read(format!("{blocks}/{name}")).unwrap();
    bytes.iter_mut().zip(key.iter().cycle()).for_each(|(byte, key)| *byte ^= key);
    bytes
}

/// The records of such a file up to its unused end: magic, length, data; `tail` bytes follow each.
fn records(file: &[u8], tail: usize) -> Vec<(&[u8], &[u8])> {
    let mut records = Vec::new();
    let mut rest = file;
    while let Some(after) = rest.strip_prefix(&[0xfa, 0xbf, 0xb5, 0xda]) {
        let length = u32::from_le_bytes(*after.first_chunk().unwrap()) as usize;
        let (record, after) = after[4..].split_at(length);
        let (behind, after) = after.split_at(tail);
        records.push((record, behind));
        rest = after;
    }
    records
}

/// A real node wrote undo data while it connected 315 blocks. Those blocks alone are enough to rebuild it.
#[test]
fn a_nodes_undo_data_is_rebuilt_byte_for_byte() {
    let (blk, rev) = (node_file("blk00000.dat"), node_file("rev00000.dat"));
    let by_prev: HashMap<[u8; 32], &[u8]> = records(&blk, 0)
        .into_iter()
        .map(|(block, _)| (block[4..36].try_into().unwrap(), block))
        .collect();
    let mut undo_of: HashMap<[u8; 32], &[u8]> =
        records(&rev, 32).into_iter().map(|(undo, sum)| (sum.try_into().unwrap(), undo)).collect();
    assert_eq!(undo_of.len(), 315);

    let mut layout = BlockLayout::new();
    let mut coins: HashMap<OutPoint, Vec<u8>> = HashMap::new();
    let mut prev = layout.read(by_prev[&[0; 32]]).unwrap().hash();
    let mut spent_count = 0;
    for height in 1..=315 {
        let block = layout.read(by_prev[&prev.0]).unwrap();
        let mut out = Vec::new();
        let mut writer = BlockUndoWriter::new(&mut out, block.tx_count());
        for tx in block.txs() {
            if !tx.is_coinbase() {
                let spent: Vec<Vec<u8>> = tx
                    .inputs()
                    .map(|input| coins.remove(&OutPoint::from_bytes(input.outpoint())).unwrap())
                    .collect();
                spent_count += spent.len();
                // Read and write it again, to test both directions.
                let spent: Vec<Coin<'_>> = spent
                    .iter()
                    .map(|bytes| read_coin_strict(&mut Reader::new(bytes)).unwrap())
                    .collect();
                writer.push_tx(spent.iter().map(Coin::as_ref));
            }
            let txid = crate::hashes::Txid(apus_hash::sha256d(&tx.id_parts().concat()));
            for (vout, output) in (0..).zip(tx.outputs()) {
                let (coinbase, amount) = (tx.is_coinbase(), output.value() as u64);
                let script = output.script();
                let mut stored = Vec::new();
                write_coin(&mut stored, CoinRef { height, coinbase, amount, script });
                coins.insert(OutPoint { txid, vout }, stored);
            }
        }
        writer.finish();
        let theirs = undo_of.remove(&undo_checksum(&prev, &out));
        assert_eq!(theirs, Some(&out[..]), "height {height}");
        let undo = BlockUndo::read(&out).unwrap();
        assert_eq!(undo.tx_count(), block.tx_count());
        prev = block.hash();
    }
    assert!(undo_of.is_empty());
    assert_eq!(spent_count, 10, "what the chain spends");
}

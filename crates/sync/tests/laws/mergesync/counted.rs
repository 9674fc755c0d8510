//! Computes the numbers of a chain's outputs in a slow and obvious way.

use crate::swiftsync::harness::{Chain, outpoint_of};
use apus_chain::{Height, HeightRange, OutPoint, Reader, read_coin_strict};
use apus_testkit::chain::coins_of;
use bitcoin::Block;
use std::collections::{BTreeMap, HashMap};

/// The block that created an output, and the output's number there; `None` if that block spends it.
pub(crate) type Number = Option<(Height, u32)>;

/// The effects of a block, computed in the simplest way.
struct Counted {
    /// For each input except the coinbase's.
    spent: Vec<Number>,
    /// The outputs that have numbers, in order.
    added: Vec<OutPoint>,
}

/// Processes a block's transactions in order.
fn count(there: &mut HashMap<OutPoint, (Height, u32)>, height: Height, block: &Block) -> Counted {
    // Outputs of the block until it spends them.
    let (mut own, mut spent): (Vec<OutPoint>, Vec<Number>) = (Vec::new(), Vec::new());
    for (at, tx) in block.txdata.iter().enumerate() {
        for input in tx.input.iter().filter(|_| at > 0) {
            let outpoint = outpoint_of(&input.previous_output);
            match own.iter().position(|own| *own == outpoint) {
                Some(place) => {
                    own.remove(place);
                    spent.push(None);
                }
                None => spent.push(Some(there.remove(&outpoint).unwrap())),
            }
        }
        for (name, output) in coins_of(tx) {
            let script = &output.script_pubkey;
            if !script.is_op_return() && script.len() <= 10_000 {
                own.push(outpoint_of(&name));
            }
        }
    }
    there.extend((0..).zip(&own).map(|(number, outpoint)| (*outpoint, (height, number))));
    Counted { spent, added: own }
}

/// Checks that the unspent coins have the places that the count gives.
pub(crate) fn expect_places(
    chain: &Chain,
    mut added: Vec<(HeightRange, Vec<u8>)>,
    live: &[(u32, OutPoint, Vec<u8>)],
) {
    added.sort_unstable_by_key(|(range, _)| *range);
    let (mut before, mut total) = (vec![0], 0);
    for (range, added) in &added {
        let (counts, rest) = added.as_chunks();
        assert_eq!((before.len(), rest), (range.start as usize, &[][..]));
        for count in counts {
            before.push(total);
            total += u64::from(u32::from_be_bytes(*count));
        }
        assert_eq!(before.len(), range.end as usize);
    }
    let live = live.iter().map(|(number, outpoint, coin)| {
        let coin = read_coin_strict(&mut Reader::new(coin)).unwrap();
        (before[coin.height as usize] + u64::from(*number), *outpoint)
    });
    let live: BTreeMap<u64, OutPoint> = live.collect();
    let (mut there, mut all, mut firsts) = (HashMap::new(), BTreeMap::new(), vec![0]);
    let mut next = 0;
    for (height, block) in (0..).zip(&chain.blocks).skip(1) {
        let Counted { spent, added } = count(&mut there, height, block);
        for (height, number) in spent.into_iter().flatten() {
            let first: u64 = firsts[height as usize];
            assert!(all.remove(&(first + u64::from(number))).is_some());
        }
        firsts.push(next);
        for outpoint in added {
            all.insert(next, outpoint);
            next += 1;
        }
    }
    assert_eq!((total, live), (next, all));
}

/// Checks that the numbers of the coins that a chain's first blocks spend equal the count's.
pub(crate) fn expect_numbers(chain: &Chain, numbers: BTreeMap<Height, Vec<Number>>) {
    let mut there = HashMap::new();
    for (height, numbers) in numbers {
        let counted = count(&mut there, height, &chain.blocks[height as usize]);
        assert_eq!(numbers, counted.spent, "{height}");
    }
}

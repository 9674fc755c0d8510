//! Whether chains follow the table of eras.

use super::*;
use crate::maker::MakeOptions;
use crate::maker::blocks::{ChainBlocks, keys};
use era::ERAS;

fn scale(text: &str) -> Scale {
    text.parse().unwrap()
}

#[test]
fn totals_are_those_of_the_table_at_its_heights() {
    for era in ERAS {
        let (of, totals) = Totals::at(Scale::FULL, era.end);
        assert_eq!(of.end, era.end);
        assert_eq!([totals.bytes, totals.coins, totals.kept], era.totals());
    }
    let (_, totals) = Totals::at(scale("blocks=1/50,bytes=1/2,coins=1/3"), 10_000);
    let [bytes, coins, kept] = ERAS.iter().find(|era| era.end == 500_000).unwrap().totals();
    assert_eq!((totals.bytes, totals.coins), (bytes / 100, coins / 150));
    assert_eq!(totals.kept, kept / 150);
    assert_eq!(Totals::at(Scale::FULL, TIP + 9).1, Totals::at(Scale::FULL, TIP).1);
    assert_eq!((blocks(Scale::FULL), blocks(scale("blocks=1/1000"))), (935_000, 935));
}

/// The number of transactions is that of the main chain, though only bytes and coins are steered.
#[test]
fn transactions_are_as_many_as_on_the_main_chain() {
    let options = MakeOptions::history(scale("blocks=1/1000,bytes=1/10,coins=1/10"), 9);
    let keys = keys(&options);
    let mut blocks = ChainBlocks::new(&options, &keys);
    let (mut txs, mut bytes, mut done) = (0, 0, 0);
    for era in ERAS {
        let wanted = (era.end / 1_000).saturating_sub(done) as usize;
        for block in blocks.by_ref().take(wanted) {
            txs += block.txs.len() as u64;
            bytes += block.bytes.len() as u64;
            done = block.height;
        }
        if era.end < 350_000 {
            // There are too few blocks for that.
            continue;
        }
        // The smallest blocks have no room for the largest transactions, and so more of the small ones.
        let ratio = txs as f64 / (era.txs as f64 / 10.0);
        assert!((0.9..1.25).contains(&ratio), "{ratio} of the transactions up to {}", era.end);
        let ratio = bytes as f64 / (era.bytes as f64 * 100.0);
        assert!((0.99..1.01).contains(&ratio), "{ratio} of the bytes up to {}", era.end);
    }
}

/// With few bytes too, every block has as many coins as belong to its height, and enough of them wait.
#[test]
fn the_set_grows_as_on_the_main_chain() {
    let options = MakeOptions::history(scale("blocks=1/250,bytes=1/200,coins=1/10"), 9);
    let keys = keys(&options);
    let mut blocks = ChainBlocks::new(&options, &keys);
    while let Some(block) = blocks.next() {
        let height = block.height;
        // At first, coinbases that are not mature are too many for so few coins.
        if (700..super::blocks(options.scale)).contains(&height) {
            let (_, wanted) = Totals::at(options.scale, height);
            let planner = blocks.planner();
            let coins = planner.tally().coins();
            assert!(coins.abs_diff(wanted.coins) < 40, "{coins} of {} at {height}", wanted.coins);
            // More may wait: the only payment of a transaction is never kept.
            let (waiting, due) = (planner.waiting().count(), wanted.coins - wanted.kept);
            assert!(waiting as u64 + 200 > due, "{waiting} of {due} at {height}");
        }
    }
}

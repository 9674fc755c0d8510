//! Tests of blocks with valid work and an invalid spend below the requested height: the sync ends there, and
//! keeps its progress below.

use crate::bad_blocks::{Make, bad_blocks};
use crate::harness::{ENGINES, Job, Place, World, random_chain};
use apus_chain::KnownBlock;
use apus_sync::{ErrorKind, InvalidBlock, InvalidError, SyncError};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{BlockPlan, ChainBuilder, ScriptKind, utxo_set};
use apus_testkit::rng::Rng;
use bitcoin::{Amount, Block, TxOut};
use std::collections::BTreeMap;
use std::time::Duration;

fn expect_invalid(error: &SyncError, bad: &Block, height: u32, reason: &str) {
    assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
    let SyncError::Invalid(InvalidError::StopAboveTip { tip, gap, .. }) = error else {
        panic!("{error}")
    };
    let [InvalidBlock { block: KnownBlock { height: at, hash }, why }] = &gap.invalid[..] else {
        panic!("{error}")
    };
    assert_eq!((*tip, *at), (height - 1, height));
    assert_eq!(hash.to_string(), bad.block_hash().to_string());
    assert!(why.contains(&format!("[{reason}]")), "{why}");
    for word in [why, &hash.to_string()] {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn a_spend_rule_violation_ends_a_longer_sync() {
    for (reason, make) in bad_blocks() {
        let mut builder = random_chain(730);
        builder.empty_blocks(1);
        let good = builder.blocks();
        let plan = make(&mut builder);
        let bad = builder.add_plan(plan);
        builder.empty_blocks(3);
        let world = World::of(&builder.blocks());
        let height = good.len() as u32;
        let before: BTreeMap<_, _> = utxo_set(&good);
        for (threads, prevout_threads, seconds, hints) in
            [(1, 0, 3_600, None), (3, 2, 3_600, None), (2, 8, 0, None), (2, 2, 0, Some(105))]
        {
            let place = Place::new();
            let job = Job {
                threads,
                prevout_threads,
                checkpoint_interval: Duration::from_secs(seconds),
                hints: hints.map(|stop| world.hints(stop)),
                ..world.job()
            };
            // The next start, from where this one ended, gives the same result.
            for _ in 0..2 {
                expect_invalid(&job.refused(&place), &bad, height, reason);
                assert_eq!(place.height(), Some(height - 1));
                let mut coins = 0;
                let mut count = |_: &_, _: &_| {
                    coins += 1;
                    Ok(())
                };
                place.store.for_each(&mut count).unwrap();
                assert_eq!(coins, before.len());
            }
        }
    }
}

/// Makes a block whose fault shows before it is connected.
fn creates_too_much(builder: &mut ChainBuilder) -> BlockPlan {
    let value = Amount::from_sat(21_000_001 * 100_000_000);
    let outputs = vec![builder.output(0, ScriptKind::OpTrue)];
    let outputs = outputs.into_iter().map(|output| TxOut { value, ..output }).collect();
    BlockPlan { coinbase_outputs: Some(outputs), ..BlockPlan::default() }
}

/// Blocks are in files in any order, and threads check ahead: an invalid block that is found early waits
/// until all below it are validated.
#[test]
fn of_several_invalid_blocks_the_lowest_is_reported() {
    let [.., (amount, claims_too_much), _, _] = bad_blocks();
    let (amount, large): ((_, Make), (_, Make)) =
        ((amount, claims_too_much), ("bad-txns-vout-toolarge", creates_too_much));
    let mut rng = Rng::new(731);
    for (round, (lower, upper)) in
        [(large, large), (amount, large), (large, amount), (large, large)].into_iter().enumerate()
    {
        let mut builder = random_chain(731 + round as u64);
        builder.empty_blocks(rng.below(4) as usize);
        let height = builder.height() + 1;
        let plan = lower.1(&mut builder);
        let bad = builder.add_plan(plan);
        builder.empty_blocks(rng.below(4) as usize);
        let plan = upper.1(&mut builder);
        builder.add_plan(plan);
        builder.empty_blocks(2);
        let world = World::laid_out(&builder.blocks(), |blocks| {
            let mut order: Vec<&Block> = blocks.iter().rev().collect();
            if round == 3 {
                rng.shuffle(&mut order);
            }
            let mut files = BlockFiles::regtest();
            files.blocks(order);
            files
        });
        for (engine, threads) in ENGINES.into_iter().flat_map(|it| [(it, 1), (it, 3)]) {
            let job = Job { engine, threads, with_placed: false, ..world.job() };
            expect_invalid(&job.refused(&Place::new()), &bad, height, lower.0);
        }
    }
}

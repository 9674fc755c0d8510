//! Tests of wrong hints: they make a sync fail, and never produce a wrong set.

use crate::harness::{Job, World, files, hintsfile, small_chain, snapshot};
use apus_sync::engines::swiftsync::{HintError, SwiftSyncError};
use apus_sync::{ErrorKind, Event, HintsInput, InvalidError, Observer, Phase, SyncError};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::{ModelCoin, Shape, UtxoSet, hints, utxo_set};
use apus_testkit::oracle::{self, BitOrder};
use apus_testkit::storage::CrashStorage;
use bitcoin::{Amount, OutPoint};
use std::sync::atomic::AtomicBool;

/// Runs a start that must fail because of the hints.
fn invalid(job: &Job) -> SyncError {
    let out = CrashStorage::new();
    let error = job.run(&CrashStorage::new(), &out).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Wrong, "{error}");
    assert!(files(&out).is_empty());
    error
}

fn is_unbalanced(error: &SyncError) -> bool {
    matches!(error.downcast(), Some(SwiftSyncError::Unbalanced { .. }))
}

/// Makes a job with the world's hints after a change.
fn changed(world: &World, change: impl FnOnce(&mut Vec<Vec<u32>>)) -> Job {
    let mut hints = hints(&world.chain, &utxo_set(&world.chain));
    change(&mut hints);
    let path = world.file("changed.hints", &oracle::hints_file(&hints, BitOrder::Msb));
    Job { hints: hintsfile(&path), threads: 2, ..world.job() }
}

/// Makes a job with a snapshot for the world's tip, after changing its coins.
fn other_snapshot(world: &World, change: impl FnOnce(&mut UtxoSet)) -> Job {
    let mut coins = utxo_set(&world.chain);
    change(&mut coins);
    let path = world.file("other.dat", &snapshot(&world.chain, &coins));
    Job { hints: HintsInput::Snapshot(path), threads: 2, ..world.job() }
}

#[test]
fn one_coin_too_many_or_too_few() {
    let world = World::small(110);
    // The last block that spends one of its own outputs: its first spendable output does not survive.
    let spendable = |height: usize| {
        let outputs = world.chain[height].txdata.iter().flat_map(|tx| &tx.output);
        outputs.filter(|o| !apus_testkit::chain::is_unspendable(&o.script_pubkey)).count() as u32
    };
    let mut many = 0;
    for height in 1..world.chain.len() {
        let all = spendable(height);
        let job = changed(&world, |hints| {
            let block = &mut hints[height - 1];
            if block.len() < all as usize {
                many += 1;
                let missing = (0..all).find(|index| !block.contains(index)).unwrap();
                block.push(missing);
                block.sort_unstable();
            } else {
                block.pop();
            }
        });
        if all > 0 {
            assert!(is_unbalanced(&invalid(&job)), "block {height}");
        }
    }
    assert!(many > 3, "few coins are spent: {many}");
}

#[test]
fn an_index_that_no_output_has() {
    let world = World::small(111);
    for (height, past) in [(1, 1), (50, 1_000), (world.truth.stop, 7)] {
        let job = changed(&world, |hints| {
            let block = &mut hints[height as usize - 1];
            let last = block.last().copied().unwrap_or(0);
            block.push(last + 100 + past);
        });
        let error = invalid(&job);
        let out_of_range = matches!(
            error.downcast(),
            Some(SwiftSyncError::Hints(HintError::IndexOutOfRange { height: found, .. }))
                if *found == height
        );
        assert!(out_of_range, "{error}");
        assert!(error.to_string().contains(&world.chain[height as usize].block_hash().to_string()));
    }
}

/// A thread that finds wrong hints early waits for the threads of lower blocks.
#[test]
fn of_several_wrong_hints_the_lowest_are_reported() {
    let world = World::small(116);
    // The upper of two segments fails at its first block, and the lower one near its end.
    let sizes: Vec<u64> = world.chain.iter().map(|block| block.total_size() as u64).collect();
    let all: u64 = sizes.iter().sum();
    let mut bytes = 0;
    let lowest = sizes.iter().position(|size| {
        bytes += size;
        bytes > all * 2 / 5
    });
    let lowest = lowest.unwrap() as u32;
    let job = changed(&world, |hints| {
        hints[lowest as usize - 1..].iter_mut().for_each(|block| block.push(1_000));
    });
    let job = Job { segment_bytes: Some(all / 2), ..job };
    for _ in 0..20 {
        let error = invalid(&job);
        let is_lowest = matches!(
            error.downcast(),
            Some(SwiftSyncError::Hints(HintError::IndexOutOfRange { height, .. }))
                if *height == lowest
        );
        assert!(is_lowest, "{error}, not block {lowest}");
    }
}

#[test]
fn hints_of_a_stale_fork() {
    let mut builder = small_chain(112);
    let stale = builder.blocks();
    builder.set_tip(stale[stale.len() - 4].block_hash());
    builder.random_blocks(6, Shape::default());
    let stale = World::of(stale);
    let world = World::laid_out(builder.blocks(), |blocks| {
        let mut files = BlockFiles::regtest();
        files.blocks(&stale.chain);
        files.blocks(&blocks[stale.chain.len() - 3..]);
        files
    });
    let error = invalid(&Job { hints: stale.hints("msb.hints"), ..world.job() });
    assert!(error.downcast::<SwiftSyncError>().is_some(), "{error}");
    let error = invalid(&Job { hints: stale.snapshot_hints(), ..world.job() });
    assert!(matches!(error, SyncError::Invalid(InvalidError::BaseNotOnChain { .. })), "{error}");
    assert!(error.to_string().contains(&stale.truth.stop_hash));
    world.job().expect(&world.truth, &CrashStorage::new(), &CrashStorage::new());
}

#[test]
fn hints_taller_than_the_chain() {
    let world = World::small(113);
    let job = changed(&world, |hints| hints.push(vec![0]));
    let error = invalid(&job);
    let SyncError::Invalid(InvalidError::ChainTooShort { stop, tip, .. }) = error else {
        panic!("{error}")
    };
    assert_eq!((stop, tip), (world.truth.stop + 1, world.truth.stop));
}

/// Hints for a lower block are right only for that block.
#[test]
fn hints_cut_short() {
    let world = World::small(114);
    let error = invalid(&changed(&world, |hints| drop(hints.pop())));
    assert!(is_unbalanced(&error) || world.chain.last().unwrap().txdata.len() == 1, "{error}");
}

#[test]
fn files_that_are_not_hints() {
    let world = World::small(115);
    let right = &world.truth.hints;
    for bytes in [&[][..], b"UTXO", &right[..right.len() - 1], &[&right[..], &[1]].concat()] {
        let path = world.file("broken.hints", bytes);
        let error = invalid(&Job { hints: hintsfile(&path), ..world.job() });
        assert!(matches!(error, SyncError::Hints { .. }), "{error}");
        assert!(error.to_string().contains("broken.hints"), "{error}");
    }
    let right = &world.truth.snapshot;
    for bytes in [&[][..], b"utxo\xff", &right[..right.len() - 1], &[&right[..], &[0]].concat()] {
        let path = world.file("broken.dat", bytes);
        let error = invalid(&Job { hints: HintsInput::Snapshot(path), ..world.job() });
        assert!(matches!(error, SyncError::Snapshot { .. }), "{error}");
        assert!(error.to_string().contains("broken.dat"), "{error}");
    }
}

#[test]
fn a_snapshot_of_another_network() {
    let world = World::small(116);
    let mut bytes = world.truth.snapshot.clone();
    bytes[7..11].copy_from_slice(&apus_chain::Network::Signet.magic());
    let hints = HintsInput::Snapshot(world.file("other.dat", &bytes));
    let error = Job { hints, ..world.job() }.run_afresh().unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Usage, "{error}");
    assert!(error.to_string().contains("signet") && error.to_string().contains("regtest"));
}

/// Picks a coin from the middle of the chain.
fn some_coin(coins: &UtxoSet) -> (OutPoint, ModelCoin) {
    let (outpoint, coin) = coins.iter().find(|(_, coin)| coin.height == 60).unwrap();
    (*outpoint, coin.clone())
}

#[test]
fn a_snapshot_that_lacks_a_coin() {
    let world = World::small(117);
    let job = other_snapshot(&world, |coins| {
        let (outpoint, _) = some_coin(coins);
        coins.remove(&outpoint);
    });
    assert!(is_unbalanced(&invalid(&job)));
}

#[test]
fn a_snapshot_with_an_invented_coin() {
    let world = World::small(118);
    let job = other_snapshot(&world, |coins| {
        let (outpoint, coin) = some_coin(coins);
        coins.insert(OutPoint { vout: 77, ..outpoint }, coin);
    });
    let error = invalid(&job);
    let missing = matches!(
        error.downcast(),
        Some(SwiftSyncError::Hints(HintError::CoinsMissing { missing: 1, .. }))
    );
    assert!(missing, "{error}");
}

#[test]
fn a_snapshot_with_a_coin_that_was_spent() {
    let world = World::small(119);
    let spent = world.chain.iter().rev().flat_map(|block| &block.txdata[1..]).next().unwrap();
    let spent = spent.input[0].previous_output;
    let height = world
        .chain
        .iter()
        .position(|block| block.txdata.iter().any(|tx| tx.compute_txid() == spent.txid));
    let job = other_snapshot(&world, |coins| {
        let (_, coin) = some_coin(coins);
        coins.insert(spent, ModelCoin { height: height.unwrap() as u32, ..coin });
    });
    assert!(is_unbalanced(&invalid(&job)));
}

/// A snapshot only names coins: its other data about them never changes the result.
#[test]
fn lies_about_amounts_scripts_and_coinbases() {
    let world = World::small(120);
    let job = other_snapshot(&world, |coins| {
        for (number, coin) in coins.values_mut().enumerate() {
            match number % 3 {
                0 => coin.output.value = Amount::from_sat(1 + number as u64),
                1 => coin.output.script_pubkey = bitcoin::ScriptBuf::from_bytes(vec![0x52]),
                _ => coin.coinbase = !coin.coinbase,
            }
        }
    });
    job.expect(&world.truth, &CrashStorage::new(), &CrashStorage::new());
}

/// A coin is looked up in the block at its height. If it is not there, the sync fails.
#[test]
fn lies_about_heights() {
    let world = World::small(121);
    let stop = world.truth.stop;
    let job = |height: u32| {
        other_snapshot(&world, |coins| {
            let (outpoint, _) = some_coin(coins);
            coins.get_mut(&outpoint).unwrap().height = height;
        })
    };
    for height in [0, stop + 1, (u32::MAX >> 1)] {
        let error = invalid(&job(height));
        assert!(matches!(error, SyncError::Invalid(InvalidError::CoinHeight { .. })), "{error}");
        assert!(error.to_string().contains("other.dat"), "{error}");
    }
    // Another block does not have the coin, whether or not that block is in another segment.
    for (height, bytes) in [(1, 1), (stop, 1), (1, u64::MAX), (stop, u64::MAX)] {
        let error = invalid(&Job { segment_bytes: Some(bytes), ..job(height) });
        let missing = matches!(
            error.downcast(),
            Some(SwiftSyncError::Hints(HintError::CoinsMissing { missing: 1, .. }))
        );
        assert!(missing, "{error}");
    }
}

/// Calls the closure when the processing of blocks begins.
struct Meanwhile<F: Fn() + Sync>(F);

impl<F: Fn() + Sync> Observer for Meanwhile<F> {
    fn event(&self, event: Event) {
        if matches!(event, Event::Started(Phase::Blocks)) {
            (self.0)();
        }
    }
}

/// Makes other hints of the same length, which are well-formed for each block.
fn of_equal_length(world: &World) -> Vec<u8> {
    let right = hints(&world.chain, &utxo_set(&world.chain));
    let good = oracle::hints_file(&right, BitOrder::Msb);
    let other = |at: usize| {
        let mut hints = right.clone();
        *hints[at].last_mut()? ^= 1;
        hints[at].is_sorted_by(|a, b| a < b).then(|| oracle::hints_file(&hints, BitOrder::Msb))
    };
    let mut all = (0..right.len()).filter_map(other);
    all.find(|bytes| bytes.len() == good.len() && *bytes != good).unwrap()
}

#[test]
fn hints_that_change_under_a_run_are_distinguished_from_wrong_ones() {
    let world = World::small(118);
    let (other, stop) = (of_equal_length(&world), AtomicBool::new(false));
    let right = hints(&world.chain, &utxo_set(&world.chain));
    let good = oracle::hints_file(&right, BitOrder::Msb);
    for way in ["written over", "cut", "longer", "replaced", "not touched"] {
        let path = world.file("watched.hints", &good);
        let meanwhile = Meanwhile(|| match way {
            "written over" => std::fs::write(&path, &other).unwrap(),
            "cut" => std::fs::write(&path, &good[..good.len() / 2]).unwrap(),
            "longer" => std::fs::write(&path, [&good[..], &[0]].concat()).unwrap(),
            "replaced" => std::fs::rename(world.file("new.hints", &other), &path).unwrap(),
            _ => {}
        });
        let job = Job { hints: hintsfile(&path), threads: 2, ..world.job() };
        let (work, out) = (CrashStorage::new(), CrashStorage::new());
        let ended = job.run_watched(&work, &out, &meanwhile, &stop);
        if ["replaced", "not touched"].contains(&way) {
            // The sync reads the opened file to the end, even if another file takes its name.
            world.truth.check(&ended.unwrap(), &out);
            continue;
        }
        let error = ended.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Wrong);
        let said = error.to_string();
        assert!(said.contains("watched.hints: the hints changed since"), "{way}: {said}");
        assert!(files(&out).is_empty());
        // With the original file, the same sync resumes.
        world.file("watched.hints", &good);
        let outcome = job.run(&work, &out).unwrap();
        world.truth.check(&outcome, &out);
    }
}

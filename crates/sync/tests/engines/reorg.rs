//! Tests in which the next start finds another most-work chain: the sync disconnects blocks down to the fork,
//! and then connects that chain.

use crate::harness::{Call, Hooked, Job, Place, World, hash_of, random_chain, store_error};
use apus_chain::BlockHash;
use apus_hash::sha256;
use apus_sync::{ErrorKind, IoError, RECORD, SilentObserver, SyncError};
use apus_testkit::blkfile::BlockFiles;
use apus_testkit::chain::Shape;
use apus_testkit::storage::CrashStorage;
use bitcoin::Block;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

/// Makes a longer chain that forks off another one `depth` blocks below its end.
fn branch_of(chain: &[Block], seed: u64, depth: usize) -> Vec<Block> {
    let mut builder = random_chain(seed);
    // The same keys and coins: this builder can spend what it creates.
    assert_eq!(builder.blocks()[..100], chain[..100]);
    builder.set_tip(chain[chain.len() - 1 - depth].block_hash());
    builder.random_blocks(depth + 10, Shape::default());
    builder.blocks()
}

/// Makes files with a chain and with stale blocks.
fn world_with(chain: &[Block], stale: &[Block]) -> World {
    World::laid_out(chain, |blocks| {
        let mut files = BlockFiles::regtest().file_bytes_max(40_000);
        files.block(&blocks[0]);
        files.blocks(stale);
        files.blocks(blocks[1..].iter().filter(|block| !stale.contains(block)));
        files
    })
}

/// Returns a place as if its sync had assumed another block valid from the start. Scripts are skipped only up
/// to a block of the chain, so two chains without scripts need one block each.
fn assuming(place: Place, assume_valid: Option<BlockHash>) -> Place {
    let mut files = place.work.live_files();
    let record = files.get_mut(RECORD).unwrap();
    let length = record.len() - 32;
    record[16..48].copy_from_slice(&assume_valid.unwrap().0);
    let checksum = sha256(&record[..length]);
    record[length..].copy_from_slice(&checksum);
    Place { work: CrashStorage::holding(files), out: CrashStorage::new(), ..place }
}

#[test]
fn the_sync_returns_to_the_fork_and_continues() {
    for (seed, depth) in [(720, 1), (721, 3), (722, 12), (723, 20), (724, 60)] {
        let one = random_chain(seed).blocks();
        let other = branch_of(&one, seed, depth);
        let (first, second) = (World::of(&one), world_with(&other, &one[1..]));
        for hints in [None, Some(50)] {
            let hinted =
                |world: &World| Job { hints: hints.map(|at| world.hints(at)), ..world.job() };
            let place = Place::new();
            hinted(&first).expect(&first.truth, &place);
            let place = assuming(place, second.job().assume_valid);
            let outcome = hinted(&second).expect(&second.truth, &place);
            let bytes = other[1..].iter().map(|block| block.total_size() as u64).sum();
            assert_eq!(
                (outcome.counts.blocks, outcome.counts.bytes),
                (other.len() as u64 - 1, bytes)
            );
            assert_eq!(outcome.counts, hinted(&second).expect(&second.truth, &Place::new()).counts);
        }
    }
}

/// Stops the sync before or after the coins have left the old branch.
#[test]
fn a_stop_on_the_way_to_another_branch_is_resumed() {
    let one = random_chain(725).blocks();
    let other = branch_of(&one, 725, 8);
    let (first, second) = (World::of(&one), world_with(&other, &one[1..]));
    for n in 0..6 {
        let place = Place::new();
        first.job().expect(&first.truth, &place);
        let place = assuming(place, second.job().assume_valid);
        let flag = Arc::new(AtomicBool::new(n == 0));
        let set = Arc::clone(&flag);
        let store = Hooked::over(&place.store, move |at, before| {
            if at == Call::Write && before + 1 >= n {
                set.store(true, Ordering::SeqCst);
            }
            Ok(())
        });
        let open = || Ok(Arc::clone(&store));
        let hints_folder = place.hints_folder.path();
        let ended = second.job().run_in(
            &place.work,
            &place.out,
            &open,
            hints_folder,
            &SilentObserver,
            &flag,
        );
        assert_eq!(ended.unwrap_err().kind(), ErrorKind::Interrupted);
        second.job().expect(&second.truth, &place);
    }
}

/// The sync writes a data directory, and is stopped when its coins are about to leave the old branch.
#[test]
fn blocks_of_the_old_branch_stay_until_the_coins_have_left_it() {
    let one = random_chain(728).blocks();
    let other = branch_of(&one, 728, 8);
    let (first, second) = (world_with(&one, &[]), world_with(&other, &one[1..]));
    for writes in 0..2 {
        let (place, sandbox) = (Place::new(), tempfile::tempdir().unwrap());
        first.job().keeping(sandbox.path()).expect(&first.truth, &place);
        let place = assuming(place, second.job().assume_valid);
        let failing = Hooked::over(&place.store, move |at, before| {
            if at == Call::Write && before >= writes { Err(store_error()) } else { Ok(()) }
        });
        let open = || Ok(Arc::clone(&failing));
        let (flag, hints_folder) = (AtomicBool::new(false), place.hints_folder.path());
        let job = second.job().keeping(sandbox.path());
        job.run_in(&place.work, &place.out, &open, hints_folder, &SilentObserver, &flag)
            .unwrap_err();
        job.expect(&second.truth, &place);
    }
}

#[test]
fn a_missing_old_branch_is_reported() {
    let one = random_chain(726).blocks();
    let other = branch_of(&one, 726, 4);
    let (first, second) = (World::of(&one), World::of(&other));
    let place = Place::new();
    first.job().expect(&first.truth, &place);
    let place = assuming(place, second.job().assume_valid);
    for _ in 0..2 {
        let SyncError::Io(IoError::StaleBlock { height, hash }) = second.job().refused(&place)
        else {
            panic!()
        };
        assert_eq!((height, hash), (120, hash_of(&one[120])));
    }
    // The sync disconnects blocks as far as the files reach, and continues once the rest is there.
    let part = world_with(&other, &one[119..]);
    let error = Job { blocksdir: part.blocksdir(), ..second.job() }.refused(&place);
    assert!(matches!(error, SyncError::Io(IoError::StaleBlock { height: 118, .. })), "{error}");
    assert_eq!(place.height(), Some(118));
    let rest = world_with(&other, &one[117..119]);
    Job { blocksdir: rest.blocksdir(), ..second.job() }.expect(&second.truth, &place);
}

/// A block of the old branch has a damaged and an intact copy.
#[test]
fn a_damaged_copy_on_the_old_branch_is_skipped() {
    let one = random_chain(727).blocks();
    let other = branch_of(&one, 727, 2);
    let mut damaged = one[120].clone();
    damaged.txdata[0].output[0].value = bitcoin::Amount::from_sat(1);
    for whole in [true, false] {
        let mut stale = vec![damaged.clone(), one[119].clone()];
        stale.extend(whole.then(|| one[120].clone()));
        let (first, second) = (World::of(&one), world_with(&other, &stale));
        let place = Place::new();
        first.job().expect(&first.truth, &place);
        let place = assuming(place, second.job().assume_valid);
        if whole {
            second.job().expect(&second.truth, &place);
        } else {
            let error = second.job().refused(&place);
            assert!(
                matches!(error, SyncError::Io(IoError::StaleBlock { height: 120, .. })),
                "{error}"
            );
        }
    }
}

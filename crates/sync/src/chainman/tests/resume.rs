//! Crashes at every sync point, torn files, and files of other programs.

use super::desk::{Desk, Judge, TestCoins, regtest, rejected};
use crate::chainman::SubmitOutcome::{Accepted, Duplicate, Inconclusive, Orphan};
use crate::chainman::{ChainManager, ChainManagerError, Resumed, TipCoins};
use apus_storage::Storage;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use std::io::Write;
use std::sync::{Arc, Mutex};

fn fresh() -> Arc<Mutex<Judge>> {
    Arc::new(Mutex::new(Judge::default()))
}

/// A chain with a fork, a failure, an orphan and an invalidated block; tip `a3`.
fn lived(storage: &CrashStorage) -> Desk {
    let judge = fresh();
    let (manager, resumed) = Desk::on(storage, &judge);
    assert_eq!(resumed, Resumed::default());
    let mut desk = Desk::of(manager, judge);
    desk.build("genesis", "a1 a2 a3 a4");
    desk.build("a1", "b2 b3");
    desk.build("a2", "c3 c4 c5");
    desk.build("b3", "d4 d5 d6");
    desk.spoil("b3");
    desk.accept("a1 a2");
    desk.expect("b2", Inconclusive, "a2");
    desk.expect("b3", rejected("bad-b3"), "a2");
    desk.expect("c3", Accepted, "c3");
    desk.expect("c5", Orphan, "c3");
    desk.expect("a3", Inconclusive, "c3");
    desk.invalidate("c3");
    desk.expect_tip("a3");
    desk
}

/// What the state of [`lived`] means for what comes next.
fn goes_on(desk: &mut Desk) {
    desk.expect_tip("a3");
    desk.expect("b3", rejected("duplicate-invalid"), "a3");
    desk.expect("d4", rejected("bad-prevblk"), "a3");
    desk.expect("c4", rejected("bad-prevblk"), "a3");
    desk.reconsider("c3");
    // Of equal work, and whole earlier.
    desk.expect_tip("c3");
    desk.expect("c4", Accepted, "c5");
}

#[test]
fn another_start_goes_on_wherever_the_coins_are() {
    for connected in ["", "a1", "a1 a2", "a1 b2", "a1 a2 c3", "a1 a2 a3"] {
        let storage = CrashStorage::new();
        let mut desk = lived(&storage);
        let names = connected.split(' ').filter(|name| !name.is_empty());
        let chain = names.map(|name| desk.hash(name)).collect();
        desk.judge.lock().unwrap().chain = chain;
        let (manager, resumed) = Desk::on(&storage, &desk.judge);
        assert_eq!((resumed.records, resumed.torn_bytes), (9, 0));
        desk.manager = manager;
        goes_on(&mut desk);
    }
}

#[test]
fn closed_or_not_the_state_is_the_same_after_many_starts() {
    let storage = CrashStorage::new();
    let mut desk = lived(&storage);
    for start in 0..6 {
        let (manager, _) = Desk::on(&storage, &desk.judge);
        let old = std::mem::replace(&mut desk.manager, manager);
        if start % 2 == 0 {
            drop(old);
        } else {
            desk.manager.invalidate(&desk.hash("a3")).unwrap();
            desk.manager.reconsider(&desk.hash("a3")).unwrap();
            let (manager, _) = Desk::on(&CrashStorage::new(), &fresh());
            std::mem::replace(&mut desk.manager, manager).close().unwrap();
            desk.manager = Desk::on(&storage, &desk.judge).0;
        }
    }
    goes_on(&mut desk);
}

/// Blocks in a storage that may crash; what of them was answered before the crash.
fn run_into_crash(storage: &CrashStorage, desk: &Desk, starts: usize) -> Option<usize> {
    let names = ["a1", "a2", "a3", "a4"];
    let mut answered = 0;
    for part in names.chunks(names.len().div_ceil(starts)) {
        let Ok((mut manager, _)) = Desk::try_on(storage, &fresh()) else { return Some(answered) };
        for name in part {
            match manager.submit(desk.raw(name)) {
                Ok(answer) => assert!(matches!(answer.outcome, Accepted | Duplicate)),
                Err(_) => return Some(answered),
            }
            answered += 1;
        }
        if manager.close().is_err() {
            return Some(answered);
        }
    }
    storage.crashed().then_some(answered)
}

#[test]
fn a_crash_at_any_sync_point_leaves_a_beginning() {
    let mut desk = Desk::new();
    desk.build("genesis", "a1 a2 a3 a4");
    for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
        for at in 0.. {
            let storage = CrashStorage::new();
            storage.crash_at(at, after);
            if run_into_crash(&storage, &desk, 2).is_none() {
                assert!(at > 5, "{at} sync points");
                break;
            }
            let images = (0..8).map(|seed| storage.crash_image(seed));
            for image in images.chain([storage.durable_image()]) {
                let (manager, _) = Desk::on(&image, &fresh());
                let height = manager.tip().height as usize;
                let names = ["genesis", "a1", "a2", "a3", "a4"];
                assert_eq!(manager.tip().hash, desk.hash(names[height]));
                // And it goes on from there.
                assert_eq!(run_into_crash(&image, &desk, 1), None);
            }
        }
    }
}

/// [`run_into_crash`] on a folder that has some of the blocks.
#[test]
fn what_was_synced_is_there() {
    let storage = CrashStorage::new();
    let judge = fresh();
    let mut sync = None;
    let coins: Box<dyn TipCoins> = Box::new(TestCoins(Arc::clone(&judge)));
    let open = |log_sync| {
        sync = Some(log_sync);
        Ok::<_, ChainManagerError>(coins)
    };
    let (manager, _) =
        ChainManager::open(regtest(), Arc::new(storage.clone()), None, open).unwrap();
    let mut desk = Desk::of(manager, judge);
    desk.build("genesis", "a1 a2 a3");
    desk.accept("a1 a2");
    sync.unwrap().sync().unwrap();
    desk.accept("a3");
    let (manager, _) = Desk::on(&storage.durable_image(), &fresh());
    assert_eq!(manager.tip().hash, desk.hash("a2"));
    // Coins that are ahead of the log cannot be used.
    let Err(error) = Desk::try_on(&storage.durable_image(), &desk.judge) else { panic!() };
    assert!(matches!(error, ChainManagerError::UnknownTip { height: 3, .. }), "{error}");
}

fn edit(storage: &CrashStorage, name: &str, change: impl FnOnce(&mut Vec<u8>)) -> CrashStorage {
    let mut files = storage.live_files();
    change(files.get_mut(name).unwrap());
    CrashStorage::holding(files)
}

const FIRST: &str = "blocks-00000001.log";
const SECOND: &str = "blocks-00000002.log";

#[test]
fn a_torn_end_is_left_out_and_said() {
    let storage = CrashStorage::new();
    let desk = lived(&storage);
    let whole = storage.live_files()[FIRST].len();
    for cut in 0..=whole {
        let torn = edit(&storage, FIRST, |bytes| bytes.truncate(cut));
        let (manager, resumed) = Desk::on(&torn, &{
            let judge = desk.judge.lock().unwrap().clone();
            Arc::new(Mutex::new(Judge { chain: Vec::new(), ..judge }))
        });
        assert!(resumed.records <= 9 && manager.tip().height <= 3);
        assert!(resumed.torn_bytes < 400, "{resumed:?}");
        assert_eq!(resumed.records == 9, cut == whole, "{cut}");
    }
}

#[test]
fn damage_before_the_end_is_refused() {
    let storage = CrashStorage::new();
    let mut desk = lived(&storage);
    desk.manager = Desk::on(&storage, &desk.judge).0;
    desk.expect("c4", rejected("bad-prevblk"), "a3");
    desk.reconsider("c3");
    let files = storage.live_files();
    assert_eq!(files.keys().collect::<Vec<_>>(), [FIRST, SECOND]);
    let refused = |storage: &CrashStorage, what: &str| {
        let Err(error) = Desk::try_on(storage, &fresh()) else { panic!("{what}") };
        assert!(error.to_string().contains(what), "{error}");
    };
    let length = files[FIRST].len();
    for at in [0, 9, 20, 60, 90, 100, length / 2, length - 1] {
        let flipped = edit(&storage, FIRST, |bytes| bytes[at] ^= 1);
        if (8..12).contains(&at) {
            continue;
        }
        refused(&flipped, "is damaged");
    }
    refused(&edit(&storage, SECOND, |bytes| bytes[60] ^= 1), "is damaged");
    refused(&edit(&storage, FIRST, |bytes| bytes[9] = 1), "has format 257");
    let mut gone = files.clone();
    gone.remove(FIRST);
    refused(&CrashStorage::holding(gone), "is damaged");
}

#[test]
fn other_rules_are_refused() {
    let storage = CrashStorage::new();
    drop(lived(&storage));
    let other = apus_chain::Params { segwit_height: 5, ..regtest().clone() };
    let coins: Box<dyn TipCoins> = Box::new(TestCoins(fresh()));
    let open = |_| Ok::<_, ChainManagerError>(coins);
    let Err(error) = ChainManager::open(&other, Arc::new(storage), None, open) else { panic!() };
    assert!(matches!(error, ChainManagerError::OtherChain { .. }), "{error}");
}

#[test]
fn files_of_other_programs_are_left_alone() {
    let storage = CrashStorage::new();
    for name in ["lock", "blocks-1.log", "blocks-00000001.log.tmp"] {
        storage.create(name).unwrap().write_all(b"theirs").unwrap();
    }
    drop(lived(&storage));
    drop(Desk::on(&storage, &fresh()));
    assert_eq!(storage.live_files()["lock"], b"theirs");
}

//! Tests of resuming after crashes at every sync point, with torn files, and next to other programs' files.

use super::sandbox::{Sandbox, TestCoins, TestState, regtest, rejected};
use crate::chainman::SubmitOutcome::{Accepted, Duplicate, Inconclusive, Orphan};
use crate::chainman::{ChainManager, ChainManagerError, LogState, TipCoins};
use apus_storage::Storage;
use apus_testkit::storage::{AfterCrash, CrashStorage};
use std::io::Write;
use std::sync::{Arc, Mutex};

fn fresh() -> Arc<Mutex<TestState>> {
    Arc::new(Mutex::new(TestState::default()))
}

/// Builds a chain with a fork, a failed block, an orphan and an invalidated block; its tip is `a3`.
fn lived(storage: &CrashStorage) -> Sandbox {
    let state = fresh();
    let (manager, resumed) = Sandbox::on(storage, &state);
    assert_eq!(resumed, LogState::default());
    let mut sandbox = Sandbox::of(manager, state);
    sandbox.build("genesis", "a1 a2 a3 a4");
    sandbox.build("a1", "b2 b3");
    sandbox.build("a2", "c3 c4 c5");
    sandbox.build("b3", "d4 d5 d6");
    sandbox.spoil("b3");
    sandbox.accept("a1 a2");
    sandbox.expect("b2", Inconclusive, "a2");
    sandbox.expect("b3", rejected("bad-b3"), "a2");
    sandbox.expect("c3", Accepted, "c3");
    sandbox.expect("c5", Orphan, "c3");
    sandbox.expect("a3", Inconclusive, "c3");
    sandbox.invalidate("c3");
    sandbox.expect_tip("a3");
    sandbox
}

/// Checks that a resumed manager behaves as [`lived`] left it.
fn check_resumed(sandbox: &mut Sandbox) {
    sandbox.expect_tip("a3");
    sandbox.expect("b3", rejected("duplicate-invalid"), "a3");
    sandbox.expect("d4", rejected("bad-prevblk"), "a3");
    sandbox.expect("c4", rejected("bad-prevblk"), "a3");
    sandbox.reconsider("c3");
    // Its work is equal, and it was complete earlier.
    sandbox.expect_tip("c3");
    sandbox.expect("c4", Accepted, "c5");
}

#[test]
fn a_start_resumes_from_coins_at_any_block() {
    for connected in ["", "a1", "a1 a2", "a1 b2", "a1 a2 c3", "a1 a2 a3"] {
        let storage = CrashStorage::new();
        let mut sandbox = lived(&storage);
        let names = connected.split(' ').filter(|name| !name.is_empty());
        let chain = names.map(|name| sandbox.hash(name)).collect();
        sandbox.state.lock().unwrap().chain = chain;
        let (manager, resumed) = Sandbox::on(&storage, &sandbox.state);
        assert_eq!((resumed.records, resumed.torn_bytes), (9, 0));
        sandbox.manager = manager;
        check_resumed(&mut sandbox);
    }
}

#[test]
fn the_state_is_the_same_after_many_starts_closed_or_not() {
    let storage = CrashStorage::new();
    let mut sandbox = lived(&storage);
    for start in 0..6 {
        let (manager, _) = Sandbox::on(&storage, &sandbox.state);
        let old = std::mem::replace(&mut sandbox.manager, manager);
        if start % 2 == 0 {
            drop(old);
        } else {
            sandbox.manager.invalidate(&sandbox.hash("a3")).unwrap();
            sandbox.manager.reconsider(&sandbox.hash("a3")).unwrap();
            let (manager, _) = Sandbox::on(&CrashStorage::new(), &fresh());
            std::mem::replace(&mut sandbox.manager, manager).close().unwrap();
            sandbox.manager = Sandbox::on(&storage, &sandbox.state).0;
        }
    }
    check_resumed(&mut sandbox);
}

/// Submits blocks on a storage that may crash; returns the number of blocks acknowledged before the crash.
fn run_into_crash(storage: &CrashStorage, sandbox: &Sandbox, starts: usize) -> Option<usize> {
    let names = ["a1", "a2", "a3", "a4"];
    let mut answered = 0;
    for part in names.chunks(names.len().div_ceil(starts)) {
        let Ok((mut manager, _)) = Sandbox::try_on(storage, &fresh()) else {
            return Some(answered);
        };
        for name in part {
            match manager.submit(sandbox.raw(name)) {
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
fn a_crash_at_any_sync_point_leaves_a_usable_log() {
    let mut sandbox = Sandbox::new();
    sandbox.build("genesis", "a1 a2 a3 a4");
    for after in [AfterCrash::Fail, AfterCrash::Unnoticed] {
        for at in 0.. {
            let storage = CrashStorage::new();
            storage.crash_at(at, after);
            if run_into_crash(&storage, &sandbox, 2).is_none() {
                assert!(at > 5, "{at} sync points");
                break;
            }
            let images = (0..8).map(|seed| storage.crash_image(seed));
            for image in images.chain([storage.durable_image()]) {
                let (manager, _) = Sandbox::on(&image, &fresh());
                let height = manager.tip().height as usize;
                let names = ["genesis", "a1", "a2", "a3", "a4"];
                assert_eq!(manager.tip().hash, sandbox.hash(names[height]));
                // The next start resumes from there.
                assert_eq!(run_into_crash(&image, &sandbox, 1), None);
            }
        }
    }
}

/// Runs [`run_into_crash`] on a folder that has some of the blocks.
#[test]
fn synced_records_survive() {
    let storage = CrashStorage::new();
    let state = fresh();
    let mut sync = None;
    let coins: Box<dyn TipCoins> = Box::new(TestCoins(Arc::clone(&state)));
    let open = |log_sync| {
        sync = Some(log_sync);
        Ok::<_, ChainManagerError>(coins)
    };
    let (manager, _) =
        ChainManager::open(regtest(), Arc::new(storage.clone()), None, open).unwrap();
    let mut sandbox = Sandbox::of(manager, state);
    sandbox.build("genesis", "a1 a2 a3");
    sandbox.accept("a1 a2");
    sync.unwrap().sync().unwrap();
    sandbox.accept("a3");
    let (manager, _) = Sandbox::on(&storage.durable_image(), &fresh());
    assert_eq!(manager.tip().hash, sandbox.hash("a2"));
    // Coins ahead of the log cannot be used.
    let Err(error) = Sandbox::try_on(&storage.durable_image(), &sandbox.state) else { panic!() };
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
fn a_torn_end_is_skipped_and_reported() {
    let storage = CrashStorage::new();
    let sandbox = lived(&storage);
    let whole = storage.live_files()[FIRST].len();
    for cut in 0..=whole {
        let torn = edit(&storage, FIRST, |bytes| bytes.truncate(cut));
        let (manager, resumed) = Sandbox::on(&torn, &{
            let state = sandbox.state.lock().unwrap().clone();
            Arc::new(Mutex::new(TestState { chain: Vec::new(), ..state }))
        });
        assert!(resumed.records <= 9 && manager.tip().height <= 3);
        assert!(resumed.torn_bytes < 400, "{resumed:?}");
        assert_eq!(resumed.records == 9, cut == whole, "{cut}");
    }
}

#[test]
fn damage_before_the_end_is_refused() {
    let storage = CrashStorage::new();
    let mut sandbox = lived(&storage);
    sandbox.manager = Sandbox::on(&storage, &sandbox.state).0;
    sandbox.expect("c4", rejected("bad-prevblk"), "a3");
    sandbox.reconsider("c3");
    let files = storage.live_files();
    assert_eq!(files.keys().collect::<Vec<_>>(), [FIRST, SECOND]);
    let refused = |storage: &CrashStorage, what: &str| {
        let Err(error) = Sandbox::try_on(storage, &fresh()) else { panic!("{what}") };
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
fn files_of_other_programs_stay_untouched() {
    let storage = CrashStorage::new();
    for name in ["lock", "blocks-1.log", "blocks-00000001.log.tmp"] {
        storage.create(name).unwrap().write_all(b"theirs").unwrap();
    }
    drop(lived(&storage));
    drop(Sandbox::on(&storage, &fresh()));
    assert_eq!(storage.live_files()["lock"], b"theirs");
}

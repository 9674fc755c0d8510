//! A writing process, killed at any moment: the store is at the block that it states.

use super::support::{assert_same, random_step};
use apus_chain::Network;
use apus_engine::utxo::CoinsStore;
use apus_engine::utxo::store::{DiskOptions, DiskStore, MemoryStore};
use apus_testkit::effort::rounds;
use apus_testkit::rng::Rng;
use std::path::Path;
use std::process::{Command, Stdio};
use std::time::Duration;
use std::{env, thread};

const FOLDER: &str = "APUS_TEST_STORE_TO_WRITE";

fn open(folder: &Path) -> DiskStore {
    let options = DiskOptions { cache_bytes: 1 << 20, table_bytes: 128 << 10 };
    DiskStore::open(folder, Network::Regtest, options).unwrap()
}

/// Returns the flush to a height, the same in every process.
fn step(height: u32) -> super::support::Step {
    let mut rng = Rng::new(u64::from(height));
    let changes = rng.between(1, 4000);
    random_step(height, changes, 20_000, &mut rng)
}

/// The process that is killed: the test below starts it with a folder, where it writes forever.
#[test]
#[ignore = "started by the test that kills it"]
fn writer() {
    // Running all ignored tests runs this one too; then it has no folder.
    let Some(folder) = env::var_os(FOLDER) else { return };
    let store = open(Path::new(&folder));
    let mut height = store.tip().unwrap().map_or(0, |tip| tip.height + 1);
    loop {
        step(height).write(&store).unwrap();
        height += 1;
    }
}

#[test]
fn a_killed_writer_leaves_the_store_at_a_block() {
    let folder = tempfile::tempdir().unwrap();
    let (model, mut rng) = (MemoryStore::new(), Rng::new(31));
    let (mut next, mut kills) = (0, 0);
    while kills < rounds(10, 25) || next < rounds(20, 50) as u32 {
        let mut writer = Command::new(env::current_exe().unwrap())
            .args(["--exact", "kill::writer", "--ignored", "--nocapture"])
            .env(FOLDER, folder.path())
            .stdout(Stdio::null())
            .spawn()
            .unwrap();
        thread::sleep(Duration::from_millis(rng.between(5, 250)));
        assert!(writer.try_wait().unwrap().is_none(), "the writer ended by itself");
        writer.kill().unwrap();
        writer.wait().unwrap();
        kills += 1;
        assert!(kills < 1000, "{next} flushes in {kills} starts");

        let store = open(folder.path());
        let Some(tip) = store.tip().unwrap() else { continue };
        while next <= tip.height {
            step(next).write(&model).unwrap();
            next += 1;
        }
        assert_same(&store, &model, next);
    }
}

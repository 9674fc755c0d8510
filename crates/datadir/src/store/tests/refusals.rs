//! Refuses invalid requests and folders, and changes nothing.

use super::*;
use apus_chain::Network;

/// Expects a refusal that changes nothing.
#[track_caller]
fn refused(home: &Home) -> BlockStoreError {
    let before = home.state();
    let error = home.open().unwrap_err();
    assert!(home.state() == before, "{error}");
    error
}

#[track_caller]
fn foreign(home: &Home, what: &str) {
    let error = refused(home);
    assert!(matches!(error, BlockStoreError::Foreign { .. }), "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[track_caller]
fn damaged(home: &Home, what: &str) {
    let error = refused(home);
    let is_damage = matches!(error, BlockStoreError::Damaged { .. });
    assert!(is_damage && error.to_string().contains(what), "{error} about {what}");
}

/// Makes a folder of several blocks and files with undo data.
fn filled(max: u64) -> (Home, Vec<Made>) {
    let all = made(&[(100, 50); 9]);
    let home = Home::new(KEY, max, &all);
    let kept = home.open().unwrap();
    for made in all.iter().rev() {
        kept.put(&made.hash, &made.block).unwrap();
    }
    for made in &all[1..] {
        kept.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
    }
    kept.sync().unwrap();
    (home, all)
}

#[test]
fn a_nodes_folder_is_refused() {
    let all = made(&[(30, 0)]);
    for name in ["blk00000.dat", "blk00017.dat", "rev00000.dat"] {
        for log in [None, Some(vec![]), Some(log::head(MAGIC, Obfuscation::new(KEY)))] {
            // A node without blocks has one plain file; with a log, it could be ours.
            let home = Home::new(KEY, FILE_BYTES_MAX, &all);
            fs::create_dir_all(home.blocks()).unwrap();
            fs::write(home.blocks().join(name), vec![0; home.genesis.len() + 9]).unwrap();
            if let Some(log) = log {
                fs::write(home.log(), log).unwrap();
            }
            foreign(&home, name);
        }
    }
    let home = Home::new(KEY, FILE_BYTES_MAX, &all);
    fs::create_dir_all(home.blocks().join("index")).unwrap();
    foreign(&home, "block index");
    let (home, _) = filled(900);
    fs::create_dir(home.blocks().join("index")).unwrap();
    foreign(&home, "block index");
    // Without a log, nothing shows that the folder is ours.
    fs::remove_dir(home.blocks().join("index")).unwrap();
    fs::remove_file(home.log()).unwrap();
    foreign(&home, "has the file");
}

/// A caller that knows a folder to be ours can start over in it. Unrelated files stay.
#[test]
fn our_own_folder_can_start_over() {
    let (home, all) = filled(900);
    fs::write(home.blocks().join("readme"), b"text").unwrap();
    for _ in 0..2 {
        BlockStore::remove(&home.blocks(), &home.log()).unwrap();
        let left: Vec<_> = home.state().into_keys().collect();
        assert_eq!(left, ["readme", "xor.dat"].map(|name| home.blocks().join(name)));
    }
    assert_eq!(home.open().unwrap().block_count(), 1);
    assert!(!home.open().unwrap().has(&all[1].hash));
    let nowhere = home.dir.path().join("nowhere");
    BlockStore::remove(&nowhere, &nowhere.join("log")).unwrap();
}

/// In a folder without a genesis block, any block may be the first.
#[test]
fn a_folder_may_begin_with_any_block() {
    let all = made(&[(100, 50); 9]);
    let home = Home::new(KEY, 900, &all);
    let open = || {
        let (blocks, log) = (home.blocks(), home.log());
        BlockStore::open_with(&blocks, &log, MAGIC, home.key, None, home.max)
    };
    let store = open().unwrap();
    assert_eq!(store.block_count(), 0);
    store.put(&all[4].hash, &all[4].block).unwrap();
    store.put_undo(&all[4].hash, &all[4].prev, spends(&all[4].undo)).unwrap();
    store.sync().unwrap();
    drop(store);
    let store = open().unwrap();
    assert_eq!((store.block_count(), store.has_undo(&all[4].hash)), (1, true));
    drop(store);
    // With a genesis block, it counts as a different folder.
    damaged(&home, "genesis");
    // Without records in the log, the folder starts over.
    fs::write(home.log(), log::head(MAGIC, home.key)).unwrap();
    assert_eq!(open().unwrap().block_count(), 0);
    fs::write(home.blocks().join("blk00000.dat"), b"more").unwrap();
    fs::remove_file(home.log()).unwrap();
    assert!(matches!(open(), Err(BlockStoreError::Foreign { .. })));
}

/// Blocks stored in chain order can be discarded from the end.
#[test]
fn later_blocks_are_discarded() {
    let all = made(&[(100, 50); 9]);
    let [home, wanted] = [(); 2].map(|()| Home::new(KEY, 900, &all));
    let fill = |home: &Home, count: usize| {
        let store = home.open().unwrap();
        for made in &all[1..count] {
            store.put(&made.hash, &made.block).unwrap();
            store.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
        }
        store.sync().unwrap();
    };
    fill(&home, 9);
    fill(&wanted, 5);
    let open = |last: &BlockHash| {
        BlockStore::open_up_to(&home.blocks(), &home.log(), MAGIC, home.key, last).unwrap()
    };
    assert_eq!(open(&BlockHash([1; 32])).block_count(), 9);
    let store = open(&all[4].hash);
    assert_eq!((store.block_count(), store.has_undo(&all[4].hash)), (5, true));
    assert!(!store.has(&all[5].hash));
    drop(store);
    assert!(home.state().into_values().eq(wanted.state().into_values()));
}

#[test]
fn other_files_do_no_harm() {
    let all = made(&[(30, 0)]);
    let home = Home::new(KEY, FILE_BYTES_MAX, &all);
    fs::create_dir_all(home.blocks()).unwrap();
    for name in [".lock", "xor.dat", "blk1.dat", "readme"] {
        fs::write(home.blocks().join(name), b"text").unwrap();
    }
    drop(home.open().unwrap());
    assert!(home.open().unwrap().has(&all[0].hash));
    assert_eq!(fs::read(home.blocks().join("readme")).unwrap(), b"text");
}

#[test]
fn short_missing_and_foreign_files_are_named() {
    let (home, all) = filled(900);
    let state = home.state();
    assert!(state.len() > 8, "several files: {:?}", state.keys());
    for (path, bytes) in state.iter().filter(|(path, _)| **path != home.log()) {
        let name = path.file_name().unwrap().to_str().unwrap();
        fs::write(path, &bytes[..bytes.len() - 1]).unwrap();
        damaged(&home, name);
        fs::remove_file(path).unwrap();
        damaged(&home, name);
        // The file has the right length, but another block's content.
        if !name.starts_with("rev") {
            fs::write(path, vec![1; bytes.len()]).unwrap();
            damaged(&home, name);
        }
        fs::write(path, bytes).unwrap();
    }
    let kept = home.open().unwrap();
    assert_eq!(kept.read(&all[3].hash).unwrap().as_ref(), Some(&all[3].block));
}

#[test]
fn a_log_of_another_chain_or_version_is_refused() {
    let (mut home, all) = filled(900);
    let main = Network::Main.magic();
    let before = home.state();
    let opened = BlockStore::open(&home.blocks(), &home.log(), main, home.key, Some(&all[0].block))
        .unwrap_err();
    assert!(opened.to_string().contains("version and chain"), "{opened}");
    assert!(home.state() == before);
    home.genesis = all[1].block.clone();
    damaged(&home, "genesis");
    home.genesis = all[0].block.clone();
    let log = fs::read(home.log()).unwrap();
    for at in [0, 8, 12, 16] {
        let mut other = log.clone();
        other[at] ^= 1;
        fs::write(home.log(), other).unwrap();
        damaged(&home, if at == 16 { "xor.dat" } else { "kept" });
    }
}

/// Flipped bits in the middle of a long log are not mistaken for a crash.
#[test]
fn a_damaged_log_is_reported() {
    let all = made(&vec![(0, 0); 11_000]);
    let home = Home::new(KEY, FILE_BYTES_MAX, &all);
    let kept = home.open().unwrap();
    for made in &all {
        kept.put(&made.hash, &made.block).unwrap();
    }
    kept.sync().unwrap();
    drop(kept);
    let log = fs::read(home.log()).unwrap();
    for at in [24, 25, 24 + 105 * 500 + 7] {
        let mut other = log.clone();
        other[at] ^= 0x10;
        fs::write(home.log(), other).unwrap();
        damaged(&home, "is not intact");
    }
    // Intact records at the wrong offset.
    let mut other = log.clone();
    other.drain(24 + 105 * 3..24 + 105 * 4);
    fs::write(home.log(), other).unwrap();
    damaged(&home, "is not intact");
    fs::write(home.log(), log).unwrap();
    assert!(home.open().unwrap().has(&all[10_999].hash));
}

/// Whatever the log contains, reading it causes no panic, and accepts no record without a valid check.
#[test]
fn any_log_is_read_without_a_panic() {
    let (home, all) = filled(900);
    let (log, mut rng) = (fs::read(home.log()).unwrap(), Rng::new(5));
    for _ in 0..300 {
        let mut other = log.clone();
        other.truncate(rng.index(log.len() + 1));
        for _ in 0..rng.below(3) {
            if !other.is_empty() {
                let at = rng.index(other.len());
                other[at] = rng.next_u64() as u8;
            }
        }
        fs::write(home.log(), &other).unwrap();
        let copy = home.state();
        if let Ok(kept) = home.open() {
            for made in &all {
                if let Some(bytes) = kept.read(&made.hash).unwrap() {
                    assert_eq!(bytes, made.block);
                }
            }
        }
        for (path, bytes) in copy {
            fs::write(path, bytes).unwrap();
        }
    }
}

#[test]
fn invalid_and_wrong_blocks_are_refused_and_change_nothing() {
    let (home, all) = filled(FILE_BYTES_MAX);
    let kept = home.open().unwrap();
    let block = |block: Vec<u8>| Made::new(block, 0);
    let mut no_transactions = synthetic_block(77, 1, 5);
    no_transactions[80] = 0;
    let mut too_long = synthetic_block(78, 1, 5);
    too_long.resize(4_000_001, 0);
    let header_alone = synthetic_block(79, 1, 5)[..80].to_vec();
    let before = home.state();
    for made in [no_transactions, too_long, header_alone].map(block) {
        let error = kept.put(&made.hash, &made.block).unwrap_err();
        assert!(error.to_string().starts_with("block "), "{error}");
        assert!(!kept.has(&made.hash));
    }
    let other = block(synthetic_block(80, 1, 5));
    for raw in [&all[1].block[..], &other.block[..79], &[]] {
        let error = kept.put(&other.hash, raw).unwrap_err();
        assert!(error.to_string().contains(&other.hash.to_string()), "{error}");
    }
    // Undo data of a missing block, of another block, and of the genesis block.
    kept.put(&other.hash, &other.block).unwrap();
    for (hash, prev) in [
        (BlockHash([9; 32]), other.prev),
        (other.hash, BlockHash::ZERO),
        (all[0].hash, BlockHash::ZERO),
    ] {
        let error = kept.put_undo(&hash, &prev, spends(b"undo")).unwrap_err();
        assert!(error.to_string().starts_with("the undo data of block "), "{error}");
    }
    assert!(home.state() == before);
}

/// The store does not return a block that the disk has lost.
#[test]
fn a_lost_block_is_noticed() {
    let (home, all) = filled(900);
    let kept = home.open().unwrap();
    let state = home.state();
    for path in state.keys().filter(|path| path.to_str().unwrap().contains("blk")) {
        fs::write(path, vec![7; state[path].len()]).unwrap();
    }
    for made in &all {
        let error = kept.read(&made.hash).unwrap_err();
        assert!(error.to_string().contains(&made.hash.to_string()), "{error}");
    }
    for path in state.keys().filter(|path| path.to_str().unwrap().contains("blk")) {
        fs::write(path, []).unwrap();
    }
    let error = kept.read(&all[2].hash).unwrap_err();
    assert!(error.to_string().contains("it ends before byte"), "{error}");
}

#[test]
fn undo_data_end_within_32_bit_offsets() {
    let all = made(&[(1, 0), (2, 0)]);
    let home = Home::new(KEY, FILE_BYTES_MAX, &all);
    let kept = home.open().unwrap();
    kept.put(&all[1].hash, &all[1].block).unwrap();
    let state = kept.state().unwrap();
    let entry = *state.places.find(&all[1].hash).unwrap();
    let most = (u32::MAX - 8 - 32) as usize;
    assert!(state.places.undo_place(&entry, most).is_some());
    assert_eq!(state.places.undo_place(&entry, most + 1), None);
    assert_eq!(state.places.undo_place(&entry, usize::MAX), None);
}

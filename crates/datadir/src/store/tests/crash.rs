//! What a crash leaves behind is continued to the same bytes, and damage is said.

use super::*;
use crate::error::ErrorKind;

/// Cuts or lengthens each file at random, never below its length in `durable`, and sometimes
/// leaves a later pair of files.
fn crash(home: &Home, durable: &BTreeMap<String, Vec<u8>>, change: &[(usize, bool)]) {
    let mut names: Vec<String> =
        home.state().into_keys().filter(|name| name != "xor.dat").collect();
    names.push("blk00099.dat".to_owned());
    names.push("rev00098.dat".to_owned());
    for (name, &(more, garbage)) in names.iter().zip(change.iter().cycle()) {
        let path = if name == "log" { home.log() } else { home.blocks().join(name) };
        let mut bytes = fs::read(&path).unwrap_or_default();
        let least = durable.get(name).map_or(0, Vec::len);
        if garbage {
            bytes.truncate(least.max(bytes.len() / 2));
            bytes.extend(core::iter::repeat_n(0xa5, more));
        } else {
            bytes.truncate(least + more);
        }
        fs::write(path, bytes).unwrap();
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn after_a_crash_the_same_bytes_come_out(
        sizes in proptest::collection::vec((0usize..400, 0usize..300), 3..40),
        key: [u8; 8],
        max in 600u64..4_000,
        synced in 0usize..40,
        appended in 0usize..20,
        back in 0u32..4,
        change in proptest::collection::vec((0usize..3_000, any::<bool>()), 1..8),
    ) {
        let all = made(&sizes);
        let whole = Home::new(key, max);
        let mut store = whole.open(0).unwrap();
        all.iter().for_each(|made| append(&mut store, made));
        store.sync().unwrap();

        let home = Home::new(key, max);
        let synced = synced.min(all.len());
        let mut store = home.open(0).unwrap();
        all[..synced].iter().for_each(|made| append(&mut store, made));
        store.sync().unwrap();
        let durable = home.state();
        let end = (synced + appended).min(all.len());
        all[synced..end].iter().for_each(|made| append(&mut store, made));
        // Some of it is with the system, the rest is lost.
        store.blocks.write().unwrap();
        drop(store);
        crash(&home, &durable, &change);

        // The caller may know of fewer blocks than the positions.
        let keep = (synced as u32).saturating_sub(back);
        let mut store = home.open(keep).unwrap();
        prop_assert_eq!(store.next_height(), keep);
        all[keep as usize..].iter().for_each(|made| append(&mut store, made));
        store.sync().unwrap();
        home.expect(&whole.state());
    }
}

/// A store of eight blocks in several files.
fn stored() -> (Home, Vec<Made>) {
    let (home, all) = (Home::new(KEY, 900), made(&[(100, 50); 8]));
    let mut store = home.open(0).unwrap();
    all.iter().for_each(|made| append(&mut store, made));
    store.sync().unwrap();
    (home, all)
}

fn damaged(home: &Home, keep: u32, name: &str) {
    let before = home.state();
    let error = home.open(keep).unwrap_err();
    assert!(matches!(error, BlockStoreError::Damaged { .. }), "{error}");
    assert_eq!(error.kind(), ErrorKind::Invalid);
    assert!(error.to_string().contains(name), "{error} about {name}");
    home.expect(&before);
}

#[test]
fn files_that_are_short_or_gone_are_named() {
    let (home, _all) = stored();
    let state = home.state();
    assert!(state.len() > 6, "several files: {:?}", state.keys());
    let keep = 8;
    for (name, bytes) in &state {
        let path = if name == "log" { home.log() } else { home.blocks().join(name) };
        let shown = if name == "log" { "positions" } else { name };
        fs::write(&path, &bytes[..bytes.len() - 1]).unwrap();
        damaged(&home, keep, shown);
        if name != "log" {
            fs::remove_file(&path).unwrap();
            damaged(&home, keep, shown);
        }
        fs::write(&path, bytes).unwrap();
    }
    damaged(&home, 9, "positions");
    assert_eq!(home.open(keep).unwrap().next_height(), keep);
    fs::remove_file(home.log()).unwrap();
    let error = home.open(keep).unwrap_err();
    assert!(error.to_string().ends_with("begin anew") && error.kind() == ErrorKind::Invalid);
}

#[test]
fn every_flipped_bit_of_the_positions_is_noticed() {
    let (home, _all) = stored();
    let log = fs::read(home.log()).unwrap();
    for bit in 0..log.len() * 8 {
        let mut bytes = log.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        fs::write(home.log(), &bytes).unwrap();
        let error = home.open(8).unwrap_err();
        assert!(matches!(error, BlockStoreError::Damaged { .. }), "bit {bit}: {error}");
    }
    // Whole records in each other's place.
    let mut bytes = log.clone();
    let (head, record) = (positions::HEAD as usize, positions::RECORD as usize);
    bytes.copy_within(head + record..head + 2 * record, head + 2 * record);
    fs::write(home.log(), &bytes).unwrap();
    damaged(&home, 8, "height 2");
    // What is not kept may be anything.
    assert_eq!(home.open(2).unwrap().next_height(), 2);
}

#[test]
fn another_key_or_chain_is_refused() {
    let (home, _all) = stored();
    let open = |magic, key| {
        BlockStore::open(&home.blocks(), &home.log(), magic, Obfuscation::new(key), 0..8)
    };
    assert!(matches!(open(MAGIC, [1; 8]), Err(BlockStoreError::Damaged { .. })));
    assert!(matches!(open([1; 4], KEY), Err(BlockStoreError::Damaged { .. })));
    fs::write(home.blocks().join("xor.dat"), [1; 8]).unwrap();
    damaged(&home, 8, "xor.dat");
    // Begun anew it does not matter what lies there.
    let store =
        BlockStore::open(&home.blocks(), &home.log(), [1; 4], Obfuscation::NONE, 0..0).unwrap();
    assert_eq!(store.next_height(), 0);
    assert_eq!(home.state().len(), 4);
}

#[test]
fn any_positions_give_an_answer() {
    let (home, _all) = stored();
    for length in [0, 1, 27, 28, 29, 28 + 136, 28 + 8 * 136] {
        fs::write(home.log(), vec![0xff; length]).unwrap();
        damaged(&home, 8, "positions");
    }
}

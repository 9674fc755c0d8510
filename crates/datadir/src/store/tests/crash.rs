//! After a crash, all synced data is intact, other data may be there or not, and no stored block is wrong.

use super::*;

/// The expected state of a store during the test.
struct Model<'a> {
    home: &'a Home,
    all: &'a [Made],
    /// The indexes of blocks and of blocks with undo data: the synced ones, then all.
    synced: (BTreeSet<usize>, BTreeSet<usize>),
    put: (BTreeSet<usize>, BTreeSet<usize>),
    /// The files after the last sync.
    durable: BTreeMap<PathBuf, Vec<u8>>,
}

impl<'a> Model<'a> {
    fn new(home: &'a Home, all: &'a [Made]) -> Self {
        let first = (BTreeSet::from([0]), BTreeSet::new());
        Self { home, all, synced: first.clone(), put: first, durable: home.state() }
    }

    fn step(&mut self, kept: &BlockStore, rng: &mut Rng) {
        let at = rng.index(self.all.len());
        let made = &self.all[at];
        let before = self.put.clone();
        if rng.one_in(4) && at > 0 && self.put.0.contains(&at) {
            kept.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
            self.put.1.insert(at);
        } else {
            kept.put(&made.hash, &made.block).unwrap();
            self.put.0.insert(at);
        }
        // The store may sync by itself before it stores something.
        if fs::read(self.home.log()).unwrap() != self.durable[&self.home.log()] {
            (self.synced, self.durable) = (before, self.home.state());
        }
    }

    fn sync(&mut self, kept: &BlockStore) {
        kept.sync().unwrap();
        (self.synced, self.durable) = (self.put.clone(), self.home.state());
    }

    /// Simulates a crash: randomly changes data that is not durable, in the files that `may` selects.
    fn spoil(&self, rng: &mut Rng, may: impl Fn(&Path) -> bool) {
        let mut files = self.home.state();
        for name in ["blk00098.dat", "rev00099.dat"] {
            files.insert(self.home.blocks().join(name), Vec::new());
        }
        for (path, mut bytes) in files.into_iter().filter(|(path, _)| may(path)) {
            let least = self.durable.get(&path).map_or(0, Vec::len);
            bytes.truncate(least + rng.index(bytes.len() - least + 1));
            match rng.below(3) {
                0 => bytes.extend(rng.bytes(300)),
                1 => bytes.extend(vec![0; 5_000]),
                _ => {}
            }
            if rng.one_in(2) && bytes.len() > least {
                let from = least + rng.index(bytes.len() - least);
                bytes[from..].fill(0);
            }
            fs::write(path, bytes).unwrap();
        }
    }

    /// Checks that all synced data is there, and that all data is right.
    fn check(&mut self, kept: &BlockStore) {
        let mut found = (BTreeSet::new(), BTreeSet::new());
        for (at, made) in self.all.iter().enumerate() {
            if let Some(bytes) = kept.read(&made.hash).unwrap() {
                assert_eq!(bytes, made.block);
                found.0.insert(at);
            }
            if let Some(undo) = undo_of(self.home, kept, made) {
                assert_eq!(undo, made.undo);
                found.1.insert(at);
            }
        }
        assert!(found.0.is_superset(&self.synced.0) && found.1.is_superset(&self.synced.1));
        assert!(found.0.is_subset(&self.put.0) && found.1.is_subset(&self.put.1));
        self.put = found;
        self.sync(kept);
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]

    #[test]
    fn a_crash_takes_nothing_that_was_synced(
        sizes in proptest::collection::vec((0usize..600, 0usize..500), 2..40),
        key: [u8; 8],
        max in 600u64..6_000,
        seed: u64,
        crashes in 1usize..5,
    ) {
        let (all, mut rng) = (made(&sizes), Rng::new(seed));
        let home = Home::new(key, max, &all);
        let mut kept = home.open().unwrap();
        let mut model = Model::new(&home, &all);
        for _ in 0..crashes {
            for _ in 0..rng.index(30) {
                model.step(&kept, &mut rng);
                if rng.one_in(9) {
                    model.sync(&kept);
                }
            }
            if rng.one_in(2) {
                // The system has written some of it; the rest is lost.
                kept.state().unwrap().take_unsynced().unwrap();
                drop(kept);
                model.spoil(&mut rng, |path| {
                    *path != home.log() && !path.ends_with("xor.dat")
                });
            } else {
                // The crash interrupted a sync: only the log was not written.
                kept.sync().unwrap();
                drop(kept);
                model.spoil(&mut rng, |path| *path == home.log());
            }
            kept = home.open().unwrap();
            model.check(&kept);
        }
        // The store continues as if no crash had happened.
        for made in &all {
            kept.put(&made.hash, &made.block).unwrap();
        }
        kept.sync().unwrap();
        let order: Vec<_> = kept.state().unwrap().places.entries().to_vec();
        let made = |entry: &StoreEntry| all.iter().find(|made| made.hash == entry.hash).unwrap();
        prop_assert_eq!(order.len(), all.len());
        check_scan(&home, &order.iter().map(made).collect::<Vec<_>>());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// Blocks stored in chain order end up at the same positions as without a crash, and the files contain
    /// nothing else.
    #[test]
    fn after_a_crash_the_same_files_come_out(
        sizes in proptest::collection::vec((0usize..400, 0usize..300), 3..40),
        max in 600u64..4_000,
        seed: u64,
    ) {
        let (all, mut rng) = (made(&sizes), Rng::new(seed));
        let put = |store: &BlockStore, made: &Made| {
            store.put(&made.hash, &made.block).unwrap();
            if made.prev != BlockHash::ZERO {
                store.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
            }
        };
        let [whole, home] = [(); 2].map(|()| Home::new(KEY, max, &all));
        let store = whole.open().unwrap();
        all.iter().for_each(|made| put(&store, made));
        store.sync().unwrap();

        let mut store = home.open().unwrap();
        let mut model = Model::new(&home, &all);
        for (at, made) in all.iter().enumerate() {
            put(&store, made);
            if rng.one_in(9) {
                model.sync(&store);
            } else if rng.one_in(9) {
                store.state().unwrap().take_unsynced().unwrap();
                drop(store);
                // The test does not know which data the store synced by itself, so the simulated crash does
                // not change the log.
                model.durable = home.state();
                model.spoil(&mut rng, |path| path.to_str().unwrap().contains("0009"));
                store = home.open().unwrap();
                all[..=at].iter().for_each(|made| put(&store, made));
            }
        }
        store.sync().unwrap();
        let files = |home: &Home| {
            let files = home.state().into_iter().filter(|(path, _)| *path != home.log());
            files.map(|(path, bytes)| (path.file_name().unwrap().to_owned(), bytes)).collect::<Vec<_>>()
        };
        prop_assert!(files(&home) == files(&whole));
    }
}

/// The content of the log, the key file and the first file, if present.
type Image<'a> = (&'a [u8], Option<&'a [u8]>, Option<&'a [u8]>);

/// A folder whose creation was interrupted can be created again, from any intermediate state.
#[test]
fn an_interrupted_creation_can_be_repeated() {
    let all = made(&[(30, 0), (20, 0)]);
    let whole = Home::new(KEY, FILE_BYTES_MAX, &all);
    drop(whole.open().unwrap());
    let files: BTreeMap<String, Vec<u8>> = whole
        .state()
        .into_iter()
        .map(|(path, bytes)| (path.file_name().unwrap().to_str().unwrap().to_owned(), bytes))
        .collect();
    let (log, block) = (&files["kept"], &files["blk00000.dat"]);
    let (zeros, head) = ([0; 24], &log[..24]);
    let images: [Image<'_>; 9] = [
        (&[], None, None),
        (&head[..9], None, None),
        (&zeros, None, None),
        (head, None, None),
        (head, Some(&[]), None),
        (head, Some(&KEY), Some(&[])),
        (head, Some(&KEY), Some(&block[..60])),
        (head, Some(&KEY), Some(block)),
        (&log[..log.len() - 1], Some(&KEY), Some(block)),
    ];
    for (log, key, block) in images {
        let home = Home::new(KEY, FILE_BYTES_MAX, &all);
        fs::create_dir_all(home.blocks()).unwrap();
        fs::write(home.log(), log).unwrap();
        for (name, bytes) in [("xor.dat", key), ("blk00000.dat", block)] {
            if let Some(bytes) = bytes {
                fs::write(home.blocks().join(name), bytes).unwrap();
            }
        }
        let kept = home.open().unwrap();
        assert_eq!(kept.read(&all[0].hash).unwrap().as_ref(), Some(&all[0].block));
        drop(kept);
        assert!(home.state().values().eq(whole.state().values()));
    }
}

/// After a failed sync no later call reports success.
#[test]
fn after_a_failed_sync_nothing_more_is_stored() {
    let all = made(&[(30, 0), (20, 0), (10, 0)]);
    let home = Home::new(KEY, FILE_BYTES_MAX, &all);
    let kept = home.open().unwrap();
    kept.put(&all[1].hash, &all[1].block).unwrap();
    kept.put_undo(&all[1].hash, &all[1].prev, spends(b"undo")).unwrap();
    let before = fs::read(home.log()).unwrap();
    // Make the sync of the undo file's name fail.
    fs::remove_dir_all(home.blocks()).unwrap();
    let error = kept.sync().unwrap_err();
    assert!(matches!(error, BlockStoreError::Io { .. }), "{error}");
    fs::create_dir(home.blocks()).unwrap();
    let errors = [
        kept.sync().unwrap_err(),
        kept.put(&all[2].hash, &all[2].block).unwrap_err(),
        kept.put_undo(&all[1].hash, &all[1].prev, spends(b"undo")).unwrap_err(),
    ];
    for error in errors {
        assert!(matches!(error, BlockStoreError::Failed { .. }), "{error}");
    }
    assert_eq!(fs::read(home.log()).unwrap(), before);
}

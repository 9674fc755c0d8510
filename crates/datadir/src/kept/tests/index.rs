//! The index of what is kept, read back. What a node says of one is in `node`.

use super::*;
use crate::index::{IndexEntry, read_index};
use crate::leveldb::Database;
use crate::store::UndoLocation;
use apus_chain::write_varint;
use apus_storage::DirStorage;
use apus_testkit::storage::CrashStorage;

/// Core's record of a file, by its rule for each block that it adds (`node/blockstorage.h`,
/// `CBlockFileInfo::AddBlock`).
#[derive(Default)]
struct Info {
    blocks: u64,
    size: u64,
    undo_size: u64,
    heights: [u64; 2],
    times: [u64; 2],
}

impl Info {
    fn add(&mut self, height: u64, time: u64) {
        for (range, value) in [(&mut self.heights, height), (&mut self.times, time)] {
            if self.blocks == 0 || range[0] > value {
                range[0] = value;
            }
            range[1] = range[1].max(value);
        }
        self.blocks += 1;
    }

    fn to_bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        let numbers = [self.blocks, self.size, self.undo_size];
        for number in numbers.iter().chain(&self.heights).chain(&self.times) {
            write_varint(&mut out, *number);
        }
        out
    }
}

fn entries(blocksdir: &Path) -> Vec<IndexEntry> {
    let mut entries = Vec::new();
    let visit = read_index(blocksdir, &mut |entry| {
        entries.push(entry);
        ControlFlow::Continue(())
    });
    visit.unwrap();
    entries.sort_by_key(|entry| entry.height);
    entries
}

/// All of an index that is not about blocks.
fn others(blocksdir: &Path) -> BTreeMap<Vec<u8>, Vec<u8>> {
    let mut others = BTreeMap::new();
    let visit = Database::open(&blocksdir.join("index")).unwrap().for_each(&mut |key, value| {
        if key[0] != b'b' {
            others.insert(key.to_vec(), value.to_vec());
        }
        Ok(ControlFlow::Continue(()))
    });
    visit.unwrap();
    others
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]

    #[test]
    fn all_blocks_of_the_chain_stand_in_it(
        sizes in proptest::collection::vec((0usize..600, 0usize..300), 1..50),
        max in 600u64..6_000,
        seed: u64,
        stale in 0usize..6,
        with_undo in 0usize..20,
    ) {
        let (chain, mut rng) = (made(&sizes), Rng::new(seed));
        let home = Home::new(KEY, max, &chain);
        let aside = (0..stale as u32).map(|n| Made::new(synthetic_block(1_000 + n, 2, 40), 8));
        let mut order: Vec<Made> = chain[1..].iter().cloned().chain(aside).collect();
        rng.shuffle(&mut order);
        let kept = home.open().unwrap();
        let mut files = vec![Info::default()];
        let mut places = BTreeMap::new();
        let mut undos = BTreeMap::new();
        for made in chain[..1].iter().chain(&order) {
            kept.put(&made.hash, &made.block).unwrap();
            let size = made.block.len() as u64;
            let mut file = files.last_mut().unwrap();
            if file.size > 0 && file.size + 8 + size >= max {
                files.push(Info::default());
                file = files.last_mut().unwrap();
            }
            let offset = file.size + 8;
            file.size += 8 + size;
            places.insert(made.hash, (files.len() as u32 - 1, offset));
            if let Some(height) = chain.iter().position(|known| known.hash == made.hash) {
                let time = Header::parse(made.block.first_chunk().unwrap()).time;
                files.last_mut().unwrap().add(height as u64, u64::from(time));
            }
        }
        // Those of the last blocks, and of one beside the chain.
        let last = chain.len() - with_undo.min(chain.len() - 1);
        let beside = order.iter().filter(|made| !chain.iter().any(|known| known.hash == made.hash));
        for made in chain[last..].iter().chain(beside.take(1)) {
            kept.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
            let file = &mut files[places[&made.hash].0 as usize];
            undos.insert(made.hash, (places[&made.hash].0, file.undo_size + 8));
            file.undo_size += 40 + made.undo.len() as u64;
        }
        let index = home.blocks().join("index");
        fs::create_dir(&index).unwrap();
        let mut hashes = chain.iter().map(|made| made.hash);
        kept.write_index(&DirStorage::new(&index), &mut hashes).unwrap();

        let found = entries(&home.blocks());
        prop_assert_eq!(found.len(), chain.len());
        for ((height, made), entry) in (0..).zip(&chain).zip(found) {
            let undo = undos.get(&made.hash).copied();
            let validity = if height == 0 { 3 } else { 5 };
            let want = IndexEntry {
                hash: made.hash,
                header: *made.block.first_chunk().unwrap(),
                height,
                status: 128 + 8 + validity + if undo.is_some() { 16 } else { 0 },
                tx_count: u32::from(made.block[80]),
                data: places.get(&made.hash).copied(),
                undo,
            };
            prop_assert_eq!(entry, want);
        }
        let mut want = BTreeMap::new();
        for (number, info) in (0u32..).zip(&files) {
            want.insert([&b"f"[..], &number.to_le_bytes()].concat(), info.to_bytes());
        }
        want.insert(b"l".to_vec(), (files.len() as u32 - 1).to_le_bytes().to_vec());
        prop_assert_eq!(others(&home.blocks()), want);
        // What it says of the files' lengths is so.
        for (number, info) in (0..).zip(&files) {
            let length = |name| fs::metadata(home.blocks().join(name)).map_or(0, |meta| meta.len());
            prop_assert_eq!(length(files::file_name(number)), info.size);
            prop_assert_eq!(length(crate::rev::file_name(number)), info.undo_size);
        }
    }
}

#[test]
fn what_is_no_chain_or_not_there_is_refused() {
    let all = made(&[(20, 10); 6]);
    let home = Home::new(KEY, 700, &all);
    let kept = home.open().unwrap();
    for made in &all[..5] {
        kept.put(&made.hash, &made.block).unwrap();
    }
    let write = |chain: &[usize]| {
        let mut hashes = chain.iter().map(|at| all[*at].hash);
        kept.write_index(&CrashStorage::new(), &mut hashes).map_err(|error| error.to_string())
    };
    write(&[0, 1, 2, 3, 4]).unwrap();
    write(&[0, 1, 2]).unwrap();
    assert!(write(&[0, 1, 2, 3, 4, 5]).unwrap_err().contains("at height 5 is not there"));
    for chain in [&[1, 2][..], &[0, 2], &[0, 1, 1], &[0, 1, 2, 3, 4, 0]] {
        let said = write(chain).unwrap_err();
        assert!(said.contains("does not follow the one before it"), "{said}");
    }
    // An endless chain ends.
    let mut endless = std::iter::repeat(all[0].hash);
    kept.write_index(&CrashStorage::new(), &mut endless).unwrap_err();
}

/// The log is asked for headers and places again, and not believed blindly.
#[test]
fn a_log_that_changed_meanwhile_is_told() {
    let all = made(&[(20, 10); 3]);
    let home = Home::new(KEY, 700, &all);
    let kept = home.open().unwrap();
    for made in &all[1..] {
        kept.put(&made.hash, &made.block).unwrap();
        kept.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
    }
    kept.sync().unwrap();
    let log = fs::read(home.log()).unwrap();
    for at in 24..log.len() {
        let mut other = log.clone();
        other[at] ^= 4;
        fs::write(home.log(), other).unwrap();
        let mut hashes = all.iter().map(|made| made.hash);
        let error = kept.write_index(&CrashStorage::new(), &mut hashes).unwrap_err();
        assert!(error.to_string().contains("is not that of block"), "{error}");
    }
}

#[test]
fn a_file_that_is_not_there_is_no_place() {
    let all = made(&[(1, 0)]);
    let place = BlockLocation { file: 1, offset: 8, size: 90 };
    let stored = crate::store::StoredBlock {
        header: *all[0].block.first_chunk().unwrap(),
        tx_count: 1,
        block: place,
        undo: Some(UndoLocation { offset: 8, size: 4 }),
        spent: KeyedCoinSum::NONE,
    };
    let kept = IndexedBlocks::InAnyOrder { stored_at: &mut |_| Ok(stored), files: &[] };
    let error = write_block_index(&CrashStorage::new(), 1, kept).unwrap_err();
    assert!(matches!(error, IndexWriteError::File { height: 0, file: 1 }), "{error}");
    assert!(error.to_string().contains("file 1"), "{error}");
}

//! Reads a written index back. The module `node` tests it with a real node.

use super::*;
use crate::index::{
    ChainBlock, IndexEntry, IndexFlags, IndexWriteError, read_index_flags, write_block_index,
};
use crate::leveldb::Database;
use crate::tests::index_entries;
use apus_chain::write_varint;
use apus_storage::{DirStorage, Storage};
use apus_testkit::storage::CrashStorage;

/// Core's record of a file, computed with Core's rule for each added block (`node/blockstorage.h`,
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
    let mut entries = index_entries(blocksdir);
    entries.sort_by_key(|entry| entry.height);
    entries
}

/// Reads all index entries that are not about blocks.
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
    fn the_index_has_all_blocks_of_the_chain(
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
        // Store undo data of the last blocks, and of one block off the chain.
        let last = chain.len() - with_undo.min(chain.len() - 1);
        let off_chain = order.iter().filter(|made| !chain.iter().any(|known| known.hash == made.hash));
        for made in chain[last..].iter().chain(off_chain.take(1)) {
            kept.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
            let file = &mut files[places[&made.hash].0 as usize];
            undos.insert(made.hash, (places[&made.hash].0, file.undo_size + 8));
            file.undo_size += 40 + made.undo.len() as u64;
        }
        let index = home.blocks().join("index");
        fs::create_dir(&index).unwrap();
        write(&kept, &DirStorage::new(&index), &chain).unwrap();

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
        // The index states the right file lengths.
        for (number, info) in (0..).zip(&files) {
            let length = |name| fs::metadata(home.blocks().join(name)).map_or(0, |meta| meta.len());
            prop_assert_eq!(length(files::file_name(number)), info.size);
            prop_assert_eq!(length(crate::rev::file_name(number)), info.undo_size);
        }
    }
}

/// Writes the index of this chain; expects that all its blocks are stored.
fn write(store: &BlockStore, folder: &dyn Storage, chain: &[Made]) -> Result<(), IndexWriteError> {
    let at = &mut |height| ChainBlock::Stored(chain[height as usize].hash);
    write_block_index(store, folder, chain.len() as u32, at)
}

#[test]
fn broken_chains_and_missing_blocks_are_refused() {
    let all = made(&[(20, 10); 6]);
    let home = Home::new(KEY, 700, &all);
    let kept = home.open().unwrap();
    for made in &all[..5] {
        kept.put(&made.hash, &made.block).unwrap();
    }
    let write = |chain: &[usize]| {
        let chain: Vec<Made> = chain.iter().map(|at| all[*at].clone()).collect();
        write(&kept, &CrashStorage::new(), &chain).map_err(|error| error.to_string())
    };
    write(&[0, 1, 2, 3, 4]).unwrap();
    write(&[0, 1, 2]).unwrap();
    assert!(write(&[0, 1, 2, 3, 4, 5]).unwrap_err().contains("is not stored"));
    for chain in [&[1, 2][..], &[0, 2], &[0, 1, 1], &[0, 1, 2, 3, 4, 0]] {
        let said = write(chain).unwrap_err();
        assert!(said.contains("does not follow the block before it"), "{said}");
    }
}

/// Writes enough files that their key order differs from their number order.
#[test]
fn the_index_has_all_files() {
    let all = made(&[(0, 0); 700]);
    let home = Home::new(KEY, 300, &all);
    let kept = home.open().unwrap();
    for made in &all {
        kept.put(&made.hash, &made.block).unwrap();
    }
    let index = home.blocks().join("index");
    fs::create_dir(&index).unwrap();
    write(&kept, &DirStorage::new(&index), &all).unwrap();
    let others = others(&home.blocks());
    let last = kept.files().unwrap().len() as u32 - 1;
    assert!(last > 300, "{last}");
    assert_eq!(others.len() as u32, last + 2);
    assert_eq!(others[&b"l"[..]], last.to_le_bytes());
}

/// A folder of the last blocks, with pruned ones below.
fn write_last(
    store: &BlockStore,
    folder: &dyn Storage,
    chain: &[Made],
    first: u32,
) -> Result<(), IndexWriteError> {
    let at = &mut |height: u32| {
        let made = &chain[height as usize];
        match height < first {
            true => ChainBlock::Pruned(*made.block.first_chunk().unwrap(), tx_count(made)),
            false => ChainBlock::Stored(made.hash),
        }
    };
    write_block_index(store, folder, chain.len() as u32, at)
}

fn tx_count(made: &Made) -> u32 {
    u32::from(made.block[80])
}

#[test]
fn the_index_states_that_blocks_were_pruned() {
    let sizes: Vec<_> = (0..300).map(|n| (n % 90, n % 40)).collect();
    let all = made(&sizes);
    let home = Home::new(KEY, 100_000, &all);
    let kept = BlockStore::open_with(&home.blocks(), &home.log(), MAGIC, home.key, None, home.max)
        .unwrap();
    let mut info = Info::default();
    for (height, made) in (0u64..).zip(&all).skip(260) {
        kept.put(&made.hash, &made.block).unwrap();
        kept.put_undo(&made.hash, &made.prev, spends(&made.undo)).unwrap();
        let time = Header::parse(made.block.first_chunk().unwrap()).time;
        info.add(height, u64::from(time));
        info.size += made.block.len() as u64 + 8;
        info.undo_size += made.undo.len() as u64 + 40;
    }
    let index = home.blocks().join("index");
    fs::create_dir(&index).unwrap();
    write_last(&kept, &DirStorage::new(&index), &all, 260).unwrap();
    let found = entries(&home.blocks());
    assert_eq!(found.len(), 300);
    for ((height, made), entry) in (0..).zip(&all).zip(found) {
        let stored = (height >= 260).then(|| kept.stored(&made.hash).unwrap());
        let status = match height {
            0 => 131,
            1..260 => 133,
            _ => 157,
        };
        let want = IndexEntry {
            hash: made.hash,
            header: *made.block.first_chunk().unwrap(),
            height,
            status,
            tx_count: tx_count(made),
            data: stored.map(|stored| (0, stored.block.offset)),
            undo: stored.map(|stored| (0, stored.undo.unwrap().offset)),
        };
        assert_eq!(entry, want);
    }
    let want = BTreeMap::from([
        (b"F\x10prunedblockfiles".to_vec(), b"1".to_vec()),
        (b"f\0\0\0\0".to_vec(), info.to_bytes()),
        (b"l".to_vec(), vec![0; 4]),
    ]);
    assert_eq!(others(&home.blocks()), want);
    let flags = read_index_flags(&home.blocks()).unwrap();
    assert_eq!(flags, IndexFlags { pruned: true, reindexing: false });
}

#[test]
fn pruned_blocks_that_break_the_chain_are_refused() {
    let mut all = made(&[(20, 10); 20]);
    let home = Home::new(KEY, 100_000, &all);
    let kept = BlockStore::open_with(&home.blocks(), &home.log(), MAGIC, home.key, None, home.max)
        .unwrap();
    for made in &all[15..] {
        kept.put(&made.hash, &made.block).unwrap();
    }
    let folder = tempfile::tempdir().unwrap();
    let write =
        |all: &[Made]| write_last(&kept, &DirStorage::new(folder.path()), all, 15).unwrap_err();
    let sound = all.clone();
    all[12].block[80] = 0;
    assert!(matches!(write(&all), IndexWriteError::Transactions { height: 12 }));
    all[7].block[4] ^= 1;
    assert!(matches!(write(&all), IndexWriteError::Chain { height: 7 }));
    all[0].block[4] = 1;
    assert!(matches!(write(&all), IndexWriteError::Chain { height: 0 }));
    // The stored blocks do not follow the pruned ones.
    let mut all = sound;
    all[14].block[68] ^= 1;
    assert!(matches!(write(&all), IndexWriteError::Chain { height: 15 }));
    // The folder has no `CURRENT`, so no reader mistakes it for a database.
    assert!(!folder.path().join("CURRENT").exists());
}

/// The index writer reads headers and positions from the log again, and does not trust them blindly.
#[test]
fn a_log_changed_by_others_is_noticed() {
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
        let error = write(&kept, &CrashStorage::new(), &all).unwrap_err();
        assert!(error.to_string().contains("is not that of block"), "{error}");
    }
}

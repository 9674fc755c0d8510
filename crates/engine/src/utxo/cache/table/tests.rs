use super::*;
use apus_chain::{CoinRef, Txid};
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::{BTreeMap, BTreeSet};

/// Some outpoints share their first bytes, so that sorting must compare further.
fn outpoint(number: u32) -> OutPoint {
    let mut txid = [0; 32];
    txid[..4].copy_from_slice(&(number % 7).to_le_bytes());
    txid[8..12].copy_from_slice(&(number / 3).to_le_bytes());
    OutPoint { txid: Txid(txid), vout: number % 3 }
}

fn coin(number: u32) -> CoinBytes {
    let script = vec![0x51; if number.is_multiple_of(3) { 100 } else { 22 }];
    CoinBytes::new(CoinRef { height: number, coinbase: false, amount: 1, script: &script })
}

/// The expected state of each outpoint, and whether the coin is fresh.
type Model = BTreeMap<OutPoint, (Option<CoinBytes>, bool)>;

fn spend(model: &mut Model, outpoint: OutPoint) {
    match model.get(&outpoint) {
        Some((_, true)) => model.remove(&outpoint),
        _ => model.insert(outpoint, (None, false)),
    };
}

fn check(table: &CacheTable, model: &Model) {
    assert_eq!(table.len(), model.len());
    let keys = table.sorted();
    let changes: Vec<_> = keys.iter().map(|key| table.change(key)).collect();
    let expected: Vec<_> =
        model.iter().map(|(outpoint, (coin, _))| (outpoint, coin.as_ref())).collect();
    assert_eq!(changes, expected);
    let heap: usize = expected.iter().filter_map(|(_, coin)| coin.map(CoinBytes::heap_bytes)).sum();
    assert_eq!(table.heap_bytes, heap as u64);
}

proptest! {
    #[test]
    fn a_table_behaves_like_a_map(ops in vec((0u32..200, any::<u8>()), 0..1500)) {
        let (mut table, mut model) = (CacheTable::new(), Model::new());
        for (number, (at, chance)) in (0u32..).zip(&ops) {
            let name = outpoint(*at);
            if chance % 2 == 0 {
                table.spend(&name);
                spend(&mut model, name);
            } else {
                let fresh = chance % 3 == 0;
                table.create(&name, &coin(number), fresh);
                let fresh = model.get(&name).map_or(fresh, |(_, fresh)| *fresh);
                model.insert(name, (Some(coin(number)), fresh));
            }
        }
        for at in 0..200 {
            let expected = model.get(&outpoint(at)).map(|(coin, _)| coin.as_ref());
            prop_assert_eq!(table.get(&outpoint(at)), expected);
        }
        check(&table, &model);
    }

    /// Steps of any size, also after removals: the growth never exceeds the announced growth.
    #[test]
    fn a_table_grows_by_no_more_than_announced(steps in vec((0u32..3000, 0u32..2500), 1..8)) {
        let (mut table, mut next, mut first) = (CacheTable::new(), 0u32, 0u32);
        for (adds, spends) in steps {
            let bound = table.bytes() + table.growth(adds as usize);
            let mut heap = 0;
            for number in next..next + adds {
                heap += coin(number).heap_bytes() as u64;
                table.create(&outpoint(number), &coin(number), true);
                prop_assert!(table.bytes() <= bound + heap);
            }
            next += adds;
            for number in first..next.min(first + spends) {
                table.spend(&outpoint(number));
            }
            first = next.min(first + spends);
            prop_assert_eq!(table.len() as u32, next - first);
        }
    }
}

/// A table whose coins come and go stays as large as its maximum content.
#[test]
fn freed_positions_are_reused() {
    let mut table = CacheTable::new();
    let mut bytes = 0;
    for number in 0..200_000u32 {
        table.create(&outpoint(number), &coin(1), true);
        if number >= 1000 {
            table.spend(&outpoint(number - 1000));
        }
        if number == 5000 {
            bytes = table.bytes();
        }
    }
    assert_eq!(table.len(), 1000);
    assert!(table.bytes() <= bytes * 3 / 2, "{} after {bytes}", table.bytes());
}

/// 64 entries of 88 bytes, and the allocator's overhead.
const CHUNK: u64 = 64 * 88 + 16;

/// The size of a chunk's entry in the list of chunks.
const PLACE: u64 = 24;

#[test]
fn memory_is_counted_to_the_byte() {
    let mut table = CacheTable::new();
    assert_eq!(table.bytes(), 0);
    let mut lists = BTreeSet::new();
    for number in 0..20_000u32 {
        table.create(&outpoint(number), &coin(number), true);
        let (chunks, places) = (u64::from(number / 64) + 1, table.chunks.capacity() as u64);
        assert!(places <= chunks + 4 + chunks / 8, "{places} places for {chunks} chunks");
        lists.insert(places);
        let index = table.index.allocation_size() as u64;
        assert_eq!(table.bytes(), chunks * CHUNK + places * PLACE + index + table.heap_bytes);
    }
    assert!(table.chunks.iter().all(|chunk| chunk.capacity() == 64));
    assert!(lists.len() < 30, "{} lists for {} chunks", lists.len(), table.chunks.len());
}

/// The announced growth always includes chunks, because the last may be full; a longer list and a
/// larger index only if there is not enough room.
#[test]
fn growth_is_announced_if_there_is_no_room() {
    let mut table = CacheTable::new();
    for number in 0..20_000u32 {
        let list = 64 * (table.chunks.capacity() - table.chunks.len());
        let index = table.index.capacity() - table.index.len();
        let fit = list.min(index);
        let chunks = |entries: usize| entries.div_ceil(64) as u64 * (CHUNK + PLACE);
        assert_eq!(table.growth(fit), chunks(fit));
        assert!(table.growth(fit + 1) > chunks(fit + 1));
        if list < index {
            let places = (table.chunks.capacity() + (list / 64 + 1).max(4)) as u64;
            assert_eq!(table.growth(list + 1), chunks(list + 1) + places * PLACE);
        }
        table.create(&outpoint(number), &coin(number), true);
    }
}

/// A small table gets an index that lasts for a while, a large one only what it needs.
#[test]
fn an_index_takes_the_announced_memory() {
    let mut table = CacheTable::new();
    table.create(&outpoint(1), &coin(1), true);
    assert_eq!(table.index.capacity(), 56);
    for entries in (0..5000).chain([100_000, 366_998, 366_999, 367_000, 1 << 20]) {
        let index = HashTable::<u32>::with_capacity(index_capacity(entries));
        assert!(index.capacity() > entries, "{entries} entries and one more");
        let spare = index_bytes_max(entries).checked_sub(index.allocation_size());
        assert!(spare.is_some_and(|spare| spare <= 64), "{spare:?} to spare for {entries}");
    }
}

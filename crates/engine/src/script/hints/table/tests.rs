use super::*;
use proptest::collection::vec;
use proptest::prelude::*;
use std::collections::HashMap;

/// Keys and bits that look random.
fn entries(count: usize, salt: u64) -> Vec<(u64, bool)> {
    let key = |at: usize| mix(mix(salt).wrapping_add(at as u64));
    (0..count).map(key).map(|key| (key, mix(!key) & 1 == 1)).collect()
}

fn encoding(table: &HintTable) -> Vec<u8> {
    let mut bytes = Vec::new();
    table.encode(&mut bytes);
    bytes
}

/// Builds a table, and checks its bits before and after encoding. Returns the bytes.
fn check(entries: &[(u64, bool)]) -> usize {
    let table = HintTable::build(entries).unwrap();
    let bytes = encoding(&table);
    let again = HintTable::decode(&bytes).unwrap();
    assert_eq!(again, table);
    for (key, bit) in entries {
        assert_eq!((table.get(*key), again.get(*key)), (*bit, *bit), "{} keys", entries.len());
    }
    bytes.len()
}

#[test]
fn tables_give_each_bit_back() {
    for count in 0..300 {
        let bytes = check(&entries(count, 1));
        assert!(bytes <= count / 8 + 2 + 2 + count / 40, "{count} keys take {bytes} bytes");
    }
    for (count, salts, percent) in [(6_000, 5, 102), (100_000, 1, 105)] {
        for salt in 0..salts {
            let bits = check(&entries(count, salt)) * 8;
            assert!(bits * 100 <= count * percent, "{count} keys take {bits} bits");
        }
    }
}

#[test]
fn few_keys_take_few_bytes() {
    assert_eq!(encoding(&HintTable::build(&[]).unwrap()), [0, 0]);
    assert_eq!(check(&entries(1, 0)), 3);
    let worst = (0..200).map(|salt| check(&entries(10, salt))).max();
    assert!(worst <= Some(5), "{worst:?}");
}

/// Files depend on this encoding. A program in Python, written for this test, gives the same bytes.
#[test]
fn the_encoding_stays() {
    let entries = [(1, true), (2, false), (3, true), (u64::MAX, true)];
    let bytes = encoding(&HintTable::build(&entries).unwrap());
    assert_eq!(bytes, [4, 0, 5]);
    let large = encoding(&HintTable::build(&self::entries(1000, 7)).unwrap());
    assert_eq!(apus_hash::sha256(&large)[..4], [0xfa, 0x9a, 0x1b, 0xfd]);
}

#[test]
fn the_first_of_two_bits_of_a_key_counts() {
    let mut all = entries(500, 3);
    let flipped: Vec<_> = all.iter().map(|(key, bit)| (*key, !bit)).collect();
    all.extend_from_within(..);
    all.extend(flipped);
    let table = HintTable::build(&all).unwrap();
    assert_eq!(table.keys(), 500);
    assert!(all[..500].iter().all(|(key, bit)| table.get(*key) == *bit));
}

#[test]
fn other_keys_get_arbitrary_bits() {
    let table = HintTable::build(&entries(6_000, 1)).unwrap();
    let ones = entries(6_000, 2).iter().filter(|(key, _)| table.get(*key)).count();
    assert!((2_500..3_500).contains(&ones), "{ones}");
    assert!(!HintTable::build(&[]).unwrap().get(5));
}

#[test]
fn wrong_bytes_are_refused() {
    let bytes = encoding(&HintTable::build(&entries(300, 1)).unwrap());
    for end in 0..bytes.len() {
        assert!(HintTable::decode(&bytes[..end]).is_err());
    }
    let longer = [&bytes[..], &[0]].concat();
    assert!(matches!(HintTable::decode(&longer), Err(HintTableError::Length { keys: 300, .. })));
    assert_eq!(HintTable::decode(&[0, 64]), Err(HintTableError::Attempt(64)));
    // A number of keys in more bytes than it needs, and one that is too large.
    assert!(matches!(HintTable::decode(&[0xfd, 0, 0, 0]), Err(HintTableError::Read(_))));
    assert!(matches!(HintTable::decode(&[0xfe, 1, 0, 0x20, 0, 0]), Err(HintTableError::Read(_))));
    assert!(matches!(
        HintTable::decode(&[0xfe, 0, 0, 0x20, 0, 0]),
        Err(HintTableError::Length { keys: KEYS_MAX, found: 0, .. })
    ));
}

#[test]
fn columns_of_a_table_fit_a_record() {
    for keys in [1, 2, WIDTH, WIDTH + 1, 6_000, KEYS_MAX] {
        let columns = (0..ATTEMPTS).map(|attempt| columns(keys, attempt));
        assert!(columns.clone().is_sorted() && columns.clone().all(|it| it >= keys && it % 8 == 0));
        assert!(columns.max().unwrap() <= keys + keys / 4 + 100);
    }
}

proptest! {
    #[test]
    fn any_keys_have_a_table(entries in vec((0u64..500, any::<bool>()), 0..400), salt: u64) {
        let mut first = HashMap::new();
        for (key, bit) in &entries {
            first.entry(key ^ salt).or_insert(*bit);
        }
        let entries: Vec<_> = entries.iter().map(|(key, bit)| (key ^ salt, *bit)).collect();
        let table = HintTable::build(&entries).unwrap();
        prop_assert_eq!(table.keys(), first.len());
        for (key, bit) in first {
            prop_assert_eq!(table.get(key), bit);
        }
    }

    #[test]
    fn accepted_bytes_are_written_back(bytes in vec(any::<u8>(), 0..60), keys in 0u8..150, key: u64) {
        for bytes in [bytes.clone(), [&[keys, bytes.first().copied().unwrap_or(0) % 64], &bytes[..]].concat()] {
            if let Ok(table) = HintTable::decode(&bytes) {
                table.get(key);
                prop_assert_eq!(encoding(&table), bytes);
            }
        }
    }
}

//! Damaged tables: reading in order finds all coins, but look-ups miss some.

use super::*;
use crate::leveldb::masked_crc32c;
use core::ops::Range;
use std::collections::BTreeSet;

/// Lengths in the format: a table's footer, and the bytes after a block.
const FOOTER: usize = 48;
const TAIL: usize = 5;

fn look_up(dir: &Path, mut sample: CoinSample) -> Result<CoinLookUp, ChainstateDbError> {
    let read = read_back(dir, &mut |outpoint, coin| {
        sample.take(outpoint, coin);
        ControlFlow::Continue(())
    });
    let proceed = &mut |_| ControlFlow::Continue(());
    Ok(sample
        .look_up(dir, &read.expect("reading in order works"), proceed)?
        .expect("not cancelled"))
}

fn some_coins() -> Coins {
    snapshot().1.into_iter().step_by(40).collect()
}

#[test]
fn all_coins_of_a_small_set_are_looked_up() {
    let coins = some_coins();
    let count = coins.len() as u64;
    for options in [WriterOptions::default(), SMALL] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), BEST, Obfuscation::new(KEY), options, &coins);
        let before = files(dir.path());
        let found = look_up(dir.path(), CoinSample::new()).unwrap();
        assert_eq!(found, CoinLookUp { coins: count, absent: count });
        assert!(files(dir.path()) == before, "look-ups changed the folder");
    }
    let of_node = look_up(&node_chainstate(), CoinSample::new()).unwrap();
    assert_eq!(of_node.coins, snapshot().1.len() as u64);
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), BEST, Obfuscation::NONE, SMALL, &[]);
    assert_eq!(look_up(dir.path(), CoinSample::new()).unwrap(), CoinLookUp::default());
}

#[test]
fn some_coins_of_a_large_set_are_drawn_at_random() {
    let (_, coins) = snapshot();
    let draw = || {
        let mut sample = CoinSample::of_at_least(1_000);
        coins.iter().for_each(|(outpoint, coin)| sample.take(*outpoint, coin));
        sample.names().into_iter().collect::<BTreeSet<_>>()
    };
    let (one, other) = (draw(), draw());
    // At least 1,125 of 1,500 remain on average, with a standard deviation of 17.
    assert!((1_000..=1_500).contains(&one.len()), "{}", one.len());
    assert_ne!(one, other);
    // The draw is uniform: on average, it takes a tenth of the coins in each tenth.
    for tenth in coins.chunks(coins.len().div_ceil(10)) {
        let drawn = tenth.iter().filter(|(outpoint, _)| one.contains(outpoint)).count();
        assert!((50..300).contains(&drawn), "{drawn}");
    }
}

#[test]
fn looking_up_can_be_cancelled() {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), BEST, Obfuscation::NONE, SMALL, &some_coins());
    let mut sample = CoinSample::new();
    let read = read_back(dir.path(), &mut |outpoint, coin| {
        sample.take(outpoint, coin);
        ControlFlow::Continue(())
    });
    let mut last = 0;
    let looked_up = sample.look_up(dir.path(), &read.unwrap(), &mut |asked| {
        last = asked;
        if asked == 7 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
    });
    assert_eq!((looked_up.unwrap(), last), (None, 7));
}

/// Reads a LevelDB varint; returns its length in bytes, too.
fn number(bytes: &[u8]) -> (usize, usize) {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let value =
        bytes[..length].iter().rev().fold(0, |all, byte| all << 7 | usize::from(byte & 0x7f));
    (value, length)
}

/// Reads consecutive varints.
fn numbers<const N: usize>(mut bytes: &[u8]) -> ([usize; N], usize) {
    let before = bytes.len();
    let all = [(); N].map(|()| {
        let (value, length) = number(bytes);
        bytes = &bytes[length..];
        value
    });
    (all, before - bytes.len())
}

/// Positions in a table.
struct Places {
    first_block: Range<usize>,
    filters: Range<usize>,
    index: Range<usize>,
}

impl Places {
    fn of(table: &[u8]) -> Self {
        let ([list, _, index, length], _) = numbers::<4>(&table[table.len() - FOOTER..]);
        let index = index..index + length;
        let ([_, own, _], head) = numbers::<3>(&table[index.clone()]);
        let ([first, size], _) = numbers::<2>(&table[index.start + head + own..]);
        let ([_, own, _], head) = numbers::<3>(&table[list..]);
        let ([filters, length], _) = numbers::<2>(&table[list + head + own..]);
        Self { first_block: first..first + size, filters: filters..filters + length, index }
    }
}

/// Changes a table of coins, with blocks of Core's size, and fixes its checksums.
fn harmed(harm: impl FnOnce(&mut [u8], &Places)) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), BEST, Obfuscation::new(KEY), WriterOptions::default(), &some_coins());
    let path = dir.path().join("000003.ldb");
    let mut table = fs::read(&path).unwrap();
    let places = Places::of(&table);
    harm(&mut table, &places);
    for block in [&places.first_block, &places.filters, &places.index] {
        let sum = masked_crc32c(&table[block.clone()], &[0]).to_le_bytes();
        table[block.end + 1..block.end + TAIL].copy_from_slice(&sum);
    }
    fs::write(path, table).unwrap();
    dir
}

/// Checks that reading in order finds the same coins, but some look-ups fail.
fn expect_refused(dir: &Path, says: &str) {
    let (_, coins) = read_all(dir).unwrap();
    assert!(coins == some_coins());
    let error = look_up(dir, CoinSample::new()).unwrap_err();
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn a_missing_bit_in_a_filter_hides_a_coin() {
    for at in [0, 10, 50] {
        let dir = harmed(|table, places| {
            let filter = &mut table[places.filters.clone()];
            let set = filter.iter().skip(at).position(|byte| *byte != 0).unwrap() + at;
            filter[set] &= filter[set] - 1;
        });
        expect_refused(dir.path(), "does not find it");
    }
}

#[test]
fn a_low_separator_hides_coins() {
    let dir = harmed(|table, places| {
        // The first block's separator: `C`, then a byte or two, one above the start of the last
        // coin's key.
        let ([shared, own, _], head) = numbers::<3>(&table[places.index.clone()]);
        assert_eq!(shared, 0);
        let key = places.index.start + head..places.index.start + head + own - 8;
        assert!(key.len() > 1 && table[key.start] == b'C');
        let byte = &mut table[key.end - 1];
        assert!(*byte > 0);
        *byte &= *byte - 1;
    });
    let error = read_all(dir.path()).unwrap_err().to_string();
    assert!(error.contains("the index leads past its last key"), "{error}");
}

#[test]
fn a_wrong_restart_point_hides_coins() {
    let dir = harmed(|table, places| {
        let block = &mut table[places.first_block.clone()];
        let count = u32::from_le_bytes(*block.last_chunk().unwrap()) as usize;
        assert!(count > 2);
        let second = block.len() - 4 * count;
        block[second] ^= 1;
    });
    let error = read_all(dir.path()).unwrap_err().to_string();
    assert!(error.contains("a block cannot be read"), "{error}");
}

/// If the damage leaves the checksum wrong, reading refuses the filter before any look-up.
#[test]
fn filters_must_have_the_right_checksum() {
    let dir = harmed(|_, _| {});
    let path = dir.path().join("000003.ldb");
    let mut table = fs::read(&path).unwrap();
    let filters = Places::of(&table).filters;
    table[filters.start] ^= 1;
    fs::write(&path, table).unwrap();
    let error = read_all(dir.path()).unwrap_err().to_string();
    assert!(error.contains("wrong checksum"), "{error}");
}

/// A coin or the best block differs from the entries read in order.
#[test]
fn different_answers_are_reported() {
    let coins = some_coins();
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), BEST, Obfuscation::NONE, SMALL, &coins);
    let read = ChainstateSummary { best: BEST, key: Obfuscation::NONE, coins: coins.len() as u64 };
    let says = |outpoint: OutPoint, coin: &[u8], read: ChainstateSummary| {
        let mut sample = CoinSample::new();
        sample.take(outpoint, coin);
        let error = sample.look_up(dir.path(), &read, &mut |_| ControlFlow::Continue(()));
        error.unwrap_err().to_string()
    };
    let (name, coin) = &coins[3];
    assert!(says(*name, &coins[4].1, read).contains("finds another coin"));
    let none = OutPoint { txid: Txid([0x5a; 32]), vout: 0 };
    assert!(says(none, coin, read).contains("does not find it"));
    let other = ChainstateSummary { best: BlockHash([8; 32]), ..read };
    assert!(says(*name, coin, other).contains("its block"));
    let other = ChainstateSummary { key: Obfuscation::new(KEY), ..read };
    assert!(says(*name, coin, other).contains("obfuscation key"));
}

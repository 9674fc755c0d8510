//! Tables whose coins are all found by reading everything, but not by asking for one.

use super::*;
use crate::leveldb::masked_crc32c;
use core::ops::Range;
use std::collections::BTreeSet;

/// What is not the same for all: the length of a table's last part, and what stands behind a block.
const FOOTER: usize = 48;
const TAIL: usize = 5;

fn look_up(dir: &Path, mut sample: CoinSample) -> Result<LookedUp, ChainstateDbError> {
    let read = read_back(dir, &mut |outpoint, coin| {
        sample.take(outpoint, coin);
        ControlFlow::Continue(())
    });
    let go_on = &mut |_| ControlFlow::Continue(());
    Ok(sample.look_up(dir, &read.expect("all of it can be read"), go_on)?.expect("to the end"))
}

fn some_coins() -> Coins {
    snapshot().1.into_iter().step_by(40).collect()
}

#[test]
fn all_coins_of_a_small_set_are_found_and_nothing_else() {
    let coins = some_coins();
    let count = coins.len() as u64;
    for options in [WriterOptions::default(), SMALL] {
        let dir = tempfile::tempdir().unwrap();
        write(dir.path(), BEST, Obfuscation::new(KEY), options, &coins);
        let before = files(dir.path());
        let found = look_up(dir.path(), CoinSample::new()).unwrap();
        assert_eq!(found, LookedUp { coins: count, absent: count });
        assert!(files(dir.path()) == before, "asking changed the folder");
    }
    let of_node = look_up(&node_chainstate(), CoinSample::new()).unwrap();
    assert_eq!(of_node.coins, snapshot().1.len() as u64);
    let dir = tempfile::tempdir().unwrap();
    write(dir.path(), BEST, Obfuscation::NONE, SMALL, &[]);
    assert_eq!(look_up(dir.path(), CoinSample::new()).unwrap(), LookedUp::default());
}

#[test]
fn of_a_large_set_some_are_drawn_at_random() {
    let (_, coins) = snapshot();
    let draw = || {
        let mut sample = CoinSample::of_at_least(1_000);
        coins.iter().for_each(|(outpoint, coin)| sample.take(*outpoint, coin));
        sample.names().into_iter().collect::<BTreeSet<_>>()
    };
    let (one, other) = (draw(), draw());
    // 1,125 of 1,500 are left at the least, but for what chance makes of it: a deviation of 17.
    assert!((1_000..=1_500).contains(&one.len()), "{}", one.len());
    assert_ne!(one, other);
    // From everywhere: a tenth of them from each tenth, on average.
    for tenth in coins.chunks(coins.len().div_ceil(10)) {
        let drawn = tenth.iter().filter(|(outpoint, _)| one.contains(outpoint)).count();
        assert!((50..300).contains(&drawn), "{drawn}");
    }
}

#[test]
fn looking_up_can_be_broken_off() {
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

/// A number of LevelDB's, and how many bytes it takes.
fn number(bytes: &[u8]) -> (usize, usize) {
    let length = bytes.iter().position(|byte| byte & 0x80 == 0).unwrap() + 1;
    let value =
        bytes[..length].iter().rev().fold(0, |all, byte| all << 7 | usize::from(byte & 0x7f));
    (value, length)
}

/// Numbers one after the other.
fn numbers<const N: usize>(mut bytes: &[u8]) -> ([usize; N], usize) {
    let before = bytes.len();
    let all = [(); N].map(|()| {
        let (value, length) = number(bytes);
        bytes = &bytes[length..];
        value
    });
    (all, before - bytes.len())
}

/// Places in a table.
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

/// A table of coins in blocks as Core has them is changed and gets right checksums.
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

/// All can be read, and they are the same; but not all are found.
fn expect_refused(dir: &Path, says: &str) {
    let (_, coins) = read_all(dir).unwrap();
    assert!(coins == some_coins());
    let error = look_up(dir, CoinSample::new()).unwrap_err();
    assert!(error.to_string().contains(says), "{error}");
}

#[test]
fn a_bit_too_few_in_a_filter_hides_a_coin() {
    for at in [0, 10, 50] {
        let dir = harmed(|table, places| {
            let filter = &mut table[places.filters.clone()];
            let set = filter.iter().skip(at).position(|byte| *byte != 0).unwrap() + at;
            filter[set] &= filter[set] - 1;
        });
        expect_refused(dir.path(), "as a node asks, does not find it");
    }
}

#[test]
fn a_separator_that_is_too_low_hides_coins() {
    let dir = harmed(|table, places| {
        // Of the first block: `C`, then a byte or two, one more than where the last coin's begins.
        let ([shared, own, _], head) = numbers::<3>(&table[places.index.clone()]);
        assert_eq!(shared, 0);
        let key = places.index.start + head..places.index.start + head + own - 8;
        assert!(key.len() > 1 && table[key.start] == b'C');
        let byte = &mut table[key.end - 1];
        assert!(*byte > 0);
        *byte &= *byte - 1;
    });
    expect_refused(dir.path(), "as a node asks, does not find it");
}

#[test]
fn a_restart_point_that_is_none_hides_coins() {
    let dir = harmed(|table, places| {
        let block = &mut table[places.first_block.clone()];
        let count = u32::from_le_bytes(*block.last_chunk().unwrap()) as usize;
        assert!(count > 2);
        let second = block.len() - 4 * count;
        block[second] ^= 1;
    });
    let (_, coins) = read_all(dir.path()).unwrap();
    assert!(coins == some_coins());
    look_up(dir.path(), CoinSample::new()).unwrap_err();
}

/// Without its checksum made right the filter is refused before a coin is asked for.
#[test]
fn filters_have_to_have_their_checksum() {
    let dir = harmed(|_, _| {});
    let path = dir.path().join("000003.ldb");
    let mut table = fs::read(&path).unwrap();
    let filters = Places::of(&table).filters;
    table[filters.start] ^= 1;
    fs::write(&path, table).unwrap();
    let error = read_all(dir.path()).unwrap_err().to_string();
    assert!(error.contains("wrong checksum"), "{error}");
}

/// A coin that reading gave otherwise, or not at all, and a block that it did not.
#[test]
fn other_answers_are_told() {
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
    assert!(says(*name, &coins[4].1, read).contains("has another one"));
    let none = OutPoint { txid: Txid([0x5a; 32]), vout: 0 };
    assert!(says(none, coin, read).contains("does not find it"));
    let other = ChainstateSummary { best: BlockHash([8; 32]), ..read };
    assert!(says(*name, coin, other).contains("its block"));
    let other = ChainstateSummary { key: Obfuscation::new(KEY), ..read };
    assert!(says(*name, coin, other).contains("obfuscation key"));
}

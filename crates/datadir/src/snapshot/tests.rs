//! Tests with snapshots that Core wrote, its `gettxoutsetinfo` results, and damaged files.

use super::*;
use apus_chain::{CoinError, CoinRef, MAX_MONEY, Txid, write_coin, write_compact_size};
use proptest::prelude::*;
use std::io::{self, Read};

/// An output number, and its coin in stored form.
type Stored<'a> = (u64, &'a [u8]);
/// The first byte of a txid, the stated count, the coins.
type Group<'a> = (u8, u64, &'a [Stored<'a>]);
/// The coins of one transaction: output numbers and stored forms.
type Ownership = (Txid, Vec<(u32, Vec<u8>)>);

struct Fixture {
    network: Network,
    folder: &'static str,
}

const FIXTURES: [Fixture; 3] = [
    Fixture { network: Network::Main, folder: "main-4521" },
    Fixture { network: Network::Signet, folder: "signet-120" },
    Fixture { network: Network::Regtest, folder: "regtest-315" },
];
const SIGNET: &Fixture = &FIXTURES[1];

impl Fixture {
    fn path(&self, name: &str) -> std::path::PathBuf {
        crate::tests::fixtures().join(self.folder).join(name)
    }

    fn snapshot(&self) -> Vec<u8> {
        std::fs::read(self.path("utxo.dat")).unwrap()
    }

    /// A field of Core's flat `gettxoutsetinfo` object, as text.
    fn answer(&self, field: &str) -> String {
        let text = std::fs::read_to_string(self.path("gettxoutsetinfo.json")).unwrap();
        let (_, rest) = text.split_once(&format!("\"{field}\": ")).unwrap();
        rest.split([',', '\n']).next().unwrap().trim_matches('"').to_owned()
    }
}

fn info(bytes: &[u8]) -> Result<SnapshotInfo, SnapshotError> {
    snapshot_info(SnapshotReader::new(bytes, None)?, false)
}

#[test]
fn the_summary_agrees_with_the_node_that_wrote_it() {
    for fixture in FIXTURES {
        let bytes = fixture.snapshot();
        let reader = SnapshotReader::new(&bytes[..], Some(fixture.network)).unwrap();
        let info = snapshot_info(reader, true).unwrap();
        assert_eq!(info.network, fixture.network);
        assert_eq!(info.base_hash.to_string(), fixture.answer("bestblock"));
        assert_eq!(info.stats.coins.to_string(), fixture.answer("txouts"));
        assert_eq!(info.stats.transactions.to_string(), fixture.answer("transactions"));
        assert_eq!(info.stats.bogosize.to_string(), fixture.answer("bogosize"));
        let bitcoins: f64 = fixture.answer("total_amount").parse().unwrap();
        assert_eq!(info.stats.total_amount, (bitcoins * 1e8).round() as u128);
        assert_eq!(info.hash_serialized_3.to_string(), fixture.answer("hash_serialized_3"));
        assert_eq!(info.muhash.unwrap().to_string(), fixture.answer("muhash"));
        assert_eq!(info.height_max.to_string(), fixture.answer("height"));
        assert_eq!(info.bytes, bytes.len() as u64);
    }
}

/// Reads a whole snapshot and writes it again, each group from its coins in reverse order.
fn rewritten(bytes: &[u8]) -> Vec<u8> {
    let mut reader = SnapshotReader::new(bytes, None).unwrap();
    let mut writer = SnapshotWriter::new(Vec::new(), *reader.header()).unwrap();
    let mut groups: Vec<Ownership> = Vec::new();
    while let Some(next) = reader.next_coin().unwrap() {
        let mut coin = Vec::new();
        write_coin(&mut coin, next.coin.as_ref());
        assert_eq!(coin, next.bytes);
        match groups.last_mut() {
            Some((txid, coins)) if *txid == next.outpoint.txid => {
                coins.push((next.outpoint.vout, coin));
            }
            _ => groups.push((next.outpoint.txid, vec![(next.outpoint.vout, coin)])),
        }
    }
    for batch in groups.chunks(100) {
        let mut bodies = Vec::new();
        for (txid, coins) in batch {
            let mut coins: Vec<(u32, &[u8])> =
                coins.iter().rev().map(|(vout, bytes)| (*vout, &bytes[..])).collect();
            write_group(&mut bodies, txid, &mut coins).unwrap();
        }
        writer.write_groups(&bodies).unwrap();
    }
    writer.finish().unwrap()
}

#[test]
fn reading_and_writing_gives_the_same_file() {
    for fixture in FIXTURES {
        let bytes = fixture.snapshot();
        assert!(rewritten(&bytes) == bytes, "{}", fixture.folder);
    }
}

/// A stream that returns one byte at a time, with interruptions.
struct Trickle<'a>(&'a [u8], bool);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        self.1 = !self.1;
        if self.1 {
            return Err(io::ErrorKind::Interrupted.into());
        }
        let count = out.len().min(1);
        self.0.read(&mut out[..count])
    }
}

#[test]
fn the_size_of_reads_does_not_matter() {
    let bytes = FIXTURES[2].snapshot();
    let trickle = SnapshotReader::new(Trickle(&bytes, false), None).unwrap();
    assert_eq!(snapshot_info(trickle, false).unwrap(), info(&bytes).unwrap());
}

#[test]
fn every_cut_is_an_error_that_repeats() {
    let bytes = SIGNET.snapshot();
    for length in 0..bytes.len() {
        let Ok(mut reader) = SnapshotReader::new(&bytes[..length], None) else {
            assert!(length < SnapshotHeader::SIZE);
            continue;
        };
        let error = loop {
            match reader.next_coin() {
                Ok(coin) => assert!(coin.is_some(), "cut at {length}"),
                Err(error) => break error.to_string(),
            }
        };
        assert!(error.contains(&format!("ends at byte {length} ")), "{error}");
        assert_eq!(reader.next_coin().unwrap_err().to_string(), error);
    }
}

#[test]
fn every_flipped_bit_is_noticed() {
    let original = SIGNET.snapshot();
    let expected = info(&original).unwrap();
    // Flip every bit of the header and of the first coins, then every thirteenth.
    let bits = (0..8 * 300).chain((8 * 300..8 * original.len()).step_by(13));
    for bit in bits {
        let mut bytes = original.clone();
        bytes[bit / 8] ^= 1 << (bit % 8);
        if let Ok(found) = info(&bytes) {
            let same = found.hash_serialized_3 == expected.hash_serialized_3;
            let in_base_hash = (11..43).contains(&(bit / 8));
            assert_eq!(same, in_base_hash, "bit {bit}");
            assert_eq!(found.base_hash != expected.base_hash, in_base_hash, "bit {bit}");
        }
    }
}

const HEADER: SnapshotHeader =
    SnapshotHeader { network: Network::Regtest, base_hash: BlockHash([9; 32]), coins: 1 };

fn coin_bytes(script: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::new();
    write_coin(&mut bytes, CoinRef { height: 1, coinbase: false, amount: 5, script });
    bytes
}

/// Builds a snapshot from parts that may be wrong.
fn made(coins: u64, groups: &[Group<'_>]) -> Vec<u8> {
    let mut bytes = SnapshotHeader { coins, ..HEADER }.to_bytes().to_vec();
    for (txid, count, coins) in groups {
        bytes.extend_from_slice(&[*txid; 32]);
        write_compact_size(&mut bytes, *count);
        for (vout, coin) in *coins {
            write_compact_size(&mut bytes, *vout);
            bytes.extend_from_slice(coin);
        }
    }
    bytes
}

fn error_of(bytes: &[u8]) -> SnapshotError {
    info(bytes).unwrap_err()
}

#[track_caller]
fn expect_says(error: &SnapshotError, what: &str) {
    let text = error.to_string();
    assert!(error.is_invalid() && text.contains(what), "{what} is not in: {text}");
}

#[test]
fn invalid_headers_are_refused() {
    let good = HEADER.to_bytes();
    assert_eq!(SnapshotHeader::from_bytes(&good).unwrap(), HEADER);
    let spoilt = |at: usize, value| {
        let mut bytes = good;
        bytes[at] = value;
        error_of(&bytes)
    };
    expect_says(&spoilt(0, b'v'), "the file begins with");
    expect_says(&spoilt(5, 1), "format version 1,");
    expect_says(&spoilt(7, 0), "an unknown chain");
    let error = SnapshotReader::new(&good[..], Some(Network::Signet)).unwrap_err().to_string();
    assert!(error.contains("regtest") && error.contains("signet"), "{error}");
    expect_says(&error_of(&good[..50]), "50 bytes are less than a header");
}

#[test]
fn an_empty_set_has_a_header_only() {
    let bytes = made(0, &[]);
    assert_eq!(info(&bytes).unwrap().stats.coins, 0);
    let trailing = [&bytes[..], &[0]].concat();
    expect_says(&error_of(&trailing), "continues at byte 51 after all of the 0 coins");
}

#[test]
fn the_header_must_state_the_number_of_coins() {
    let coin = coin_bytes(&[0x51]);
    let group: &[Group<'_>] = &[(1, 1, &[(0, &coin)]), (2, 1, &[(0, &coin)])];
    assert_eq!(info(&made(2, group)).unwrap().stats.transactions, 2);
    expect_says(&error_of(&made(1, group)), "continues at byte");
    expect_says(&error_of(&made(3, group)), "after 2 of 3 coins");
}

#[test]
fn transactions_must_ascend() {
    let coin = coin_bytes(&[0x51]);
    for second in [1, 0] {
        let bytes = made(2, &[(1, 1, &[(0, &coin)]), (second, 1, &[(0, &coin)])]);
        expect_says(&error_of(&bytes), "transaction ");
        expect_says(&error_of(&bytes), "must not follow");
    }
}

#[test]
fn outputs_must_ascend_as_their_varints_do() {
    let coin = coin_bytes(&[0x51]);
    let pair = |a, b| info(&made(2, &[(1, 2, &[(a, &coin), (b, &coin)])]));
    for (a, b) in [(0, 1), (127, 128), (16_640, 16_511), (16_512, 256), (128, 16_512)] {
        assert!(pair(a, b).is_ok(), "{a} {b}");
        for (a, b) in [(b, a), (a, a)] {
            let error = pair(a, b).unwrap_err();
            expect_says(&error, "output ");
            expect_says(&error, "must not follow");
        }
    }
}

#[test]
fn impossible_counts_and_numbers_are_refused() {
    let coin = coin_bytes(&[0x51]);
    for (stated, count) in [(1, 0), (1, 2), (u64::MAX, u64::MAX), (u64::MAX, OUTPUTS_MAX + 1)] {
        let error = error_of(&made(stated, &[(1, count, &[(0, &coin)])]));
        expect_says(&error, "coins for transaction");
    }
    for vout in [OUTPUTS_MAX, 1 << 32, u64::MAX] {
        let error = error_of(&made(1, &[(1, 1, &[(vout, &coin)])]));
        expect_says(&error, "a transaction has at most");
    }
    let last: &[Stored<'_>] = &[(OUTPUTS_MAX - 1, &coin)];
    assert!(info(&made(1, &[(1, 1, last)])).is_ok());
    let mut long_count = made(1, &[]);
    long_count.extend_from_slice(&[1; 32]);
    long_count.extend_from_slice(&[0xfd, 1, 0]);
    expect_says(&error_of(&long_count), "bad number in the snapshot at byte 83");
}

#[test]
fn scripts_that_do_not_fit_a_block_are_refused() {
    let coin = coin_bytes(&[0x51; 10_000]);
    let coins: Vec<Stored<'_>> = (0..100).map(|vout| (vout, &coin[..])).collect();
    assert!(info(&made(99, &[(1, 99, &coins[..99])])).is_ok());
    let error = error_of(&made(100, &[(1, 100, &coins)]));
    expect_says(&error, "do not fit any block");
}

#[test]
fn coins_that_core_would_not_write_are_refused() {
    let whole_script = [&[2, 5, 23 + 6, 0xa9, 20][..], &[7; 20], &[0x87]].concat();
    let mut too_rich = Vec::new();
    let coin = CoinRef { height: 1, coinbase: false, amount: MAX_MONEY + 1, script: &[0x51] };
    write_coin(&mut too_rich, coin);
    for (coin, expected) in [
        (whole_script, CoinError::NotCompressed { offset: 2 }),
        (too_rich, CoinError::Amount { offset: 1 }),
        (coin_bytes(&[0x6a]), CoinError::Unspendable { offset: 2 }),
    ] {
        let error = error_of(&made(1, &[(1, 1, &[(0, &coin)])]));
        expect_says(&error, &format!("at byte 85 of the snapshot: {expected}"));
    }
}

#[test]
fn the_writer_requires_the_number_of_coins_in_its_header() {
    let coin = coin_bytes(&[0x51]);
    let group = |txid, vouts: &[u32]| {
        let mut out = Vec::new();
        let mut coins: Vec<(u32, &[u8])> = vouts.iter().map(|&vout| (vout, &coin[..])).collect();
        write_group(&mut out, &Txid([txid; 32]), &mut coins).unwrap();
        out
    };
    let header = SnapshotHeader { coins: 2, ..HEADER };
    let mut writer = SnapshotWriter::new(Vec::new(), header).unwrap();
    expect_says(
        &writer.write_groups(&group(5, &[0, 1, 2])).unwrap_err(),
        "where 1 to 2 are possible",
    );
    writer.write_groups(&group(5, &[0])).unwrap();
    let written = writer.offset();
    for bad in [&group(5, &[1])[..], &group(4, &[1]), &group(6, &[1])[..35], &[0; 3]] {
        assert!(writer.write_groups(bad).is_err());
    }
    assert_eq!((writer.offset(), writer.coins_written()), (written, 1));
    writer.write_groups(&group(6, &[1])).unwrap();
    let bytes = writer.finish().unwrap();
    assert_eq!(info(&bytes).unwrap().stats.coins, 2);

    let writer = SnapshotWriter::new(Vec::new(), header).unwrap();
    assert!(matches!(writer.finish(), Err(SnapshotError::Count { stated: 2, written: 0 })));
}

#[test]
fn a_group_has_each_output_once() {
    let coin = coin_bytes(&[0x51]);
    let mut out = vec![1, 2, 3];
    let txid = Txid([1; 32]);
    for coins in [&mut [(3, &coin[..]), (3, &coin[..])][..], &mut [(u32::MAX, &coin[..])], &mut []]
    {
        assert!(write_group(&mut out, &txid, coins).is_err());
        assert_eq!(out, [1, 2, 3]);
    }
}

proptest! {
    #[test]
    fn any_bytes_after_a_header_end_in_coins_or_an_error(
        body in proptest::collection::vec(any::<u8>(), 0..200),
        coins in 0u64..5,
    ) {
        let bytes = [&SnapshotHeader { coins, ..HEADER }.to_bytes()[..], &body].concat();
        if let Ok(found) = info(&bytes) {
            prop_assert_eq!((found.stats.coins, found.bytes), (coins, bytes.len() as u64));
        }
    }

    #[test]
    fn made_up_sets_round_trip(
        set in proptest::collection::btree_map(
            (any::<[u8; 2]>(), 0u32..20_000),
            (0u32..1000, any::<bool>(), 0..=MAX_MONEY, proptest::collection::vec(0u8..0x60, 0..80)),
            0..40,
        ),
    ) {
        let mut body = Vec::new();
        let coins: Vec<_> = set.iter().collect();
        for group in coins.chunk_by(|(a, _), (b, _)| a.0 == b.0) {
            let stored: Vec<Vec<u8>> = group.iter().map(|(_, coin)| {
                let mut out = Vec::new();
                let (height, coinbase, amount, script) = coin;
                let (height, coinbase, amount) = (*height, *coinbase, *amount);
                write_coin(&mut out, CoinRef { height, coinbase, amount, script });
                out
            }).collect();
            let mut coins: Vec<(u32, &[u8])> =
                group.iter().zip(&stored).map(|((name, _), bytes)| (name.1, &bytes[..])).collect();
            let mut txid = [0; 32];
            txid[..2].copy_from_slice(&group[0].0.0);
            write_group(&mut body, &Txid(txid), &mut coins).unwrap();
        }
        let header = SnapshotHeader { coins: set.len() as u64, ..HEADER };
        let mut writer = SnapshotWriter::new(Vec::new(), header).unwrap();
        writer.write_groups(&body).unwrap();
        let bytes = writer.finish().unwrap();
        prop_assert_eq!(rewritten(&bytes), bytes);
    }
}

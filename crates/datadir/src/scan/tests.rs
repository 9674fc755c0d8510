//! A scan survives every kind of damage, first one by one, then at random.

use super::*;
use crate::files::Obfuscation;
use crate::tests::fixture_blocks;
use crate::tests::synthetic_block;
use crate::tests::*;
use proptest::prelude::*;
use std::fs;

type Seen = Vec<([u8; HEADER], BlockLocation)>;

fn scan_all(files: &BlockFiles) -> (Seen, ScanSummary) {
    let mut seen = Vec::new();
    let mut summary = ScanSummary::default();
    for file in files.files() {
        let part = files
            .scan_file(file.number, &mut |header, location| {
                seen.push((*header, location));
                ControlFlow::Continue(())
            })
            .unwrap();
        summary.merge(part);
    }
    (seen, summary)
}

fn places(seen: &Seen) -> Vec<BlockLocation> {
    seen.iter().map(|(_, location)| *location).collect()
}

/// Scans `plain` as file 0 with and without a key and preallocated zeros; all results must agree.
fn scan_bytes(plain: &[u8]) -> (Seen, ScanSummary) {
    let mut answers = Vec::new();
    for (key, zeros) in [(None, 0), (Some(KEY), 0), (None, 300_000), (Some(KEY), 300_000)] {
        let (_dir, files) = block_folder(key, &[plain], zeros);
        answers.push(scan_all(&files));
    }
    for other in &answers[1..] {
        assert_eq!(&answers[0], other);
    }
    answers.swap_remove(0)
}

fn three_blocks() -> [Vec<u8>; 3] {
    [synthetic_block(1, 1, 10), synthetic_block(2, 3, 200), synthetic_block(3, 2, 60_000)]
}

#[test]
fn clean_records_are_found_with_their_headers() {
    let blocks = three_blocks();
    let mut plain = Vec::new();
    let want: Vec<_> = blocks.iter().map(|block| push_record(&mut plain, MAGIC, block)).collect();
    let (seen, summary) = scan_bytes(&plain);
    assert_eq!(places(&seen), want);
    for ((header, _), block) in seen.iter().zip(&blocks) {
        assert_eq!(header[..], block[..HEADER]);
    }
    let bytes = blocks.iter().map(|block| block.len() as u64).sum();
    assert_eq!(summary, ScanSummary { files: 1, records: 3, bytes, ..Default::default() });
}

#[test]
fn the_same_block_is_reported_at_each_position() {
    let block = synthetic_block(1, 2, 30);
    let mut plain = Vec::new();
    let want = [(); 3].map(|()| push_record(&mut plain, MAGIC, &block));
    assert_eq!(places(&scan_bytes(&plain).0), want);
}

#[test]
fn zeros_between_records_are_not_damage() {
    let [first, second, _] = three_blocks();
    for key in [None, Some(KEY)] {
        let mut plain = Vec::new();
        let a = push_record(&mut plain, MAGIC, &first);
        let zeros = plain.len()..plain.len() + 1_000_003;
        plain.resize(zeros.end, 0);
        Obfuscation::new(key.unwrap_or_default())
            .apply(&mut plain[zeros.clone()], zeros.start as u64);
        let b = push_record(&mut plain, MAGIC, &second);
        let (_dir, files) = block_folder(key, &[&plain], 0);
        let (seen, summary) = scan_all(&files);
        assert_eq!(places(&seen), [a, b]);
        assert_eq!(summary.resynced_count, 0);
    }
}

#[test]
fn a_block_cut_short_is_torn_wherever_the_cut_is() {
    let [first, _, last] = three_blocks();
    let mut plain = Vec::new();
    let good = push_record(&mut plain, MAGIC, &first);
    let start = plain.len();
    let torn = push_record(&mut plain, MAGIC, &last);
    for keep in [9, 40, 87, 88, 90, 200, 30_000, last.len() - 200] {
        let (seen, summary) = scan_bytes(&plain[..start + keep]);
        assert_eq!(places(&seen), [good], "{keep}");
        assert_eq!((summary.torn, summary.torn_count), (vec![torn], 1), "{keep}");
        assert_eq!(summary.resynced_count, 0, "{keep}");
    }
}

#[test]
fn a_block_that_really_ends_in_zeros_is_whole() {
    let mut block = synthetic_block(5, 1, 2_000);
    let end = block.len() - 4;
    block[end - 2_000..].fill(0);
    let mut plain = Vec::new();
    let want = push_record(&mut plain, MAGIC, &block);
    let (seen, summary) = scan_bytes(&plain);
    assert_eq!(places(&seen), [want]);
    assert_eq!((summary.torn_count, summary.corrected), (0, 0));
}

#[test]
fn garbage_is_skipped_and_reported() {
    let [first, second, third] = three_blocks();
    for length in [1usize, 3, 4, 7, 88, 89, 300_000] {
        let garbage = vec![0x5a; length];
        let mut plain = garbage.clone();
        let mut want = vec![push_record(&mut plain, MAGIC, &first)];
        let middle = plain.len() as u64;
        plain.extend_from_slice(&garbage);
        want.push(push_record(&mut plain, MAGIC, &second));
        want.push(push_record(&mut plain, MAGIC, &third));
        let end = plain.len() as u64;
        plain.extend_from_slice(&garbage);
        let (seen, summary) = scan_bytes(&plain);
        assert_eq!(places(&seen), want);
        let length = length as u64;
        let stretch = |offset| StrayBytes { file: 0, offset, length };
        assert_eq!(summary.resynced, [stretch(0), stretch(middle), stretch(end)]);
        assert_eq!((summary.resynced_count, summary.resynced_bytes), (3, 3 * length));
    }
}

#[test]
fn sizes_that_no_block_has_are_garbage() {
    let [first, second, _] = three_blocks();
    for size in [0, 1, 79, 4_000_001, u32::MAX] {
        let mut plain = Vec::new();
        push_record_of_size(&mut plain, MAGIC, &first, size);
        let lost = plain.len() as u64;
        let want = push_record(&mut plain, MAGIC, &second);
        let (seen, summary) = scan_bytes(&plain);
        assert_eq!(places(&seen), [want], "{size}");
        assert_eq!(summary.resynced, [StrayBytes { file: 0, offset: 0, length: lost }]);
    }
}

#[test]
fn a_wrong_size_is_corrected_and_costs_no_block() {
    let blocks = three_blocks();
    let true_size = blocks[1].len() as u32;
    // The stated size is too small, or leads into the next block, past it, or past the end of the file.
    for size in
        [80, 100, true_size - 1, true_size + 1, true_size + 500, true_size + 70_000, 3_999_999]
    {
        let mut plain = Vec::new();
        let a = push_record(&mut plain, MAGIC, &blocks[0]);
        let b = push_record_of_size(&mut plain, MAGIC, &blocks[1], size);
        let c = push_record(&mut plain, MAGIC, &blocks[2]);
        let (seen, summary) = scan_bytes(&plain);
        assert_eq!(places(&seen), [a, BlockLocation { size: true_size, ..b }, c], "{size}");
        assert_eq!((summary.corrected, summary.resynced_count, summary.torn_count), (1, 0, 0));
    }
}

#[test]
fn blocks_inside_the_span_of_a_ruined_record_are_found() {
    let blocks = three_blocks();
    let mut ruined = blocks[1].clone();
    // The block claims more inputs than it can hold, so its outline gives no length.
    ruined[HEADER + 1 + 4] = 0xfe;
    for size in [90, 70_000, 3_999_999] {
        let mut plain = Vec::new();
        push_record_of_size(&mut plain, MAGIC, &ruined, size);
        let lost = plain.len() as u64;
        let a = push_record(&mut plain, MAGIC, &blocks[0]);
        let b = push_record(&mut plain, MAGIC, &blocks[2]);
        let (seen, summary) = scan_bytes(&plain);
        assert_eq!(places(&seen), [a, b], "{size}");
        assert_eq!(summary.resynced, [StrayBytes { file: 0, offset: 0, length: lost }]);
        assert_eq!(summary.torn_count, 0);
    }
}

#[test]
fn a_record_inside_a_good_block_is_not_a_block() {
    let mut inner = Vec::new();
    push_record(&mut inner, MAGIC, &synthetic_block(9, 1, 10));
    let mut outer = synthetic_block(1, 1, 1_000);
    let at = outer.len() - 4 - 1_000;
    outer[at..at + inner.len()].copy_from_slice(&inner);
    let mut plain = Vec::new();
    let want = push_record(&mut plain, MAGIC, &outer);
    // Garbage after it makes the record doubtful.
    plain.extend_from_slice(&[0xab; 200]);
    assert_eq!(places(&scan_bytes(&plain).0), [want]);
}

#[test]
fn other_networks_are_counted_and_named() {
    let blocks = three_blocks();
    let mut plain = Vec::new();
    for block in &blocks {
        push_record(&mut plain, Network::Signet.magic(), block);
    }
    let (_dir, files) = block_folder(Some(KEY), &[&plain], 5_000);
    let error = files.scan(&mut |_, _| panic!("no block of ours")).unwrap_err();
    assert!(matches!(error, BlkError::WrongChain { found: Network::Signet, records: 3, .. }));
    assert!(error.to_string().ends_with("use --chain signet"));
    // One block of this chain is enough to continue the scan.
    let own = push_record(&mut plain, MAGIC, &blocks[0]);
    push_record(&mut plain, Network::Main.magic(), &blocks[1]);
    let (seen, summary) = scan_bytes(&plain);
    assert_eq!(places(&seen), [own]);
    assert_eq!((summary.foreign, summary.resynced_count), ([1, 0, 0, 3, 0], 0));
}

#[test]
fn a_scan_of_the_wrong_chain_gives_up_early() {
    let block = synthetic_block(1, 1, 1);
    let mut plain = Vec::new();
    for _ in 0..FOREIGN_ENOUGH {
        push_record(&mut plain, Network::Main.magic(), &block);
    }
    let mut own = Vec::new();
    push_record(&mut own, MAGIC, &block);
    let (_dir, files) = block_folder(None, &[&plain, &own], 0);
    let answer = files.scan(&mut |_, _| ControlFlow::Continue(()));
    assert!(matches!(answer, Err(BlkError::WrongChain { found: Network::Main, .. })));
}

#[test]
fn no_blocks_at_all_is_an_error() {
    for plain in [&b""[..], &[0; 50_000], &[0x77; 50_000]] {
        let (_dir, files) = block_folder(None, &[plain], 0);
        let error = files.scan(&mut |_, _| ControlFlow::Continue(())).unwrap_err();
        assert!(matches!(error, BlkError::NoBlocks { bytes, .. } if bytes == plain.len() as u64));
    }
}

#[test]
fn the_visitor_can_stop() {
    let block = synthetic_block(1, 1, 1);
    let mut plain = Vec::new();
    push_record(&mut plain, MAGIC, &block);
    push_record(&mut plain, MAGIC, &block);
    let (_dir, files) = block_folder(None, &[&plain, &plain], 0);
    let mut left = 3;
    let summary = files
        .scan(&mut |_, _| {
            left -= 1;
            if left == 0 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!((summary.records, summary.files, left), (3, 2, 0));
}

#[test]
fn files_that_vanish_or_shrink_are_errors() {
    let block = synthetic_block(1, 1, 1_000);
    let mut plain = Vec::new();
    push_record(&mut plain, MAGIC, &block);
    push_record(&mut plain, MAGIC, &block);
    let (_dir, files) = block_folder(None, &[&plain], 0);
    let path = &files.files()[0].path;
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(1_200).unwrap();
    let error = files.scan(&mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("the file was shortened"), "{error}");
    fs::remove_file(path).unwrap();
    let error = files.scan(&mut |_, _| ControlFlow::Continue(())).unwrap_err();
    assert!(error.to_string().contains("vanished after"), "{error}");
}

#[test]
fn a_hostile_file_cannot_make_a_scan_slow() {
    // The file consists of heads of records, each of a block with a witness that extends to the file's end:
    // following every outline would take seven billion steps. The first byte of the magic reads as the length
    // of a witness item, which skips the rest of each head.
    let mut record = MAGIC.to_vec();
    record.extend_from_slice(&3_000_000u32.to_le_bytes());
    record.resize(8 + HEADER, 0x11);
    record.extend_from_slice(&[1, 2, 0, 0, 0, 0, 1, 1]);
    record.resize(record.len() + 36, 0x22);
    record.extend_from_slice(&[0, 0xff, 0xff, 0xff, 0xff, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    record.extend_from_slice(&[0xfe, 0xff, 0xff, 0xff, 0]);
    record.resize(400, 0);
    let mut plain = record.repeat(10_000);
    plain.push(1);
    let (_dir, files) = block_folder(None, &[&plain], 0);
    let started = std::time::Instant::now();
    scan_all(&files);
    assert!(started.elapsed().as_secs() < 5);
}

#[test]
fn real_files_hold_the_blocks_that_the_node_counted() {
    for (folder, network, records) in [
        ("main-4521/blocks", Network::Main, 4_522),
        ("signet-120/blocks", Network::Signet, 121),
        ("regtest-315/regtest/blocks", Network::Regtest, 316),
    ] {
        let files = BlockFiles::open(fixtures().join(folder), network.magic()).unwrap();
        let summary = files.scan(&mut |_, _| ControlFlow::Continue(())).unwrap();
        assert_eq!((summary.records, summary.corrected), (records, 0), "{folder}");
        assert_eq!((summary.torn_count, summary.resynced_count), (0, 0), "{folder}");
        let wrong = BlockFiles::open(fixtures().join(folder), *b"\x01\x02\x03\x04").unwrap();
        let error = wrong.scan(&mut |_, _| ControlFlow::Continue(())).unwrap_err();
        assert!(
            matches!(error, BlkError::WrongChain { found, .. } if found == network),
            "{folder}: {error}"
        );
    }
}

/// A part of a block file.
#[derive(Clone, Debug)]
enum Piece {
    Record {
        txs: usize,
        script: usize,
        lie: Option<u32>,
    },
    /// Garbage never contains a byte with which a magic begins.
    Garbage(Vec<u8>),
}

fn piece() -> impl Strategy<Value = Piece> {
    let garbage = proptest::collection::vec(prop_oneof![Just(0u8), 0x80u8..0xf0], 1..300);
    let lie = proptest::option::weighted(0.2, prop_oneof![80u32..2_000, any::<u32>()]);
    prop_oneof![
        3 => (1usize..5, 0usize..400, lie).prop_map(|(txs, script, lie)| Piece::Record {
            txs, script, lie
        }),
        1 => garbage.prop_map(Piece::Garbage),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(300))]

    #[test]
    fn exactly_the_placed_records_are_found(
        pieces in proptest::collection::vec(piece(), 1..15),
        key in proptest::option::of(any::<[u8; 8]>()),
        zeros in prop_oneof![Just(0usize), 0usize..300, Just(600_000)],
    ) {
        let mut plain = Vec::new();
        let mut want = Vec::new();
        let mut starts = Vec::new();
        let mut false_ends = Vec::new();
        for (seed, piece) in pieces.iter().enumerate() {
            match piece {
                Piece::Garbage(bytes) => plain.extend_from_slice(bytes),
                Piece::Record { txs, script, lie } => {
                    let block = synthetic_block(seed as u32, *txs, *script);
                    let size = block.len() as u32;
                    let claimed = lie.unwrap_or(size);
                    starts.push(plain.len() as u64);
                    if claimed != size {
                        false_ends.push(plain.len() as u64 + 8 + u64::from(claimed));
                    }
                    let place = push_record_of_size(&mut plain, MAGIC, &block, claimed);
                    if (80..=4_000_000).contains(&claimed) {
                        want.push(BlockLocation { size, ..place });
                    }
                }
            }
        }
        // A false size that leads exactly to another record, or to the end, cannot be distinguished from a
        // true one.
        let end = (plain.len() + zeros) as u64;
        prop_assume!(!false_ends.iter().any(|at| *at == end || starts.contains(at)));
        let (_dir, files) = block_folder(key, &[&plain], zeros);
        let (seen, summary) = scan_all(&files);
        prop_assert_eq!(places(&seen), want);
        prop_assert_eq!(summary.torn_count, 0);
    }

    #[test]
    fn any_bytes_are_survived_and_places_stay_within_the_file(
        mut plain in proptest::collection::vec(any::<u8>(), 0..3_000),
        heads in proptest::collection::vec((any::<proptest::sample::Index>(), 0u32..3_000), 0..8),
        key: [u8; 8],
    ) {
        for (at, size) in heads {
            if plain.len() >= 8 {
                let at = at.index(plain.len() - 7);
                plain[at..at + 4].copy_from_slice(&MAGIC);
                plain[at + 4..at + 8].copy_from_slice(&size.to_le_bytes());
            }
        }
        let (_dir, files) = block_folder(Some(key), &[&plain], 0);
        let (seen, _) = scan_all(&files);
        for (header, place) in seen {
            prop_assert!(place.end() <= plain.len() as u64);
            let start = place.offset as usize;
            prop_assert_eq!(&header[..], &plain[start..start + HEADER]);
        }
    }
}

#[test]
fn the_length_of_real_blocks_is_computed() {
    for (name, block) in fixture_blocks() {
        assert_eq!(block_len(&block).0, Some(block.len()), "{name}");
        let mut longer = block.clone();
        longer.extend_from_slice(&[0xee; 50]);
        assert_eq!(block_len(&longer).0, Some(block.len()), "{name}");
        for keep in [0, 79, 80, 81, block.len() / 2, block.len() - 1] {
            assert_eq!(block_len(&block[..keep]).0, None, "{name} cut to {keep}");
        }
    }
}

#[test]
fn a_block_whose_end_became_zeros_is_refused() {
    for (name, mut block) in fixture_blocks() {
        // A single transaction may well survive zeros in its scripts, but not in the count of transactions.
        if block[HEADER] == 1 {
            continue;
        }
        let half = block.len() / 2;
        block[half..].fill(0);
        block.resize(block.len() + 100_000, 0);
        assert_eq!(block_len(&block).0, None, "{name}");
    }
}

#[test]
fn zeros_are_not_a_block() {
    assert_eq!(block_len(&[0; 200]).0, None);
    let mut block = vec![0; HEADER];
    block.push(3);
    block.resize(400, 0);
    assert_eq!(block_len(&block).0, None);
}

proptest! {
    #[test]
    fn any_bytes_give_an_answer_within_them(bytes in proptest::collection::vec(0u8..4, 0..600)) {
        let (length, looked) = block_len(&bytes);
        prop_assert!(length.is_none_or(|length| length == looked));
        prop_assert!(looked <= bytes.len());
    }

    #[test]
    fn made_up_blocks_end_where_they_end(seed: u32, txs in 1usize..20, script in 0usize..300) {
        let block = synthetic_block(seed, txs, script);
        prop_assert_eq!(block_len(&block).0, Some(block.len()));
    }
}

//! The reader returns the right bytes for any order and any buffer size.

use super::*;
use crate::tests::*;
use apus_chain::Network;
use proptest::prelude::*;
use std::collections::HashMap;
use std::fs;

fn read_all(
    files: &BlockFiles,
    buffer_bytes: usize,
    wanted: &[(u32, BlockLocation)],
) -> Vec<(u32, BlockLocation, Vec<u8>)> {
    let mut got = Vec::new();
    let mut reader = BlockReader::new(files, buffer_bytes);
    reader
        .read(&mut wanted.to_vec(), &mut |key, location, block| {
            got.push((key, location, block.to_vec()));
            ControlFlow::Continue(())
        })
        .unwrap();
    got.sort();
    got
}

proptest! {
    #[test]
    fn any_subset_order_and_buffer_give_the_same_bytes(
        sizes in proptest::collection::vec((0u32..3, 1usize..4, 0usize..3_000), 1..25),
        wishes in proptest::collection::vec(any::<proptest::sample::Index>(), 0..40),
        buffer_bytes in prop_oneof![Just(0usize), 1usize..20_000],
        gap in prop_oneof![Just(0usize), Just(200_000)],
        key: [u8; 8],
    ) {
        let mut contents = vec![Vec::new(); 3];
        let mut blocks = Vec::new();
        for (seed, (file, txs, script)) in sizes.into_iter().enumerate() {
            let block = synthetic_block(seed as u32, txs, script);
            let plain: &mut Vec<u8> = &mut contents[file as usize];
            plain.resize(plain.len() + gap, 0xee);
            let place = push_record(plain, MAGIC, &block);
            blocks.push((BlockLocation { file, ..place }, block));
        }
        let contents: Vec<_> = contents.iter().map(Vec::as_slice).collect();
        let (_dir, files) = block_folder(Some(key), &contents, 0);
        let mut want: Vec<_> = (0u32..)
            .zip(&wishes)
            .map(|(number, wish)| {
                let (place, block) = wish.get(&blocks);
                (number, *place, block.clone())
            })
            .collect();
        let wanted: Vec<_> = want.iter().map(|&(number, place, _)| (number, place)).collect();
        want.sort();
        prop_assert_eq!(read_all(&files, buffer_bytes, &wanted), want);
    }
}

#[test]
fn a_block_larger_than_the_buffer_grows_it_and_no_further() {
    let big = synthetic_block(1, 1, 3_900_000);
    let small = synthetic_block(2, 1, 10);
    let mut plain = Vec::new();
    let wanted =
        [(0, push_record(&mut plain, MAGIC, &big)), (1, push_record(&mut plain, MAGIC, &small))];
    let (_dir, files) = block_folder(Some(KEY), &[&plain], 0);
    let mut reader = BlockReader::new(&files, 1_000);
    let mut got = HashMap::new();
    reader
        .read(&mut wanted.to_vec(), &mut |key, _, block| {
            got.insert(key, block.to_vec());
            ControlFlow::Continue(())
        })
        .unwrap();
    assert_eq!(got, HashMap::from([(0, big.clone()), (1, small)]));
    assert_eq!(reader.buffer.capacity(), big.len());
}

#[test]
fn neighbours_share_a_request_up_to_the_buffer() {
    let block = synthetic_block(1, 1, 1_000);
    let mut plain = Vec::new();
    let wanted: Vec<_> = (0..10).map(|key| (key, push_record(&mut plain, MAGIC, &block))).collect();
    let (_dir, files) = block_folder(None, &[&plain], 0);
    let counts = |buffer_bytes| {
        let reader = BlockReader::new(&files, buffer_bytes);
        let (mut counts, mut rest) = (Vec::new(), &wanted[..]);
        while let (Some(stretch), after) = reader.next_stretch(rest) {
            assert!(
                stretch.blocks.len() == 1 || stretch.end - stretch.start <= buffer_bytes as u64
            );
            counts.push(stretch.blocks.len());
            rest = after;
        }
        counts
    };
    assert_eq!(counts(plain.len()), [10]);
    assert_eq!(counts(3 * (block.len() + 8)), [3, 3, 3, 1]);
    assert_eq!(counts(0), [1; 10]);
}

#[test]
fn the_caller_can_stop() {
    let block = synthetic_block(1, 1, 10);
    let mut plain = Vec::new();
    let mut wanted: Vec<_> =
        (0..5).map(|key| (key, push_record(&mut plain, MAGIC, &block))).collect();
    let (_dir, files) = block_folder(None, &[&plain], 0);
    let mut count = 0;
    BlockReader::new(&files, 1 << 20)
        .read(&mut wanted, &mut |_, _, _| {
            count += 1;
            if count == 2 { ControlFlow::Break(()) } else { ControlFlow::Continue(()) }
        })
        .unwrap();
    assert_eq!(count, 2);
}

#[test]
fn wrong_positions_are_errors() {
    let block = synthetic_block(1, 1, 1_000);
    let mut plain = Vec::new();
    let good = push_record(&mut plain, MAGIC, &block);
    let (_dir, files) = block_folder(None, &[&plain], 0);
    let read = |location| {
        BlockReader::new(&files, 100)
            .read(&mut [(0, location)], &mut |_, _, _| ControlFlow::Continue(()))
            .map_err(|error| error.to_string())
    };
    assert!(read(good).is_ok());
    let refused = |location, part: &str| {
        let text = read(location).unwrap_err();
        assert!(text.contains(part), "{text}");
    };
    refused(BlockLocation { file: 1, ..good }, "blk00001.dat");
    refused(BlockLocation { size: 79, ..good }, "79 bytes");
    refused(BlockLocation { size: 4_000_001, ..good }, "4000001 bytes");
    refused(BlockLocation { size: good.size + 1, ..good }, "stale");
    refused(BlockLocation { offset: u64::MAX, ..good }, "stale");
    let path = &files.files()[0].path;
    fs::OpenOptions::new().write(true).open(path).unwrap().set_len(500).unwrap();
    refused(good, "shortened");
    fs::remove_file(path).unwrap();
    refused(good, "vanished");
}

#[test]
fn real_blocks_have_the_headers_of_the_scan() {
    for (folder, network) in
        [("main-4521/blocks", Network::Main), ("regtest-315/regtest/blocks", Network::Regtest)]
    {
        let files = BlockFiles::open(fixtures().join(folder), network.magic()).unwrap();
        let (mut wanted, mut headers) = (Vec::new(), Vec::new());
        files
            .scan(&mut |header, location| {
                wanted.push((headers.len() as u32, location));
                headers.push(*header);
                ControlFlow::Continue(())
            })
            .unwrap();
        wanted.reverse();
        for buffer_bytes in [0, 100_000, 16 << 20] {
            let got = read_all(&files, buffer_bytes, &wanted);
            assert_eq!(got.len(), headers.len());
            for ((_, location, block), header) in got.iter().zip(&headers) {
                assert_eq!(block[..80], header[..]);
                assert_eq!(crate::scan::block_len(block).0, Some(location.size as usize));
            }
        }
    }
}

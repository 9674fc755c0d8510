//! Block files: listing, positions and obfuscation.

use super::*;
use apus_chain::Network;
use proptest::prelude::*;

const MAGIC: [u8; 4] = Network::Regtest.magic();

fn folder(entries: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, bytes) in entries {
        fs::write(dir.path().join(name), bytes).unwrap();
    }
    dir
}

#[track_caller]
fn says<T: std::fmt::Debug>(answer: Result<T, BlkError>, what: &str) {
    let error = answer.unwrap_err();
    assert!(matches!(error, BlkError::Changed(_)), "{error}");
    assert!(error.to_string().contains(what), "{error}");
}

#[test]
fn only_cores_file_names_count_and_gaps_are_fine() {
    let dir = folder(&[
        ("blk00007.dat", b"1234"),
        ("blk00002.dat", b"12"),
        ("blk123456.dat", b"1"),
        ("blk000002.dat", b"x"),
        ("blk+0001.dat", b"x"),
        ("blk.dat", b"x"),
        ("rev00002.dat", b"x"),
        ("blk00003.dat.bak", b"x"),
    ]);
    let files = BlockFiles::open(dir.path(), MAGIC).unwrap();
    let numbers: Vec<_> = files.files().iter().map(|file| file.number).collect();
    assert_eq!(numbers, [2, 7, 123_456]);
    assert_eq!(files.bytes_total(), 7);
    assert!(files.obfuscation().is_none());
}

#[test]
fn one_readable_file_is_enough() {
    let expect = |files: &[(&str, &[u8])]| {
        BlockFiles::open(folder(files).path(), MAGIC).unwrap().expect_blocks()
    };
    let record = [&MAGIC[..], &[80, 0, 0, 0], &[7; 80]].concat();
    let later = [&[9; 100][..], &record].concat();
    let (empty, noise, shorter) = (&b""[..], &[9; 100][..], &record[..50]);
    for blocks in [&record[..], &later, shorter] {
        expect(&[("blk00000.dat", empty), ("blk00001.dat", blocks)]).unwrap();
    }
    expect(&[("blk00000.dat", noise), ("blk00001.dat", &record)]).unwrap();
    expect(&[("blk00000.dat", empty), ("blk00001.dat", &noise[..7])]).unwrap();
    let none = expect(&[("blk00000.dat", empty), ("blk00001.dat", noise)]).unwrap_err();
    assert!(matches!(none, BlkError::NoBlocks { bytes: 100, .. }), "{none}");
}

#[test]
fn the_key_has_eight_bytes_or_is_absent() {
    let dir = folder(&[("blk00000.dat", b""), ("xor.dat", b"12345678")]);
    let files = BlockFiles::open(dir.path(), MAGIC).unwrap();
    assert_eq!(files.obfuscation(), Obfuscation::new(*b"12345678"));
    for key in [&b""[..], b"1234567", b"123456789"] {
        fs::write(dir.path().join("xor.dat"), key).unwrap();
        let error = BlockFiles::open(dir.path(), MAGIC).unwrap_err();
        assert!(error.to_string().contains(&format!("xor.dat has {} bytes", key.len())), "{error}");
    }
}

#[test]
fn missing_files_are_named() {
    let dir = folder(&[("readme", b"")]);
    let error = BlockFiles::open(dir.path(), MAGIC).unwrap_err();
    assert!(matches!(error, BlkError::NoFiles { .. }));
    let gone = dir.path().join("gone");
    let error = BlockFiles::open(&gone, MAGIC).unwrap_err();
    assert!(error.to_string().contains(gone.to_str().unwrap()));
    assert!(matches!(error, BlkError::Open(_)), "{error}");
    fs::create_dir(dir.path().join("blk00000.dat")).unwrap();
    let error = BlockFiles::open(dir.path(), MAGIC).unwrap_err().to_string();
    assert!(error.contains("is not a regular file"), "{error}");
}

#[test]
fn a_record_is_located_by_its_blocks_offset() {
    let mut bytes = vec![0xee; 3];
    bytes.extend_from_slice(&MAGIC);
    bytes.extend_from_slice(&100u32.to_le_bytes());
    bytes.extend_from_slice(&[7; 100]);
    let key = Obfuscation::new(*b"\x01\x20\x30\x40\x50\x60\x70\x80");
    key.apply(&mut bytes, 0);
    let dir = folder(&[("blk00004.dat", &bytes), ("xor.dat", b"\x01\x20\x30\x40\x50\x60\x70\x80")]);
    let files = BlockFiles::open(dir.path(), MAGIC).unwrap();
    let there = BlockLocation { file: 4, offset: 11, size: 100 };
    assert_eq!(files.locate(4, 11).unwrap(), Some(there));
    for offset in [0, 7, 8, 10, 12, 111, 112, u64::MAX] {
        assert_eq!(files.locate(4, offset).unwrap(), None, "{offset}");
    }
    says(files.locate(5, 11), "was missing when Apus listed the folder");
    // The record states one byte more than the file has.
    let file = fs::OpenOptions::new().write(true).open(&files.files()[0].path).unwrap();
    file.set_len(110).unwrap();
    let shorter = BlockFiles::open(dir.path(), MAGIC).unwrap();
    assert_eq!(shorter.locate(4, 11).unwrap(), None);
    file.set_len(5).unwrap();
    says(files.locate(4, 11), "ends before byte 11");
    fs::remove_file(&files.files()[0].path).unwrap();
    says(files.locate(4, 11), "vanished after");
}

fn bytewise(key: [u8; 8], bytes: &[u8], offset: u64) -> Vec<u8> {
    (offset..).zip(bytes).map(|(at, byte)| byte ^ key[(at % 8) as usize]).collect()
}

proptest! {
    #[test]
    fn words_agree_with_bytes(
        key: [u8; 8],
        bytes in proptest::collection::vec(any::<u8>(), 0..200),
        skip in 0usize..16,
        offset in 0u64..u64::MAX - 300,
    ) {
        let mut wide = bytes.clone();
        let skip = skip.min(wide.len());
        Obfuscation::new(key).apply(&mut wide[skip..], offset);
        prop_assert_eq!(&wide[..skip], &bytes[..skip]);
        prop_assert_eq!(&wide[skip..], &bytewise(key, &bytes[skip..], offset)[..]);
    }

    #[test]
    fn a_run_may_be_cut_anywhere(
        key: [u8; 8],
        bytes in proptest::collection::vec(any::<u8>(), 0..100),
        cut in 0usize..100,
        offset in 0u64..1_000,
    ) {
        let cut = cut.min(bytes.len());
        let mut parts = bytes.clone();
        Obfuscation::new(key).apply(&mut parts[..cut], offset);
        Obfuscation::new(key).apply(&mut parts[cut..], offset + cut as u64);
        prop_assert_eq!(&parts, &bytewise(key, &bytes, offset));
        Obfuscation::new(key).apply(&mut parts, offset);
        prop_assert_eq!(parts, bytes);
    }

    #[test]
    fn trimming_finds_the_last_byte_on_disk(
        key: [u8; 8],
        mut disk in proptest::collection::vec(0u8..3, 0..60),
        zeros in 0usize..40,
        offset in 0u64..1_000,
    ) {
        disk.resize(disk.len() + zeros, 0);
        let want = disk.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        Obfuscation::new(key).apply(&mut disk, offset);
        prop_assert_eq!(Obfuscation::new(key).trimmed_len(&disk, offset), want);
    }
}

#[test]
fn the_zero_key_changes_nothing() {
    let mut bytes = [1, 2, 3];
    Obfuscation::NONE.apply(&mut bytes, 5);
    assert_eq!(bytes, [1, 2, 3]);
    assert!(Obfuscation::new([0; 8]).is_none() && !Obfuscation::new([1; 8]).is_none());
}

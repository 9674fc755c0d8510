//! Checks that unpacking restores the content in every format, and that damage is an error.

use super::*;
use crate::failure::{INTERRUPTED, WRONG};
use flate2::Compression;
use flate2::write::GzEncoder;
use lzma_rust2::{XzOptions, XzWriter};
use proptest::prelude::*;
use ruzstd::encoding::{CompressionLevel, compress_to_vec};
use tempfile::TempDir;

static NEVER: AtomicBool = AtomicBool::new(false);

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut writer = GzEncoder::new(Vec::new(), Compression::fast());
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn xz(bytes: &[u8]) -> Vec<u8> {
    let mut writer = XzWriter::new(Vec::new(), XzOptions::with_preset(0)).unwrap();
    writer.write_all(bytes).unwrap();
    writer.finish().unwrap()
}

fn zstd(bytes: &[u8]) -> Vec<u8> {
    compress_to_vec(bytes, CompressionLevel::Fastest)
}

type Pack = fn(&[u8]) -> Vec<u8>;

const ALL: [Pack; 3] = [gzip, xz, zstd];

/// Unpacks a file with these bytes.
fn unpacked(bytes: &[u8]) -> (TempDir, Result<Vec<u8>, Failure>) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, bytes).unwrap();
    let input = InputFile::from(path.clone());
    let made = input.make_plain(folder.path(), &NEVER);
    let names = fs::read_dir(folder.path()).unwrap().count();
    assert_eq!((names, input.named()), (1, path.as_path()), "no other file has a name");
    // The copy can be read repeatedly.
    let read = made.map(|()| fs::read(input.path()).and(fs::read(input.path())).unwrap());
    (folder, read)
}

fn streamed(bytes: &[u8]) -> Result<Vec<u8>, Failure> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    fs::write(&path, bytes).unwrap();
    InputFile::from(path).stream(&NEVER, |mut reader| {
        let mut all = Vec::new();
        let read = reader.read_to_end(&mut all);
        read.map(|_| all).map_err(|error| Failure::new(IO, error.to_string()))
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn every_format_restores_the_content(bytes in prop::collection::vec(0u8..9, 0..200_000), cut in 0usize..200_000) {
        prop_assert_eq!(unpacked(&bytes).1.unwrap(), &bytes[..]);
        let (one, two) = bytes.split_at(cut.min(bytes.len()));
        for pack in ALL {
            prop_assert_eq!(unpacked(&pack(&bytes)).1.unwrap(), &bytes[..]);
            // Programs that compress in parts write such files.
            let parts = [pack(one), pack(two)].concat();
            prop_assert_eq!(streamed(&parts).unwrap(), &bytes[..]);
        }
    }

    #[test]
    fn random_bytes_never_cause_a_panic(mark in 0usize..3, bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let mark = [&[0x1f, 0x8b, 8][..], b"\xfd7zXZ\0", &[0x28, 0xb5, 0x2f, 0xfd]][mark];
        let _ = streamed(&[mark, &bytes].concat());
    }
}

#[test]
fn truncated_or_changed_files_are_errors() {
    let bytes: Vec<u8> = (0..50_000u32).map(|n| (n % 251) as u8).collect();
    for (pack, command) in ALL.into_iter().zip(["gzip -d ", "xz -d ", "zstd -d "]) {
        let packed = pack(&bytes);
        let mut changed = packed.clone();
        let at = changed.len() / 2;
        changed[at] ^= 0x40;
        for wrong in [&packed[..packed.len() / 2], &packed[..packed.len() - 1], &changed] {
            for said in [unpacked(wrong).1, streamed(wrong)] {
                let said = said.unwrap_err();
                assert_eq!(said.code, WRONG, "{}", said.message);
                assert!(said.message.contains(command), "{}", said.message);
            }
        }
    }
}

#[test]
fn a_frame_for_other_programs_is_skipped() {
    let frame = [&[0x50, 0x2a, 0x4d, 0x18, 3, 0, 0, 0][..], b"xyz"].concat();
    let file = [zstd(b"one "), frame, zstd(b"two")].concat();
    assert_eq!(unpacked(&file).1.unwrap(), b"one two");
}

#[test]
fn a_decoder_respects_its_memory_limit() {
    // A zstd frame with a window of 2 GiB, and an LZMA2 block with a dictionary of 4 GiB less one byte.
    let far = [0x28, 0xb5, 0x2f, 0xfd, 0, 0xa8, 1, 0, 0];
    let said = unpacked(&far).1.unwrap_err();
    assert_eq!(said.code, WRONG, "{}", said.message);
    let mut block = xz(b"some");
    // The stream's header is followed by the block's size and flags, the filter, its size and the dictionary's.
    assert_eq!(block[14..16], [0x21, 1]);
    block[16] = 40;
    let header = block[12..20].to_vec();
    block[20..24].copy_from_slice(&crc32(&header).to_le_bytes());
    let said = unpacked(&block).1.unwrap_err();
    assert!(said.code == WRONG && said.message.contains("memory"), "{}", said.message);
}

/// CRC-32 (IEEE 802.3), one bit at a time.
fn crc32(bytes: &[u8]) -> u32 {
    !bytes.iter().fold(!0, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte), |crc, _| (crc >> 1) ^ (0xedb8_8320 * (crc & 1)))
    })
}

#[test]
fn unpacking_stops_before_the_disk_is_full() {
    let folder = tempfile::tempdir().unwrap();
    let file = tempfile::tempfile_in(folder.path()).unwrap();
    let mut target = Target::new(&file, folder.path(), &NEVER).unwrap();
    target.reserve = u64::MAX;
    let error = target.write_all(b"x").unwrap_err();
    assert_eq!((error.kind(), target.failed), (io::ErrorKind::StorageFull, true));
    assert_eq!(file.metadata().unwrap().len(), 0);
}

#[test]
fn a_pipe_is_read_once_and_one_without_a_writer_ends_at_the_first_signal() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("pipe");
    assert!(std::process::Command::new("mkfifo").arg(&path).status().unwrap().success());
    let (input, writes) = (InputFile::from(path.clone()), path.clone());
    let writer = std::thread::spawn(move || fs::write(writes, xz(&[7; 99_999])).unwrap());
    assert!(!input.is_plain().unwrap());
    input.make_plain(folder.path(), &NEVER).unwrap();
    writer.join().unwrap();
    assert_eq!(fs::read(input.path()).unwrap(), [7; 99_999]);
    // A plain file is not unpacked.
    input.make_plain(folder.path(), &NEVER).unwrap();
    let (input, interrupt) = (InputFile::from(path), AtomicBool::new(true));
    let said = input.make_plain(folder.path(), &interrupt).unwrap_err();
    assert_eq!(said.code, INTERRUPTED);
}

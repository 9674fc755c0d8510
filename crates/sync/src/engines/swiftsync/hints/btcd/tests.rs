use super::*;
use crate::engines::swiftsync::hints::Format;
use crate::engines::swiftsync::hints::block::tests::{collect, fault};
use crate::engines::swiftsync::hints::error::HintsErrorKind;
use flate2::Compression;
use flate2::write::GzEncoder;

const HEADER: [u8; 9] = [b'U', b'T', b'X', b'O', 1, 3, 0, 0, 0];
/// Three blocks: empty; 13, 16, … 40; 5 and 500.
const BODY: [u8; 17] = [0, 10, 13, 2, 2, 2, 2, 2, 2, 2, 2, 2, 4, 5, 0xfd, 0xee, 1];

fn blocks() -> Vec<Vec<u32>> {
    vec![vec![], (13..=40).step_by(3).collect(), vec![5, 500]]
}

fn read(bytes: &[u8]) -> Result<Vec<Vec<u32>>, HintsError> {
    collect(Format::Btcd, &mut BtcdDecoder::new(bytes)?)
}

fn with_body(body: &[u8]) -> Vec<u8> {
    [&HEADER, body].concat()
}

fn gzip(bytes: &[u8]) -> Vec<u8> {
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(bytes).unwrap();
    encoder.finish().unwrap()
}

#[test]
fn the_published_example_round_trips() {
    let file = with_body(&BODY);
    assert_eq!(read(&file).unwrap(), blocks());
    let mut out = Vec::new();
    let mut encoder = Box::new(BtcdEncoder::new(&mut out, 3).unwrap());
    for indices in &blocks() {
        encoder.put_block(indices, 501).unwrap();
    }
    encoder.finish().unwrap();
    assert_eq!(out, file);
}

#[test]
fn a_gzip_member_reads_the_same_and_nothing_may_follow_it() {
    let file = gzip(&with_body(&BODY));
    assert!(file.starts_with(&GZIP_MAGIC));
    assert_eq!(read(&file).unwrap(), blocks());
    let error = read(&[&file[..], &[0]].concat()).unwrap_err();
    assert!(matches!(error, HintsError::Trailing { height: 3, offset: 26 }));
    for end in 0..file.len() {
        let error = read(&file[..end]).unwrap_err();
        assert_eq!(error.kind(), HintsErrorKind::Invalid, "{end}: {error}");
    }
    // The last eight bytes are the checksum and the length.
    for at in file.len() - 8..file.len() {
        let mut damaged = file.clone();
        damaged[at] ^= 1;
        let error = read(&damaged).unwrap_err();
        assert_eq!(error.kind(), HintsErrorKind::Invalid, "{at}: {error}");
    }
}

#[test]
fn a_wrong_header_is_refused() {
    for (at, value) in [(0, b'u'), (3, 0), (4, 0), (4, 2)] {
        let mut file = with_body(&BODY);
        file[at] = value;
        assert!(matches!(read(&file), Err(HintsError::Header { .. })));
    }
    for height in [2u8, 4] {
        let mut file = with_body(&BODY);
        file[5] = height;
        match read(&file).unwrap_err() {
            HintsError::Trailing { height: 2, offset: 21 } => assert_eq!(height, 2),
            HintsError::Block { height: 4, offset: 26, fault: HintsFault::End { .. }, .. } => {
                assert_eq!(height, 4);
            }
            other => panic!("{other}"),
        }
    }
}

#[test]
fn every_truncation_and_extension_is_noticed() {
    let file = with_body(&BODY);
    for end in 0..file.len() {
        match read(&file[..end]).unwrap_err() {
            HintsError::Header { .. } => assert!(end < 9),
            HintsError::Block { fault: HintsFault::End { .. }, .. } => assert!(end >= 9),
            other => panic!("{end}: {other}"),
        }
    }
    let error = read(&[&file[..], &[0]].concat()).unwrap_err();
    assert!(matches!(error, HintsError::Trailing { height: 3, offset: 26 }));
}

#[test]
fn a_gap_may_not_leave_its_block_or_all_blocks() {
    let one = |body: &[u8]| fault(read(&with_body(body)));
    // The gap's last byte is past the announced length.
    assert_eq!(one(&[1, 0xfd, 0xfd, 0]), HintsFault::End { field: "a gap" });
    assert_eq!(one(&[3, 0xfd, 5, 0]), HintsFault::NonCanonical { field: "a gap" });
    assert!(matches!(
        one(&[5, 0xfe, 7, 0xb2, 1, 0]),
        HintsFault::TooLarge { value: 111_111, limit: 111_110, .. }
    ));
    assert!(matches!(
        one(&[6, 0xfe, 6, 0xb2, 1, 0, 0]),
        HintsFault::TooLarge { value: 111_111, limit: 111_110, .. }
    ));
    assert!(matches!(
        one(&[0xfe, 0xff, 0xff, 0xff, 0xff]),
        HintsFault::TooLarge { field: "the length of the gaps", limit: 111_111, .. }
    ));
}

#[test]
fn the_densest_block_fits() {
    let all: Vec<u32> = (0..OUTPUTS_PER_BLOCK_MAX).collect();
    let mut out = Vec::new();
    let mut encoder = Box::new(BtcdEncoder::new(&mut out, 1).unwrap());
    encoder.put_block(&all, OUTPUTS_PER_BLOCK_MAX).unwrap();
    assert!(matches!(encoder.put_block(&[], 1), Err(HintsError::BlockCount { height: 2, .. })));
    encoder.finish().unwrap();
    assert_eq!(read(&out).unwrap(), [all]);
}

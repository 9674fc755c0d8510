//! Partial results in a work folder: accepted ones are written back as the same bytes, and adding two does not
//! depend on their order.
//!
//! Inputs: at most 8192 bytes.

#![no_main]

use apus_chain::Reader;
use apus_sync::engines::pass::PartialResult;
use apus_sync::engines::swiftsync::Partial;
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut reader = Reader::new(data);
    let Some(left) = Partial::read(&mut reader) else { return };
    let length = reader.position();
    assert!(bytes(&left) == data[..length]);
    assert!(left.ranges().iter().all(|range| range.start < range.end));

    let Some(right) = Partial::read(&mut reader) else { return };
    let (mut one, mut other) = (left.clone(), right.clone());
    let merged = one.merge(&right);
    assert_eq!(merged, other.merge(&left));
    if merged.is_ok() {
        assert!(one == other);
        // Neighbouring ranges, so that the sum can be stored as well.
        let bytes = bytes(&one);
        assert!(Partial::read(&mut Reader::new(&bytes)).is_none_or(|again| again == one));
        assert!(one.merge(&right).is_err() || right.ranges().is_empty());
    } else {
        assert!(one == left, "a part that does not fit changes nothing");
    }
});

fn bytes(partial: &Partial) -> Vec<u8> {
    let mut out = Vec::new();
    partial.write(&mut out);
    out
}

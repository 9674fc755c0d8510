//! Stored state of the network: files of headers and of addresses. Never a panic; headers only if the checksum
//! is right; addresses are written back unchanged.
//!
//! Input: which of the two, then the bytes.
//!
//! Inputs: at most 8192 bytes.

#![no_main]

use apus_chain::Network;
use apus_fuzz::Input;
use apus_p2p::addresses::AddressBook;
use apus_p2p::headers::store::{HeaderFileReader, write_frames, write_head};
use libfuzzer_sys::fuzz_target;

const NOW: i64 = 1_800_000_000;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    match input.u8() & 1 {
        0 => headers(input.rest()),
        _ => addresses(input.rest()),
    }
});

fn headers(bytes: &[u8]) {
    let mut file = bytes;
    let Some(mut reader) = HeaderFileReader::open(&mut file, Network::Regtest) else { return };
    let mut headers = Vec::new();
    while let Some(frame) = reader.next_frame() {
        headers.extend(frame);
    }
    assert!(reader.good_bytes() <= bytes.len() as u64);
    let mut again = Vec::new();
    write_head(&mut again, Network::Regtest).expect("memory");
    write_frames(&mut again, &headers).expect("memory");
    let mut file = &again[..];
    let mut reader = HeaderFileReader::open(&mut file, Network::Regtest).expect("a head");
    let mut found = Vec::new();
    while let Some(frame) = reader.next_frame() {
        found.extend(frame);
    }
    assert_eq!(found, headers);
}

fn addresses(bytes: &[u8]) {
    let mut book = AddressBook::new(Network::Main, 1);
    if book.restore(bytes, NOW).is_none() {
        return;
    }
    let text = book.encode();
    let mut again = AddressBook::new(Network::Main, 1);
    again.restore(text.as_bytes(), NOW).expect("what was written is read");
    assert_eq!(again.encode(), text);
}

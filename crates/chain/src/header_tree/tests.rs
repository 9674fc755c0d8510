//! Tests the tree with real chains, each rule, and different orders. Has helpers for real headers, from the
//! fixtures, and for mined ones.

mod orders;
mod real;
mod rules;

use crate::hashes::MerkleRoot;
use crate::header::{Header, Height};
use crate::header_tree::HeaderTree;
use crate::header_tree::rules::MEDIAN_TIME_SPAN;
use crate::params::Params;
use crate::work::check_proof_of_work;

/// A clock later than every header in these tests.
pub(crate) const NOW: i64 = 1_900_000_000;

/// Reads all headers of a file in `fixtures/headers`.
pub(crate) fn raw_headers(name: &str) -> Vec<[u8; 80]> {
    let path = format!("{}/../../fixtures/headers/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let (headers, rest) = bytes.as_chunks::<80>();
    assert!(rest.is_empty(), "{name} is not a sequence of headers");
    headers.to_vec()
}

/// Finds a valid nonce.
pub(crate) fn mine(params: &Params, mut header: Header) -> Header {
    while !check_proof_of_work(&header.hash(), header.bits, params.pow_limit) {
        header.nonce = header.nonce.wrapping_add(1);
    }
    header
}

/// Mines a child one spacing later with its parent's target. `salt` distinguishes siblings.
pub(crate) fn mine_child(params: &Params, parent: &Header, salt: u32) -> Header {
    mine(params, child(params, parent, salt))
}

/// Like [`mine_child`], but without a valid nonce.
pub(crate) fn child(params: &Params, parent: &Header, salt: u32) -> Header {
    let mut merkle_root = [0; 32];
    merkle_root[..4].copy_from_slice(&salt.to_le_bytes());
    Header {
        version: 4,
        prev: parent.hash(),
        merkle_root: MerkleRoot(merkle_root),
        time: parent.time + params.pow_target_spacing_seconds.get(),
        bits: parent.bits,
        nonce: 0,
    }
}

/// Number of headers that [`tree_at`] trusts, enough for the median.
pub(crate) const TRUSTED: usize = MEDIAN_TIME_SPAN;

/// A tree in the middle of a real chain: trusts the first headers of a sequence that starts at `height`.
pub(crate) fn tree_at(params: &Params, headers: &[[u8; 80]], height: Height) -> HeaderTree {
    let root = Header::parse(&headers[0]);
    let mut tree = HeaderTree::rooted_at(params, NOW, &root, root.hash(), height);
    for raw in &headers[1..TRUSTED] {
        let header = Header::parse(raw);
        let parent = tree.find(&header.prev).unwrap();
        let id = tree.store(header.hash(), header.time);
        tree.connect(id, parent, header.bits);
    }
    tree
}

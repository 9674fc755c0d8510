//! Tests of the tree: real chains, each rule, and orders; and headers for them, real ones from the fixtures and mined ones.

mod orders;
mod real;
mod rules;

use crate::hashes::MerkleRoot;
use crate::header::{Header, Height};
use crate::header_tree::HeaderTree;
use crate::header_tree::rules::MEDIAN_TIME_SPAN;
use crate::params::Params;
use crate::work::check_proof_of_work;

/// A clock after every header that tests use.
pub(crate) const NOW: i64 = 1_900_000_000;

/// All headers of a file in `fixtures/headers`.
pub(crate) fn raw_headers(name: &str) -> Vec<[u8; 80]> {
    let path = format!("{}/../../fixtures/headers/{name}", env!("CARGO_MANIFEST_DIR"));
    let bytes = std::fs::read(path).unwrap();
    let (headers, rest) = bytes.as_chunks::<80>();
    assert!(rest.is_empty(), "{name} is no row of headers");
    headers.to_vec()
}

/// Finds the nonce.
pub(crate) fn mine(params: &Params, mut header: Header) -> Header {
    while !check_proof_of_work(&header.hash(), header.bits, params.pow_limit) {
        header.nonce = header.nonce.wrapping_add(1);
    }
    header
}

/// A child one spacing later with its parent's target. `salt` tells siblings apart.
pub(crate) fn mine_child(params: &Params, parent: &Header, salt: u32) -> Header {
    mine(params, child(params, parent, salt))
}

/// The same, not mined yet.
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

/// How many headers [`tree_at`] needs to trust: with fewer ancestors a median is another one.
pub(crate) const TRUSTED: usize = MEDIAN_TIME_SPAN;

/// A tree in the middle of a real chain, on the first headers of a stretch that starts at `height`.
pub(crate) fn tree_at(params: &Params, stretch: &[[u8; 80]], height: Height) -> HeaderTree {
    let root = Header::parse(&stretch[0]);
    let mut tree = HeaderTree::rooted_at(params, NOW, &root, root.hash(), height);
    for raw in &stretch[1..TRUSTED] {
        let header = Header::parse(raw);
        let parent = tree.find(&header.prev).unwrap();
        let id = tree.store(header.hash(), &header);
        tree.connect(id, parent);
    }
    tree
}

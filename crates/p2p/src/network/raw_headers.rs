//! [`RawHeaders`]: the headers of a tree as they came over the line.
//!
//! The tree has version, time, target and parent of each; what is kept here is the rest, 36 bytes.

use apus_chain::{BlockHash, HEADER_SIZE, Header, HeaderId, HeaderTree, MerkleRoot};

/// What the tree has not.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    merkle_root: [u8; 32],
    nonce: u32,
}

/// See the module. By the header's place in the tree.
#[derive(Debug)]
pub(super) struct RawHeaders(Vec<Rest>);

impl RawHeaders {
    /// Those of a tree that has the genesis block.
    pub(super) fn new(genesis: &Header) -> Self {
        Self(vec![Rest { merkle_root: genesis.merkle_root.0, nonce: genesis.nonce }])
    }

    /// Adds headers that are new in the tree. Those that did not get into it are passed over.
    pub(super) fn add(&mut self, tree: &HeaderTree, headers: &[[u8; HEADER_SIZE]]) {
        self.0.resize(tree.len(), Rest::default());
        for raw in headers {
            let header = Header::parse(raw);
            if let Some(id) = tree.find(&header.hash()) {
                self.0[id.index()] =
                    Rest { merkle_root: header.merkle_root.0, nonce: header.nonce };
            }
        }
    }

    /// A header, if it is connected.
    pub(super) fn get(&self, tree: &HeaderTree, id: HeaderId) -> Option<[u8; HEADER_SIZE]> {
        let rest = self.0.get(id.index())?;
        let header = tree.connected(id)?;
        let header = Header {
            version: header.version,
            prev: header.parent.map_or(BlockHash::ZERO, |parent| *tree.hash(parent)),
            merkle_root: MerkleRoot(rest.merkle_root),
            time: header.time,
            bits: header.bits,
            nonce: rest.nonce,
        };
        Some(header.to_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::testing::{NOW, raw_headers};
    use apus_chain::{Network, Params};

    #[test]
    fn headers_are_given_as_they_came() {
        let raw = raw_headers("main_0_4040.bin");
        let params = Params::of(Network::Main);
        let mut tree = HeaderTree::new(params, NOW);
        let mut headers = RawHeaders::new(&params.genesis_header);
        assert_eq!(headers.get(&tree, tree.tip()), Some(raw[0]));
        for part in raw[1..].chunks(1000) {
            for header in part {
                tree.accept(header).unwrap();
            }
            headers.add(&tree, part);
        }
        for (raw, id) in raw.iter().zip(tree.path_to(tree.tip())) {
            assert_eq!(headers.get(&tree, id).as_ref(), Some(raw));
        }
        // One that the tree does not have changes nothing.
        headers.add(&tree, &[[7; 80]]);
        assert_eq!(headers.get(&tree, tree.tip()).as_ref(), raw.last());
    }
}

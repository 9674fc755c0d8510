//! [`NodeTip`]: the block that a node's coins are at, if it is not on the chain found.
//!
//! The node's claims prove nothing. But the user must learn that the chain found ends below the node's tip, and
//! an older set of coins must not replace a newer one unless the user allows it.

use apus_chain::{
    ANY_TIME, BlockHash, Header, HeaderChain, HeaderTree, Height, KNOTS_CHAIN, Params,
};
use apus_datadir::chainstate::node_best_block;
use apus_datadir::read_index;
use std::fmt::{Display, Formatter};
use std::ops::ControlFlow;
use std::path::Path;

/// The block that a node's coins are at, if it is not on the chain found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct NodeTip {
    /// The block.
    pub hash: BlockHash,
    /// Its height by the node's index; `None` if the index does not have the block.
    pub height: Option<Height>,
    /// The work of the chain up to the block; `None` if its headers are incomplete or invalid.
    pub chain_work: Option<u128>,
    /// Whether it has Bitcoin Knots' own proof of work.
    pub of_knots: bool,
}

impl NodeTip {
    /// Finds the block of the coins in `chainstate`, using the index of `blocksdir`; `None` if the block is on
    /// `chain` or the coins do not name one.
    pub(crate) fn beyond(
        chain: &HeaderChain,
        chainstate: &Path,
        blocksdir: &Path,
        params: &Params,
    ) -> Option<Self> {
        let hash = node_best_block(chainstate).ok().flatten()?;
        if chain.height_of(&hash).is_some() {
            return None;
        }
        let mut tree = HeaderTree::new(params, ANY_TIME);
        tree.set_orphans_max(usize::MAX);
        let mut tip = Self { hash, height: None, chain_work: None, of_knots: false };
        // An unreadable index only leaves height and work unknown.
        let _ = read_index(blocksdir, &mut |entry| {
            let _ = tree.accept(&entry.header);
            if entry.hash == hash {
                tip.height = Some(entry.height);
                tip.of_knots = Header::parse(&entry.header).is_extended();
            }
            ControlFlow::Continue(())
        });
        let found = tree.find(&hash).and_then(|id| tree.connected(id));
        if let Some(found) = found {
            (tip.height, tip.chain_work) = (Some(found.height), Some(found.chain_work));
        }
        Some(tip)
    }

    /// Returns whether a chain is known to have at least as much work.
    pub(crate) fn is_reached_by(&self, chain: &HeaderChain) -> bool {
        self.chain_work.is_some_and(|work| work <= chain.chain_work())
    }
}

impl Display for NodeTip {
    fn fmt(&self, f: &mut Formatter<'_>) -> std::fmt::Result {
        match self.height {
            Some(height) => write!(f, "block {height} ({})", self.hash)?,
            None => write!(f, "block {}, which its index does not have", self.hash)?,
        }
        match self.of_knots {
            true => write!(f, ", {KNOTS_CHAIN}"),
            false => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use apus_chain::Network;
    use apus_datadir::BlockFiles;
    use std::path::PathBuf;

    /// The fixture's node is at block 315.
    #[test]
    fn a_longer_chain_is_recognised_by_the_nodes_coins() {
        let folder =
            PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/regtest-315/regtest");
        let (blocks, chainstate) = (folder.join("blocks"), folder.join("chainstate"));
        let params = Params::of(Network::Regtest);
        let mut headers = Vec::new();
        let files = BlockFiles::open(&blocks, params.network.magic()).unwrap();
        files
            .scan(&mut |header, _| {
                headers.push(*header);
                ControlFlow::Continue(())
            })
            .unwrap();
        let mut tree = HeaderTree::new(params, ANY_TIME);
        for header in &headers {
            tree.accept(header).unwrap();
        }
        let path = tree.path_to(tree.tip());
        let whole = HeaderChain::best_of(&tree);
        let shorter = HeaderChain::up_to(&tree, path[300]).unwrap();
        assert_eq!(NodeTip::beyond(&whole, &chainstate, &blocks, params), None);
        assert_eq!(NodeTip::beyond(&shorter, &blocks, &blocks, params), None, "no coins");
        let node = NodeTip::beyond(&shorter, &chainstate, &blocks, params).unwrap();
        assert_eq!((node.height, node.hash), (Some(315), *whole.tip_hash()));
        assert!(!node.is_reached_by(&shorter) && node.is_reached_by(&whole));
        let without_index = NodeTip::beyond(&shorter, &chainstate, &folder, params).unwrap();
        assert_eq!((without_index.height, without_index.chain_work), (None, None));
        assert!(!without_index.is_reached_by(&whole));
    }
}

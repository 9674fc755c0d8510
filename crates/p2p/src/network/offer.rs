//! [`Offer`]: what peers are told that they can have here.
//!
//! It is said once, in the handshake, and nodes believe it as long as the connection lasts. So only
//! what is there at that moment, and will stay, is offered.

use super::BlockProvider;
use crate::message::Services;
use apus_chain::{BlockHash, HeaderChain, Height};

/// Blocks below the tip that [`Services::NETWORK_LIMITED`] promises (BIP-159).
const LIMITED_BLOCKS: Height = 288;

/// See the module.
#[derive(Debug, Default)]
pub(super) struct Offer {
    /// Up to here all blocks are known to be there, and they stay.
    all_to: Option<(Height, BlockHash)>,
}

impl Offer {
    /// What can be had of `chain`, which is the one that peers are told of. No peer needs to
    /// be given the genesis block.
    pub(super) fn services(&mut self, chain: &HeaderChain, blocks: &dyn BlockProvider) -> Services {
        let tip = chain.tip_height();
        if tip == 0 {
            return Services::default();
        }
        let is_missing =
            |height: &Height| !chain.hash(*height).is_some_and(|hash| blocks.has(hash));
        if blocks.keeps_all() {
            let known = self.all_to.filter(|(height, hash)| chain.hash(*height) == Some(hash));
            let first = known.map_or(1, |(height, _)| height + 1);
            let missing = (first..=tip).find(is_missing);
            let last = missing.map_or(tip, |missing| missing - 1);
            // Where one is missing the next to ask begins there.
            self.all_to = chain.hash(last).map(|hash| (last, *hash));
            if missing.is_none() {
                return Services::NETWORK.with(Services::NETWORK_LIMITED);
            }
        }
        // From the tip down: that is where one is missing that is on its way.
        let low = (tip + 1).saturating_sub(LIMITED_BLOCKS).max(1);
        match (low..=tip).rev().find(is_missing) {
            None => Services::NETWORK_LIMITED,
            Some(_) => Services::default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::testing::{NOW, mined, regtest};
    use std::collections::HashSet;
    use std::sync::atomic::{AtomicUsize, Ordering};

    #[derive(Default)]
    struct Blocks {
        there: HashSet<BlockHash>,
        keeps_all: bool,
        looked_up: AtomicUsize,
    }

    impl BlockProvider for Blocks {
        fn block(&self, hash: &BlockHash) -> Option<Vec<u8>> {
            self.has(hash).then(Vec::new)
        }

        fn has(&self, hash: &BlockHash) -> bool {
            self.looked_up.fetch_add(1, Ordering::Relaxed);
            self.there.contains(hash)
        }

        fn keeps_all(&self) -> bool {
            self.keeps_all
        }
    }

    fn chain(raw: &[[u8; 80]]) -> HeaderChain {
        HeaderChain::from_headers(&regtest(0), NOW, raw).unwrap()
    }

    #[test]
    fn only_what_is_there_is_offered() {
        let raw = mined(None, 400, 1);
        let (chain, nothing) = (chain(&raw), Services::default());
        let all = Services::NETWORK.with(Services::NETWORK_LIMITED);
        let cases = [
            (1, true, all),
            (1, false, Services::NETWORK_LIMITED),
            (2, true, Services::NETWORK_LIMITED),
            (113, false, Services::NETWORK_LIMITED),
            (114, true, nothing),
            (114, false, nothing),
            (401, true, nothing),
        ];
        for (first, keeps_all, expected) in cases {
            let there = (first..=400).map(|height| *chain.hash(height).unwrap()).collect();
            let services = Offer::default()
                .services(&chain, &Blocks { there, keeps_all, ..Blocks::default() });
            assert_eq!(services, expected, "from {first}, all: {keeps_all}");
        }
    }

    #[test]
    fn what_was_there_is_not_asked_again_but_what_is_new_is() {
        let raw = mined(None, 400, 1);
        let longer = [raw.clone(), mined(Some(&raw[399]), 300, 1)].concat();
        let branch = [raw[..100].to_vec(), mined(Some(&raw[99]), 500, 2)].concat();
        let [short, longer, branch] = [&raw, &longer, &branch].map(|raw| chain(raw));
        let there = (1..=400).map(|height| *short.hash(height).unwrap()).collect();
        let mut blocks = Blocks { there, keeps_all: true, ..Blocks::default() };
        let mut offer = Offer::default();
        assert!(offer.services(&short, &blocks).has(Services::NETWORK));
        assert_eq!(offer.services(&longer, &blocks), Services::default());
        assert_eq!(offer.services(&branch, &blocks), Services::default());
        let add = |chain: &HeaderChain, blocks: &mut Blocks, first: Height| {
            let hashes = (first..=chain.tip_height()).map(|height| *chain.hash(height).unwrap());
            blocks.there.extend(hashes);
        };
        add(&longer, &mut blocks, 401);
        assert!(offer.services(&longer, &blocks).has(Services::NETWORK));
        add(&branch, &mut blocks, 102);
        assert_eq!(offer.services(&branch, &blocks), Services::NETWORK_LIMITED);
        add(&branch, &mut blocks, 101);
        assert!(offer.services(&branch, &blocks).has(Services::NETWORK));
    }

    /// Every peer that dials us makes us look, and a block may be missing for hours.
    #[test]
    fn a_missing_block_does_not_make_it_ask_for_all_each_time() {
        let chain = chain(&mined(None, 1000, 1));
        let there = (1..1000).map(|height| *chain.hash(height).unwrap()).collect();
        let mut blocks = Blocks { there, keeps_all: true, ..Blocks::default() };
        let mut offer = Offer::default();
        let mut looked_up = |blocks: &Blocks| {
            let services = offer.services(&chain, blocks);
            (services, blocks.looked_up.swap(0, Ordering::Relaxed))
        };
        assert_eq!(looked_up(&blocks), (Services::default(), 1001));
        for _ in 0..3 {
            assert_eq!(looked_up(&blocks), (Services::default(), 2));
        }
        blocks.there.insert(*chain.tip_hash());
        let all = Services::NETWORK.with(Services::NETWORK_LIMITED);
        assert_eq!(looked_up(&blocks), (all, 1));
        assert_eq!(looked_up(&blocks), (all, 0));
    }
}

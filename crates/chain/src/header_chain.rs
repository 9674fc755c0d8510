//! [`HeaderChain`]: one chain of valid headers, by height and by hash.
//!
//! It is a copy, made from a completed [`HeaderTree`], and never changes: engines and sources share it while
//! they process heights. It stores only the data that they need: 40 bytes per height, including 4 for look-up
//! by hash, and 8 for each change of the target.

use crate::hashes::{BlockHash, table_hash};
use crate::header::{Header, Height};
use crate::header_tree::{HeaderError, HeaderId, HeaderTree, is_too_new, median_time};
use crate::params::{KnownBlock, Params};

/// Heights are sorted by hash in parts, one for each value of this many first bits of the key.
const SORTED_PARTS_BITS: u32 = 3;

/// Headers of heights 0 to [`tip_height`](Self::tip_height), each the parent of the next.
#[derive(Debug, Clone)]
pub struct HeaderChain {
    hashes: Vec<BlockHash>,
    times: Vec<u32>,
    /// Compact targets, each with the first height that has it.
    bits: Vec<(Height, u32)>,
    /// All heights, ordered by [`table_hash`] of their hashes.
    by_hash: Vec<Height>,
    chain_work: u128,
}

/// Hashes copied at once out of a tree: 2 MB.
const TAKEN_AT_ONCE: usize = 1 << 16;

/// Returns the hashes of a path, given those of all ids. Frees the copied ones from time to time, so that few are
/// in memory twice: ids mostly ascend along a path.
fn taken_out(hashes: Vec<BlockHash>, path: &[HeaderId], at_once: usize) -> Vec<BlockHash> {
    let (count, mut hashes) = (hashes.len(), hashes);
    // Memory can be freed only at the end.
    hashes.reverse();
    let mut taken = Vec::with_capacity(path.len());
    for part in path.chunks(at_once) {
        taken.extend(part.iter().map(|id| hashes[count - 1 - id.index()]));
        let lowest = path[taken.len()..].iter().map(|id| id.index()).min();
        hashes.truncate(lowest.map_or(0, |lowest| count - lowest));
        hashes.shrink_to_fit();
    }
    taken
}

impl HeaderChain {
    /// Returns the tree's most-work chain.
    pub fn best_of(tree: &HeaderTree) -> Self {
        Self::from_path(tree, &tree.path_to(tree.tip()))
    }

    /// Returns the chain of these headers of a tree, the genesis block first, each the parent of the next. Frees
    /// the tree on the way, so that the whole of both is never in memory.
    pub fn out_of(tree: HeaderTree, path: &[HeaderId]) -> Self {
        let chain = Self::without_hashes(&tree, path);
        chain.with_hashes(taken_out(tree.into_hashes(), path, TAKEN_AT_ONCE))
    }

    /// Returns the chain that ends in `tip`, or `None` if `tip` is not connected.
    pub fn up_to(tree: &HeaderTree, tip: HeaderId) -> Option<Self> {
        let path = tree.path_to(tip);
        (!path.is_empty()).then(|| Self::from_path(tree, &path))
    }

    /// Builds the most-work chain of headers given in order, each after its parent. The genesis
    /// block may be included or not.
    pub fn from_headers<'a>(
        params: &Params,
        now: i64,
        headers: impl IntoIterator<Item = &'a [u8; Header::SIZE]>,
    ) -> Result<Self, HeaderError> {
        let mut tree = HeaderTree::new(params, now);
        tree.set_orphans_max(0);
        for raw in headers {
            tree.accept(raw)?;
        }
        Ok(Self::best_of(&tree))
    }

    fn from_path(tree: &HeaderTree, path: &[HeaderId]) -> Self {
        let hashes = path.iter().map(|&id| *tree.hash(id)).collect();
        Self::without_hashes(tree, path).with_hashes(hashes)
    }

    fn without_hashes(tree: &HeaderTree, path: &[HeaderId]) -> Self {
        let mut chain = Self {
            hashes: Vec::new(),
            times: Vec::with_capacity(path.len()),
            bits: Vec::new(),
            by_hash: Vec::new(),
            chain_work: 0,
        };
        for (height, &id) in (0..).zip(path) {
            if let Some(header) = tree.connected(id) {
                chain.times.push(header.time);
                if chain.bits.last().is_none_or(|(_, bits)| *bits != header.bits) {
                    chain.bits.push((height, header.bits));
                }
                chain.chain_work = header.chain_work;
            }
        }
        chain
    }

    fn with_hashes(mut self, hashes: Vec<BlockHash>) -> Self {
        self.hashes = hashes;
        self.by_hash.reserve_exact(self.hashes.len());
        // All keys at once would take four times the memory of the heights.
        let mut keys: Vec<(u64, Height)> = Vec::new();
        for part in 0..1 << SORTED_PARTS_BITS {
            let all = self.hashes.iter().map(table_hash).zip(0..);
            keys.extend(all.filter(|(key, _)| key >> (u64::BITS - SORTED_PARTS_BITS) == part));
            keys.sort_unstable();
            self.by_hash.extend(keys.drain(..).map(|(_, height)| height));
        }
        self
    }

    /// Returns the height of the last block.
    pub fn tip_height(&self) -> Height {
        (self.hashes.len() - 1) as Height
    }

    /// Returns the hash of the last block.
    pub fn tip_hash(&self) -> &BlockHash {
        &self.hashes[self.hashes.len() - 1]
    }

    /// Returns the last block.
    pub fn tip(&self) -> KnownBlock {
        KnownBlock { height: self.tip_height(), hash: *self.tip_hash() }
    }

    /// Returns the work of the whole chain, for comparison with
    /// [`Params::minimum_chain_work`](crate::Params::minimum_chain_work).
    pub const fn chain_work(&self) -> u128 {
        self.chain_work
    }

    /// Returns the hash of the block at `height`, or `None` above the tip.
    pub fn hash(&self, height: Height) -> Option<&BlockHash> {
        self.hashes.get(height as usize)
    }

    /// Returns the time of the block at `height`, or `None` above the tip.
    pub fn time(&self, height: Height) -> Option<u32> {
        self.times.get(height as usize).copied()
    }

    /// Returns the lowest block that a node with this clock rejects for a time more than two hours
    /// ahead.
    pub fn first_too_new(&self, now: i64) -> Option<Height> {
        self.times.iter().position(|time| is_too_new(*time, now)).map(|height| height as Height)
    }

    /// Returns the compact target of the block at `height`, or `None` above the tip.
    pub fn bits(&self, height: Height) -> Option<u32> {
        let after = self.bits.partition_point(|(first, _)| *first <= height);
        let (_, bits) = self.bits[..after].last()?;
        (height <= self.tip_height()).then_some(*bits)
    }

    /// Returns the median of the times of the block at `height` and up to ten before it (Core
    /// `chain.h`, `GetMedianTimePast`), which BIP-113 compares with lock times in the *next* block.
    pub fn median_time_past(&self, height: Height) -> Option<u32> {
        let below = self.times.get(..=height as usize)?;
        Some(median_time(below.iter().rev().copied()))
    }

    /// Returns the height of the block with this hash, or `None` if it is not in the chain.
    pub fn height_of(&self, hash: &BlockHash) -> Option<Height> {
        let (key, hash_at) = (table_hash(hash), |height: Height| &self.hashes[height as usize]);
        let first = self.by_hash.partition_point(|height| table_hash(hash_at(*height)) < key);
        let alike = self.by_hash[first..].iter().copied();
        let mut alike = alike.take_while(|height| table_hash(hash_at(*height)) == key);
        alike.find(|height| hash_at(*height) == hash)
    }
}

impl HeaderTree {
    /// Returns the height of the last block that the branch up to a header shares with `chain`, which was made from this
    /// tree; `None` if the header's parent is unknown.
    pub fn fork_height(&self, chain: &HeaderChain, id: HeaderId) -> Option<Height> {
        self.connected(id)?;
        let on_chain = |id: HeaderId| {
            let height = self.connected(id)?.height;
            (chain.hash(height) == Some(self.hash(id))).then_some(height)
        };
        self.lineage_of(id).find_map(on_chain)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::header_tree::HeaderAcceptance;
    use crate::header_tree::tests::{NOW, TRUSTED, mine_child, raw_headers, tree_at};
    use crate::params::Network;

    #[test]
    fn holds_signets_first_period() {
        let raw = raw_headers("signet_0_2015.bin");
        let times: Vec<u32> = raw.iter().map(|raw| Header::parse(raw).time).collect();
        let params = Params::of(Network::Signet);
        let chain = HeaderChain::from_headers(params, NOW, &raw).unwrap();
        assert_eq!(chain.tip_height(), 2015);
        for (height, raw) in (0..).zip(&raw) {
            let header = Header::parse(raw);
            assert_eq!(chain.hash(height), Some(&header.hash()));
            assert_eq!(chain.time(height), Some(header.time));
            assert_eq!(chain.bits(height), Some(header.bits));
            assert_eq!(chain.height_of(&header.hash()), Some(height));
            let first = (height as usize).saturating_sub(10);
            let mut span = times[first..=height as usize].to_vec();
            span.sort_unstable();
            assert_eq!(chain.median_time_past(height), Some(span[span.len() / 2]));
        }
        assert_eq!(chain.tip_hash(), chain.hash(2015).unwrap());
        assert_eq!(chain.hash(2016), None);
        assert_eq!(chain.time(2016), None);
        assert_eq!(chain.bits(2016), None);
        assert_eq!(chain.median_time_past(2016), None);
        assert_eq!(chain.height_of(&BlockHash::ZERO), None);
        assert_eq!(chain.chain_work(), 2016 * crate::work::block_work(0x1e03_77ae));
    }

    /// A chain in which targets change and recur.
    #[test]
    fn each_height_has_its_target() {
        let raw = raw_headers("test4_141120_143136.bin");
        let headers: Vec<Header> = raw.iter().map(Header::parse).collect();
        let params = Params::of(Network::Testnet4);
        let mut tree = tree_at(params, &raw, 141_120);
        for raw in &raw[TRUSTED..] {
            tree.accept(raw).unwrap();
        }
        let ids = headers.iter().map(|header| tree.find(&header.hash()).unwrap());
        let path: Vec<HeaderId> = ids.collect();
        let chain = HeaderChain::from_path(&tree, &path);
        let changes = headers.windows(2).filter(|pair| pair[0].bits != pair[1].bits).count();
        assert!(changes > 100, "{changes}");
        assert_eq!(chain.bits.len(), changes + 1);
        for (height, header) in (0..).zip(&headers) {
            assert_eq!(chain.bits(height), Some(header.bits), "{height}");
            assert_eq!(chain.height_of(&header.hash()), Some(height));
        }
        assert_eq!(chain.bits(headers.len() as Height), None);
    }

    /// Blocks arrived in any order, some of them on a branch, and the chain taken out of the tree equals the copy.
    #[test]
    fn a_chain_takes_over_the_tree() {
        let params = Params::of(Network::Regtest);
        let mut headers = vec![params.genesis_header];
        for nonce in 0..40 {
            headers.push(mine_child(params, &headers[nonce], nonce as u32));
        }
        let stale = mine_child(params, &headers[20], 100);
        let orders: [Vec<usize>; 4] = [
            (1..41).collect(),
            (1..41).rev().collect(),
            (1..41).map(|height| 1 + (height * 7) % 41 % 40).collect(),
            (0..42).map(|height| height ^ 1).filter(|height| (1..41).contains(height)).collect(),
        ];
        for order in orders {
            let mut tree = HeaderTree::new(params, NOW);
            for (count, height) in order.into_iter().enumerate() {
                if count == 9 {
                    tree.accept(&stale.to_bytes()).unwrap();
                }
                let _ = tree.accept(&headers[height].to_bytes()).unwrap();
            }
            let path = tree.path_to(tree.tip());
            let copy = HeaderChain::best_of(&tree);
            for at_once in [1, 2, 7, 100] {
                let hashes = taken_out(tree.clone().into_hashes(), &path, at_once);
                assert_eq!(hashes, copy.hashes);
            }
            let taken = HeaderChain::out_of(tree, &path);
            assert_eq!(taken.hashes, copy.hashes);
            assert_eq!((taken.times, taken.bits), (copy.times, copy.bits));
            assert_eq!((taken.by_hash, taken.chain_work), (copy.by_hash, copy.chain_work));
        }
    }

    #[test]
    fn headers_out_of_order_are_refused() {
        let raw = raw_headers("signet_0_2015.bin");
        let params = Params::of(Network::Signet);
        let error = HeaderChain::from_headers(params, NOW, [&raw[0], &raw[2]]).unwrap_err();
        assert_eq!(error.reason(), "prev-blk-not-found");
        let genesis_alone = HeaderChain::from_headers(params, NOW, []).unwrap();
        assert_eq!(genesis_alone.tip_hash(), &params.genesis_hash);
        assert_eq!(genesis_alone.median_time_past(0), Some(params.genesis_header.time));
    }

    #[test]
    fn a_fork_is_the_last_common_block() {
        let params = Params::of(Network::Regtest);
        let mut tree = HeaderTree::new(params, NOW);
        let mut accept = |header: &Header| match tree.accept(&header.to_bytes()).unwrap() {
            HeaderAcceptance::New(id) | HeaderAcceptance::Orphan(id) => id,
            HeaderAcceptance::Known(_) => panic!("mined twice"),
        };
        let mut trunk = vec![params.genesis_header];
        for nonce in 0..5 {
            let next = mine_child(params, &trunk[nonce], nonce as u32);
            accept(&next);
            trunk.push(next);
        }
        let stale = mine_child(params, &trunk[2], 100);
        let stale_tip = mine_child(params, &stale, 101);
        let fork = accept(&stale);
        accept(&stale_tip);
        let lost = mine_child(params, &mine_child(params, &trunk[0], 200), 201);
        let orphan = accept(&lost);

        let chain = HeaderChain::best_of(&tree);
        let id = |header: &Header| tree.find(&header.hash()).unwrap();
        let forked = |chain, header| tree.fork_height(chain, id(header));
        assert_eq!(chain.tip_height(), 5);
        for (header, height) in [(&trunk[0], 0), (&trunk[5], 5), (&stale, 2), (&stale_tip, 2)] {
            assert_eq!(forked(&chain, header), Some(height));
        }
        assert_eq!(forked(&chain, &lost), None);

        let cut = HeaderChain::up_to(&tree, id(&trunk[3])).unwrap();
        assert_eq!((cut.tip_height(), forked(&cut, &trunk[5])), (3, Some(3)));
        let branch = HeaderChain::up_to(&tree, fork).unwrap();
        assert_eq!(forked(&branch, &trunk[4]), Some(2));
        assert!(HeaderChain::up_to(&tree, orphan).is_none());
    }
}

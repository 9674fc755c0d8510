//! Serves headers and blocks to peers, and decides which services to offer.
//!
//! Only the followed chain is served. The answer to any other request is that of a node that lacks the data. The
//! offer is made once, in the handshake, and nodes rely on it as long as the connection lasts. So it includes
//! only what is available at that moment and will stay so.

use super::NetworkShared;
use super::peer::WriterCommand;
use crate::PeerId;
use crate::message::{Inventory, InventoryKind, Message, Services};
use crate::transport::{MessageWriter, PeerError};
use apus_chain::{
    BlockHash, HEADER_SIZE, Header, HeaderChain, HeaderId, HeaderTree, Height, MerkleRoot,
};

/// Maximum number of headers in one answer (Core `net_processing.h`, `MAX_HEADERS_RESULTS`).
const HEADERS_MAX: u32 = 2000;

/// A source of blocks to serve.
pub trait BlockProvider: Send + Sync {
    /// The block with this hash in wire format, witnesses included, or `None` if it is not available.
    fn block(&self, hash: &BlockHash) -> Option<Vec<u8>>;

    /// Returns true if the block is available.
    fn has(&self, hash: &BlockHash) -> bool;

    /// Returns true if available blocks stay available.
    fn keeps_all(&self) -> bool;
}

/// Answers `getheaders` (Core `net_processing.cpp`).
pub(super) fn headers(
    shared: &NetworkShared,
    id: PeerId,
    locator: &[BlockHash],
    stop: &BlockHash,
) -> Result<(), PeerError> {
    let mut state = shared.lock();
    let answer = match state.served.clone() {
        Some(chain) => following(&chain, locator, stop, &|hash| state.raw_header(hash)),
        None => Vec::new(),
    };
    state.send(id, WriterCommand::Headers(answer));
    Ok(())
}

fn following(
    chain: &HeaderChain,
    locator: &[BlockHash],
    stop: &BlockHash,
    raw: &dyn Fn(&BlockHash) -> Option<[u8; HEADER_SIZE]>,
) -> Vec<[u8; HEADER_SIZE]> {
    let common: Height = locator.iter().find_map(|hash| chain.height_of(hash)).unwrap_or(0);
    let last = match chain.height_of(stop) {
        Some(height) if locator.is_empty() => {
            return raw_at(chain, height, raw).into_iter().collect();
        }
        Some(height) => height,
        None => chain.tip_height(),
    };
    (common + 1..=last.min(common + HEADERS_MAX))
        .map_while(|height| raw_at(chain, height, raw))
        .collect()
}

fn raw_at(
    chain: &HeaderChain,
    height: Height,
    raw: &dyn Fn(&BlockHash) -> Option<[u8; HEADER_SIZE]>,
) -> Option<[u8; HEADER_SIZE]> {
    raw(chain.hash(height)?)
}

/// Answers `getdata`, on the writing thread, so that only one block is in memory.
pub(super) fn blocks(
    shared: &NetworkShared,
    writer: &mut MessageWriter,
    items: Vec<Inventory>,
) -> Result<(), PeerError> {
    let mut missing = Vec::new();
    for item in items {
        let wanted = match item.kind {
            // Removing witnesses would mean parsing the block, and no peer that still asks for such a block
            // can validate it.
            InventoryKind::WitnessBlock => Some(BlockHash(item.hash)),
            InventoryKind::Block | InventoryKind::Other(_) => None,
        };
        let provider = shared.options.blocks.as_ref();
        match wanted.and_then(|hash| provider.and_then(|provider| provider.block(&hash))) {
            Some(raw) => writer.write_block(&raw)?,
            None => missing.push(item),
        }
        if shared.has_ended() {
            return Ok(());
        }
    }
    if missing.is_empty() { Ok(()) } else { writer.write(&Message::NotFound(missing)) }
}

/// How many blocks below the tip [`Services::NETWORK_LIMITED`] promises (BIP-159).
const LIMITED_BLOCKS: Height = 288;

/// The services offered to peers.
#[derive(Debug, Default)]
pub(super) struct ServiceOffer {
    /// All blocks up to this one are known to be available permanently.
    all_to: Option<(Height, BlockHash)>,
}

impl ServiceOffer {
    /// The services available for `chain`, the chain that peers see. No peer needs the genesis block.
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
            // The next check starts at the first missing block.
            self.all_to = chain.hash(last).map(|hash| (last, *hash));
            if missing.is_none() {
                return Services::NETWORK.with(Services::NETWORK_LIMITED);
            }
        }
        // Search down from the tip, because blocks still being fetched are near it.
        let low = (tip + 1).saturating_sub(LIMITED_BLOCKS).max(1);
        match (low..=tip).rev().find(is_missing) {
            None => Services::NETWORK_LIMITED,
            Some(_) => Services::default(),
        }
    }
}

/// Header fields that the tree does not keep.
#[derive(Debug, Clone, Copy, Default)]
struct Rest {
    version: i32,
    merkle_root: [u8; 32],
    nonce: u32,
}

impl Rest {
    fn of(header: &Header) -> Self {
        Self { version: header.version, merkle_root: header.merkle_root.0, nonce: header.nonce }
    }
}

/// Raw headers for peers: what [`HeaderTree`] does not keep, by index in the tree.
#[derive(Debug)]
pub(super) struct RawHeaders(Vec<Rest>);

impl RawHeaders {
    /// Starts with the genesis block's header.
    pub(super) fn new(genesis: &Header) -> Self {
        Self(vec![Rest::of(genesis)])
    }

    /// Adds headers that are new in the tree. Skips headers that the tree did not accept.
    pub(super) fn add(
        &mut self,
        tree: &HeaderTree,
        headers: impl Iterator<Item = [u8; HEADER_SIZE]>,
    ) {
        self.0.resize(tree.len(), Rest::default());
        for raw in headers {
            let header = Header::parse(&raw);
            if let Some(id) = tree.find(&header.hash()) {
                self.0[id.index()] = Rest::of(&header);
            }
        }
    }

    /// Reassembles a header, if it is connected.
    pub(super) fn get(&self, tree: &HeaderTree, id: HeaderId) -> Option<[u8; HEADER_SIZE]> {
        let rest = self.0.get(id.index())?;
        let header = tree.connected(id)?;
        let header = Header {
            version: rest.version,
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
    use crate::headers::tests::testing::{NOW, mined, raw_headers, regtest};
    use apus_chain::{Network, Params};
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
    fn only_available_blocks_are_offered() {
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
            let services = ServiceOffer::default()
                .services(&chain, &Blocks { there, keeps_all, ..Blocks::default() });
            assert_eq!(services, expected, "from {first}, all: {keeps_all}");
        }
    }

    #[test]
    fn known_blocks_are_not_checked_again_but_new_ones_are() {
        let raw = mined(None, 400, 1);
        let longer = [raw.clone(), mined(Some(&raw[399]), 300, 1)].concat();
        let branch = [raw[..100].to_vec(), mined(Some(&raw[99]), 500, 2)].concat();
        let [short, longer, branch] = [&raw, &longer, &branch].map(|raw| chain(raw));
        let there = (1..=400).map(|height| *short.hash(height).unwrap()).collect();
        let mut blocks = Blocks { there, keeps_all: true, ..Blocks::default() };
        let mut offer = ServiceOffer::default();
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

    /// Every inbound connection triggers a check, and a block may be missing for hours.
    #[test]
    fn a_missing_block_does_not_trigger_a_full_check_each_time() {
        let chain = chain(&mined(None, 1000, 1));
        let there = (1..1000).map(|height| *chain.hash(height).unwrap()).collect();
        let mut blocks = Blocks { there, keeps_all: true, ..Blocks::default() };
        let mut offer = ServiceOffer::default();
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

    #[test]
    fn headers_are_served_unchanged() {
        let raw = raw_headers("main_0_4040.bin");
        let params = Params::of(Network::Main);
        let mut tree = HeaderTree::new(params, NOW);
        let mut headers = RawHeaders::new(&params.genesis_header);
        assert_eq!(headers.get(&tree, tree.tip()), Some(raw[0]));
        for part in raw[1..].chunks(1000) {
            for header in part {
                tree.accept(header).unwrap();
            }
            headers.add(&tree, part.iter().copied());
        }
        for (raw, id) in raw.iter().zip(tree.path_to(tree.tip())) {
            assert_eq!(headers.get(&tree, id).as_ref(), Some(raw));
        }
        // A header that the tree lacks changes nothing.
        headers.add(&tree, [[7; 80]].into_iter());
        assert_eq!(headers.get(&tree, tree.tip()).as_ref(), raw.last());
    }
}

//! [`CandidateChain`]: a chain on trial, kept out of the tree until it proves enough work.
//!
//! Headers with little work are cheap to make but would take our memory forever, so none enters the tree
//! before its chain has as much work as the real one. Core (`headerssync.cpp`) keeps one bit per several
//! hundred headers until then, and downloads everything a second time. Here there is only one candidate, not
//! one per peer, so its headers can be kept: 48 bytes each, at most [`headers_max`] of them, freed when the
//! candidate is dropped. They are downloaded once.
//!
//! Invariants: a candidate's headers follow each other from a header of the tree, have the work that they
//! claim, and change their targets no faster than the rules let any chain do. So its work is real. The tree
//! checks all other rules.

use super::{MAX_HEADERS_RESULTS, Misbehaviour};
use crate::PeerId;
use apus_chain::{
    BlockHash, Header, HeaderId, HeaderTree, Height, MerkleRoot, Params, U256, block_work,
    check_proof_of_work,
};

/// Maximum number of headers of a candidate on networks whose minimum-difficulty blocks make the block count
/// independent of time. The third test network has about five million.
const HEADERS_MAX: usize = 1 << 23;

/// A header without its parent, which is the previous one.
#[derive(Debug, Clone, Copy)]
pub(super) struct OrphanHeader {
    version: i32,
    merkle_root: MerkleRoot,
    time: u32,
    bits: u32,
    nonce: u32,
}

const _: () =
    assert!(size_of::<OrphanHeader>() == 48, "the module's documentation states this size");

impl OrphanHeader {
    pub(super) fn of(raw: &[u8; Header::SIZE]) -> Self {
        let Header { version, merkle_root, time, bits, nonce, .. } = Header::parse(raw);
        Self { version, merkle_root, time, bits, nonce }
    }

    pub(super) fn below(self, prev: BlockHash) -> Header {
        let Self { version, merkle_root, time, bits, nonce } = self;
        Header { version, prev, merkle_root, time, bits, nonce }
    }
}

/// The headers from one message, and the peer that sent it.
#[derive(Debug)]
struct HeaderBatch {
    peer: PeerId,
    headers: Box<[OrphanHeader]>,
}

/// A chain of headers above a header of the tree.
#[derive(Debug)]
pub(super) struct CandidateChain {
    start: HeaderId,
    start_hash: BlockHash,
    batches: Vec<HeaderBatch>,
    count: usize,
    count_max: usize,
    height: Height,
    last: BlockHash,
    bits: u32,
    work: u128,
}

/// How many headers a candidate may have at time `now` (seconds since 1970): twice the blocks due since the
/// genesis block. Real chains are a few percent ahead of schedule. This is stricter than Core, which allows
/// six a second: a chain whose blocks always come twice as fast would double its difficulty every week.
pub(super) fn headers_max(params: &Params, now: i64) -> usize {
    if params.pow_allow_min_difficulty_blocks {
        return HEADERS_MAX;
    }
    let age = now.saturating_sub(i64::from(params.genesis_header.time)).max(0);
    let due = age / i64::from(params.pow_target_spacing_seconds.get());
    let max = due.saturating_mul(2).saturating_add(20_000);
    usize::try_from(max).unwrap_or(HEADERS_MAX).min(HEADERS_MAX)
}

impl CandidateChain {
    /// An empty candidate above `start`, which is connected.
    pub(super) fn above(tree: &HeaderTree, start: HeaderId, count_max: usize) -> Self {
        let header = tree.connected(start);
        Self {
            start,
            start_hash: *tree.hash(start),
            batches: Vec::new(),
            count: 0,
            count_max,
            height: header.map_or(0, |header| header.height),
            last: *tree.hash(start),
            bits: header.map_or(0, |header| header.bits),
            work: header.map_or(0, |header| header.chain_work),
        }
    }

    /// The tree's header that it starts from.
    pub(super) const fn start(&self) -> HeaderId {
        self.start
    }

    /// Hash of the last header.
    pub(super) const fn last(&self) -> BlockHash {
        self.last
    }

    /// Height of the last header.
    pub(super) const fn height(&self) -> Height {
        self.height
    }

    /// Total work from the genesis block.
    pub(super) const fn work(&self) -> u128 {
        self.work
    }

    /// Memory used by its headers, in bytes.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.batches.iter().map(|batch| size_of_val(&*batch.headers)).sum()
    }

    /// Appends headers of a message, from its `first` one on, which is a child of [`last`](Self::last).
    pub(super) fn extend(
        &mut self,
        params: &Params,
        peer: PeerId,
        stretch: &HeaderSequence<'_>,
        first: usize,
    ) -> Result<(), Misbehaviour> {
        let raw = &stretch.raw()[first..];
        if raw.len() > self.count_max.saturating_sub(self.count) {
            return Err(Misbehaviour::EndlessChain { limit: self.count_max });
        }
        let headers: Box<[OrphanHeader]> = raw.iter().map(OrphanHeader::of).collect();
        for (header, hash) in headers.iter().zip(&stretch.hashes()[first..]) {
            let (height, from, to) = (self.height.saturating_add(1), self.bits, header.bits);
            if !permitted_transition(params, height, from, to) {
                return Err(Misbehaviour::DifficultyTransition { hash: *hash, height, from, to });
            }
            (self.height, self.bits, self.last) = (height, to, *hash);
        }
        self.work = self.work.saturating_add(stretch.work_from(first));
        self.count += headers.len();
        self.batches.push(HeaderBatch { peer, headers });
        Ok(())
    }

    /// All headers in order, each with the peer that sent it.
    pub(super) fn into_headers(self) -> impl Iterator<Item = (PeerId, [u8; Header::SIZE])> {
        let mut prev = self.start_hash;
        let headers = self
            .batches
            .into_iter()
            .flat_map(|HeaderBatch { peer, headers }| headers.into_iter().map(move |h| (peer, h)));
        headers.map(move |(peer, header)| {
            let header = header.below(prev);
            prev = header.hash();
            (peer, header.to_bytes())
        })
    }
}

/// One or more headers in order, with valid proof of work for the targets that they claim. Those targets may
/// be wrong.
#[derive(Debug)]
pub(super) struct HeaderSequence<'a> {
    raw: &'a [[u8; Header::SIZE]],
    hashes: Vec<BlockHash>,
}

impl<'a> HeaderSequence<'a> {
    /// Checks a message (Core `net_processing.cpp`, `CheckHeadersPoW`). Returns `None` if it is empty.
    pub(super) fn check(
        params: &Params,
        raw: &'a [[u8; Header::SIZE]],
    ) -> Result<Option<Self>, Misbehaviour> {
        if raw.len() > MAX_HEADERS_RESULTS {
            return Err(Misbehaviour::TooManyHeaders { count: raw.len() });
        }
        let mut hashes: Vec<BlockHash> = Vec::with_capacity(raw.len());
        for (index, raw) in raw.iter().enumerate() {
            let header = Header::parse(raw);
            let hash = header.hash();
            if hashes.last().is_some_and(|last| *last != header.prev) {
                return Err(Misbehaviour::NotContinuous { index, hash });
            }
            if !check_proof_of_work(&hash, header.bits, params.pow_limit) {
                if header.is_extended() {
                    return Err(Misbehaviour::OfKnots { index });
                }
                return Err(Misbehaviour::HighHash { index, hash, bits: header.bits });
            }
            hashes.push(hash);
        }
        Ok((!raw.is_empty()).then_some(Self { raw, hashes }))
    }

    /// The parent of the first header.
    pub(super) fn parent(&self) -> BlockHash {
        self.raw.first().map_or(BlockHash::ZERO, |raw| Header::parse(raw).prev)
    }

    /// Returns true if the message is full, so that more may follow.
    pub(super) const fn is_full(&self) -> bool {
        self.raw.len() == MAX_HEADERS_RESULTS
    }

    pub(super) fn hashes(&self) -> &[BlockHash] {
        &self.hashes
    }

    pub(super) fn raw(&self) -> &'a [[u8; Header::SIZE]] {
        self.raw
    }

    /// The work of the headers from `first` on.
    pub(super) fn work_from(&self, first: usize) -> u128 {
        let mut memo = (0, 0);
        let works = self.raw[first..].iter().map(|raw| {
            let bits = Header::parse(raw).bits;
            if memo.0 != bits {
                memo = (bits, block_work(bits));
            }
            memo.1
        });
        works.fold(0, u128::saturating_add)
    }
}

/// A retarget changes the target by at most this factor (Core `pow.cpp`, `CalculateNextWorkRequired`).
const RETARGET_FACTOR_MAX: u32 = 4;

/// Returns true if a header at `height` may have target `to` after one with target `from` (Core `pow.cpp`,
/// `PermittedDifficultyTransition`). Always true for a valid chain. Networks with minimum-difficulty blocks
/// permit any change.
pub(super) fn permitted_transition(params: &Params, height: Height, from: u32, to: u32) -> bool {
    if params.pow_allow_min_difficulty_blocks {
        return true;
    }
    if !height.is_multiple_of(params.difficulty_adjustment_interval()) {
        return from == to;
    }
    let timespan = params.pow_target_timespan_seconds.get();
    let after = |seconds: u32| {
        let product = U256::from_compact(from).value.wrapping_mul_u32(seconds);
        let target = product.checked_div(U256::from_u32(timespan)).unwrap_or(U256::ZERO);
        // Rounds through the compact form, as the rule itself does.
        U256::from_compact(target.min(params.pow_limit).to_compact()).value
    };
    let found = U256::from_compact(to).value;
    let longest = timespan.saturating_mul(RETARGET_FACTOR_MAX);
    (after(timespan / RETARGET_FACTOR_MAX)..=after(longest)).contains(&found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::tests::testing::{NOW, mined, raw_headers, regtest};
    use apus_chain::{Header, Network};

    fn feed(
        candidate: &mut CandidateChain,
        params: &Params,
        raw: &[[u8; 80]],
    ) -> Result<(), Misbehaviour> {
        for message in raw.chunks(2000) {
            let stretch = HeaderSequence::check(params, message).unwrap().unwrap();
            candidate.extend(params, PeerId(7), &stretch, 0)?;
        }
        Ok(())
    }

    #[test]
    fn returns_the_headers_it_took_and_counts_their_work() {
        let params = regtest(0);
        let tree = HeaderTree::new(&params, NOW);
        let chain = mined(None, 3000, 1);
        let mut candidate = CandidateChain::above(&tree, tree.tip(), 3000);
        feed(&mut candidate, &params, &chain).unwrap();
        assert_eq!((candidate.height(), candidate.work()), (3000, 2 * 3001));
        assert_eq!(candidate.bytes(), 3000 * 48);
        assert_eq!(candidate.last(), Header::parse(&chain[2999]).hash());
        let back: Vec<_> = candidate.into_headers().collect();
        assert!(back.iter().all(|(peer, _)| *peer == PeerId(7)));
        assert!(back.iter().map(|(_, raw)| raw).eq(&chain));
    }

    #[test]
    fn takes_no_header_above_its_limit() {
        let params = regtest(0);
        let tree = HeaderTree::new(&params, NOW);
        let mut candidate = CandidateChain::above(&tree, tree.tip(), 2000);
        let chain = mined(None, 2001, 1);
        let error = feed(&mut candidate, &params, &chain).unwrap_err();
        assert_eq!(error, Misbehaviour::EndlessChain { limit: 2000 });
        assert_eq!(candidate.bytes(), 2000 * 48);
    }

    #[test]
    fn real_headers_pass_and_a_target_that_leaps_does_not() {
        let main = Params::of(Network::Main);
        let tree = HeaderTree::new(main, NOW);
        let raw = raw_headers("main_0_4040.bin");
        let mut candidate = CandidateChain::above(&tree, tree.tip(), 5000);
        feed(&mut candidate, main, &raw[1..]).unwrap();
        assert_eq!(candidate.height(), 4040);

        // Regtest headers on main's genesis block: their first target is easier than main allows.
        let mut lax = main.clone();
        lax.pow_limit = regtest(0).pow_limit;
        let mut candidate = CandidateChain::above(&tree, tree.tip(), 5000);
        let mut first = Header::parse(&mined(None, 1, 1)[0]);
        first.prev = main.genesis_hash;
        while !apus_chain::check_proof_of_work(&first.hash(), first.bits, lax.pow_limit) {
            first.nonce += 1;
        }
        let error = feed(&mut candidate, &lax, &[first.to_bytes()]).unwrap_err();
        assert!(matches!(error, Misbehaviour::DifficultyTransition { height: 1, .. }), "{error}");
    }

    #[test]
    fn the_limit_follows_the_age_of_the_chain() {
        let main = Params::of(Network::Main);
        assert_eq!(headers_max(main, 0), 20_000);
        assert_eq!(headers_max(main, 1_231_006_505 + 600_000), 22_000);
        assert_eq!(headers_max(main, i64::MAX), HEADERS_MAX);
        // In the year 2030 the limit is still below 120 MB.
        assert!(headers_max(main, NOW) * size_of::<OrphanHeader>() < 120_000_000);
        assert_eq!(headers_max(Params::of(Network::Testnet3), NOW), HEADERS_MAX);
    }

    #[test]
    fn accepts_only_consecutive_headers() {
        let params = regtest(0);
        let chain = mined(None, 2001, 1);
        assert!(HeaderSequence::check(&params, &[]).unwrap().is_none());
        let stretch = HeaderSequence::check(&params, &chain[..2000]).unwrap().unwrap();
        assert!(stretch.is_full());
        assert_eq!(stretch.parent(), params.genesis_hash);
        assert_eq!(stretch.work_from(1990), 20);
        assert_eq!(stretch.hashes()[1999], Header::parse(&chain[1999]).hash());
        let many = HeaderSequence::check(&params, &chain).unwrap_err();
        assert_eq!(many, Misbehaviour::TooManyHeaders { count: 2001 });

        let gap = [chain[0], chain[2]];
        let error = HeaderSequence::check(&params, &gap).unwrap_err();
        assert!(matches!(error, Misbehaviour::NotContinuous { index: 1, .. }), "{error}");

        let mut header = Header::parse(&chain[7]);
        while check_proof_of_work(&header.hash(), header.bits, params.pow_limit) {
            header.nonce = header.nonce.wrapping_add(1);
        }
        let bad = [chain[6], header.to_bytes()];
        let error = HeaderSequence::check(&params, &bad).unwrap_err();
        assert!(matches!(error, Misbehaviour::HighHash { index: 1, .. }), "{error}");
    }

    #[test]
    fn real_chains_only_make_permitted_transitions() {
        for (name, first) in [
            ("main_0_4040.bin", 0),
            ("main_80640_82662.bin", 80_640),
            ("main_191520_193542.bin", 191_520),
        ] {
            let bits: Vec<u32> = raw_headers(name).iter().map(|r| Header::parse(r).bits).collect();
            for (height, pair) in (first + 1..).zip(bits.windows(2)) {
                assert!(permitted_transition(Params::of(Network::Main), height, pair[0], pair[1]));
            }
        }
    }

    #[test]
    fn a_period_keeps_its_target_and_a_retarget_keeps_within_four() {
        let main = Params::of(Network::Main);
        let permitted = |height, to| permitted_transition(main, height, 0x1b04_0000, to);
        assert!(permitted(2015, 0x1b04_0000));
        assert!(!permitted(2015, 0x1b03_ffff), "within a period");
        assert!(permitted(2016, 0x1b10_0000), "four times the target");
        assert!(!permitted(2016, 0x1b10_0001));
        assert!(permitted(2016, 0x1b01_0000), "a quarter of the target");
        assert!(!permitted(2016, 0x1b00_ffff));
        assert!(permitted_transition(main, 2016, 0x1d00_ffff, 0x1d00_ffff), "the limit stays");
        assert!(!permitted_transition(main, 2016, 0x1d00_ffff, 0x1d01_ffff), "above the limit");
    }

    #[test]
    fn any_bits_pass_where_minimum_difficulty_is_allowed() {
        let test4 = Params::of(Network::Testnet4);
        assert!(permitted_transition(test4, 17, 0x1b04_0000, 0x1d00_ffff));
    }
}

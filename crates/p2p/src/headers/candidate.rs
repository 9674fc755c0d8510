//! [`Candidate`]: a chain on trial, kept apart from the tree until it shows enough work.
//!
//! Headers of little work cost their maker little and us memory for good, so none enters the tree
//! before its chain has shown as much work as the real one has. Core (`headerssync.cpp`) keeps one
//! bit for some hundred headers until then and downloads all a second time. Here there is one
//! candidate, not one for each peer, so that its headers can be kept: 48 bytes each, at most as many
//! as [`headers_max`] says, given back as soon as it is dropped. They are downloaded once.
//!
//! What holds: the headers of a candidate follow each other from a header of the tree, have the
//! work that they claim, and change their targets no faster than the rules let any chain do. So
//! its work is real. All other rules are the tree's to check.

use super::Misbehaviour;
use super::difficulty::permitted_transition;
use super::stretch::Stretch;
use crate::PeerId;
use apus_chain::{BlockHash, Header, HeaderId, HeaderTree, Height, MerkleRoot, Params};

/// Most headers of a candidate where blocks of minimum difficulty make the number of blocks no
/// function of time. The third test network has some five million.
const HEADERS_MAX: usize = 1 << 23;

/// What a header has besides its parent, which is the one before it.
#[derive(Debug, Clone, Copy)]
struct Orphaned {
    version: i32,
    merkle_root: MerkleRoot,
    time: u32,
    bits: u32,
    nonce: u32,
}

const _: () = assert!(size_of::<Orphaned>() == 48, "the module's documentation states this size");

impl Orphaned {
    fn of(raw: &[u8; Header::SIZE]) -> Self {
        let Header { version, merkle_root, time, bits, nonce, .. } = Header::parse(raw);
        Self { version, merkle_root, time, bits, nonce }
    }

    fn below(self, prev: BlockHash) -> Header {
        let Self { version, merkle_root, time, bits, nonce } = self;
        Header { version, prev, merkle_root, time, bits, nonce }
    }
}

/// The headers of one message and the peer that sent them.
#[derive(Debug)]
struct Batch {
    peer: PeerId,
    headers: Box<[Orphaned]>,
}

/// A chain of headers above one of the tree.
#[derive(Debug)]
pub(super) struct Candidate {
    start: HeaderId,
    start_hash: BlockHash,
    batches: Vec<Batch>,
    count: usize,
    count_max: usize,
    height: Height,
    last: BlockHash,
    bits: u32,
    work: u128,
}

/// How many headers a candidate may have at time `now` (seconds since 1970): twice as many as
/// blocks were due since the genesis block. Real chains are some percent ahead of that. Stricter
/// than Core, which allows six a second: a chain whose blocks come twice as fast for all its life
/// doubles its difficulty every week.
pub(super) fn headers_max(params: &Params, now: i64) -> usize {
    if params.pow_allow_min_difficulty_blocks {
        return HEADERS_MAX;
    }
    let age = now.saturating_sub(i64::from(params.genesis_header.time)).max(0);
    let due = age / i64::from(params.pow_target_spacing_seconds.get());
    let max = due.saturating_mul(2).saturating_add(20_000);
    usize::try_from(max).unwrap_or(HEADERS_MAX).min(HEADERS_MAX)
}

impl Candidate {
    /// No headers yet, above `start`, which is connected.
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

    /// The header of the tree that it is above.
    pub(super) const fn start(&self) -> HeaderId {
        self.start
    }

    /// The last header's hash.
    pub(super) const fn last(&self) -> BlockHash {
        self.last
    }

    /// The last header's height.
    pub(super) const fn height(&self) -> Height {
        self.height
    }

    /// Work from the genesis block on.
    pub(super) const fn work(&self) -> u128 {
        self.work
    }

    /// Bytes that its headers take.
    #[cfg(test)]
    pub(super) fn bytes(&self) -> usize {
        self.batches.iter().map(|batch| size_of_val(&*batch.headers)).sum()
    }

    /// Takes headers of a message, from its `first` one on, which is a child of the
    /// [`last`](Self::last).
    pub(super) fn extend(
        &mut self,
        params: &Params,
        peer: PeerId,
        stretch: &Stretch<'_>,
        first: usize,
    ) -> Result<(), Misbehaviour> {
        let raw = &stretch.raw()[first..];
        if raw.len() > self.count_max.saturating_sub(self.count) {
            return Err(Misbehaviour::EndlessChain { limit: self.count_max });
        }
        let headers: Box<[Orphaned]> = raw.iter().map(Orphaned::of).collect();
        for (header, hash) in headers.iter().zip(&stretch.hashes()[first..]) {
            let (height, from, to) = (self.height.saturating_add(1), self.bits, header.bits);
            if !permitted_transition(params, height, from, to) {
                return Err(Misbehaviour::DifficultyTransition { hash: *hash, height, from, to });
            }
            (self.height, self.bits, self.last) = (height, to, *hash);
        }
        self.work = self.work.saturating_add(stretch.work_from(first));
        self.count += headers.len();
        self.batches.push(Batch { peer, headers });
        Ok(())
    }

    /// All headers in order, with the peers that sent them.
    pub(super) fn into_headers(self) -> impl Iterator<Item = (PeerId, [u8; Header::SIZE])> {
        let mut prev = self.start_hash;
        let headers = self
            .batches
            .into_iter()
            .flat_map(|Batch { peer, headers }| headers.into_iter().map(move |h| (peer, h)));
        headers.map(move |(peer, header)| {
            let header = header.below(prev);
            prev = header.hash();
            (peer, header.to_bytes())
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::headers::testing::{NOW, mined, raw_headers, regtest};
    use apus_chain::Network;

    fn feed(
        candidate: &mut Candidate,
        params: &Params,
        raw: &[[u8; 80]],
    ) -> Result<(), Misbehaviour> {
        for message in raw.chunks(2000) {
            let stretch = Stretch::check(params, message).unwrap().unwrap();
            candidate.extend(params, PeerId(7), &stretch, 0)?;
        }
        Ok(())
    }

    #[test]
    fn gives_back_what_it_took_and_counts_its_work() {
        let params = regtest(0);
        let tree = HeaderTree::new(&params, NOW);
        let chain = mined(None, 3000, 1);
        let mut candidate = Candidate::above(&tree, tree.tip(), 3000);
        feed(&mut candidate, &params, &chain).unwrap();
        assert_eq!((candidate.height(), candidate.work()), (3000, 2 * 3001));
        assert_eq!(candidate.bytes(), 3000 * 48);
        assert_eq!(candidate.last(), Header::parse(&chain[2999]).hash());
        let back: Vec<_> = candidate.into_headers().collect();
        assert!(back.iter().all(|(peer, _)| *peer == PeerId(7)));
        assert!(back.iter().map(|(_, raw)| raw).eq(&chain));
    }

    #[test]
    fn takes_no_header_more_than_it_may() {
        let params = regtest(0);
        let tree = HeaderTree::new(&params, NOW);
        let mut candidate = Candidate::above(&tree, tree.tip(), 2000);
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
        let mut candidate = Candidate::above(&tree, tree.tip(), 5000);
        feed(&mut candidate, main, &raw[1..]).unwrap();
        assert_eq!(candidate.height(), 4040);

        // Regtest headers below main's genesis block: their first is easier than main lets it be.
        let mut lax = main.clone();
        lax.pow_limit = regtest(0).pow_limit;
        let mut candidate = Candidate::above(&tree, tree.tip(), 5000);
        let mut first = Header::parse(&mined(None, 1, 1)[0]);
        first.prev = main.genesis_hash;
        while !apus_chain::check_proof_of_work(&first.hash(), first.bits, lax.pow_limit) {
            first.nonce += 1;
        }
        let error = feed(&mut candidate, &lax, &[first.to_bytes()]).unwrap_err();
        assert!(matches!(error, Misbehaviour::DifficultyTransition { height: 1, .. }), "{error}");
    }

    #[test]
    fn its_bound_follows_the_age_of_the_chain() {
        let main = Params::of(Network::Main);
        assert_eq!(headers_max(main, 0), 20_000);
        assert_eq!(headers_max(main, 1_231_006_505 + 600_000), 22_000);
        assert_eq!(headers_max(main, i64::MAX), HEADERS_MAX);
        // In the year 2030: less than 120 MB.
        assert!(headers_max(main, NOW) * size_of::<Orphaned>() < 120_000_000);
        assert_eq!(headers_max(Params::of(Network::Testnet3), NOW), HEADERS_MAX);
    }
}

//! Tests each rule on chains mined for it: with headers that it rejects, and headers just on the valid side.

use super::{NOW, child, mine, mine_child};
use crate::hashes::BlockHash;
use crate::header::Header;
use crate::header_chain::HeaderChain;
use crate::header_tree::{
    HeaderAcceptance, HeaderError, HeaderId, HeaderStatus, HeaderTree, REJECTED_MAX,
};
use crate::params::{Network, Params};
use crate::work::U256;
use proptest::prelude::*;
use std::num::NonZeroU32;

const LIMIT_BITS: u32 = 0x2003_ffff;
const START_BITS: u32 = 0x2001_ffff;
const INTERVAL: u32 = 8;

/// Regtest's parameters, but with retargeting: every 8 blocks, starting at half the limit.
fn moving() -> Params {
    let mut params = Params::of(Network::Regtest).clone();
    params.pow_limit = U256::from_compact(LIMIT_BITS).value;
    params.pow_no_retargeting = false;
    params.pow_allow_min_difficulty_blocks = false;
    params.pow_target_spacing_seconds = NonZeroU32::new(1).unwrap();
    params.pow_target_timespan_seconds = NonZeroU32::new(INTERVAL).unwrap();
    params.genesis_header.bits = START_BITS;
    params.genesis_hash = params.genesis_header.hash();
    params
}

/// A tree and the header at its tip.
struct Chain {
    params: Params,
    tree: HeaderTree,
    tip: Header,
}

impl Chain {
    fn new(params: Params) -> Self {
        Self { tree: HeaderTree::new(&params, NOW), tip: params.genesis_header, params }
    }

    /// The target that the tree requires of a child with this time.
    fn bits(&self, time: u32) -> u32 {
        self.tree.next_bits(self.tree.tip(), time)
    }

    /// An unmined child of the tip with this time and the right target.
    fn next(&self, time: u32) -> Header {
        Header { time, bits: self.bits(time), ..child(&self.params, &self.tip, 0) }
    }

    fn try_push(&mut self, header: Header) -> Result<HeaderId, HeaderError> {
        let header = mine(&self.params, header);
        let accepted = self.tree.accept(&header.to_bytes())?;
        assert!(matches!(accepted, HeaderAcceptance::New(_)));
        self.tip = header;
        Ok(accepted.id())
    }

    fn push(&mut self, time: u32) {
        self.try_push(self.next(time)).unwrap();
    }

    /// Mines up to this height, one block per second.
    fn grow(&mut self, height: u32) {
        while self.tree.status_height() < height {
            self.push(self.tip.time + 1);
        }
    }

    fn reason(&mut self, header: Header) -> String {
        let before = self.tree.len();
        let error = self.try_push(header).unwrap_err();
        assert_eq!(self.tree.len(), before, "a rejected header is not stored");
        assert_eq!(self.tree.rejection(error.hash()), Some(&error));
        error.reason().into_owned()
    }
}

impl HeaderTree {
    fn status_height(&self) -> u32 {
        match self.status(self.tip()) {
            HeaderStatus::Connected(header) => header.height,
            other => panic!("the tip is {other:?}"),
        }
    }
}

#[test]
fn bad_diffbits_inside_a_period_and_at_its_end() {
    let mut chain = Chain::new(moving());
    let time = chain.tip.time + 1;
    let easier = Header { bits: LIMIT_BITS, ..chain.next(time) };
    assert_eq!(chain.reason(easier), "bad-diffbits");
    let harder = Header { bits: START_BITS - 1, ..chain.next(time) };
    assert_eq!(chain.reason(harder), "bad-diffbits");

    // Eight blocks in seven seconds make the target exactly an eighth harder.
    chain.grow(INTERVAL - 1);
    let time = chain.tip.time + 1;
    assert_eq!(chain.bits(time), 0x2001_bfff);
    let unchanged = Header { bits: START_BITS, ..chain.next(time) };
    assert_eq!(chain.reason(unchanged), "bad-diffbits");
    chain.push(time);
}

#[test]
fn a_slow_period_ends_at_the_limit_and_never_above() {
    let mut chain = Chain::new(moving());
    chain.grow(INTERVAL - 2);
    chain.push(chain.tip.time + 1000);
    assert_eq!(chain.bits(chain.tip.time + 1), LIMIT_BITS);
    chain.push(chain.tip.time + 1);
}

#[test]
fn without_retargeting_the_target_stays() {
    let mut chain = Chain::new(Params { pow_no_retargeting: true, ..moving() });
    chain.grow(INTERVAL - 1);
    assert_eq!(chain.bits(chain.tip.time + 1), START_BITS);
    chain.grow(INTERVAL + 1);
}

#[test]
fn only_late_blocks_have_minimum_difficulty() {
    let mut chain = Chain::new(Params { pow_allow_min_difficulty_blocks: true, ..moving() });
    let at_most_two_spacings = chain.tip.time + 2;
    let easy = Header { bits: LIMIT_BITS, ..chain.next(at_most_two_spacings) };
    assert_eq!(chain.reason(easy), "bad-diffbits");
    let hard = Header { bits: START_BITS, ..chain.next(at_most_two_spacings + 1) };
    assert_eq!(chain.reason(hard), "bad-diffbits", "a late block must take the exception");
    chain.push(at_most_two_spacings + 1);
    assert_eq!(chain.tip.bits, LIMIT_BITS);
    // After one or two exceptions the real target applies again.
    assert_eq!(chain.bits(chain.tip.time + 1), START_BITS);
    chain.push(chain.tip.time + 3);
    assert_eq!(chain.bits(chain.tip.time + 1), START_BITS);
    chain.push(chain.tip.time + 1);
    assert_eq!(chain.tip.bits, START_BITS);
}

#[test]
fn after_an_exception_at_a_periods_end_only_bip94_keeps_the_difficulty() {
    for enforce_bip94 in [false, true] {
        let params = Params { pow_allow_min_difficulty_blocks: true, enforce_bip94, ..moving() };
        let mut chain = Chain::new(params);
        chain.grow(INTERVAL - 2);
        chain.push(chain.tip.time + 3);
        assert_eq!(chain.tip.bits, LIMIT_BITS);
        // Nine seconds instead of eight make the target an eighth easier than the first header's or the
        // last's.
        let expected = if enforce_bip94 { 0x2002_3ffe } else { LIMIT_BITS };
        assert_eq!(chain.bits(chain.tip.time + 1), expected);
        chain.push(chain.tip.time + 1);
    }
}

#[test]
fn a_time_up_to_the_median_is_too_old() {
    let mut chain = Chain::new(Params { pow_no_retargeting: true, ..moving() });
    // Twelve headers with times 0..=11 after genesis: the last eleven have the median 6.
    let start = chain.tip.time;
    chain.grow(11);
    assert_eq!(chain.reason(chain.next(start + 6)), "time-too-old");
    chain.try_push(chain.next(start + 7)).unwrap();
}

#[test]
fn time_warp_only_at_a_periods_start_and_only_under_bip94() {
    for (enforce_bip94, height, early_seconds, refused) in [
        (true, INTERVAL, 601, true),
        (true, INTERVAL, 600, false),
        (false, INTERVAL, 601, false),
        (true, INTERVAL - 1, 601, false),
        (true, INTERVAL + 1, 601, false),
    ] {
        let mut chain = Chain::new(Params { enforce_bip94, ..moving() });
        chain.grow(height - 2);
        chain.push(chain.tip.time + 1000);
        let header = chain.next(chain.tip.time - early_seconds);
        if refused {
            assert_eq!(chain.reason(header), "time-timewarp-attack");
        } else {
            chain.try_push(header).unwrap();
        }
    }
}

#[test]
fn time_too_new_from_two_hours_on_until_the_clock_moves() {
    let mut chain = Chain::new(moving());
    let now = i64::from(chain.tip.time) + 50;
    chain.tree.set_now(now);
    let latest = (now + 7200) as u32;
    let early = mine(&chain.params, chain.next(latest + 1));
    assert_eq!(chain.reason(early), "time-too-new");
    let after = mine_child(&chain.params, &early, 0);
    assert_eq!(chain.tree.accept(&after.to_bytes()).unwrap_err().reason(), "bad-prevblk");
    chain.tree.set_now(now + 1);
    chain.try_push(early).unwrap();
    assert_eq!(chain.tree.rejection(&early.hash()), None);
    chain.tree.set_now(now + 100);
    chain.try_push(after).unwrap();

    let mut chain = Chain::new(moving());
    chain.tree.set_now(now);
    chain.try_push(chain.next(latest)).unwrap();
}

/// Headers from the future obey all other rules, and checking them does not change the tree.
#[test]
fn without_the_clock_only_the_time_is_accepted() {
    let mut chain = Chain::new(moving());
    chain.push(chain.tip.time + 1);
    let (tip, parent) = (chain.tree.tip(), chain.tip);
    chain.tree.set_now(i64::from(parent.time));
    let mut above = vec![parent];
    for spacing in [7201, 1, 1] {
        let last = above[above.len() - 1];
        let next = Header { time: last.time + spacing, ..child(&chain.params, &last, 0) };
        above.push(mine(&chain.params, next));
    }
    let mut old = child(&chain.params, &above[3], 0);
    old.version = 1;
    above.push(mine(&chain.params, old));
    let raw: Vec<_> = above[1..].iter().map(Header::to_bytes).collect();
    assert_eq!(chain.tree.accept(&raw[0]).unwrap_err().reason(), "time-too-new");
    let (hash, last) = chain.tree.without_clock(raw.iter().copied()).unwrap();
    assert_eq!((hash, last.height), (above[3].hash(), 4));
    assert!(last.chain_work > chain.tree.connected(tip).unwrap().chain_work);
    assert_eq!(chain.tree.without_clock(raw[3..].iter().copied()), None);
    assert_eq!((chain.tree.tip(), chain.tree.len()), (tip, 2));
    for header in &above[1..] {
        assert_eq!(chain.tree.find(&header.hash()), None);
    }
    // The tree is unchanged.
    assert_eq!(chain.tree.accept(&raw[0]).unwrap_err().reason(), "time-too-new");
    chain.tree.set_now(NOW);
    chain.try_push(above[1]).unwrap();
    let path = HeaderChain::best_of(&chain.tree);
    let latest = i64::from(above[1].time) - 7200;
    assert_eq!((path.first_too_new(latest), path.first_too_new(latest - 1)), (None, Some(2)));
}

#[test]
fn bad_version_from_each_height_on() {
    let params = Params { bip34_height: 2, bip66_height: 3, bip65_height: 4, ..moving() };
    let mut chain = Chain::new(params);
    for (height, least) in [(1, i32::MIN), (2, 2), (3, 3), (4, 4), (5, 4)] {
        if least > i32::MIN {
            let old = Header { version: least - 1, ..chain.next(chain.tip.time + 1) };
            let expected = format!("bad-version(0x{:08x})", least - 1);
            assert_eq!(chain.reason(old), expected, "height {height}");
            let negative = Header { version: -1, ..chain.next(chain.tip.time + 1) };
            assert_eq!(chain.reason(negative), "bad-version(0xffffffff)");
        }
        let good = Header { version: least, ..chain.next(chain.tip.time + 1) };
        chain.try_push(good).unwrap();
    }
}

#[test]
fn headers_without_proof_of_work_are_not_stored() {
    let mut chain = Chain::new(moving());
    let mut header = mine(&chain.params, chain.next(chain.tip.time + 1));
    let target = U256::from_compact(header.bits).value;
    while U256::from_le_bytes(&header.hash().0) <= target {
        header.nonce += 1;
    }
    let too_easy = Header { bits: 0x207f_ffff, ..header };
    let negative = Header { bits: 0x2081_ffff, ..header };
    let orphan = Header { prev: BlockHash([9; 32]), ..too_easy };
    for bad in [header, too_easy, negative, orphan] {
        let error = chain.tree.accept(&bad.to_bytes()).unwrap_err();
        assert_eq!(error.reason(), "high-hash");
        assert_eq!(chain.tree.find(&bad.hash()), None);
        assert_eq!(chain.tree.rejection(&bad.hash()), None);
    }
    assert_eq!((chain.tree.len(), chain.tree.orphans_count()), (1, 0));
}

#[test]
fn another_chains_genesis_is_rejected() {
    let mut tree = HeaderTree::new(Params::of(Network::Testnet3), NOW);
    let main = Params::of(Network::Main).genesis_header;
    let error = tree.accept(&main.to_bytes()).unwrap_err();
    assert!(matches!(error, HeaderError::OtherGenesis { .. }), "{error}");
    assert_eq!(error.reason(), "prev-blk-not-found");
    let own = Params::of(Network::Testnet3).genesis_header;
    assert_eq!(tree.accept(&own.to_bytes()), Ok(HeaderAcceptance::Known(tree.tip())));
}

#[test]
fn descendants_of_an_invalid_header_are_rejected_and_named() {
    let mut chain = Chain::new(moving());
    let mut bad = chain.next(chain.tip.time + 1);
    bad.version = 1;
    let bad = mine(&chain.params, bad);
    let first = mine_child(&chain.params, &bad, 1);
    let second = mine_child(&chain.params, &first, 2);
    let third = mine_child(&chain.params, &second, 3);
    // The second waits for the first, which is rejected because of its invalid parent.
    let waiting = chain.tree.accept(&second.to_bytes()).unwrap().id();
    assert_eq!(chain.tree.status(waiting), HeaderStatus::Orphan);
    assert_eq!(chain.reason(bad), "bad-version(0x00000001)");
    let error = chain.tree.accept(&first.to_bytes()).unwrap_err();
    assert!(error.to_string().contains(&bad.hash().to_string()), "{error}");
    assert!(error.to_string().contains("bad-version(0x00000001)"), "{error}");
    assert_eq!(chain.tree.status(waiting), HeaderStatus::Rejected);
    assert_eq!(chain.tree.find(&second.hash()), None);
    assert_eq!(chain.tree.orphans_count(), 0);
    for header in [second, third] {
        let error = chain.tree.accept(&header.to_bytes()).unwrap_err();
        assert_eq!(error.reason(), "bad-prevblk");
        assert!(error.to_string().contains(&bad.hash().to_string()), "{error}");
    }
    assert_eq!(chain.tree.tip().index(), 0);
}

/// A header that is invalid only because of its position: an orphan is validated when its parent connects.
#[test]
fn orphans_obey_the_rules_when_they_connect() {
    let mut chain = Chain::new(moving());
    let parent = mine(&chain.params, chain.next(chain.tip.time + 1));
    let good = mine_child(&chain.params, &parent, 1);
    let mut bad = child(&chain.params, &parent, 2);
    bad.bits = LIMIT_BITS;
    let bad = mine(&chain.params, bad);
    let after_bad = mine_child(&chain.params, &bad, 3);
    let ids =
        [after_bad, bad, good].map(|header| chain.tree.accept(&header.to_bytes()).unwrap().id());
    assert_eq!(chain.tree.missing_parents().collect::<Vec<_>>(), [&parent.hash()]);
    assert!(chain.tree.path_to(ids[2]).is_empty());
    assert!(matches!(chain.tree.accept(&parent.to_bytes()), Ok(HeaderAcceptance::New(_))));
    let statuses = ids.map(|id| chain.tree.status(id));
    assert_eq!(statuses[..2], [HeaderStatus::Rejected; 2]);
    assert!(matches!(statuses[2], HeaderStatus::Connected(header) if header.height == 2));
    assert_eq!(chain.tree.tip(), ids[2]);
    assert_eq!(chain.tree.rejection(&bad.hash()).unwrap().reason(), "bad-diffbits");
    assert_eq!(chain.tree.rejection(&after_bad.hash()).unwrap().reason(), "bad-prevblk");
    assert_eq!(chain.tree.rejected_count(), 2);
    assert_eq!(chain.tree.missing_parents().count(), 0);
}

#[test]
fn orphans_and_rejections_are_bounded() {
    let mut chain = Chain::new(Params::of(Network::Regtest).clone());
    chain.tree.set_orphans_max(2);
    let parent = mine_child(&chain.params, &chain.tip, 0);
    let orphans: Vec<Header> =
        (0..3).map(|salt| mine_child(&chain.params, &parent, salt)).collect();
    for orphan in &orphans[..2] {
        assert!(matches!(chain.tree.accept(&orphan.to_bytes()), Ok(HeaderAcceptance::Orphan(_))));
        assert!(matches!(chain.tree.accept(&orphan.to_bytes()), Ok(HeaderAcceptance::Known(_))));
    }
    let error = chain.tree.accept(&orphans[2].to_bytes()).unwrap_err();
    assert!(matches!(error, HeaderError::TooManyOrphans { limit: 2, .. }), "{error}");
    // After the parent connects, new orphans may wait, and no header was lost.
    chain.tree.accept(&parent.to_bytes()).unwrap();
    assert!(matches!(chain.tree.accept(&orphans[2].to_bytes()), Ok(HeaderAcceptance::New(_))));

    for salt in 0..REJECTED_MAX as u32 + 5 {
        let old = Header { version: 1, ..child(&chain.params, &parent, 1000 + salt) };
        assert!(chain.tree.accept(&mine(&chain.params, old).to_bytes()).is_err());
    }
    assert_eq!(chain.tree.rejections().count(), REJECTED_MAX);
    assert_eq!(chain.tree.rejected_count(), REJECTED_MAX as u64 + 5);
}

/// Compares with Core's walk back to the last target that is not an exception (`pow.cpp`,
/// `GetNextWorkRequired`).
fn real_bits_by_walking(tree: &HeaderTree) -> u32 {
    let header = |id| match tree.status(id) {
        HeaderStatus::Connected(header) => header,
        other => panic!("{other:?}"),
    };
    let mut at = header(tree.tip());
    while let Some(parent) = at.parent {
        if at.height % INTERVAL == 0 || at.bits != LIMIT_BITS {
            break;
        }
        at = header(parent);
    }
    at.bits
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn the_remembered_target_is_the_one_found_by_walking(
        delays in proptest::collection::vec(1u32..6, 1..40), enforce_bip94 in any::<bool>(),
    ) {
        let params =
            Params { pow_allow_min_difficulty_blocks: true, enforce_bip94, ..moving() };
        let mut chain = Chain::new(params);
        for delay in delays {
            let height = chain.tree.status_height() + 1;
            if !height.is_multiple_of(INTERVAL) {
                let on_time = chain.bits(chain.tip.time + 1);
                prop_assert_eq!(on_time, real_bits_by_walking(&chain.tree));
            }
            chain.push(chain.tip.time + delay);
        }
    }
}

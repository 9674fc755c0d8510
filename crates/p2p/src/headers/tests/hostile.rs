//! Peers that lie, stall, or send what no node sends.

use super::*;
use apus_chain::KnownBlock;

/// A sync with one peer doing the bulk download and one waiting; the first peer sent all of the candidate's
/// headers.
fn on_trial(chain: &[[u8; 80]]) -> HeaderSync {
    let mut sync = HeaderSync::new(&regtest(2 * 5001), NOW);
    sync.peer_connected(A, 0);
    sync.peer_connected(B, 0);
    for message in chain.chunks(2000) {
        sync.headers(A, message, 0).unwrap();
    }
    sync.actions();
    sync
}

#[test]
fn another_peer_takes_over_a_stalled_bulk_download() {
    let chain = mined(None, 5100, 1);
    let mut sync = on_trial(&chain[..4000]);
    sync.tick(19_999);
    assert_eq!(sync.actions(), []);
    sync.tick(20_000);
    let actions = sync.actions();
    let why = DisconnectReason::Stalled { seconds: 20 };
    assert_eq!(actions[0], HeaderAction::Disconnect { peer: A, why });
    let HeaderAction::GetHeaders { peer: B, locator, .. } = &actions[1] else {
        panic!("{actions:?}")
    };
    assert_eq!(locator[..], [hash(&chain[3999]), sync.tree().params().genesis_hash]);
    // Late headers from the removed peer do not count.
    assert_eq!(sync.headers(A, &chain[4000..], 20_001).unwrap(), HeaderUpdate::default());
    assert_eq!(sync.headers(B, &chain[4000..], 20_001).unwrap().new_headers, 5100);
    assert!(sync.is_synced(20_001));
}

#[test]
fn a_peer_that_takes_over_need_not_extend_the_same_chain() {
    let other = mined(None, 5200, 2);
    let mut sync = on_trial(&mined(None, 4000, 1));
    sync.peer_gone(A, 1);
    let node = Node::new(&regtest(0), &other);
    assert_eq!(settle(&mut sync, &[(B, &node)], 1), []);
    assert_eq!(*sync.tree().hash(sync.best()), node.tip());
    assert_eq!(sync.tree().len(), 5201, "nothing of the first chain was kept");
}

#[test]
fn the_only_peer_gets_more_time() {
    let mut sync = HeaderSync::new(&regtest(0), NOW);
    sync.peer_connected(A, 0);
    sync.actions();
    sync.tick(119_999);
    assert_eq!(sync.actions(), []);
    sync.tick(120_000);
    let why = DisconnectReason::Stalled { seconds: 120 };
    assert_eq!(sync.actions(), [HeaderAction::Disconnect { peer: A, why }]);
}

#[test]
fn a_slow_bulk_download_moves_to_another_peer() {
    let chain = mined(None, 4000, 1);
    let epoch = clock(&chain, false);
    let mut sync = HeaderSync::new(&regtest(0), epoch);
    sync.peer_connected(A, 0);
    // A minute, plus half a millisecond for each block due since the genesis block.
    let due = (epoch - i64::from(sync.tree().params().genesis_header.time)) / 600;
    let allowance = 60_000 + due as u64 / 2;
    sync.headers(A, &chain[..2000], allowance - 5000).unwrap();
    sync.tick(allowance);
    sync.headers(A, &chain[2000..], allowance).unwrap();
    sync.actions();
    sync.tick(allowance + 1);
    assert_eq!(sync.actions(), [], "there is no other peer");
    sync.peer_connected(B, allowance + 1);
    sync.tick(allowance + 1);
    let why = DisconnectReason::TooSlow { seconds: allowance / 1000 };
    assert_eq!(sync.actions()[0], HeaderAction::Disconnect { peer: A, why });
    let bulk = sync.bulk.unwrap();
    assert_eq!((bulk.peer, sync.lapses), (B, 1));
    assert!(bulk.allowance_ms > 2 * 60_000, "the next peer gets more time: {bulk:?}");
}

#[test]
fn a_silent_peer_does_not_block_the_header_sync() {
    let params = regtest(0);
    let chain = mined(None, 100, 1);
    let node = Node::new(&params, &chain);
    let mut sync = HeaderSync::new(&params, NOW);
    for peer in [A, B, C] {
        sync.peer_connected(peer, 0);
    }
    let nodes = [(A, &node), (B, &node)];
    assert_eq!(settle(&mut sync, &nodes, 10), []);
    sync.tick(20_000);
    assert!(!sync.is_synced(20_009));
    assert!(sync.is_synced(20_010));
    sync.tick(120_010);
    let why = DisconnectReason::Stalled { seconds: 120 };
    assert_eq!(sync.actions(), [HeaderAction::Disconnect { peer: C, why }]);
    assert!(sync.is_synced(120_010));

    // A peer that answered before is busy, not useless.
    sync.refresh(200_000);
    assert_eq!(sync.actions().len(), 2);
    sync.headers(A, &[], 200_001).unwrap();
    sync.tick(320_000);
    assert_eq!(sync.actions(), []);
    assert!(sync.is_synced(320_000));
}

#[test]
fn a_low_work_chain_is_discarded_and_its_peer_disconnected() {
    let mut sync = on_trial(&mined(None, 4000, 1));
    let tail = mined(Some(&mined(None, 4000, 1)[3999]), 10, 1);
    assert_eq!(sync.headers(A, &tail, 1).unwrap(), HeaderUpdate::default());
    assert_eq!(
        sync.actions()[0],
        HeaderAction::Disconnect { peer: A, why: DisconnectReason::LowWork }
    );
    assert_eq!(sync.tree().len(), 1);
    assert!(!sync.is_synced(1));
    // A peer without any headers is disconnected, too.
    sync.headers(B, &[], 1).unwrap();
    assert_eq!(
        sync.actions(),
        [HeaderAction::Disconnect { peer: B, why: DisconnectReason::LowWork }]
    );
}

#[test]
fn an_endless_chain_is_cut_off_and_its_memory_freed() {
    let chain = mined(None, 4000, 1);
    let mut sync = HeaderSync::new(&regtest(1_000_000), NOW);
    sync.set_candidate_max(3999);
    sync.peer_connected(A, 0);
    sync.headers(A, &chain[..2000], 0).unwrap();
    assert_eq!(sync.candidate.as_ref().unwrap().bytes(), 2000 * 48);
    let error = sync.headers(A, &chain[2000..], 0).unwrap_err();
    assert_eq!(error, Misbehaviour::EndlessChain { limit: 3999 });
    assert_eq!((sync.candidate_height(), sync.tree().len()), (None, 1));
    assert_eq!(sync.peer_best(A), None);
    // The sync keeps nothing else for a peer.
    assert!(size_of::<HeaderPeer>() <= 64);
}

#[test]
fn only_the_bulk_download_extends_a_candidate() {
    let chain = mined(None, 4000, 1);
    let mut sync = on_trial(&chain[..2000]);
    let other = mined(None, 2000, 2);
    assert_eq!(sync.headers(B, &other, 1).unwrap(), HeaderUpdate::default());
    assert_eq!(sync.candidate_height(), Some(2000));
    assert_eq!(sync.candidate.as_ref().unwrap().last(), hash(&chain[1999]));
    assert!(asked(&mut sync).is_empty(), "the other peer must wait");
    assert!(!sync.is_synced(1));
    sync.peer_gone(A, 2);
    assert_eq!(asked(&mut sync), [(B, hash(&chain[1999]))]);
}

#[test]
fn an_invalid_header_disconnects_the_peer_that_sent_it() {
    // At height 5,000 the time drops back to that of the genesis block.
    let genesis = Params::of(Network::Regtest).genesis_header;
    let mut chain = mined(None, 4999, 1);
    let mut bad = Header::parse(&mined(Some(&chain[4998]), 1, 1)[0]);
    bad.time = genesis.time;
    chain.push(testing::mine(bad).to_bytes());
    chain.extend(mined(chain.last().copied().as_ref(), 1500, 1));

    let mut sync = on_trial(&chain[..4000]);
    let error = sync.headers(A, &chain[4000..6000], 1).unwrap_err();
    assert!(matches!(error, Misbehaviour::Invalid(HeaderError::TimeTooOld { .. })), "{error}");
    assert_eq!(sync.peer_best(A), None);
    assert_eq!(sync.best_chain().len(), 5000, "valid headers carry real work");
    assert!(sync.take_new().iter().eq(chain[..4999].iter().copied()));

    let mut params = regtest(2 * 6001);
    params.minimum_chain_work += 2;
    let mut sync = HeaderSync::new(&params, NOW);
    for (peer, from) in [(A, 0), (A, 2000), (A, 4000)] {
        sync.peer_connected(peer, 0);
        sync.headers(peer, &chain[from..from + 2000], 0).unwrap();
    }
    sync.peer_connected(B, 0);
    sync.actions();
    // The bulk download moves on although its first peer is still connected.
    sync.bulk.as_mut().unwrap().peer = B;
    sync.headers(B, &chain[6000..], 1).unwrap();
    let why = DisconnectReason::InvalidHeaders;
    assert_eq!(sync.actions()[0], HeaderAction::Disconnect { peer: A, why });
}

#[test]
fn broken_messages_end_the_connection() {
    let chain = mined(None, 2001, 1);
    let mut shuffled = chain[..10].to_vec();
    shuffled.swap(3, 4);
    for broken in [&chain[..], &shuffled] {
        let mut sync = HeaderSync::new(&regtest(0), NOW);
        sync.peer_connected(A, 0);
        sync.peer_connected(B, 0);
        sync.actions();
        sync.headers(A, broken, 0).unwrap_err();
        assert_eq!(asked(&mut sync), [(B, sync.tree().params().genesis_hash)]);
        assert_eq!(sync.tree().len(), 1);
        // It may keep sending until its connection is closed.
        assert_eq!(sync.headers(A, broken, 0).unwrap(), HeaderUpdate::default());
        sync.peer_gone(A, 0);
    }
}

#[test]
fn headers_that_never_connect_are_tolerated_ten_times() {
    let params = regtest(0);
    let chain = mined(None, 100, 1);
    let stranger = mined(Some(&mined(None, 5, 9)[4]), 1, 9);
    let mut sync = HeaderSync::new(&params, clock(&chain, true));
    sync.restore(chain[..99].iter().copied());
    sync.peer_connected(A, 0);
    sync.headers(A, &chain[93..99], 0).unwrap();
    sync.actions();
    for _ in 0..10 {
        assert_eq!(sync.headers(A, &stranger, 0).unwrap(), HeaderUpdate::default());
        assert_eq!(sync.actions().len(), 1, "it is asked");
        sync.headers(A, &[], 0).unwrap();
    }
    let error = sync.headers(A, &stranger, 0).unwrap_err();
    assert_eq!(error, Misbehaviour::Unconnecting { count: 11 });

    // Headers that connect reset the count.
    sync.peer_connected(B, 0);
    for _ in 0..30 {
        sync.headers(B, &stranger, 0).unwrap();
        sync.headers(B, &chain[98..99], 0).unwrap();
    }
    // While our own chain is old, no announced header connects.
    let mut sync = HeaderSync::new(&params, NOW);
    sync.peer_connected(A, 0);
    for _ in 0..1000 {
        sync.headers(A, &stranger, 0).unwrap();
    }
    sync.headers(A, &stranger, 0).unwrap_err();
}

#[test]
fn a_header_from_the_future_is_dropped_until_its_time() {
    let params = regtest(0);
    let chain = mined(None, 40, 1);
    let now = i64::from(Header::parse(&chain[19]).time) - 2 * 3600;
    let mut sync = HeaderSync::new(&params, now);
    sync.peer_connected(A, 0);
    let learned = sync.headers(A, &chain, 0).unwrap();
    assert_eq!(learned, HeaderUpdate { new_headers: 20, best_changed: true, too_new: true });
    assert!(sync.is_synced(0));
    let learned = sync.headers(A, &chain[20..], 600_000).unwrap();
    assert_eq!((learned.new_headers, learned.too_new), (1, true));
    sync.set_clock(NOW, 600_000);
    let learned = sync.headers(A, &chain[20..], 600_001).unwrap();
    assert_eq!((learned.new_headers, learned.too_new), (19, false));
}

/// A chain that only the clock keeps out is reported, with the number of peers that have it.
#[test]
fn a_better_chain_from_the_future_is_reported() {
    let params = regtest(0);
    let chain = mined(None, 40, 1);
    let header = Header::parse(&chain[20]);
    let now = i64::from(header.time) - 2 * 3600 - 1;
    let mut sync = HeaderSync::new(&params, now);
    sync.peer_connected(A, 0);
    sync.peer_connected(B, 0);
    assert_eq!(sync.too_new(0), None);
    sync.headers(A, &chain, 0).unwrap();
    sync.headers(B, &chain[..20], 0).unwrap();
    let first = KnownBlock { height: 21, hash: header.hash() };
    let reported = TooNew { first, time: header.time, height: 40, peers: 1, others: 1 };
    assert_eq!(sync.too_new(0), Some(reported));
    sync.headers(B, &chain, 0).unwrap();
    assert_eq!(sync.too_new(0), Some(TooNew { peers: 2, others: 0, ..reported }));
    // Once the header's time is reached, the chain is no longer reported.
    assert_eq!(sync.too_new(1000), None);
}

#[test]
fn a_peer_that_repeats_itself_is_not_asked_forever() {
    let params = regtest(0);
    let chain = mined(None, 2000, 1);
    let mut sync = HeaderSync::new(&params, NOW);
    sync.peer_connected(A, 0);
    let mut requests = 0;
    while sync.actions().iter().any(|action| matches!(action, HeaderAction::GetHeaders { .. })) {
        requests += 1;
        sync.headers(A, &chain, 0).unwrap();
    }
    assert!(requests <= 3, "{requests}");
    assert!(sync.is_synced(0));
}

#[test]
fn branches_without_more_work_are_accepted_up_to_a_limit() {
    let params = regtest(0);
    let chain = mined(None, 200, 1);
    let mut sync = HeaderSync::new(&params, NOW);
    sync.restore(chain.iter().copied());
    sync.peer_connected(A, 0);
    let mut salt = 2;
    let mut branch = |count| {
        salt += 1;
        mined(Some(&chain[70]), count, salt)
    };
    while sync.tree().len() - 201 < STALE_HEADERS_MAX {
        assert_eq!(sync.headers(A, &branch(129), 0).unwrap().new_headers, 129);
    }
    assert_eq!(sync.headers(A, &branch(129), 0).unwrap().new_headers, 0);
    let learned = sync.headers(A, &branch(130), 0).unwrap();
    assert_eq!((learned.new_headers, learned.best_changed), (130, true));
}

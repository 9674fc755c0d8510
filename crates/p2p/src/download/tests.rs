//! Tests each scheduling rule on its own.

mod properties;
mod rates;
mod simulation;

use super::*;

const A: PeerId = PeerId(1);
const B: PeerId = PeerId(2);
const MB: u64 = 1_000_000;

fn hash(height: Height) -> BlockHash {
    branch(0, height)
}

fn branch(branch: u8, height: Height) -> BlockHash {
    let mut bytes = [branch; 32];
    bytes[4..8].copy_from_slice(&height.to_le_bytes());
    BlockHash(bytes)
}

fn chain(height: Height) -> Option<BlockHash> {
    Some(hash(height))
}

fn range(heights: core::ops::Range<Height>) -> HeightRange {
    HeightRange::new(heights.start, heights.end)
}

fn full() -> Services {
    Services::NETWORK.with(Services::WITNESS)
}

/// A download that wants these heights, with these peers, which have all of them.
fn with(heights: core::ops::Range<Height>, peers: &[PeerId]) -> Download {
    let mut download = Download::new(DownloadOptions::default());
    assert_eq!(download.want(range(heights.clone()), &chain), heights.end - heights.start);
    for peer in peers {
        download.peer_added(*peer, full(), 0);
        download.peer_has(*peer, 1_000_000, 1_000_000);
    }
    download
}

/// The heights requested from a peer in one tick, and nothing else.
fn asked(download: &mut Download, peer: PeerId, now: u64) -> Vec<Height> {
    let mut heights = Vec::new();
    for action in download.tick(now) {
        match action {
            DownloadAction::Request { peer: other, blocks } if other == peer => {
                heights.extend(blocks.into_iter().map(|block| block.0));
            }
            DownloadAction::Request { .. } => {}
            DownloadAction::Disconnect { peer, why } => panic!("{peer:?} dropped: {why}"),
        }
    }
    heights
}

/// The peers dropped in one tick, and why.
fn dropped(download: &mut Download, now: u64) -> Vec<(PeerId, Blame)> {
    let of = |action| match action {
        DownloadAction::Disconnect { peer, why } => Some((peer, why)),
        DownloadAction::Request { .. } => None,
    };
    download.tick(now).into_iter().filter_map(of).collect()
}

/// Delivers a block and has the consumer accept it.
fn take(download: &mut Download, peer: PeerId, height: Height, bytes: u64, now: u64) {
    let received = download.block(peer, &hash(height), bytes, now);
    assert_eq!(received, BlockReceipt::Wanted(height));
    assert!(download.consumed(&hash(height)));
}

#[test]
fn a_new_peer_starts_with_two_blocks_and_doubles() {
    let mut download = with(0..1_000, &[A]);
    let mut owed = asked(&mut download, A, 0);
    assert_eq!(owed, [0, 1]);
    let mut sizes = Vec::new();
    // Tiny blocks, all at once every tenth of a second: the network is not the bottleneck.
    for round in 1..9 {
        for height in core::mem::take(&mut owed) {
            take(&mut download, A, height, 200, round * 100);
        }
        owed = asked(&mut download, A, round * 100);
        sizes.push(owed.len());
    }
    assert_eq!(sizes, [4, 8, 16, 32, 64, 128, 128, 128]);
}

#[test]
fn requests_follow_the_rate_and_come_in_batches() {
    let mut download = with(0..10_000, &[A]);
    let mut pipe: std::collections::VecDeque<_> = asked(&mut download, A, 0).into();
    let mut messages = 0;
    // The peer delivers ten megabytes a second.
    for block in 1..=400 {
        let height = pipe.pop_front().unwrap();
        take(&mut download, A, height, MB, 50 + block * 100);
        let more = asked(&mut download, A, 50 + block * 100);
        messages += u32::from(!more.is_empty());
        pipe.extend(more);
    }
    // The requests cover a second and a half plus a round trip.
    assert!((12..=18).contains(&pipe.len()), "{pipe:?}");
    assert!(messages < 250, "{messages}");
    let status = download.status(40_050);
    assert!((9_000_000..=11_000_000).contains(&status.rate), "{status:?}");
    assert!((9_000.0..=11_000.0).contains(&download.peers[&A].rate(40_050).unwrap()));
    assert_eq!((status.limited_by, status.totals.blocks), (Limit::Line, 400));
    assert_eq!(status.unavailable, 0);
}

#[test]
fn memory_limits_requests_and_the_lowest_blocks_come_first() {
    let mut download =
        Download::new(DownloadOptions { bytes_max: 4 * MB, ..DownloadOptions::default() });
    download.want(range(50..60), &chain);
    download.want(range(10..12), &chain);
    for peer in (0..9).map(PeerId) {
        download.peer_added(peer, full(), 0);
        download.peer_has(peer, 100, 100);
    }
    let mut requests = Vec::new();
    for action in download.tick(0) {
        let DownloadAction::Request { peer, blocks } = action else { panic!() };
        requests.extend(blocks.into_iter().map(|block| (block.0, peer)));
    }
    requests.sort_unstable();
    assert_eq!(requests.iter().map(|request| request.0).collect::<Vec<_>>(), [10, 11, 50, 51]);
    for (height, peer) in requests {
        assert_eq!(download.block(peer, &hash(height), MB, 500), BlockReceipt::Wanted(height));
    }
    assert_eq!(download.tick(500), []);
    assert_eq!(download.limited_by(), Limit::Consumer);
    assert!(download.consumed(&hash(11)));
    assert_eq!(download.tick(600).len(), 1);
}

#[test]
fn memory_always_suffices_for_the_largest_block() {
    let mut download =
        Download::new(DownloadOptions { bytes_max: 1, ..DownloadOptions::default() });
    download.want(range(0..6), &chain);
    download.peer_added(A, full(), 0);
    download.peer_has(A, 10, 10);
    assert_eq!(asked(&mut download, A, 0), [0, 1]);
    take(&mut download, A, 0, 4 * MB, 50);
    take(&mut download, A, 1, 4 * MB, 100);
    // Blocks are requested one by one, now that their size is known.
    for height in 2..6 {
        let now = u64::from(height) * 100;
        assert_eq!(asked(&mut download, A, now), [height]);
        take(&mut download, A, height, 4 * MB, now + 50);
    }
    assert_eq!(download.status(900).awaited, 0);
}

#[test]
fn a_block_much_larger_than_expected_is_discarded_and_requested_again() {
    let mut download =
        Download::new(DownloadOptions { bytes_max: 4 * MB, ..DownloadOptions::default() });
    download.want(range(0..3), &chain);
    for peer in [A, B] {
        download.peer_added(peer, full(), 0);
        download.peer_has(peer, 100, 100);
    }
    assert_eq!(asked(&mut download, A, 0), [0, 2]);
    assert_eq!(download.block(B, &hash(1), 3 * MB, 10), BlockReceipt::Wanted(1));
    assert_eq!(download.block(A, &hash(2), 3 * MB, 10), BlockReceipt::NoRoom(2));
    // The lowest block is taken even without memory: a consumer that needs order waits for it.
    assert_eq!(download.block(A, &hash(0), 3 * MB, 10), BlockReceipt::Wanted(0));
    assert_eq!(download.window.handed_out_bytes, 6 * MB);
    assert_eq!(download.tick(20), []);
    assert!(download.consumed(&hash(0)) && download.consumed(&hash(1)));
    let Some(DownloadAction::Request { blocks, .. }) = download.tick(30).pop() else { panic!() };
    assert_eq!(blocks, [(2, hash(2))]);
}

#[test]
fn peers_are_asked_only_for_blocks_they_have() {
    let mut download = with(0..1_000, &[]);
    download.peer_added(A, full(), 0);
    assert!(asked(&mut download, A, 0).is_empty());
    // Its chain leaves ours after block 0.
    download.peer_has(A, 0, 900);
    assert_eq!(asked(&mut download, A, 0), [0]);
    assert_eq!(download.status(0).unavailable, 999);
    // A node that keeps the last 288 blocks, as in Core, is asked for the last 286.
    let limited = Services::NETWORK_LIMITED.with(Services::WITNESS);
    download.peer_added(B, limited, 0);
    download.peer_has(B, 700, 900);
    assert_eq!(asked(&mut download, B, 0), [615, 616]);
    // Blocks without witnesses are useless.
    let old = PeerId(3);
    download.peer_added(old, Services::NETWORK, 0);
    download.peer_has(old, 900, 900);
    assert!(asked(&mut download, old, 0).is_empty());
}

#[test]
fn a_lack_of_peers_is_reported() {
    let mut download = with(5..8, &[]);
    assert_eq!(download.limited_by(), Limit::Peers);
    assert_eq!(download.tick(0), []);
    download.peer_added(A, full(), 10);
    download.peer_has(A, 4, 4);
    assert_eq!(download.tick(10), []);
    assert_eq!(download.limited_by(), Limit::Peers);
    download.peer_has(A, 5, 5);
    assert_eq!(asked(&mut download, A, 20), [5]);
    assert_eq!(download.limited_by(), Limit::Line);
    download.unwant(range(0..10));
    assert_eq!(download.limited_by(), Limit::Consumer);
}

#[test]
fn a_peer_that_answers_notfound_is_not_asked_again_and_finally_dropped() {
    let mut download = with(0..40, &[A]);
    let mut refused = Vec::new();
    let mut now = 0;
    let blame = loop {
        now += 10;
        match download.tick(now).pop() {
            Some(DownloadAction::Request { blocks, .. }) => {
                for (height, hash) in blocks {
                    assert!(!refused.contains(&height));
                    refused.push(height);
                    download.not_found(A, &hash, now);
                }
            }
            Some(DownloadAction::Disconnect { peer: A, why }) => break why,
            other => panic!("{other:?}"),
        }
    };
    assert_eq!(blame, Blame::Refuses(17));
    download.not_found(A, &hash(30), now);
    // A peer cannot refuse a block that it was not asked for.
    let mut download = with(0..40, &[A]);
    download.not_found(A, &hash(0), 0);
    assert_eq!(asked(&mut download, A, 0), [0, 1]);
}

#[test]
fn unrequested_blocks_are_discarded_and_their_sender_is_finally_dropped() {
    let mut download = with(0..4, &[A, B]);
    download.tick(0);
    for height in [1, 3, 77] {
        assert_eq!(download.block(A, &hash(height), 10, 1), BlockReceipt::Unrequested);
        assert_eq!(dropped(&mut download, 1), []);
    }
    assert_eq!(download.block(A, &hash(1), 10, 1), BlockReceipt::Unrequested);
    assert_eq!(dropped(&mut download, 1), [(A, Blame::Unrequested(4))]);
    assert_eq!(download.block(A, &hash(0), 10, 1), BlockReceipt::Unrequested);
}

#[test]
fn a_peer_that_sends_a_damaged_block_is_dropped_and_others_are_asked() {
    let mut download = with(0..2, &[A]);
    assert_eq!(asked(&mut download, A, 0), [0, 1]);
    take(&mut download, A, 0, 10, 5);
    assert_eq!(download.block(A, &hash(1), 10, 5), BlockReceipt::Wanted(1));
    // The block is wanted again while the consumer still holds the damaged copy.
    download.want(range(1..2), &chain);
    assert!(asked(&mut download, A, 6).is_empty());
    assert_eq!(download.damaged(&hash(1)), Some(A));
    assert_eq!(download.damaged(&hash(1)), None);
    assert_eq!(dropped(&mut download, 10), [(A, Blame::Damaged(hash(1)))]);
    assert_eq!(download.limited_by(), Limit::Peers);
    download.peer_added(B, full(), 20);
    download.peer_has(B, 9, 9);
    assert_eq!(asked(&mut download, B, 20), [1]);
    take(&mut download, B, 1, 10, 25);
    assert_eq!(download.status(25).awaited, 0);
    // The sender may be gone when the consumer rejects the block.
    let mut download = with(0..1, &[A]);
    download.tick(0);
    assert_eq!(download.block(A, &hash(0), 10, 5), BlockReceipt::Wanted(0));
    download.peer_gone(A);
    assert_eq!(download.tick(8), []);
    assert_eq!(download.damaged(&hash(0)), Some(A));
    assert_eq!(download.status(8).awaited, 1);
}

/// A peer that sends no block but much else, such as decoys or half a message, holds nobody up for long.
#[test]
fn a_block_that_takes_too_long_is_requested_from_others() {
    let mut download = with(0..2, &[A]);
    assert_eq!(asked(&mut download, A, 0), [0, 1]);
    download.peer_added(B, full(), 0);
    download.peer_has(B, 9, 9);
    let (mut taken_over, mut gone) = (None, None);
    for second in 1..1_000 {
        let now = second * 1_000;
        download.progress(A, second * 100_000, now);
        for action in download.tick(now) {
            match action {
                DownloadAction::Request { peer, blocks } => {
                    assert_eq!(peer, B);
                    for (height, hash) in blocks {
                        if height == 0 {
                            taken_over = Some(second);
                        }
                        let received = download.block(B, &hash, 1_000, now);
                        assert_eq!(received, BlockReceipt::Wanted(height));
                        assert!(download.consumed(&hash));
                    }
                }
                DownloadAction::Disconnect { peer, .. } => {
                    assert_eq!(peer, A);
                    gone.get_or_insert(second);
                }
            }
        }
    }
    assert_eq!((taken_over, gone), (Some(31), Some(33)));
}

#[test]
fn blocks_owed_by_a_lost_peer_are_requested_from_others() {
    let mut download = with(0..2, &[A]);
    assert_eq!(asked(&mut download, A, 0), [0, 1]);
    download.peer_added(B, full(), 0);
    download.peer_has(B, 9, 9);
    assert!(asked(&mut download, B, 0).is_empty());
    download.peer_gone(A);
    assert_eq!(asked(&mut download, B, 1), [0, 1]);
}

#[test]
fn a_silent_peer_loses_its_blocks_then_its_connection() {
    let mut download = with(0..4, &[A, B]);
    assert_eq!(asked(&mut download, A, 0), [0, 2]);
    take(&mut download, B, 1, 10, 100);
    take(&mut download, B, 3, 10, 100);
    // The idle peer takes over the other's blocks, and no peer is blamed for late copies.
    let mut now = 100;
    while download.status(now).in_flight == 2 && asked(&mut download, B, now).is_empty() {
        now += 100;
        assert!(now < 2_500);
    }
    assert_eq!(download.block(B, &hash(0), 10, now), BlockReceipt::Wanted(0));
    assert_eq!(download.block(B, &hash(2), 10, now), BlockReceipt::Wanted(2));
    let at = (now..60_000).step_by(100).find(|now| {
        let dropped = dropped(&mut download, *now);
        matches!(dropped.first(), Some((A, Blame::Stalled { .. })))
    });
    assert!((8_000..9_000).contains(&at.unwrap()), "{at:?}");
}

#[test]
fn a_slow_peer_recovers_its_share() {
    let mut download = with(0..2, &[A]);
    assert_eq!(asked(&mut download, A, 0), [0, 1]);
    (1..30).for_each(|tenth| drop(download.tick(tenth * 100)));
    assert!(download.status(3_000).peers[0].stalled);
    assert_eq!(download.status(3_000).in_flight, 0);
    // The other block is not requested again, because it is still in flight.
    assert_eq!(download.block(A, &hash(0), 10, 3_000), BlockReceipt::Wanted(0));
    assert!(asked(&mut download, A, 3_000).is_empty());
    let status = download.status(3_000);
    assert_eq!((status.in_flight, status.peers[0].stalled), (1, false));
    assert_eq!(download.block(A, &hash(1), 10, 3_010), BlockReceipt::Wanted(1));
}

#[test]
fn the_last_peer_gets_more_time_unless_others_can_be_found() {
    let end = |replacements| {
        let mut download = with(0..2, &[A]);
        download.replacements(replacements);
        (0..).step_by(100).find(|now| !dropped(&mut download, *now).is_empty()).unwrap()
    };
    assert!((8_000..9_000).contains(&end(1)));
    assert!((256_000..257_000).contains(&end(0)));
}

#[test]
fn no_peer_is_blamed_when_all_are_silent() {
    let peers: Vec<PeerId> = (0..6).map(PeerId).collect();
    let mut download = with(0..50, &peers);
    for now in (0..50_000).step_by(100) {
        assert_eq!(dropped(&mut download, now), []);
    }
    assert_eq!(download.monitor.stall_ms(), 64_000);
    assert!(download.status(50_000).peers.iter().all(|peer| !peer.stalled));
    let count = u32::try_from(peers.len()).unwrap();
    (0..count).for_each(|n| take(&mut download, PeerId(n), n, 10, 50_000));
    assert!(download.monitor.stall_ms() < 30_000);
}

#[test]
fn bytes_count_as_progress_but_a_trickle_does_not() {
    let still_there = |bytes_a_second: u64| {
        let mut download = with(0..2, &[A]);
        download.replacements(1);
        download.tick(0);
        (0..60).all(|second| {
            download.progress(A, (second + 1) * bytes_a_second, second * 1_000);
            let dropped = dropped(&mut download, second * 1_000 + 999);
            !dropped.iter().any(|(peer, _)| *peer == A)
        })
    };
    assert!(still_there(2_000));
    assert!(!still_there(50));
}

#[test]
fn a_skipped_block_is_requested_from_another_peer() {
    let mut download = with(0..2, &[A]);
    assert_eq!(asked(&mut download, A, 0), [0, 1]);
    take(&mut download, A, 1, 10, 100);
    download.peer_added(B, full(), 100);
    download.peer_has(B, 9, 9);
    let taken = (100..10_000).step_by(100).find(|now| asked(&mut download, B, *now) == [0]);
    assert!(taken.is_some_and(|at| at < 3_000), "{taken:?}");
    (3_000..5_000).step_by(100).for_each(|now| assert!(asked(&mut download, A, now).is_empty()));
}

#[test]
fn a_reorganisation_changes_the_wanted_blocks() {
    let mut download = with(0..4, &[A, B]);
    assert_eq!(asked(&mut download, A, 0), [0, 2]);
    assert_eq!(download.block(B, &hash(3), 10, 5), BlockReceipt::Wanted(3));
    let new = |height| (height < 4).then(|| branch(u8::from(height > 1), height));
    download.chain_changed(1, &new);
    // Peers count as having the new blocks once they are reported again.
    assert_eq!(download.tick(5), []);
    assert_eq!(download.status(5).unavailable, 2);
    download.peer_has(B, 3, 3);
    let Some(DownloadAction::Request { peer: B, blocks }) = download.tick(5).pop() else {
        panic!()
    };
    assert_eq!(blocks, [(2, branch(1, 2)), (3, branch(1, 3))]);
    assert_eq!(download.block(A, &hash(2), 10, 6), BlockReceipt::Duplicate(2));
    assert!(download.consumed(&hash(3)));
    assert_eq!(download.block(B, &branch(1, 3), 10, 6), BlockReceipt::Wanted(3));
    assert!(download.consumed(&branch(1, 3)));
}

#[test]
fn a_block_of_a_branch_is_requested_only_from_peers_that_have_it() {
    let mut download = with(0..0, &[A, B]);
    let side = branch(9, 7);
    download.peer_has_hash(B, side);
    download.want_hash(7, side);
    assert_eq!(download.tick(0), []);
    assert_eq!(download.limited_by(), Limit::Peers);
    download.peer_has_hash(B, side);
    let request = DownloadAction::Request { peer: B, blocks: vec![(7, side)] };
    assert_eq!(download.tick(0), [request]);
    assert_eq!(download.block(B, &side, 10, 5), BlockReceipt::Wanted(7));
    assert!(download.consumed(&side));
}

#[test]
fn a_slow_peer_is_dropped_if_there_are_others_to_try() {
    let run = |replacements| {
        let peers: Vec<PeerId> = (0..4).map(PeerId).collect();
        let mut download = with(0..100_000, &peers);
        download.replacements(replacements);
        let mut owed = vec![std::collections::VecDeque::new(); 4];
        let mut dropped = Vec::new();
        for now in (0..60_000).step_by(100) {
            for (peer, owed) in owed.iter_mut().enumerate() {
                let due = peer != 0 || now % 4_000 == 100;
                if let Some(height) = owed.pop_front_if(|_| due) {
                    download.block(PeerId(peer as u32), &hash(height), MB, now);
                    download.consumed(&hash(height));
                }
            }
            for action in download.tick(now) {
                match action {
                    DownloadAction::Request { peer, blocks } => {
                        owed[peer.0 as usize].extend(blocks.into_iter().map(|block| block.0));
                    }
                    DownloadAction::Disconnect { peer, why } => {
                        dropped.push((peer, why));
                        owed[peer.0 as usize].clear();
                    }
                }
            }
            // Partial bytes show that it is not silent.
            download.progress(PeerId(0), 250 * (now % 4_000), now);
        }
        dropped
    };
    assert_eq!(run(0), []);
    let dropped = run(5);
    assert!(matches!(dropped[..], [(PeerId(0), Blame::Slow { .. })]), "{dropped:?}");
}

#[test]
fn no_peer_is_dropped_while_the_consumer_is_the_bottleneck() {
    let mut download =
        Download::new(DownloadOptions { bytes_max: 4 * MB, ..DownloadOptions::default() });
    download.want(range(0..100), &chain);
    download.replacements(10);
    for peer in [A, B] {
        download.peer_added(peer, full(), 0);
        download.peer_has(peer, 100, 100);
    }
    // One peer delivers everything, the other nothing, and the consumer takes none.
    for now in (0..300_000).step_by(100) {
        for action in download.tick(now) {
            match action {
                DownloadAction::Request { peer: B, .. } => {}
                DownloadAction::Request { blocks, .. } => blocks.iter().for_each(|block| {
                    let received = download.block(A, &block.1, MB, now + 10);
                    assert!(matches!(received, BlockReceipt::Wanted(_)));
                }),
                DownloadAction::Disconnect { peer, why } => panic!("{peer:?}: {why}"),
            }
        }
    }
    // The other peer lost its blocks all the same, because the consumer may need them.
    assert!(download.status(300_000).peers[1].stalled);
    assert_eq!(download.status(300_000).unconsumed, 4);
    assert!(download.consumed(&hash(0)));
    assert!(matches!(dropped(&mut download, 300_100)[..], [(B, Blame::Stalled { .. })]));
}

#[test]
fn the_clock_never_goes_back() {
    let mut download = with(0..4, &[A]);
    download.tick(u64::MAX / 2);
    download.block(A, &hash(0), 10, 5);
    download.progress(A, 3, 0);
    download.tick(1);
    assert_eq!(download.now, u64::MAX / 2);
}

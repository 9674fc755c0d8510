//! Tests [`HeaderSync`] step by step.

mod hostile;
mod simulation;
pub(crate) mod testing;

use super::*;
use apus_chain::Network;
use testing::{NOW, Node, mined, raw_headers, regtest};

const A: PeerId = PeerId(1);
const B: PeerId = PeerId(2);
const C: PeerId = PeerId(3);

/// Delivers every request to its node until no action is left. Peers without a node are silent. Returns
/// the reasons for disconnections.
fn settle(sync: &mut HeaderSync, nodes: &[(PeerId, &Node)], now_ms: u64) -> Vec<DisconnectReason> {
    let mut reasons = Vec::new();
    loop {
        let actions = sync.actions();
        if actions.is_empty() {
            return reasons;
        }
        for action in actions {
            match action {
                HeaderAction::GetHeaders { peer, locator, stop } => {
                    assert_eq!(stop, BlockHash::ZERO);
                    if let Some((_, node)) = nodes.iter().find(|(id, _)| *id == peer) {
                        sync.headers(peer, &node.answer(&locator), now_ms).unwrap();
                    }
                }
                HeaderAction::Disconnect { why, .. } => reasons.push(why),
            }
        }
    }
}

/// The peers asked now, and the first hash of each locator.
fn asked(sync: &mut HeaderSync) -> Vec<(PeerId, BlockHash)> {
    let of = |action| match action {
        HeaderAction::GetHeaders { peer, locator, .. } => (peer, locator[0]),
        HeaderAction::Disconnect { peer, why } => panic!("{peer:?}: {why}"),
    };
    sync.actions().into_iter().map(of).collect()
}

fn hash(raw: &[u8; 80]) -> BlockHash {
    Header::parse(raw).hash()
}

/// A clock that makes the chain's last header ten minutes old, or two days.
fn clock(chain: &[[u8; 80]], recent: bool) -> i64 {
    let last = Header::parse(&chain[chain.len() - 1]);
    i64::from(last.time) + if recent { 600 } else { 2 * 24 * 3600 }
}

#[test]
fn one_peer_is_asked_for_everything_and_then_the_others_for_more() {
    let params = regtest(0);
    let chain = mined(None, 4500, 1);
    let longer = [chain.clone(), mined(Some(&chain[4499]), 20, 1)].concat();
    let (a, b) = (Node::new(&params, &chain), Node::new(&params, &longer));
    let mut sync = HeaderSync::new(&params, clock(&longer, true));
    sync.peer_connected(A, 0);
    sync.peer_connected(B, 0);
    assert_eq!(asked(&mut sync), [(A, params.genesis_hash)]);

    for (end, is_last) in [(2000, false), (4000, false), (4500, true)] {
        let from = (end - 1) / 2000 * 2000;
        assert!(!sync.is_synced(1));
        let learned = sync.headers(A, &chain[from..end], 1).unwrap();
        let new_headers = end - from;
        assert_eq!(learned, HeaderUpdate { new_headers, best_changed: true, too_new: false });
        assert_eq!(sync.best_chain().len(), end + 1);
        if !is_last {
            assert_eq!(asked(&mut sync), [(A, hash(&chain[end - 1]))]);
        }
    }
    assert_eq!(asked(&mut sync), [(B, hash(&chain[4500 - 1 - LOCATOR_OVERLAP as usize]))]);
    assert!(!sync.is_synced(2), "the other peer may have more");
    sync.headers(B, &b.answer(&[hash(&chain[4493])]), 2).unwrap();
    assert!(sync.is_synced(2));
    assert_eq!(sync.tree().hash(sync.best()), &b.tip());
    assert_eq!((sync.peer_height(A), sync.peer_height(B)), (Some(4500), Some(4520)));
    assert_eq!(sync.peer_height(C), None);
    assert!(sync.take_new().iter().eq(longer));
    assert!(sync.take_new().is_empty());
    assert!(asked(&mut sync).is_empty());
    assert_eq!(a.chain.len(), 4500);
}

#[test]
fn with_a_recent_tip_all_peers_are_asked_at_once() {
    let params = regtest(0);
    let chain = mined(None, 300, 1);
    for recent in [false, true] {
        let mut sync = HeaderSync::new(&params, clock(&chain, recent));
        assert_eq!(sync.restore(chain.iter().copied()), (300, None));
        assert!(sync.take_new().is_empty(), "they are saved already");
        sync.peer_connected(A, 0);
        sync.peer_connected(B, 0);
        assert!(!sync.is_synced(0));
        let from = hash(&chain[293]);
        let expected = [(A, from), (B, from)];
        assert_eq!(asked(&mut sync), expected[..if recent { 2 } else { 1 }]);
    }
}

#[test]
fn restores_up_to_the_first_header_that_is_refused() {
    let params = regtest(0);
    let mut chain = mined(None, 20, 1);
    chain.remove(12);
    let mut sync = HeaderSync::new(&params, NOW);
    let (count, error) = sync.restore(chain);
    assert_eq!(count, 12);
    assert!(matches!(error, Some(HeaderError::TooManyOrphans { .. })), "{error:?}");
    assert_eq!(sync.best_chain().len(), 13);
}

#[test]
fn the_most_work_of_all_peers_wins_in_any_order() {
    let params = regtest(0);
    let chain = mined(None, 3000, 1);
    let fork = [chain[..2900].to_vec(), mined(Some(&chain[2899]), 130, 2)].concat();
    let far_fork = [chain[..100].to_vec(), mined(Some(&chain[99]), 5000, 3)].concat();
    let nodes: Vec<Node> =
        [&chain, &fork, &far_fork].iter().map(|c| Node::new(&params, c)).collect();
    for order in [[0, 1, 2], [2, 1, 0], [1, 2, 0]] {
        let mut sync = HeaderSync::new(&params, NOW);
        let peers = [A, B, C];
        let at: Vec<(PeerId, &Node)> = peers.into_iter().zip(order.map(|i| &nodes[i])).collect();
        for peer in peers {
            sync.peer_connected(peer, 0);
        }
        assert_eq!(settle(&mut sync, &at, 5), []);
        assert!(sync.is_synced(5), "{order:?}");
        assert_eq!(*sync.tree().hash(sync.best()), nodes[2].tip());
        let peer_of = |node: usize| peers[order.iter().position(|&i| i == node).unwrap()];
        assert_eq!(sync.peer_height(peer_of(0)), Some(100));
        assert_eq!(sync.peer_height(peer_of(2)), Some(5100));
        assert_eq!(sync.candidate_height(), None);
    }
}

/// Nodes at our tip, or any number of blocks behind it, or on a branch that forked there. All answer without
/// headers if their last block is one that we named.
#[test]
fn the_common_height_is_found_at_any_distance() {
    let params = regtest(0);
    let chain = mined(None, 3000, 1);
    let behind = (0..40).chain([63, 64, 100, 500, 999, 1000, 1500, 2000, 2900, 2999]);
    for behind in behind {
        let common = 3000 - behind;
        let mut branch = chain[..common].to_vec();
        branch.extend(mined(branch.last(), 1, 2));
        for (node, is_branch) in [(&chain[..common], false), (&branch[..], true)] {
            let node = Node::new(&params, node);
            let mut sync = HeaderSync::new(&params, clock(&chain, true));
            sync.restore(chain.iter().copied());
            sync.peer_connected(A, 0);
            assert_eq!(settle(&mut sync, &[(A, &node)], 0), []);
            assert!(sync.is_synced(0));
            let found = sync.peer_height(A);
            // One block more than ours makes a better chain.
            let expected = common + usize::from(is_branch && behind == 0);
            assert_eq!(found, Some(expected as Height), "{behind} behind, branch: {is_branch}");
        }
    }
}

#[test]
fn a_peer_without_headers_is_asked_a_few_times_and_no_more() {
    let params = regtest(0);
    let chain = mined(None, 3000, 1);
    let mut sync = HeaderSync::new(&params, clock(&chain, true));
    sync.restore(chain.iter().copied());
    sync.peer_connected(A, 0);
    let mut requests = 0;
    while let [(A, _)] = asked(&mut sync)[..] {
        sync.headers(A, &[], 0).unwrap();
        requests += 1;
    }
    assert_eq!((requests, sync.peer_height(A)), (10, Some(0)));
    assert!(sync.is_synced(0));
}

/// A chain of fewer headers has more work if they are harder.
#[test]
fn a_peer_without_headers_is_asked_lower_where_our_chain_became_shorter() {
    let params = regtest(0);
    let chain = mined(None, 50, 1);
    let mut sync = HeaderSync::new(&params, clock(&chain, true));
    sync.restore(chain.iter().copied());
    sync.peer_connected(A, 0);
    assert_eq!(asked(&mut sync), [(A, hash(&chain[43]))]);
    sync.peers.get_mut(&A).unwrap().asked_from = 1000;
    sync.headers(A, &[], 0).unwrap();
    assert_eq!(asked(&mut sync), [(A, params.genesis_hash)]);
}

#[test]
fn unknown_announced_blocks_are_requested() {
    let params = regtest(0);
    let chain = mined(None, 50, 1);
    let next = mined(Some(&chain[49]), 9, 1);
    let mut sync = HeaderSync::new(&params, clock(&chain, true) + 6000);
    sync.restore(chain.iter().copied());
    sync.peer_connected(A, 0);
    let node = Node::new(&params, &chain);
    settle(&mut sync, &[(A, &node)], 0);
    assert_eq!(sync.peer_height(A), Some(50));

    // Announce by hash: a known block, then an unknown one.
    sync.announced(A, &hash(&chain[30]), 1);
    assert!(asked(&mut sync).is_empty());
    sync.announced(A, &hash(&next[0]), 1);
    assert_eq!(asked(&mut sync), [(A, hash(&chain[43]))]);
    sync.headers(A, &[&chain[44..], &next[..1]].concat(), 2).unwrap();
    assert_eq!(sync.peer_height(A), Some(51));

    // Announce by header: one that connects, then one that does not.
    assert_eq!(sync.headers(A, &next[1..2], 3).unwrap().new_headers, 1);
    assert_eq!(sync.headers(A, &next[7..8], 4).unwrap(), HeaderUpdate::default());
    assert_eq!(asked(&mut sync), [(A, hash(&chain[45]))]);
    assert_eq!(sync.headers(A, &next[2..8], 5).unwrap().new_headers, 6);
    assert!(sync.is_synced(5));
    assert_eq!(sync.best_chain().len(), 59);

    sync.refresh(6);
    assert!(!sync.is_synced(6));
    settle(&mut sync, &[(A, &Node::new(&params, &[chain, next].concat()))], 7);
    assert!(sync.is_synced(7));
    assert_eq!(sync.best_chain().len(), 60);
}

#[test]
fn a_chain_on_trial_enters_the_tree_once_its_work_is_shown() {
    // The first 4,040 headers of the main chain all have the easiest target.
    let raw = raw_headers("main_0_4040.bin");
    let of = |height: u128| 0x1_0001_0001 * (height + 1);
    let params = Params { minimum_chain_work: of(4001), ..Params::of(Network::Main).clone() };
    let mut sync = HeaderSync::new(&params, NOW);
    sync.peer_connected(A, 0);
    assert_eq!(sync.headers(A, &raw[1..2001], 0).unwrap(), HeaderUpdate::default());
    assert_eq!((sync.candidate_height(), sync.tree().len()), (Some(2000), 1));
    assert_eq!(sync.headers(A, &raw[2001..4001], 0).unwrap(), HeaderUpdate::default());
    assert_eq!((sync.candidate_height(), sync.tree().len()), (Some(4000), 1));
    assert_eq!(sync.headers(A, &raw[4001..], 0).unwrap().new_headers, 4040);
    assert_eq!((sync.candidate_height(), sync.tree().len()), (None, 4041));
    assert!(sync.take_new().iter().eq(raw[1..].iter().copied()));
    assert!(sync.is_synced(0));
    // Near the tip no chain is on trial.
    assert_eq!(sync.work_required(), of(4001));
    let lower = Params { minimum_chain_work: of(100), ..params };
    let mut sync = HeaderSync::new(&lower, NOW);
    sync.restore(raw[1..].iter().copied());
    assert_eq!(sync.work_required(), of(4040 - 144));
}

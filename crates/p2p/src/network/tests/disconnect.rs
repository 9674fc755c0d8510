//! Which peers a network disconnects, and how it stops itself.

use super::*;

/// Makes the answering thread panic when a block is requested.
struct Panics;

impl BlockProvider for Panics {
    fn block(&self, _: &BlockHash) -> Option<Vec<u8>> {
        panic!("as the test wants it");
    }

    fn has(&self, _: &BlockHash) -> bool {
        true
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

#[test]
fn when_a_thread_panics_no_other_waits_forever() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let blocks: Option<Arc<dyn BlockProvider>> = Some(Arc::new(Panics));
    let network = PeerNetwork::start(NetworkOptions { listen, blocks, ..options(&[]) }).unwrap();
    network.serve(Arc::new(network.best_chain()));
    assert!(network.is_whole().is_ok());
    let mut connection = connected(&network);
    let wanted = Inventory::witness_block(BlockHash([7; 32]));
    // Send more requests than may wait for answers, so that the reading thread waits for the writing thread.
    for _ in 0..50 {
        if connection.writer.write(&Message::GetData(vec![wanted])).is_err() {
            break;
        }
    }
    until("the peer to be gone", || network.status().peers.is_empty());
    until("the end", || network.is_whole().is_err());
    let error = network.has_headers().unwrap_err();
    let NetworkError::Panicked { thread } = &error else { panic!("{error}") };
    assert!(thread.starts_with("peer-") && thread.ends_with("-out"), "{error}");
    let mut wanted = network.want(HeightRange::new(1, 2));
    let next = wanted.next(PATIENCE);
    assert!(matches!(next, NextBlock::Failed(NetworkError::Panicked { .. })), "{next:?}");
}

#[test]
fn a_peer_with_an_invalid_block_in_its_chain_is_banned_for_a_day() {
    let chain = chain(20);
    let peer = FakePeer::start(&chain, &[Behaviour::Honest]);
    let network = found(&peer);
    network.invalid(&BlockHash([7; 32]));
    assert_eq!(network.status().peers.len(), 1, "no peer has that block");
    network.invalid(&hash_of(&chain[12]));
    // The ban takes effect at once, for a caller that saves the book.
    let ready = |after: i64| network.shared.lock().book.ready_count(unix_time() + after);
    assert_eq!((ready(12 * 60 * 60), ready(25 * 60 * 60)), (0, 1));
    until("the end", || network.status().peers.is_empty());
    assert_eq!(ready(12 * 60 * 60), 0);
    let why = network.shared.lock().last_lost.clone().unwrap();
    assert!(why.contains(&format!("the invalid block {}", chain[12].block_hash())), "{why}");
}

/// Otherwise such peers would keep all places of a sync that follows the tip.
#[test]
fn a_found_peer_that_stays_behind_our_chain_makes_room() {
    let longer = chain(20);
    let ours = FakePeer::start(&longer, &[Behaviour::Honest]);
    let ours = Arc::new(settled(&[&ours]).best_chain());
    for (blocks, leaves) in [(15, true), (20, false)] {
        let peer = FakePeer::start(&longer[..=blocks], &[Behaviour::Honest]);
        let network = found(&peer);
        network.serve(Arc::clone(&ours));
        let now = network.shared.now();
        let is_gone = |later: u64| {
            let mut state = network.shared.lock();
            state.drop_peers_behind(now + later);
            state.peers.is_empty() || state.peers.values().any(|peer| peer.is_leaving())
        };
        let minutes = [0, 19, 21].map(|minutes| is_gone(minutes * 60_000));
        assert_eq!(minutes, [false, false, leaves], "{blocks} blocks");
    }
    // The user wants this one.
    let peer = FakePeer::start(&longer[..=15], &[Behaviour::Honest]);
    let named = settled(&[&peer]);
    named.serve(ours);
    let mut state = named.shared.lock();
    [0, 60_000_000].into_iter().for_each(|now| state.drop_peers_behind(now));
    assert!(state.peers.values().all(|peer| !peer.is_leaving()));
}

#[test]
fn a_peer_that_announces_headers_on_an_invalid_block_is_disconnected_and_others_are_not() {
    let base = chain(20);
    let branch = |seed: u64, fork: usize, blocks: usize| {
        let mut builder = ChainBuilder::new(seed);
        base[1..=fork].iter().for_each(|block| builder.add(block.clone()));
        builder.empty_blocks(blocks);
        builder.blocks()
    };
    let (fork_below, on_it) = (branch(4, 15, 4), branch(5, 16, 12));
    let peers =
        [&fork_below, &base, &on_it].map(|chain| FakePeer::start(chain, &[Behaviour::Honest]));
    let network = settled(&peers.iter().collect::<Vec<_>>());
    let connections = |of: usize| peers[of].seen.connections.load(Ordering::Relaxed);
    let before = [0, 1, 2].map(connections);
    network.invalid(&hash_of(&base[16]));
    // Both peers reconnect and announce the invalid chain again.
    until("both to be disconnected", || (1..3).all(|of| connections(of) >= before[of] + 3));
    assert_eq!(connections(0), before[0]);
    assert!(!network.shared.lock().peers.values().any(|peer| {
        let address = peer.address.clone();
        peer.is_leaving() && address == Some(NodeAddress::from(peers[0].address()))
    }));
}

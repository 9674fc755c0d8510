//! Which peers a network parts with, and how it ends itself.

use super::*;

/// A request for a block makes the thread that answers panic.
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
fn where_a_thread_panics_no_other_waits_for_good() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let blocks: Option<Arc<dyn BlockProvider>> = Some(Arc::new(Panics));
    let network = PeerNetwork::start(NetworkOptions { listen, blocks, ..options(&[]) }).unwrap();
    network.serve(Arc::new(network.best_chain()));
    assert!(network.is_whole().is_ok());
    let mut connection = connected(&network);
    let wanted = Inventory::witness_block(BlockHash([7; 32]));
    // More than may wait for their answers: the thread that reads waits for the one that writes.
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
fn a_peer_with_an_invalid_block_in_its_chain_is_left_alone_for_a_day() {
    let chain = chain(20);
    let peer = FakePeer::start(&chain, &[Behaviour::Honest]);
    let network = found(&peer);
    network.invalid(&BlockHash([7; 32]));
    assert_eq!(network.status().peers.len(), 1, "no peer has that");
    network.invalid(&hash_of(&chain[12]));
    // At once, for the caller that writes the book down.
    let ready = |after: i64| network.shared.lock().book.ready_count(unix_time() + after);
    assert_eq!((ready(12 * 60 * 60), ready(25 * 60 * 60)), (0, 1));
    until("the end", || network.status().peers.is_empty());
    assert_eq!(ready(12 * 60 * 60), 0);
    let why = network.shared.lock().last_lost.clone().unwrap();
    assert!(why.contains(&format!("block {}, which is invalid", chain[12].block_hash())), "{why}");
}

#[test]
fn a_peer_that_tells_of_headers_on_an_invalid_block_is_parted_with_and_others_are_not() {
    let base = chain(20);
    let branch = |seed: u64, fork: usize, blocks: usize| {
        let mut builder = ChainBuilder::new(seed);
        base[1..=fork].iter().for_each(|block| builder.add(block.clone()));
        builder.empty_blocks(blocks);
        builder.blocks()
    };
    let (beside, on_it) = (branch(4, 15, 4), branch(5, 16, 12));
    let peers = [&beside, &base, &on_it].map(|chain| FakePeer::start(chain, &[Behaviour::Honest]));
    let network = settled(&peers.iter().collect::<Vec<_>>());
    let connections = |of: usize| peers[of].seen.connections.load(Ordering::Relaxed);
    let before = [0, 1, 2].map(connections);
    network.invalid(&hash_of(&base[16]));
    // Each time they tell it again.
    until("both to be parted with", || (1..3).all(|of| connections(of) >= before[of] + 3));
    assert_eq!(connections(0), before[0]);
    assert!(!network.shared.lock().peers.values().any(|peer| {
        let address = peer.address.clone();
        peer.is_leaving() && address == Some(NodeAddress::from(peers[0].address()))
    }));
}

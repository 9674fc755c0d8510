//! Networks with peers on real sockets that behave as instructed.

use super::*;
use crate::message::{Inventory, Message};
use crate::transport::{Connection, Dial, connect};
use apus_chain::HeightRange;
use apus_testkit::chain::ChainBuilder;
use apus_testkit::peer::{Behaviour, FakePeer};
use bitcoin::Block;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;

mod disconnect;

/// Long enough for a busy machine; normally events happen much sooner.
const PATIENCE: Duration = Duration::from_secs(120);

fn chain(blocks: usize) -> Vec<Block> {
    let mut builder = ChainBuilder::new(3);
    builder.empty_blocks(blocks);
    builder.blocks()
}

fn options(peers: &[&FakePeer]) -> NetworkOptions {
    NetworkOptions {
        params: Params::of(apus_chain::Network::Regtest).clone(),
        connect: peers.iter().map(|peer| NodeAddress::from(peer.address())).collect(),
        addresses: Vec::new(),
        proxy: None,
        listen: None,
        outbound: 0,
        transport: TransportChoice::V1,
        user_agent: "/apus-test:1/".to_owned(),
        bytes_max: 1 << 20,
        patience: PATIENCE,
        headers: HeaderList::default(),
        blocks: None,
    }
}

/// A network with all headers of its peers, all of them connected.
fn settled(peers: &[&FakePeer]) -> PeerNetwork {
    let network = PeerNetwork::start(options(peers)).unwrap();
    until("headers", || network.has_headers().unwrap());
    until("all peers", || network.status().peers.len() == peers.len());
    network
}

fn until(what: &str, mut holds: impl FnMut() -> bool) {
    let start = Instant::now();
    while !holds() {
        assert!(start.elapsed() < PATIENCE, "waited in vain for {what}");
        std::thread::sleep(Duration::from_millis(10));
    }
}

fn hash_of(block: &Block) -> BlockHash {
    BlockHash(block.block_hash().to_byte_array())
}

fn asked(peer: &FakePeer) -> u64 {
    peer.seen.asked.load(Ordering::Relaxed)
}

#[test]
fn a_request_by_hash_asks_each_peer_once_until_one_has_the_block() {
    let chain = chain(20);
    let attempt = || {
        let without = [Behaviour::NotFound, Behaviour::SilentAfter(0), Behaviour::NotFound]
            .map(|behaviour| FakePeer::start(&chain, &[behaviour]));
        let network = settled(&without.iter().collect::<Vec<_>>());
        let mut wanted = network.want_block(hash_of(&chain[7])).unwrap();
        until("all to be asked", || without.iter().all(|peer| asked(peer) > 0));
        until("all to answer", || network.status().peers.iter().all(|peer| peer.in_flight == 0));
        for _ in 0..20 {
            assert!(matches!(wanted.next(Duration::from_millis(100)), NextBlock::Nothing));
        }
        let peers = network.status().peers;
        drop(wanted);
        assert!(network.shared.lock().hash_requests.is_empty());
        assert!(network.want_block(BlockHash([7; 32])).is_none(), "an unknown header");
        let none_is_blamed = peers.len() == 3 && !peers.iter().any(|peer| peer.stalled);
        none_is_blamed && without.iter().all(|peer| asked(peer) == 1)
    };
    // On a machine that stalls for seconds, peers look silent and are asked again.
    assert!((0..5).any(|_| attempt()));
}

#[test]
fn a_request_by_hash_stays_open_until_a_copy_is_good() {
    let chain = chain(20);
    let bad = FakePeer::start(&chain, &[Behaviour::MutatedTransactions]);
    let network = settled(&[&bad]);
    let mut wanted = network.want_block(hash_of(&chain[20])).unwrap();
    let mut copies = 0;
    until("copies", || match wanted.next(Duration::from_millis(100)) {
        NextBlock::Block(20, raw) => {
            assert_ne!(*raw, serialize(&chain[20])[..]);
            wanted.damaged();
            copies += 1;
            copies == 3
        }
        _ => false,
    });
    // The peer is disconnected each time, and asked again when it reconnects.
    assert!(bad.seen.connections.load(Ordering::Relaxed) >= 3);
    drop(wanted);

    let good = FakePeer::start(&chain, &[Behaviour::Honest]);
    let network = settled(&[&good]);
    let mut first = network.want_block(hash_of(&chain[5])).unwrap();
    let mut second = network.want_block(hash_of(&chain[5])).unwrap();
    let come = |wanted: &mut WantBlock<'_>| {
        until("the block", || match wanted.next(Duration::from_millis(100)) {
            NextBlock::Block(5, raw) => *raw == serialize(&chain[5])[..],
            _ => false,
        });
        wanted.accepted();
        assert!(matches!(wanted.next(PATIENCE), NextBlock::Done));
    };
    come(&mut first);
    drop(first);
    come(&mut second);
    drop(second);
    assert!(asked(&good) >= 2, "each holder got its own copy");
}

#[test]
fn a_block_wanted_twice_reaches_both_callers() {
    let chain = chain(20);
    let good = FakePeer::start(&chain, &[Behaviour::Honest]);
    let network = settled(&[&good]);
    network.set_chain(Arc::new(network.best_chain()));
    let mut request = network.want_block(hash_of(&chain[9])).unwrap();
    let mut range = network.want(HeightRange::new(8, 11));
    let (mut heights, mut requested) = (Vec::new(), 0);
    until("both", || {
        match range.next(Duration::from_millis(100)) {
            NextBlock::Block(height, raw) => {
                assert_eq!(*raw, serialize(&chain[height as usize])[..]);
                heights.push(height);
                range.accepted();
            }
            NextBlock::Done if requested > 0 => return true,
            _ => {}
        }
        if let NextBlock::Block(height, _) = request.next(Duration::ZERO) {
            assert_eq!(height, 9);
            request.accepted();
            requested += 1;
        }
        false
    });
    assert_eq!(requested, 1);
    heights.sort_unstable();
    assert_eq!(heights, [8, 9, 10]);
    drop((request, range));
    assert_eq!(network.shared.lock().download.status(0).unconsumed, 0);
}

/// Options of a network that finds its peers by itself.
fn with_book(peers: &[&FakePeer]) -> NetworkOptions {
    let time = unix_time();
    let line = |peer: &&FakePeer| format!("127.0.0.1 {} 9 {time} 0 0\n", peer.address().port());
    let lines: String = peers.iter().map(line).collect();
    let addresses = format!("apus-addresses 1 regtest\n{lines}").into_bytes();
    NetworkOptions { connect: Vec::new(), addresses, outbound: peers.len(), ..options(&[]) }
}

/// A network that found a peer by itself and is set to download its chain.
fn found(peer: &FakePeer) -> PeerNetwork {
    let network = PeerNetwork::start(with_book(&[peer])).unwrap();
    until("headers", || network.has_headers().unwrap());
    network.set_chain(Arc::new(network.best_chain()));
    network
}

/// Requests some blocks; one of them has been returned and not yet reported on.
fn first_block(network: &PeerNetwork) -> WantRange<'_> {
    let mut range = network.want(HeightRange::new(1, 5));
    until("a block", || matches!(range.next(Duration::from_millis(100)), NextBlock::Block(..)));
    range
}

#[test]
fn a_peer_that_sent_a_damaged_block_is_banned_for_a_day() {
    let chain = chain(20);
    let bad = FakePeer::start(&chain, &[Behaviour::MutatedTransactions]);
    let network = found(&bad);
    let mut range = first_block(&network);
    // The first handshake may have taken too long.
    let connections = || bad.seen.connections.load(Ordering::Relaxed);
    let before = connections();
    range.damaged();
    until("the end", || network.status().peers.is_empty());
    let ready = |after: i64| network.shared.lock().book.ready_count(unix_time() + after);
    until("the book to know", || ready(25 * 60 * 60) == 1);
    assert_eq!(ready(12 * 60 * 60), 0);
    assert_eq!(connections(), before);
}

/// A peer that disconnects before the block is checked is still responsible for it.
#[test]
fn a_disconnected_peer_is_blamed_too() {
    let chain = chain(20);
    let bad = FakePeer::start(&chain, &[Behaviour::MutatedTransactions]);
    let network = found(&bad);
    let mut range = first_block(&network);
    drop(bad);
    until("the end", || network.status().peers.is_empty());
    // Peers that were never reached do not push it out.
    for port in 1..100 {
        let mut state = network.shared.lock();
        let unreachable = NodeAddress::from(SocketAddr::from(([127, 0, 0, 2], port)));
        let id = state.new_peer(Some(unreachable), 0);
        state.gone(id, &crate::transport::PeerError::Closed, network.shared.now());
    }
    let ready = |after: i64| network.shared.lock().book.ready_count(unix_time() + after);
    assert_eq!(ready(12 * 60 * 60), 1);
    range.damaged();
    assert_eq!((ready(12 * 60 * 60), ready(25 * 60 * 60)), (0, 1));
}

#[test]
fn an_unwanted_block_does_not_affect_the_others() {
    let chain = chain(20);
    let peer = FakePeer::start(&chain, &[Behaviour::Honest]);
    let network = settled(&[&peer]);
    network.set_chain(Arc::new(network.best_chain()));
    let mut range = network.want(HeightRange::new(1, 3));
    let useful_at = network.shared.lock().useful_at;
    until("time to pass", || network.shared.now() > useful_at);
    let block = || matches!(range.next(Duration::from_millis(100)), NextBlock::Block(..));
    until("a block", block);
    range.returned();
    {
        let state = network.shared.lock();
        assert_eq!(state.useful_at, useful_at);
        assert!(!state.peers.values().any(|peer| peer.is_leaving()));
    }
    until("the other block", || {
        matches!(range.next(Duration::from_millis(100)), NextBlock::Block(..))
    });
    range.accepted();
    assert_eq!(range.left, 1, "it was not taken");
    assert_eq!(network.shared.lock().download.status(0).unconsumed, 0);
}

#[test]
fn a_block_returned_unchecked_is_neither_good_nor_bad() {
    let chain = chain(20);
    let peer = FakePeer::start(&chain, &[Behaviour::Honest]);
    let network = settled(&[&peer]);
    network.set_chain(Arc::new(network.best_chain()));
    let mut range = network.want(HeightRange::new(1, 2));
    let useful_at = network.shared.lock().useful_at;
    until("a block", || matches!(range.next(Duration::from_millis(100)), NextBlock::Block(..)));
    // Let the clock advance.
    until("time to pass", || network.shared.now() > useful_at);
    drop(range);
    let state = network.shared.lock();
    assert_eq!(state.useful_at, useful_at);
    assert_eq!((state.download.status(0).unconsumed, state.download.status(0).awaited), (0, 0));
    assert!(!state.peers.values().any(|peer| peer.is_leaving()));
}

#[test]
fn a_peer_that_does_not_answer_a_ping_makes_room() {
    let chain = chain(20);
    for (behaviour, stays) in [(Behaviour::NoPong, false), (Behaviour::Honest, true)] {
        let peer = FakePeer::start(&chain, &[behaviour]);
        let network = settled(&[&peer]);
        let round_trip = || network.shared.lock().download.status(0).peers[0].round_trip_ms;
        if stays {
            until("a pong", || round_trip() != 200);
        }
        // Pretend that this much time has passed; all other events happened before that.
        let now = network.shared.now();
        for later in [61_000, 122_000, 183_000] {
            network.shared.lock().look_after_peers(now + later);
            if stays {
                let awaits = || network.shared.lock().peers.values().any(|p| p.liveness.awaits());
                until("the pong", || !awaits());
            }
        }
        let is_leaving = || network.shared.lock().peers.values().any(|peer| peer.is_leaving());
        let disconnected = || is_leaving() || peer.seen.connections.load(Ordering::Relaxed) > 1;
        if stays {
            assert!(!disconnected());
        } else {
            until("the end", disconnected);
        }
    }
}

fn dial(nonce: u64) -> Dial {
    Dial { transport: TransportChoice::V1, ..Dial::new(apus_chain::Network::Regtest, nonce) }
}

/// Blocks that are withheld until the test releases them.
#[derive(Default)]
struct HeldBack {
    asked: AtomicBool,
    given: AtomicBool,
}

impl BlockProvider for HeldBack {
    fn block(&self, _: &BlockHash) -> Option<Vec<u8>> {
        self.asked.store(true, Ordering::Relaxed);
        until("the word", || self.given.load(Ordering::Relaxed));
        Some(vec![0; 1000])
    }

    fn has(&self, _: &BlockHash) -> bool {
        true
    }

    fn keeps_all(&self) -> bool {
        true
    }
}

/// A connection to a listening network.
fn connected(network: &PeerNetwork) -> Connection {
    let address = NodeAddress::from(network.listening().unwrap());
    let mut connection = None;
    until("a connection", || {
        connection = connect(&address, &dial(9)).ok();
        connection.is_some()
    });
    connection.unwrap()
}

#[test]
fn a_peer_that_requests_much_and_leaves_frees_its_slot() {
    let blocks = Arc::new(HeldBack::default());
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let of_network: Arc<dyn BlockProvider> = Arc::clone(&blocks) as _;
    let network =
        PeerNetwork::start(NetworkOptions { listen, blocks: Some(of_network), ..options(&[]) });
    let network = network.unwrap();
    network.serve(Arc::new(network.best_chain()));
    let mut connection = connected(&network);
    let wanted = Inventory::witness_block(BlockHash([7; 32]));
    for _ in 0..50 {
        connection.writer.write(&Message::GetData(vec![wanted])).unwrap();
    }
    until("a request", || blocks.asked.load(Ordering::Relaxed));
    drop(connection);
    blocks.given.store(true, Ordering::Relaxed);
    until("its slot to be free", || network.status().peers.is_empty());
}

#[test]
fn an_idle_inbound_peer_makes_room_for_others() {
    let listen = Some(SocketAddr::from(([127, 0, 0, 1], 0)));
    let network = PeerNetwork::start(NetworkOptions { listen, ..options(&[]) }).unwrap();
    let address = NodeAddress::from(network.listening().unwrap());
    assert!(connect(&address, &dial(9)).is_err(), "nothing is served yet");
    network.serve(Arc::new(network.best_chain()));
    let _connections = [1, 2, 3].map(|nonce| connect(&address, &dial(nonce)).unwrap());
    until("three", || network.status().peers.len() == 3);
    let mut state = network.shared.lock();
    let (now, mut ids) = (network.shared.now(), state.peers.keys().copied().collect::<Vec<_>>());
    ids.sort_unstable();
    assert_eq!(state.new_inbound(3, now + 1_000), None, "all connected just now");
    let later = now + 70_000;
    state.was_asked(ids[0], later - 30_000);
    state.was_asked(ids[1], later - 65_000);
    assert!(state.new_inbound(3, later).is_some());
    let leaving = |state: &NetworkState| {
        ids.iter().map(|id| state.peers[id].is_leaving()).collect::<Vec<_>>()
    };
    assert_eq!(leaving(&state), [false, false, true]);
    assert!(state.new_inbound(3, later).is_some());
    assert_eq!(leaving(&state), [false, true, true]);
    assert_eq!(state.new_inbound(3, later), None, "one asked for blocks, two are new");
}

#[test]
fn without_known_addresses_the_error_says_what_to_do() {
    let patience = Duration::from_secs(1);
    let network = PeerNetwork::start(NetworkOptions { patience, ..with_book(&[]) }).unwrap();
    let mut error = None;
    until("the error", || {
        error = network.has_headers().err();
        error.is_some()
    });
    let error = error.unwrap();
    assert!(matches!(error, NetworkError::NoAddresses { seconds: 1, .. }), "{error}");
    assert!(error.to_string().contains("--connect"), "{error}");
    assert!(error.to_string().contains("the DNS seeds of regtest"), "{error}");
}

#[test]
fn addresses_are_saved_for_the_next_start() {
    let chain = chain(20);
    let peer = FakePeer::start(&chain, &[Behaviour::Honest]);
    let network = PeerNetwork::start(with_book(&[&peer])).unwrap();
    until("the peer", || network.status().peers.len() == 1);
    let text = String::from_utf8(network.addresses().unwrap()).unwrap();
    let (_, line) = text.trim_end().split_once('\n').unwrap();
    let words: Vec<&str> = line.split(' ').collect();
    assert_eq!(words[..3], ["127.0.0.1", &peer.address().port().to_string(), "9"]);
    assert_ne!(words[4], "0", "it answered: {text}");
    assert_eq!(words[5], "0");
    assert!(settled(&[&peer]).addresses().is_none(), "addresses that the user named are not saved");
}

/// Branches of one chain, each with a peer, and a block that is unavailable.
#[test]
fn the_best_chain_without_a_block_belongs_to_a_peer() {
    let base = chain(20);
    let branch = |seed: u64, fork: usize, blocks: usize| {
        let mut builder = ChainBuilder::new(seed);
        base[1..=fork].iter().for_each(|block| builder.add(block.clone()));
        builder.empty_blocks(blocks);
        builder.blocks()
    };
    let chains = [branch(4, 20, 9), branch(5, 15, 12), branch(6, 10, 12), base[..=12].to_vec()];
    let peers: Vec<FakePeer> =
        chains.iter().map(|chain| FakePeer::start(chain, &[Behaviour::Honest])).collect();
    let network = settled(&peers.iter().collect::<Vec<_>>());
    let caught_up = |network: &PeerNetwork| {
        let state = network.shared.lock();
        state.peers.keys().all(|id| state.headers.is_caught_up(*id))
    };
    until("headers of all", || caught_up(&network) && network.status().peers.len() == peers.len());
    let best = |without: &[&Block]| {
        let without: Vec<BlockHash> = without.iter().map(|block| hash_of(block)).collect();
        network.best_without(&without).map(|best| best.hash)
    };
    let tip = |of: usize| chains[of].last().map(hash_of);
    assert_eq!(best(&[]), tip(0));
    assert_eq!(best(&[&chains[1][20]]), tip(0), "it is on another branch");
    assert_eq!(best(&[&chains[0][29]]), tip(1));
    assert_eq!(best(&[&chains[0][16]]), tip(1), "the first block that only this chain has");
    assert_eq!(best(&[&base[15]]), tip(2), "below a branch");
    assert_eq!(best(&[&chains[0][25], &chains[1][16]]), tip(2));
    assert_eq!(best(&[&base[11]]), tip(2));
    assert_eq!(best(&[&base[13], &chains[2][22]]), tip(3));
    assert_eq!(best(&[&base[10]]), None, "all have it");
    assert_eq!(best(&[&base[11], &chains[2][11]]), None);
}

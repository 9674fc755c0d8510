//! The main chain's history in miniature: the same on every machine, accepted, and with the expected sets.

use crate::Chain;
use crate::apus::display;
use crate::node::Reader;
use apus_bench::maker::serve::PeerServer;
use apus_bench::maker::{ChainOutput, MakeOptions};
use apus_bench::manifest::ExpectedSet;
use apus_chain::{BlockHash, HEADER_SIZE, Network, Params};
use apus_p2p::addresses::NodeAddress;
use apus_p2p::headers::HeaderList;
use apus_p2p::network::NetworkOptions;
use apus_p2p::transport::TransportChoice;
use apus_storage::DirStorage;
use apus_sync::peers::Peers;
use apus_sync::{Outcome, Source};
use apus_testkit::bitcoind::Bitcoind;
use bitcoin::consensus::serialize;
use std::fs;
use std::time::Duration;

/// All eras in 935 blocks.
fn miniature(seed: u64) -> MakeOptions {
    MakeOptions::history("blocks=1/1000,bytes=1/50,coins=1/10".parse().unwrap(), seed)
}

fn assert_is(found: &Outcome, expected: &ExpectedSet) {
    assert_eq!(found.set.totals.coins, expected.coins, "at {}", expected.height);
    assert_eq!(found.set.totals.amount, u128::from(expected.total_amount_sat));
    assert_eq!(display(&found.set.muhash().unwrap()), expected.muhash);
}

#[test]
fn apus_and_a_node_find_the_sets_that_the_maker_expects() {
    let options = MakeOptions { set_heights: vec![500, 800, 300, 500], ..miniature(1) };
    let chain = Chain::make(&options);
    let manifest = &chain.manifest;
    let heights: Vec<u32> = manifest.sets.iter().map(|set| set.height).collect();
    assert_eq!(heights, [300, 500, 800, 935 + 2_100]);
    let last = manifest.sets.last().unwrap();
    assert_eq!((last.coins, &last.block_hash), (manifest.coins, &manifest.tip_hash));
    assert_is(&chain.synced(), last);
    let reader = Reader::start(&chain, &manifest.assumevalid_hash);
    reader.expect_all_of(&chain);
    let info = reader.node.txoutset_info();
    assert_eq!((info.txouts, info.muhash), (last.coins, last.muhash.clone()));
}

#[test]
fn a_signed_history_is_valid_with_all_scripts() {
    let scale = "blocks=1/5000,bytes=1/50,coins=1/50".parse().unwrap();
    let options =
        MakeOptions { signed: true, threads: 2, tail_blocks: 3, ..MakeOptions::history(scale, 2) };
    let chain = Chain::make(&options);
    let reader = Reader::start(&chain, "0");
    reader.expect_all_of(&chain);
    assert_eq!(reader.node.txoutset_info().muhash, chain.manifest.sets[0].muhash);
}

#[test]
fn a_history_has_all_coins_of_its_scale_and_about_its_bytes() {
    let chain = Chain::make(&miniature(3));
    let manifest = &chain.manifest;
    assert_eq!(manifest.scale.as_deref(), Some("blocks=1/1000,bytes=1/50,coins=1/10"));
    // The blocks after the history have a coin each.
    let coins = manifest.coins - 2_100;
    assert!(coins.abs_diff(16_600) < 40, "{coins}");
    let bytes = manifest.bytes as f64 / 14_500_000.0;
    assert!((0.95..1.15).contains(&bytes), "{bytes}");
}

#[test]
fn headers_are_those_of_the_blocks_whatever_makes_them() {
    let files = Chain::make(&miniature(4));
    let headers =
        Chain::make(&MakeOptions { output: ChainOutput::Headers, threads: 3, ..miniature(4) });
    assert_eq!(files.manifest, headers.manifest);
    let expected: Vec<u8> =
        files.blocks().iter().flat_map(|block| serialize(&block.header)).collect();
    assert!(fs::read(headers.path().join("headers.dat")).unwrap() == expected);
    assert_eq!(expected.len(), (935 + 2_100 + 1) * HEADER_SIZE);
    let hints = |chain: &Chain| fs::read(chain.path().join("chain.hints")).unwrap();
    assert!(hints(&files) == hints(&headers));
    let other = Chain::make(&miniature(5));
    assert_ne!(other.manifest.tip_hash, files.manifest.tip_hash);
}

/// Syncs from a peer that makes the blocks, without witnesses and with them. A large window has all blocks; if
/// a small one no longer has a block, the chain is made again.
#[test]
fn a_peer_serves_the_blocks_that_it_makes() {
    let options = MakeOptions { output: ChainOutput::Headers, ..miniature(6) };
    let chain = Chain::make(&options);
    let last_busy = chain.manifest.assume_valid().unwrap();
    let listen = "127.0.0.1:0".parse().unwrap();
    for (window, starts) in [(64 << 20, 1..2), (1 << 20, 2..100)] {
        let server = PeerServer::start(chain.path(), &options, listen, window).unwrap();
        for leave_witnesses in [Some(last_busy), None] {
            let found = synced(&chain, &server, leave_witnesses);
            assert_is(&found, chain.manifest.sets.last().unwrap());
        }
        let (height, started) = server.progress();
        assert!(height == 935 + 2_100 && starts.contains(&started), "{height}, {started}");
    }
}

fn synced(chain: &Chain, server: &PeerServer, leave_witnesses: Option<BlockHash>) -> Outcome {
    let work = tempfile::tempdir().unwrap();
    let storage = DirStorage::new(work.path());
    let network = NetworkOptions {
        params: Params::of(Network::Regtest).clone(),
        connect: vec![NodeAddress::from(server.address())],
        addresses: Vec::new(),
        proxy: None,
        listen: None,
        outbound: 1,
        transport: TransportChoice::V1,
        user_agent: "/apus-test:1/".to_owned(),
        bytes_max: 8 << 20,
        patience: Duration::from_secs(60),
        headers: HeaderList::default(),
        blocks: None,
    };
    let peers = Peers::start(network, &storage, None).unwrap();
    chain.synced_from(Source::Peers(&peers), leave_witnesses, work.path())
}

/// A real node gets the same set from the peer.
#[test]
fn a_node_syncs_from_the_peer_that_makes_the_blocks() {
    let options = MakeOptions { output: ChainOutput::Headers, ..miniature(9) };
    let chain = Chain::make(&options);
    let listen = "127.0.0.1:0".parse().unwrap();
    let server = PeerServer::start(chain.path(), &options, listen, 64 << 20).unwrap();
    let assumevalid = format!("-assumevalid={}", chain.manifest.assumevalid_hash);
    let reader = Reader::of(Bitcoind::start(&[&assumevalid]));
    reader.node.call("addnode", &[server.address().to_string().into(), "onetry".into()]);
    reader.expect_all_of(&chain);
    assert_eq!(reader.node.txoutset_info().muhash, chain.manifest.sets[0].muhash);
}

#[test]
fn a_peer_refuses_a_folder_with_another_chain() {
    let options = MakeOptions { output: ChainOutput::Headers, ..miniature(7) };
    let chain = Chain::make(&options);
    let listen = "127.0.0.1:0".parse().unwrap();
    let start = |options: &MakeOptions| {
        PeerServer::start(chain.path(), options, listen, 1 << 20).err().unwrap().to_string()
    };
    let other = MakeOptions { seed: 8, ..options.clone() };
    assert!(start(&other).contains("other options"));
    let path = chain.path().join("headers.dat");
    let mut headers = fs::read(&path).unwrap();
    let last = headers.len() - 1;
    headers[last] ^= 1;
    fs::write(&path, &headers).unwrap();
    assert!(start(&options).contains("remove the folder"));
    headers.pop();
    fs::write(&path, &headers).unwrap();
    assert!(start(&options).contains("remove the folder"));
}

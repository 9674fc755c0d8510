//! A real node as the peer, in both transports and both directions.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{BlockHash, Network};
use apus_p2p::addresses::NodeAddress;
use apus_p2p::message::{Inventory, Message, Services};
use apus_p2p::transport::{
    Connection, Dial, MessageReader, PeerError, Transport, TransportChoice, accept, connect,
};
use apus_testkit::bitcoind::Bitcoind;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use serde_json::json;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);
const BLOCKS: u32 = 5;

fn dial(transport: TransportChoice) -> Dial {
    let required_services = Services::NETWORK.with(Services::WITNESS);
    Dial { transport, required_services, ..Dial::new(Network::Regtest, 0x5eed) }
}

fn address(node: &Bitcoind) -> NodeAddress {
    SocketAddr::from((Ipv4Addr::LOCALHOST, node.p2p_port())).into()
}

/// The first message that `pick` accepts; skips others, which a node sends unrequested.
fn await_message<T>(
    reader: &mut MessageReader,
    mut pick: impl FnMut(Message) -> Option<T>,
) -> Result<T, PeerError> {
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no such message within {PATIENCE:?}");
        if let Some(found) = reader.read()?.and_then(&mut pick) {
            return Ok(found);
        }
    }
}

/// Fetches headers and each of their blocks, and compares them with the node's RPC.
fn headers_and_blocks(node: &Bitcoind, connection: &mut Connection) {
    let genesis = BlockHash(node.block_at(0).block_hash().to_byte_array());
    let request = Message::GetHeaders { locator: vec![genesis], stop: BlockHash::ZERO };
    connection.writer.write(&request).unwrap();
    let headers = await_message(&mut connection.reader, |message| match message {
        Message::Headers(headers) => Some(headers),
        _ => None,
    })
    .unwrap();
    let blocks: Vec<_> = (1..=BLOCKS).map(|height| node.block_at(height)).collect();
    let expected: Vec<_> = blocks.iter().map(|block| serialize(&block.header)).collect();
    assert_eq!(headers.concat(), expected.concat());

    for block in &blocks {
        let hash = BlockHash(block.block_hash().to_byte_array());
        let request = Message::GetData(vec![Inventory::witness_block(hash)]);
        connection.writer.write(&request).unwrap();
        let answer = await_message(&mut connection.reader, |message| match message {
            Message::Block(bytes) => Some(bytes),
            _ => None,
        });
        assert!(block.txdata[0].input[0].witness.len() == 1, "a block without a witness");
        assert_eq!(answer.unwrap(), serialize(block));
    }
    let nowhere = Inventory::witness_block(BlockHash([9; 32]));
    connection.writer.write(&Message::GetData(vec![nowhere])).unwrap();
    connection.writer.write(&Message::Ping(77)).unwrap();
    await_message(&mut connection.reader, |message| (message == Message::Pong(77)).then_some(()))
        .unwrap();
}

#[test]
fn a_node_that_knows_encryption() {
    let node = Bitcoind::start(&["-v2transport=1"]);
    node.mine(BLOCKS);
    // The node's networking learns of a new tip a little later.
    node.call("syncwithvalidationinterfacequeue", &[]);
    for (choice, transport) in [
        (TransportChoice::Auto, Transport::V2),
        (TransportChoice::V2, Transport::V2),
        (TransportChoice::V1, Transport::V1),
    ] {
        let mut connection = connect(&address(&node), &dial(choice)).unwrap();
        assert_eq!(connection.peer.transport, transport);
        assert!(connection.peer.wants_addrv2);
        assert!(connection.peer.address.services.has(Services::P2P_V2));
        assert_eq!(connection.peer.version.start_height, BLOCKS as i32);
        headers_and_blocks(&node, &mut connection);

        let peers = node.call("getpeerinfo", &[]);
        let ours = &peers[0];
        let name = match transport {
            Transport::V1 => "v1",
            Transport::V2 => "v2",
        };
        assert_eq!(ours["transport_protocol_type"], name);
        assert_eq!(ours["subver"], concat!("/apus:", env!("CARGO_PKG_VERSION"), "/"));
        assert_eq!(ours["relaytxes"], false);
        connection.closer().close();
        let start = Instant::now();
        while node.call("getconnectioncount", &[]) != json!(0) {
            assert!(start.elapsed() < PATIENCE, "the node keeps a closed connection");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

#[test]
fn a_node_that_knows_plaintext_only() {
    let node = Bitcoind::start(&["-v2transport=0"]);
    node.mine(BLOCKS);
    for choice in [TransportChoice::Auto, TransportChoice::V1] {
        let mut connection = connect(&address(&node), &dial(choice)).unwrap();
        assert_eq!(connection.peer.transport, Transport::V1);
        headers_and_blocks(&node, &mut connection);
    }
    let error = connect(&address(&node), &dial(TransportChoice::V2)).unwrap_err();
    assert!(matches!(error, PeerError::ClosedDuringV2Handshake), "{error}");
}

#[test]
fn a_node_of_another_network_is_not_a_peer() {
    let node = Bitcoind::start(&[]);
    let other = |choice| Dial {
        network: Network::Signet,
        handshake_timeout: Duration::from_secs(2),
        ..dial(choice)
    };
    // It disconnects on a foreign magic, or while it waits for the end of garbage under other keys.
    assert!(connect(&address(&node), &other(TransportChoice::V1)).is_err());
    assert!(connect(&address(&node), &other(TransportChoice::V2)).is_err());
}

#[test]
fn a_node_connects_to_us() {
    for (v2, transport) in [(false, Transport::V1), (true, Transport::V2)] {
        let node = Bitcoind::start(&[if v2 { "-v2transport=1" } else { "-v2transport=0" }]);
        node.mine(BLOCKS);
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let us = listener.local_addr().unwrap().to_string();
        node.call("addnode", &[json!(us), json!("onetry"), json!(v2)]);
        let ours = Dial {
            services: Services::NETWORK.with(Services::WITNESS),
            start_height: 3,
            ..dial(TransportChoice::Auto)
        };
        let mut connection = accept(listener.accept().unwrap().0, &ours).unwrap();
        assert_eq!(connection.peer.transport, transport);
        assert!(connection.peer.wants_addrv2);
        headers_and_blocks(&node, &mut connection);
        let peers = node.call("getpeerinfo", &[]);
        assert_eq!(peers[0]["inbound"], false);
        assert_eq!(peers[0]["startingheight"], 3);
    }
}

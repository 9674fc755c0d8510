//! Runs a real Utreexo bridge node: its answers must equal those recorded in the fixtures.
#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{BlockHash, Network};
use apus_p2p::message::{Message, Services};
use apus_p2p::transport::{Connection, Dial, Transport, TransportChoice, connect};
use apus_proofs::message::{
    NodeHash, PeerProof, PeerRoots, ProofRequest, UTREEXO, UTREEXO_ARCHIVE, UtreexoMessage,
    WantedPlaces,
};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::utreexod::{Utreexod, recorded_proofs};
use serde_json::{Value, json};
use std::net::{Ipv4Addr, SocketAddr};
use std::str::FromStr;
use std::time::{Duration, Instant};

const PATIENCE: Duration = Duration::from_secs(120);

/// Starts the bridge with the recorded blocks and, above them, a block of today: it answers no peer while its
/// tip is old.
fn bridge(records: &[Value]) -> Utreexod {
    let node = Bitcoind::start(&["-maxtipage=2000000000"]);
    for record in records {
        assert_eq!(node.call("submitblock", &[record["block"].clone()]), Value::Null);
    }
    node.mine(1);
    Utreexod::with_blocks_of(&node)
}

fn connection(bridge: &Utreexod, transport: TransportChoice) -> Connection {
    let required_services = Services::NETWORK.with(UTREEXO).with(UTREEXO_ARCHIVE);
    let dial = Dial { transport, required_services, ..Dial::new(Network::Regtest, 0x5eed) };
    connect(&SocketAddr::from((Ipv4Addr::LOCALHOST, bridge.p2p_port())).into(), &dial).unwrap()
}

/// Returns the bridge's answer to a request, and ignores other messages.
fn ask(connection: &mut Connection, request: UtreexoMessage) -> UtreexoMessage {
    connection.writer.write(&request.to_message()).unwrap();
    let start = Instant::now();
    loop {
        assert!(start.elapsed() < PATIENCE, "no answer within {PATIENCE:?}");
        if let Some(Message::Other { name, payload }) = connection.reader.read().unwrap()
            && let Some(answer) = UtreexoMessage::read(&name, &payload).unwrap()
        {
            return answer;
        }
    }
}

fn ask_proof(connection: &mut Connection, request: ProofRequest) -> PeerProof {
    match ask(connection, UtreexoMessage::GetProof(request)) {
        UtreexoMessage::Proof(proof) => proof,
        other => panic!("{other:?}"),
    }
}

fn ask_roots(connection: &mut Connection, block: BlockHash) -> PeerRoots {
    match ask(connection, UtreexoMessage::GetRoots(block)) {
        UtreexoMessage::Roots(roots) => roots,
        other => panic!("{other:?}"),
    }
}

fn block_of(record: &Value) -> BlockHash {
    BlockHash::from_str(record["hash"].as_str().unwrap()).unwrap()
}

fn words(hashes: &[NodeHash]) -> Value {
    let word = |hash: &NodeHash| hash.iter().map(|byte| format!("{byte:02x}")).collect::<String>();
    json!(hashes.iter().map(word).collect::<Vec<_>>())
}

#[test]
fn proofs_and_roots_match_the_recording() {
    let records = recorded_proofs("random-proofs.jsonl.gz");
    let bridge = bridge(&records);
    for (choice, transport) in
        [(TransportChoice::V1, Transport::V1), (TransportChoice::Auto, Transport::V2)]
    {
        let mut connection = connection(&bridge, choice);
        assert_eq!(connection.peer.transport, transport);
        for record in &records {
            let block = block_of(record);
            let proof = ask_proof(&mut connection, ProofRequest::whole(block));
            assert_eq!(proof.block, block);
            assert_eq!(json!(proof.targets), record["prooftargets"]);
            assert_eq!(words(&proof.hashes), record["proofhashes"]);
            assert_eq!(proof.leaves.len(), proof.targets.len());
            let roots = ask_roots(&mut connection, block);
            assert_eq!(roots.block, block);
            assert_eq!((json!(roots.leaves), words(&roots.roots)), {
                (record["numleaves"].clone(), record["roots"].clone())
            });
        }
    }
}

/// BIP-183 does not have the byte that selects parts. The test shows what its bits do in utreexod 0.6.0.
#[test]
fn parts_of_a_proof_match_the_request() {
    let records = recorded_proofs("random-proofs.jsonl.gz");
    let bridge = bridge(&records);
    let connection = &mut connection(&bridge, TransportChoice::V1);
    let hashes_of = |record: &Value| record["proofhashes"].as_array().unwrap().len();
    let record = records.iter().max_by_key(|record| hashes_of(record)).unwrap();
    let whole = ask_proof(connection, ProofRequest::whole(block_of(record)));
    assert!(whole.hashes.len() > 8 && whole.leaves.len() > 8);

    let nothing =
        ProofRequest::parts(whole.block, WantedPlaces::default(), WantedPlaces::default());
    let none = PeerProof { hashes: vec![], targets: vec![], leaves: vec![], ..whole.clone() };
    assert_eq!(ask_proof(connection, nothing.clone()), none);
    // This bit has no effect, contrary to its name.
    let all_hashes = ProofRequest { all_hashes: true, ..nothing.clone() };
    assert_eq!(ask_proof(connection, all_hashes), none);
    let targets = ProofRequest { targets: true, ..nothing.clone() };
    let expected = PeerProof { targets: whole.targets.clone(), ..none.clone() };
    assert_eq!(ask_proof(connection, targets), expected);
    // This bit requests more than its name says.
    let all_leaves = ProofRequest { all_leaves: true, ..nothing.clone() };
    assert_eq!(ask_proof(connection, all_leaves), PeerProof { targets: vec![], ..whole.clone() });

    let odd = |count: usize| (0..count).filter(|place| place % 2 == 1);
    let (hashes, leaves) = (whole.hashes.len(), whole.leaves.len());
    let some = ProofRequest::parts(whole.block, odd(hashes).collect(), odd(leaves).collect());
    let expected = PeerProof {
        hashes: odd(hashes).map(|place| whole.hashes[place]).collect(),
        leaves: odd(leaves).map(|place| whole.leaves[place].clone()).collect(),
        ..none.clone()
    };
    assert_eq!(ask_proof(connection, some), expected);
    let every = ProofRequest::parts(whole.block, (0..hashes).collect(), (0..leaves).collect());
    assert_eq!(ask_proof(connection, ProofRequest { targets: true, ..every }), whole);
}

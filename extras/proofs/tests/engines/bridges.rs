//! Validation with proofs from two bridges, one of which fails: it is left out, and the user sees why.

use crate::bridge::{ProofData, proofs_of};
use crate::harness::{Job, Place, World, hash_of};
use crate::roots::{truth, with_roots};
use crate::world::Events;
use apus_chain::{BlockHash, Network, write_compact_size};
use apus_p2p::addresses::NodeAddress;
use apus_p2p::message::Message;
use apus_p2p::transport::{Connection, Dial, PeerError, TransportChoice, accept};
use apus_proofs::message::{BRIDGE, PeerRoots, UtreexoMessage};
use apus_proofs::{BridgePeers, ByProofs, ENGINE, ProofsInput};
use apus_sync::{ChainEngine, Engine, Event, SyncError, Warning};
use std::net::{Ipv4Addr, TcpListener};
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::thread;
use std::time::Duration;

/// How a bridge fails.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Failure {
    Never,
    /// Sends forged roots, and ends the connection where a proof is due.
    ForgesRootsAndEnds,
    /// Sends forged roots, and right proofs.
    ForgesRoots,
    /// Sends pings in place of proofs.
    Pings,
    /// Sends the proof of another block.
    OtherBlock,
}

/// The answers of a bridge.
struct Answers {
    hashes: Vec<BlockHash>,
    data: ProofData,
    failure: Failure,
}

impl Answers {
    /// Listens for connections, as long as the process lives.
    fn serve(self) -> NodeAddress {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let address = listener.local_addr().unwrap().into();
        let answers = Arc::new(self);
        thread::spawn(move || {
            for stream in listener.incoming() {
                let answers = Arc::clone(&answers);
                thread::spawn(move || {
                    let dial = Dial { services: BRIDGE, ..Dial::new(Network::Regtest, 7) };
                    // The end of a connection ends its thread.
                    let _ = accept(stream.unwrap(), &dial).map(|it| answers.answer(it));
                });
            }
        });
        address
    }

    fn answer(&self, mut connection: Connection) -> Result<(), PeerError> {
        let mut pings = false;
        loop {
            let answer = match connection.reader.read()? {
                None if pings => Message::Ping(1),
                Some(Message::Ping(nonce)) if !pings => Message::Pong(nonce),
                Some(Message::Other { name, payload }) => {
                    match UtreexoMessage::read(&name, &payload).unwrap() {
                        Some(UtreexoMessage::GetRoots(hash)) => self.roots(hash),
                        Some(UtreexoMessage::GetProof(request)) => match self.failure {
                            Failure::ForgesRootsAndEnds => return Ok(()),
                            Failure::Pings => {
                                pings = true;
                                continue;
                            }
                            _ => self.proof(request.block),
                        },
                        _ => continue,
                    }
                }
                _ => continue,
            };
            connection.writer.write(&answer)?;
        }
    }

    fn roots(&self, block: BlockHash) -> Message {
        let height = self.hashes.iter().position(|hash| *hash == block).unwrap();
        let roots = &self.data.roots[height];
        let mut hashes: Vec<[u8; 32]> = roots.hashes().iter().map(|hash| hash.0).collect();
        if let Failure::ForgesRootsAndEnds | Failure::ForgesRoots = self.failure {
            hashes.last_mut().unwrap()[0] ^= 1;
        }
        let (leaves, target, proof) = (roots.leaves(), height as u64, Vec::new());
        UtreexoMessage::Roots(PeerRoots { block, leaves, roots: hashes, target, proof })
            .to_message()
    }

    fn proof(&self, block: BlockHash) -> Message {
        let height = self.hashes.iter().position(|hash| *hash == block).unwrap();
        let entry = &self.data.entries[height];
        let mut payload = block.0.to_vec();
        payload[0] ^= u8::from(self.failure == Failure::OtherBlock);
        write_compact_size(&mut payload, entry.proof.hashes.len() as u64);
        entry.proof.hashes.iter().for_each(|hash| payload.extend(hash.0));
        write_compact_size(&mut payload, entry.proof.targets.len() as u64);
        entry.proof.targets.iter().for_each(|target| write_compact_size(&mut payload, *target));
        write_compact_size(&mut payload, entry.coins.len() as u64);
        let mut proof = Vec::new();
        entry.proof.write(&mut proof);
        payload.extend(&entry.bytes()[proof.len()..]);
        Message::Other { name: "uproof".to_owned(), payload }
    }
}

/// Bridges that fail in these ways.
fn bridges(world: &World, failures: &[Failure]) -> Vec<NodeAddress> {
    let hashes: Vec<BlockHash> = world.chain.iter().map(hash_of).collect();
    let data = proofs_of(&world.chain);
    let answers = |failure: &Failure| Answers {
        hashes: hashes.clone(),
        data: data.clone(),
        failure: *failure,
    };
    failures.iter().map(|failure| answers(failure).serve()).collect()
}

/// A job with proofs from these bridges.
fn by_bridges(world: &World, addresses: &[NodeAddress]) -> Job {
    let peers = BridgePeers {
        addresses: addresses.to_vec(),
        proxy: None,
        transport: TransportChoice::V1,
        patience: Duration::from_secs(8),
    };
    let engine = move |assume_valid: Option<BlockHash>| -> Box<dyn ChainEngine> {
        Box::new(ByProofs::new(ProofsInput::Peers(peers.clone()), assume_valid))
    };
    let outside: Arc<crate::harness::NewEngine> = Arc::new(engine);
    with_roots(Job { engine: Engine::Outside(ENGINE), outside: Some(outside), ..world.job() })
}

/// Runs a job and returns its warnings.
fn warnings(job: &Job, place: &Place) -> (Result<(), SyncError>, Vec<String>) {
    let events = Events::default();
    let ended = job.run_watched(place, &events, &AtomicBool::new(false));
    let warning = |event: Event| match event {
        Event::Warning(Warning::Extra(text)) => Some(text),
        _ => None,
    };
    (ended.map(drop), events.all().into_iter().filter_map(warning).collect())
}

#[test]
fn a_bridge_that_fails_is_left_out() {
    let world = World::small(960);
    for failure in [
        Failure::Never,
        Failure::ForgesRootsAndEnds,
        Failure::ForgesRoots,
        Failure::Pings,
        Failure::OtherBlock,
    ] {
        let both = bridges(&world, &[failure, Failure::Never]);
        let place = Place::new();
        let (ended, said) = warnings(&by_bridges(&world, &both), &place);
        ended.unwrap_or_else(|error| panic!("{failure:?}: {error}"));
        let (name, roots) = truth(&world).commitment;
        assert!(place.output_files()[name] == roots, "{failure:?}: other roots");
        let left_out = format!("asks {} ", both[0]);
        let expected = usize::from(failure != Failure::Never);
        assert_eq!(said.len(), expected, "{failure:?}: {said:?}");
        assert!(said.iter().all(|text| text.contains(&left_out)), "{failure:?}: {said:?}");
    }
}

/// Named twice, it is no other bridge.
#[test]
fn the_last_bridge_that_fails_ends_the_job() {
    let world = World::small(961);
    let forges = bridges(&world, &[Failure::ForgesRoots]).remove(0);
    let job = by_bridges(&world, &[forges.clone(), forges.clone()]);
    let (ended, said) = warnings(&job, &Place::new());
    let error = ended.unwrap_err().to_string();
    assert!(error.contains(&format!("from {forges}")), "{error}");
    assert!(said.is_empty(), "{said:?}");
}

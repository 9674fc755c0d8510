//! The decision logic, driven by a model of a peer: which answers count, which are missing, how parts make a
//! proof, and which peers are asked. The tests of `apus` cover sockets and the real program.

use super::ProofPeers;
use super::window::{OpenQuestion, ProofParts, QuestionWindow, Wrong};
use crate::message::{
    PeerLeaf, PeerLeafScript, PeerProof, PeerRoots, ProofRequest, UtreexoMessage,
};
use apus_chain::{BlockHash, KnownBlock, Network};
use apus_p2p::transport::Dial;
use proptest::prelude::*;
use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::atomic::AtomicBool;
use std::time::Duration;

fn block(height: u32) -> KnownBlock {
    let mut hash = [0; 32];
    hash[..4].copy_from_slice(&height.to_le_bytes());
    KnownBlock { height, hash: BlockHash(hash) }
}

fn proof_of(height: u32) -> OpenQuestion {
    let block = block(height);
    OpenQuestion { block, message: UtreexoMessage::GetProof(ProofRequest::whole(block.hash)) }
}

fn roots_of(height: u32) -> OpenQuestion {
    let block = block(height);
    OpenQuestion { block, message: UtreexoMessage::GetRoots(block.hash) }
}

/// A minimal answer of a peer.
fn answer(request: &OpenQuestion) -> UtreexoMessage {
    let block = request.block.hash;
    match request.message {
        UtreexoMessage::GetRoots(_) => {
            let (leaves, target) = (0, u64::from(request.block.height));
            UtreexoMessage::Roots(PeerRoots { block, leaves, roots: vec![], target, proof: vec![] })
        }
        _ => UtreexoMessage::Proof(PeerProof {
            block,
            hashes: vec![],
            targets: vec![],
            leaves: vec![],
        }),
    }
}

fn window(
    requests: impl Iterator<Item = OpenQuestion> + Send + 'static,
) -> QuestionWindow<'static> {
    QuestionWindow::new(Box::new(requests))
}

/// All requests that the window allows.
fn sent(window: &mut QuestionWindow<'_>) -> Vec<OpenQuestion> {
    std::iter::from_fn(|| window.next_to_send().cloned()).collect()
}

#[test]
fn the_window_is_limited_by_bytes() {
    let mut window = window((0..).map(proof_of));
    let first = sent(&mut window);
    assert_eq!(first, (0..8).map(proof_of).collect::<Vec<_>>(), "of half a MiB each");
    // The answers are small, so more fit, up to the limit.
    for height in 0..60 {
        assert_eq!(window.answered(&answer(&proof_of(height)), 1000), Ok(true));
        sent(&mut window);
    }
    let open = |window: &mut QuestionWindow<'_>| {
        sent(window);
        window.lost();
        let mut open = 0;
        while window.next_to_send().is_some() {
            open += 1;
        }
        open
    };
    assert_eq!(open(&mut window), 32);
    // The answers are large, so only one fits at a time.
    for height in 60..140 {
        assert_eq!(window.answered(&answer(&proof_of(height)), 4_000_000), Ok(true));
        sent(&mut window);
    }
    for height in 140..141 {
        assert_eq!(window.answered(&answer(&proof_of(height)), 4_000_000), Ok(true));
    }
    assert_eq!(open(&mut window), 1);
}

#[test]
fn a_later_answer_shows_that_one_is_missing() {
    let mut window = window([roots_of(4), roots_of(9), proof_of(5), proof_of(6)].into_iter());
    sent(&mut window);
    let missed = |request| Err(Wrong::Unanswered(request));
    assert_eq!(window.answered(&answer(&roots_of(9)), 9), missed(roots_of(4)));
    assert_eq!(window.answered(&answer(&roots_of(4)), 9), Ok(true));
    assert_eq!(window.answered(&answer(&proof_of(6)), 9), missed(roots_of(9)));
    // The proof of a block does not answer a question for its roots, or vice versa.
    let other = |request, height| Err(Wrong::NotAsked(request, block(height).hash));
    assert_eq!(window.answered(&answer(&proof_of(9)), 9), other(roots_of(9), 9));
    assert_eq!(window.answered(&answer(&roots_of(4)), 9), other(roots_of(9), 4), "twice");
    // Questions from the peer are not answers.
    assert_eq!(window.answered(&proof_of(9).message, 9), Ok(false));
    assert_eq!(window.answered(&roots_of(9).message, 9), Ok(false));
    for request in [roots_of(9), proof_of(5), proof_of(6)] {
        assert!(!window.is_quiet());
        assert_eq!(window.answered(&answer(&request), 9), Ok(true));
    }
    assert!(window.is_quiet());
    assert_eq!(window.answered(&answer(&proof_of(6)), 9), Ok(false), "nothing is asked");
}

#[test]
fn a_pong_shows_that_an_answer_is_missing() {
    let mut window = window((1..=3).map(proof_of));
    assert!(!window.is_ping_due(), "nothing is asked");
    sent(&mut window);
    assert!(window.is_ping_due());
    window.pinged(7);
    assert!(!window.is_ping_due(), "one at a time");
    assert_eq!(window.pong(6), Ok(()), "a pong to another ping");
    for height in [1, 2, 3] {
        assert_eq!(window.answered(&answer(&proof_of(height)), 9), Ok(true));
    }
    assert_eq!(window.pong(7), Ok(()), "all are answered");
    let mut window = self::window((1..=3).map(proof_of));
    sent(&mut window);
    window.pinged(8);
    assert_eq!(window.answered(&answer(&proof_of(1)), 9), Ok(true));
    assert_eq!(window.pong(8), Err(Wrong::Unanswered(proof_of(2))));
    // On another connection the old ping has no meaning.
    window.lost();
    sent(&mut window);
    assert_eq!(window.pong(8), Ok(()));
    assert!(window.is_ping_due());
}

/// A pong concerns only the questions before its ping.
#[test]
fn answers_to_questions_after_a_ping_may_still_come() {
    let mut window = window((1..).map(proof_of));
    let first = sent(&mut window).len() as u32;
    window.pinged(1);
    for height in 1..=first {
        assert_eq!(window.answered(&answer(&proof_of(height)), 9), Ok(true));
    }
    assert!(!sent(&mut window).is_empty());
    assert_eq!(window.pong(1), Ok(()));
    assert_eq!(window.answered(&answer(&proof_of(first + 1)), 9), Ok(true));
}

#[test]
fn parts_go_before_all_others_one_at_a_time() {
    let mut window = window((1..).map(proof_of));
    sent(&mut window);
    window.lost();
    assert_eq!(window.first(), Some(&proof_of(1)));
    window.skip_first();
    for _ in 0..3 {
        let targets = UtreexoMessage::GetProof(ProofRequest::targets(block(1).hash));
        let part = OpenQuestion { block: block(1), message: targets };
        window.insert_first(part.clone());
        assert_eq!(sent(&mut window), std::slice::from_ref(&part));
        assert_eq!(window.answered(&answer(&part), 9), Ok(true));
    }
    window.widen();
    assert_eq!(sent(&mut window)[..2], [proof_of(2), proof_of(3)]);
}

proptest! {
    /// A peer answers in order and may skip one question, over connections that break: answers arrive in the
    /// order of the questions, each once, and only the skipped one is reported.
    #[test]
    fn every_answer_comes_once_and_in_order(
        steps in prop::collection::vec(0u8..20, 1..400),
        left_out in prop::option::of(0u32..60),
    ) {
        let kind = |height: u32| if height.is_multiple_of(3) { roots_of(height) } else { proof_of(height) };
        let mut window = window((0..40).map(kind));
        // Answers and pongs in flight.
        let (mut line, mut taken, mut nonce) = (VecDeque::new(), 0, 0u64);
        for step in steps.into_iter().chain(std::iter::repeat_n(1, 200)) {
            match step {
                0 => {
                    window.lost();
                    line.clear();
                }
                _ => {
                    for request in sent(&mut window) {
                        let is_out = left_out == Some(request.block.height);
                        line.extend((!is_out).then(|| Ok(answer(&request))));
                    }
                    if window.is_ping_due() {
                        nonce += 1;
                        window.pinged(nonce);
                        line.push_back(Err(nonce));
                    }
                    let came = match line.pop_front() {
                        None => continue,
                        Some(Ok(message)) => window.answered(&message, 700_000),
                        Some(Err(nonce)) => window.pong(nonce).map(|()| false),
                    };
                    match came {
                        Ok(true) => taken += 1,
                        Ok(false) => {}
                        Err(wrong) => {
                            prop_assert_eq!(Some(taken), left_out);
                            prop_assert_eq!(wrong, Wrong::Unanswered(kind(taken)));
                            return Ok(());
                        }
                    }
                    if taken < 40 {
                        prop_assert_eq!(window.first(), Some(&kind(taken)));
                    }
                }
            }
        }
        prop_assert_eq!(taken, 40);
        prop_assert!(left_out.is_none_or(|height| height >= 40));
    }

    /// Any proof is rebuilt from its parts, and each part fits in a message.
    #[test]
    fn parts_make_the_whole(
        leaves in prop_oneof![Just(0usize), 1usize..3, 390usize..2000],
        hashes in prop_oneof![Just(0usize), 1usize..3, 124_990usize..125_010, 249_980usize..250_010],
    ) {
        let whole = whole(leaves, hashes);
        let mut parts = ProofParts::new(whole.block, leaves);
        let mut requests = 0;
        while let Some(request) = parts.request() {
            let part = part(&whole, &request);
            let message = UtreexoMessage::Proof(part.clone()).to_message();
            let (_, bytes) = apus_p2p::message::encode(&message, false);
            prop_assert!(bytes.len() <= apus_p2p::message::PAYLOAD_BYTES_MAX);
            prop_assert_eq!(parts.take(part), Ok(()));
            requests += 1;
            prop_assert!(requests < 20);
        }
        prop_assert_eq!(parts.into_proof(), whole);
    }
}

fn whole(leaves: usize, hashes: usize) -> PeerProof {
    let script = PeerLeafScript::Other(vec![0x6a; 10_000]);
    let leaf =
        |place: usize| PeerLeaf { header_code: place as u32, amount: 1, script: script.clone() };
    PeerProof {
        block: block(1).hash,
        hashes: (0..hashes).map(|place| [place as u8; 32]).collect(),
        targets: (0..leaves as u64).collect(),
        leaves: (0..leaves).map(leaf).collect(),
    }
}

/// The answer of utreexod 0.6.0 to a request for parts.
fn part(whole: &PeerProof, request: &ProofRequest) -> PeerProof {
    assert!(!request.all_hashes && !request.all_leaves, "these flags behave differently");
    let targets = if request.targets { whole.targets.clone() } else { vec![] };
    let hashes = (0..whole.hashes.len()).filter(|place| request.hashes.has(*place));
    let leaves = (0..whole.leaves.len()).filter(|place| request.leaves.has(*place));
    PeerProof {
        block: whole.block,
        hashes: hashes.map(|place| whole.hashes[place]).collect(),
        targets,
        leaves: leaves.map(|place| whole.leaves[place].clone()).collect(),
    }
}

#[test]
fn parts_that_were_not_requested_are_refused() {
    let whole = whole(500, 3);
    let refused = |parts: &mut ProofParts, part: PeerProof, message: &str| {
        let text = parts.take(part).unwrap_err();
        assert!(text.contains(message), "{text}");
    };
    let targets = |parts: &ProofParts| part(&whole, &parts.request().unwrap());
    let mut parts = ProofParts::new(whole.block, 499);
    let many = targets(&parts);
    refused(&mut parts, many, "500 targets, 0 hashes and 0 leaves instead of at most 499 targets");
    let mut parts = ProofParts::new(whole.block, 500);
    let said = "500 targets, 3 hashes and 500 leaves instead of at most 500 targets";
    refused(&mut parts, whole.clone(), said);
    let next = |parts: &mut ProofParts| {
        let request = parts.request().unwrap();
        assert_eq!(parts.take(part(&whole, &request)), Ok(()));
    };
    next(&mut parts);
    refused(&mut parts, whole.clone(), "instead of at most 124998 hashes");
    next(&mut parts);
    let mut leaves = part(&whole, &parts.request().unwrap());
    leaves.leaves.pop();
    refused(&mut parts, leaves, "0 hashes and 398 leaves instead of 399 leaves");
    next(&mut parts);
    next(&mut parts);
    assert!(parts.request().is_none());
    refused(&mut parts, whole.clone(), "instead of nothing");
}

/// The peers with these ports; those in `absent` could not be reached at the start.
fn peers<'a>(ports: &[u16], absent: &[usize], interrupt: &'a AtomicBool) -> ProofPeers<'a> {
    let address = |port: &u16| SocketAddr::from((Ipv4Addr::LOCALHOST, *port)).into();
    let addresses = ports.iter().map(address).collect();
    let dial = Dial::new(Network::Regtest, 1);
    let peers = ProofPeers::new(addresses, dial, Duration::from_secs(1), interrupt);
    absent.iter().for_each(|peer| peers.choice.lock().set_aside(*peer));
    peers
}

#[test]
fn the_last_peer_is_never_left_out() {
    let interrupt = AtomicBool::new(false);
    let peers = peers(&[1, 2, 3], &[], &interrupt);
    assert_eq!([peers.choose(1), peers.choose(1), peers.choose(2)].concat(), [0, 1, 2, 0]);
    assert_eq!([1, 1].map(|peer| peers.leave_out(peer, false)), [Some(true), Some(false)]);
    assert_eq!(peers.choose(3), [2, 0]);
    assert!(peers.has_others(0));
    assert_eq!(peers.leave_out(2, false), Some(true));
    assert!(!peers.has_others(0));
    assert_eq!((peers.leave_out(0, false), peers.choose(3)), (None, vec![0]));
}

/// A peer that could not be reached at the start is asked once all others have failed.
#[test]
fn absent_peers_are_asked_last() {
    let interrupt = AtomicBool::new(false);
    let peers = peers(&[1, 2, 3], &[0], &interrupt);
    assert_eq!(peers.choose(3), [1, 2]);
    assert_eq!(peers.leave_out(1, false), Some(true));
    assert!(peers.has_others(2));
    assert_eq!((peers.leave_out(2, false), peers.choose(3)), (Some(true), vec![0]));
    assert_eq!(peers.leave_out(0, true), None);
}

/// A bridge that restarts is asked again once the other one is away, but not for ever.
#[test]
fn peers_that_sent_nothing_wrong_come_back() {
    let interrupt = AtomicBool::new(false);
    let peers = peers(&[1, 2], &[], &interrupt);
    for round in 0..2 * (super::ABSENCES_MAX as usize - 1) {
        let (away, other) = (round % 2, 1 - round % 2);
        assert_eq!((peers.leave_out(away, true), peers.choose(2)), (Some(true), vec![other]));
        assert_eq!(peers.leave_out(away, true), Some(false));
    }
    assert_eq!((peers.leave_out(0, true), peers.leave_out(1, true)), (Some(true), None));
}

/// A peer that is named twice is one peer.
#[test]
fn a_peer_named_twice_is_left_out_as_one() {
    let interrupt = AtomicBool::new(false);
    let peers = peers(&[1, 1, 2], &[], &interrupt);
    assert_eq!([0, 1].map(|peer| peers.leave_out(peer, false)), [Some(true), Some(false)]);
    assert_eq!((peers.leave_out(2, true), peers.choose(3)), (None, vec![2]));
}

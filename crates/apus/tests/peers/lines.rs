//! Real nodes behind slow, lossy lines that fail.

use crate::lived::Lived;
use crate::peers::nodes::{SYNC, expect_set, twin};
use apus_testkit::bitcoind::Bitcoind;
use apus_testkit::line::{LineRelay, LineState, PeerLine};
use std::net::{Ipv4Addr, SocketAddr};

/// A round trip of 100 ms, and 1 % of the segments lost.
const LINE: &str = "400kbit,50ms,1%";

/// Bytes of a header in a message, with the transaction count of 0 that follows it.
const HEADER_BYTES: u64 = 81;

fn relay(node: &Bitcoind, seed: u64) -> LineRelay {
    let line: PeerLine = LINE.parse().unwrap();
    LineRelay::start(SocketAddr::from((Ipv4Addr::LOCALHOST, node.p2p_port())), line, seed).unwrap()
}

/// Syncs from three nodes; halfway, one falls silent and another disconnects.
fn fails_in_the_middle(seed: u64, transport: &str, options: &str) {
    let (lived, first) = Lived::running(seed, &[transport, "-maxtipage=2000000000"]);
    let nodes = [twin(&first), twin(&first), first];
    let relays: Vec<LineRelay> =
        nodes.iter().zip(0..).map(|(node, place)| relay(node, seed + place)).collect();
    let blocks = lived.chain.blocks();
    let bytes: usize = blocks.iter().map(bitcoin::Block::total_size).sum();
    let connect: Vec<String> =
        relays.iter().map(|relay| format!("--connect {}", relay.address())).collect();
    let line = format!("{SYNC} {} {options} --out snapshot:set.dat", connect.join(" "));
    let mut run = lived.sandbox.start(&line);
    // After the headers of all three and some blocks, only one line is left.
    let some = 3 * blocks.len() as u64 * HEADER_BYTES + bytes as u64 / 20;
    let passed = || relays.iter().map(LineRelay::passed_bytes).sum::<u64>();
    assert!(run.until(|| passed() > some), "it ended after {} of {bytes} bytes", passed());
    relays[0].set(LineState::Stalled);
    relays[1].set(LineState::Cut);
    run.wait().succeeds();
    expect_set(&lived);
}

#[test]
fn a_sync_survives_a_stalled_and_a_cut_node() {
    fails_in_the_middle(13, "-v2transport=1", "--hints msb.hints");
}

#[test]
fn a_sync_in_order_survives_a_stalled_and_a_cut_plaintext_node() {
    fails_in_the_middle(14, "-v2transport=0", "--assumevalid 0");
}

//! A sequence of headers, good and bad, in any order: for each of them and for the tip, the tree agrees with a
//! naive model.
//!
//! Input: the active rules, then instructions to make headers and to submit them.
//!
//! Inputs: at most 1024 bytes.

#![no_main]

use apus_chain::{
    Header, HeaderAcceptance, HeaderChain, HeaderStatus, HeaderTree, MerkleRoot, Network, Params,
    U256,
};
use apus_fuzz::Input;
use apus_fuzz::header_model::{Kept, Model, reaches};
use libfuzzer_sys::fuzz_target;
use num_bigint::BigUint;
use std::num::NonZeroU32;

const HEADERS_MAX: usize = 40;
/// Headers whose target needs more hashes than this stay unmined.
const TRIES_MAX: u32 = 1 << 7;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let params = rules(input.u8());
    let now = i64::from(params.genesis_header.time);
    let mut tree = HeaderTree::new(&params, now);
    let mut model = Model::new(&params, (BigUint::from(1u32) << 255) - 1u32, now);
    let mut made = vec![params.genesis_header];
    while !input.is_empty() && made.len() < HEADERS_MAX {
        match input.u8() {
            0 => {
                model.now += i64::from(input.u16());
                tree.set_now(model.now);
            }
            1 => {
                model.orphans_max = usize::from(input.u8() % 8);
                tree.set_orphans_max(model.orphans_max);
            }
            // Submit a header again, or one that was made but not submitted.
            2 => {
                let which = usize::from(input.u8()) % made.len();
                hand_in(&mut tree, &mut model, &made[which]);
            }
            instruction => {
                let header = make(&mut input, instruction, &made, &model);
                made.push(header);
                if instruction & 0x80 == 0 {
                    hand_in(&mut tree, &mut model, &header);
                }
            }
        }
    }
    assert_same(&tree, &model);
});

fn rules(switches: u8) -> Params {
    let seconds = |count| NonZeroU32::new(count).expect("not zero");
    let regtest = Params::of(Network::Regtest);
    // As on regtest: the compact form cannot express this number.
    let mut limit = [0xff; 32];
    limit[31] = 0x7f;
    assert_eq!(regtest.pow_limit, U256::from_le_bytes(&limit));
    let from = |active: bool| if active { 3 } else { u32::MAX };
    Params {
        pow_no_retargeting: switches & 1 != 0,
        pow_allow_min_difficulty_blocks: switches & 2 != 0,
        enforce_bip94: switches & 4 != 0,
        // A period has five blocks.
        pow_target_timespan_seconds: seconds(1000),
        pow_target_spacing_seconds: seconds(200),
        bip34_height: from(switches & 8 != 0),
        bip65_height: from(switches & 16 != 0),
        bip66_height: from(switches & 32 != 0),
        ..regtest.clone()
    }
}

/// Makes a child of any header made so far, with most fields correct.
fn make(input: &mut Input<'_>, instruction: u8, made: &[Header], model: &Model) -> Header {
    let parent = made[made.len() - 1 - usize::from(input.u8()) % made.len()];
    let seconds = if instruction & 4 != 0 { i32::from(input.u16() as i16) } else { 150 };
    let time = parent.time.saturating_add_signed(seconds);
    let expected = model.find(&parent.hash()).map(|parent| model.next_bits(parent, time));
    let bits = expected.unwrap_or(parent.bits);
    let mut header = Header {
        version: if instruction & 8 != 0 { i32::from(input.u8() % 5) } else { 4 },
        prev: parent.hash(),
        merkle_root: MerkleRoot([made.len() as u8; 32]),
        time,
        bits: if instruction & 16 != 0 { input.u32() } else { bits },
        nonce: 0,
    };
    if instruction & 32 != 0 {
        header.prev.0[0] ^= input.u8();
    }
    if instruction & 64 != 0 && input.u8() == 0 {
        header.prev.0 = [0; 32];
    }
    while header.nonce < TRIES_MAX && !reaches(&header.hash(), header.bits) {
        header.nonce += 1;
    }
    header
}

fn hand_in(tree: &mut HeaderTree, model: &mut Model, header: &Header) {
    let ours = tree.accept(&header.to_bytes());
    let ours = ours.map_err(|error| error.reason().into_owned()).map(|accepted| match accepted {
        HeaderAcceptance::New(_) => Kept::New,
        HeaderAcceptance::Known(_) => Kept::Known,
        HeaderAcceptance::Orphan(_) => Kept::Orphan,
    });
    assert_eq!(ours, model.accept(header));
    assert_eq!(*tree.hash(tree.tip()), model.tip().hash);
}

fn assert_same(tree: &HeaderTree, model: &Model) {
    assert_eq!(tree.orphans_count(), model.orphans.len());
    for (orphan, _) in &model.orphans {
        let id = tree.find(orphan).expect("an orphan is kept");
        assert_eq!(tree.status(id), HeaderStatus::Orphan);
    }
    for entry in &model.connected {
        let id = tree.find(&entry.hash).expect("a connected header is kept");
        let HeaderStatus::Connected(header) = tree.status(id) else { panic!("not connected") };
        assert_eq!(header.height, entry.height);
        assert_eq!(BigUint::from(header.chain_work), entry.work);
    }
    for hash in &model.rejected {
        assert!(tree.find(hash).is_none() && tree.rejection(hash).is_some());
    }
    let chain = HeaderChain::best_of(tree);
    assert_eq!(chain.tip_height(), model.tip().height);
    for entry in model.lineage(model.tip()) {
        assert_eq!(chain.hash(entry.height), Some(&entry.hash));
    }
}

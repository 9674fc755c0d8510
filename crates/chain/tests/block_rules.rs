//! Tests each block rule with a block that violates only that rule, next to its valid twin.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed test")]

use apus_chain::{
    BlockChecker, BlockContext, BlockError, BlockHash, LOCKTIME_THRESHOLD, MAX_MONEY, Network,
    Params, ScriptError, ScriptVerifier, TxError,
};
use bitcoin::absolute::LockTime;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::opcodes::all::{OP_CHECKMULTISIG, OP_CHECKSIG, OP_RETURN};
use bitcoin::script::Builder;
use bitcoin::{
    Amount, Block, OutPoint, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Txid, Witness,
    transaction::Version,
};
use std::path::Path;

const HEIGHT: u32 = 500;
const MEDIAN_TIME_PAST: u32 = 1_600_000_000;
const BLOCK_TIME: u32 = MEDIAN_TIME_PAST + 600;

fn input(n: u8, vout: u32) -> TxIn {
    TxIn {
        previous_output: OutPoint { txid: Txid::from_byte_array([n; 32]), vout },
        script_sig: ScriptBuf::new(),
        sequence: Sequence::ZERO,
        witness: Witness::new(),
    }
}

fn output(sat: u64) -> TxOut {
    TxOut { value: Amount::from_sat(sat), script_pubkey: ScriptBuf::from_bytes(vec![0x51]) }
}

fn tx(inputs: Vec<TxIn>) -> Transaction {
    Transaction {
        version: Version::TWO,
        lock_time: LockTime::ZERO,
        input: inputs,
        output: vec![output(1000)],
    }
}

fn coinbase(height: u32) -> Transaction {
    let script = Builder::new().push_int(height.into()).push_int(0).into_script();
    let mut spend = input(0, u32::MAX);
    spend.script_sig = script;
    tx(vec![spend])
}

fn block(txs: Vec<Transaction>) -> Block {
    let genesis = bitcoin::constants::genesis_block(bitcoin::Network::Regtest);
    let mut block = Block { header: genesis.header, txdata: txs };
    block.header.time = BLOCK_TIME;
    seal(&mut block);
    block
}

fn seal(block: &mut Block) {
    block.header.merkle_root = block.compute_merkle_root().unwrap();
}

/// Adds a witness commitment, like miners.
fn commit(block: &mut Block) {
    block.txdata[0].input[0].witness = Witness::from_slice(&[[0u8; 32]]);
    let root = block.witness_root().unwrap();
    let commitment = Block::compute_witness_commitment(&root, &[0; 32]);
    let mut script = vec![0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed];
    script.extend(commitment.to_byte_array());
    block.txdata[0].output.push(TxOut { value: Amount::ZERO, script_pubkey: script.into() });
    seal(block);
}

fn check_with(block: &Block, params: &Params, height: u32) -> Result<(), BlockError> {
    check_raw(&serialize(block), block, params, height)
}

fn check_raw(raw: &[u8], block: &Block, params: &Params, height: u32) -> Result<(), BlockError> {
    let context = BlockContext {
        params,
        height,
        hash: BlockHash(block.block_hash().to_byte_array()),
        median_time_past: MEDIAN_TIME_PAST,
        verifier: None,
    };
    BlockChecker::new().check(raw, &context).map(|_| ())
}

fn check(block: &Block) -> Result<(), BlockError> {
    check_with(block, Params::of(Network::Regtest), HEIGHT)
}

fn reason(block: &Block) -> &'static str {
    check(block).expect_err("the block breaks a rule").reason()
}

/// Returns the error of `tx` as the second transaction of an otherwise valid block.
fn tx_error(tx: Transaction) -> TxError {
    match check(&block(vec![coinbase(HEIGHT), tx])) {
        Err(BlockError::Tx { tx: 1, error, .. }) => error,
        other => panic!("expected a transaction's error, got {other:?}"),
    }
}

#[test]
fn a_plain_block_is_valid() {
    assert_eq!(check(&block(vec![coinbase(HEIGHT)])), Ok(()));
    assert_eq!(check(&block(vec![coinbase(HEIGHT), tx(vec![input(1, 0), input(1, 1)])])), Ok(()));
}

#[test]
fn another_block_than_expected_is_rejected() {
    let asked = block(vec![coinbase(HEIGHT)]);
    let other = block(vec![coinbase(HEIGHT), tx(vec![input(1, 0)])]);
    let error = check_raw(&serialize(&other), &asked, Params::of(Network::Regtest), HEIGHT);
    assert!(matches!(error, Err(BlockError::OtherBlock { .. })), "{error:?}");
}

#[test]
fn merkle_root_must_match() {
    let mut bad = block(vec![coinbase(HEIGHT)]);
    bad.txdata.push(tx(vec![input(1, 0)]));
    assert_eq!(reason(&bad), "bad-txnmrklroot");
}

#[test]
fn repeated_transactions_are_a_mutation() {
    let mut bad = block(vec![coinbase(HEIGHT), tx(vec![input(1, 0)]), tx(vec![input(2, 0)])]);
    assert_eq!(check(&bad), Ok(()));
    bad.txdata.push(bad.txdata[2].clone());
    assert_eq!(bad.compute_merkle_root().unwrap(), bad.header.merkle_root);
    let error = check(&bad).unwrap_err();
    assert_eq!(error, BlockError::DuplicateTransactions);
    assert!(error.is_damage());
}

/// If two nodes of the merkle tree can be read as a transaction, its id is their parent. So replacing the
/// transactions below them with it leaves the header unchanged.
#[test]
fn merkle_nodes_are_not_a_transaction() {
    for (length, may_be_nodes) in [(63, false), (64, true), (65, false)] {
        let mut node = tx(vec![input(1, 0)]);
        let missing = length - node.base_size();
        node.input[0].script_sig = ScriptBuf::from_bytes(vec![0x51; missing]);
        assert_eq!(node.base_size(), length);
        let error = check(&block(vec![node.clone()])).unwrap_err();
        assert_eq!((error.reason(), error.is_damage()), ("bad-cb-missing", may_be_nodes));
        // The header does not commit to witnesses, so they make no difference.
        node.input[0].witness = Witness::from_slice(&[[1u8; 7]]);
        assert_eq!(check(&block(vec![node.clone()])).unwrap_err().is_damage(), may_be_nodes);
        // After a coinbase, it counts as an ordinary transaction.
        node.input[0].witness = Witness::new();
        assert_eq!(check(&block(vec![coinbase(HEIGHT), node])), Ok(()));
    }
}

#[test]
fn a_block_needs_transactions_and_a_bounded_size() {
    let mut empty = block(vec![coinbase(HEIGHT)]);
    empty.txdata.clear();
    empty.header.merkle_root = bitcoin::TxMerkleNode::all_zeros();
    assert_eq!(reason(&empty), "bad-blk-length");

    let sized = |size: usize| {
        let mut large = coinbase(HEIGHT);
        large.output[0].script_pubkey = vec![0x51; size - 149].into();
        let block = block(vec![large]);
        assert_eq!(serialize(&block).len(), size);
        check(&block)
    };
    assert_eq!(sized(1_000_000), Ok(()));
    assert_eq!(sized(1_000_001), Err(BlockError::Length { txs: 1, size: 1_000_001 }));
    let mut many = coinbase(HEIGHT);
    many.output = vec![output(0); 120_000];
    assert_eq!(reason(&block(vec![many])), "bad-blk-length");
}

#[test]
fn the_coinbase_is_first_and_alone() {
    assert_eq!(reason(&block(vec![tx(vec![input(1, 0)])])), "bad-cb-missing");
    assert_eq!(reason(&block(vec![tx(vec![input(1, 0)]), coinbase(HEIGHT)])), "bad-cb-missing");
    let mut second = coinbase(HEIGHT);
    second.output[0].value = Amount::from_sat(7);
    let error = check(&block(vec![coinbase(HEIGHT), second])).unwrap_err();
    assert_eq!(error, BlockError::CoinbaseMultiple { tx: 1 });
}

#[test]
fn coinbase_script_has_2_to_100_bytes() {
    let with = |length: usize| {
        let mut long = coinbase(HEIGHT);
        let mut script = long.input[0].script_sig.to_bytes();
        script.resize(length, 0);
        long.input[0].script_sig = script.into();
        block(vec![long])
    };
    assert_eq!(check(&with(100)), Ok(()));
    assert_eq!(reason(&with(101)), "bad-cb-length");
    let mut short = coinbase(5);
    short.input[0].script_sig = vec![0x55].into();
    let error = check_with(&block(vec![short]), Params::of(Network::Regtest), 5).unwrap_err();
    assert_eq!(error.reason(), "bad-cb-length");
}

#[test]
fn transactions_have_inputs_and_outputs() {
    let mut bad = tx(vec![input(1, 0)]);
    bad.output.clear();
    assert_eq!(tx_error(bad), TxError::NoOutputs);
    // The bitcoin crate writes a transaction without inputs in the witness form.
    let mut bad = block(vec![coinbase(HEIGHT), tx(vec![])]);
    bad.header.merkle_root = {
        let empty = [&2i32.to_le_bytes()[..], &[0, 0], &[0; 4]].concat();
        let ids = [bad.txdata[0].compute_txid().to_byte_array(), apus_hash::sha256d(&empty)];
        bitcoin::TxMerkleNode::from_byte_array(apus_hash::sha256d(&ids.concat()))
    };
    let mut raw = serialize(&block(vec![coinbase(HEIGHT)]));
    raw[..80].copy_from_slice(&serialize(&bad.header));
    raw[80] = 2;
    raw.extend_from_slice(&[2, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
    let error = check_raw(&raw, &bad, Params::of(Network::Regtest), HEIGHT).unwrap_err();
    assert_eq!(error.reason(), "bad-txns-vin-empty");
}

#[test]
fn amounts_do_not_exceed_the_supply() {
    let with = |values: &[u64]| {
        let mut tx = tx(vec![input(1, 0)]);
        tx.output = values.iter().map(|&value| output(value)).collect();
        tx
    };
    assert_eq!(check(&block(vec![coinbase(HEIGHT), with(&[MAX_MONEY])])), Ok(()));
    assert_eq!(check(&block(vec![coinbase(HEIGHT), with(&[MAX_MONEY - 1, 1])])), Ok(()));
    assert_eq!(
        tx_error(with(&[0, MAX_MONEY + 1])),
        TxError::OutputTooLarge { vout: 1, value: MAX_MONEY as i64 + 1 }
    );
    assert_eq!(tx_error(with(&[MAX_MONEY, 1])), TxError::OutputTotalTooLarge);
    assert_eq!(tx_error(with(&[u64::MAX])), TxError::OutputNegative { vout: 0, value: -1 });
}

/// CVE-2018-17144, with every number of inputs and every pair, compared or sorted.
#[test]
fn no_coin_is_spent_twice_in_a_transaction() {
    for count in 2..14u32 {
        let inputs: Vec<_> = (0..count).map(|vout| input(1, vout)).collect();
        assert_eq!(check(&block(vec![coinbase(HEIGHT), tx(inputs.clone())])), Ok(()));
        for first in 0..count as usize {
            for second in first + 1..count as usize {
                let mut twice = inputs.clone();
                twice[second].previous_output = twice[first].previous_output;
                assert_eq!(tx_error(tx(twice)), TxError::DuplicateInputs);
            }
        }
        let same = vec![input(1, 0); count as usize];
        assert_eq!(tx_error(tx(same)), TxError::DuplicateInputs);
    }
}

/// Coins with equal fingerprints are still different coins.
#[test]
fn different_coins_with_equal_fingerprints_are_accepted() {
    let mut inputs: Vec<_> = (0..12u32).map(|vout| input(1, vout)).collect();
    let start = |n: u64| {
        let mut txid = [7; 32];
        txid[..8].copy_from_slice(&n.to_le_bytes());
        Txid::from_byte_array(txid)
    };
    inputs[3].previous_output = OutPoint { txid: start(5), vout: 1 };
    let same = 5u64.wrapping_sub(0x9e37_79b9_7f4a_7c15);
    inputs[9].previous_output = OutPoint { txid: start(same), vout: 2 };
    assert_eq!(check(&block(vec![coinbase(HEIGHT), tx(inputs.clone())])), Ok(()));
    inputs[4].previous_output = inputs[9].previous_output;
    assert_eq!(tx_error(tx(inputs)), TxError::DuplicateInputs);
}

#[test]
fn only_a_coinbase_has_a_null_input() {
    assert_eq!(
        tx_error(tx(vec![input(1, 0), input(0, u32::MAX)])),
        TxError::NullPrevout { vin: 1 }
    );
    // Only both fields together make the outpoint null.
    let odd = tx(vec![input(0, 0), input(1, u32::MAX)]);
    assert_eq!(check(&block(vec![coinbase(HEIGHT), odd])), Ok(()));
}

#[test]
fn legacy_sigops_are_bounded() {
    let with = |checksigs: usize, multisigs: usize| {
        let mut tx = tx(vec![input(1, 0)]);
        let script: Vec<u8> =
            [vec![OP_CHECKSIG.to_u8(); checksigs / 2], vec![OP_CHECKMULTISIG.to_u8(); multisigs]]
                .concat();
        tx.output[0].script_pubkey = script.into();
        tx.input[0].script_sig = vec![OP_CHECKSIG.to_u8(); checksigs.div_ceil(2)].into();
        block(vec![coinbase(HEIGHT), tx])
    };
    assert_eq!(check(&with(20_000, 0)), Ok(()));
    assert_eq!(check(&with(0, 1_000)), Ok(()));
    assert_eq!(check(&with(20_001, 0)), Err(BlockError::SigOps { cost: 80_004 }));
    let error = check(&with(1, 1_000)).unwrap_err();
    assert_eq!(error.reason(), "bad-blk-sigops");
    assert_eq!(error.reject_reason(), "bad-blk-sigops, out-of-bounds SigOpCount");
}

#[test]
fn lock_times_must_have_passed() {
    let with = |lock_time: u32, sequence: Sequence| {
        let mut tx = tx(vec![input(1, 0)]);
        tx.lock_time = LockTime::from_consensus(lock_time);
        tx.input[0].sequence = sequence;
        block(vec![coinbase(HEIGHT), tx])
    };
    assert_eq!(check(&with(HEIGHT - 1, Sequence::ZERO)), Ok(()));
    assert_eq!(reason(&with(HEIGHT, Sequence::ZERO)), "bad-txns-nonfinal");
    assert_eq!(check(&with(HEIGHT, Sequence::MAX)), Ok(()));
    // From this value on it is a time, which has long passed.
    assert_eq!(reason(&with(LOCKTIME_THRESHOLD - 1, Sequence::ZERO)), "bad-txns-nonfinal");
    assert_eq!(check(&with(LOCKTIME_THRESHOLD, Sequence::ZERO)), Ok(()));
    // BIP-113: the median time past counts, not the block's own time.
    assert_eq!(check(&with(MEDIAN_TIME_PAST - 1, Sequence::ZERO)), Ok(()));
    let late = with(MEDIAN_TIME_PAST, Sequence::ZERO);
    assert_eq!(reason(&late), "bad-txns-nonfinal");
    let mut before_csv = Params::of(Network::Regtest).clone();
    before_csv.csv_height = HEIGHT + 1;
    assert_eq!(check_with(&late, &before_csv, HEIGHT), Ok(()));
    let error = check_with(&with(BLOCK_TIME, Sequence::ZERO), &before_csv, HEIGHT).unwrap_err();
    assert_eq!(error.reason(), "bad-txns-nonfinal");
}

#[test]
fn coinbase_begins_with_the_height() {
    let other = block(vec![coinbase(HEIGHT + 1)]);
    assert_eq!(check(&other), Err(BlockError::CoinbaseHeight));
    let mut params = Params::of(Network::Regtest).clone();
    params.bip34_height = HEIGHT + 1;
    assert_eq!(check_with(&other, &params, HEIGHT), Ok(()));
    params.bip34_height = HEIGHT;
    assert_eq!(check_with(&other, &params, HEIGHT), Err(BlockError::CoinbaseHeight));
}

fn with_witness() -> Block {
    let mut spend = tx(vec![input(1, 0)]);
    spend.input[0].witness = Witness::from_slice(&[[1u8; 10]]);
    block(vec![coinbase(HEIGHT), spend])
}

#[test]
fn witnesses_need_a_commitment() {
    let mut good = with_witness();
    let bare = check(&good).unwrap_err();
    assert_eq!(bare.reason(), "unexpected-witness");
    assert!(bare.is_damage());
    commit(&mut good);
    assert_eq!(check(&good), Ok(()));
    // Before segwit a commitment has no meaning, and witnesses are not expected.
    let mut params = Params::of(Network::Regtest).clone();
    params.segwit_height = HEIGHT + 1;
    assert_eq!(check_with(&good, &params, HEIGHT).unwrap_err().reason(), "unexpected-witness");
}

#[test]
fn witnesses_must_match_the_commitment() {
    let mut bad = with_witness();
    commit(&mut bad);
    bad.txdata[1].input[0].witness = Witness::from_slice(&[[2u8; 10]]);
    let error = check(&bad).unwrap_err();
    assert_eq!(error, BlockError::WitnessMerkleMatch);
    assert!(error.is_damage());
}

/// A checker that skips witnesses accepts and hides any witnesses; above the given height it checks them.
#[test]
fn skipped_witnesses_make_no_difference() {
    let mut good = with_witness();
    commit(&mut good);
    let (mut other, mut many, mut none) = (good.clone(), good.clone(), good.clone());
    other.txdata[1].input[0].witness = Witness::from_slice(&[[2u8; 10]]);
    many.txdata[1].input[0].witness = Witness::from_slice(&[vec![1; 3_900_000]]);
    none.txdata.iter_mut().for_each(|tx| tx.input[0].witness.clear());
    let (mut leaving, params) = (BlockChecker::new(), Params::of(Network::Regtest));
    let mut check = |block: &Block, up_to: u32| {
        leaving.leave_witnesses(up_to);
        let hash = BlockHash(block.block_hash().to_byte_array());
        let median_time_past = MEDIAN_TIME_PAST;
        let context =
            BlockContext { params, height: HEIGHT, hash, median_time_past, verifier: None };
        let raw = serialize(block);
        let checked = leaving.check(&raw, &context)?;
        let ids: Vec<_> = checked.txs().map(|(txid, _)| txid).collect();
        Ok::<_, BlockError>((ids, checked.view().txs().map(|tx| tx.witness().len()).sum::<usize>()))
    };
    let (ids, shown) = check(&good, HEIGHT - 1).unwrap();
    assert!(shown > 0);
    for block in [&good, &other, &many, &none] {
        assert_eq!(check(block, HEIGHT), Ok((ids.clone(), 0)));
    }
    assert_eq!(check(&other, HEIGHT - 1), Err(BlockError::WitnessMerkleMatch));
    assert_eq!(check(&none, HEIGHT - 1), Err(BlockError::WitnessNonceSize));
    // The witnesses of the next block are checked again.
    assert_eq!(check(&good, 0), Ok((ids, shown)));
    // All other parts are still checked.
    let mut bad = good;
    bad.txdata[1].output[0].value = Amount::MAX;
    assert_eq!(check(&bad, HEIGHT).unwrap_err().reason(), "bad-txnmrklroot");
}

#[test]
fn the_coinbase_witness_is_one_item_of_32_bytes() {
    for stack in [&[][..], &[&[0u8; 31][..]], &[&[0u8; 33]], &[&[0u8; 32], &[0u8; 32]]] {
        let mut bad = with_witness();
        commit(&mut bad);
        bad.txdata[0].input[0].witness = Witness::from_slice(stack);
        assert_eq!(check(&bad), Err(BlockError::WitnessNonceSize), "{} items", stack.len());
    }
}

/// An interpreter that returns the same result for every script.
struct Says(Result<(), ScriptError>);

impl ScriptVerifier for Says {
    fn verify(&self, _: &[u8], _: u64, _: &[u8], _: usize, _: u32) -> Result<(), ScriptError> {
        self.0.clone()
    }
}

/// BIP-325: the interpreter decides on a signet block's solution. Without an interpreter or a
/// solution, the block is rejected.
#[test]
fn a_signet_block_needs_a_solution() {
    let check_signed = |block: &Block, network: Network, verifier: Option<&dyn ScriptVerifier>| {
        let context = BlockContext {
            params: Params::of(network),
            height: HEIGHT,
            hash: BlockHash(block.block_hash().to_byte_array()),
            median_time_past: MEDIAN_TIME_PAST,
            verifier,
        };
        BlockChecker::new().check(&serialize(block), &context).map(|_| ())
    };
    let mut signed = with_witness();
    commit(&mut signed);
    let (yes, no) = (Says(Ok(())), Says(Err(ScriptError::Invalid)));
    assert_eq!(check_signed(&signed, Network::Signet, Some(&yes)), Ok(()));
    // The transactions match the header, so no other copy of the block has another solution.
    let error = check_signed(&signed, Network::Signet, Some(&no)).unwrap_err();
    assert_eq!(error, BlockError::Unsigned(ScriptError::Invalid.to_string()));
    assert_eq!((error.reason(), error.is_damage()), ("bad-signet-blksig", false));
    // The transactions do not match, so another copy may have a valid solution.
    let mut copies = [signed.clone(), signed.clone(), signed.clone()];
    copies[0].txdata[0].output[0].value = Amount::from_sat(1);
    let last = copies[1].txdata.last().unwrap().clone();
    copies[1].txdata.push(last);
    copies[2].txdata.remove(0);
    for copy in &copies {
        let error = check_signed(copy, Network::Signet, Some(&no)).unwrap_err();
        assert!(matches!(error, BlockError::SignetSolution(_)), "{error}");
        assert_eq!((error.reason(), error.is_damage()), ("bad-signet-blksig", true));
    }
    let error = check_signed(&signed, Network::Signet, None).unwrap_err();
    assert_eq!(error, BlockError::SignetSolution("no script interpreter".to_owned()));
    assert!(error.is_damage(), "the solution is unverified");
    let error = check_signed(&block(vec![coinbase(HEIGHT)]), Network::Signet, Some(&yes));
    assert_eq!(error.unwrap_err().reason(), "bad-signet-blksig", "no place for a solution");
    for verifier in [None, Some(&no as &dyn ScriptVerifier)] {
        assert_eq!(check_signed(&signed, Network::Regtest, verifier), Ok(()));
    }
}

/// BIP-141: if several outputs look like commitments, the last one counts.
#[test]
fn the_last_commitment_counts() {
    let mut good = with_witness();
    let mut decoy = vec![0x6a, 0x24, 0xaa, 0x21, 0xa9, 0xed];
    decoy.extend([7; 32]);
    let decoy = TxOut { value: Amount::ZERO, script_pubkey: decoy.into() };
    good.txdata[0].output.push(decoy.clone());
    commit(&mut good);
    assert_eq!(check(&good), Ok(()));
    let mut bad = good;
    bad.txdata[0].output.push(decoy);
    seal(&mut bad);
    assert_eq!(check(&bad), Err(BlockError::WitnessMerkleMatch));
}

#[test]
fn weight_is_bounded() {
    let with = |witness: usize| {
        let mut heavy = with_witness();
        heavy.txdata[1].input[0].witness = Witness::from_slice(&[vec![0u8; witness]]);
        commit(&mut heavy);
        heavy
    };
    let probe = with(1_000_000);
    let room = 4_000_000 - probe.weight().to_wu() as usize;
    assert_eq!(check(&with(1_000_000 + room)), Ok(()));
    assert_eq!(check(&with(1_000_000 + room + 1)), Err(BlockError::Weight { weight: 4_000_001 }));
    let mut large = tx(vec![input(1, 0)]);
    large.output[0].script_pubkey = Builder::new().push_opcode(OP_RETURN).into_script();
    assert_eq!(check(&block(vec![coinbase(HEIGHT), large])), Ok(()));
}

/// Real main-chain blocks of every era pass at their height.
#[test]
fn real_blocks_pass() {
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../fixtures/main-blocks");
    let mut checked = 0;
    for entry in std::fs::read_dir(folder).unwrap() {
        let path = entry.unwrap().path();
        let name = path.file_stem().unwrap().to_string_lossy().into_owned();
        if path.extension().is_none_or(|extension| extension != "raw") {
            continue;
        }
        let (height, hash) = name.split_once('_').unwrap();
        let raw = std::fs::read(&path).unwrap();
        let view_time = u32::from_le_bytes(raw[68..72].try_into().unwrap());
        let context = BlockContext {
            params: Params::of(Network::Main),
            height: height.parse().unwrap(),
            hash: hash.parse().unwrap(),
            // The previous blocks are not available; the median time past is about an hour earlier.
            median_time_past: view_time - 3600,
            verifier: None,
        };
        if let Err(error) = BlockChecker::new().check(&raw, &context) {
            panic!("{name}: {error}");
        }
        checked += 1;
    }
    assert!(checked >= 10);
}

/// Introduces one error into the block's serialization.
#[test]
fn invalid_bytes_fail_with_cores_messages() {
    let valid = block(vec![coinbase(HEIGHT)]);
    let raw = serialize(&valid);
    let reason = |raw: &[u8]| {
        let error = check_raw(raw, &valid, Params::of(Network::Regtest), HEIGHT).unwrap_err();
        assert!(matches!(error, BlockError::Decode(_)), "{error:?}");
        assert_eq!(error.reject_reason(), error.reason());
        error.reason()
    };
    let with = |from: usize, to: usize, bytes: &[u8]| [&raw[..from], bytes, &raw[to..]].concat();
    assert_eq!(reason(&raw[..raw.len() - 1]), "DataStream::read(): end of data");
    assert_eq!(reason(&with(80, 81, &[0xfd, 1, 0])), "non-canonical ReadCompactSize()");
    assert_eq!(reason(&with(85, 86, &[0xfe, 1, 0, 0, 0])), "non-canonical ReadCompactSize()");
    assert_eq!(reason(&with(80, 81, &[0xfe, 1, 0, 0, 2])), "ReadCompactSize(): size too large");
    assert_eq!(reason(&with(85, 85, &[0, 2])), "Unknown transaction optional data");
    let no_witness = [&raw[..85], &[0, 1], &raw[85..raw.len() - 4], &[0], &raw[raw.len() - 4..]];
    assert_eq!(reason(&no_witness.concat()), "Superfluous witness record");
    // Bytes after the block are not part of it and are ignored.
    let followed = [&raw[..], &[0]].concat();
    assert_eq!(check_raw(&followed, &valid, Params::of(Network::Regtest), HEIGHT), Ok(()));
    // One transaction has one input, whose script alone has as many bytes as a block may have.
    let script = [&0x3d_0900_u32.to_le_bytes()[..], &[0; 4_000_100]].concat();
    let long = [&raw[..80], &[1, 1, 0, 0, 0, 1], &[0; 36], &[0xfe], &script].concat();
    assert_eq!(reason(&long), "bad-blk-length");
}

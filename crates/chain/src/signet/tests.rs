use super::*;
use crate::params::Network;
use bitcoin::consensus::{deserialize, serialize};
use bitcoin::hashes::Hash as _;
use std::borrow::Cow;
use std::sync::Mutex;

/// The blocks of the default signet, heights 0 to 120.
fn blocks() -> Vec<bitcoin::Block> {
    let path = "/../../fixtures/signet-120/blocks/blk00000.dat";
    let bytes = std::fs::read(format!("{}{path}", env!("CARGO_MANIFEST_DIR"))).unwrap();
    let mut reader = Reader::new(&bytes);
    let mut blocks = Vec::new();
    while reader.remaining() > 0 {
        assert_eq!(reader.array::<4>().unwrap(), &Network::Signet.magic());
        let size = reader.u32().unwrap() as usize;
        blocks.push(deserialize(reader.take(size).unwrap()).unwrap());
    }
    blocks
}

struct Parts {
    header: Header,
    coinbase: Vec<u8>,
    txids: Vec<Txid>,
}

impl Parts {
    fn of(block: &bitcoin::Block) -> Self {
        let header = serialize(&block.header);
        Self {
            header: Header::parse(header.as_slice().try_into().unwrap()),
            coinbase: serialize(&block.txdata[0]),
            txids: block.txdata.iter().map(|tx| Txid(tx.compute_txid().to_byte_array())).collect(),
        }
    }

    fn spend(&self, params: &Params) -> Result<Option<SignetSpend>, SignetError> {
        signet_spend(params, &self.header, &self.coinbase, &self.txids)
    }
}

/// Block 1 with a changed script in the last output of its coinbase.
fn with_commitment(change: impl FnOnce(Vec<u8>) -> Vec<u8>) -> Parts {
    let mut block = blocks().swap_remove(1);
    let outputs = &mut block.txdata[0].output;
    let at = outputs.iter().rposition(|o| witness_commitment(o.script_pubkey.as_bytes()).is_some());
    let script = &mut outputs[at.unwrap()].script_pubkey;
    *script = change(script.to_bytes()).into();
    Parts::of(&block)
}

/// Replaces the solution of block 1; returns the fault or the spend.
fn with_solution(solution: &[u8]) -> Result<SignetSpend, SignetFault> {
    let parts = with_commitment(|script| {
        let mut script = script[..38].to_vec();
        write_push(&mut script, &[&SIGNET_HEADER, solution].concat());
        script
    });
    let spend = parts.spend(Params::of(Network::Signet)).map_err(|error| error.fault)?;
    Ok(spend.unwrap())
}

#[test]
fn the_spend_of_every_block_matches_bip325() {
    let params = Params::of(Network::Signet);
    for block in &blocks()[1..] {
        let parts = Parts::of(block);
        let spend = parts.spend(params).unwrap().unwrap();
        let to_spend: bitcoin::Transaction = deserialize(&spend.to_spend).unwrap();
        let to_sign: bitcoin::Transaction = deserialize(&spend.to_sign).unwrap();
        assert_eq!(spend.challenge, **params.signet_challenge.as_ref().unwrap());
        assert_eq!(to_spend.output[0].script_pubkey.as_bytes(), spend.challenge);
        assert!(to_spend.input[0].previous_output.is_null());
        assert_eq!(to_sign.input[0].previous_output.txid, to_spend.compute_txid());
        assert_eq!(to_sign.input[0].previous_output.vout, 0);
        assert_eq!(to_sign.output[0].script_pubkey.as_bytes(), [OP_RETURN]);
        assert!(to_sign.input[0].script_sig.len() > 70, "a signature");
        for tx in [&to_spend, &to_sign] {
            assert_eq!((tx.version.0, tx.lock_time.to_consensus_u32()), (0, 0));
            assert_eq!((tx.input.len(), tx.output.len()), (1, 1));
            assert_eq!(tx.input[0].sequence.0, 0);
            assert_eq!(tx.output[0].value.to_sat(), 0);
        }
        // The 72 signed bytes: the header without target and nonce, with the changed root.
        let signed = &to_spend.input[0].script_sig.as_bytes()[2..];
        let header = parts.header.to_bytes();
        assert_eq!((signed.len(), &signed[..36]), (72, &header[..36]));
        assert_eq!(signed[68..], header[68..72]);
        assert_ne!(signed[36..68], header[36..68]);
    }
}

#[test]
fn the_witness_of_the_coinbase_does_not_matter() {
    let params = Params::of(Network::Signet);
    let mut block = blocks().swap_remove(5);
    let whole = Parts::of(&block).spend(params);
    block.txdata[0].input[0].witness.clear();
    assert_eq!(Parts::of(&block).spend(params), whole);
}

#[test]
fn other_chains_and_genesis_need_no_solution() {
    let blocks = blocks();
    assert_eq!(Parts::of(&blocks[0]).spend(Params::of(Network::Signet)), Ok(None));
    for network in [Network::Main, Network::Testnet3, Network::Testnet4, Network::Regtest] {
        assert_eq!(Parts::of(&blocks[1]).spend(Params::of(network)), Ok(None));
    }
    // A signet with a different challenge but the same genesis block exempts only that block.
    let mut params = Params::of(Network::Signet).clone();
    params.signet_challenge = Some(Cow::Owned(vec![0x51]));
    assert_eq!(Parts::of(&blocks[0]).spend(&params), Ok(None));
    let spend = Parts::of(&blocks[1]).spend(&params).unwrap().unwrap();
    assert_eq!(spend.challenge, [0x51]);
}

#[test]
fn a_block_without_witness_commitment_is_refused() {
    let parts = with_commitment(|mut script| {
        script[2] ^= 1;
        script
    });
    let error = parts.spend(Params::of(Network::Signet)).unwrap_err();
    assert_eq!(error.fault, SignetFault::NoWitnessCommitment);
    assert!(error.to_string().contains(&parts.header.hash().to_string()));
}

/// BIP-141: of several commitments the last one counts, and so does its solution.
#[test]
fn the_last_commitment_holds_the_solution() {
    let mut block = blocks().swap_remove(1);
    let outputs = &mut block.txdata[0].output;
    let at = outputs.iter().rposition(|o| witness_commitment(o.script_pubkey.as_bytes()).is_some());
    let mut second = outputs[at.unwrap()].clone();
    let mut script = second.script_pubkey.to_bytes()[..38].to_vec();
    write_push(&mut script, &[&SIGNET_HEADER[..], &[1, 0x77, 0]].concat());
    second.script_pubkey = script.into();
    outputs.push(second);
    let spend = Parts::of(&block).spend(Params::of(Network::Signet)).unwrap().unwrap();
    let to_sign: bitcoin::Transaction = deserialize(&spend.to_sign).unwrap();
    assert_eq!(to_sign.input[0].script_sig.as_bytes(), [0x77]);
}

#[test]
fn a_missing_solution_counts_as_an_empty_one() {
    let params = Params::of(Network::Signet);
    for (push, why) in [(&[][..], "no push"), (&[4, 0xec, 0xc7, 0xda, 0xa2], "the header alone")] {
        let parts = with_commitment(|script| [&script[..38], push].concat());
        let spend = parts.spend(params).unwrap().unwrap();
        let to_sign: bitcoin::Transaction = deserialize(&spend.to_sign).unwrap();
        assert!(to_sign.input[0].script_sig.is_empty(), "{why}");
        assert!(to_sign.input[0].witness.is_empty(), "{why}");
        // Without a solution to remove, the root is the block's own.
        let to_spend: bitcoin::Transaction = deserialize(&spend.to_spend).unwrap();
        let leaves: Vec<[u8; 32]> = parts.txids.iter().map(|txid| txid.0).collect();
        let root = merkle_root(&leaves, &mut MerkleScratch::default()).root;
        assert_eq!(to_spend.input[0].script_sig.as_bytes()[38..70], root, "{why}");
    }
}

#[test]
fn a_solution_is_exactly_a_script_and_a_witness() {
    let good = with_solution(&[2, 0x51, 0x52, 1, 3, 7, 8, 9]).unwrap();
    let to_sign: bitcoin::Transaction = deserialize(&good.to_sign).unwrap();
    assert_eq!(to_sign.input[0].script_sig.as_bytes(), [0x51, 0x52]);
    assert_eq!(to_sign.input[0].witness.to_vec(), [[7, 8, 9]]);

    let bad = |solution: &[u8]| match with_solution(solution).unwrap_err() {
        SignetFault::Solution(error) => error,
        other => panic!("{other}"),
    };
    assert_eq!(bad(&[0, 0, 0]), ReadError::Trailing { offset: 2, count: 1 });
    assert_eq!(bad(&[0, 1, 0, 9]), ReadError::Trailing { offset: 3, count: 1 });
    assert_eq!(bad(&[0]), ReadError::End { offset: 1, needed: 1 });
    assert_eq!(bad(&[2, 1]), ReadError::End { offset: 1, needed: 2 });
    assert_eq!(bad(&[0, 0xfd, 0, 0]), ReadError::NonCanonical { offset: 1 });
    assert!(matches!(bad(&[0, 0xfe, 0, 0, 0, 3]), ReadError::TooLarge { offset: 1, .. }));
    // A huge count allocates no memory before its items are read.
    assert!(matches!(bad(&[0, 0xfe, 0, 0, 0, 2]), ReadError::End { .. }));
}

/// Returns the script that Core's rewriting produces, and the solution that it finds.
#[test]
fn the_commitment_is_rewritten_without_the_solution() {
    let push = |data: &[u8]| {
        let mut script = Vec::new();
        write_push(&mut script, data);
        script
    };
    let header = push(&SIGNET_HEADER);
    let with = |data: &[u8]| [&SIGNET_HEADER, data].concat();
    let both = |script: &[u8], cleared: &[u8], solution: &[u8]| {
        assert_eq!(take_solution(script), Some((cleared.to_vec(), solution.to_vec())));
    };
    both(&push(&with(b"x")), &header, b"x");
    // Pushes are written in their shortest form, before and after the solution.
    let long = [OP_PUSHDATA2, 5, 0, 0xec, 0xc7, 0xda, 0xa2, b'x'];
    both(&long, &header, b"x");
    both(
        &[&[OP_PUSHDATA4, 1, 0, 0, 0, 9][..], &long].concat(),
        &[&[1, 9][..], &header].concat(),
        b"x",
    );
    // Empty pushes keep their opcode and lose their length.
    both(
        &[&[OP_PUSHDATA1, 0, OP_0, OP_RETURN][..], &long].concat(),
        &[&[OP_PUSHDATA1, OP_0, OP_RETURN][..], &header].concat(),
        b"x",
    );
    // Only the first solution is removed.
    both(
        &[push(&with(b"x")), push(&with(b"y"))].concat(),
        &[header.clone(), push(&with(b"y"))].concat(),
        b"x",
    );
    both(
        &[header.clone(), push(&with(b"y"))].concat(),
        &[header.clone(), header.clone()].concat(),
        b"y",
    );
    // All bytes after a push beyond the end are dropped.
    both(
        &[push(&with(b"x")), vec![0x51, 5, 1, 2]].concat(),
        &[header.clone(), vec![0x51]].concat(),
        b"x",
    );
    for size in [0x4bu32, 0x4c, 0xff, 0x100, 0xffff, 0x1_0000] {
        let solution = vec![7; size as usize];
        both(&push(&with(&solution)), &header, &solution);
    }
    // Without a solution, the script does not change.
    for script in [&[][..], &header, &[OP_PUSHDATA1, 0, 0x51], &[9, 0xec, 0xc7, 0xda, 0xa2, 1]] {
        assert_eq!(take_solution(script), None);
    }
}

#[test]
fn a_truncated_coinbase_is_always_an_error() {
    let parts = with_commitment(|script| script);
    let params = Params::of(Network::Signet);
    let spend = |coinbase: &[u8]| signet_spend(params, &parts.header, coinbase, &parts.txids);
    assert!(spend(&parts.coinbase).is_ok());
    for length in 0..parts.coinbase.len() {
        let fault = spend(&parts.coinbase[..length]).unwrap_err().fault;
        assert!(matches!(fault, SignetFault::Coinbase(_)), "{length}: {fault}");
    }
    let longer = [&parts.coinbase[..], &[0]].concat();
    assert!(matches!(spend(&longer).unwrap_err().fault, SignetFault::Coinbase(_)));
    let mut flag = parts.coinbase.clone();
    assert_eq!(flag[4..6], [0, 1]);
    flag[5] = 2;
    assert_eq!(spend(&flag).unwrap_err().fault, SignetFault::CoinbaseFlag(2));
    let none = signet_spend(params, &parts.header, &parts.coinbase, &[]).unwrap_err();
    assert_eq!(none.fault, SignetFault::NoTransactions);
}

/// The check passes the right arguments to a verifier and returns its result.
#[test]
fn the_verifier_is_called_once_and_decides() {
    type Call = (Vec<u8>, u64, Vec<u8>, usize, u32);
    struct Asked(Mutex<Vec<Call>>, Result<(), ScriptError>);
    impl ScriptVerifier for Asked {
        fn verify(
            &self,
            script_pubkey: &[u8],
            amount: u64,
            tx: &[u8],
            input: usize,
            flags: u32,
        ) -> Result<(), ScriptError> {
            let call = (script_pubkey.to_vec(), amount, tx.to_vec(), input, flags);
            self.0.lock().unwrap().push(call);
            self.1.clone()
        }
    }
    let params = Params::of(Network::Signet);
    let parts = with_commitment(|script| script);
    let spend = parts.spend(params).unwrap().unwrap();
    for answer in [Ok(()), Err(ScriptError::Invalid)] {
        let verifier = Asked(Mutex::default(), answer.clone());
        let result =
            check_signet_solution(params, &parts.header, &parts.coinbase, &parts.txids, &verifier);
        assert_eq!(result.map_err(|error| error.fault), answer.map_err(SignetFault::Script));
        let calls = verifier.0.into_inner().unwrap();
        let flags = VERIFY_P2SH | VERIFY_WITNESS | VERIFY_DERSIG | VERIFY_NULLDUMMY;
        assert_eq!(calls, [(spend.challenge.clone(), 0, spend.to_sign.clone(), 0, flags)]);
    }
}

//! A coinbase with a signet solution: the signed transaction spends the other one.
//!
//! Inputs: at most 4096 bytes.

#![no_main]

use apus_chain::{Header, Network, Params, Txid, signet_spend};
use apus_fuzz::Input;
use bitcoin::Transaction;
use bitcoin::consensus::encode::Error;
use bitcoin::consensus::{deserialize, serialize};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let txids = vec![Txid([7; 32]); usize::from(input.u8() % 8)];
    let header = Header::parse(&input.array());
    let coinbase = input.rest();
    let Ok(Some(spend)) = signet_spend(Params::of(Network::Signet), &header, coinbase, &txids)
    else {
        return;
    };
    let theirs: Transaction = match deserialize(coinbase) {
        Ok(transaction) => transaction,
        // Parsing the block would have found that.
        Err(Error::ParseFailed("witness flag set but no witnesses present")) => return,
        Err(error) => panic!("only we accept it: {error}"),
    };
    assert!(theirs.output.iter().any(|output| output.script_pubkey.len() >= 38));
    let to_spend: Transaction = deserialize(&spend.to_spend).expect("we wrote a transaction");
    assert_eq!(to_spend.output[0].script_pubkey.as_bytes(), spend.challenge);
    // In Core, too, a solution whose witness items are all empty counts as one with a witness.
    let to_sign: Transaction = deserialize(&spend.to_sign).expect("we wrote a transaction");
    assert!(serialize(&to_sign) == spend.to_sign);
    assert_eq!(to_sign.input[0].previous_output.txid, to_spend.compute_txid());
    assert_eq!((to_sign.input.len(), to_sign.output.len()), (1, 1));
});

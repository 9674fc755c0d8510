//! Utreexo leaf data, next to an input: the `bitcoin` crate derives the same script from that input, and the coin,
//! written back, reads the same and is not longer.
//!
//! Inputs: at most 11000 bytes.

#![no_main]

use apus_chain::{MAX_MONEY, MAX_SCRIPT_SIZE, Reader};
use apus_fuzz::Input;
use apus_utreexo::{CompactLeaf, Spender, write_compact_leaf};
use bitcoin::hashes::Hash;
use bitcoin::script::Instruction;
use bitcoin::{PubkeyHash, Script, ScriptBuf, ScriptHash, WPubkeyHash, WScriptHash};
use libfuzzer_sys::fuzz_target;

fuzz_target!(|data: &[u8]| {
    let mut input = Input::new(data);
    let (sig_length, top_length) = (usize::from(input.u8()), usize::from(input.u8()));
    let rest = input.rest();
    let (script_sig, rest) = rest.split_at(sig_length.min(rest.len()));
    let (top, bytes) = rest.split_at(top_length.min(rest.len()));
    let spender = Spender { script_sig, witness_top: (top_length > 0).then_some(top) };

    let mut reader = Reader::new(bytes);
    let Ok(leaf) = CompactLeaf::read(&mut reader, &spender) else { return };
    let coin = leaf.coin();
    assert!(coin.amount <= MAX_MONEY && coin.script.len() <= MAX_SCRIPT_SIZE);
    assert_eq!(bytes[..4], (coin.height * 2 + u32::from(coin.coinbase)).to_le_bytes());
    assert_eq!(bytes[4..12], coin.amount.to_le_bytes());
    match bytes[12] {
        0 => assert!(bytes[..reader.position()].ends_with(coin.script)),
        form => assert_eq!(coin.script, oracle(form, &spender).expect("a form").as_bytes()),
    }
    let mut again = Vec::new();
    write_compact_leaf(&mut again, coin, &spender).expect("a coin that was read");
    assert!(again.len() <= reader.position());
    let mut reader = Reader::new(&again);
    assert_eq!(CompactLeaf::read(&mut reader, &spender).as_ref(), Ok(&leaf));
    assert_eq!(reader.remaining(), 0);
});

fn oracle(form: u8, spender: &Spender<'_>) -> Option<ScriptBuf> {
    let pushed = last_push(Script::from_bytes(spender.script_sig));
    Some(match form {
        1 => ScriptBuf::new_p2pkh(&PubkeyHash::hash(&pushed?)),
        2 => ScriptBuf::new_p2wpkh(&WPubkeyHash::hash(spender.witness_top?)),
        3 => ScriptBuf::new_p2sh(&ScriptHash::hash(&pushed?)),
        4 => ScriptBuf::new_p2wsh(&WScriptHash::hash(spender.witness_top?)),
        _ => return None,
    })
}

fn last_push(script: &Script) -> Option<Vec<u8>> {
    let last = script.instructions().last().transpose().ok()?;
    script.is_push_only().then(|| match last {
        Some(Instruction::PushBytes(bytes)) => bytes.as_bytes().to_vec(),
        _ => Vec::new(),
    })
}

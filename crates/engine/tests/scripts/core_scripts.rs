//! Core's `script_tests.json`: pairs of scripts, with consensus and relay rules.
//!
//! Every case that passes must also pass without its relay rules, which can only reject. A failing
//! case is run if none of its relay rules can be the cause; then it must fail in the same way.

use crate::text::{ALL, CONSENSUS, all_sets, fill, flags, script, trim, unhex, vectors};
use crate::{coin, verify};
use apus_chain::{MAX_SCRIPT_SIZE, ScriptError};
use apus_engine::script::{ScriptFailure, script_verifier};
use bitcoin::key::{Secp256k1, UntweakedPublicKey};
use bitcoin::taproot::{LeafVersion, TaprootBuilder};
use bitcoin::{Amount, ScriptBuf, Sequence, Transaction, TxIn, TxOut, Witness};
use serde_json::Value;

struct Case {
    text: String,
    amount: u64,
    witness: Vec<Vec<u8>>,
    script_sig: Vec<u8>,
    script_pubkey: Vec<u8>,
    flags: u32,
    relay_rules: usize,
    expected: String,
}

impl Case {
    /// Reads a case; `None` for a comment line.
    fn read(line: &Value) -> Option<Self> {
        let mut fields = line.as_array().unwrap().iter();
        let (mut witness, mut amount, mut taproot) = (Vec::<Vec<u8>>::new(), 0, None);
        if line[0].is_array() {
            let parts = fields.next().unwrap().as_array().unwrap();
            let (last, items) = parts.split_last().unwrap();
            amount = Amount::from_btc(last.as_f64().unwrap()).unwrap().to_sat();
            for item in items {
                let item = item.as_str().unwrap();
                let bytes = if let Some(text) = item.strip_prefix("#SCRIPT#") {
                    script(text)
                } else if item == "#CONTROLBLOCK#" {
                    let (control, output) = commit(witness.last().unwrap());
                    taproot = Some(output);
                    control
                } else {
                    unhex(item)
                };
                witness.push(bytes);
            }
        }
        let texts: Vec<&str> = fields.map(|field| field.as_str().unwrap()).collect();
        let [script_sig, script_pubkey, names, expected, ..] = texts[..] else {
            assert_eq!(texts.len(), 1, "{line}");
            return None;
        };
        let script_pubkey = match script_pubkey {
            "0x51 0x20 #TAPROOTOUTPUT#" => taproot.unwrap(),
            text => script(text),
        };
        let (flags, relay_rules) = flags(names);
        Some(Self {
            text: line.to_string(),
            amount,
            witness,
            script_sig: script(script_sig),
            script_pubkey,
            flags,
            relay_rules,
            expected: expected.to_owned(),
        })
    }

    /// Returns the transaction that spends the output of the preceding one.
    fn spend(&self) -> Vec<u8> {
        let version = bitcoin::transaction::Version::ONE;
        let lock_time = bitcoin::absolute::LockTime::ZERO;
        let sequence = Sequence::MAX;
        let pays = |script_pubkey: Vec<u8>| {
            let value = Amount::from_sat(self.amount);
            vec![TxOut { value, script_pubkey: script_pubkey.into() }]
        };
        let input = TxIn { script_sig: script("0 0").into(), sequence, ..TxIn::default() };
        let output = pays(self.script_pubkey.clone());
        let credit = Transaction { version, lock_time, input: vec![input], output };
        let input = TxIn {
            previous_output: bitcoin::OutPoint { txid: credit.compute_txid(), vout: 0 },
            script_sig: self.script_sig.clone().into(),
            sequence,
            witness: Witness::from_slice(&self.witness),
        };
        let spend = Transaction { version, lock_time, input: vec![input], output: pays(vec![]) };
        bitcoin::consensus::serialize(&spend)
    }

    fn run(&self, flags: u32) -> Result<(), ScriptFailure> {
        if self.script_pubkey.len() <= MAX_SCRIPT_SIZE {
            return verify(self.spend(), vec![coin(&self.script_pubkey, self.amount)], flags);
        }
        // This output is never a coin: a script of this length cannot be stored.
        let verifier = script_verifier().unwrap();
        let result = verifier.verify(&self.script_pubkey, self.amount, &self.spend(), 0, flags);
        result.map_err(|error| ScriptFailure { tx_index: 1, input: 0, error, name: None })
    }

    /// Returns whether a relay rule can cause the expected failure.
    fn may_be_relay_rule(&self) -> bool {
        // STRICTENC: encodings. MINIMALDATA: numbers too. The others have one error each.
        const OF_RELAY: &[&str] = &[
            "SIG_DER",
            "SIG_HASHTYPE",
            "SIG_HIGH_S",
            "SIG_PUSHONLY",
            "PUBKEYTYPE",
            "MINIMALDATA",
            "SCRIPTNUM",
            "MINIMALIF",
            "CLEANSTACK",
            "NULLFAIL",
            "WITNESS_PUBKEYTYPE",
        ];
        let discouraged = self.expected.starts_with("DISCOURAGE_");
        self.relay_rules > 0 && (discouraged || OF_RELAY.contains(&self.expected.as_str()))
    }
}

/// Returns the control block of a tree with one leaf under Core's test key 0, and the output's
/// script.
fn commit(leaf: &[u8]) -> (Vec<u8>, Vec<u8>) {
    let secp = Secp256k1::new();
    let leaf = ScriptBuf::from(leaf.to_vec());
    let generator = "79be667ef9dcbbac55a06295ce870b07029bfcdb2dce28d959f2815b16f81798";
    let key: UntweakedPublicKey = generator.parse().unwrap();
    let tree = TaprootBuilder::new().add_leaf(0, leaf.clone()).unwrap();
    let tree = tree.finalize(&secp, key).unwrap();
    let control = tree.control_block(&(leaf, LeafVersion::TapScript)).unwrap();
    (control.serialize(), ScriptBuf::new_p2tr_tweaked(tree.output_key()).into_bytes())
}

/// Returns Core's text for a name in the file (Core `script_tests.cpp`, `script_errors`).
fn words(name: &str) -> &'static str {
    match name {
        "EVAL_FALSE" => {
            "Script evaluated without error but finished with a false/empty top stack element"
        }
        "OP_RETURN" => "OP_RETURN was encountered",
        "SCRIPTNUM" => "Script number overflowed or is non-minimally encoded",
        "SCRIPT_SIZE" => "Script is too big",
        "PUSH_SIZE" => "Push value size limit exceeded",
        "OP_COUNT" => "Operation limit exceeded",
        "STACK_SIZE" => "Stack size limit exceeded",
        "SIG_COUNT" => "Signature count negative or greater than pubkey count",
        "PUBKEY_COUNT" => "Pubkey count negative or limit exceeded",
        "VERIFY" => "Script failed an OP_VERIFY operation",
        "EQUALVERIFY" => "Script failed an OP_EQUALVERIFY operation",
        "NUMEQUALVERIFY" => "Script failed an OP_NUMEQUALVERIFY operation",
        "BAD_OPCODE" => "Opcode missing or not understood",
        "DISABLED_OPCODE" => "Attempted to use a disabled opcode",
        "INVALID_STACK_OPERATION" => "Operation not valid with the current stack size",
        "INVALID_ALTSTACK_OPERATION" => "Operation not valid with the current altstack size",
        "UNBALANCED_CONDITIONAL" => "Invalid OP_IF construction",
        "NEGATIVE_LOCKTIME" => "Negative locktime",
        "UNSATISFIED_LOCKTIME" => "Locktime requirement not satisfied",
        "SIG_DER" => "Non-canonical DER signature",
        "SIG_PUSHONLY" => "Only push operators allowed in signatures",
        "SIG_NULLDUMMY" => "Dummy CHECKMULTISIG argument must be zero",
        "CLEANSTACK" => "Stack size must be exactly one after execution",
        "WITNESS_PROGRAM_WRONG_LENGTH" => "Witness program has incorrect length",
        "WITNESS_PROGRAM_WITNESS_EMPTY" => "Witness program was passed an empty witness",
        "WITNESS_PROGRAM_MISMATCH" => "Witness program hash mismatch",
        "WITNESS_MALLEATED" => "Witness requires empty scriptSig",
        "WITNESS_MALLEATED_P2SH" => "Witness requires only-redeemscript scriptSig",
        "WITNESS_UNEXPECTED" => "Witness provided for non-witness script",
        "TAPSCRIPT_EMPTY_PUBKEY" => "Empty public key in tapscript",
        other => panic!("no text for {other}"),
    }
}

fn cases() -> Vec<Case> {
    let file = vectors("script_tests.json");
    file.as_array().unwrap().iter().filter_map(Case::read).collect()
}

#[test]
fn valid_cases_of_core_pass() {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.expected == "OK").collect();
    assert_eq!(cases.len(), 675);
    assert_eq!(cases.iter().filter(|case| case.relay_rules > 0).count(), 521);
    for case in &cases {
        // Removing rules never causes a rejection.
        for flags in all_sets().filter(|flags| flags & case.flags == *flags) {
            assert_eq!(case.run(flags), Ok(()), "{flags:#x} {}", case.text);
        }
    }
}

#[test]
fn invalid_cases_of_core_fail_the_same_way() {
    let cases: Vec<Case> = cases().into_iter().filter(|case| case.expected != "OK").collect();
    assert_eq!(cases.len(), 547);
    let (left_out, run): (Vec<_>, Vec<_>) = cases.iter().partition(|case| case.may_be_relay_rule());
    assert_eq!((left_out.len(), run.len()), (146, 401));
    for case in run {
        let flags = fill(case.flags);
        let failure = case.run(flags).expect_err(&case.text);
        assert_eq!(failure.error, ScriptError::Invalid, "{}", case.text);
        if case.script_pubkey.len() <= MAX_SCRIPT_SIZE {
            assert_eq!(failure.name, Some(words(&case.expected)), "{}", case.text);
        }
        // Adding rules never causes an acceptance.
        for (name, flag) in CONSENSUS {
            assert!(case.run(fill(flags | flag)).is_err(), "with {name}: {}", case.text);
        }
        assert!(case.run(ALL).is_err(), "with all: {}", case.text);
        assert_eq!(trim(flags), flags);
    }
}

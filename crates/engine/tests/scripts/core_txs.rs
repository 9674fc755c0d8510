//! Core's `tx_valid.json` and `tx_invalid.json`: whole transactions, with the rules under which
//! they pass or fail.
//!
//! A valid transaction passes under all rules except the excluded ones, and fails if any of those
//! is added; an invalid one fails under the required rules, and passes without any of them. The
//! interpreter does not support relay rules, so the parts about them are omitted.

use crate::text::{ALL, CONSENSUS, fill, flags, script, trim, unhex, vectors};
use crate::{coin, verify};
use apus_chain::ScriptError;
use apus_engine::utxo::CoinBytes;
use bitcoin::Transaction;
use serde_json::Value;

struct Case {
    text: String,
    raw: Vec<u8>,
    spent: Vec<CoinBytes>,
    names: String,
}

impl Case {
    /// Reads the cases of a file, without comments and cases that no script decides.
    fn all(file: &str) -> Vec<Self> {
        let file = vectors(file);
        let lines = file.as_array().unwrap().iter().filter(|line| line[0].is_array());
        lines.filter(|line| line[2] != "BADTX").map(Self::read).collect()
    }

    fn read(line: &Value) -> Self {
        let raw = unhex(line[1].as_str().unwrap());
        let tx: Transaction = bitcoin::consensus::deserialize(&raw).unwrap();
        let prevouts = line[0].as_array().unwrap();
        let spent = tx.input.iter().map(|input| {
            // If a name occurs several times, the last one counts.
            let prevout = prevouts.iter().rev().find(|prevout| {
                let index = prevout[1].as_i64().unwrap() as u32;
                let txid = input.previous_output.txid.to_string();
                prevout[0] == txid && index == input.previous_output.vout
            });
            let prevout = prevout.unwrap();
            let amount = prevout.get(3).map_or(0, |amount| amount.as_u64().unwrap());
            coin(&script(prevout[2].as_str().unwrap()), amount)
        });
        let names = line[2].as_str().unwrap().to_owned();
        Self { text: line.to_string(), spent: spent.collect(), names, raw }
    }

    fn passes(&self, flags: u32) -> bool {
        match verify(self.raw.clone(), self.spent.clone(), flags) {
            Ok(()) => true,
            Err(failure) => {
                assert_eq!(failure.error, ScriptError::Invalid, "{}", self.text);
                false
            }
        }
    }
}

#[test]
fn valid_transactions_of_core_pass() {
    let cases = Case::all("tx_valid.json");
    assert_eq!(cases.len(), 121);
    let mut maximal = 0;
    for case in &cases {
        let (excluded, _) = flags(&case.names);
        let allowed = trim(ALL & !excluded);
        assert!(case.passes(allowed), "{}", case.text);
        for (name, flag) in CONSENSUS {
            assert!(case.passes(trim(allowed & !flag)), "without {name}: {}", case.text);
            if excluded & flag != 0 {
                assert!(!case.passes(fill(allowed | flag)), "with {name}: {}", case.text);
                maximal += 1;
            }
        }
    }
    assert_eq!(maximal, 10, "DERSIG and NULLDUMMY");
}

#[test]
fn invalid_transactions_of_core_fail() {
    let cases = Case::all("tx_invalid.json");
    let (left_out, run): (Vec<_>, Vec<_>) = cases.iter().partition(|case| flags(&case.names).1 > 0);
    assert_eq!((left_out.len(), run.len()), (14, 70));
    let mut minimal = 0;
    for case in run {
        let (required, _) = flags(&case.names);
        assert!(!case.passes(required), "{}", case.text);
        for (name, flag) in CONSENSUS {
            assert!(!case.passes(fill(required | flag)), "with {name}: {}", case.text);
            let without = trim(required & !flag);
            if without != required {
                assert!(case.passes(without), "without {name}: {}", case.text);
                minimal += 1;
            }
        }
    }
    assert_eq!(minimal, 70);
}

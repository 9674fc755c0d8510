//! Cases of Core's functional test of taproot, in the form of its `script_assets_test`: all kinds
//! of outputs, most with a failing twin. Each runs under every set of rules for which its result is
//! stated.

use crate::provers::Pools;
use crate::text::{all_sets, fixture, flags, unhex};
use crate::{BLOCK, coin, pools};
use apus_chain::ScriptError;
use apus_engine::script::{
    CheckRoom, Interpreter, KnownChecks, PreparedTx, RawBlock, RawTx, Refusal, ScriptPool, Verdict,
    interpreter,
};
use apus_engine::utxo::CoinBytes;
use bitcoin::{Transaction, TxOut, Witness};
use flate2::read::GzDecoder;
use serde_json::Value;
use std::io::Read as _;
use std::sync::Arc;

/// Core's interpreter, for only the input that a case is about; the other inputs spend outputs that
/// they cannot unlock. The input's number follows the transaction.
struct OneInput(Arc<dyn Interpreter>);

struct OneInputTx(Box<dyn PreparedTx>, usize);

impl Interpreter for OneInput {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        let (input, raw) = raw.split_last().unwrap();
        Ok(Box::new(OneInputTx(self.0.prepare(raw, spent)?, usize::from(*input))))
    }
}

impl PreparedTx for OneInputTx {
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal> {
        if input == self.1 { self.0.verify(input, flags) } else { Ok(()) }
    }

    fn verify_deferred(
        &self,
        input: usize,
        flags: u32,
        known: &KnownChecks,
        room: CheckRoom<'_>,
    ) -> Result<usize, Refusal> {
        if input == self.1 { self.0.verify_deferred(input, flags, known, room) } else { Ok(0) }
    }
}

struct Case {
    comment: String,
    flags: u32,
    /// True if it passes under all rules.
    is_final: bool,
    input: usize,
    spent: Vec<CoinBytes>,
    success: Vec<u8>,
    failure: Option<Vec<u8>>,
}

impl Case {
    fn read(case: &Value) -> Self {
        let tx: Transaction =
            bitcoin::consensus::deserialize(&unhex(case["tx"].as_str().unwrap())).unwrap();
        let prevouts = case["prevouts"].as_array().unwrap().iter().map(|prevout| {
            let prevout = unhex(prevout.as_str().unwrap());
            let TxOut { value, script_pubkey } = bitcoin::consensus::deserialize(&prevout).unwrap();
            coin(script_pubkey.as_bytes(), value.to_sat())
        });
        let input = usize::try_from(case["index"].as_u64().unwrap()).unwrap();
        let with = |spend: &Value| {
            let mut tx = tx.clone();
            tx.input[input].script_sig = unhex(spend["scriptSig"].as_str().unwrap()).into();
            let items = spend["witness"].as_array().unwrap().iter();
            let items: Vec<_> = items.map(|item| unhex(item.as_str().unwrap())).collect();
            tx.input[input].witness = Witness::from_slice(&items);
            let mut raw = bitcoin::consensus::serialize(&tx);
            raw.push(u8::try_from(input).unwrap());
            raw
        };
        let (flags, relay_rules) = flags(case["flags"].as_str().unwrap());
        assert_eq!(relay_rules, 0);
        Self {
            comment: case["comment"].as_str().unwrap().to_owned(),
            flags,
            is_final: case.get("final").is_some_and(|is| is.as_bool().unwrap()),
            input,
            spent: prevouts.collect(),
            success: with(&case["success"]),
            failure: case.get("failure").map(with),
        }
    }
}

fn cases() -> Vec<Case> {
    let file = std::fs::File::open(fixture("core-vectors/script_assets_test.json.gz")).unwrap();
    let mut text = Vec::new();
    GzDecoder::new(file).read_to_end(&mut text).unwrap();
    let cases: Value = serde_json::from_slice(&text).unwrap();
    cases.as_array().unwrap().iter().map(Case::read).collect()
}

fn raw_tx(raw: &[u8]) -> RawTx {
    let block: Arc<dyn RawBlock> = Arc::new(raw.to_vec());
    RawTx::new(block, 0..raw.len())
}

/// Runs every case that passes in one batch.
fn successes(pool: &ScriptPool, cases: &[Case], flags: u32) -> (usize, Verdict) {
    let mut batch = pool.begin(BLOCK, flags);
    let passing = |case: &Case| case.is_final || flags & case.flags == flags;
    let mut passed = 0;
    for (index, case) in cases.iter().enumerate().filter(|(_, case)| passing(case)) {
        batch.add(index, raw_tx(&case.success), case.spent.clone());
        passed += 1;
    }
    (passed, batch.finish())
}

/// Runs every case that fails, each in its own batch.
fn failures<'c>(pool: &ScriptPool, cases: &'c [Case], flags: u32) -> Vec<(&'c Case, Verdict)> {
    let failing = cases.iter().filter(|case| flags & case.flags == case.flags);
    let run = |case: &'c Case| {
        let mut batch = pool.begin(BLOCK, flags);
        batch.add(0, raw_tx(case.failure.as_ref()?), case.spent.clone());
        Some((case, batch.finish()))
    };
    failing.filter_map(run).collect()
}

#[test]
fn every_case_has_the_stated_result_under_all_rules() {
    let cases = cases();
    assert_eq!(cases.len(), 2808);
    let one_input: Arc<dyn Interpreter> = Arc::new(OneInput(interpreter().unwrap()));
    for (index, pool) in Pools::new(&one_input).iter().enumerate() {
        let (mut passed, mut failed) = (0, 0);
        // Deferral does not depend on the rules, so a few sets, among them all rules, are enough.
        let sets: Vec<u32> = all_sets().collect();
        for flags in sets.into_iter().rev().step_by([1, 16, 32, 16][index]) {
            let (count, verdict) = successes(pool, &cases, flags);
            let verdict = verdict.wait();
            let comment = verdict.as_ref().map_err(|failure| &cases[failure.tx_index].comment);
            assert_eq!(verdict, Ok(()), "{comment:?}");
            passed += count;
            for (case, verdict) in failures(pool, &cases, flags) {
                let failure = verdict.wait().expect_err(&case.comment);
                assert_eq!(failure.error, ScriptError::Invalid, "{}", case.comment);
                assert_eq!(failure.input, case.input, "{}", case.comment);
                failed += 1;
            }
        }
        let expected = [(178_688, 2_618), (11_168, 2_618), (5_552, 2_490), (11_168, 2_618)];
        assert_eq!((passed, failed), expected[index]);
    }
}

#[test]
fn unmodified_cases_of_one_input_have_the_stated_result() {
    let mut ran = 0;
    for case in cases().iter().filter(|case| case.spent.len() == 1) {
        let verdict = |raw: &[u8]| {
            pools().verdict(|pool| {
                let mut batch = pool.begin(BLOCK, case.flags);
                batch.add(0, raw_tx(&raw[..raw.len() - 1]), case.spent.clone());
                batch.finish().wait()
            })
        };
        assert_eq!(verdict(&case.success), Ok(()), "{}", case.comment);
        if let Some(failure) = &case.failure {
            let failure = verdict(failure).expect_err(&case.comment);
            assert_eq!(failure.error, ScriptError::Invalid, "{}", case.comment);
        }
        ran += 1;
    }
    assert_eq!(ran, 231);
}

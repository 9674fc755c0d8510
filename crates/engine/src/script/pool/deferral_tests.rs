//! The pool with deferred signature checks.

use super::super::interpreter::{PreparedTx, Refusal};
use super::super::recorded::{
    CheckRoom, KnownChecks, RParity, RecordedCheck, SignatureKind, SignatureProver,
};
use super::tests::BLOCK;
use super::*;
use crate::coin::CoinBytes;
use apus_chain::{CoinRef, ScriptError};
use parking_lot::Mutex;
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

/// Bytes of a [`Fake`] transaction: each selects the script of one input.
const WITHOUT: u8 = 0;
const FAILS: u8 = 1;
const PANICS: u8 = 2;
/// One valid signature.
const SIGNED: u8 = 3;
/// One invalid signature, so it must fail.
const FORGED: u8 = 4;
/// One valid signature and one of the key's neighbour, as in a 2-of-3 script: it must pass.
const OTHER_KEY: u8 = 5;
/// It passes because its signature is invalid.
const NEGATED: u8 = 6;
/// A valid and an invalid signature.
const HALF_FORGED: u8 = 7;
/// Two valid signatures.
const SIGNED_TWICE: u8 = 8;
/// As many valid signatures as fit.
const SIGNED_OFTEN: u8 = 9;
const KINDS: u8 = 10;
/// An invalid signature; its second run panics.
const PANICS_LATER: u8 = 11;

/// Returns how the input ends, and its signatures: whether each is valid.
fn script(kind: u8) -> (Result<(), Refusal>, &'static [bool]) {
    let no = Err(Refusal { error: ScriptError::Invalid, name: Some("no") });
    match kind {
        FAILS => (no, &[]),
        SIGNED => (Ok(()), &[true]),
        FORGED | PANICS_LATER => (no, &[false]),
        OTHER_KEY => (Ok(()), &[true, false]),
        HALF_FORGED => (no, &[true, false]),
        SIGNED_TWICE => (Ok(()), &[true; 2]),
        SIGNED_OFTEN => (Ok(()), &[true; 300]),
        PANICS => panic!("asked for"),
        _ => (Ok(()), &[]),
    }
}

#[derive(Default)]
struct Fake {
    verified: Arc<AtomicUsize>,
}

struct FakeTx(Vec<u8>, Arc<AtomicUsize>);

impl Interpreter for Fake {
    fn prepare(&self, raw: &[u8], _: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        Ok(Box::new(FakeTx(raw.to_vec(), Arc::clone(&self.verified))))
    }
}

/// Valid checks have even keys.
fn check(kind: SignatureKind, valid: bool) -> RecordedCheck {
    RecordedCheck::new(kind, &[u8::from(!valid); 32], [7; 32], &[9; 64]).unwrap()
}

impl PreparedTx for FakeTx {
    fn verify(&self, input: usize, _: u32) -> Result<(), Refusal> {
        self.1.fetch_add(1, Ordering::SeqCst);
        script(self.0[input]).0
    }

    fn verify_deferred(
        &self,
        input: usize,
        flags: u32,
        known: &KnownChecks,
        CheckRoom { checks: room, .. }: CheckRoom<'_>,
    ) -> Result<usize, Refusal> {
        assert_eq!(flags, 7, "flags are passed on");
        let is_valid = |check: &RecordedCheck| check.key()[0] == 0;
        assert!(known.proven.iter().all(is_valid), "only valid checks are proven");
        let kind = self.0[input];
        assert!(kind != PANICS_LATER || known.unproven.is_empty(), "asked for");
        let (verdict, signatures) = script(kind);
        if room.is_empty() {
            return self.verify(input, flags).map(|()| 0);
        }
        if kind == NEGATED || (verdict.is_err() && signatures.is_empty()) {
            return Err(Refusal { error: ScriptError::Invalid, name: Some("deferred") });
        }
        let kinds = [SignatureKind::Ecdsa, SignatureKind::Schnorr];
        let checks = signatures.iter().enumerate().map(|(n, valid)| check(kinds[n % 2], *valid));
        let is_known = |check: &RecordedCheck| known.unproven.contains(check);
        if verdict.is_err() && checks.clone().any(|check| is_known(&check) && !is_valid(&check)) {
            return Err(Refusal { error: ScriptError::Invalid, name: Some("libsecp256k1") });
        }
        // libsecp256k1 checks what is unproven and what does not fit.
        let new = checks.filter(|check| !is_known(check) && !known.proven.contains(check));
        Ok(room.iter_mut().zip(new).map(|(room, check)| *room = check).count())
    }
}

/// How a test's prover answers for a valid and for an invalid check.
type Answer = fn(bool, &mut u64) -> bool;
const HONEST: Answer = |valid, _| valid;
const NOTHING: Answer = |_, _| false;
const EVERYTHING: Answer = |_, _| true;
const DOUBTFUL: Answer = |valid, random| {
    *random =
        random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
    valid && *random >> 62 != 0
};

struct Prover {
    answer: Answer,
    random: u64,
    /// Gets the number of checks of each call.
    calls: Sender<usize>,
    /// What each call does besides: adds answers, drops one, or panics.
    fault: Fault,
    /// Calls wait while a test holds it.
    gate: Arc<Mutex<()>>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Fault {
    None,
    OneMore,
    OneLess,
    Panics,
}

impl SignatureProver for Prover {
    fn prove(&mut self, checks: &[RecordedCheck], proven: &mut Vec<Option<RParity>>) -> usize {
        let _ = self.calls.send(checks.len());
        drop(self.gate.lock());
        assert!(!checks.is_empty() && self.fault != Fault::Panics, "asked for");
        for check in checks {
            let is_proven = (self.answer)(check.key()[0] == 0, &mut self.random);
            proven.push(is_proven.then_some(RParity::Even));
        }
        match self.fault {
            Fault::OneMore => proven.push(Some(RParity::Even)),
            Fault::OneLess => _ = proven.remove(0),
            _ => {}
        }
        0
    }
}

struct Rig {
    pool: ScriptPool,
    verified: Arc<AtomicUsize>,
    calls: Receiver<usize>,
    fault: Arc<Mutex<Fault>>,
    gate: Arc<Mutex<()>>,
}

fn rig(threads: usize, mode: SignatureMode, answer: Answer) -> Rig {
    let (fake, (calls, received)) = (Fake::default(), channel());
    let verified = Arc::clone(&fake.verified);
    let fault = Arc::new(Mutex::new(Fault::None));
    let (calls, of_prover) = (Mutex::new(calls), Arc::clone(&fault));
    let gate = Arc::new(Mutex::new(()));
    let of_calls = Arc::clone(&gate);
    let new_prover = move || -> Box<dyn SignatureProver> {
        let calls = calls.lock().clone();
        let fault = *of_prover.lock();
        Box::new(Prover { answer, random: 1, calls, fault, gate: Arc::clone(&of_calls) })
    };
    let pool =
        ScriptPool::with_prover(threads, Arc::new(fake), mode, Arc::new(new_prover)).unwrap();
    Rig { pool, verified, calls: received, fault, gate }
}

fn fast(threads: usize, answer: Answer) -> Rig {
    rig(threads, SignatureMode::Fast, answer)
}

fn batch(pool: &ScriptPool, txs: &[Vec<u8>]) -> Verdict {
    let block: Arc<dyn RawBlock> = Arc::new(txs.concat());
    let coin = CoinRef { height: 1, coinbase: false, amount: 1, script: &[0x51] };
    let mut batch = pool.begin(BLOCK, 7);
    let mut end = 0;
    for (index, tx) in txs.iter().enumerate() {
        let start = end;
        end += tx.len();
        let spent = vec![CoinBytes::new(coin); tx.len()];
        batch.add(index, RawTx::new(Arc::clone(&block), start..end), spent);
    }
    batch.finish()
}

impl Rig {
    /// Returns the verdict on a batch; fails if the pool stops forever.
    fn verdict(&self, txs: &[Vec<u8>]) -> Result<(), ScriptFailure> {
        wait(batch(&self.pool, txs))
    }

    fn prover_fails(&self, fault: Fault) {
        *self.fault.lock() = fault;
    }
}

fn wait(verdict: Verdict) -> Result<(), ScriptFailure> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || sender.send(verdict.wait()));
    receiver.recv_timeout(Duration::from_secs(60)).expect("the pool stopped")
}

fn repeated(kind: u8, txs: usize) -> Vec<Vec<u8>> {
    vec![vec![kind]; txs]
}

#[test]
fn proven_inputs_are_not_run_again() {
    for threads in [0, 1, 3] {
        let rig = fast(threads, HONEST);
        let mut txs = repeated(SIGNED, 700);
        txs.extend([vec![SIGNED_TWICE; 900], vec![WITHOUT; 50], vec![SIGNED; 31]]);
        assert_eq!(rig.verdict(&txs), Ok(()));
        assert_eq!(rig.verified.load(Ordering::SeqCst), 0, "libsecp256k1 was not needed");
        let counts = rig.pool.signature_counts();
        assert_eq!((counts.inputs, counts.ecdsa, counts.schnorr), (1681, 1631, 900));
        assert_eq!((counts.retried, counts.unproven), (0, 0));
        assert_eq!(rig.calls.try_iter().count() as u64, counts.batches);
    }
}

#[test]
fn an_input_without_all_proofs_is_run_again() {
    let rig = fast(1, HONEST);
    for (kind, passes, by_libsecp256k1) in [
        (FORGED, false, 2),
        (HALF_FORGED, false, 2),
        (FAILS, false, 2),
        // In its second run, libsecp256k1 says no to the wrong key.
        (OTHER_KEY, true, 0),
        (NEGATED, true, 1),
    ] {
        let before = rig.verified.load(Ordering::SeqCst);
        let txs = [vec![SIGNED, SIGNED], vec![SIGNED, kind], vec![SIGNED]];
        let failure = rig.verdict(&txs).err();
        let found = failure.map(|failure| (failure.tx_index, failure.input, failure.name));
        assert_eq!(found, (!passes).then_some((1, 1, Some("no"))), "kind {kind}");
        assert_eq!(rig.verified.load(Ordering::SeqCst) - before, by_libsecp256k1, "kind {kind}");
    }
    let counts = rig.pool.signature_counts();
    assert_eq!((counts.retried, counts.unproven), (3, 4));
}

/// The other tests can fail: they would, if a proof were not needed.
#[test]
fn a_prover_that_lies_passes_forged_signatures() {
    assert_eq!(fast(1, EVERYTHING).verdict(&[vec![FORGED]]), Ok(()));
}

#[test]
fn the_wrong_number_of_answers_proves_nothing() {
    for fault in [Fault::OneMore, Fault::OneLess] {
        let rig = fast(0, EVERYTHING);
        rig.prover_fails(fault);
        assert_eq!(rig.verdict(&[vec![SIGNED; 5]]), Ok(()));
        let counts = rig.pool.signature_counts();
        assert_eq!((counts.ecdsa, counts.retried), (0, 5));
        assert_eq!(rig.verdict(&[vec![SIGNED, FORGED]]).unwrap_err().input, 1);
    }
}

#[test]
fn checks_of_several_batches_are_proven_together() {
    let rig = fast(1, HONEST);
    // The thread is busy with the first batches until the others wait for it.
    let gate = rig.gate.lock();
    let verdicts: Vec<_> = (0..40).map(|_| batch(&rig.pool, &repeated(SIGNED, 100))).collect();
    drop(gate);
    let mut left = 4000;
    let mut sizes = Vec::new();
    while left > 0 {
        // No verdict is awaited: a thread without work decides what it has.
        let size = rig.calls.recv_timeout(Duration::from_secs(60)).expect("the pool stopped");
        sizes.push(size);
        left -= size;
    }
    assert!(sizes.iter().any(|size| *size >= 2048), "{sizes:?}");
    assert!(sizes.iter().all(|size| *size < 2048 + 16), "{sizes:?}");
    verdicts.into_iter().for_each(|verdict| assert_eq!(wait(verdict), Ok(())));
}

#[test]
fn waiting_checks_are_bounded() {
    let rig = fast(0, HONEST);
    assert_eq!(rig.verdict(&[vec![SIGNED_OFTEN; 16]]), Ok(()), "more than there is room");
    assert_eq!(rig.calls.recv(), Ok(4096));
    assert_eq!(rig.verdict(&[vec![SIGNED_OFTEN; 100]]), Ok(()));
    assert!(rig.calls.try_iter().all(|size| size <= 4096));
}

#[test]
fn waiting_work_is_bounded() {
    let rig = fast(0, HONEST);
    let mut txs = repeated(WITHOUT, 16 * 1000);
    txs[0] = vec![SIGNED];
    txs[16 * 900] = vec![SIGNED];
    assert_eq!(rig.verdict(&txs), Ok(()));
    assert_eq!(rig.calls.try_iter().collect::<Vec<_>>(), [1, 1], "not both at the end");
}

#[test]
fn waiting_transactions_are_bounded() {
    let rig = fast(0, HONEST);
    let script = vec![0x51; 600_000];
    let coin = CoinRef { height: 1, coinbase: false, amount: 1, script: &script };
    let coin = CoinBytes::new(coin);
    let block: Arc<dyn RawBlock> = Arc::new(vec![SIGNED; 100]);
    let mut batch = rig.pool.begin(BLOCK, 7);
    for index in 0..100 {
        batch.add(index, RawTx::new(Arc::clone(&block), index..index + 1), vec![coin.clone()]);
    }
    assert_eq!(wait(batch.finish()), Ok(()));
    assert_eq!(rig.calls.try_iter().collect::<Vec<_>>(), [16, 16, 16, 16, 16, 16, 4]);
}

#[test]
fn a_panic_fails_the_work_that_waits() {
    let rig = fast(1, HONEST);
    rig.prover_fails(Fault::Panics);
    for _ in 0..3 {
        let failure = rig.verdict(&repeated(SIGNED, 50)).unwrap_err();
        assert!(failure.reason().contains("panicked"), "{failure}");
    }
    // The next call has a new prover.
    rig.prover_fails(Fault::None);
    assert_eq!(rig.verdict(&repeated(SIGNED, 50)), Ok(()));
    // Inputs that waited when another one panicked are decided.
    for kind in [PANICS, PANICS_LATER] {
        let txs = [vec![SIGNED, OTHER_KEY], vec![OTHER_KEY, kind], vec![SIGNED, OTHER_KEY]];
        let failure = rig.verdict(&txs).unwrap_err();
        assert!(failure.reason().contains("panicked"), "{failure}");
    }
    assert_eq!(rig.verdict(&repeated(SIGNED, 50)), Ok(()));
}

#[test]
fn a_batch_outlives_its_pool() {
    for kind in [SIGNED, FORGED] {
        let Rig { pool, .. } = fast(2, HONEST);
        let verdict = batch(&pool, &[vec![SIGNED; 500], vec![SIGNED, kind]]);
        drop(pool);
        assert_eq!(
            wait(verdict).err().map(|failure| failure.tx_index),
            (kind == FORGED).then_some(1)
        );
    }
}

#[test]
fn a_dropped_verdict_ends_the_work_that_waits() {
    let rig = fast(1, NOTHING);
    for _ in 0..20 {
        drop(batch(&rig.pool, &repeated(SIGNED, 100)));
    }
    assert_eq!(rig.verdict(&repeated(FORGED, 1)).unwrap_err().tx_index, 0);
}

#[test]
fn shadow_mode_reports_a_difference_as_a_setup_error() {
    let rig = rig(1, SignatureMode::Shadow, EVERYTHING);
    let all = [SIGNED, WITHOUT, SIGNED_TWICE, NEGATED, OTHER_KEY];
    assert_eq!(rig.verdict(&[all.to_vec()]), Ok(()));
    assert_eq!(rig.verified.load(Ordering::SeqCst), 6, "each, and one again");
    let failure = rig.verdict(&[vec![SIGNED], vec![SIGNED, FORGED]]).unwrap_err();
    let reason = failure.reason();
    assert!(matches!(failure.error, ScriptError::Setup(_)), "{reason}");
    for part in ["Ok(())", "Invalid", "transaction 1", "input 1"] {
        assert!(reason.contains(part), "{reason}");
    }
    let failure = rig.verdict(&[vec![SIGNED], vec![SIGNED, FAILS]]).unwrap_err();
    assert_eq!((failure.error, failure.name), (ScriptError::Invalid, Some("no")));
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    /// Whatever is proven, the first failure is that of libsecp256k1.
    #[test]
    fn the_verdict_is_that_of_libsecp256k1(
        threads in 0usize..4,
        sizes in vec((prop_oneof![1usize..4, 1usize..200], prop_oneof![Just(SIGNED), SIGNED..KINDS]), 1..60),
        others in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), prop_oneof![Just(WITHOUT), Just(FAILS), FORGED..KINDS]), 0..6),
        (is_shadow, is_doubtful) in any::<(bool, bool)>(),
    ) {
        let is_invalid = |kind: u8| [FAILS, FORGED, HALF_FORGED].contains(&kind);
        let valid = |kind: u8| if is_invalid(kind) { OTHER_KEY } else { kind };
        let mut txs: Vec<Vec<u8>> =
            sizes.iter().map(|(size, kind)| vec![valid(*kind); *size]).collect();
        for (tx, input, kind) in &others {
            let tx = tx.index(txs.len());
            let input = input.index(txs[tx].len());
            txs[tx][input] = *kind;
        }
        let place = |failure: ScriptFailure| (failure.tx_index, failure.input, failure.error, failure.name);
        let today = rig(threads, SignatureMode::Libsecp256k1, NOTHING);
        let expected = today.verdict(&txs).map_err(place);
        prop_assert_eq!(today.pool.signature_counts(), SignatureCounts::default());
        let mode = if is_shadow { SignatureMode::Shadow } else { SignatureMode::Fast };
        let rig = rig(threads, mode, if is_doubtful { DOUBTFUL } else { HONEST });
        let (one, two) = (batch(&rig.pool, &txs), batch(&rig.pool, &txs));
        for verdict in [two, one] {
            prop_assert_eq!(wait(verdict).map_err(place), expected.clone());
        }
    }
}

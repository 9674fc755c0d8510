use super::super::interpreter::{PreparedTx, Refusal};
use super::*;
use crate::coin::CoinBytes;
use apus_chain::{BlockHash, CoinRef, ScriptError};
use proptest::collection::vec;
use proptest::prelude::*;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Condvar, Mutex};

pub(super) const BLOCK: KnownBlock = KnownBlock { height: 1, hash: BlockHash([1; 32]) };

/// Bytes of a [`Fake`] transaction: each selects the action of one input.
const PASSES: u8 = 0;
const FAILS: u8 = 1;
const CANNOT_RUN: u8 = 2;
const PANICS: u8 = 3;
/// Waits for the gate to open, then passes.
const WAITS: u8 = 4;

/// Reads a transaction as one byte per input, and counts the inputs it runs.
#[derive(Default)]
struct Fake {
    prepared: AtomicUsize,
    verified: Arc<AtomicUsize>,
    gate: Arc<Gate>,
}

#[derive(Default)]
struct Gate {
    open: Mutex<bool>,
    change: Condvar,
    waiting: AtomicUsize,
}

impl Gate {
    fn open(&self) {
        *self.open.lock().unwrap() = true;
        self.change.notify_all();
    }

    fn pass(&self) {
        let mut open = self.open.lock().unwrap();
        self.waiting.fetch_add(1, Ordering::SeqCst);
        self.change.notify_all();
        while !*open {
            open = self.change.wait(open).unwrap();
        }
    }

    /// Returns once this many threads wait for the gate.
    fn await_waiting(&self, threads: usize) {
        let mut open = self.open.lock().unwrap();
        while self.waiting.load(Ordering::SeqCst) < threads {
            open = self.change.wait(open).unwrap();
        }
    }
}

struct FakeTx {
    inputs: Vec<u8>,
    verified: Arc<AtomicUsize>,
    gate: Arc<Gate>,
}

impl Interpreter for Fake {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        self.prepared.fetch_add(1, Ordering::SeqCst);
        if raw.len() != spent.len() {
            return Err(ScriptError::Setup("counts differ".to_owned()));
        }
        let (verified, gate) = (Arc::clone(&self.verified), Arc::clone(&self.gate));
        Ok(Box::new(FakeTx { inputs: raw.to_vec(), verified, gate }))
    }
}

impl PreparedTx for FakeTx {
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal> {
        assert_eq!(flags, 7, "flags are passed on");
        self.verified.fetch_add(1, Ordering::SeqCst);
        match self.inputs[input] {
            PASSES => Ok(()),
            FAILS => Err(Refusal { error: ScriptError::Invalid, name: Some("no") }),
            CANNOT_RUN => Err(ScriptError::Setup("cannot".to_owned()).into()),
            WAITS => {
                self.gate.pass();
                Ok(())
            }
            _ => panic!("asked for"),
        }
    }
}

fn coins(count: usize) -> Vec<CoinBytes> {
    let coin = CoinRef { height: 1, coinbase: false, amount: 1, script: &[0x51] };
    vec![CoinBytes::new(coin); count]
}

/// A batch of transactions that are in one block.
fn batch(pool: &ScriptPool, txs: &[Vec<u8>]) -> Verdict {
    let block: Arc<dyn RawBlock> = Arc::new(txs.concat());
    let mut batch = pool.begin(BLOCK, 7);
    let mut end = 0;
    for (index, tx) in txs.iter().enumerate() {
        let start = end;
        end += tx.len();
        batch.add(index, RawTx::new(Arc::clone(&block), start..end), coins(tx.len()));
    }
    batch.finish()
}

fn pool(threads: usize) -> (ScriptPool, Arc<Fake>) {
    let fake = Arc::new(Fake::default());
    (ScriptPool::with_interpreter(threads, Arc::<Fake>::clone(&fake)).unwrap(), fake)
}

#[cfg(not(feature = "kernel"))]
#[test]
fn without_the_kernel_there_is_no_pool() {
    let error = ScriptPool::new(1).unwrap_err();
    assert!(matches!(error, ScriptPoolError::NoInterpreter(_)), "{error}");
}

#[test]
fn every_input_is_run_once() {
    for threads in [0, 1, 3] {
        let (pool, fake) = pool(threads);
        assert_eq!(pool.threads(), threads);
        // Several groups, an undivided transaction, and a divided one.
        let mut txs = vec![vec![PASSES]; 100];
        txs.push(vec![PASSES; 31]);
        txs.push(vec![PASSES; 1000]);
        txs.push(vec![PASSES; 3]);
        assert_eq!(batch(&pool, &txs).wait(), Ok(()));
        assert_eq!(fake.prepared.load(Ordering::SeqCst), txs.len());
        assert_eq!(fake.verified.load(Ordering::SeqCst), 1134);
        assert_eq!(batch(&pool, &[]).wait(), Ok(()));
    }
}

#[test]
fn a_failure_says_where_and_why() {
    let (pool, _) = pool(1);
    let failure = |txs: &[Vec<u8>]| batch(&pool, txs).wait().unwrap_err();
    let invalid = failure(&[vec![PASSES], vec![PASSES, FAILS]]);
    let expected =
        ScriptFailure { tx_index: 1, input: 1, error: ScriptError::Invalid, name: Some("no") };
    assert_eq!(invalid, expected);
    assert_eq!(invalid.reason(), "block-script-verify-flag-failed (no)");
    assert_eq!(invalid.to_string(), "block-script-verify-flag-failed (no), transaction 1, input 1");
    let unnamed = ScriptFailure { name: None, ..invalid };
    assert_eq!(unnamed.reason(), "block-script-verify-flag-failed");
    let setup = failure(&[vec![CANNOT_RUN]]);
    assert_eq!(setup.reason(), "the scripts could not be run: cannot");
}

#[test]
fn unreadable_transactions_do_not_pass() {
    let (pool, _) = pool(1);
    let block: Arc<dyn RawBlock> = Arc::new(vec![PASSES; 4]);
    for (range, spent) in [(2..5, 3), (5..6, 1), (0..4, 3), (0..4, 0)] {
        let mut batch = pool.begin(BLOCK, 7);
        batch.add(5, RawTx::new(Arc::clone(&block), range), coins(spent));
        let failure = batch.finish().wait().unwrap_err();
        assert!(matches!(failure.error, ScriptError::Setup(_)), "{failure}");
        assert_eq!((failure.tx_index, failure.input), (5, 0));
    }
}

#[test]
fn a_panic_is_reported_as_a_failure_and_ends_no_thread() {
    let (pool, _) = pool(1);
    for _ in 0..3 {
        let failure = batch(&pool, &[vec![PASSES], vec![PANICS], vec![PASSES]]).wait().unwrap_err();
        assert!(failure.reason().contains("panicked"), "{failure}");
    }
    assert_eq!(batch(&pool, &[vec![PASSES]]).wait(), Ok(()));
    drop(pool);
}

#[test]
fn transactions_out_of_order_are_reported_in_order() {
    let (pool, _) = pool(0);
    let block: Arc<dyn RawBlock> = Arc::new(vec![FAILS]);
    let mut batch = pool.begin(BLOCK, 7);
    for index in [3, 9, 1, 2] {
        batch.add(index, RawTx::new(Arc::clone(&block), 0..1), coins(1));
    }
    assert_eq!(batch.finish().wait().unwrap_err().tx_index, 1);
}

#[test]
fn the_next_batch_begins_while_the_last_one_runs() {
    let (pool, fake) = pool(1);
    let first = batch(&pool, &[vec![WAITS]]);
    fake.gate.await_waiting(1);
    // The only thread waits in the first batch, so the waiting caller runs this one.
    assert_eq!(batch(&pool, &vec![vec![PASSES]; 50]).wait(), Ok(()));
    let third = batch(&pool, &[vec![FAILS]]);
    fake.gate.open();
    assert_eq!(first.wait(), Ok(()));
    assert_eq!(third.wait().unwrap_err().tx_index, 0);
}

#[test]
fn dropping_a_verdict_skips_the_remaining_work() {
    let (pool, fake) = pool(1);
    let mut txs = vec![vec![WAITS, PASSES]];
    txs.extend(vec![vec![PASSES]; 200]);
    let verdict = batch(&pool, &txs);
    fake.gate.await_waiting(1);
    drop(verdict);
    fake.gate.open();
    // This batch runs after the remaining work of the thread.
    assert_eq!(batch(&pool, &[vec![PASSES]]).wait(), Ok(()));
    drop(pool);
    assert_eq!(fake.verified.load(Ordering::SeqCst), 2, "the current input, and the last batch");
}

#[test]
fn a_batch_outlives_its_pool() {
    let (pool, _) = pool(2);
    let verdict = batch(&pool, &[vec![PASSES; 500], vec![PASSES, FAILS]]);
    drop(pool);
    assert_eq!(verdict.wait().unwrap_err().tx_index, 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn the_first_failure_is_the_one_reported(
        threads in 0usize..4,
        sizes in vec(prop_oneof![1usize..4, 1usize..200], 1..60),
        failing in vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), any::<bool>()), 0..6),
    ) {
        let mut txs: Vec<Vec<u8>> = sizes.iter().map(|size| vec![PASSES; *size]).collect();
        for (tx, input, runs) in &failing {
            let tx = tx.index(txs.len());
            let input = input.index(txs[tx].len());
            txs[tx][input] = if *runs { FAILS } else { CANNOT_RUN };
        }
        let expected = txs.iter().enumerate().find_map(|(index, tx)| {
            let input = tx.iter().position(|byte| *byte != PASSES)?;
            Some((index, input, tx[input] == FAILS))
        });
        let (pool, _) = pool(threads);
        let (one, two) = (batch(&pool, &txs), batch(&pool, &txs));
        for verdict in [two, one] {
            let found = verdict.wait().err().map(|failure| {
                (failure.tx_index, failure.input, failure.error == ScriptError::Invalid)
            });
            prop_assert_eq!(found, expected);
        }
    }
}

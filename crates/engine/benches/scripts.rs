//! Running scripts: one signature of each kind, and a pool of threads compared with the lower bound
//! for its work.
//!
//! Items are inputs. The pool is optimal if its inputs per second equal the rate of one verification
//! times the number of cores.

#![allow(clippy::unwrap_used, reason = "a failure here is a failed measurement")]

use apus_chain::{
    BlockHash, CoinRef, KnownBlock, VERIFY_CHECKLOCKTIMEVERIFY, VERIFY_CHECKSEQUENCEVERIFY,
    VERIFY_DERSIG, VERIFY_NULLDUMMY, VERIFY_P2SH, VERIFY_TAPROOT, VERIFY_WITNESS,
};
use apus_engine::script::{
    CheckRoom, KnownChecks, PreparedTx, RParity, RawBlock, RawTx, RecordedCheck, ScriptPool,
    SignatureKind, SignatureMode, SignatureProver, Signatures, interpreter,
};
use apus_engine::utxo::CoinBytes;
use bitcoin::hashes::Hash as _;
use bitcoin::key::{Keypair, TapTweak as _};
use bitcoin::secp256k1::{All, Message, Secp256k1};
use bitcoin::sighash::{EcdsaSighashType, Prevouts, SighashCache, TapSighashType};
use bitcoin::{Amount, OutPoint, ScriptBuf, Transaction, TxIn, TxOut, Txid, Witness};
use divan::Bencher;
use divan::counter::ItemsCount;
use std::ops::Range;
use std::sync::Arc;

fn main() {
    divan::main();
}

const BLOCK: KnownBlock = KnownBlock { height: 1, hash: BlockHash([1; 32]) };

const FLAGS: u32 = VERIFY_P2SH
    | VERIFY_DERSIG
    | VERIFY_CHECKLOCKTIMEVERIFY
    | VERIFY_CHECKSEQUENCEVERIFY
    | VERIFY_NULLDUMMY
    | VERIFY_WITNESS
    | VERIFY_TAPROOT;

const AMOUNT: u64 = 50_000;

/// The kinds of output scripts.
#[derive(Clone, Copy, Debug)]
enum Lock {
    /// An ECDSA signature.
    P2wpkh,
    /// A Schnorr signature by the key path.
    P2tr,
}

/// A signed transaction, and the outputs that it spends.
struct Signed {
    raw: Vec<u8>,
    spent: Vec<CoinBytes>,
}

fn key(secp: &Secp256k1<All>) -> Keypair {
    Keypair::from_seckey_slice(secp, &[7; 32]).unwrap()
}

fn script(secp: &Secp256k1<All>, lock: Lock) -> ScriptBuf {
    let public = bitcoin::PublicKey::new(key(secp).public_key());
    match lock {
        Lock::P2wpkh => ScriptBuf::new_p2wpkh(&public.wpubkey_hash().unwrap()),
        Lock::P2tr => ScriptBuf::new_p2tr(secp, key(secp).x_only_public_key().0, None),
    }
}

/// Creates a transaction with this many inputs; `number` makes each different.
fn signed(lock: Lock, inputs: u32, number: u8) -> Signed {
    let secp = Secp256k1::new();
    let script = script(&secp, lock);
    let output = TxOut { value: Amount::from_sat(AMOUNT), script_pubkey: script.clone() };
    let outputs = vec![output.clone(); inputs as usize];
    let input = |vout| {
        let previous_output = OutPoint { txid: Txid::from_byte_array([number; 32]), vout };
        TxIn { previous_output, ..TxIn::default() }
    };
    let mut tx = Transaction {
        version: bitcoin::transaction::Version::TWO,
        lock_time: bitcoin::absolute::LockTime::ZERO,
        input: (0..inputs).map(input).collect(),
        output: vec![output.clone(), output],
    };
    let mut cache = SighashCache::new(&mut tx);
    for input in 0..inputs as usize {
        let witness = match lock {
            Lock::P2wpkh => {
                let (amount, kind) = (Amount::from_sat(AMOUNT), EcdsaSighashType::All);
                let hash = cache.p2wpkh_signature_hash(input, &script, amount, kind).unwrap();
                let message = Message::from_digest(hash.to_byte_array());
                let signature = secp.sign_ecdsa(&message, &key(&secp).secret_key());
                let signature = bitcoin::ecdsa::Signature::sighash_all(signature);
                Witness::p2wpkh(&signature, &key(&secp).public_key())
            }
            Lock::P2tr => {
                let (prevouts, kind) = (Prevouts::All(&outputs), TapSighashType::Default);
                let hash = cache.taproot_key_spend_signature_hash(input, &prevouts, kind).unwrap();
                let message = Message::from_digest(hash.to_byte_array());
                let key = key(&secp).tap_tweak(&secp, None).to_keypair();
                let signature = secp.sign_schnorr_no_aux_rand(&message, &key);
                Witness::p2tr_key_spend(&bitcoin::taproot::Signature {
                    signature,
                    sighash_type: kind,
                })
            }
        };
        *cache.witness_mut(input).unwrap() = witness;
    }
    let coin = CoinRef { height: 1, coinbase: false, amount: AMOUNT, script: script.as_bytes() };
    let spent = vec![CoinBytes::new(coin); inputs as usize];
    Signed { raw: bitcoin::consensus::serialize(&tx), spent }
}

const LOCKS: [Lock; 2] = [Lock::P2wpkh, Lock::P2tr];

/// One input of a prepared transaction: little more than the signature.
#[divan::bench(args = LOCKS)]
fn verify(bencher: Bencher, lock: Lock) {
    let Signed { raw, spent } = signed(lock, 1, 1);
    let tx = interpreter().unwrap().prepare(&raw, &spent).unwrap();
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| tx.verify(0, FLAGS).unwrap());
}

/// The same with its signature recorded, not checked.
#[divan::bench(args = LOCKS)]
fn verify_deferred(bencher: Bencher, lock: Lock) {
    let Signed { raw, spent } = signed(lock, 1, 1);
    let tx = interpreter().unwrap().prepare(&raw, &spent).unwrap();
    let check = RecordedCheck::new(SignatureKind::Ecdsa, &[], [0; 32], &[]).unwrap();
    let (known, mut room) = (KnownChecks::default(), [check; 4]);
    bencher.counter(ItemsCount::new(1u32)).bench_local(|| {
        let room = CheckRoom { checks: &mut room, takes_ecdsa: true, passes_over: &mut |_| false };
        assert_eq!(tx.verify_deferred(0, FLAGS, &known, room), Ok(1));
    });
}

/// Reading a transaction of one input and its spent output.
#[divan::bench(args = LOCKS)]
fn prepare(bencher: Bencher, lock: Lock) {
    let Signed { raw, spent } = signed(lock, 1, 1);
    let interpreter = interpreter().unwrap();
    bencher
        .counter(ItemsCount::new(1u32))
        .bench_local(|| interpreter.prepare(&raw, &spent).unwrap());
}

/// Transactions in the layout of one block.
struct Block {
    raw: Arc<Vec<u8>>,
    txs: Vec<(Range<usize>, Vec<CoinBytes>)>,
    inputs: usize,
}

/// Creates transactions with this many inputs each, 4,096 inputs in all.
fn block(inputs: u32) -> Block {
    const INPUTS: u32 = 4096;
    // A few, used in turn, because signing takes longer than verifying.
    let kinds: Vec<Signed> =
        (0..8u8).map(|number| signed(LOCKS[usize::from(number % 2)], inputs, number)).collect();
    let (mut raw, mut txs) = (Vec::new(), Vec::new());
    for tx in kinds.iter().cycle().take((INPUTS / inputs) as usize) {
        let start = raw.len();
        raw.extend(&tx.raw);
        txs.push((start..raw.len(), tx.spent.clone()));
    }
    Block { raw: Arc::new(raw), txs, inputs: INPUTS as usize }
}

impl Block {
    fn batch(&self, pool: &ScriptPool) {
        let raw: Arc<dyn RawBlock> = Arc::<Vec<u8>>::clone(&self.raw);
        let mut batch = pool.begin(BLOCK, FLAGS);
        for (index, (range, spent)) in self.txs.iter().enumerate() {
            batch.add(index, RawTx::new(Arc::clone(&raw), range.clone()), spent.clone());
        }
        batch.finish().wait().unwrap();
    }
}

/// Inputs of a transaction.
const SIZES: [u32; 3] = [1, 4, 2048];

/// No pool: prepared and verified in order, on one core.
#[divan::bench(args = SIZES)]
fn in_order(bencher: Bencher, inputs: u32) {
    let block = block(inputs);
    let interpreter = interpreter().unwrap();
    bencher.counter(ItemsCount::new(block.inputs)).bench_local(|| {
        for (range, spent) in &block.txs {
            let tx: Box<dyn PreparedTx> =
                interpreter.prepare(&block.raw[range.clone()], spent).unwrap();
            (0..spent.len()).for_each(|input| tx.verify(input, FLAGS).unwrap());
        }
    });
}

/// One thread, and the one that waits for the verdict: two cores.
#[divan::bench(args = SIZES)]
fn pool_on_two_cores(bencher: Bencher, inputs: u32) {
    let block = block(inputs);
    let pool = ScriptPool::new(1).unwrap();
    bencher.counter(ItemsCount::new(block.inputs)).bench_local(|| block.batch(&pool));
}

/// Proves everything at no cost: what remains is the time of a block without its signatures.
struct Free;

impl SignatureProver for Free {
    fn prove(&mut self, checks: &[RecordedCheck], proven: &mut Vec<Option<RParity>>) -> usize {
        proven.resize(proven.len() + checks.len(), Some(RParity::Even));
        0
    }
}

/// The waiting thread does everything, except signatures.
#[divan::bench(args = SIZES)]
fn pool_on_one_core_without_signatures(bencher: Bencher, inputs: u32) {
    let block = block(inputs);
    let free = || -> Box<dyn SignatureProver> { Box::new(Free) };
    let (interpreter, mode) = (interpreter().unwrap(), SignatureMode::Fast);
    let pool = ScriptPool::with_prover(0, interpreter, mode, Arc::new(free)).unwrap();
    bencher.counter(ItemsCount::new(block.inputs)).bench_local(|| block.batch(&pool));
}

/// The waiting thread does everything, and proves signatures together.
#[divan::bench(args = SIZES)]
fn pool_on_one_core_fast(bencher: Bencher, inputs: u32) {
    let block = block(inputs);
    let pool = Arc::new(Signatures::new(SignatureMode::Fast)).pool(0).unwrap();
    bencher.counter(ItemsCount::new(block.inputs)).bench_local(|| block.batch(&pool));
}

/// The waiting thread does everything: the overhead of the pool itself, on one core.
#[divan::bench(args = SIZES)]
fn pool_on_one_core(bencher: Bencher, inputs: u32) {
    let block = block(inputs);
    let pool = ScriptPool::new(0).unwrap();
    bencher.counter(ItemsCount::new(block.inputs)).bench_local(|| block.batch(&pool));
}

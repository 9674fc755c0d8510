//! Scripts from arbitrary bytes, for a random test and a fuzz target: deferred signature checks do not change a verdict.
//!
//! The first byte selects how the output holds the script, the second the length of the script; the rest unlocks it.
//! Both parts are opcodes and pushes, but some bytes stand for a key, or for a signature of the script.

use apus_chain::{BlockHash, CoinRef, KnownBlock};
use apus_engine::script::{
    RawBlock, RawTx, ScriptFailure, ScriptPool, SignatureMode, interpreter, signature_prover,
};
use apus_engine::utxo::CoinBytes;
use bitcoin::consensus::serialize;
use bitcoin::hashes::Hash;
use bitcoin::key::{Keypair, UntweakedPublicKey};
use bitcoin::script::{Builder, PushBytesBuf};
use bitcoin::secp256k1::{Message, PublicKey, SECP256K1, SecretKey};
use bitcoin::sighash::{Prevouts, SighashCache, TapSighashType};
use bitcoin::taproot::{LeafVersion, TapLeafHash, TaprootBuilder};
use bitcoin::{Amount, EcdsaSighashType, Script, ScriptBuf, Transaction, TxIn, TxOut, Witness};
use std::sync::{Arc, LazyLock};

/// All flags that apply to blocks (Core `script/interpreter.h`): P2SH, DERSIG, NULLDUMMY, CHECKLOCKTIMEVERIFY,
/// CHECKSEQUENCEVERIFY, WITNESS and TAPROOT.
const FLAGS: u32 = 1 | 1 << 2 | 1 << 4 | 1 << 9 | 1 << 10 | 1 << 11 | 1 << 17;

const AMOUNT: Amount = Amount::from_sat(1000);
const BLOCK: KnownBlock = KnownBlock { height: 1, hash: BlockHash([1; 32]) };

/// The lowest byte that stands for a key; the byte's lowest bits select the key.
const KEY: u8 = 0xf0;
/// The lowest byte that stands for a signature; the byte after it is the hash type.
const SIGNATURE: u8 = 0xe0;

/// Pools whose verdicts must be the same: libsecp256k1 alone; with deferred checks; both, compared for each input.
static POOLS: LazyLock<[ScriptPool; 3]> = LazyLock::new(|| {
    let interpreter = interpreter().expect("this build has it");
    let deferred = |mode| {
        let prover = signature_prover(mode).expect("the portable one at least").new_prover;
        ScriptPool::with_prover(0, Arc::clone(&interpreter), mode, prover).expect("no threads")
    };
    [
        ScriptPool::with_interpreter(0, Arc::clone(&interpreter)).expect("no threads"),
        deferred(SignatureMode::Fast),
        deferred(SignatureMode::Shadow),
    ]
});

#[derive(Clone, Copy, PartialEq, Eq)]
enum Form {
    Bare,
    ScriptHash,
    WitnessScriptHash,
    Taproot,
}

fn secret(number: u8) -> SecretKey {
    SecretKey::from_slice(&[(number & 3) + 1; 32]).expect("less than the order")
}

fn push(script: Builder, bytes: &[u8]) -> Builder {
    script.push_slice(PushBytesBuf::try_from(bytes.to_vec()).expect("short"))
}

/// Replaces the bytes that stand for keys.
fn lock(form: Form, bytes: &[u8]) -> ScriptBuf {
    let mut script = Vec::new();
    for byte in bytes {
        if *byte < KEY {
            script.push(*byte);
            continue;
        }
        let key = PublicKey::from_secret_key(SECP256K1, &secret(*byte));
        let pushed = match (form, byte >> 2 & 1) {
            (Form::Taproot, _) => push(Builder::new(), &key.x_only_public_key().0.serialize()),
            (_, 0) => push(Builder::new(), &key.serialize()),
            _ => push(Builder::new(), &key.serialize_uncompressed()),
        };
        script.extend(pushed.into_bytes());
    }
    ScriptBuf::from_bytes(script)
}

struct Spend {
    form: Form,
    lock: ScriptBuf,
    output: ScriptBuf,
    tx: Transaction,
}

impl Spend {
    /// Signs as the hash type asks, also with types that no rule defines. A negated byte forges the signature.
    fn sign(&self, key: u8, hash_type: u8) -> Vec<u8> {
        let (mut cache, lock) = (SighashCache::new(&self.tx), &self.lock);
        let secret = secret(key);
        let mut signature = match self.form {
            Form::Taproot => {
                let kind = TapSighashType::from_consensus_u8(hash_type);
                let leaf = TapLeafHash::from_script(lock, LeafVersion::TapScript);
                let spent = [TxOut { value: AMOUNT, script_pubkey: self.output.clone() }];
                let kind = kind.unwrap_or(TapSighashType::All);
                let all = Prevouts::All(&spent);
                let Ok(hash) = cache.taproot_script_spend_signature_hash(0, &all, leaf, kind)
                else {
                    return Vec::new();
                };
                let pair = Keypair::from_secret_key(SECP256K1, &secret);
                let message = Message::from_digest(hash.to_byte_array());
                let mut bytes =
                    SECP256K1.sign_schnorr_no_aux_rand(&message, &pair).serialize().to_vec();
                if hash_type != 0 {
                    bytes.push(hash_type);
                }
                bytes
            }
            form => {
                let hash = match form {
                    Form::WitnessScriptHash => {
                        let kind = EcdsaSighashType::from_consensus(hash_type.into());
                        let hash = cache.p2wsh_signature_hash(0, lock, AMOUNT, kind);
                        hash.map(|hash| hash.to_byte_array()).ok()
                    }
                    _ => {
                        let hash = cache.legacy_signature_hash(0, lock, hash_type.into());
                        hash.map(|hash| hash.to_byte_array()).ok()
                    }
                };
                let message = Message::from_digest(hash.unwrap_or([7; 32]));
                let mut bytes = SECP256K1.sign_ecdsa(&message, &secret).serialize_der().to_vec();
                bytes.push(hash_type);
                bytes
            }
        };
        if key & 8 != 0 {
            signature[40] ^= 1;
        }
        signature
    }

    /// Replaces the bytes that stand for signatures. Returns the elements of a witness, or one script.
    fn unlock(&mut self, bytes: &[u8]) {
        let (mut script, mut stack) = (Builder::new(), Vec::new());
        let mut bytes = bytes.iter().copied();
        while let Some(byte) = bytes.next() {
            let element = match byte {
                SIGNATURE.. => self.sign(byte, bytes.next().unwrap_or(1)),
                0x81.. => bytes.by_ref().take(usize::from(byte & 7)).collect(),
                _ => vec![byte; usize::from(byte > 0)],
            };
            script = push(script, &element);
            stack.push(element);
        }
        let input = &mut self.tx.input[0];
        match self.form {
            Form::Bare => input.script_sig = script.into_script(),
            Form::ScriptHash => input.script_sig = push(script, self.lock.as_bytes()).into_script(),
            Form::WitnessScriptHash | Form::Taproot => {
                let control = (self.form == Form::Taproot).then(|| tree(&self.lock).1);
                stack.push(self.lock.to_bytes());
                stack.extend(control);
                input.witness = Witness::from_slice(&stack);
            }
        }
    }
}

/// Returns the output whose only leaf is the script, and the leaf's control block.
fn tree(lock: &Script) -> (ScriptBuf, Vec<u8>) {
    let internal: UntweakedPublicKey = secret(0).x_only_public_key(SECP256K1).0;
    let builder = TaprootBuilder::new().add_leaf(0, lock.to_owned()).expect("one leaf");
    let tree = builder.finalize(SECP256K1, internal).expect("a complete tree");
    let leaf = (lock.to_owned(), LeafVersion::TapScript);
    let control = tree.control_block(&leaf).expect("its leaf").serialize();
    (ScriptBuf::new_p2tr_tweaked(tree.output_key()), control)
}

fn verdict(pool: &ScriptPool, raw: &[u8], output: &Script) -> Result<(), ScriptFailure> {
    let coin =
        CoinRef { height: 1, coinbase: false, amount: AMOUNT.to_sat(), script: output.as_bytes() };
    let block: Arc<dyn RawBlock> = Arc::new(raw.to_vec());
    let (coin, mut batch) = (CoinBytes::new(coin), pool.begin(BLOCK, FLAGS));
    // One check alone would be left to libsecp256k1.
    for index in 1..4 {
        batch.add(index, RawTx::new(Arc::clone(&block), 0..raw.len()), vec![coin.clone()]);
    }
    batch.finish().wait()
}

/// Runs the script that the bytes describe in all pools. Fails if their verdicts differ; returns whether it passed, if the
/// bytes describe one.
pub(crate) fn passes(data: &[u8]) -> Option<bool> {
    let [form, length, bytes @ ..] = data else { return None };
    let form = match form % 4 {
        0 => Form::Bare,
        1 => Form::ScriptHash,
        2 => Form::WitnessScriptHash,
        _ => Form::Taproot,
    };
    let (locked, unlocking) = bytes.split_at(usize::from(*length).min(bytes.len()));
    let lock = lock(form, locked);
    if lock.len() > 520 {
        // Longer scripts cannot be pushed.
        return None;
    }
    let output = match form {
        Form::Bare => lock.clone(),
        Form::ScriptHash => lock.to_p2sh(),
        Form::WitnessScriptHash => lock.to_p2wsh(),
        Form::Taproot => tree(&lock).0,
    };
    let tx = Transaction {
        version: bitcoin::transaction::Version::TWO,
        lock_time: bitcoin::absolute::LockTime::ZERO,
        input: vec![TxIn::default()],
        output: vec![TxOut { value: AMOUNT, script_pubkey: ScriptBuf::new() }],
    };
    let mut spend = Spend { form, lock, output, tx };
    spend.unlock(unlocking);
    let raw = serialize(&spend.tx);
    let [alone, others @ ..] = &*POOLS;
    let expected = verdict(alone, &raw, &spend.output);
    for pool in others {
        assert_eq!(verdict(pool, &raw, &spend.output), expected);
    }
    Some(expected.is_ok())
}

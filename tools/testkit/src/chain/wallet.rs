//! [`Wallet`]: makes scripts of every kind, and spends all spendable ones.
//!
//! Keys are derived from a seed and a counter, and signatures are deterministic: the same seed gives the same
//! bytes. Signature hash types vary from input to input, so that verifiers are tested with all of them.

use crate::rng::Rng;
use bitcoin::hashes::{Hash, sha256};
use bitcoin::key::{Keypair, TapTweak};
use bitcoin::opcodes::{OP_0, all as op};
use bitcoin::script::{Builder, PushBytesBuf};
use bitcoin::secp256k1::{All, Message, Secp256k1, SecretKey};
use bitcoin::sighash::{EcdsaSighashType, Prevouts, SighashCache, TapSighashType};
use bitcoin::taproot::{LeafVersion, TaprootBuilder};
use bitcoin::{ScriptBuf, Transaction, TxOut, Witness, WitnessProgram, WitnessVersion};
use std::collections::HashMap;

/// A kind of output script.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ScriptKind {
    /// `OP_TRUE`: an empty input script spends it.
    OpTrue,
    /// An empty script.
    Empty,
    /// 10,000 bytes: the longest script that can be spent.
    Longest,
    /// A 33-byte key and OP_CHECKSIG.
    PkCompressed,
    /// A 65-byte key and OP_CHECKSIG.
    PkUncompressed,
    /// A 65-byte key that begins with 6 or 7, and OP_CHECKSIG.
    PkHybrid,
    /// The hash of a 33-byte key.
    Pkh,
    /// The hash of a script (OP_TRUE).
    Sh,
    /// P2WPKH within P2SH.
    ShWpkh,
    /// P2WSH within P2SH.
    ShWsh,
    /// The hash of a key, witness version 0.
    Wpkh,
    /// The hash of a script (OP_TRUE), witness version 0.
    Wsh,
    /// A taproot output, spent by its key.
    TrKey,
    /// A taproot output, spent by a script (OP_TRUE).
    TrScript,
    /// Witness version 1 with a 2-byte program: any witness spends it.
    Anchor,
    /// A witness version without a meaning yet: any witness spends it.
    FutureWitness,
    /// Like [`PkCompressed`](Self::PkCompressed), but the key is not on the curve. Never spent.
    PkCompressedOffCurve,
    /// Like [`PkUncompressed`](Self::PkUncompressed), but not on the curve. Never spent.
    PkUncompressedOffCurve,
    /// Random bytes. Never spent.
    Junk,
    /// OP_RETURN and random bytes: never a coin.
    OpReturn,
    /// Only OP_RETURN: never a coin.
    OpReturnBare,
    /// 10,001 bytes: never a coin.
    TooLong,
}

impl ScriptKind {
    /// All kinds.
    pub const ALL: [Self; 22] = [
        Self::OpTrue,
        Self::Empty,
        Self::Longest,
        Self::PkCompressed,
        Self::PkUncompressed,
        Self::PkHybrid,
        Self::Pkh,
        Self::Sh,
        Self::ShWpkh,
        Self::ShWsh,
        Self::Wpkh,
        Self::Wsh,
        Self::TrKey,
        Self::TrScript,
        Self::Anchor,
        Self::FutureWitness,
        Self::PkCompressedOffCurve,
        Self::PkUncompressedOffCurve,
        Self::Junk,
        Self::OpReturn,
        Self::OpReturnBare,
        Self::TooLong,
    ];
}

/// The way an input spends a script.
#[derive(Debug, Clone)]
enum Recipe {
    /// Fixed bytes.
    Fixed { script_sig: ScriptBuf, witness: Witness },
    /// A signature, then these pushes.
    Legacy { key: SecretKey, pushes: Vec<Vec<u8>> },
    /// A signature and the key in the witness, for the program given.
    WitnessKey { key: SecretKey, program: ScriptBuf, script_sig: ScriptBuf },
    /// A Schnorr signature under the tweaked key.
    Taproot { tweaked: Keypair },
}

/// Keys, and the scripts made with them.
#[derive(Debug)]
pub struct Wallet {
    secp: Secp256k1<All>,
    seed: u64,
    next_key: u64,
    recipes: HashMap<ScriptBuf, Recipe>,
    kinds: HashMap<ScriptBuf, ScriptKind>,
}

impl Wallet {
    /// Makes a wallet whose keys are all derived from `seed`.
    pub fn new(seed: u64) -> Self {
        Self {
            secp: Secp256k1::new(),
            seed,
            next_key: 0,
            recipes: HashMap::new(),
            kinds: HashMap::new(),
        }
    }

    /// Returns whether [`sign`](Self::sign) can spend outputs with this script.
    pub fn can_spend(&self, script: &bitcoin::Script) -> bool {
        self.recipes.contains_key(script)
    }

    /// Returns the kind of a spendable script of this wallet.
    pub(super) fn kind(&self, script: &bitcoin::Script) -> Option<ScriptKind> {
        self.kinds.get(script).copied()
    }

    /// Returns the key of a script, if a single key signs it in the legacy way.
    pub(super) fn legacy_key(&self, script: &bitcoin::Script) -> Option<SecretKey> {
        match self.recipes.get(script) {
            Some(Recipe::Legacy { key, .. }) => Some(*key),
            _ => None,
        }
    }

    /// Makes a script of a kind, with new keys if it has any.
    pub fn script(&mut self, kind: ScriptKind, rng: &mut Rng) -> ScriptBuf {
        let (script, recipe) = match kind {
            ScriptKind::OpTrue => (op_true(), fixed(ScriptBuf::new(), &[])),
            ScriptKind::Empty => (ScriptBuf::new(), fixed(op_true(), &[])),
            ScriptKind::Longest => (longest_script(rng), fixed(ScriptBuf::new(), &[])),
            ScriptKind::Sh => (op_true().to_p2sh(), fixed(push(op_true().as_bytes()), &[])),
            ScriptKind::Wsh => (op_true().to_p2wsh(), fixed(ScriptBuf::new(), &[&[0x51]])),
            ScriptKind::ShWsh => {
                let inner = op_true().to_p2wsh();
                (inner.to_p2sh(), fixed(push(inner.as_bytes()), &[&[0x51]]))
            }
            ScriptKind::Anchor => {
                (ScriptBuf::from_bytes(vec![0x51, 2, 0x4e, 0x73]), fixed(ScriptBuf::new(), &[]))
            }
            ScriptKind::FutureWitness => (future_witness(rng), fixed(ScriptBuf::new(), &[])),
            ScriptKind::PkCompressed
            | ScriptKind::PkUncompressed
            | ScriptKind::PkHybrid
            | ScriptKind::Pkh
            | ScriptKind::Wpkh
            | ScriptKind::ShWpkh
            | ScriptKind::TrKey
            | ScriptKind::TrScript => self.keyed(kind),
            never_spent => return unspent_script(never_spent, rng),
        };
        self.recipes.insert(script.clone(), recipe);
        self.kinds.insert(script.clone(), kind);
        script
    }

    fn keyed(&mut self, kind: ScriptKind) -> (ScriptBuf, Recipe) {
        let key = self.new_key();
        let public = key.public_key(&self.secp);
        let compressed = bitcoin::PublicKey::new(public);
        let wpkh = || ScriptBuf::new_p2wpkh(&compressed.wpubkey_hash().expect("compressed"));
        let legacy = |pushes| Recipe::Legacy { key, pushes };
        match kind {
            ScriptKind::PkCompressed => (pay_to_key(&public.serialize()), legacy(vec![])),
            ScriptKind::PkUncompressed => {
                (pay_to_key(&public.serialize_uncompressed()), legacy(vec![]))
            }
            ScriptKind::PkHybrid => {
                let mut bytes = public.serialize_uncompressed();
                bytes[0] = 6 + (bytes[64] & 1);
                (pay_to_key(&bytes), legacy(vec![]))
            }
            ScriptKind::Pkh => (
                ScriptBuf::new_p2pkh(&compressed.pubkey_hash()),
                legacy(vec![public.serialize().to_vec()]),
            ),
            ScriptKind::Wpkh => {
                let program = wpkh();
                let script_sig = ScriptBuf::new();
                (program.clone(), Recipe::WitnessKey { key, program, script_sig })
            }
            ScriptKind::ShWpkh => {
                let program = wpkh();
                let script_sig = push(program.as_bytes());
                (program.to_p2sh(), Recipe::WitnessKey { key, program, script_sig })
            }
            ScriptKind::TrKey => {
                let pair = Keypair::from_secret_key(&self.secp, &key);
                let (internal, _) = pair.x_only_public_key();
                let tweaked = pair.tap_tweak(&self.secp, None).to_keypair();
                (ScriptBuf::new_p2tr(&self.secp, internal, None), Recipe::Taproot { tweaked })
            }
            ScriptKind::TrScript => {
                let internal = public.x_only_public_key().0;
                let tree = TaprootBuilder::new().add_leaf(0, op_true()).expect("one leaf");
                let info = tree.finalize(&self.secp, internal).expect("complete");
                let control = info
                    .control_block(&(op_true(), LeafVersion::TapScript))
                    .expect("the leaf is in the tree");
                let script = ScriptBuf::new_p2tr(&self.secp, internal, info.merkle_root());
                (script, fixed(ScriptBuf::new(), &[&[0x51], &control.serialize()]))
            }
            other => unreachable!("{other:?} has no key"),
        }
    }

    pub(super) fn new_key(&mut self) -> SecretKey {
        self.next_key += 1;
        let text = format!("apus testkit key {} {}", self.seed, self.next_key);
        let bytes = sha256::Hash::hash(text.as_bytes()).to_byte_array();
        SecretKey::from_slice(&bytes).expect("all but about 2^-128 of all hashes are keys")
    }

    /// Fills in the input scripts and witnesses that spend `spent`, the outputs of the inputs. Inputs whose
    /// script this wallet does not know stay unchanged.
    pub fn sign(&self, tx: &mut Transaction, spent: &[TxOut]) {
        assert_eq!(tx.input.len(), spent.len(), "one spent output for each input");
        for (index, output) in spent.iter().enumerate() {
            if let Some(recipe) = self.recipes.get(&output.script_pubkey) {
                let (script_sig, witness) = self.satisfy(recipe, tx, index, spent);
                tx.input[index].script_sig = script_sig;
                tx.input[index].witness = witness;
            }
        }
    }

    fn satisfy(
        &self,
        recipe: &Recipe,
        tx: &Transaction,
        index: usize,
        spent: &[TxOut],
    ) -> (ScriptBuf, Witness) {
        let mut hashes = SighashCache::new(tx);
        match recipe {
            Recipe::Fixed { script_sig, witness } => (script_sig.clone(), witness.clone()),
            Recipe::Legacy { key, pushes } => {
                let kind = hash_type(index, tx.output.len());
                let hash = hashes
                    .legacy_signature_hash(index, &spent[index].script_pubkey, kind.to_u32())
                    .expect("the input is there");
                let signature = self.ecdsa(Message::from_digest(hash.to_byte_array()), key, kind);
                let mut script = Builder::new().push_slice(pushable(&signature));
                for bytes in pushes {
                    script = script.push_slice(pushable(bytes));
                }
                (script.into_script(), Witness::new())
            }
            Recipe::WitnessKey { key, program, script_sig } => {
                let kind = hash_type(index, tx.output.len());
                let hash = hashes
                    .p2wpkh_signature_hash(index, program, spent[index].value, kind)
                    .expect("the input is there and the program is P2WPKH");
                let signature = self.ecdsa(Message::from_digest(hash.to_byte_array()), key, kind);
                let public = key.public_key(&self.secp).serialize().to_vec();
                (script_sig.clone(), Witness::from_slice(&[signature, public]))
            }
            Recipe::Taproot { tweaked } => {
                let kinds = [TapSighashType::Default, TapSighashType::All, TapSighashType::None];
                let kind = kinds[index % kinds.len()];
                let hash = hashes
                    .taproot_key_spend_signature_hash(index, &Prevouts::All(spent), kind)
                    .expect("all spent outputs are given");
                let message = Message::from_digest(hash.to_byte_array());
                let signature = self.secp.sign_schnorr_no_aux_rand(&message, tweaked);
                let signature = bitcoin::taproot::Signature { signature, sighash_type: kind };
                (ScriptBuf::new(), Witness::from_slice(&[signature.to_vec()]))
            }
        }
    }

    fn ecdsa(&self, message: Message, key: &SecretKey, kind: EcdsaSighashType) -> Vec<u8> {
        let mut bytes = self.secp.sign_ecdsa(&message, key).serialize_der().to_vec();
        bytes.push(kind.to_u32() as u8);
        bytes
    }
}

fn hash_type(index: usize, outputs: usize) -> EcdsaSighashType {
    match index % 5 {
        1 => EcdsaSighashType::None,
        2 if index < outputs => EcdsaSighashType::Single,
        3 => EcdsaSighashType::AllPlusAnyoneCanPay,
        4 => EcdsaSighashType::NonePlusAnyoneCanPay,
        _ => EcdsaSighashType::All,
    }
}

fn fixed(script_sig: ScriptBuf, witness: &[&[u8]]) -> Recipe {
    Recipe::Fixed { script_sig, witness: Witness::from_slice(witness) }
}

fn op_true() -> ScriptBuf {
    Builder::new().push_opcode(op::OP_PUSHNUM_1).into_script()
}

fn pushable(bytes: &[u8]) -> PushBytesBuf {
    PushBytesBuf::try_from(bytes.to_vec()).expect("shorter than 4 GiB")
}

fn push(bytes: &[u8]) -> ScriptBuf {
    Builder::new().push_slice(pushable(bytes)).into_script()
}

fn pay_to_key(key: &[u8]) -> ScriptBuf {
    Builder::new().push_slice(pushable(key)).push_opcode(op::OP_CHECKSIG).into_script()
}

/// Makes nineteen pushes of maximum length, one that fills up the rest, and OP_TRUE: 10,000 bytes.
fn longest_script(rng: &mut Rng) -> ScriptBuf {
    let mut script = Builder::new();
    for _ in 0..19 {
        script = script.push_slice(pushable(&rng.bytes(520)));
    }
    let script = script.push_slice(pushable(&rng.bytes(61))).push_opcode(op::OP_PUSHNUM_1);
    let script = script.into_script();
    assert_eq!(script.len(), 10_000);
    script
}

fn future_witness(rng: &mut Rng) -> ScriptBuf {
    let version = WitnessVersion::try_from(rng.between(2, 16) as u8).expect("2 to 16");
    let len = rng.between(2, 40) as usize;
    let program = WitnessProgram::new(version, &rng.bytes(len)).expect("2 to 40 bytes");
    ScriptBuf::new_witness_program(&program)
}

fn unspent_script(kind: ScriptKind, rng: &mut Rng) -> ScriptBuf {
    // x = 5 and x = 2^256 - 1: no point of secp256k1 has the first x, and the second is not a field element.
    let mut x = [0; 32];
    x[31] = 5;
    if rng.one_in(2) {
        x = [0xff; 32];
    }
    let parity = rng.below(2) as u8;
    match kind {
        ScriptKind::PkCompressedOffCurve => pay_to_key(&[&[2 + parity][..], &x].concat()),
        ScriptKind::PkUncompressedOffCurve => pay_to_key(&[&[4][..], &x, &rng.bytes(32)].concat()),
        ScriptKind::Junk => {
            let len = rng.between(1, 80) as usize;
            let mut bytes = rng.bytes(len);
            // Neither an unspendable output nor, by its first byte, a known script.
            bytes[0] = OP_0.to_u8() + 1 + (bytes[0] & 0x0f);
            ScriptBuf::from_bytes(bytes)
        }
        ScriptKind::OpReturn => {
            let len = rng.below(80) as usize;
            ScriptBuf::from_bytes([&[0x6a][..], &rng.bytes(len)].concat())
        }
        ScriptKind::OpReturnBare => ScriptBuf::from_bytes(vec![0x6a]),
        ScriptKind::TooLong => ScriptBuf::from_bytes(vec![0; 10_001]),
        spendable => unreachable!("{spendable:?} can be spent"),
    }
}

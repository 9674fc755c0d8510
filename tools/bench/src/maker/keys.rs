//! [`Keyring`]: keys derived from a seed, the scripts made with them, and their signatures.
//!
//! Signatures are deterministic (RFC 6979, and BIP-340 without auxiliary randomness) and low in S, so that
//! the same seed gives the same bytes. An unsigned keyring gives dummy bytes of the same size. The keys
//! protect nothing.

use super::law::PaymentKind;
use apus_hash::sha256;
use apus_testkit::rng::Rng;
use bitcoin::key::TapTweak;
use bitcoin::opcodes::all::{OP_CHECKMULTISIG, OP_CHECKSIG, OP_ENDIF, OP_IF};
use bitcoin::script::{Builder, PushBytes, ScriptBuf};
use bitcoin::secp256k1::{All, Keypair, Message, Secp256k1, SecretKey, XOnlyPublicKey};
use bitcoin::taproot::{LeafVersion, TapLeafHash, TaprootBuilder};
use bitcoin::{EcdsaSighashType, PublicKey};

/// Keys per keyring: scripts repeat, as with reused addresses.
const KEYS: usize = 1_000;
/// Maximum bytes of a push (Core `script/script.h`, `MAX_SCRIPT_ELEMENT_SIZE`).
const PUSH_BYTES_MAX: usize = 520;

/// A spendable script: its kind, and the number of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyScript {
    pub(super) kind: PaymentKind,
    pub(super) key: u16,
}

/// The data that spends a script, apart from signatures.
#[derive(Debug, Clone)]
pub(super) struct Lock {
    /// The output's script.
    pub(super) script_pubkey: ScriptBuf,
    /// The inner script or program that is signed; the output's script if there is none.
    pub(super) inner: ScriptBuf,
    /// Further elements of the witness or of the input's script.
    pub(super) rest: Vec<Vec<u8>>,
}

impl Lock {
    fn bare(script_pubkey: ScriptBuf, rest: Vec<Vec<u8>>) -> Self {
        Self { script_pubkey, inner: ScriptBuf::new(), rest }
    }

    /// The leaf that spends a taproot output.
    pub(super) fn leaf_hash(&self) -> TapLeafHash {
        TapLeafHash::from_script(&self.inner, LeafVersion::TapScript)
    }
}

/// One key in all its forms.
struct Key {
    public: PublicKey,
    /// Signs for the key path of a taproot output.
    tweaked: Keypair,
    /// Signs everything else.
    internal: Keypair,
}

/// All keys and scripts of a chain.
pub(super) struct Keyring {
    secp: Secp256k1<All>,
    keys: Vec<Key>,
    locks: Vec<Vec<Lock>>,
    signed: bool,
}

impl Keyring {
    pub(super) fn new(seed: u64, signed: bool) -> Self {
        let secp = Secp256k1::new();
        let keys: Vec<Key> = (0..KEYS).map(|number| Key::new(&secp, seed, number)).collect();
        let lock = |kind, number| {
            let at = |offset: usize| &keys[(number + offset) % KEYS];
            match kind {
                PaymentKind::TrScript => {
                    tap_script(&secp, at(0), &mut Rng::at(seed, !(number as u64)))
                }
                PaymentKind::Wsh => {
                    let script = multisig(2, &[at(0), at(1), at(2)]);
                    let rest = vec![script.to_bytes()];
                    Lock { script_pubkey: script.to_p2wsh(), inner: script, rest }
                }
                PaymentKind::Multisig => Lock::bare(multisig(1, &[at(0), at(1)]), vec![]),
                _ => single(&secp, kind, at(0)),
            }
        };
        let locks =
            PaymentKind::ALL.map(|kind| (0..KEYS).map(|number| lock(kind, number)).collect());
        Self { secp, keys, locks: locks.into(), signed }
    }

    /// A script of the given kind.
    pub(super) fn script(&self, kind: PaymentKind, rng: &mut Rng) -> KeyScript {
        KeyScript { kind, key: rng.index(KEYS) as u16 }
    }

    pub(super) fn lock(&self, script: KeyScript) -> &Lock {
        &self.locks[script.kind as usize][usize::from(script.key)]
    }

    /// An ECDSA signature of everything (SIGHASH_ALL) by the key `offset` places after the script's. In
    /// unsigned chains `filler` generates the dummy bytes.
    pub(super) fn ecdsa(
        &self,
        script: KeyScript,
        offset: usize,
        digest: impl FnOnce() -> [u8; 32],
        filler: &mut Rng,
    ) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(73);
        if self.signed {
            let key = &self.keys[(usize::from(script.key) + offset) % KEYS];
            let message = Message::from_digest(digest());
            let signature = self.secp.sign_ecdsa(&message, &key.internal.secret_key());
            bytes.extend_from_slice(&signature.serialize_der());
        } else {
            // Half of all r have their top bit set and are a byte longer.
            let len = 70 + filler.below(2) as usize;
            filler.append(&mut bytes, len);
        }
        bytes.push(EcdsaSighashType::All as u8);
        bytes
    }

    /// A Schnorr signature of everything (SIGHASH_DEFAULT).
    pub(super) fn schnorr(
        &self,
        script: KeyScript,
        digest: impl FnOnce() -> [u8; 32],
        filler: &mut Rng,
    ) -> [u8; 64] {
        let mut bytes = [0; 64];
        if self.signed {
            let key = &self.keys[usize::from(script.key)];
            let pair = if script.kind == PaymentKind::Tr { &key.tweaked } else { &key.internal };
            let message = Message::from_digest(digest());
            bytes = self.secp.sign_schnorr_no_aux_rand(&message, pair).serialize();
        } else {
            filler.fill(&mut bytes);
        }
        bytes
    }
}

impl Key {
    fn new(secp: &Secp256k1<All>, seed: u64, number: usize) -> Self {
        let text = format!("key {number} of the chain of seed {seed}");
        let secret = SecretKey::from_slice(&sha256(text.as_bytes()))
            .expect("all but about 2^-128 of all hashes are keys");
        let internal = Keypair::from_secret_key(secp, &secret);
        let tweaked = internal.tap_tweak(secp, None).to_keypair();
        Self { public: PublicKey::new(internal.public_key()), tweaked, internal }
    }

    fn x_only(&self) -> XOnlyPublicKey {
        self.internal.x_only_public_key().0
    }
}

/// Bytes as a push. All pushes here are below the limit.
pub(super) fn pushed(bytes: &[u8]) -> &PushBytes {
    bytes.try_into().expect("a push of some hundred bytes")
}

/// A script with one key.
fn single(secp: &Secp256k1<All>, kind: PaymentKind, key: &Key) -> Lock {
    let bytes = || key.public.to_bytes();
    let program = key.public.wpubkey_hash().map(|hash| ScriptBuf::new_p2wpkh(&hash));
    let program = program.expect("the key is compressed");
    match kind {
        PaymentKind::Pk => Lock::bare(ScriptBuf::new_p2pk(&key.public), vec![]),
        PaymentKind::Pkh => {
            Lock::bare(ScriptBuf::new_p2pkh(&key.public.pubkey_hash()), vec![bytes()])
        }
        PaymentKind::Tr => Lock::bare(ScriptBuf::new_p2tr(secp, key.x_only(), None), vec![]),
        PaymentKind::ShWpkh => {
            Lock { script_pubkey: program.to_p2sh(), inner: program, rest: vec![bytes()] }
        }
        _ => Lock { script_pubkey: program.clone(), inner: program, rest: vec![bytes()] },
    }
}

/// A multisig script that needs `wanted` of these keys.
fn multisig(wanted: i64, keys: &[&Key]) -> ScriptBuf {
    let script = Builder::new().push_int(wanted);
    let script = keys.iter().fold(script, |script, key| script.push_key(&key.public));
    script.push_int(keys.len() as i64).push_opcode(OP_CHECKMULTISIG).into_script()
}

/// A key and data that is never executed, as in inscriptions, in the only leaf of a tree.
fn tap_script(secp: &Secp256k1<All>, key: &Key, rng: &mut Rng) -> Lock {
    let octave = rng.below(7);
    let mut data = Vec::new();
    let len = rng.between(64 << octave, 128 << octave) as usize;
    rng.append(&mut data, len);
    let leaf = Builder::new().push_x_only_key(&key.x_only()).push_opcode(OP_CHECKSIG);
    let leaf = leaf.push_int(0).push_opcode(OP_IF);
    let leaf = data.chunks(PUSH_BYTES_MAX).fold(leaf, |leaf, data| leaf.push_slice(pushed(data)));
    let leaf = leaf.push_opcode(OP_ENDIF).into_script();
    let tree = TaprootBuilder::new().add_leaf(0, leaf.clone()).expect("the only leaf");
    let tree = tree.finalize(secp, key.x_only()).expect("the tree is whole");
    let control = tree.control_block(&(leaf.clone(), LeafVersion::TapScript));
    let control = control.expect("the leaf is in the tree").serialize();
    Lock {
        script_pubkey: ScriptBuf::new_p2tr_tweaked(tree.output_key()),
        rest: vec![leaf.to_bytes(), control],
        inner: leaf,
    }
}

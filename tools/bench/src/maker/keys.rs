//! [`Keyring`]: keys that come from a seed, the scripts made with them, and their signatures.
//!
//! Signatures are deterministic (RFC 6979, and BIP-340 without auxiliary randomness) and low in S,
//! so that the same seed gives the same bytes. An unsigned keyring gives bytes of the same size
//! that are no signatures. The keys protect nothing.

use super::law::PaymentKind;
use apus_hash::sha256;
use apus_testkit::rng::Rng;
use bitcoin_hashes::{Hash, hash160};
use secp256k1::{All, Keypair, Message, Scalar, Secp256k1, SecretKey};

/// Keys of each keyring: scripts repeat as they do where addresses are used again.
const KEYS: usize = 1_000;
/// Bytes that one push may hold (Core `script/script.h`, `MAX_SCRIPT_ELEMENT_SIZE`).
const PUSH_BYTES_MAX: usize = 520;

pub(super) const OP_RETURN: u8 = 0x6a;
const OP_0: u8 = 0x00;
const OP_PUSHDATA1: u8 = 0x4c;
const OP_PUSHDATA2: u8 = 0x4d;
const OP_1: u8 = 0x51;
const OP_2: u8 = 0x52;
const OP_3: u8 = 0x53;
const OP_IF: u8 = 0x63;
const OP_ENDIF: u8 = 0x68;
const OP_DUP: u8 = 0x76;
const OP_EQUAL: u8 = 0x87;
const OP_EQUALVERIFY: u8 = 0x88;
const OP_HASH160: u8 = 0xa9;
const OP_CHECKSIG: u8 = 0xac;
const OP_CHECKMULTISIG: u8 = 0xae;
/// Leaf version of BIP-342.
const LEAF_VERSION: u8 = 0xc0;

/// A script that can be spent: its kind, and the number of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyScript {
    pub(super) kind: PaymentKind,
    pub(super) key: u16,
}

/// What a script needs to be spent, beside signatures.
#[derive(Debug, Clone, Default)]
pub(super) struct Lock {
    /// The output's script.
    pub(super) script_pubkey: Vec<u8>,
    /// What is signed as the script of the input: the script executed, or its leaf's hash.
    pub(super) script_code: Vec<u8>,
    /// Further elements of the witness, or further bytes of the input's script.
    pub(super) rest: Vec<Vec<u8>>,
}

/// One key in all its forms.
struct Key {
    secret: SecretKey,
    public: [u8; 33],
    /// What signs for a taproot output by its key.
    tweaked: Keypair,
    /// What signs in a leaf.
    internal: Keypair,
}

/// All keys and scripts of a chain.
pub(super) struct Keyring {
    secp: Secp256k1<All>,
    keys: Vec<Key>,
    locks: Vec<Vec<Lock>>,
    signed: bool,
}

/// A signature of a kind, with its hash type where it has one.
pub(super) struct Signature {
    bytes: [u8; 72],
    len: usize,
}

impl Signature {
    pub(super) fn bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
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
                PaymentKind::Wsh => wsh([at(0), at(1), at(2)]),
                PaymentKind::Multisig => multisig([at(0), at(1)]),
                _ => single(kind, at(0)),
            }
        };
        let locks =
            PaymentKind::ALL.map(|kind| (0..KEYS).map(|number| lock(kind, number)).collect());
        Self { secp, keys, locks: locks.into(), signed }
    }

    /// A script of a kind.
    pub(super) fn script(&self, kind: PaymentKind, rng: &mut Rng) -> KeyScript {
        KeyScript { kind, key: rng.index(KEYS) as u16 }
    }

    pub(super) fn lock(&self, script: KeyScript) -> &Lock {
        &self.locks[script.kind as usize][usize::from(script.key)]
    }

    /// An ECDSA signature of everything (SIGHASH_ALL) by the key `offset` places after the
    /// script's. `filler` is what unsigned chains have in its place.
    pub(super) fn ecdsa(
        &self,
        script: KeyScript,
        offset: usize,
        digest: impl FnOnce() -> [u8; 32],
        filler: &mut Rng,
    ) -> Signature {
        let mut bytes = [1; 72];
        if self.signed {
            let key = &self.keys[(usize::from(script.key) + offset) % KEYS];
            let message = Message::from_digest(digest());
            let der = self.secp.sign_ecdsa(&message, &key.secret).serialize_der();
            bytes[..der.len()].copy_from_slice(&der);
            return Signature { bytes, len: der.len() + 1 };
        }
        // Half of all r have their top bit set and are a byte longer.
        let len = 71 + filler.below(2) as usize;
        filler.fill(&mut bytes[..len - 1]);
        Signature { bytes, len }
    }

    /// A Schnorr signature of everything (SIGHASH_DEFAULT).
    pub(super) fn schnorr(
        &self,
        script: KeyScript,
        digest: impl FnOnce() -> [u8; 32],
        filler: &mut Rng,
    ) -> Signature {
        let mut bytes = [0; 72];
        if self.signed {
            let key = &self.keys[usize::from(script.key)];
            let pair = if script.kind == PaymentKind::Tr { &key.tweaked } else { &key.internal };
            let message = Message::from_digest(digest());
            let signature = self.secp.sign_schnorr_no_aux_rand(&message, pair);
            bytes[..64].copy_from_slice(&signature.serialize());
        } else {
            filler.fill(&mut bytes[..64]);
        }
        Signature { bytes, len: 64 }
    }
}

impl Key {
    fn new(secp: &Secp256k1<All>, seed: u64, number: usize) -> Self {
        let text = format!("key {number} of the chain of seed {seed}");
        let secret = SecretKey::from_slice(&sha256(text.as_bytes()))
            .expect("all but about 2^-128 of all hashes are keys");
        let internal = Keypair::from_secret_key(secp, &secret);
        let tweaked = tweak(secp, &internal, None);
        Self { secret, public: secret.public_key(secp).serialize(), tweaked, internal }
    }

    fn x_only(&self) -> [u8; 32] {
        self.internal.x_only_public_key().0.serialize()
    }
}

/// The output key of a taproot output (BIP-341), with the root of its scripts if it has any.
fn tweak(secp: &Secp256k1<All>, internal: &Keypair, root: Option<&[u8; 32]>) -> Keypair {
    let mut data = internal.x_only_public_key().0.serialize().to_vec();
    data.extend_from_slice(root.map_or(&[], |root| root));
    let scalar = Scalar::from_be_bytes(tagged_hash("TapTweak", &data))
        .expect("all but about 2^-128 of all hashes are scalars");
    internal.add_xonly_tweak(secp, &scalar).expect("a hash of the key is not its negation")
}

/// The hashes of BIP-340: of their tag's hash twice, and the data.
pub(super) fn tagged_hash(tag: &str, data: &[u8]) -> [u8; 32] {
    let tag = sha256(tag.as_bytes());
    sha256(&[&tag, &tag, data].concat())
}

fn hash160(bytes: &[u8]) -> [u8; 20] {
    hash160::Hash::hash(bytes).to_byte_array()
}

/// Appends a push of bytes in its shortest form, as long as they are more than one.
pub(super) fn push(script: &mut Vec<u8>, bytes: &[u8]) {
    match bytes.len() {
        len @ ..0x4c => script.push(len as u8),
        len @ ..0x100 => script.extend([OP_PUSHDATA1, len as u8]),
        len => {
            script.push(OP_PUSHDATA2);
            script.extend((len as u16).to_le_bytes());
        }
    }
    script.extend_from_slice(bytes);
}

fn pushed(bytes: &[u8]) -> Vec<u8> {
    let mut script = Vec::new();
    push(&mut script, bytes);
    script
}

fn pkh(public: &[u8; 33]) -> Vec<u8> {
    let mut script = vec![OP_DUP, OP_HASH160];
    push(&mut script, &hash160(public));
    script.extend([OP_EQUALVERIFY, OP_CHECKSIG]);
    script
}

/// A script that names one key.
fn single(kind: PaymentKind, key: &Key) -> Lock {
    let public = &key.public;
    let wpkh = || [vec![OP_0], pushed(&hash160(public))].concat();
    let (script_pubkey, script_code, rest) = match kind {
        PaymentKind::Pk => {
            let script = [pushed(public), vec![OP_CHECKSIG]].concat();
            (script.clone(), script, vec![])
        }
        PaymentKind::Pkh => (pkh(public), pkh(public), vec![pushed(public)]),
        PaymentKind::ShWpkh => {
            let mut script = vec![OP_HASH160];
            push(&mut script, &hash160(&wpkh()));
            script.push(OP_EQUAL);
            (script, pkh(public), vec![public.to_vec(), pushed(&wpkh())])
        }
        PaymentKind::Tr => {
            let output = key.tweaked.x_only_public_key().0.serialize();
            ([vec![OP_1], pushed(&output)].concat(), vec![], vec![])
        }
        _ => (wpkh(), pkh(public), vec![public.to_vec()]),
    };
    Lock { script_pubkey, script_code, rest }
}

/// One of two, bare.
fn multisig(keys: [&Key; 2]) -> Lock {
    let mut script = vec![OP_1];
    keys.iter().for_each(|key| push(&mut script, &key.public));
    script.extend([OP_2, OP_CHECKMULTISIG]);
    Lock { script_code: script.clone(), script_pubkey: script, rest: vec![] }
}

/// Two of three, by its hash.
fn wsh(keys: [&Key; 3]) -> Lock {
    let mut script = vec![OP_2];
    keys.iter().for_each(|key| push(&mut script, &key.public));
    script.extend([OP_3, OP_CHECKMULTISIG]);
    let script_pubkey = [vec![OP_0], pushed(&sha256(&script))].concat();
    Lock { script_pubkey, script_code: script.clone(), rest: vec![script] }
}

/// A key and data that is never executed, as inscriptions have it, in the only leaf of a tree.
fn tap_script(secp: &Secp256k1<All>, key: &Key, rng: &mut Rng) -> Lock {
    let mut leaf = pushed(&key.x_only());
    leaf.extend([OP_CHECKSIG, OP_0, OP_IF]);
    let octave = rng.below(7);
    let mut data = Vec::new();
    let len = rng.between(64 << octave, 128 << octave) as usize;
    rng.append(&mut data, len);
    data.chunks(PUSH_BYTES_MAX).for_each(|chunk| push(&mut leaf, chunk));
    leaf.push(OP_ENDIF);
    let mut hashed = vec![LEAF_VERSION];
    super::tx::write_compact(&mut hashed, leaf.len());
    hashed.extend_from_slice(&leaf);
    let leaf_hash = tagged_hash("TapLeaf", &hashed);
    let (output, parity) = tweak(secp, &key.internal, Some(&leaf_hash)).x_only_public_key();
    let mut control = vec![LEAF_VERSION | parity.to_u8()];
    control.extend(key.x_only());
    Lock {
        script_pubkey: [vec![OP_1], pushed(&output.serialize())].concat(),
        script_code: leaf_hash.to_vec(),
        rest: vec![leaf, control],
    }
}

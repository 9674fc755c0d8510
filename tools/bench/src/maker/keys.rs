//! [`Keyring`]: keys derived from a seed, the scripts made with them, and their signatures.
//!
//! Signatures are deterministic (RFC 6979, and BIP-340 without auxiliary randomness) and low in S, so that
//! the same seed gives the same bytes. An unsigned keyring gives dummy bytes of the same size. The keys
//! protect nothing.
//!
//! A keyring of unique scripts replaces the hash in an output by one of its own, so that a set of many coins
//! has about as many scripts. Nothing can spend them, so it is never a signed one.

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
/// Keys behind unique scripts.
const UNIQUE_KEYS: usize = 64;
/// Maximum bytes of a push (Core `script/script.h`, `MAX_SCRIPT_ELEMENT_SIZE`).
const PUSH_BYTES_MAX: usize = 520;

/// A spendable script: its kind, and the number of its key.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct KeyScript {
    pub(super) kind: PaymentKind,
    pub(super) key: u32,
}

/// Numbers from here on are inscriptions of images, in unique scripts.
const IMAGES: u32 = 0xff00_0000;
/// The least and greatest length of an image.
const IMAGE_BYTES: (usize, usize) = (20_000, 380_000);

impl KeyScript {
    /// The length of the leaf, if it is that of an image.
    pub(super) fn image_bytes(self) -> Option<usize> {
        let (least, most) = IMAGE_BYTES;
        let is_image = self.kind == PaymentKind::TrScript && self.key >= IMAGES;
        // Most images are small.
        let part = (self.key & 0xfff) as usize;
        is_image.then(|| least + (most - least) * part * part / (1 << 24))
    }
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
    /// What makes scripts unique, if they are.
    salt: Option<u64>,
}

impl Keyring {
    pub(super) fn new(seed: u64, signed: bool, unique: bool) -> Self {
        let secp = Secp256k1::new();
        let keys: Vec<Key> = (0..KEYS).map(|number| Key::new(&secp, seed, number)).collect();
        let lock = |kind, number| {
            let at = |offset: usize| &keys[(number + offset) % KEYS];
            match kind {
                PaymentKind::TrScript => {
                    // Beside images, most inscriptions are a line of text.
                    let octaves = if unique { 3 } else { 7 };
                    tap_script(&secp, at(0), octaves, &mut Rng::at(seed, !(number as u64)))
                }
                PaymentKind::Wsh => {
                    let script = multisig(2, &[at(0), at(1), at(2)]);
                    let rest = vec![script.to_bytes()];
                    Lock { script_pubkey: script.to_p2wsh(), inner: script, rest }
                }
                PaymentKind::Multisig => Lock::bare(multisig(1, &[at(0), at(1)]), vec![]),
                PaymentKind::Sh => {
                    let script = multisig(2, &[at(0), at(1), at(2)]);
                    let rest = vec![script.to_bytes()];
                    Lock { script_pubkey: script.to_p2sh(), inner: script, rest }
                }
                _ => single(&secp, kind, at(0)),
            }
        };
        let locks =
            PaymentKind::ALL.map(|kind| (0..KEYS).map(|number| lock(kind, number)).collect());
        let salt = (unique && !signed).then_some(seed);
        Self { secp, keys, locks: locks.into(), signed, salt }
    }

    /// Whether signatures are real.
    pub(super) const fn is_signed(&self) -> bool {
        self.signed
    }

    /// A script of the given kind.
    pub(super) fn script(&self, kind: PaymentKind, rng: &mut Rng) -> KeyScript {
        let key = match self.salt {
            Some(_) => rng.below(IMAGES.into()) as u32,
            None => rng.index(KEYS) as u32,
        };
        KeyScript { kind, key }
    }

    /// The same script with an image in it, if scripts are unique.
    pub(super) fn image(&self, script: KeyScript) -> KeyScript {
        let key = if self.salt.is_some() { script.key | IMAGES } else { script.key };
        KeyScript { key, ..script }
    }

    pub(super) fn lock(&self, script: KeyScript) -> &Lock {
        // Unique scripts need few of these, which the cache then holds.
        let few = if self.salt.is_some() { UNIQUE_KEYS } else { KEYS };
        &self.locks[script.kind as usize][script.key as usize % few]
    }

    /// Appends an output's script.
    pub(super) fn put_script(&self, script: KeyScript, out: &mut Vec<u8>) {
        let start = out.len();
        out.extend_from_slice(self.lock(script).script_pubkey.as_bytes());
        if let (Some(salt), Some((from, len))) = (self.salt, hash_place(script.kind)) {
            let place = u64::from(script.key) | (script.kind as u64) << 32;
            Rng::at(salt, place).fill(&mut out[start + from..][..len]);
        }
    }

    /// An output's script.
    pub(super) fn script_pubkey(&self, script: KeyScript) -> ScriptBuf {
        let mut bytes = Vec::new();
        self.put_script(script, &mut bytes);
        ScriptBuf::from_bytes(bytes)
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
            let key = &self.keys[(script.key as usize + offset) % KEYS];
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
            let key = &self.keys[script.key as usize % KEYS];
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

/// Start and length of the hash in an output's script.
const fn hash_place(kind: PaymentKind) -> Option<(usize, usize)> {
    match kind {
        PaymentKind::Wpkh | PaymentKind::ShWpkh | PaymentKind::Sh => Some((2, 20)),
        PaymentKind::Tr | PaymentKind::TrScript | PaymentKind::Wsh => Some((2, 32)),
        PaymentKind::Pkh | PaymentKind::PkhLong => Some((3, 20)),
        // Core compresses real keys only.
        PaymentKind::Pk | PaymentKind::PkLong | PaymentKind::Multisig => None,
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
    let long = PublicKey::new_uncompressed(key.public.inner);
    match kind {
        PaymentKind::Pk => Lock::bare(ScriptBuf::new_p2pk(&key.public), vec![]),
        PaymentKind::PkLong => Lock::bare(ScriptBuf::new_p2pk(&long), vec![]),
        PaymentKind::PkhLong => {
            Lock::bare(ScriptBuf::new_p2pkh(&long.pubkey_hash()), vec![long.to_bytes()])
        }
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
fn tap_script(secp: &Secp256k1<All>, key: &Key, octaves: u64, rng: &mut Rng) -> Lock {
    let octave = rng.below(octaves);
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

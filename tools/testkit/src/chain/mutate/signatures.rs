//! Signatures in every kind of script, with one flaw or just an unusual form.

use super::draft::script;
use super::scripts::{Wrap, unlock};
use super::{Mutation, Mutator, NamedCoin, mutation};
use crate::chain::ScriptKind;
use bitcoin::hashes::Hash;
use bitcoin::opcodes::all as op;
use bitcoin::script::{Builder, Instruction, PushBytesBuf};
use bitcoin::secp256k1::ecdsa::Signature;
use bitcoin::secp256k1::{Message, PublicKey, Secp256k1, SecretKey};
use bitcoin::sighash::{EcdsaSighashType, SighashCache};
use bitcoin::{Amount, ScriptBuf, Transaction, TxOut, Witness};

const ECDSA: [ScriptKind; 6] = [
    ScriptKind::PkCompressed,
    ScriptKind::PkUncompressed,
    ScriptKind::PkHybrid,
    ScriptKind::Pkh,
    ScriptKind::Wpkh,
    ScriptKind::ShWpkh,
];
const LEGACY: [ScriptKind; 4] =
    [ScriptKind::PkCompressed, ScriptKind::PkUncompressed, ScriptKind::PkHybrid, ScriptKind::Pkh];

pub(super) const MUTATIONS: &[Mutation] = &[
    mutation("signature right", |this| this.ecdsa(|_, _| ())),
    mutation("signature flipped", |this| {
        this.ecdsa(|this, sig| {
            // Not the first bytes, so that it remains well-formed; r or s changes.
            let place = 5 + this.rng.index(sig.len() - 6);
            sig[place] ^= 1 << this.rng.below(8);
        })
    }),
    mutation("signature of another hash type", |this| {
        this.ecdsa(|this, sig| {
            let last = sig.len() - 1;
            sig[last] ^= [1, 2, 3, 0x80, 0x40][this.rng.index(5)];
        })
    }),
    mutation("signature with a high s", |this| {
        this.ecdsa(|_, sig| {
            let (r, s) = parts(sig);
            let high = SecretKey::from_slice(&s).expect("s is below the order").negate();
            *sig = der(&r, &high.secret_bytes(), sig[sig.len() - 1]);
        })
    }),
    mutation("signature not minimal in r", |this| {
        this.ecdsa(|_, sig| {
            sig[1] += 1;
            sig[3] += 1;
            sig.insert(4, 0);
        })
    }),
    mutation("signature with bytes behind", |this| {
        this.ecdsa(|_, sig| {
            let last = sig.len() - 1;
            sig.insert(last, 0);
        })
    }),
    mutation("signature with a wrong length", |this| this.ecdsa(|_, sig| sig[1] ^= 1)),
    mutation("signature that is no sequence", |this| this.ecdsa(|_, sig| sig[0] = 0x31)),
    mutation("signature empty", |this| this.ecdsa(|_, sig| sig.clear())),
    mutation("signature of a hash type alone", |this| this.ecdsa(|_, sig| *sig = vec![1])),
    mutation("signature of another kind", |this| this.ecdsa(|this, sig| *sig = this.rng.bytes(64))),
    mutation("signature under another amount", |this| {
        let kinds = [ScriptKind::Wpkh, ScriptKind::ShWpkh, ScriptKind::TrKey, ScriptKind::Pkh];
        let kind = kinds[this.rng.index(4)];
        this.with_input(kind, |this, tx, coin| {
            let mut other = coin.clone();
            other.1.value += Amount::ONE_SAT;
            this.chain.sign(tx, &[other]);
        })
    }),
    mutation("signature before the outputs changed", |this| {
        let kinds = [ECDSA.as_slice(), &[ScriptKind::TrKey]].concat();
        let kind = kinds[this.rng.index(kinds.len())];
        this.with_input(kind, |_, tx, _| tx.output[0].script_pubkey = script([0x52]))
    }),
    mutation("signature of a hash type that has no name", |this| this.unnamed_hash_type()),
    mutation("single signature without its output", |this| this.single_without_output()),
    mutation("Schnorr signature right", |this| this.schnorr(|_, _| ())),
    mutation("Schnorr signature flipped", |this| {
        this.schnorr(|this, sig| {
            let place = this.rng.index(64);
            sig[place] ^= 1 << this.rng.below(8);
        })
    }),
    mutation("Schnorr signature with the default spelled", |this| {
        this.schnorr(|_, sig| sig.push(0))
    }),
    mutation("Schnorr signature of another hash type", |this| {
        this.schnorr(|this, sig| sig.push([1, 2, 3, 4, 0x80, 0x81][this.rng.index(6)]))
    }),
    mutation("Schnorr signature too short", |this| {
        this.schnorr(|_, sig| {
            sig.pop();
        })
    }),
    mutation("Schnorr signature too long", |this| this.schnorr(|_, sig| sig.extend([1, 1]))),
    mutation("Schnorr signature empty", |this| this.schnorr(|_, sig| sig.clear())),
    mutation("Schnorr signature with an annex not signed", |this| {
        this.with_input(ScriptKind::TrKey, |_, tx, _| tx.input[0].witness.push([0x50]))
    }),
    mutation("multisig", |this| this.multisig(&[], true)),
    mutation("multisig dummy of zero", |this| this.multisig(&[0], true)),
    mutation("multisig dummy of one", |this| this.multisig(&[1], true)),
    mutation("multisig without a signature", |this| this.multisig(&[], false)),
];

/// Returns r and s of a DER signature, 32 bytes each.
fn parts(sig: &[u8]) -> ([u8; 32], [u8; 32]) {
    let compact = Signature::from_der(&sig[..sig.len() - 1]).expect("our own").serialize_compact();
    let (r, s) = compact.split_at(32);
    (r.try_into().expect("32 bytes"), s.try_into().expect("32 bytes"))
}

/// Encodes a strict DER signature, followed by a hash type.
fn der(r: &[u8; 32], s: &[u8; 32], hash_type: u8) -> Vec<u8> {
    let number = |bytes: &[u8; 32]| {
        let mut digits: Vec<u8> = bytes.iter().copied().skip_while(|byte| *byte == 0).collect();
        if digits.first().is_none_or(|first| *first >= 0x80) {
            digits.insert(0, 0);
        }
        [&[2, digits.len() as u8][..], &digits].concat()
    };
    let body = [number(r), number(s)].concat();
    [&[0x30, body.len() as u8][..], &body, &[hash_type]].concat()
}

fn push(items: &[Vec<u8>]) -> ScriptBuf {
    let one = |builder: Builder, item: &Vec<u8>| {
        builder.push_slice(PushBytesBuf::try_from(item.clone()).expect("short"))
    };
    items.iter().fold(Builder::new(), one).into_script()
}

/// Changes the signature, which is the first item of the wallet's inputs.
fn edit_signature(tx: &mut Transaction, edit: impl FnOnce(&mut Vec<u8>)) {
    let input = &mut tx.input[0];
    if input.witness.is_empty() {
        let items = input.script_sig.instructions().filter_map(|item| match item {
            Ok(Instruction::PushBytes(bytes)) => Some(bytes.as_bytes().to_vec()),
            _ => None,
        });
        let mut items: Vec<Vec<u8>> = items.collect();
        edit(&mut items[0]);
        input.script_sig = push(&items);
    } else {
        let mut items = input.witness.to_vec();
        edit(&mut items[0]);
        input.witness = Witness::from_slice(&items);
    }
}

impl Mutator {
    /// Adds a transaction that spends a coin of a kind, changed after signing.
    fn with_input(
        &mut self,
        kind: ScriptKind,
        edit: impl FnOnce(&mut Self, &mut Transaction, &NamedCoin),
    ) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let coin = self.coin_of(&mut draft, kind)?;
        let mut tx = self.spend(&coin);
        edit(self, &mut tx, &coin);
        draft.transactions.push(tx);
        self.done(draft)
    }

    fn ecdsa(&mut self, edit: impl FnOnce(&mut Self, &mut Vec<u8>)) -> Option<Vec<u8>> {
        let kind = ECDSA[self.rng.index(ECDSA.len())];
        self.with_input(kind, |this, tx, _| edit_signature(tx, |sig| edit(this, sig)))
    }

    fn schnorr(&mut self, edit: impl FnOnce(&mut Self, &mut Vec<u8>)) -> Option<Vec<u8>> {
        self.with_input(ScriptKind::TrKey, |this, tx, _| {
            edit_signature(tx, |sig| edit(this, sig));
        })
    }

    /// Signs under an undefined hash type, which only policy rejects.
    fn unnamed_hash_type(&mut self) -> Option<Vec<u8>> {
        let kind = LEGACY[self.rng.index(LEGACY.len())];
        let hash_type = [0_u8, 4, 5, 0x20, 0x40, 0x60, 0x84, 0xff][self.rng.index(8)];
        self.with_input(kind, |this, tx, coin| {
            let locked = &coin.1.script_pubkey;
            let Some(key) = this.chain.wallet.legacy_key(locked) else { return };
            let hash = SighashCache::new(&*tx)
                .legacy_signature_hash(0, locked, u32::from(hash_type))
                .expect("the input is there");
            let message = Message::from_digest(hash.to_byte_array());
            let mut signature =
                Secp256k1::new().sign_ecdsa(&message, &key).serialize_der().to_vec();
            signature.push(hash_type);
            edit_signature(tx, |sig| *sig = signature);
        })
    }

    /// Signs SIGHASH_SINGLE for an input without an output of its number: the signed hash is the number one.
    fn single_without_output(&mut self) -> Option<Vec<u8>> {
        let mut draft = self.draft();
        let first = self.coin_of(&mut draft, ScriptKind::OpTrue)?;
        let kind = ECDSA[self.rng.index(ECDSA.len())];
        let second = self.coin_of(&mut draft, kind)?;
        let total = first.1.value + second.1.value;
        let output = TxOut { value: total, script_pubkey: script([0x51]) };
        let coins = [first, second];
        let mut tx = self.chain.spend_coins(&coins, vec![output]);
        let locked = coins[1].1.script_pubkey.clone();
        if let Some(key) = self.chain.wallet.legacy_key(&locked) {
            let hash_type = EcdsaSighashType::Single;
            let hash = SighashCache::new(&tx)
                .legacy_signature_hash(1, &locked, hash_type.to_u32())
                .expect("the input is there");
            let message = Message::from_digest(hash.to_byte_array());
            let mut signature =
                Secp256k1::new().sign_ecdsa(&message, &key).serialize_der().to_vec();
            signature.push(hash_type as u8);
            tx.input.swap(0, 1);
            edit_signature(&mut tx, |sig| *sig = signature);
            tx.input.swap(0, 1);
        }
        draft.transactions.push(tx);
        self.done(draft)
    }

    /// Spends a 1-of-1 multisig with this dummy, in a form that has the operation.
    fn multisig(&mut self, dummy: &[u8], signed: bool) -> Option<Vec<u8>> {
        let how = [Wrap::Bare, Wrap::Sh, Wrap::Wsh, Wrap::ShWsh][self.rng.index(4)];
        let key = self.chain.wallet.new_key();
        let secp = Secp256k1::new();
        let public = PublicKey::from_secret_key(&secp, &key).serialize();
        let checks = [0x51, op::OP_CHECKMULTISIG.to_u8()];
        let inner = script([&[0x51, 33][..], &public, &checks].concat());
        let mut draft = self.draft();
        let coin = self.fund(&mut draft, self.locked(how, &inner))?;
        let mut tx = self.bare_spend(&coin);
        let mut hashes = SighashCache::new(&tx);
        let all = EcdsaSighashType::All;
        let hash = match how {
            Wrap::Bare | Wrap::Sh => {
                let hash = hashes.legacy_signature_hash(0, &inner, all.to_u32());
                hash.expect("the input is there").to_byte_array()
            }
            _ => {
                let hash = hashes.p2wsh_signature_hash(0, &inner, coin.1.value, all);
                hash.expect("the input is there").to_byte_array()
            }
        };
        let mut signature =
            secp.sign_ecdsa(&Message::from_digest(hash), &key).serialize_der().to_vec();
        signature.push(all.to_u32() as u8);
        let signature = if signed { signature } else { Vec::new() };
        (tx.input[0].script_sig, tx.input[0].witness) =
            unlock(how, &inner, &[dummy.to_vec(), signature]);
        draft.transactions.push(tx);
        self.done(draft)
    }
}

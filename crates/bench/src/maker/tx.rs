//! [`TxWriter`]: writes planned transactions, with what their inputs must show.
//!
//! Follows BIP-143 for version 0 witnesses, BIP-341 and BIP-342 for taproot, and what was before
//! them for the rest. Everything is signed whole: SIGHASH_ALL, or SIGHASH_DEFAULT in taproot.

use super::keys::{Keyring, OP_RETURN, Signature, push, tagged_hash};
use super::law::Kind;
use super::plan::{Output, Spend, TxPlan};
use super::rng::Rng;
use apus_hash::{sha256, sha256d};
use std::cell::OnceCell;
use std::ops::Range;

const VERSION: [u8; 4] = 2u32.to_le_bytes();
/// May be replaced (BIP-125), has no relative lock time (BIP-68), heeds the lock time.
const SEQUENCE: [u8; 4] = 0xffff_fffdu32.to_le_bytes();
const SIGHASH_ALL: [u8; 4] = 1u32.to_le_bytes();

/// Where a transaction was written.
#[derive(Debug, Clone)]
pub(super) struct Written {
    /// All of it.
    pub(super) whole: Range<usize>,
    /// Its witness; empty if it has none.
    pub(super) witness: Range<usize>,
}

impl Written {
    /// The pieces whose double hash is the transaction's id.
    pub(super) fn id_pieces<'a>(&self, bytes: &'a [u8]) -> [&'a [u8]; 3] {
        let Range { start, end } = self.whole;
        if self.witness.is_empty() {
            return [&[], &bytes[start..end], &[]];
        }
        // Without the marker and the flag of BIP-144.
        [
            &bytes[start..start + 4],
            &bytes[start + 6..self.witness.start],
            &bytes[self.witness.end..end],
        ]
    }
}

/// Writes transactions one after the other.
pub(super) struct TxWriter<'a> {
    keys: &'a Keyring,
    /// By slot.
    txids: &'a [[u8; 32]],
    parts: Parts,
    script_sig: Vec<u8>,
    witness: Vec<u8>,
}

/// What hashes for signatures are made of.
#[derive(Default)]
struct Parts {
    lock_time: [u8; 4],
    prevouts: Vec<u8>,
    sequences: Vec<u8>,
    outputs: Vec<u8>,
    outputs_count: usize,
    digests: OnceCell<[[u8; 32]; 3]>,
    /// Of amounts and scripts of the coins spent, for taproot alone.
    coin_digests: OnceCell<[[u8; 32]; 2]>,
}

impl<'a> TxWriter<'a> {
    pub(super) fn new(keys: &'a Keyring, txids: &'a [[u8; 32]]) -> Self {
        let (script_sig, witness) = Default::default();
        Self { keys, txids, parts: Parts::default(), script_sig, witness }
    }

    /// Appends a transaction. `filler` fills what is no signature in unsigned chains.
    pub(super) fn write(&mut self, tx: &TxPlan, filler: &mut Rng, out: &mut Vec<u8>) -> Written {
        self.parts.start(tx, self.keys, self.txids);
        let start = out.len();
        let has_witness = tx.spends.iter().any(|spend| in_witness(spend.script.kind));
        out.extend(VERSION);
        if has_witness {
            out.extend([0, 1]);
        }
        write_compact(out, tx.spends.len());
        self.witness.clear();
        for (index, prevout) in self.parts.prevouts.chunks_exact(36).enumerate() {
            self.script_sig.clear();
            let mut input = Input { keys: self.keys, parts: &self.parts, tx, index, filler };
            input.write(&mut self.script_sig, &mut self.witness);
            out.extend_from_slice(prevout);
            write_compact(out, self.script_sig.len());
            out.extend_from_slice(&self.script_sig);
            out.extend(SEQUENCE);
        }
        write_compact(out, tx.outputs.len());
        out.extend_from_slice(&self.parts.outputs);
        let witness = out.len();
        if has_witness {
            out.extend_from_slice(&self.witness);
        }
        let witness = witness..out.len();
        out.extend(self.parts.lock_time);
        Written { whole: start..out.len(), witness }
    }
}

fn in_witness(kind: Kind) -> bool {
    !matches!(kind, Kind::Pkh | Kind::Pk | Kind::Multisig)
}

impl Parts {
    fn start(&mut self, tx: &TxPlan, keys: &Keyring, txids: &[[u8; 32]]) {
        self.lock_time = tx.lock_time.to_le_bytes();
        self.prevouts.clear();
        for spend in &tx.spends {
            self.prevouts.extend_from_slice(&txids[spend.slot as usize]);
            self.prevouts.extend(spend.vout.to_le_bytes());
        }
        self.sequences.clear();
        tx.spends.iter().for_each(|_| self.sequences.extend(SEQUENCE));
        self.outputs.clear();
        tx.outputs.iter().for_each(|output| write_output(&mut self.outputs, keys, output));
        self.outputs_count = tx.outputs.len();
        self.digests = OnceCell::new();
        self.coin_digests = OnceCell::new();
    }

    /// Hashes of prevouts, sequences and outputs, as BIP-341 has them. BIP-143 hashes them again.
    fn digests(&self) -> &[[u8; 32]; 3] {
        self.digests.get_or_init(|| {
            [&self.prevouts, &self.sequences, &self.outputs].map(|part| sha256(part))
        })
    }

    /// Hashes of all amounts and all scripts spent (BIP-341).
    fn coin_digests(&self, keys: &Keyring, spends: &[Spend]) -> &[[u8; 32]; 2] {
        self.coin_digests.get_or_init(|| {
            let (mut amounts, mut scripts) = (Vec::new(), Vec::new());
            for spend in spends {
                amounts.extend(spend.value.to_le_bytes());
                let script = &keys.lock(spend.script).script_pubkey;
                write_compact(&mut scripts, script.len());
                scripts.extend_from_slice(script);
            }
            [sha256(&amounts), sha256(&scripts)]
        })
    }

    /// As it was before segwit: the whole transaction, with the script in the input signed.
    fn legacy_digest(&self, index: usize, script_code: &[u8]) -> [u8; 32] {
        let mut preimage = VERSION.to_vec();
        write_compact(&mut preimage, self.prevouts.len() / 36);
        for (at, prevout) in self.prevouts.chunks_exact(36).enumerate() {
            preimage.extend_from_slice(prevout);
            let script = if at == index { script_code } else { &[] };
            write_compact(&mut preimage, script.len());
            preimage.extend_from_slice(script);
            preimage.extend(SEQUENCE);
        }
        write_compact(&mut preimage, self.outputs_count);
        preimage.extend_from_slice(&self.outputs);
        preimage.extend(self.lock_time);
        preimage.extend(SIGHASH_ALL);
        sha256d(&preimage)
    }

    /// BIP-143.
    fn segwit_digest(&self, index: usize, script_code: &[u8], value: u64) -> [u8; 32] {
        let [prevouts, sequences, outputs] = self.digests().map(|digest| sha256(&digest));
        let mut preimage = VERSION.to_vec();
        preimage.extend(prevouts);
        preimage.extend(sequences);
        preimage.extend_from_slice(&self.prevouts[36 * index..][..36]);
        write_compact(&mut preimage, script_code.len());
        preimage.extend_from_slice(script_code);
        preimage.extend(value.to_le_bytes());
        preimage.extend(SEQUENCE);
        preimage.extend(outputs);
        preimage.extend(self.lock_time);
        preimage.extend(SIGHASH_ALL);
        sha256d(&preimage)
    }

    /// BIP-341, and BIP-342 where there is a leaf's hash.
    fn taproot_digest(&self, index: usize, coins: &[[u8; 32]; 2], leaf: &[u8]) -> [u8; 32] {
        let [prevouts, sequences, outputs] = self.digests();
        // The epoch, and SIGHASH_DEFAULT.
        let mut message = vec![0, 0];
        message.extend(VERSION);
        message.extend(self.lock_time);
        for digest in [prevouts, &coins[0], &coins[1], sequences, outputs] {
            message.extend(digest);
        }
        message.push(if leaf.is_empty() { 0 } else { 2 });
        message.extend((index as u32).to_le_bytes());
        if !leaf.is_empty() {
            message.extend_from_slice(leaf);
            // The version of keys, and that there was no OP_CODESEPARATOR.
            message.push(0);
            message.extend([0xff; 4]);
        }
        tagged_hash("TapSighash", &message)
    }
}

/// An input being written.
struct Input<'a> {
    keys: &'a Keyring,
    parts: &'a Parts,
    tx: &'a TxPlan,
    index: usize,
    filler: &'a mut Rng,
}

impl Input<'_> {
    fn write(&mut self, script_sig: &mut Vec<u8>, witness: &mut Vec<u8>) {
        let Spend { value, script, .. } = self.tx.spends[self.index];
        let lock = self.keys.lock(script);
        let code = &lock.script_code;
        let (keys, parts, index) = (self.keys, self.parts, self.index);
        match script.kind {
            Kind::Pkh | Kind::Pk | Kind::Multisig => {
                if script.kind == Kind::Multisig {
                    // CHECKMULTISIG takes one element too many.
                    script_sig.push(0);
                }
                let digest = || parts.legacy_digest(index, code);
                push(script_sig, keys.ecdsa(script, 0, digest, self.filler).bytes());
                lock.rest.iter().for_each(|bytes| script_sig.extend_from_slice(bytes));
                witness.push(0);
            }
            Kind::Wpkh | Kind::ShWpkh => {
                let digest = || parts.segwit_digest(index, code, value);
                let signature = keys.ecdsa(script, 0, digest, self.filler);
                write_witness(witness, &[signature.bytes(), &lock.rest[0]]);
                lock.rest[1..].iter().for_each(|bytes| script_sig.extend_from_slice(bytes));
            }
            Kind::Wsh => {
                let digest = OnceCell::new();
                let digest = || *digest.get_or_init(|| parts.segwit_digest(index, code, value));
                let [first, second] = [0, 1].map(|at| keys.ecdsa(script, at, digest, self.filler));
                write_witness(witness, &[&[], first.bytes(), second.bytes(), &lock.rest[0]]);
            }
            Kind::Tr => {
                write_witness(witness, &[self.schnorr(&[]).bytes()]);
            }
            Kind::TrScript => {
                let signature = self.schnorr(code);
                write_witness(witness, &[signature.bytes(), &lock.rest[0], &lock.rest[1]]);
            }
        }
    }

    fn schnorr(&mut self, leaf: &[u8]) -> Signature {
        let (keys, parts) = (self.keys, self.parts);
        let digest = || {
            let coins = parts.coin_digests(keys, &self.tx.spends);
            parts.taproot_digest(self.index, coins, leaf)
        };
        keys.schnorr(self.tx.spends[self.index].script, digest, self.filler)
    }
}

fn write_witness(out: &mut Vec<u8>, elements: &[&[u8]]) {
    write_compact(out, elements.len());
    for element in elements {
        write_compact(out, element.len());
        out.extend_from_slice(element);
    }
}

pub(super) fn write_compact(out: &mut Vec<u8>, count: usize) {
    apus_chain::write_compact_size(out, count as u64);
}

/// Appends an output.
pub(super) fn write_output(out: &mut Vec<u8>, keys: &Keyring, output: &Output) {
    match *output {
        Output::Pay { value, script } => {
            out.extend(value.to_le_bytes());
            let script = &keys.lock(script).script_pubkey;
            write_compact(out, script.len());
            out.extend_from_slice(script);
        }
        Output::Data { len, seed } => {
            out.extend([0; 8]);
            out.extend([len + 2, OP_RETURN, len]);
            Rng::new(seed, 0).fill(out, len.into());
        }
    }
}

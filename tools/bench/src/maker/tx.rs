//! [`TxWriter`]: writes planned transactions, with what their inputs must show.
//!
//! Follows BIP-143 for version 0 witnesses, BIP-341 and BIP-342 for taproot, and what was before
//! them for the rest. Everything is signed whole: SIGHASH_ALL, or SIGHASH_DEFAULT in taproot.

use super::keys::{Keyring, OP_RETURN, Signature, push, tagged_hash};
use super::law::PaymentKind;
use super::plan::{PlannedOutput, Spend, TxPlan};
use apus_hash::{sha256, sha256d};
use apus_testkit::rng::Rng;
use std::cell::OnceCell;
use std::ops::Range;

const VERSION: [u8; 4] = 2u32.to_le_bytes();
/// May be replaced (BIP-125), has no relative lock time (BIP-68), heeds the lock time.
const SEQUENCE: [u8; 4] = 0xffff_fffdu32.to_le_bytes();
const SIGHASH_ALL: [u8; 4] = 1u32.to_le_bytes();

/// Where a transaction was written.
#[derive(Debug, Clone)]
pub(super) struct WrittenTx {
    /// All of it.
    pub(super) whole: Range<usize>,
    /// Its witness; empty if it has none.
    pub(super) witness: Range<usize>,
}

impl WrittenTx {
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
    parts: TxParts,
    script_sig: Vec<u8>,
    witness: Vec<u8>,
}

/// What hashes for signatures are made of.
#[derive(Default)]
struct TxParts {
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
        Self { keys, txids, parts: TxParts::default(), script_sig, witness }
    }

    /// Appends a transaction. `filler` fills what is no signature in unsigned chains.
    pub(super) fn write(&mut self, tx: &TxPlan, filler: &mut Rng, out: &mut Vec<u8>) -> WrittenTx {
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
            let mut input = SignedInput { keys: self.keys, parts: &self.parts, tx, index, filler };
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
        WrittenTx { whole: start..out.len(), witness }
    }
}

fn in_witness(kind: PaymentKind) -> bool {
    !matches!(kind, PaymentKind::Pkh | PaymentKind::Pk | PaymentKind::Multisig)
}

impl TxParts {
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
struct SignedInput<'a> {
    keys: &'a Keyring,
    parts: &'a TxParts,
    tx: &'a TxPlan,
    index: usize,
    filler: &'a mut Rng,
}

impl SignedInput<'_> {
    fn write(&mut self, script_sig: &mut Vec<u8>, witness: &mut Vec<u8>) {
        let Spend { value, script, .. } = self.tx.spends[self.index];
        let lock = self.keys.lock(script);
        let code = &lock.script_code;
        let (keys, parts, index) = (self.keys, self.parts, self.index);
        match script.kind {
            PaymentKind::Pkh | PaymentKind::Pk | PaymentKind::Multisig => {
                if script.kind == PaymentKind::Multisig {
                    // CHECKMULTISIG takes one element too many.
                    script_sig.push(0);
                }
                let digest = || parts.legacy_digest(index, code);
                push(script_sig, keys.ecdsa(script, 0, digest, self.filler).bytes());
                lock.rest.iter().for_each(|bytes| script_sig.extend_from_slice(bytes));
                witness.push(0);
            }
            PaymentKind::Wpkh | PaymentKind::ShWpkh => {
                let digest = || parts.segwit_digest(index, code, value);
                let signature = keys.ecdsa(script, 0, digest, self.filler);
                write_witness(witness, &[signature.bytes(), &lock.rest[0]]);
                lock.rest[1..].iter().for_each(|bytes| script_sig.extend_from_slice(bytes));
            }
            PaymentKind::Wsh => {
                let digest = OnceCell::new();
                let digest = || *digest.get_or_init(|| parts.segwit_digest(index, code, value));
                let [first, second] = [0, 1].map(|at| keys.ecdsa(script, at, digest, self.filler));
                write_witness(witness, &[&[], first.bytes(), second.bytes(), &lock.rest[0]]);
            }
            PaymentKind::Tr => {
                write_witness(witness, &[self.schnorr(&[]).bytes()]);
            }
            PaymentKind::TrScript => {
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
pub(super) fn write_output(out: &mut Vec<u8>, keys: &Keyring, output: &PlannedOutput) {
    match *output {
        PlannedOutput::Pay { value, script } => {
            out.extend(value.to_le_bytes());
            let script = &keys.lock(script).script_pubkey;
            write_compact(out, script.len());
            out.extend_from_slice(script);
        }
        PlannedOutput::Data { len, seed } => {
            out.extend([0; 8]);
            out.extend([len + 2, OP_RETURN, len]);
            Rng::at(seed, 0).append(out, len.into());
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::keys::KeyScript;
    use crate::maker::law::WantedTx;
    use crate::maker::plan as cost;
    use apus_chain::legacy_sigops;
    use apus_testkit::rng::Rng;
    use bitcoin::hashes::Hash;
    use bitcoin::secp256k1::{Message, Secp256k1, XOnlyPublicKey, ecdsa, schnorr};
    use bitcoin::sighash::{Prevouts, SighashCache};
    use bitcoin::taproot::{ControlBlock, TapLeafHash};
    use bitcoin::{
        Amount, EcdsaSighashType, PublicKey, ScriptBuf, TapSighashType, Transaction, TxOut,
        consensus::deserialize,
    };
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static SIGNED: LazyLock<Keyring> = LazyLock::new(|| Keyring::new(9, true));
    static UNSIGNED: LazyLock<Keyring> = LazyLock::new(|| Keyring::new(9, false));

    fn script() -> impl Strategy<Value = KeyScript> {
        (0..PaymentKind::ALL.len(), 0u16..1_000)
            .prop_map(|(kind, key)| KeyScript { kind: PaymentKind::ALL[kind], key })
    }

    fn plan() -> impl Strategy<Value = TxPlan> {
        let spend = (0u32..4, any::<u32>(), 0u64..1 << 50, script())
            .prop_map(|(slot, vout, value, script)| Spend { slot, vout, value, script });
        let payment = (0u64..1 << 50, script())
            .prop_map(|(value, script)| PlannedOutput::Pay { value, script });
        let data =
            (8u8..=75, any::<u64>()).prop_map(|(len, seed)| PlannedOutput::Data { len, seed });
        let outputs = (proptest::collection::vec(payment, 1..6), proptest::option::of(data))
            .prop_map(|(payments, data)| payments.into_iter().chain(data).collect());
        (proptest::collection::vec(spend, 1..6), outputs, any::<u32>()).prop_map(
            |(spends, outputs, lock_time)| TxPlan { slot: 0, layer: 0, lock_time, spends, outputs },
        )
    }

    const TXIDS: [[u8; 32]; 4] = [[1; 32], [2; 32], [3; 32], [4; 32]];

    fn written(keys: &Keyring, plan: &TxPlan) -> (WrittenTx, Vec<u8>) {
        let mut bytes = vec![0xaa; 3];
        let mut writer = TxWriter::new(keys, &TXIDS);
        let written = writer.write(plan, &mut Rng::at(1, 2), &mut bytes);
        (written, bytes)
    }

    /// Checks an input with the hashes and the curve of other code.
    fn check(tx: &Transaction, index: usize, plan: &TxPlan, coins: &[TxOut]) {
        let secp = Secp256k1::verification_only();
        let (input, coin) = (&tx.input[index], &coins[index]);
        let mut hashes = SighashCache::new(tx);
        let verify = |digest: [u8; 32], signature: &[u8], key: &[u8]| {
            let (kind, der) = signature.split_last().unwrap();
            assert_eq!(*kind, EcdsaSighashType::All as u8);
            let signature = ecdsa::Signature::from_der(der).unwrap();
            let mut low = signature;
            low.normalize_s();
            assert_eq!(low, signature, "s is low (BIP-146)");
            let key = PublicKey::from_slice(key).unwrap();
            secp.verify_ecdsa(&Message::from_digest(digest), &signature, &key.inner).unwrap();
        };
        let tap = |digest: [u8; 32], signature: &[u8], key: &[u8]| {
            let signature = schnorr::Signature::from_slice(signature).unwrap();
            let key = XOnlyPublicKey::from_slice(key).unwrap();
            secp.verify_schnorr(&signature, &Message::from_digest(digest), &key).unwrap();
        };
        let kind = EcdsaSighashType::All;
        let script = &coin.script_pubkey;
        let pushes: Vec<Vec<u8>> = input
            .script_sig
            .instructions_minimal()
            .map(|instruction| instruction.unwrap().push_bytes().unwrap().as_bytes().to_vec())
            .collect();
        let witness: Vec<&[u8]> = input.witness.iter().collect();
        let prevouts = Prevouts::All(coins);
        match plan.spends[index].script.kind {
            legacy @ (PaymentKind::Pkh | PaymentKind::Pk | PaymentKind::Multisig) => {
                let digest = hashes.legacy_signature_hash(index, script, kind as u32).unwrap();
                let signature = usize::from(legacy == PaymentKind::Multisig);
                let key = match legacy {
                    PaymentKind::Pkh => &pushes[1][..],
                    PaymentKind::Pk => &script.as_bytes()[1..34],
                    _ => &script.as_bytes()[2..35],
                };
                if legacy == PaymentKind::Pkh {
                    let hash = PublicKey::from_slice(key).unwrap().pubkey_hash();
                    assert_eq!(*script, ScriptBuf::new_p2pkh(&hash));
                }
                verify(digest.to_byte_array(), &pushes[signature], key);
            }
            nested @ (PaymentKind::Wpkh | PaymentKind::ShWpkh) => {
                let hash = PublicKey::from_slice(witness[1]).unwrap().wpubkey_hash().unwrap();
                let program = ScriptBuf::new_p2wpkh(&hash);
                if nested == PaymentKind::ShWpkh {
                    assert_eq!(*script, program.to_p2sh());
                    assert_eq!(pushes, [program.to_bytes()]);
                } else {
                    assert_eq!(*script, program);
                }
                let digest = hashes.p2wpkh_signature_hash(index, &program, coin.value, kind);
                verify(digest.unwrap().to_byte_array(), witness[0], witness[1]);
            }
            PaymentKind::Wsh => {
                let inner = ScriptBuf::from_bytes(witness[3].to_vec());
                assert_eq!(*script, inner.to_p2wsh());
                let digest = hashes.p2wsh_signature_hash(index, &inner, coin.value, kind).unwrap();
                for (place, at) in [(1, 2), (2, 36)] {
                    verify(digest.to_byte_array(), witness[place], &witness[3][at..at + 33]);
                }
            }
            PaymentKind::Tr => {
                let kind = TapSighashType::Default;
                let digest = hashes.taproot_key_spend_signature_hash(index, &prevouts, kind);
                tap(digest.unwrap().to_byte_array(), witness[0], &script.as_bytes()[2..]);
            }
            PaymentKind::TrScript => {
                let leaf = ScriptBuf::from_bytes(witness[1].to_vec());
                let control = ControlBlock::decode(witness[2]).unwrap();
                let output = XOnlyPublicKey::from_slice(&script.as_bytes()[2..]).unwrap();
                assert!(control.verify_taproot_commitment(&secp, output, &leaf));
                let hash = TapLeafHash::from_script(&leaf, control.leaf_version);
                let kind = TapSighashType::Default;
                let digest =
                    hashes.taproot_script_spend_signature_hash(index, &prevouts, hash, kind);
                tap(digest.unwrap().to_byte_array(), witness[0], &witness[1][1..33]);
            }
        }
    }

    fn coins(keys: &Keyring, plan: &TxPlan) -> Vec<TxOut> {
        let coin = |spend: &Spend| TxOut {
            value: Amount::from_sat(spend.value),
            script_pubkey: ScriptBuf::from_bytes(keys.lock(spend.script).script_pubkey.clone()),
        };
        plan.spends.iter().map(coin).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn signatures_are_right_by_the_bitcoin_crate(plan in plan()) {
            let (_, bytes) = written(&SIGNED, &plan);
            let tx: Transaction = deserialize(&bytes[3..]).unwrap();
            let coins = coins(&SIGNED, &plan);
            (0..plan.spends.len()).for_each(|index| check(&tx, index, &plan, &coins));
        }

        #[test]
        fn what_is_written_is_what_was_planned(plan in plan(), signed: bool) {
            let keys = if signed { &*SIGNED } else { &*UNSIGNED };
            let (written, bytes) = written(keys, &plan);
            let tx: Transaction = deserialize(&bytes[3..]).unwrap();
            prop_assert_eq!(written.whole.clone(), 3..bytes.len());
            let id = sha256d(&written.id_pieces(&bytes).concat());
            prop_assert_eq!(id, tx.compute_txid().to_byte_array());
            prop_assert_eq!(tx.lock_time.to_consensus_u32(), plan.lock_time);
            for (input, spend) in tx.input.iter().zip(&plan.spends) {
                let txid = input.previous_output.txid.to_byte_array();
                prop_assert_eq!(txid, TXIDS[spend.slot as usize]);
                prop_assert_eq!(input.previous_output.vout, spend.vout);
            }
            let paid = tx.output.iter().filter(|output| !output.script_pubkey.is_op_return());
            let wanted = plan.outputs.iter().filter_map(|output| match output {
                PlannedOutput::Pay { value, script } => Some((*value, &keys.lock(*script).script_pubkey)),
                PlannedOutput::Data { .. } => None,
            });
            let paid = paid.map(|output| (output.value.to_sat(), output.script_pubkey.to_bytes()));
            prop_assert!(paid.eq(wanted.map(|(value, script)| (value, script.clone()))));
        }

        /// A block that has room for what is planned has room for what is written.
        #[test]
        fn nothing_costs_more_than_was_thought(plan in plan(), signed: bool) {
            let keys = if signed { &*SIGNED } else { &*UNSIGNED };
            let (_, bytes) = written(keys, &plan);
            let tx: Transaction = deserialize(&bytes[3..]).unwrap();
            let mut room = cost::BlockRoom::new(4_000_000);
            let all = room.weight;
            let data = plan.outputs.iter().find_map(|output| match output {
                PlannedOutput::Data { len, .. } => Some(*len),
                PlannedOutput::Pay { .. } => None,
            });
            let wanted = WantedTx { inputs: tx.input.len(), payments: tx.output.len(), data };
            room.take(cost::of_transaction(&wanted)).unwrap();
            for output in &plan.outputs {
                if let PlannedOutput::Pay { script, .. } = output {
                    room.take(cost::of_payment(keys, *script)).unwrap();
                }
            }
            for spend in &plan.spends {
                room.take(cost::of_spend(keys, spend.script)).unwrap();
            }
            let (thought, weight) = (all - room.weight, tx.weight().to_wu());
            prop_assert!(weight <= thought, "{weight} of {thought}");
            // Signatures are up to two bytes shorter, lengths up to two, and legacy ones count four
            // times; without a witness there is neither marker nor flag.
            prop_assert!(thought - weight <= 2 + 16 * plan.spends.len() as u64, "{weight} of {thought}");
            let legacy: u32 = tx.output.iter().map(|o| legacy_sigops(o.script_pubkey.as_bytes())).sum();
            let coins = coins(keys, &plan);
            let sigops = tx.total_sigop_cost(|outpoint| {
                let index = tx.input.iter().position(|input| input.previous_output == *outpoint);
                index.map(|index| coins[index].clone())
            });
            prop_assert!(sigops >= 4 * legacy as usize);
            let unique: std::collections::HashSet<_> =
                tx.input.iter().map(|input| input.previous_output).collect();
            if unique.len() == tx.input.len() {
                prop_assert_eq!(room.sigops_taken(), sigops as u64);
            }
        }
    }
}

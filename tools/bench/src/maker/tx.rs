//! [`written`]: builds planned transactions, with the scripts and witnesses of their inputs.
//!
//! Signatures cover everything: SIGHASH_ALL, or SIGHASH_DEFAULT in taproot. Without signatures, [`dummy`](super::dummy)
//! writes the same bytes many times faster.

use super::coins::{Parent, Spend};
use super::keys::{KeyScript, Keyring, pushed};
use super::law::PaymentKind;
use super::plan::{PlannedOutput, TxPlan};
use apus_testkit::rng::Rng;
use bitcoin::absolute::LockTime;
use bitcoin::hashes::Hash;
use bitcoin::opcodes::all::OP_RETURN;
use bitcoin::script::Builder;
use bitcoin::sighash::{Prevouts, SighashCache};
use bitcoin::transaction::Version;
use bitcoin::{
    Amount, EcdsaSighashType, OutPoint, ScriptBuf, Sequence, TapSighashType, Transaction, TxIn,
    TxOut, Txid, Witness,
};

/// Replaceable (BIP-125), without relative lock time (BIP-68), with lock time enabled.
pub(super) const SEQUENCE: Sequence = Sequence::ENABLE_RBF_NO_LOCKTIME;

/// The id of the transaction that made a coin; `ids` has those of the same block.
pub(super) fn parent_id(spend: &Spend, ids: &[[u8; 32]]) -> [u8; 32] {
    match spend.parent {
        Parent::Earlier(id) => id,
        Parent::SameBlock(place) => ids[place as usize],
    }
}

/// Makes a transaction. `ids` has those of the same block by their places; `filler` generates dummy
/// signatures in unsigned chains.
pub(super) fn written(
    plan: &TxPlan,
    keys: &Keyring,
    ids: &[[u8; 32]],
    filler: &mut Rng,
) -> Transaction {
    let input = |spend: &Spend| TxIn {
        previous_output: OutPoint {
            txid: Txid::from_byte_array(parent_id(spend, ids)),
            vout: spend.vout,
        },
        sequence: SEQUENCE,
        ..TxIn::default()
    };
    let mut tx = Transaction {
        version: Version::TWO,
        lock_time: LockTime::from_consensus(plan.lock_time),
        input: plan.spends.iter().map(input).collect(),
        output: plan.outputs.iter().map(|output| output_of(keys, output)).collect(),
    };
    let coin = |spend: &Spend| pay(keys, spend.value, spend.script);
    let coins = plan.spends.iter().map(coin).collect();
    let mut proof = SpendProof { keys, hashes: SighashCache::new(&tx), coins, filler };
    let spends = plan.spends.iter().enumerate();
    let shown: Vec<_> = spends.map(|(index, spend)| proof.of(index, spend)).collect();
    for (input, (script_sig, witness)) in tx.input.iter_mut().zip(shown) {
        (input.script_sig, input.witness) = (script_sig, witness);
    }
    tx
}

/// The input scripts and witnesses of a transaction.
struct SpendProof<'a> {
    keys: &'a Keyring,
    hashes: SighashCache<&'a Transaction>,
    coins: Vec<TxOut>,
    filler: &'a mut Rng,
}

impl SpendProof<'_> {
    fn of(&mut self, index: usize, spend: &Spend) -> (ScriptBuf, Witness) {
        let Self { keys, hashes, coins, filler } = self;
        let (script, lock) = (spend.script, keys.lock(spend.script));
        let (all, default) = (EcdsaSighashType::All, TapSighashType::Default);
        let (value, prevouts) = (coins[index].value, Prevouts::All(&coins[..]));
        match script.kind {
            PaymentKind::Pkh
            | PaymentKind::PkhLong
            | PaymentKind::Pk
            | PaymentKind::PkLong
            | PaymentKind::Multisig => {
                let code = &lock.script_pubkey;
                let digest = || hash(hashes.legacy_signature_hash(index, code, all.to_u32()));
                let signature = keys.ecdsa(script, 0, digest, filler);
                let mut shown = Builder::new();
                if script.kind == PaymentKind::Multisig {
                    // CHECKMULTISIG pops one element too many.
                    shown = shown.push_int(0);
                }
                shown = shown.push_slice(pushed(&signature));
                shown = lock.rest.iter().fold(shown, |shown, it| shown.push_slice(pushed(it)));
                (shown.into_script(), Witness::new())
            }
            PaymentKind::Sh => {
                let [first, second] = [0, 1].map(|at| {
                    let code = &lock.inner;
                    let digest = || hash(hashes.legacy_signature_hash(index, code, all.to_u32()));
                    keys.ecdsa(script, at, digest, filler)
                });
                let shown = Builder::new().push_int(0).push_slice(pushed(&first));
                let shown = shown.push_slice(pushed(&second)).push_slice(pushed(&lock.rest[0]));
                (shown.into_script(), Witness::new())
            }
            PaymentKind::Wpkh | PaymentKind::ShWpkh => {
                let digest = || hash(hashes.p2wpkh_signature_hash(index, &lock.inner, value, all));
                let signature = keys.ecdsa(script, 0, digest, filler);
                let mut shown = Builder::new();
                if script.kind == PaymentKind::ShWpkh {
                    shown = shown.push_slice(pushed(lock.inner.as_bytes()));
                }
                (shown.into_script(), Witness::from_slice(&[&signature, &lock.rest[0]]))
            }
            PaymentKind::Wsh => {
                let [first, second] = [0, 1].map(|at| {
                    let digest =
                        || hash(hashes.p2wsh_signature_hash(index, &lock.inner, value, all));
                    keys.ecdsa(script, at, digest, filler)
                });
                let witness: [&[u8]; 4] = [&[], &first, &second, &lock.rest[0]];
                (ScriptBuf::new(), Witness::from_slice(&witness))
            }
            PaymentKind::Tr => {
                let digest =
                    || hash(hashes.taproot_key_spend_signature_hash(index, &prevouts, default));
                let signature = keys.schnorr(script, digest, filler);
                (ScriptBuf::new(), Witness::from_slice(&[signature]))
            }
            PaymentKind::TrScript => {
                let digest = || {
                    let leaf = lock.leaf_hash();
                    hash(
                        hashes.taproot_script_spend_signature_hash(index, &prevouts, leaf, default),
                    )
                };
                let signature = keys.schnorr(script, digest, filler);
                let mut image = Vec::new();
                if let Some(len) = script.image_bytes() {
                    filler.append(&mut image, len);
                }
                let leaf = if image.is_empty() { &lock.rest[0] } else { &image };
                let witness: [&[u8]; 3] = [&signature, leaf, &lock.rest[1]];
                (ScriptBuf::new(), Witness::from_slice(&witness))
            }
        }
    }
}

fn hash<E: std::fmt::Debug>(found: Result<impl Hash<Bytes = [u8; 32]>, E>) -> [u8; 32] {
    found.expect("the input and its script are of that kind").to_byte_array()
}

fn pay(keys: &Keyring, value: u64, script: KeyScript) -> TxOut {
    TxOut { value: Amount::from_sat(value), script_pubkey: keys.script_pubkey(script) }
}

/// The output for a planned one.
pub(super) fn output_of(keys: &Keyring, output: &PlannedOutput) -> TxOut {
    match *output {
        PlannedOutput::Pay { value, script } => pay(keys, value, script),
        PlannedOutput::Data { len, seed } => {
            let mut data = Vec::new();
            Rng::at(seed, 0).append(&mut data, len.into());
            let script = Builder::new().push_opcode(OP_RETURN).push_slice(pushed(&data));
            TxOut { value: Amount::ZERO, script_pubkey: script.into_script() }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::maker::cost;
    use crate::maker::dummy::dummy;
    use crate::maker::law::WantedTx;
    use apus_chain::legacy_sigops;
    use apus_testkit::rng::Rng;
    use bitcoin::PublicKey;
    use bitcoin::secp256k1::{Message, Secp256k1, XOnlyPublicKey, ecdsa, schnorr};
    use bitcoin::taproot::{ControlBlock, TapLeafHash};
    use proptest::prelude::*;
    use std::sync::LazyLock;

    static SIGNED: LazyLock<Keyring> = LazyLock::new(|| Keyring::new(9, true, false));
    static UNSIGNED: LazyLock<Keyring> = LazyLock::new(|| Keyring::new(9, false, false));

    static UNIQUE: LazyLock<Keyring> = LazyLock::new(|| Keyring::new(9, false, true));

    fn script() -> impl Strategy<Value = KeyScript> {
        (0..PaymentKind::ALL.len(), 0u32..1_000)
            .prop_map(|(kind, key)| KeyScript { kind: PaymentKind::ALL[kind], key })
    }

    fn plan() -> impl Strategy<Value = TxPlan> {
        let parent = prop_oneof![
            (0u32..4).prop_map(Parent::SameBlock),
            any::<[u8; 32]>().prop_map(Parent::Earlier),
        ];
        let spend = (parent, any::<u32>(), 0u64..1 << 50, script())
            .prop_map(|(parent, vout, value, script)| Spend { parent, vout, value, script });
        let payment = (0u64..1 << 50, script())
            .prop_map(|(value, script)| PlannedOutput::Pay { value, script });
        let data =
            (8u8..=75, any::<u64>()).prop_map(|(len, seed)| PlannedOutput::Data { len, seed });
        let outputs = (proptest::collection::vec(payment, 1..6), proptest::option::of(data))
            .prop_map(|(payments, data)| payments.into_iter().chain(data).collect());
        (proptest::collection::vec(spend, 1..6), outputs, any::<u32>()).prop_map(
            |(spends, outputs, lock_time)| TxPlan { layer: 0, lock_time, spends, outputs },
        )
    }

    const TXIDS: [[u8; 32]; 4] = [[1; 32], [2; 32], [3; 32], [4; 32]];

    fn made(keys: &Keyring, plan: &TxPlan) -> Transaction {
        written(plan, keys, &TXIDS, &mut Rng::at(1, 2))
    }

    /// Checks an input with independent hashing and curve code.
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
            legacy @ (PaymentKind::Pkh
            | PaymentKind::PkhLong
            | PaymentKind::Pk
            | PaymentKind::PkLong
            | PaymentKind::Multisig) => {
                let digest = hashes.legacy_signature_hash(index, script, kind as u32).unwrap();
                let signature = usize::from(legacy == PaymentKind::Multisig);
                let key = match legacy {
                    PaymentKind::Pkh | PaymentKind::PkhLong => &pushes[1][..],
                    PaymentKind::Pk => &script.as_bytes()[1..34],
                    PaymentKind::PkLong => &script.as_bytes()[1..66],
                    _ => &script.as_bytes()[2..35],
                };
                if matches!(legacy, PaymentKind::Pkh | PaymentKind::PkhLong) {
                    let hash = PublicKey::from_slice(key).unwrap().pubkey_hash();
                    assert_eq!(*script, ScriptBuf::new_p2pkh(&hash));
                }
                verify(digest.to_byte_array(), &pushes[signature], key);
            }
            PaymentKind::Sh => {
                let inner = ScriptBuf::from_bytes(pushes[3].clone());
                assert_eq!(*script, inner.to_p2sh());
                let digest = hashes.legacy_signature_hash(index, &inner, kind as u32).unwrap();
                for (place, at) in [(1, 2), (2, 36)] {
                    verify(digest.to_byte_array(), &pushes[place], &pushes[3][at..at + 33]);
                }
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
        plan.spends.iter().map(|spend| pay(keys, spend.value, spend.script)).collect()
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        #[test]
        fn the_bitcoin_crate_accepts_the_signatures(plan in plan()) {
            let tx = made(&SIGNED, &plan);
            let coins = coins(&SIGNED, &plan);
            (0..plan.spends.len()).for_each(|index| check(&tx, index, &plan, &coins));
        }

        #[test]
        fn transactions_match_their_plans(plan in plan(), signed: bool) {
            let keys = if signed { &*SIGNED } else { &*UNSIGNED };
            let tx = made(keys, &plan);
            prop_assert_eq!(tx.lock_time.to_consensus_u32(), plan.lock_time);
            for (input, spend) in tx.input.iter().zip(&plan.spends) {
                let txid = input.previous_output.txid.to_byte_array();
                prop_assert_eq!(txid, parent_id(spend, &TXIDS));
                prop_assert_eq!(input.previous_output.vout, spend.vout);
            }
            let paid = tx.output.iter().filter(|output| !output.script_pubkey.is_op_return());
            let wanted = plan.outputs.iter().filter_map(|output| match output {
                PlannedOutput::Pay { value, script } => Some((*value, &keys.lock(*script).script_pubkey)),
                PlannedOutput::Data { .. } => None,
            });
            let paid = paid.map(|output| (output.value.to_sat(), output.script_pubkey.clone()));
            prop_assert!(paid.eq(wanted.map(|(value, script)| (value, script.clone()))));
        }

        /// The fast way and the one that shares code with signed chains give the same bytes.
        #[test]
        fn dummies_are_transactions_with_dummy_signatures(plan in plan(), unique: bool, image: bool) {
            let mut plan = plan;
            let keys = if unique { &*UNIQUE } else { &*UNSIGNED };
            let place = plan.spends.len() / 2;
            if image {
                plan.spends[place].script = keys.image(plan.spends[place].script);
            }
            let expected = written(&plan, keys, &TXIDS, &mut Rng::at(1, 2));
            let (mut bytes, mut filler) = (vec![7; 3], Rng::at(1, 2));
            let span = dummy(&plan, keys, &TXIDS, &mut filler, &mut vec![8], &mut bytes);
            prop_assert!(bytes[3..] == bitcoin::consensus::serialize(&expected)[..]);
            prop_assert_eq!((span.start, span.end), (3, bytes.len()));
            let id = apus_hash::sha256d(&span.stripped(&bytes).concat());
            prop_assert_eq!(id, expected.compute_txid().to_byte_array());
        }

        /// A block with room for a planned transaction has room for the built one.
        #[test]
        fn nothing_costs_more_than_planned(plan in plan(), signed: bool) {
            let keys = if signed { &*SIGNED } else { &*UNSIGNED };
            let tx = made(keys, &plan);
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
            // Signatures are up to two bytes shorter, lengths up to two, and legacy ones count four times,
            // of which an input has at most two; without a witness there is neither marker nor flag.
            prop_assert!(thought - weight <= 2 + 24 * plan.spends.len() as u64, "{weight} of {thought}");
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

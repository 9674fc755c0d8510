//! [`dummy`]: writes planned transactions of unsigned chains straight as bytes.
//!
//! Making a chain at the main chain's size is bound by this and by hashing. The bytes are those of
//! [`written`](super::tx::written), which serves as the test's reference.

use super::coins::Spend;
use super::keys::Keyring;
use super::law::PaymentKind;
use super::plan::{PlannedOutput, TxPlan};
use super::tx::{SEQUENCE, parent_id};
use apus_chain::write_compact_size;
use apus_testkit::rng::Rng;
use bitcoin::opcodes::all::{OP_PUSHDATA1, OP_RETURN};

/// The version of all transactions.
const VERSION: [u8; 4] = 2u32.to_le_bytes();
/// SIGHASH_ALL, after a signature.
const ALL: u8 = 1;

/// Where a transaction's parts are in a buffer.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct TxSpan {
    pub(super) start: usize,
    pub(super) end: usize,
    /// The inputs and outputs, which are between the version and the witness.
    pub(super) body: (usize, usize),
}

impl TxSpan {
    /// The bytes without the witness, in three pieces.
    pub(super) fn stripped(self, bytes: &[u8]) -> [&[u8]; 3] {
        let Self { start, end, body } = self;
        [&bytes[start..start + 4], &bytes[body.0..body.1], &bytes[end - 4..end]]
    }

    /// Whether it has a witness.
    pub(super) const fn has_witness(self) -> bool {
        self.body.0 > self.start + 4
    }

    /// The same elsewhere.
    pub(super) fn moved(self, from: usize, to: usize) -> Self {
        let at = |place: usize| place - from + to;
        Self { start: at(self.start), end: at(self.end), body: (at(self.body.0), at(self.body.1)) }
    }
}

/// Appends a transaction. `ids` has those of the same block by their places, `filler` generates the
/// signatures, and `witness` is only memory for reuse.
pub(super) fn dummy(
    plan: &TxPlan,
    keys: &Keyring,
    ids: &[[u8; 32]],
    filler: &mut Rng,
    witness: &mut Vec<u8>,
    out: &mut Vec<u8>,
) -> TxSpan {
    let start = out.len();
    out.extend(VERSION);
    let has_witness = plan.spends.iter().any(|spend| spend.script.kind.has_witness());
    if has_witness {
        out.extend([0, 1]);
    }
    let body = out.len();
    witness.clear();
    write_compact_size(out, plan.spends.len() as u64);
    for spend in &plan.spends {
        out.extend(parent_id(spend, ids));
        out.extend(spend.vout.to_le_bytes());
        put_proof(keys, spend, filler, out, witness);
        out.extend(SEQUENCE.0.to_le_bytes());
    }
    write_compact_size(out, plan.outputs.len() as u64);
    plan.outputs.iter().for_each(|output| put_output(keys, output, out));
    let body = (body, out.len());
    if has_witness {
        out.extend_from_slice(witness);
    }
    out.extend(plan.lock_time.to_le_bytes());
    TxSpan { start, end: out.len(), body }
}

/// Appends an input's script with its length to `out`, and its part of the witness to `witness`.
fn put_proof(
    keys: &Keyring,
    spend: &Spend,
    filler: &mut Rng,
    out: &mut Vec<u8>,
    witness: &mut Vec<u8>,
) {
    let (script, lock) = (spend.script, keys.lock(spend.script));
    match script.kind {
        PaymentKind::Pkh
        | PaymentKind::PkhLong
        | PaymentKind::Pk
        | PaymentKind::PkLong
        | PaymentKind::Multisig
        | PaymentKind::Sh => {
            let place = out.len();
            out.push(0);
            if matches!(script.kind, PaymentKind::Multisig | PaymentKind::Sh) {
                // OP_0: CHECKMULTISIG pops one element too many.
                out.push(0);
            }
            put_ecdsa(filler, out);
            if script.kind == PaymentKind::Sh {
                put_ecdsa(filler, out);
            }
            lock.rest.iter().for_each(|bytes| put_push(bytes, out));
            end_script(place, out);
            witness.push(0);
        }
        PaymentKind::Wpkh | PaymentKind::ShWpkh => {
            match script.kind == PaymentKind::ShWpkh {
                true => {
                    let inner = lock.inner.as_bytes();
                    out.push(inner.len() as u8 + 1);
                    put_push(inner, out);
                }
                false => out.push(0),
            }
            witness.push(2);
            put_ecdsa(filler, witness);
            put_sized(&lock.rest[0], witness);
        }
        PaymentKind::Wsh => {
            out.push(0);
            witness.extend([4, 0]);
            put_ecdsa(filler, witness);
            put_ecdsa(filler, witness);
            put_sized(&lock.rest[0], witness);
        }
        PaymentKind::Tr => {
            out.push(0);
            witness.extend([1, 64]);
            filler.append(witness, 64);
        }
        PaymentKind::TrScript => {
            out.push(0);
            witness.extend([3, 64]);
            filler.append(witness, 64);
            match script.image_bytes() {
                Some(len) => {
                    write_compact_size(witness, len as u64);
                    filler.append(witness, len);
                }
                None => put_sized(&lock.rest[0], witness),
            }
            put_sized(&lock.rest[1], witness);
        }
    }
}

/// Appends a dummy signature with its length, as a push or as an element of a witness.
fn put_ecdsa(filler: &mut Rng, out: &mut Vec<u8>) {
    // Half of all r have their top bit set and are a byte longer.
    let len = 70 + filler.below(2) as usize;
    out.push(len as u8 + 1);
    filler.append(out, len);
    out.push(ALL);
}

fn put_sized(bytes: &[u8], out: &mut Vec<u8>) {
    write_compact_size(out, bytes.len() as u64);
    out.extend_from_slice(bytes);
}

/// Appends a push of fewer than 256 bytes.
fn put_push(bytes: &[u8], out: &mut Vec<u8>) {
    if bytes.len() > 75 {
        out.push(OP_PUSHDATA1.to_u8());
    }
    out.push(bytes.len() as u8);
    out.extend_from_slice(bytes);
}

/// Writes the length of the script that follows a byte at `place`, in place of that byte.
fn end_script(place: usize, out: &mut Vec<u8>) {
    let len = out.len() - place - 1;
    match u8::try_from(len) {
        Ok(short) if short < 253 => out[place] = short,
        _ => {
            let [low, high, ..] = len.to_le_bytes();
            out.splice(place..=place, [253, low, high]);
        }
    }
}

fn put_output(keys: &Keyring, output: &PlannedOutput, out: &mut Vec<u8>) {
    match *output {
        PlannedOutput::Pay { value, script } => {
            out.extend(value.to_le_bytes());
            out.push(0);
            let start = out.len();
            keys.put_script(script, out);
            // All scripts are shorter than 253 bytes.
            out[start - 1] = (out.len() - start) as u8;
        }
        PlannedOutput::Data { len, seed } => {
            out.extend([0; 8]);
            out.extend([len + 2, OP_RETURN.to_u8(), len]);
            Rng::at(seed, 0).append(out, len.into());
        }
    }
}

//! The facts about scripts that block rules need without running them, and [`ScriptVerifier`], the interface
//! for running scripts.
//!
//! These facts are the number of signature operations, the push of a height, and the witness commitment. Each
//! block has a limit for the cost of its signature operations. Before the coins are known, only the visible
//! part can be counted, which [`check`](crate::check) does; [`transaction_sigop_cost`] counts all of them.
//!
//! The rules of this crate define *what* must be verified; an engine provides the interpreter. The flags have
//! the values of Core's kernel library, so that they can be passed on unchanged.

mod solver;
#[cfg(test)]
pub(crate) mod tests;

pub use solver::{ScriptType, keys_of_multisig, witness_program};

use crate::block::{InputView, TxView, WitnessView};

/// `OP_RETURN`.
pub const OP_RETURN: u8 = 0x6a;
const OP_PUSHDATA1: u8 = 0x4c;
const OP_PUSHDATA2: u8 = 0x4d;
const OP_PUSHDATA4: u8 = 0x4e;
const OP_1: u8 = 0x51;
const OP_16: u8 = 0x60;
/// `OP_DUP`.
pub const OP_DUP: u8 = 0x76;
/// `OP_EQUAL`.
pub const OP_EQUAL: u8 = 0x87;
/// `OP_EQUALVERIFY`.
pub const OP_EQUALVERIFY: u8 = 0x88;
/// `OP_HASH160`.
pub const OP_HASH160: u8 = 0xa9;
/// `OP_CHECKSIG`.
pub const OP_CHECKSIG: u8 = 0xac;
const OP_CHECKSIGVERIFY: u8 = 0xad;
const OP_CHECKMULTISIG: u8 = 0xae;
const OP_CHECKMULTISIGVERIFY: u8 = 0xaf;

/// Maximum length of a script that can be run (Core `script/script.h`, `MAX_SCRIPT_SIZE`).
pub const MAX_SCRIPT_SIZE: usize = 10_000;

/// The count for a CHECKMULTISIG without a known number of keys (Core `script/script.h`,
/// `MAX_PUBKEYS_PER_MULTISIG`).
const MULTISIG_SIGOPS: u32 = 20;

/// Counts signature operations like Core before it knows the spent coins (`script/script.cpp`,
/// `GetSigOpCount(false)`): up to the first push that runs past the end.
#[inline]
pub fn legacy_sigops(script: &[u8]) -> u32 {
    // Most input scripts are empty.
    if script.is_empty() {
        return 0;
    }
    match usual_sigops(script) {
        Some(count) => count,
        None => walked_sigops(script),
    }
}

/// Counts the signature operations of nearly all scripts without parsing them: those with the forms P2WPKH,
/// P2WSH and P2TR, P2SH, P2PKH. The next script's form is unpredictable, so this tests all forms without a
/// branch.
#[inline]
fn usual_sigops(script: &[u8]) -> Option<u32> {
    let (&[a, b, c], &[y, z]) = (script.first_chunk()?, script.last_chunk()?);
    let length = script.len();
    let key_hash = (length == 22) & (a == 0) & (b == 20);
    let program = (length == 34) & ((a == 0) | (a == OP_1)) & (b == 32);
    let script_hash = (length == 23) & (a == OP_HASH160) & (b == 20) & (z == OP_EQUAL);
    let begins = (a == OP_DUP) & (b == OP_HASH160) & (c == 20);
    let public_key_hash = (length == 25) & begins & (y == OP_EQUALVERIFY) & (z == OP_CHECKSIG);
    (key_hash | program | script_hash | public_key_hash).then_some(u32::from(public_key_hash))
}

fn walked_sigops(script: &[u8]) -> u32 {
    let mut count = 0;
    for opcode in Opcodes::new(script).map_while(Result::ok) {
        count += match opcode.code {
            OP_CHECKSIG | OP_CHECKSIGVERIFY => 1,
            OP_CHECKMULTISIG | OP_CHECKMULTISIGVERIFY => MULTISIG_SIGOPS,
            _ => 0,
        };
    }
    count
}

/// Counts signature operations like Core in a script that will certainly be run (`script/script.cpp`,
/// `GetSigOpCount(true)`): a CHECKMULTISIG directly after `OP_1` to `OP_16` counts that number, any other
/// counts 20.
pub fn accurate_sigops(script: &[u8]) -> u32 {
    let (mut count, mut before) = (0, 0);
    for opcode in Opcodes::new(script).map_while(Result::ok) {
        count += match (opcode.code, before) {
            (OP_CHECKSIG | OP_CHECKSIGVERIFY, _) => 1,
            (OP_CHECKMULTISIG | OP_CHECKMULTISIGVERIFY, OP_1..=OP_16) => {
                u32::from(before - OP_1) + 1
            }
            (OP_CHECKMULTISIG | OP_CHECKMULTISIGVERIFY, _) => MULTISIG_SIGOPS,
            _ => 0,
        };
        before = opcode.code;
    }
    count
}

/// Returns the data pushed by the last operation of a push-only script (Core `script/script.cpp`,
/// `IsPushOnly`), `None` for other scripts. The data is empty if the script is empty or ends in `OP_0` or one
/// of the small numbers: Core ignores their values here, too (`GetSigOpCount(const CScript&)`).
pub fn last_push(script: &[u8]) -> Option<&[u8]> {
    let mut last = &[][..];
    for opcode in Opcodes::new(script) {
        let Opcode { code, data } = opcode.ok()?;
        if code > OP_16 {
            return None;
        }
        last = data;
    }
    Some(last)
}

/// Returns whether this is pay-to-script-hash (BIP-16; Core `script/script.cpp`,
/// `IsPayToScriptHash`).
#[inline]
pub(crate) fn is_p2sh(script: &[u8]) -> bool {
    matches!(script, [OP_HASH160, 20, hash @ .., OP_EQUAL] if hash.len() == 20)
}

/// One operation: its opcode, and the data if it is a push.
struct Opcode<'a> {
    code: u8,
    data: &'a [u8],
}

/// A push that runs past the end of its script.
struct CutOff;

/// Iterates over the operations of a script (Core `script/script.cpp`, `GetScriptOp`). Ends after a truncated
/// push.
struct Opcodes<'a> {
    rest: &'a [u8],
}

impl<'a> Opcodes<'a> {
    fn new(script: &'a [u8]) -> Self {
        Self { rest: script }
    }
}

/// Splits off the pushed data; its length is the first `N` bytes, little-endian.
fn split_after_length<const N: usize>(script: &[u8]) -> Option<(&[u8], &[u8])> {
    let (length, data) = script.split_first_chunk::<N>()?;
    data.split_at_checked(length.iter().rev().fold(0, |n, &byte| n << 8 | byte as usize))
}

impl<'a> Iterator for Opcodes<'a> {
    type Item = Result<Opcode<'a>, CutOff>;

    #[inline]
    fn next(&mut self) -> Option<Self::Item> {
        let (&code, after) = self.rest.split_first()?;
        let parts = match code {
            ..OP_PUSHDATA1 => after.split_at_checked(code as usize),
            OP_PUSHDATA1 => split_after_length::<1>(after),
            OP_PUSHDATA2 => split_after_length::<2>(after),
            OP_PUSHDATA4 => split_after_length::<4>(after),
            _ => Some((&[][..], after)),
        };
        let Some((data, after)) = parts else {
            self.rest = &[];
            return Some(Err(CutOff));
        };
        self.rest = after;
        Some(Ok(Opcode { code, data }))
    }
}

/// Returns the script that BIP-34 requires at the start of a coinbase: the height as `CScript() <<
/// height` writes it (Core `script/script.h`, `push_int64`), and its length, at most six bytes.
pub fn height_push(height: u32) -> ([u8; 6], usize) {
    let mut script = [0; 6];
    match height {
        0 => (script, 1),
        1..=16 => {
            script[0] = OP_1 - 1 + height as u8;
            (script, 1)
        }
        _ => {
            // Little-endian, with another zero byte if the top bit would read as a sign.
            let bits = 32 - height.leading_zeros() as usize;
            let length = bits / 8 + 1;
            let bytes = u64::from(height).to_le_bytes();
            script[0] = length as u8;
            script[1..=length].copy_from_slice(&bytes[..length]);
            (script, length + 1)
        }
    }
}

/// Returns the hash in a witness commitment, if the script is one (BIP-141): OP_RETURN, a push of
/// 36 bytes, the tag `aa21a9ed` and 32 bytes of hash; more may follow.
pub fn witness_commitment(script: &[u8]) -> Option<&[u8; 32]> {
    script.strip_prefix(&[OP_RETURN, 0x24, 0xaa, 0x21, 0xa9, 0xed])?.first_chunk()
}

/// Maximum cost of the signature operations in a block (Core `consensus/consensus.h`,
/// `MAX_BLOCK_SIGOPS_COST`).
pub const BLOCK_SIGOPS_COST_MAX: u64 = 80_000;

/// Cost of a signature operation outside witnesses, and weight of a byte outside witnesses (Core
/// `consensus/consensus.h`, `WITNESS_SCALE_FACTOR`).
pub const WITNESS_SCALE_FACTOR: u64 = 4;

/// Returns the cost of a transaction's signature operations (Core `consensus/tx_verify.cpp`,
/// `GetTransactionSigOpCost`).
///
/// `spent` yields the scripts of the coins that its inputs spend, in input order; it is not read for a
/// coinbase. If a script is missing, its part of the cost is unknown, and the result exceeds the maximum for
/// any block. `flags` are the block's [script rules](crate::Params::block_script_flags).
pub fn transaction_sigop_cost<'a>(
    tx: &TxView<'_>,
    spent: impl IntoIterator<Item = &'a [u8]>,
    flags: u32,
) -> u64 {
    let legacy = tx_legacy_sigops(tx) * WITNESS_SCALE_FACTOR;
    if tx.is_coinbase() {
        return legacy;
    }
    let spending = spending_sigop_cost(tx, spent, flags).unwrap_or(u64::MAX);
    legacy.saturating_add(spending)
}

/// Counts the visible signature operations of a transaction (Core `consensus/tx_verify.cpp`,
/// `GetLegacySigOpCount`).
fn tx_legacy_sigops(tx: &TxView<'_>) -> u64 {
    let inputs = tx.inputs().map(|input| input.script_sig());
    let scripts = inputs.chain(tx.outputs().map(|output| output.script()));
    scripts.map(|script| u64::from(legacy_sigops(script))).sum()
}

/// Returns the maximum that the inputs of a transaction can add to
/// [`BlockBytes::legacy_sigops`](crate::BlockBytes::legacy_sigops) times [`WITNESS_SCALE_FACTOR`], whichever
/// coins they spend: an input has one redeem script and one witness script, and counts as one if its witness
/// needs a single signature.
pub fn spending_sigop_cost_max(tx: &TxView<'_>) -> u64 {
    let mut witnesses = tx.witnesses();
    let of_input = |input: InputView<'_>| {
        let redeem = last_push(input.script_sig()).map_or(0, accurate_sigops);
        let witness = witnesses.next().and_then(|witness| witness.last().map(accurate_sigops));
        u64::from(redeem) * WITNESS_SCALE_FACTOR + u64::from(witness.unwrap_or(0).max(1))
    };
    tx.inputs().map(of_input).sum()
}

/// Returns the part of the cost that depends on the coins, pay-to-script-hash and witnesses; `None`
/// if a coin is missing.
fn spending_sigop_cost<'a>(
    tx: &TxView<'_>,
    spent: impl IntoIterator<Item = &'a [u8]>,
    flags: u32,
) -> Option<u64> {
    let mut cost = 0;
    let mut spent = spent.into_iter();
    // Finding a witness takes a walk through all witnesses before it, so this waits until a script in a
    // witness is needed.
    let mut witnesses = tx.witnesses().enumerate();
    let mut witness_of = |vin: usize| {
        witnesses
            .find(|(index, _)| *index == vin)
            .map_or_else(WitnessView::default, |(_, found)| found)
    };
    for (vin, input) in tx.inputs().enumerate() {
        let script_pubkey = spent.next()?;
        let mut program = script_pubkey;
        if is_p2sh(script_pubkey) {
            let Some(redeem_script) = last_push(input.script_sig()) else { continue };
            if flags & VERIFY_P2SH != 0 {
                cost += u64::from(accurate_sigops(redeem_script)) * WITNESS_SCALE_FACTOR;
            }
            program = redeem_script;
        }
        if flags & VERIFY_WITNESS != 0 {
            cost += witness_sigops(program, || witness_of(vin));
        }
    }
    Some(cost)
}

/// Counts the signature operations of a witness program; versions other than 0 have none (Core
/// `script/interpreter.cpp`, `CountWitnessSigOps` and `WitnessSigOps`).
fn witness_sigops<'a>(program: &[u8], witness: impl FnOnce() -> WitnessView<'a>) -> u64 {
    match program {
        [0, 20, hash @ ..] if hash.len() == 20 => 1,
        [0, 32, hash @ ..] if hash.len() == 32 => {
            witness().last().map_or(0, |script| u64::from(accurate_sigops(script)))
        }
        _ => 0,
    }
}

/// Pay-to-script-hash (BIP-16).
pub const VERIFY_P2SH: u32 = 1 << 0;
/// Strict DER signatures (BIP-66).
pub const VERIFY_DERSIG: u32 = 1 << 2;
/// The extra element of CHECKMULTISIG must be empty (BIP-147).
pub const VERIFY_NULLDUMMY: u32 = 1 << 4;
/// CHECKLOCKTIMEVERIFY (BIP-65).
pub const VERIFY_CHECKLOCKTIMEVERIFY: u32 = 1 << 9;
/// CHECKSEQUENCEVERIFY (BIP-112).
pub const VERIFY_CHECKSEQUENCEVERIFY: u32 = 1 << 10;
/// Segregated witness (BIP-141).
pub const VERIFY_WITNESS: u32 = 1 << 11;
/// Taproot (BIP-341, BIP-342).
pub const VERIFY_TAPROOT: u32 = 1 << 17;

/// Why an input's scripts did not pass.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// They ran and failed.
    #[error("the scripts do not allow this spend")]
    Invalid,
    /// They could not be run: the input index or the flags are invalid, or the transaction is
    /// unreadable. Never the same as [`ScriptError::Invalid`], never a pass.
    #[error("the scripts could not be run: {0}")]
    Setup(String),
}

/// Runs the scripts of one input.
pub trait ScriptVerifier: Send + Sync {
    /// Fails unless input number `input` of the serialized transaction `tx` may spend an output of
    /// `amount` satoshi locked by `script_pubkey`, under the rules that `flags` enable.
    fn verify(
        &self,
        script_pubkey: &[u8],
        amount: u64,
        tx: &[u8],
        input: usize,
        flags: u32,
    ) -> Result<(), ScriptError>;
}

//! [`Interpreter`]: runs the scripts of whole transactions.
//!
//! A transaction is prepared once, together with every output that it spends; then any thread may
//! verify its inputs in any order. No state carries over from one input to the next. Core's texts
//! for script failures are part of the reject reasons that its node reports.

use super::recorded::{CheckRoom, KnownChecks};
use crate::coin::CoinBytes;
use apus_chain::ScriptError;

/// This build cannot run scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "cannot run scripts: this program was built without the feature kernel. Build it with that feature: cargo \
     build --release -p apus"
)]
pub struct NoInterpreter;

/// Prepares transactions so that their scripts can be run.
pub trait Interpreter: Send + Sync {
    /// Reads a serialized transaction and computes the data that all its inputs share. `spent` has
    /// the output that each input spends, in input order. Every failure is a
    /// [`ScriptError::Setup`]: no script has run yet.
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError>;
}

/// A transaction with all outputs that it spends.
pub trait PreparedTx: Send + Sync {
    /// Fails unless this input may spend its output, under the rules that `flags` enable.
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal>;

    /// Like [`Self::verify`], but answers yes to signature checks without checking them: to proven
    /// ones; and to new ones if there is room, where it writes them. Returns how many it wrote: if
    /// all of them are valid, the input may spend its output. A failure says nothing if it wrote any,
    /// or if unproven checks are known.
    fn verify_deferred(
        &self,
        input: usize,
        flags: u32,
        _known: &KnownChecks,
        _room: CheckRoom<'_>,
    ) -> Result<usize, Refusal> {
        self.verify(input, flags).map(|()| 0)
    }
}

/// Why one input was rejected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the scripts failed or could not be run.
    pub error: ScriptError,
    /// Core's text for the failure, if the interpreter reported it: one of [`SCRIPT_ERRORS`].
    pub name: Option<&'static str>,
}

impl From<ScriptError> for Refusal {
    fn from(error: ScriptError) -> Self {
        Self { error, name: None }
    }
}

/// The text of number `n` of Core's `ScriptError`, at index `n` (`script/script_error.h`,
/// `script/script_error.cpp`). Number 0 is success, 1 is unspecific. Both consensus and relay rules
/// are listed, because they share the numbering.
pub const SCRIPT_ERRORS: [&str; 55] = [
    "No error",
    "unknown error",
    "Script evaluated without error but finished with a false/empty top stack element",
    "OP_RETURN was encountered",
    "Script number overflowed or is non-minimally encoded",
    "Script is too big",
    "Push value size limit exceeded",
    "Operation limit exceeded",
    "Stack size limit exceeded",
    "Signature count negative or greater than pubkey count",
    "Pubkey count negative or limit exceeded",
    "Script failed an OP_VERIFY operation",
    "Script failed an OP_EQUALVERIFY operation",
    "Script failed an OP_CHECKMULTISIGVERIFY operation",
    "Script failed an OP_CHECKSIGVERIFY operation",
    "Script failed an OP_NUMEQUALVERIFY operation",
    "Opcode missing or not understood",
    "Attempted to use a disabled opcode",
    "Operation not valid with the current stack size",
    "Operation not valid with the current altstack size",
    "Invalid OP_IF construction",
    "Negative locktime",
    "Locktime requirement not satisfied",
    "Signature hash type missing or not understood",
    "Non-canonical DER signature",
    "Data push larger than necessary",
    "Only push operators allowed in signatures",
    "Non-canonical signature: S value is unnecessarily high",
    "Dummy CHECKMULTISIG argument must be zero",
    "Public key is neither compressed or uncompressed",
    "Stack size must be exactly one after execution",
    "OP_IF/NOTIF argument must be minimal",
    "Signature must be zero for failed CHECK(MULTI)SIG operation",
    "NOPx reserved for soft-fork upgrades",
    "Witness version reserved for soft-fork upgrades",
    "Taproot version reserved for soft-fork upgrades",
    "OP_SUCCESSx reserved for soft-fork upgrades",
    "Public key version reserved for soft-fork upgrades",
    "Witness program has incorrect length",
    "Witness program was passed an empty witness",
    "Witness program hash mismatch",
    "Witness requires empty scriptSig",
    "Witness requires only-redeemscript scriptSig",
    "Witness provided for non-witness script",
    "Using non-compressed keys in segwit",
    "Invalid Schnorr signature size",
    "Invalid Schnorr signature hash type",
    "Invalid Schnorr signature",
    "Invalid Taproot control block size",
    "Too much signature validation relative to witness weight",
    "OP_CHECKMULTISIG(VERIFY) is not available in tapscript",
    "OP_IF/NOTIF argument must be minimal in tapscript",
    "Empty public key in tapscript",
    "Using OP_CODESEPARATOR in non-witness script",
    "Signature is found in scriptCode",
];

/// Returns Core's text for a number of its `ScriptError`; `None` without an error, or for a number
/// that is not in the list.
#[cfg(any(test, feature = "kernel"))]
pub(super) fn error_text(number: core::ffi::c_int) -> Option<&'static str> {
    let number = usize::try_from(number).ok().filter(|number| *number > 0)?;
    SCRIPT_ERRORS.get(number).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn error_numbers_map_to_cores_texts() {
        assert_eq!(error_text(2), Some(SCRIPT_ERRORS[2]));
        assert_eq!(error_text(54), Some("Signature is found in scriptCode"));
        for none in [i32::MIN, -1, 0, 55, i32::MAX] {
            assert_eq!(error_text(none), None);
        }
    }
}

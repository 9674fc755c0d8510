//! [`Interpreter`]: what runs the scripts of whole transactions.
//!
//! A transaction is prepared once, together with every output that it spends, and its inputs are
//! then verified in any order by any thread. Nothing is remembered from one input to the next. Core's words for why a script
//! failed are part of the reasons that its node reports.

use crate::coin::CoinBytes;
use apus_chain::ScriptError;

/// This build cannot run scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "scripts cannot be run: this program was built without the kernel feature; build it with that \
     feature, as `cargo build --release -p apus` does"
)]
pub struct NoInterpreter;

/// Prepares transactions for their scripts to be run.
pub trait Interpreter: Send + Sync {
    /// Reads a serialized transaction and what all its inputs share. `spent` has the output that
    /// each input spends, in the order of the inputs. Every failure is a
    /// [`ScriptError::Setup`]: no script has run yet.
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError>;
}

/// A transaction with all outputs that it spends.
pub trait PreparedTx: Send + Sync {
    /// Fails unless this input may spend its output, under the rules that `flags` turn on.
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal>;
}

/// Why one input was not accepted.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refusal {
    /// Whether the answer is no, or there is none.
    pub error: ScriptError,
    /// The words that Core has for it, where the interpreter told: one of
    /// [`SCRIPT_ERRORS`].
    pub name: Option<&'static str>,
}

impl From<ScriptError> for Refusal {
    fn from(error: ScriptError) -> Self {
        Self { error, name: None }
    }
}

/// What number `n` of Core's `ScriptError` says, at index `n` (`script/script_error.h`, `script/script_error.cpp`).
/// Number 0 is success, 1 says nothing. Both the rules of consensus and those of relay are listed, since the numbers count on.
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

/// Core's words for a number of its `ScriptError`; none where there was no error, or a number that
/// this list does not know.
#[cfg(any(test, feature = "kernel"))]
pub(super) fn error_text(number: core::ffi::c_int) -> Option<&'static str> {
    let number = usize::try_from(number).ok().filter(|number| *number > 0)?;
    SCRIPT_ERRORS.get(number).copied()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_their_words() {
        assert_eq!(error_text(2), Some(SCRIPT_ERRORS[2]));
        assert_eq!(error_text(54), Some("Signature is found in scriptCode"));
        for none in [i32::MIN, -1, 0, 55, i32::MAX] {
            assert_eq!(error_text(none), None);
        }
    }
}

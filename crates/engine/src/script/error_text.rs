//! Core's words for why a script failed: they are part of the reasons that its node reports.
//!
//! Numbers and words are those of Core's `script/script_error.h` and `script/script_error.cpp`.
//! Both the rules of consensus and those of relay are listed, since the numbers count on.

/// What number `n` of Core's `ScriptError` says, at index `n`. Number 0 is success, 1 says nothing.
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

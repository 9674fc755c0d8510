//! [`ScriptVerifier`]: the seam behind which scripts are run, and the flags it takes.
//!
//! The rules of this crate say *what* has to be verified; an engine brings the interpreter. The
//! flags have the values of Core's kernel library, so that they pass through unchanged.

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

/// Why an input's scripts were not accepted.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum ScriptError {
    /// They ran, and the answer is no.
    #[error("the scripts do not allow this spend")]
    Invalid,
    /// They could not be run: an input index or flags that make no sense, an unreadable
    /// transaction. Never the same as [`ScriptError::Invalid`], never a pass.
    #[error("the scripts could not be run: {0}")]
    Setup(String),
}

/// Runs the scripts of one input.
pub trait ScriptVerifier: Send + Sync {
    /// Fails unless input number `input` of the serialized transaction `tx` may spend an output of
    /// `amount` satoshi locked by `script_pubkey`, under the rules that `flags` turn on.
    fn verify(
        &self,
        script_pubkey: &[u8],
        amount: u64,
        tx: &[u8],
        input: usize,
        flags: u32,
    ) -> Result<(), ScriptError>;
}

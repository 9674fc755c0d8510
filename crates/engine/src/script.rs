//! Running scripts: the one place that knows an interpreter.
//!
//! With the feature `kernel` that is Bitcoin Core's own, out of its kernel library; without it
//! there is none, and asking for one is an error. Nothing here decides which rules hold: callers
//! bring the flags.

use apus_chain::ScriptVerifier;

/// This build cannot run scripts.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error(
    "scripts cannot be run: built without the kernel feature; \
     build with it, or choose a validation that runs none"
)]
pub struct NoInterpreter;

/// The interpreter of this build.
#[cfg(feature = "kernel")]
pub fn script_verifier() -> Result<Box<dyn ScriptVerifier>, NoInterpreter> {
    Ok(Box::new(kernel::Kernel))
}

/// The interpreter of this build: there is none.
#[cfg(not(feature = "kernel"))]
pub fn script_verifier() -> Result<Box<dyn ScriptVerifier>, NoInterpreter> {
    Err(NoInterpreter)
}

#[cfg(feature = "kernel")]
mod kernel {
    use apus_chain::{ScriptError, ScriptVerifier};
    use bitcoinkernel::{
        KernelError, PrecomputedTransactionData, ScriptPubkey, ScriptVerifyError, Transaction,
        TxOut, verify,
    };

    /// Bitcoin Core's interpreter.
    pub(super) struct Kernel;

    impl ScriptVerifier for Kernel {
        fn verify(
            &self,
            script_pubkey: &[u8],
            amount: u64,
            tx: &[u8],
            input: usize,
            flags: u32,
        ) -> Result<(), ScriptError> {
            let amount = i64::try_from(amount)
                .map_err(|_| ScriptError::Setup(format!("{amount} satoshi is no amount")))?;
            let script = ScriptPubkey::new(script_pubkey).map_err(setup)?;
            let tx = Transaction::new(tx).map_err(setup)?;
            let no_outputs: &[TxOut] = &[];
            let data = PrecomputedTransactionData::new(&tx, no_outputs).map_err(setup)?;
            match verify(&script, Some(amount), &tx, input, Some(flags), &data) {
                Ok(()) => Ok(()),
                Err(KernelError::ScriptVerify(ScriptVerifyError::Invalid)) => {
                    Err(ScriptError::Invalid)
                }
                Err(error) => Err(setup(error)),
            }
        }
    }

    fn setup(error: KernelError) -> ScriptError {
        ScriptError::Setup(error.to_string())
    }
}

#[cfg(test)]
mod tests;

//! [`Kernel`]: Bitcoin Core's interpreter, out of its kernel library.
//!
//! Its answer is the verdict, as it stands. What it cannot be asked (an input that is not there,
//! flags that make no sense, outputs that are missing) is an error of setup and never a verdict.

use super::interpreter::{Interpreter, PreparedTx, Refusal};
use crate::utxo::CoinBytes;
use apus_chain::{ScriptError, ScriptVerifier};
use bitcoinkernel::prelude::*;
use bitcoinkernel::{
    KernelError, PrecomputedTransactionData, ScriptPubkey, ScriptVerifyError, Transaction, TxOut,
    verify,
};

/// Bitcoin Core's interpreter.
pub(super) struct Kernel;

impl Interpreter for Kernel {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        let outputs = spent.iter().map(|coin| {
            let coin = coin.coin();
            output(&coin.script, coin.amount)
        });
        let outputs = outputs.collect::<Result<_, _>>()?;
        let tx = Transaction::new(raw).map_err(setup)?;
        Ok(Box::new(KernelTx::new(tx, outputs)?))
    }
}

impl ScriptVerifier for Kernel {
    /// The output spent is known for this input alone, so that taproot's rules, which look at the
    /// outputs of all, can be asked for where there is only one.
    fn verify(
        &self,
        script_pubkey: &[u8],
        amount: u64,
        tx: &[u8],
        input: usize,
        flags: u32,
    ) -> Result<(), ScriptError> {
        let output = output(script_pubkey, amount)?;
        let tx = Transaction::new(tx).map_err(setup)?;
        if tx.input_count() == 1 {
            let tx = KernelTx::new(tx, vec![output])?;
            return tx.verify(input, flags).map_err(|refusal| refusal.error);
        }
        let no_outputs: &[TxOut] = &[];
        let data = PrecomputedTransactionData::new(&tx, no_outputs).map_err(setup)?;
        run(&output, &tx, &data, input, flags).map_err(|refusal| refusal.error)
    }
}

/// A transaction as the kernel library has it.
struct KernelTx {
    tx: Transaction,
    outputs: Vec<TxOut>,
    data: PrecomputedTransactionData,
}

impl KernelTx {
    fn new(tx: Transaction, outputs: Vec<TxOut>) -> Result<Self, ScriptError> {
        let inputs = tx.input_count();
        if inputs == 0 || inputs != outputs.len() {
            let spent = outputs.len();
            let why = format!("a transaction of {inputs} inputs came with {spent} outputs spent");
            return Err(ScriptError::Setup(why));
        }
        let data = PrecomputedTransactionData::new(&tx, &outputs).map_err(setup)?;
        Ok(Self { tx, outputs, data })
    }
}

impl PreparedTx for KernelTx {
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal> {
        let Some(output) = self.outputs.get(input) else {
            let why = format!("no input {input} in a transaction of {}", self.outputs.len());
            return Err(ScriptError::Setup(why).into());
        };
        run(output, &self.tx, &self.data, input, flags)
    }
}

fn run(
    output: &TxOut,
    tx: &Transaction,
    data: &PrecomputedTransactionData,
    input: usize,
    flags: u32,
) -> Result<(), Refusal> {
    let (script, amount) = (output.script_pubkey(), output.value());
    forget_error();
    match verify(&script, Some(amount), tx, input, Some(flags), data) {
        Ok(()) => Ok(()),
        Err(KernelError::ScriptVerify(ScriptVerifyError::Invalid)) => {
            Err(Refusal { error: ScriptError::Invalid, name: error_name() })
        }
        Err(error) => Err(setup(error).into()),
    }
}

fn output(script: &[u8], amount: u64) -> Result<TxOut, ScriptError> {
    let amount = i64::try_from(amount)
        .map_err(|_| ScriptError::Setup(format!("{amount} satoshi is no amount")))?;
    Ok(TxOut::new(&ScriptPubkey::new(script).map_err(setup)?, amount))
}

fn setup(error: KernelError) -> ScriptError {
    ScriptError::Setup(error.to_string())
}

#[cfg(target_os = "linux")]
use super::last_error::{error_name, forget_error};

#[cfg(not(target_os = "linux"))]
fn forget_error() {}

#[cfg(not(target_os = "linux"))]
fn error_name() -> Option<&'static str> {
    None
}

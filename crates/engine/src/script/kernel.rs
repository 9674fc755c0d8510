//! [`Kernel`]: Bitcoin Core's interpreter, out of its kernel library.
//!
//! Its answer is the verdict, as it stands. What it cannot be asked (an input that is not there,
//! flags that make no sense, outputs that are missing) is an error of setup and never a verdict.

use super::interpreter::{Interpreter, PreparedTx, Refusal};
use crate::coin::CoinBytes;
use apus_chain::{ScriptError, ScriptVerifier, VERIFY_TAPROOT};
use bitcoinkernel::prelude::*;
use bitcoinkernel::{
    KernelError, PrecomputedTransactionData, ScriptPubkey, ScriptVerifyError, Transaction, TxOut,
    TxOutRef, verify,
};

/// Bitcoin Core's interpreter.
pub(super) struct Kernel;

impl Interpreter for Kernel {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        let outputs = spent.iter().map(|coin| {
            let coin = coin.coin();
            Output::new(&coin.script, coin.amount)
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
        let output = Output::new(script_pubkey, amount)?;
        let tx = Transaction::new(tx).map_err(setup)?;
        if tx.input_count() == 1 {
            let tx = KernelTx::new(tx, vec![output])?;
            return tx.verify(input, flags).map_err(|refusal| refusal.error);
        }
        let data = shared_data(&tx, &[])?;
        run(&output, &tx, &data, input, flags).map_err(|refusal| refusal.error)
    }
}

/// An output as the kernel library has it.
struct Output {
    txout: TxOut,
    /// Whether it is locked by taproot's rules (BIP-341), where those are turned on.
    is_taproot: bool,
}

impl Output {
    fn new(script: &[u8], amount: u64) -> Result<Self, ScriptError> {
        let amount = i64::try_from(amount)
            .map_err(|_| ScriptError::Setup(format!("{amount} satoshi is no amount")))?;
        let txout = TxOut::new(&ScriptPubkey::new(script).map_err(setup)?, amount);
        let is_taproot = matches!(script, [0x51, 32, program @ ..] if program.len() == 32);
        Ok(Self { txout, is_taproot })
    }
}

/// A transaction as the kernel library has it.
///
/// The library copies what the inputs share once more for every input, with all outputs spent: in
/// time that grows with the square of their number. Only signatures of taproot cover those outputs,
/// so the other inputs share data without them. They must then be run without the flag of taproot,
/// which the library takes only with outputs, and which asks nothing of them: Core looks at it for
/// an output of [`Output::is_taproot`] alone (`script/interpreter.cpp`, `VerifyWitnessProgram`).
struct KernelTx {
    tx: Transaction,
    outputs: Vec<Output>,
    /// What the inputs that spend outputs of taproot share.
    of_taproot: Option<PrecomputedTransactionData>,
    /// What the others share.
    of_others: Option<PrecomputedTransactionData>,
}

impl KernelTx {
    fn new(tx: Transaction, outputs: Vec<Output>) -> Result<Self, ScriptError> {
        let inputs = tx.input_count();
        if inputs == 0 || inputs != outputs.len() {
            let spent = outputs.len();
            let why = format!("a transaction of {inputs} inputs came with {spent} outputs spent");
            return Err(ScriptError::Setup(why));
        }
        let (mut of_taproot, mut of_others) = (None, None);
        if outputs.iter().any(|output| output.is_taproot) {
            let all: Vec<_> = outputs.iter().map(|output| output.txout.as_ref()).collect();
            of_taproot = Some(shared_data(&tx, &all)?);
        }
        if outputs.iter().any(|output| !output.is_taproot) {
            of_others = Some(shared_data(&tx, &[])?);
        }
        Ok(Self { tx, outputs, of_taproot, of_others })
    }
}

impl PreparedTx for KernelTx {
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal> {
        let Some(output) = self.outputs.get(input) else {
            let why = format!("no input {input} in a transaction of {}", self.outputs.len());
            return Err(ScriptError::Setup(why).into());
        };
        let (data, flags) = if output.is_taproot {
            (&self.of_taproot, flags)
        } else {
            (&self.of_others, flags & !VERIFY_TAPROOT)
        };
        let data = data.as_ref().expect("each kind of output has its data");
        run(output, &self.tx, data, input, flags)
    }
}

fn shared_data(
    tx: &Transaction,
    outputs: &[TxOutRef<'_>],
) -> Result<PrecomputedTransactionData, ScriptError> {
    PrecomputedTransactionData::new(tx, outputs).map_err(setup)
}

fn run(
    output: &Output,
    tx: &Transaction,
    data: &PrecomputedTransactionData,
    input: usize,
    flags: u32,
) -> Result<(), Refusal> {
    let (script, amount) = (output.txout.script_pubkey(), output.txout.value());
    forget_error();
    match verify(&script, Some(amount), tx, input, Some(flags), data) {
        Ok(()) => Ok(()),
        Err(KernelError::ScriptVerify(ScriptVerifyError::Invalid)) => {
            Err(Refusal { error: ScriptError::Invalid, name: error_name() })
        }
        Err(error) => Err(setup(error).into()),
    }
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

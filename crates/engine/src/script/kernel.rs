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
use std::ops::Deref;

/// Bitcoin Core's interpreter.
pub(super) struct Kernel;

impl Interpreter for Kernel {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        let outputs = spent.iter().map(Output::of).collect::<Result<_, _>>()?;
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
        run(&*output.made()?, &tx, &data, input, flags).map_err(|refusal| refusal.error)
    }
}

/// Memory of a coin's own from which on its output is made for the library only while it is run, in bytes.
const LONG_FROM: usize = 1 << 10;

/// An output that is spent.
enum Output {
    /// As the kernel library has it, and whether it is locked by taproot's rules (BIP-341), where those are
    /// turned on.
    Made { txout: TxOut, is_taproot: bool },
    /// One with a long script, which no taproot has. A transaction may spend a quarter of a gigabyte of them, which
    /// are held once, by all who have the coins.
    Long(CoinBytes),
}

impl Output {
    fn new(script: &[u8], amount: u64) -> Result<Self, ScriptError> {
        let is_taproot = matches!(script, [0x51, 32, program @ ..] if program.len() == 32);
        Ok(Self::Made { txout: made(script, amount)?, is_taproot })
    }

    fn of(coin: &CoinBytes) -> Result<Self, ScriptError> {
        if coin.heap_bytes() >= LONG_FROM {
            return Ok(Self::Long(coin.clone()));
        }
        let coin = coin.coin();
        Self::new(&coin.script, coin.amount)
    }

    fn is_taproot(&self) -> bool {
        matches!(self, Self::Made { is_taproot: true, .. })
    }

    /// As the library has it.
    fn made(&self) -> Result<Made<'_>, ScriptError> {
        match self {
            Self::Made { txout, .. } => Ok(Made::There(txout)),
            Self::Long(coin) => {
                let coin = coin.coin();
                made(&coin.script, coin.amount).map(Made::Now)
            }
        }
    }
}

fn made(script: &[u8], amount: u64) -> Result<TxOut, ScriptError> {
    let amount = i64::try_from(amount)
        .map_err(|_| ScriptError::Setup(format!("{amount} satoshi is no amount")))?;
    Ok(TxOut::new(&ScriptPubkey::new(script).map_err(setup)?, amount))
}

/// An output as the kernel library has it, kept or made for a while.
enum Made<'a> {
    There(&'a TxOut),
    Now(TxOut),
}

impl Deref for Made<'_> {
    type Target = TxOut;

    fn deref(&self) -> &TxOut {
        match self {
            Self::There(txout) => txout,
            Self::Now(txout) => txout,
        }
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
        if outputs.iter().any(Output::is_taproot) {
            // A signature of taproot covers all outputs, so the library keeps a copy of each.
            let all = outputs.iter().map(Output::made).collect::<Result<Vec<_>, _>>()?;
            let all: Vec<_> = all.iter().map(|output| TxOut::as_ref(output)).collect();
            of_taproot = Some(shared_data(&tx, &all)?);
        }
        if outputs.iter().any(|output| !output.is_taproot()) {
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
        let (data, flags) = if output.is_taproot() {
            (&self.of_taproot, flags)
        } else {
            (&self.of_others, flags & !VERIFY_TAPROOT)
        };
        let data = data.as_ref().expect("each kind of output has its data");
        run(&*output.made()?, &self.tx, data, input, flags)
    }
}

fn shared_data(
    tx: &Transaction,
    outputs: &[TxOutRef<'_>],
) -> Result<PrecomputedTransactionData, ScriptError> {
    PrecomputedTransactionData::new(tx, outputs).map_err(setup)
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

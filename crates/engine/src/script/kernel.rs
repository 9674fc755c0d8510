//! [`KernelInterpreter`]: Bitcoin Core's interpreter, out of its kernel library.
//!
//! Its answer is the verdict, as it stands. What it cannot be asked (an input that is not there,
//! flags that make no sense, outputs that are missing) is an error of setup and never a verdict.

use super::interpreter::{Interpreter, PreparedTx, Refusal, error_text};
use super::verify::{InterpreterTx, SpentOutput};
use crate::coin::CoinBytes;
use apus_chain::{
    ScriptError, ScriptVerifier, VERIFY_CHECKLOCKTIMEVERIFY, VERIFY_CHECKSEQUENCEVERIFY,
    VERIFY_DERSIG, VERIFY_NULLDUMMY, VERIFY_P2SH, VERIFY_TAPROOT, VERIFY_WITNESS,
};

/// The rules that a block can turn on.
const VERIFY_ALL: u32 = VERIFY_P2SH
    | VERIFY_DERSIG
    | VERIFY_NULLDUMMY
    | VERIFY_CHECKLOCKTIMEVERIFY
    | VERIFY_CHECKSEQUENCEVERIFY
    | VERIFY_WITNESS
    | VERIFY_TAPROOT;

/// Bitcoin Core's interpreter.
pub(super) struct KernelInterpreter;

impl Interpreter for KernelInterpreter {
    fn prepare(&self, raw: &[u8], spent: &[CoinBytes]) -> Result<Box<dyn PreparedTx>, ScriptError> {
        let mut tx = read(raw)?;
        let (inputs, count) = (tx.inputs(), spent.len());
        if inputs == 0 || inputs != count {
            let why = format!("a transaction of {inputs} inputs came with {count} outputs spent");
            return Err(ScriptError::Setup(why));
        }
        // Only signatures of taproot cover all outputs, which are copied for them. A transaction may spend a quarter
        // of a gigabyte of scripts: else they stay where all who have the coins hold them.
        if spent.iter().any(|coin| is_taproot(&coin.coin().script)) {
            let coins: Vec<_> = spent.iter().map(CoinBytes::coin).collect();
            let spent = coins.iter().map(|coin| output(&coin.script, coin.amount));
            share(&mut tx, &spent.collect::<Result<Vec<_>, _>>()?)?;
        } else {
            share(&mut tx, &[])?;
        }
        Ok(Box::new(KernelTx { tx, spent: spent.to_vec() }))
    }
}

impl ScriptVerifier for KernelInterpreter {
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
        let (mut tx, spent) = (read(tx)?, output(script_pubkey, amount)?);
        let all_known = tx.inputs() == 1;
        if flags & VERIFY_TAPROOT != 0 && !all_known {
            return Err(setup("taproot's rules need all outputs that are spent"));
        }
        share(&mut tx, if all_known { std::slice::from_ref(&spent) } else { &[] })?;
        run(&tx, input, spent, flags).map_err(|refusal| refusal.error)
    }
}

/// A transaction in the interpreter's hands, with the coins that it spends.
struct KernelTx {
    tx: InterpreterTx,
    spent: Vec<CoinBytes>,
}

impl PreparedTx for KernelTx {
    fn verify(&self, input: usize, flags: u32) -> Result<(), Refusal> {
        let Some(coin) = self.spent.get(input) else {
            let why = format!("no input {input} in a transaction of {}", self.spent.len());
            return Err(ScriptError::Setup(why).into());
        };
        let coin = coin.coin();
        run(&self.tx, input, output(&coin.script, coin.amount)?, flags)
    }
}

fn read(raw: &[u8]) -> Result<InterpreterTx, ScriptError> {
    InterpreterTx::read(raw).ok_or_else(|| setup("the transaction cannot be read"))
}

fn share(tx: &mut InterpreterTx, spent: &[SpentOutput<'_>]) -> Result<(), ScriptError> {
    let shared = tx.share(spent);
    shared.then_some(()).ok_or_else(|| setup("memory for what the inputs share is not there"))
}

/// Whether an output is locked by taproot's rules (BIP-341), where those are turned on. Core looks at the flag for no
/// other (`script/interpreter.cpp`, `VerifyWitnessProgram`).
fn is_taproot(script: &[u8]) -> bool {
    matches!(script, [0x51, 32, program @ ..] if program.len() == 32)
}

fn output(script: &[u8], amount: u64) -> Result<SpentOutput<'_>, ScriptError> {
    let amount = i64::try_from(amount)
        .map_err(|_| ScriptError::Setup(format!("{amount} satoshi is no amount")))?;
    Ok(SpentOutput::new(script, amount))
}

fn run(
    tx: &InterpreterTx,
    input: usize,
    spent: SpentOutput<'_>,
    flags: u32,
) -> Result<(), Refusal> {
    if input >= tx.inputs() {
        return Err(setup("there is no such input").into());
    }
    // Core ends the program where it is asked for witnesses alone.
    if flags & !VERIFY_ALL != 0 || flags & (VERIFY_WITNESS | VERIFY_P2SH) == VERIFY_WITNESS {
        return Err(setup(&format!("the flags {flags:#x} make no sense")).into());
    }
    match tx.verify(input, spent, flags) {
        0 => Ok(()),
        error @ 1.. => Err(Refusal { error: ScriptError::Invalid, name: error_text(error) }),
        _ => Err(setup("the interpreter ended without an answer").into()),
    }
}

fn setup(why: &str) -> ScriptError {
    ScriptError::Setup(why.to_owned())
}
